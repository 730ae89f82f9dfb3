//! What this process inherited at its start and hands down to the program that it starts: ignored signals, and closed
//! descriptors among 0, 1, 2.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Signals that this process ignores, and that an exec must restore. Rust's runtime ignores SIGPIPE before `main`.
/// SIGXFSZ is ignored so that a file above the limit (`ulimit -f`) gives an error of the write.
const IGNORED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Which of them were already ignored at our start.
static WAS_IGNORED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// The descriptors among 0, 1, 2 that were closed at our start, as bits. Rust's runtime opens /dev/null in their place
/// before `main`; the program that we exec must find them closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

// SAFETY: the loader calls each entry of this section as a C function before `main`. `remember` makes system calls and
// writes to atomics; it uses nothing of the standard library's that `main` sets up.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    for fd in 0..3 {
        // SAFETY: F_GETFD takes no argument and changes nothing.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    for (signal, was_ignored) in IGNORED.into_iter().zip(&WAS_IGNORED) {
        // SAFETY: with a null second argument sigaction only writes the struct, which is ours and large enough. SIG_IGN
        // is a valid disposition for both signals.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut old) == 0 {
                was_ignored.store(old.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
            }
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Whether standard output was open at our start.
pub fn has_stdout() -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << 1 == 0
}

/// Lets execve close the stand-ins for closed descriptors. If execve fails they stay open, for the error message.
pub(super) fn restore_closed() {
    let closed = CLOSED.load(Ordering::Relaxed);
    for fd in (0..3).filter(|fd| closed & 1 << fd != 0) {
        // SAFETY: sets a flag of a descriptor that Rust's runtime opened for us.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

pub(super) fn restore_ignored() {
    for (signal, was_ignored) in IGNORED.into_iter().zip(&WAS_IGNORED) {
        let disposition = if was_ignored.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: both dispositions are valid for these signals.
        unsafe { libc::signal(signal, disposition) };
    }
}

/// Runs `start`, which starts a child by std, with the signal dispositions from before our own start: a child inherits
/// them.
pub fn handing_down<T>(start: impl FnOnce() -> T) -> T {
    restore_ignored();
    let started = start();
    for signal in IGNORED {
        // SAFETY: SIG_IGN is a valid disposition for both signals.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    started
}
