//! Finds malloc's state in a libc without symbols, and its layout.
//!
//! `struct malloc_state` (glibc malloc/malloc.c), 64-bit words, as glibc 2.27 to 2.41 have it:
//!
//! ```text
//!    0  mutex, flags, have_fastchunks, padding        (4 bytes each; 2.26 has two of them)
//!   16  fastbinsY[10]
//!   96  top
//!  104  last_remainder
//!  112  bins[254]          127 pairs (fd, bk); an empty one points at itself, less the 16 bytes of a chunk's header
//! 2144  binmap[2]
//! 2160  next               circular, through all arenas
//! 2168  next_free, 2176 attached_threads, 2184 system_mem, 2192 max_system_mem
//! ```
//!
//! The version isn't needed. The 127 self-pointing pairs identify `bins`. The fields after them have kept their order
//! since 2.23. The fields before them vary in length; the right length is the one for which the ring of `next` closes.

use std::collections::HashSet;

use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, word_at};

pub(crate) const WORD: u64 = 8;
/// MALLOC_ALIGNMENT
pub(crate) const ALIGN: u64 = 16;
/// `prev_size` and `size` of `struct malloc_chunk`.
pub(crate) const CHUNK_HEADER: u64 = 16;

const BIN_PAIRS: u64 = 127;
const BINS_LENGTH: u64 = BIN_PAIRS * 16;
const BINMAP_LENGTH: u64 = 16;
/// Distance from `bins` to `next`.
const BINS_TO_NEXT: u64 = BINS_LENGTH + BINMAP_LENGTH;
/// Bytes from `next` to the end of the struct.
const TAIL_LENGTH: u64 = 5 * WORD;
/// `top` and `last_remainder` lie directly before `bins`.
const TOP_BEFORE_BINS: u64 = 16;
/// An empty bin points at itself. A program can fill many bins; this many stay empty.
const EMPTY_PAIRS_AT_LEAST: usize = 24;
/// More than any real process has: 8 for each of 4,096 CPUs.
const MOST_ARENAS: usize = 32768;

/// Offsets inside `malloc_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub bins: u64,
}

impl Layout {
    pub(crate) const fn top(self) -> u64 {
        self.bins - TOP_BEFORE_BINS
    }
    pub(crate) const fn next(self) -> u64 {
        self.bins + BINS_TO_NEXT
    }
    pub(crate) const fn attached_threads(self) -> u64 {
        self.next() + 2 * WORD
    }
    pub(crate) const fn system_mem(self) -> u64 {
        self.next() + 3 * WORD
    }
    pub(crate) const fn length(self) -> u64 {
        self.next() + TAIL_LENGTH
    }
    /// Addresses of the fastbins: between the flags (8 or 16 bytes) and `top`. Empty if this libc has none.
    pub(crate) fn fastbins(self) -> impl Iterator<Item = u64> {
        const FASTBINS: u64 = 10;
        let end = self.top();
        let first = if end >= FASTBINS * WORD + WORD { end - FASTBINS * WORD } else { end };
        (first..end).step_by(WORD as usize)
    }
}
const _: () = assert!(Layout { bins: 112 }.length() == 2200 && Layout { bins: 112 }.top() == 96);

/// The arenas of one libc; the main one is first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arenas {
    pub layout: Layout,
    pub addresses: Vec<Avma>,
}

/// Finds `main_arena` in a copy of libc's writable data, which starts at `base`, and follows `next` to the others.
pub(crate) fn find_arenas(memory: &impl Memory, base: Avma, data: &[u8]) -> Option<Arenas> {
    let words = data.len() / 8;
    let pairs = BIN_PAIRS as usize;
    if words < 2 * pairs {
        return None;
    }
    // Whether an empty bin starts at word `i`.
    let empty = |i: usize| {
        let own = (base.0 + i as u64 * WORD).wrapping_sub(CHUNK_HEADER);
        word_at(data, i * 8) == Some(own) && word_at(data, i * 8 + 8) == Some(own)
    };
    // `empty_below[i]` counts the empty pairs at i-2, i-4, …: bins are 16 bytes apart, so even and odd words count
    // separately.
    let mut empty_below = vec![0u32; words + 2];
    for i in 0..words.saturating_sub(1) {
        empty_below[i + 2] = empty_below[i] + u32::from(empty(i));
    }
    for first in 0..=words - 2 * pairs {
        let end = first + 2 * pairs;
        let count = (empty_below.get(end).copied().unwrap_or(0) - empty_below[first]) as usize;
        if count < EMPTY_PAIRS_AT_LEAST {
            continue;
        }
        let bins_at = Avma(base.0 + first as u64 * WORD);
        if let Some(arenas) = arenas_with_bins_at(memory, bins_at) {
            return Some(arenas);
        }
    }
    None
}

/// Tries lengths for the fields before `bins`. The right one makes the ring of `next` close at the start of the struct.
fn arenas_with_bins_at(memory: &impl Memory, bins_at: Avma) -> Option<Arenas> {
    let next = memory.word(Avma(bins_at.0.checked_add(BINS_TO_NEXT)?))?;
    (3..=20).map(|words| Layout { bins: words * WORD }).find_map(|layout| {
        let main = Avma(bins_at.0.checked_sub(layout.bins)?);
        let mut addresses = vec![main];
        // With a wrong length, the words at `next` lead anywhere, perhaps into a ring without the main arena.
        let mut met = HashSet::from([main.0]);
        let mut at = next;
        while at != main.0 {
            if at % WORD != 0 || at == 0 || addresses.len() >= MOST_ARENAS || !met.insert(at) {
                return None;
            }
            addresses.push(Avma(at));
            at = memory.word(Avma(at.checked_add(layout.next())?))?;
        }
        // In a plausible struct, the memory from the system is limited, and top is a chunk or an empty bin.
        let system = memory.word(Avma(main.0.checked_add(layout.system_mem())?))?;
        let top = memory.word(Avma(main.0.checked_add(layout.top())?))?;
        (system < 1 << 47 && top.is_multiple_of(ALIGN) && top != 0).then_some(Arenas { layout, addresses })
    })
}
