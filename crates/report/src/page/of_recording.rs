//! The page of a recording.

use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{Group, LineId};
use plimsoll_observer::recording::{CurveFigures, Growth, History, Measure, SitesOverTime, VerdictSpan};

use super::curves::{Names, line_name, of as curves};
use super::model::{Bar, BarGroup, Bars, Cell, Gap, Limit, Page, Remedy, Stacks, Table, Verdict};
use super::of_ledger::label;
use crate::ledger_json::Ledger;
use crate::recording::{period, sections, shown_spans, signed, what_to_type};
use crate::words::{counted, duration, moment_text};

/// The page may be read where the recording has another name.
const FILE: &str = "FILE.jfr";

pub fn of_recording(history: &History) -> Page {
    let process = &history.process;
    let mut facts = vec![];
    facts.extend(process.pid.map(|pid| format!("pid {pid}")));
    let runtime = format!("{} {}", process.runtime, process.runtime_version);
    facts.extend(Some(runtime.trim().to_owned()).filter(|runtime| !runtime.is_empty()));
    facts.push(period(history));
    facts.push(counted(history.counts.values().sum(), "event"));
    let ending = history.ending.as_ref().map(|(ending, time)| {
        let time = time.map(|ns| format!(", last seen {}", moment_text(ns))).unwrap_or_default();
        format!("Ended: {}{time}", ending.sentence())
    });
    Page {
        title: if process.command.is_empty() { "Recording".into() } else { process.command.trim_end().to_owned() },
        facts,
        ending,
        verdicts: shown_spans(history).into_iter().map(|span| verdict(history, span)).collect(),
        bars: bars(history),
        curves: curves(history, &Names::new()),
        tables: tables(history),
        gaps: gaps(history),
        notes: vec![format!("The same figures for programs: plimsoll report {FILE} --format json")],
        ..Page::default()
    }
}

fn gaps(history: &History) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = history
        .gaps
        .iter()
        .map(|gap| Gap { reason: gap.reason.clone(), effect: gap.effect.clone(), remedy: gap.remedy.clone() })
        .collect();
    if history.more_gaps > 0 {
        let reason = counted(history.more_gaps, "more gap");
        gaps.push(Gap { reason, effect: "not listed".into(), remedy: String::new() });
    }
    gaps
}

/// Adds the curves alone, and what they lack, to the page of a ledger. They have the names of its lines: the ledger knows
/// which allocator it is, the recording doesn't.
pub fn add_curves(page: &mut Page, history: &History, ledger: &Ledger) {
    let names = ledger.lines.iter().map(|line| (line.id.as_str(), label(line))).collect();
    page.curves = curves(history, &names);
    page.gaps.extend(gaps(history));
}

/// Adds the call sites of several moments.
pub fn add_sites(page: &mut Page, sites: SitesOverTime) {
    let columns = sites.times_ns.iter().enumerate().map(|(at, _)| (at, "live at the end".to_owned())).collect();
    page.gaps.extend(sites.profile.gaps.iter().map(|gap| Gap {
        reason: gap.reason.clone(),
        effect: gap.effect.clone(),
        remedy: gap.remedy.clone(),
    }));
    page.stacks = Some(Stacks {
        title: "Memory by call stack".into(),
        profile: sites.profile,
        columns,
        moments_ms: sites.times_ns.iter().map(|ns| ns / 1_000_000).collect(),
    });
    if sites.recorded > sites.times_ns.len() as u64 {
        page.notes.push(format!("Call sites: {} of {} recorded moments.", sites.times_ns.len(), sites.recorded));
    }
}

fn verdict(history: &History, span: &VerdictSpan) -> Verdict {
    let [first, last] = [span.first_ns, span.last_ns].map(|ns| moment_text(ns.max(0) as u64));
    let bytes = match (span.first_bytes, span.last_bytes) {
        (first, last) if first == last => last.to_string(),
        (first, last) => format!("first {first}, last {last}, highest {}", span.most_bytes),
    };
    let remedy = Remedy { how: what_to_type(history, span, FILE), ..Remedy::default() };
    Verdict {
        id: span.id.clone(),
        severity: span.severity.clone(),
        summary: span.summary.clone(),
        certainty: if span.is_derived { "derived from the curves".into() } else { String::new() },
        evidence: vec![format!("from {first} to {last}"), bytes],
        remedies: if span.remedy.is_empty() { vec![] } else { vec![remedy] },
    }
}

