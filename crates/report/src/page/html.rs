//! Writes the page: HTML that is well-formed XML too, so that a test can parse it.
//!
//! Everything but curves and flame graphs is here and needs no script. The script sorts tables, copies commands, and
//! draws into the sections that this file leaves empty for it.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_profiles::profile::{GroupBy, StackId};

use super::bars;
use super::data::data;
use super::markup::{hash_source, json, lines, text};
use super::model::{Cell, Curves, Page, Remedy, Stacks, Table, Verdict};
use crate::profile::{called_at, share};
use crate::words::count;

pub(super) const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("script/page.js"),
    include_str!("script/moments.js"),
    include_str!("script/chart.js"),
    include_str!("script/flame.js"),
    "})();\n"
);
/// The script that only a page of `serve` has.
const LIVE: &str = include_str!("script/live.js");
/// Rows of the static table of sites, and functions that it shows of each site.
const SITES: usize = 100;
const FRAMES: usize = 5;

/// Writes a page that loads nothing and sends nothing.
pub fn write(out: &mut dyn Write, page: &Page) -> io::Result<()> {
    write_as(out, page, None)
}

/// Writes the page as one of `serve`, with the script that reads it again. `target` is the process's name in addresses.
pub fn write_live(out: &mut dyn Write, page: &Page, target: &str) -> io::Result<()> {
    write_as(out, page, Some(target))
}

/// The Content-Security-Policy of the pages of `serve`, for the head of an answer.
pub fn policy() -> String {
    format!("{}; connect-src 'self'", policy_of(&[SCRIPT, LIVE]))
}

fn policy_of(scripts: &[&str]) -> String {
    let scripts: Vec<String> = scripts.iter().map(|script| hash_source(script)).collect();
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        hash_source(STYLE),
        scripts.join(" ")
    )
}

