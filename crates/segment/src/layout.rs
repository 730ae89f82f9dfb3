//! The records of the segment and their positions. Sizes are asserted at compile time. Over 800 lines: docs/segment.md
//! and include/segment.h are made from this one file.

use crate::counters::CounterArray;
use crate::record::record;
pub use crate::record::text;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// First eight bytes of every segment, in the writer's byte order.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"PLIMSEG1");
/// Version of everything in this file. A reader refuses others.
pub const VERSION: u32 = 2;
/// Suffix of a segment's file name: `PID-BOOTTIME_NS.seg`.
pub const SUFFIX: &str = ".seg";
/// Number of segments of dead processes that a directory keeps by default.
pub const RETAINED: usize = 16;

/// Page size assumed for growth; larger pages only make growth coarser.
pub const PAGE: usize = 4096;

/// With a lower limit on address space (RLIMIT_AS, bytes), nothing is tracked: tables and code take about 10 MB of it.
pub const LEAST_ADDRESS_SPACE: u64 = 60_000_000;

/// The same for writable private memory (RLIMIT_DATA): tables take about 9 MB of it.
pub const LEAST_DATA: u64 = 40_000_000;

macro_rules! sections {
    ($($(#[doc = $doc:literal])* $id:ident $name:literal, $entry:expr, $capacity:expr;)*) => {
        /// A section of the file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Section { $($(#[doc = $doc])* $id,)* }
        /// Number of sections.
        pub const SECTIONS: usize = [$($name,)*].len();
        /// Names, in order.
        pub const SECTION_NAMES: [&str; SECTIONS] = [$($name,)*];
        /// All sections, in order.
        pub const ALL_SECTIONS: [Section; SECTIONS] = [$(Section::$id,)*];
        const SIZES: [(usize, usize); SECTIONS] = [$(($entry, $capacity),)*];
    };
}

sections! {
    /// Names and units of the counters, text.
    Schema "schema", 1, 4096;
    /// Executable and arguments, NUL-separated text.
    Command "command", 1, 8192;
    /// [`Category`].
    Categories "categories", Category::BYTES, 1024;
    /// [`Module`].
    Modules "modules", Module::BYTES, 4096;
    /// [`Thread`].
    Threads "threads", Thread::BYTES, 32_768;
    /// [`Caller`]: callers, and the sites under them.
    Callers "callers", Caller::BYTES, 131_072;
    /// [`Row`].
    Rows "rows", Row::BYTES, 1 << 20;
    /// The virtual memory map, raw.
    Vmap "vmap", 1, 16 << 20;
    /// [`FrameNode`]: the stacks of the sites, a tree.
    Frames "frames", FrameNode::BYTES, 1 << 20;
    /// [`Method`]: what frames of Java code name.
    Methods "methods", Method::BYTES, 65_536;
    /// Text that methods refer to.
    Names "names", 1, 16 << 20;
    /// [`Sample`]: in no order; entries are reused.
    Samples "samples", Sample::BYTES, 65_536;
    /// [`SiteSamples`].
    SiteSamples "site_samples", SiteSamples::BYTES, 131_072;
    /// [`OwnMapping`]: private mappings of the tracker itself.
    Own "own", OwnMapping::BYTES, 4096;
}

/// Sections from this one on may be missing: the tracker that wrote the file did not know them. They read as empty.
const FIRST_OPTIONAL: usize = Section::Own as usize;

impl Section {
    /// Bytes of one entry.
    pub const fn entry_bytes(self) -> usize {
        SIZES[self as usize].0
    }
    /// Maximum number of entries.
    pub const fn capacity(self) -> usize {
        SIZES[self as usize].1
    }
    /// Bytes of all entries.
    pub const fn bytes(self) -> usize {
        self.capacity() * self.entry_bytes()
    }
    /// Offset of the first entry in the file; sections start on a page.
    pub const fn offset(self) -> usize {
        let mut at = HEADER_BYTES;
        let mut i = 0;
        while i < self as usize {
            at += (SIZES[i].0 * SIZES[i].1).next_multiple_of(PAGE);
            i += 1;
        }
        at
    }
}

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of the whole (sparse) file: the bound of its growth.
pub const FILE_BYTES: usize = LAST.offset() + (LAST.capacity() * LAST.entry_bytes()).next_multiple_of(PAGE);
const LAST: Section = ALL_SECTIONS[SECTIONS - 1];
const _: () = assert!(FILE_BYTES <= 192 << 20, "docs/segment.md states 192 MiB as the bound");

/// One entry of the header's section table (32 bytes).
#[repr(C)]
pub struct SectionEntry {
    /// [`Section`] number.
    pub kind: AtomicU32,
    /// Bytes of one entry.
    pub entry_bytes: AtomicU32,
    /// Offset in the file.
    pub offset: AtomicU64,
    /// Entries at most.
    pub capacity: AtomicU64,
    /// Entries in use; only grows.
    pub used: AtomicU64,
}

/// State of the process as the tracker knew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The file is being made.
    Booting = 0,
    /// The process runs, or was killed.
    Running = 1,
    /// The process ran its exit handlers.
    Exited = 2,
    /// Made by fork() for a child that has not started yet (trackers before 2026-11-23).
    Prepared = 3,
    /// The tracker was detached: the books are as they were then.
    Detached = 4,
}

/// The composition of the total at a peak: written into one half while the other is valid.
#[repr(C)]
pub struct Composition {
    /// Live bytes of all blocks at that moment (Σ of the categories' `at_peak_bytes` of this half).
    pub total_bytes: AtomicU64,
    /// Live blocks at that moment.
    pub total_count: AtomicU64,
    /// CLOCK_BOOTTIME of that moment, ns.
    pub time_ns: AtomicU64,
    /// Reserved, zero.
    pub reserved: AtomicU64,
}

/// The first page of the file.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`HEADER_BYTES`].
    pub header_bytes: AtomicU32,
    /// Size of the sparse file.
    pub file_bytes: AtomicU64,
    /// Process id in the target's own PID namespace.
    pub pid: AtomicU32,
    /// Its parent when the tracker started.
    pub ppid: AtomicU32,
    /// CLOCK_BOOTTIME when the tracker started, ns: comparable with the start time in /proc/PID/stat.
    pub start_boottime_ns: AtomicU64,
    /// CLOCK_REALTIME when the tracker started, ns since 1970.
    pub start_realtime_ns: AtomicU64,
    /// CLOCK_BOOTTIME when the process ended normally, ns; 0 if it runs or was killed.
    pub end_boottime_ns: AtomicU64,
    /// [`State`].
    pub state: AtomicU32,
    /// 0 sites off, 1 sampled, 2 exact.
    pub mode: AtomicU32,
    /// [`Allocator`].
    pub allocator: AtomicU32,
    /// [`Runtime`].
    pub runtime: AtomicU32,
    /// Number of counters in this file.
    pub counters: AtomicU32,
    /// Which [`Composition`] is valid; 2 = none yet.
    pub composition: AtomicU32,
    /// Central live bytes (usable): lags behind the rows by the drift.
    pub live_bytes: AtomicI64,
    /// Central live blocks.
    pub live_count: AtomicI64,
    /// Highest central live bytes seen.
    pub peak_bytes: AtomicU64,
    /// Live blocks at that moment.
    pub count_at_peak: AtomicU64,
    /// CLOCK_BOOTTIME of that moment, ns.
    pub peak_ns: AtomicU64,
    /// Reserved address space booked in the map, bytes.
    pub reserved_bytes: AtomicU64,
    /// Committed bytes booked in the map.
    pub committed_bytes: AtomicU64,
    /// Highest `reserved_bytes`.
    pub peak_reserved_bytes: AtomicU64,
    /// Highest `committed_bytes`.
    pub peak_committed_bytes: AtomicU64,
    /// Compositions of the peak.
    pub compositions: [Composition; 2],
    /// Section table.
    pub sections: [SectionEntry; 16],
    /// Counters, in the order of the schema page.
    pub values: CounterArray,
    /// The mode that an observer requests: mode | mean of the sampling in bytes << 8; see [`control`]. The observer
    /// writes it by one pwrite of eight bytes. Only the tracker writes the other fields, except `ended`. The tracker
    /// puts the mode into force at a thread's next sample (the countdown runs in every mode), at a full walk, and at a
    /// thread's start.
    pub control: AtomicU64,
    /// The value of `control` that is in force; `mode` repeats its mode.
    pub in_force: AtomicU64,
    /// CLOCK_BOOTTIME when the mode came into force, ns; older blocks have the sites of the earlier mode.
    pub in_force_ns: AtomicU64,
    /// How the process ended, written by its parent after the end: 1 exit status, 2 signal | its number << 8 | an OOM
    /// kill: 1 no, 2 yes, 3 of this or another process of its cgroup << 16 | [`ended_at`]; 0 not known. The tracker
    /// writes [`ENDED_BY_EXEC`] with the time before an exec, and 0 when the exec fails.
    pub ended: AtomicU64,
}

