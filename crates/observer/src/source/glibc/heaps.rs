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
    for alignment in ALIGNMENTS {
        let base = arena.0 / alignment * alignment;
        let info_length = arena.0 - base;
        if !HEAP_INFO_LENGTHS.contains(&info_length) {
            continue;
        }
        let (mut heaps, mut met) = (Vec::new(), HashSet::new());
        let mut at = top.0 / alignment * alignment;
        while at != 0 && heaps.len() < MOST_HEAPS {
            let mut info = [0; 32];
            if !memory.read(Avma(at), &mut info) || word_at(&info, 0) != Some(arena.0) {
                break;
            }
            let size = word_at(&info, 16).unwrap_or(0);
            if size > alignment || size < info_length || !met.insert(at) {
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
            at = word_at(&info, 8).unwrap_or(0) / alignment * alignment;
        }
        if !heaps.is_empty() {
            return (heaps, false);
        }
    }
    (Vec::new(), false)
}
