//! An earlier reading of the same process. Two readings show growth; one doesn't.

use std::collections::BTreeSet;

use crate::gap::{Gap, Source};
use crate::lines::LineId;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// Seconds since 1970 UTC.
    pub time: f64,
    /// Seconds since the process started (CLOCK_BOOTTIME).
    pub uptime: Option<f64>,
    pub rss: Bytes,
    /// Resident bytes; 0 for a missing line.
    pub lines: Vec<(LineId, Bytes)>,
    /// Error bounds of these bytes; 0 for a missing line.
    pub errors: Vec<(LineId, Bytes)>,
    /// The result of [`lacking`] for its gaps.
    pub lacking: BTreeSet<Source>,
}

/// The sources with a gap that decide on which line memory is counted.
pub fn lacking(gaps: &[Gap]) -> BTreeSet<Source> {
    gaps.iter().map(|gap| gap.source).filter(|source| source.decides_on_lines()).collect()
}

impl Baseline {
    /// Seconds until a later reading of the same process. The wall clock may have been set in between; the clock of the
    /// uptime can't be.
    pub fn seconds_until(&self, time: f64, uptime: Option<f64>) -> f64 {
        let elapsed = self.uptime.zip(uptime).map_or(time - self.time, |(then, now)| now - then);
        elapsed.max(0.0)
    }

    pub fn resident(&self, id: LineId) -> Bytes {
        self.lines.iter().find(|(line, _)| *line == id).map(|(_, bytes)| *bytes).unwrap_or_default()
    }

    pub fn error(&self, id: LineId) -> Bytes {
        self.errors.iter().find(|(line, _)| *line == id).map(|(_, bytes)| *bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NTP sets the clock an hour back between two readings that are 600 s apart.
    #[test]
    fn a_clock_that_was_set_changes_no_time_between_readings() {
        let baseline = Baseline { time: 10_000.0, uptime: Some(50.0), ..Baseline::default() };
        assert_eq!(baseline.seconds_until(10_600.0 - 3600.0, Some(650.0)), 600.0);
        assert_eq!(baseline.seconds_until(10_600.0, None), 600.0);
        assert_eq!(Baseline { uptime: None, ..baseline }.seconds_until(7_000.0, Some(650.0)), 0.0);
    }
}
