//! The peak of a caller, divided among its sites and the rest.

use super::columns::{COLUMNS, CUMULATIVE, CUMULATIVE_COUNT, LIVE, LIVE_COUNT, SiteLine};

pub(super) const BYTES: [usize; 2] = [LIVE, CUMULATIVE];
pub(super) const COUNTS: [usize; 2] = [LIVE_COUNT, CUMULATIVE_COUNT];

/// Divides a caller's peak among its sites and the rest. Each part keeps what it has live now. What the caller held
/// beyond that, and has freed since, is divided in proportion to what each part has freed, because nothing more is
/// known about it.
pub(super) struct PeakDivision {
    columns: [usize; 2],
    peak: u64,
    /// What the caller has live now.
    held: u64,
    /// What the sites and the rest have freed. Live and cumulative figures of a site are estimated from different
    /// samples, so one may seem to have freed less than nothing: it counts as nothing.
    freed: f64,
}

impl PeakDivision {
    pub(super) fn of<'l>(
        peak: u64,
        columns: [usize; 2],
        all: &[i64; COLUMNS],
        lines: impl Iterator<Item = &'l SiteLine>,
    ) -> PeakDivision {
        let freed = lines.map(|line| freed(line, columns)).sum();
        PeakDivision { columns, peak, held: u64::try_from(all[columns[0]]).unwrap_or(0), freed }
    }

    pub(super) fn part(&self, line: &SiteLine) -> u64 {
        let live = u64::try_from(line[self.columns[0]].amount).unwrap_or(0);
        let of =
            |whole: u64, part: f64, sum: f64| if sum > 0.0 { (whole as f64 * part / sum).round() as u64 } else { 0 };
        match self.peak.checked_sub(self.held) {
            Some(beyond) => live.saturating_add(of(beyond, freed(line, self.columns), self.freed)),
            // The count at the peak of the bytes may be below today's.
            None => of(self.peak, live as f64, self.held as f64),
        }
    }
}

fn freed(line: &SiteLine, [live, cumulative]: [usize; 2]) -> f64 {
    (line[cumulative].amount as f64 - line[live].amount as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::columns::NOTHING;
    use super::*;
    use plimsoll_profiles::profile::Value;

    /// The second site's samples say that more is live than was ever allocated.
    #[test]
    fn the_parts_of_a_peak_add_up() {
        let line = |live: u64, cumulative: u64| {
            let mut line = NOTHING;
            (line[LIVE], line[CUMULATIVE]) = (Value::exact(live), Value::exact(cumulative));
            line
        };
        let lines = [line(10, 45), line(80, 60), line(10, 45), line(0, 0)];
        let mut all = [0; COLUMNS];
        (all[LIVE], all[CUMULATIVE]) = (100, 150);
        let division = PeakDivision::of(140, BYTES, &all, lines.iter());
        assert_eq!(lines.each_ref().map(|line| division.part(line)), [30, 80, 30, 0]);
        // Nothing was freed, or the given peak is below the live figure.
        let division = PeakDivision::of(100, BYTES, &all, [].iter());
        assert_eq!(division.part(&lines[0]), 10);
        let division = PeakDivision::of(50, BYTES, &all, lines.iter());
        assert_eq!(lines.each_ref().map(|line| division.part(line)), [5, 40, 5, 0]);
        let division = PeakDivision::of(u64::MAX, BYTES, &all, [].iter());
        assert_eq!(division.part(&line(i64::MAX as u64, 0)), i64::MAX as u64);
    }
}
