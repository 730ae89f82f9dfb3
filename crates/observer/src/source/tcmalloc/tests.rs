//! Heaps built word by word in tcmalloc's layout, in several page sizes, and the sums that the walk must find.

use std::collections::BTreeMap;
use std::ops::Range;

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
const THREAD_CACHES: [u64; 2] = [CACHES, CACHES + 0x4000];
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

/// The table from pages to spans.
struct Pagemap {
    leaf_bits: u32,
    /// Addresses of the leaves by their number in the root.
    leaves: BTreeMap<u64, u64>,
}

impl Pagemap {
    fn enter(&mut self, image: &mut Image, page: u64, record: u64) {
        let number = page >> self.leaf_bits;
        let next = RECORDS + 0x50 + self.leaves.len() as u64 * (8 << self.leaf_bits);
        let leaf = *self.leaves.entry(number).or_insert(next);
        image.put(leaf + (page & ((1 << self.leaf_bits) - 1)) * 8, record);
    }
}

/// What is in the spans of a class: numbers of spans, of blocks in use, and of free blocks.
#[derive(Clone, Copy, Default)]
struct InClass {
    spans: u64,
    blocks: u64,
    free: u64,
}

/// The spans of a heap, one after the other, and what they add up to.
struct Spans {
    image: Image,
    pagemap: Pagemap,
    page_bytes: u64,
    classes: [InClass; SIZES.len()],
    live: u64,
    beside: u64,
    free: u64,
    returned: u64,
    end: u64,
}

impl Spans {
    fn fill(random: &mut Random, shift: u32, spans: u64) -> Spans {
        let mut made = Spans {
            image: Image::default(),
            pagemap: Pagemap { leaf_bits: (48 - shift).div_ceil(2), leaves: BTreeMap::new() },
            page_bytes: 1 << shift,
            classes: [InClass::default(); SIZES.len()],
            live: 0,
            beside: 0,
            free: 0,
            returned: 0,
            end: HEAP,
        };
        (0..spans).for_each(|number| made.add(random, number));
        made
    }

    /// A span of a random state and length, after the last one.
    fn add(&mut self, random: &mut Random, number: u64) {
        let class = 1 + random.below(SIZES.len() as u64 - 1);
        let size = u64::from(SIZES[class as usize]);
        let (state, class, pages) = match random.below(6) {
            0 => (1, class, 1 + random.below(60)),
            1 => (2, 0, 1 + random.below(60)),
            2 => (0, 0, 1 + random.below(40)),
            _ => {
                let bytes = |pages: u64| pages * self.page_bytes;
                let fits = |pages: &u64| bytes(*pages) >= size && bytes(*pages) % size * 8 <= bytes(*pages);
                (0, class, (1..).find(fits).unwrap())
            }
        };
        let length = pages * self.page_bytes;
        let capacity = length / size;
        let blocks = random.below(capacity.min(0xffff) + 1);
        match (state, class) {
            (1, _) => self.free += length,
            (2, _) => self.returned += length,
            (_, 0) => self.live += length,
            (_, class) => {
                let of = &mut self.classes[class as usize];
                *of = InClass { spans: of.spans + 1, blocks: of.blocks + blocks, free: of.free + capacity - blocks };
                self.live += blocks * size;
                self.beside += length - blocks * size;
            }
        }
        let first = self.end / self.page_bytes;
        let record = SPANS + number * 48;
        self.image.put(record, first);
        self.image.put(record + 8, pages);
        self.image.put(record + 40, blocks | class << 16 | state << 24);
        self.enter_pages(random, number, first..first + pages, state == 0 && class != 0);
        for page in (self.end / PAGE..(self.end + length) / PAGE).filter(|_| random.below(4) > 0) {
            self.image.pages.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
        }
        self.end += length;
    }

    /// A span of small blocks has every page in the table, other spans only the first and the last. Between these there
    /// are words of freed spans.
    fn enter_pages(&mut self, random: &mut Random, number: u64, pages: Range<u64>, is_small: bool) {
        for page in pages.clone() {
            let is_old = !is_small && page != pages.start && page + 1 != pages.end;
            let record = match is_old {
                true if random.below(2) == 0 => SPANS + random.below(number + 1) * 48,
                true => continue,
                false => SPANS + number * 48,
            };
            self.pagemap.enter(&mut self.image, page, record);
        }
    }

