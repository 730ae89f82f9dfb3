//! Prints a flight recording on one screen: how it ended, the verdicts with their remedies, and the curves that are big
//! or grow. `all`: every curve, with its lowest reading, its peak and the interval of its growth.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{Growth, History, LimitGroup, Measure, VerdictSpan};

use crate::recording::{PROCESS, Row, Section, head, period, sections, severity, shown_spans, signed, what_to_type};
use crate::words::{columns, counted, cut, duration, moment_text, printable};

/// Percent of a line's highest reading from which its error is shown.
const ROUGH: f64 = 1.0;
/// Bytes allocated with Unsafe from which a sentence explains them.
const WORTH_OTHER: Bytes = Bytes::mib(1);
/// Rows and columns of the screen that the report fits on, if the verdicts leave space.
const SCREEN: usize = 24;
const WIDTH: usize = 80;
/// Rows that a section has at least and at most, without its title and the row of the rest.
const FEWEST: usize = 2;
const ROWS: usize = 8;
const TITLE_AND_REST: usize = 2;
/// Percent of the section's sum from which a row is on the screen. A row that grows by this percentage of RSS an hour
/// is there too.
const LEAST: f64 = 1.0;
/// Groups with the memory limit that are named.
const GROUPS: usize = 3;

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
    let mut above = Vec::new();
    let over = verdicts(&mut above, history, all, file)?;
    let sections = sections(history);
    let mut below = Vec::new();
    notes(&mut below, history, &sections, all)?;
    gaps(&mut below, history)?;
    out.write_all(&above)?;
    // The first two lines, and the last one.
    let space = SCREEN.saturating_sub(3 + height(&above) + height(&below));
    let Screen { left_out, is_tight } = match all {
        true => tables(out, &sections)?,
        false => screen(out, history, &sections, space)?,
    };
    if !is_tight {
        writeln!(out)?;
    }
    out.write_all(&below)?;
    let mut more = Vec::new();
    more.extend((left_out > 0).then(|| counted(left_out as u64, "more curve")));
    more.extend((over > 0).then(|| format!("{} that ended earlier", counted(over as u64, "more verdict"))));
    if !more.is_empty() {
        writeln!(out, "--all shows {}", more.join(" and "))?;
    }
    Ok(())
}

/// Rows that a text takes on the screen.
fn height(text: &[u8]) -> usize {
    String::from_utf8_lossy(text).lines().map(|line| columns(line).div_ceil(WIDTH).max(1)).sum()
}

fn gaps(out: &mut dyn Write, history: &History) -> io::Result<()> {
    for gap in &history.gaps {
        write!(out, "gap: {}; {}", printable(&gap.reason), printable(&gap.effect))?;
        match gap.remedy.as_str() {
            "" => writeln!(out)?,
            remedy => writeln!(out, "; {}", printable(remedy))?,
        }
    }
    if history.more_gaps > 0 {
        writeln!(out, "and {}", counted(history.more_gaps, "more gap"))?;
    }
    Ok(())
}

/// What was written.
struct Screen {
    /// Number of curves left out.
    left_out: usize,
    /// There was no space for blank lines.
    is_tight: bool,
}

