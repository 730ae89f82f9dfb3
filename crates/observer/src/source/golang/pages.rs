//! The page allocator (mpagealloc.go, `pageAlloc`), from Go 1.21 on:
//!
//! ```text
//! 0    summaries, a slice for each of five levels: address, length, capacity (2^14, 2^17, 2^20, 2^23, 2^26)
//! 120  chunks: 2^13 addresses, each of 2^13 × (512 bits "allocated", 512 bits "given back")
//! then the lowest page to search, first and last chunk, ranges in use (a slice), the sum of their lengths,
//! index of the chunks that could be given back: a slice with a capacity of 2^26
//! ```

use std::collections::BTreeMap;

use crate::source::heap_data::{Anonymous, Data, words};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, Untouched, word_at};

pub(crate) const PAGE_OF_GO: u64 = 8192;
const PAGES_A_CHUNK: u64 = 512;
const CHUNK: u64 = PAGES_A_CHUNK * PAGE_OF_GO;
/// Bits of a chunk: 512 and 512.
const CHUNK_BITS: usize = 128;
const LEVELS: [u64; 5] = [1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26];
const CHUNKS: usize = 3 * LEVELS.len();
const ROOT: usize = 1 << 13;
const LEAF: u64 = 1 << 13;
const LEAF_BYTES: u64 = LEAF * CHUNK_BITS as u64;
/// Base address of the numbers of chunks (malloc.go, `arenaBaseOffset`): x86-64, and all others.
const BASES: [u64; 2] = [0xffff_8000_0000_0000, 0];
/// Number of words after the chunks in which the ranges are searched for, and then the index and the spans.
const RANGES_WITHIN: usize = 16;
const INDEX_WITHIN: usize = 32;
const MOST_RANGES: u64 = 1 << 16;
/// Limit of candidates that are tried. A runtime has one page allocator; other data may only look like it.
const MOST_CANDIDATES: usize = 4;
/// Chunks of a heap of 2 TiB.
const MOST_CHUNKS: usize = 1 << 19;
/// Limit of lookups of chunks for spans that can't be taken. In a heap that changes while it is read, few spans can't
/// be taken. In a hostile process, each of four million records may name a span of terabytes.
pub(crate) const MOST_FAILED_LOOKUPS: usize = 1 << 22;

/// Bits of the pages of one chunk.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub allocated: [u64; 8],
    pub given_back: [u64; 8],
    /// Pages that belong to a span.
    pub taken: [u64; 8],
}

#[derive(Debug)]
pub(crate) struct Pages {
    /// Address ranges in use: sorted, disjoint, whole chunks.
    pub in_use: Vec<AddressRange>,
    /// By start address.
    pub chunks: BTreeMap<u64, Chunk>,
    /// Base address of the numbers of chunks and arenas.
    pub base: u64,
    /// Memory of summaries, bits and index, touched or not.
    pub records: Vec<AddressRange>,
    /// Number of the first word after the allocator in the data.
    pub end: usize,
    /// Chunks that were looked up for spans that can't be taken.
    pub failed_lookups: usize,
}

/// Word numbers in the data where the five summaries may begin.
pub(crate) fn candidates(data: &Data) -> Vec<usize> {
    let all: Vec<u64> = words(&data.bytes).collect();
    let begins = |at: &usize| {
        let level = |level: usize| (all[at + 3 * level], all[at + 3 * level + 1], all[at + 3 * level + 2]);
        LEVELS.iter().enumerate().all(|(number, capacity)| {
            let (address, length, stated) = level(number);
            stated == *capacity && length <= stated && address != 0 && address.is_multiple_of(PAGE)
        })
    };
    (0..all.len().saturating_sub(CHUNKS + ROOT)).filter(begins).take(MOST_CANDIDATES).collect()
}

/// The allocator whose summaries begin at that word of the data; None if the words after them contradict each other.
pub(crate) fn read<M: Memory>(memory: &M, data: &Data, first_summary: usize, anonymous: &Anonymous) -> Option<Pages> {
    let word = |number: usize| word_at(&data.bytes, 8 * number);
    let untouched = Untouched::new(memory);
    let behind = first_summary + CHUNKS + ROOT;
    let (in_use, after) = (behind..behind + RANGES_WITHIN)
        .find_map(|at| Some((ranges_in_use(&untouched, data, at, anonymous)?, at + 4)))?;
    let index = (after..after + INDEX_WITHIN).find(|at| word(*at + 2) == Some(LEVELS[4]))?;
    let mut records: Vec<AddressRange> = Vec::new();
    let slices = (0..LEVELS.len()).map(|level| first_summary + 3 * level).chain([index]);
    for slice in slices {
        records.push(AddressRange::sized(Avma(word(slice)?), Bytes(word(slice + 2)? * 8)));
    }
    let first = in_use.first()?.start.0;
    let leaf_of = |base: u64, chunk: u64| {
        let number = chunk.wrapping_sub(base) / CHUNK;
        let leaf = word(first_summary + CHUNKS + usize::try_from(number / LEAF).ok().filter(|root| *root < ROOT)?)?;
        anonymous.holds(leaf, LEAF_BYTES).then_some((leaf, leaf + number % LEAF * CHUNK_BITS as u64))
    };
    let base = BASES.into_iter().find(|base| leaf_of(*base, first).is_some())?;
    let mut chunks = BTreeMap::new();
    let mut page = vec![0; PAGE as usize];
    let mut known = None;
    for range in &in_use {
        let mut at = range.start.0;
        while at < range.end.0 {
            let (leaf, bits) = leaf_of(base, at)?;
            if chunks.len() >= MOST_CHUNKS {
                return None;
            }
            let bytes = AddressRange::sized(Avma(leaf), Bytes(LEAF_BYTES));
            if records.last() != Some(&bytes) {
                records.push(bytes);
            }
            let (begin, from) = (bits / PAGE * PAGE, (bits % PAGE) as usize);
            if known != Some(begin) {
                untouched.read(Avma(begin), &mut page).then_some(())?;
                known = Some(begin);
            }
            let mut both = [0; 16];
            for (bits, word) in both.iter_mut().zip(words(page.get(from..from + CHUNK_BITS)?)) {
                *bits = word;
            }
            let [mut allocated, mut given_back] = [[0; 8]; 2];
            allocated.copy_from_slice(&both[..8]);
            given_back.copy_from_slice(&both[8..]);
            chunks.insert(at, Chunk { allocated, given_back, taken: [0; 8] });
            at += CHUNK;
        }
    }
    Some(Pages { in_use, chunks, base, records, end: index + 3, failed_lookups: 0 })
}

