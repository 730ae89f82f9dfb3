//! The chain of chunks of one glibc heap, from outside.
//!
//! A chunk at `p` (malloc/malloc.c, `struct malloc_chunk`):
//!
//! ```text
//! p+0   prev_size    belongs to the chunk before while that one is in use
//! p+8   size | N M P    N: not of the main arena   M: own mmap   P: the chunk before is in use
//! p+16  the program's bytes; while free: fd, bk (and two more words in large ones)
//! ```
//!
//! The next chunk is at `p + size`; whether this one is in use is the P bit *there*. fastbins and tcache leave P set:
//! their chunks look in use here and are taken out afterwards (`lists`).
//!
//! Only pages that are present (or swapped) are read: a page that the kernel gave back holds no header, and reading it
//! would make the kernel map one.

use super::layout::{ALIGN, CHUNK_HEADER};
use crate::source::memory::{Memory, PAGE, PageState, PageStates, word_at};
use crate::units::{AddressRange, Avma, Bytes};

const PREV_INUSE: u64 = 1;
const IS_MMAPPED: u64 = 2;
const FLAGS: u64 = 7;
/// MINSIZE: anything smaller is a fencepost.
const SMALLEST: u64 = 32;
/// `sizeof(struct malloc_chunk)`: mtrim gives back whole pages after it.
const FREE_CHUNK_FIELDS: u64 = 48;

/// How far headers are read ahead. Small enough to copy little around large chunks, large enough to amortise the call.
const WINDOW: usize = 128 << 10;

/// Sums over chunks of one heap: `live + binned + top + overhead = walked`, by construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkSums {
    /// In use by the program, or waiting in a fastbin or a tcache.
    pub inuse: Bytes,
    pub inuse_count: u64,
    pub binned: Bytes,
    pub binned_count: u64,
    pub top: Bytes,
    pub overhead: Bytes,
    /// Bytes of binned chunks and top on resident pages.
    pub free_resident: Bytes,
    /// Of those, whole pages: what a trim would give back.
    pub trimmable: Bytes,
}

impl ChunkSums {
    pub fn add(&mut self, other: ChunkSums) {
        self.inuse += other.inuse;
        self.inuse_count += other.inuse_count;
        self.binned += other.binned;
        self.binned_count += other.binned_count;
        self.top += other.top;
        self.overhead += other.overhead;
        self.free_resident += other.free_resident;
        self.trimmable += other.trimmable;
    }
}

/// How a chain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the arena's top, which ends here.
    Top(Avma),
    /// At a fencepost (an older heap), which ends here.
    Fence(Avma),
    /// A header that can't be one, at this address: the chain was in motion, or overwritten.
    Broken(Avma),
}

/// Reads ahead inside `[.., limit)`, over present pages only.
struct Headers<'m, M: Memory> {
    memory: &'m M,
    start: u64,
    bytes: Vec<u8>,
    filled: usize,
    limit: u64,
}

impl<M: Memory> Headers<'_, M> {
    /// The first 16 of the program's bytes, where they lie in the window.
    fn first_bytes(&self, chunk: u64) -> Option<&[u8; 16]> {
        let from = (chunk + CHUNK_HEADER).checked_sub(self.start)? as usize;
        self.bytes.get(..self.filled)?.get(from..from.checked_add(16)?)?.try_into().ok()
    }

    fn size_field(&mut self, chunk: u64, pages: &mut PageStates<'_, M>) -> Option<u64> {
        let at = chunk.checked_add(8)?;
        if at.checked_add(8)? > self.limit {
            return None;
        }
        if at < self.start || at + 8 > self.start + self.filled as u64 {
            let mut end = at / PAGE * PAGE;
            while end < self.limit
                && end - at / PAGE * PAGE < WINDOW as u64
                && pages.of(end / PAGE) != PageState::Absent
            {
                end += PAGE;
            }
            // A size field never straddles a page: chunks are 16-aligned.
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
pub struct InUse<'w> {
    pub at: Avma,
    pub size: u64,
    /// The first 16 bytes that malloc handed out, where they were at hand.
    pub first_bytes: Option<&'w [u8; 16]>,
}

/// Walks from the first chunk to `limit`, the end of the heap's accessible part. `top` is the arena's.
pub fn walk<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    first: Avma,
    limit: Avma,
    top: Avma,
    mut seen: impl FnMut(InUse<'_>, &mut PageStates<'_, M>),
) -> (ChunkSums, End) {
    let mut sums = ChunkSums::default();
    let mut headers = Headers { memory, start: 0, bytes: vec![0; WINDOW], filled: 0, limit: limit.0 };
    let mut chunk = first.0;
    let Some(mut field) = headers.size_field(chunk, pages) else { return (sums, End::Broken(first)) };
    let mut first_bytes = headers.first_bytes(chunk).copied();
    loop {
        let size = field & !FLAGS;
        let end = chunk.saturating_add(size);
        if chunk == top.0 {
            if size < CHUNK_HEADER || end > limit.0 {
                return (sums, End::Broken(Avma(chunk)));
            }
            sums.top += Bytes(size);
            add_free(&mut sums, pages, chunk, end, CHUNK_HEADER);
            return (sums, End::Top(Avma(end)));
        }
        if size < SMALLEST {
            // sysmalloc closes an older heap with one or two headers too small to be chunks.
            let fence = if size == CHUNK_HEADER { 2 * CHUNK_HEADER } else { CHUNK_HEADER };
            if field & PREV_INUSE == 0 && size == 0 || chunk + fence > limit.0 {
                return (sums, End::Broken(Avma(chunk)));
            }
            sums.overhead += Bytes(fence);
            return (sums, End::Fence(Avma(chunk + fence)));
        }
        if !size.is_multiple_of(ALIGN) || end > limit.0 || field & IS_MMAPPED != 0 {
            return (sums, End::Broken(Avma(chunk)));
        }
        let Some(next) = headers.size_field(end, pages) else { return (sums, End::Broken(Avma(chunk))) };
        if next & PREV_INUSE != 0 {
            sums.inuse += Bytes(size);
            sums.inuse_count += 1;
            seen(InUse { at: Avma(chunk), size, first_bytes: first_bytes.as_ref() }, pages);
        } else {
            sums.binned += Bytes(size);
            sums.binned_count += 1;
            add_free(&mut sums, pages, chunk, end, FREE_CHUNK_FIELDS);
        }
        chunk = end;
        field = next;
        first_bytes = headers.first_bytes(chunk).copied();
    }
}

/// Free bytes of a chunk from `start` to `end`, of which the first `kept` must stay.
fn add_free<M: Memory>(sums: &mut ChunkSums, pages: &mut PageStates<'_, M>, start: u64, end: u64, kept: u64) {
    sums.free_resident += pages.resident(AddressRange::new(Avma(start), Avma(end)));
    let first_page = (start + kept).next_multiple_of(PAGE);
    let last_page = end / PAGE * PAGE;
    sums.trimmable += pages.resident(AddressRange::new(Avma(first_page), Avma(last_page)));
}
