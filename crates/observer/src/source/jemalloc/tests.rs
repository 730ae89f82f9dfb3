//! Heaps built word by word in the layouts of three versions of jemalloc, and the sums that the walk must find.

use std::collections::BTreeMap;

use super::walk::{Unopened, walk};
use crate::random::Random;
use crate::source::heap_data::{Anonymous, Data};
use crate::source::made_image::{Image, assert_bounded};
use plimsoll_facts::snapshot::HeapPart;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::PAGE;

const GIB: u64 = 1 << 30;
const FIRST_GIB: u64 = 0x1fc00;
const HEAP: u64 = FIRST_GIB * GIB;
/// Two blocks of records below the heap: leaves, then records.
const RECORDS: u64 = HEAP - (64 << 20);
const LEAF: u64 = 2 << 20;
const DATA: u64 = 0x5555_0000_0000;

/// Position of state and size class in a version's records, width of the state, and the quantum.
#[derive(Clone, Copy)]
struct Version {
    class: u32,
    state: u32,
    quantum: u64,
}

const VERSIONS: [Version; 4] = [
    Version { class: 17, state: 15, quantum: 16 },
    Version { class: 18, state: 16, quantum: 16 },
    Version { class: 18, state: 16, quantum: 8 },
    Version { class: 20, state: 17, quantum: 16 },
];

impl Version {
    /// Sizes of the first classes, computed directly from the rule: four per doubling.
    fn sizes(self) -> Vec<u64> {
        let mut sizes = if self.quantum == 16 { vec![8] } else { Vec::new() };
        sizes.extend((1..=4).map(|n| n * self.quantum));
        while sizes.len() < 60 {
            let base = sizes[sizes.len() - 1];
            sizes.extend((1..=4).map(|n| base + n * base / 4));
        }
        sizes
    }

    fn none(self) -> u64 {
        if self.quantum == 16 { 232 } else { 235 }
    }
}

type Sums = BTreeMap<HeapPart, (u64, u64)>;

struct Made {
    image: Image,
    data: Vec<u8>,
    anonymous: Vec<AddressRange>,
    sums: Sums,
}

/// A heap of `extents` extents over two GiB, with touched and untouched pages, and other words beside it that look
/// similar.
fn made(random: &mut Random, version: Version, extents: u64) -> Made {
    let mut image = Image::default();
    let mut sums = Sums::new();
    let mut add = |part, length: u64, resident: u64| {
        let sum: &mut (u64, u64) = sums.entry(part).or_default();
        (sum.0, sum.1) = (sum.0 + length, sum.1 + resident);
    };
    let sizes = version.sizes();
    let leaves = [RECORDS + 0xc0, RECORDS + LEAF + 0xc0];
    let mut record = RECORDS + (6 << 20);
    // The heap crosses a GiB boundary.
    let mut at = HEAP + GIB - extents * 20 * PAGE;
    let first = at;
    for _ in 0..extents {
        let kind = random.below(5);
        let class = match kind {
            0 => random.below(28),
            _ => 28 + random.below(20),
        };
        let size = sizes[class as usize];
        let (state, small, length, free) = match kind {
            0 => {
                let pages = (1..).find(|pages| pages * PAGE >= size && pages * PAGE % size * 8 < size).unwrap();
                let blocks = pages * PAGE / size;
                (0, 1, pages * PAGE, random.below(blocks.min(1023) + 1))
            }
            1 if size.is_multiple_of(PAGE) => (0, 0, size + PAGE * random.below(2), 0),
            1 => continue,
            kind => (kind - 1, 0, (1 + random.below(40)) * PAGE, 0),
        };
        // Some pages are never touched.
        let touched: Vec<u64> = (at / PAGE..(at + length) / PAGE).filter(|_| random.below(4) > 0).collect();
        let resident = touched.len() as u64 * PAGE;
        touched.into_iter().for_each(|page| image.touch(page));
        let live = if small == 1 { (length / size - free) * size } else { size };
        match state {
            0 => {
                let in_live = if small == 1 { resident * live / length } else { live.min(resident) };
                add(HeapPart::Live, live, in_live);
                add(HeapPart::Beside, length - live, resident - in_live);
            }
            1 => add(HeapPart::Dirty, length, resident),
            2 => add(HeapPart::Muzzy, length, resident),
            _ => add(HeapPart::Released, length, resident),
        }
        let own_class = if state == 0 { class } else { version.none() };
        // For a free run, either the tree or the record keeps its former values.
        let was = if state != 0 && random.below(3) == 0 { 1 } else { 0 };
        let flags = random.below(2) << 13;
        let bits =
            small << 12 | flags | state << version.state | own_class << version.class | free << (version.class + 8);
        image.put(record, bits);
        image.put(record + 8, at);
        image.put(record + 16, length | random.below(PAGE));
        let tree_class = if was == 1 { random.below(28) } else { own_class };
        let word = tree_class << 48 | record | (small | was);
        let pages = at / PAGE..(at + length) / PAGE;
        let entered: Vec<u64> = match small {
            1 => pages.collect(),
            _ => vec![pages.start, pages.end - 1],
        };
        for page in entered {
            let leaf = leaves[(page / (GIB / PAGE) - FIRST_GIB) as usize];
            image.put(leaf + page % (GIB / PAGE) * 8, word);
        }
        // A cleared word.
        if small == 0 && length > 2 * PAGE {
            let page = at / PAGE + 1;
            image.put(
                leaves[(page / (GIB / PAGE) - FIRST_GIB) as usize] + page % (GIB / PAGE) * 8,
                version.none() << 48,
            );
        }
        record += 128;
        at += length;
    }
    let last = at;
    image.put(RECORDS, 8 << 20);
    image.put(RECORDS + 8, RECORDS + (16 << 20));
    // The second block has no record in it; the first block refers to it.
    image.put(RECORDS + (16 << 20), 2 << 20);
    let present = |from: u64, length: u64| image.pages.range(from / PAGE..(from + length) / PAGE).count() as u64 * PAGE;
    let resident = present(RECORDS, 8 << 20) + present(RECORDS + (16 << 20), 2 << 20);
    sums.insert(HeapPart::Records, (10 << 20, resident));
    // The root lies anywhere in the data. Around it are numbers, and pointers to other memory.
    let root = 8 * (100 + random.below(100)) as usize;
    let mut data = vec![0; root + LEAF as usize + 4096];
    for word in data[..root].as_chunks_mut::<8>().0 {
        *word = [random.below(1000), RECORDS + 64 * random.below(90_000), HEAP + 64 * random.below(9000)]
            [random.below(3) as usize]
            .to_le_bytes();
    }
    for (gib, leaf) in (FIRST_GIB..).zip(leaves) {
        data[root + 8 * gib as usize..][..8].copy_from_slice(&leaf.to_le_bytes());
    }
    let range = |start, end| AddressRange::new(Avma(start), Avma(end));
    let anonymous = vec![range(RECORDS, RECORDS + (8 << 20)), range(RECORDS + (16 << 20), RECORDS + (18 << 20))];
    let anonymous = [anonymous, vec![range(first, last.max(first + LEAF))]].concat();
    Made { image, data, anonymous, sums }
}

