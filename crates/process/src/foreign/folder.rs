//! The names in a directory that another user may own, up to a limit.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags};

use super::open;
use super::regular::{self, Why};
use super::{Deadline, resolve};

/// Limit of names read from one directory: its owner may have made millions of cheap entries.
pub(crate) const MOST_NAMES: usize = 1 << 17;

pub struct Folder {
    file: File,
    pub uid: u32,
    /// Device and inode: they identify the directory under any name.
    pub identity: (u64, u64),
    deadline: Deadline,
}

impl Folder {
    /// Opens a path as the observer names it; resolves it like the path of a file (`open`).
    pub fn open(path: &Path, deadline: Deadline) -> Result<Folder, Why> {
        let found = match open::inside_of(path) {
            Some((root, inside)) => resolve::below(&open::directory(&root)?, &inside, true)?,
            None => rustix::fs::openat(CWD, path, resolve::FOUND, Mode::empty())?,
        };
        let found = File::from(found);
        let meta = found.metadata()?;
        if !meta.is_dir() {
            return Err(Why::NotAFile);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(regular::again(&found, flags)?);
        Ok(Folder { file, uid: meta.uid(), identity: (meta.dev(), meta.ino()), deadline })
    }

    /// Up to `MOST_NAMES` names in no order, until the deadline.
    pub fn names(&self) -> Vec<OsString> {
        let Ok(entries) = Dir::read_from(&self.file) else { return Vec::new() };
        let entries = entries.map_while(Result::ok).take(MOST_NAMES).take_while(|_| !self.deadline.has_passed());
        let names = entries.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
        names.filter(|name| name != "." && name != "..").collect()
    }
}
