//! The two words of a segment that the observer writes: which sites the tracker keeps, and how the process ended.
//!
//! The target decides where a name or a mapping leads, and root may write everything. So the write goes to the inode
//! that was checked, through the descriptor with which it was checked, and only if the file is the target's own. A
//! segment of another user (its process gave up root since it started) is written through the target's memory. There
//! the kernel allows no change that the target itself couldn't make. A write to a shared mapping without write access
//! fails, and a write to a private mapping stays in that mapping.

use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use plimsoll_segment::{HEADER_BYTES, SUFFIX, State, ended_at};

use super::find::{namespace_pid, own_user, users};
use super::parse::{self, Head};
use super::read::{Cause, ReadError, head_of, refused};
use plimsoll_facts::ending::Ending;
use plimsoll_facts::snapshot::Vma;
use plimsoll_process::foreign::{self, Deadline, FileKind, Requirements, Why};
use plimsoll_process::proc::{self, Target};

const CONTROL: u64 = offset_of!(plimsoll_segment::Header, control) as u64;

const ENDED: u64 = offset_of!(plimsoll_segment::Header, ended) as u64;

/// Makes the tracker in process `pid`, whose segment is `path`, keep other sites.
pub fn set_control(pid: u32, path: &Path, mode: u32, mean: u64, deadline: Deadline) -> Result<(), ReadError> {
    let word = plimsoll_segment::control(mode, mean).to_ne_bytes();
    let not_its_own = |why: String| ReadError { path: path.into(), cause: Cause::NotItsOwn(why) };
    // The kernel's own links to a process's mapped files are safe to follow; no others are followed.
    let is_mapping = path.starts_with("/proc") && path.parent().is_some_and(|parent| parent.ends_with("map_files"));
    let requirements = Requirements { links: is_mapping, ..Requirements::of(FileKind::Segment) };
    let file = foreign::open(path, requirements, deadline).map_err(|why| refused(path, why))?;
    let head = head_of(&file, path)?;
    if !is_of(&head, pid) {
        return Err(not_its_own(format!("the file isn't the segment of process {pid}")));
    }
    let meta = file.meta();
    if meta.nlink() > 1 {
        return Err(not_its_own("it has several names".into()));
    }
    if users(pid).contains(&meta.uid()) {
        let file = file.writable().map_err(|why| refused(path, why))?;
        return file.write_all_at(&word, CONTROL).map_err(|error| refused(path, Why::Io(error)));
    }
    through_memory(pid, meta.ino(), &word, deadline).map_err(|error| refused(path, Why::Io(error)))
}

/// Writes how a process ended into its segment, and when: `seen_ns` on CLOCK_BOOTTIME, at which its parent saw the end.
/// Only into a file of our own, because the process was our child.
pub fn set_ended(path: &Path, ending: Ending, seen_ns: u64, deadline: Deadline) -> Result<(), ReadError> {
    let file = foreign::open(path, Requirements { links: false, ..Requirements::of(FileKind::Segment) }, deadline);
    let file = file.map_err(|why| refused(path, why))?;
    let head = head_of(&file, path)?;
    let meta = file.meta();
    if meta.nlink() > 1 || meta.uid() != own_user() {
        return Err(ReadError {
            path: path.into(),
            cause: Cause::NotItsOwn("other users may have access to it".into()),
        });
    }
    let file = file.writable().map_err(|why| refused(path, why))?;
    let word = match ending.word() {
        0 => 0,
        how => how | ended_at(head.start_boottime_ns, seen_ns),
    };
    file.write_all_at(&word.to_ne_bytes(), ENDED).map_err(|error| refused(path, Why::Io(error)))
}

fn is_of(head: &Head, pid: u32) -> bool {
    head.pid == namespace_pid(pid).unwrap_or(pid) && head.state == State::Running as u32
}

fn through_memory(pid: u32, inode: u64, word: &[u8], deadline: Deadline) -> io::Result<()> {
    let target = Target::open(pid, deadline).map_err(|_| io::ErrorKind::NotFound)?;
    let is_whole = |vma: &&Vma| vma.shared && vma.writable && vma.offset == 0 && vma.name.ends_with(SUFFIX);
    let vmas = proc::parse_maps(&target.read("maps")?, &[]).vmas;
    let mapping = vmas.iter().filter(is_whole).find(|vma| vma.inode == inode).ok_or(io::ErrorKind::PermissionDenied)?;
    let memory = target.memory_for_writing()?;
    let mut header = vec![0; HEADER_BYTES];
    memory.read_exact_at(&mut header, mapping.range.start.0)?;
    match parse::head(&header) {
        Ok(head) if is_of(&head, pid) => memory.write_all_at(word, mapping.range.start.0 + CONTROL),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
