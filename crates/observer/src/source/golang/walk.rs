//! Sums over all spans and all free pages, with the resident pages of each.

use super::pacer::{self, Totals};
use super::pages::{self, Free, Pages};
use super::records;
use super::spans::{self, Spans, State};
use crate::source::heap_data::{Anonymous, Data, joined};
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Bytes};
use plimsoll_process::proc::memory::{Memory, PageStates};

/// Why the heap can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    NoPages,
    NoSpans,
    OtherSums,
    Unreadable,
}

impl WalkError {
    pub const fn reason(self) -> &'static str {
        match self {
            WalkError::NoPages => "no page allocator of Go 1.21 or later was found in its data",
            WalkError::NoSpans => "no list of spans was found in its data",
            WalkError::OtherSums => "the sums over its spans and free pages differ from its own counters",
            WalkError::Unreadable => "its records can't be read",
        }
    }
}

/// Where the runtime's memory may lie.
pub struct GoMappings {
    /// All anonymous memory, accessible or not.
    pub anonymous: Anonymous,
    /// The writable part of `anonymous`. Only that part of a reservation is counted.
    pub writable: Anonymous,
    /// Mappings that the runtime has named, except the heap's (Go 1.25 and later, if the kernel supports names).
    pub named: Vec<AddressRange>,
}

pub fn walk<M: Memory>(memory: &M, data: &[Data], mappings: &GoMappings) -> Result<OtherHeap, WalkError> {
    let mut result = Err(WalkError::NoPages);
    for part in data {
        for first in pages::candidates(part) {
            let Some(pages) = pages::read(memory, part, first, &mappings.anonymous) else { continue };
            result = match spans::find(memory, part, &pages, &mappings.anonymous) {
                Some(spans) => heap_of(memory, data, mappings, pages, &spans),
                None => Err(WalkError::NoSpans),
            };
            if result.is_ok() {
                return result;
            }
        }
    }
    result
}

fn heap_of<M: Memory>(
    memory: &M,
    data: &[Data],
    mappings: &GoMappings,
    mut pages: Pages,
    spans: &Spans,
) -> Result<OtherHeap, WalkError> {
    let mut heap = OtherHeap::new(AllocatorKind::Go);
    let mut states = PageStates::new(memory);
    let mut totals = Totals::default();
    for span in &spans.all {
        // If a span was created after the bits of its pages were read, these pages count by their bits.
        if !pages.take(span.start, span.pages) {
            continue;
        }
        let (length, resident) = (span.range().length(), states.resident(span.range()));
        match span.state {
            State::Objects => {
                let live = (Bytes(span.live), resident.scaled(span.live, length.0));
                heap.add(HeapPart::Live, live.0, live.1);
                heap.add(HeapPart::Beside, length - live.0, resident - live.1);
                totals.in_spans += length.0;
            }
            State::Stacks => heap.add(HeapPart::Stacks, length, resident),
            State::WorkBuffers => heap.add(HeapPart::Records, length, resident),
        }
    }
    for (range, free) in pages.runs() {
        let (length, resident) = (range.length(), states.resident(range));
        match free {
            Free::Kept => {
                heap.add(HeapPart::Dirty, length, resident);
                totals.free += length.0;
            }
            // MADV_FREE leaves these pages resident, and so does a huge page that contains them.
            Free::GivenBack => {
                heap.add(HeapPart::Muzzy, resident, resident);
                heap.add(HeapPart::Released, length - resident, Bytes(0));
                totals.given_back += length.0;
            }
            Free::Cached => {
                heap.add(HeapPart::Cached, length, resident);
                totals.cached += length.0;
            }
        }
    }
    heap.pace = Some(pacer::states(memory, data, totals).ok_or(WalkError::OtherSums)?);
    heap.ranges.clone_from(&pages.in_use);
    let found = records::find(memory, data, &pages, spans, &mappings.anonymous);
    heap.has_records = found.is_whole;
    for range in accessible(found.ranges, mappings, &pages.in_use) {
        heap.add(HeapPart::Records, range.length(), states.resident(range));
        heap.ranges.push(range);
    }
    heap.ranges.sort_unstable();
    heap.ranges = joined(heap.ranges);
    if states.readable { Ok(heap) } else { Err(WalkError::Unreadable) }
}

/// The writable parts of these ranges and of the named mappings, without the heap. The heap's ranges are sorted and
/// disjoint, and so is the result.
fn accessible(mut ranges: Vec<AddressRange>, mappings: &GoMappings, heap: &[AddressRange]) -> Vec<AddressRange> {
    ranges.extend(&mappings.named);
    ranges.sort_unstable();
    let ranges = joined(ranges);
    let of_writable = |range: &AddressRange| {
        let first = mappings.writable.0.partition_point(|writable| writable.end <= range.start);
        let range = *range;
        let within = mappings.writable.0[first..].iter().take_while(move |writable| writable.start < range.end);
        within.map(move |writable| writable.intersection(range)).collect::<Vec<_>>()
    };
    let mut free = Vec::new();
    for mut range in ranges.iter().flat_map(of_writable) {
        let (first, end) = (heap.partition_point(|taken| taken.end <= range.start), range.end);
        for taken in heap[first..].iter().take_while(|taken| taken.start < end) {
            free.push(AddressRange::new(range.start, taken.start.max(range.start)));
            range = AddressRange::new(taken.end.min(range.end), range.end);
        }
        free.push(range);
    }
    free.retain(|range| !range.is_empty());
    free
}
