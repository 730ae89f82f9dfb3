//! The first rows: what runs, its RSS beside the limit, the time left, and the verdict that stands.

use plimsoll_observer::verdict::{Severity, Verdict, VerdictId};
use plimsoll_report::words::{self, printable, signed, wrapped};

use super::text::{Canvas, PLAIN, bar, spark, without_folder};
use crate::watch::curve::{Trend, rate};
use crate::watch::state::{State, Watched};

/// A screen with fewer columns has short facts only.
const NARROW: usize = 60;
/// A screen with at least as many columns names the limit's source.
const WIDE: usize = 100;
/// Least number of columns for the command, beside its facts.
const COMMAND: usize = 24;
const SECOND: u64 = 1_000_000_000;
/// A screen with fewer rows has one row for the verdict.
const LOW: u16 = 16;

/// Returns the number of rows.
pub fn draw(canvas: &mut Canvas<'_>, state: &State, one: &Watched) -> u16 {
    title(canvas, one);
    memory(canvas, state, one);
    let mut row = 2;
    row += limit(canvas, one, row);
    if let Some(end) = &one.end {
        let at = clock(one.facts.time_ns);
        let text = format!("process {}: {end}. Its last reading, {at}:", one.facts.pid);
        row += sentence(canvas, row, 2, ("!!", Severity::Critical, false), &text);
    }
    row += verdict(canvas, one, row);
    if let Some(gap) = one.facts.gap.as_ref().filter(|_| canvas.area.height > LOW) {
        row += sentence(canvas, row, 1, ("?", Severity::Note, true), gap);
    }
    row
}

fn title(canvas: &mut Canvas<'_>, one: &Watched) {
    let facts = &one.facts;
    let mut parts = vec![format!("pid {}", facts.pid)];
    if canvas.width() >= NARROW {
        // The build's number and vendor are in the other reports.
        let runtime = facts.runtime.split(['+', '-']).next().unwrap_or_default();
        parts.extend((!runtime.is_empty()).then(|| runtime.to_owned()));
        parts.extend(facts.uptime.map(|up| format!("up {}", words::duration((up * 1e9) as u64))));
        parts.push(words::counted(facts.threads, "thread"));
        parts.extend(facts.is_tracked.then(|| "tracked".to_owned()));
    }
    parts.extend(facts.is_stopped.then(|| "stopped".to_owned()));
    // The least important facts give way to the command.
    let mut right = parts.join("  ");
    while parts.len() > 1 && canvas.width().saturating_sub(words::columns(&right) + 2) < COMMAND {
        parts.remove(if parts.len() > 2 { 2 } else { 1 });
        right = parts.join("  ");
    }
    let columns = canvas.width().saturating_sub(words::columns(&right) + 2);
    canvas.put(0, 0, columns, &without_folder(&facts.title), canvas.ink.bold());
    let end = canvas.width();
    canvas.put_right(0, end, &right, PLAIN);
}

fn memory(canvas: &mut Canvas<'_>, state: &State, one: &Watched) {
    let facts = &one.facts;
    let mut column = canvas.put(1, 0, 30, &format!("RSS {}", facts.rss), canvas.ink.bold());
    let baseline = one.baseline_ns();
    let ago = words::duration(facts.time_ns.saturating_sub(baseline));
    let change = match one.rss.change() {
        0 => "unchanged".to_owned(),
        change => signed(change),
    };
    let since = match canvas.width() >= NARROW {
        true if facts.time_ns - baseline.min(facts.time_ns) < SECOND => format!("{change} since {}", clock(baseline)),
        true => format!("{change} since {}, {ago} ago", clock(baseline)),
        false => format!("{change} in {ago}"),
    };
    column = canvas.put(1, column + 2, 60, &since, PLAIN);
    let trend = match one.trend(&one.rss) {
        Trend::Is(growth) => rate(growth),
        Trend::No => "no trend".to_owned(),
        _ if one.end.is_some() => String::new(),
        Trend::In(0) => "growth needs six readings".to_owned(),
        Trend::In(seconds) => format!("growth known in {seconds} s"),
    };
    let style =
        if matches!(one.trend(&one.rss), Trend::Is(growth) if growth.is_up()) { canvas.ink.up() } else { PLAIN };
    if column + 2 + words::columns(&trend) <= canvas.width() {
        column = canvas.put(1, column + 2, 30, &trend, style);
    }
    let left = canvas.width().saturating_sub(column + 2);
    let (end, ink) = (canvas.width(), canvas.ink);
    if state.paused.is_some() {
        canvas.put_right(1, end, " PAUSED ", ink.chosen());
    } else if state.is_recording {
        canvas.put_right(1, end, " ● recording", ink.up());
    } else if left >= 8 {
        let history = spark(&one.rss.spark(left.min(40)));
        canvas.put(1, column + 2, left, &history, PLAIN);
    }
}

