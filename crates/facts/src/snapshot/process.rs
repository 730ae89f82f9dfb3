//! What the kernel reports about the process: its mappings, threads and limits, and the host's settings that affect
//! memory.

use std::fmt;

use super::Start;
use crate::units::{AddressRange, Avma, Bytes};

#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: u32,
    /// The PID in its innermost namespace (`NSpid`), if that differs.
    pub namespaced_pid: Option<u32>,
    pub name: String,
    /// Arguments as in /proc/PID/cmdline, raw.
    pub command: Vec<String>,
    /// What starts it again.
    pub start: Start,
    pub executable: Option<String>,
    /// Another path of that file, by which it was started, if its name says more: /usr/bin/redis-server.
    pub started_as: Option<String>,
    pub state: ProcessState,
    pub uid: u32,
    pub thread_count: u64,
    /// Number of CPUs that it may run on.
    pub cpus_allowed: Option<u64>,
    /// Seconds since the process started.
    pub uptime: Option<f64>,
    /// When it started, in clock ticks since the boot `boot_id`. An exec doesn't change this.
    pub start_ticks: Option<u64>,
    /// The id that the kernel made at this boot (/proc/sys/kernel/random/boot_id).
    pub boot_id: Option<String>,
    /// The address at which the kernel put the arguments at the last exec (startstack, proc(5)). With address
    /// randomisation, it differs each time. None if we may not see it.
    pub start_stack: Option<Avma>,
    pub limits: Limits,
    /// Variables of the target's initial environment that affect memory, such as `MALLOC_*`, `GLIBC_TUNABLES`,
    /// `LD_PRELOAD` and `JAVA_TOOL_OPTIONS`.
    pub environment: Vec<(String, String)>,
    /// `VmHWM` of status.
    pub peak_rss: Option<Bytes>,
    pub page_tables: Option<Bytes>,
    pub swap: Bytes,
    /// Whether its main thread is in seccomp's strict mode: the kernel kills it at almost any system call.
    pub is_strict: bool,
    /// Whether it was started in secure-execution mode (AT_SECURE, ld.so(8)): by the set-user-ID bit or the
    /// capabilities of its file, or by a security module. The loader and malloc then ignore their variables, at the
    /// next start, too.
    pub is_secure: bool,
    /// Whether it has capabilities that its user doesn't have.
    pub exceeds_user: bool,
    /// Whether the target is in another mount or PID namespace than the observer.
    pub contained: bool,
}

impl Process {
    /// The name of a mapped file to show: the program's own is the one by which it was started.
    pub fn shown_file<'a>(&'a self, path: &'a str) -> &'a str {
        let is_program = self.executable.as_deref() == Some(path);
        self.started_as.as_deref().filter(|_| is_program).unwrap_or(path)
    }

    /// The client of Redis or Valkey; None for any other program.
    pub fn redis_client(&self) -> Option<&'static str> {
        let kinds = [("redis-server", "redis-cli"), ("valkey-server", "valkey-cli")];
        kinds.into_iter().find(|(server, _)| self.name.starts_with(server)).map(|(_, client)| client)
    }
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
    /// Soft limit of the stack size: the default reservation of pthread_create. None: unlimited.
    pub stack: Option<Bytes>,
    pub locked: Option<Bytes>,
}

#[derive(Clone, Debug, Default)]
pub struct Host {
    pub page: Bytes,
    /// `sysconf(_SC_NPROCESSORS_ONLN)`, which glibc multiplies by 8.
    pub cpus_online: u64,
    pub memory: Bytes,
    pub max_map_count: Option<u64>,
    pub thp: Thp,
    /// Whether this plimsoll can make a process without a VM call a function: it has code for x86-64 only.
    pub can_enter: bool,
    pub root: Root,
}

/// How the reader of the report types a command that needs root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// By sudo; also where the reader of the report is unknown.
    #[default]
    Sudo,
    /// As it is.
    Already,
    /// As it is, in a shell of root's: containers seldom have sudo.
    Elsewhere,
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
    /// Path or bracketed name from the kernel, with octal escapes decoded and ` (deleted)` removed.
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
    /// hugetlbfs pages: not part of Rss (the kernel counts them separately).
    pub hugetlb: Bytes,
    pub swap: Bytes,
    pub locked: Bytes,
    pub flags: VmaFlags,
}

