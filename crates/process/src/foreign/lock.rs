//! Whether a file is locked: a segment is, as long as a process maps it.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Whether another open file description has a lock of the file (fcntl(2), F_OFD_GETLK). `None`: the file system has no
/// locks.
pub(super) fn is_locked(file: &File) -> Option<bool> {
    // SAFETY: integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: an open descriptor; the kernel reads and writes the local.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    (answer == 0).then_some(lock.l_type != libc::F_UNLCK as libc::c_short)
}
