//! malloc, calloc, realloc, free and related functions. malloc_usable_size returns the bytes that the program may
//! write. It returns at least the requested bytes, but not always the same number as without the tracker, since the
//! tracker's key is at the end of the block: 16 instead of 24 for `malloc(7)`, 32 instead of 24 for `malloc(24)`. A
//! program may rely on neither (malloc_usable_size(3)).
//!
//! | file | what it is | runs |
//! | --- | --- | --- |
//! | `x86_64/glibc.rs` | malloc and free over glibc where nothing unusual happens, in assembly | on x86-64 |
//! | `x86_64/other.rs` | small blocks over another allocator, in assembly | on x86-64 |
//! | [`portable`] | the steps of `x86_64/glibc.rs` in Rust: read it first | on other CPUs; on x86-64 in `realloc(0, n)` |
//! | [`slow`] | the steps of `x86_64/other.rs` in Rust; large blocks, samples, the first block of a thread, signal handlers inside a hook | everywhere |
//! | this file | calloc, realloc and the rest | everywhere |
//!
//! `tests/books/malloc_twins.rs` puts the same operations through the assembly and the Rust, and compares the books
//! after each.
//!
//! Corner cases of glibc 2.36 (malloc/malloc.c), which the program must find unchanged:
//!
//! | call | real outcome | books |
//! | --- | --- | --- |
//! | `malloc(0)` | a block | requested 0 |
//! | `realloc(0, n)` | `malloc(n)` | allocation |
//! | `realloc(p, 0)` | frees, NULL (jemalloc, mimalloc: a block) | release; allocation only if a block was returned |
//! | `realloc(p, n)` fails | NULL, p lives on | nothing; the key is put back |
//! | `calloc` overflow | NULL, ENOMEM by the real one | nothing |

pub mod portable;
pub mod slow;
#[cfg(target_arch = "x86_64")]
pub mod x86_64;

use self::slow::{attribute, book_own, book_slow, caller_of_key, finish_any, real_call};
use crate::account::blocks::{self, Key, TRAILER};
use crate::account::early;
use crate::account::keys::{set_key, take_key_of, trailer};
use crate::account::rows::{self, Amount};
use crate::account::side_table::page_keys;
use crate::account::thread::ThreadState;
use crate::account::{image, pending, samples};
use crate::guard::{Entered, TakenState, enter};
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::segment::Segment;
use crate::segment::books::MayBook;
use crate::stack::read::return_address;
use crate::sys::cpu::{CURRENT, tls_get};
use crate::sys::libc;
use crate::sys::libc::calls;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use plimsoll_segment::{Allocator, Counter};

/// free(3): where the exported entry jumps to. [`free_glibc`] once the allocator is known to be glibc's.
pub static FREE: AtomicPtr<()> = AtomicPtr::new(slow::free_entry as *mut ());

/// The fast versions of free for the allocator below the hooks: where all rows are mapped, and where only windows of
/// them are.
pub fn fast_frees() -> (*mut (), *mut ()) {
    if blocks::allocator() == Allocator::Glibc as u32 {
        (free_glibc as *mut (), free_glibc_in_windows as *mut ())
    } else {
        (free_other as *mut (), free_other_in_windows as *mut ())
    }
}

/// At the entry of a hook in a native image whose blocks may have headers ([`pending`]). Once it is known that they
/// don't, all calls take the fast path from the next one on.
#[cold]
pub(super) fn settle(books: MayBook<'_>, t: &mut ThreadState) {
    if pending::settle(books, t) {
        blocks::open_fast_paths(*books);
        // The version that is right in any address space, since the program may set a limit meanwhile.
        FREE.store(fast_frees().1, Relaxed);
    }
}

/// On x86-64 [`entry_straight`](crate::entry_straight) takes its place.
pub use portable::malloc;

#[cfg(not(target_arch = "x86_64"))]
pub use slow::{free_entry as free_other, free_entry as free_other_in_windows};
#[cfg(target_arch = "x86_64")]
pub use {
    x86_64::other::{free as free_other, free_in_windows as free_other_in_windows},
    x86_64::{free_glibc, free_glibc_in_windows},
};

/// `Segment::row` itself checks where the rows' window ends.
#[cfg(not(target_arch = "x86_64"))]
pub use portable::{free_glibc, free_glibc as free_glibc_in_windows};

