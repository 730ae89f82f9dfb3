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

/// The next phase begins.
pub fn enter(phase: Phase) {
    NOW.store(phase as u32, Release);
}

/// The real functions are known, unless another thread got further meanwhile.
pub fn leave_new() {
    let next = if is_late() { Phase::Passing } else { Phase::Resolved };
    let _ = NOW.compare_exchange(Phase::New as u32, next as u32, AcqRel, Relaxed);
}

static LATE: AtomicBool = AtomicBool::new(false);

/// Whether this tracker came to a process that was running.
pub fn is_late() -> bool {
    LATE.load(Relaxed)
}

/// This tracker came to a process that was running.
pub fn note_late() {
    LATE.store(true, Relaxed);
}
