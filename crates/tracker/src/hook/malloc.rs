//! malloc, calloc, realloc, free and their kin.
//!
//! The fast path is glibc's: a state, a request that gets a trailer, a remembered stack. Everything else (other
//! allocators, large blocks, the first block of a thread, signals on top of us) is in the cold functions below.
//!
//! Corners, as glibc 2.36 has them (malloc/malloc.c) and the program must find them:
//!
//! | call | real outcome | books |
//! | --- | --- | --- |
//! | `malloc(0)` | a block | requested 0 |
//! | `realloc(0, n)` | `malloc(n)` | allocation |
//! | `realloc(p, 0)` | frees, NULL (jemalloc, mimalloc: a block) | release; allocation only if a block came back |
//! | `realloc(p, n)` fails | NULL, p lives on | nothing; the key is put back |
//! | `calloc` overflow | NULL, ENOMEM by the real one | nothing |

use crate::account::blocks::{self, Key, TABLE_FROM, TRAILER};
use crate::account::rows::{self, Amount};
use crate::account::segment::Segment;
use crate::account::thread::ThreadState;
use crate::account::{callers, peaks, table};
use crate::boot;
use crate::guard::{Entered, Inside, enter};
use crate::stack::memo;
use crate::sys::cpu::{CURRENT, tls_get, tls_set};
use crate::sys::libc::calls;
use plimsoll_segment::{CALLER_EARLY, Counter};

/// malloc(3).
///
/// # Safety
/// Called by the entry stub: `sp` and `fp` are the caller's.
pub unsafe extern "C" fn malloc(n: usize, sp: usize, fp: usize) -> *mut u8 {
    let t = tls_get::<CURRENT>() as *mut ThreadState;
    // SAFETY: a non-null `current` is this thread's state; the real function is resolved before any state exists.
    unsafe {
        if t.is_null() || n >= (*t).trailer_below {
            return malloc_slow(n, sp, fp);
        }
        let p = calls::malloc(n + TRAILER);
        if !p.is_null() {
            book(t, p, n, sp, fp);
        }
        p
    }
}

/// Books a fresh block of glibc's that was asked for with room for a trailer.
///
/// # Safety
/// `t` is this thread's state taken from `current`; `p` is a live block of at least `n + TRAILER` usable bytes.
#[inline(always)]
unsafe fn book(t: *mut ThreadState, p: *mut u8, n: usize, sp: usize, fp: usize) {
    let Some(segment) = Segment::current() else { return };
    // SAFETY: the caller's contract; the chunk header lies in front of the block.
    unsafe {
        let usable = blocks::usable_glibc(p);
        if usable >= TABLE_FROM {
            return book_slow(p, n, sp, fp);
        }
        tls_set::<CURRENT>(0);
        let (caller, row) = match memo::recall(&*t, sp, fp) {
            Some(m) => (m.caller, m.row),
            None => memo::walk(segment, &mut *t, sp, fp),
        };
        let amount = Amount { usable: (usable - TRAILER) as u64, requested: n as u64 };
        blocks::write_trailer(p, usable, caller, n);
        if row == 0 || rows::add_alloc(segment.row(row), amount) {
            after(segment, t, caller, row == 0, amount);
        }
        tls_set::<CURRENT>(t as usize);
    }
}

/// No row of its own for the caller, or a drift beyond its bound.
#[cold]
#[inline(never)]
unsafe fn after(segment: Segment, t: *mut ThreadState, caller: u32, unbooked: bool, amount: Amount) {
    // SAFETY: the caller holds the state.
    let t = unsafe { &mut *t };
    if unbooked {
        return rows::alloc(segment, Some(t), caller, amount);
    }
    let span = t.room_span;
    if let Some(e) = rows::find(segment, t, caller) {
        peaks::flush(segment, e, span);
    }
}

#[cold]
#[inline(never)]
unsafe fn malloc_slow(n: usize, sp: usize, fp: usize) -> *mut u8 {
    if !boot::resolved() {
        boot::resolve();
    }
    // SAFETY: resolved; the arguments are the program's.
    unsafe {
        let p = calls::malloc(asked(n));
        if !p.is_null() {
            book_slow(p, n, sp, fp);
        }
        p
    }
}

/// What to ask the allocator for.
#[inline(always)]
pub fn asked(n: usize) -> usize {
    if n < blocks::trailer_below() { n + TRAILER } else { n }
}

/// Books a fresh block of any kind.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes; `sp`, `fp` are the hooked call's.
#[cold]
#[inline(never)]
pub unsafe fn book_slow(p: *mut u8, n: usize, sp: usize, fp: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match enter() {
            Entered::Thread(mut inside) => {
                let segment = inside.segment;
                let caller = caller_of(&mut inside, sp, fp);
                match set_key(p, n, caller) {
                    Some(amount) => rows::alloc(segment, Some(inside.state()), caller, amount),
                    None => unbooked(segment, p),
                }
            }
            Entered::Shared(segment) => {
                let ra = *(sp as *const u64);
                let caller = callers::number(segment, &[ra], callers::TRUNCATED, 0);
                match set_key(p, n, caller) {
                    Some(amount) => rows::alloc(segment, None, caller, amount),
                    None => unbooked(segment, p),
                }
            }
            Entered::Outside => boot::early_alloc(p, n),
        }
    }
}

