//! Heaps built word by word, and the sums that the walk must find. The fields of the records are in the orders of
//! several versions, and in random orders.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::layout::ALIGNMENT;
use super::{WalkError, walk};
use crate::random::Random;
use crate::source::made_image::Image;
use plimsoll_facts::snapshot::{ArrayBuffers, Backing, HeapPart, OtherHeap, PartBytes, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE};

const START: u64 = 0x2a_0000_0000;
/// Spaces, heaps and records that lie outside the pages.
const RECORDS: u64 = 0x7000_0000;
const ISOLATES: u64 = 0x7800_0000;
const SWEEPERS: u64 = 0x7c00_0000;
const RECORD: u64 = 40 * 8;

/// Index of each field, in words.
#[derive(Clone, Copy, Debug)]
struct Order {
    behind: bool,
    flags: u64,
    size: u64,
    heap: u64,
    start: u64,
    end: u64,
    allocated: u64,
    owner: u64,
    next: u64,
}

/// src/heap/memory-chunk-layout.h and src/heap/memory-chunk-metadata.h.
const V8_10: Order =
    Order { behind: false, flags: 1, size: 0, heap: 2, start: 3, end: 4, allocated: 5, owner: 8, next: 29 };
const V8_12: Order =
    Order { behind: false, flags: 0, size: 2, heap: 3, start: 4, end: 5, allocated: 6, owner: 9, next: 33 };
const V8_13: Order =
    Order { behind: true, flags: 0, size: 6, heap: 8, start: 9, end: 7, allocated: 3, owner: 10, next: 33 };

