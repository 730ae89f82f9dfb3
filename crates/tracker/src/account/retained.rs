//! Segments of dead processes: how many stay, and which are removed. Their names are PID-START, the start in ns of CLOCK_BOOTTIME.

use crate::options::Path;
use crate::sys::os;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use plimsoll_segment::{RETAINED, SUFFIX};

static RETAIN: AtomicUsize = AtomicUsize::new(RETAINED);

/// What [`prune`] looks at: the first 512 names. The stack that a fork child begins its books on may be too small for it.
pub struct Looked {
    names: [(u64, u32); 512],
    buffer: [u8; 4096],
}

impl Looked {
    /// Nothing was looked at yet.
    pub(super) const fn new() -> Looked {
        Looked { names: [(0, 0); 512], buffer: [0; 4096] }
    }
}

/// Removes the oldest segments of dead processes beyond what the options say. Nobody is asked for before there are half as
/// many again, so that most starts ask for no process at all. A bounded look: the first 512 names.
///
/// Containers share a directory, each with a process 1 of its own: a PID says nothing. Who lives still maps its file, and
/// holds the lock on it for that long.
pub fn prune(directory: os::Fd, looked: &mut Looked) {
    let retain = RETAIN.load(Relaxed).max(1);
    let Looked { names, buffer } = looked;
    let mut n = 0;
    loop {
        let got = os::directory_entries(directory, buffer);
        if got == 0 {
            break;
        }
        let mut at = 0;
        while at + 19 < got {
            // struct linux_dirent64: inode 8, offset 8, length 2, type 1, name
            let length = u16::from_ne_bytes([buffer[at + 16], buffer[at + 17]]) as usize;
            if length < 20 || at + length > got {
                break;
            }
            if let (Some((pid, start)), true) = (parse_name(&buffer[at + 19..at + length]), n < names.len()) {
                names[n] = (start, pid);
                n += 1;
            }
            at += length;
        }
    }
    // One more is about to be made: room for it too.
    if n < retain + retain / 2 {
        return;
    }
    let mut dead = 0;
    for name in &mut names[..n] {
        if is_mapped(directory, *name) {
            *name = (u64::MAX, 0);
        } else {
            dead += 1;
        }
    }
    for _ in 0..(dead + 1usize).saturating_sub(retain) {
        let Some(oldest) = names[..n].iter_mut().min_by_key(|name| name.0) else { return };
        let (start, pid) = core::mem::replace(oldest, (u64::MAX, 0));
        if pid == 0 {
            return;
        }
        os::unlink(directory, file_name(pid, start).as_c());
    }
}

pub fn file_name(pid: u32, start: u64) -> Path<64> {
    let mut name = Path::<64>::new();
    name.push_number(pid as u64).push(b"-").push_number(start).push(SUFFIX.as_bytes());
    name
}

/// Whether the process of a segment is there. Where the file system has no locks, by its PID. What can't be opened as a
/// segment (a FIFO of this name, in a directory that containers share) is nobody's to remove.
fn is_mapped(directory: os::Fd, (start, pid): (u64, u32)) -> bool {
    let Some(fd) = os::open_at(directory, file_name(pid, start).as_c()) else { return true };
    let locked = os::is_locked(fd);
    os::close(fd);
    locked.unwrap_or_else(|| os::process_exists(pid))
}

/// PID and start of a segment's name.
fn parse_name(entry: &[u8]) -> Option<(u32, u64)> {
    let name = &entry[..entry.iter().position(|&b| b == 0)?];
    let stem = name.strip_suffix(SUFFIX.as_bytes())?;
    let dash = stem.iter().position(|&b| b == b'-')?;
    let decimal = |d: &[u8]| {
        let fits = !d.is_empty() && d.len() < 20 && d.iter().all(u8::is_ascii_digit);
        fits.then(|| d.iter().fold(0u64, |n, c| n.wrapping_mul(10).wrapping_add((c - b'0') as u64)))
    };
    Some((decimal(&stem[..dash])? as u32, decimal(&stem[dash + 1..])?))
}

/// What the options say: so many stay.
pub fn keep(segments: usize) {
    RETAIN.store(segments, Relaxed);
}
