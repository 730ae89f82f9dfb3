//! One self-contained page: the sums, the flame graph, a table for each grouping that the profile has, the gaps. The
//! page loads nothing, and its Content-Security-Policy forbids the browser to load anything.

use std::io::{self, Write};

use plimsoll_profiles::profile::{ChangeKind, Column, GroupBy, Profile, ProfileDiff, StackId, Value};

use super::svg::{self, escaped};
use super::text::sum_words;
use super::{Exporter, View, amount, by_words, called_at, change, error, magnitude, named, share};
use crate::words;

/// Lines of a table.
const LINES: usize = 50;
/// Frames shown of a folded stack.
const INNERMOST: usize = 3;
/// Characters shown of a name: the parameters of a C++ function fill lines.
const NAME: usize = 48;
const STYLE: &str = include_str!("page.css");

pub const EXPORTER: Exporter = Exporter {
    view: |out, view, _| write(out, view),
    diff: |out, changes, _| diff(out, changes),
    is_binary: false,
    keeps_wrappers: false,
    is_of_stacks: true,
    has_closing_lines: false,
};

pub fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    let profile = view.profile;
    let total = profile.total();
    open(out, if profile.title.is_empty() { "Profile" } else { &profile.title })?;
    writeln!(out, "<p>{}</p>", escaped(&sum_words(view, &total)))?;
    if profile.time_ns != 0 {
        writeln!(out, "<p class=quiet>{}</p>", words::moment_text(profile.time_ns))?;
    }
    writeln!(out, "<div class=graph>")?;
    svg::write(out, view)?;
    writeln!(out, "</div>")?;
    for by in [
        GroupBy::Site,
        GroupBy::Category,
        GroupBy::Package,
        GroupBy::Class,
        GroupBy::Thread,
        GroupBy::Module,
        GroupBy::Caller,
    ] {
        table(out, view, by, &total)?;
    }
    close(out, profile)
}

pub fn diff(out: &mut dyn Write, diff: &ProfileDiff) -> io::Result<()> {
    let profile = &diff.profile;
    open(out, &format!("Difference: {}", profile.title))?;
    writeln!(out, "<div class=graph>")?;
    svg::diff(out, diff)?;
    writeln!(out, "</div>")?;
    let column = &profile.columns[0];
    for kind in [ChangeKind::New, ChangeKind::Grew, ChangeKind::Shrank, ChangeKind::Gone, ChangeKind::Noise] {
        let sites: Vec<_> = diff.sites.iter().filter(|s| s.change == kind).collect();
        if sites.is_empty() {
            continue;
        }
        let is_open = if matches!(kind, ChangeKind::New | ChangeKind::Grew) { " open" } else { "" };
        writeln!(
            out,
            "<details{is_open}><summary>{}: {}</summary><table>",
            kind.name(),
            words::count(sites.len() as u64)
        )?;
        writeln!(out, "<tr><th>change<th>before<th>after<th>noise up to<th class=name>stack</tr>")?;
        for site in sites.iter().take(LINES) {
            let (from, to) = (amount(column, site.before.amount), amount(column, site.after.amount));
            let grown = change(column, site.grown());
            let noise = magnitude(column, diff.noise_up_to(site));
            write!(out, "<tr><td>{grown}<td>{from}<td>{to}<td>{noise}<td class=name>")?;
            stack(out, profile, site.stack)?;
            writeln!(out, "</tr>")?;
        }
        writeln!(out, "</table>{}</details>", more(sites.len()))?;
    }
    close(out, profile)
}

