//! Writes on the target's side, with the target's own rights.
//!
//! ```text
//! observer ── clone ─▶ child: chroot(/proc/PID/root), no_new_privs, groups, gid, uid, no capability
//!    │   one packet for each system call        │
//!    └──────────── socketpair ──────────────────┘   results, errno, descriptors (SCM_RIGHTS)
//! ```
//! Such a child makes everything that another user's process must find in its file system. So the kernel checks what
//! that user may do, in that root and those mounts, and new files belong to that user from the start. No file ever
//! changes its owner, and a link, a mount or an exchanged directory leads only where the user could go anyway.
//! Decisions are made here, in the parent; the child only makes system calls (`child.rs`).
//!
//! - **Who the target is** comes from /proc/PID/status through a handle that a reused PID can't redirect. It is read
//!   before and after the root is opened. A process whose real, effective, saved and file-system ids differ is refused:
//!   it is a set-user-ID program. It has the rights of one user, but another user chooses its environment and
//!   directory.
//! - **A user namespace** makes no difference: the ids are the host's, and the child has no capability in any
//!   namespace. It may do less there than the target, never more.
//! - **The child may hang**, because the target may serve its file system itself (FUSE). So every request gets the rest
//!   of one deadline. After the deadline, the child is killed, and all further requests fail.
//! - **The target's user may signal the child**, but no more: the child isn't dumpable, so only root may trace it or
//!   read its memory, which is a copy of ours. If the child is killed, the request fails. The child holds only the
//!   socket, the root and the working directory.
//! - **A killed parent** leaves nothing behind: the child sees the end of the socket, removes unfinished files and
//!   ends. An attach request stays until the VM has read it, or for ten seconds (`outlive`).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use rustix::process::Gid;
use rustix::thread::CapabilitySet;

use super::Deadline;
use super::Target;

mod child;
mod walk;
mod wire;

pub use wire::Facts;
use wire::{CHUNK, HEAD, Op, Step};

/// Limit of names read from a directory; more can only be an attack.
const MOST_NAMES: usize = 20_000;

/// The user of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    groups: Vec<u32>,
}

