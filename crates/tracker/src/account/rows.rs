//! Rows: the books of one thread for one caller.
//!
//! A thread writes only its own rows, with plain adds and release stores. Without a row of its own (in a signal handler
//! that interrupted the tracker, past the thread's end, with a full section) it writes the *shared* row of the caller
//! with locked adds. A reader treats both kinds alike.
//!
//! Rows are claimed two at a time, the second for the thread's next caller. CPUs fetch cache lines in pairs, so another
//! thread's row beside its own would slow both threads down.

use super::peaks;
use super::thread::{IndexEntry, ThreadState};
use crate::segment::books::{MayBook, OwnRow, SlotMark};
use crate::sys::cpu::{add_own, count_own};
use crate::sys::os;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::{CALLER_EARLY, CALLER_OVERFLOW, Counter, Row, SLOT_SHARED, Section};

/// Row 0 is never used, row 1 is the shared row of [`CALLER_OVERFLOW`], row 2 that of [`CALLER_EARLY`].
pub const ROW_OVERFLOW: u32 = 1;
/// See [`ROW_OVERFLOW`].
pub const ROW_EARLY: u32 = 2;

/// Rows at the section's end that only shared ones may take. There may be more pairs of caller and thread than rows.
/// Then a block's category and caller are kept, and only its thread is lost.
const SHARED_ONLY: usize = Section::Rows.capacity() / 8;

/// Caller → [`SharedEntry`], private; reserved, touched where used.
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// The counterpart of [`IndexEntry`] for shared rows.
#[repr(C)]
struct SharedEntry {
    row: AtomicU32,
    flushed: AtomicU32,
}

/// The sizes of one block, for the books.
#[derive(Clone, Copy)]
pub struct Amount {
    /// `malloc_usable_size` without the trailer.
    pub usable: u64,
    /// Bytes that the program requested.
    pub requested: u64,
}

/// Makes the fixed rows of fresh books.
pub fn init(books: MayBook<'_>) -> bool {
    if SHARED.load(Relaxed) == 0 {
        match os::private(Section::Callers.capacity() * size_of::<SharedEntry>()) {
            Some(p) => SHARED.store(p as usize, Release),
            None => return false,
        }
    }
    // Row 0 and row 3 stay empty.
    if books.append_some(Section::Rows, 4) != Some(0) {
        return false;
    }
    for (row, caller) in [(ROW_OVERFLOW, CALLER_OVERFLOW), (ROW_EARLY, CALLER_EARLY)] {
        identify(books.row(row), caller, SLOT_SHARED);
        if let Some(e) = shared_entry(caller) {
            e.row.store(row, Release);
        }
    }
    true
}

fn identify(row: &Row, caller: u32, slot: u32) {
    row.caller.store(caller, Relaxed);
    row.slot.store(slot + 1, Release);
}

fn shared_entry(caller: u32) -> Option<&'static SharedEntry> {
    let p = SHARED.load(Acquire);
    // SAFETY: `init` reserved a zeroed entry for each possible caller, atomics, never unmapped.
    (p != 0 && (caller as usize) < Section::Callers.capacity())
        .then(|| unsafe { &*(p as *const SharedEntry).add(caller as usize) })
}

/// The shared row of a caller; without space for it, the overflow caller's.
pub fn shared_row(books: MayBook<'_>, caller: u32) -> u32 {
    let Some(e) = shared_entry(caller) else { return ROW_OVERFLOW };
    let row = e.row.load(Acquire);
    if row != 0 {
        return row;
    }
    match books.append_some(Section::Rows, 2) {
        Some(row) => {
            identify(books.row(row), caller, SLOT_SHARED);
            match e.row.compare_exchange(0, row, AcqRel, Acquire) {
                Ok(_) => row,
                // Another thread was first; our row stays empty.
                Err(other) => other,
            }
        }
        None => {
            books.count(Counter::rows_shared, 1);
            ROW_OVERFLOW
        }
    }
}

/// Index entry of this thread's row for a caller. `None`: there is no space for a row; use the shared one.
pub fn find<'t>(books: MayBook<'_>, t: &'t mut ThreadState, caller: u32) -> Option<&'t mut IndexEntry> {
    let mask = t.index_mask;
    let mut at = caller & mask;
    loop {
        // SAFETY: at ≤ mask; the table is this thread's, and reached through its borrowed state only.
        let e = unsafe { &mut *t.index.add(at as usize) };
        if e.row == 0 {
            break;
        }
        if books.seen(e.row).caller() == caller {
            return Some(e);
        }
        at = (at + 1) & mask;
    }
    if (t.index_used + 1) * 2 > mask + 1 {
        if !t.grow_index(*books) {
            return None;
        }
        return find(books, t, caller);
    }
    // Load and store suffice: other threads don't access it, and a handler in between can't get this state.
    let spare = &t.shared().spare_row;
    let row = match spare.load(Relaxed) {
        0 => {
            if books.used(Section::Rows) >= Section::Rows.capacity() - SHARED_ONLY {
                books.count(Counter::rows_shared, 1);
                return None;
            }
            let row = books.append_some(Section::Rows, 2)?;
            spare.store(row + 1, Relaxed);
            row
        }
        row => {
            spare.store(0, Relaxed);
            row
        }
    };
    let r = books.row(row);
    r.room.store(t.room_span / 2, Relaxed);
    identify(r, caller, t.slot);
    t.index_used += 1;
    // SAFETY: as above.
    let e = unsafe { &mut *t.index.add(at as usize) };
    *e = IndexEntry { row, flushed: 0 };
    Some(e)
}