/// What backs the pages, derived from name, device and inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// No file, or a private mapping of `/dev/zero`; `Vma::name` keeps that and `[anon:NAME]` names.
    #[default]
    Anonymous,
    /// `[heap]`
    Brk,
    /// `[stack]`
    MainStack,
    /// `[vdso]`, `[vvar]`, `[vsyscall]`, uprobes
    Kernel,
    /// A regular file, also if it is mapped private and partly anonymous.
    File,
    /// tmpfs, memfd, memfd_secret, SysV shared memory, shared `/dev/zero`: pages without a disk.
    Shmem,
    Hugetlbfs,
    /// `/dev/…`
    Device,
}

/// VmFlags that the ledger and the verdicts use.
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

/// `RssAnon`, `RssFile`, `RssShmem` of status: every user may read them, even if smaps is refused. The kernel batches
/// these counters per CPU, so they may lag behind smaps by some pages per thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    pub anonymous: Bytes,
    pub file: Bytes,
    pub shmem: Bytes,
}

/// The kernel's own sum over the process: a second reading, which shows the skew against the sum of the VMAs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    pub rss: Bytes,
    pub pss: Bytes,
    pub private: Bytes,
    pub anonymous: Bytes,
    pub anon_huge: Bytes,
    pub swap: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Id in the observer's PID namespace.
    pub tid: u32,
    /// Id in the target's innermost namespace.
    pub namespaced_tid: u32,
    pub name: String,
    /// Its stack pointer, if the thread sleeps in the kernel and its `syscall` file is readable.
    pub stack_pointer: Option<Avma>,
    /// Its stack, with the guard at its low end, from the thread library's own record.
    pub stack: Option<AddressRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocatorKind {
    Glibc,
    Jemalloc,
    Tcmalloc,
    Mimalloc,
    Musl,
    /// Go's runtime: its heap is separate from malloc.
    Go,
    /// V8, in Node.js and similar programs.
    V8,
}

impl AllocatorKind {
    /// Whether it takes memory from the kernel for a language's heap, separately from malloc.
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
    /// The file that contains it.
    pub path: String,
    /// Whether it defines malloc before libc does, and so serves the program.
    pub serves_malloc: bool,
}

impl Rss {
    pub fn total(self) -> Bytes {
        self.anonymous + self.file + self.shmem
    }
}

impl Vma {
    /// Whether no page is resident or swapped: address space only.
    pub fn untouched(&self) -> bool {
        self.rss.0 == 0 && self.swap.0 == 0
    }

    /// Whether the kernel keeps its pages in memory: locked ones, and buffers that it shares with the program by a
    /// descriptor (rings of sockets, io_uring, aio and perf; DMA buffers). The latter look like pages of a file.
    pub fn is_kept(&self) -> bool {
        self.flags.locked || self.is_kernels_buffer()
    }

    pub fn is_kernels_buffer(&self) -> bool {
        const BUFFERS: [&str; 4] = ["socket:[", "anon_inode:", "/[aio]", "/dmabuf:"];
        BUFFERS.iter().any(|kind| self.name.starts_with(kind))
    }

    pub fn inaccessible(&self) -> bool {
        !self.readable && !self.writable && !self.executable
    }

    /// The file of a .bss that glibc named: from 2.39 on, with glibc.mem.decorate_maps=1. The name may be cut.
    pub fn named_bss(&self) -> Option<&str> {
        let file = self.name.strip_prefix("[anon: glibc: .bss for ")?;
        Some(file.strip_suffix(']').unwrap_or(file)).filter(|_| self.backing == Backing::Anonymous)
    }

    /// Whether it may be a .bss by its name: it has none, or glibc's.
    pub fn is_named_like_bss(&self) -> bool {
        self.name.is_empty() || self.named_bss().is_some()
    }

    /// Whether it lies where the .bss of an object with this data would be. It may be longer than the .bss, or none.
    pub fn may_be_bss_of(&self, data: &Vma) -> bool {
        let follows = data.range.end == self.range.start && data.inode != 0 && data.writable && !data.shared;
        follows && self.backing == Backing::Anonymous && self.writable && self.is_named_like_bss()
    }
}