/// The fields in a random order, which no version has.
fn any_order(random: &mut Random) -> Order {
    let behind = random.below(2) == 0;
    let first = if behind { 0 } else { 1 };
    let mut fields: Vec<u64> = (first + 3..14).collect();
    for index in (1..fields.len()).rev() {
        fields.swap(index, random.below(index as u64 + 1) as usize);
    }
    let [size, heap, start, end, owner] = std::array::from_fn(|index| fields[index]);
    Order { behind, flags: 0, size, heap, start, end, allocated: first, owner, next: 14 + random.below(24) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    From,
    To,
    Old,
    Large,
    Code,
    ReadOnly,
    Leaving,
}

struct Made {
    image: Image,
    vmas: Vec<Vma>,
    parts: BTreeMap<HeapPart, PartBytes>,
    ranges: u64,
    /// Addresses of the spaces' bytes committed.
    committed: Vec<u64>,
    buffers: ArrayBuffers,
    /// The large ones that start at a page.
    at_pages: Vec<AddressRange>,
    /// Addresses of the sums that the lists of array buffers state.
    stated: Vec<u64>,
}

/// The heaps of `isolates` isolates. Each has pages of every kind.
fn made(random: &mut Random, order: Order, isolates: u64) -> Made {
    let mut made = Made {
        image: Image::default(),
        vmas: Vec::new(),
        parts: BTreeMap::new(),
        ranges: 0,
        committed: Vec::new(),
        buffers: ArrayBuffers::default(),
        at_pages: Vec::new(),
        stated: Vec::new(),
    };
    let mut number = 0;
    for isolate in 0..isolates {
        let heap = ISOLATES + isolate * (1 << 20) + 0xc000 + random.below(0x800) * 8;
        let spaces = RECORDS + isolate * (1 << 20);
        let many = 6 + random.below(12);
        sweeper(random, &mut made, heap, SWEEPERS + isolate * (1 << 20));
        for (space, kind) in [Space::From, Space::To, Space::Old, Space::Large, Space::Code].into_iter().enumerate() {
            let whose = Whose { kind, heap, owner: spaces + space as u64 * 512 };
            one_space(random, &mut made, order, whose, many, &mut number);
        }
    }
    for kind in [Space::ReadOnly, Space::Leaving] {
        one_space(random, &mut made, order, Whose { kind, heap: 0, owner: 0 }, 1, &mut number);
    }
    let range = AddressRange::new(Avma(START), Avma(START + number * ALIGNMENT));
    let memory = |range, writable| Vma {
        range,
        writable,
        readable: true,
        backing: Backing::Anonymous,
        rss: Bytes(PAGE),
        ..Vma::default()
    };
    let at_end = |pages: u64| Avma(range.end.0 - pages * ALIGNMENT);
    made.vmas = vec![
        memory(AddressRange::new(range.start, at_end(2)), true),
        memory(AddressRange::new(at_end(2), at_end(1)), false),
        memory(AddressRange::new(at_end(1), range.end), true),
    ];
    made
}

/// A heap's array buffers: a list of young ones, which may be empty, and one of old ones. The fields have random
/// offsets.
fn sweeper(random: &mut Random, made: &mut Made, heap: u64, at: u64) {
    made.image.put(heap + (8 + random.below(1000)) * 8, at);
    made.image.put(at, heap);
    let (stride, next, shift) = (3 + random.below(2), 2 + random.below(5), random.below(2));
    let first = 2 + random.below(29);
    // A collection has swept the old ones.
    let has_job = random.below(2) == 1;
    if has_job {
        made.image.put(at + 8, at + 2048);
    }
    for (list, count) in [random.below(4), 2 + random.below(200)].into_iter().enumerate() {
        let begin = at + 4096 + list as u64 * (64 << 10);
        let each = |number: u64| begin + number * 72;
        let lengths: Vec<u64> = (0..count).map(|_| 1 + random.below(1 << 20)).collect();
        for (number, length) in (0..).zip(&lengths) {
            let following = if number + 1 < count { each(number + 1) } else { 0 };
            // Its store, which begins with a vtable or not, and the count of references to it.
            let store = begin + (32 << 10) + number * 128;
            let from = store + random.below(2) * 8;
            let (start, is_at_page) = (0x6000_0000_0000 + (begin << 12) + (number << 22), random.below(2) == 1);
            made.image.put(from, if is_at_page { start } else { start + 16 });
            made.image.put(from + 8, *length);
            if is_at_page && *length >= 64 << 10 {
                made.at_pages.push(AddressRange::sized(Avma(start), Bytes(*length)));
            }
            made.image.put(each(number) + (next - 2) * 8, store);
            made.image.put(each(number) + (next - 1) * 8, store - 16);
            made.image.put(each(number) + next * 8, following);
            made.image.put(each(number) + (next + 1) * 8, *length << shift);
        }
        let bytes: u64 = lengths.iter().sum();
        let fields = if count > 0 { [begin, each(count - 1), bytes] } else { [0; 3] };
        let holder = if list == 1 && has_job { at + 2048 } else { at };
        for (word, value) in (first + list as u64 * stride..).zip(fields) {
            made.image.put(holder + word * 8, value);
        }
        made.stated.push(holder + (first + list as u64 * stride + 2) * 8);
        made.buffers.count += count;
        made.buffers.bytes += Bytes(bytes);
    }
}

/// A space of a heap: all its pages are of one kind.
#[derive(Clone, Copy)]
struct Whose {
    kind: Space,
    /// 0: of no heap.
    heap: u64,
    owner: u64,
}

/// A page, and the area for objects in it.
#[derive(Clone, Copy)]
struct Chunk {
    at: u64,
    size: u64,
    start: u64,
    end: u64,
    allocated: u64,
}

impl Chunk {
    fn any(random: &mut Random, order: Order, kind: Space, (at, size): (u64, u64)) -> Chunk {
        let is_large = kind == Space::Large;
        let guard = if kind == Space::Code { PAGE } else { 0 };
        let start = at + order.header();
        let end = at + size - guard - if is_large { 8 * random.below(500) } else { 0 };
        let area = end - start;
        let is_full = is_large || matches!(kind, Space::From | Space::To);
        let allocated = if is_full { area } else { random.below(area / 8) * 8 };
        Chunk { at, size, start, end, allocated }
    }

    fn area(&self) -> u64 {
        self.end - self.start
    }
}

impl Order {
    /// Bytes before a page's area for objects.
    fn header(self) -> u64 {
        if self.behind { 16 } else { 0x1130 }
    }

    /// Address of the record of the page at `at`.
    fn record(self, at: u64) -> u64 {
        match self.behind {
            true => RECORDS + (1 << 24) + (at - START) / ALIGNMENT * RECORD,
            false => at,
        }
    }
}

fn one_space(random: &mut Random, made: &mut Made, order: Order, whose: Whose, many: u64, number: &mut u64) {
    let chunks: Vec<(u64, u64)> = (0..many)
        .map(|_| {
            let is_large = whose.kind == Space::Large;
            let size = if is_large { ALIGNMENT + (1 + random.below(100)) * PAGE } else { ALIGNMENT };
            let at = START + *number * ALIGNMENT;
            *number += size.div_ceil(ALIGNMENT);
            (at, size)
        })
        .collect();
    let current = random.below(many) as usize;
    let (mut all, mut allocated_in_all) = (0, 0);
    for (index, place) in chunks.iter().copied().enumerate() {
        let chunk = Chunk::any(random, order, whose.kind, place);
        let next = chunks.get(index + 1).map(|(next, _)| order.record(*next)).unwrap_or_default();
        let before = index.checked_sub(1).map(|before| order.record(chunks[before].0)).unwrap_or_default();
        put_record(made, order, whose, chunk, [next, before]);
        for page in chunk.at / PAGE..(chunk.at + chunk.size) / PAGE {
            if random.below(3) > 0 {
                made.image.touch(page);
            }
        }
        all += chunk.size;
        allocated_in_all += chunk.allocated;
        let live = live_bytes(random, made, whose, chunk, index.cmp(&current));
        sum(made, order, whose.kind, chunk, live);
    }
    if whose.owner != 0 {
        put_space(made, whose, all, allocated_in_all);
    }
}

fn put_record(made: &mut Made, order: Order, whose: Whose, chunk: Chunk, [next, before]: [u64; 2]) {
    let Chunk { at, size, start, end, allocated } = chunk;
    let flags = match whose.kind {
        Space::From => 2 | 8,
        Space::To => 2 | 16,
        _ => 4,
    };
    made.image.put(at + order.flags * 8, flags);
    if order.behind {
        made.image.put(at + 8, order.record(at));
    }
    let is_large = whose.kind == Space::Large;
    let mark = if is_large { order.header() } else { order.header() + allocated.max(8) };
    for (word, value) in [
        (order.size, size),
        (order.heap, whose.heap),
        (order.start, start),
        (order.end, end),
        (order.allocated, allocated),
        (order.allocated + 1, 0),
        (order.allocated + 2, mark),
        (order.owner, whose.owner),
        (order.next, next),
        (order.next + 1, before),
    ] {
        made.image.put(order.record(at) + word * 8, value);
    }
}

/// The live part of a page's area. The heap gets the bounds of the free part of the page in which objects are allocated
/// now. `position`: before that page, the page itself, or after it.
fn live_bytes(random: &mut Random, made: &mut Made, whose: Whose, chunk: Chunk, position: Ordering) -> u64 {
    let Chunk { start, end, allocated, .. } = chunk;
    let area = chunk.area();
    let mut put_bounds = |at: u64, bounds: [u64; 3]| {
        for (word, value) in bounds.into_iter().enumerate() {
            made.image.put(at + word as u64 * 8, value);
        }
    };
    match whose.kind {
        Space::From => 0,
        Space::To => {
            let top = start + random.below(area / 8) * 8;
            match position {
                Ordering::Less => area,
                Ordering::Equal => {
                    put_bounds(whose.heap - 0x9000, [start, top, end]);
                    top - start
                }
                Ordering::Greater => 0,
            }
        }
        // The next objects go into the last 64 bytes that count as allocated.
        Space::Old if position == Ordering::Equal && allocated >= 64 => {
            put_bounds(whose.heap - 0x9000 + 24, [start, end - 64, end]);
            allocated - 64
        }
        Space::Leaving => area,
        Space::Old | Space::Large | Space::Code | Space::ReadOnly => allocated,
    }
}

/// Adds a page to the sums that the walk must find.
fn sum(made: &mut Made, order: Order, kind: Space, chunk: Chunk, live: u64) {
    let (objects, rest) = match kind {
        Space::From | Space::To => (HeapPart::Young, HeapPart::FreeYoung),
        Space::Old => (HeapPart::Old, HeapPart::FreeOld),
        Space::Large => (HeapPart::Large, HeapPart::FreeOld),
        Space::Code => (HeapPart::Code, HeapPart::FreeOld),
        Space::ReadOnly => (HeapPart::ReadOnly, HeapPart::Records),
        Space::Leaving => (HeapPart::Leaving, HeapPart::Leaving),
    };
    let resident = made.image.resident(chunk.at, chunk.at + chunk.size);
    let of_header = order.header().min(resident);
    let of_live = live.min(resident - of_header);
    made.ranges += chunk.size;
    for (part, length, resident) in [
        (HeapPart::Records, chunk.size - chunk.area(), of_header),
        (objects, live, of_live),
        (rest, chunk.area() - live, resident - of_header - of_live),
    ] {
        let sums = made.parts.entry(part).or_default();
        sums.length += Bytes(length);
        sums.resident += Bytes(resident);
    }
}

/// The space itself, which states its bytes.
fn put_space(made: &mut Made, Whose { kind, heap, owner }: Whose, all: u64, allocated_in_all: u64) {
    let space = [0x41e_2a18, heap, 2, all, all];
    for (word, value) in space.into_iter().enumerate() {
        made.image.put(owner + word as u64 * 8, value);
    }
    made.committed.push(owner + 3 * 8);
    if !matches!(kind, Space::From | Space::To) {
        made.image.put(owner + 15 * 8, allocated_in_all);
    }
}

fn parts(heap: &OtherHeap) -> BTreeMap<HeapPart, PartBytes> {
    heap.parts.clone().into_iter().filter(|(_, bytes)| bytes.length + bytes.resident > Bytes(0)).collect()
}

fn assert_found(made: &Made, order: Order) {
    let heap = walk(&made.image, &made.vmas).unwrap_or_else(|error| panic!("{error:?}: {order:?}"));
    let mut expected = made.parts.clone();
    expected.retain(|_, bytes| bytes.length + bytes.resident > Bytes(0));
    assert_eq!(parts(&heap), expected, "{order:?}");
    assert_eq!(heap.ranges.iter().map(|range| range.length()).sum::<Bytes>(), Bytes(made.ranges));
    assert_eq!(heap.buffers, Some(made.buffers), "{order:?}");
    let mut at_pages = made.at_pages.clone();
    at_pages.sort_unstable_by_key(|range| range.start);
    assert!(!at_pages.is_empty());
    assert_eq!(heap.buffers_at_pages, at_pages, "{order:?}");
}

#[test]
fn heaps_of_known_versions_are_split_to_the_byte() {
    let mut random = Random(7);
    for order in [V8_10, V8_12, V8_13] {
        for isolates in 1..4 {
            assert_found(&made(&mut random, order, isolates), order);
        }
    }
}

#[test]
fn the_order_of_the_fields_is_found_whatever_it_is() {
    let mut random = Random(11);
    for _ in 0..16 {
        let order = any_order(&mut random);
        assert_found(&made(&mut random, order, 1), order);
    }
}

#[test]
fn a_young_generation_between_two_collections_is_not_split() {
    let mut random = Random(19);
    for order in [V8_10, V8_12, V8_13] {
        let mut made = made(&mut random, order, 1);
        let isolates = made.image.pages.range_mut(ISOLATES / PAGE..(ISOLATES + (1 << 20)) / PAGE);
        isolates.for_each(|(_, page)| page.fill(0));
        let heap = walk(&made.image, &made.vmas).expect("the sums hold");
        let [young, free, both] = [HeapPart::Young, HeapPart::FreeYoung, HeapPart::YoungUnsplit];
        let expected = made.parts[&young].length + made.parts[&free].length;
        assert_eq!((heap.part(young).length, heap.part(free).length), (Bytes(0), Bytes(0)));
        assert_eq!(heap.part(both).length, expected);
    }
}

/// The lists in the sweeper are right, but the job has taken older lists, and has no finished one yet.
#[test]
fn array_buffers_that_a_job_is_sweeping_are_unknown() {
    let mut random = Random(29);
    let mut made = made(&mut random, V8_13, 2);
    made.image.put(SWEEPERS + (1 << 20) + 8, RECORDS);
    assert_eq!(walk(&made.image, &made.vmas).expect("the sums hold").buffers, None);
}

/// The lists of one isolate of two are wrong: a sum without that isolate would be too small.
#[test]
fn array_buffers_whose_lengths_are_not_what_a_list_states_are_unknown() {
    let mut random = Random(23);
    for lie in [|bytes: u64| bytes + bytes / 16, |bytes| bytes / 3, |_| 0, |_| u64::MAX] {
        let mut made = made(&mut random, V8_12, 2);
        let old = made.stated[3];
        let mut word = [0; 8];
        assert!(made.image.read(Avma(old), &mut word));
        made.image.put(old, lie(u64::from_le_bytes(word)));
        let heap = walk(&made.image, &made.vmas).expect("the sums hold");
        assert_eq!(heap.buffers, None);
    }
}

#[test]
fn a_heap_whose_spaces_state_other_sums_stays_closed() {
    let mut random = Random(13);
    for order in [V8_10, V8_12, V8_13] {
        let mut made = made(&mut random, order, 1);
        assert!(walk(&made.image, &made.vmas).is_ok());
        for committed in made.committed.clone() {
            made.image.put(committed, 64 << 20);
        }
        assert_eq!(walk(&made.image, &made.vmas).unwrap_err(), WalkError::OtherSums);
        for page in made.image.pages.values_mut() {
            page.fill(0);
        }
        assert_eq!(walk(&made.image, &made.vmas).unwrap_err(), WalkError::NoPages);
    }
}

#[test]
fn overwritten_records_never_make_more_than_there_is() {
    let mut random = Random(17);
    let (mut opened, mut closed) = (0, 0);
    for round in 0..48 {
        let order = [V8_10, V8_12, V8_13][round % 3];
        let mut made = made(&mut random, order, 1);
        // Most overwritten words belong to a record or a space.
        let is_record = |page: &u64| page * PAGE < START || (page * PAGE).is_multiple_of(ALIGNMENT);
        let chosen: Vec<u64> = made.image.pages.keys().copied().filter(is_record).collect();
        for _ in 0..random.below(100) {
            let page = chosen[random.below(chosen.len() as u64) as usize];
            made.image.put(page * PAGE + random.below(60) * 8, START + random.below(1 << 26));
        }
        match walk(&made.image, &made.vmas) {
            Ok(heap) => {
                opened += 1;
                let lengths: Bytes = heap.ranges.iter().map(|range| range.length()).sum();
                assert_eq!(heap.parts.values().map(|part| part.length).sum::<Bytes>(), lengths);
                let end = made.vmas.last().expect("mappings").range.end;
                assert!(heap.ranges.iter().all(|range| range.start.0 >= START && range.end <= end));
                assert!(heap.parts.values().all(|part| part.resident <= lengths));
            }
            Err(_) => closed += 1,
        }
    }
    assert!(opened > 10 && closed > 10, "{opened} {closed}");
}
