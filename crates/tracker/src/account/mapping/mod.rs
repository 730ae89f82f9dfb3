//! The books of mappings: who may write the map of [`super::vmas`], in which order, and what was mapped before the tracker came.

use crate::segment::Segment;
use core::sync::atomic::Ordering::Relaxed;
use plimsoll_segment::CALLER_SITE;

pub mod books;
pub mod existing;
mod sync;
mod turns;

/// A mapping was made by this site. A mapping may be replaced by the next call of the same site (a native image's heap
/// chunks are), so the map alone can't tell how many calls there were.
pub fn count_mapping(segment: Segment, index: u32, bytes: u64) {
    let c = segment.caller(index);
    if c.flags.load(Relaxed) & CALLER_SITE != 0 {
        c.frames[1].fetch_add(1, Relaxed);
        c.frames[2].fetch_add(bytes, Relaxed);
    }
}
