//! `plimsoll try` for a person: a table of medians, then for each remedy what changed against the plain program.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_trial::rows::TOLERATED_PERCENT;
use plimsoll_trial::{Best, Metric, PairedDifference, RunEnd, Trial, Unit};

use crate::words::{count, cut, cut_apart, printable};

/// Columns of a row's name.
const NAME: usize = 28;

pub fn write(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    head(out, trial)?;
    table(out, trial)?;
    for row in 1..trial.rows.len() {
        remedy(out, trial, row)?;
    }
    failures(out, trial)?;
    failed_requests(out, trial)?;
    for note in &trial.notes {
        writeln!(out, "note: {}", printable(note))?;
    }
    writeln!(out, "\n{}", best(trial))
}

fn head(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    writeln!(out, "{}", cut(&trial.command, 120))?;
    let done = trial.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    let rounds = match trial.interrupted {
        true => format!("interrupted in round {done} of {}", trial.rounds),
        false => format!("{} of {}", plural(trial.rounds, "round"), plural(trial.rows.len(), "row")),
    };
    let mut facts = vec![rounds];
    facts.extend(trial.ready.as_ref().map(|ready| format!("ready {}", printable(ready))));
    facts.extend(trial.load.as_ref().map(|load| format!("load: {}", cut(load, 60))));
    facts.extend(trial.limit.map(|limit| format!("limit {}", Bytes(limit))));
    writeln!(out, "{}", facts.join("   "))
}

fn plural(number: usize, word: &str) -> String {
    if number == 1 { format!("1 {word}") } else { format!("{number} {word}s") }
}

