//! Puts the curves of a recording on one grid of intervals. A day has 86,400 readings at one a second. An interval
//! keeps the lowest, the highest and the last of its readings, so no peak is lost.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_observer::ledger::LineId;
use plimsoll_observer::recording::{History, Measure, Series};

use super::model::{Curve, CurveSet, Curves};
use crate::recording_chart::{default_chart, write as chart};

/// Intervals of a day at one a minute; a screen cannot resolve more.
const MOST_INTERVALS: u64 = 1440;
/// With fewer, an interval would be so wide that few readings were drawn far from their time.
const FEWEST_INTERVALS: u64 = 120;
/// Intervals of all curves together: bounds the size of the page.
const MOST_VALUES: usize = 160_000;
/// Maximum number of curves of one set. If there are more, the smallest become one curve.
const MOST_CURVES: usize = 40;
/// JavaScript's numbers are exact up to here.
const MOST: u64 = (1 << 53) - 1;

/// Sets of curves that sum to something: name, measure.
const STACKED: [(&str, Measure); 4] = [
    ("resident by line", Measure::Line),
    ("committed by line", Measure::LineCommitted),
    ("committed by category", Measure::Committed),
    ("live by category", Measure::Live),
];
/// Curves of the process beside RSS, Java heap and limit.
const OTHERS: [Measure; 4] = [Measure::Charged, Measure::HeapOccupied, Measure::DirectBuffers, Measure::TotalLive];

/// Names of lines by their ids, where they aren't the general ones.
pub(crate) type Names<'l> = BTreeMap<&'l str, String>;

pub(crate) fn of(history: &History, names: &Names) -> Option<Curves> {
    let rss = history.rss().map(|series| ("RSS".to_owned(), "rss", series));
    let heap = history.java_heap().map(|series| ("Java heap, committed".to_owned(), "heap", series));
    let limit = history.one(Measure::Limit).map(|series| ("memory limit".to_owned(), "limit", series));
    // Without a limit the cgroup is often the whole machine, and would dwarf the process.
    let has_limit = limit.is_some();
    let is_worth = |of: &&Measure| **of != Measure::Charged || has_limit;
    let others = OTHERS.iter().filter(is_worth).filter_map(|of| Some((of.title().to_owned(), "", history.one(*of)?)));
    let process = rss.into_iter().chain(heap).chain(limit).chain(others).collect::<Vec<_>>();
    let stacked = STACKED.map(|(name, measure)| (name, measure, by_size(history, measure, names)));
    let all = process.iter().map(|(_, _, series)| *series);
    let all = all.chain(stacked.iter().flat_map(|(_, _, curves)| curves.iter().map(|(_, series)| *series)));
    let count = all.clone().count();
    let readings = all.filter_map(|series| Some(series.figures()?.readings)).max()?;
    let most = MOST_INTERVALS.min((MOST_VALUES / count) as u64);
    let intervals = readings.max(FEWEST_INTERVALS).min(most).max(2) as usize;
    let length = history.to_ns.saturating_sub(history.from_ns).max(1) as f64;
    let grid = Grid { from_ns: history.from_ns, step_ns: length / intervals as f64, intervals };
    let of_process = process.into_iter().map(|(name, role, series)| {
        let last_ns = series.points().last().map_or(history.from_ns, |point| point.end_ns);
        Curve { name, role, read: grid.read([series]), ..grid.curve(series, last_ns) }
    });
    let mut sets = vec![CurveSet { name: "process".into(), is_stacked: false, curves: of_process.collect() }];
    for (name, measure, curves) in stacked {
        // All end together: otherwise their stack would fall where one of them ends.
        let last_ns = history.last_reading_ns(measure).unwrap_or(history.from_ns);
        let total = measure.total().and_then(|total| history.one(total));
        let read = grid.read(curves.iter().map(|(_, series)| *series).chain(total));
        let curve = |(name, series)| Curve { name, read: read.clone(), ..grid.curve(series, last_ns) };
        let curves = curves.into_iter().map(curve).collect();
        sets.push(CurveSet { name: name.into(), is_stacked: true, curves: joined(curves) });
    }
    sets.retain(|set| !set.curves.is_empty());
    Some(Curves {
        from_ms: history.from_ns / 1_000_000,
        step_ms: grid.step_ns / 1e6,
        intervals,
        readings,
        sets,
        picture: picture(history),
    })
}

