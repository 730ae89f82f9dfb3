//! An earlier reading of the same process. Two readings show growth; one doesn't.

use std::collections::BTreeSet;

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
    /// The result of [`lacking`] for its gaps.
    pub lacking: BTreeSet<Source>,
}

/// The sources with a gap that decide on which line memory is counted.
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
