//! Finds the segments and adds them up. The rest of an arena, outside its segments, is free memory, and so are segments
//! that were given back. Both stay resident until mimalloc purges them.

use std::collections::BTreeMap;

use super::segment::Segment;
use super::shape::{HEADER, SLICE, Shape};
use crate::source::heap_data::{Anonymous, Data, joined, words};
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, without};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates};

/// Segments begin at multiples of this; before 2.0.9, at every other multiple.
const ALIGNMENT: u64 = 32 << 20;
/// Limit of addresses that are examined: 32 TiB of anonymous memory.
const MOST_ADDRESSES: usize = 1 << 20;
/// Number of headers that are searched for a shape.
const TESTED: usize = 512;
/// Limit of blocks that are followed in the lists of blocks that other threads freed.
const MOST_LINKS: u64 = 1 << 22;
/// Percentage of pages whose fields must agree: the target may change a page while it is read.
const SOUND_AT_LEAST: usize = 90;
/// One in this many segments may contradict itself, because the target keeps running.
const TORN_AT_MOST: usize = 16;
const MOST_ARENA_BLOCKS: u64 = 1 << 20;

/// Why the heap can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    NoSegments,
    NoSecret,
    OtherSums,
    Unreadable,
}

impl WalkError {
    pub const fn reason(self) -> &'static str {
        match self {
            WalkError::NoSegments => "no segment of mimalloc 2 was found (versions 1 and 3 have another layout)",
            WalkError::NoSecret => "the secret of its segments is not in its data",
            WalkError::OtherSums => "the sums over its slices differ from the counters in its segments",
            WalkError::Unreadable => "its records can't be read",
        }
    }
}

/// What could not be read in a readable heap, and the effect on the figures.
pub(crate) type Unread = (&'static str, &'static str);

const NO_ARENAS: Unread = (
    "the size of one of mimalloc's arenas was not found",
    "its free memory outside of segments counts as other-anonymous",
);

/// Searches for segments in the `touched` part of anonymous memory. Reads `data` only if there are segments.
pub fn walk<M: Memory>(
    memory: &M,
    data: impl FnOnce() -> Vec<Data>,
    anonymous: &Anonymous,
    touched: &Anonymous,
) -> Result<(OtherHeap, Option<Unread>), WalkError> {
    let mut pages = PageStates::new(memory);
    let headers = headers(&mut pages, touched);
    let shapes = shapes(&mut pages, &headers);
    if shapes.is_empty() {
        return Err(WalkError::NoSegments);
    }
    let data = data();
    let mut result = Err(WalkError::NoSecret);
    for (shape, secret) in shapes {
        if data.iter().any(|data| words(&data.bytes).any(|word| word == secret)) {
            result = heap_of(memory, &data, anonymous, &headers, &shape, secret);
            if result.is_ok() {
                break;
            }
        }
    }
    result
}

/// The first bytes at each address where a segment may begin.
fn headers<M: Memory>(pages: &mut PageStates<'_, M>, touched: &Anonymous) -> Vec<(u64, Vec<u8>)> {
    let first = |range: &AddressRange| range.start.0.next_multiple_of(ALIGNMENT);
    let all = touched.0.iter().flat_map(|range| (first(range)..range.end.0).step_by(ALIGNMENT as usize));
    let mut headers = Vec::new();
    for base in all.take(MOST_ADDRESSES).filter(|base| touched.holds(*base, HEADER as u64)) {
        // Reading an untouched page would make the kernel map one.
        if pages.of(base / PAGE) != PageState::Absent {
            let header = pages.read(AddressRange::sized(Avma(base), Bytes(HEADER as u64)));
            headers.extend(header.map(|header| (base, header)));
        }
    }
    headers
}

/// The shapes that segments agree on, with their secret; the shape with the most pages comes first.
fn shapes<M: Memory>(pages: &mut PageStates<'_, M>, headers: &[(u64, Vec<u8>)]) -> Vec<(Shape, u64)> {
    let mut found: BTreeMap<(Shape, u64), (usize, usize)> = BTreeMap::new();
    let mut tested = 0;
    for (base, header) in headers {
        let shapes = Shape::of(*base, header);
        tested += usize::from(!shapes.is_empty());
        if tested > TESTED {
            break;
        }
        for shape in shapes {
            if let Some(segment) = Segment::read(pages, *base, &shape) {
                let (sound, all) = found.entry((shape, segment.header.secret)).or_default();
                *sound += segment.sound;
                *all += segment.pages.len();
            }
        }
    }
    found.retain(|_, (sound, all)| *sound > 0 && *sound * 100 >= *all * SOUND_AT_LEAST);
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(_, (sound, _))| std::cmp::Reverse(*sound));
    found.into_iter().map(|(found, _)| found).collect()
}

