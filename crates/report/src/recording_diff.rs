//! Compares two recordings: the same curves, each with its last and its highest reading.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::{CurveFigures, History, Measure};

use crate::recording::{head, period, sections, signed};
use crate::words::{cut, printable};

/// One curve; None on a side that lacks it.
pub struct CurveChange {
    pub name: String,
    pub measure: Measure,
    pub before: Option<CurveFigures>,
    pub after: Option<CurveFigures>,
    /// Whether a side that lacks the curve had 0 there: it has other curves that sum to the same total. A figure of the
    /// process that a side lacks was not recorded.
    is_part: bool,
}

impl CurveChange {
    /// The change of a figure. `None`: a side didn't record it.
    pub fn of(&self, figure: impl Fn(&CurveFigures) -> u64) -> Option<i64> {
        let side = |side: &Option<CurveFigures>| side.as_ref().map(&figure).or(self.is_part.then_some(0));
        let change = i128::from(side(&self.after)?) - i128::from(side(&self.before)?);
        // The file chooses its figures: a change that an i64 can't hold prints as the nearest i64.
        Some(change.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
    }

    /// The change of the mean.
    pub(crate) fn of_means(&self) -> Option<f64> {
        let side = |side: &Option<CurveFigures>| side.as_ref().map(|f| f.mean).or(self.is_part.then_some(0.0));
        Some(side(&self.after)? - side(&self.before)?)
    }
}

/// Each section: id, title, curves; the biggest change of the last reading first.
pub fn changes(before: &History, after: &History) -> Vec<(&'static str, &'static str, Vec<CurveChange>)> {
    type ByCurve = BTreeMap<(Measure, String), CurveChange>;
    let mut found: Vec<(&str, &str, ByCurve)> = vec![];
    for (is_after, history) in [(false, before), (true, after)] {
        for section in sections(history) {
            let index = match found.iter().position(|(id, ..)| *id == section.id) {
                Some(index) => index,
                None => {
                    found.push((section.id, section.title, BTreeMap::new()));
                    found.len() - 1
                }
            };
            for row in section.rows {
                let change = found[index].2.entry((row.measure, row.name.clone())).or_insert(CurveChange {
                    name: row.name,
                    measure: row.measure,
                    before: None,
                    after: None,
                    is_part: false,
                });
                *(if is_after { &mut change.after } else { &mut change.before }) = Some(row.figures);
            }
        }
    }
    let sorted = |id: &str, changes: ByCurve| {
        let mut changes: Vec<CurveChange> = changes.into_values().collect();
        let has = |of: fn(&CurveChange) -> bool| changes.iter().any(of);
        let is_part = id != "process" && has(|change| change.before.is_some()) && has(|change| change.after.is_some());
        changes.iter_mut().for_each(|change| change.is_part = is_part);
        changes.sort_by_key(|change| {
            let [last, max] = [change.of(|figures| figures.last), change.of(|figures| figures.max)];
            std::cmp::Reverse((last.map(i64::unsigned_abs), max.map(i64::unsigned_abs)))
        });
        changes
    };
    found.into_iter().map(|(id, title, changes)| (id, title, sorted(id, changes))).collect()
}

/// Writes the changes as text, without the curves that only programs need. `sides` names the recordings.
pub fn text(out: &mut dyn Write, sides: [&str; 2], before: &History, after: &History) -> io::Result<()> {
    let width = sides.map(str::len).into_iter().max().unwrap_or(0);
    for (name, history) in sides.into_iter().zip([before, after]) {
        writeln!(out, "{name:width$}  {}   {}", head(history), period(history))?;
    }
    for (id, title, changes) in changes(before, after) {
        if id.ends_with("-reserved") || id.ends_with("-count") || id == "lines-committed" {
            continue;
        }
        writeln!(out, "\n{title:28} {:>33}   {:>33}", "last reading", "highest reading")?;
        let side = format!("{:>10} {:>10} {:>11}", sides[0], sides[1], "change");
        writeln!(out, "{:28} {side}   {side}", "")?;
        let mut unchanged = 0;
        for change in changes {
            let side = |figures: &Option<CurveFigures>, figure: fn(&CurveFigures) -> u64| {
                figures.as_ref().map_or("–".into(), |figures| Bytes(figure(figures)).to_string())
            };
            let column = |figure: fn(&CurveFigures) -> u64| {
                let (one, other) = (side(&change.before, figure), side(&change.after, figure));
                let change = change.of(figure).map_or("–".into(), |change| signed(change as f64));
                format!("{one:>10} {other:>10} {change:>11}")
            };
            if change.before.iter().chain(&change.after).all(|figures| figures.max == 0) {
                continue;
            }
            if change.of(|figures| figures.last) == Some(0) && change.of(|figures| figures.max) == Some(0) {
                unchanged += 1;
                continue;
            }
            let (last, max) = (column(|figures| figures.last), column(|figures| figures.max));
            writeln!(out, "{:28} {last}   {max}", cut(&change.name, 28))?;
        }
        if unchanged > 0 {
            writeln!(out, "{unchanged} more without a change")?;
        }
    }
    for (name, history) in sides.into_iter().zip([before, after]) {
        for gap in &history.gaps {
            writeln!(out, "gap ({name}): {}; {}", printable(&gap.reason), printable(&gap.effect))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_observer::recording::Series;

    #[test]
    fn each_column_says_which_recording_it_is_of() {
        let history = |value: u64| {
            let (mut history, mut series) = (History::default(), Series::default());
            series.push(0, value);
            series.push(1_000_000_000, value);
            history.series.insert((Measure::Rss, String::new()), series);
            history
        };
        let mut out = Vec::new();
        text(&mut out, ["before", "after"], &history(1 << 20), &history(3 << 20)).expect("a Vec takes it");
        let found = String::from_utf8(out).expect("UTF-8");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let rows: Vec<String> = found.lines().map(words).collect();
        assert!(rows.iter().any(|row| row == "before after change before after change"), "{found}");
        let figures = "1.00 MiB 3.00 MiB +2.00 MiB 1.00 MiB 3.00 MiB +2.00 MiB";
        assert!(rows.iter().any(|row| row.ends_with(figures)), "{found}");
        let mut out = Vec::new();
        text(&mut out, ["A", "B"], &history(1 << 20), &history(1 << 20)).expect("a Vec takes it");
        let found = String::from_utf8(out).expect("UTF-8");
        assert!(found.contains("\n1 more without a change\n") && !found.contains("MiB"), "{found}");
        assert!(found.starts_with("A  ") && found.contains("\nB  ") && !found.contains("before"), "{found}");
    }

    /// A JVM's own recording has no RSS, and no lines; a category that one side lacks is 0 there.
    #[test]
    fn a_curve_that_a_side_did_not_record_has_no_change() {
        let history = |curves: &[(Measure, &str, u64)]| {
            let mut history = History::default();
            for (measure, name, value) in curves {
                let mut series = Series::default();
                series.push(0, *value);
                series.push(1_000_000_000, *value);
                history.series.insert((*measure, (*name).to_owned()), series);
            }
            history
        };
        let before = history(&[
            (Measure::Rss, "", 237 << 20),
            (Measure::Line, "image-heap", 9 << 20),
            (Measure::Committed, "GC", 5 << 20),
            (Measure::Committed, "NMT", 1 << 20),
        ]);
        let after = history(&[(Measure::Committed, "GC", 5 << 20), (Measure::Committed, "JFR", 3 << 20)]);
        let of: BTreeMap<String, [Option<i64>; 2]> = changes(&before, &after)
            .into_iter()
            .flat_map(|(_, _, rows)| rows)
            .map(|row| (row.name.clone(), [row.of(|f| f.last), row.of_means().map(|mean| mean as i64)]))
            .collect();
        let rss = Measure::Rss.title();
        assert_eq!(of[rss], [None; 2]);
        assert_eq!(of["image-heap"], [None; 2], "the other has no lines at all");
        let categories = ["GC", "JFR", "NMT"].map(|name| of[name]);
        assert_eq!(categories, [0, 3 << 20, -1 << 20].map(|change| [Some(change); 2]));
        let mut out = Vec::new();
        text(&mut out, ["before", "after"], &before, &after).expect("a Vec takes it");
        let found = String::from_utf8(out).expect("UTF-8");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = found.lines().map(words).find(|line| line.starts_with(rss)).expect("a line of RSS");
        assert_eq!(line, format!("{rss} 237 MiB – – 237 MiB – –"));
    }
}
