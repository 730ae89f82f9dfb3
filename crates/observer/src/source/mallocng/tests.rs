//! Heaps built word by word in mallocng's layout, and the sums that the walk must find.

use super::context::WalkError;
use super::walk::walk;
use crate::random::Random;
use crate::source::heap_data::{Anonymous, Data};
use crate::source::made_image::Image;
use plimsoll_facts::snapshot::{HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::PAGE;

const DATA: u64 = 0x7f00_0000_0000;
const AREAS: u64 = 0x5555_8000_0000;
const HEAP: u64 = 0x7e00_0000_0000;
const METAS: u64 = 101;
/// Class 5 has slots of 96 bytes, class 24 of 2,336, class 43 of 65,520.
const CLASSES: [(u64, u64); 3] = [(5, 96), (24, 2336), (43, 4095 * 16)];

struct Made {
    image: Image,
    data: Vec<u8>,
    secret: u64,
    metas: u64,
    end: u64,
    live: u64,
    beside: u64,
}

impl Made {
    /// The address of the next free record.
    fn meta(&mut self) -> u64 {
        let (area, number) = (self.metas / METAS, self.metas % METAS);
        let at = AREAS + area * PAGE;
        if number == 0 {
            self.image.put(at, self.secret);
            self.image.put(at + 16, METAS);
            if area > 0 {
                self.image.put(at - PAGE + 8, at);
            }
        }
        self.metas += 1;
        at + 24 + number * 40
    }

    /// Bits of `free`: slots that hold no block, split over both masks.
    fn group(&mut self, start: u64, class: u64, slots: u64, free: u64, pages: u64) {
        let meta = self.meta();
        self.image.put(start, meta);
        self.image.put(meta + 16, start);
        self.image.put(meta + 24, free & 0x5555_5555 | (free & 0xaaaa_aaaa) << 32);
        self.image.put(meta + 32, (slots - 1) | 1 << 5 | class << 6 | pages << 12);
    }

    fn touch(&mut self, start: u64, end: u64) {
        (start / PAGE..end.div_ceil(PAGE)).for_each(|page| self.image.touch(page));
    }
}

fn made(random: &mut Random, groups: u64, distance: usize) -> Made {
    let secret = random.below(u64::MAX - 1) + 1;
    let mut data = vec![0; 4096];
    let at = 8 * random.below(64) as usize;
    data[at..at + 8].copy_from_slice(&secret.to_le_bytes());
    data[at + 8 * distance..][..8].copy_from_slice(&AREAS.to_le_bytes());
    let mut made = Made { image: Image::default(), data, secret, metas: 0, end: HEAP, live: 0, beside: 0 };
    for _ in 0..groups {
        let start = made.end;
        let (class, stride) = CLASSES[random.below(3) as usize];
        let slots = 2 + random.below(6);
        let pages = (16 + slots * stride).div_ceil(PAGE);
        // A block with a mapping of its own.
        let is_alone = random.below(4) == 0;
        let (pages, mut live) = match is_alone {
            true => {
                let pages = 33 + random.below(20);
                made.group(start, 63, 1, 0, pages);
                (pages, pages * PAGE - 16)
            }
            false => {
                let free = random.below(1 << slots);
                made.group(start, class, slots, free, pages);
                (pages, (slots - u64::from(free.count_ones())) * stride)
            }
        };
        // The first slot of 65,520 bytes may hold a group, and a slot of that group another one.
        let is_outer = !is_alone && class == 43 && made.taken(start) & 1 == 1 && random.below(2) == 0;
        if is_outer {
            let (inner, free) = (start + 16, random.below(1 << 5) & !1);
            made.group(inner, 24, 5, free, 0);
            live += (5 - u64::from(free.count_ones())) * 2336;
            live -= 65_520;
            let (innermost, free) = (inner + 16 + 32, random.below(1 << 3));
            made.group(innermost, 5, 3, free, 0);
            live += (3 - u64::from(free.count_ones())) * 96;
            live -= 2336;
        }
        let end = start + pages * PAGE;
        made.touch(start, end);
        made.live += live;
        made.beside += pages * PAGE - live;
        made.end = end + random.below(2) * PAGE;
    }
    made
}

impl Made {
    /// Taken slots of the group that was made last.
    fn taken(&self, start: u64) -> u64 {
        let page = &self.image.pages[&(start / PAGE)];
        let word = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        let meta = word(page, (start % PAGE) as usize);
        let page = &self.image.pages[&(meta / PAGE)];
        let (masks, bits) = (word(page, (meta % PAGE) as usize + 24), word(page, (meta % PAGE) as usize + 32));
        let all = (2u64 << (bits & 31)) - 1;
        all & !(masks | masks >> 32)
    }
}

fn walked(made: &Made) -> Result<OtherHeap, WalkError> {
    let range = |start: u64, end: u64| AddressRange::new(Avma(start), Avma(end));
    let anonymous = Anonymous(vec![range(AREAS, AREAS + 64 * PAGE), range(HEAP, made.end + PAGE)]);
    walk(&made.image, &[Data { base: Avma(DATA), bytes: made.data.clone() }], &anonymous)
}

#[test]
fn sums_equal_the_made_heaps() {
    let mut random = Random(1);
    for (groups, distance) in [(1, 7), (20, 8), (90, 7), (300, 8), (1000, 7)] {
        let made = made(&mut random, groups, distance);
        let heap = walked(&made).expect("a heap");
        assert_eq!(heap.part(HeapPart::Live).length, Bytes(made.live), "{groups}");
        assert_eq!(heap.part(HeapPart::Live).resident, Bytes(made.live), "{groups}");
        assert_eq!(heap.part(HeapPart::Beside).length, Bytes(made.beside), "{groups}");
        assert_eq!(heap.part(HeapPart::Records).length, Bytes(made.metas.div_ceil(METAS) * PAGE), "{groups}");
        let lengths: Bytes = heap.ranges.iter().map(|range| range.length()).sum();
        assert_eq!(heap.parts.values().map(|part| part.length).sum::<Bytes>(), lengths);
    }
}

#[test]
fn pages_that_were_never_touched_are_not_resident() {
    let mut made = made(&mut Random(3), 1, 7);
    let start = made.end + 16 * PAGE;
    // A block of 40 pages, of which the program wrote 10; the group's own word is on the first.
    made.group(start, 63, 1, 0, 40);
    made.touch(start, start + 10 * PAGE);
    let before = made.live;
    made.end = start + 40 * PAGE;
    let heap = walked(&made).expect("a heap");
    assert_eq!(heap.part(HeapPart::Live).length, Bytes(before + 40 * PAGE - 16));
    assert_eq!(heap.part(HeapPart::Live).resident, Bytes(before + 10 * PAGE - 16));
}

#[test]
fn a_mapping_that_has_records_or_begins_in_another_one_is_stale() {
    let mut made = made(&mut Random(3), 5, 7);
    let area = AREAS + 40 * PAGE;
    made.image.put(area, made.secret);
    made.image.put(AREAS + 8, area);
    made.group(HEAP + (1 << 30), 63, 1, 0, 40);
    made.end = HEAP + (1 << 30) + 100 * PAGE;
    let heap = walked(&made).expect("a heap");
    assert_eq!(heap.part(HeapPart::Live).length, Bytes(made.live + 40 * PAGE - 16));
    assert_eq!(heap.part(HeapPart::Records).length, Bytes(2 * PAGE));
    for stale in [area - 2 * PAGE, area - 3 * PAGE, HEAP + (1 << 30) + PAGE, HEAP + (1 << 30) + 39 * PAGE] {
        made.group(stale, 63, 1, 0, 4);
    }
    let same = walked(&made).expect("a heap");
    for part in [HeapPart::Live, HeapPart::Beside, HeapPart::Records] {
        assert_eq!(same.part(part).length, heap.part(part).length, "{part:?}");
    }
    // Groups directly beside these have mappings of their own, and count.
    for group in [area + 2 * PAGE, HEAP + (1 << 30) + 40 * PAGE] {
        made.group(group, 63, 1, 0, 4);
    }
    let more = walked(&made).expect("a heap");
    assert_eq!(more.part(HeapPart::Live).length, heap.part(HeapPart::Live).length + Bytes(2 * (4 * PAGE - 16)));
}

#[test]
fn a_heap_without_its_secret_is_refused_with_the_reason() {
    let mut other = made(&mut Random(4), 300, 7);
    other.image.put(AREAS + PAGE, 1);
    assert_eq!(walked(&other), Err(WalkError::Broken));
    other.image.put(AREAS, 1);
    assert_eq!(walked(&other), Err(WalkError::NoContext));
    // The list of areas leads back to its first area.
    let mut other = made(&mut Random(5), 300, 7);
    other.image.put(AREAS + PAGE + 8, AREAS);
    assert_eq!(walked(&other), Err(WalkError::Broken));
}

#[test]
fn overwritten_records_never_panic_and_never_sum_to_more_than_there_is() {
    let mut random = Random(7);
    let (mut opened, mut closed) = (0, 0);
    for _ in 0..120 {
        let mut made = made(&mut random, 60, 7);
        for _ in 0..1 + random.below(10) {
            // One in sixteen is the first area's head.
            let words = if random.below(16) == 0 { 2 } else { made.metas * 5 };
            let at = AREAS + random.below(words) * 8;
            let start = HEAP + random.below((made.end - HEAP) / 16) * 16;
            let word = [random.below(u64::MAX), start, AREAS, u64::MAX, 0, 31 | 3 << 12][random.below(6) as usize];
            made.image.put(at, word);
        }
        match walked(&made) {
            Ok(heap) => {
                opened += 1;
                let lengths: Bytes = heap.parts.values().map(|part| part.length).sum();
                assert_eq!(lengths, heap.ranges.iter().map(|range| range.length()).sum());
                assert!(heap.parts.values().all(|part| part.resident <= part.length));
                assert!(heap.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
            Err(_) => closed += 1,
        }
    }
    assert!(opened > 20 && closed > 10, "{opened} {closed}");
}