/// Another program took the process's place.
pub const ENDED_BY_EXEC: u64 = 3;
/// Lowest bit of the time in the header's field `ended`: 40 bits of milliseconds are 34 years.
pub const ENDED_AT_SHIFT: u32 = 24;

/// The time in the header's field `ended`: milliseconds from the tracker's start to the end, at least 1, both on
/// CLOCK_BOOTTIME.
pub const fn ended_at(start_ns: u64, end_ns: u64) -> u64 {
    let (lived, most) = (end_ns.saturating_sub(start_ns) / 1_000_000, u64::MAX >> ENDED_AT_SHIFT);
    (if lived == 0 {
        1
    } else if lived > most {
        most
    } else {
        lived
    }) << ENDED_AT_SHIFT
}

/// The control word of a mode (0 off, 1 sampled, 2 exact) and a mean of the sampling in bytes; the mean is brought into
/// its bounds.
pub const fn control(mode: u32, mean: u64) -> u64 {
    let mean = if mean < SAMPLE_BOUNDS.0 {
        SAMPLE_BOUNDS.0
    } else if mean > SAMPLE_BOUNDS.1 {
        SAMPLE_BOUNDS.1
    } else {
        mean
    };
    (if mode > 2 { 1 } else { mode }) as u64 | mean << 8
}

