//! The time of the books: CLOCK_BOOTTIME, by a clock that costs no system call.

use super::os::{self, Clock};
use super::{CachePadded, libc};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// CLOCK_BOOTTIME − CLOCK_MONOTONIC at boot.
static CLOCK_OFFSET: AtomicU64 = AtomicU64::new(0);

/// Measures how far the two clocks differ. Called at boot.
pub fn start() {
    CLOCK_OFFSET.store(os::clock_ns(Clock::Boottime).wrapping_sub(os::clock_ns(Clock::MonotonicCoarse)), Relaxed);
}

/// CLOCK_BOOTTIME, to a few milliseconds, without a system call.
pub fn now_ns() -> u64 {
    libc::clock_ns(Clock::MonotonicCoarse).wrapping_add(CLOCK_OFFSET.load(Relaxed))
}

/// As `now_ns`, and later than any earlier result: the order decides which of two objects at one address a caller was
/// in. A finer clock would read the time stamp counter, and in seccomp's strict mode that instruction raises SIGSEGV
/// (kernel/seccomp.c, `disable_TSC`).
pub fn ordered_ns() -> u64 {
    static LAST: CachePadded<AtomicU64> = CachePadded(AtomicU64::new(0));
    let now = now_ns();
    let last = LAST.0.fetch_max(now, AcqRel);
    if last < now { now } else { LAST.0.fetch_add(1, AcqRel) + 1 }
}
