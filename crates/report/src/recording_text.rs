//! Prints a flight recording on one screen: how it ended, the verdicts with their remedies, and the curves that are big or
//! grow. `all`: every curve, with its lowest reading, its peak and the interval of its growth.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{Growth, History, Measure, VerdictSpan};

use crate::recording::{Row, Section, head, period, sections, severity, shown_spans, signed, what_to_type};
use crate::words::{count, counted, cut, duration, moment_text, printable};

/// Percent of a line's highest reading from which its error is shown.
const ROUGH: f64 = 1.0;
/// Bytes allocated with Unsafe from which a sentence explains them.
const WORTH_OTHER: Bytes = Bytes::mib(1);
/// Maximum number of a section's rows on one screen.
const ROWS: usize = 8;
/// Percent of the section's sum from which a row is on the screen. A row that grows by this percentage of RSS an hour is
/// there too.
const LEAST: f64 = 1.0;

/// `file`: the recording, for the commands that are proposed.
pub fn write(out: &mut dyn Write, history: &History, all: bool, file: &str) -> io::Result<()> {
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
    let over = verdicts(out, history, all, file)?;
    let sections = sections(history);
    let left_out = if all { tables(out, &sections)? } else { screen(out, history, &sections)? };
    writeln!(out)?;
    notes(out, history, &sections, all)?;
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
    let mut more = Vec::new();
    more.extend((left_out > 0).then(|| counted(left_out as u64, "curve")));
    more.extend((over > 0).then(|| format!("{} that ended earlier", counted(over as u64, "verdict"))));
    if !more.is_empty() {
        writeln!(out, "{} more with --all", more.join(" and "))?;
    }
    Ok(())
}

/// Writes the curves that a screen needs. Returns the number of curves left out.
fn screen(out: &mut dyn Write, history: &History, sections: &[Section]) -> io::Result<usize> {
    let rss = history.rss().and_then(|series| Some(series.figures()?.last)).unwrap_or(0);
    let grows = |row: &Row| row.figures.growth.filter(|growth| is_growth(*growth, rss));
    let has_growth = sections.iter().flat_map(|section| &section.rows).any(|row| row.figures.growth.is_some());
    let last = if has_growth { "   growth an hour" } else { "" };
    writeln!(out, "\n{:28} {:>10} {:>10} {:>10}{last}", "", "first", "last", "highest")?;
    let has_live = history.of(Measure::Live).next().is_some();
    let mut left_out = 0;
    for section in sections.iter().filter(|section| section.in_text) {
        let rows: Vec<&Row> = section.rows.iter().filter(|row| row.figures.max > 0 || row.figures.peak > 0).collect();
        // Live bytes say more than committed ones; the sums stand in the section of the process.
        if section.id == "categories" && has_live {
            left_out += rows.len();
            continue;
        }
        let is_process = section.id == "process";
        let sum: u64 = rows.iter().map(|row| row.figures.last.max(row.figures.first)).sum();
        let is_shown = |row: &Row| match row.measure {
            Measure::LedgerRss => history.of(Measure::Rss).next().is_none(),
            _ if is_process => true,
            _ => Bytes(row.figures.max).percent_of(Bytes(sum)) >= LEAST || grows(row).is_some(),
        };
        let (mut shown, mut rest): (Vec<&Row>, Vec<&Row>) = rows.into_iter().partition(|row| is_shown(row));
        if !is_process && shown.len() > ROWS {
            rest.extend(shown.split_off(ROWS));
        }
        if !is_process {
            writeln!(out, "\n{}", section.title)?;
        }
        for row in shown {
            let f = &row.figures;
            let [first, last, most] = [f.first, f.last, f.max.max(f.peak)].map(|n| Bytes(n).to_string());
            let mut line = format!("{:28} {first:>10} {last:>10} {most:>10}", cut(&row.name, 28));
            line.extend(grows(row).map(|growth| format!("   {}", signed(growth.per_hour))));
            line.extend(rough(row).map(|error| format!("   ± {error}")));
            writeln!(out, "{line}")?;
        }
        if !is_process && !rest.is_empty() {
            let sum = |of: fn(&Row) -> u64| Bytes(rest.iter().map(|row| of(row)).sum()).to_string();
            let name = format!("{} smaller", rest.len());
            writeln!(out, "{name:28} {:>10} {:>10}", sum(|row| row.figures.first), sum(|row| row.figures.last))?;
        }
        left_out += rest.len();
    }
    Ok(left_out)
}

/// Whether the whole interval lies above or below 0, and the change of an hour is large enough, compared with RSS.
fn is_growth(growth: Growth, rss: u64) -> bool {
    let is_worth = growth.per_hour.abs() * 100.0 >= rss as f64 * LEAST;
    is_worth && (growth.least > 0.0 || growth.most < 0.0)
}

/// The error of a line, if it is large enough to be shown.
fn rough(row: &Row) -> Option<Bytes> {
    row.error.map(Bytes).filter(|error| error.percent_of(Bytes(row.figures.max)) >= ROUGH)
}

