//! Finds the process at the other end of a Unix socket.

use std::os::fd::{AsRawFd, BorrowedFd};

/// PID of the process that made the listening socket, as seen in this process's PID namespace: 0 if it isn't visible
/// there. None if the kernel doesn't report it. (rustix's `UCred` can't represent 0.)
pub(crate) fn listener(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open. The kernel writes at most `length` bytes into a struct of that size, which holds
    // plain numbers.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if done == 0 { u32::try_from(credentials.pid).ok() } else { None }
}
