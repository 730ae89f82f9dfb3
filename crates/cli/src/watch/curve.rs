//! One figure over time, and its change since the baseline.

use plimsoll_facts::units::Bytes;
use plimsoll_observer::recording::growth::{LEAST_RANGE_NS, growth};
use plimsoll_observer::recording::{Growth, Point, Series};

#[derive(Clone, Debug, Default)]
pub struct Curve {
    series: Series,
    /// The value at the baseline.
    at_baseline: u64,
}

/// What the readings show about growth since the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trend {
    /// Seconds until a rate can be given.
    In(u64),
    /// The interval contains 0: the curve may grow or shrink.
    No,
    /// It grows or shrinks, with 95 % confidence. Per hour.
    Is(Growth),
}

/// Points of a curve in the list of processes: more than any screen shows.
const IN_LIST: usize = 256;

impl Curve {
    /// A curve of 16 KiB at most, for a list that may have a thousand.
    pub fn of_list() -> Curve {
        Curve { series: Series::of_at_most(IN_LIST), at_baseline: 0 }
    }

    pub fn push(&mut self, time_ns: u64, value: u64) {
        self.series.push(time_ns as i64, value);
    }

    /// Lets the curve begin at `time_ns` with 0. For a curve whose first value came later than that of the others.
    pub fn was_nothing(&mut self, time_ns: u64) {
        self.series.begin(time_ns as i64, 0);
    }

    pub fn set_baseline(&mut self) {
        self.at_baseline = self.last();
    }

    pub fn last(&self) -> u64 {
        self.series.points().last().map_or(0, |point| point.last)
    }

    pub fn change(&self) -> i64 {
        let change = i64::try_from(self.last().abs_diff(self.at_baseline)).unwrap_or(i64::MAX);
        if self.last() < self.at_baseline { -change } else { change }
    }

    pub fn trend(&self, baseline_ns: u64) -> Trend {
        let points = self.since(baseline_ns);
        if let Some(growth) = growth(points) {
            let is_clear = growth.least > 0.0 || growth.most < 0.0;
            return if is_clear { Trend::Is(growth) } else { Trend::No };
        }
        let range = points.first().zip(points.last()).map_or(0, |(first, last)| last.end_ns - first.begin_ns);
        let left = LEAST_RANGE_NS.saturating_sub(range).max(0) as u64;
        // After a minute only readings are missing: with long intervals, six of them take longer.
        Trend::In(left.div_ceil(1_000_000_000))
    }

    fn since(&self, baseline_ns: u64) -> &[Point] {
        let points = self.series.points();
        &points[points.partition_point(|point| point.begin_ns < baseline_ns as i64)..]
    }

    /// The whole history in `columns` columns of equal time, from its lowest value (0) to its highest (7). None: no
    /// reading yet.
    pub fn spark(&self, columns: usize) -> Vec<Option<u8>> {
        let points = self.series.points();
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return vec![None; columns] };
        let (begin, range) = (first.begin_ns, (last.end_ns - first.begin_ns).max(1));
        // A short history fills a part of the columns: one for each reading.
        let used = columns.min(points.len()).max(1);
        let mut sums = vec![(0.0, 0.0); used];
        for point in points {
            let at = ((point.begin_ns - begin) as i128 * used as i128 / (i128::from(range) + 1)) as usize;
            let sum = &mut sums[at.min(used - 1)];
            *sum = (sum.0 + point.sum, sum.1 + point.count as f64);
        }
        let means: Vec<Option<f64>> = sums.iter().map(|(sum, n)| (*n > 0.0).then(|| sum / n)).collect();
        let known = || means.iter().flatten().copied();
        let (low, high) = (known().fold(f64::INFINITY, f64::min), known().fold(0.0, f64::max));
        let level =
            |mean: f64| if high - low < FLAT * high { 0 } else { ((mean - low) / (high - low) * 7.0).round() as u8 };
        // A column without a reading continues the one before.
        let mut before = None;
        let mut spark: Vec<Option<u8>> = Vec::with_capacity(columns);
        for mean in means {
            before = mean.map(level).or(before);
            spark.push(before);
        }
        spark.resize(columns, None);
        spark
    }
}

