//! How many bytes an allocator other than glibc's gives for a small request, queried when the tracker starts.
//!
//! ```text
//! SIZES      one entry of 2 B for each request below 4 KiB
//!            even     bytes in front of the trailer, which lies in the last eight bytes that malloc_usable_size would
//!                     report; the real malloc gets ADDED_BYTES more than the request
//!            odd      bit 1 set: the class of the block's page, whose array has the key ([`page_keys`])
//!                     bit 1 clear: the usable bytes + 1; no eight bytes are left behind the request, so the key goes
//!                     to the side table
//!            65,533   call malloc_usable_size for this block
//! ```
//!
//! An entry saves the call of malloc_usable_size after malloc; `free` makes that call, and its result shows where the
//! trailer lies. The entry and the call must give the same place. jemalloc and gperftools' tcmalloc choose a size by
//! the request alone, except for the few blocks that their own profilers sample. These blocks have pages of their own,
//! and most begin at the start of a page. So malloc_usable_size is called for a block at the start of a page, whatever
//! its entry says. The exception is a page whose word says that the page has blocks of that size. mimalloc's builds
//! without padding and without guard pages behind blocks choose by the request alone. Nothing is known about other
//! allocators: over these, each entry is 65,533.
//!
//! # Requests are enlarged over mimalloc only
//!
//! A program may pass the requested size to the release. jemalloc's `sdallocx` and tcmalloc's `tc_free_sized` believe
//! it, and would put a block of the next size into the wrong list. mimalloc's `mi_free_size` looks at the block. So
//! over mimalloc, each request that leaves fewer than eight bytes is enlarged, unless the next size is much larger
//! ([`most_added`]).

use super::blocks::{self, OTHER_BELOW, TRAILER};
use super::side_table::page_keys;
use crate::segment::small_requests_below;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering::Relaxed};
use plimsoll_segment::Allocator;

/// Sizes are multiples of this.
const STEP: usize = 8;
/// The entry where nothing is known: malloc_usable_size is called. Odd, as are the entries without a trailer
/// ([`WITHOUT_TRAILER`]).
pub const QUERY: u16 = u16::MAX - 2;
/// Bit of an entry whose requests get no trailer.
pub const WITHOUT_TRAILER: u16 = 1;
/// Bit of such an entry whose requests have their keys in arrays of their pages.
pub const IN_PAGE: u16 = 2;
/// More sizes than any allocator has below 4 KiB. An allocator that pads its blocks (mimalloc's debug build) has a size
/// for each request.
const MOST_SIZES: usize = 128;
/// How many bytes a trailer may add to a block. Programs that allocate many blocks of one size often choose a size of
/// the allocator (512, 1,024).
pub const fn most_added(is_a_size: bool) -> usize {
    if is_a_size { 16 } else { 64 }
}

/// See the module comment. The entry of `malloc(0)` is always [`QUERY`].
pub static SIZES: [AtomicU16; OTHER_BELOW] = [const { AtomicU16::new(QUERY) }; OTHER_BELOW];
/// See the module comment. Set once: a hook that has read an entry must find the same number.
pub static ADDED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// malloc_usable_size is called for a block whose address has none of these bits set.
pub static QUERY_MASK: AtomicU32 = AtomicU32::new(4095);

/// Learns the sizes of this allocator. `size_of` returns the usable bytes for a request, 0 if they aren't known.
pub fn learn(allocator: u32, size_of: impl Fn(usize) -> usize) {
    let is = |known| known as u32 == allocator;
    let enlarged = is(Allocator::Mimalloc);
    if !enlarged && !is(Allocator::Jemalloc) && !is(Allocator::Tcmalloc) {
        return;
    }
    let mut sizes = [0u16; MOST_SIZES];
    let (mut known, mut request) = (0, 1);
    while request < OTHER_BELOW + TRAILER {
        let size = size_of(request);
        if known == MOST_SIZES || size < request || !size.is_multiple_of(STEP) || size >= QUERY as usize {
            return;
        }
        sizes[known] = size as u16;
        known += 1;
        request = size + 1;
    }
    if enlarged {
        ADDED_BYTES.store(TRAILER, Relaxed);
        QUERY_MASK.store(u32::MAX, Relaxed);
    }
    let in_pages = !enlarged && page_keys::enable(&sizes[..known]);
    if in_pages {
        blocks::small_keys_are_in_pages();
    }
    let mut at = 0;
    for (n, entry) in SIZES.iter().enumerate().skip(1) {
        if (sizes[at] as usize) < n {
            at += 1;
        }
        let (size, next) = (sizes[at], if at + 1 < known { sizes[at + 1] } else { u16::MAX });
        let left = if in_pages {
            page_keys::class_of(size as usize, n).unwrap_or(QUERY)
        } else if size as usize - n >= TRAILER {
            size - TRAILER as u16
        } else if enlarged && (next - size) as usize <= most_added(size as usize == n) {
            next - TRAILER as u16
        } else {
            size | WITHOUT_TRAILER
        };
        entry.store(left, Relaxed);
    }
}

/// Bytes to request from the allocator for a request of `n`, if blocks are booked.
#[inline(always)]
pub fn real_request(n: usize) -> usize {
    if n < small_requests_below() && SIZES[n].load(Relaxed) & WITHOUT_TRAILER == 0 {
        n + ADDED_BYTES.load(Relaxed)
    } else {
        n
    }
}
