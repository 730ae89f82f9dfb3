//! A regular file that another user may own, open for reading within limits.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::file_kind::HOLES;
use super::{Deadline, FileKind, lock};

/// Why a file wasn't read. Displays as the end of a sentence that begins with the file.
#[derive(Debug)]
pub enum Why {
    Io(io::Error),
    /// A directory, a FIFO, a device or a socket.
    NotAFile,
    /// It belongs to another user than expected.
    Owner(u32),
    /// Its inode differs from the mapped one.
    Replaced,
    /// It is larger than the limit for its kind.
    TooLarge(u64),
    /// It has holes that no tool leaves in such a file.
    Sparse,
    /// The command's deadline has passed.
    Late,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Io(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                write!(f, "is a symbolic link, which plimsoll doesn't follow here, or one that leads back to itself")
            }
            Why::Io(error) => write!(f, "can't be read: {error}"),
            Why::NotAFile => write!(f, "is not a regular file"),
            Why::Owner(uid) => write!(f, "belongs to user {uid}"),
            Why::Replaced => write!(f, "was replaced since it was mapped"),
            Why::TooLarge(cap) => write!(f, "is larger than {} MiB, more than is read of such a file", cap >> 20),
            Why::Sparse => write!(f, "has holes of more than {} MiB", HOLES >> 20),
            Why::Late => write!(f, "was not read in time"),
        }
    }
}

impl std::error::Error for Why {}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Why {
        Why::Io(error)
    }
}

impl From<Errno> for Why {
    fn from(error: Errno) -> Why {
        Why::Io(error.into())
    }
}

/// Bytes per read: the deadline is checked between reads, and a slow file system delays each.
const STEP: usize = 256 << 10;

/// Types of file systems (linux/magic.h).
const CGROUP: u32 = 0x0027_e0eb;
const CGROUP2: u32 = 0x6367_7270;
const FUSE: u32 = 0x6573_5546;

#[derive(Debug)]
pub struct Regular {
    file: File,
    path: PathBuf,
    meta: Metadata,
    kind: FileKind,
    deadline: Deadline,
}

impl Regular {
    pub(super) fn new(file: File, path: PathBuf, meta: Metadata, kind: FileKind, deadline: Deadline) -> Regular {
        Regular { file, path, meta, kind, deadline }
    }

    /// The path that was requested.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata at the time of opening.
    pub fn meta(&self) -> &Metadata {
        &self.meta
    }

    /// Whether somebody else has a lock of the file. `None`: the file system has no locks.
    pub fn is_locked(&self) -> Option<bool> {
        lock::is_locked(&self.file)
    }

    /// Maximum number of bytes that are read.
    pub fn cap(&self) -> u64 {
        let uid = self.meta.uid();
        self.kind.cap(uid == 0 || uid == rustix::process::geteuid().as_raw())
    }

    /// Reads the whole file.
    pub fn read(&self) -> Result<Vec<u8>, Why> {
        let cap = self.cap();
        let length = self.file.metadata()?.len();
        if length > cap {
            return Err(Why::TooLarge(cap));
        }
        self.few_holes(0, length, HOLES)?;
        let mut bytes = Vec::new();
        loop {
            let have = bytes.len();
            // It may have grown since, or its length may be unknown.
            let wanted = (length as usize).saturating_sub(have).clamp(4096, STEP);
            bytes.resize(have + wanted, 0);
            let count = self.at(have as u64, &mut bytes[have..])?;
            bytes.truncate(have + count);
            match count {
                0 => return Ok(bytes),
                _ if bytes.len() as u64 > cap => return Err(Why::TooLarge(cap)),
                _ => {}
            }
        }
    }

