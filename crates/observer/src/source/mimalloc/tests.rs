//! Heaps built word by word as the builds of mimalloc lay them out, and the sums that their maker kept.

use std::collections::BTreeMap;

use super::shape::{FREE, RECORDS, Record, SLICE};
use super::walk::{Unread, WalkError, walk};
use crate::random::Random;
use crate::source::heap_data::{Anonymous, Data};
use crate::source::made_image::{Image, assert_bounded};
use plimsoll_facts::snapshot::{HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::PAGE;

const DATA: u64 = 0x7f00_0000_0000;
const ARENA: u64 = 0x2_0000_0000;
const OWNER: u64 = 0x7f12_3456_7740;
const SIZES: [u64; 8] = [8, 48, 112, 1024, 5120, 16384, 40960, 65536];

type Sums = BTreeMap<HeapPart, u64>;

/// Offsets of one build's fields. `links`: bytes between the cookie and the next field.
#[derive(Clone, Copy)]
struct Build {
    record: Record,
    records: u64,
    links: u64,
    slices: u64,
    owner_first: bool,
    has_arenas: bool,
}

/// 2.0.6, 2.0.9 and the same with keys, 2.1.7, 2.2.4 and the same with keys.
fn builds() -> [Build; 6] {
    let old = Build { record: RECORDS[0], records: 264, links: 0, slices: 512, owner_first: false, has_arenas: false };
    let new = Build { record: RECORDS[1], has_arenas: true, ..old };
    [
        Build { records: 384, slices: 1024, owner_first: true, ..old },
        old,
        Build { record: RECORDS[2], ..old },
        new,
        Build { records: 296, links: 16, ..new },
        Build { record: RECORDS[4], records: 296, links: 16, ..new },
    ]
}

struct Made {
    build: Build,
    image: Image,
    data: Vec<u8>,
    secret: u64,
    segments: u64,
    /// Segments with pages in use.
    held: Vec<u64>,
    sums: Sums,
}

impl Made {
    fn new(build: Build, random: &mut Random) -> Made {
        let secret = random.below(u64::MAX) | 1 << 63;
        let data = (0..600).flat_map(|_| random.below(1 << 40).to_le_bytes()).collect();
        Made { build, image: Image::default(), data, secret, segments: 0, held: Vec::new(), sums: Sums::new() }
    }

    fn unit(&self) -> u64 {
        self.build.slices * SLICE
    }

    /// Slices that the header and the records take.
    fn first(&self) -> u64 {
        let records = (self.build.slices + 1) * self.build.record.bytes as u64;
        (self.build.records + records).div_ceil(SLICE)
    }

    fn base(&self) -> u64 {
        ARENA + self.segments * self.unit()
    }

    fn put_data(&mut self, word: usize, value: u64) {
        self.data[8 * word..][..8].copy_from_slice(&value.to_le_bytes());
    }

    fn half(&mut self, at: u64, half: u64, width: u64) {
        self.image.touch(at / PAGE);
        let page = self.image.pages.get_mut(&(at / PAGE)).expect("touched");
        page[(at % PAGE) as usize..][..width as usize].copy_from_slice(&half.to_le_bytes()[..width as usize]);
    }

    fn add(&mut self, part: HeapPart, bytes: u64) {
        *self.sums.entry(part).or_default() += bytes;
    }

    fn header(&mut self, used: u64, slices: u64, is_huge: bool) {
        let (base, build, first) = (self.base(), self.build, self.first());
        let at = |offset: u64| base + build.records - offset;
        self.image.put(at(48 + build.links), base ^ self.secret);
        self.image.put(at(56 + build.links), used);
        self.image.put(at(40), slices);
        self.image.put(at(32), first);
        self.image.put(at(24), is_huge.into());
        let ends = [slices.min(build.slices), if used == 0 { 0 } else { OWNER }];
        let [earlier, later] = if build.owner_first { [ends[1], ends[0]] } else { ends };
        self.image.put(at(16), earlier);
        self.image.put(at(8), later);
        if build.has_arenas {
            self.image.put(base, self.segments);
            self.image.put(base + 16, 6 << 32);
        }
        self.slice(0, first, 65536);
    }

    fn slice(&mut self, number: u64, slices: u64, block: u64) -> u64 {
        let record = self.build.record;
        let at = self.base() + self.build.records + number * record.bytes as u64;
        self.half(at, slices, 4);
        self.half(at + 4, 0, 4);
        self.half(at + record.block as u64, block, if record.used_is_half { 4 } else { 8 });
        at
    }

    /// A page of `slices` slices with `used` blocks in use; other threads have freed `elsewhere` of them.
    fn page(&mut self, number: u64, slices: u64, block: u64, used: u64, elsewhere: u64, random: &mut Random) {
        let record = self.build.record;
        let at = self.slice(number, slices, block);
        let start = self.base() + number * SLICE;
        let reserved = slices * SLICE / block;
        let capacity = used + random.below(reserved - used + 1);
        for (offset, number) in [(10, capacity), (12, reserved)] {
            self.half(at + offset, number, 2);
        }
        self.half(at + record.used as u64, used, if record.used_is_half { 4 } else { 2 });
        if capacity > used {
            self.image.put(at + FREE as u64, start + (capacity - 1) * block);
        }
        let keys = record.keys.map(|keys| {
            let words = [random.below(u64::MAX), random.below(u64::MAX)];
            self.image.put(at + keys as u64, words[0]);
            self.image.put(at + keys as u64 + 8, words[1]);
            words
        });
        let encoded = |pointer: u64| match keys {
            None => pointer,
            Some([first, second]) => {
                let pointer = if pointer == 0 { at } else { pointer };
                (pointer ^ second).rotate_left((first % 64) as u32).wrapping_add(first)
            }
        };
        // The first block that another thread frees goes into the owner's list, the others into the page's.
        let listed = elsewhere.saturating_sub(1);
        let blocks: Vec<u64> = (0..listed).map(|number| start + number * block).collect();
        for (number, block) in blocks.iter().enumerate() {
            let next = blocks.get(number + 1).copied().unwrap_or(0);
            self.image.put(*block, encoded(next));
        }
        let flag = if elsewhere > 0 { 2 } else { 0 };
        self.image.put(at + record.thread_free as u64, blocks.first().copied().unwrap_or(0) | flag);
        let (length, live) = (slices * SLICE, (used - elsewhere) * block);
        for page in (start / PAGE..(start + capacity * block).div_ceil(PAGE)).filter(|_| random.below(4) > 0) {
            self.image.touch(page);
        }
        match live {
            0 => self.free(start, length),
            live => {
                self.add(HeapPart::Live, live);
                self.add(HeapPart::Beside, length - live);
            }
        }
    }

    /// Called at the end, when all resident pages are known.
    fn free(&mut self, start: u64, length: u64) {
        let resident = self.image.resident(start, start + length);
        self.add(HeapPart::Dirty, resident);
        self.add(HeapPart::Released, length - resident);
    }

    fn normal(&mut self, random: &mut Random) {
        let (mut number, mut used) = (self.first(), 0);
        while number < self.build.slices {
            let block = SIZES[random.below(8) as usize];
            let slices = if block <= 8192 { 1 } else { 8 };
            let left = self.build.slices - number;
            if random.below(3) == 0 || slices > left {
                let slices = if left <= 8 { left } else { 1 + random.below(left.min(100)) };
                self.slice(number, slices, 0);
                let start = self.base() + number * SLICE;
                for page in 0..random.below(4) {
                    self.image.touch(start / PAGE + page);
                }
                self.free(start, slices * SLICE);
                number += slices;
                continue;
            }
            let blocks = 1 + random.below((slices * SLICE / block).min(60));
            let elsewhere = if random.below(2) == 0 { random.below(blocks + 1) } else { 0 };
            self.page(number, slices, block, blocks, elsewhere, random);
            number += slices;
            used += 1;
        }
        self.header(used, self.build.slices, false);
        self.add(HeapPart::Records, self.first() * SLICE);
        self.held.push(self.base());
        self.segments += 1;
    }

    fn huge(&mut self, slices: u64, random: &mut Random) {
        // mimalloc 2.0 caps a size of 32 bits like this.
        let block = match self.build.record.used_is_half {
            true => ((slices - self.first()) * SLICE).min(2 << 30),
            false => (slices - self.first()) * SLICE,
        };
        let at = self.slice(self.first(), slices - self.first(), block);
        self.half(at + 10, 1, 2);
        self.half(at + 12, 1, 2);
        self.half(at + self.build.record.used as u64, 1, 2);
        self.header(1, slices, true);
        self.add(HeapPart::Records, self.first() * SLICE);
        self.add(HeapPart::Live, (slices - self.first()) * SLICE);
        self.held.push(self.base());
        // The block contains old headers of former segments.
        let units = (slices * SLICE).div_ceil(self.unit());
        let first = self.segments;
        for number in first + 1..first + units {
            self.segments = number;
            self.header(random.below(3), self.build.slices, false);
        }
        let end = first + units;
        self.segments = first;
        let (from, to) = (self.base() + slices * SLICE, self.base() + units * self.unit());
        if self.build.has_arenas {
            self.free(from, to - from);
        }
        self.segments = end;
    }

    fn given_back(&mut self) {
        self.header(0, self.build.slices, false);
        self.slice(self.first(), self.build.slices - self.first(), 1);
        self.free(self.base(), self.unit());
        self.segments += 1;
    }

    /// The secret, and the arena's record: its begin, then its length.
    fn done(mut self) -> Made {
        self.put_data(100, self.secret);
        if self.build.has_arenas {
            let units = self.segments + 2;
            self.free(self.base(), 2 * self.unit());
            self.segments = units;
            self.put_data(200, ARENA);
            self.put_data(201, units);
        }
        self
    }

    fn walked(&self) -> Result<(OtherHeap, Option<Unread>), WalkError> {
        let end = self.base() + 16 * self.unit();
        let anonymous = Anonymous(vec![AddressRange::new(Avma(ARENA - PAGE), Avma(end))]);
        let data = || vec![Data { base: Avma(DATA), bytes: self.data.clone() }];
        walk(&self.image, data, &anonymous, &anonymous)
    }
}

fn made(build: Build, random: &mut Random) -> Made {
    let mut made = Made::new(build, random);
    for _ in 0..3 {
        made.normal(random);
    }
    // A huge segment whose length isn't a multiple of the unit.
    made.huge(2 * build.slices + 129, random);
    made.given_back();
    made.normal(random);
    made.done()
}

#[test]
fn every_build_is_summed_as_its_maker_did() {
    let mut random = Random(1);
    for (number, build) in builds().into_iter().enumerate() {
        let made = made(build, &mut random);
        let (heap, unread) = made.walked().unwrap_or_else(|closed| panic!("{number}: {closed:?}"));
        assert_eq!(unread, None, "{number}");
        for part in HeapPart::ALL {
            let truth = made.sums.get(&part).copied().unwrap_or_default();
            assert_eq!(heap.part(part).length.0, truth, "{number}: {}", part.name());
        }
        let resident: Bytes = heap.parts.values().map(|part| part.resident).sum();
        let ranges = heap.ranges.iter().map(|range| made.image.resident(range.start.0, range.end.0));
        assert_eq!(resident.0, ranges.sum::<u64>(), "{number}");
        assert_eq!(heap.purgeable(), heap.part(HeapPart::Dirty).length);
    }
}

/// A single segment can't agree with others, so only the secret in the data proves it.
#[test]
fn a_secret_that_the_data_does_not_have_proves_nothing() {
    let mut random = Random(2);
    let mut made = Made::new(builds()[1], &mut random);
    made.normal(&mut random);
    let mut made = made.done();
    assert!(made.walked().is_ok());
    made.put_data(100, 7);
    assert_eq!(made.walked(), Err(WalkError::NoSecret));
}

#[test]
fn segments_with_other_sums_stay_closed() {
    let mut random = Random(3);
    for build in builds() {
        let mut made = made(build, &mut random);
        // One of five segments counts one page more than it has.
        let base = made.held[0];
        let at = base + build.records - 56 - build.links;
        let used = u64::from_le_bytes(*made.image.pages[&(at / PAGE)][(at % PAGE) as usize..].first_chunk().unwrap());
        made.image.put(at, used + 1);
        assert_eq!(made.walked(), Err(WalkError::OtherSums));
    }
    let nothing = Made::new(builds()[1], &mut random).done();
    assert_eq!(nothing.walked(), Err(WalkError::NoSegments));
}

#[test]
fn an_arena_of_unknown_length_is_reported() {
    let mut random = Random(4);
    let mut made = made(builds()[4], &mut random);
    made.put_data(201, 0);
    let (heap, unread) = made.walked().expect("a heap");
    assert!(unread.is_some_and(|(reason, _)| reason.contains("arenas")), "{unread:?}");
    assert_eq!(heap.part(HeapPart::Live).length.0, made.sums[&HeapPart::Live]);
    assert!(heap.part(HeapPart::Released).length.0 < made.sums[&HeapPart::Released]);
}

#[test]
fn overwritten_records_never_panic_and_never_sum_to_more_than_there_is() {
    let mut random = Random(5);
    let (mut opened, mut closed) = (0, 0);
    for round in 0..12 {
        let mut made = made(builds()[round % 6], &mut random);
        for _ in 0..1 + random.below(40) {
            let base = made.held[random.below(made.held.len() as u64) as usize];
            let within = [50, 900][random.below(2) as usize];
            let at = base + random.below(within) * 8;
            let far = [random.below(u64::MAX), base, 1, u64::MAX, 0, OWNER, 1 << 32];
            made.image.put(at, far[random.below(7) as usize]);
        }
        match made.walked() {
            Ok((heap, _)) => {
                opened += 1;
                assert_bounded(&heap, made.image.pages.len() as u64 * PAGE);
            }
            Err(_) => closed += 1,
        }
    }
    assert!(opened > 2 && closed > 2, "{opened} {closed}");
}