/// The last reading of each line; without lines, of each category.
fn bars(history: &History) -> Option<Bars> {
    let last = |measure| {
        let mut bars: Vec<(LineId, Bar)> = history
            .of(measure)
            .filter_map(|(name, series)| {
                let figures = series.figures().filter(|figures| figures.last > 0)?;
                let of_growth = history.readings_of_growth(measure, name, series);
                let note = of_growth.and_then(|readings| readings.figures()?.growth).map(growth).unwrap_or_default();
                let id = LineId::ALL.iter().copied().find(|id| id.id() == name).unwrap_or(LineId::OtherAnonymous);
                Some((id, Bar { note, ..bar(line_name(name), figures.last) }))
            })
            .collect();
        bars.sort_by_key(|(_, bar)| std::cmp::Reverse(bar.bytes));
        bars
    };
    let (lines, by_line) = match last(Measure::Line) {
        lines if lines.is_empty() => (last(Measure::Committed), false),
        lines => (lines, true),
    };
    let sum: Bytes = lines.iter().map(|(_, bar)| Bytes(bar.bytes)).sum();
    let mut groups: Vec<BarGroup> = match by_line {
        true => Group::ALL
            .into_iter()
            .enumerate()
            .map(|(colour, of)| BarGroup {
                name: of.name().into(),
                colour,
                bars: lines.iter().filter(|(id, _)| id.group() == of).map(|(_, bar)| bar.clone()).collect(),
            })
            .collect(),
        false => {
            let bars = lines.into_iter().map(|(_, bar)| bar).collect();
            vec![BarGroup { name: "committed by category".into(), colour: 0, bars }]
        }
    };
    groups.retain(|group| !group.bars.is_empty());
    // The group Other comes last, as in the page of a ledger.
    let size = |group: &BarGroup| group.bars.iter().map(|bar| Bytes(bar.bytes)).sum::<Bytes>();
    groups.sort_by_key(|group| (group.name == Group::Other.name(), std::cmp::Reverse(size(group))));
    let limit = history.one(Measure::Limit).and_then(|series| series.figures()).map(|limit| Limit {
        name: Measure::Limit.title().into(),
        bytes: limit.last,
        counted: history.one(Measure::Charged).and_then(|series| series.figures()).map_or(sum.0, |of| of.last),
    });
    let (title, sum_name, measure) = match by_line {
        true => ("Where the memory was at the last reading", "RSS", Measure::Line),
        false => ("What was committed at the last reading", "committed", Measure::Committed),
    };
    let last_ns = history.last_reading_ns(measure).unwrap_or(history.to_ns);
    let title = match history.before_the_end(last_ns) {
        Some(ago) => {
            let at = moment_text(u64::try_from(last_ns).unwrap_or(0));
            format!("{title}, {at}, {} before the end", duration(ago))
        }
        None => title.to_owned(),
    };
    (!groups.is_empty()).then(|| Bars {
        title,
        sum_name: sum_name.into(),
        sum: sum.0,
        limit,
        groups,
        below: String::new(),
    })
}

fn bar(name: &str, bytes: u64) -> Bar {
    Bar { name: name.to_owned(), bytes, ..Bar::default() }
}

/// The growth an hour, only where it is certain.
fn growth(growth: Growth) -> String {
    match growth.is_up() && growth.is_tight() {
        true => format!("{} an hour", signed(growth.per_hour)),
        false => String::new(),
    }
}

fn tables(history: &History) -> Vec<Table> {
    const IDS: [(&str, &str); 7] = [
        ("process", "of-process"),
        ("lines", "of-lines"),
        ("lines-committed", "of-lines-committed"),
        ("categories", "of-categories"),
        ("categories-reserved", "of-categories-reserved"),
        ("categories-live", "of-categories-live"),
        ("categories-live-count", "of-categories-live-count"),
    ];
    let row = |name: &str, measure: Measure, f: &CurveFigures| {
        let figure = |n: u64| if measure == Measure::LiveCount { Cell::Count(n) } else { Cell::Bytes(n) };
        let slope = |value: f64| match measure {
            Measure::LiveCount => Cell::None,
            _ => Cell::Change(value as i64),
        };
        let mut row = vec![Cell::Text(line_name(name).to_owned())];
        row.extend([f.first, f.last, f.min, f.max, f.peak].map(figure));
        row.extend(match f.growth {
            Some(growth) => [growth.per_hour, growth.least, growth.most].map(slope),
            None => [Cell::None, Cell::None, Cell::None],
        });
        row
    };
    let table = |section: crate::recording::Section| {
        let (_, id) = *IDS.iter().find(|(of, _)| *of == section.id)?;
        let rows = section.rows.iter().filter(|row| row.figures.max > 0 || row.figures.peak > 0);
        let rows: Vec<_> = rows.map(|of| row(&of.name, of.measure, &of.figures)).collect();
        (!rows.is_empty()).then(|| Table {
            id,
            title: format!("Over time: {}", section.title),
            caption: "Growth with its 95 % interval, from one minute and six readings on.".into(),
            heads: vec!["name", "first", "last", "min", "max", "peak", "growth an hour", "at least", "at most"],
            rows,
            is_open: false,
        })
    };
    sections(history).into_iter().filter_map(table).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_observer::recording::Series;

    use super::*;

    /// Between two queries of the VM, new memory may be in another line than its owner's.
    #[test]
    fn a_bar_names_no_growth_that_the_table_lacks() {
        let mut history = History::default();
        let mut curve = |measure, name: &str, value: u64| {
            let mut series = Series::default();
            (1..=100).for_each(|s| series.push(s as i64 * 1_000_000_000, s * value));
            history.series.insert((measure, name.to_owned()), series);
        };
        curve(Measure::Age, "", 1_000_000_000);
        for name in ["direct-buffers", "java-heap"] {
            curve(Measure::Line, name, 1 << 20);
        }
        let groups = bars(&history).expect("lines").groups;
        let note = |name: &str| {
            let bar = groups.iter().flat_map(|group| &group.bars).find(|bar| bar.name == line_name(name));
            bar.map(|bar| bar.note.as_str()).unwrap_or_else(|| panic!("{name}: {groups:?}"))
        };
        assert_eq!(note("direct-buffers"), "");
        assert!(note("java-heap").ends_with(" an hour"), "{groups:?}");
        let lines = tables(&history).into_iter().find(|table| table.id == "of-lines").expect("lines");
        for row in lines.rows {
            let has_growth = !matches!(row[6], Cell::None);
            assert_eq!(has_growth, matches!(&row[0], Cell::Text(name) if name == line_name("java-heap")), "{row:?}");
        }
    }
}
