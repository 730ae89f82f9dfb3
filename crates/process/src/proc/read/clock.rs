//! When a source was read, and how long that took.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::Reading;

pub fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs_f64()).unwrap_or_default()
}

/// Runs `read`, and records when it began and how long it took.
pub fn timed<T>(since: Instant, source: Source, readings: &mut Vec<Reading>, read: impl FnOnce() -> T) -> T {
    let began = since.elapsed();
    let value = read();
    readings.push(Reading { source, began, took: since.elapsed() - began });
    value
}
