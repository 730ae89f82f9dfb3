//! Blocks from before the segment exists: they have keys of a fixed row, and their sums are static counters that the
//! constructor moves into the segment.

use super::blocks::Key;
use super::keys::{set_early_key, take_key};
use super::peaks;
use super::rows::{self, Amount, ROW_EARLY};
use crate::phase::{self, Phase};
use crate::segment::Segment;
use crate::segment::books::MayBook;
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::CALLER_EARLY;

/// Six sums of a row.
static EARLY: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

/// Whether early blocks are booked.
pub fn booking() -> bool {
    Segment::current().is_some() || phase::is(Phase::Resolved)
}

/// Books a block before the segment exists.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes.
pub unsafe fn alloc(p: *mut u8, n: usize) {
    if phase::is(Phase::Resolved) {
        // SAFETY: the caller's contract.
        if let Some(a) = unsafe { set_early_key(p, Key { row: ROW_EARLY, requested: n as u64, sampled: false }) } {
            add(0, a);
        }
    }
}

/// Books a release before the segment exists.
///
/// # Safety
/// `p` is a live block.
pub unsafe fn free(p: *mut u8) {
    if phase::is(Phase::Resolved) {
        // SAFETY: the caller's contract.
        release(unsafe { take_key(p) }.map(|(_, a)| a));
    }
}

/// Books the release of a block whose key was already taken out.
pub fn release(a: Option<Amount>) {
    if let Some(a) = a.filter(|_| phase::is(Phase::Resolved)) {
        add(3, a);
    }
}

fn add(at: usize, a: Amount) {
    for (i, n) in [1, a.usable, a.requested].into_iter().enumerate() {
        EARLY[at + i].fetch_add(n, Relaxed);
    }
}

/// Moves the counters into a fresh segment.
pub fn store(books: MayBook<'_>) {
    let early = books.row(ROW_EARLY);
    let row = [
        &early.alloc_count,
        &early.alloc_bytes,
        &early.alloc_requested,
        &early.free_count,
        &early.free_bytes,
        &early.free_requested,
    ];
    for (to, from) in row.into_iter().zip(&EARLY) {
        to.store(from.load(Relaxed), Relaxed);
    }
}

/// Reports the counters' blocks to the central figures.
pub fn seed(segment: Segment) {
    let live = |i: usize| EARLY[i].load(Relaxed).wrapping_sub(EARLY[i + 3].load(Relaxed)) as i64;
    rows::note_reported(CALLER_EARLY, live(0));
    peaks::seed(segment, CALLER_EARLY, live(1), live(0));
}
