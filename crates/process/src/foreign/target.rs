//! A handle on one process that a reused PID can't redirect. Every file is opened relative to a descriptor of the
//! directory `/proc/PID`, which returns ESRCH once that process is gone.
//!
//! If the first thread has left by pthread_exit(3), `/proc/PID` is that of a zombie and shows no memory, although the
//! other threads run on. Then the directory is `/proc/TID` of one of these: readdir(3) doesn't list it, and it can be
//! opened (fs/proc/base.c, `proc_pid_lookup`).

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::time_slice::give_way;
use super::{Deadline, FileKind, Regular, Requirements, Root, Why, linked};
use plimsoll_facts::snapshot::Vma;

/// No /proc file is longer than this on a normal system. 65,530 mappings, the default limit, give about 60 MiB of smaps;
/// where vm.max_map_count is a million, smaps may be longer.
pub(super) const LONGEST: u64 = 256 << 20;
/// execve(2) takes no more bytes of arguments and variables (fs/exec.c, `bprm_stack_limits`). Later, the process itself
/// chooses which part of its memory is shown as them (prctl(2), PR_SET_MM_MAP): a terabyte of untouched pages costs it
/// nothing.
pub(super) const LONGEST_STRINGS: u64 = 6 << 20;

pub struct Target {
    pid: u32,
    /// The number of the directory: a thread's, if the first one has left.
    entry: u32,
    directory: OwnedFd,
    /// For a chroot: the path of its root as maps and links show it. They start at our root; the target itself sees
    /// other paths.
    root: Option<String>,
    deadline: Deadline,
}

/// Why there is no process at that PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    NoSuchProcess,
    /// /proc itself is missing, or hides the process (hidepid).
    NoProc,
    /// The process may be alive: plimsoll has too many open files, or no memory.
    Unread(Errno),
}

/// Whether an error of a file below `/proc/PID` says that the process has ended. Other errors don't show whether it has
/// ended, for example too many open files.
pub fn says_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

impl Target {
    /// Another handle of the same process, with a limit of its own.
    pub fn again(&self, deadline: Deadline) -> io::Result<Target> {
        Ok(Target {
            pid: self.pid,
            entry: self.entry,
            directory: self.directory.try_clone()?,
            root: self.root.clone(),
            deadline,
        })
    }

    /// `deadline` is the command's limit for everything that is read from this process.
    pub fn open(pid: u32, deadline: Deadline) -> Result<Target, Absent> {
        match entry(pid) {
            Ok(directory) => {
                let first = Target { pid, entry: pid, directory, root: None, deadline };
                // A zombie has no root: ENOENT.
                let led = match first.link("root") {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => first.led_by_another_thread(),
                    _ => None,
                };
                let target = led.unwrap_or(first);
                let root = target.link("root").ok().and_then(|root| String::from_utf8(root).ok());
                Ok(Target { root: root.filter(|root| root != "/"), ..target })
            }
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(Absent::Unread(error)),
            Err(_) if Path::new("/proc/self/stat").exists() => Err(Absent::NoSuchProcess),
            Err(_) => Err(Absent::NoProc),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the first thread has left, and others run on.
    pub fn has_lost_its_first_thread(&self) -> bool {
        self.entry != self.pid
    }

    /// A handle on the same process, by its first other thread that lives. Threads beyond `MOST` aren't tried.
    fn led_by_another_thread(&self) -> Option<Target> {
        const MOST: usize = 64;
        let others = self.numbers("task").ok()?.into_iter().filter(|tid| *tid != self.pid).take(MOST);
        others.into_iter().find_map(|tid| {
            let other = Target { entry: tid, directory: entry(tid).ok()?, ..self.again(self.deadline).ok()? };
            // The number may be another process's by now.
            let status = String::from_utf8_lossy(&other.read("status").ok()?).into_owned();
            let has = |line: &str| status.lines().any(|found| found == line);
            let is_its = has(&format!("Tgid:\t{}", self.pid));
            (is_its && status.contains("\nVmSize:") && other.link("root").is_ok()).then_some(other)
        })
    }

    /// The limit for everything that is read from this process.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Sets the deadline of the next instant of a recording.
    pub fn allow(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// Opens a file of the target. The path is as the target sees it, or as in its maps.
    pub(crate) fn open_inside(&self, path: &str, requirements: Requirements<'_>) -> Result<Regular, Why> {
        Root::of_process(&self.directory, self.deadline())?.open(Path::new(self.inside(path)), requirements)
    }

    /// Opens the mapped file. The name is only a hint: another file that replaced it isn't opened.
    pub fn mapped(&self, vma: &Vma, kind: FileKind) -> Result<Regular, Why> {
        let requirements = Requirements { inode: Some(vma.inode), ..Requirements::of(kind) };
        let named = match vma.deleted {
            true => Err(Why::Replaced),
            false => self.open_inside(&vma.name, requirements),
        };
        let Err(why) = named else { return named };
        let range = format!("{:x}-{:x}", vma.range.start.0, vma.range.end.0);
        linked(&self.directory, &format!("map_files/{range}"), requirements, self.deadline()).map_err(|_| why)
    }

    /// Opens what is mapped at `start-end` (hexadecimal, as in maps), even if its name changed or was deleted.
    pub fn still_mapped(&self, range: &str) -> Result<Regular, Why> {
        linked(&self.directory, &format!("map_files/{range}"), Requirements::of(FileKind::Object), self.deadline())
    }

    /// Opens the file of the program that the process runs.
    pub fn program(&self) -> Result<Regular, Why> {
        linked(&self.directory, "exe", Requirements::of(FileKind::Object), self.deadline())
    }

    /// Whether this path, as the target sees it, is the file that it runs.
    pub(crate) fn runs(&self, path: &str) -> bool {
        let Ok(program) = self.program() else { return false };
        let device = |file: &Regular| (file.meta().dev(), file.meta().ino());
        let requirements = Requirements { inode: Some(program.meta().ino()), ..Requirements::of(FileKind::Object) };
        self.open_inside(path, requirements).is_ok_and(|found| device(&found) == device(&program))
    }

    /// Opens a file below `/proc/PID`, such as `smaps` or `task/12/stat`.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(fd))
    }

    /// A handle on one of the process's directories, `root` or `cwd`. No name is resolved, so nobody can redirect it.
    pub fn handle(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.directory, name, flags, Mode::empty())?)
    }