/// A curve that moves less than this share of its height is drawn flat: otherwise noise would look like growth.
const FLAT: f64 = 0.01;

/// `+38.0 ±4.1 MiB/h`: both figures in the unit of the first.
pub fn rate(growth: Growth) -> String {
    let half = (growth.most - growth.per_hour).abs();
    let bytes = Bytes(growth.per_hour.abs() as u64).to_string();
    let (number, unit) = bytes.split_once(' ').unwrap_or((&bytes, "B"));
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let scale = match unit {
        "KiB" => 1024.0,
        "MiB" => 1024f64.powi(2),
        "GiB" => 1024f64.powi(3),
        "TiB" => 1024f64.powi(4),
        "PiB" => 1024f64.powi(5),
        "EiB" => 1024f64.powi(6),
        _ => 1.0,
    };
    let sign = if growth.per_hour < 0.0 { '−' } else { '+' };
    format!("{sign}{number} ±{:.decimals$} {unit}/h", half / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: impl Iterator<Item = u64>) -> Curve {
        let mut curve = Curve::default();
        values.enumerate().for_each(|(second, value)| curve.push(second as u64 * 1_000_000_000, value));
        curve
    }

    #[test]
    fn a_rate_needs_a_minute_and_a_clear_direction() {
        assert_eq!(curve((0..10).map(|n| n << 20)).trend(0), Trend::In(51));
        assert!(matches!(curve((0..120).map(|n| n << 20)).trend(0), Trend::Is(growth) if growth.least > 0.0));
        assert!(matches!(curve((0..120).map(|n| (200 - n) << 20)).trend(0), Trend::Is(growth) if growth.most < 0.0));
        // A saw tooth.
        assert_eq!(curve((0..120).map(|n| (n % 10) << 20)).trend(0), Trend::No);
        assert_eq!(curve((0..120).map(|_| 5)).trend(0), Trend::No);
        // Only what came after the baseline counts.
        let late = curve((0..120u64).map(|n| n.min(50) << 20));
        assert_eq!(late.trend(55_000_000_000), Trend::No);
    }

    #[test]
    fn the_change_is_since_the_mark() {
        let mut curve = curve([10, 30].into_iter());
        assert_eq!(curve.change(), 30);
        curve.set_baseline();
        assert_eq!(curve.change(), 0);
        curve.push(2_000_000_000, 5);
        assert_eq!(curve.change(), -25);
    }

    #[test]
    fn a_curve_of_the_list_stays_small_and_keeps_its_trend() {
        let mut curve = Curve::of_list();
        for second in 0..100_000 {
            curve.push(second * 1_000_000_000, second << 10);
            assert!(curve.series.points().len() <= IN_LIST);
        }
        assert_eq!((curve.last(), curve.change()), (99_999 << 10, 99_999 << 10));
        let Trend::Is(growth) = curve.trend(0) else { panic!("it grows") };
        assert!((growth.per_hour - 3600.0 * 1024.0).abs() < 3600.0, "{growth:?}");
    }

    #[test]
    fn a_spark_rises_and_noise_is_flat() {
        assert_eq!(curve((0..8).map(|n| 100 + n * 100)).spark(10)[..8], [0, 1, 2, 3, 4, 5, 6, 7].map(Some));
        assert_eq!(curve((0..8).map(|n| 100 + n * 100)).spark(10)[8..], [None, None]);
        assert!(curve((0..99).map(|n| 100_000 + n % 7)).spark(10).iter().all(|level| *level == Some(0)));
        assert_eq!(Curve::default().spark(3), [None; 3]);
        assert_eq!(curve(0..1000).spark(5).len(), 5);
    }

    #[test]
    fn both_figures_of_a_rate_have_one_unit() {
        let mib = 1024.0 * 1024.0;
        let growth = |per_hour: f64, half: f64| Growth { per_hour, least: per_hour - half, most: per_hour + half };
        assert_eq!(rate(growth(38.0 * mib, 4.13 * mib)), "+38.0 ±4.1 MiB/h");
        assert_eq!(rate(growth(-1.5 * mib, 0.25 * mib)), "−1.50 ±0.25 MiB/h");
        assert_eq!(rate(growth(2048.0 * mib, 10.0 * mib)), "+2.00 ±0.01 GiB/h");
    }
}
