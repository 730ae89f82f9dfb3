//! The child's side: it becomes the target's user, then makes one system call for each packet.
//!
//! The forking program may have threads (`record` has), so any lock, also malloc's, may stay locked for ever in the
//! child. So the child allocates nothing and calls no locking function of libc: rustix makes the system calls itself,
//! and all memory was allocated before the fork. An exec of one of our programs would avoid this, but there may be
//! none. This crate is also part of other programs, and the file of the running program may be deleted or inaccessible
//! (noexec, another root).

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::process::{DumpableBehavior, Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::wire::{self, CHUNK, Facts, HEAD, Op, Step};

/// What the child needs. All of it is allocated before the fork.
pub(crate) struct Plan<'p> {
    pub socket: BorrowedFd<'p>,
    pub root: BorrowedFd<'p>,
    pub cwd: Option<BorrowedFd<'p>>,
    pub uid: u32,
    pub gid: u32,
    pub groups: &'p [Gid],
    /// Whether the caller already has this user.
    pub is_own: bool,
    /// Buffers of CHUNK + HEAD bytes each.
    pub request: &'p mut [u8],
    pub answer: &'p mut [u8],
}

/// Forks; the child serves and never returns. It ends without a signal, so that it doesn't disturb anybody who waits
/// for SIGCHLD, and is reaped with __WALL.
pub(crate) fn fork(plan: &mut Plan<'_>) -> io::Result<i32> {
    // All signals are blocked across the fork, so that no handler runs in the child. The child keeps them blocked,
    // because a terminal's Ctrl-C must not keep it from removing its files. With no flag and no stack, clone(2) is fork
    // without glibc's handlers: the child has a copy of this thread's stack and continues here.
    // SAFETY: the signal sets are local. The child only calls `run`, which allocates nothing and takes no lock: another
    // thread may have held any lock at the fork. `_end` ends the child before code runs that owns the parent's objects.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let pid = libc::syscall(libc::SYS_clone, 0usize, 0usize, 0usize, 0usize, 0usize);
        if pid == 0 {
            let _end = End;
            run(plan);
        }
        let failed = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        if pid < 0 { Err(failed) } else { Ok(pid as i32) }
    }
}

/// Reaps the child if it has ended; true: it is gone. `pid` is a child made here. Nobody else waits for it: no waitpid
/// of this program or of the standard library names all children. So no other process can get that PID before.
pub(crate) fn reap(pid: i32) -> bool {
    // SAFETY: a null status is allowed.
    let got = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    got == pid || (got == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD))
}

/// Kills a child for which `reap` was never true.
pub(crate) fn kill(pid: i32) {
    // SAFETY: kill takes no memory.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Ends the child when dropped: it must never continue in the parent's code, not even by a panic.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: ends this process at once, without handlers and destructors.
        unsafe { libc::_exit(0) };
    }
}

/// # Safety
/// Only in the child: this closes descriptors that the parent's values own.
unsafe fn run(plan: &mut Plan<'_>) {
    // SAFETY: as this function.
    unsafe { close_others(plan) };
    let became = become_target(plan);
    let (step, errno) = match became {
        Ok(()) => (Step::Done, 0),
        Err((step, errno)) => (step, errno.raw_os_error()),
    };
    let facts = Facts { step: step as u64, errno: errno as u64, ..Facts::default() };
    if reply(plan, Ok(facts), 0, None).is_ok() && became.is_ok() {
        serve(plan);
    }
}

/// Closes root's other descriptors: the target's user might reach them through a fault in the child.
///
/// # Safety
/// From now on, no value of this process uses a descriptor that the plan lacks.
unsafe fn close_others(plan: &Plan<'_>) {
    let mut kept = [plan.socket.as_raw_fd(), plan.root.as_raw_fd(), plan.cwd.map_or(-1, |fd| fd.as_raw_fd())];
    kept.sort_unstable();
    let mut from: RawFd = 0;
    for fd in kept {
        // SAFETY: no descriptor of the plan lies between two of them; the caller knows about the others.
        unsafe { close_range(from, fd.saturating_sub(1)) };
        from = from.max(fd.saturating_add(1));
    }
    // SAFETY: as above.
    unsafe { close_range(from, RawFd::MAX) };
}