/// Books an allocation in a row of the calling thread. True: the drift has passed its bound.
#[inline(always)]
pub fn add_alloc(row: OwnRow, a: Amount) -> bool {
    let p = &raw const *row as *const u8;
    // SAFETY: words of a row, which are atomics.
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
pub fn add_free(row: OwnRow, a: Amount, room_span: i64) -> bool {
    let p = &raw const *row as *const u8;
    // SAFETY: words of a row, which are atomics.
    unsafe {
        add_own::<{ offset_of!(Row, free_bytes) }>(p, a.usable);
        add_own::<{ offset_of!(Row, free_requested) }>(p, a.requested);
        count_own::<{ offset_of!(Row, free_count) }>(p);
        add_own::<{ offset_of!(Row, room) }>(p, a.usable);
    }
    row.room.load(Relaxed) > room_span
}

/// Reports this thread's row for a caller to the central figures.
pub fn flush(books: MayBook<'_>, t: &mut ThreadState, caller: u32) {
    let span = t.room_span;
    if let Some(e) = find(books, t, caller) {
        peaks::flush(books, e.row(books), &mut e.flushed, span);
    }
}

/// The row in which this thread books a caller's blocks: its own, or the shared one.
pub fn row_for(books: MayBook<'_>, t: Option<&mut ThreadState>, caller: u32) -> u32 {
    t.and_then(|t| find(books, t, caller)).map_or_else(|| shared_row(books, caller), |e| e.row)
}

/// Books an allocation in the row that this thread has for its caller: without a look-up where that row is its own.
pub fn alloc_in(books: MayBook<'_>, t: Option<&mut ThreadState>, row: u32, a: Amount) {
    let caller = books.seen(row).caller();
    match (t, OwnRow::of(*books, row, SlotMark::of_thread())) {
        (Some(t), Some(own)) => {
            if add_alloc(own, a) {
                flush(books, t, caller);
            }
        }
        (t, _) => alloc(books, t, caller, a),
    }
}

/// Books an allocation of this thread by caller number.
pub fn alloc(books: MayBook<'_>, t: Option<&mut ThreadState>, caller: u32, a: Amount) {
    if let Some(t) = t {
        let span = t.room_span;
        if let Some(e) = find(books, t, caller) {
            if add_alloc(e.row(books), a) {
                peaks::flush(books, e.row(books), &mut e.flushed, span);
            }
            return;
        }
    }
    let row = books.row(shared_row(books, caller));
    row.alloc_count.fetch_add(1, Release);
    row.alloc_bytes.fetch_add(a.usable, Release);
    row.alloc_requested.fetch_add(a.requested, Release);
    report_shared(books, row, a.usable as i64);
}

/// Books a release by this thread by caller number.
pub fn free(books: MayBook<'_>, t: Option<&mut ThreadState>, caller: u32, a: Amount) {
    if let Some(t) = t {
        let span = t.room_span;
        if let Some(e) = find(books, t, caller) {
            if add_free(e.row(books), a, span) {
                peaks::flush(books, e.row(books), &mut e.flushed, span);
            }
            return;
        }
    }
    let row = books.row(shared_row(books, caller));
    row.free_count.fetch_add(1, Release);
    row.free_bytes.fetch_add(a.usable, Release);
    row.free_requested.fetch_add(a.requested, Release);
    report_shared(books, row, -(a.usable as i64));
}

/// A shared row has no drift bound: it reports every block to the central figures, or several together when it next
/// gets the lock.
fn report_shared(books: MayBook<'_>, row: &Row, bytes: i64) {
    row.room.fetch_sub(bytes, Relaxed);
    if let Some(e) = shared_entry(row.caller.load(Relaxed)) {
        peaks::flush_shared(books, row, &e.flushed);
    }
}

/// New books: every row keeps its caller and its thread, and its figures begin at 0.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books(books: MayBook<'_>) {
    for i in 1..books.used(Section::Rows) as u32 {
        let r = books.row(i);
        let cells =
            [&r.alloc_count, &r.alloc_bytes, &r.alloc_requested, &r.free_count, &r.free_bytes, &r.free_requested];
        cells.into_iter().for_each(|c| c.store(0, Relaxed));
        r.room.store(0, Relaxed);
    }
    for i in 0..books.used(Section::Callers) as u32 {
        note_reported(i, 0);
    }
}

/// Notes how many live blocks of a caller's shared row were reported to the central figures.
pub fn note_reported(caller: u32, count: i64) {
    if let Some(e) = shared_entry(caller) {
        e.flushed.store(count as u32, Relaxed);
    }
}
