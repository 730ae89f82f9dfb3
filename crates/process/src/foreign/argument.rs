//! A file that the caller names on the command line: a regular file, or what a shell passes for `<(command)` and
//! `/dev/stdin`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, makedev};

use super::regular::{self, Why};
use super::{Deadline, FileKind, Requirements, open, resolve};

/// Reads the file whole. A named FIFO or a device isn't opened, because that might wait for ever.
pub fn read_argument(path: &Path, kind: FileKind, deadline: Deadline) -> Result<Vec<u8>, Why> {
    if open::inside_of(path).is_some() {
        return open::open(path, Requirements::of(kind), deadline)?.read();
    }
    let found = File::from(rustix::fs::openat(CWD, path, resolve::FOUND, Mode::empty())?);
    let meta = found.metadata()?;
    if is_pipe(&found) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        return drain(File::from(regular::again(&found, flags)?), kind.cap(true), deadline);
    }
    // /dev/null (Documentation/admin-guide/devices.txt).
    if meta.file_type().is_char_device() && meta.rdev() == makedev(1, 3) {
        return Ok(Vec::new());
    }
    open::regular(found.into(), path, Requirements::of(kind), deadline)?.read()
}

/// Whether it is a pipe(2), which has no name: the shell or the parent that started us has its other end.
fn is_pipe(file: &File) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    link.is_ok_and(|link| link.to_bytes().starts_with(b"pipe:["))
}

fn drain(mut pipe: File, cap: u64, deadline: Deadline) -> Result<Vec<u8>, Why> {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.left();
        if left.is_zero() {
            return Err(Why::Late);
        }
        let wait = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match pipe.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(Why::Io(error)),
        }
        if bytes.len() as u64 > cap {
            return Err(Why::TooLarge(cap));
        }
    }
}
