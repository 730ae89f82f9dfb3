//! Sums over all spans, with each span's resident pages. tcmalloc's own records (spans, leaves, caches) lie between the
//! spans, in blocks of 8 MiB without a header. So memory near such a record that is in no span counts as records.

use std::collections::BTreeMap;

use super::caches::{self, Central};
use super::pagemap::{self, Pagemap, SPAN, Span, SpanState, Totals};
use super::sizes::{self, BlockSizes};
use crate::source::heap_data::{Anonymous, Data, joined};
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates};

/// Maximum number of leaf pages read: the leaves of 4 TiB of heap.
const LEAF_PAGES: usize = 1 << 20;
/// tcmalloc allocates memory for its records in blocks of this size (kMetadataAllocChunkSize).
const CHUNK: u64 = 8 << 20;

/// Why the heap can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    NoTable,
    OtherSums,
    NoSizes,
    Unreadable,
}

impl WalkError {
    pub const fn reason(self) -> &'static str {
        match self {
            WalkError::NoTable => "no table from pages to spans was found in its data",
            WalkError::OtherSums => "the sums over its spans differ from its own counters",
            WalkError::NoSizes => "no table of block sizes that its spans agree with was found in its data",
            WalkError::Unreadable => "its records can't be read",
        }
    }
}

/// What could not be read in a readable heap, and the effect on the figures.
pub(crate) type Unread = (&'static str, &'static str);

const NO_THREAD_CACHES: Unread = (
    "tcmalloc's thread caches were not found",
    "free blocks that threads keep (32 MiB at most by default) count as live",
);
const NO_TRANSFER_CACHES: Unread = (
    "tcmalloc's transfer caches were not found",
    "free blocks between threads (1 MiB a size class at most) count as live",
);

pub fn walk<M: Memory>(
    memory: &M,
    data: &[Data],
    anonymous: &Anonymous,
) -> Result<(OtherHeap, Option<Unread>), WalkError> {
    let mut pages = PageStates::new(memory);
    let mut result = Err(WalkError::NoTable);
    let mut budget = LEAF_PAGES;
    let mut states = PageStates::new(memory);
    pagemap::search(memory, &mut pages, data, anonymous, |pagemap| {
        result = match pagemap.spans(memory, &mut states, anonymous, &mut budget) {
            Some(spans) if pagemap.states(totals(&spans)) => heap_of(memory, data, anonymous, &pagemap, &spans),
            Some(_) => Err(WalkError::OtherSums),
            None => Err(WalkError::Unreadable),
        };
        result.is_ok()
    });
    result
}

fn totals(spans: &[Span]) -> Totals {
    let sum = |states: &[SpanState]| {
        let of = spans.iter().filter(|span| states.contains(&span.state));
        of.map(|span| span.range.length().0).sum()
    };
    Totals {
        all: sum(&[SpanState::InUse, SpanState::Free, SpanState::Returned]),
        free: sum(&[SpanState::Free]),
        returned: sum(&[SpanState::Returned]),
    }
}

#[derive(Clone, Copy, Default)]
struct Class {
    length: Bytes,
    resident: Bytes,
    /// Blocks that are in no central list.
    blocks: u64,
    central: Central,
}