/// Mode and mean of any control word.
pub const fn of_control(word: u64) -> (u32, u64) {
    let word = control((word & 0xff) as u32, word >> 8);
    ((word & 0xff) as u32, word >> 8)
}

/// Default mean number of bytes between two samples. While the threads of a process take more than 1,000 samples a
/// second together, it is doubled, up to [`SAMPLE_DOUBLINGS`] times; any other mean stays as it was set.
pub const SAMPLE_MEAN: u64 = 512 << 10;
/// See [`SAMPLE_MEAN`].
pub const SAMPLE_DOUBLINGS: u8 = 3;
/// Smallest and largest mean.
pub(crate) const SAMPLE_BOUNDS: (u64, u64) = (256, 1 << 40);

const _: () = assert!(core::mem::size_of::<Header>() <= HEADER_BYTES);
const _: () = assert!(SECTIONS <= 16);
const _: () = assert!(core::mem::offset_of!(Header, live_bytes) == 80);
const _: () = assert!(core::mem::offset_of!(Header, sections) == 216);
const _: () = assert!(core::mem::offset_of!(Header, values) == 728);
const _: () = assert!(core::mem::offset_of!(Header, control) == 728 + 96 * 8);

/// The allocator that serves malloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Allocator {
    /// Not recognised.
    Other = 0,
    /// glibc's.
    Glibc = 1,
    /// jemalloc.
    Jemalloc = 2,
    /// tcmalloc of gperftools or google/tcmalloc.
    Tcmalloc = 3,
    /// mimalloc.
    Mimalloc = 4,
    /// musl's.
    Musl = 5,
}

