//! What a HotSpot VM said about itself.

use std::collections::HashMap;

use crate::units::{AddressRange, Bytes};

#[derive(Clone, Debug, Default)]
pub struct HotSpot {
    /// As the VM states it, such as `25.0.3+9-LTS`.
    pub version: String,
    pub nmt: NmtMode,
    /// Where the VM's own mappings lie, sorted by start, disjoint. Thread stacks are included where the VM knows them.
    pub regions: Vec<VmRegion>,
    /// NMT's categories, as many as the VM has; empty with NMT off.
    pub categories: Vec<NmtCategory>,
    /// NMT's own totals, to compare with the sum of the categories.
    pub nmt_total: Option<NmtCategory>,
    pub java_heap: Option<JavaHeap>,
    pub metaspace: Option<Metaspace>,
    pub code_cache: Vec<CodeCacheSegment>,
    pub direct_buffers: Option<DirectBuffers>,
    pub threads: Vec<JavaThread>,
    /// Flags the verdicts look at, as `(name, value)`, such as `("MaxHeapSize", "4294967296")`.
    pub flags: Vec<(String, String)>,
    /// Name of the collector as the VM prints it: `G1`, `Parallel`, `Serial`, `Z`, `Shenandoah`, `Epsilon`.
    pub collector: Option<String>,
    /// How many of the dearer questions about its regions it was asked.
    pub located: usize,
    /// Of those the commands for which the VM keeps libjvm's symbols, 4 to 5 MiB, from the first one on.
    pub symbols_for: Vec<&'static str>,
}

impl HotSpot {
    /// The VM knows its threads by their whole names, the kernel by 15 bytes.
    pub fn threads_by_tid(&self) -> HashMap<u32, &JavaThread> {
        self.threads.iter().map(|thread| (thread.tid, thread)).collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NmtMode {
    #[default]
    Unknown,
    Off,
    Summary,
    Detail,
}

/// A reservation of the VM with the parts of it that are committed. `committed` lies inside `range`, sorted, disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRegion {
    pub range: AddressRange,
    pub tag: VmTag,
    pub committed: Vec<AddressRange>,
}

/// NMT's tags, folded onto what the ledger tells apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VmTag {
    JavaHeap,
    /// Metaspace and compressed class space.
    Class,
    /// CDS archive (`Shared class space`).
    SharedClassSpace,
    Code,
    Gc,
    Compiler,
    Symbol,
    ThreadStack,
    /// Any other tag, by NMT's name for it.
    Other(String),
}

/// One row of `VM.native_memory`. All sums in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NmtCategory {
    /// NMT's name: `Java Heap`, `Class`, `Thread`, `GC`, `Arena Chunk`, …
    pub name: String,
    pub reserved: Bytes,
    pub committed: Bytes,
    /// Live blocks from malloc, arenas' chunks not included where NMT counts them apart.
    pub malloc: Bytes,
    pub malloc_count: u64,
    /// `arena=`: part of `malloc` of the Arena Chunk category, credited here.
    pub arena: Bytes,
    pub mmap_reserved: Bytes,
    pub mmap_committed: Bytes,
    /// Resident bytes of `malloc` + `arena`, where the walk of malloc's arenas found the category's blocks.
    pub malloc_resident: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JavaHeap {
    pub reserved: Bytes,
    pub committed: Bytes,
    /// Occupied by objects, garbage included.
    pub occupied: Bytes,
    /// Live after the last collection, where the VM tells.
    pub live_after_gc: Option<Bytes>,
    pub max: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metaspace {
    pub reserved: Bytes,
    pub committed: Bytes,
    pub occupied: Bytes,
    pub class_space_committed: Bytes,
    pub loaders: Option<u64>,
    pub classes: Option<u64>,
}

/// One segment of the code cache (or the whole of an unsegmented one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeCacheSegment {
    pub name: String,
    pub range: AddressRange,
    pub committed: Bytes,
    pub occupied: Bytes,
    /// ReservedCodeCacheSize's share of it.
    pub reserved: Bytes,
}

/// `java.nio` direct byte buffers (`BufferPool direct`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectBuffers {
    pub count: Option<u64>,
    pub capacity: Bytes,
    /// `capacity` when malloc's arenas were walked: the same but in a series.
    pub at_walk: Bytes,
    /// `-XX:MaxDirectMemorySize` in force (the maximum Java heap where unset).
    pub max: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaThread {
    pub name: String,
    /// The kernel's thread id in the target's PID namespace (`nid=`).
    pub tid: u32,
}
