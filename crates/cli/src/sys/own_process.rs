//! Rights, limits and settings of this process, and what its children used.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

pub fn uid() -> u32 {
    // SAFETY: no preconditions, can't fail.
    unsafe { libc::getuid() }
}

pub fn gid() -> u32 {
    // SAFETY: no preconditions, can't fail.
    unsafe { libc::getgid() }
}

/// Whether this process may read the memory of any other (CAP_SYS_PTRACE, capabilities(7)). Root in a container may
/// lack that right.
pub fn may_trace() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// Whether this process leads its session. The session may have been made outside of our PID
/// namespace (`unshare --pid --fork`, bwrap). getsid(2) gives 0 for it, which rustix's type for a PID must not hold.
pub fn leads_session() -> bool {
    // SAFETY: no preconditions; 0 is this process.
    let session = unsafe { libc::getsid(0) };
    u32::try_from(session).is_ok_and(|session| session == std::process::id())
}

/// Whether this process is in the foreground of the terminal. If the terminal belongs to another session, it doesn't
/// report which processes are in the foreground; then the answer is yes. A group of processes outside of our
/// PID namespace has the number 0.
pub fn is_in_foreground(terminal: BorrowedFd) -> bool {
    // SAFETY: no preconditions; tcgetpgrp only writes its own buffer, and `terminal` is open.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(terminal.as_raw_fd()), libc::getpgrp()) };
    foreground < 0 || foreground == own
}

/// Whether the kernel found at exec that this program has rights that its caller lacks (AT_SECURE, getauxval(3)).
pub fn is_secure() -> bool {
    // SAFETY: no preconditions; an unknown entry is 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// RLIMIT_FSIZE.
pub fn file_size_limit() -> u64 {
    limit(libc::RLIMIT_FSIZE)
}

/// RLIMIT_AS.
pub fn address_space_limit() -> u64 {
    limit(libc::RLIMIT_AS)
}

/// RLIMIT_DATA.
pub fn data_limit() -> u64 {
    limit(libc::RLIMIT_DATA)
}

/// Raises the soft limit of open files (RLIMIT_NOFILE) to this number, or to the hard limit. The usual soft limit is
/// low because select(2) can't take higher descriptors: no program of the user's may inherit more.
pub fn allow_open_files(number: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let number = maximum.map_or(number, |most| most.min(number));
    if current.is_some_and(|current| current < number) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum });
    }
}

fn limit(which: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(which, &mut limit) };
    limit.rlim_cur
}

/// Switches transparent huge pages off for this process and what it starts (PR_SET_THP_DISABLE).
pub fn disable_huge_pages() -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 }
}

/// Processor time of all reaped children and their reaped descendants, in microseconds, and the largest RSS that one of
/// them had, in bytes.
pub fn children_usage() -> (u64, u64) {
    // SAFETY: the struct is plain numbers, and getrusage only writes to it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let microseconds = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (microseconds(usage.ru_utime) + microseconds(usage.ru_stime), (usage.ru_maxrss as u64).saturating_mul(1024))
}
