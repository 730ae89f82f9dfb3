//! Builds heaps of Go word by word, in each known layout.

use std::collections::BTreeMap;

use super::pages::{Chunk, MOST_FAILED_LOOKUPS, PAGE_OF_GO, Pages};
use super::walk::{GoMappings, WalkError, walk};
use crate::random::Random;
use crate::source::heap_data::{Anonymous, Data};
use crate::source::made_image::{Image, assert_bounded};
use plimsoll_facts::snapshot::{GoPace, HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::PAGE;

const DATA: u64 = 0x5a_0000;
const HEAP: u64 = 0xc0_0000_0000;
const CHUNK: u64 = 4 << 20;
/// Summaries and their index: reserved only.
const RESERVED: u64 = 0x7e00_0000_0000;
const META: u64 = 0x7f00_0000_0000;
const LEAF: u64 = META;
const LIST: u64 = META + (2 << 20);
const PERSISTENT: u64 = META + (4 << 20);
const BITS: u64 = META + (8 << 20);
const ARENA: u64 = META + (12 << 20);
const ARENAS: u64 = META + (16 << 20);
const META_END: u64 = META + (64 << 20);
const X86: u64 = 0xffff_8000_0000_0000;

/// Five levels of three words, and the roots of the chunks.
const SUMMARY_WORDS: usize = 15 + (1 << 13);

type Sums = BTreeMap<HeapPart, u64>;

#[derive(Clone, Copy)]
struct Layout {
    /// Offset of the end of a span's objects.
    end: usize,
    spans_at: u64,
    base: u64,
}

/// Go 1.22 and later, 1.21, and AArch64.
const LAYOUTS: [Layout; 3] = [
    Layout { end: 112, spans_at: 0, base: X86 },
    Layout { end: 120, spans_at: (1 << 20) + (16 << 10), base: X86 },
    Layout { end: 112, spans_at: 0, base: 0 },
];

impl Layout {
    /// Number of the chunk at an address.
    fn chunk(self, at: u64) -> u64 {
        at.wrapping_sub(self.base) / CHUNK
    }
}

struct Made {
    image: Image,
    length: usize,
    sums: Sums,
    heap_end: u64,
    /// Numbers of words in the data.
    totals: usize,
    list: usize,
    first_summary: usize,
    span_records: Vec<u64>,
}

impl Made {
    fn word(&mut self, number: usize, word: u64) {
        self.image.put(DATA + 8 * number as u64, word);
    }

    fn words(&mut self, first: usize, words: impl IntoIterator<Item = u64>) {
        words.into_iter().enumerate().for_each(|(number, word)| self.word(first + number, word));
    }

    fn walked(&self) -> Result<OtherHeap, WalkError> {
        let mut bytes = vec![0; self.length];
        assert!(plimsoll_process::proc::memory::Memory::read(&self.image, Avma(DATA), &mut bytes));
        let range = |start: u64, end: u64| AddressRange::new(Avma(start), Avma(end));
        let (heap, meta) = (range(HEAP, self.heap_end), range(META, META_END));
        let mappings = GoMappings {
            anonymous: Anonymous(vec![heap, range(RESERVED, RESERVED + (2 << 30)), meta]),
            writable: Anonymous(vec![heap, meta]),
            named: Vec::new(),
        };
        walk(&self.image, &[Data { base: Avma(DATA), bytes }], &mappings)
    }
}

/// Use of a run of pages.
#[derive(Clone, Copy, PartialEq)]
enum Run {
    Small(u64),
    Large,
    Stacks,
    Work,
    Kept,
    GivenBack,
    Cached,
}

impl Run {
    fn any(random: &mut Random) -> Run {
        match random.below(9) {
            0..3 => Run::Small([16, 48, 1024, 2048][random.below(4) as usize]),
            3 => Run::Large,
            4 => Run::Stacks,
            5 => Run::Work,
            6 => Run::Kept,
            7 => Run::GivenBack,
            _ => Run::Cached,
        }
    }
}

/// The pages of a heap in its arena, the records of its spans, and what they add up to.
struct Spans {
    image: Image,
    sums: Sums,
    /// For each page, whether it is allocated.
    allocated: Vec<bool>,
    given_back: Vec<bool>,
    records: Vec<u64>,
    /// Bytes in use, given back, and free.
    totals: [u64; 3],
}

impl Spans {
    /// Runs of random uses that fill this number of chunks.
    fn fill(random: &mut Random, layout: Layout, chunks: u64) -> Spans {
        let all = chunks * 512;
        let mut spans = Spans {
            image: Image::default(),
            sums: Sums::new(),
            allocated: vec![false; all as usize],
            given_back: vec![false; all as usize],
            records: Vec::new(),
            totals: [0; 3],
        };
        let mut page = 0;
        while page < all {
            let pages = (1 + random.below(12)).min(all - page);
            spans.run(random, layout, page, pages);
            page += pages;
        }
        spans.freed();
        spans
    }

    fn run(&mut self, random: &mut Random, layout: Layout, page: u64, pages: u64) {
        let run = Run::any(random);
        let (start, length) = (HEAP + page * PAGE_OF_GO, pages * PAGE_OF_GO);
        for page in start / PAGE..(start + length) / PAGE {
            if random.below(3) > 0 && run != Run::GivenBack {
                self.image.touch(page);
            }
        }
        let bits = page as usize..(page + pages) as usize;
        self.allocated[bits.clone()].fill(!matches!(run, Run::Kept | Run::GivenBack));
        self.given_back[bits].fill(run == Run::GivenBack);
        let (size, objects, state) = match run {
            Run::Small(size) => (size, random.below((length / size).min(60_000) + 1), 1),
            Run::Large => (length, 1, 1),
            Run::Stacks => (2048 << random.below(4), 0, 2),
            Run::Work => (0, 0, 2),
            _ => (0, 0, 0),
        };
        self.sum(run, length, objects * size);
        if state > 0 {
            let record = self.record(start, pages);
            let end = layout.end as u64;
            for back in [48, 40] {
                self.image.put(record + end - back, BITS + 16 + 8 * random.below(4000));
            }
            self.image.put(record + end - 16, objects | 3 << 16 | state << 24);
            self.image.put(record + end - 8, size);
            // A large object has exactly the length that the program requested.
            let whole = match run {
                Run::Large => length - random.below(PAGE_OF_GO / 8) * 8,
                _ => length.checked_div(size).map_or(length, |objects| objects * size),
            };
            self.image.put(record + end, start + whole);
            let slot = layout.spans_at + page * 8;
            (0..pages).for_each(|page| self.image.put(ARENA + slot + page * 8, record));
        }
    }

    fn sum(&mut self, run: Run, length: u64, live: u64) {
        let mut add = |part: HeapPart, bytes: u64| *self.sums.entry(part).or_default() += bytes;
        match run {
            Run::Small(_) | Run::Large => {
                add(HeapPart::Live, live);
                add(HeapPart::Beside, length - live);
                self.totals[0] += length;
            }
            Run::Stacks => add(HeapPart::Stacks, length),
            Run::Work => add(HeapPart::Records, length),
            Run::Kept => add(HeapPart::Dirty, length),
            Run::GivenBack => add(HeapPart::Released, length),
            Run::Cached => add(HeapPart::Cached, length),
        }
        match run {
            Run::Kept | Run::Cached => self.totals[2] += length,
            Run::GivenBack => self.totals[1] += length,
            _ => {}
        }
    }

    /// A record with the first two fields of a span.
    fn record(&mut self, start: u64, pages: u64) -> u64 {
        let record = PERSISTENT + 64 + 160 * self.records.len() as u64;
        self.image.put(record + 24, start);
        self.image.put(record + 32, pages);
        self.records.push(record);
        record
    }

    /// The record of a freed span.
    fn freed(&mut self) {
        self.record(HEAP, 4);
    }

    /// The bits of the pages, in the leaves.
    fn bitmaps(&mut self, layout: Layout) {
        let chunks = self.allocated.chunks(512).zip(self.given_back.chunks(512));
        for (number, (allocated, given_back)) in chunks.enumerate() {
            let at = LEAF + layout.chunk(HEAP + number as u64 * CHUNK) % (1 << 13) * 128;
            for (bits, at) in [(allocated, at), (given_back, at + 64)] {
                for (number, bits) in bits.chunks(64).enumerate() {
                    let word = (0..64).fold(0, |word, bit| word | u64::from(bits[bit]) << bit);
                    self.image.put(at + 8 * number as u64, word);
                }
            }
        }
    }

    /// Writes the lists to which addresses in the data refer. `bitmaps` writes the leaves.
    fn lists(&mut self, layout: Layout, chunks: u64) {
        let image = &mut self.image;
        // The first chunk of never-freed records has its link, then the ranges in use, then the records of spans.
        image.put(PERSISTENT, PERSISTENT + (512 << 10));
        image.put(PERSISTENT + (512 << 10), 0);
        image.put(PERSISTENT + 16, HEAP);
        image.put(PERSISTENT + 24, HEAP + chunks * CHUNK);
        for (number, record) in self.records.iter().enumerate() {
            image.put(LIST + 8 * number as u64, *record);
        }
        image.put(BITS, 4096);
        image.put(BITS + (256 << 10), 0);
        image.put(BITS + (512 << 10), 0);
        image.put(ARENAS + HEAP.wrapping_sub(layout.base) / (64 << 20) % (1 << 22) * 8, ARENA);
    }
}

impl Made {
    /// Data in which every word is noise.
    fn with_noise(random: &mut Random, spans: Spans, chunks: u64) -> Made {
        let first_summary = 300 + random.below(200) as usize;
        let behind = first_summary + SUMMARY_WORDS;
        let mut made = Made {
            image: spans.image,
            length: 8 * (behind + 1200),
            sums: spans.sums,
            heap_end: HEAP + chunks * CHUNK,
            totals: 100,
            list: behind + 3 + 16,
            first_summary,
            span_records: spans.records,
        };
        for number in 0..made.length / 8 {
            let noise = [0, random.below(1000), META + 64 * random.below(9000) + 8, HEAP + 8192 * random.below(500)];
            made.word(number, noise[random.below(4) as usize]);
        }
        made
    }

    /// The page allocator: its summaries, the chunks' roots, and the ranges in use; then the list of all spans.
    fn page_allocator(&mut self, layout: Layout, chunks: u64) {
        let first_summary = self.first_summary;
        let mut reserved = RESERVED;
        for (level, capacity) in [14, 17, 20, 23, 26].map(|bits| 1u64 << bits).into_iter().enumerate() {
            self.words(first_summary + 3 * level, [reserved, capacity / 8, capacity]);
            reserved += capacity * 8;
        }
        (0..1 << 13).for_each(|root| self.word(first_summary + 15 + root, 0));
        let first = layout.chunk(HEAP);
        self.word(first_summary + 15 + (first >> 13) as usize, LEAF);
        let searched = [HEAP, first, first + chunks];
        let in_use = [PERSISTENT + 16, 1, 16, chunks * CHUNK, DATA + 8];
        let index = [reserved, 1 << 20, 1 << 26, 4, 9, 4, 0, 0];
        let list = [LIST, self.span_records.len() as u64, 20_000];
        let rest = in_use.into_iter().chain(index).chain([0, 0, 77]).chain(list);
        self.words(first_summary + SUMMARY_WORDS, searched.into_iter().chain(rest));
    }

    /// The arenas, the never-freed records, and the lists of bits.
    fn addresses_of_lists(&mut self) {
        self.word(self.list + 60, ARENAS);
        self.word(200, PERSISTENT);
        self.words(220, [0, BITS, BITS + (256 << 10), BITS + (512 << 10)]);
    }

    /// The collector's settings and the heap's totals.
    fn pace_and_totals(&mut self, totals: [u64; 3]) {
        let begin = self.totals - 34;
        self.words(begin, [100, i64::MAX as u64, 4 << 20]);
        self.word(begin + 9, 64 << 20);
        self.word(begin + 19, 31 << 20);
        self.words(self.totals, totals);
    }
}

fn made(random: &mut Random, layout: Layout, chunks: u64) -> Made {
    let mut spans = Spans::fill(random, layout, chunks);
    spans.bitmaps(layout);
    spans.lists(layout, chunks);
    let totals = spans.totals;
    let mut made = Made::with_noise(random, spans, chunks);
    made.page_allocator(layout, chunks);
    made.addresses_of_lists();
    made.pace_and_totals(totals);
    let record = (layout.spans_at + (64 << 10) + (4 << 10)).next_multiple_of(PAGE);
    let meta = (1 << 20) + 20_000u64 * 8 / PAGE * PAGE + PAGE + 2 * (256 << 10) + 3 * (64 << 10) + record + (32 << 20);
    *made.sums.entry(HeapPart::Records).or_default() += meta;
    made
}

#[test]
fn heaps_of_each_layout_are_summed_to_the_byte() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for layout in LAYOUTS {
        for chunks in [1, 3, 9] {
            let made = made(&mut random, layout, chunks);
            let heap = made.walked().expect("a heap");
            let found: Sums = heap
                .parts
                .iter()
                .filter(|(_, part)| part.length > Bytes(0))
                .map(|(part, bytes)| (*part, bytes.length.0))
                .collect();
            assert_eq!(found, made.sums, "end at {}, {chunks} chunks", layout.end);
            let sum =
                |of: fn(&plimsoll_facts::snapshot::PartBytes) -> Bytes| heap.parts.values().map(of).sum::<Bytes>();
            assert_eq!(sum(|part| part.length), heap.ranges.iter().map(|range| range.length()).sum());
            let of_heap: Bytes = Bytes(made.image.resident(HEAP, made.heap_end));
            let of_records: Bytes = Bytes(made.image.resident(META, META_END));
            assert_eq!(sum(|part| part.resident), of_heap + of_records);
            let pace = GoPace {
                is_known: true,
                percent: Some(100),
                memory_limit: None,
                goal: Some(Bytes::mib(64)),
                marked: Some(Bytes::mib(31)),
            };
            assert_eq!(heap.pace, Some(pace));
        }
    }
}

