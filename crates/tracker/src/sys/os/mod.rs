//! The tracker's system calls, one function for each purpose, with one contract each: clocks, limits and ids here;
//! files, mappings, locked memory, pages, signals and the pool of the tracker's own memory in a file each. This folder
//! is the fence around nearly all unsafe system calls.

mod files;
mod locked;
mod mappings;
mod pages;
mod pool;
mod signals;

pub use files::*;
pub use locked::*;
pub use mappings::*;
pub use pages::*;
pub use pool::*;
pub use signals::*;

use super::cpu::{nr, syscall};
use super::errno;

const PR_GET_SECCOMP: usize = 21;
/// See getrlimit(2).
pub const RLIMIT_FSIZE: usize = 1;
const RLIMIT_STACK: usize = 3;
const RLIMIT_MEMLOCK: usize = 8;
/// See getrlimit(2).
pub const RLIMIT_DATA: usize = 2;
/// See getrlimit(2).
pub const RLIMIT_AS: usize = 9;
/// See getrlimit(2).
pub const RLIMIT_NOFILE: usize = 7;

/// Clocks.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Clock {
    /// Wall clock.
    Realtime = 0,
    /// Monotonic, coarse (a few ms).
    MonotonicCoarse = 6,
    /// Since boot, with suspended time: /proc/PID/stat's start time counts in it.
    Boottime = 7,
}

/// Nanoseconds on a clock, by system call.
pub fn clock_ns(clock: Clock) -> u64 {
    let mut t = [0i64; 2];
    // SAFETY: the kernel writes one timespec into the local.
    let _ = unsafe { syscall(nr::CLOCK_GETTIME, [clock as usize, t.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    t[0] as u64 * 1_000_000_000 + t[1] as u64
}

macro_rules! simple {
    ($($(#[doc = $d:literal])* $name:ident = $nr:ident;)*) => {$(
        $(#[doc = $d])*
        pub fn $name() -> u32 {
            // SAFETY: takes no arguments and writes no memory. 0 if the call isn't permitted.
            unsafe { syscall(nr::$nr, [0; 6]) }.unwrap_or(0) as u32
        }
    )*};
}
simple! {
    /// Process id in the own namespace.
    getpid = GETPID;
    /// Parent's process id.
    getppid = GETPPID;
    /// Kernel thread id.
    gettid = GETTID;
    /// Effective user id.
    geteuid = GETEUID;
}

/// Whether a process with this id exists.
pub fn process_exists(pid: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let r = unsafe { syscall(nr::KILL, [pid as usize, 0, 0, 0, 0, 0]) };
    r != Err(errno::ESRCH)
}

/// Whether a thread that had this id, and this process's memory, doesn't exist any more. A child of clone(2) with
/// CLONE_VM has the memory too, and its threads aren't this process's: they are gone when nobody has the id. False if a
/// filter refuses a query.
pub fn is_thread_gone(tid: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let own = unsafe { syscall(nr::TGKILL, [getpid() as usize, tid as usize, 0, 0, 0, 0]) };
    // kill(2) finds any thread by its id, not only the first one of a process.
    own == Err(errno::ESRCH) && !process_exists(tid)
}

/// Mode of seccomp of this thread: 0 none, 1 strict, 2 filter; `None`: the kernel has no seccomp.
pub fn seccomp_mode() -> Option<usize> {
    // SAFETY: reads one number.
    unsafe { syscall(nr::PRCTL, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) }.ok()
}

fn rlimit(which: usize) -> u64 {
    let mut r = [u64::MAX; 2];
    // SAFETY: the kernel writes one rlimit64 into the local.
    let _ = unsafe { syscall(nr::PRLIMIT64, [0, which, 0, r.as_mut_ptr() as usize, 0, 0]) };
    r[0]
}

/// Soft limit of the stack, bytes; `u64::MAX` = unlimited.
pub fn stack_limit() -> u64 {
    rlimit(RLIMIT_STACK)
}

/// Soft limit of address space, bytes; `u64::MAX` = unlimited.
pub fn address_space_limit() -> u64 {
    rlimit(RLIMIT_AS)
}

/// Soft limit of writable private memory, bytes; `u64::MAX` = unlimited.
pub fn data_limit() -> u64 {
    rlimit(RLIMIT_DATA)
}

/// Soft limit of file sizes, bytes. A larger ftruncate would raise SIGXFSZ.
pub fn file_size_limit() -> u64 {
    rlimit(RLIMIT_FSIZE)
}

/// A value that the kernel passed to the program (getauxval(3), which is newer than the glibc that programs may have).
pub fn auxiliary_value(tag: u64) -> Option<usize> {
    let mut buffer = [0u8; 1024];
    let auxv = read_file(OwnFile::AUXV, &mut buffer).as_chunks::<16>().0;
    let word = |pair: &[u8; 16], at: usize| pair[at..].first_chunk().map_or(0, |w| u64::from_ne_bytes(*w));
    auxv.iter().find(|pair| word(pair, 0) == tag).map(|pair| word(pair, 8) as usize)
}

/// Waits until a signal arrives.
pub fn pause() {
    // SAFETY: no descriptors, no timeout, no mask.
    let _ = unsafe { syscall(nr::PPOLL, [0; 6]) };
}

/// Sleeps for the given time.
pub fn sleep_ms(ms: u64) {
    let t = [0i64, ms as i64 * 1_000_000];
    // SAFETY: reads a timespec; no descriptors.
    let _ = unsafe { syscall(nr::PPOLL, [0, 0, t.as_ptr() as usize, 0, 0, 0]) };
}

/// Size of a System V shared memory segment.
pub fn shared_memory_bytes(id: i32) -> Option<usize> {
    const IPC_STAT: usize = 2;
    let mut ds = [0u64; 16];
    // SAFETY: struct shmid_ds has 112 bytes; shm_segsz follows the 48 bytes of ipc_perm.
    unsafe { syscall(nr::SHMCTL, [id as usize, IPC_STAT, ds.as_mut_ptr() as usize, 0, 0, 0]) }.ok()?;
    Some(ds[6] as usize)
}
