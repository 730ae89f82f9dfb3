//! A handle on one process that a reused PID can't redirect: every file is opened relative to a directory descriptor of
//! `/proc/PID`, which answers ESRCH once that very process is gone.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// No /proc file is longer than this in a sane system; a read stops there. 65,530 mappings make about 60 MiB of smaps.
const LONGEST: u64 = 256 << 20;

pub struct Target {
    pid: u32,
    directory: OwnedFd,
    /// Of a chroot: its root as maps and links name it, which start at ours; they aren't what the target itself would say.
    root: Option<String>,
}

/// Why there is no target at that PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    NoSuchProcess,
    /// /proc itself is missing or hides the process (hidepid).
    NoProc,
}

impl Target {
    pub fn open(pid: u32) -> Result<Target, Absent> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()) {
            Ok(directory) => {
                let root = rustix::fs::readlinkat(&directory, "root", Vec::new()).ok();
                let root = root.and_then(|root| root.into_string().ok()).filter(|root| root != "/");
                Ok(Target { pid, directory, root })
            }
            Err(_) if Path::new("/proc/self/stat").exists() => Err(Absent::NoSuchProcess),
            Err(_) => Err(Absent::NoProc),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Opens a file below `/proc/PID`, such as `smaps` or `task/12/stat`.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(fd))
    }

    /// The whole of a file below `/proc/PID`, with as few read calls as its size allows.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(1 << 16);
        self.file(name)?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub fn link(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.directory, name, Vec::new())?.into_bytes())
    }

    /// A path as the target sees it, or as its maps have it, as the observer can open it: through `/proc/PID/root`.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid)).join(self.inside(path).trim_start_matches('/'))
    }

    /// A path of the target's maps, as the target itself sees it.
    pub fn inside<'a>(&self, mapped: &'a str) -> &'a str {
        let below = self.root.as_deref().and_then(|root| mapped.strip_prefix(root));
        below.filter(|path| path.starts_with('/')).unwrap_or(mapped)
    }

    /// Names of the entries of a directory below `/proc/PID` that are numbers: threads, descriptors.
    pub fn numbers(&self, name: &str) -> io::Result<Vec<u32>> {
        let fd = rustix::fs::openat(
            &self.directory,
            name,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut numbers: Vec<u32> = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd)? {
            if let Some(number) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}