fn walked(made: &Made) -> Result<plimsoll_facts::snapshot::OpenedHeap, Unopened> {
    let data = [Data { base: Avma(DATA), bytes: made.data.clone() }];
    walk(&made.image, &data, &Anonymous(made.anonymous.clone()))
}

#[test]
fn heaps_of_each_version_are_summed_to_the_byte() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..8 {
        for version in VERSIONS {
            let made = made(&mut random, version, 40 + 60 * round);
            let heap = walked(&made).expect("a heap");
            let found: Sums =
                heap.parts.iter().map(|(part, bytes)| (*part, (bytes.length.0, bytes.resident.0))).collect();
            assert_eq!(found, made.sums, "size class at bit {}, quantum {}", version.class, version.quantum);
            let lengths: Bytes = heap.ranges.iter().map(|range| range.length()).sum();
            assert_eq!(lengths, heap.parts.values().map(|part| part.length).sum());
            assert!(heap.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}

#[test]
fn other_memory_is_not_taken_for_a_heap() {
    let mut random = Random(5);
    let mut made = made(&mut random, VERSIONS[3], 300);
    // The same heap without its root.
    let root = made.data.len() - LEAF as usize - 4096;
    made.data[root..].fill(0);
    assert_eq!(walked(&made), Err(Unopened::NoTree));
    made.data.fill(0);
    assert_eq!(walked(&made), Err(Unopened::NoTree));
}

#[test]
fn a_heap_with_an_unknown_layout_is_not_read() {
    let mut random = Random(6);
    // The size class is where no known version has it, and the state before it is wider.
    let version = Version { class: 33, state: 17, quantum: 16 };
    let made = made(&mut random, version, 300);
    assert_eq!(walked(&made), Err(Unopened::UnknownRecords));
}

#[test]
fn overwritten_records_never_panic_and_never_sum_to_more_than_there_is() {
    let mut random = Random(7);
    let (mut opened, mut closed) = (0, 0);
    for round in 0..80 {
        let mut made = made(&mut random, VERSIONS[round % 4], 120);
        let pages: Vec<u64> = made.image.pages.keys().copied().filter(|page| page * PAGE < HEAP).collect();
        for _ in 0..random.below(500) {
            let page = pages[random.below(pages.len() as u64) as usize];
            let bytes = made.image.pages.get_mut(&page).expect("it is there");
            let at = random.below(PAGE / 8) as usize * 8;
            let word = [random.below(u64::MAX), HEAP + GIB, RECORDS + 0xc0, 0][random.below(4) as usize];
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let present: u64 = made.image.pages.len() as u64 * PAGE;
        match walked(&made) {
            Ok(heap) => {
                opened += 1;
                assert_bounded(&heap, present);
            }
            Err(_) => closed += 1,
        }
    }
    assert!(opened > 10 && closed > 10, "{opened} {closed}");
}