/// The curves of a measure that are not always zero, biggest mean first.
fn by_size<'h>(history: &'h History, measure: Measure, names: &Names) -> Vec<(String, &'h Series)> {
    let is_line = matches!(measure, Measure::Line | Measure::LineCommitted);
    let name_of = |id: &str| names.get(id).filter(|_| is_line).cloned().unwrap_or_else(|| line_name(id).to_owned());
    let mut curves: Vec<(f64, String, &Series)> = history
        .of(measure)
        .filter_map(|(name, series)| {
            let figures = series.figures().filter(|figures| figures.max > 0)?;
            Some((figures.mean, name_of(name), series))
        })
        .collect();
    curves.sort_by(|one, other| other.0.total_cmp(&one.0));
    curves.into_iter().map(|(_, name, series)| (name, series)).collect()
}

/// The name of a line, for the id that recordings have. Other names stay as they are.
pub(crate) fn line_name(id: &str) -> &str {
    LineId::ALL.iter().find(|line| line.id() == id).map_or(id, |line| line.name())
}

/// The curves beyond the biggest become one: the sums of their bounds.
fn joined(mut curves: Vec<Curve>) -> Vec<Curve> {
    if curves.len() <= MOST_CURVES {
        return curves;
    }
    let rest = curves.split_off(MOST_CURVES - 1);
    let first = rest.iter().map(|curve| curve.first).min().unwrap_or(0);
    let length = rest.iter().map(|curve| curve.first + curve.values.len()).max().unwrap_or(0) - first;
    let mut values = vec![[0u64; 3]; length];
    for curve in &rest {
        for (sum, value) in values[curve.first - first..].iter_mut().zip(&curve.values) {
            (0..3).for_each(|of| sum[of] = sum[of].saturating_add(value[of]).min(MOST));
        }
    }
    let is_one_reading = rest.iter().all(|curve| curve.is_one_reading);
    let read = rest.first().map(|curve| curve.read.clone()).unwrap_or_default();
    curves.push(Curve { name: format!("{} others", rest.len()), role: "", first, values, read, is_one_reading });
    curves
}

/// The chart as SVG, for readers without script.
fn picture(history: &History) -> String {
    let mut svg = Vec::new();
    match chart(&mut svg, history, default_chart(history)) {
        Ok(Ok(())) => {}
        _ => return String::new(),
    }
    let svg = String::from_utf8(svg).unwrap_or_default();
    svg.split_once("?>").map(|(_, svg)| svg.trim().to_owned()).unwrap_or_default()
}

struct Grid {
    from_ns: i64,
    step_ns: f64,
    intervals: usize,
}

impl Grid {
    /// The interval of a time.
    fn index(&self, ns: i64) -> usize {
        let index = ns.saturating_sub(self.from_ns) as f64 / self.step_ns;
        (index.max(0.0) as usize).min(self.intervals - 1)
    }