fn heap_of<M: Memory>(
    memory: &M,
    data: &[Data],
    anonymous: &Anonymous,
    pagemap: &Pagemap,
    spans: &[Span],
) -> Result<(OtherHeap, Option<Unread>), WalkError> {
    let sizes = sizes::find(data, spans).ok_or(WalkError::NoSizes)?;
    let mut heap = OtherHeap::new(AllocatorKind::Tcmalloc);
    let mut pages = PageStates::new(memory);
    let mut classes = vec![Class::default(); sizes.bytes.len()];
    for span in spans {
        let (length, resident) = (span.range.length(), pages.resident(span.range));
        match (span.state, usize::from(span.class)) {
            (SpanState::Free, _) => heap.add(HeapPart::Dirty, length, resident),
            (SpanState::Returned, _) => heap.add(HeapPart::Released, length, resident),
            (SpanState::InUse, 0) => heap.add(HeapPart::Live, length, resident),
            (SpanState::InUse, class) => match classes.get_mut(class) {
                Some(class_of) => {
                    let capacity = length.0 / sizes.bytes[class];
                    class_of.length += length;
                    class_of.resident += resident;
                    class_of.blocks += span.blocks.min(capacity);
                    class_of.central.spans += 1;
                    class_of.central.free += capacity.saturating_sub(span.blocks);
                }
                None => heap.add(HeapPart::Unknown, length, resident),
            },
        }
    }
    let unread = add_small(memory, data, anonymous, &sizes, &classes, &mut heap);
    heap.ranges = joined(spans.iter().map(|span| span.range));
    let leaves = pagemap.leaves.values().map(|leaf| (*leaf, pagemap.leaf_bytes()));
    let records = spans.iter().map(|span| (span.record, SPAN as u64));
    for range in around(leaves.chain(records), anonymous, &heap.ranges) {
        heap.add(HeapPart::Records, range.length(), pages.resident(range));
        heap.ranges.push(range);
    }
    heap.ranges.sort_unstable();
    heap.ranges = joined(heap.ranges);
    if pages.readable { Ok((heap, unread)) } else { Err(WalkError::Unreadable) }
}

/// Spans of small blocks: live, cached, and free ones.
fn add_small<M: Memory>(
    memory: &M,
    data: &[Data],
    anonymous: &Anonymous,
    sizes: &BlockSizes,
    classes: &[Class],
    heap: &mut OtherHeap,
) -> Option<Unread> {
    let central: Vec<Central> = classes.iter().map(|class| class.central).collect();
    let threads = caches::of_threads(memory, data, anonymous, sizes);
    let transfers = caches::of_transfers(data, sizes, &central);
    for (number, class) in classes.iter().enumerate() {
        let of = |caches: &Option<Vec<u64>>| {
            caches.as_ref().and_then(|caches| caches.get(number).copied()).unwrap_or_default()
        };
        let cached = of(&threads).saturating_add(of(&transfers)).min(class.blocks);
        let size = sizes.bytes[number];
        let (live, cached) = (Bytes((class.blocks - cached) * size), Bytes(cached * size));
        let part = |bytes: Bytes| class.resident.scaled(bytes.0, class.length.0);
        let beside = (class.length - live - cached, class.resident - part(live) - part(cached));
        for (kind, (length, resident)) in [
            (HeapPart::Live, (live, part(live))),
            (HeapPart::Cached, (cached, part(cached))),
            (HeapPart::Beside, beside),
        ] {
            heap.add(kind, length, resident);
        }
    }
    match (threads, transfers) {
        (None, _) => Some(NO_THREAD_CACHES),
        (_, None) => Some(NO_TRANSFER_CACHES),
        _ => None,
    }
}

/// Anonymous memory near these records and outside all spans, joined.
fn around(
    records: impl Iterator<Item = (u64, u64)>,
    anonymous: &Anonymous,
    spans: &[AddressRange],
) -> Vec<AddressRange> {
    /// Records by the mebibyte in which they begin: the first start and the last end.
    const UNIT: u64 = 1 << 20;
    let mut units: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (start, length) in records {
        let (first, last) = units.entry(start / UNIT).or_insert((start, start));
        (*first, *last) = ((*first).min(start), (*last).max(start + length));
    }
    let mut ranges = Vec::new();
    for (first, last) in units.into_values() {
        let Some(whole) = anonymous.around(first) else { continue };
        let after = spans.partition_point(|span| span.end.0 <= first);
        let below = after.checked_sub(1).map_or(whole.start, |before| spans[before].end.max(whole.start));
        let above = spans.get(after).map_or(whole.end, |next| next.start.min(whole.end));
        let start = below.0.max(first.saturating_sub(CHUNK)) / PAGE * PAGE;
        let end = above.0.min(last.saturating_add(CHUNK)) / PAGE * PAGE;
        if start <= first && first < end {
            ranges.push(AddressRange::new(Avma(start), Avma(end)));
        }
    }
    ranges.sort_unstable();
    joined(ranges)
}
