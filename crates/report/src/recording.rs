//! Prints a flight recording as a table: the first and last reading of each curve, its bounds, peak and growth.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{CurveFigures, Growth, History, Measure};
use plimsoll_observer::verdict::Severity;

use crate::words::{count, counted, cut, duration, moment_text, printable};

/// Rows that belong together. The JSON has all sections; the text omits those that only programs need.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    pub rows: Vec<Row>,
    in_text: bool,
}

pub struct Row {
    pub name: String,
    pub measure: Measure,
    pub figures: CurveFigures,
    /// Of a line: the largest error of its readings, in bytes.
    pub error: Option<u64>,
}

/// Percent of a line's highest reading from which its error is shown.
const ROUGH: f64 = 1.0;
/// Memory of Unsafe that a sentence explains.
const WORTH_OTHER: Bytes = Bytes::mib(1);

const PROCESS: [Measure; 10] = [
    Measure::Rss,
    Measure::LedgerRss,
    Measure::Charged,
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

/// The rows of a section: biggest last reading first.
pub fn sections(history: &History) -> Vec<Section> {
    let row = |measure: Measure, name: &str| {
        let figures = history.of(measure).find(|(of, _)| *of == name)?.1.figures()?;
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

/// Why the category Other may be larger than java.nio's direct buffers.
fn other_direct(history: &History) -> Option<String> {
    let last = |measure: Measure, name: &str| {
        history.of(measure).find(|(of, _)| *of == name).and_then(|(_, series)| Some(Bytes(series.figures()?.last)))
    };
    let (counted, other) = (last(Measure::DirectBuffers, "")?, last(Measure::Committed, "Other")?);
    (other - counted >= WORTH_OTHER).then(|| {
        format!(
            "java.nio counts only its own direct buffers ({counted}). The category Other ({other}) also has memory that \
             programs such as Netty allocate with Unsafe."
        )
    })
}

pub fn signed(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "+" };
    format!("{sign}{}", Bytes(value.abs() as u64))
}

fn growth(growth: Option<Growth>) -> String {
    growth.map_or("–".into(), |growth| {
        format!("{} ({} to {})", signed(growth.per_hour), signed(growth.least), signed(growth.most))
    })
}

/// `… to 21:45:00` if both moments are on the same day.
pub fn period(history: &History) -> String {
    let [from, to] = [history.from_ns, history.to_ns].map(|ns| moment_text(ns.max(0) as u64));
    let to = if from[..10] == to[..10] { &to[11..] } else { &to };
    let length = duration(history.to_ns.saturating_sub(history.from_ns).max(0) as u64);
    format!("{} to {to}, {length}", from.trim_end_matches(" UTC"))
}

pub fn head(history: &History) -> String {
    let process = &history.process;
    let pid = process.pid.map_or(String::new(), |pid| format!("   pid {pid}"));
    // HotSpot's form: `OpenJDK 64-Bit Server VM (25.0.3+9-LTS) for linux-amd64 JRE (…), built on …`.
    let version = process.runtime_version.split_once('(').and_then(|(_, rest)| Some(rest.split_once(')')?.0));
    let runtime = [process.runtime.as_str(), version.unwrap_or(&process.runtime_version)].join(" ");
    let runtime = if runtime.trim().is_empty() { "process unknown" } else { runtime.trim() };
    format!("{}{pid}   {}", cut(runtime, 90), cut(&process.command, 60)).trim_end().to_string()
}

pub fn text(out: &mut dyn Write, history: &History) -> io::Result<()> {
    let ending = history.ending.as_ref().map(|(ending, _)| format!("   {}", ending.sentence())).unwrap_or_default();
    writeln!(out, "recording of {}{ending}", head(history))?;
    let open = history.chunks.iter().filter(|chunk| !chunk.is_finished).count();
    let open = match (open, history.chunks.len()) {
        (0, _) => String::new(),
        (1, 1) => ", never finished".into(),
        (open, _) => format!(", {open} of them never finished"),
    };
    let chunks = counted(history.chunks.len() as u64, "chunk");
    let events = counted(history.counts.values().sum(), "event");
    writeln!(out, "{}   {chunks}{open}, {events}", period(history))?;
    let sections = sections(history);
    for section in sections.iter().filter(|section| section.in_text) {
        writeln!(
            out,
            "\n{:28} {:>10} {:>10} {:>10} {:>10} {:>10}   growth an hour (95 % interval)",
            section.title, "first", "last", "min", "max", "peak"
        )?;
        for row in &section.rows {
            let f = &row.figures;
            // A curve that is always zero has no line in the text.
            if f.max == 0 && f.peak == 0 {
                continue;
            }
            let [first, last, min, max, peak] = [f.first, f.last, f.min, f.max, f.peak].map(|n| Bytes(n).to_string());
            let name = cut(&row.name, 28);
            let growth = growth(f.growth);
            write!(out, "{name:28} {first:>10} {last:>10} {min:>10} {max:>10} {peak:>10}   {growth}")?;
            match row.error.map(Bytes).filter(|error| error.percent_of(Bytes(f.max)) >= ROUGH) {
                Some(error) => writeln!(out, "  ± {error}")?,
                None => writeln!(out)?,
            }
        }
    }
    if let Some(age) =
        history.of(Measure::Age).find_map(|(_, series)| Some(series.figures()?.max)).filter(|age| *age > 0)
    {
        writeln!(
            out,
            "\nThe VM and the allocators were queried up to {} before a reading. ± is the largest error from that and from other causes.",
            duration(age)
        )?;
    }
    if let Some(note) = other_direct(history) {
        writeln!(out, "{note}")?;
    }
    let growths = || sections.iter().flat_map(|section| &section.rows).map(|row| row.figures.growth);
    writeln!(out)?;
    if growths().any(|growth| growth.is_some()) {
        writeln!(
            out,
            "growth: least squares over the means of 24 equal slices of time; Student's interval, widened by the residuals' correlation"
        )?;
    }
    if growths().any(|growth| growth.is_none()) {
        writeln!(out, "growth needs at least one minute and six readings")?;
    }
    verdicts(out, history)?;
    for gap in &history.gaps {
        write!(out, "gap: {}; {}", printable(&gap.reason), printable(&gap.effect))?;
        match gap.remedy.as_str() {
            "" => writeln!(out)?,
            remedy => writeln!(out, "; {}", printable(remedy))?,
        }
    }
    if history.more_gaps > 0 {
        writeln!(out, "and {} more gaps", count(history.more_gaps))?;
    }
    Ok(())
}

fn verdicts(out: &mut dyn Write, history: &History) -> io::Result<()> {
    for span in &history.verdicts {
        let [first, last] = [span.first_ns, span.last_ns].map(|ns| moment_text(ns.max(0) as u64)[11..19].to_string());
        let how = if span.is_derived { "derived from the curves" } else { "recorded" };
        let bytes = match (span.first_bytes, span.last_bytes) {
            (first, last) if first == last => last.to_string(),
            (first, last) => format!("{first} → {last}"),
        };
        let time = match span.last_ns.saturating_sub(span.first_ns) {
            whole if span.held_ns >= whole => String::new(),
            _ => format!(", {} of it", duration(span.held_ns.max(0) as u64)),
        };
        let id = printable(&span.id);
        let severity = printable(&span.severity);
        let mark = if span.severity == Severity::Note.name() { "·" } else { "!" };
        writeln!(out, "\n{mark} {id}  {severity}, {first} to {last}{time}, {bytes}, {how}")?;
        writeln!(out, "  {}", printable(&span.summary))?;
        if !span.remedy.is_empty() {
            writeln!(out, "  {}", printable(&span.remedy))?;
        }
    }
    if !history.verdicts.is_empty() {
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_observer::recording::Series;

    const MIB: u64 = 1 << 20;

    /// Two readings, of which the second has twice the value.
    fn history(curves: &[(Measure, &str, u64)]) -> History {
        let mut history = History::default();
        for (measure, name, value) in curves {
            let mut series = Series::default();
            series.push(0, *value);
            series.push(1_000_000_000, 2 * value);
            history.series.insert((*measure, (*name).to_owned()), series);
        }
        history
    }

    fn text_of(history: &History) -> String {
        let mut out = Vec::new();
        text(&mut out, history).expect("written to memory");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_line_has_its_largest_error_and_the_report_the_oldest_query() {
        let curves = [
            (Measure::Line, "symbols", 10 * MIB),
            (Measure::LineError, "symbols", 3 * MIB),
            (Measure::Line, "java-heap", 500 * MIB),
            (Measure::LineError, "java-heap", MIB),
            (Measure::Age, "", 4_700_000_000),
        ];
        let text = text_of(&history(&curves));
        let row = |name: &str| text.lines().find(|row| row.starts_with(name)).expect(name).to_owned();
        assert!(row("symbols").ends_with("± 6.00 MiB"), "{text}");
        assert!(!row("java-heap").contains('±'), "below 1 %: {text}");
        assert!(text.contains("queried up to 9.4 s before a reading"), "{text}");
        let mut json = Vec::new();
        crate::recording_json::write(&mut json, &history(&curves)).expect("written to memory");
        let json = String::from_utf8(json).expect("UTF-8");
        assert!(json.contains("\"provenance_age_ms\": 9400") && json.contains("\"error_bytes\": 6291456"), "{json}");
        assert!(!text_of(&history(&curves[..4])).contains("queried up to"), "without an age there is no sentence");
    }

    #[test]
    fn java_nio_s_count_isn_t_taken_for_all_memory_of_unsafe() {
        let told = |nio, other| {
            text_of(&history(&[(Measure::DirectBuffers, "", nio), (Measure::Committed, "Other", other)]))
                .contains("such as Netty")
        };
        assert!(told(1, 50 * MIB));
        assert!(!told(50 * MIB, 50 * MIB));
    }
}