fn limit(canvas: &mut Canvas<'_>, one: &Watched, row: u16) -> u16 {
    let Some(limit) = one.facts.limit else {
        if canvas.width() < NARROW {
            return 0;
        }
        canvas.put(row, 0, 40, "no memory limit", PLAIN);
        return 1;
    };
    let percent = limit.counted.percent_of(limit.bytes);
    let text = match canvas.width() {
        0..NARROW => format!("limit {}  {percent:.0} %", limit.bytes),
        NARROW..WIDE => format!("limit {}  {} counted, {percent:.0} %", limit.bytes, limit.counted),
        _ => format!("limit {} ({})  {} counted, {percent:.0} %", limit.bytes, limit.source, limit.counted),
    };
    let mut column = canvas.put(row, 0, 64, &text, PLAIN);
    let left = match one.time_left() {
        Some((soonest, _)) if one.end.is_none() && canvas.width() < NARROW => {
            format!("≥ {} left", in_time((soonest, soonest)).trim_start_matches("in "))
        }
        Some(left) if one.end.is_none() => format!("reached {}", in_time(left)),
        _ => String::new(),
    };
    let width = canvas.width().saturating_sub(column + 4 + words::columns(&left)).min(24);
    if width >= 6 {
        let full = bar(limit.counted.0, limit.bytes.0, width);
        let style = canvas.ink.fill(percent);
        canvas.put(row, column + 2, width, &full, style);
        canvas.put(row, column + 2 + width, 1, "▏", PLAIN);
        column += 3 + width;
    }
    let style = canvas.ink.up();
    canvas.put(row, column + 2, 60, &left, style);
    1
}

fn verdict(canvas: &mut Canvas<'_>, one: &Watched, row: u16) -> u16 {
    let standing: Vec<&Verdict> = one.standing().collect();
    let Some(first) = standing.first() else {
        if one.verdicts.is_empty() {
            return 0;
        }
        let text = match one.trend(&one.rss) {
            Trend::In(_) => "no verdict yet: RSS grew; a minute of readings shows whether that goes on",
            _ => "no verdict: RSS is above the baseline, without a clear trend",
        };
        return sentence(canvas, row, 1, ("?", Severity::Note, true), text);
    };
    let is_low = canvas.area.height < LOW;
    let mark = match first.severity {
        Severity::Critical => "!!",
        Severity::Warning => "!",
        Severity::Note if first.id == VerdictId::Unclear => "?",
        Severity::Note => "·",
    };
    let more = match standing.len() {
        1 => String::new(),
        n => format!(" (and {} more: v)", n - 1),
    };
    let text = format!("{}: {}{more}", first.id.id(), first.summary);
    let kind = (mark, first.severity, first.id == VerdictId::Unclear);
    let mut rows = sentence(canvas, row, if is_low { 1 } else { 2 }, kind, &text);
    let how = first.remedies.first().and_then(|remedy| Some((remedy.verb().0, remedy.headline(first.id)?)));
    if let Some((verb, how)) = how.filter(|_| !is_low && one.end.is_none()) {
        let column = canvas.put(row + rows, 2, 6, verb, PLAIN);
        let style = canvas.ink.command();
        canvas.put(row + rows, column + 1, usize::MAX, &words::as_called(&how), style);
        rows += 1;
    }
    rows
}

/// A sentence behind a mark, in at most `most` rows. Returns the number of rows.
fn sentence(canvas: &mut Canvas<'_>, row: u16, most: usize, kind: (&str, Severity, bool), text: &str) -> u16 {
    let (mark, severity, is_unclear) = kind;
    let style = canvas.ink.severity(severity, is_unclear);
    let column = words::columns(mark) + 1;
    canvas.put(row, 0, column, mark, style);
    let width = canvas.width().saturating_sub(column).max(10);
    let text = printable(text);
    let rows = wrapped(&text, width);
    let shown = rows.len().min(most);
    for (at, part) in rows.iter().take(shown).enumerate() {
        // The last row that fits ends with an ellipsis if the sentence goes on.
        let is_cut = at + 1 == shown && rows.len() > shown;
        let part = if is_cut { rows[at..].join(" ") } else { part.clone() };
        let style = if at == 0 || !is_cut { canvas.ink.bold() } else { PLAIN };
        canvas.put(row + at as u16, column, width, &part, style);
    }
    shown as u16
}

/// The time of day of a moment: `17:05:03 UTC`.
pub fn clock(ns: u64) -> String {
    format!("{} UTC", &words::moment(ns)[11..19])
}

/// `in 2 h 1 min to 4 h 3 min`
pub fn in_time((soonest, latest): (f64, f64)) -> String {
    const YEAR: f64 = 365.0 * 86_400.0;
    let text = |seconds: f64| match seconds {
        s if s >= YEAR => "years".to_owned(),
        s => words::duration((s * 1e9) as u64),
    };
    let [soonest, latest] = [soonest, latest].map(text);
    if soonest == latest { format!("in {soonest}") } else { format!("in {soonest} to {latest}") }
}