/// What runs in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Runtime {
    /// A native program.
    Native = 0,
    /// HotSpot.
    Hotspot = 1,
    /// A GraalVM native image.
    NativeImage = 2,
}

/// Where a category's name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CategoryKind {
    /// Plimsoll's own: 'Plimsoll', 'Thread Stack', 'before start', …
    Own = 0,
    /// A rule.
    Rule = 1,
    /// The loaded object that calls.
    Module = 2,
    /// Pushed by the program.
    Program = 3,
    /// The VM's own header in the block.
    Vm = 4,
}

record! {
    /// A category and its central figures. The exact live figures are Σ rows. The central figures exist for the peaks,
    /// which a sum at report time can't give.
    Category, CategoryFacts, 256 {
        /// Name, NUL-padded.
        name: text 48,
        /// [`CategoryKind`].
        kind: u32,
        /// Reserved, zero.
        flags: u32,
        /// Central live bytes; lags behind the rows by the drift.
        live_bytes: i64,
        /// Central live blocks.
        live_count: i64,
        /// Highest central live bytes.
        peak_bytes: u64,
        /// Live blocks at that moment.
        count_at_peak: u64,
        /// CLOCK_BOOTTIME of that moment, ns.
        peak_ns: u64,
        /// Reserved address space by the map's books.
        reserved_bytes: u64,
        /// Committed bytes by the map's books.
        committed_bytes: u64,
        /// Highest reserved.
        peak_reserved_bytes: u64,
        /// Highest committed.
        peak_committed_bytes: u64,
        /// Live bytes when the total was at its kept peak: two halves, see [`Composition`].
        at_peak_bytes: words 2,
        /// Live blocks then.
        at_peak_count: words 2,
        /// Reserved, zero.
        reserved: words 12,
    }
}

record! {
    /// A loaded object. Entries stay after dlclose, so that old callers keep their names.
    Module, ModuleFacts, 256 {
        /// First mapped address.
        start: u64,
        /// One past the last.
        end: u64,
        /// Avma = Svma + bias.
        bias: u64,
        /// CLOCK_BOOTTIME when first seen, ns.
        loaded_ns: u64,
        /// CLOCK_BOOTTIME when found unloaded or replaced, ns; 0 while loaded.
        unloaded_ns: u64,
        /// Build id, zero-padded.
        build_id: text 20,
        /// Bytes of the build id; 0 = none.
        build_id_bytes: u16,
        /// Category of callers that no rule names.
        category: u16,
        /// Path as the loader has it, NUL-padded, cut at the front if too long.
        path: text 192,
    }
}

record! {
    /// A thread's slot. The rows of a dead thread stay, and the thread that adopts the slot continues in them.
    Thread, ThreadFacts, 128 {
        /// Kernel thread id; 0 = slot never used.
        tid: u32,
        /// 0 free, 1 in use, 2 its thread has ended.
        state: u32,
        /// Low end of the stack (the guard is below).
        stack_low: u64,
        /// High end of the stack.
        stack_high: u64,
        /// Bytes of the guard as requested.
        guard_bytes: u64,
        /// CLOCK_BOOTTIME of the start, ns.
        start_ns: u64,
        /// CLOCK_BOOTTIME of the end, ns.
        end_ns: u64,
        /// Threads that had this slot.
        generation: u64,
        /// Own private memory of this slot: state, memo, index.
        own_bytes: u64,
        /// Caller that created the thread; 0 = unknown.
        creator: u64,
        /// 1 = the stack is the program's own memory (pthread_attr_setstack), 2 = the main thread's.
        stack_kind: u64,
        /// The thread's name when the tracker last read it, NUL-padded; empty if never.
        name: text 16,
        /// Blocks whose keys threads of this slot put into the side table or arrays of pages; the counter of that name
        /// has those of no slot.
        table_inserts: u64,
        /// Blocks whose keys threads of this slot removed from there, whichever thread had put them in.
        table_removes: u64,
        /// Reserved, zero.
        reserved: words 2,
    }
}