/// calloc(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn calloc(n: usize, size: usize, sp: usize, fp: usize) -> *mut u8 {
    let t = tls_get::<CURRENT>() as *mut ThreadState;
    // SAFETY: as in `portable::malloc`.
    unsafe {
        match n.checked_mul(size) {
            Some(bytes) if !t.is_null() && bytes < (*t).shared().trailer_below.load(Relaxed) => {
                let mut t = TakenState::now(t);
                let attribution = attribute(&mut t, bytes, sp, fp);
                let p = calls::calloc(1, bytes + TRAILER);
                finish_any(t, p, bytes, attribution)
            }
            bytes => {
                if !resolved() {
                    resolve();
                }
                let real = || match bytes {
                    Some(b) if b < blocks::trailer_below() => calls::calloc(1, b + TRAILER),
                    _ => calls::calloc(n, size),
                };
                real_call(sp, real, |p| book_own(libc::Call::calloc, p, bytes.unwrap_or(0), sp, fp))
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
        if !resolved() {
            resolve();
        }
        if libc::is_allocator(return_address(sp) as usize) {
            return calls::realloc(p, n);
        }
        if image::may_have_headers() {
            match enter() {
                Entered::Thread(mut inside) => {
                    let (books, t) = inside.parts();
                    settle(books, t);
                    pending::forget(*books, p);
                }
                Entered::Shared(nested) => pending::forget(*nested.books(), p),
                Entered::Outside => {}
            }
        }
        let old_usable = blocks::usable(p);
        // The key is taken out first: if the real call moves the block, another thread may own the old address before
        // it returns.
        let old = if early::booking() { take_key_of(p, old_usable) } else { None };
        let sample = match (old, Segment::current()) {
            (Some((key, _)), Some(segment)) if key.sampled => samples::take(segment, p).map(|taken| (segment, taken)),
            _ => None,
        };
        if n == 0 {
            release(old, sample, old_usable);
            let q = calls::realloc(p, 0);
            if !q.is_null() {
                book_slow(q, 0, sp, fp);
            }
            return q;
        }
        let q = calls::realloc(p, slow::real_request(n));
        if q.is_null() {
            if let Some((key, _)) = old {
                let sampled = sample.is_some_and(|(segment, taken)| samples::put_back(segment, p, taken));
                set_key(p, Key { sampled, ..key });
            }
            return q;
        }
        release(old, sample, old_usable);
        let t = tls_get::<CURRENT>() as *mut ThreadState;
        if t.is_null() || n >= (*t).shared().trailer_below.load(Relaxed) {
            book_slow(q, n, sp, fp);
            return q;
        }
        let mut t = TakenState::now(t);
        let attribution = attribute(&mut t, n, sp, fp);
        finish_any(t, q, n, attribution)
    }
}

/// Books the release of a block whose key and sample were taken.
fn release(old: Option<(Key, Amount)>, sample: Option<(Segment, samples::TakenSample)>, usable: usize) {
    if let Some((segment, taken)) = sample {
        samples::end(segment, taken);
    }
    let booked = |segment| old.and_then(|(key, amount)| Some((caller_of_key(segment, key)?, amount)));
    let unknown = |segment: Segment| {
        segment.count(Counter::unknown_frees, 1);
        segment.count(Counter::unknown_free_bytes, usable as u64);
    };
    match enter() {
        Entered::Thread(mut inside) => {
            let (books, t) = inside.parts();
            match booked(*books) {
                Some((caller, amount)) => rows::free(books, Some(t), caller, amount),
                None => unknown(*books),
            }
        }
        Entered::Shared(nested) => match booked(*nested.books()) {
            Some((caller, amount)) => rows::free(nested.books(), None, caller, amount),
            None => unknown(*nested.books()),
        },
        Entered::Outside => early::release(old.map(|o| o.1)),
    }
}

/// reallocarray(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn reallocarray(p: *mut u8, n: usize, size: usize, sp: usize, fp: usize) -> *mut u8 {
    if !resolved() {
        resolve();
    }
    match (n.checked_mul(size), libc::own_realloc()) {
        // As libc's function does.
        // SAFETY: the arguments are the program's.
        (Some(bytes), Some(own)) => unsafe { own(p, bytes) },
        // SAFETY: as realloc.
        (Some(bytes), None) => unsafe { realloc(p, bytes, sp, fp) },
        (None, _) => {
            crate::sys::libc::set_errno(crate::sys::errno::ENOMEM);
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
    unsafe { free_by_size(p) }
}

/// free_aligned_sized (C23).
///
/// # Safety
/// As free(3).
pub unsafe extern "C" fn free_aligned_sized(p: *mut u8, _align: usize, _n: usize) {
    // SAFETY: the caller's contract.
    unsafe { free_by_size(p) }
}

unsafe fn free_by_size(p: *mut u8) {
    if !resolved() {
        resolve();
    }
    // SAFETY: the caller's contract.
    unsafe {
        match libc::own_free() {
            Some(own) => own(p),
            None => slow::free(p),
        }
    }
}

/// malloc_usable_size(3): what the program may write to, so without the trailer.
///
/// # Safety
/// As malloc_usable_size(3).
pub unsafe extern "C" fn malloc_usable_size(p: *mut u8) -> usize {
    if p.is_null() {
        return 0;
    }
    if !resolved() {
        resolve();
    }
    // SAFETY: a live block by the function's own contract.
    unsafe {
        let usable = libc::usable_of_program(p);
        // Redis calls this twice for each block, at the start and at the end of its life.
        if blocks::has_no_trailer(usable) { usable } else { without_trailer(p, usable) }
    }
}

/// Out of line, so that the usual case saves no registers for it.
#[inline(never)]
unsafe fn without_trailer(p: *mut u8, usable: usize) -> usize {
    // The last bytes of a block without a trailer may be those of an older trailer.
    let may_have_trailer = early::booking() && page_keys::get(p).is_none();
    // SAFETY: the caller's live block, which has this many usable bytes.
    if may_have_trailer && unsafe { trailer(p, usable) }.is_some() { usable - TRAILER } else { usable }
}
