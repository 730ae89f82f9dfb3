//! Finds free chunks that look in use: fastbins and thread caches keep the P bit in the following chunk set.
//!
//! From glibc 2.32 on, links are mangled (`PROTECT_PTR`): the stored word is `target ^ (address of the word >> 12)`.
//! Each link shows whether it is mangled: the wrong reading is neither 0 nor the 16-aligned address of a chunk.
//!
//! `struct tcache_perthread_struct` lies in its own chunk in the thread's arena:
//!
//! ```text
//! glibc       chunk size   counts                entries
//! 2.26–2.29   0x250        u8[64] at 0           64 pointers at 64
//! 2.30–2.41   0x290        u16[64] at 0          64 pointers at 128
//! 2.42, 2.43  0x300        u16[76] at 0 (free slots)   76 pointers at 152; the last 12 hold ranges of larger sizes
//! ```
//!
//! An entry points at the program's bytes. Word 0 is the link. Word 1 is the key, which is the same in all entries of a
//! cache.

use std::collections::HashSet;

use super::layout::{ALIGN, CHUNK_HEADER, Layout};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, word_at};

/// A chunk found in a free list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ListedChunk {
    pub at: Avma,
    pub size: Bytes,
}

/// The accessible parts of all heaps, sorted. A link must point into one of them.
pub(crate) struct Heaps<'h>(pub &'h [AddressRange]);

impl Heaps<'_> {
    fn holds(&self, at: u64) -> bool {
        let after = self.0.partition_point(|heap| heap.start.0 <= at);
        after > 0 && self.0[after - 1].contains(Avma(at))
    }

    /// The word at `at` as a link: Some(0) at the end of a list, None if it isn't a link.
    fn link(&self, at: u64, stored: u64) -> Option<u64> {
        let sane = |link: u64| link == 0 || (link.is_multiple_of(ALIGN) && self.holds(link));
        let unmangled = stored ^ (at >> 12);
        if sane(unmangled) {
            Some(unmangled)
        } else if sane(stored) {
            Some(stored)
        } else {
            None
        }
    }
}

fn chunk_size(memory: &impl Memory, chunk: u64) -> Option<u64> {
    memory.word(Avma(chunk.checked_add(8)?)).map(|field| field & !7)
}

/// How many chunks all lists together may still have. A chunk is in one list only, and looks in use to the walk. But
/// the lists of a hostile process may all lead into the same million chunks.
pub(crate) struct Left(pub u64);

impl Left {
    fn take(&mut self) -> Option<()> {
        self.0 = self.0.checked_sub(1)?;
        Some(())
    }
}

/// Chunks in the fastbins of the arena at `arena`. The flag is false if a list is broken.
pub(crate) fn fastbin_chunks(
    memory: &impl Memory,
    arena: Avma,
    layout: Layout,
    heaps: &Heaps<'_>,
    left: &mut Left,
) -> (Vec<ListedChunk>, bool) {
    let mut found = Vec::new();
    let mut met = HashSet::new();
    let mut whole = true;
    for offset in layout.fastbins() {
        // Heads of lists aren't mangled.
        let Some(mut chunk) = memory.word(Avma(arena.0 + offset)) else { return (found, false) };
        while chunk != 0 {
            let size = chunk_size(memory, chunk).filter(|size| (32..=256).contains(size) && size.is_multiple_of(ALIGN));
            let stored = memory.word(Avma(chunk.wrapping_add(CHUNK_HEADER)));
            let next = stored.and_then(|stored| heaps.link(chunk.wrapping_add(CHUNK_HEADER), stored));
            // A chunk is in only one list. So the walk of a ring, or of two lists that join, ends here.
            let (true, Some(size), Some(next)) = (heaps.holds(chunk) && met.insert(chunk), size, next) else {
                whole = false;
                break;
            };
            if left.take().is_none() {
                return (found, false);
            }
            found.push(ListedChunk { at: Avma(chunk), size: Bytes(size) });
            chunk = next;
        }
    }
    (found, whole)
}

/// Highest address of a program on any CPU: x86-64 has at most 57 bits
/// (Documentation/arch/x86/x86_64/5level-paging.rst).
const LAST_ADDRESS: u64 = (1 << 57) - 1;

#[derive(Clone, Copy)]
struct TcacheShape {
    chunk: u64,
    entries: usize,
    bins: usize,
    /// Number of bins whose chunks all have the size `32 + 16 × index`.
    exact_bins: usize,
    keyed: bool,
}

const TCACHE_SHAPES: [TcacheShape; 3] = [
    TcacheShape { chunk: 0x250, entries: 64, bins: 64, exact_bins: 64, keyed: false },
    TcacheShape { chunk: 0x290, entries: 128, bins: 64, exact_bins: 64, keyed: true },
    TcacheShape { chunk: 0x300, entries: 152, bins: 76, exact_bins: 64, keyed: true },
];

/// The layout of the cache that a chunk of that size could hold. From 2.42 on a thread makes its cache when it first
/// frees. The chunk may then be one that was free before, and 16 bytes longer than requested.
fn shape(size: u64) -> Option<&'static TcacheShape> {
    TCACHE_SHAPES.iter().find(|shape| [shape.chunk, shape.chunk + ALIGN].contains(&size))
}

