//! Walks the chunks of one glibc heap from outside.
//!
//! A chunk at `p` (malloc/malloc.c, `struct malloc_chunk`):
//!
//! ```text
//! p+0   prev_size    belongs to the chunk before while that one is in use
//! p+8   size | N M P    N: not of the main arena   M: own mmap   P: the chunk before is in use
//! p+16  the program's bytes; while free: fd, bk (and two more words in large ones)
//! ```
//!
//! The next chunk is at `p + size`; its P bit says whether this chunk is in use. fastbins and tcache leave P set. So
//! their chunks look in use here, and `lists` subtracts them afterwards.
//!
//! Only present (or swapped) pages are read: a page that the kernel took back has no header, and reading it would make
//! the kernel map it.

use super::layout::{ALIGN, CHUNK_HEADER};
use super::lists::could_be_tcache;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};

pub(crate) const PREV_INUSE: u64 = 1;
const IS_MMAPPED: u64 = 2;
pub(crate) const FLAGS: u64 = 7;
/// MINSIZE: a smaller size means a fencepost.
const SMALLEST: u64 = 32;
/// `sizeof(struct malloc_chunk)`: mtrim releases whole pages after it.
pub(crate) const FREE_CHUNK_FIELDS: u64 = 48;

/// Maximum number of bytes to read ahead; it applies where chunks lie close together. For chunks larger than a page,
/// the header's page is enough: reading on would copy the whole arena.
const WINDOW: usize = 128 << 10;

/// Sums over the chunks of one heap. By construction, `live + binned + top + overhead = walked`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkSums {
    /// In use by the program, or in a fastbin or a tcache.
    pub inuse: Bytes,
    pub inuse_count: u64,
    pub binned: Bytes,
    pub binned_count: u64,
    pub top: Bytes,
    /// Its bytes on resident pages.
    pub top_resident: Bytes,
    pub overhead: Bytes,
    /// Bytes of binned chunks and of top on resident pages.
    pub free_resident: Bytes,
    /// Part of it: whole pages of binned chunks.
    pub whole_binned: Bytes,
    /// Part of it: whole pages of top.
    pub whole_top: Bytes,
}

impl ChunkSums {
    pub(crate) fn add(&mut self, other: ChunkSums) {
        self.inuse += other.inuse;
        self.inuse_count += other.inuse_count;
        self.binned += other.binned;
        self.binned_count += other.binned_count;
        self.top += other.top;
        self.top_resident += other.top_resident;
        self.overhead += other.overhead;
        self.free_resident += other.free_resident;
        self.whole_binned += other.whole_binned;
        self.whole_top += other.whole_top;
    }
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArenaEnd {
    /// At the arena's top, which ends at this address.
    Top(Avma),
    /// At a fencepost (of an older heap), which ends at this address.
    Fence(Avma),
    /// At an invalid header at this address: the heap changed during the walk, or was overwritten.
    Broken(Avma),
}

/// Reads headers ahead inside `[.., limit)`, over present pages only.
struct Headers<'m, M: Memory> {
    memory: &'m M,
    start: u64,
    bytes: Vec<u8>,
    filled: usize,
    /// Bytes to read next time.
    ahead: usize,
    limit: u64,
}

impl<M: Memory> Headers<'_, M> {
    /// The program's bytes from the start of a chunk to the end of the window.
    fn program(&self, chunk: u64) -> &[u8] {
        let from = (chunk + CHUNK_HEADER).checked_sub(self.start);
        let read = self.bytes.get(..self.filled).unwrap_or_default();
        from.and_then(|from| read.get(from as usize..)).unwrap_or_default()
    }

    /// The first 16 of the program's bytes, if they are in the window.
    fn first_bytes(&self, chunk: u64) -> Option<&[u8; 16]> {
        self.program(chunk).first_chunk()
    }

    fn size_field(&mut self, chunk: u64, pages: &mut PageStates<'_, M>) -> Option<u64> {
        let at = chunk.checked_add(8)?;
        if at.checked_add(8)? > self.limit {
            return None;
        }
        if at < self.start || at + 8 > self.start + self.filled as u64 {
            let is_next = at < self.start + self.filled as u64 + PAGE;
            self.ahead = if is_next { (2 * self.ahead).min(WINDOW) } else { PAGE as usize };
            let mut end = at / PAGE * PAGE;
            // Pages of one state.
            let state = pages.of(end / PAGE);
            if state == PageState::Swapped && self.memory.spares_swap() {
                return None;
            }
            while end < self.limit
                && end - at / PAGE * PAGE < self.ahead as u64
                && state != PageState::Absent
                && pages.of(end / PAGE) == state
            {
                end += PAGE;
            }
            // A size field never crosses a page: chunks are 16-aligned.
            let length = end.min(self.limit).saturating_sub(at) as usize;
            if length < 8 {
                return None;
            }
            self.filled = 0;
            if !self.memory.read(Avma(at), self.bytes.get_mut(..length)?) {
                return None;
            }
            self.start = at;
            self.filled = length;
        }
        word_at(&self.bytes, (at - self.start) as usize)
    }
}

