//! All facts of one moment, as the sources reported them, before any conclusion.
//!
//! `vmas` is the ground truth of what exists and is resident. Everything else is provenance, joined onto it by address.
//! Each source except proc is optional; what could not be read is a `Gap`. No fact here is computed from another: the
//! ledger does that, and it does no I/O.
//!
//! Addresses belong to the target's own address space. Names and paths are as the target wrote them; they may be
//! hostile, so code that prints them must escape them.

use std::time::Duration;

use crate::gap::{Gap, Source};
use crate::units::{AddressRange, Bytes, merged};

mod baseline;
mod booked;
mod cgroup;
mod glibc;
mod hotspot;
mod native_image;
mod native_objects;
mod other_heap;
mod process;
mod pymalloc;
mod residency;
mod start;
mod unpacked;

pub use baseline::{Baseline, lacking};
pub use booked::{Booked, BookedCategory, BookedSince};
pub use cgroup::{Cgroup, CgroupVersion, MemoryStat, OomEvents, Pressure, Throttle};
pub use glibc::{Arena, ArenaKind, EqualBlocks, Glibc, MmappedChunk, TaggedBlocks, ZlibStates};
pub use hotspot::jdk_of;
pub use hotspot::{
    CodeCacheSegment, DirectBuffers, HotSpot, JavaHeap, JavaThread, Metaspace, NmtCategory, NmtMode, VmRegion, VmTag,
    folder_of_jdk,
};
pub use native_image::{ImageHeapRange, Isolate, NativeImage};
pub use native_objects::{BlockCache, NativeObjects, ObjectBlocks, ObjectClass};
pub use other_heap::{ArrayBuffers, GoPace, HeapPart, OtherHeap, PartBytes};
pub use process::{
    AllocatorKind, Backing, Host, Limits, LoadedAllocator, Process, ProcessState, Rollup, Root, Rss, Thp, Thread, Vma,
    VmaFlags,
};
pub use pymalloc::Pymalloc;
pub use residency::Residency;
pub use start::{LACKING, Listeners, Start, are_public};
pub use unpacked::{Unpacked, UnpackedSegment};

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Time of reading smaps, seconds since 1970 UTC.
    pub time: f64,
    pub process: Process,
    pub host: Host,
    /// The mappings from smaps, in address order.
    pub vmas: Vec<Vma>,
    /// True if `vmas` has no figures: only `rss_by_kind` is known.
    pub smaps_refused: bool,
    pub rollup: Option<Rollup>,
    /// The kernel's totals by kind, from status.
    pub rss_by_kind: Rss,
    pub threads: Vec<Thread>,
    /// Stacks that the thread library keeps for later threads: they contain its record, and no thread runs on them.
    pub idle_stacks: Vec<AddressRange>,
    /// Resident pages, for the ranges that the ledger may have to divide.
    pub residency: Option<Residency>,
    pub cgroup: Option<Cgroup>,
    pub hotspot: Option<HotSpot>,
    pub glibc: Option<Glibc>,
    /// The heap of the allocator that serves malloc instead of glibc.
    pub malloc_heap: Option<OtherHeap>,
    pub native_image: Option<NativeImage>,
    /// What a JVM's native libraries hold, by their blocks' first words.
    pub native_objects: NativeObjects,
    pub pymalloc: Option<Pymalloc>,
    /// The tracker's books of a process that it was attached to, before and after the walk of its arenas.
    pub attached: Option<[Booked; 2]>,
    /// The categories with live blocks in the books of a tracked JVM, when its arenas were walked.
    pub booked_categories: Vec<BookedCategory>,
    /// In a series, for a tracked process: the growth of its blocks since the arenas were walked.
    pub booked: Option<BookedSince>,
    /// Whether the tracker was detached: its library stays in the process, and its books are those of that moment.
    pub is_detached: bool,
    /// The tracker's own mappings according to the segment. The target controls it, so the ledger checks them.
    pub own_mappings: Vec<OwnMapping>,
    /// V8's heap, of all isolates together.
    pub v8: Option<OtherHeap>,
    /// Go's heap, with the records and stacks of its runtime.
    pub go: Option<OtherHeap>,
    /// The program itself, if a packer unpacked it into memory without a file.
    pub unpacked: Option<Unpacked>,
    /// The .bss of objects whose program headers were read, by address. Each begins where the object's data ends; an
    /// empty one means that the memory behind the data isn't the object's.
    pub bss: Vec<AddressRange>,
    /// Where the process accepts connections. None: not read, or not readable.
    pub listeners: Option<Listeners>,
    /// Allocators found among the mapped files, including glibc's.
    pub allocators: Vec<LoadedAllocator>,
    /// Whether the program file exports a malloc, which every thread may then run.
    pub exports_malloc: bool,
    /// Jars that a JVM has open, by the names of its descriptors.
    pub jars: Vec<String>,
    /// The limit from `--limit`, used instead of the cgroup's.
    pub limit_requested: Option<Bytes>,
    /// Result of an earlier reading (`--baseline`).
    pub baseline: Option<Baseline>,
    pub gaps: Vec<Gap>,
    /// When each source was read, relative to the start of the snapshot; shows the skew between them.
    pub readings: Vec<Reading>,
}