fn open(out: &mut dyn Write, title: &str) -> io::Result<()> {
    let title = escaped(&words::printable(title));
    writeln!(out, "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>")?;
    writeln!(out, r#"<meta name=viewport content="width=device-width, initial-scale=1">"#)?;
    let only_inline = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    writeln!(out, r#"<meta http-equiv=Content-Security-Policy content="{only_inline}">"#)?;
    writeln!(out, "<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>")
}

fn close(out: &mut dyn Write, profile: &Profile) -> io::Result<()> {
    if !profile.gaps.is_empty() {
        writeln!(out, "<h2>What could not be read</h2>\n<ul>")?;
        for gap in &profile.gaps {
            let [reason, effect, remedy] =
                [&gap.reason, &gap.effect, &gap.remedy].map(|text| escaped(&words::printable(text)));
            let remedy = if remedy.is_empty() { remedy } else { format!("<pre>{remedy}</pre>") };
            writeln!(out, "<li>{reason}: {effect}{remedy}</li>")?;
        }
        writeln!(out, "</ul>")?;
    }
    writeln!(out, "</html>")
}

fn table(out: &mut dyn Write, view: &View, by: GroupBy, total: &[Value]) -> io::Result<()> {
    let profile = view.profile;
    let groups = profile.group(by, view.column);
    // A table with one line would repeat the total.
    if groups.len() < 2 {
        return Ok(());
    }
    let is_open = if by == GroupBy::Site { " open" } else { "" };
    let head = format!("by {}: {}", by_words(by), words::count(groups.len() as u64));
    // The name is beside the columns that the page is about. Other columns, if any, follow to the right.
    let about: Vec<usize> = [Some(view.column), profile.companion(view.column)].into_iter().flatten().collect();
    let other: Vec<usize> =
        (0..profile.columns.len()).filter(|at| !about.contains(at) && total[*at].amount != 0).collect();
    writeln!(out, "<details{is_open}><summary>{head}</summary><div class=wide><table><tr>")?;
    let heads = |columns: &[usize]| -> String {
        columns.iter().map(|at| format!("<th>{}", profile.columns[*at].name().replace('_', " "))).collect()
    };
    writeln!(out, "{}<th>share<th class=name>{}{}</tr>", heads(&about), by_words(by), heads(&other))?;
    for group in groups.iter().take(LINES) {
        let cells = |columns: &[usize]| -> String {
            let figure = |at: &usize| (&profile.columns[*at], group.values[*at]);
            let cell = |(column, value): (&Column, Value)| {
                // The column heads name the unit.
                let bare = Column { noun: "", ..column.clone() };
                format!("<td>{}{}", amount(&bare, value.amount), error(column, value))
            };
            columns.iter().map(figure).map(cell).collect()
        };
        let percent = share(group.values[view.column].amount, total[view.column].amount);
        write!(out, "<tr>{}<td>{percent:.1} %<td class=name>", cells(&about))?;
        match group.stack {
            Some(of) => stack(out, profile, of)?,
            None => write!(out, "{}", escaped(&words::printable(&group.name)))?,
        }
        writeln!(out, "{}</tr>", cells(&other))?;
    }
    writeln!(out, "</table></div>{}</details>", more(groups.len()))
}

fn more(lines: usize) -> String {
    match lines.saturating_sub(LINES) {
        0 => String::new(),
        n => format!("<p class=quiet>{} more</p>", words::count(n as u64)),
    }
}

/// The innermost functions; a click unfolds the whole stack.
fn stack(out: &mut dyn Write, profile: &Profile, stack: StackId) -> io::Result<()> {
    let functions = profile.frames_of(stack).iter().map(|id| (profile.function_at(profile.function_of(*id)), *id));
    let names: Vec<String> =
        functions.clone().map(|(function, _)| escaped(&words::cut(&named(function), NAME))).collect();
    let lines: Vec<String> =
        functions.map(|(function, id)| escaped(&called_at(function, profile.frame_at(id)))).collect();
    match names.len() {
        0 => write!(out, "(no stack)"),
        1 => write!(out, "{}", lines[0]),
        n => {
            let more = if n > INNERMOST { " ← …" } else { "" };
            let summary = names[..n.min(INNERMOST)].join(" ← ");
            write!(out, "<details><summary>{summary}{more}</summary>{}</details>", lines.join("<br>"))
        }
    }
}
