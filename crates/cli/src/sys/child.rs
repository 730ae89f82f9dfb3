//! The child that runs the program: started by fork and exec, waited for, and its signals passed on to it.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::image::Image;
use super::own_process::leads_session;
use super::signals::{Signal, stop_as};
use super::timers::Timers;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEnd {
    Code(u8),
    Signal(i32),
}

/// A started child.
pub struct Child {
    pub pid: u32,
    /// Its end was reported: another process may have the number by now.
    is_reaped: Cell<bool>,
    /// The signal mask before the child was started.
    mask: libc::sigset_t,
}

/// Forks and execs. Until `Child::wait` returns, this process blocks all signals and takes them from the queue. So no
/// disposition changes (the child inherits ignored ones) and no signal is lost.
pub fn spawn(image: &Image) -> io::Result<Child> {
    let mut failure = [0i32; 2];
    // SAFETY: `failure` has space for two descriptors.
    if unsafe { libc::pipe2(failure.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the sets are valid for writing. Before execve or _exit the child only makes calls that take no lock and
    // no memory, so other threads may hold any lock at the fork. The descriptors are ours.
    unsafe {
        let (mut all, mut mask): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, &mut mask);
        // An inherited "ignore SIGCHLD" would reap the child before we can read its status.
        let old_chld = libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let parent = libc::getpid();
        let timers = Timers::take();
        match libc::fork() {
            -1 => {
                let error = io::Error::last_os_error();
                timers.resume();
                libc::close(failure[0]);
                libc::close(failure[1]);
                if old_chld != libc::SIG_ERR {
                    libc::signal(libc::SIGCHLD, old_chld);
                }
                libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                Err(error)
            }
            0 => {
                // SIGKILL cannot be forwarded, so the child gets it when we die.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent {
                    libc::_exit(127);
                }
                if old_chld != libc::SIG_ERR {
                    libc::signal(libc::SIGCHLD, old_chld);
                }
                timers.resume();
                libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                let error = image.exec();
                let code = error.raw_os_error().unwrap_or(libc::EINVAL);
                libc::write(failure[1], (&raw const code).cast(), size_of::<i32>());
                libc::_exit(127);
            }
            pid => {
                libc::close(failure[1]);
                let mut code = 0i32;
                let n = libc::read(failure[0], (&raw mut code).cast(), size_of::<i32>());
                libc::close(failure[0]);
                if n == size_of::<i32>() as isize {
                    libc::waitpid(pid, std::ptr::null_mut(), 0);
                    timers.resume();
                    if old_chld != libc::SIG_ERR {
                        libc::signal(libc::SIGCHLD, old_chld);
                    }
                    libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                    return Err(io::Error::from_raw_os_error(code));
                }
                Ok(Child { pid: pid as u32, is_reaped: Cell::new(false), mask })
            }
        }
    }
}

impl Child {
    /// Waits for the end. Forwards signals to the child, and stops and continues as the child does.
    pub fn wait(self) -> io::Result<ChildEnd> {
        loop {
            // SAFETY: set and info are valid; sigwaitinfo blocks until one of the (blocked) signals is pending.
            let (signal, info) = unsafe {
                let (mut all, mut info): (libc::sigset_t, libc::siginfo_t) = (std::mem::zeroed(), std::mem::zeroed());
                libc::sigfillset(&mut all);
                (libc::sigwaitinfo(&all, &mut info), info)
            };
            // SAFETY: the struct is plain numbers, zeroed before. If a process sent the signal (si_code <= 0), si_pid
            // is set; for other signals `take` does not read it.
            let sender = unsafe { info.si_pid() } as u32;
            if let Some(end) = self.take(Signal { number: signal, code: info.si_code, sender })? {
                self.restore();
                return Ok(end);
            }
        }
    }

    /// Handles one signal: SIGCHLD is about the child, any other is forwarded to it. Returns the end if the child has
    /// ended.
    pub fn take(&self, signal: Signal) -> io::Result<Option<ChildEnd>> {
        if self.is_reaped.get() {
            return Ok(None);
        }
        if signal.number == libc::SIGCHLD {
            if std::process::id() == 1 {
                self.reap_orphans();
            }
            return self.reap();
        }
        if is_for_child(signal) {
            // SAFETY: kill takes no memory. The child was not reaped (see above), so no other process has its PID.
            unsafe { libc::kill(self.pid as libc::pid_t, signal.number) };
        }
        Ok(None)
    }

    /// None before Linux 5.3, and under a filter that doesn't know the call.
    pub fn handle(&self) -> Option<ChildHandle> {
        let pid = Pid::from_raw(self.pid as i32).filter(|_| !self.is_reaped.get())?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(ChildHandle)
    }

    /// Restores the signal mask from before the child. For when the child has ended.
    pub fn restore(&self) {
        // SAFETY: the mask is the one that sigprocmask returned.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
    }

