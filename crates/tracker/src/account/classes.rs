//! What an allocator other than glibc's gives for a small request, learned from it when the tracker starts.
//!
//! ```text
//! LEFT       one entry of 2 B for each 8 B of request, up to 4 KiB
//!            even     bytes in front of the trailer, which lies in the last eight bytes that malloc_usable_size would report
//!            odd      the usable bytes + 1: no eight bytes are left behind the request, so the key goes to the side table
//!            65,535   ask malloc_usable_size of this block
//! ```
//!
//! Requests of one entry differ by at most seven bytes, and sizes are multiples of eight. So all of them leave eight bytes, or
//! none does.
//!
//! An entry saves the call of malloc_usable_size after malloc; `free` makes that call and finds the trailer by it. Both must give
//! the same place. jemalloc and gperftools' tcmalloc choose a size by the request alone, except for the few blocks that their own
//! profilers sample: these begin at a page. So malloc_usable_size is called for a block at the start of a page, whatever its entry
//! says. mimalloc in its guarded builds puts some blocks against a guard page, and nothing is known about other allocators: there
//! each entry is 65,535.

use super::blocks::{OTHER_BELOW, TRAILER};
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};
use plimsoll_segment::Allocator;

/// Bytes of request for one entry.
pub const STEP: usize = 8;
/// The entry that says nothing. Odd, as are the entries without a trailer ([`TABLE`]).
pub const ASK: u16 = u16::MAX;
/// Bit of an entry whose requests leave no space for a trailer.
pub const TABLE: u16 = 1;
/// More sizes than any allocator has below 4 KiB. One that pads its blocks (mimalloc's debug build) has one for each request.
const MOST: usize = 128;

/// See the module comment. The first entry, of `malloc(0)`, always says: ask.
pub static LEFT: [AtomicU16; OTHER_BELOW / STEP + 1] = [const { AtomicU16::new(ASK) }; OTHER_BELOW / STEP + 1];

/// Learns the sizes of this allocator. `size_of` returns the usable bytes for a request, 0 if they aren't known.
pub fn learn(allocator: u32, size_of: impl Fn(usize) -> usize) {
    if ![Allocator::Jemalloc, Allocator::Tcmalloc].map(|known| known as u32).contains(&allocator) {
        return;
    }
    let mut sizes = [0u16; MOST];
    let (mut known, mut request) = (0, 1);
    while request < OTHER_BELOW {
        let size = size_of(request);
        if known == MOST || size < request || !size.is_multiple_of(STEP) || size >= ASK as usize {
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
            entry.store(if left { *size - TRAILER as u16 } else { *size | TABLE }, Relaxed);
        }
    }
}
