//! What the books (`Books` in `mod.rs`) are made of. Plain types: `mod.rs` computes the sums.

use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_segment::CategoryKind;

/// Figures of a line: first of blocks, then of mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Usable bytes of live blocks.
    pub live: Bytes,
    pub live_count: u64,
    /// Bytes that the program requested for these blocks.
    pub requested: Bytes,
    /// Highest `live`, the number of blocks at that time, and the time (ns since 1970).
    pub peak: Bytes,
    pub count_at_peak: u64,
    pub peak_time_ns: Option<u64>,
    /// Sums over all blocks ever allocated.
    pub cumulative: Bytes,
    pub cumulative_count: u64,
    /// Address space mapped, and its accessible part.
    pub reserved: Bytes,
    pub committed: Bytes,
    /// Part of `committed` that maps files: libraries, data, class archives. Where the resident pages are known, without
    /// those that the program has written in private mappings: these are copies.
    pub files: Bytes,
    pub peak_reserved: Bytes,
    pub peak_committed: Bytes,
    /// Resident bytes of the mappings, if the kernel reported them, and the part of them that maps files.
    pub resident: Option<Bytes>,
    pub resident_files: Bytes,
    /// Part of `resident` in glibc's arenas from before an attach. Their blocks count by themselves.
    pub resident_arenas: Bytes,
    /// What this line held when the total of live bytes was at its recorded peak.
    pub at_peak: Bytes,
    pub at_peak_count: u64,
    /// More was freed than allocated, in this line or in a part of this sum, or rows are missing. So the live bytes are
    /// unknown.
    pub fault: bool,
}

impl Figures {
    /// Blocks and committed mappings together. Files are left out: the kernel can reclaim their pages, and no limit
    /// counts them against the process before they are written.
    pub fn size(&self) -> Bytes {
        self.live + (self.committed - self.files)
    }

    /// The memory that a line is known to hold. Tables are ordered by this figure. For mappings, these are the resident
    /// pages: a stack of 1 MiB of which 20 KiB were touched holds 20 KiB. A mapping of a dead process holds nothing
    /// that is known.
    pub fn held(&self) -> Bytes {
        let resident = self.resident_beside_arenas().unwrap_or_default() - self.resident_files;
        self.live + resident.min(self.reserved - self.files)
    }

    /// Resident bytes of the mappings, as tables show them: without glibc's arenas from before an attach.
    pub fn resident_beside_arenas(&self) -> Option<Bytes> {
        self.resident.map(|resident| resident - self.resident_arenas)
    }

    /// Whether nothing is known of what the line holds: mappings only, of a process that has ended or can't be read.
    pub fn is_held_unknown(&self) -> bool {
        self.resident.is_none() && self.live == Bytes::ZERO && self.committed > Bytes::ZERO
    }

    /// Adds everything except peaks, which belong to different moments.
    pub(crate) fn add(&mut self, other: &Figures) {
        self.live += other.live;
        self.live_count = self.live_count.saturating_add(other.live_count);
        self.requested += other.requested;
        self.cumulative += other.cumulative;
        self.cumulative_count = self.cumulative_count.saturating_add(other.cumulative_count);
        self.reserved += other.reserved;
        self.committed += other.committed;
        self.files += other.files;
        self.add_resident(other.resident, other.resident_files, other.resident_arenas);
        self.at_peak += other.at_peak;
        self.at_peak_count = self.at_peak_count.saturating_add(other.at_peak_count);
        self.fault |= other.fault;
    }

    /// Adds everything, peaks too: the sum may be higher than the peak of both together.
    pub fn add_with_peak(&mut self, other: &Figures) {
        self.add(other);
        self.peak += other.peak;
        self.count_at_peak = self.count_at_peak.saturating_add(other.count_at_peak);
        self.peak_time_ns = None;
    }

    pub(super) fn add_resident(&mut self, resident: Option<Bytes>, files: Bytes, arenas: Bytes) {
        if let Some(bytes) = resident {
            self.resident = Some(self.resident.unwrap_or_default() + bytes);
            self.resident_files += files;
            self.resident_arenas += arenas;
        }
    }

