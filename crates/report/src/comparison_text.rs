//! `plimsoll compare` for a person: RSS of both, the lines that own the difference, the stacks behind it, the budget.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_trial::budget::Excess;
use plimsoll_trial::comparison::{
    A, B, Category, Comparison, Direction, METRICS, MedianChange, Part, RSS, SIDES, Site, Tracked,
};
use plimsoll_trial::{Metric, RunEnd};

use crate::trial_text::{figure, signed};
use crate::words::{count, counted, cut, printable};

/// Columns of a line's name.
const NAME: usize = 26;
/// Maximum number of sites and of categories listed.
const SITES: usize = 8;
/// Changes below this part of the largest are not listed: among many small ones, the ranges of some don't overlap by
/// chance.
const WORTH: f64 = 0.1;
/// Maximum number of frames of a site.
const FRAMES: usize = 12;
/// Frames of the program in a short form of a site.
const OWN_FRAMES: usize = 3;

/// `excesses`: the lines beyond their budget; `None` without a budget.
pub fn write(out: &mut dyn Write, of: &Comparison, excesses: Option<&[Excess]>) -> io::Result<()> {
    for (side, command) in SIDES.iter().zip(&of.commands) {
        writeln!(out, "{side}  {}", cut(command, 120))?;
    }
    writeln!(out, "{}", facts(of).join("   "))?;
    table(out, of)?;
    if let Some(tracked) = &of.tracked {
        stacks(out, tracked)?;
    }
    for text in failures(of).iter().chain(&of.notes) {
        writeln!(out, "\nnote: {}", printable(text))?;
    }
    writeln!(out, "\n{}", result(of))?;
    for sentence in excesses.iter().flat_map(|all| all.iter()).map(|excess| exceeded(of, excess)) {
        writeln!(out, "over budget: {sentence}")?;
    }
    if excesses.is_some_and(<[Excess]>::is_empty) && of.is_compared() {
        writeln!(out, "No line is beyond its budget.")?;
    }
    Ok(())
}

pub(crate) fn facts(of: &Comparison) -> Vec<String> {
    let done = of.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    let complete = of.runs.iter().filter(|run| run.end != RunEnd::Interrupted).count();
    let all = format!("{} of runs, alternating", counted(of.pairs as u64, "pair"));
    let mut facts = vec![match of.interrupted {
        true if complete < of.pairs * SIDES.len() => format!("interrupted in pair {done} of {}", of.pairs),
        true => format!("{all}; interrupted in the tracked runs"),
        false if done < of.pairs => format!("given up in pair {done} of {}", of.pairs),
        false => all,
    }];
    facts.extend(of.ready.as_ref().map(|ready| format!("ready {}", printable(ready))));
    facts.extend(of.tracked.as_ref().map(|tracked| format!("then {} tracked runs", tracked.runs[A] + tracked.runs[B])));
    facts
}

/// The metrics, then the lines of the ledger that changed with their parts, then the names of the others.
fn table(out: &mut dyn Write, of: &Comparison) -> io::Result<()> {
    if !of.is_compared() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<NAME$} {:>11} {:>11} {:>11}   all intervals hold with 99 %",
        "medians of the runs", "A", "B", "B − A"
    )?;
    for metric in METRICS {
        let Some(change) = of.metric(metric) else { continue };
        let name = if metric == Metric::Steady { "RSS" } else { metric.heading() };
        row(out, name, metric, change)?;
    }
    let mut same = Vec::new();
    for (part, change) in of.line_changes() {
        if change.direction() == Direction::Same {
            same.push(name(of, &part.line));
            continue;
        }
        row(out, &format!("  {}", name(of, &part.line)), Metric::Steady, change)?;
        for (part, change) in of.part_changes(&part.line) {
            if change.direction() != Direction::Same {
                row(out, &format!("    {}", part.name), Metric::Steady, change)?;
            }
        }
    }
    if !same.is_empty() {
        writeln!(out, "  no difference that the runs can show: {}", same.join(", "))?;
    }
    Ok(())
}

fn row(out: &mut dyn Write, name: &str, metric: Metric, change: MedianChange) -> io::Result<()> {
    let [a, b] = change.medians.map(|median| figure(metric, median));
    let mean = signed(metric, change.interval.mean);
    writeln!(out, "{:<NAME$} {a:>11} {b:>11} {mean:>11}   {}", cut(name, NAME), interval(metric, &change))
}