/// The caller of a hooked call.
///
/// # Safety
/// `sp`, `fp` are the hooked call's.
pub unsafe fn caller_of(inside: &mut Inside, sp: usize, fp: usize) -> u32 {
    let segment = inside.segment;
    let t = inside.state();
    // SAFETY: the caller's contract.
    unsafe {
        match memo::recall(t, sp, fp) {
            Some(m) => m.caller,
            None => memo::walk(segment, t, sp, fp).0,
        }
    }
}

fn unbooked(segment: Segment, p: *mut u8) {
    segment.count(Counter::unbooked_blocks, 1);
    // SAFETY: a live block.
    segment.count(Counter::unbooked_bytes, unsafe { blocks::usable(p) } as u64);
}

/// Writes down whose block this is: in a trailer if there is room, else in the side table. Answers what to book.
///
/// # Safety
/// `p` is a live block of at least `n` usable bytes, held by this thread.
pub unsafe fn set_key(p: *mut u8, n: usize, caller: u32) -> Option<Amount> {
    // SAFETY: the caller's contract.
    unsafe {
        let usable = blocks::usable(p);
        if usable < TABLE_FROM {
            if usable >= n + TRAILER {
                blocks::write_trailer(p, usable, caller, n);
                return Some(Amount { usable: (usable - TRAILER) as u64, requested: n as u64 });
            }
            // No room: what an earlier block left here must not pass for this one's trailer. The bytes were never
            // given to the program yet, and zero is what calloc would have there.
            if blocks::read_trailer(p, usable).is_some() {
                blocks::clear_trailer(p, usable);
            }
        }
        let key = Key { caller, requested: n as u64 };
        table::insert(p, key).then_some(Amount { usable: usable as u64, requested: n as u64 })
    }
}

/// Takes the key out of a block: the block is about to go.
///
/// # Safety
/// `p` is a live block, held by this thread.
pub unsafe fn take_key(p: *mut u8) -> Option<(Key, Amount)> {
    // SAFETY: the caller's contract.
    unsafe {
        let usable = blocks::usable(p);
        if let Some(key) = blocks::read_trailer(p, usable) {
            blocks::clear_trailer(p, usable);
            return Some((key, Amount { usable: (usable - TRAILER) as u64, requested: key.requested }));
        }
        let key = table::remove(p)?;
        Some((key, Amount { usable: usable as u64, requested: key.requested }))
    }
}

/// free(3).
///
/// # Safety
/// As free(3).
pub unsafe extern "C" fn free(p: *mut u8) {
    if p.is_null() {
        return;
    }
    let t = tls_get::<CURRENT>() as *mut ThreadState;
    // SAFETY: a non-null `current` is this thread's state; p is a live block by free's own contract.
    unsafe {
        if !t.is_null() && (*t).trailer_below != 0 {
            let usable = blocks::usable_glibc(p);
            if let Some(key) = blocks::read_trailer(p, usable)
                && let Some(segment) = Segment::current()
            {
                blocks::clear_trailer(p, usable);
                tls_set::<CURRENT>(0);
                let amount = Amount { usable: (usable - TRAILER) as u64, requested: key.requested };
                let e = &*(*t).index.add((key.caller & (*t).index_mask) as usize);
                let row = segment.row(e.row);
                if row.caller.load(core::sync::atomic::Ordering::Relaxed) != key.caller || e.row == 0 {
                    rows::free(segment, Some(&mut *t), key.caller, amount);
                } else if rows::add_free(row, amount, (*t).room_span) {
                    after(segment, t, key.caller, false, amount);
                }
                tls_set::<CURRENT>(t as usize);
                return calls::free(p);
            }
        }
        free_slow(p)
    }
}

#[cold]
#[inline(never)]
unsafe fn free_slow(p: *mut u8) {
    if !boot::resolved() {
        boot::resolve();
    }
    // SAFETY: the program's block.
    unsafe {
        match enter() {
            Entered::Thread(mut inside) => {
                let segment = inside.segment;
                match take_key(p) {
                    Some((key, amount)) => rows::free(segment, Some(inside.state()), bounded(key.caller), amount),
                    None => unknown(segment, p),
                }
            }
            Entered::Shared(segment) => match take_key(p) {
                Some((key, amount)) => rows::free(segment, None, bounded(key.caller), amount),
                None => unknown(segment, p),
            },
            Entered::Outside => boot::early_free(p),
        }
        calls::free(p)
    }
}