/// A heap of this number of chunks.
fn pages_of(chunks: u64, mut is_allocated: impl FnMut(u64) -> bool) -> Pages {
    let mut word = |first: u64| (0..64).fold(0, |word, bit| word | u64::from(is_allocated(first + bit)) << bit);
    let mut chunk = |number: u64| Chunk {
        allocated: std::array::from_fn(|at| word(number * 512 + at as u64 * 64)),
        given_back: [0; 8],
        taken: [0; 8],
    };
    let chunks = (0..chunks).map(|number| (HEAP + number * CHUNK, chunk(number))).collect();
    Pages { in_use: Vec::new(), chunks, base: X86, records: Vec::new(), end: 0, failed_lookups: 0 }
}

#[test]
fn spans_take_pages_as_a_twin_that_goes_page_by_page() {
    let mut random = Random(31);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..60 {
        let mut twin: Vec<bool> = (0..6 * 512).map(|_| random.below(200) > 0).collect();
        let mut pages = pages_of(6, |page| twin[page as usize]);
        for _ in 0..200 {
            let longest = [4, 70, 1400][random.below(3) as usize];
            let (first, count) = (random.below(6 * 512), 1 + random.below(longest));
            let span = first as usize..(first + count) as usize;
            // A span may reach beyond the heap.
            let expected = twin.get(span.clone()).is_some_and(|pages| pages.iter().all(|free| *free));
            assert_eq!(pages.take(HEAP + first * PAGE_OF_GO, count), expected, "{count} pages from {first}");
            if expected {
                twin[span].fill(false);
                taken += 1;
            } else {
                refused += 1;
            }
        }
        for (page, free) in twin.iter().enumerate() {
            let chunk = &pages.chunks[&(HEAP + page as u64 / 512 * CHUNK)];
            let is = |bits: &[u64; 8]| bits[page % 512 / 64] >> (page % 64) & 1 == 1;
            assert_eq!(is(&chunk.allocated) && !is(&chunk.taken), *free, "page {page}");
        }
    }
    assert!(taken > 500 && refused > 500, "{taken} {refused}");
}

