//! Segments of dead processes: how many to keep, and which to remove. A name is PID-START, with the process's start in
//! ns of CLOCK_BOOTTIME.

use crate::fixed_string::FixedString;
use crate::sys::os::{self, Clock};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use plimsoll_segment::{RETAINED, SUFFIX};

static RETAIN: AtomicUsize = AtomicUsize::new(RETAINED);

/// The names that [`prune`] examines: the first 512. A fork child may begin its books on a stack that is too small for
/// this buffer.
pub struct PruneBuffer {
    names: [(u64, u32); 512],
    buffer: [u8; 4096],
}

impl PruneBuffer {
    /// No name has been examined yet.
    pub(super) const fn new() -> PruneBuffer {
        PruneBuffer { names: [(0, 0); 512], buffer: [0; 4096] }
    }
}

/// Removes the oldest segments of dead processes beyond the limit of the options. It does nothing until there are 1.5
/// times as many segments, so that most starts query no process. It examines at most the first 512 names.
///
/// Containers share a directory, each with its own process 1, so a PID proves nothing. A living process maps its file,
/// and holds the lock on it as long as it lives.
pub fn prune(directory: os::Fd, prune_buffer: &mut PruneBuffer) {
    let retain = RETAIN.load(Relaxed).max(1);
    let PruneBuffer { names, buffer } = prune_buffer;
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
    // A new segment is about to be made: it counts, too.
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
    // CLOCK_BOOTTIME begins anew at each boot, so a start in the future is of an earlier boot. Those go first.
    let now = os::clock_ns(Clock::Boottime);
    let age = |&(start, pid): &(u64, u32)| (pid == 0 || start <= now, start);
    for _ in 0..(dead + 1usize).saturating_sub(retain) {
        let Some(oldest) = names[..n].iter_mut().min_by_key(|name| age(name)) else { return };
        let (start, pid) = core::mem::replace(oldest, (u64::MAX, 0));
        if pid == 0 {
            return;
        }
        os::unlink(directory, file_name(pid, start).as_c());
    }
}

pub fn file_name(pid: u32, start: u64) -> FixedString<64> {
    let mut name = FixedString::<64>::new();
    name.push_number(pid as u64).push(b"-").push_number(start).push(SUFFIX.as_bytes());
    name
}

/// Whether the process of a segment is alive. If the file system has no locks, its PID decides. A file that cannot be
/// opened as a segment (a FIFO of this name, in a directory that containers share) is never removed.
fn is_mapped(directory: os::Fd, (start, pid): (u64, u32)) -> bool {
    let Some(fd) = os::open_at(directory, file_name(pid, start).as_c()) else { return true };
    let locked = os::is_locked(fd);
    os::close(fd);
    locked.unwrap_or_else(|| os::process_exists(pid))
}

/// PID and start from the name of a segment.
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

/// The number of segments to keep, from the options.
pub fn keep(segments: usize) {
    RETAIN.store(segments, Relaxed);
}
