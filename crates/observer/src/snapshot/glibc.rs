//! What a walk of glibc's malloc from outside found.

use crate::units::{AddressRange, Avma, Bytes};

/// For each arena: `live + free + overhead = bytes inside heaps`, by construction of the walk. For all: Σ heaps and
/// mmapped chunks = what malloc holds from the kernel.
#[derive(Clone, Debug, Default)]
pub struct Glibc {
    /// As the mapped libc states it, such as `2.36`.
    pub version: String,
    pub arenas: Vec<Arena>,
    pub mmapped: Vec<MmappedChunk>,
    /// `mp_.n_mmaps` and `mp_.mmapped_mem`: what glibc says of mmapped chunks, found or not.
    pub mmapped_count: u64,
    pub mmapped_bytes: Bytes,
    /// Live blocks in arenas of the sizes that take most, largest sum first.
    pub peaks: Vec<EqualBlocks>,
    /// Blocks with a header of HotSpot's NMT, by its tag. Empty unless they were looked for.
    pub tagged: Vec<TaggedBlocks>,
    /// The arena cap in force: `mp_.arena_max`, or 8 × online CPUs where that is 0 (malloc/arena.c, `arena_get2`).
    pub arena_cap: Option<u64>,
    /// True where the cap was set by `MALLOC_ARENA_MAX`, a tunable or mallopt.
    pub arena_cap_set: bool,
}

/// Live blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EqualBlocks {
    /// Of each chunk, its header included.
    pub size: Bytes,
    pub count: u64,
}

impl EqualBlocks {
    pub fn bytes(self) -> Bytes {
        Bytes(self.size.0.saturating_mul(self.count))
    }

    /// What malloc_usable_size says of each: a chunk less its size field.
    pub fn usable(self) -> Bytes {
        self.size - Bytes(8)
    }
}

/// Live blocks of one NMT tag, by its number in the VM's build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaggedBlocks {
    pub tag: u8,
    pub count: u64,
    /// As asked for, headers not included.
    pub bytes: Bytes,
    pub resident: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArenaKind {
    /// brk heap, and mmapped pieces where brk could not grow.
    #[default]
    Main,
    /// 64 MiB-aligned mmapped heaps.
    Thread,
}

#[derive(Clone, Debug, Default)]
pub struct Arena {
    /// Of its `malloc_state`.
    pub address: Avma,
    pub kind: ArenaKind,
    /// The readable and writable parts that the arena grew to, sorted, disjoint; reserved tails not included.
    pub heaps: Vec<AddressRange>,
    /// Whole reservations (64 MiB each for thread arenas).
    pub reserved: Bytes,
    /// Chunks in the hands of the program, with their headers; tcache is not live.
    pub live: Bytes,
    pub live_count: u64,
    /// Free, by where it waits: `free = bins + fast + tcache + top`.
    pub bins: Bytes,
    pub bins_count: u64,
    pub fast: Bytes,
    pub fast_count: u64,
    pub tcache: Bytes,
    pub top: Bytes,
    /// Headers of heaps and arenas, fenceposts, alignment.
    pub overhead: Bytes,
    /// Bytes inside `heaps` that lie on resident pages, by what they belong to: `live_resident` (headers, overhead and
    /// the page's unused rest included) + `free_resident` + `unknown_resident` = resident bytes of `heaps`.
    pub live_resident: Bytes,
    pub free_resident: Bytes,
    /// The whole pages among `free_resident` that malloc_trim gives back. The rest shares its pages with live blocks, or is
    /// in `at_end`.
    pub trimmable: Bytes,
    /// Whole pages at the end of a thread arena, which malloc_trim leaves: top, and free chunks that it joins to top. The main
    /// arena has none: there the end of brk goes back.
    pub at_end: Bytes,
    /// Resident bytes of the part of `heaps` that the walk could not parse.
    pub unknown_resident: Bytes,
    /// `attached_threads` of malloc_state.
    pub attached_threads: u64,
    /// False where the chunk chain broke: the figures above then cover what was walked.
    pub whole: bool,
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