/// `+1.2 MiB to +1.8 MiB: 3.0 % more in B`
pub(crate) fn interval(metric: Metric, change: &MedianChange) -> String {
    let bounds = format!("{} to {}", signed(metric, change.interval.low), signed(metric, change.interval.high));
    let percent = change.percent().map(|percent| format!("{:.1} % ", percent.abs())).unwrap_or_default();
    match change.direction() {
        Direction::Same => format!("{bounds}: no difference shown"),
        direction => format!("{bounds}: {percent}{} in B", more_or_less(direction)),
    }
}

/// Which way B differs from A.
fn more_or_less(direction: Direction) -> &'static str {
    if direction == Direction::Grew { "more" } else { "less" }
}

/// The name of a line.
pub(crate) fn name(of: &Comparison, line: &str) -> String {
    if line == RSS { "RSS".into() } else { of.names.get(line).cloned().unwrap_or_else(|| printable(line)) }
}

fn stacks(out: &mut dyn Write, tracked: &Tracked) -> io::Result<()> {
    let [a, b] = tracked.runs;
    let measure = tracked.measure;
    writeln!(out, "\n{} by category and by call stack, B − A: {}", measure.name(), certainty(a, b))?;
    if let Some(limit) = measure.limit() {
        writeln!(out, "  {limit}")?;
    }
    let change = |category: &Category| category.means()[B] - category.means()[A];
    let largest = tracked.categories.iter().map(|category| change(category).abs()).fold(0.0, f64::max);
    let is_worth = |category: &&Category| category.differs() && change(category).abs() >= largest * WORTH;
    let worth: Vec<&Category> = tracked.categories.iter().filter(is_worth).collect();
    for category in worth.iter().take(SITES) {
        let [a, b] = category.means();
        let bytes = |value: f64| figure(Metric::Steady, value);
        let change = signed(Metric::Steady, b - a);
        writeln!(out, "{change:>12}  {:<22} A {}, B {}", cut(&category.name, 22), bytes(a), bytes(b))?;
    }
    if worth.len() > SITES {
        let all = tracked.categories.iter().filter(|category| category.differs()).count();
        writeln!(out, "{:14}not listed, although they differ: {}", "", all - SITES)?;
    }
    listed(out, &tracked.sites, &|value| signed(Metric::Steady, value as f64))?;
    let [a, b] = tracked.mapping_calls.map(|calls| count(calls.round() as u64));
    writeln!(out, "\nmapping calls (mmap and related functions): A {a}, B {b}")?;
    let calls = |value: i64| format!("{}{}", if value < 0 { "−" } else { "+" }, counted(value.unsigned_abs(), "call"));
    listed(out, &tracked.callers_of_mmap, &calls)?;
    if let Some([a, b]) = tracked.slow_paths.map(|sides| sides.map(|calls| count(calls.round() as u64))) {
        writeln!(out, "\nmapping calls below the native image's slowPathNew…: A {a}, B {b}")?;
    }
    Ok(())
}

/// What the tracked runs of the two sides prove.
pub(crate) fn certainty(a: usize, b: usize) -> String {
    if a.min(b) < 2 {
        let single = "one run doesn't show how much a figure varies by itself, so a difference may be chance";
        return format!("{a} and {b} tracked runs; {single} (--tracked 3)");
    }
    format!("means of {a} and {b} tracked runs, whose ranges don't overlap")
}

/// The call stacks that are listed: at most `SITES`, with at least `WORTH` of the largest proven change.
pub(crate) fn shown_of(sites: &[Site]) -> &[Site] {
    let largest = sites.iter().map(|site| site.least).max().unwrap_or(0) as f64;
    let shown = sites.iter().take_while(|site| site.least as f64 >= largest * WORTH).count().min(SITES);
    &sites[..shown]
}

fn listed(out: &mut dyn Write, sites: &[Site], amount: &dyn Fn(i64) -> String) -> io::Result<()> {
    let shown = shown_of(sites);
    for site in shown {
        let change = site.held[B].saturating_sub(site.held[A]);
        let least = if change < 0 { -site.least } else { site.least };
        let at_least = if site.least < change.abs() { format!("   at least {}", amount(least)) } else { String::new() };
        writeln!(out, "\n{:>12}  {}{at_least}", amount(change), cut(&site.category, 60))?;
        for frame in site.frames.iter().take(FRAMES) {
            writeln!(out, "{:14}{}", "", cut(frame, 118))?;
        }
        if site.frames.len() > FRAMES {
            writeln!(out, "{:14}… {} further out", "", counted((site.frames.len() - FRAMES) as u64, "frame"))?;
        }
    }
    match sites.len() - shown.len() {
        0 => Ok(()),
        more => {
            let stacks = counted(more as u64, "more stack");
            writeln!(out, "\n{:14}{stacks} with a smaller change (--stacks DIR writes all)", "")
        }
    }
}

