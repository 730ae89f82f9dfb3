//! Finds array buffers, including Node's `Buffer`s: V8 keeps lists of them, and malloc holds their memory. V8 itself maps
//! that of WebAssembly and of buffers that can be resized.
//!
//! ```text
//! Heap: … pointer … ──▶ ArrayBufferSweeper: heap, job, …, head, tail, bytes (young), …, head, tail, bytes (old), …
//!                                                     │     └────────────────────────────────┐
//!                                                     ▼                                      ▼
//!              ArrayBufferExtension: …, shared_ptr to the memory, next, length ──next──▶ … ──▶ the last, next 0
//! ```
//! The offsets of the pointer, the lists and the two fields depend on the version, so they are found by search. The
//! proof is a sum: the lengths from head to tail must equal the bytes that the list states. From V8 13 on, a length is
//! stored doubled, with a flag in its lowest bit.
//!
//! The memory is described by a BackingStore. Its first words, at an offset that depends on the version, are the start
//! and the length. What V8 maps starts at a page.
//!
//! The job of a collection takes the lists away from the sweeper, and keeps the swept ones until V8 merges them. In an
//! idle program, this may take long. Meanwhile, the sweeper has the newer buffers. So the lists of both count.

use super::layout::{read_words, words};
use crate::source::heap_data::KnownPages;
use plimsoll_facts::snapshot::ArrayBuffers;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, Untouched};

/// The heap's pointer to its sweeper lies within this many words.
const HEAP_WORDS: usize = 1024;
/// Words of a sweeper or job that contain its lists.
const WORDS: usize = 40;
/// Possible offsets of `next` in an extension, in words; the length follows it.
const NEXT: std::ops::RangeInclusive<usize> = 2..=6;
const EXTENSION: usize = *NEXT.end() + 2;
/// A list with one entry may look right by chance, so the sweeper must have a list with at least this many.
const AT_LEAST: u64 = 2;
/// Limit of extensions that are read for each heap.
const MOST: usize = 1 << 21;
/// A shorter buffer isn't looked up: WebAssembly has pages of this size.
const LARGE: u64 = 64 << 10;
/// The stated and the found sum may differ by one in this many bytes. The target keeps running, and V8 counts a
/// released buffer until the next sweep.
const MOVED: u64 = 64;
/// A list can't be found while it is being swept, so the search is repeated.
const ATTEMPTS: usize = 3;

/// The buffers of all isolates, found through their heaps, and those of them that start at a page. None if those of one
/// isolate were not found.
pub(crate) fn of<M: Memory>(
    memory: &M,
    heaps: impl IntoIterator<Item = u64>,
) -> Option<(ArrayBuffers, Vec<AddressRange>)> {
    let (mut all, mut at_pages) = (ArrayBuffers::default(), Vec::new());
    for heap in heaps {
        let (found, ranges) = (0..ATTEMPTS).find_map(|_| of_heap(memory, heap))?;
        all.bytes += found.bytes;
        all.count = all.count.saturating_add(found.count);
        at_pages.extend(ranges);
    }
    // Isolates may share a buffer.
    at_pages.sort_unstable_by_key(|range| (range.start, range.end));
    at_pages.dedup();
    Some((all, at_pages))
}

fn of_heap<M: Memory>(memory: &M, heap: u64) -> Option<(ArrayBuffers, Vec<AddressRange>)> {
    let untouched = Untouched::new(memory);
    let heap_words: [u64; HEAP_WORDS] = read_words(&untouched, heap)?;
    let mut pointers: Vec<u64> = heap_words.into_iter().filter(|word| is_pointer(*word)).collect();
    pointers.sort_unstable();
    pointers.dedup();
    let mut pages = Pages { memory: &untouched, known: KnownPages::default(), budget: MOST };
    pointers.into_iter().find_map(|at| {
        let sweeper: [u64; WORDS] = read_words(&untouched, at).filter(|words: &[u64; WORDS]| words[0] == heap)?;
        let job: Option<[u64; WORDS]> = match sweeper[1] {
            0 => None,
            job => Some(is_pointer(job).then(|| read_words(&untouched, job))??),
        };
        let mut layouts = NEXT.flat_map(|next| [1, 2].map(|unit| (next, unit)));
        layouts.find_map(|(next, unit)| {
            let mut found = Lists::default();
            found.add(&mut pages, &sweeper, next, unit)?;
            let before = found.number;
            if let Some(job) = &job {
                found.add(&mut pages, job, next, unit)?;
            }
            let has_job_s = job.is_none() || found.number > before;
            let is_proven = found.longest >= AT_LEAST && has_job_s;
            is_proven.then(|| (found.all, found.large.iter().filter_map(|large| at_page(&mut pages, *large)).collect()))
        })
    })
}