fn heap_of<M: Memory>(
    memory: &M,
    data: &[Data],
    anonymous: &Anonymous,
    headers: &[(u64, Vec<u8>)],
    shape: &Shape,
    secret: u64,
) -> Result<(OtherHeap, Option<Unread>), WalkError> {
    let mut heap = OtherHeap::new(AllocatorKind::Mimalloc);
    let mut pages = PageStates::new(memory);
    let mut budget = MOST_LINKS;
    let (mut end, mut segments, mut torn) = (0, 0, 0);
    let (mut held, mut free) = (Vec::new(), Vec::new());
    let mut arenas = BTreeMap::new();
    for (base, header) in headers {
        let Some(stated) = shape.header(*base, header).filter(|header| header.secret == secret) else { continue };
        // A large block may contain the header of a former segment.
        if *base < end || !anonymous.holds(*base, stated.slices * SLICE) {
            continue;
        }
        segments += 1;
        if let Some(start) = shape.arena(*base, header) {
            arenas.entry(start).or_insert(None);
        }
        let read = (0..2).find_map(|_| Segment::read(&mut pages, *base, shape));
        match read.filter(|segment| segment.header.secret == secret) {
            Some(segment) if segment.header.used == 0 => free.push(segment.range()),
            Some(segment) if anonymous.holds(*base, segment.range().length().0) => {
                end = segment.range().end.0;
                held.push(segment.range());
                add(memory, &mut pages, &segment, &mut budget, &mut heap);
            }
            _ => {
                torn += 1;
                let range = AddressRange::sized(Avma(*base), Bytes(stated.slices * SLICE));
                end = range.end.0;
                held.push(range);
                heap.add(HeapPart::Unknown, range.length(), pages.resident(range));
            }
        }
    }
    if segments == torn || torn * TORN_AT_MOST > segments {
        return Err(WalkError::OtherSums);
    }
    find_lengths(data, anonymous, shape.slices * SLICE, &mut arenas);
    free.extend(arenas.iter().filter_map(|(start, length)| Some(AddressRange::sized(Avma(*start), (*length)?))));
    free.sort_unstable();
    let free = without(&joined(free), &held);
    for range in &free {
        add_free(&mut pages, *range, &mut heap);
    }
    heap.ranges = held;
    heap.ranges.extend(free);
    heap.ranges.sort_unstable();
    heap.ranges = joined(heap.ranges);
    let unread = arenas.values().any(Option::is_none).then_some(NO_ARENAS);
    if pages.readable { Ok((heap, unread)) } else { Err(WalkError::Unreadable) }
}

fn add<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    segment: &Segment,
    budget: &mut u64,
    heap: &mut OtherHeap,
) {
    let mut rest = (segment.range().length(), pages.resident(segment.range()));
    let mut add = |heap: &mut OtherHeap, part, length: Bytes, resident: Bytes| {
        rest = (rest.0 - length, rest.1 - resident);
        heap.add(part, length, resident);
    };
    let mut free = segment.free.clone();
    for page in &segment.pages {
        let live = page.live(memory, budget);
        if live == Bytes(0) {
            free.push(page.range);
            continue;
        }
        // After the blocks that were ever handed out, nothing is live.
        let (all, extended) = (pages.resident(page.range), page.extended());
        let resident = pages.resident(extended).scaled(live.0.min(extended.length().0), extended.length().0);
        add(heap, HeapPart::Live, live, resident);
        add(heap, HeapPart::Beside, page.range.length() - live, all - resident);
    }
    for range in free {
        let resident = pages.resident(range);
        add(heap, HeapPart::Dirty, resident, resident);
        add(heap, HeapPart::Released, range.length() - resident, Bytes(0));
    }
    // The header and the records, and guards of a secure build.
    heap.add(HeapPart::Records, rest.0, rest.1);
}

fn add_free<M: Memory>(pages: &mut PageStates<'_, M>, range: AddressRange, heap: &mut OtherHeap) {
    let resident = pages.resident(range);
    heap.add(HeapPart::Dirty, resident, resident);
    heap.add(HeapPart::Released, range.length() - resident, Bytes(0));
}

/// An arena's own record (mi_arena_t) has the arena's start, then its length in blocks. The first arenas have their
/// records in the data.
fn find_lengths(data: &[Data], anonymous: &Anonymous, block: u64, arenas: &mut BTreeMap<u64, Option<Bytes>>) {
    for Data { bytes, .. } in data {
        let mut before = 0;
        for word in words(bytes) {
            if let Some(length) = arenas.get_mut(&before).filter(|length| length.is_none())
                && (1..=MOST_ARENA_BLOCKS).contains(&word)
                && anonymous.holds(before, word * block)
            {
                *length = Some(Bytes(word * block));
            }
            before = word;
        }
    }
}
