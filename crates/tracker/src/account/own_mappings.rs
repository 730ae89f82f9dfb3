//! The list of the tracker's own private mappings, in the segment. Without it, an observer would count them as the
//! program's.

use crate::segment::{Segment, WIPED, WipedOnFork};
use crate::sys::os::{self, Mapping};
use core::sync::atomic::Ordering::*;
use plimsoll_segment::{Purpose, Section};

/// Lists the mappings made so far, and each later one. A mapping that another thread makes meanwhile may be listed
/// twice.
pub fn init(segment: Segment) -> bool {
    os::on_mapping(|mapping| {
        if let Some(segment) = Segment::mapped() {
            list(segment, mapping);
        }
    });
    list_all(segment);
    true
}

/// In a fork child: lists the mappings that existed at fork(). The parent's list may have later ones already.
pub fn reset_after_fork(child: Segment) {
    child.section(Section::Own).used.store(0, Relaxed);
    list_all(child);
}

fn list_all(segment: Segment) {
    // MADV_WIPEONFORK makes the page a mapping of its own, beside the rest of .bss.
    list(
        segment,
        Mapping { start: &raw const WIPED as usize, bytes: size_of::<WipedOnFork>(), purpose: Purpose::Data },
    );
    os::each_mapping(|mapping| list(segment, mapping));
}

/// Notes that the end of a mapping was unmapped.
pub fn shorten(to: Mapping) {
    let Some(segment) = Segment::mapped() else { return };
    let entries = (0..segment.used(Section::Own) as u32).map(|i| segment.own_mapping(i));
    for entry in entries.filter(|entry| entry.start.load(Relaxed) == to.start as u64) {
        entry.bytes.store(to.bytes as u64, Release);
    }
}

/// Without headroom in the file the mapping is not listed. An observer may still know it by its name in /proc/PID/maps.
fn list(segment: Segment, of: Mapping) {
    if let Some(i) = segment.append(Section::Own) {
        let entry = segment.own_mapping(i);
        entry.start.store(of.start as u64, Relaxed);
        entry.purpose.store(of.purpose as u32, Relaxed);
        entry.bytes.store(of.bytes as u64, Release);
    }
}
