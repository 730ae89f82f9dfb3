//! What work costs in CPU time, and how long after it the same work may come again.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Work that costs `c` of CPU time is repeated every `n × c`: mappings with their ledger may take 0.4 % of a core,
/// owners 0.1 %, sites 0.15 %. So the first minute, which begins with one of each, stays below 1 %.
pub(super) const LINES: u32 = 250;
pub(super) const OWNERS: u32 = 1000;
pub(super) const SITES: u32 = 666;

pub(super) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
