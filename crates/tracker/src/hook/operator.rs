//! operator new and delete of C++.
//!
//! libstdc++'s call malloc and free, whose hooks see them. An allocator that is linked or preloaded as a whole brings
//! operators of its own that take the short way; then they are booked here. What may throw (new) is called from the
//! assembly of the entry, never from Rust: an exception passes a frame that has nothing but its size.

use super::malloc::slow::{book_fresh, book_release};
use crate::account::keys::is_booked;
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::segment::slots::GENERATION;
use crate::stack::read::return_address;
use crate::sys::libc;
use core::sync::atomic::Ordering::Relaxed;

/// What an entry does next.
#[repr(C)]
pub struct Next {
    /// The real operator.
    real: usize,
    /// Whether its block must be booked by the entry.
    books: usize,
}

/// For the operator with this number.
pub extern "C" fn next(i: usize) -> Next {
    if !resolved() {
        resolve();
    }
    let (real, own) = libc::operator(i, GENERATION.load(Relaxed));
    Next { real, books: own as usize }
}

/// Books what a real new answered.
///
/// # Safety
/// `p` is null or a fresh block of `n` bytes; `sp`, `fp` are the caller's of the operator.
pub unsafe extern "C" fn made(p: *mut u8, n: usize, sp: usize, fp: usize) -> *mut u8 {
    // SAFETY: the caller's contract. jemalloc's aligned forms ask its exported aligned_alloc, whose hook has booked it.
    unsafe {
        if !p.is_null() && !libc::is_allocator(return_address(sp) as usize) && !is_booked(p) {
            book_fresh(p, n, sp, fp);
        }
    }
    p
}

/// For the delete with this number: books the release, answers where to go on.
///
/// # Safety
/// `p` is null or a live block; `ra` is where the delete was called.
pub unsafe extern "C" fn ending(p: *mut u8, i: usize, ra: usize) -> usize {
    let n = next(i);
    if n.books != 0 && !p.is_null() && !libc::is_allocator(ra) {
        // SAFETY: the caller's contract.
        unsafe { book_release(p) };
    }
    n.real
}
