//! Reads /dev/kmsg: one record per read(2), without waiting for the next.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use super::{OomKill, parse};

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