/// Records of a hostile process, each with a span of the whole heap but one page.
#[test]
fn spans_that_cannot_be_taken_cost_a_bounded_number_of_looks() {
    const CHUNKS: u64 = 1 << 13;
    let mut pages = pages_of(CHUNKS, |page| page + 1 < CHUNKS * 512);
    assert!(pages.take(HEAP, 1) && !pages.take(HEAP + PAGE_OF_GO, CHUNKS * 512 - 1));
    for _ in 0..1_000_000 {
        assert!(!pages.take(HEAP + PAGE_OF_GO, CHUNKS * 512 - 1));
    }
    assert!(
        (MOST_FAILED_LOOKUPS..MOST_FAILED_LOOKUPS + CHUNKS as usize).contains(&pages.failed_lookups),
        "{}",
        pages.failed_lookups
    );
    assert!(!pages.take(HEAP + PAGE_OF_GO, 1), "a page that is free");
}

/// A heap whose sums differ from those that the runtime states isn't read: a layout that isn't proven gives no figures.
#[test]
fn a_heap_with_other_sums_stays_closed() {
    let clean = || made(&mut Random(5), LAYOUTS[0], 4);
    assert!(clean().walked().is_ok());
    for total in 0..3 {
        let mut other = clean();
        other.word(other.totals + total, 12 << 20);
        assert_eq!(other.walked(), Err(WalkError::OtherSums), "total {total}");
    }
    let mut other = clean();
    other.word(other.first_summary + 2, 1 << 15);
    assert_eq!(other.walked(), Err(WalkError::NoPages));
    let mut other = clean();
    other.word(other.list, 0);
    assert_eq!(other.walked(), Err(WalkError::NoSpans));
    // One of four spans of objects is lost.
    let mut other = clean();
    for record in other.span_records.clone().into_iter().step_by(4) {
        other.image.put(record + 32, 0);
    }
    assert_eq!(other.walked(), Err(WalkError::OtherSums));
}