/// Whether a chunk could be a thread's cache with entries. `bytes` is the part of the block that was read. This
/// excludes most blocks, because a program may have a million blocks of that size, and each candidate is read again.
pub(crate) fn could_be_tcache(size: u64, bytes: &[u8]) -> bool {
    let Some(shape) = shape(size) else { return false };
    let heads = (0..shape.bins).map_while(|bin| word_at(bytes, shape.entries + bin * 8));
    let (mut read, mut used) = (0, 0);
    for head in heads {
        if !head.is_multiple_of(ALIGN) || head > LAST_ADDRESS {
            return false;
        }
        read += 1;
        used += usize::from(head != 0);
    }
    used > 0 || read < shape.bins
}

/// The chunks in the cache at `chunk`, if it is a cache. Every entry of every bin must be a chunk of that bin's size,
/// and all must have the same key. None if `chunk` isn't a cache, or if the cache is empty or has more chunks than the
/// limit allows.
pub(crate) fn tcache_chunks(
    memory: &impl Memory,
    chunk: Avma,
    size: u64,
    heaps: &Heaps<'_>,
    left: &mut Left,
) -> Option<Vec<ListedChunk>> {
    let shape = shape(size)?;
    let mut bytes = [0u8; 0x300];
    // A chunk in use also owns the first word of the next chunk (malloc.c, `request2size`); in 2.42, that word is the
    // last entry.
    let body = &mut bytes[..shape.chunk as usize - 8];
    if !memory.read(Avma(chunk.0 + CHUNK_HEADER), body) {
        return None;
    }
    let heads: Vec<u64> = (0..shape.bins).map_while(|bin| word_at(body, shape.entries + bin * 8)).collect();
    let sane = |head: u64| head == 0 || (head.is_multiple_of(ALIGN) && heaps.holds(head));
    if heads.len() != shape.bins || !heads.iter().copied().all(sane) {
        return None;
    }
    let mut found = Vec::new();
    let mut met = HashSet::new();
    let mut key = None;
    for (bin, head) in heads.iter().enumerate() {
        let mut entry = *head;
        while entry != 0 {
            left.take()?;
            let size = chunk_size(memory, entry.checked_sub(CHUNK_HEADER)?)?;
            let right = if bin < shape.exact_bins { size == 32 + 16 * bin as u64 } else { size > 32 + 16 * 63 };
            let mut words = [0; 16];
            if !right || !met.insert(entry) || !memory.read(Avma(entry), &mut words) {
                return None;
            }
            let own = word_at(&words, 8);
            if shape.keyed && *key.get_or_insert(own) != own {
                return None;
            }
            found.push(ListedChunk { at: Avma(entry - CHUNK_HEADER), size: Bytes(size) });
            entry = heaps.link(entry, word_at(&words, 0)?)?;
        }
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::made_image::Image;

    const HEAP: u64 = 0x5000_0000_0000;

    /// A cache of each glibc with two chunks in its first and in its last bin.
    #[test]
    fn a_cache_of_each_layout_is_read_to_its_last_bin() {
        for (shape, longer) in TCACHE_SHAPES.into_iter().flat_map(|shape| [(shape, 0), (shape, ALIGN)]) {
            let mut image = Image::default();
            let size = shape.chunk + longer;
            let heap = [AddressRange::sized(Avma(HEAP), Bytes(1 << 20))];
            image.put(HEAP + 8, size | 1);
            let mut want = Vec::new();
            let mut at = HEAP + 0x1000;
            for bin in [0, shape.bins - 1] {
                let size = 32 + 16 * bin as u64;
                let mut next = 0;
                for _ in 0..2 {
                    image.put(at + 8, size | 1);
                    image.put(at + 16, next ^ if shape.keyed { (at + 16) >> 12 } else { 0 });
                    image.put(at + 24, 0x14c6_3d9e);
                    want.push(ListedChunk { at: Avma(at), size: Bytes(size) });
                    next = at + 16;
                    at += size;
                }
                image.put(HEAP + 16 + shape.entries as u64 + 8 * bin as u64, next);
            }
            let mut body = vec![0; shape.chunk as usize - 8];
            assert!(image.read(Avma(HEAP + CHUNK_HEADER), &mut body) && could_be_tcache(size, &body));
            // A part of the cache doesn't rule it out. One word that isn't an address does, and so does a cache without
            // an entry.
            assert!((0..body.len()).all(|read| could_be_tcache(size, &body[..read])));
            for bin in 0..shape.bins {
                let mut other = body.clone();
                other[shape.entries + bin * 8] |= 1;
                assert!(!could_be_tcache(size, &other), "a head that isn't aligned");
            }
            body[shape.entries..].fill(0);
            assert!(!could_be_tcache(size, &body), "an empty cache");
            let found = |left: &mut Left| tcache_chunks(&image, Avma(HEAP), size, &Heaps(&heap), left);
            let mut left = Left(want.len() as u64);
            let mut all = found(&mut left).expect("a cache");
            assert!(left.0 == 0 && found(&mut left).is_none(), "no chunk is left for a second cache");
            all.sort_unstable();
            assert_eq!(all, want, "a cache in a chunk of {size:#x} bytes");
        }
    }
}
