//! `plimsoll compare` for a ticket or a build: Markdown, and a page of HTML that loads nothing and needs no script.
//! Both show one table, then the call stacks behind it.

use std::io::{self, Write};

use plimsoll_trial::Metric;
use plimsoll_trial::budget::Excess;
use plimsoll_trial::comparison::{A, B, Comparison, Direction, METRICS, Measure, MedianChange, SIDES, Site};

use crate::comparison_text::{certainty, exceeded, facts, failures, interval, name, result, shown_of};
use crate::page::markup::{lines, text};
use crate::ticket::{self, plain};
use crate::trial_text::{figure, signed};
use crate::words::{counted, cut, printable};

/// Maximum number of frames of a call stack.
const FRAMES: usize = 12;

/// A row of the table: RSS and other figures, then the lines that changed, then their parts.
struct Row {
    name: String,
    /// A, B, B − A.
    figures: [String; 3],
    interval: String,
    changed: bool,
}

fn rows(of: &Comparison) -> Vec<Row> {
    let row = |name: String, metric: Metric, change: MedianChange| {
        let [a, b] = change.medians.map(|median| figure(metric, median));
        let figures = [a, b, signed(metric, change.interval.mean)];
        Row { name, figures, interval: interval(metric, &change), changed: change.direction() != Direction::Same }
    };
    let heading = |metric: Metric| if metric == Metric::Steady { "RSS" } else { metric.heading() };
    let metrics = METRICS.into_iter().filter_map(|metric| Some((metric, of.metric(metric)?)));
    let mut all: Vec<Row> = metrics.map(|(metric, change)| row(heading(metric).to_owned(), metric, change)).collect();
    let changed = |change: &MedianChange| change.direction() != Direction::Same;
    for (part, change) in of.line_changes().into_iter().filter(|(_, change)| changed(change)) {
        all.push(row(name(of, &part.line), Metric::Steady, change));
        let parts = of.part_changes(&part.line).into_iter().filter(|(_, change)| changed(change));
        all.extend(parts.map(|(part, change)| row(format!("— {}", part.name), Metric::Steady, change)));
    }
    all
}

/// Call stacks below one heading. Each has its change with its category, and its frames.
struct Stacks {
    heading: String,
    stacks: Vec<(String, Vec<String>)>,
}

fn stacks(of: &Comparison) -> Vec<Stacks> {
    let Some(tracked) = &of.tracked else { return Vec::new() };
    let one = |site: &Site, amount: &dyn Fn(i64) -> String| {
        let change = amount(site.held[B].saturating_sub(site.held[A]));
        let mut frames: Vec<String> = site.frames.iter().take(FRAMES).map(|frame| cut(frame, 200)).collect();
        if site.frames.len() > FRAMES {
            frames.push(format!("… {} further out", counted((site.frames.len() - FRAMES) as u64, "frame")));
        }
        (format!("{change}  {}", cut(&site.category, 60)), frames)
    };
    let list = |sites: &[Site], amount: &dyn Fn(i64) -> String| {
        shown_of(sites).iter().map(|site| one(site, amount)).collect::<Vec<_>>()
    };
    let [a, b] = tracked.runs;
    let bytes = list(&tracked.sites, &|change| signed(Metric::Steady, change as f64));
    let calls =
        |change: i64| format!("{}{}", if change < 0 { "−" } else { "+" }, counted(change.unsigned_abs(), "call"));
    let [from, to] = tracked.mapping_calls.map(|calls| calls.round());
    let heading = match tracked.measure {
        Measure::Held => "Held bytes",
        Measure::Live => "Live blocks",
        Measure::Peak => "Own peaks",
    };
    let limit = tracked.measure.limit().map(|limit| format!(" ({limit})")).unwrap_or_default();
    let mut all = vec![
        Stacks { heading: format!("{heading} by call stack{limit}, B − A: {}", certainty(a, b)), stacks: bytes },
        Stacks { heading: format!("Mapping calls: A {from}, B {to}"), stacks: list(&tracked.callers_of_mmap, &calls) },
    ];
    all.retain(|one| !one.stacks.is_empty());
    all
}

