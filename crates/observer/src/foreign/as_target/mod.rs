//! Writes on the target's side with the target's own rights.
//!
//! ```text
//! observer ── clone ─▶ child: chroot(/proc/PID/root), no_new_privs, groups, gid, uid, no capability
//!    │   one packet for each system call        │
//!    └──────────── socketpair ──────────────────┘   results, errno, descriptors (SCM_RIGHTS)
//! ```
//! Whatever another user's process has to find in its file system is made by such a child. The kernel then checks what that user may
//! do, in that root and those mounts, and what is made belongs to that user from the start: nothing is ever given away, and a link, a
//! mount or an exchanged directory leads only where the user could go anyway. Decisions stay here, in the parent; the child knows
//! nothing but system calls (`child.rs`).
//!
//! - **Who the target is** comes from /proc/PID/status through a handle that a reused PID can't redirect, read before and after its
//!   root is opened. A process whose real, effective, saved and file-system ids differ is refused: it is a set-user-ID program, whose
//!   environment and directory are chosen by somebody else than the user whose rights it has.
//! - **A user namespace** makes no difference: the ids are the host's, and the child has no capability in any namespace. It may do
//!   less there than the target, never more.
//! - **The child may hang**, for the target's file system may be one that the target serves itself (FUSE). So every request has the
//!   rest of one deadline; after it the child is killed, and all further requests fail.
//! - **The target's user may signal the child** and no more: it is not dumpable, so nobody but root may trace it or look into its
//!   memory, which is a copy of ours. A kill is an error of the request. The child holds the socket, the root and the working directory.
//! - **A killed parent** leaves nothing: the child sees the socket's end, removes what is unfinished and ends. An attach request stays
//!   until the VM has read it, or for ten seconds (`outlive`).

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
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use rustix::process::Gid;
use rustix::thread::CapabilitySet;

use super::Deadline;
use super::Target;

mod child;
mod wire;

pub use wire::Facts;
use wire::{CHUNK, HEAD, Op, Step};

/// Names of a directory that are looked at; more are somebody's joke.
const MOST_NAMES: usize = 20_000;

/// Whom a process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    groups: Vec<u32>,
}

/// Why nobody can act as the target.
#[derive(Debug)]
pub enum Refused {
    Gone,
    /// Real, effective, saved and file-system ids aren't all the same.
    Mixed,
    /// A user that we can't become; what that takes and we don't have.
    NotAllowed(u32, &'static str),
    /// A user or group without a number in our user namespace.
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
    /// Of /proc/PID/status.
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

    /// Whether the caller is that user.
    fn is_own(&self) -> bool {
        let (real, effective) = (rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw());
        self.uid == real && self.uid == effective
    }
}

/// What keeps us from becoming another user.
fn missing_to_become() -> &'static str {
    let effective = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    match (effective.contains(CapabilitySet::SETUID), effective.contains(CapabilitySet::SETGID)) {
        (false, false) => "CAP_SETUID and CAP_SETGID are",
        (false, true) => "CAP_SETUID is",
        (true, false) => "CAP_SETGID is",
        // A user namespace may forbid setgroups(2), and a security module either.
        (true, true) => "the leave of this user namespace or of a security module is",
    }
}

/// A child that is the target's user, in the target's root.
pub struct AsTarget {
    socket: OwnedFd,
    child: i32,
    user: User,
    /// For the requests under way, and for all that the command asks of the target.
    deadline: Deadline,
    command: Deadline,
    /// Nothing more is to be expected of the child.
    over: bool,
}

impl AsTarget {
    /// `limit`: for all requests together, if the target's deadline isn't sooner.
    pub fn start(target: &Target, limit: Duration) -> Result<AsTarget, Refused> {
        let user = User::of(target)?;
        let failed = |what| move |error: io::Error| Refused::Failed(what, error);
        let root = target.handle("root").map_err(failed("its root can't be opened"))?;
        // Only a fallback: where it can't be opened, requests that need it fail.
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
        // What is unfinished at the command's deadline is still removed.
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

    /// Enters a directory, given as the target sees it.
    pub fn enter(&mut self, directory: &Path) -> io::Result<Facts> {
        self.request(Op::Enter, &[directory.as_os_str()])
    }

    pub fn enter_cwd(&mut self) -> io::Result<Facts> {
        self.request(Op::EnterCwd, &[])
    }

    /// Enters a directory of the one entered, made (0700) if it isn't there.
    pub fn make(&mut self, name: &OsStr) -> io::Result<Facts> {
        self.request(Op::Make, &[name])
    }

    pub fn stat(&mut self, name: &str) -> io::Result<Facts> {
        self.request(Op::Stat, &[name.as_ref()])
    }

    /// A new and empty file (0600) that nobody had made before. It goes when this is dropped, or we are killed, unless it is renamed.
    pub fn create(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Create, &[name.as_ref()]).map(drop)
    }

    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.request(Op::Rename, &[from.as_ref(), to.as_ref()]).map(drop)
    }

    pub fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Unlink, &[name.as_ref()]).map(drop)
    }

    /// Removes what `create` made.
    pub fn discard(&mut self) -> io::Result<()> {
        self.request(Op::Discard, &[]).map(drop)
    }

    /// If this process is killed, the file that `create` makes stays until `name` exists in the directory entered now. A VM that was
    /// sent SIGQUIT and finds no attach request prints all its threads into the program's output.
    pub fn outlive(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Outlive, &[name.as_ref()]).map(drop)
    }

    /// The command's deadline has moved.
    pub fn extend(&mut self, command: Deadline) {
        self.command = command.later(GRACE);
    }

    /// What is left for all requests from now on.
    pub fn allow(&mut self, limit: Duration) {
        self.deadline = self.command.sooner(limit);
    }

    /// A file with these bytes and mode 0500 under `name`, in one step for whoever looks; `aside` is its name until then.
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

    /// Whether a regular file of the target's user has these bytes; then it is touched, if it is old as `is_old` has it.
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

    /// Makes a file, if there is none, and touches it.
    pub fn stamp(&mut self, name: &str) -> io::Result<()> {
        self.request(Op::Stamp, &[name.as_ref()]).map(drop)
    }

    /// The names in the directory, without those that aren't UTF-8.
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

    /// Connects to a socket in the directory, as the target's user: its listener sees that user. Without waiting.
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
        // What the child itself answers comes below; this is a child that doesn't.
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
            // Less than a microsecond would mean no limit.
            let left = left.max(Duration::from_millis(1));
            set_socket_timeout(&self.socket, Timeout::Recv, Some(left))?;
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message.bytes,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
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

    /// No request is answered any more.
    fn end(&mut self) {
        self.over = true;
        child::kill(self.child);
    }
}

impl Drop for AsTarget {
    /// The child has a moment to remove what is unfinished. One that hangs in a file system, where not even SIGKILL reaches it, is
    /// not waited for.
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

/// For the child to end by itself, and again for it to be killed.
const GRACE: Duration = Duration::from_millis(500);

/// Names, each with its NUL.
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
