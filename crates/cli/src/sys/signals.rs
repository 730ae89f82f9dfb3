//! Signals of this process: blocked ones as a descriptor, dispositions, and its own stop and death by one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A signal taken from the queue and its sender (si_code of siginfo, and si_pid if si_code is 0 or less).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    pub number: i32,
    pub code: i32,
    pub sender: u32,
}

/// Blocked signals as a descriptor to poll, beside processes and the clock.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks these signals; `None`: `spawn` has blocked all signals already.
    pub fn of(numbers: Option<&[i32]>) -> io::Result<Signals> {
        // SAFETY: the set is ours; signalfd returns a descriptor that nobody else has.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            match numbers {
                None => {
                    libc::sigfillset(&mut set);
                }
                Some(numbers) => {
                    libc::sigemptyset(&mut set);
                    for number in numbers {
                        libc::sigaddset(&mut set, *number);
                    }
                    libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                }
            }
            match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Signals(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// The next pending signal.
    pub fn next(&self) -> Option<Signal> {
        // SAFETY: the struct is plain data, and read(2) writes at most its size.
        let (got, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            (libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size), info)
        };
        (got > 0).then_some(Signal { number: info.ssi_signo as i32, code: info.ssi_code, sender: info.ssi_pid })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// These signals without SIGHUP if it is ignored: nohup(1) has started us. `Signals` would get it all the same, since
/// the kernel queues blocked signals even if they are ignored.
pub fn unless_nohup(numbers: &[i32]) -> Vec<i32> {
    // SAFETY: with a null second argument sigaction only writes the struct, which is ours and large enough.
    let is_ignored = unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    };
    numbers.iter().copied().filter(|number| *number != libc::SIGHUP || !is_ignored).collect()
}

/// Runs `wait` while SIGINT and SIGQUIT are ignored.
pub fn ignoring_interrupts<T>(wait: impl FnOnce() -> T) -> T {
    const INTERRUPTS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGQUIT];
    // SAFETY: SIG_IGN is a valid disposition for both signals.
    let before = INTERRUPTS.map(|signal| unsafe { libc::signal(signal, libc::SIG_IGN) });
    let done = wait();
    for (signal, before) in INTERRUPTS.into_iter().zip(before).filter(|(_, before)| *before != libc::SIG_ERR) {
        // SAFETY: the disposition is what the call above returned for this signal.
        unsafe { libc::signal(signal, before) };
    }
    done
}

/// Unblocks signals that the parent of this process had blocked.
pub fn unblock(numbers: &[i32]) {
    // SAFETY: the set is ours; an invalid signal number only makes sigaddset fail.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for number in numbers {
            libc::sigaddset(&mut set, *number);
        }
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// Stops this process until the shell continues it.
pub fn stop() {
    stop_as(libc::SIGSTOP);
}

/// Stops this process and its group, as the terminal does for Ctrl-Z: the shell waits until all processes of the job
/// have stopped. The kernel doesn't stop a group that no shell could continue.
pub fn stop_group() {
    stop_by(libc::SIGTSTP, true);
}

/// Stops this process as the child was stopped, so that the shell sees its job stopped; returns after the continuation.
pub(super) fn stop_as(signal: i32) {
    let signal = match signal {
        libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => signal,
        _ => libc::SIGSTOP,
    };
    stop_by(signal, false);
}

fn stop_by(signal: i32, is_for_group: bool) {
    // SAFETY: only here the signal is unblocked and has its default disposition; SIGCONT continues us.
    unsafe {
        let old = libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        if is_for_group {
            libc::kill(0, signal);
        } else {
            libc::raise(signal);
        }
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if old != libc::SIG_ERR && signal != libc::SIGSTOP {
            libc::signal(signal, old);
        }
    }
}

/// Dies of the same signal, without a second core file. Returns if the signal does not kill.
pub fn die_of(signal: i32) {
    // SAFETY: limit and set are ours and valid, and the other calls touch no memory.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
}
