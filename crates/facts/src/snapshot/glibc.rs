//! Result of walking glibc's malloc from outside.

use super::ObjectBlocks;
use std::ops::RangeInclusive;

use crate::units::{AddressRange, Avma, Bytes, counted};

/// For each arena, by construction: `live + free + overhead = bytes inside heaps`. For all arenas: Σ heaps and mmapped
/// chunks = what malloc holds from the kernel.
#[derive(Clone, Debug, Default)]
pub struct Glibc {
    /// Version of the mapped libc, such as `2.36`.
    pub version: String,
    pub arenas: Vec<Arena>,
    pub mmapped: Vec<MmappedChunk>,
    /// The chunks of `mmapped` that only the walk before the mappings found, sorted. They were freed after smaps was
    /// read.
    pub gone: Vec<AddressRange>,
    /// `mp_.n_mmaps` and `mp_.mmapped_mem`: glibc's own count of mmapped chunks, found or not.
    pub mmapped_count: u64,
    pub mmapped_bytes: Bytes,
    /// Live blocks in arenas by size, for the sizes with the largest sums, largest first.
    pub peaks: Vec<EqualBlocks>,
    /// Live blocks of the sizes of zlib's states, however few.
    pub zlib: ZlibStates,
    /// Blocks with a header of HotSpot's NMT, by its tag. Empty unless the walk searched for them.
    pub tagged: Vec<TaggedBlocks>,
    /// Blocks that begin with an address in the data of a native library. Empty unless the walk searched for them.
    pub objects: Vec<ObjectBlocks>,
    /// The effective arena cap: `mp_.arena_max`, or 8 × CPUs if that is 0 (malloc/arena.c, `arena_get2`). None if `mp_`
    /// was not found.
    pub arena_cap: Option<u64>,
    /// The higher cap that is in force instead if this glibc counts all online CPUs, which isn't known.
    pub arena_cap_online: Option<u64>,
    /// Whether `MALLOC_ARENA_MAX`, a tunable or mallopt set the cap.
    pub arena_cap_set: bool,
    /// Smallest block that gets a mapping of its own, `mp_.mmap_threshold`: 128 KiB, or more after the program has
    /// freed such blocks. None if it was not found.
    pub mmap_threshold: Option<Bytes>,
}

/// Live blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EqualBlocks {
    /// Size of each chunk, its header included.
    pub size: Bytes,
    pub count: u64,
    /// Resident bytes of all of them.
    pub resident: Bytes,
}

impl Glibc {
    /// The arena cap and its origin, as `320 (8 × 40 CPUs)`.
    pub fn arena_cap_text(&self) -> Option<String> {
        let cap = self.arena_cap?;
        let cpus = |cap: u64| counted(cap / 8, "CPU");
        Some(match self.arena_cap_online {
            _ if self.arena_cap_set => format!("{cap} (set)"),
            None => format!("{cap} (8 × {})", cpus(cap)),
            Some(online) => format!(
                "{cap} or {online} (8 × {}, which the process may run on, or {} online: that depends on the patches of this \
                 glibc)",
                cpus(cap),
                online / 8
            ),
        })
    }

    /// The largest number of arenas that there may be.
    pub fn most_arenas(&self) -> Option<u64> {
        self.arena_cap.max(self.arena_cap_online)
    }
}

impl EqualBlocks {
    /// Result of malloc_usable_size: a chunk minus its size field.
    pub fn usable(self) -> Bytes {
        self.size - Bytes(8)
    }
}

/// Numbers of live blocks as large as zlib's state of an open stream (inflate.c `inflateInit2_`: `struct inflate_state`
/// of 1.2.12 and later; deflate.c `deflateInit2_`: `struct deflate_state` of 1.2.11 to 1.3.2, 5,952 or 5,968 bytes). A
/// chunk has up to 16 bytes more, and that of a tracked block up to 24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZlibStates {
    pub inflaters: u64,
    pub deflaters: u64,
}

impl ZlibStates {
    /// Usable bytes.
    pub const OF_INFLATER: RangeInclusive<u64> = 7_152..=7_176;
    pub const OF_DEFLATER: RangeInclusive<u64> = 5_952..=5_992;
}

/// Live blocks with one NMT tag; the tag is its number in the VM's build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaggedBlocks {
    pub tag: u8,
    pub count: u64,
    /// Bytes as requested, without headers.
    pub bytes: Bytes,
    pub resident: Bytes,
    /// Resident bytes of their chunks beside these: NMT's headers and malloc's, and the rounding.
    pub around: Bytes,
    /// How much `resident` changed between this walk and a second one.
    pub moved: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArenaKind {
    /// The brk heap, and mmapped pieces if brk could not grow.
    #[default]
    Main,
    /// Heaps mmapped and aligned to 64 MiB.
    Thread,
}

#[derive(Clone, Debug, Default)]
pub struct Arena {
    /// Address of its `malloc_state`.
    pub address: Avma,
    pub kind: ArenaKind,
    /// The readable and writable parts of the arena, sorted, disjoint; without reserved tails.
    pub heaps: Vec<AddressRange>,
    /// The whole reservations (64 MiB each for thread arenas).
    pub reserved: Bytes,
    /// Chunks that the program holds, with their headers; chunks in tcache aren't live.
    pub live: Bytes,
    pub live_count: u64,
    /// Free bytes by place: `free = bins + fast + tcache + top`.
    pub bins: Bytes,
    pub bins_count: u64,
    pub fast: Bytes,
    pub fast_count: u64,
    pub tcache: Bytes,
    pub top: Bytes,
    /// Bytes of `top` on resident pages, a part of `free_resident`.
    pub top_resident: Bytes,
    /// Headers of heaps and arenas, fenceposts, alignment.
    pub overhead: Bytes,
    /// Bytes of `heaps` on resident pages, by use: `live_resident` (including headers, overhead and the unused rest of
    /// pages) + `free_resident` + `unknown_resident` = resident bytes of `heaps`.
    pub live_resident: Bytes,
    pub free_resident: Bytes,
    /// The whole pages of `free_resident` that malloc_trim releases. The rest shares its pages with live blocks, or is
    /// in `at_end`.
    pub trimmable: Bytes,
    /// Whole pages at the end of a thread arena, which malloc_trim doesn't release: top, and the free chunks next to
    /// it. Always 0 for the main arena, because malloc_trim releases the end of brk.
    pub at_end: Bytes,
    /// Resident bytes of the part of `heaps` that the walk could not parse.
    pub unknown_resident: Bytes,
    /// `attached_threads` of malloc_state.
    pub attached_threads: u64,
    /// False if the chain of chunks was broken: then the figures above cover only what was walked.
    pub whole: bool,
    /// How much of it went from live to free or back between this walk and a second one.
    pub moved: Bytes,
}

impl Arena {
    pub fn free(&self) -> Bytes {
        self.bins + self.fast + self.tcache + self.top
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmappedChunk {
    /// Page-aligned range of the chunk, header included.
    pub range: AddressRange,
}
