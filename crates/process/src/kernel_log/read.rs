//! Reads /dev/kmsg: one record per read(2), without waiting for the next.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use super::{OomKill, parse};
use crate::proc::FIRST_PID_NAMESPACE;

/// Maximum length of a record (PRINTK_MESSAGE_MAX is 2,048, with its dictionary).
const RECORD: usize = 8192;
/// The ring buffer has some thousand records.
const MOST: usize = 1 << 16;

fn open() -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open("/dev/kmsg")
}

/// Why the log can't be read: a container has no such file, and elsewhere mostly only root may read it.
pub fn refusal() -> Option<io::Error> {
    // If only reading is forbidden, opening still succeeds.
    let tried = open().and_then(|mut log| log.read(&mut vec![0; RECORD]));
    tried.err().filter(|error| matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound))
}

/// All OOM kills in the log; empty if the log can't be read.
pub fn oom_kills() -> Vec<OomKill> {
    let Ok(mut log) = open() else { return Vec::new() };
    let mut kills = Vec::new();
    let mut record = vec![0; RECORD];
    for _ in 0..MOST {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => kills.extend(record.get(..length).and_then(parse)),
            // The record was overwritten while it was read; continue with the next one.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    kills
}

/// Whether the log's numbers are ours: it has those of the first PID namespace.
pub fn has_our_numbers() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|of| of.as_os_str() == FIRST_PID_NAMESPACE)
}

/// What the log says on whether the kernel killed one process for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnKill {
    Killed,
    /// It has kills of that time, but only of other processes.
    OthersOnly,
    /// It can't be read, lacks the kills, or has PIDs that can't be compared with ours.
    Nothing,
}

/// `since_us`: when the process began, in the log's clock.
pub fn says_killed(pid: u32, since_us: u64) -> OnKill {
    if has_our_numbers() { of_process(&oom_kills(), pid, since_us) } else { OnKill::Nothing }
}

fn of_process(kills: &[OomKill], pid: u32, since_us: u64) -> OnKill {
    let mut kills = kills.iter().filter(|kill| kill.time_us >= since_us).peekable();
    match (kills.peek().is_some(), kills.any(|kill| kill.tid == pid)) {
        (_, true) => OnKill::Killed,
        (true, _) => OnKill::OthersOnly,
        (false, _) => OnKill::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_of_another_process_or_of_an_earlier_one_is_not_this_ones() {
        let kill = |tid, time_us| OomKill { tid, name: b"java".to_vec(), time_us };
        let kills = [kill(7, 100), kill(8, 200)];
        assert_eq!(of_process(&kills, 7, 100), OnKill::Killed);
        assert_eq!(of_process(&kills, 7, 101), OnKill::OthersOnly, "an earlier process had the PID");
        assert_eq!(of_process(&kills, 9, 0), OnKill::OthersOnly);
        assert_eq!(of_process(&kills, 8, 201), OnKill::Nothing, "the log has lost its kill, or never had it");
        assert_eq!(of_process(&[], 7, 0), OnKill::Nothing);
    }
}
