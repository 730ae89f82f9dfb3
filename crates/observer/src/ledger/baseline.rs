//! Changes since an earlier reading.

use super::{Ledger, LineId};
use plimsoll_facts::snapshot::Baseline;
use plimsoll_facts::units::Bytes;

impl Ledger {
    /// How much the line grew since `baseline`; negative if it shrank.
    pub fn change_since(&self, baseline: &Baseline, id: LineId) -> i64 {
        difference(self.resident(id), baseline.resident(id))
    }

    pub fn rss_change_since(&self, baseline: &Baseline) -> i64 {
        difference(self.rss, baseline.rss)
    }
}

fn difference(now: Bytes, then: Bytes) -> i64 {
    let bytes = i64::try_from(now.abs_diff(then).0).unwrap_or(i64::MAX);
    if now < then { -bytes } else { bytes }
}
