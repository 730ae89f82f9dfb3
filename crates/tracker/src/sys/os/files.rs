//! Files and directories, by descriptors that live no longer than the hook or the attach that opens them.

use super::super::cpu::{nr, syscall};
use super::super::errno;

const S_IFMT: u32 = 0o170000;
const S_IFREG: u32 = 0o100000;
const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_NOCTTY: usize = 0o400;
const O_NONBLOCK: usize = 0o4000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: usize = 0o400000;
#[cfg(target_arch = "x86_64")]
const O_DIRECTORY: usize = 0o200000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: usize = 0o100000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: usize = 0o40000;
const O_CLOEXEC: usize = 0o2000000;
const O_PATHLESS: usize = O_NOFOLLOW | O_CLOEXEC;

/// A descriptor that lives no longer than the hook or the attach that opens it.
#[derive(Clone, Copy)]
pub struct Fd(pub(super) usize);

impl Fd {
    /// A descriptor that others have opened, by its number in decimal digits.
    pub fn of_number(digits: &[u8]) -> Option<Fd> {
        let digit = |n: usize, d: &u8| n.checked_mul(10)?.checked_add(usize::from(d - b'0'));
        let are_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        are_digits.then_some(digits)?.iter().try_fold(0, digit).map(Fd)
    }
}

/// Makes a directory that only its owner may enter, unless it exists.
pub fn make_dir(path: &core::ffi::CStr) {
    // SAFETY: a C string.
    let _ = unsafe { syscall(nr::MKDIRAT, [AT_CWD, path.as_ptr() as usize, 0o700, 0, 0, 0]) };
}

const AT_CWD: usize = -100isize as usize;

/// Opens a directory, never through a link at its last component.
pub fn open_dir(path: &core::ffi::CStr) -> Option<Fd> {
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_DIRECTORY | O_PATHLESS, 0, 0, 0]) }.ok().map(Fd)
}

/// Opens an existing regular file for reading, never through a link at its last component.
pub fn open_file(path: &core::ffi::CStr) -> Option<Fd> {
    open_at(Fd(AT_CWD), path)
}

/// Creates a file, readable and writable by its owner alone. It fails if the file exists.
pub fn create(dir: Fd, name: &core::ffi::CStr) -> Result<Fd, i32> {
    let flags = O_RDWR | O_CREAT | O_EXCL | O_PATHLESS;
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [dir.0, name.as_ptr() as usize, flags, 0o600, 0, 0]) }.map(Fd)
}

/// Opens a file that others map, for reading and writing.
pub fn open_to_map(dir: Fd, name: &core::ffi::CStr) -> Option<Fd> {
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [dir.0, name.as_ptr() as usize, O_RDWR | O_PATHLESS | O_NONBLOCK, 0, 0, 0]) }
        .ok()
        .map(Fd)
}

/// Creates or truncates a file by path for writing (the summary on a signal).
pub fn create_path(path: &core::ffi::CStr) -> Option<Fd> {
    const O_TRUNC: usize = 0o1000;
    let flags = 1 | O_CREAT | O_TRUNC | O_PATHLESS;
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, flags, 0o600, 0, 0]) }.ok().map(Fd)
}