/// One sentence for each line beyond its budget, or the sentence that none is.
fn budget(of: &Comparison, excesses: Option<&[Excess]>) -> Vec<String> {
    let over =
        excesses.iter().flat_map(|all| all.iter()).map(|excess| format!("over budget: {}", exceeded(of, excess)));
    let within = excesses.is_some_and(<[Excess]>::is_empty) && of.is_compared();
    over.chain(within.then(|| "No line is beyond its budget.".to_owned())).collect()
}

fn notes(of: &Comparison) -> Vec<String> {
    failures(of).into_iter().chain(of.notes.iter().cloned()).collect()
}

/// `excesses`: the lines beyond their budget; `None` without a budget.
pub fn markdown(out: &mut dyn Write, of: &Comparison, excesses: Option<&[Excess]>) -> io::Result<()> {
    writeln!(out, "**{}**\n", plain(&printable(&result(of))))?;
    for sentence in budget(of, excesses) {
        writeln!(out, "- {}", plain(&printable(&sentence)))?;
    }
    for (side, command) in SIDES.iter().zip(&of.commands) {
        writeln!(out, "- {side}: {}", plain(&cut(command, 200)))?;
    }
    writeln!(out, "- {}\n", plain(&facts(of).join(", ")))?;
    if of.is_compared() {
        writeln!(out, "| | A | B | B − A | all intervals hold with 99 % |\n| --- | ---: | ---: | ---: | --- |")?;
        for row in rows(of) {
            let name = plain(&cut(&row.name, 100));
            let name = if row.changed { format!("**{name}**") } else { name };
            writeln!(out, "| {name} | {} | {} |", row.figures.join(" | "), plain(&row.interval))?;
        }
    }
    for Stacks { heading, stacks } in &stacks(of) {
        writeln!(out, "\n{}\n", plain(heading))?;
        for (change, frames) in stacks {
            let frames: Vec<String> = frames.iter().map(|frame| plain(&printable(frame))).collect();
            writeln!(out, "- {}: {}", plain(change), frames.join(" ← "))?;
        }
    }
    notes(of).iter().try_for_each(|note| writeln!(out, "\n- note: {}", plain(&printable(note))))
}

/// `excesses`: the lines beyond their budget; `None` without a budget.
pub fn html(out: &mut dyn Write, of: &Comparison, excesses: Option<&[Excess]>) -> io::Result<()> {
    let title = format!("plimsoll compare: {}, against {}", of.commands[B], of.commands[A]);
    ticket::page(out, &title, &facts(of).join(", "), &result(of), |out| {
        budget(of, excesses).iter().try_for_each(|sentence| writeln!(out, "<p>{}</p>", text(sentence)))?;
        if of.is_compared() {
            writeln!(out, "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">figure</th>")?;
            for head in ["A", "B", "B − A", "all intervals hold with 99 %"] {
                write!(out, "<th scope=\"col\">{head}</th>")?;
            }
            writeln!(out, "</tr></thead>\n<tbody>")?;
            for row in rows(of) {
                let class = if row.changed { " class=\"best\"" } else { "" };
                write!(out, "<tr><th scope=\"row\"{class}>{}</th>", text(&row.name))?;
                row.figures.iter().try_for_each(|figure| write!(out, "<td>{}</td>", text(figure)))?;
                writeln!(out, "<td>{}</td></tr>", text(&row.interval))?;
            }
            writeln!(out, "</tbody></table></div>")?;
        }
        for Stacks { heading, stacks } in &stacks(of) {
            writeln!(out, "<h2>{}</h2>", text(heading))?;
            for (change, frames) in stacks {
                writeln!(out, "<p><b>{}</b></p>\n<pre>{}</pre>", text(change), lines(&frames.join("\n")))?;
            }
        }
        notes(of).iter().try_for_each(|note| writeln!(out, "<p>{}</p>", text(note)))
    })
}