#[test]
fn pages_that_were_given_back_and_are_still_resident_are_kept_apart() {
    let mut made = made(&mut Random(9), LAYOUTS[0], 2);
    for page in HEAP / PAGE..made.heap_end / PAGE {
        made.image.touch(page);
    }
    let heap = made.walked().expect("a heap");
    let (muzzy, released) = (heap.part(HeapPart::Muzzy), heap.part(HeapPart::Released));
    assert_eq!((muzzy.length.0, released.length.0), (made.sums[&HeapPart::Released], 0));
    assert_eq!(heap.purgeable(), heap.resident(HeapPart::Dirty));
}

#[test]
fn settings_of_the_collector_are_read_as_they_stand() {
    for (percent, limit, goal) in [(-1i64, 300u64 << 20, u64::MAX), (50, i64::MAX as u64, 9 << 20), (0, 1, 4 << 20)] {
        let mut made = made(&mut Random(11), LAYOUTS[0], 2);
        let begin = made.totals - 34;
        let least = (4u64 << 20).wrapping_mul(percent as u64) / 100;
        for (number, word) in [u64::from(percent as i32 as u32), limit, least].into_iter().enumerate() {
            made.word(begin + number, word);
        }
        made.word(begin + 9, goal);
        made.word(begin + 19, 3 << 20);
        let pace = made.walked().expect("a heap").pace.expect("a pace");
        assert_eq!(pace.percent, u32::try_from(percent).ok());
        assert_eq!(pace.memory_limit, (limit < i64::MAX as u64).then_some(Bytes(limit)));
        assert_eq!(pace.goal, (goal < u64::MAX).then_some(Bytes(goal)));
        // A smallest goal other than 4 MiB × GOGC / 100 doesn't prove GOGC, so no pace is known.
        made.word(begin + 2, least ^ 1 << 20);
        assert_eq!(made.walked().expect("a heap").pace, Some(GoPace::default()));
    }
}