record! {
    /// A caller: up to eight native return addresses, innermost first, and their category. Or a site: a deep stack
    /// below a caller, with the caller's category. Blocks of the caller without a known site are in the caller's own
    /// rows. So a caller's sum is its own rows plus those of its sites.
    Caller, CallerFacts, 128 {
        /// Frames in `frames`; of a site, frames of its stack.
        depth: u16,
        /// [`Category`] index.
        category: u16,
        /// Bit 0: the walk ended early; bit 1: ended at code of no module (JIT); bit 2: an overflow caller; bit 3: a
        /// site; bit 4: its blocks were booked before in the entry with the same frames (a native image with NMT).
        flags: u32,
        /// Hash of frames and category; 0 = entry not complete, 1 = complete, but other code lies there now.
        hash: u64,
        /// Central live bytes; lags behind the rows by the drift.
        live_bytes: i64,
        /// Central live blocks.
        live_count: i64,
        /// Highest central live bytes.
        peak_bytes: u64,
        /// Live blocks at that moment.
        count_at_peak: u64,
        /// CLOCK_BOOTTIME when first seen, ns.
        first_ns: u64,
        /// Of a site: index of its caller, which isn't a site and has a smaller index; 0 = this entry is a caller.
        parent: u32,
        /// Of a site: [`FrameNode`] of its innermost frame.
        stack: u32,
        /// Return addresses (Avma), innermost first. Of a site: word 0 is its [`SiteSamples`] index, 0 = never sampled;
        /// word 1 counts its calls of mmap, word 2 their bytes.
        frames: words 8,
    }
}

record! {
    /// The books of one thread for one caller. One writer; every counter monotone. One cache line.
    Row, RowFacts, 64 {
        /// Caller index.
        caller: u32,
        /// Thread slot index + 1; 0 = entry not complete.
        slot: u32,
        /// Drift: bytes that this row may still grow before it updates the central figures.
        room: i64,
        /// Blocks allocated.
        alloc_count: u64,
        /// Usable bytes allocated.
        alloc_bytes: u64,
        /// Requested bytes allocated.
        alloc_requested: u64,
        /// Blocks freed.
        free_count: u64,
        /// Usable bytes freed.
        free_bytes: u64,
        /// Requested bytes freed.
        free_requested: u64,
    }
}

/// [`Caller`] flag: a site.
pub const CALLER_SITE: u32 = 8;

/// [`Caller`] flag: each block came from the entry with the same frames, in which it was booked first.
pub const CALLER_MOVED: u32 = 16;

/// Meaning of a [`FrameNode`]'s value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A native return address (Avma): the call is before it.
    Native = 0,
    /// [`Method`] index << 16 | bytecode index (0xffff: unknown).
    Java = 1,
    /// Return address in code that lies in no file and has no name: JIT, stubs.
    Jit = 2,
    /// The stack continues outwards, but this record of it ends; value: why, a [`Cut`].
    Cut = 3,
    /// The native address at which a signal interrupted the code: not behind a call.
    Interrupted = 4,
}

impl FrameKind {
    /// The kind with this number. An unknown number becomes an address without a name.
    pub const fn of(kind: u8) -> Self {
        match kind {
            0 => Self::Native,
            1 => Self::Java,
            3 => Self::Cut,
            4 => Self::Interrupted,
            _ => Self::Jit,
        }
    }
}

