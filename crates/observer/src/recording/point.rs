//! Several readings of a curve, merged.

/// Consecutive readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub begin_ns: i64,
    pub end_ns: i64,
    pub count: u64,
    pub sum: f64,
    pub first: u64,
    pub last: u64,
    pub min: u64,
    pub max: u64,
}

impl Point {
    pub fn one(time_ns: i64, value: u64) -> Point {
        Point {
            begin_ns: time_ns,
            end_ns: time_ns,
            count: 1,
            sum: value as f64,
            first: value,
            last: value,
            min: value,
            max: value,
        }
    }

    pub(super) fn with(self, next: Point) -> Point {
        Point {
            begin_ns: self.begin_ns.min(next.begin_ns),
            end_ns: self.end_ns.max(next.end_ns),
            count: self.count + next.count,
            sum: self.sum + next.sum,
            first: self.first,
            last: next.last,
            min: self.min.min(next.min),
            max: self.max.max(next.max),
        }
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}