    /// Process 1 of a container is the parent of every process whose parent has ended. Children without an exit signal
    /// (`foreign::as_target`) are left to whoever started them: without __WALL, wait doesn't report them.
    fn reap_orphans(&self) {
        loop {
            // SAFETY: the struct is plain numbers, and waitid only writes it. If a child has ended, si_pid is set;
            // otherwise it stays 0.
            let ended = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                let found = libc::waitid(libc::P_ALL, 0, &mut info, flags) == 0;
                if found { info.si_pid() } else { 0 }
            };
            // `reap` waits for the child itself. Orphans behind it in the queue don't matter: this process ends soon.
            if ended == 0 || ended as u32 == self.pid {
                return;
            }
            // SAFETY: without a pointer for the status nothing is written.
            unsafe { libc::waitpid(ended, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }

    fn reap(&self) -> io::Result<Option<ChildEnd>> {
        // As long as the child is a zombie, the kernel keeps the name and user of its last program.
        let name = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let user = std::fs::metadata(format!("/proc/{}", self.pid)).ok().map(|meta| meta.uid());
        loop {
            let mut status = 0;
            let flags = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
            // SAFETY: `status` is ours. The PID is that of our child, which `take` knows not to be reaped.
            match unsafe { libc::waitpid(self.pid as libc::pid_t, &mut status, flags) } {
                0 => return Ok(None),
                -1 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
                _ if libc::WIFEXITED(status) => {
                    self.is_reaped.set(true);
                    return Ok(Some(ended((name, user), ChildEnd::Code(libc::WEXITSTATUS(status) as u8))));
                }
                _ if libc::WIFSIGNALED(status) => {
                    self.is_reaped.set(true);
                    return Ok(Some(ended((name, user), ChildEnd::Signal(libc::WTERMSIG(status)))));
                }
                _ if libc::WIFSTOPPED(status) => stop_as(libc::WSTOPSIG(status)),
                _ => {}
            }
        }
    }
}

fn is_for_child(signal: Signal) -> bool {
    is_forwarded(signal, leads_session())
}

/// A signal from the kernel (si_code > 0) that the terminal causes has reached the whole foreground group including the
/// child, so it is not forwarded, with one exception: at a hangup only the leader of the session gets SIGHUP (and
/// SIGCONT), and the group gets it when the leader ends (drivers/tty/tty_jobctrl.c). The kernel also sends the signals
/// of timers that ran out before the child got them (`Timers`).
///
/// A signal that plimsoll's own writing causes (SIGPIPE, SIGXFSZ: the kernel sends them in plimsoll's name) is not
/// forwarded. The kernel queues blocked signals even if they are ignored.
fn is_forwarded(Signal { number, code, sender }: Signal, is_leader: bool) -> bool {
    let is_ours = code <= 0 && sender == std::process::id();
    let is_ours_alone = match number {
        libc::SIGCONT | libc::SIGALRM | libc::SIGVTALRM | libc::SIGPROF => true,
        libc::SIGHUP => is_leader,
        _ => false,
    };
    number > 0 && !is_ours && (code <= 0 || is_ours_alone)
}

/// The child for another thread, which can't know whether it was reaped. It can be polled for the child's end.
pub struct ChildHandle(OwnedFd);

impl ChildHandle {
    /// Forwards a signal, as `Child::take` does.
    pub fn pass_on(&self, signal: Signal) {
        if is_for_child(signal) {
            let none = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: without a siginfo_t the call takes no memory.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal.number, none, 0) };
        }
    }
}

impl AsFd for ChildHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The last name (comm) and user of the child. There is only one child.
static LAST: OnceLock<(String, Option<u32>)> = OnceLock::new();

fn ended((name, user): (Vec<u8>, Option<u32>), end: ChildEnd) -> ChildEnd {
    let _ = LAST.set((String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(), user));
    end
}

/// The name of the child's program at its end; empty before.
pub fn last_name() -> &'static str {
    LAST.get().map_or("", |(name, _)| name.as_str())
}

/// The child's effective user at its end, if that is another one than ours.
pub fn last_other_user() -> Option<u32> {
    LAST.get().and_then(|(_, user)| *user).filter(|user| *user != super::uid())
}

/// Makes std start the program by fork: a child by posix_spawn shares our memory until exec, and the kernel counts our
/// peak as the child's (fs/exec.c, `exec_mmap`).
pub fn by_fork(command: &mut std::process::Command) {
    // SAFETY: the closure runs between fork and exec, and does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, || Ok(())) };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plimsoll_process::foreign::{Deadline, NAMES};

    use super::*;

    #[test]
    fn only_what_did_not_reach_the_group_is_forwarded() {
        const SI_KERNEL: i32 = 0x80;
        let from_kernel = |number, is_leader| is_forwarded(Signal { number, code: SI_KERNEL, sender: 0 }, is_leader);
        for (number, as_member, as_leader) in [
            (libc::SIGINT, false, false),
            (libc::SIGTSTP, false, false),
            (libc::SIGHUP, false, true),
            (libc::SIGCONT, true, true),
            (libc::SIGALRM, true, true),
        ] {
            assert_eq!((from_kernel(number, false), from_kernel(number, true)), (as_member, as_leader), "{number}");
        }
        for (sender, expected) in [(1, true), (std::process::id(), false)] {
            assert_eq!(is_forwarded(Signal { number: libc::SIGHUP, code: 0, sender }, false), expected);
        }
    }

    /// `run` execs the program in its own place where it can't be tracked: the program inherits the disposition.
    #[test]
    fn a_failed_exec_leaves_the_disposition_of_sigchld_as_it_was() {
        extern "C" fn nothing(_: libc::c_int) {}
        let ours = nothing as *const () as libc::sighandler_t;
        let image = Image::new(Path::new("/nowhere/program"), &["program".into()], &[], Deadline::after(NAMES));
        let image = image.expect("a path and arguments without NUL");
        // SAFETY: the handler does nothing.
        let before = unsafe { libc::signal(libc::SIGCHLD, ours) };
        let error = spawn(&image).err().map(|error| error.kind());
        // SAFETY: the disposition that the first call returned.
        let left = unsafe { libc::signal(libc::SIGCHLD, before) };
        assert_eq!((error, left), (Some(io::ErrorKind::NotFound), ours));
    }
}