    /// Reads the whole file as text.
    pub fn text(&self) -> Result<String, Why> {
        String::from_utf8(self.read()?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no UTF-8").into())
    }

    /// The first bytes; fewer only if the file ends.
    pub fn head(&self, most: u64) -> Result<Vec<u8>, Why> {
        let length = self.file.metadata()?.len().min(most);
        self.few_holes(0, length, HOLES)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let count = self.at(0, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Reads as much of `into` as the file has. The caller bounds `into`.
    pub fn at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Why> {
        let mut have = 0;
        while have < into.len() {
            if self.deadline.has_passed() {
                return Err(Why::Late);
            }
            let end = into.len().min(have + STEP);
            match self.file.read_at(&mut into[have..end], offset.saturating_add(have as u64)) {
                Ok(0) => break,
                Ok(count) => have += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Why::Io(error)),
            }
        }
        Ok(have)
    }

    /// Passes the whole file to `piece`, in order, without keeping it.
    pub fn each(&self, mut piece: impl FnMut(&[u8])) -> Result<(), Why> {
        let length = self.file.metadata()?.len();
        if length > self.cap() {
            return Err(Why::TooLarge(self.cap()));
        }
        self.few_holes(0, length, HOLES)?;
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        while at < length {
            match self.at(at, &mut buffer)? {
                0 => break,
                count => {
                    piece(&buffer[..count]);
                    at += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Offset of the next bytes outside a hole. `None` if there are none.
    pub fn data_from(&self, offset: u64) -> Option<u64> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => Some(data),
            Err(Errno::NXIO) => None,
            // A file system that can't answer: treat everything as data.
            Err(_) => Some(offset),
        }
    }

    /// Whether an unprivileged user serves this file system and so can invent owners, times and inodes. A file system
    /// of unknown type counts as one, because the server also answers that query.
    pub fn is_made_up(&self) -> bool {
        self.is_on(&[FUSE]).unwrap_or(true)
    }

    /// Whether it lies in the kernel's cgroup file system, not in something mounted over it.
    pub(crate) fn is_of_cgroups(&self) -> bool {
        self.is_on(&[CGROUP, CGROUP2]).unwrap_or(false)
    }

    fn is_on(&self, types: &[u32]) -> Option<bool> {
        rustix::fs::fstatfs(&self.file).ok().map(|system| types.contains(&(system.f_type as u32)))
    }

    /// An identity that nobody can give to another file, because only the kernel sets the time of the last change.
    /// `None` if the file system invents it.
    pub fn identity(&self) -> Option<String> {
        let m = &self.meta;
        let changed = format!("{:x}.{:x}", m.ctime(), m.ctime_nsec());
        (!self.is_made_up()).then(|| format!("{:x}-{:x}-{:x}-{changed}", m.dev(), m.ino(), m.len()))
    }

    /// Opens the same inode for writing too. The caller must have checked that the target may write to it.
    pub fn writable(&self) -> Result<File, Why> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(File::from(again(&self.file, flags)?))
    }

    /// The bytes of holes between two offsets, if there are at most `most`.
    pub(super) fn few_holes(&self, start: u64, end: u64, most: u64) -> Result<u64, Why> {
        few_holes(start, end, most, self.deadline, |to| rustix::fs::seek(&self.file, to).ok())
    }
}

/// `seek` finds the next hole or data. A file system that can't answer reports everything as data. A file system that
/// another user's program serves (FUSE) may answer with any offset. So each step goes on by a byte at least, until the
/// deadline.
fn few_holes(
    start: u64,
    end: u64,
    most: u64,
    deadline: Deadline,
    seek: impl Fn(SeekFrom) -> Option<u64>,
) -> Result<u64, Why> {
    let (mut at, mut holes) = (start, 0);
    while at < end {
        if deadline.has_passed() {
            return Err(Why::Late);
        }
        let hole = seek(SeekFrom::Hole(at)).unwrap_or(end).clamp(at, end);
        if hole == end {
            break;
        }
        // A hole may have been filled between the two calls.
        let data = seek(SeekFrom::Data(hole)).unwrap_or(end).clamp(hole, end);
        holes += data - hole;
        if holes > most {
            return Err(Why::Sparse);
        }
        at = data.max(hole + 1);
    }
    Ok(holes)
}

/// Opens the same inode again, without walking a path.
pub(super) fn again(of: &File, flags: OFlags) -> io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", of.as_raw_fd());
    rustix::fs::open(link, flags, Mode::empty()).map_err(|error| match error {
        // The descriptor is ours and open: only the link to it can be missing.
        Errno::NOENT => io::Error::other("/proc is not mounted here"),
        error => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Answers as a file with these `holes` does. Each hole is a start and an end.
    fn of(holes: &'static [(u64, u64)]) -> impl Fn(SeekFrom) -> Option<u64> {
        move |to| match to {
            SeekFrom::Hole(at) => holes.iter().find(|(_, end)| at < *end).map(|(start, _)| at.max(*start)),
            SeekFrom::Data(at) => {
                let within = holes.iter().find(|(start, end)| (*start..*end).contains(&at));
                Some(within.map_or(at, |(_, end)| *end))
            }
            _ => None,
        }
    }

    #[test]
    fn holes_are_counted_up_to_a_limit() {
        let soon = Deadline::after(Duration::from_secs(60));
        assert_eq!(few_holes(0, 100, 50, soon, of(&[])).unwrap(), 0);
        assert_eq!(few_holes(0, 100, 50, soon, of(&[(0, 10), (20, 30), (90, 200)])).unwrap(), 30);
        assert_eq!(few_holes(5, 25, 50, soon, of(&[(0, 10), (20, 30)])).unwrap(), 10);
        assert!(matches!(few_holes(0, 100, 50, soon, of(&[(0, 60)])), Err(Why::Sparse)));
        assert_eq!(few_holes(0, 100, 50, soon, |_| None).unwrap(), 0);
    }

    /// A program of another user serves the file: it may answer anything, as often as it is called.
    #[test]
    fn a_file_system_that_answers_with_what_lies_behind_is_not_asked_for_ever() {
        let still = |to| match to {
            SeekFrom::Hole(at) | SeekFrom::Data(at) => Some(at),
            _ => None,
        };
        let back = |to| match to {
            SeekFrom::Hole(at) => Some(at),
            _ => Some(0),
        };
        let soon = Deadline::after(Duration::from_secs(60));
        assert_eq!([few_holes(0, 100, 1, soon, still), few_holes(0, 100, 1, soon, back)].map(Result::unwrap), [0, 0]);
        let shortly = Deadline::after(Duration::from_millis(50));
        assert!(matches!(few_holes(0, 1 << 50, 1, shortly, still), Err(Why::Late)));
        let hole_behind = |to| match to {
            SeekFrom::Hole(_) => Some(0),
            SeekFrom::Data(at) => Some(at + 1),
            _ => None,
        };
        assert_eq!(few_holes(10, 20, 50, soon, hole_behind).unwrap(), 10);
    }
}
