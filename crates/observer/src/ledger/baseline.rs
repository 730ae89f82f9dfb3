//! Changes since an earlier reading.

use super::{Ledger, LineId};
use crate::snapshot::Baseline;
use crate::units::Bytes;

impl Baseline {
    /// How much the line grew; negative if it shrank.
    pub fn change(&self, ledger: &Ledger, id: LineId) -> i64 {
        difference(ledger.resident(id), self.resident(id))
    }

    pub fn change_of_rss(&self, ledger: &Ledger) -> i64 {
        difference(ledger.rss, self.rss)
    }
}

fn difference(now: Bytes, then: Bytes) -> i64 {
    let bytes = i64::try_from(now.abs_diff(then).0).unwrap_or(i64::MAX);
    if now < then { -bytes } else { bytes }
}
