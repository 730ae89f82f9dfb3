//! What an allocator other than glibc's gives for a small request, learned from it when the tracker starts.
//!
//! ```text
//! LEFT       one entry of 2 B for each 8 B of request, up to 4 KiB
//!            0            no eight bytes are left behind the request: the key goes to the side table
//!            1 … 65,534   bytes in front of the trailer, which lies in the last eight that malloc_usable_size would tell
//!            65,535       ask malloc_usable_size of this block
//! ```
//!
//! Requests of one entry differ by at most seven bytes, and sizes are multiples of eight. So either all of them leave eight bytes, or none.
//!
//! An entry saves the call after malloc; `free` calls malloc_usable_size and finds the trailer there. Both have to name one place.
//! jemalloc and gperftools' tcmalloc choose a size by the request alone, except for the few blocks that their own profilers sample: these begin at
//! a page. So a block at a page's begin is asked for, whatever its entry says. mimalloc in its guarded builds puts some blocks against a guard
//! page, and of other allocators nothing is known: there each entry is 65,535.

use super::blocks::{self, TRAILER};
use crate::sys::libc::calls;
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};
use plimsoll_segment::Allocator;

/// Requests below this have an entry.
pub const BELOW: usize = 4 << 10;
/// Bytes of request for one entry.
pub const STEP: usize = 8;
/// The entry that says nothing.
pub const ASK: u16 = u16::MAX;
/// More sizes than any allocator has below 4 KiB. One that pads its blocks (mimalloc's debug build) has one for each request.
const MOST: usize = 128;

/// See the module comment.
pub static LEFT: [AtomicU16; BELOW / STEP + 1] = [const { AtomicU16::new(ASK) }; BELOW / STEP + 1];

/// Learns the sizes of the allocator below, by a block of each. Not in the first call of a hook: that may come from inside the allocator, which
/// holds its locks then.
///
/// # Safety
/// The real functions are resolved.
pub unsafe fn learn() {
    if ![Allocator::Jemalloc, Allocator::Tcmalloc].map(|known| known as u32).contains(&blocks::allocator()) {
        return;
    }
    let mut sizes = [0u16; MOST];
    let (mut known, mut request) = (0, 1);
    while request < BELOW {
        // SAFETY: the caller's contract; the block is freed again.
        let size = unsafe { size_of_block(request) };
        if known == MOST || size < request || size % STEP != 0 || size >= ASK as usize {
            return;
        }
        sizes[known] = size as u16;
        known += 1;
        request = size + 1;
    }
    for size in sizes[..known].iter().rev() {
        // Downwards, so that each entry ends with the smallest size that holds its requests.
        let holds = (*size as usize / STEP).min(LEFT.len() - 1);
        for (i, entry) in LEFT.iter().enumerate().take(holds + 1).skip(1) {
            let left = *size as usize - i * STEP >= TRAILER;
            entry.store(if left { *size - TRAILER as u16 } else { 0 }, Relaxed);
        }
    }
}

/// # Safety
/// As [`learn`].
unsafe fn size_of_block(request: usize) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let p = calls::malloc(request);
        if p.is_null() {
            return 0;
        }
        let size = calls::malloc_usable_size(p);
        calls::free(p);
        size
    }
}
