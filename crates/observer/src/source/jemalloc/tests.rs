//! Heaps built word by word, in the layouts of three versions of jemalloc and in both shapes of its tree. The tests
//! also have the sums that the walk must find.

use std::collections::BTreeMap;

use super::walk::{WalkError, walk};
use crate::random::Random;
use crate::source::heap_data::{Anonymous, Data};
use crate::source::made_image::{Image, assert_bounded};
use plimsoll_facts::snapshot::{HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::PAGE;

const GIB: u64 = 1 << 30;
/// The heap crosses this boundary, of both a GiB and the 4 TiB that a node covers.
const BOUNDARY: u64 = 31 << 42;
const HEAP: u64 = BOUNDARY - GIB;
/// Two blocks of records below the heap: leaves, nodes, then records.
const RECORDS: u64 = HEAP - (64 << 20);
const FIRST: u64 = 16 << 20;
const SECOND: u64 = RECORDS + (32 << 20);
const LEAF: u64 = 2 << 20;
const NODE: u64 = 256 << 10;
const DATA: u64 = 0x5555_0000_0000;

/// Position of state and size class in a version's records, width of the state, and the quantum; whether its tree is
/// that of 57-bit addresses.
#[derive(Clone, Copy, Debug)]
struct Version {
    class: u32,
    state: u32,
    quantum: u64,
    wide: bool,
}

const VERSIONS: [Version; 6] = [
    Version { class: 17, state: 15, quantum: 16, wide: false },
    Version { class: 18, state: 16, quantum: 16, wide: false },
    Version { class: 18, state: 16, quantum: 8, wide: false },
    Version { class: 20, state: 17, quantum: 16, wide: false },
    Version { class: 20, state: 17, quantum: 16, wide: true },
    Version { class: 20, state: 17, quantum: 8, wide: true },
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

    /// Enters a page into the leaf before or behind the boundary.
    fn enter(self, image: &mut Image, leaves: [u64; 2], page: u64, entry: Entered) {
        let leaf = leaves[usize::from(page * PAGE >= BOUNDARY)];
        let Entered { record, class, flags } = entry;
        if self.wide {
            let at = leaf + page % (1 << 15) * 16;
            image.put(at, record);
            image.put(at + 8, class << 5 | flags);
        } else {
            image.put(leaf + page % (1 << 18) * 8, class << 48 | record | flags);
        }
    }

    /// Writes the root and, with 57-bit addresses, the nodes.
    fn plant(self, image: &mut Image, leaves: [u64; 2], root: &mut [u8]) {
        for (leaf, at) in leaves.into_iter().zip([BOUNDARY - PAGE, BOUNDARY]) {
            let (index, child) = if self.wide {
                let node = RECORDS + 2 * LEAF + 0x1c0 + (at >> 42) % 2 * NODE;
                image.put(node + (at >> 27) % (1 << 15) * 8, leaf);
                (at >> 42, node)
            } else {
                (at >> 30, leaf)
            };
            root[8 * index as usize..][..8].copy_from_slice(&child.to_le_bytes());
        }
    }
}

#[derive(Clone, Copy)]
struct Entered {
    record: u64,
    class: u64,
    flags: u64,
}

type Sums = BTreeMap<HeapPart, (u64, u64)>;

struct Made {
    image: Image,
    data: Vec<u8>,
    anonymous: Vec<AddressRange>,
    sums: Sums,
}

/// A heap of `extents` extents in two leaves, with touched and untouched pages, and other words beside it that look
/// similar.
fn made(random: &mut Random, version: Version, extents: u64) -> Made {
    made_of(random, version, extents, extents * 8, |random, _| {
        let kind = random.below(5);
        (kind, if kind == RUN { random.below(28) } else { 28 + random.below(20) })
    })
}

/// Kinds of extents: runs, large ones, and free ones.
const RUN: u64 = 0;
const LARGE: u64 = 1;

/// Like `made`, with `below` pages before the boundary. `pick` chooses each extent's kind and size class.
fn made_of(
    random: &mut Random,
    version: Version,
    extents: u64,
    below: u64,
    mut pick: impl FnMut(&mut Random, u64) -> (u64, u64),
) -> Made {
    let mut image = Image::default();
    let mut sums = Sums::new();
    let mut add = |part, length: u64, resident: u64| {
        let sum: &mut (u64, u64) = sums.entry(part).or_default();
        (sum.0, sum.1) = (sum.0 + length, sum.1 + resident);
    };
    let sizes = version.sizes();
    let leaves = [RECORDS + 0xc0, RECORDS + LEAF + 0xc0];
    let mut record = RECORDS + (6 << 20);
    let mut at = BOUNDARY - below * PAGE;
    let first = at;
    for number in 0..extents {
        let (kind, class) = pick(random, number);
        let size = sizes[class as usize];
        let (state, small, length, free) = match kind {
            RUN => {
                let pages = (1..).find(|pages| pages * PAGE >= size && pages * PAGE % size * 8 < size).unwrap();
                let blocks = pages * PAGE / size;
                (0, 1, pages * PAGE, random.below(blocks.min(1023) + 1))
            }
            LARGE if size.is_multiple_of(PAGE) => (0, 0, size + PAGE * random.below(2), 0),
            LARGE => continue,
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
        let head_and_state = if version.class == 20 { random.below(2) << 1 | state << 2 } else { 0 };
        let entry = Entered { record, class: tree_class, flags: small | was | head_and_state };
        let pages = at / PAGE..(at + length) / PAGE;
        let entered: Vec<u64> = match small {
            1 => pages.collect(),
            _ => vec![pages.start, pages.end - 1],
        };
        for page in entered {
            version.enter(&mut image, leaves, page, entry);
        }
        if small == 0 && length > 2 * PAGE {
            let cleared = Entered { record: 0, class: version.none(), flags: 0 };
            version.enter(&mut image, leaves, at / PAGE + 1, cleared);
        }
        record += 128;
        at += length;
    }
    let last = at;
    assert!((first + 1..last).contains(&BOUNDARY));
    let mut top = vec![0; LEAF as usize];
    version.plant(&mut image, leaves, &mut top);
    image.put(RECORDS, FIRST);
    image.put(RECORDS + 8, SECOND);
    // The second block has no record in it; the first block refers to it.
    image.put(SECOND, 2 << 20);
    let present = |from: u64, length: u64| image.pages.range(from / PAGE..(from + length) / PAGE).count() as u64 * PAGE;
    let resident = present(RECORDS, FIRST) + present(SECOND, 2 << 20);
    sums.insert(HeapPart::Records, (FIRST + (2 << 20), resident));
    // The root lies anywhere in the data. Around it are numbers, and pointers to other memory.
    let root = 8 * (100 + random.below(100)) as usize;
    let mut data = vec![0; root + LEAF as usize + 4096];
    for word in data[..root].as_chunks_mut::<8>().0 {
        *word = [random.below(1000), RECORDS + 64 * random.below(90_000), HEAP + 64 * random.below(9000)]
            [random.below(3) as usize]
            .to_le_bytes();
    }
    data[root..][..top.len()].copy_from_slice(&top);
    let range = |start, end| AddressRange::new(Avma(start), Avma(end));
    let anonymous = vec![range(RECORDS, RECORDS + FIRST), range(SECOND, SECOND + (2 << 20))];
    let anonymous = [anonymous, vec![range(first, last.max(first + LEAF))]].concat();
    Made { image, data, anonymous, sums }
}

fn walked(made: &Made) -> Result<OtherHeap, WalkError> {
    let data = [Data { base: Avma(DATA), bytes: made.data.clone() }];
    walk(&made.image, &data, &Anonymous(made.anonymous.clone()))
}

fn sums(heap: &OtherHeap) -> Sums {
    heap.parts.iter().map(|(part, bytes)| (*part, (bytes.length.0, bytes.resident.0))).collect()
}

#[test]
fn heaps_of_each_version_are_summed_to_the_byte() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..8 {
        for version in VERSIONS {
            let made = made(&mut random, version, 40 + 60 * round);
            let heap = walked(&made).expect("a heap");
            assert_eq!(sums(&heap), made.sums, "{version:?}");
            let lengths: Bytes = heap.ranges.iter().map(|range| range.length()).sum();
            assert_eq!(lengths, heap.parts.values().map(|part| part.length).sum());
            assert!(heap.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}

/// The records of a run fit the tables of all builds, if these divide its length into enough blocks.
#[test]
fn a_heap_of_blocks_of_one_size_is_summed_to_the_byte() {
    let mut random = Random(11);
    for version in VERSIONS {
        for size in [64, 320, 1024, 3584] {
            let class = version.sizes().iter().position(|one| *one == size).expect("a size class") as u64;
            let made = made_of(&mut random, version, 300, 150, |_, _| (RUN, class));
            assert_eq!(walked(&made).map(|heap| sums(&heap)), Ok(made.sums.clone()), "{version:?}, {size}");
        }
    }
}

/// Runs of 16 bytes fit the tables of both quanta. The records that decide come after them, in the other leaf.
#[test]
fn the_records_of_all_leaves_decide_on_the_size_classes() {
    const RUNS: u64 = 20_000;
    let mut random = Random(12);
    for version in [VERSIONS[2], VERSIONS[3]] {
        let pick = |random: &mut Random, number| match number {
            ..RUNS => (RUN, 1),
            _ => (LARGE, 28 + random.below(8)),
        };
        let made = made_of(&mut random, version, RUNS + 2000, RUNS, pick);
        assert_eq!(walked(&made).map(|heap| sums(&heap)), Ok(made.sums.clone()), "{version:?}");
    }
}

#[test]
fn other_memory_is_not_taken_for_a_heap() {
    for version in [VERSIONS[3], VERSIONS[4]] {
        let made = || made(&mut Random(5), version, 300);
        // The same heap without its root.
        let mut rootless = made();
        let root = rootless.data.len() - LEAF as usize - 4096;
        rootless.data[root..].fill(0);
        assert_eq!(walked(&rootless), Err(WalkError::NoTree), "{version:?}");
        rootless.data.fill(0);
        assert_eq!(walked(&rootless), Err(WalkError::NoTree), "{version:?}");
        // The root's two words are exchanged.
        let mut swapped = made();
        let (first, second) = if version.wide { (30, 31) } else { (BOUNDARY / GIB - 1, BOUNDARY / GIB) };
        let at = |index: u64| root + 8 * index as usize;
        let word: [u8; 8] = swapped.data[at(first)..][..8].try_into().unwrap();
        swapped.data.copy_within(at(second)..at(second) + 8, at(first));
        swapped.data[at(second)..][..8].copy_from_slice(&word);
        assert_eq!(walked(&swapped), Err(WalkError::NoTree), "{version:?}");
    }
}

/// A node whose leaf is at the position of another one.
#[test]
fn a_leaf_below_the_wrong_word_of_a_node_is_no_tree() {
    let mut made = made(&mut Random(5), VERSIONS[4], 300);
    let node = RECORDS + 2 * LEAF + 0x1c0 + NODE;
    made.image.put(node, 0);
    made.image.put(node + 8, RECORDS + LEAF + 0xc0);
    assert_eq!(walked(&made), Err(WalkError::NoTree));
}

#[test]
fn a_heap_with_an_unknown_layout_is_not_read() {
    let mut random = Random(6);
    // The size class is where no known version has it, and the state before it is wider.
    let version = Version { class: 33, state: 17, quantum: 16, wide: false };
    let made = made(&mut random, version, 300);
    assert_eq!(walked(&made), Err(WalkError::UnknownRecords));
}

#[test]
fn overwritten_records_never_panic_and_never_sum_to_more_than_there_is() {
    let mut random = Random(7);
    let (mut opened, mut closed) = (0, 0);
    for round in 0..80 {
        let mut made = made(&mut random, VERSIONS[round % 6], 120);
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