/// A caller number from a key: a forged one must not lead outside the section.
fn bounded(caller: u32) -> u32 {
    if (caller as usize) < plimsoll_segment::Section::Callers.capacity() { caller } else { CALLER_EARLY }
}

fn unknown(segment: Segment, p: *mut u8) {
    segment.count(Counter::unknown_frees, 1);
    // SAFETY: a live block.
    segment.count(Counter::unknown_free_bytes, unsafe { blocks::usable(p) } as u64);
}

/// calloc(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn calloc(n: usize, size: usize, sp: usize, fp: usize) -> *mut u8 {
    let t = tls_get::<CURRENT>() as *mut ThreadState;
    // SAFETY: as in `malloc`.
    unsafe {
        match n.checked_mul(size) {
            Some(bytes) if !t.is_null() && bytes < (*t).trailer_below => {
                let p = calls::calloc(1, bytes + TRAILER);
                if !p.is_null() {
                    book(t, p, bytes, sp, fp);
                }
                p
            }
            bytes => {
                if !boot::resolved() {
                    boot::resolve();
                }
                let p = match bytes {
                    Some(b) if b < blocks::trailer_below() => calls::calloc(1, b + TRAILER),
                    _ => calls::calloc(n, size),
                };
                if !p.is_null() {
                    book_slow(p, bytes.unwrap_or(0), sp, fp);
                }
                p
            }
        }
    }
}

/// realloc(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn realloc(p: *mut u8, n: usize, sp: usize, fp: usize) -> *mut u8 {
    // SAFETY: the arguments are the program's.
    unsafe {
        if p.is_null() {
            return malloc(n, sp, fp);
        }
        if !boot::resolved() {
            boot::resolve();
        }
        let old_usable = blocks::usable(p);
        // Out before the real call: if it moves the block, another thread may own the old address before it returns.
        let old = if boot::booking() { take_key(p) } else { None };
        if n == 0 {
            release(old, old_usable);
            let q = calls::realloc(p, 0);
            if !q.is_null() {
                book_slow(q, 0, sp, fp);
            }
            return q;
        }
        let q = calls::realloc(p, asked(n));
        if q.is_null() {
            if let Some((key, _)) = old {
                set_key(p, key.requested as usize, key.caller);
            }
            return q;
        }
        release(old, old_usable);
        let t = tls_get::<CURRENT>() as *mut ThreadState;
        if !t.is_null() && n < (*t).trailer_below {
            book(t, q, n, sp, fp);
        } else {
            book_slow(q, n, sp, fp);
        }
        q
    }
}

/// Books the release of a block whose key was taken.
fn release(old: Option<(Key, Amount)>, usable: usize) {
    match (enter(), old) {
        (Entered::Thread(mut inside), Some((key, amount))) => {
            let segment = inside.segment;
            rows::free(segment, Some(inside.state()), bounded(key.caller), amount);
        }
        (Entered::Shared(segment), Some((key, amount))) => rows::free(segment, None, bounded(key.caller), amount),
        (Entered::Thread(Inside { segment, .. }) | Entered::Shared(segment), None) => {
            segment.count(Counter::unknown_frees, 1);
            segment.count(Counter::unknown_free_bytes, usable as u64);
        }
        (Entered::Outside, old) => boot::early_release(old.map(|o| o.1)),
    }
}

/// reallocarray(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn reallocarray(p: *mut u8, n: usize, size: usize, sp: usize, fp: usize) -> *mut u8 {
    match n.checked_mul(size) {
        // SAFETY: as realloc.
        Some(bytes) => unsafe { realloc(p, bytes, sp, fp) },
        None => {
            crate::sys::libc::set_errno(crate::sys::os::errno::ENOMEM);
            core::ptr::null_mut()
        }
    }
}

/// free_sized (C23).
///
/// # Safety
/// As free(3).
pub unsafe extern "C" fn free_sized(p: *mut u8, _n: usize) {
    // SAFETY: the caller's contract.
    unsafe { free(p) }
}

/// free_aligned_sized (C23).
///
/// # Safety
/// As free(3).
pub unsafe extern "C" fn free_aligned_sized(p: *mut u8, _align: usize, _n: usize) {
    // SAFETY: the caller's contract.
    unsafe { free(p) }
}

/// malloc_usable_size(3): what the program may write to, so without the trailer.
///
/// # Safety
/// As malloc_usable_size(3).
pub unsafe extern "C" fn malloc_usable_size(p: *mut u8) -> usize {
    if p.is_null() {
        return 0;
    }
    if !boot::resolved() {
        boot::resolve();
    }
    // SAFETY: a live block by the function's own contract.
    unsafe {
        let usable = calls::malloc_usable_size(p);
        if boot::booking() && blocks::read_trailer(p, usable).is_some() { usable - TRAILER } else { usable }
    }
}