/// Where the memory of a large buffer is, if it starts at a page.
fn at_page<M: Memory>(pages: &mut Pages<'_, M>, Large { store, length }: Large) -> Option<AddressRange> {
    let words = pages.extension(store)?;
    let mut pairs = words.windows(2);
    let start = pairs.find_map(|pair| (pair[1] == length && is_pointer(pair[0])).then_some(pair[0]))?;
    start.is_multiple_of(PAGE).then(|| AddressRange::sized(Avma(start), Bytes(length)))
}

/// A buffer that V8 may have mapped.
#[derive(Clone, Copy)]
struct Large {
    store: u64,
    length: u64,
}

#[derive(Default)]
struct Lists {
    all: ArrayBuffers,
    number: u64,
    longest: u64,
    large: Vec<Large>,
}

impl Lists {
    /// Adds the lists of a sweeper or job, whose lengths are stored `unit` times as large. None if the lengths of a
    /// chain contradict the sum that its list states.
    fn add<M: Memory>(&mut self, pages: &mut Pages<'_, M>, words: &[u64; WORDS], next: usize, unit: u64) -> Option<()> {
        let (mut index, mut end) = (2, WORDS);
        while let Some(&[head, tail, bytes]) = words.get(index..index + 3).filter(|_| index <= end) {
            index += 1;
            let before = self.large.len();
            let found = chain(pages, head, tail, (next, unit), &mut self.large);
            let Some((count, sum)) = found else {
                self.large.truncate(before);
                continue;
            };
            let sum = sum / unit;
            if sum > 0 && sum.abs_diff(bytes) <= bytes / MOVED {
                self.all.bytes += Bytes(bytes);
                self.all.count = self.all.count.saturating_add(count);
                self.longest = self.longest.max(count);
                self.number += 1;
                index += 2;
                // The next list follows directly, or after one word. Words further on may not belong to the sweeper.
                end = index + 1;
            } else if count >= AT_LEAST {
                return None;
            } else {
                self.large.truncate(before);
            }
        }
        Some(())
    }
}

/// Number and sum of lengths from `head` to `tail`. Adds the large ones.
fn chain<M: Memory>(
    pages: &mut Pages<'_, M>,
    head: u64,
    tail: u64,
    (next, unit): (usize, u64),
    large: &mut Vec<Large>,
) -> Option<(u64, u64)> {
    (is_pointer(head) && is_pointer(tail)).then_some(())?;
    let (mut at, mut sum, mut count) = (head, 0u64, 1u64);
    // Brent's algorithm detects a chain that leads back to one of its own entries.
    let mut before = 0;
    loop {
        (at != before).then_some(())?;
        if count.is_power_of_two() {
            before = at;
        }
        let extension = pages.extension(at)?;
        extension[next - 2..next].iter().all(|word| is_pointer(*word)).then_some(())?;
        sum = sum.checked_add(extension[next + 1])?;
        let length = extension[next + 1] / unit;
        if length >= LARGE {
            large.push(Large { store: extension[next - 2], length });
        }
        if at == tail {
            return Some((count, sum));
        }
        at = Some(extension[next]).filter(|next| is_pointer(*next))?;
        count += 1;
    }
}

fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(8) && (PAGE..1 << 47).contains(&word)
}

/// Pages that were read, because many extensions share a page.
struct Pages<'m, M: Memory> {
    memory: &'m Untouched<'m, M>,
    known: KnownPages,
    budget: usize,
}

impl<M: Memory> Pages<'_, M> {
    fn extension(&mut self, at: u64) -> Option<[u64; EXTENSION]> {
        self.budget = self.budget.checked_sub(1)?;
        let (page, from) = (at / PAGE, (at % PAGE) as usize);
        if from + EXTENSION * 8 > PAGE as usize {
            return read_words(self.memory, at);
        }
        self.known.page(self.memory, page).map(|bytes| words(&bytes[from..]))
    }
}
