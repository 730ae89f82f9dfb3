//! dallocx, sdallocx, tc_free, tc_free_sized, mi_free, mi_free_size: variants of free that only some allocators have.
//! They take what malloc has returned (folly and its users release nearly all blocks in this way). What the other
//! functions of such an allocator return or resize isn't in the books (mallocx, rallocx, xallocx, tc_malloc, mi_malloc
//! and their relatives). If the allocator lacks a function, the tracker hides its hook.

use super::loader::{Next, real};
use super::malloc::slow::book_release;
use crate::account::early;
use crate::account::keys::key_of;
use crate::sys::libc::{self, Call};

macro_rules! before {
    ($($(#[doc = $d:literal])* $name:ident $call:ident;)*) => {$(
        $(#[doc = $d])*
        ///
        /// # Safety
        /// Called by the entry stub: `p` is null or a live block, `ra` is where the call returns to.
        pub unsafe extern "C" fn $name(p: *mut u8, _: usize, _: usize, ra: usize) -> Next {
            // SAFETY: the caller's contract.
            unsafe { before(Call::$call, p, ra) }
        }
    )*};
}
before! {
    /// dallocx, of jemalloc.
    before_dallocx dallocx;
    /// sdallocx, of jemalloc and Google's tcmalloc.
    before_sdallocx sdallocx;
    /// tc_free, of gperftools.
    before_tc_free tc_free;
    /// tc_free_sized, of gperftools.
    before_tc_free_sized tc_free_sized;
    /// mi_free, of mimalloc.
    before_mi_free mi_free;
    /// mi_free_size, of mimalloc.
    before_mi_free_size mi_free_size;
}

/// Books the release of a block that is in the books.
///
/// # Safety
/// As the functions above.
unsafe fn before(call: Call, p: *mut u8, ra: usize) -> Next {
    let own = real(call);
    // An allocator other than the one below the hooks may have this function, for blocks of its own.
    let is_of_malloc = own == 0 || libc::is_allocator(own);
    // SAFETY: the caller's contract.
    unsafe {
        if is_of_malloc && early::booking() && !p.is_null() && !libc::is_allocator(ra) && key_of(p).is_some() {
            book_release(p);
        }
    }
    // A constructor that runs before ours finds the hook, although the allocator lacks the function.
    Next::jump(if own == 0 { real(Call::free) } else { own })
}
