//! malloc and free over glibc in Rust, as long as nothing unusual happens. The parent module says where it runs.
//!
//! ```text
//! malloc   the thread's state, taken │ small enough │ no sample due │ the remembered stack, each word compared
//!          │ the real one, 8 bytes more │ the size that glibc gave │ trailer │ the row's four numbers │ state given back
//! free     the size │ the trailer's check │ the row is this thread's │ trailer cleared │ four numbers │ on to the real one
//! ```

use super::slow::off_path;
use crate::account::blocks::{self, TRAILER};
use crate::account::memo;
use crate::account::rows::{self, Amount};
use crate::account::thread::ThreadState;
use crate::segment::Segment;
use crate::segment::books::{OwnRow, SlotMark};
use crate::sys::cpu::{CURRENT, ROOM_SPAN, tls_get, tls_set};
use crate::sys::libc::calls;
use core::sync::atomic::Ordering::Relaxed;

/// malloc(3).
///
/// The state is taken before the stack is recalled and given back when the block is booked. In between, glibc's malloc
/// calls no hook; a signal handler that allocates meanwhile books in the shared rows.
///
/// # Safety
/// Called by the entry stub: `sp` and `fp` are the caller's.
pub unsafe extern "C" fn malloc(n: usize, sp: usize, fp: usize) -> *mut u8 {
    let t = tls_get::<CURRENT>() as *mut ThreadState;
    // SAFETY: a non-null `current` is this thread's state, which no frame has borrowed; the real function is resolved
    // before any state exists.
    unsafe {
        if t.is_null() || n >= (*t).shared().trailer_below.load(Relaxed) {
            return off_path::malloc_slow(n, sp, fp);
        }
        tls_set::<CURRENT>(0);
        if (*t).passes_mark(n) {
            return off_path::malloc_sampled(n, sp, fp, t);
        }
        let first = memo::recall(&*t, sp, fp).map(|m| (m.row_key, m.row));
        let found = first.or_else(|| memo::second_entry(t, sp, fp).as_ref().map(|m| (m.row_key, m.row)));
        let Some((row_key, row)) = found else { return off_path::malloc_walk(n, sp, fp, t) };
        let p = calls::malloc(n + TRAILER);
        finish(t, p, n, row_key, row)
    }
}

/// Books the block that glibc returned, and gives the state back.
///
/// # Safety
/// `t` is this thread's state, taken; `p` is null or a live block of at least `n + TRAILER` usable bytes; `row` is the
/// offset of a row of this thread, `row_key` its key.
#[inline(always)]
unsafe fn finish(t: *mut ThreadState, p: *mut u8, n: usize, row_key: u64, row: u32) -> *mut u8 {
    // SAFETY: the caller's contract; the chunk header lies in front of the block.
    unsafe {
        if p.is_null() {
            tls_set::<CURRENT>(t as usize);
            return p;
        }
        let Some(segment) = Segment::current() else { return off_path::unbooked_now(t, p) };
        let Some(usable) = blocks::usable_small(p) else {
            return off_path::finish_row(t, p, n, blocks::row_of_key(row_key));
        };
        let amount = Amount { usable: (usable - TRAILER) as u64, requested: n as u64 };
        blocks::write_trailer(p, usable, row_key, n);
        let row = OwnRow::remembered(segment, row);
        if rows::add_alloc(row, amount) {
            return off_path::flush(t, p, row.caller.load(Relaxed));
        }
        tls_set::<CURRENT>(t as usize);
        p
    }
}

/// free(3) over glibc's malloc.
///
/// The state isn't taken: each counter is one instruction, so a signal handler may add to the same row meanwhile.
///
/// # Safety
/// As free(3).
pub unsafe extern "C" fn free_glibc(p: *mut u8) {
    // SAFETY: p is null or a live block by free's own contract.
    unsafe {
        if p.is_null() {
            return;
        }
        let Some(usable) = blocks::usable_small(p) else { return off_path::free(p) };
        let Some(key) = blocks::read_trailer_small(p, usable) else { return off_path::free(p) };
        let Some(segment) = Segment::current() else { return off_path::free(p) };
        let Some(row) = OwnRow::of(segment, key.row, SlotMark::of_thread()) else { return off_path::free(p) };
        blocks::clear_trailer(p, usable);
        let amount = Amount { usable: (usable - TRAILER) as u64, requested: key.requested };
        if rows::add_free(row, amount, tls_get::<ROOM_SPAN>() as i64) {
            return off_path::free_flush(p, row.caller.load(Relaxed));
        }
        calls::free(p)
    }
}
