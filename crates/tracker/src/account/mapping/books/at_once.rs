//! The usual call: the lock is free, no ticket is out, and one entry of the map changes (`vmas/single_entry.rs`). The
//! result is the same as that of [`locked`], which handles all other calls, but takes a third of the instructions.

use super::change::{raise, time};
use super::holder::{Held, release_again};
use super::{Book, HOLDER, LOCK, Operation, WRITING};
use crate::account::vmas::Placement;
use crate::segment::Segment;
use crate::stack::read::return_address;
use crate::sys::cpu;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::Counter;
use plimsoll_segment::vmap::{self, Attributes};

/// Takes the lock, unless that needs more than an exchange. `None`: this call doesn't hold the lock. `is_done`: the
/// real call was made already. Otherwise the caller checks [`Held::is_undisturbed`] after the real call, which also
/// detects a fork.
#[inline(always)]
pub(in crate::account::mapping) fn take_at_once(segment: Segment, sp: usize, is_done: bool) -> Option<Held> {
    let me = cpu::tls_get::<{ cpu::HOLDS }>() as u32;
    if me == 0 {
        return None;
    }
    let seen = LOCK.word();
    if seen as u32 != 0 {
        return None;
    }
    let word = seen.wrapping_add(1 << 32 | u64::from(me));
    // As in `take_from`.
    cpu::tls_set::<{ cpu::HOLDS }>(word as usize);
    if !LOCK.acquire(seen, word) {
        return None;
    }
    HOLDER[0].store(sp, Relaxed);
    // SAFETY: the return address lies at the stack pointer.
    HOLDER[1].store(unsafe { return_address(sp) } as usize, Relaxed);
    let held = Held::of(segment);
    // Another segment: a handler forked since `segment` was looked up, and this is the child.
    if LOCK.is_empty() && (!is_done || segment.is_published()) {
        return Some(held);
    }
    held.finish_late(sp, None);
    None
}

/// Books a mapping at an address that the kernel chose. False: not booked yet.
#[inline(always)]
pub(crate) fn mapped(segment: Segment, sp: usize, start: usize, bytes: usize, attributes: Attributes) -> bool {
    let Some(mut held) = take_at_once(segment, sp, true) else { return false };
    if let Some(b) = held.begin()
        && let Some(bytes) = b.map_one(start as u64, bytes as u64, attributes)
    {
        reserve(segment, attributes.category(), bytes);
        if attributes.committed() {
            commit(segment, attributes.category(), bytes);
        }
        held.end(sp);
        return true;
    }
    held.end_write();
    held.book_map(start, bytes, attributes);
    held.release();
    true
}

/// Makes the call that unmaps, and books it. `None`: no call was made.
#[inline(always)]
pub(crate) fn unmapping(
    segment: Segment,
    sp: usize,
    start: usize,
    bytes: usize,
    real: impl FnOnce() -> c_int,
) -> Option<c_int> {
    let mut held = take_at_once(segment, sp, false)?;
    let r = real();
    if r != 0 || !held.is_undisturbed() {
        held.finish_late(sp, (r == 0).then_some(Operation::Unmap { start, bytes }));
        return Some(r);
    }
    if let Some(b) = held.begin()
        && let Some((old, bytes)) = b.unmap_one(start as u64, bytes as u64)
    {
        unreserve(segment, old.category(), bytes);
        if old.committed() {
            uncommit(segment, old.category(), bytes);
        }
        held.end(sp);
        return Some(r);
    }
    held.end_write();
    held.book_unmap(start, bytes);
    held.release();
    Some(r)
}

/// Makes the call that changes a protection, and books it if it succeeded; `failed` makes the operation of a call that
/// failed. `None`: no call was made.
#[inline(always)]
pub(crate) fn protecting(
    segment: Segment,
    sp: usize,
    (start, bytes, prot, caller): (usize, usize, u16, u32),
    real: impl FnOnce() -> c_int,
    failed: impl FnOnce() -> Option<Operation>,
) -> Option<c_int> {
    let mut held = take_at_once(segment, sp, false)?;
    let r = real();
    if r != 0 || !held.is_undisturbed() {
        let done = Operation::Protect { start, bytes, prot, caller, failed: false };
        held.finish_late(sp, if r == 0 { Some(done) } else { failed() });
        return Some(r);
    }
    let change = |old: Attributes| {
        // A commit or an uncommit sets the entry's time; other changes keep it.
        let now = if old.committed() == (prot != 0) { 0 } else { time(segment) };
        old.protect(prot, caller, now)
    };
    if let Some(b) = held.begin()
        && let Some((old, new, bytes)) = b.change_one(vmap::Operation::Protect, start as u64, bytes as u64, change)
    {
        commit_or_uncommit(segment, old, new, bytes);
        held.end(sp);
        return Some(r);
    }
    held.end_write();
    held.book_protect(start, bytes, prot, caller, false);
    held.release();
    Some(r)
}

