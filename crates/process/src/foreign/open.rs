//! Opens a path of the target as a regular file, without side effects and without waiting.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::regular::{Regular, Why, again};
use super::{Deadline, FileKind, resolve};

/// A tree of files: a process's (its root and its mounts), or ours.
#[derive(Debug)]
pub struct Root {
    /// `None`: our own tree.
    directory: Option<OwnedFd>,
    deadline: Deadline,
}

/// What a file must be, besides a regular file.
#[derive(Clone, Copy, Debug)]
pub struct Requirements<'a> {
    pub kind: FileKind,
    /// Whether the last component may be a symbolic link; earlier ones always may. No link leads out of a process's
    /// root.
    pub links: bool,
    /// Its possible owners. Root and the caller must be listed to be accepted.
    pub owners: Option<&'a [u32]>,
    /// The inode that the target has mapped. Devices aren't compared, because overlayfs and btrfs report other devices
    /// in maps than in stat(2).
    pub inode: Option<u64>,
}

impl Requirements<'_> {
    pub fn of(kind: FileKind) -> Requirements<'static> {
        Requirements { kind, links: true, owners: None, inode: None }
    }
}

/// Opens a path as the observer names it. A path below `/proc/PID/root` is resolved inside that root, any other in
/// ours.
pub fn open(path: &Path, requirements: Requirements<'_>, deadline: Deadline) -> Result<Regular, Why> {
    match inside_of(path) {
        Some((root, inside)) => Root::at(&root, deadline)?.open(&inside, requirements),
        None => Root::own(deadline).open(path, requirements),
    }
}

/// Splits a path that begins with `/proc/PID/root` into that and the rest.
pub(super) fn inside_of(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut parts = path.components();
    let is = |part: Option<Component<'_>>, name: &str| part.is_some_and(|part| part.as_os_str() == name);
    if parts.next() != Some(Component::RootDir) || !is(parts.next(), "proc") {
        return None;
    }
    let pid = parts.next()?.as_os_str().to_str()?;
    if pid != "self" && pid.parse::<u32>().is_err() {
        return None;
    }
    is(parts.next(), "root").then(|| (PathBuf::from(format!("/proc/{pid}/root")), parts.as_path().to_path_buf()))
}

impl Root {
    /// The root of this process.
    pub fn own(deadline: Deadline) -> Root {
        Root { directory: None, deadline }
    }

    /// `path` must be the kernel's link to a root: `/proc/PID/root`.
    pub fn at(path: &Path, deadline: Deadline) -> Result<Root, Why> {
        Ok(Root { directory: Some(directory(path)?), deadline })
    }

    /// The root of the process whose directory in /proc this is.
    pub fn of_process(process: &OwnedFd, deadline: Deadline) -> Result<Root, Why> {
        Ok(Root { directory: Some(rustix::fs::openat(process, "root", ROOT, Mode::empty())?), deadline })
    }

    pub fn open(&self, path: &Path, requirements: Requirements<'_>) -> Result<Regular, Why> {
        self.in_time()?;
        let found = match &self.directory {
            Some(root) => resolve::below(root, path, requirements.links)?,
            None => resolve::in_our_root(path, requirements.links)?,
        };
        regular(found, path, requirements, self.deadline)
    }

    fn in_time(&self) -> Result<(), Why> {
        if self.deadline.has_passed() { Err(Why::Late) } else { Ok(()) }
    }
}

/// Opens the target of a kernel link in a process's directory in /proc: `exe`, or `map_files/START-END` (needs
/// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN). It leads to the inode itself, whatever mount it lies in and whatever its
/// current name is.
pub fn linked(
    process: &OwnedFd,
    link: &str,
    requirements: Requirements<'_>,
    deadline: Deadline,
) -> Result<Regular, Why> {
    let found = rustix::fs::openat(process, link, resolve::FOUND, Mode::empty())?;
    regular(found, Path::new(link), requirements, deadline)
}

pub(super) fn directory(path: &Path) -> Result<OwnedFd, Why> {
    Ok(rustix::fs::open(path, ROOT, Mode::empty())?)
}

const ROOT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Checks the inode and opens it. O_PATH had no side effect; a FIFO, a device or a directory is refused here.
pub(super) fn regular(
    found: OwnedFd,
    path: &Path,
    requirements: Requirements<'_>,
    deadline: Deadline,
) -> Result<Regular, Why> {
    let found = File::from(found);
    let meta = found.metadata().map_err(Why::Io)?;
    if !meta.is_file() {
        return Err(Why::NotAFile);
    }
    if requirements.owners.is_some_and(|owners| !owners.contains(&meta.uid())) {
        return Err(Why::Owner(meta.uid()));
    }
    if requirements.inode.is_some_and(|inode| !is_inode(meta.ino(), inode)) {
        return Err(Why::Replaced);
    }
    // Non-blocking: the holder of a lease could delay a plain open by 45 s (fcntl(2), F_SETLEASE).
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(again(&found, flags)?);
    Ok(Regular::new(file, path.to_path_buf(), meta, requirements.kind, deadline))
}

/// overlayfs with `xino` puts the layer's number into the upper bits of an inode number, and kernels before 6.8 omit it
/// in maps.
fn is_inode(found: u64, mapped: u64) -> bool {
    const LOW: u64 = (1 << 48) - 1;
    found == mapped || (mapped <= LOW && found > LOW && found & LOW == mapped)
}
