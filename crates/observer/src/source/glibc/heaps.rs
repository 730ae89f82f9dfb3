//! The heaps of an arena. A thread arena's heaps are mmapped reservations, aligned to their own length. Each starts
//! with a `heap_info` (glibc malloc/arena.c):
//!
//! ```text
//!  0 ar_ptr   8 prev   16 size   24 mprotect_size   [32 pagesize, padding: 2.35 on]
//! ```
//!
//! The arena's `malloc_state` follows the `heap_info` of the first heap. Its address shows how long `heap_info` is.

use std::collections::HashSet;

use super::layout::{ALIGN, Layout};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, word_at};

/// Possible alignments of a heap: HEAP_MAX_SIZE, and four huge pages under `glibc.malloc.hugetlb`.
const ALIGNMENTS: [u64; 4] = [64 << 20, 8 << 20, 128 << 20, 4 << 30];
const HEAP_INFO_LENGTHS: [u64; 2] = [32, 48];
/// 16 TiB of heaps.
const MOST_HEAPS: usize = 1 << 18;

/// One heap: the start of its chunks, and its accessible part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heap {
    pub accessible: AddressRange,
    pub first_chunk: Avma,
    pub reserved: Bytes,
}

/// The heaps of the thread arena at `arena`, newest first. The flag is false if the chain is broken.
pub(crate) fn of_thread_arena(memory: &impl Memory, arena: Avma, top: Avma, layout: Layout) -> (Vec<Heap>, bool) {
    let mut longest = Vec::new();
    for alignment in ALIGNMENTS {
        let (heaps, whole) = chain(memory, arena, top, layout, alignment);
        if whole {
            return (heaps, true);
        }
        if heaps.len() > longest.len() {
            longest = heaps;
        }
    }
    (longest, false)
}

/// The heaps, if they have this alignment. A heap of 8 MiB may lie at a multiple of 64 MiB by chance. So the first heap
/// must contain the top, and each must name the start of another.
fn chain(memory: &impl Memory, arena: Avma, top: Avma, layout: Layout, alignment: u64) -> (Vec<Heap>, bool) {
    let base = arena.0 / alignment * alignment;
    let info_length = arena.0 - base;
    let (mut heaps, mut met) = (Vec::new(), HashSet::new());
    if !HEAP_INFO_LENGTHS.contains(&info_length) {
        return (heaps, false);
    }
    let mut at = top.0 / alignment * alignment;
    while at != 0 && at.is_multiple_of(alignment) && heaps.len() < MOST_HEAPS {
        let mut info = [0; 32];
        if !memory.read(Avma(at), &mut info) || word_at(&info, 0) != Some(arena.0) {
            break;
        }
        let size = word_at(&info, 16).unwrap_or(0);
        if size > alignment || size < info_length || !met.insert(at) {
            break;
        }
        if heaps.is_empty() && top.0 - at >= size {
            break;
        }
        let state = if at == base { layout.length() } else { 0 };
        heaps.push(Heap {
            accessible: AddressRange::sized(Avma(at), Bytes(size)),
            first_chunk: Avma((at + info_length + state).next_multiple_of(ALIGN)),
            reserved: Bytes(alignment),
        });
        if at == base {
            return (heaps, true);
        }
        at = word_at(&info, 8).unwrap_or(0);
    }
    (heaps, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// A multiple of 64 MiB.
    const BASE: u64 = 0x7f00_0000_0000;
    const ARENA: Avma = Avma(BASE + 48);

    /// The `heap_info` of each heap: start, prev, size.
    struct Infos(Vec<(u64, u64, u64)>);

    impl Memory for Infos {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let Some((_, prev, size)) = self.0.iter().find(|(start, ..)| *start == at.0) else { return false };
            for (to, word) in into.as_chunks_mut().0.iter_mut().zip([ARENA.0, *prev, *size, *size]) {
                *to = word.to_le_bytes();
            }
            true
        }

        fn pagemap(&self, _: u64, _: &mut [u64]) -> bool {
            false
        }
    }

    #[track_caller]
    fn is_found(infos: &[(u64, u64, u64)], top: u64, alignment: u64, starts: &[u64], is_whole: bool) {
        let memory = Infos(infos.to_vec());
        let (heaps, whole) = of_thread_arena(&memory, ARENA, Avma(top), Layout { bins: 112 });
        let found: Vec<u64> = heaps.iter().map(|heap| heap.accessible.start.0).collect();
        assert_eq!((found.as_slice(), whole), (starts, is_whole));
        assert!(heaps.iter().all(|heap| heap.reserved == Bytes(alignment)), "{heaps:?}");
    }

    #[test]
    fn heaps_of_huge_pages_that_begin_at_a_multiple_of_64_mib_are_all_found() {
        let [second, third] = [8, 16].map(|mib| BASE + mib * MIB);
        let infos = [(BASE, 0, 8 * MIB), (second, BASE, 8 * MIB), (third, second, MIB)];
        is_found(&infos, third + 4096, 8 * MIB, &[third, second, BASE], true);
        // The last heap also lies at such a multiple. The address of the heap before it, rounded down, is that of the
        // first.
        let last = BASE + 64 * MIB;
        let infos = [(BASE, 0, 8 * MIB), (second, BASE, 8 * MIB), (last, second, MIB)];
        is_found(&infos, last + 4096, 8 * MIB, &[last, second, BASE], true);
    }

    #[test]
    fn a_broken_chain_of_heaps_ends_where_it_breaks() {
        let [second, third] = [64, 128].map(|mib| BASE + mib * MIB);
        let mut infos = [(BASE, 0, 64 * MIB), (second, BASE, 64 * MIB), (third, second, 9 * MIB)];
        is_found(&infos, third + 8 * MIB, 64 * MIB, &[third, second, BASE], true);
        infos[1].1 = BASE + 4096;
        is_found(&infos, third + 8 * MIB, 64 * MIB, &[third, second], false);
        // The top moved to a heap that doesn't exist yet.
        is_found(&infos, third + 9 * MIB, 64 * MIB, &[], false);
    }
}
