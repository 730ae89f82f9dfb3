//! How far the tracker has started in this process.
//!
//! ```text
//! New ── first call of a hook ──▶ Resolved ── constructor ──▶ On ◀── attach, detach ──▶ Passing
//!                                    └── anything is missing ──▶ Off
//! ```

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// See the module comment.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// The real functions are not known yet.
    New,
    /// The real functions are known; blocks are booked as early ones.
    Resolved,
    /// Every block is booked in the segment.
    On,
    /// Every hook passes through, for good.
    Off,
    /// Loaded late: nothing is booked, neither before an attach nor after a detach.
    Passing,
}

static NOW: AtomicU32 = AtomicU32::new(Phase::New as u32);

/// Whether the real functions are known.
#[inline(always)]
pub fn resolved() -> bool {
    NOW.load(Relaxed) != Phase::New as u32
}

/// Whether the process is in this phase.
pub fn is(phase: Phase) -> bool {
    NOW.load(Acquire) == phase as u32
}

/// Enters a phase.
pub fn enter(phase: Phase) {
    NOW.store(phase as u32, Release);
}

/// Leaves [`Phase::New`], because the real functions are known. No effect if another thread has left it meanwhile.
pub fn leave_new() {
    let next = if is_late() { Phase::Passing } else { Phase::Resolved };
    let _ = NOW.compare_exchange(Phase::New as u32, next as u32, AcqRel, Relaxed);
}

static LATE: AtomicBool = AtomicBool::new(false);

/// Whether the tracker was loaded into a process that was running already.
pub fn is_late() -> bool {
    LATE.load(Relaxed)
}

/// Notes that the tracker was loaded into a process that was running already.
pub fn note_late() {
    LATE.store(true, Relaxed);
}