/// Why a stack's record ends before its outermost frame: the value of a node of [`FrameKind::Cut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Cut {
    /// Deeper than the bound: the innermost frames are kept.
    Deep = 0,
    /// No rule led on from the frame inside this one.
    NoRule = 1,
    /// The stack's words contradict the rules.
    Broken = 2,
    /// The rest lies beyond what is known of the stack (a coroutine's, a signal's own).
    OtherStack = 3,
    /// Code of no module whose frame pointer leads nowhere.
    Jit = 4,
    /// The section of frames was full.
    Full = 5,
    /// Within a stack: callers of the frame inside this one lie in the Java heap, since their virtual thread had been
    /// unmounted; outwards follow the frames of the thread that carries it.
    Unmounted = 6,
}

/// Flags of a [`FrameNode`].
pub mod frame_flags {
    /// Bits 0 to 2 of a Java frame: how it ran. 0 unknown.
    pub const TIER: u8 = 7;
    /// Interpreted.
    pub const INTERPRETED: u8 = 1;
    /// Compiled by C1.
    pub const C1: u8 = 2;
    /// Compiled by C2 (or another top-tier compiler).
    pub const C2: u8 = 3;
    /// A native method's wrapper.
    pub const NATIVE: u8 = 4;
    /// Inlined into the next frame outwards.
    pub const INLINED: u8 = 8;
    /// Found by frame pointers without a rule: likely, not certain.
    pub const GUESSED: u8 = 16;
    /// Other code lies at this address now; later stacks have nodes of their own.
    pub const RETIRED: u8 = 128;
}

record! {
    /// A frame of sites' stacks, shared by all stacks that agree from here outwards: a stack is its innermost node, and
    /// `parent` leads outwards.
    FrameNode, FrameNodeFacts, 16 {
        /// What it means depends on `kind`.
        value: u64,
        /// [`FrameNode`] one further out, whose index is below this one's; 0 = this is the outermost.
        parent: u32,
        /// [`FrameKind`].
        kind: u8,
        /// [`frame_flags`].
        flags: u8,
        /// Frames from here outwards, this one included.
        depth: u16,
    }
}

record! {
    /// A Java method, or a stub of the VM. Never removed: the names outlive the class and the process.
    Method, MethodFacts, 64 {
        /// The mark by which the tracker recognises the method; meaningless to a reader.
        identity: u64,
        /// CLOCK_BOOTTIME when first seen, ns; 0 = entry not complete.
        first_ns: u64,
        /// Offset in the names section: class, as in the class file (`java/util/zip/Inflater`).
        class_at: u32,
        /// Method.
        name_at: u32,
        /// Signature.
        signature_at: u32,
        /// Source file; 0 bytes = unknown.
        source_at: u32,
        /// Line numbers: pairs of u16, first bytecode index and line, by bytecode index, in the writer's byte order.
        lines_at: u32,
        /// Bytes of the line numbers.
        lines_bytes: u32,
        /// Bytes of the class's name.
        class_bytes: u16,
        /// Bytes of the method's name.
        name_bytes: u16,
        /// Bytes of the signature.
        signature_bytes: u16,
        /// Bytes of the source file's name.
        source_bytes: u16,
        /// Bit 0: native; bit 1: hidden class or method; bit 2: a stub of the VM, which has no class.
        flags: u64,
        /// Reserved, zero.
        reserved: u64,
    }
}

record! {
    /// A live block that was sampled. A block of n requested bytes is sampled with probability p = 1 − exp(−(n + 8) /
    /// mean), independently of other blocks, so it represents 1/p blocks. Σ 1/p is an unbiased estimate of the number
    /// of blocks, and Σ (1 − p) / p² one of its variance (Horvitz and Thompson, 1952).
    Sample, SampleFacts, 64 {
        /// The block; 0 = free entry, 1 = being written.
        address: u64,
        /// Usable bytes.
        usable: u64,
        /// Requested bytes.
        requested: u64,
        /// 1/p, an f64's bits.
        weight: u64,
        /// CLOCK_BOOTTIME of the allocation, ns.
        time_ns: u64,
        /// [`Caller`] index of the site.
        site: u32,
        /// [`Thread`] slot that allocated it.
        slot: u32,
        /// `generation` of that slot at the allocation: tells which of the slot's threads allocated the block.
        generation: u64,
        /// Reserved, zero.
        reserved: u64,
    }
}

