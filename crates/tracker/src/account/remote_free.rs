//! Remote frees: one thread allocates a block, another frees it. Which row of the freeing thread has the same caller as
//! the row that the block was booked in?
//!
//! ```text
//! row of the key, freeing thread ──hash──▶ HINTS ──▶ row of the freeing thread │ its slot and its caller are compared
//! ```
//! A row keeps its slot and its caller, so a hint that passes both comparisons is right, whoever wrote it. Without such
//! a hint, `free` takes the thread's state and looks the caller up in its index, which takes five times as long. A hint
//! changes only when it was wrong, so threads rarely write to a line that others read.

use crate::segment::Segment;
use crate::segment::books::{OwnRow, SlotMark};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Hints. A power of two.
pub const NUMBER: usize = 1024;
/// A slot's mark is multiplied by this, so that threads that free blocks of the same rows have different hints.
pub const SPREAD: u32 = 61;
/// Numbers of rows of the freeing threads.
pub static HINTS: [AtomicU32; NUMBER] = [const { AtomicU32::new(0) }; NUMBER];

#[inline(always)]
fn hint(row: u32, mark: u32) -> &'static AtomicU32 {
    &HINTS[row.wrapping_add(mark.wrapping_mul(SPREAD)) as usize % NUMBER]
}

/// The calling thread's row for the caller of another row, if it is known. `hook/malloc/x86_64/parts.rs` has the same
/// steps.
#[inline(always)]
pub fn own_row(segment: Segment, row: u32, own: SlotMark) -> Option<OwnRow> {
    let theirs = segment.seen(row);
    if own.number() == 0 || theirs.slot_mark() == 0 {
        return None;
    }
    let ours = OwnRow::of(segment, hint(row, own.number()).load(Relaxed), own)?;
    (ours.caller.load(Relaxed) == theirs.caller()).then_some(ours)
}

/// Notes that `ours` is the calling thread's row for the caller of `row`.
pub fn note(row: u32, own: SlotMark, ours: u32) {
    hint(row, own.number()).store(ours, Relaxed);
}