/// The medians, and below each median half of the spread between the smallest and the largest round.
fn table(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    let metrics = trial.metrics();
    if metrics.is_empty() {
        return Ok(());
    }
    write!(out, "\n{:<NAME$}", "median of the rounds")?;
    for metric in &metrics {
        write!(out, " {:>12}", metric.heading())?;
    }
    writeln!(out, " {:>9}", "ran")?;
    let names = cut_apart(trial.rows.iter().map(|named| named.label.as_str()), NAME);
    for (row, named) in trial.rows.iter().enumerate() {
        if named.missing.is_some() {
            continue;
        }
        write!(out, "{:<NAME$}", names[row])?;
        for metric in &metrics {
            let shown = trial.median(row, *metric).map_or("-".into(), |median| figure(*metric, median));
            write!(out, " {shown:>12}")?;
        }
        let runs = trial.runs.iter().filter(|run| run.row == row);
        let (all, bad) = (runs.count(), trial.failed(row).count());
        writeln!(out, " {:>9}", format!("{} of {all}", all - bad))?;
        let spread = |metric: &Metric| trial.range(row, *metric).map(|(least, most)| (most - least) / 2.0);
        if trial.runs.iter().filter(|run| run.row == row && run.end.is_good()).count() > 1 {
            write!(out, "{:<NAME$}", "")?;
            for metric in &metrics {
                let shown = spread(metric).map_or(String::new(), |half| format!("± {}", figure(*metric, half)));
                write!(out, " {shown:>12}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// A remedy: the differences that the rounds show, then those that they do not.
fn remedy(out: &mut dyn Write, trial: &Trial, row: usize) -> io::Result<()> {
    let named = &trial.rows[row];
    writeln!(out, "\n{}", printable(&named.label))?;
    if let Some(reason) = &named.missing {
        return writeln!(out, "  not tried: {}", printable(reason));
    }
    let mut hidden = Vec::new();
    for metric in trial.metrics() {
        let Some(difference) = trial.difference(row, metric) else { continue };
        if difference.interval.contains_zero() {
            hidden.push(metric.heading());
        } else {
            writeln!(out, "  {:<13} {}", metric.heading(), shown(metric, difference))?;
        }
    }
    let is_compared = trial.metrics().into_iter().any(|metric| trial.difference(row, metric).is_some());
    if !is_compared {
        writeln!(out, "  not compared: fewer than two rounds completed both here and in the plain program")?;
    }
    if !hidden.is_empty() {
        writeln!(out, "  no difference that the rounds can show: {}", hidden.join(", "))?;
    }
    if let Some((least, most)) = named.predicted {
        let (least, most) = (Bytes(least).to_string(), Bytes(most).to_string());
        let range = if least == most { least } else { format!("{least} to {most}") };
        writeln!(out, "  explain expected a saving of {range}")?;
    }
    Ok(())
}

/// `−76.2 MiB (−15 %), 95 % interval −81.0 to −71.4 MiB`
fn shown(metric: Metric, difference: PairedDifference) -> String {
    let interval = difference.interval;
    let percent =
        difference.percent().map(|percent| format!(" ({percent:+.1} %)").replace('-', "−")).unwrap_or_default();
    format!(
        "{}{percent}, 95 % interval {} to {}",
        signed(metric, interval.mean),
        signed(metric, interval.low),
        signed(metric, interval.high)
    )
}

fn failures(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    for (row, named) in trial.rows.iter().enumerate() {
        let mut sentences: Vec<String> = Vec::new();
        for run in trial.failed(row) {
            let detail = run.detail.as_deref().map(|detail| format!(": {}", cut(detail, 100))).unwrap_or_default();
            let text = format!("the program {}{detail}", run.end.sentence());
            if !sentences.contains(&text) {
                sentences.push(text);
            }
        }
        let (all, bad) = (trial.runs.iter().filter(|run| run.row == row).count(), trial.failed(row).count());
        if bad > 0 {
            writeln!(out, "\n{}: {bad} of {} failed", printable(&named.label), plural(all, "run"))?;
        }
        for text in sentences {
            writeln!(out, "  {text}")?;
        }
    }
    Ok(())
}

/// A row that answers with errors may be fast and small for that reason alone.
fn failed_requests(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    let rows = trial.rows.iter().enumerate().map(|(row, named)| (named, trial.failed_requests(row)));
    let some: Vec<String> = rows
        .filter(|(_, sum)| *sum > 0)
        .map(|(named, sum)| format!("{} {}", printable(&named.label), count(sum)))
        .collect();
    if some.is_empty() { Ok(()) } else { writeln!(out, "\nfailed requests, all rounds: {}", some.join(", ")) }
}

/// The recommendation, with its reason, and the rows that are out of the running.
pub fn best(trial: &Trial) -> String {
    let failing: Vec<String> = trial.failing().iter().map(|row| printable(&trial.rows[*row].label)).collect();
    let text = recommended(trial);
    if failing.is_empty() {
        return text;
    }
    let than = match trial.runs.iter().any(|run| run.row == 0 && run.load_errors.is_some()) {
        true => "in the plain program",
        false => "in another row",
    };
    let dot = if text.ends_with('.') { "" } else { "." };
    format!("{text}{dot} Not considered, because more requests failed than {than}: {}", failing.join(", "))
}

fn recommended(trial: &Trial) -> String {
    let ends = |of: fn(&RunEnd) -> bool| trial.runs.iter().filter(|run| run.row == 0 && of(&run.end)).count();
    let (good, killed) = (ends(RunEnd::is_good), ends(|end| *end == RunEnd::OutOfMemory));
    let failed = trial.failed(0).count();
    let killed_in = format!("was killed at its limit in {killed} of {}", plural(good + failed, "run"));
    match trial.best() {
        Best::Saves { row, metric, difference } => format!(
            "best: {}: {} {}. {}",
            printable(&trial.rows[row].label),
            metric.heading(),
            shown(metric, difference),
            cost(trial, row)
        ),
        Best::Survives { row, metric, median } => format!(
            "best: {}: every run completed ({} {}); the plain program {killed_in}",
            printable(&trial.rows[row].label),
            metric.heading(),
            figure(metric, median)
        ),
        Best::TooFew if !trial.survivors().is_empty() => {
            format!("not decided: the plain program {killed_in}, which may be chance: use more rounds (--rounds)")
        }
        Best::Nothing | Best::TooFew if killed > 0 => {
            let other = if trial.rows.iter().any(|row| row.once) { "row whose effect lasts" } else { "other row" };
            let how =
                if trial.failing().is_empty() { "in every round" } else { "in every round without failed requests" };
            format!("best: none. The plain program {killed_in}, and no {other} completed {how}")
        }
        Best::Nothing | Best::TooFew if good == 0 && failed > 0 => {
            "nothing was compared: no run of the plain program completed".into()
        }
        Best::Nothing if trial.rows.len() > 1 => {
            format!(
                "best: plain. The rounds show no row that saves memory and costs at most {TOLERATED_PERCENT} % of latency or throughput"
            )
        }
        Best::Nothing => "nothing was compared: only the plain program ran".into(),
        Best::TooFew if trial.compared_rounds() > 1 => {
            format!("not decided: {} rounds are too few, use --rounds 5", trial.compared_rounds())
        }
        Best::TooFew => "too few complete rounds to compare: an interval needs two (--rounds 5)".into(),
    }
}

/// What the best row costs.
fn cost(trial: &Trial, row: usize) -> String {
    let speed = [Metric::P99, Metric::Throughput, Metric::Took];
    let known = speed.into_iter().find_map(|metric| Some((metric, trial.difference(row, metric)?)));
    match known {
        None if trial.load.is_none() => "Latency was not measured: give a load (--load)".into(),
        None if trial.metrics().iter().any(|metric| speed.contains(metric)) => {
            "Latency was not compared: fewer than two rounds have it both here and in the plain program".into()
        }
        None => {
            "Latency was not measured: the output of the load isn't that of wrk, hey, oha, k6 or redis-benchmark".into()
        }
        Some((metric, difference)) if difference.interval.contains_zero() => {
            format!("{}: no difference that the rounds can show", metric.heading())
        }
        Some((metric, difference)) => format!("{}: {}", metric.heading(), shown(metric, difference)),
    }
}

/// A figure with its unit.
pub fn figure(metric: Metric, value: f64) -> String {
    match metric.unit() {
        Unit::Bytes => Bytes(value.max(0.0) as u64).to_string(),
        Unit::Milliseconds => format!("{} ms", digits(value)),
        Unit::Seconds => format!("{} s", digits(value)),
        Unit::PerSecond => digits(value),
    }
}

/// Like `figure`, with a sign.
pub fn signed(metric: Metric, value: f64) -> String {
    let sign = if value < 0.0 { "−" } else { "+" };
    format!("{sign}{}", figure(metric, value.abs()))
}

/// Three significant digits; all digits before the point, with separators.
fn digits(value: f64) -> String {
    if (999.5..1e15).contains(&value) {
        return count(value.round() as u64);
    }
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.0995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}
