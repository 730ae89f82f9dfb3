//! What reports on a flight recording have in common: the rows of its curves, its head, its verdicts in order.

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{CurveFigures, History, Measure, VerdictSpan};
use plimsoll_observer::verdict::VerdictId;

use crate::words::{cut, duration, moment_text};

/// Rows that belong together. The JSON has all sections; the text omits those that only programs need.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    pub rows: Vec<Row>,
    pub(crate) in_text: bool,
}

/// One curve, with its figures.
pub struct Row {
    pub name: String,
    pub measure: Measure,
    pub figures: CurveFigures,
    /// For a line: the largest error of its readings, in bytes.
    pub error: Option<u64>,
}

pub(crate) const PROCESS: [Measure; 11] = [
    Measure::Rss,
    Measure::LedgerRss,
    Measure::Charged,
    Measure::WorkingSet,
    Measure::Limit,
    Measure::TotalCommitted,
    Measure::TotalLive,
    Measure::HeapCommitted,
    Measure::HeapOccupied,
    Measure::Metaspace,
    Measure::DirectBuffers,
];

/// Section, title, curves, whether the text shows it.
const BY_NAME: [(&str, &str, Measure, bool); 6] = [
    ("lines", "resident by line", Measure::Line, true),
    ("lines-committed", "committed by line", Measure::LineCommitted, false),
    ("categories", "committed by category", Measure::Committed, true),
    ("categories-reserved", "reserved by category", Measure::Reserved, false),
    ("categories-live", "live by category", Measure::Live, true),
    ("categories-live-count", "live blocks by category", Measure::LiveCount, false),
];

/// All sections that have rows. In all but `process`, the row with the largest last reading comes first.
pub fn sections(history: &History) -> Vec<Section> {
    let row = |measure: Measure, name: &str| {
        let series = history.of(measure).find(|(of, _)| *of == name)?.1;
        let growth = history.readings_of_growth(measure, name, series).and_then(|readings| readings.figures()?.growth);
        let figures = CurveFigures { growth, ..series.figures()? };
        let error = history.of(Measure::LineError).find(|(of, _)| measure == Measure::Line && *of == name);
        let error = error.and_then(|(_, series)| Some(series.figures()?.max));
        Some(Row { name: name.to_string(), measure, figures, error })
    };
    let process = PROCESS.iter().filter_map(|measure| row(*measure, "")).map(|mut row| {
        row.name = row.measure.title().to_string();
        row
    });
    let mut sections = vec![Section { id: "process", title: "process", rows: process.collect(), in_text: true }];
    for (id, title, measure, in_text) in BY_NAME {
        let mut rows: Vec<Row> = history.of(measure).filter_map(|(name, _)| row(measure, name)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.figures.last, row.figures.max)));
        sections.push(Section { id, title, rows, in_text });
    }
    sections.retain(|section| !section.rows.is_empty());
    sections
}

/// A change in bytes, with its sign: `+1.50 MiB`, `-4.00 KiB`.
pub fn signed(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "+" };
    format!("{sign}{}", Bytes(value.abs() as u64))
}

/// `… to 21:45:00` if both moments are on the same day.
pub fn period(history: &History) -> String {
    let [from, to] = [history.from_ns, history.to_ns].map(|ns| moment_text(ns.max(0) as u64));
    let to = if from[..10] == to[..10] { &to[11..] } else { &to };
    let length = duration(history.to_ns.saturating_sub(history.from_ns).max(0) as u64);
    format!("{} to {to}, {length}", from.trim_end_matches(" UTC"))
}

/// The runtime, the PID and the command of the recorded process, on one line.
pub fn head(history: &History) -> String {
    let process = &history.process;
    let pid = process.pid.map_or(String::new(), |pid| format!("   pid {pid}"));
    // HotSpot's form: `OpenJDK 64-Bit Server VM (25.0.3+9-LTS) for linux-amd64 JRE (…), built on …`.
    let version = process.runtime_version.split_once('(').and_then(|(_, rest)| Some(rest.split_once(')')?.0));
    let runtime = [process.runtime.as_str(), version.unwrap_or(&process.runtime_version)].join(" ");
    let runtime = if runtime.trim().is_empty() { "process unknown" } else { runtime.trim() };
    format!("{}{pid}   {}", cut(runtime, 90), cut(process.command.trim_end(), 60)).trim_end().to_string()
}

/// The verdicts worth reading: the most severe first, and among equals the one that ended last. If there is a warning,
/// `healthy` is omitted: it only says that there was no warning for a while.
pub(crate) fn shown_spans(history: &History) -> Vec<&VerdictSpan> {
    let has_warning = history.verdicts.iter().any(|span| severity(span) > 0);
    let is_shown = |span: &&VerdictSpan| !(has_warning && span.id == VerdictId::Healthy.id());
    let mut spans: Vec<&VerdictSpan> = history.verdicts.iter().filter(is_shown).collect();
    spans.sort_by_key(|span| (std::cmp::Reverse(severity(span)), std::cmp::Reverse(span.last_ns)));
    spans
}