fn write_as(out: &mut dyn Write, page: &Page, live: Option<&str>) -> io::Result<()> {
    head(out, page, live)?;
    writeln!(out, r#"<main id="main">"#)?;
    answer(out, page)?;
    if let Some(all) = &page.bars {
        bars::write(out, all)?;
    }
    if let Some(of) = &page.curves {
        curves(out, of)?;
    }
    if let Some(of) = &page.stacks {
        stacks(out, of)?;
    }
    if !page.tables.is_empty() {
        writeln!(out, r#"<section id="tables" aria-labelledby="tables-h"><h2 id="tables-h">Tables</h2>"#)?;
        page.tables.iter().try_for_each(|of| table(out, of))?;
        writeln!(out, "</section>")?;
    }
    gaps(out, page)?;
    writeln!(out, "</main>\n<footer>")?;
    page.notes.iter().try_for_each(|note| writeln!(out, "<p>{}</p>", text(note)))?;
    let about = if live.is_some() { "" } else { " The page loads nothing and sends nothing." };
    writeln!(out, "<p>Made by plimsoll {}.{about}</p>", env!("CARGO_PKG_VERSION"))?;
    let data = json(&data(page)).map_err(io::Error::from)?;
    writeln!(out, "</footer>\n<script type=\"application/json\" id=\"data\">{data}</script>")?;
    writeln!(out, "<script>{SCRIPT}</script>")?;
    if live.is_some() {
        writeln!(out, "<script>{LIVE}</script>")?;
    }
    writeln!(out, "</body>\n</html>")
}

fn head(out: &mut dyn Write, page: &Page, live: Option<&str>) -> io::Result<()> {
    let title = text(&page.title);
    let policy = if live.is_some() { policy() } else { policy_of(&[SCRIPT]) };
    writeln!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>")?;
    writeln!(out, r#"<meta http-equiv="Content-Security-Policy" content="{policy}"/>"#)?;
    writeln!(out, r#"<meta name="viewport" content="width=device-width, initial-scale=1"/>"#)?;
    writeln!(out, r#"<meta name="referrer" content="no-referrer"/>"#)?;
    writeln!(out, "<title>{title} – Plimsoll</title>\n<style>{STYLE}</style>\n</head>\n<body>")?;
    writeln!(out, r##"<a class="skip" href="#main">Skip to the verdict</a>"##)?;
    writeln!(out, "<header><h1>{title}</h1>")?;
    writeln!(out, r#"<ul class="facts">"#)?;
    page.facts.iter().try_for_each(|fact| writeln!(out, "<li>{}</li>", text(fact)))?;
    writeln!(out, "</ul>")?;
    let mut sections = vec![("#memory", "Memory", page.bars.is_some())];
    sections.push(("#time", "Over time", page.curves.is_some()));
    sections.push(("#stacks", "Call stacks", page.stacks.is_some()));
    sections.push(("#tables", "Tables", !page.tables.is_empty()));
    sections.push(("#gaps", "Gaps", !page.gaps.is_empty()));
    write!(out, r#"<nav aria-label="Contents">"#)?;
    for (anchor, name, _) in sections.iter().filter(|(_, _, is_there)| *is_there) {
        write!(out, r#"<a href="{anchor}">{name}</a> "#)?;
    }
    writeln!(out, "</nav>")?;
    if let Some(target) = live {
        let target = text(target);
        writeln!(
            out,
            r#"<p class="quiet"><a href="/">All processes</a> · <span id="live">read again every 15 s</span> <button type="button" id="pause" hidden="hidden">Pause</button> · for programs: <a href="/api/{target}/explain">explain</a>, <a href="/api/{target}/report">report</a></p>"#
        )?;
    }
    writeln!(out, "</header>")
}

/// How the process ended, then the verdicts. The first verdict and each warning show their first remedy; other remedies
/// are folded away.
fn answer(out: &mut dyn Write, page: &Page) -> io::Result<()> {
    writeln!(
        out,
        r#"<section id="verdict" aria-labelledby="verdict-h"><h2 id="verdict-h" class="hidden">Verdict</h2>"#
    )?;
    if let Some(ending) = &page.ending {
        writeln!(out, r#"<p class="ending">{}</p>"#, text(ending))?;
    }
    page.verdicts.iter().enumerate().try_for_each(|(index, of)| verdict(out, of, index == 0))?;
    writeln!(out, "</section>")
}

fn verdict(out: &mut dyn Write, of: &Verdict, is_first: bool) -> io::Result<()> {
    let severity = match of.severity.as_str() {
        known @ ("critical" | "warning") => known,
        _ => "note",
    };
    writeln!(
        out,
        r#"<article class="verdict {severity}"><h3><span class="mark">{severity}</span> <span class="id">{}</span></h3><p class="sentence">{}</p>"#,
        text(&of.id),
        text(&of.summary)
    )?;
    let (first, others) = match of.remedies.split_first() {
        Some((first, others)) if is_first || severity != "note" => (Some(first), others),
        _ => (None, of.remedies.as_slice()),
    };
    if let Some(first) = first {
        remedy(out, first)?;
    }
    if !of.certainty.is_empty() {
        writeln!(out, r#"<p class="quiet">How sure: {}</p>"#, text(&of.certainty))?;
    }
    if !of.evidence.is_empty() || !others.is_empty() {
        let summary = if others.is_empty() { "Evidence" } else { "Evidence and other remedies" };
        writeln!(out, "<details><summary>{summary}</summary><ul>")?;
        of.evidence.iter().try_for_each(|fact| writeln!(out, "<li>{}</li>", text(fact)))?;
        writeln!(out, "</ul>")?;
        others.iter().try_for_each(|of| remedy(out, of))?;
        writeln!(out, "<p class=\"quiet\">More: <code>plimsoll why {}</code></p></details>", text(&of.id))?;
    }
    writeln!(out, "</article>")
}

fn remedy(out: &mut dyn Write, of: &Remedy) -> io::Result<()> {
    writeln!(out, r#"<div class="remedy">"#)?;
    if !of.what.is_empty() {
        writeln!(out, "<p>{}</p>", text(&of.what))?;
    }
    if !of.how.is_empty() {
        writeln!(out, r#"<pre class="copy" tabindex="0">{}</pre>"#, lines(&of.how))?;
    }
    let gives = if of.gives_back.is_empty() { String::new() } else { format!("Gives back {}. ", of.gives_back) };
    let after = format!("{gives}{}", of.trade_off);
    if !after.is_empty() {
        writeln!(out, r#"<p class="quiet">{}</p>"#, text(&after))?;
    }
    writeln!(out, "</div>")
}

fn curves(out: &mut dyn Write, of: &Curves) -> io::Result<()> {
    writeln!(out, r#"<section id="time" aria-labelledby="time-h"><h2 id="time-h">Over time</h2>"#)?;
    writeln!(out, r#"<div id="charts"></div>"#)?;
    if !of.picture.is_empty() {
        writeln!(out, r#"<noscript><figure class="picture">{}</figure></noscript>"#, of.picture)?;
    }
    let thinned = match of.readings > of.intervals as u64 {
        true => format!(
            "{} readings are drawn as {} intervals of {:.0} s, with the lowest and highest reading of each (a reading may \
             count for the interval beside it too).",
            count(of.readings),
            count(of.intervals as u64),
            of.step_ms / 1e3
        ),
        false if of.readings == 1 => "The only reading is drawn as a point.".to_owned(),
        false => format!("All {} readings are drawn.", count(of.readings)),
    };
    writeln!(out, r#"<p class="quiet">{thinned} Times are UTC.</p></section>"#)
}

fn stacks(out: &mut dyn Write, of: &Stacks) -> io::Result<()> {
    writeln!(out, r#"<section id="stacks" aria-labelledby="stacks-h"><h2 id="stacks-h">{}</h2>"#, text(&of.title))?;
    writeln!(out, r#"<div id="flame"></div>"#)?;
    let profile = &of.profile;
    let Some((column, name)) = of.columns.last().filter(|_| !of.moments_ms.is_empty()).or(of.columns.first()) else {
        return writeln!(out, "</section>");
    };
    let total = profile.total()[*column].amount;
    let companion = profile.companion(*column);
    let mut heads = vec!["size", "share", "call stack, innermost first"];
    if companion.is_some() {
        heads.insert(1, "number");
    }
    let groups = profile.group(GroupBy::Site, *column);
    let row = |group: &plimsoll_profiles::profile::Group| {
        let value = group.values[*column].amount;
        let mut row = vec![
            Cell::Bytes(u64::try_from(value).unwrap_or(0)),
            Cell::Percent(share(value, total)),
            Cell::Text(group.stack.map_or_else(|| group.name.clone(), |stack| innermost(of, stack))),
        ];
        if let Some(count) = companion {
            row.insert(1, Cell::Count(u64::try_from(group.values[count].amount).unwrap_or(0)));
        }
        row
    };
    let sites = Table {
        id: "sites",
        title: "Call sites".into(),
        caption: match groups.len() > SITES {
            true => format!("{name}: the {SITES} biggest of {}.", count(groups.len() as u64)),
            false => format!("{name}, biggest first."),
        },
        heads,
        rows: groups.iter().take(SITES).map(row).collect(),
        is_open: false,
    };
    table(out, &sites)?;
    writeln!(out, "</section>")
}

fn innermost(of: &Stacks, stack: StackId) -> String {
    let profile = &of.profile;
    let frames = profile.frames_of(stack);
    let names = frames.iter().take(FRAMES);
    let names: Vec<String> =
        names.map(|id| called_at(profile.function_at(profile.function_of(*id)), profile.frame_at(*id))).collect();
    let more = if frames.len() > FRAMES { " ← …" } else { "" };
    if names.is_empty() { "(no stack)".into() } else { format!("{}{more}", names.join(" ← ")) }
}

fn table(out: &mut dyn Write, of: &Table) -> io::Result<()> {
    let open = if of.is_open { r#" open="open""# } else { "" };
    writeln!(
        out,
        r#"<details id="{}"{open}><summary>{} ({})</summary><table class="sortable"><caption>{}</caption><thead><tr>"#,
        of.id,
        text(&of.title),
        count(of.rows.len() as u64),
        text(&of.caption)
    )?;
    of.heads.iter().try_for_each(|head| write!(out, r#"<th scope="col">{head}</th>"#))?;
    writeln!(out, "</tr></thead><tbody>")?;
    for row in &of.rows {
        write!(out, "<tr>")?;
        row.iter().zip(&of.heads).try_for_each(|(of, head)| cell(out, of, head))?;
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></details>")
}

/// `data-v` is what a table sorts by; `data-h` names the cell where a narrow screen has no columns.
fn cell(out: &mut dyn Write, of: &Cell, head: &str) -> io::Result<()> {
    match of {
        Cell::Text(name) => write!(out, r#"<td class="t" data-h="{head}">{}</td>"#, text(name)),
        Cell::Bytes(n) => write!(out, r#"<td data-h="{head}" data-v="{n}">{}</td>"#, Bytes(*n)),
        Cell::Change(n) => {
            let sign = if *n < 0 { "−" } else { "+" };
            write!(out, r#"<td data-h="{head}" data-v="{n}">{sign}{}</td>"#, Bytes(n.unsigned_abs()))
        }
        Cell::Count(n) => write!(out, r#"<td data-h="{head}" data-v="{n}">{}</td>"#, count(*n)),
        Cell::Percent(n) => write!(out, r#"<td data-h="{head}" data-v="{n:.4}">{n:.1} %</td>"#),
        Cell::None => write!(out, r#"<td data-h="{head}" data-v="">–</td>"#),
    }
}

fn gaps(out: &mut dyn Write, page: &Page) -> io::Result<()> {
    if page.gaps.is_empty() {
        return Ok(());
    }
    writeln!(out, r#"<section id="gaps" aria-labelledby="gaps-h"><h2 id="gaps-h">What could not be read</h2><dl>"#)?;
    for gap in &page.gaps {
        write!(out, "<dt>{}</dt><dd>{}", text(&gap.reason), text(&gap.effect))?;
        if !gap.remedy.is_empty() {
            write!(out, r#"<pre class="copy" tabindex="0">{}</pre>"#, lines(&gap.remedy))?;
        }
        writeln!(out, "</dd>")?;
    }
    writeln!(out, "</dl></section>")
}
