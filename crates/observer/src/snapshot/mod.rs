//! All facts of one moment: what the sources said, before anybody draws a conclusion.
//!
//! `vmas` is the ground truth of what exists and is resident. Everything else is provenance and is joined onto it by
//! address. Each source but proc is optional; what could not be had is a `Gap`. Nothing here is computed from
//! another fact: the ledger does that, and it does no I/O.
//!
//! Addresses are of the target's own address space; names and paths are as the target wrote them (hostile: whoever
//! prints them escapes them).

use std::time::Duration;

use crate::gap::{Gap, Source};
use crate::units::{AddressRange, Bytes};

mod baseline;
mod booked;
mod cgroup;
mod glibc;
mod hotspot;
mod native_image;
mod opened;
mod process;
mod pymalloc;
mod residency;
mod unpacked;

pub use baseline::Baseline;
pub use booked::{Booked, BookedSince};
pub use cgroup::{Cgroup, CgroupVersion, MemoryStat, OomEvents, Pressure};
pub use glibc::{Arena, ArenaKind, EqualBlocks, Glibc, MmappedChunk, TaggedBlocks};
pub use hotspot::{
    CodeCacheSegment, DirectBuffers, HotSpot, JavaHeap, JavaThread, Metaspace, NmtCategory, NmtMode, VmRegion, VmTag,
};
pub use native_image::{ImageHeapRange, Isolate, NativeImage};
pub use opened::{HeapPart, OpenedHeap, PartBytes};
pub use process::{
    AllocatorKind, Backing, Host, Limits, LoadedAllocator, Process, ProcessState, Rollup, Rss, Thp, Thread, Vma,
    VmaFlags,
};
pub use pymalloc::Pymalloc;
pub use residency::Residency;
pub use unpacked::{Unpacked, UnpackedSegment};

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Seconds since the epoch at the reading of smaps.
    pub time: f64,
    pub process: Process,
    pub host: Host,
    /// The reading of smaps, in address order.
    pub vmas: Vec<Vma>,
    /// `vmas` has no figures: only `rss_by_kind` is known.
    pub smaps_refused: bool,
    pub rollup: Option<Rollup>,
    /// The kernel's totals by kind, from status.
    pub rss_by_kind: Rss,
    pub threads: Vec<Thread>,
    /// Stacks that the thread library keeps for threads to come: they carry its record and no thread runs on them.
    pub idle_stacks: Vec<AddressRange>,
    /// Which pages of which ranges are resident; covers what the ledger may need to cut.
    pub residency: Option<Residency>,
    pub cgroup: Option<Cgroup>,
    pub hotspot: Option<HotSpot>,
    pub glibc: Option<Glibc>,
    /// The heap of the allocator that serves malloc in glibc's place.
    pub opened: Option<OpenedHeap>,
    pub native_image: Option<NativeImage>,
    pub pymalloc: Option<Pymalloc>,
    /// The tracker's books of a process that it was attached to, before and after the walk of its arenas.
    pub attached: Option<[Booked; 2]>,
    /// In a series, of a tracked process: what its blocks grew by since the arenas were walked.
    pub booked: Option<BookedSince>,
    /// What the segment lists as the tracker's own mappings: the target's word, which the ledger checks.
    pub own_mappings: Vec<OwnMapping>,
    /// Pages of V8's heap, in address order.
    pub v8_pages: Vec<AddressRange>,
    /// The program itself, where a packer has unpacked it into memory that no file backs.
    pub unpacked: Option<Unpacked>,
    /// Allocators found among the mapped files, glibc's included.
    pub allocators: Vec<LoadedAllocator>,
    /// Jars that a JVM has open, as its descriptors name them.
    pub jars: Vec<String>,
    /// A limit to judge against in place of the cgroup's (`--limit`).
    pub limit_asked: Option<Bytes>,
    /// What an earlier reading found (`--baseline`).
    pub baseline: Option<Baseline>,
    pub gaps: Vec<Gap>,
    /// When each source was read, relative to the start of the snapshot: the skew between them.
    pub readings: Vec<Reading>,
}

/// One source's reading: when it began and how long it took. For smaps, `took` is the time under the target's mmap lock
/// as an upper bound (the kernel drops the lock between buffers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub source: Source,
    pub began: Duration,
    pub took: Duration,
}

/// A private mapping of the tracker, as the segment lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMapping {
    pub range: AddressRange,
    /// Of `plimsoll_segment::Purpose`; any number in a hostile segment.
    pub purpose: u32,
}

/// What a source hands back: what it found, and what it could not find.
pub type Sourced<T> = (Option<T>, Vec<Gap>);

impl Snapshot {
    /// Rss of the smaps reading: the sum that the ledger has to meet to the byte. Where smaps was refused, the kernel's
    /// totals of status.
    pub fn rss(&self) -> Bytes {
        if self.smaps_refused { self.rss_by_kind.total() } else { self.vmas.iter().map(|vma| vma.rss).sum() }
    }

    pub fn reading(&self, source: Source) -> Option<Reading> {
        self.readings.iter().copied().find(|reading| reading.source == source)
    }
}
