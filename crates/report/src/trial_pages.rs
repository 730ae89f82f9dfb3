//! `plimsoll try` for a ticket: Markdown, and a page of HTML that loads nothing and needs no script. Both show one
//! table.

use std::io::{self, Write};

use plimsoll_trial::{Metric, Trial};

use crate::page::markup::text;
use crate::ticket::{self, plain};
use crate::trial_text::{best, figure, signed};
use crate::words::{counted, cut, printable};

/// A figure of a row: the median with half of its spread, and the difference if the rounds show one.
struct Cell {
    median: String,
    spread: Option<String>,
    /// With its interval.
    difference: Option<(String, String)>,
}

/// A row as it is printed: its name, its cells, and the rest of the line.
struct Line {
    name: String,
    cells: Vec<Option<Cell>>,
    ran: String,
    predicted: String,
}

fn lines(trial: &Trial, metrics: &[Metric]) -> Vec<Line> {
    let line = |(row, named): (usize, &plimsoll_trial::Row)| {
        let all = trial.runs.iter().filter(|run| run.row == row).count();
        let bytes = |bytes: u64| figure(Metric::Idle, bytes as f64);
        Line {
            name: cut(&named.label, 200),
            cells: metrics.iter().map(|metric| cell(trial, row, *metric)).collect(),
            ran: match &named.missing {
                Some(reason) => format!("not tried: {}", printable(reason)),
                None => format!("{} of {all}", all - trial.failed(row).count()),
            },
            predicted: named
                .predicted
                .map_or(String::new(), |(least, most)| format!("{} to {}", bytes(least), bytes(most))),
        }
    };
    trial.rows.iter().enumerate().map(line).collect()
}

fn cell(trial: &Trial, row: usize, metric: Metric) -> Option<Cell> {
    let spread = trial.range(row, metric).map(|(least, most)| (most - least) / 2.0);
    let shown = |difference: plimsoll_trial::PairedDifference| {
        let interval = difference.interval;
        let percent =
            difference.percent().map_or(String::new(), |percent| format!(" ({percent:+.1} %)").replace('-', "−"));
        let bounds = format!("{} to {}", signed(metric, interval.low), signed(metric, interval.high));
        (format!("{}{percent}", signed(metric, interval.mean)), bounds)
    };
    let difference = trial.difference(row, metric).filter(|found| row > 0 && !found.interval.contains_zero());
    Some(Cell {
        median: figure(metric, trial.median(row, metric)?),
        spread: spread.filter(|half| *half > 0.0).map(|half| figure(metric, half)),
        difference: difference.map(shown),
    })
}

/// The facts below the title.
fn facts(trial: &Trial) -> Vec<String> {
    let rounds = counted(trial.rounds as u64, "round");
    let mut all = vec![format!("{rounds}{}", if trial.interrupted { ", interrupted" } else { "" })];
    all.extend(trial.ready.as_ref().map(|ready| format!("ready {}", printable(ready))));
    all.extend(trial.load.as_ref().map(|load| format!("load: {}", cut(load, 200))));
    all.extend(trial.limit.map(|limit| format!("limit {}", figure(Metric::Idle, limit as f64))));
    all
}

const LEGEND: &str = "Medians of the rounds ± half of their spread; below, the difference against plain where the rounds show one \
                      (Student's t over the rounds, 95 %).";

/// Failed runs, one sentence for each end of each row.
fn failures(trial: &Trial) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (row, named) in trial.rows.iter().enumerate() {
        for run in trial.failed(row) {
            let detail = run.detail.as_deref().map(|detail| format!(": {}", cut(detail, 200))).unwrap_or_default();
            let text = format!("{}: the program {}{detail}", cut(&named.label, 200), run.end.sentence());
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    all
}

pub fn markdown(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    let metrics = trial.metrics();
    writeln!(out, "{}\n\n{}.\n", plain(&cut(&trial.command, 200)), plain(&facts(trial).join(", ")))?;
    let headings: Vec<&str> = metrics.iter().map(|metric| metric.heading()).collect();
    writeln!(out, "| | {} | ran | expected saving |", headings.join(" | "))?;
    writeln!(out, "| --- |{} --- | --- |", " ---: |".repeat(metrics.len()))?;
    for line in lines(trial, &metrics) {
        write!(out, "| {} |", plain(&line.name))?;
        for cell in &line.cells {
            let Some(cell) = cell else {
                write!(out, " |")?;
                continue;
            };
            let spread = cell.spread.as_ref().map_or(String::new(), |spread| format!(" ± {spread}"));
            let difference = cell.difference.as_ref().map_or(String::new(), |(mean, _)| format!("; **{mean}**"));
            write!(out, " {}{spread}{difference} |", cell.median)?;
        }
        writeln!(out, " {} | {} |", plain(&line.ran), line.predicted)?;
    }
    writeln!(out, "\n{LEGEND}\n\n**{}**", plain(&best(trial)))?;
    for text in failures(trial).iter().chain(&trial.notes) {
        writeln!(out, "\n- {}", plain(&printable(text)))?;
    }
    Ok(())
}

pub fn html(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    let metrics = trial.metrics();
    let title = format!("plimsoll try: {}", trial.command);
    ticket::page(out, &title, &facts(trial).join(", "), &best(trial), |out| {
        write!(out, "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">row</th>")?;
        metrics.iter().try_for_each(|metric| write!(out, "<th scope=\"col\">{}</th>", metric.heading()))?;
        writeln!(out, "<th scope=\"col\">ran</th><th scope=\"col\">expected saving</th></tr></thead>\n<tbody>")?;
        for line in lines(trial, &metrics) {
            write!(out, "<tr><th scope=\"row\">{}</th>", text(&line.name))?;
            for cell in &line.cells {
                write!(out, "<td>")?;
                if let Some(Cell { median, spread, difference }) = cell {
                    write!(out, "{}", text(median))?;
                    if let Some(spread) = spread {
                        write!(out, " <small>± {}</small>", text(spread))?;
                    }
                    if let Some((mean, bounds)) = difference {
                        write!(out, " <b>{}</b> <small>{}</small>", text(mean), text(bounds))?;
                    }
                }
                write!(out, "</td>")?;
            }
            writeln!(out, "<td>{}</td><td>{}</td></tr>", text(&line.ran), text(&line.predicted))?;
        }
        writeln!(out, "</tbody></table></div>\n<p><small>{}</small></p>", text(LEGEND))?;
        for sentence in failures(trial).iter().chain(&trial.notes) {
            writeln!(out, "<p>{}</p>", text(sentence))?;
        }
        Ok(())
    })
}