fn tables(out: &mut dyn Write, sections: &[Section]) -> io::Result<usize> {
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
            let (name, growth) = (cut(&row.name, 28), growth(f.growth));
            write!(out, "{name:28} {first:>10} {last:>10} {min:>10} {max:>10} {peak:>10}   {growth}")?;
            match rough(row) {
                Some(error) => writeln!(out, "  ± {error}")?,
                None => writeln!(out)?,
            }
        }
    }
    Ok(0)
}

fn notes(out: &mut dyn Write, history: &History, sections: &[Section], all: bool) -> io::Result<()> {
    let ages = history.of(Measure::Age).find_map(|(_, series)| Some(series.figures()?.max));
    if let Some(age) = ages.filter(|age| *age > 0) {
        writeln!(
            out,
            "The VM and the allocators were queried up to {} before a reading. ± is the largest error from that and from other causes.",
            duration(age)
        )?;
    }
    if let Some(note) = other_direct(history) {
        writeln!(out, "{note}")?;
    }
    let growths = || sections.iter().flat_map(|section| &section.rows).map(|row| row.figures.growth);
    if all && growths().any(|growth| growth.is_some()) {
        writeln!(
            out,
            "growth: least squares over the means of 24 equal slices of time; Student's interval, widened by the residuals' correlation"
        )?;
    }
    if growths().any(|growth| growth.is_none()) && (all || growths().all(|growth| growth.is_none())) {
        writeln!(out, "growth needs at least one minute and six readings")?;
    }
    Ok(())
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

fn growth(growth: Option<Growth>) -> String {
    growth.map_or("–".into(), |growth| {
        format!("{} ({} to {})", signed(growth.per_hour), signed(growth.least), signed(growth.most))
    })
}

/// Writes the verdicts. Without `all`, omits the notes that ended before the last verdict did. Returns their number.
fn verdicts(out: &mut dyn Write, history: &History, all: bool, file: &str) -> io::Result<usize> {
    let last = history.verdicts.iter().map(|span| span.last_ns).max();
    let (shown, over): (Vec<&VerdictSpan>, Vec<&VerdictSpan>) =
        shown_spans(history).into_iter().partition(|span| all || severity(span) > 0 || Some(span.last_ns) == last);
    for span in shown {
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
        let (id, word) = (printable(&span.id), printable(&span.severity));
        let mark = if severity(span) == 0 { "·" } else { "!" };
        writeln!(out, "\n{mark} {id}  {word}, {first} to {last}{time}, {bytes}, {how}")?;
        writeln!(out, "  {}", printable(&span.summary))?;
        what_to_type(history, span, file).lines().try_for_each(|line| writeln!(out, "  {}", printable(line)))?;
    }
    Ok(over.len())
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
        all_of(history, false)
    }

    fn all_of(history: &History, all: bool) -> String {
        let mut out = Vec::new();
        write(&mut out, history, all, "x.jfr").expect("written to memory");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn one_screen_has_the_verdict_first_and_the_curves_that_matter() {
        let many: Vec<String> = (0..30).map(|at| format!("small-{at}")).collect();
        let mut curves = vec![(Measure::Rss, "", 100 * MIB), (Measure::Line, "java-heap", 90 * MIB)];
        curves.extend(many.iter().map(|name| (Measure::Line, name.as_str(), MIB / 8)));
        let mut history = history(&curves);
        let span = |id: &str, severity: &str, last_ns, remedy: &str| VerdictSpan {
            id: id.into(),
            severity: severity.into(),
            last_ns,
            remedy: remedy.into(),
            ..VerdictSpan::default()
        };
        history.verdicts.push(span("unclear", "note", 1, ""));
        history.verdicts.push(span("limit-near", "warning", 9, "one\ntwo"));
        let text = text_of(&history);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(at("! limit-near") < at("RSS ") && at("RSS ") < at("java-heap"), "{text}");
        assert!(text.contains("\n  one\n  two\n") && !text.contains("unclear") && !text.contains("small-1"), "{text}");
        // 30 × 128 KiB.
        let rest = text.lines().find(|line| line.starts_with("30 smaller")).expect("the rest");
        assert!(rest.ends_with("3.75 MiB   7.50 MiB"), "{text}");
        assert!(text.ends_with("30 curves and 1 verdict that ended earlier more with --all\n"), "{text}");
        assert!(text.lines().count() <= 24, "{text}");
        let whole = all_of(&history, true);
        assert!(whole.contains("unclear") && many.iter().all(|name| whole.contains(name)), "{whole}");
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
    fn the_count_of_java_nio_is_not_taken_for_all_memory_of_unsafe() {
        let names_netty = |nio, other| {
            text_of(&history(&[(Measure::DirectBuffers, "", nio), (Measure::Committed, "Other", other)]))
                .contains("such as Netty")
        };
        assert!(names_netty(1, 50 * MIB));
        assert!(!names_netty(50 * MIB, 50 * MIB));
    }
}