/// Removes a name.
pub fn unlink(dir: Fd, name: &core::ffi::CStr) {
    // SAFETY: a C string.
    let _ = unsafe { syscall(nr::UNLINKAT, [dir.0, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Sets the size of a file.
pub fn truncate(fd: Fd, bytes: usize) -> bool {
    // SAFETY: our own descriptor.
    unsafe { syscall(nr::FTRUNCATE, [fd.0, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// `struct flock` for the whole of a file (fcntl(2)): l_type, l_whence, l_start, l_len, l_pid.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// Locks an open file. The lock belongs to the open file description, and a mapping keeps the description open. So the
/// lock lasts until the last descriptor *and mapping* is gone. It shows across PID namespaces whether a process still
/// maps the file.
pub fn lock_while_mapped(fd: Fd) {
    let lock = Flock { kind: F_RDLCK, whence: 0, start: 0, length: 0, pid: 0 };
    // SAFETY: the kernel reads the local.
    let _ = unsafe { syscall(nr::FCNTL, [fd.0, F_OFD_SETLK, &lock as *const Flock as usize, 0, 0, 0]) };
}

/// Whether another open file description has that lock. `None`: the file system has no locks.
pub fn is_locked(fd: Fd) -> Option<bool> {
    let mut lock = Flock { kind: F_WRLCK, whence: 0, start: 0, length: 0, pid: 0 };
    // SAFETY: the kernel reads and writes the local.
    unsafe { syscall(nr::FCNTL, [fd.0, F_OFD_GETLK, &mut lock as *mut Flock as usize, 0, 0, 0]) }.ok()?;
    Some(lock.kind != F_UNLCK)
}

/// Opens a regular file of a directory for reading. Opening a FIFO, a terminal or a file with a lease could wait for
/// another process; O_NONBLOCK prevents that (open(2)).
pub fn open_at(dir: Fd, name: &core::ffi::CStr) -> Option<Fd> {
    let flags = O_PATHLESS | O_NONBLOCK | O_NOCTTY;
    // SAFETY: a C string.
    let fd = unsafe { syscall(nr::OPENAT, [dir.0, name.as_ptr() as usize, flags, 0, 0, 0]) }.ok().map(Fd)?;
    if file_facts(fd).is_some_and(|facts| facts.mode & S_IFMT == S_IFREG) {
        return Some(fd);
    }
    close(fd);
    None
}

/// Closes a descriptor of our own.
pub fn close(fd: Fd) {
    // SAFETY: our own descriptor, used by nobody else.
    let _ = unsafe { syscall(nr::CLOSE, [fd.0, 0, 0, 0, 0, 0]) };
}

/// Whether this process can still read a file after an exec. A process that was started as root may have kept
/// capabilities (setpriv) that an exec drops; access(2) ignores them unless the real user is root.
pub fn is_readable_after_exec(path: &core::ffi::CStr) -> bool {
    const R_OK: usize = 4;
    let path = path.as_ptr() as usize;
    // ld.so makes this call for /etc/ld.so.preload, so a filter that lets programs start allows it.
    #[cfg(target_arch = "x86_64")]
    let (number, arguments) = (nr::ACCESS, [path, R_OK, 0, 0, 0, 0]);
    #[cfg(not(target_arch = "x86_64"))]
    let (number, arguments) = (nr::FACCESSAT, [AT_CWD, path, R_OK, 0, 0, 0]);
    // SAFETY: a C string.
    unsafe { syscall(number, arguments) }.is_ok()
}

/// A regular file that may be executed, open for reading.
pub struct Program {
    fd: Fd,
    mode: u32,
}

/// The directory that a relative path begins in (`AT_FDCWD`).
pub const WORKING_DIRECTORY: i32 = -100;

impl Program {
    /// Follows links, as execve(2) does; never waits for another process.
    pub fn open(directory: i32, path: &core::ffi::CStr) -> Option<Program> {
        let flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
        // SAFETY: a C string.
        let fd = unsafe { syscall(nr::OPENAT, [directory as usize, path.as_ptr() as usize, flags, 0, 0, 0]) };
        let fd = fd.ok().map(Fd)?;
        match file_facts(fd).filter(|facts| facts.mode & S_IFMT == S_IFREG) {
            Some(facts) => Some(Program { fd, mode: facts.mode }),
            None => {
                close(fd);
                None
            }
        }
    }

    /// Reads from offset `at`.
    pub fn read_at<'a>(&self, at: usize, buffer: &'a mut [u8]) -> &'a [u8] {
        let arguments = [self.fd.0, buffer.as_mut_ptr() as usize, buffer.len(), at, 0, 0];
        // SAFETY: the kernel writes at most the buffer's length.
        let n = unsafe { syscall(nr::PREAD64, arguments) };
        &buffer[..n.unwrap_or(0)]
    }

    /// Whether any user may execute the file.
    pub fn is_executable(&self) -> bool {
        self.mode & 0o111 != 0
    }

    /// Whether an exec of the file changes the user or group id (set-user-ID, set-group-ID).
    pub fn changes_user(&self) -> bool {
        self.mode & 0o6000 != 0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        close(self.fd);
    }
}

/// Directory entries (`struct linux_dirent64`); 0 at the end.
pub fn directory_entries(dir: Fd, buffer: &mut [u8]) -> usize {
    // SAFETY: the kernel writes at most the buffer's length.
    unsafe { syscall(nr::GETDENTS64, [dir.0, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }.unwrap_or(0)
}

/// Owner and mode of an open file, and its size.
pub struct FileFacts {
    /// Owner.
    pub uid: u32,
    /// st_mode.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
}

/// fstat.
pub fn file_facts(fd: Fd) -> Option<FileFacts> {
    let mut st = [0u64; 18];
    // SAFETY: struct stat has 144 bytes on x86-64 and 128 on aarch64.
    unsafe { syscall(nr::FSTAT, [fd.0, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    #[cfg(target_arch = "x86_64")]
    return Some(FileFacts { mode: st[3] as u32, uid: (st[3] >> 32) as u32, size: st[6] });
    #[cfg(target_arch = "aarch64")]
    return Some(FileFacts { mode: st[2] as u32, uid: st[3] as u32, size: st[6] });
}

/// Device and inode of the file at a path; links are followed.
pub fn file_identity(path: &core::ffi::CStr) -> Option<[u64; 2]> {
    const O_PATH: usize = 0o10000000;
    // SAFETY: a C string.
    let fd = unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_PATH | O_CLOEXEC, 0, 0, 0]) }.ok()?;
    let mut st = [0u64; 18];
    // SAFETY: as in `file_facts`; both fields come first.
    let found = unsafe { syscall(nr::FSTAT, [fd, st.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    close(Fd(fd));
    found.is_ok().then_some([st[0], st[1]])
}

/// A file of /proc about this process. Once the first thread has ended, the process's own files are empty, or lack what
/// concerns memory; those of another thread are whole, since the kernel takes the memory from the task that a path names
/// (fs/proc/base.c, get_task_mm).
#[derive(Clone, Copy)]
pub struct OwnFile {
    path: &'static core::ffi::CStr,
    /// Where nothing can be read from `path`. A sandbox, or a kernel before 3.17, may have only one of them.
    otherwise: &'static core::ffi::CStr,
}

impl OwnFile {
    pub const AUXV: Self = Self { path: c"/proc/self/auxv", otherwise: c"/proc/thread-self/auxv" };
    pub const CMDLINE: Self = Self { path: c"/proc/self/cmdline", otherwise: c"/proc/thread-self/cmdline" };
    pub const EXE: Self = Self { path: c"/proc/self/exe", otherwise: c"/proc/thread-self/exe" };
    pub const MAPS: Self = Self { path: c"/proc/self/maps", otherwise: c"/proc/thread-self/maps" };
    /// A first thread that has ended has these two, without a stack's address and without locked memory.
    pub const STAT: Self = Self { path: c"/proc/thread-self/stat", otherwise: c"/proc/self/stat" };
    pub const STATUS: Self = Self { path: c"/proc/thread-self/status", otherwise: c"/proc/self/status" };

    /// Calls `read` with the first path, and with the second if the first gives nothing.
    fn either(self, mut read: impl FnMut(&core::ffi::CStr) -> usize) -> usize {
        match read(self.path) {
            0 => read(self.otherwise),
            n => n,
        }
    }
}

/// Reads a link's target into the buffer.
pub fn read_link(file: OwnFile, buffer: &mut [u8]) -> &[u8] {
    let n = file.either(|path| {
        // SAFETY: the kernel writes at most the buffer's length.
        let n = unsafe {
            let to = buffer.as_mut_ptr() as usize;
            syscall(nr::READLINKAT, [AT_CWD, path.as_ptr() as usize, to, buffer.len(), 0, 0])
        };
        n.unwrap_or(0)
    });
    &buffer[..n]
}

/// Reads a small file into the buffer; returns the bytes read.
pub fn read_file(file: OwnFile, buffer: &mut [u8]) -> &[u8] {
    let n = file.either(|path| {
        // SAFETY: a C string; then at most the buffer's length is written.
        let Ok(fd) = (unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]) }) else {
            return 0;
        };
        let mut n = 0;
        while n < buffer.len() {
            // SAFETY: the free tail of the buffer.
            match unsafe { syscall(nr::READ, [fd, buffer[n..].as_mut_ptr() as usize, buffer.len() - n, 0, 0, 0]) } {
                Ok(k) if k > 0 => n += k,
                _ => break,
            }
        }
        close(Fd(fd));
        n
    });
    &buffer[..n]
}

/// Calls a function with each line of a file about this process. A line longer than the buffer is cut (a path has at
/// most 4 KiB).
pub fn each_line(file: OwnFile, mut visit: impl FnMut(&[u8])) {
    file.either(|path| {
        // SAFETY: a C string.
        let Ok(fd) = (unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]) }) else {
            return 0;
        };
        // Threads may have small stacks.
        let mut buffer = [0u8; 5 << 10];
        let mut n = 0;
        let mut lines = 0;
        loop {
            // SAFETY: the free tail of the buffer.
            match unsafe { syscall(nr::READ, [fd, buffer[n..].as_mut_ptr() as usize, buffer.len() - n, 0, 0, 0]) } {
                Ok(k) if k > 0 => n += k,
                Err(errno::EINTR) => continue,
                _ => break,
            }
            let mut at = 0;
            while let Some(i) = buffer[at..n].iter().position(|b| *b == b'\n') {
                visit(&buffer[at..at + i]);
                at += i + 1;
                lines += 1;
            }
            buffer.copy_within(at..n, 0);
            n = if n - at == buffer.len() { 0 } else { n - at };
        }
        close(Fd(fd));
        lines
    });
}

/// Writes all bytes, or as many as the file takes.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: reads the slice.
        match unsafe { syscall(nr::WRITE, [fd.0, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) } {
            Ok(n) if n > 0 => bytes = &bytes[n..],
            Err(errno::EINTR) => continue,
            _ => return false,
        }
    }
    true
}

/// Writes all bytes at an offset, and zeros behind them. False: no space, or a signal interrupted the call.
pub fn write_at(fd: Fd, at: usize, bytes: &[u8], zeros: usize) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    let (mut at, mut bytes, mut zeros) = (at, bytes, zeros);
    while !bytes.is_empty() || zeros > 0 {
        let tail = zeros.min(ZEROS.len());
        // struct iovec: address, length
        let parts = [bytes.as_ptr() as usize, bytes.len(), ZEROS.as_ptr() as usize, tail];
        let n = bytes.len() + tail;
        // SAFETY: reads the slices.
        if unsafe { syscall(nr::PWRITEV, [fd.0, parts.as_ptr() as usize, 2, at, 0, 0]) } != Ok(n) {
            return false;
        }
        (at, bytes, zeros) = (at + n, &[], zeros - tail);
    }
    true
}
