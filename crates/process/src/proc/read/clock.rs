//! The time of readings: when a source was read, and how long that took.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::Reading;

/// The time of a reading, ns since 1970 UTC. It follows the system's clock. If that clock is set back, the time goes on
/// from the last reading. So the order of readings stays, and no two of them get the same time.
pub fn now_ns() -> u64 {
    static CLOCK: Mutex<SteadyClock> = Mutex::new(SteadyClock { last: None });
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner).at(wall, Instant::now())
}

/// As `now_ns`, in seconds.
pub fn seconds_since_epoch() -> f64 {
    now_ns() as f64 / 1e9
}

/// A clock that is never set back.
struct SteadyClock {
    /// The last time, since 1970 UTC, and when it was read.
    last: Option<(Duration, Instant)>,
}

impl SteadyClock {
    /// The time in ns. `wall` is what the system's clock shows, since 1970 UTC. Where the machine was suspended, only
    /// the system's clock goes on.
    fn at(&mut self, wall: Duration, now: Instant) -> u64 {
        let steady = self.last.map_or(wall, |(last, at)| last + now.saturating_duration_since(at));
        let time = wall.max(steady);
        self.last = Some((time, now));
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Runs `read`, and records when it began and how long it took.
pub fn timed<T>(since: Instant, source: Source, readings: &mut Vec<Reading>, read: impl FnOnce() -> T) -> T {
    let began = since.elapsed();
    let value = read();
    readings.push(Reading { source, began, took: since.elapsed() - began });
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_keep_their_distance_when_the_clock_is_set_back() {
        let began = Instant::now();
        let mut clock = SteadyClock { last: None };
        // The seconds that have passed, what the system's clock shows, and the time that readings get.
        for (passed, wall, expected) in [
            (0, 5000, 5000),
            (20, 5020, 5020),
            // Set back by an hour.
            (40, 1440, 5040),
            (60, 1460, 5060),
            // Set right again, a little ahead of the readings.
            (80, 5090, 5090),
            // An hour of suspend, which the monotonic clock doesn't count.
            (100, 8710, 8710),
            (100, 8710, 8710),
        ] {
            let now = began + Duration::from_secs(passed);
            assert_eq!(clock.at(Duration::from_secs(wall), now), expected * 1_000_000_000, "after {passed} s");
        }
    }
}
