//! An earlier reading of the same process. Two readings show growth; one doesn't.

use std::collections::BTreeSet;

use super::Snapshot;
use crate::gap::{Gap, Source};
use crate::lines::LineId;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// Seconds since 1970 UTC.
    pub time: f64,
    pub rss: Bytes,
    /// Resident bytes; 0 for a missing line.
    pub lines: Vec<(LineId, Bytes)>,
    /// Error bounds of these bytes; 0 for a missing line.
    pub errors: Vec<(LineId, Bytes)>,
    /// What [`lacking`] says of its gaps.
    pub lacking: BTreeSet<Source>,
}

/// The sources with a gap on which it depends on which line memory is counted. Two readings that lack different ones
/// can't be compared: what was `other-anonymous` in the first is `glibc-live` in the second, and looks like growth.
pub fn lacking(gaps: &[Gap]) -> BTreeSet<Source> {
    gaps.iter().map(|gap| gap.source).filter(|source| source.decides_on_lines()).collect()
}

impl Baseline {
    pub fn resident(&self, id: LineId) -> Bytes {
        self.lines.iter().find(|(line, _)| *line == id).map(|(_, bytes)| *bytes).unwrap_or_default()
    }

    pub fn error(&self, id: LineId) -> Bytes {
        self.errors.iter().find(|(line, _)| *line == id).map(|(_, bytes)| *bytes).unwrap_or_default()
    }
}

impl Snapshot {
    /// Takes a baseline, or none if it can't be compared with this reading.
    pub fn set_baseline(&mut self, baseline: Option<&Baseline>) {
        let lacking = lacking(&self.gaps);
        self.baseline = baseline.filter(|then| then.lacking == lacking).cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_that_lack_different_sources_are_not_compared() {
        let gaps = |sources: &[Source]| sources.iter().map(|source| Gap::new(*source, "", "")).collect::<Vec<_>>();
        let is_compared = |then: &[Source], now: &[Source]| {
            let mut snapshot = Snapshot { gaps: gaps(now), ..Snapshot::default() };
            snapshot.set_baseline(Some(&Baseline { lacking: lacking(&gaps(then)), ..Baseline::default() }));
            snapshot.baseline.is_some()
        };
        use Source::{Cgroup, Glibc, HotSpot, Proc, Symbols};
        assert!(is_compared(&[], &[]) && is_compared(&[Proc, Proc, Cgroup], &[Proc, Symbols]));
        assert!(!is_compared(&[Proc], &[]) && !is_compared(&[], &[Glibc]) && !is_compared(&[Glibc], &[HotSpot]));
    }
}
