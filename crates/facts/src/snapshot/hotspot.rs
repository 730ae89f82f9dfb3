//! What a HotSpot VM reported about itself.

use std::collections::HashMap;

use super::Vma;
use crate::units::{AddressRange, Bytes};

#[derive(Clone, Debug, Default)]
pub struct HotSpot {
    /// Version as the VM reports it, such as `25.0.3+9-LTS`.
    pub version: String,
    pub nmt: NmtMode,
    /// The VM's own mappings, sorted by start, disjoint. Thread stacks are included if the VM knows them.
    pub regions: Vec<VmRegion>,
    /// NMT's categories, as many as the VM has; empty if NMT is off.
    pub categories: Vec<NmtCategory>,
    /// NMT's own totals, for comparison with the sum of the categories.
    pub nmt_total: Option<NmtCategory>,
    pub java_heap: Option<JavaHeap>,
    pub metaspace: Option<Metaspace>,
    pub code_cache: Vec<CodeCacheSegment>,
    /// The VM compiles nothing now, because the code cache has no free space that is large enough.
    pub has_stopped_compiling: bool,
    pub direct_buffers: Option<DirectBuffers>,
    pub threads: Vec<JavaThread>,
    /// Flags that the verdicts use, as `(name, value)`, such as `("MaxHeapSize", "4294967296")`.
    pub flags: Vec<(String, String)>,
    /// Name of the collector as the VM prints it: `G1`, `Parallel`, `Serial`, `Z`, `Shenandoah`, `Epsilon`.
    pub collector: Option<String>,
    /// Number of expensive queries about its regions that were sent.
    pub located: usize,
    /// The queries among them that make the VM keep libjvm's symbols (4 to 5 MiB from the first one on).
    pub symbols_for: Vec<&'static str>,
}

/// The JDK's feature version, such as 25 of `25.0.3+9-LTS`. JDK 8 reports the version of its HotSpot instead, such as
/// `25.402-b06`, without the `+` that JEP 223 put before the build number.
pub fn jdk_of(version: &str) -> Option<u32> {
    let number = version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let is_8 = number == 25 && !version.contains('+') && version.contains("-b");
    Some(if is_8 { 8 } else { number })
}

impl HotSpot {
    /// The JDK's feature version; None if the VM didn't report it.
    pub fn jdk(&self) -> Option<u32> {
        jdk_of(&self.version)
    }

    /// Whether the VM knows TrimNativeHeapInterval: from 17.0.9, 21.0.1 and 22 on (JDK-8293114). True if the VM didn't
    /// report its version.
    pub fn can_trim(&self) -> bool {
        match self.jdk() {
            Some(17) => self.update() >= 9,
            Some(21) => self.update() >= 1,
            Some(jdk) => jdk >= 22,
            None => true,
        }
    }

    /// Whether the VM knows the command System.trim_native_heap: from 11.0.18, 17.0.2 and 18 on (JDK-8268893). True if
    /// the VM didn't report its version.
    pub fn has_trim_command(&self) -> bool {
        match self.jdk() {
            Some(11) => self.update() >= 18,
            Some(17) => self.update() >= 2,
            Some(jdk) => jdk >= 18,
            None => true,
        }
    }

    /// The third number of the version, such as 3 of `25.0.3+9-LTS`.
    fn update(&self) -> u32 {
        let numbers = self.version.split(['+', '-']).next().unwrap_or_default();
        numbers.split('.').nth(2).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Java threads by kernel id: the VM knows their full names, the kernel only 15 bytes.
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

/// A reservation of the VM and its committed parts. `committed` lies inside `range`, sorted, disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRegion {
    pub range: AddressRange,
    pub tag: VmTag,
    pub committed: Vec<AddressRange>,
}

/// NMT's tags, mapped to those that the ledger distinguishes.
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
    /// Any other tag, with NMT's name.
    Other(String),
}

/// One row of `VM.native_memory`. All sums in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NmtCategory {
    /// NMT's name: `Java Heap`, `Class`, `Thread`, `GC`, `Arena Chunk`, …
    pub name: String,
    pub reserved: Bytes,
    pub committed: Bytes,
    /// Live blocks from malloc, without arenas' chunks if NMT counts these separately.
    pub malloc: Bytes,
    pub malloc_count: u64,
    /// `arena=`: part of `malloc` of the Arena Chunk category, counted here.
    pub arena: Bytes,
    /// `tracking overhead=`: NMT's headers of the blocks of all categories, which its own category counts.
    pub headers: Bytes,
    /// Resident bytes of the chunks beside those blocks of all categories that the walk of malloc's arenas found: NMT's
    /// headers and malloc's, and the rounding. Only the category with `headers` has this figure.
    pub around: Option<Bytes>,
    pub mmap_reserved: Bytes,
    pub mmap_committed: Bytes,
    /// Resident bytes of `malloc` + `arena`, if the walk of malloc's arenas found the category's blocks.
    pub malloc_resident: Option<Bytes>,
    /// How much the bytes changed between two readings, one before and one after the mappings were read. These are two
    /// walks if `malloc_resident` is known, otherwise two reports of the VM. In a series, it also has the change since
    /// then, by its rate.
    pub moved: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JavaHeap {
    pub reserved: Bytes,
    pub committed: Bytes,
    /// Occupied by objects, including garbage.
    pub occupied: Bytes,
    /// Live after the last collection, if the VM reports it.
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
    /// Its share of ReservedCodeCacheSize.
    pub reserved: Bytes,
}

/// `java.nio` direct byte buffers (`BufferPool direct`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectBuffers {
    pub count: Option<u64>,
    pub capacity: Bytes,
    /// `capacity` when malloc's arenas were walked; it differs only in a series.
    pub at_walk: Bytes,
    /// The effective `-XX:MaxDirectMemorySize` (the maximum Java heap if unset).
    pub max: Option<Bytes>,
    /// Netty's own count of memory that it allocated with Unsafe, which `capacity` doesn't include.
    pub by_netty: Bytes,
    /// How much `capacity` changed while the mappings were read.
    pub moved: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaThread {
    pub name: String,
    /// The kernel's thread id in the target's PID namespace (`nid=`).
    pub tid: u32,
}

/// The folder with all of the JDK's libraries: libjvm lies in `…/lib/server`, of JDK 8 in `…/jre/lib/amd64/server`.
pub fn folder_of_jdk(vmas: &[Vma]) -> Option<&str> {
    const KINDS: [&str; 4] = ["server", "client", "minimal", "zero"];
    let above = |vma: &'_ Vma| -> Option<usize> {
        let (folder, kind) = vma.name.strip_suffix("/libjvm.so")?.rsplit_once('/')?;
        KINDS.contains(&kind).then_some(folder.len() + 1)
    };
    vmas.iter().find_map(|vma| vma.name.get(..above(vma)?))
}
