//! The system calls that an attach makes in a program, and those of the tracker afterwards; and those of a function
//! that gives free memory back. A filter of the program must allow each. `cli/tests/attach/filtered.rs` enters programs
//! that are killed for any other.
//!
//! Arguments that a filter may look at are given where they are always the same. One row stands for calls with the same
//! known arguments. libc's calls are those of glibc 2.17 to 2.43.

/// What follows if a filter refuses the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The attach or the books depend on it.
    Always,
    /// An error, made by the filter, is handled. Anything else that a filter may do isn't.
    MayFail,
    /// libc makes another call instead if this one fails with ENOSYS.
    MayBeMissing,
    /// Only where the library comes from memory.
    FromMemory,
    /// The tracker makes it only in a program that makes one of these calls itself.
    With(&'static [libc::c_long]),
    /// The tracker makes it only where the program calls mlockall(2), and handles an error.
    ToLock,
    /// The tracker makes it only in a program with locked memory, and handles an error.
    WhereLocked,
}

#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub number: libc::c_long,
    pub name: &'static str,
    /// `None`: any value.
    pub arguments: [Option<u64>; 6],
    pub need: Need,
}

impl Call {
    const fn known(self, at: usize, value: u64) -> Call {
        let mut call = self;
        call.arguments[at] = Some(value);
        call
    }

    const fn if_refused(self, need: Need) -> Call {
        Call { need, ..self }
    }
}

const fn call(number: libc::c_long, name: &'static str) -> Call {
    Call { number, name, arguments: [None; 6], need: Need::Always }
}

const fn mmap(protection: u64, flags: u64) -> Call {
    let name = if protection & 4 == 0 { "mmap" } else { "mmap with PROT_EXEC" };
    call(libc::SYS_mmap, name).known(2, protection).known(3, flags)
}

const fn mprotect(protection: u64) -> Call {
    let name = if protection & 4 == 0 { "mprotect" } else { "mprotect with PROT_EXEC" };
    call(libc::SYS_mprotect, name).known(2, protection)
}

const fn madvise(advice: u64) -> Call {
    call(libc::SYS_madvise, "madvise").known(2, advice)
}

/// openat(2).
const fn opens(flags: u64) -> Call {
    call(libc::SYS_openat, "openat").known(2, flags)
}

const fn prlimit64(which: u64) -> Call {
    call(libc::SYS_prlimit64, "prlimit64").known(0, 0).known(1, which).known(2, 0)
}

const fn clock_gettime(clock: u64) -> Call {
    call(libc::SYS_clock_gettime, "clock_gettime").known(0, clock)
}

const fn rt_sigprocmask(how: u64) -> Call {
    call(libc::SYS_rt_sigprocmask, "rt_sigprocmask").known(0, how).known(3, 8)
}

/// What the borrowed thread does.
pub const BORROWED: &[Call] = &[
    // Its own wait goes on after the stop.
    call(libc::SYS_restart_syscall, "restart_syscall"),
    mmap(3, 0x22),
    mprotect(5),
    // pthread_create: the stack, also as libc before 2.26 makes it, and its guard, also by advice (from 2.42 on); the
    // signals of libc's own, at the program's first thread.
    mmap(0, 0x2_0022),
    mmap(3, 0x2_0022),
    mprotect(3),
    mprotect(0),
    madvise(102).if_refused(Need::MayFail),
    call(libc::SYS_rt_sigaction, "rt_sigaction").known(0, 33).known(3, 8),
    call(libc::SYS_rt_sigaction, "rt_sigaction").known(0, 32).known(3, 8),
    rt_sigprocmask(0),
    rt_sigprocmask(1),
    rt_sigprocmask(2),
    // Under the default filter of containers, clone3 fails with ENOSYS.
    call(libc::SYS_clone3, "clone3").known(1, 88).if_refused(Need::MayBeMissing),
    call(libc::SYS_clone, "clone").known(0, 0x3d_0f00),
    // The thread restores itself by rt_sigreturn if plimsoll is killed or late. If plimsoll stops it at the start of
    // that call, getpid takes the call's place.
    call(libc::SYS_rt_sigreturn, "rt_sigreturn"),
    call(libc::SYS_getpid, "getpid"),
];

