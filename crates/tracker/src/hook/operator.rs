//! operator new and delete of C++.
//!
//! libstdc++'s operators call malloc and free, whose hooks book the block. On x86-64 over glibc, the usual forms of
//! libstdc++ continue on the paths of these hooks directly (`malloc/x86_64/operators.rs`). An allocator that is linked
//! or preloaded as a whole brings operators of its own that don't call these; then the block is booked here. The
//! assembly of the entry calls what may throw (new), never Rust code: the exception passes only the entry's frame,
//! which needs no clean-up.

use super::malloc::slow::{book_fresh, book_release};
#[cfg(target_arch = "x86_64")]
use super::malloc::x86_64::operators::shorten;
use crate::account::blocks::Key;
use crate::account::keys::key_of;
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::segment::Segment;
use crate::segment::slots::GENERATION;
use crate::stack::callers;
use crate::stack::module;
use crate::stack::read::return_address;
use crate::sys::libc;
use core::sync::atomic::Ordering::Relaxed;
use plimsoll_segment::CALLER_OVERFLOW;

/// On other CPUs malloc and free have no paths that an operator could continue on.
#[cfg(not(target_arch = "x86_64"))]
fn shorten() {}

/// The real operator, as the entry gets it in two registers.
#[repr(C)]
pub struct RealOperator {
    address: usize,
    /// Whether the entry must book the block: the operator belongs to the allocator, which doesn't call malloc.
    books: usize,
}

/// The real operator with this number, for the entry.
pub extern "C" fn real_operator(i: usize) -> RealOperator {
    if !resolved() {
        resolve();
    }
    let (address, own) = libc::operator(i, GENERATION.load(Relaxed));
    // After the look-up, which stores the real operator's address where this may store another.
    if !own {
        shorten();
    }
    RealOperator { address, books: own as usize }
}

/// Books the block that a real new returned.
///
/// # Safety
/// `p` is null or a fresh block of `n` bytes; `sp`, `fp` are those of the operator's caller.
pub unsafe extern "C" fn after_new(p: *mut u8, n: usize, sp: usize, fp: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        if p.is_null() || libc::is_allocator(return_address(sp) as usize) {
            return p;
        }
        match key_of(p) {
            None => {}
            // The operator jumps to an exported function of its allocator, and the hook of that function has booked the
            // block.
            Some(key) if was_called_from_here(key) => return p,
            // Another block was here, and a function that isn't hooked has released it (dallocx).
            Some(_) => book_release(p),
        }
        book_fresh(p, n, sp, fp);
    }
    p
}

/// Whether a block was booked for a call that returns to the entry of an operator.
fn was_called_from_here(key: Key) -> bool {
    let Some(segment) = Segment::current() else { return false };
    let caller = segment.seen(key.row).caller();
    if caller == CALLER_OVERFLOW {
        // The answer isn't known. A block that the hook has just booked must not be booked twice.
        return true;
    }
    let ra = callers::innermost(segment, caller) as usize;
    let own = module::find(segment, after_new as *const () as usize);
    ra != 0 && own.zip(module::find(segment, ra - 1)).is_some_and(|(own, its)| core::ptr::eq(own, its))
}

/// For the delete with this number: books the release, and returns the address of the real operator.
///
/// # Safety
/// `p` is null or a live block; `ra` is where the delete was called.
pub unsafe extern "C" fn before_delete(p: *mut u8, i: usize, ra: usize) -> usize {
    let real = real_operator(i);
    if real.books != 0 && !p.is_null() && !libc::is_allocator(ra) {
        // SAFETY: the caller's contract.
        unsafe { book_release(p) };
    }
    real.address
}
