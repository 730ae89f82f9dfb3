//! `explain --baseline FILE`: an earlier explanation as JSON.

use plimsoll_facts::snapshot::Snapshot;
use plimsoll_report::ledger_json::parse_baseline;

use super::smaps::explained;

pub fn run(bytes: &[u8]) {
    if let Ok(earlier) = parse_baseline(bytes) {
        explained(Snapshot { baseline: Some(earlier.baseline), time: 1.79e9, ..Snapshot::default() });
    }
}
