//! A curve in bounded memory. If there are many readings, neighbours are merged into points that keep what charts and
//! tables need.

use super::growth::{Growth, growth};
use super::point::Point;

/// Limit of points. With one reading per second, an hour is kept completely, and a week in points of five minutes.
const MOST: usize = 4096;

#[derive(Clone, Debug)]
pub struct Series {
    points: Vec<Point>,
    /// Limit of points.
    most: usize,
    /// The peak that the recorded process measured itself.
    pub known_peak: Option<u64>,
}

/// A curve's figures in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurveFigures {
    pub readings: u64,
    pub first: u64,
    pub last: u64,
    pub min: u64,
    pub max: u64,
    pub mean: f64,
    /// The highest of all readings and of the process's own peak.
    pub peak: u64,
    pub growth: Option<Growth>,
}

impl Default for Series {
    fn default() -> Series {
        Series::of_at_most(MOST)
    }
}

impl Series {
    /// With a limit of points of its own, where there are many curves.
    pub fn of_at_most(most: usize) -> Series {
        Series { points: Vec::new(), most, known_peak: None }
    }

    pub fn push(&mut self, time_ns: i64, value: u64) {
        if self.points.len() >= self.most {
            self.settle();
            // Points must have similar numbers of readings: merging pairs each time would put the oldest half into one
            // point.
            let mut most = 2 * self.points.iter().map(|point| point.count).max().unwrap_or(1);
            let readings: u64 = self.points.iter().map(|point| point.count).sum();
            most = most.min((4 * readings / self.most as u64).max(2).next_power_of_two());
            let mut merged: Vec<Point> = Vec::with_capacity(self.most);
            for point in self.points.drain(..) {
                match merged.last_mut() {
                    Some(last) if last.count + point.count <= most => *last = last.with(point),
                    _ => merged.push(point),
                }
            }
            self.points = merged;
        }
        self.points.push(Point::one(time_ns, value));
    }

    pub fn peak(&mut self, value: u64) {
        self.known_peak = Some(self.known_peak.unwrap_or(0).max(value));
    }

    /// Sorts the points by time: threads write their events to a file in no particular order.
    pub fn settle(&mut self) {
        self.points.sort_by_key(|point| point.begin_ns);
    }

    /// Sets the value at the beginning, unless there is a reading at that time.
    pub fn begin(&mut self, time_ns: i64, value: u64) {
        if self.points.first().is_none_or(|first| first.begin_ns > time_ns) {
            self.points.insert(0, Point::one(time_ns, value));
        }
    }

    /// Adds zeros at those moments that lie before the first reading; they take at most a quarter of the points.
    pub(crate) fn nothing_before(&mut self, moments: &[Point]) {
        let Some(first) = self.points.first().map(|point| point.begin_ns) else { return };
        let before = &moments[..moments.partition_point(|point| point.end_ns < first)];
        let together = before.len().div_ceil(self.most / 4).max(1);
        let zero = |points: &[Point]| {
            let (begin, end) = (points.first()?, points.last()?);
            let count = points.iter().map(|point| point.count).sum();
            Some(Point { begin_ns: begin.begin_ns, end_ns: end.end_ns, count, ..Point::one(begin.begin_ns, 0) })
        };
        self.points.splice(0..0, before.chunks(together).filter_map(zero));
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }

    pub fn figures(&self) -> Option<CurveFigures> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let max = self.points.iter().map(|point| point.max).max()?;
        let readings = self.points.iter().map(|point| point.count).sum::<u64>();
        Some(CurveFigures {
            readings,
            first: first.first,
            last: last.last,
            min: self.points.iter().map(|point| point.min).min()?,
            max,
            mean: self.points.iter().map(|point| point.sum).sum::<f64>() / readings as f64,
            peak: self.known_peak.unwrap_or(0).max(max),
            growth: growth(&self.points),
        })
    }

    /// The value at a time: the last reading before it, or the first of all.
    pub fn at(&self, time_ns: i64) -> Option<f64> {
        let after = self.points.partition_point(|point| point.begin_ns <= time_ns);
        self.points.get(after.saturating_sub(1)).map(Point::mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_figures_in_bounded_memory() {
        let mut series = Series::default();
        let value = |i: i64| 1000 + (i as u64 * 7919) % 5000 + i as u64 / 10;
        let count = 200_000;
        // Swap neighbours, as happens in files.
        for i in (0..count).map(|i| i ^ 1) {
            series.push(i * 1_000_000_000, value(i));
        }
        series.settle();
        let figures = series.figures().expect("readings");
        let all = || (0..count).map(value);
        assert!(series.points().len() <= MOST);
        let largest = series.points().iter().map(|point| point.count).max();
        assert!(largest <= Some(8 * count as u64 / MOST as u64), "{largest:?} readings in one point");
        assert_eq!(
            (figures.readings, figures.max, figures.min),
            (count as u64, all().max().unwrap_or(0), all().min().unwrap_or(0))
        );
        assert!((figures.mean - all().sum::<u64>() as f64 / count as f64).abs() < 1e-3);
        assert!(figures.last.abs_diff(value(count - 1)) < 10_000 && figures.first.abs_diff(value(0)) < 10_000);
        let slope = figures.growth.expect("long");
        assert!((slope.per_hour - 360.0).abs() < 5.0 && slope.is_up(), "{slope:?}");
    }
}