/// A chunk that looks in use.
pub(crate) struct InUse<'w> {
    pub at: Avma,
    pub size: u64,
    /// The first 16 bytes that malloc returned, if they were read.
    pub first_bytes: Option<&'w [u8; 16]>,
    /// What was read of it doesn't rule out a thread's cache.
    pub could_be_tcache: bool,
}

/// Walks from the first chunk to `limit`, the end of the heap's accessible part. `top` is the arena's top.
pub(crate) fn walk<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    first: Avma,
    limit: Avma,
    top: Avma,
    mut seen: impl FnMut(InUse<'_>, &mut PageStates<'_, M>),
) -> (ChunkSums, ArenaEnd) {
    let mut sums = ChunkSums::default();
    let mut headers = Headers { memory, start: 0, bytes: vec![0; WINDOW], filled: 0, ahead: WINDOW, limit: limit.0 };
    let mut chunk = first.0;
    let Some(mut field) = headers.size_field(chunk, pages) else { return (sums, ArenaEnd::Broken(first)) };
    let mut first_bytes = headers.first_bytes(chunk).copied();
    loop {
        let size = field & !FLAGS;
        let end = chunk.saturating_add(size);
        if chunk == top.0 {
            if size < CHUNK_HEADER || end > limit.0 {
                return (sums, ArenaEnd::Broken(Avma(chunk)));
            }
            sums.top += Bytes(size);
            let resident = pages.resident(AddressRange::new(Avma(chunk), Avma(end)));
            sums.top_resident += resident;
            sums.free_resident += resident;
            sums.whole_top += whole_pages(pages, chunk, end, CHUNK_HEADER);
            return (sums, ArenaEnd::Top(Avma(end)));
        }
        if size < SMALLEST {
            // sysmalloc closes an older heap with one or two headers that are too small for chunks.
            let fence = if size == CHUNK_HEADER { 2 * CHUNK_HEADER } else { CHUNK_HEADER };
            if field & PREV_INUSE == 0 && size == 0 || chunk + fence > limit.0 {
                return (sums, ArenaEnd::Broken(Avma(chunk)));
            }
            sums.overhead += Bytes(fence);
            return (sums, ArenaEnd::Fence(Avma(chunk + fence)));
        }
        if !size.is_multiple_of(ALIGN) || end > limit.0 || field & IS_MMAPPED != 0 {
            return (sums, ArenaEnd::Broken(Avma(chunk)));
        }
        // Before the window moves on.
        let could_be_tcache = could_be_tcache(size, headers.program(chunk));
        let Some(next) = headers.size_field(end, pages) else { return (sums, ArenaEnd::Broken(Avma(chunk))) };
        if next & PREV_INUSE != 0 {
            sums.inuse += Bytes(size);
            sums.inuse_count += 1;
            seen(InUse { at: Avma(chunk), size, first_bytes: first_bytes.as_ref(), could_be_tcache }, pages);
        } else {
            sums.binned += Bytes(size);
            sums.binned_count += 1;
            sums.free_resident += pages.resident(AddressRange::new(Avma(chunk), Avma(end)));
            sums.whole_binned += whole_pages(pages, chunk, end, FREE_CHUNK_FIELDS);
        }
        chunk = end;
        field = next;
        first_bytes = headers.first_bytes(chunk).copied();
    }
}