/// The reading of one source: when it began and how long it took. For smaps and the page map, `took` is an upper bound
/// of the time under the target's mmap lock. The kernel drops the lock between calls, and the time that the reader then
/// gives to other threads isn't part of `took`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub source: Source,
    pub began: Duration,
    pub took: Duration,
}

/// A private mapping of the tracker, as listed in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMapping {
    pub range: AddressRange,
    /// A `plimsoll_segment::Purpose`; any number in a hostile segment.
    pub purpose: u32,
}

/// The result of a source: what it found, and what it could not find.
pub type Sourced<T> = (Option<T>, Vec<Gap>);

impl Snapshot {
    /// Heaps that a walk has split: of the allocator that serves malloc, V8's, and Go's.
    pub fn other_heaps(&self) -> impl Iterator<Item = &OtherHeap> {
        self.malloc_heap.iter().chain(&self.v8).chain(&self.go)
    }

    /// NMT's categories of the VM: a HotSpot, or a native image. Empty without NMT.
    pub fn vm_categories(&self) -> &[NmtCategory] {
        match (&self.hotspot, &self.native_image) {
            (Some(vm), _) => &vm.categories,
            (None, Some(image)) => &image.nmt,
            (None, None) => &[],
        }
    }

    /// V8's array buffers that malloc holds, if they were found.
    pub fn array_buffers(&self) -> Option<ArrayBuffers> {
        let all = self.v8.as_ref()?.buffers?;
        let mapped = self.mapped_array_buffers();
        Some(ArrayBuffers { count: all.count.saturating_sub(mapped.count), bytes: all.bytes - mapped.bytes })
    }

    /// V8's array buffers in mappings of its own: memory of WebAssembly, and buffers that can be resized.
    pub fn mapped_array_buffers(&self) -> ArrayBuffers {
        let Some(v8) = &self.v8 else { return ArrayBuffers::default() };
        let of_glibc = self.glibc.iter().flat_map(|glibc| glibc.arenas.iter().flat_map(|arena| arena.heaps.iter()));
        let of_malloc: Vec<AddressRange> = self
            .malloc_heap
            .iter()
            .flat_map(|heap| heap.ranges.iter())
            .chain(of_glibc)
            .copied()
            .chain(self.glibc.iter().flat_map(|glibc| glibc.mmapped.iter().map(|chunk| chunk.range)))
            .collect();
        let of_malloc = merged(of_malloc);
        let is_mapped = |range: &&AddressRange| {
            let index = of_malloc.partition_point(|of_malloc| of_malloc.end <= range.start);
            of_malloc.get(index).is_none_or(|of_malloc| of_malloc.start > range.start)
        };
        let mapped = v8.buffers_at_pages.iter().filter(is_mapped);
        mapped.fold(ArrayBuffers::default(), |sum, range| ArrayBuffers {
            count: sum.count + 1,
            bytes: sum.bytes + range.length(),
        })
    }

    /// Rss of the smaps reading; the ledger must equal it to the byte. If smaps was refused, the kernel's totals in
    /// status.
    pub fn rss(&self) -> Bytes {
        if self.smaps_refused { self.rss_by_kind.total() } else { self.vmas.iter().map(|vma| vma.rss).sum() }
    }

    pub fn reading(&self, source: Source) -> Option<Reading> {
        self.readings.iter().copied().find(|reading| reading.source == source)
    }
}