/// What the injected thread does before and after it loads and calls the tracker.
pub const INJECTED: &[Call] = &[
    call(libc::SYS_set_robust_list, "set_robust_list"),
    // libc ends the process if a thread can't register although the first thread could.
    call(libc::SYS_rseq, "rseq"),
    call(libc::SYS_memfd_create, "memfd_create").known(1, 1).if_refused(Need::FromMemory),
    // It waits for plimsoll, and ends.
    call(libc::SYS_poll, "poll").known(0, 0).known(1, 0).known(2, 1),
    madvise(4),
    call(libc::SYS_exit, "exit"),
];

/// What malloc does, for pthread_create and for the loader: an arena of this thread's own, and locks that other threads
/// hold. The number of arenas depends on the number of processors, which libc before 2.35 may read from a file.
pub const MALLOC: &[Call] = &[
    mmap(0, 0x4022),
    mprotect(3),
    call(libc::SYS_brk, "brk"),
    call(libc::SYS_munmap, "munmap"),
    call(libc::SYS_sched_getaffinity, "sched_getaffinity").if_refused(Need::MayFail),
    call(libc::SYS_getrandom, "getrandom").if_refused(Need::MayFail),
    call(libc::SYS_futex, "futex").known(1, 128),
    call(libc::SYS_futex, "futex").known(1, 129),
    opens(0x8_0000),
    call(libc::SYS_open, "open").known(1, 0x8_0000),
    call(libc::SYS_read, "read"),
    call(libc::SYS_close, "close"),
    // The tunable glibc.mem.decorate_maps.
    call(libc::SYS_prctl, "prctl").known(0, 0x5356_4d41).known(1, 0).if_refused(Need::MayFail),
];

/// What the thread that loads the tracker does besides: the injected thread, or a thread of a VM.
pub const LOADER: &[Call] = &[
    // dlopen: libc before 2.26 opens by open(2), as malloc does; from 2.33 on it examines files by newfstatat(2).
    call(libc::SYS_pread64, "pread64"),
    call(libc::SYS_fstat, "fstat"),
    call(libc::SYS_newfstatat, "newfstatat").known(3, 0x1000),
    mmap(1, 0x802),
    mmap(5, 0x802),
    mmap(5, 0x812),
    mmap(1, 0x812),
    mmap(3, 0x812),
    mmap(3, 0x32),
    mprotect(1),
];

const EXEC: &[libc::c_long] = &[libc::SYS_execve, libc::SYS_execveat];