record! {
    /// Estimates for a site from its samples; all fields are sums over samples and only grow. Live = alloc − free.
    SiteSamples, SiteSamplesFacts, 256 {
        /// [`Caller`] index of the site; 0 = entry not complete.
        site: u32,
        /// Reserved, zero.
        flags: u32,
        /// Samples taken.
        alloc_samples: u64,
        /// Samples whose block was freed.
        free_samples: u64,
        /// Σ usable / p, rounded for each sample.
        alloc_bytes: u64,
        /// Σ requested / p.
        alloc_requested: u64,
        /// Σ 256 / p.
        alloc_count_256: u64,
        /// As `alloc_bytes`, of freed blocks.
        free_bytes: u64,
        /// As `alloc_requested`, of freed blocks.
        free_requested: u64,
        /// As `alloc_count_256`, of freed blocks.
        free_count_256: u64,
        /// The part of `free_bytes` that was freed within [`TEMPORARY_NS`].
        temporary_bytes: u64,
        /// The part of `free_count_256` that was freed within [`TEMPORARY_NS`].
        temporary_count_256: u64,
        /// Variance of `alloc_bytes`, Σ usable² (1 − p) / p², an f64's bits.
        alloc_bytes_variance: u64,
        /// Variance of the count, Σ (1 − p) / p², an f64's bits.
        alloc_count_variance: u64,
        /// As `alloc_bytes_variance`, of freed blocks.
        free_bytes_variance: u64,
        /// As `alloc_count_variance`, of freed blocks.
        free_count_variance: u64,
        /// Σ 256 / p by requested bytes: below 16, below 32, … below 256 KiB, all larger.
        sizes_256: words 16,
        /// Reserved, zero.
        reserved: u64,
    }
}

record! {
    /// A private mapping of the tracker: anonymous, readable and writable, without swap reservation, without huge
    /// pages. Entries are never removed, since the tracker unmaps at most the end of one. An observer checks each
    /// against the kernel's map.
    OwnMapping, OwnMappingFacts, 32 {
        /// First address.
        start: u64,
        /// Bytes; 0 = entry not complete.
        bytes: u64,
        /// [`Purpose`].
        purpose: u32,
        /// Reserved, zero.
        flags: u32,
        /// Reserved, zero.
        reserved: u64,
    }
}

/// What the tracker uses a mapping of its own for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Small pieces: thread states, memos, indexes, tails, small tables.
    Pool = 0,
    /// Keys outside the blocks: a level of the side table, or arrays of pages. A small piece lies in a pool.
    SideTable = 1,
    /// The hash table of the sites' frames.
    FrameIndex = 2,
    /// A page of the library's own data that the kernel keeps as a mapping of its own.
    Data = 3,
}

/// A sampled block that is freed within this time counts as temporary.
pub const TEMPORARY_NS: u64 = 100_000_000;

/// Fixed categories, in the order in which every tracker registers them.
pub const FIXED_CATEGORIES: [&str; 7] =
    ["other", "before start", "Plimsoll", "Thread Stack", "Loaded Libraries", "glibc malloc", "code in no file"];

/// Fixed callers: 0 is never used, 1 is everything booked before the tracker knew stacks, 2 the shared overflow.
pub const CALLER_EARLY: u32 = 1;
/// See [`CALLER_EARLY`].
pub const CALLER_OVERFLOW: u32 = 2;
/// The slot that threads without one of their own share; its rows are updated with atomic read-modify-writes.
pub const SLOT_SHARED: u32 = 0;

/// Why a file can't be read as a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// Shorter than a header.
    Short,
    /// Another kind of file, or another byte order.
    Magic,
    /// The process ended before the tracker had made the file: the magic number is written last.
    Starting,
    /// A version this reader doesn't know.
    Version(u32),
    /// A section table that contradicts itself (index of the section).
    Section(usize),
}