/// # Safety
/// From now on, no value of this process uses these descriptors.
unsafe fn close_range(from: RawFd, to: RawFd) {
    if from > to {
        return;
    }
    // SAFETY: the only memory is the limit, which is local; the caller knows about the descriptors.
    unsafe {
        if libc::syscall(libc::SYS_close_range, from, to, 0) == 0 {
            return;
        }
        // Before Linux 5.9.
        let mut limit = libc::rlimit { rlim_cur: 1 << 16, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        for fd in from..=to.min(limit.rlim_cur.min(1 << 20) as RawFd) {
            libc::close(fd);
        }
    }
}

fn become_target(plan: &Plan<'_>) -> Result<(), (Step, Errno)> {
    let at = |step: Step| move |errno: Errno| (step, errno);
    // Without the capability, paths are still resolved inside the root: see `open`.
    rustix::process::fchdir(plan.root).map_err(at(Step::Root))?;
    match rustix::process::chroot(c".") {
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err((Step::Root, errno)),
    }
    rustix::thread::set_no_new_privs(true).map_err(at(Step::Rights))?;
    // Only root may trace this process or read its memory, because it is a copy of a process of root.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at(Step::Rights))?;
    for number in 0..63 {
        // Fails after the last capability, or without CAP_SETPCAP. In the second case, no_new_privs alone keeps rights
        // from coming back.
        if rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)).is_err() {
            break;
        }
    }
    let _ = rustix::thread::clear_ambient_capability_set();
    // A caller that already has the target's user can act only with its own groups.
    let own = |result: Result<(), Errno>| if plan.is_own && result == Err(Errno::PERM) { Ok(()) } else { result };
    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
    own(rustix::thread::set_thread_groups(plan.groups)).map_err(at(Step::Groups))?;
    own(rustix::thread::set_thread_res_gid(gid, gid, gid)).map_err(at(Step::Groups))?;
    // The change of user makes this process dumpable again if fs.suid_dumpable is 1. Until the next call, this process
    // keeps its capabilities: the kernel lets no user trace or read a process that has more capabilities than the user.
    // A security module may refuse to keep them; then only fs.suid_dumpable protects the process.
    let _ = rustix::thread::set_keep_capabilities(true);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(at(Step::User))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(at(Step::Rights))?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(at(Step::Rights))?;
    let left = rustix::thread::capabilities(None).map_err(at(Step::Rights))?;
    if left != sets || rustix::process::geteuid() != uid || rustix::process::getuid() != uid {
        return Err((Step::Rights, Errno::PERM));
    }
    rustix::process::umask(Mode::from_raw_mode(0o077));
    Ok(())
}

/// The directory and the file that the parent's packets refer to.
#[derive(Default)]
struct ChildState {
    directory: Option<OwnedFd>,
    file: Option<OwnedFd>,
    /// A file that we made and that isn't renamed yet. It is removed when the parent ends, however that happens.
    unfinished: Option<(OwnedFd, Name)>,
    /// The unfinished file is removed only when this name exists, or after `LONGEST_STAY`.
    awaited: Option<(OwnedFd, Name)>,
}

/// Maximum time that the child outlives a killed parent.
const LONGEST_STAY: Duration = Duration::from_secs(10);

/// A file's name with a NUL at the end.
#[derive(Clone, Copy)]
struct Name([u8; 256]);

impl Name {
    fn of(name: &CStr) -> Option<Name> {
        let mut kept = Name([0; 256]);
        let bytes = name.to_bytes();
        kept.0.get_mut(..bytes.len()).filter(|_| bytes.len() < 256)?.copy_from_slice(bytes);
        Some(kept)
    }

    fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

fn serve(plan: &mut Plan<'_>) {
    let mut state = ChildState::default();
    loop {
        let length = match rustix::net::recv(plan.socket, &mut *plan.request, RecvFlags::empty()) {
            Ok((0, _)) => break,
            Ok((length, _)) => length,
            Err(Errno::INTR) => continue,
            Err(_) => break,
        };
        let mut payload = 0;
        let mut passed = None;
        let done = {
            let Some((op, rest)) = plan.request.get(..length).and_then(|packet| packet.split_first()) else { break };
            let answer = plan.answer.get_mut(HEAD..).unwrap_or_default();
            let mut call = Call {
                plan: (plan.root, plan.cwd),
                state: &mut state,
                answer,
                payload: &mut payload,
                passed: &mut passed,
            };
            call.make(*op, rest)
        };
        if reply(plan, done, payload, passed.as_ref().map(AsFd::as_fd)).is_err() {
            break;
        }
    }
    if let Some((directory, name)) = &state.unfinished {
        stay(state.awaited.as_ref());
        let _ = rustix::fs::unlinkat(directory, name.as_c(), AtFlags::empty());
    }
}

/// Waits for the awaited name, in steps of 2 ms.
fn stay(awaited: Option<&(OwnedFd, Name)>) {
    let Some((directory, name)) = awaited else { return };
    let began = Instant::now();
    while began.elapsed() < LONGEST_STAY
        && rustix::fs::statat(directory, name.as_c(), AtFlags::SYMLINK_NOFOLLOW).is_err()
    {
        let step = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _ = rustix::thread::nanosleep(&step);
    }
}

fn reply(
    plan: &mut Plan<'_>,
    done: Result<Facts, Errno>,
    payload: usize,
    passed: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let facts = match done {
        Ok(facts) => facts,
        Err(errno) => Facts { errno: errno.raw_os_error() as u64, ..Facts::default() },
    };
    let head = wire::encode(&facts);
    let Some(packet) = plan.answer.get_mut(..HEAD + payload) else { return Err(Errno::INVAL) };
    if let Some(start) = packet.get_mut(..HEAD) {
        start.copy_from_slice(&head);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = passed.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    // The parent may be gone; that must not cause SIGPIPE.
    rustix::net::sendmsg(plan.socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// One request.
struct Call<'c, 'p> {
    plan: (BorrowedFd<'p>, Option<BorrowedFd<'p>>),
    state: &'c mut ChildState,
    answer: &'c mut [u8],
    payload: &'c mut usize,
    passed: &'c mut Option<OwnedFd>,
}

/// The type of /proc (PROC_SUPER_MAGIC, linux/magic.h).
const PROC: u32 = 0x9fa0;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Call<'_, '_> {
    fn make(&mut self, op: u8, rest: &[u8]) -> Result<Facts, Errno> {
        let (root, cwd) = self.plan;
        let first = || CStr::from_bytes_until_nul(rest).map_err(|_| Errno::INVAL);
        let second = || {
            let after = rest.get(first()?.count_bytes() + 1..).ok_or(Errno::INVAL)?;
            CStr::from_bytes_until_nul(after).map_err(|_| Errno::INVAL)
        };
        match Op::of(op).ok_or(Errno::NOSYS)? {
            Op::Enter => self.entered(open(root, first()?)?),
            Op::EnterCwd => self.entered(rustix::io::fcntl_dupfd_cloexec(cwd.ok_or(Errno::NOENT)?, 3)?),
            Op::EnterRoot => self.entered(rustix::io::fcntl_dupfd_cloexec(root, 3)?),
            Op::Step => self.step(first()?),
            Op::AccessList => {
                rustix::process::fchdir(self.directory()?)?;
                let list = self.answer.get_mut(..CHUNK).ok_or(Errno::INVAL)?;
                *self.payload = rustix::fs::lgetxattr(c".", c"system.posix_acl_access", list)?;
                Ok(Facts::default())
            }
            Op::Make => self.make_directory(first()?),
            Op::Stat => {
                let stat = rustix::fs::statat(self.directory()?, first()?, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(Facts::of(&stat))
            }
            Op::Create => self.create(first()?),
            Op::Write => self.write(rest),
            Op::Executable => {
                rustix::fs::fchmod(self.file()?, Mode::RUSR | Mode::XUSR)?;
                self.state.file = None;
                Ok(Facts::default())
            }
            Op::Rename => {
                rustix::fs::renameat(self.directory()?, first()?, self.directory()?, second()?)?;
                self.state.unfinished = None;
                Ok(Facts::default())
            }
            Op::Unlink => {
                rustix::fs::unlinkat(self.directory()?, first()?, AtFlags::empty())?;
                Ok(Facts::default())
            }
            Op::Discard => {
                let (directory, name) = self.state.unfinished.take().ok_or(Errno::NOENT)?;
                rustix::fs::unlinkat(directory, name.as_c(), AtFlags::empty())?;
                Ok(Facts::default())
            }
            Op::Open => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(self.directory()?, first()?, flags, Mode::empty())?;
                let stat = rustix::fs::fstat(&file)?;
                self.state.file = Some(file);
                Ok(Facts::of(&stat))
            }
            Op::Read => {
                let chunk = self.answer.get_mut(..CHUNK).ok_or(Errno::INVAL)?;
                let file = self.state.file.as_ref().ok_or(Errno::BADF)?;
                *self.payload = rustix::io::read(file, chunk)?;
                Ok(Facts::default())
            }
            Op::Touch => self.touch(),
            Op::Stamp => self.stamp(first()?),
            Op::OpenList => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                self.state.file = Some(rustix::fs::openat(self.directory()?, c".", flags, Mode::empty())?);
                Ok(Facts::default())
            }
            Op::List => self.list(),
            Op::Connect => self.connect(first()?),
            Op::Outlive => {
                let directory = rustix::io::fcntl_dupfd_cloexec(self.directory()?, 3)?;
                self.state.awaited = Some((directory, Name::of(first()?).ok_or(Errno::NAMETOOLONG)?));
                Ok(Facts::default())
            }
        }
    }

    fn step(&mut self, name: &CStr) -> Result<Facts, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(self.directory()?, name, flags, Mode::empty())?;
        let facts = Facts::of(&rustix::fs::fstat(&found)?);
        if facts.is(FileType::Directory) {
            return self.entered(found);
        }
        if !facts.is(FileType::Symlink) {
            return Err(Errno::NOTDIR);
        }
        // A link there leads each process to another file, or to files that the child holds open.
        if rustix::fs::fstatfs(&found)?.f_type as u32 == PROC {
            return Err(Errno::LOOP);
        }
        let text = self.answer.get_mut(..CHUNK).ok_or(Errno::INVAL)?;
        *self.payload = rustix::fs::readlinkat_raw(&found, c"", text)?;
        Ok(facts)
    }

    /// Makes a directory, or finds it, and enters it.
    fn make_directory(&mut self, name: &CStr) -> Result<Facts, Errno> {
        match rustix::fs::mkdirat(self.directory()?, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let made = rustix::fs::openat(self.directory()?, name, flags, Mode::empty())?;
        self.entered(made)
    }

    fn create(&mut self, path: &CStr) -> Result<Facts, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::io::fcntl_dupfd_cloexec(self.directory()?, 3)?;
        let name = Name::of(path).ok_or(Errno::NAMETOOLONG)?;
        self.state.file = Some(rustix::fs::openat(&directory, path, flags, Mode::RUSR | Mode::WUSR)?);
        self.state.unfinished = Some((directory, name));
        Ok(Facts::default())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Facts, Errno> {
        let mut left = bytes;
        while !left.is_empty() {
            match rustix::io::write(self.file()?, left) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(written) => left = left.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Facts::default())
    }

    fn touch(&mut self) -> Result<Facts, Errno> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
        rustix::fs::futimens(self.file()?, &Timestamps { last_access: now, last_modification: now })?;
        Ok(Facts::default())
    }

    /// Makes a regular file, or finds it, and sets its times to now.
    fn stamp(&mut self, name: &CStr) -> Result<Facts, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.directory()?, name, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        self.state.file = Some(file);
        self.touch()
    }

    fn connect(&mut self, name: &CStr) -> Result<Facts, Errno> {
        rustix::process::fchdir(self.directory()?)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(name)?)?;
        *self.passed = Some(socket);
        Ok(Facts::default())
    }

    fn directory(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.state.directory.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    fn file(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.state.file.as_ref().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    fn entered(&mut self, directory: OwnedFd) -> Result<Facts, Errno> {
        let mut facts = Facts::of(&rustix::fs::fstat(&directory)?);
        facts.mount = rustix::fs::fstatvfs(&directory)?.f_flag.bits();
        self.state.directory = Some(directory);
        Ok(facts)
    }

    /// Returns as many names as fit into one buffer of the kernel, each with its NUL. An empty answer is the end.
    fn list(&mut self) -> Result<Facts, Errno> {
        let file = self.state.file.as_ref().ok_or(Errno::BADF)?;
        let mut buffer = [MaybeUninit::uninit(); CHUNK / 8];
        let mut entries = RawDir::new(file, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes_with_nul();
            let entry = self.answer.get_mut(*self.payload..*self.payload + name.len()).ok_or(Errno::OVERFLOW)?;
            entry.copy_from_slice(name);
            *self.payload += name.len();
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(Facts::default())
    }
}

/// Opens a path of the target inside its root. The root of this process is the target's if chroot was allowed. Links of
/// /proc, which may lead anywhere, aren't followed.
fn open(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, DIRECTORY, Mode::empty(), within)
}