    /// Two thread caches in a ring. The fields before the lists vary by build. Returns the bytes in them.
    fn put_thread_caches(&mut self, random: &mut Random) -> u64 {
        let lists = 8 * random.below(8);
        let mut cached = 0;
        for (cache, next) in THREAD_CACHES.into_iter().zip(THREAD_CACHES.into_iter().rev()) {
            for (class, size) in SIZES.into_iter().enumerate() {
                let held = random.below(self.classes[class].blocks / 4 + 1);
                cached += held * u64::from(size);
                self.image.put(cache + lists + class as u64 * 32 + 8, held);
                self.image.put(cache + lists + class as u64 * 32 + 24, size.into());
            }
            self.image.put(cache + lists + CLASSES as u64 * 32 + 16, next);
        }
        cached
    }
}

/// The classes' sizes, batches and central lists. Returns the bytes in batches: these are in no central list, and in no
/// thread's cache.
fn put_classes(random: &mut Random, data: &mut [u8], sizes: usize, central: usize, classes: &[InClass]) -> u64 {
    let mut transfers = 0;
    for (class, size) in SIZES.into_iter().enumerate().skip(1) {
        let batch = (65536 / size).clamp(2, 32);
        put_half(data, sizes + 4 * class, batch);
        put_half(data, sizes + 4 * (CLASSES + class), size);
        let record = central + 8 * STEP * class;
        let InClass { spans, blocks, free } = classes[class];
        let used = random.below(blocks / 4 / u64::from(batch) + 1).min(20);
        transfers += used * u64::from(batch * size);
        put(data, record, class as u64);
        for dummy in [8, 56] {
            for link in [16, 24] {
                put(data, record + dummy + link, DATA + (record + dummy) as u64);
            }
        }
        put(data, record + 104, spans);
        put(data, record + 112, free);
        put(data, record + 120 + 1024, used | 20 << 32);
        put(data, record + 128 + 1024, 64);
    }
    transfers
}

fn made(random: &mut Random, shift: u32, spans: u64) -> Made {
    let mut heap = Spans::fill(random, shift, spans);
    let cached = heap.put_thread_caches(random);
    let Spans { image, pagemap, classes, live, beside, free, returned, end, .. } = heap;
    // The data: words that lead nowhere, the table, and other data around it.
    let root = 8 * (500 + random.below(100)) as usize;
    let root_length = 8usize << (48 - shift - pagemap.leaf_bits);
    let counters = root + root_length + 12_400;
    let sizes = counters + 4096;
    let central = sizes + 8 * CLASSES + 256;
    let heads = central + 8 * STEP * SIZES.len() + 64;
    let mut data = vec![0; heads + 4096];
    for at in (0..root).step_by(8) {
        let noise = [random.below(1000), SPANS + 48 * random.below(spans), HEAP + 64 * random.below(9000)];
        put(&mut data, at, noise[random.below(3) as usize]);
    }
    for (number, leaf) in pagemap.leaves {
        put(&mut data, root + 8 * number as usize, leaf);
    }
    for (offset, word) in [end - HEAP, free, returned, end - HEAP - returned].into_iter().enumerate() {
        put(&mut data, counters + 8 * offset, word);
    }
    let transfers = put_classes(random, &mut data, sizes, central, &classes);
    put(&mut data, heads, THREAD_CACHES[1]);
    let records = image.resident(RECORDS, HEAP);
    let sums = Sums::from([
        (HeapPart::Live, live - cached - transfers),
        (HeapPart::Cached, cached + transfers),
        (HeapPart::Beside, beside),
        (HeapPart::Dirty, free),
        (HeapPart::Released, returned),
        (HeapPart::Records, records),
    ]);
    Made { image, data, root, counters, sizes, central, heads, end, sums }
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
            // Of tcmalloc's own records, only the resident ones are known beforehand.
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

/// Spans of one class, each with enough blocks that its size is known.
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