    /// The intervals with readings of any of these curves; none if there are many: then each line is short.
    fn read<'s>(&self, all: impl IntoIterator<Item = &'s Series>) -> Vec<usize> {
        let points = all.into_iter().flat_map(Series::points);
        let mut read = BTreeSet::new();
        for point in points {
            read.extend(self.index(point.begin_ns)..=self.index(point.end_ns));
            if read.len() > FEWEST_INTERVALS as usize {
                return Vec::new();
            }
        }
        read.into_iter().collect()
    }

    /// `last_ns`: the time of the last reading, where the curve ends.
    fn curve(&self, series: &Series, last_ns: i64) -> Curve {
        let mut found: Vec<Option<[u64; 3]>> = vec![None; self.intervals];
        for point in series.points() {
            let (begin, end) = (self.index(point.begin_ns), self.index(point.end_ns));
            // A point may stand for readings of several intervals: its bounds hold for each of them.
            for (index, interval) in found.iter_mut().enumerate().take(end + 1).skip(begin) {
                let last = if index == end { point.last } else { (point.mean() as u64).clamp(point.min, point.max) };
                let [low, high, last] = [point.min, point.max, last].map(|value| value.min(MOST));
                *interval = Some(match *interval {
                    Some(known) => [known[0].min(low), known[1].max(high), last],
                    None => [low, high, last],
                });
            }
        }
        found.truncate(self.index(last_ns) + 1);
        let first = found.iter().position(Option::is_some).unwrap_or(found.len());
        let mut held = 0;
        let value = |known: &Option<[u64; 3]>| {
            let value = known.unwrap_or([held; 3]);
            held = value[2];
            value
        };
        let values: Vec<_> = found[first..].iter().map(value).collect();
        let is_one_reading = values.len() == 1 && series.points().iter().map(|point| point.count).sum::<u64>() == 1;
        Curve { first, values, is_one_reading, ..Curve::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peak_is_lost_and_a_gap_repeats_the_last_reading() {
        let value = |second: i64| if second == 40_001 { 9_000 } else { 1_000 + (second % 7) as u64 };
        let mut series = Series::default();
        (0..86_400).for_each(|second| series.push(second * 1_000_000_000, value(second)));
        series.settle();
        let grid = Grid { from_ns: 0, step_ns: 60e9, intervals: 1440 };
        let curve = grid.curve(&series, 86_399 * 1_000_000_000);
        assert_eq!((curve.first, curve.values.len()), (0, 1440));
        assert_eq!(curve.values.iter().map(|value| value[1]).max(), Some(9_000));
        assert!(curve.values.iter().all(|[low, high, last]| low <= last && last <= high));
        // Few readings are kept as they are: minutes 2 to 8 have none.
        let mut series = Series::default();
        [0, 30, 61, 600].into_iter().for_each(|second| series.push(second * 1_000_000_000, 100 + second as u64));
        let curve = Grid { from_ns: 0, step_ns: 60e9, intervals: 12 }.curve(&series, 600 * 1_000_000_000);
        assert_eq!(curve.values[..3], [[100, 130, 130], [161; 3], [161; 3]]);
        assert_eq!(curve.values[9..], [[161; 3], [700; 3]], "it ends with its last reading");
    }

    /// A process that grew by 100 MiB after its only reading of RSS must not be drawn as flat.
    #[test]
    fn a_curve_ends_with_its_last_reading() {
        const SECOND: i64 = 1_000_000_000;
        let mut history = History::default();
        history.to_ns = 60 * SECOND;
        let mut add = |measure: Measure, name: &str, seconds: &[i64]| {
            let mut series = Series::default();
            seconds.iter().for_each(|second| series.push(second * SECOND, 5 << 20));
            history.series.insert((measure, name.to_owned()), series);
        };
        add(Measure::Rss, "", &[0]);
        add(Measure::LedgerRss, "", &[0]);
        add(Measure::Line, "libraries", &[0]);
        add(Measure::TotalLive, "", &[0, 30]);
        // Recorded only when it changes: the last total says that it is the same.
        add(Measure::Live, "zlib", &[0]);
        let curves = of(&history, &Names::new()).expect("curves");
        let read = |set: usize| &curves.sets[set].curves[0].read;
        assert_eq!([read(0), read(1), read(2)], [&[0][..], &[0], &[0, 60]], "that of the total is one of the category");
        let shape = |set: usize| {
            let curve = &curves.sets[set].curves[0];
            (curve.name.as_str(), curve.first, curve.values.len(), curve.is_one_reading)
        };
        assert_eq!(shape(0), ("RSS", 0, 1, true));
        assert_eq!(shape(1), ("libraries and program", 0, 1, true));
        assert_eq!(shape(2), ("zlib", 0, 61, false), "120 intervals of half a second");
    }
}
