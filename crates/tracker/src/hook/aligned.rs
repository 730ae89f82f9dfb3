//! The aligned forms. None requests more bytes than the program did: pvalloc would round one page up to two, and an
//! alignment of a page would cost a page. The key lies in the slack of the allocator's rounding, or else in the side
//! table.
//!
//! An allocator may lack some of these functions (jemalloc has no pvalloc). Then libc serves the call from its own
//! heap, and the block isn't booked: the allocator's malloc_usable_size and free must not be given it.

use super::malloc::slow::{book_own, real_call};
use crate::account::blocks::{self, TRAILER};
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::sys::libc::{self, Call, calls};
use core::ffi::c_int;
use plimsoll_segment::Allocator;

/// The largest page of any kernel for this CPU.
const LARGEST_PAGE: usize = if cfg!(target_arch = "aarch64") { 64 << 10 } else { 4 << 10 };

macro_rules! aligned {
    ($($(#[doc = $d:literal])* $name:ident($($a:ident),*) requested $n:expr;)*) => {$(
        $(#[doc = $d])*
        ///
        /// # Safety
        /// Called by the entry stub.
        pub unsafe extern "C" fn $name($($a: usize,)* sp: usize, fp: usize) -> *mut u8 {
            if !resolved() {
                resolve();
            }
            // SAFETY: the arguments are the program's.
            unsafe {
                real_call(sp, || calls::$name($($a),*), |p| book_own(Call::$name, p, $n, sp, fp))
            }
        }
    )*};
}

aligned! {
    /// aligned_alloc(3).
    aligned_alloc(align, n) requested n;
    /// memalign(3).
    memalign(align, n) requested n;
}

/// pvalloc(3): requests whole pages.
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn pvalloc(n: usize, sp: usize, fp: usize) -> *mut u8 {
    if !resolved() {
        resolve();
    }
    // SAFETY: the arguments are the program's.
    unsafe { real_call(sp, || calls::pvalloc(n), |p| book_own(Call::pvalloc, p, requested_of_pages(p, n), sp, fp)) }
}

/// The bytes that count as requested by `pvalloc(n)`: `n`, or all usable bytes if the block has none behind the whole
/// pages. The program may write all of these pages, so no key may lie in them.
///
/// # Safety
/// A live block that pvalloc has returned.
unsafe fn requested_of_pages(p: *mut u8, n: usize) -> usize {
    // The allocator must not be queried for the size of libc's block.
    if libc::is_foreign(Call::pvalloc) {
        return n;
    }
    // SAFETY: the caller's contract.
    let usable = unsafe { blocks::usable(p) };
    let has_space_behind = usable >= n.next_multiple_of(LARGEST_PAGE) + TRAILER;
    if has_space_behind { n } else { usable.max(n) }
}

/// valloc(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn valloc(n: usize, sp: usize, fp: usize) -> *mut u8 {
    if !resolved() {
        resolve();
    }
    // musl's jumps to memalign by its exported name, which is our hook.
    let is_musl = libc::is_musl() && libc::is_foreign(Call::valloc);
    if blocks::allocator() == Allocator::Musl as u32 || is_musl {
        // SAFETY: as below.
        return unsafe {
            real_call(sp, || calls::memalign(LARGEST_PAGE, n), |p| book_own(Call::memalign, p, n, sp, fp))
        };
    }
    // SAFETY: the arguments are the program's.
    unsafe { real_call(sp, || calls::valloc(n), |p| book_own(Call::valloc, p, n, sp, fp)) }
}

/// posix_memalign(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn posix_memalign(out: *mut *mut u8, align: usize, n: usize, sp: usize, fp: usize) -> c_int {
    if !resolved() {
        resolve();
    }
    // SAFETY: the arguments are the program's; on success `out` holds the block.
    unsafe {
        let mut r = 0;
        real_call(
            sp,
            || {
                r = calls::posix_memalign(out, align, n);
                if r == 0 { *out } else { core::ptr::null_mut() }
            },
            |p| book_own(Call::posix_memalign, p, n, sp, fp),
        );
        r
    }
}
