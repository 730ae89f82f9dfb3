//! What the kernel says of the process: its mappings, threads, limits, and the host's settings that bear on them.

use std::fmt;

use crate::units::{AddressRange, Avma, Bytes};

#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: u32,
    /// The PID in its innermost namespace (`NSpid`), where that differs.
    pub namespaced_pid: Option<u32>,
    pub name: String,
    /// Arguments as in /proc/PID/cmdline, raw.
    pub command: Vec<String>,
    pub executable: Option<String>,
    pub state: ProcessState,
    pub uid: u32,
    pub thread_count: u64,
    /// CPUs that it may run on.
    pub cpus_allowed: Option<u64>,
    /// Seconds since the process started.
    pub uptime: Option<f64>,
    pub limits: Limits,
    /// Variables of the environment that the target was started with and that bear on memory
    /// (`MALLOC_*`, `GLIBC_TUNABLES`, `LD_PRELOAD`, `JAVA_TOOL_OPTIONS`, `JDK_JAVA_OPTIONS`).
    pub environment: Vec<(String, String)>,
    /// `VmHWM` of status.
    pub peak_rss: Option<Bytes>,
    pub page_tables: Option<Bytes>,
    pub swap: Bytes,
    /// True where the target lives in a mount or PID namespace other than the observer's.
    pub contained: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessState {
    #[default]
    Alive,
    /// SIGSTOP or a tracer: it answers no attach request.
    Stopped,
    Zombie,
    Kernel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Soft limit of the stack size: what pthread_create reserves by default. None: unlimited.
    pub stack: Option<Bytes>,
    pub address_space: Option<Bytes>,
    pub locked: Option<Bytes>,
}

#[derive(Clone, Debug, Default)]
pub struct Host {
    pub page: Bytes,
    /// `sysconf(_SC_NPROCESSORS_ONLN)`, what glibc multiplies by 8.
    pub cpus_online: u64,
    pub memory: Bytes,
    pub max_map_count: Option<u64>,
    pub thp: Thp,
    pub thp_size: Option<Bytes>,
}

/// `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thp {
    #[default]
    Unknown,
    Never,
    Madvise,
    Always,
}

/// One kernel mapping with its smaps figures. All bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vma {
    pub range: AddressRange,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// MAP_SHARED
    pub shared: bool,
    pub offset: u64,
    pub device: (u32, u32),
    pub inode: u64,
    /// Path or bracketed name as the kernel wrote it, octal escapes undone, ` (deleted)` cut off.
    pub name: String,
    pub deleted: bool,
    pub backing: Backing,
    pub rss: Bytes,
    pub pss: Bytes,
    pub shared_clean: Bytes,
    pub shared_dirty: Bytes,
    pub private_clean: Bytes,
    pub private_dirty: Bytes,
    pub anonymous: Bytes,
    pub anon_huge: Bytes,
    pub lazy_free: Bytes,
    /// hugetlbfs pages: not in Rss (the kernel counts them apart).
    pub hugetlb: Bytes,
    pub swap: Bytes,
    pub locked: Bytes,
    pub flags: VmaFlags,
}

/// What stands behind the pages, told from name, device and inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// No file; `[anon:NAME]` names are kept in `Vma::name`.
    #[default]
    Anonymous,
    /// `[heap]`
    Brk,
    /// `[stack]`
    MainStack,
    /// `[vdso]`, `[vvar]`, `[vsyscall]`, uprobes
    Kernel,
    /// A regular file, also where it is mapped private and has become anonymous in part.
    File,
    /// tmpfs, memfd, SysV shared memory, `/dev/zero` shared: pages that no disk backs.
    Shmem,
    Hugetlbfs,
    /// `/dev/…`
    Device,
}

/// VmFlags the ledger and the verdicts look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmaFlags {
    /// `gd`: grows down.
    pub grows_down: bool,
    /// `hg`: MADV_HUGEPAGE
    pub huge_advised: bool,
    /// `nh`: MADV_NOHUGEPAGE
    pub no_huge: bool,
    /// `ht`: hugetlb
    pub hugetlb: bool,
    /// `nr`: no reserve
    pub no_reserve: bool,
    /// `lo`: locked
    pub locked: bool,
}

/// `RssAnon`, `RssFile`, `RssShmem` of status: readable for every user, also where smaps is not. The kernel batches these
/// counters per CPU, so they may lag behind smaps by some pages for each thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    pub anonymous: Bytes,
    pub file: Bytes,
    pub shmem: Bytes,
}

/// The kernel's own sum over the process: a second reading, to see the skew against the sum of the VMAs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    pub rss: Bytes,
    pub pss: Bytes,
    pub pss_anon: Bytes,
    pub pss_file: Bytes,
    pub pss_shmem: Bytes,
    pub private: Bytes,
    pub anonymous: Bytes,
    pub anon_huge: Bytes,
    pub swap: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// In the observer's PID namespace.
    pub tid: u32,
    /// In the target's innermost namespace.
    pub namespaced_tid: u32,
    pub name: String,
    /// Where its stack pointer was, for a thread that sleeps in the kernel and whose `syscall` file may be read.
    pub stack_pointer: Option<Avma>,
    /// Its stack with the guard at its low end, as the thread library's own record states it.
    pub stack: Option<AddressRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocatorKind {
    Glibc,
    Jemalloc,
    Tcmalloc,
    Mimalloc,
    Musl,
    /// Go's runtime: a heap of its own, which malloc is no part of.
    Go,
    /// V8, of Node.js and its kin.
    V8,
}

impl AllocatorKind {
    /// It takes memory from the kernel for a language's heap and leaves malloc alone.
    pub const fn is_runtime(self) -> bool {
        matches!(self, AllocatorKind::Go | AllocatorKind::V8)
    }
}

impl fmt::Display for AllocatorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AllocatorKind::Glibc => "glibc",
            AllocatorKind::Jemalloc => "jemalloc",
            AllocatorKind::Tcmalloc => "tcmalloc",
            AllocatorKind::Mimalloc => "mimalloc",
            AllocatorKind::Musl => "musl",
            AllocatorKind::Go => "Go's runtime",
            AllocatorKind::V8 => "V8",
        })
    }
}

/// An allocator whose code is mapped, and how it was recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedAllocator {
    pub kind: AllocatorKind,
    /// The file that holds it.
    pub path: String,
    /// True where it defines malloc before libc does, so that it serves the program.
    pub serves_malloc: bool,
}

impl Rss {
    pub fn total(self) -> Bytes {
        self.anonymous + self.file + self.shmem
    }
}

impl Vma {
    /// No page has been touched and none is swapped: address space only.
    pub fn untouched(&self) -> bool {
        self.rss.0 == 0 && self.swap.0 == 0
    }

    pub fn inaccessible(&self) -> bool {
        !self.readable && !self.writable && !self.executable
    }
}