/// One sentence: whether B takes more, and what owns it.
pub fn result(of: &Comparison) -> String {
    let Some(rss) = of.rss() else {
        return "Nothing was compared: an interval needs two pairs in which both programs completed".into();
    };
    let lines = of.line_changes();
    let owners = |direction: Direction| {
        let of_verdict = lines.iter().filter(move |(_, change)| change.direction() == direction);
        of_verdict.map(|(part, change)| owner(of, part, change)).collect::<Vec<_>>().join(", ")
    };
    match rss.direction() {
        Direction::Same => {
            let changed: Vec<String> = lines
                .iter()
                .filter(|(_, change)| change.direction() != Direction::Same)
                .map(|(part, change)| owner(of, part, change))
                .collect();
            let but = if changed.is_empty() { String::new() } else { format!(" But B − A: {}", changed.join(", ")) };
            let finest = figure(Metric::Steady, (rss.interval.high - rss.interval.low) / 2.0);
            format!("RSS: no difference that these runs can show (they resolve {finest}).{but}")
        }
        direction => {
            let owners = owners(direction);
            let owners = if owners.is_empty() { String::new() } else { format!(": {owners}") };
            let percent = rss.percent().map(|percent| format!(", {:.1} %", percent.abs())).unwrap_or_default();
            let more = more_or_less(direction);
            format!("B takes {} {more} than A{percent}{owners}", figure(Metric::Steady, rss.interval.mean.abs()))
        }
    }
}

/// `direct buffers +1.50 MiB (Catalog.touched:53 ← …)`
fn owner(of: &Comparison, part: &Part, change: &MedianChange) -> String {
    let site = of.site_of(&part.line).filter(|_| change.direction() == Direction::Grew).map(short);
    let site = site.map_or(String::new(), |site| format!(" ({site})"));
    format!("{} {}{site}", name(of, &part.line), signed(Metric::Steady, change.interval.mean))
}

/// A sentence for a line beyond its budget.
pub fn exceeded(of: &Comparison, excess: &Excess) -> String {
    let Excess { line, allowed, change } = excess;
    let site = of.owner_of(line);
    let site = match site {
        Some(site) => format!("; site: {}", short(site)),
        None => "; no tracked site explains it".into(),
    };
    let bytes = |value: f64| figure(Metric::Steady, value);
    format!(
        "{line}: B takes {} more than A (at least {} more), and {} is allowed{site}",
        bytes(change.interval.mean),
        bytes(change.interval.low),
        Bytes(allowed.max(0.0) as u64)
    )
}

/// A site in a line: its innermost frames that belong to the program.
pub fn short(site: &Site) -> String {
    const RUNTIME: [&str; 6] = ["java.", "javax.", "jdk.", "sun.", "com.sun.", "operator new"];
    const LIBRARIES: [&str; 6] = ["(libjvm.so)", "(libc.so", "(ld-linux", "(libstdc++", "(libzip.so)", "(libnio.so)"];
    let is_own = |frame: &&String| {
        !RUNTIME.iter().any(|start| frame.starts_with(start))
            && !LIBRARIES.iter().any(|library| frame.contains(library))
    };
    let own: Vec<&str> = site.frames.iter().filter(is_own).take(OWN_FRAMES).map(String::as_str).collect();
    let frames = match own.is_empty() {
        true => site.frames.iter().take(OWN_FRAMES).map(String::as_str).collect(),
        false => own,
    };
    cut(&frames.join(" ← ").replace("  (", " ("), 200)
}

/// Failed runs, one sentence for each end of each side.
pub(crate) fn failures(of: &Comparison) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (side, name) in SIDES.iter().enumerate() {
        for run in of.failed(side) {
            let detail = run.detail.as_deref().map(|detail| format!(": {}", cut(detail, 200))).unwrap_or_default();
            let text = format!(
                "{name}: {} of {} failed; the program {}{detail}",
                of.failed(side).count(),
                counted(of.runs.iter().filter(|run| run.row == side).count() as u64, "run"),
                run.end.sentence()
            );
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::certainty;

    #[test]
    fn one_tracked_run_a_side_proves_nothing() {
        assert!(certainty(3, 2).ends_with("whose ranges don't overlap"));
        for (a, b) in [(1, 1), (1, 3), (3, 1)] {
            assert!(certainty(a, b).contains("may be chance"), "{}", certainty(a, b));
        }
    }
}
