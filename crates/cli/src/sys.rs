//! The system calls that the standard library lacks. Other unsafe code of this program is in `confine` and
//! `attach::native` only (the layering test lists the files).
//!
//! Contract: nothing here allocates between fork and exec.

use std::cell::Cell;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use plimsoll_process::foreign::{self, Deadline, FileKind, Requirements};
use rustix::thread::CapabilitySet;

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

fn limit(which: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for writing.
    unsafe { libc::getrlimit(which, &mut limit) };
    limit.rlim_cur
}

/// Makes the file system allocate the first bytes of a file.
pub fn allocate(file: &std::fs::File, bytes: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed, and the descriptor is open while `file` lives; one that is open for reading only is
    // an error.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

pub fn boottime_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec; the clock exists since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Opens a program, which any user may own.
pub fn open(path: &Path, deadline: Deadline) -> Result<foreign::Regular, foreign::Why> {
    foreign::open(path, Requirements::of(FileKind::Object), deadline)
}

/// The first bytes of a file, at most `bytes`; empty if it cannot be read.
pub fn read_start(path: &Path, bytes: usize, deadline: Deadline) -> Vec<u8> {
    open(path, deadline).and_then(|file| file.head(bytes as u64)).unwrap_or_default()
}

/// Program, arguments and environment in the form that execve needs; built before fork, because that allocates.
pub struct Image {
    path: CString,
    _strings: Vec<CString>,
    arguments: Vec<*const libc::c_char>,
    /// What execvp(3) runs if the kernel does not know the format: the shell with the file as its script. Not for ELF.
    script: Option<Vec<*const libc::c_char>>,
    environment: Vec<*const libc::c_char>,
}

const SHELL: &std::ffi::CStr = c"/bin/sh";

impl Image {
    pub fn new(
        path: &Path,
        arguments: &[OsString],
        environment: &[(OsString, OsString)],
        deadline: Deadline,
    ) -> io::Result<Image> {
        let c = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let mut strings = Vec::new();
        let mut pointers = |all: Vec<Vec<u8>>| -> io::Result<Vec<*const libc::c_char>> {
            let mut list = Vec::new();
            for bytes in all {
                let string = c(bytes)?;
                // The heap buffer of a CString keeps its address when the CString moves into the list.
                list.push(string.as_ptr());
                strings.push(string);
            }
            list.push(std::ptr::null());
            Ok(list)
        };
        let script = match read_start(path, 4, deadline).as_slice() {
            b"\x7fELF" => None,
            _ => {
                let given = arguments.iter().skip(1).map(|a| a.as_bytes().to_vec());
                let shell = [SHELL.to_bytes().to_vec(), path.as_os_str().as_bytes().to_vec()];
                Some(pointers(shell.into_iter().chain(given).collect())?)
            }
        };
        let arguments = pointers(arguments.iter().map(|a| a.as_bytes().to_vec()).collect())?;
        let pair = |(name, value): &(OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
        let environment = pointers(environment.iter().map(pair).collect())?;
        Ok(Image { path: c(path.as_os_str().as_bytes().to_vec())?, _strings: strings, arguments, script, environment })
    }

    /// Replaces this process; returns only with an error.
    pub fn exec(&self) -> io::Error {
        restore_ignored();
        restore_closed();
        // SAFETY: the path and both lists are NUL-terminated and live as long as `self`.
        unsafe { libc::execve(self.path.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
        let error = io::Error::last_os_error();
        if let (Some(libc::ENOEXEC), Some(script)) = (error.raw_os_error(), &self.script) {
            // SAFETY: the script's list is NUL-terminated and lives as long as `self`, like the environment.
            unsafe { libc::execve(SHELL.as_ptr(), script.as_ptr(), self.environment.as_ptr()) };
        }
        error
    }
}

/// Lets execve close the stand-ins for closed descriptors. If execve fails they stay open, for the error message.
fn restore_closed() {
    let closed = CLOSED.load(Ordering::Relaxed);
    for fd in (0..3).filter(|fd| closed & 1 << fd != 0) {
        // SAFETY: sets a flag of a descriptor that Rust's runtime opened for us.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

fn restore_ignored() {
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

/// Makes std start the program by fork: a child by posix_spawn shares our memory until exec, and the kernel counts our
/// peak as the child's (fs/exec.c, `exec_mmap`).
pub fn by_fork(command: &mut std::process::Command) {
    // SAFETY: the closure runs between fork and exec, and does nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, || Ok(())) };
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
        match libc::fork() {
            -1 => {
                let error = io::Error::last_os_error();
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
    ///
    /// A signal from the terminal (si_code > 0: SI_KERNEL) has reached the whole foreground group including the child,
    /// so it is not forwarded. A signal caused by our own writing (SIGPIPE, SIGXFSZ: the kernel sends them in our name)
    /// is not the child's either. The kernel queues blocked signals even if they are ignored.
    pub fn take(&self, Signal { number, code, sender }: Signal) -> io::Result<Option<ChildEnd>> {
        if self.is_reaped.get() {
            return Ok(None);
        }
        if number == libc::SIGCHLD {
            return self.reap();
        }
        let is_ours = code <= 0 && sender == std::process::id();
        if number > 0 && !is_ours && (code <= 0 || number == libc::SIGCONT) {
            // SAFETY: kill takes no memory. The child was not reaped (see above), so no other process has its PID.
            unsafe { libc::kill(self.pid as libc::pid_t, number) };
        }
        Ok(None)
    }

    /// Restores the signal mask from before the child. For when the child has ended.
    pub fn restore(&self) {
        // SAFETY: the mask is the one that sigprocmask returned.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
    }

    fn reap(&self) -> io::Result<Option<ChildEnd>> {
        // As long as the child is a zombie, the kernel keeps the name of its last program.
        let name = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
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
                    return Ok(Some(ended(name, ChildEnd::Code(libc::WEXITSTATUS(status) as u8))));
                }
                _ if libc::WIFSIGNALED(status) => {
                    self.is_reaped.set(true);
                    return Ok(Some(ended(name, ChildEnd::Signal(libc::WTERMSIG(status)))));
                }
                _ if libc::WIFSTOPPED(status) => stop_as(libc::WSTOPSIG(status)),
                _ => {}
            }
        }
    }
}

/// The last name (comm) of the child. There is only one child.
static LAST_NAME: OnceLock<String> = OnceLock::new();

fn ended(name: Vec<u8>, end: ChildEnd) -> ChildEnd {
    let _ = LAST_NAME.set(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned());
    end
}

/// The name of the child's program at its end; empty before.
pub fn last_name() -> &'static str {
    LAST_NAME.get().map_or("", String::as_str)
}

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

/// Stops this process until the shell continues it.
pub fn stop() {
    stop_as(libc::SIGSTOP);
}

/// Stops this process as the child was stopped, so that the shell sees its job stopped; returns after the continuation.
fn stop_as(signal: i32) {
    let signal = match signal {
        libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => signal,
        _ => libc::SIGSTOP,
    };
    // SAFETY: only here the signal is unblocked and has its default disposition; SIGCONT continues us.
    unsafe {
        let old = libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::raise(signal);
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

/// True if we may execute `path` (access(2) with the real ids, like the search of execvp).
pub fn is_executable(path: &Path) -> bool {
    let Ok(c) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: NUL-terminated path.
    path.is_file() && unsafe { libc::access(c.as_ptr(), libc::X_OK) == 0 }
}

/// True if the file has capabilities that exec would grant (setcap).
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both are NUL-terminated; a null buffer of size 0 only queries the length.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// The version of glibc that this program itself runs with; `None` if its C library is another one, or if it is static.
pub fn own_glibc() -> Option<String> {
    // SAFETY: the name is NUL-terminated. What dlsym finds under it is the function that glibc documents, which returns
    // a static string (gnu_get_libc_version(3)).
    unsafe {
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr());
        if function.is_null() {
            return None;
        }
        let function: extern "C" fn() -> *const libc::c_char = std::mem::transmute(function);
        Some(std::ffi::CStr::from_ptr(function()).to_string_lossy().into_owned())
    }
}

/// Major and minor number of the kernel, and its release as text.
pub fn kernel() -> Option<(u32, u32, String)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next()?, release.trim().to_string()))
}

/// Joins the values with colons.
pub fn joined(parts: &[&OsStr]) -> OsString {
    OsString::from_vec(parts.iter().map(|p| p.as_bytes()).collect::<Vec<_>>().join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_process::foreign::NAMES;

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