/// Writes the curves that a screen needs, in `space` rows if that is enough for the largest ones. The blank line below
/// them counts.
fn screen(out: &mut dyn Write, history: &History, sections: &[Section], space: usize) -> io::Result<Screen> {
    let rss = history.rss().and_then(|series| Some(series.figures()?.last)).unwrap_or(0);
    let grows = |row: &Row| row.figures.growth.filter(|growth| is_growth(*growth, rss));
    let has_growth = sections.iter().flat_map(|section| &section.rows).any(|row| row.figures.growth.is_some());
    let growth = if has_growth { "   growth an hour" } else { "" };
    writeln!(out, "\n{:28} {:>10} {:>10} {:>10}{growth}", "", "first", "last", "highest")?;
    let [has_live, has_lines] = [Measure::Live, Measure::Line].map(|measure| history.of(measure).next().is_some());
    let (mut left_out, mut parts) = (0, Vec::new());
    for section in sections.iter().filter(|section| section.in_text) {
        let rows: Vec<&Row> = section.rows.iter().filter(|row| row.figures.max > 0 || row.figures.peak > 0).collect();
        // Live bytes say more than committed ones; the sums are in the section of the process.
        if section.id == "categories" && has_live {
            left_out += rows.len();
            continue;
        }
        // All its curves may be zero: then it has no title either.
        if section.id == "process" || !rows.is_empty() {
            parts.push((section, rows));
        }
    }
    let is_shown = |row: &Row, sum: Bytes| match row.measure {
        Measure::LedgerRss => history.of(Measure::Rss).next().is_none(),
        // The lines have the resident part of these, the categories the sum.
        Measure::TotalCommitted | Measure::HeapCommitted | Measure::Metaspace | Measure::DirectBuffers => !has_lines,
        Measure::TotalLive => !has_live,
        // A row for what counts against the limit; --all has the charge, too.
        Measure::Charged => history.one(Measure::WorkingSet).is_none_or(|series| series.points().is_empty()),
        measure if PROCESS.contains(&measure) => true,
        _ => Bytes(row.figures.max).percent_of(sum) >= LEAST || grows(row).is_some(),
    };
    let mut split: Vec<(&Section, Vec<&Row>, Vec<&Row>)> = Vec::new();
    for (section, rows) in parts {
        let sum: Bytes = rows.iter().map(|row| Bytes(row.figures.last.max(row.figures.first))).sum();
        let (shown, rest) = rows.into_iter().partition(|row| is_shown(row, sum));
        split.push((section, shown, rest));
    }
    let of_process: usize = split.iter().filter(|part| part.0.id == "process").map(|part| part.1.len()).sum();
    let mut sections_left = split.iter().filter(|part| part.0.id != "process").count();
    // The blank line and the heads of the columns; a blank line before each section and after the last.
    let space = space.saturating_sub(2 + of_process);
    let is_tight = space < sections_left * (TITLE_AND_REST + FEWEST + 1) + 1;
    let mut space = if is_tight { space } else { space - sections_left - 1 };
    for (section, mut shown, mut rest) in split {
        let is_process = section.id == "process";
        if !is_process {
            let most = (space / sections_left.max(1)).saturating_sub(TITLE_AND_REST).clamp(FEWEST, ROWS);
            // The growth of a line that was rarely queried isn't known, but it may have changed most.
            let has_changed = |row: &Row| {
                let f = &row.figures;
                has_growth && f.growth.is_none() && Bytes(f.last.abs_diff(f.first)).percent_of(Bytes(rss)) >= LEAST
            };
            rest.extend(beyond(&mut shown, most, |row| grows(row).is_some() || has_changed(row)));
            sections_left -= 1;
            space = space.saturating_sub(1 + shown.len() + usize::from(!rest.is_empty()));
            writeln!(out, "{}{}", if is_tight { "" } else { "\n" }, section.title)?;
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
            let sum = |of: fn(&Row) -> u64| rest.iter().map(|row| Bytes(of(row))).sum::<Bytes>().to_string();
            let name = format!("{} smaller", rest.len());
            writeln!(out, "{name:28} {:>10} {:>10}", sum(|row| row.figures.first), sum(|row| row.figures.last))?;
        }
        left_out += rest.len();
    }
    Ok(Screen { left_out, is_tight })
}

/// Keeps `most` rows in their order, those that grow before others. Returns the rest.
fn beyond<'r>(shown: &mut Vec<&'r Row>, most: usize, grows: impl Fn(&Row) -> bool) -> Vec<&'r Row> {
    let mut ranked: Vec<usize> = (0..shown.len()).collect();
    ranked.sort_by_key(|at| !grows(shown[*at]));
    ranked.truncate(most);
    let (kept, rest): (Vec<_>, Vec<_>) = shown.drain(..).enumerate().partition(|(at, _)| ranked.contains(at));
    shown.extend(kept.into_iter().map(|(_, row)| row));
    rest.into_iter().map(|(_, row)| row).collect()
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