/// 2 for a critical verdict, 1 for a warning, 0 for a note.
pub(crate) fn severity(span: &VerdictSpan) -> u8 {
    match span.severity.as_str() {
        "critical" => 2,
        "warning" => 1,
        _ => 0,
    }
}

/// What to type for a verdict. If the process has ended, its report is in `file`, and other commands are for the next
/// process.
pub(crate) fn what_to_type(history: &History, span: &VerdictSpan, file: &str) -> String {
    let Some(pid) = history.process.pid.map(|pid| pid.to_string()) else { return span.remedy.clone() };
    let line = |line: &str| match history.ending {
        Some(_) => of_ended(line, &pid, file),
        None => of_living(line, &pid),
    };
    span.remedy.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn of_living(line: &str, pid: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    for at in operands(&words, pid) {
        words[at] = pid;
    }
    words.join(" ")
}

fn of_ended(line: &str, pid: &str, file: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    let operands = operands(&words, pid);
    let is_report = line.starts_with("plimsoll report ") && !words.contains(&"&&");
    for at in &operands {
        words[*at] = if is_report { file } else { "PID" };
    }
    let line = words.join(" ");
    if operands.is_empty() || is_report { line } else { format!("{line}   # PID: that of the next process") }
}

/// Which words name the process, in the commands that remedies use. Commands of verdicts that are derived from the
/// curves have the word PID. After `--`, `|` and any other command, a number like the PID is part of a command line, a
/// port, or an amount.
fn operands(words: &[&str], pid: &str) -> Vec<usize> {
    let (mut found, mut tool, mut before) = (Vec::new(), "", "");
    for (at, word) in words.iter().copied().enumerate() {
        match word {
            "--" | "|" | "#" => break,
            "&&" => tool = "",
            "sudo" if tool.is_empty() => {}
            "plimsoll" | "jcmd" | "gdb" | "ps" | "node" | "nsenter" | "sleep" if tool.is_empty() => tool = word,
            _ if tool.is_empty() => break,
            _ if word == pid || word == "PID" => {
                let is_operand = match tool {
                    "plimsoll" => true,
                    "jcmd" => before == "jcmd",
                    "nsenter" => before == "-t",
                    _ => before == "-p",
                };
                found.extend(is_operand.then_some(at));
            }
            _ => {}
        }
        before = word;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_type_about_a_dead_process_is_about_its_recording() {
        let of = |line| of_ended(line, "42", "x.jfr");
        assert_eq!(of("plimsoll report 42 --by site"), "plimsoll report x.jfr --by site");
        for (line, next) in [
            ("plimsoll attach 42 && sleep 60", "plimsoll attach PID && sleep 60"),
            (
                "plimsoll report 42 -o a && sleep 42 && plimsoll diff a 42",
                "plimsoll report PID -o a && sleep 42 && plimsoll diff a PID",
            ),
            (
                "jcmd 42 VM.set_flag MinHeapFreeRatio 42 && jcmd 42 GC.run",
                "jcmd PID VM.set_flag MinHeapFreeRatio 42 && jcmd PID GC.run",
            ),
            ("jcmd 42 Thread.print | grep -A 42 'a'", "jcmd PID Thread.print | grep -A 42 'a'"),
            ("gdb -p 42 -batch -ex 'call f(42)'", "gdb -p PID -batch -ex 'call f(42)'"),
            (
                "sudo nsenter -t 42 -n redis-cli -p 42 MEMORY PURGE",
                "sudo nsenter -t PID -n redis-cli -p 42 MEMORY PURGE",
            ),
        ] {
            assert_eq!(of(line), format!("{next}   # PID: that of the next process"));
        }
    }

    #[test]
    fn what_to_type_about_a_living_process_has_its_pid() {
        let mut history = History::default();
        let span = VerdictSpan { remedy: "plimsoll attach PID && sleep 60".into(), ..VerdictSpan::default() };
        assert_eq!(what_to_type(&history, &span, "x.jfr"), "plimsoll attach PID && sleep 60");
        history.process.pid = Some(42);
        assert_eq!(what_to_type(&history, &span, "x.jfr"), "plimsoll attach 42 && sleep 60");
        history.ending = Some((plimsoll_facts::ending::Ending::UNKNOWN, None));
        let ended = "plimsoll attach PID && sleep 60   # PID: that of the next process";
        assert_eq!(what_to_type(&history, &span, "x.jfr"), ended);
    }

    #[test]
    fn a_command_line_keeps_a_word_like_the_pid() {
        for line in [
            "MALLOC_ARENA_MAX=42",
            "redis-cli -p 42 MEMORY PURGE",
            "GODEBUG=gctrace=1 /srv/shop 42 'x && jcmd 42 y'",
            "cd '/srv && jcmd 42 y' && plimsoll run -- /srv/shop --port 42   # then: plimsoll report shop",
            "plimsoll run -- /srv/shop --port 42 && jcmd 42 y",
        ] {
            assert_eq!(of_ended(line, "42", "x.jfr"), line);
        }
    }
}
