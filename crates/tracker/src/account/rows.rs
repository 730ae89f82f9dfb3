//! Rows: the books of one thread for one caller.
//!
//! A thread writes only its own rows, with plain adds and release stores. Whoever has no row of his own (a signal handler
//! inside the tracker, a thread past its end, a full section) writes the *shared* row of the caller with locked adds.
//! Both kinds are rows like any other to a reader.

use super::peaks;
use super::segment::Segment;
use super::thread::ThreadState;
use crate::sys::cpu::{add_own, count_own};
use crate::sys::os;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::{CALLER_EARLY, CALLER_OVERFLOW, Counter, Row, SLOT_SHARED, Section};

/// An entry of a thread's index.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IndexEntry {
    /// Row; 0 = empty.
    pub row: u32,
    /// Low 32 bits of (allocated − freed) blocks when the drift was last flushed.
    pub flushed: u32,
}

/// Row 0 is never used, row 1 is the shared row of [`CALLER_OVERFLOW`], row 2 that of [`CALLER_EARLY`].
pub const ROW_OVERFLOW: u32 = 1;
/// See [`ROW_OVERFLOW`].
pub const ROW_EARLY: u32 = 2;

/// Caller → shared row, private; reserved, touched where used.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// What one block means for the books.
#[derive(Clone, Copy)]
pub struct Amount {
    /// `malloc_usable_size` without the trailer.
    pub usable: u64,
    /// Bytes asked for.
    pub requested: u64,
}

/// Makes the fixed rows of a fresh segment.
pub fn init(segment: Segment) -> bool {
    if SHARED.load(Relaxed) == 0 {
        match os::private(Section::Callers.capacity() * 4) {
            Some(p) => SHARED.store(p as usize, Release),
            None => return false,
        }
    }
    for (row, caller) in [(0, 0), (ROW_OVERFLOW, CALLER_OVERFLOW), (ROW_EARLY, CALLER_EARLY)] {
        if segment.append(Section::Rows) != Some(row) {
            return false;
        }
        if caller != 0 {
            identify(segment.row(row), caller, SLOT_SHARED);
            if let Some(cell) = shared_cell(caller) {
                cell.store(row, Release);
            }
        }
    }
    true
}

fn identify(row: &Row, caller: u32, slot: u32) {
    row.caller.store(caller, Relaxed);
    row.slot.store(slot + 1, Release);
}

fn shared_cell(caller: u32) -> Option<&'static AtomicU32> {
    let p = SHARED.load(Acquire);
    // SAFETY: `init` reserved one cell for each possible caller.
    (p != 0 && (caller as usize) < Section::Callers.capacity())
        .then(|| unsafe { &*((p + caller as usize * 4) as *const AtomicU32) })
}

/// The shared row of a caller; the overflow caller's if there is no room.
pub fn shared_row(segment: Segment, caller: u32) -> u32 {
    let Some(cell) = shared_cell(caller) else { return ROW_OVERFLOW };
    let row = cell.load(Acquire);
    if row != 0 {
        return row;
    }
    match segment.append(Section::Rows) {
        Some(row) => {
            identify(segment.row(row), caller, SLOT_SHARED);
            match cell.compare_exchange(0, row, AcqRel, Acquire) {
                Ok(_) => row,
                // Another was first; ours stays empty.
                Err(other) => other,
            }
        }
        None => {
            segment.count(Counter::rows_shared, 1);
            ROW_OVERFLOW
        }
    }
}

