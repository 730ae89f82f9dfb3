//! Heaps built word by word in tcmalloc's layout, in several page sizes, and the sums that the walk must find.

use std::collections::BTreeMap;

use super::caches::{Central, MOST_LISTS, MOST_PAIRS, of_transfers};
use super::pagemap::{Span, SpanState};
use super::sizes::{BlockSizes, COMPARED, MOST_TABLES, find};
use super::walk::{Unread, WalkError, walk};
use crate::random::Random;
use crate::source::heap_data::{Anonymous, Data};
use crate::source::made_image::{Image, assert_bounded};
use plimsoll_facts::snapshot::{HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::PAGE;

const DATA: u64 = 0x7f00_0000_0000;
const HEAP: u64 = 0x5555_8000_0000;
/// Leaves, then span records, then thread caches: below the heap, in the same mapping.
const RECORDS: u64 = HEAP - (16 << 20);
const SPANS: u64 = HEAP - (8 << 20);
const CACHES: u64 = HEAP - (2 << 20);
const SIZES: [u32; 26] = [
    0, 8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048, 2560, 4096, 6144,
    8192, 16384,
];
const CLASSES: usize = 128;
/// Words of a central list: class, two dummies, spans, free, 64 batches, three numbers, padding.
const STEP: usize = 152;

type Sums = BTreeMap<HeapPart, u64>;

struct Made {
    image: Image,
    data: Vec<u8>,
    /// Byte offsets of its parts in the data.
    root: usize,
    counters: usize,
    sizes: usize,
    central: usize,
    heads: usize,
    end: u64,
    sums: Sums,
}

fn put(data: &mut [u8], at: usize, word: u64) {
    data[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn put_half(data: &mut [u8], at: usize, half: u32) {
    data[at..at + 4].copy_from_slice(&half.to_le_bytes());
}

fn made(random: &mut Random, shift: u32, spans: u64) -> Made {
    let mut image = Image::default();
    let leaf_bits = (48 - shift).div_ceil(2);
    let root_length = 8usize << (48 - shift - leaf_bits);
    let page_bytes = 1u64 << shift;
    let (mut live, mut beside, mut free, mut returned) = (0, 0, 0, 0);
    let mut per_class = vec![(0u64, 0u64, 0u64); SIZES.len()];
    let mut at = HEAP;
    let mut leaves: BTreeMap<u64, u64> = BTreeMap::new();
    let mut enter = |image: &mut Image, page: u64, record: u64| {
        let number = page >> leaf_bits;
        let next = RECORDS + 0x50 + leaves.len() as u64 * (8 << leaf_bits);
        let leaf = *leaves.entry(number).or_insert(next);
        image.put(leaf + (page & ((1 << leaf_bits) - 1)) * 8, record);
    };
    for number in 0..spans {
        let record = SPANS + number * 48;
        let class = 1 + random.below(SIZES.len() as u64 - 1);
        let size = u64::from(SIZES[class as usize]);
        let (state, class, pages) = match random.below(6) {
            0 => (1, class, 1 + random.below(60)),
            1 => (2, 0, 1 + random.below(60)),
            2 => (0, 0, 1 + random.below(40)),
            _ => {
                let fits =
                    |pages: &u64| pages * page_bytes >= size && (pages * page_bytes) % size * 8 <= pages * page_bytes;
                (0, class, (1..).find(fits).unwrap())
            }
        };
        let length = pages * page_bytes;
        let capacity = length / size;
        let blocks = random.below(capacity.min(0xffff) + 1);
        match (state, class) {
            (1, _) => free += length,
            (2, _) => returned += length,
            (_, 0) => live += length,
            (_, class) => {
                let of = &mut per_class[class as usize];
                *of = (of.0 + 1, of.1 + blocks, of.2 + capacity - blocks);
                live += blocks * size;
                beside += length - blocks * size;
            }
        }
        let first = at / page_bytes;
        image.put(record, first);
        image.put(record + 8, pages);
        image.put(record + 40, blocks | class << 16 | state << 24);
        let small = state == 0 && class != 0;
        for page in first..first + pages {
            // Between the ends of other spans, there are words of freed spans.
            let is_old = !small && page != first && page + 1 != first + pages;
            match is_old {
                true if random.below(2) == 0 => enter(&mut image, page, SPANS + random.below(number + 1) * 48),
                true => {}
                false => enter(&mut image, page, record),
            }
        }
        for page in (at / PAGE..(at + length) / PAGE).filter(|_| random.below(4) > 0) {
            image.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
        }
        at += length;
    }
    // Two thread caches in a ring. The fields before the lists vary by build.
    let lists = 8 * random.below(8);
    let mut cached = 0;
    let caches = [CACHES, CACHES + 0x4000];
    for (cache, next) in caches.into_iter().zip(caches.into_iter().rev()) {
        for (class, size) in SIZES.into_iter().enumerate() {
            let held = random.below(per_class[class].1 / 4 + 1);
            cached += held * u64::from(size);
            image.put(cache + lists + class as u64 * 32 + 8, held);
            image.put(cache + lists + class as u64 * 32 + 24, size.into());
        }
        image.put(cache + lists + CLASSES as u64 * 32 + 16, next);
    }
    // The data: words that lead nowhere, the table, and other data around it.
    let root = 8 * (500 + random.below(100)) as usize;
    let counters = root + root_length + 12_400;
    let sizes = counters + 4096;
    let central = sizes + 8 * CLASSES + 256;
    let heads = central + 8 * STEP * SIZES.len() + 64;
    let mut data = vec![0; heads + 4096];
    for at in (0..root).step_by(8) {
        let noise = [random.below(1000), SPANS + 48 * random.below(spans), HEAP + 64 * random.below(9000)];
        put(&mut data, at, noise[random.below(3) as usize]);
    }
    for (number, leaf) in leaves {
        put(&mut data, root + 8 * number as usize, leaf);
    }
    for (offset, word) in [at - HEAP, free, returned, at - HEAP - returned].into_iter().enumerate() {
        put(&mut data, counters + 8 * offset, word);
    }
    let mut transfers = 0;
    for (class, size) in SIZES.into_iter().enumerate().skip(1) {
        let batch = (65536 / size).clamp(2, 32);
        put_half(&mut data, sizes + 4 * class, batch);
        put_half(&mut data, sizes + 4 * (CLASSES + class), size);
        let record = central + 8 * STEP * class;
        let (spans, blocks, free) = per_class[class];
        // Batches of blocks that are in no central list, besides those of the threads.
        let used = random.below(blocks / 4 / u64::from(batch) + 1).min(20);
        transfers += used * u64::from(batch * size);
        put(&mut data, record, class as u64);
        for dummy in [8, 56] {
            for link in [16, 24] {
                put(&mut data, record + dummy + link, DATA + (record + dummy) as u64);
            }
        }
        put(&mut data, record + 104, spans);
        put(&mut data, record + 112, free);
        put(&mut data, record + 120 + 1024, used | 20 << 32);
        put(&mut data, record + 128 + 1024, 64);
    }
    put(&mut data, heads, caches[1]);
    let records = image.resident(RECORDS, HEAP);
    let sums = Sums::from([
        (HeapPart::Live, live - cached - transfers),
        (HeapPart::Cached, cached + transfers),
        (HeapPart::Beside, beside),
        (HeapPart::Dirty, free),
        (HeapPart::Released, returned),
        (HeapPart::Records, records),
    ]);
    Made { image, data, root, counters, sizes, central, heads, end: at, sums }
}

fn walked(made: &Made) -> Result<(OtherHeap, Option<Unread>), WalkError> {
    let data = [Data { base: Avma(DATA), bytes: made.data.clone() }];
    let range = AddressRange::new(Avma(RECORDS), Avma(made.end));
    walk(&made.image, &data, &Anonymous(vec![range]))
}

#[test]
fn heaps_of_each_page_size_are_summed_to_the_byte() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for shift in [12, 13, 15, 16] {
        for spans in [60, 200] {
            let made = made(&mut random, shift, spans);
            let (heap, unread) = walked(&made).expect("a heap");
            assert_eq!(unread, None, "pages of {} bytes", 1 << shift);
            let mut found: Sums = heap.parts.iter().map(|(part, bytes)| (*part, bytes.length.0)).collect();
            // Of its own records, only the resident ones are known beforehand.
            found.insert(HeapPart::Records, heap.resident(HeapPart::Records).0);
            assert_eq!(found, made.sums, "pages of {} bytes", 1 << shift);
            let sum =
                |of: fn(&plimsoll_facts::snapshot::PartBytes) -> Bytes| heap.parts.values().map(of).sum::<Bytes>();
            assert_eq!(sum(|part| part.length), heap.ranges.iter().map(|range| range.length()).sum());
            assert_eq!(sum(|part| part.resident).0, made.image.resident(RECORDS, made.end));
        }
    }
}

/// A heap with other sums than tcmalloc states isn't read: a layout that isn't proven gives no figures.
#[test]
fn a_heap_whose_sums_disagree_is_not_read() {
    let mut random = Random(5);
    let clean = || made(&mut Random(5), 13, 300);
    let mut other = clean();
    let stated = u64::from_le_bytes(*other.data[other.counters..].first_chunk().unwrap());
    let at = other.counters;
    put(&mut other.data, at, stated / 2 / 8192 * 8192);
    assert_eq!(walked(&other), Err(WalkError::OtherSums));
    let mut other = clean();
    let root = other.root;
    other.data[root..at].fill(0);
    assert_eq!(walked(&other), Err(WalkError::NoTable));
    // A span table without a matching size.
    let mut other = clean();
    let sizes = other.sizes + 4 * CLASSES;
    for class in 1..SIZES.len() {
        put_half(&mut other.data, sizes + 4 * class, 24 * class as u32 + random.below(8) as u32);
    }
    assert_eq!(walked(&other), Err(WalkError::NoSizes));
}

/// Spans of one class, each with so many blocks that its size is known.
fn spans_of(class: u8, number: usize) -> Vec<Span> {
    let size = u64::from(SIZES[usize::from(class)]);
    let span = |number: u64| Span {
        range: AddressRange::sized(Avma(HEAP + number * size), Bytes(size)),
        record: 0,
        state: SpanState::InUse,
        class,
        blocks: 1,
    };
    (0..number as u64).map(span).collect()
}

fn halves(sizes: &[u32]) -> Vec<u8> {
    sizes.iter().chain(&[0; 4]).flat_map(|size| size.to_le_bytes()).collect()
}

/// Hostile data may be full of tables, and the heap full of spans.
#[test]
fn a_bounded_number_of_tables_is_compared_with_a_bounded_number_of_spans() {
    let spans = spans_of(25, 4);
    // The largest blocks of the other tables don't fit into the spans.
    let other = halves(&SIZES.map(|size| size * 2));
    let found = |others: usize| {
        let bytes = [other.repeat(others), halves(&SIZES)].concat();
        find(&[Data { base: Avma(DATA), bytes }], &spans).map(|sizes| sizes.bytes[25])
    };
    assert_eq!(found(MOST_TABLES - 1), Some(16384));
    assert_eq!(found(MOST_TABLES), None);
    // Of twice as many spans as are compared, every other one counts. These agree with the table, the rest doesn't.
    let mut spans = spans_of(25, 2 * COMPARED);
    spans.iter_mut().skip(1).step_by(2).for_each(|span| span.class = 200);
    let data = [Data { base: Avma(DATA), bytes: halves(&SIZES) }];
    assert!(find(&data, &spans).is_some());
    spans.remove(0);
    assert!(find(&data, &spans).is_none());
}

/// Central lists with these numbers of spans and of free blocks, and with three batches in use.
fn central_lists(central: Central) -> Vec<u64> {
    let list = |class: u64| {
        let mut words = [0; STEP];
        words[0] = class;
        (words[13], words[14]) = (central.spans, central.free);
        (words[143], words[144]) = (3 | 20 << 32, 64);
        words
    };
    (1..SIZES.len() as u64).flat_map(list).collect()
}

/// Hostile data may be full of words that could be the first two lists, and of tables of lists with other counts.
#[test]
fn a_bounded_number_of_words_is_tried_as_central_lists() {
    let sizes = BlockSizes { bytes: SIZES.map(u64::from).to_vec(), batch: Some(vec![32; SIZES.len()]) };
    let central = Central { spans: 100, free: 7 };
    let found = |before: &[u64], times: usize| {
        let words = [before.repeat(times), central_lists(central)].concat();
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let blocks = of_transfers(&[Data { base: Avma(DATA), bytes }], &sizes, &[central; SIZES.len()]);
        blocks.map(|blocks| blocks[1])
    };
    // Each word 1 and each word 2 of a block could be the first two lists, but for three that are too near.
    let block = [[1; 256], [2; 256]].concat();
    let blocks = MOST_PAIRS / (256 * 256 - 3);
    assert_eq!((found(&block, blocks), found(&block, blocks + 1)), (Some(3 * 32), None));
    let lists: Vec<u64> = (1..SIZES.len() as u64).flat_map(|class| [class, 0, 0, 0]).collect();
    assert_eq!((found(&lists, MOST_LISTS - 1), found(&lists, MOST_LISTS)), (Some(3 * 32), None));
}

#[test]
fn missing_caches_are_reported() {
    let mut other = made(&mut Random(6), 13, 300);
    let central = other.central;
    put(&mut other.data, central + 8 * STEP * 3, 77);
    let (heap, unread) = walked(&other).expect("a heap");
    assert!(unread.is_some_and(|(reason, _)| reason.contains("transfer")), "{unread:?}");
    assert!(heap.part(HeapPart::Live).length.0 >= other.sums[&HeapPart::Live]);
    let heads = other.heads;
    put(&mut other.data, heads, 0);
    let (_, unread) = walked(&other).expect("a heap");
    assert!(unread.is_some_and(|(reason, _)| reason.contains("thread")), "{unread:?}");
}

#[test]
fn overwritten_records_never_panic_and_never_sum_to_more_than_there_is() {
    let mut random = Random(7);
    let (mut opened, mut closed) = (0, 0);
    for round in 0..14 {
        let mut made = made(&mut random, [15, 16, 13][round % 3], 100);
        let pages: Vec<u64> = made.image.pages.keys().copied().filter(|page| page * PAGE < HEAP).collect();
        for _ in 0..random.below(4) {
            let page = pages[random.below(pages.len() as u64) as usize];
            let bytes = made.image.pages.get_mut(&page).expect("it is there");
            let at = random.below(PAGE / 8) as usize * 8;
            put(bytes, at, [random.below(u64::MAX), HEAP + (1 << 31), SPANS, u64::MAX, 0][random.below(5) as usize]);
        }
        for _ in 0..random.below(4) {
            let at = random.below(made.data.len() as u64 / 8) as usize * 8;
            put(&mut made.data, at, [random.below(u64::MAX), SPANS, 1, CACHES][random.below(4) as usize]);
        }
        let present = made.image.pages.len() as u64 * PAGE;
        match walked(&made) {
            Ok((heap, _)) => {
                opened += 1;
                assert_bounded(&heap, present);
            }
            Err(_) => closed += 1,
        }
    }
    assert!(opened > 2 && closed > 2, "{opened} {closed}");
}
