//! The books of mappings: who may write the map of [`super::vmas`], in which order, and the mappings from before an
//! attach.

use crate::segment::Segment;
use core::sync::atomic::Ordering::Relaxed;
use plimsoll_segment::CALLER_SITE;

pub mod attachments;
pub mod books;
mod combining_lock;
pub mod existing;
pub mod own_memory;
pub mod readable;
mod sync;

/// Counts a mapping call of this site. The next call of the same site may replace the mapping (a native image's heap
/// chunks), so the map alone doesn't show the number of calls.
pub fn count_mapping(segment: Segment, index: u32, bytes: u64) {
    if segment.caller(index).flags.load(Relaxed) & CALLER_SITE != 0 {
        count_of_site(segment, index, bytes);
    }
}

/// As [`count_mapping`], where it is known that this is a site and not only a caller.
#[inline(always)]
pub fn count_of_site(segment: Segment, index: u32, bytes: u64) {
    let c = segment.caller(index);
    c.frames[1].fetch_add(1, Relaxed);
    c.frames[2].fetch_add(bytes, Relaxed);
}
