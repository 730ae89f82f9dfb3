//! A segment over anonymous memory, with the tables that boot makes, and sums over its rows.

use plimsoll_segment::{Counter, FILE_BYTES, Purpose, SLOT_SHARED, Section};
use plimsoll_tracker::account::{rows, samples, thread};
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::segment::books::MayBook;
use plimsoll_tracker::segment::categories;
use plimsoll_tracker::stack::{callers, frames};
use plimsoll_tracker::sys::os;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

/// A segment as boot leaves it, without the file.
pub fn fresh() -> Segment {
    let base = os::table(FILE_BYTES, Purpose::Data).expect("address space");
    // SAFETY: a zeroed writable mapping of that size, never unmapped.
    let segment = unsafe { Segment::at(base as usize) };
    begin(segment);
    segment
}

/// The right to book: in these tests no hook runs in the same thread.
pub fn books(segment: Segment) -> MayBook<'static> {
    // SAFETY: the threads of these tests enter no hook while they use it.
    unsafe { MayBook::of(segment) }
}

/// Makes the tables of new books.
pub fn begin(segment: Segment) {
    segment.header().composition.store(2, Relaxed);
    assert!(segment.populate_start() && thread::init() && categories::init(segment) && callers::init(segment));
    assert!(rows::init(books(segment)) && frames::init() && samples::init());
    assert_eq!(segment.append(Section::Threads), Some(SLOT_SHARED));
}

/// Resident bytes of the pages that a mapping lies on.
pub fn touched(of: os::Mapping) -> usize {
    let (from, to) = (of.start & !4095, (of.start + of.bytes).next_multiple_of(4096));
    let mut pages = vec![0u8; (to - from) / 4096];
    // SAFETY: mapped pages, and a byte for each of them.
    assert_eq!(unsafe { libc::mincore(from as *mut libc::c_void, to - from, pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 != 0).count() * 4096
}

/// Resident bytes of the side table and of the arrays of pages.
pub fn of_tables() -> usize {
    let mut bytes = 0;
    os::each_mapping(|of| bytes += if of.purpose == Purpose::SideTable { touched(of) } else { 0 });
    bytes
}

/// A header counter.
pub fn counter(segment: Segment, c: Counter) -> u64 {
    segment.header().values[c as usize].load(Relaxed)
}

/// A caller's figures in the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub alloc_count: u64,
    pub alloc_bytes: u64,
    pub alloc_requested: u64,
    pub free_count: u64,
    pub free_bytes: u64,
    pub free_requested: u64,
}

/// Σ rows by caller, read by the reader algorithm: all freed figures first.
pub fn by_caller(segment: Segment) -> BTreeMap<u32, Sums> {
    let mut sums = BTreeMap::<u32, Sums>::new();
    for freed in [true, false] {
        // The number of rows is read again: a newer row may have allocated what an old one has freed.
        for i in 0..segment.used(Section::Rows) as u32 {
            let row = books(segment).row(i);
            if row.slot.load(Acquire) == 0 {
                continue;
            }
            let s = sums.entry(row.caller.load(Relaxed)).or_default();
            if freed {
                s.free_count += row.free_count.load(Acquire);
                s.free_bytes += row.free_bytes.load(Acquire);
                s.free_requested += row.free_requested.load(Acquire);
            } else {
                s.alloc_count += row.alloc_count.load(Acquire);
                s.alloc_bytes += row.alloc_bytes.load(Acquire);
                s.alloc_requested += row.alloc_requested.load(Acquire);
            }
        }
    }
    sums.retain(|_, s| *s != Sums::default());
    sums
}
