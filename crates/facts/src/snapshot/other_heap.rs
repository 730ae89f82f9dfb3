//! Result of walking an allocator other than glibc's.

use std::collections::BTreeMap;

use crate::snapshot::AllocatorKind;
use crate::units::{AddressRange, Bytes};

/// A heap of jemalloc, tcmalloc, mimalloc, musl's malloc, Go or V8, as its walk has divided it.
///
/// Σ length of `parts` = Σ length of `ranges`; the same holds for resident bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHeap {
    pub kind: AllocatorKind,
    /// In a series of readings, if the mappings are newer than the walk: the program's memory at the time of the walk,
    /// the heap's own included. Sorted, disjoint. None: the mappings are those of the walk.
    pub mapped_then: Option<Vec<AddressRange>>,
    /// False if the walk didn't find all records of Go's runtime: then they lie in mappings that look like the program's.
    pub has_records: bool,
    /// Everything that the allocator holds from the kernel: sorted, disjoint, never touching.
    pub ranges: Vec<AddressRange>,
    pub parts: BTreeMap<HeapPart, PartBytes>,
    /// For Go's heap: when Go collects, and how much was live at the last collection.
    pub pace: Option<GoPace>,
    /// For V8's heap: its array buffers. None if they were not found.
    pub buffers: Option<ArrayBuffers>,
    /// The array buffers that start at a page, as V8's own mappings do; sorted. Some malloc's large blocks do, too.
    pub buffers_at_pages: Vec<AddressRange>,
}

/// V8's array buffers, and with them Node's `Buffer`s, of all isolates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayBuffers {
    pub count: u64,
    /// Their lengths, touched or not.
    pub bytes: Bytes,
}

/// How Go's collector is set, and what it found at its last collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoPace {
    /// False if these figures were not found; then all others are None.
    pub is_known: bool,
    /// GOGC; None if it is off.
    pub percent: Option<u32>,
    /// GOMEMLIMIT; None if there is no limit.
    pub memory_limit: Option<Bytes>,
    /// Live bytes at which it collects next; None without a goal.
    pub goal: Option<Bytes>,
    /// Bytes that were live at the last collection.
    pub marked: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartBytes {
    pub length: Bytes,
    pub resident: Bytes,
    /// How much `resident` changed between this walk and a second one.
    pub moved: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeapPart {
    /// Blocks that were handed out, by their size class. Blocks in thread caches are included if the allocator doesn't
    /// separate them.
    Live,
    /// Free blocks in caches of threads and between threads, if the allocator separates them from live ones.
    Cached,
    /// The rest of pages that also hold live blocks: free blocks of the same size class, and padding.
    Beside,
    /// Whole free pages that the allocator keeps for reuse.
    Dirty,
    /// Whole free pages released by MADV_FREE: resident until the kernel needs them.
    Muzzy,
    /// Whole free pages that were released; only the addresses are kept.
    Released,
    /// Stacks of Go's goroutines and threads, and the free stacks that Go keeps for new ones.
    Stacks,
    /// The allocator's own records.
    Records,
    /// V8: objects of the young generation, up to the address of the next object.
    Young,
    /// V8: objects that have survived, and garbage that wasn't collected yet.
    Old,
    /// V8: objects with pages of their own.
    Large,
    /// V8: compiled code.
    Code,
    /// V8: objects that never change.
    ReadOnly,
    /// V8: the rest of the young generation's pages, which takes the next objects.
    FreeYoung,
    /// V8: pages of the young generation, if none of them takes new objects at that moment: then no address divides
    /// `Young` from `FreeYoung`.
    YoungUnsplit,
    /// V8: the rest of the other pages.
    FreeOld,
    /// V8: pages that belong to no space any more, but are still mapped.
    Leaving,
    /// Pages whose record could not be decoded.
    Unknown,
}

impl HeapPart {
    pub const ALL: [HeapPart; 18] = [
        HeapPart::Live,
        HeapPart::Cached,
        HeapPart::Beside,
        HeapPart::Dirty,
        HeapPart::Muzzy,
        HeapPart::Released,
        HeapPart::Stacks,
        HeapPart::Records,
        HeapPart::Young,
        HeapPart::Old,
        HeapPart::Large,
        HeapPart::Code,
        HeapPart::ReadOnly,
        HeapPart::FreeYoung,
        HeapPart::YoungUnsplit,
        HeapPart::FreeOld,
        HeapPart::Leaving,
        HeapPart::Unknown,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            HeapPart::Live => "live",
            HeapPart::Cached => "free in caches",
            HeapPart::Beside => "free beside live blocks",
            HeapPart::Dirty => "free pages (dirty)",
            HeapPart::Muzzy => "free pages (muzzy)",
            HeapPart::Released => "free pages (released)",
            HeapPart::Stacks => "stacks of goroutines",
            HeapPart::Records => "its own records",
            HeapPart::Young => "young objects",
            HeapPart::Old => "old objects",
            HeapPart::Large => "large objects",
            HeapPart::Code => "code",
            HeapPart::ReadOnly => "read-only objects",
            HeapPart::FreeYoung => "free for young objects",
            HeapPart::YoungUnsplit => "young objects, and free for them",
            HeapPart::FreeOld => "free in old pages",
            HeapPart::Leaving => "pages on their way back",
            HeapPart::Unknown => "unclassified",
        }
    }
}

impl OtherHeap {
    pub fn new(kind: AllocatorKind) -> OtherHeap {
        OtherHeap {
            kind,
            mapped_then: None,
            has_records: true,
            ranges: Vec::new(),
            parts: BTreeMap::new(),
            pace: None,
            buffers: None,
            buffers_at_pages: Vec::new(),
        }
    }

    pub fn part(&self, part: HeapPart) -> PartBytes {
        self.parts.get(&part).copied().unwrap_or_default()
    }

    pub fn resident(&self, part: HeapPart) -> Bytes {
        self.part(part).resident
    }

    /// Resident bytes of blocks that the program hasn't freed, and of objects that V8 hasn't collected.
    pub fn live(&self) -> Bytes {
        const LIVE: [HeapPart; 6] =
            [HeapPart::Live, HeapPart::Young, HeapPart::Old, HeapPart::Large, HeapPart::Code, HeapPart::ReadOnly];
        LIVE.into_iter().map(|part| self.resident(part)).sum()
    }

    /// Bytes that a purge releases: whole free pages. Go's muzzy pages don't count, because Go never releases a page
    /// twice.
    pub fn purgeable(&self) -> Bytes {
        let muzzy = if self.kind == AllocatorKind::Go { Bytes(0) } else { self.resident(HeapPart::Muzzy) };
        self.resident(HeapPart::Dirty) + muzzy
    }

    pub fn add(&mut self, part: HeapPart, length: Bytes, resident: Bytes) {
        let sums = self.parts.entry(part).or_default();
        sums.length += length;
        sums.resident += resident;
    }
}