/// The header as a reader sees it.
#[derive(Clone, Debug)]
pub struct HeaderFacts<'a> {
    bytes: &'a [u8],
}

impl<'a> HeaderFacts<'a> {
    /// Checks the first page of a file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadHeader> {
        let short = if bytes.is_empty() { BadHeader::Starting } else { BadHeader::Short };
        let h = HeaderFacts { bytes: bytes.get(..HEADER_BYTES).ok_or(short)? };
        match h.u64(core::mem::offset_of!(Header, magic)) {
            MAGIC => {}
            0 if [0, VERSION].contains(&h.u32(core::mem::offset_of!(Header, version))) => {
                return Err(BadHeader::Starting);
            }
            _ => return Err(BadHeader::Magic),
        }
        if h.u32(core::mem::offset_of!(Header, version)) != VERSION {
            return Err(BadHeader::Version(h.u32(core::mem::offset_of!(Header, version))));
        }
        for (i, (entry_bytes, _)) in SIZES.iter().enumerate() {
            let s = h.section_at(i);
            let fits = s.capacity.checked_mul(s.entry_bytes).and_then(|n| n.checked_add(s.offset));
            if i >= FIRST_OPTIONAL && (s.entry_bytes, s.offset, s.capacity) == (0, 0, 0) {
                continue;
            }
            if s.entry_bytes as usize != *entry_bytes
                || s.capacity > 1 << 32
                || fits.is_none_or(|end| end > 1 << 36)
                || (s.offset as usize) < HEADER_BYTES
            {
                return Err(BadHeader::Section(i));
            }
        }
        Ok(h)
    }

    /// A 64-bit field at `offset` of [`Header`] (`offset_of!`); 0 beyond the header.
    pub fn u64(&self, offset: usize) -> u64 {
        self.bytes.get(offset..offset + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or([0; 8])))
    }

    /// A 32-bit field at `offset` of [`Header`].
    pub fn u32(&self, offset: usize) -> u32 {
        self.bytes.get(offset..offset + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().unwrap_or([0; 4])))
    }

    /// Value of a header counter.
    pub fn counter(&self, c: crate::Counter) -> u64 {
        self.u64(core::mem::offset_of!(Header, values) + 8 * c as usize)
    }

    /// Address of a section, and the number of entries in use (at most its capacity).
    pub fn section(&self, s: Section) -> SectionFacts {
        self.section_at(s as usize)
    }

    fn section_at(&self, i: usize) -> SectionFacts {
        let at = core::mem::offset_of!(Header, sections) + i * size_of::<SectionEntry>();
        let capacity = self.u64(at + core::mem::offset_of!(SectionEntry, capacity));
        SectionFacts {
            entry_bytes: self.u32(at + core::mem::offset_of!(SectionEntry, entry_bytes)) as u64,
            offset: self.u64(at + core::mem::offset_of!(SectionEntry, offset)),
            capacity,
            used: self.u64(at + core::mem::offset_of!(SectionEntry, used)).min(capacity),
        }
    }
}

/// A section as the header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionFacts {
    /// Bytes of one entry.
    pub entry_bytes: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Entries at most.
    pub capacity: u64,
    /// Entries in use.
    pub used: u64,
}

/// Categories of Native Image's own tracking in GraalVM 25, by ordinal (core/nmt/NmtCategory.java of oracle/graal). The
/// report of 25.0.2 writes "Serviceability)"; that parenthesis is not repeated here.
pub const NATIVE_IMAGE_CATEGORIES: &[&str] = &[
    "Compiler",
    "Code",
    "GC",
    "Heap Dump",
    "Image Heap",
    "Interpreter",
    "Java Heap",
    "JFR",
    "JNI",
    "jvmstat",
    "JVMTI",
    "Native Memory Tracking",
    "PGO",
    "Serviceability",
    "Threading",
    "Unsafe",
    "Internal",
];