/// What the tracker does: at its start, when a table grows, when a thread or a fork child begins, before an exec, and
/// for the summary on a signal (crates/tracker/src/sys/os).
pub const TRACKER: &[Call] = &[
    // Memory of its own.
    mmap(3, 0x4022),
    mmap(3, 0x4032),
    mmap(3, 0xc032).if_refused(Need::MayFail),
    madvise(15).if_refused(Need::MayFail),
    madvise(18),
    call(libc::SYS_prctl, "prctl").known(0, 0x5356_4d41).known(1, 0).if_refused(Need::MayFail),
    call(libc::SYS_prctl, "prctl").known(0, 21).if_refused(Need::MayFail),
    call(libc::SYS_mremap, "mremap").known(3, 0),
    // The segment and the rules.
    call(libc::SYS_mkdirat, "mkdirat"),
    opens(0xb_0000),
    opens(0xa_0900),
    opens(0xa_00c2),
    opens(0xa_0802),
    opens(0xa_0241),
    opens(0x28_0000),
    call(libc::SYS_getdents64, "getdents64"),
    call(libc::SYS_unlinkat, "unlinkat").known(2, 0),
    call(libc::SYS_ftruncate, "ftruncate"),
    call(libc::SYS_fcntl, "fcntl").known(1, 36),
    call(libc::SYS_fcntl, "fcntl").known(1, 37),
    call(libc::SYS_fstatfs, "fstatfs"),
    call(libc::SYS_readlinkat, "readlinkat"),
    call(libc::SYS_pwritev, "pwritev"),
    call(libc::SYS_write, "write"),
    mmap(3, 1),
    mmap(3, 0x10_0001),
    mmap(3, 0x11),
    mmap(1, 2),
    madvise(1).if_refused(Need::MayFail),
    madvise(23),
    // FUTEX_WAKE_OP_PRIVATE, and reading memory by a mask.
    call(libc::SYS_futex, "futex").known(1, 0x85),
    rt_sigprocmask(u64::MAX),
    // Who runs it and when, whether a process is alive, and its limits.
    call(libc::SYS_getppid, "getppid"),
    call(libc::SYS_gettid, "gettid"),
    call(libc::SYS_geteuid, "geteuid"),
    call(libc::SYS_kill, "kill").known(1, 0),
    call(libc::SYS_tgkill, "tgkill").known(2, 0),
    clock_gettime(0),
    clock_gettime(6),
    clock_gettime(7),
    prlimit64(1),
    prlimit64(2),
    prlimit64(3),
    prlimit64(9),
    call(libc::SYS_ppoll, "ppoll"),
    call(libc::SYS_access, "access").if_refused(Need::With(EXEC)),
    opens(0x8_0900).if_refused(Need::With(EXEC)),
    call(libc::SYS_shmctl, "shmctl").known(1, 2).if_refused(Need::With(&[libc::SYS_shmat])),
    call(libc::SYS_sigaltstack, "sigaltstack").known(0, 0).if_refused(Need::With(&[libc::SYS_sigaltstack])),
    // In the place of the program's mlockall, and for mappings of the tracker's own that must not be locked.
    prlimit64(8).if_refused(Need::ToLock),
    mmap(0, 0x6022).if_refused(Need::ToLock),
    call(libc::SYS_mlockall, "mlockall").if_refused(Need::ToLock),
    call(libc::SYS_mlock, "mlock").if_refused(Need::ToLock),
    call(libc::SYS_mlock2, "mlock2").known(2, 1).if_refused(Need::ToLock),
    call(libc::SYS_munlockall, "munlockall").if_refused(Need::ToLock),
    call(libc::SYS_munlock, "munlock").if_refused(Need::ToLock),
    call(libc::SYS_mremap, "mremap").known(3, 1).if_refused(Need::ToLock),
    call(libc::SYS_munlock, "munlock").if_refused(Need::WhereLocked),
    call(libc::SYS_mremap, "mremap").known(3, 1).if_refused(Need::WhereLocked),
];

/// What glibc's malloc_trim, jemalloc's purge and tcmalloc's release do besides. At a thread's first call jemalloc maps
/// memory for it: with MAP_NORESERVE where the kernel overcommits (proc_sys_vm(5), overcommit_memory 0 and 1),
/// otherwise without it, and at first inaccessible.
const RELEASE: &[Call] = &[
    call(libc::SYS_madvise, "madvise"),
    mmap(3, 0x4032),
    mmap(0, 0x4032),
    mmap(3, 0x4022),
    mmap(3, 0x32),
    mmap(0, 0x32),
    mmap(3, 0x22),
    mmap(0, 0x22),
    clock_gettime(0),
    clock_gettime(1),
    clock_gettime(6),
];

/// For an attach.
pub fn all() -> impl Iterator<Item = Call> {
    BORROWED.iter().chain(INJECTED).chain(MALLOC).chain(LOADER).chain(TRACKER).copied()
}

/// For a call of a function that gives free memory back.
pub fn release() -> impl Iterator<Item = Call> {
    BORROWED.iter().chain(INJECTED).chain(MALLOC).chain(RELEASE).copied()
}