    /// Whether the target has our mounts and our root, so that a path means the same file to both.
    pub fn shares_our_root(&self) -> bool {
        let its = self.handle("root").ok().and_then(|root| rustix::fs::fstat(root).ok());
        let own = rustix::fs::stat("/").ok();
        let [its, own] = [its, own].map(|facts| facts.map(|facts| (facts.st_dev, facts.st_ino)));
        its.is_some() && its == own && self.shares_our_namespace("mnt").unwrap_or(false)
    }

    /// Whether this is the real user of plimsoll: the one whose shell reads what is printed to be pasted.
    pub(crate) fn is_caller(uid: u32) -> bool {
        uid == rustix::process::getuid().as_raw()
    }

    /// Whether the target has our namespace of that kind (`net`, `pid`). None: it can't be read.
    pub(crate) fn shares_our_namespace(&self, kind: &str) -> Option<bool> {
        let name = format!("ns/{kind}");
        let own = rustix::fs::readlink(format!("/proc/self/{name}"), Vec::new()).ok()?;
        Some(self.link(&name).ok()? == own.into_bytes())
    }

    /// Reads a whole file below `/proc/PID`, with as few read calls as its size allows.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let longest = if matches!(name, "cmdline" | "environ") { LONGEST_STRINGS } else { LONGEST };
        whole(InTurns(self.file(name)?), longest)
    }

    /// Opens the target's memory for writing. The kernel allows writes only where the process itself could write.
    pub fn memory_for_writing(&self) -> io::Result<File> {
        let fd = rustix::fs::openat(&self.directory, "mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(fd))
    }

    pub fn link(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.directory, name, Vec::new())?.into_bytes())
    }

    /// The path for the observer, through `/proc/PID/root`, of a path as the target sees it or as in its maps.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.entry)).join(self.inside(path).trim_start_matches('/'))
    }

    /// The path that the target itself sees, for a path in its maps.
    pub fn inside<'a>(&self, mapped: &'a str) -> &'a str {
        let below = self.root.as_deref().and_then(|root| mapped.strip_prefix(root));
        below.filter(|path| path.starts_with('/')).unwrap_or(mapped)
    }

    /// The numeric entries of a directory below `/proc/PID`: threads, descriptors.
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

/// The directory of a process or thread in /proc.
fn entry(id: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{id}"), flags, Mode::empty())
}

/// The kernel takes its locks again for each read of a file in /proc, and returns at most a page of most files.
struct InTurns(File);

impl Read for InTurns {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        give_way();
        self.0.read(into)
    }
}

/// All of a file, or an error if it is longer: sums of a part would be wrong.
fn whole(file: impl Read, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(1 << 16);
    file.take(longest + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > longest {
        true => {
            let text = format!("it is longer than {} MiB", longest >> 20);
            Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
        }
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_or_refused() {
        assert_eq!(whole(&b"12345"[..], 5).unwrap(), b"12345");
        let longer = whole(&[b'x'; (1 << 20) + 1][..], 1 << 20).unwrap_err();
        assert_eq!(longer.to_string(), "it is longer than 1 MiB");
    }
}