/// The ranges in a slice of address pairs; None unless the word after the slice is the sum of their lengths.
fn ranges_in_use<M: Memory>(memory: &M, data: &Data, at: usize, anonymous: &Anonymous) -> Option<Vec<AddressRange>> {
    // Read again: in a growing heap, the sum in the copied data is older than the ranges.
    let mut fresh = [0; 32];
    memory.read(Avma(data.base.0 + 8 * at as u64), &mut fresh).then_some(())?;
    let word = |number: usize| word_at(&fresh, 8 * number);
    let (address, length, capacity, sum) = (word(0)?, word(1)?, word(2)?, word(3)?);
    let could_be = (1..=capacity).contains(&length) && length <= MOST_RANGES && anonymous.holds(address, length * 16);
    could_be.then_some(())?;
    let mut bytes = vec![0; usize::try_from(length * 16).ok()?];
    memory.read(Avma(address), &mut bytes).then_some(())?;
    let mut ranges: Vec<AddressRange> = Vec::new();
    for pair in bytes.as_chunks::<16>().0 {
        let (start, end) = (word_at(pair, 0)?, word_at(pair, 8)?);
        let follows = ranges.last().is_none_or(|last| last.end.0 <= start);
        let is_range = start < end && start.is_multiple_of(CHUNK) && end.is_multiple_of(CHUNK);
        (follows && is_range && anonymous.holds(start, end - start)).then_some(())?;
        ranges.push(AddressRange::new(Avma(start), Avma(end)));
    }
    (ranges.iter().map(|range| range.length().0).sum::<u64>() == sum).then_some(ranges)
}

impl Pages {
    /// Takes the pages for a span. If one of them isn't allocated or was taken before, takes none and returns false.
    /// After [`MOST_FAILED_LOOKUPS`], it takes none either.
    pub(crate) fn take(&mut self, start: u64, pages: u64) -> bool {
        let end = start.saturating_add(pages.saturating_mul(PAGE_OF_GO));
        let wanted =
            || (start / CHUNK * CHUNK..end).step_by(CHUNK as usize).map(|at| (at, bits_between(at, start, end)));
        let mut looked_up = 0;
        let could_be = self.failed_lookups < MOST_FAILED_LOOKUPS
            && wanted().all(|(at, bits)| {
                looked_up += 1;
                let is_free = |chunk: &Chunk| (0..8).all(|n| bits[n] & !(chunk.allocated[n] & !chunk.taken[n]) == 0);
                self.chunks.get(&at).is_some_and(is_free)
            });
        if !could_be {
            self.failed_lookups += looked_up;
            return false;
        }
        for (at, bits) in wanted() {
            if let Some(chunk) = self.chunks.get_mut(&at) {
                chunk.taken.iter_mut().zip(bits).for_each(|(taken, bits)| *taken |= bits);
            }
        }
        true
    }

    /// Runs of pages that belong to no span.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (AddressRange, Free)> + '_ {
        self.chunks.iter().flat_map(|(start, chunk)| {
            let kind = |page: u64| {
                let (word, bit) = bit_of(start + page * PAGE_OF_GO);
                let is = |bits: &[u64; 8]| bits[word] & bit != 0;
                match (is(&chunk.allocated), is(&chunk.given_back)) {
                    _ if is(&chunk.taken) => None,
                    (true, _) => Some(Free::Cached),
                    (false, true) => Some(Free::GivenBack),
                    (false, false) => Some(Free::Kept),
                }
            };
            let mut runs: Vec<(AddressRange, Free)> = Vec::new();
            for (page, kind) in (0..PAGES_A_CHUNK).filter_map(|page| Some((page, kind(page)?))) {
                let range = AddressRange::sized(Avma(start + page * PAGE_OF_GO), Bytes(PAGE_OF_GO));
                match runs.last_mut() {
                    Some((last, known)) if *known == kind && last.end == range.start => last.end = range.end,
                    _ => runs.push((range, kind)),
                }
            }
            runs
        })
    }
}

/// Word and bit of a page among those of its chunk.
fn bit_of(page: u64) -> (usize, u64) {
    let number = page % CHUNK / PAGE_OF_GO;
    ((number / 64) as usize, 1 << (number % 64))
}

/// Bits of the pages of the chunk at `chunk` that lie between two addresses of pages.
fn bits_between(chunk: u64, start: u64, end: u64) -> [u64; 8] {
    let pages_before = |at: u64| at.saturating_sub(chunk).min(CHUNK) / PAGE_OF_GO;
    let (first, behind) = (pages_before(start), pages_before(end));
    std::array::from_fn(|word| {
        let below = |page: u64| match page.saturating_sub(64 * word as u64) {
            bits @ 0..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        below(behind) & !below(first)
    })
}

/// State of a page without a span. A page in a processor's page cache has the bit `allocated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Free {
    Kept,
    GivenBack,
    Cached,
}