/// Index entry of this thread's row for a caller. `None`: there is no room for a row; use the shared one.
pub fn find<'t>(segment: Segment, t: &'t mut ThreadState, caller: u32) -> Option<&'t mut IndexEntry> {
    let mask = t.index_mask;
    let mut at = caller & mask;
    loop {
        // SAFETY: at ≤ mask, the table belongs to this thread.
        let e = unsafe { &mut *t.index.add(at as usize) };
        if e.row == 0 {
            break;
        }
        if segment.row(e.row).caller.load(Relaxed) == caller {
            return Some(e);
        }
        at = (at + 1) & mask;
    }
    if (t.index_used + 1) * 2 > mask + 1 {
        if !t.grow_index(segment) {
            return None;
        }
        return find(segment, t, caller);
    }
    let row = segment.append(Section::Rows)?;
    let r = segment.row(row);
    r.room.store(t.room_span / 2, Relaxed);
    identify(r, caller, t.slot);
    t.index_used += 1;
    // SAFETY: as above; this entry is the empty one.
    let e = unsafe { &mut *t.index.add(at as usize) };
    *e = IndexEntry { row, flushed: 0 };
    Some(e)
}

/// Books an allocation in a row of the calling thread. True: the drift has passed its bound.
#[inline(always)]
pub fn add_alloc(row: &Row, a: Amount) -> bool {
    let p = row as *const Row as *const u8;
    // SAFETY: fields of a live row that this thread owns.
    unsafe {
        add_own::<{ offset_of!(Row, alloc_bytes) }>(p, a.usable);
        add_own::<{ offset_of!(Row, alloc_requested) }>(p, a.requested);
        count_own::<{ offset_of!(Row, alloc_count) }>(p);
        add_own::<{ offset_of!(Row, room) }>(p, a.usable.wrapping_neg());
    }
    row.room.load(Relaxed) < 0
}

/// Books a release in a row of the calling thread. True: the drift has passed its bound.
#[inline(always)]
pub fn add_free(row: &Row, a: Amount, room_span: i64) -> bool {
    let p = row as *const Row as *const u8;
    // SAFETY: fields of a live row that this thread owns.
    unsafe {
        add_own::<{ offset_of!(Row, free_bytes) }>(p, a.usable);
        add_own::<{ offset_of!(Row, free_requested) }>(p, a.requested);
        count_own::<{ offset_of!(Row, free_count) }>(p);
        add_own::<{ offset_of!(Row, room) }>(p, a.usable);
    }
    row.room.load(Relaxed) > room_span
}

/// The row in which this thread books a caller's blocks: its own, or the shared one.
pub fn row_for(segment: Segment, t: Option<&mut ThreadState>, caller: u32) -> u32 {
    t.and_then(|t| find(segment, t, caller)).map_or_else(|| shared_row(segment, caller), |e| e.row)
}

/// Books an allocation of this thread by caller number.
pub fn alloc(segment: Segment, t: Option<&mut ThreadState>, caller: u32, a: Amount) {
    if let Some(t) = t
        && let Some(e) = find(segment, t, caller)
    {
        let e = e as *mut IndexEntry;
        // SAFETY: the entry stays where it is: nothing inserts between here and the flush.
        let e = unsafe { &mut *e };
        if add_alloc(segment.row(e.row), a) {
            peaks::flush(segment, e, t.room_span);
        }
        return;
    }
    let row = segment.row(shared_row(segment, caller));
    row.alloc_count.fetch_add(1, Release);
    row.alloc_bytes.fetch_add(a.usable, Release);
    row.alloc_requested.fetch_add(a.requested, Release);
    peaks::shared(segment, row.caller.load(Relaxed), a.usable as i64, 1);
}

/// Books a release by this thread by caller number.
pub fn free(segment: Segment, t: Option<&mut ThreadState>, caller: u32, a: Amount) {
    if let Some(t) = t
        && let Some(e) = find(segment, t, caller)
    {
        let e = e as *mut IndexEntry;
        // SAFETY: as in `alloc`.
        let e = unsafe { &mut *e };
        if add_free(segment.row(e.row), a, t.room_span) {
            peaks::flush(segment, e, t.room_span);
        }
        return;
    }
    let row = segment.row(shared_row(segment, caller));
    row.free_count.fetch_add(1, Release);
    row.free_bytes.fetch_add(a.usable, Release);
    row.free_requested.fetch_add(a.requested, Release);
    peaks::shared(segment, row.caller.load(Relaxed), -(a.usable as i64), -1);
}