/// Resident bytes of the whole pages of a free chunk from `start` to `end`, except its first `kept` bytes.
pub(crate) fn whole_pages<M: Memory>(pages: &mut PageStates<'_, M>, start: u64, end: u64, kept: u64) -> Bytes {
    let first_page = (start + kept).next_multiple_of(PAGE);
    let last_page = end / PAGE * PAGE;
    pages.resident(AddressRange::new(Avma(first_page), Avma(last_page)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A range of memory; all pages are present except those listed, and those from a number on, which are swapped.
    #[derive(Default)]
    struct Image {
        start: u64,
        bytes: Vec<u8>,
        absent: Vec<u64>,
        swapped_from: Option<u64>,
        spares_swap: bool,
        swapped_reads: std::cell::Cell<usize>,
        /// Number of bytes read, and of reads.
        read: std::cell::Cell<(usize, usize)>,
    }

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let from = at.0.wrapping_sub(self.start) as usize;
            let Some(bytes) = from.checked_add(into.len()).and_then(|end| self.bytes.get(from..end)) else {
                return false;
            };
            into.copy_from_slice(bytes);
            let pages = at.0 / PAGE..=(at.0 + into.len() as u64 - 1) / PAGE;
            let swapped = pages.filter(|page| self.swapped_from.is_some_and(|from| *page >= from)).count();
            self.swapped_reads.set(self.swapped_reads.get() + swapped);
            let (sum, times) = self.read.get();
            self.read.set((sum + into.len(), times + 1));
            true
        }

        fn pagemap(&self, first: u64, into: &mut [u64]) -> bool {
            for (page, word) in (first..).zip(into.iter_mut()) {
                let state = if self.swapped_from.is_some_and(|from| page >= from) { 62 } else { 63 };
                *word = u64::from(!self.absent.contains(&page)) << state;
            }
            true
        }

        fn spares_swap(&self) -> bool {
            self.spares_swap
        }
    }

    const START: u64 = 0x5000_0000_0000;

    /// A heap of random chunks with its top, never with two adjacent free chunks, and the sums that a walk must find.
    fn heap(random: &mut Random, chunks: u64) -> (Image, Avma, ChunkSums) {
        let mut image = Image { start: START, ..Image::default() };
        let mut sums = ChunkSums::default();
        let mut free_before = false;
        for _ in 0..chunks {
            let size = match random.below(10) {
                0 => 32 + 16 * random.below(3000),
                1 => 200_000 + 16 * random.below(10_000),
                _ => 32 + 16 * random.below(40),
            };
            let free = !free_before && random.below(3) == 0;
            put(&mut image.bytes, size, free_before);
            let start = START + image.bytes.len() as u64 - size;
            if free {
                sums.binned += Bytes(size);
                sums.binned_count += 1;
                // A trim released some of the whole pages.
                let pages = (start + 48).div_ceil(PAGE)..(start + size) / PAGE;
                let given_back: Vec<u64> = pages.clone().filter(|_| random.below(2) == 0).collect();
                sums.free_resident += Bytes(size - given_back.len() as u64 * PAGE);
                sums.whole_binned += Bytes((pages.end.max(pages.start) - pages.start - given_back.len() as u64) * PAGE);
                image.absent.extend(given_back);
            } else {
                sums.inuse += Bytes(size);
                sums.inuse_count += 1;
            }
            free_before = free;
        }
        let top = START + image.bytes.len() as u64;
        let size = (top + 32).next_multiple_of(PAGE) - top;
        put(&mut image.bytes, size, free_before);
        (sums.top, sums.top_resident) = (Bytes(size), Bytes(size));
        sums.free_resident += Bytes(size);
        sums.whole_top += Bytes(top + size - (top + 16).next_multiple_of(PAGE));
        (image, Avma(top), sums)
    }

    fn put(bytes: &mut Vec<u8>, size: u64, free_before: bool) {
        let at = bytes.len();
        bytes.resize(at + size as usize, 0x5a);
        let field = size | u64::from(!free_before);
        bytes[at + 8..at + 16].copy_from_slice(&field.to_le_bytes());
    }

    #[test]
    fn random_heaps_are_walked_to_the_byte() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut given_back = 0;
        for _ in 0..60 {
            let chunks = 1 + random.below(300);
            let (image, top, expected) = heap(&mut random, chunks);
            let end = Avma(START + image.bytes.len() as u64);
            let mut seen = Bytes(0);
            let mut pages = PageStates::new(&image);
            let (sums, how) = walk(&image, &mut pages, Avma(START), end, top, |chunk, _| seen += Bytes(chunk.size));
            assert_eq!((sums, how), (expected, ArenaEnd::Top(end)));
            assert_eq!(seen, expected.inuse);
            assert_eq!(sums.inuse + sums.binned + sums.top, Bytes(image.bytes.len() as u64));
            given_back += image.absent.len();
        }
        assert!(given_back > 100, "the absent pages were exercised: {given_back}");
    }

    /// M_TOP_PAD: of ten pages at the end, the program has touched four.
    #[test]
    fn pages_of_top_that_nobody_touched_are_not_resident() {
        let mut image = Image { start: START, ..Image::default() };
        put(&mut image.bytes, 48, false);
        put(&mut image.bytes, 10 * PAGE - 48, false);
        image.absent = (START / PAGE + 4..START / PAGE + 10).collect();
        let (top, end) = (Avma(START + 48), Avma(START + 10 * PAGE));
        let (sums, _) = walk(&image, &mut PageStates::new(&image), Avma(START), end, top, |_, _| {});
        assert_eq!((sums.top, sums.top_resident), (Bytes(10 * PAGE - 48), Bytes(4 * PAGE - 48)));
        assert_eq!(sums.free_resident, sums.top_resident);
    }

    #[test]
    fn large_chunks_cost_one_page_each_and_small_ones_are_read_together() {
        let read = |size: u64, count: u64| {
            let mut image = Image { start: START, ..Image::default() };
            (0..count).for_each(|_| put(&mut image.bytes, size, false));
            let top = START + image.bytes.len() as u64;
            put(&mut image.bytes, (top + 32).next_multiple_of(PAGE) - top, false);
            let end = Avma(START + image.bytes.len() as u64);
            let (sums, _) = walk(&image, &mut PageStates::new(&image), Avma(START), end, Avma(top), |_, _| {});
            assert_eq!((sums.inuse, sums.inuse_count), (Bytes(size * count), count));
            (image.bytes.len(), image.read.get())
        };
        let (all, (bytes, _)) = read(65_040, 500);
        assert!(bytes * 10 < all, "{bytes} of {all}");
        let (all, (bytes, times)) = read(112, 200_000);
        assert!(bytes <= all && times <= all / WINDOW + 8, "{bytes} of {all} in {times}");
    }

    #[test]
    fn a_walk_ends_at_a_swapped_page_that_is_to_stay_there() {
        let mut image = Image { start: START, ..Image::default() };
        (0..10_000).for_each(|_| put(&mut image.bytes, 112, false));
        let top = START + image.bytes.len() as u64;
        put(&mut image.bytes, (top + 32).next_multiple_of(PAGE) - top, false);
        let (all, end) = (image.bytes.len() as u64, Avma(START + image.bytes.len() as u64));
        image.swapped_from = Some(START / PAGE + 150);
        for spares in [false, true] {
            image.spares_swap = spares;
            image.swapped_reads.set(0);
            let (sums, how) = walk(&image, &mut PageStates::new(&image), Avma(START), end, Avma(top), |_, _| {});
            if spares {
                assert!(matches!(how, ArenaEnd::Broken(_)) && image.swapped_reads.get() == 0);
                assert_eq!(
                    sums.inuse,
                    Bytes(150 * PAGE / 112 * 112),
                    "the chunks whose successors have readable headers"
                );
            } else {
                assert!(how == ArenaEnd::Top(end) && image.swapped_reads.get() > 100);
                assert_eq!(sums.inuse + sums.top, Bytes(all));
            }
        }
    }

    #[test]
    fn overwritten_headers_only_end_the_walk() {
        let mut random = Random(7);
        let mut broken = 0;
        for _ in 0..150 {
            let (mut image, top, _) = heap(&mut random, 60);
            for _ in 0..1 + random.below(2000) {
                let at = random.below(image.bytes.len() as u64) as usize;
                image.bytes[at] = random.below(256) as u8;
            }
            let end = Avma(START + image.bytes.len() as u64);
            let mut pages = PageStates::new(&image);
            let (sums, how) = walk(&image, &mut pages, Avma(START), end, top, |_, _| {});
            let walked = sums.inuse + sums.binned + sums.top + sums.overhead;
            assert!(walked <= Bytes(image.bytes.len() as u64));
            broken += usize::from(matches!(how, ArenaEnd::Broken(_)));
        }
        assert!(broken > 10, "{broken}");
    }
}
