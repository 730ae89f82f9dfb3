//! Resolves a path inside a root. No link and no `..` leads out of it, and kernel links (/proc/PID/fd/3) aren't
//! followed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Only locates the file, without opening it: no FIFO waits and no device acts.
pub(crate) const FOUND: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A rename elsewhere in the tree makes `..` ambiguous for the kernel for a moment (openat2(2), EAGAIN).
const TRIES: usize = 32;
/// path_resolution(7)
pub(super) const MOST_LINKS: usize = 40;

/// `links`: whether the last component may be a symbolic link.
pub(crate) fn below(root: &OwnedFd, path: &Path, links: bool) -> Result<OwnedFd, Errno> {
    let plain = path.strip_prefix("/").unwrap_or(path);
    let plain = if plain.as_os_str().is_empty() { Path::new(".") } else { plain };
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(root, plain, FOUND | last(links), Mode::empty(), within) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Before Linux 5.6, or under a system call filter that doesn't know it.
            Err(Errno::NOSYS | Errno::PERM) => return walk(root, plain, links),
            found => return without_link(found?, links),
        }
    }
    Err(Errno::AGAIN)
}

/// Finds a path in our own tree.
pub(crate) fn in_our_root(path: &Path, links: bool) -> Result<OwnedFd, Errno> {
    without_link(rustix::fs::openat(CWD, path, FOUND | last(links), Mode::empty())?, links)
}

fn last(links: bool) -> OFlags {
    if links { OFlags::empty() } else { OFlags::NOFOLLOW }
}

/// With O_PATH, O_NOFOLLOW finds the link itself.
fn without_link(found: OwnedFd, links: bool) -> Result<OwnedFd, Errno> {
    if !links && is_link(&found)? { Err(Errno::LOOP) } else { Ok(found) }
}

fn is_link(found: &OwnedFd) -> Result<bool, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode) == FileType::Symlink)
}

/// Like openat2, component by component with O_NOFOLLOW. It reads links itself, so that the kernel follows none.
pub(crate) fn walk(root: &OwnedFd, path: &Path, links: bool) -> Result<OwnedFd, Errno> {
    let again = |of: &OwnedFd| rustix::fs::openat(of, ".", FOUND | OFlags::DIRECTORY, Mode::empty());
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut here = again(root)?;
    let mut rest = parts(path);
    let mut followed = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            again(&here)?; // ENOTDIR below a file, as the kernel has it
            // The parent of the root is the root.
            here = above.pop().map_or_else(|| again(root), Ok)?;
            continue;
        }
        let found = rustix::fs::openat(&here, &part, FOUND | OFlags::NOFOLLOW, Mode::empty())?;
        if !is_link(&found)? {
            above.push(std::mem::replace(&mut here, found));
            continue;
        }
        followed += 1;
        if (!links && rest.is_empty()) || followed > MOST_LINKS {
            return Err(Errno::LOOP);
        }
        let to = OsString::from_vec(rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes());
        if to.as_encoded_bytes().starts_with(b"/") {
            above.clear();
            here = again(root)?;
        }
        let mut onward = parts(Path::new(&to));
        onward.append(&mut rest);
        rest = onward;
    }
    Ok(here)
}

/// The names in a path, and `..`.
pub(super) fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}
