//! Files: the first bytes of a program, its rights, and space for a file.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use plimsoll_process::foreign::{self, Deadline, FileKind, Requirements};

/// Makes the file system allocate the first bytes of a file.
pub fn allocate(file: &std::fs::File, bytes: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed, and the descriptor is open while `file` lives; one that is open for reading only is
    // an error.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Opens a program, which any user may own.
pub fn open(path: &Path, deadline: Deadline) -> Result<foreign::Regular, foreign::Why> {
    foreign::open(path, Requirements::of(FileKind::Object), deadline)
}

/// The first bytes of a file, at most `bytes`; empty if it cannot be read.
pub fn read_start(path: &Path, bytes: usize, deadline: Deadline) -> Vec<u8> {
    open(path, deadline).and_then(|file| file.head(bytes as u64)).unwrap_or_default()
}

/// True if we may execute `path` (access(2) with the real ids, like the search of execvp).
pub fn is_executable(path: &Path) -> bool {
    let Ok(c) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: NUL-terminated path.
    path.is_file() && unsafe { libc::access(c.as_ptr(), libc::X_OK) == 0 }
}

/// True if the file has capabilities that exec would grant (setcap).
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both are NUL-terminated; a null buffer of size 0 only queries the length.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