/// Makes the call that maps with MAP_FIXED, and books it with these attributes if it succeeded. `None`: no call was
/// made.
#[inline(always)]
pub(crate) fn mapping_over(
    segment: Segment,
    sp: usize,
    bytes: usize,
    real: impl FnOnce() -> Option<usize>,
    attributes: impl FnOnce() -> Attributes,
) -> Option<Option<usize>> {
    let mut held = take_at_once(segment, sp, false)?;
    let Some(start) = real() else {
        held.finish_late(sp, None);
        return Some(None);
    };
    let new = attributes();
    if !held.is_undisturbed() {
        let placement = Placement::Fixed;
        held.finish_late(sp, Some(Operation::Map { start, bytes, attributes: new, placement }));
        return Some(Some(start));
    }
    if let Some(b) = held.begin()
        && let Some((old, new, bytes)) =
            b.change_one(vmap::Operation::Map, start as u64, bytes as u64, |old| old.overlay(new))
    {
        commit_or_uncommit(segment, old, new, bytes);
        held.end(sp);
        return Some(Some(start));
    }
    held.end_write();
    held.book_fixed(start, bytes, new, Placement::Fixed);
    held.release();
    Some(Some(start))
}

impl Held {
    /// Begins a change of the map. [`Held::end`] follows, or [`Held::end_write`] if nothing was changed.
    #[inline(always)]
    fn begin(&mut self) -> Option<&mut Book> {
        debug_assert!(!WRITING.load(Relaxed), "two writers of the books of mappings");
        WRITING.store(true, Relaxed);
        self.map()
    }

    /// Counts the change, and releases the lock. The change took no block, so the bytes in use are the same.
    #[inline(always)]
    fn end(mut self, sp: usize) {
        let n = &self.segment.header().values[Counter::vmap_operations as usize];
        n.store(n.load(Relaxed) + 1, Relaxed);
        self.end_write();
        // SAFETY: `self` is the proof.
        if unsafe { LOCK.release(cpu::tls_get::<{ cpu::HOLDS }>() as u64) } {
            release_again(sp);
        }
    }
}

/// Adjusts the committed bytes of pages whose reservation is unchanged.
#[inline(always)]
fn commit_or_uncommit(segment: Segment, old: Attributes, new: Attributes, bytes: u64) {
    match (old.committed(), new.committed()) {
        (false, true) => commit(segment, new.category(), bytes),
        (true, false) => uncommit(segment, new.category(), bytes),
        _ => {}
    }
}

/// Adds a reservation to a category and to the total.
#[inline(always)]
fn reserve(segment: Segment, category: u16, bytes: u64) {
    let (k, h) = (segment.category(category), segment.header());
    raise(&k.reserved_bytes, &k.peak_reserved_bytes, bytes as i64);
    raise(&h.reserved_bytes, &h.peak_reserved_bytes, bytes as i64);
}

/// Adds a commit.
#[inline(always)]
fn commit(segment: Segment, category: u16, bytes: u64) {
    let (k, h) = (segment.category(category), segment.header());
    raise(&k.committed_bytes, &k.peak_committed_bytes, bytes as i64);
    raise(&h.committed_bytes, &h.peak_committed_bytes, bytes as i64);
}

/// Subtracts a commit. No peak rises.
#[inline(always)]
fn uncommit(segment: Segment, category: u16, bytes: u64) {
    let (k, h) = (segment.category(category), segment.header());
    lower(&k.committed_bytes, bytes);
    lower(&h.committed_bytes, bytes);
}

/// Subtracts a reservation.
#[inline(always)]
fn unreserve(segment: Segment, category: u16, bytes: u64) {
    let (k, h) = (segment.category(category), segment.header());
    lower(&k.reserved_bytes, bytes);
    lower(&h.reserved_bytes, bytes);
}

#[inline(always)]
fn lower(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Relaxed).wrapping_sub(by), Relaxed);
}
