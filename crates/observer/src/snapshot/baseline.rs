//! An earlier reading of the same process: what one reading can't tell, growth or use, two can.

use crate::lines::LineId;
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    /// Seconds since the epoch.
    pub time: f64,
    pub rss: Bytes,
    /// Resident bytes; a line that isn't there had none.
    pub lines: Vec<(LineId, Bytes)>,
    /// Error bounds of those bytes; a line that isn't there had none.
    pub errors: Vec<(LineId, Bytes)>,
}

impl Baseline {
    pub fn resident(&self, id: LineId) -> Bytes {
        self.lines.iter().find(|(line, _)| *line == id).map(|(_, bytes)| *bytes).unwrap_or_default()
    }

    pub fn error(&self, id: LineId) -> Bytes {
        self.errors.iter().find(|(line, _)| *line == id).map(|(_, bytes)| *bytes).unwrap_or_default()
    }
}