/// Why we can't act as the target.
#[derive(Debug)]
pub enum Refused {
    Gone,
    /// The real, effective, saved and file-system ids differ.
    Mixed,
    /// A user that we can't become, and the right that we lack.
    NotAllowed(u32, &'static str),
    /// A user or group without an id in our user namespace.
    Unmapped(u32),
    Failed(&'static str, io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Gone => write!(f, "it has ended"),
            Refused::Mixed => write!(f, "it is a set-user-ID program: its real and effective users or groups differ"),
            Refused::NotAllowed(uid, missing) => {
                write!(f, "{missing} missing, and only that or user {uid} itself may act as its user {uid}")
            }
            Refused::Unmapped(uid) => {
                write!(f, "its user {uid} or one of its groups is not mapped in this user namespace")
            }
            Refused::Failed(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl User {
    /// Parses /proc/PID/status.
    fn parse(status: &str) -> Option<Result<User, Refused>> {
        let ids = |key: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().map(|word| word.parse().ok()).collect()
        };
        let (uids, gids, groups) = (ids("Uid:")?, ids("Gid:")?, ids("Groups:")?);
        let one = |ids: &[u32]| ids.first().copied().filter(|id| ids.len() == 4 && ids.iter().all(|other| other == id));
        Some(match (one(&uids), one(&gids)) {
            (Some(uid), Some(gid)) => Ok(User { uid, gid, groups }),
            _ => Err(Refused::Mixed),
        })
    }

    pub fn of(target: &Target) -> Result<User, Refused> {
        let status = target.read("status").map_err(|_| Refused::Gone)?;
        User::parse(&String::from_utf8_lossy(&status)).ok_or(Refused::Gone)?
    }

    /// Whether the caller has that user.
    fn is_own(&self) -> bool {
        let (real, effective) = (rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw());
        self.uid == real && self.uid == effective
    }
}

/// The right that we lack to become another user.
fn missing_to_become() -> &'static str {
    let effective = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    match (effective.contains(CapabilitySet::SETUID), effective.contains(CapabilitySet::SETGID)) {
        (false, false) => "CAP_SETUID and CAP_SETGID are",
        (false, true) => "CAP_SETUID is",
        (true, false) => "CAP_SETGID is",
        // A user namespace may forbid setgroups(2), and so may a security module.
        (true, true) => "the permission of this user namespace or of a security module is",
    }
}

/// A child process with the target's user in the target's root.
pub struct AsTarget {
    socket: OwnedFd,
    child: i32,
    user: User,
    /// Deadline for the current requests, and for all that the command does with the target.
    deadline: Deadline,
    command: Deadline,
    /// Whether the child must not be used any more.
    over: bool,
}

impl AsTarget {
    /// `limit` applies to all requests together, unless the target's deadline is earlier.
    pub fn start(target: &Target, limit: Duration) -> Result<AsTarget, Refused> {
        let user = User::of(target)?;
        let failed = |what| move |error: io::Error| Refused::Failed(what, error);
        let root = target.handle("root").map_err(failed("its root can't be opened"))?;
        // Only a fallback: if it can't be opened, requests that need it fail.
        let cwd = target.handle("cwd").ok();
        if User::of(target)? != user {
            return Err(Refused::Mixed);
        }
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| failed("a pair of sockets")(e.into()))?;
        let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (mut request, mut answer) = (vec![0; HEAD + CHUNK], vec![0; HEAD + CHUNK]);
        let mut plan = child::Plan {
            socket: theirs.as_fd(),
            root: root.as_fd(),
            cwd: cwd.as_ref().map(AsFd::as_fd),
            uid: user.uid,
            gid: user.gid,
            groups: &groups,
            is_own: user.is_own(),
            request: &mut request,
            answer: &mut answer,
        };
        let child = child::fork(&mut plan).map_err(failed("a process can't be made"))?;
        drop(theirs);
        let uid = user.uid;
        // Unfinished files can still be removed after the command's deadline.
        let command = target.deadline().later(GRACE);
        let deadline = command.sooner(limit);
        let mut made = AsTarget { socket, child, user, deadline, command, over: false };
        let (facts, ..) = made.receive().map_err(failed("the child that acts as its user"))?;
        if facts.errno == 0 {
            return Ok(made);
        }
        let error = io::Error::from_raw_os_error(facts.errno as i32);
        Err(match (Step::of(facts.step as u8), error.kind()) {
            (Some(Step::User | Step::Groups), io::ErrorKind::PermissionDenied) => {
                Refused::NotAllowed(uid, missing_to_become())
            }
            (Some(Step::User | Step::Groups), io::ErrorKind::InvalidInput) => Refused::Unmapped(uid),
            (Some(Step::Root), _) => Refused::Failed("its root can't be entered", error),
            _ => Refused::Failed("rights that its user doesn't have can't be given up", error),
        })
    }

    pub fn user(&self) -> &User {
        &self.user
    }

    /// Enters a directory; the path is as the target sees it.
    pub fn enter(&mut self, directory: &Path) -> io::Result<Facts> {
        match self.request(Op::Enter, &[directory.as_os_str()]) {
            // Before Linux 5.6, or under a system call filter that doesn't know openat2.
            Err(error) if is_one_of(&error, [Errno::NOSYS, Errno::PERM]) => self.walk(directory, None),
            entered => entered,
        }
    }

    pub fn enter_cwd(&mut self) -> io::Result<Facts> {
        self.request(Op::EnterCwd, &[])
    }

    /// Enters a subdirectory of the current directory; makes it (0700) if it is missing.
    pub fn make(&mut self, name: &OsStr) -> io::Result<Facts> {
        self.request(Op::Make, &[name])
    }

    pub fn stat(&mut self, name: &str) -> io::Result<Facts> {
        self.request(Op::Stat, &[name.as_ref()])
    }

    /// Makes a new, empty file (0600) that didn't exist. It is removed when this is dropped or we are killed, unless it
    /// is renamed.
    pub fn create(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Create, &[name.as_ref()]).map(drop)
    }

    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.request(Op::Rename, &[from.as_ref(), to.as_ref()]).map(drop)
    }

    pub fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Unlink, &[name.as_ref()]).map(drop)
    }

    /// Removes the file that `create` made.
    pub fn discard(&mut self) -> io::Result<()> {
        self.request(Op::Discard, &[]).map(drop)
    }

    /// If this process is killed, the file that `create` makes next stays until `name` exists in the current directory.
    /// Reason: a VM that gets SIGQUIT and finds no attach request prints all its threads into the program's output.
    pub fn outlive(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Outlive, &[name.as_ref()]).map(drop)
    }

    /// Moves the command's deadline.
    pub fn extend(&mut self, command: Deadline) {
        self.command = command.later(GRACE);
    }

    /// Sets the time limit for all further requests.
    pub fn allow(&mut self, limit: Duration) {
        self.deadline = self.command.sooner(limit);
    }

    /// Writes a file with these bytes and mode 0500 under `name`, which appears complete in one step. Until then its
    /// name is `aside`.
    pub fn write_whole(&mut self, aside: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.create(aside)?;
        let mut write = || -> io::Result<()> {
            for chunk in bytes.chunks(CHUNK) {
                self.packet(Op::Write, chunk)?;
            }
            self.request(Op::Executable, &[])?;
            self.rename(aside, name)
        };
        let written = write();
        if written.is_err() {
            let _ = self.discard();
        }
        written
    }

    /// Whether a regular file of the target's user has these bytes. If so, and if `is_old` says that it is old, it is
    /// touched.
    pub fn holds(&mut self, name: &str, bytes: &[u8], is_old: impl Fn(&Facts) -> bool) -> io::Result<bool> {
        let facts = self.request(Op::Open, &[name.as_ref()])?;
        if !facts.is(FileType::RegularFile) || facts.uid != u64::from(self.user.uid) || facts.size != bytes.len() as u64
        {
            return Ok(false);
        }
        let mut left = bytes;
        loop {
            let (_, found, _) = self.packet(Op::Read, &[])?;
            match left.strip_prefix(&*found) {
                Some(_) if found.is_empty() => break,
                Some(rest) => left = rest,
                None => return Ok(false),
            }
        }
        if left.is_empty() && is_old(&facts) {
            let _ = self.request(Op::Touch, &[]);
        }
        Ok(left.is_empty())
    }

    /// Makes a file if it doesn't exist, and touches it.
    pub fn stamp(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Stamp, &[name.as_ref()]).map(drop)
    }

    /// The names in the directory, except those that aren't UTF-8.
    pub fn names(&mut self) -> io::Result<Vec<String>> {
        self.request(Op::OpenList, &[])?;
        let mut names = Vec::new();
        loop {
            let (_, found, _) = self.packet(Op::List, &[])?;
            if found.is_empty() || names.len() > MOST_NAMES {
                return Ok(names);
            }
            let found = found.split(|b| *b == 0).filter(|name| !matches!(*name, b"" | b"." | b".."));
            names.extend(found.filter_map(|name| std::str::from_utf8(name).ok().map(String::from)));
        }
    }

    /// Connects to a socket in the directory as the target's user, whom the listener sees. Doesn't wait.
    pub fn connect(&mut self, name: &str) -> io::Result<UnixStream> {
        let bytes = packed(&[name.as_ref()])?;
        let (_, _, socket) = self.packet(Op::Connect, &bytes)?;
        let stream = UnixStream::from(socket.ok_or(io::ErrorKind::InvalidData)?);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    fn request(&mut self, op: Op, names: &[&OsStr]) -> io::Result<Facts> {
        let bytes = packed(names)?;
        self.packet(op, &bytes).map(|(facts, ..)| facts)
    }

    fn packet(&mut self, op: Op, bytes: &[u8]) -> io::Result<(Facts, Vec<u8>, Option<OwnedFd>)> {
        if self.over {
            return Err(io::Error::other("the child that acts as its user is gone"));
        }
        let packet = [&[op as u8], bytes].concat();
        let sent = rustix::net::send(&self.socket, &packet, SendFlags::NOSIGNAL);
        let answer = sent.map_err(io::Error::from).and_then(|_| self.receive());
        // The child's own errors are handled below; here, the child did not answer.
        let (facts, found, passed) = answer.inspect_err(|_| self.end())?;
        match facts.errno {
            0 => Ok((facts, found, passed)),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    fn receive(&mut self) -> io::Result<(Facts, Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = vec![0; HEAD + CHUNK];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let length = loop {
            let left = self.deadline.left();
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            // A timeout below a microsecond would mean no timeout.
            let left = left.max(Duration::from_millis(1));
            set_socket_timeout(&self.socket, Timeout::Recv, Some(left))?;
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message.bytes,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let passed = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        bytes.truncate(length);
        let facts = wire::decode(&bytes).ok_or_else(|| io::Error::other("it was killed"))?;
        Ok((facts, bytes.split_off(HEAD), passed))
    }

    /// Ends the child; no further request is answered.
    fn end(&mut self) {
        self.over = true;
        child::kill(self.child);
    }
}

impl Drop for AsTarget {
    /// Gives the child a moment to remove unfinished files. Doesn't wait for a child that hangs in a file system, where
    /// even SIGKILL has no effect.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let began = Instant::now();
        let mut pause = Duration::from_micros(50);
        while !child::reap(self.child) {
            match began.elapsed() {
                waited if waited > GRACE * 2 => return,
                waited if waited > GRACE => child::kill(self.child),
                _ => {}
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

/// Time for the child to end by itself, and again after it was killed.
const GRACE: Duration = Duration::from_millis(500);

fn is_one_of(error: &io::Error, errnos: [Errno; 2]) -> bool {
    error.raw_os_error().is_some_and(|number| errnos.iter().any(|errno| errno.raw_os_error() == number))
}

/// The names, each with its NUL.
fn packed(names: &[&OsStr]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for name in names {
        if name.as_bytes().contains(&0) || name.len() > 4096 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_one_user() {
        let status = |uid: &str, gid: &str| format!("Name:\tjava\nUid:\t{uid}\nGid:\t{gid}\nGroups:\t4 27 \n");
        let plain = User::parse(&status("1000\t1000\t1000\t1000", "100\t100\t100\t100"));
        let expected = User { uid: 1000, gid: 100, groups: vec![4, 27] };
        assert!(matches!(plain, Some(Ok(user)) if user == expected));
        for (uid, gid) in [
            ("1000\t0\t0\t0", "100\t100\t100\t100"),
            ("0\t0\t1000\t0", "100\t100\t100\t100"),
            ("1000\t1000\t1000\t1000", "100\t0\t0\t0"),
        ] {
            assert!(matches!(User::parse(&status(uid, gid)), Some(Err(Refused::Mixed))), "{uid} {gid}");
        }
        for status in ["", "Uid:\t1\t1\t1\t1\n", &status("-1\t1\t1\t1", "1\t1\t1\t1")] {
            assert!(User::parse(status).is_none(), "{status}");
        }
    }

    #[test]
    fn a_name_can_t_end_early() {
        assert!(packed(&[OsStr::new("a\0b")]).is_err());
        assert_eq!(packed(&[OsStr::new("a"), OsStr::new("b")]).expect("names"), b"a\0b\0");
    }
}