    pub fn is_empty(&self) -> bool {
        let Figures { resident, resident_files, resident_arenas, .. } = *self;
        *self == Figures { resident, resident_files, resident_arenas, ..Figures::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The PID as plimsoll sees it while the process lives. After the end, and in a report saved after the end, the PID
    /// as the process saw it.
    pub pid: u32,
    /// The PID in the process's own namespace, if that differs.
    pub namespaced_pid: Option<u32>,
    pub parent: u32,
    pub executable: String,
    /// Arguments, `argv[0]` first.
    pub arguments: Vec<String>,
    pub runtime: Runtime,
    pub runtime_version: Option<String>,
    pub allocator: &'static str,
    /// Number of threads: the kernel's count for a live process if readable, else the slots in use.
    pub threads: u64,
    /// Resident anonymous memory of a live process, by the kernel (proc_pid_status(5), `RssAnon`).
    pub anonymous: Option<Bytes>,
    /// Start of the tracker, ns since 1970.
    pub start_ns: u64,
    /// Start of these books, ns since 1970: the last attach, else the tracker's start.
    pub since_ns: u64,
    /// Time between the tracker's start and the snapshot (or the orderly end).
    pub up_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    #[default]
    Native,
    HotSpot,
    NativeImage,
}

impl Runtime {
    pub const fn name(self) -> &'static str {
        match self {
            Runtime::Native => "native",
            Runtime::HotSpot => "hotspot",
            Runtime::NativeImage => "native-image",
        }
    }
}

/// How deep stacks are collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    Off,
    #[default]
    Sampled,
    Exact,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Off, Mode::Sampled, Mode::Exact];

    pub const fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Sampled => "sampled",
            Mode::Exact => "exact",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Category {
    pub name: String,
    pub kind: Origin,
    pub figures: Figures,
}

/// Where the name of a category comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    #[default]
    Own,
    Rule,
    Module,
    Program,
    Vm,
}

impl Origin {
    pub const ALL: [Origin; 5] = [Origin::Own, Origin::Rule, Origin::Module, Origin::Program, Origin::Vm];

    pub const fn name(self) -> &'static str {
        match self {
            Origin::Own => "own",
            Origin::Rule => "rule",
            Origin::Module => "module",
            Origin::Program => "program",
            Origin::Vm => "vm",
        }
    }

    pub(super) fn from_segment(kind: u32) -> Origin {
        match kind {
            k if k == CategoryKind::Rule as u32 => Origin::Rule,
            k if k == CategoryKind::Module as u32 => Origin::Module,
            k if k == CategoryKind::Program as u32 => Origin::Program,
            k if k == CategoryKind::Vm as u32 => Origin::Vm,
            _ => Origin::Own,
        }
    }
}

/// A short native stack that allocates, innermost frame first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    pub frames: Vec<Frame>,
    pub category: usize,
    /// The stack walk ended early.
    pub truncated: bool,
    pub figures: Figures,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Return address.
    pub address: Avma,
    /// Index into `modules`.
    pub module: Option<usize>,
    /// Offset of the address in its module, as linked (Svma).
    pub offset: u64,
    pub function: Option<String>,
    /// Offset of the call in its function.
    pub function_offset: u64,
    /// Source position of the call, if debug information has it.
    pub file: Option<String>,
    pub line: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    pub slot: usize,
    pub tid: u32,
    pub in_use: bool,
    pub name: Option<String>,
    pub stack: Bytes,
    pub guard: Bytes,
    pub stack_range: (Avma, Avma),
    /// 0: made by libc; 1: the program's own memory; 2: the main thread's stack.
    pub stack_kind: u64,
    /// Bytes that the threads of this slot allocated and freed. The freed ones may be other threads' blocks.
    pub allocated: Bytes,
    pub allocated_count: u64,
    pub freed: Bytes,
    pub freed_count: u64,
    pub generation: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    pub path: String,
    pub range: (Avma, Avma),
    /// Avma = Svma + bias.
    pub bias: u64,
    pub build_id: Vec<u8>,
    pub loaded_ns: u64,
    /// 0 while it is loaded.
    pub unloaded_ns: u64,
    /// Σ callers whose innermost frame is in this module.
    pub figures: Figures,
}

impl Module {
    /// The last component of the path.
    pub fn name(&self) -> &str {
        match self.path.rsplit('/').next() {
            Some(name) if !name.is_empty() => name,
            _ => &self.path,
        }
    }
}