fn tables(out: &mut dyn Write, sections: &[Section]) -> io::Result<Screen> {
    let has_figures = |row: &Row| row.figures.max > 0 || row.figures.peak > 0;
    for section in sections.iter().filter(|section| section.in_text && section.rows.iter().any(has_figures)) {
        writeln!(
            out,
            "\n{:28} {:>10} {:>10} {:>10} {:>10} {:>10}   growth an hour (95 % interval)",
            section.title, "first", "last", "min", "max", "peak"
        )?;
        // A curve that is always zero has no line in the text.
        for row in section.rows.iter().filter(|row| has_figures(row)) {
            let f = &row.figures;
            let [first, last, min, max, peak] = [f.first, f.last, f.min, f.max, f.peak].map(|n| Bytes(n).to_string());
            let (name, growth) = (cut(&row.name, 28), growth(f.growth));
            write!(out, "{name:28} {first:>10} {last:>10} {min:>10} {max:>10} {peak:>10}   {growth}")?;
            match rough(row) {
                Some(error) => writeln!(out, "  ± {error}")?,
                None => writeln!(out)?,
            }
        }
    }
    Ok(Screen { left_out: 0, is_tight: false })
}

fn notes(out: &mut dyn Write, history: &History, sections: &[Section], all: bool) -> io::Result<()> {
    let ages = history.of(Measure::Age).find_map(|(_, series)| Some(series.figures()?.max));
    if let Some(age) = ages.filter(|age| *age > 0) {
        writeln!(out, "±: largest error; VM and allocators were queried up to {} before a reading.", duration(age))?;
    }
    if let Some(ago) = lines_before_rss(history) {
        writeln!(out, "The lines were last read {} before the last RSS, so they don't add up to it.", duration(ago))?;
    }
    if let Some(note) = rss_before_end(history) {
        writeln!(out, "{note}")?;
    }
    if let Some(note) = other_direct(history) {
        writeln!(out, "{note}")?;
    }
    limit_groups(out, history)?;
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

/// How long before the last reading of RSS the lines were last read, if RSS changed since. An instant without the lines
/// costs less, so with a short interval most instants have none.
fn lines_before_rss(history: &History) -> Option<u64> {
    let last = |measure: Measure| {
        history.one(measure).and_then(|series| Some((series.points().last()?.end_ns, series.figures()?.last)))
    };
    let ((rss_ns, rss), (lines_ns, lines)) = (last(Measure::Rss)?, last(Measure::LedgerRss)?);
    u64::try_from(rss_ns.saturating_sub(lines_ns)).ok().filter(|ago| *ago > 0 && rss != lines)
}

/// What the last figures of RSS leave open: the time after the last reading, and with one reading any change.
fn rss_before_end(history: &History) -> Option<String> {
    let rss = history.rss()?;
    let ago = history.before_the_end(rss.points().last()?.end_ns);
    match (rss.figures()?.readings, ago) {
        (1, Some(ago)) => Some(format!("RSS was read once, {} before the end.", duration(ago))),
        (1, None) => Some("RSS was read once.".to_owned()),
        (_, ago) => ago.map(|ago| format!("RSS was last read {} before the end.", duration(ago))),
    }
}

/// Which groups have the memory limit, if there are several: then a step of its curve, or of the charge, isn't growth.
fn limit_groups(out: &mut dyn Write, history: &History) -> io::Result<()> {
    let groups = &history.limit_groups;
    if groups.len() < 2 {
        return Ok(());
    }
    let name = |group: &LimitGroup| format!("{} ({})", printable(&group.path), counted(group.readings, "reading"));
    let mut names: Vec<String> = groups.iter().take(GROUPS).map(name).collect();
    names.extend((groups.len() > GROUPS).then(|| format!("{} more", groups.len() - GROUPS)));
    let number = counted(groups.len() as u64, "group");
    writeln!(out, "The limit and the charge are those of {number} in turn: {}.", names.join(", "))
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
    let has_warning = shown.iter().any(|span| severity(span) > 0);
    for span in shown {
        if has_warning && severity(span) == 0 && !all {
            let line = format!("· {}: {}", printable(&span.id), printable(&span.summary));
            writeln!(out, "{}", cut(&line, WIDTH))?;
            continue;
        }
        let [first, last] = [span.first_ns, span.last_ns].map(|ns| moment_text(ns.max(0) as u64));
        // The time of day suffices within one day.
        let from = if first[..10] == last[..10] { 11 } else { 0 };
        let (first, last) = (&first[from..19], &last[from..19]);
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

    /// The time of day alone doesn't tell 2 h from 26 h.
    #[test]
    fn a_verdict_of_several_days_has_their_dates() {
        const HOUR: i64 = 3_600_000_000_000;
        let of = |last_ns: i64| {
            let mut history = history(&[(Measure::Rss, "", 100 * MIB)]);
            history.verdicts.push(VerdictSpan {
                id: "growth".into(),
                severity: "warning".into(),
                last_ns,
                held_ns: last_ns,
                ..VerdictSpan::default()
            });
            text_of(&history)
        };
        assert!(of(HOUR).contains("warning, 00:00:00 to 01:00:00, "), "{}", of(HOUR));
        assert!(of(26 * HOUR).contains("warning, 1970-01-01 00:00:00 to 1970-01-02 02:00:00, "), "{}", of(26 * HOUR));
    }

    /// First and last are the same reading: the table shows a change of 0, and the rest of the time is unknown.
    #[test]
    fn the_text_says_when_rss_was_last_read() {
        let of = |readings: &[i64], to: i64| {
            let mut history = History::default();
            history.to_ns = to;
            let mut series = Series::default();
            readings.iter().for_each(|at| series.push(*at, MIB));
            history.series.insert((Measure::Rss, String::new()), series);
            text_of(&history)
        };
        let last = |text: String| text.lines().find(|line| line.starts_with("RSS was")).map(str::to_owned);
        assert_eq!(last(of(&[0], 0)).as_deref(), Some("RSS was read once."));
        assert_eq!(last(of(&[0], 32_100_000_000)).as_deref(), Some("RSS was read once, 32.1 s before the end."));
        assert_eq!(last(of(&[0, 9], 5_000_000_009)).as_deref(), Some("RSS was last read 5.0 s before the end."));
        assert_eq!(last(of(&[0, 9], 900_000_000)), None);
    }

    #[test]
    fn a_section_of_zeros_has_no_title() {
        let zeros = history(&[(Measure::Rss, "", MIB), (Measure::Live, "zlib", 0)]);
        for all in [false, true] {
            assert!(!all_of(&zeros, all).contains("live by category"), "{}", all_of(&zeros, all));
        }
        let one = history(&[(Measure::Rss, "", MIB), (Measure::Live, "zlib", 1)]);
        for all in [false, true] {
            assert!(all_of(&one, all).contains("live by category"), "{}", all_of(&one, all));
        }
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
        assert!(text.ends_with("--all shows 30 more curves and 1 more verdict that ended earlier\n"), "{text}");
        assert!(text.lines().count() <= 24, "{text}");
        let whole = all_of(&history, true);
        assert!(whole.contains("unclear") && many.iter().all(|name| whole.contains(name)), "{whole}");
    }

    /// A tracked JVM in a container: a warning, a note, eight curves of the process, many lines and categories, queries
    /// of the VM.
    #[test]
    fn a_report_with_two_sections_fits_on_a_screen_of_24_rows() {
        let names: Vec<String> = (0..12).map(|at| format!("part-{at}")).collect();
        let process = [
            Measure::Rss,
            Measure::Charged,
            Measure::WorkingSet,
            Measure::Limit,
            Measure::TotalCommitted,
            Measure::TotalLive,
            Measure::HeapCommitted,
            Measure::HeapOccupied,
            Measure::Metaspace,
        ];
        let mut curves: Vec<(Measure, &str, u64)> = process.map(|measure| (measure, "", 100 * MIB)).to_vec();
        for measure in [Measure::Line, Measure::LineError, Measure::Live] {
            curves.extend(names.iter().enumerate().map(|(at, name)| (measure, name.as_str(), (20 - at as u64) * MIB)));
        }
        curves.push((Measure::Age, "", 4_700_000_000));
        let mut history = history(&curves);
        for (id, severity, remedy) in [("limit-near", "warning", "one"), ("unclear", "note", "two")] {
            history.verdicts.push(VerdictSpan {
                id: id.into(),
                severity: severity.into(),
                last_ns: 9,
                summary: "14 % of RSS can't be judged; 27.5 MiB of it is glibc, unclassified".into(),
                remedy: remedy.into(),
                ..VerdictSpan::default()
            });
        }
        let text = text_of(&history);
        assert!(height(text.as_bytes()) <= SCREEN, "{} rows: {text}", height(text.as_bytes()));
        // The largest of each section, and the rest in one row.
        assert!(text.contains("part-0") && text.contains("part-1 ") && text.contains("10 smaller"), "{text}");
        assert!(text.contains("\n· unclear: 14 % of RSS"), "{text}");
        assert!(text.contains("Java heap occupied") && !text.contains("Java heap committed"), "{text}");
        let whole = all_of(&history, true);
        assert!(whole.contains("two") && names.iter().all(|name| whole.contains(name)), "{whole}");
        // Without verdicts there is space for more.
        history.verdicts.clear();
        assert!(text_of(&history).matches("part-").count() > text.matches("part-").count());
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
    fn lines_that_are_older_than_rss_say_so() {
        let text = |rss_at: i64, rss: u64| {
            let mut history = history(&[(Measure::LedgerRss, "", 50 * MIB), (Measure::Line, "java-heap", 50 * MIB)]);
            let mut series = Series::default();
            for (at, bytes) in [(0, 50 * MIB), (1_000_000_000, 100 * MIB), (rss_at, rss)] {
                series.push(at, bytes);
            }
            history.series.insert((Measure::Rss, String::new()), series);
            text_of(&history)
        };
        let older = "The lines were last read 1.5 s before the last RSS, so they don't add up to it.";
        assert!(text(2_500_000_000, 160 * MIB).contains(older), "{}", text(2_500_000_000, 160 * MIB));
        assert!(!text(2_500_000_000, 100 * MIB).contains("were last read"), "RSS is the same");
        assert!(!text(1_000_000_001, 100 * MIB).contains("were last read"));
    }

    /// The line of a VM that was rarely queried has no growth, but the largest change.
    #[test]
    fn a_line_whose_growth_is_unknown_keeps_its_row_beside_those_that_grow() {
        let mut history = History::default();
        let mut curve = |measure, name: &str, value: &dyn Fn(u64) -> u64| {
            let mut series = Series::default();
            (0..100).for_each(|s| series.push(s as i64 * 1_000_000_000, value(s)));
            history.series.insert((measure, name.to_owned()), series);
        };
        curve(Measure::Rss, "", &|s| (100 + s) * MIB);
        curve(Measure::Age, "", &|s| s * 1_000_000_000);
        curve(Measure::Line, "direct-buffers", &|s| if s < 99 { MIB } else { 90 * MIB });
        for name in ["java-heap", "code-cache", "thread-stacks", "libraries"] {
            curve(Measure::Line, name, &|s| 10 * MIB + s * MIB / 20);
        }
        for id in 0..8 {
            let span =
                VerdictSpan { id: format!("verdict-{id}"), severity: "warning".into(), ..VerdictSpan::default() };
            history.verdicts.push(span);
        }
        let text = text_of(&history);
        assert!(!text.contains("libraries"), "too small a screen for all: {text}");
        let row = text.lines().find(|row| row.starts_with("direct-buffers")).expect(&text);
        assert!(row.ends_with("90.0 MiB   90.0 MiB"), "without growth: {text}");
        assert!(text.contains("code-cache"), "{text}");
    }

    #[test]
    fn several_groups_with_the_limit_are_named() {
        let mut history = history(&[(Measure::Limit, "", 100 * MIB), (Measure::Charged, "", 50 * MIB)]);
        let group =
            |path: &str, readings| LimitGroup { path: path.into(), readings, limit: 7, ..LimitGroup::default() };
        history.limit_groups = vec![group("/pod", 9)];
        assert!(!text_of(&history).contains("/pod"), "one group: the curve has no steps");
        history.limit_groups.push(group("/pod/\u{1b}[2Jcontainer", 1));
        let text = text_of(&history);
        let note = "The limit and the charge are those of 2 groups in turn: /pod (9 readings), \
                    /pod/\\u{1b}[2Jcontainer (1 reading).\n";
        assert!(text.contains(note), "{text}");
        history.limit_groups.extend(["/a", "/b", "/c"].map(|path| group(path, 2)));
        assert!(
            text_of(&history).contains("5 groups in turn: ")
                && text_of(&history).contains(", /a (2 readings), 2 more.\n")
        );
        let mut json = Vec::new();
        crate::recording_json::write(&mut json, &history).expect("written to memory");
        let json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        let first = &json["limit_groups"][0];
        assert_eq!(first["limit_path"], "/pod");
        assert_eq!((first["limit_bytes"].as_u64(), first["readings"].as_u64()), (Some(7), Some(9)));
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