#[test]
fn overwritten_records_never_panic_and_never_sum_to_more_than_there_is() {
    let mut random = Random(7);
    let (mut opened, mut closed) = (0, 0);
    for round in 0..60 {
        let mut made = made(&mut random, LAYOUTS[round % 3], 2);
        let pages: Vec<u64> = made.image.pages.keys().copied().filter(|page| page * PAGE >= META).collect();
        for _ in 0..random.below(5) {
            let page = pages[random.below(pages.len() as u64) as usize];
            let at = page * PAGE + random.below(PAGE / 8) * 8;
            let word = [random.below(u64::MAX), HEAP + (1 << 31), PERSISTENT, u64::MAX, 0][random.below(5) as usize];
            made.image.put(at, word);
        }
        for _ in 0..random.below(3) {
            let near = [made.first_summary, made.list - 24, made.totals - 40][random.below(3) as usize];
            let word = [random.below(u64::MAX), HEAP, META + 4096, 1 << 26, 0][random.below(5) as usize];
            made.word(near + random.below(40) as usize, word);
        }
        let present = made.image.pages.len() as u64 * PAGE;
        match made.walked() {
            Ok(heap) => {
                opened += 1;
                assert_bounded(&heap, present);
            }
            Err(_) => closed += 1,
        }
    }
    assert!(opened > 5 && closed > 5, "{opened} {closed}");
}
