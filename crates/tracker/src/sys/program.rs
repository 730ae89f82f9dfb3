//! The path by which the process was started, where that is another name of its file: Debian's redis-server is a link
//! to redis-check-rdb, and the kernel names the file only.
//!
//! ```text
//! AT_EXECFN ─▶ /usr/bin/redis-server ─▶ file ┐
//!                                            ├─ the same device and inode: the path is a name of the program
//! /proc/self/exe ──────────────────────▶ file ┘
//! ```
//! For a script, AT_EXECFN (getauxval(3)) is the script's path: another file.

use super::os;
use core::ffi::CStr;
use plimsoll_segment::rules::{file_name, is_other_name};

/// The bytes of a path that are kept.
pub const MOST: usize = 1024;

/// Replaces the path of the executable, which has `n` bytes, by the path by which it was started, and returns the bytes
/// of that. If the first argument is known and is no other name, which is usual, no file is opened.
pub fn name_as_started(path: &mut [u8; MOST], n: usize, first: Option<&[u8]>) -> usize {
    const AT_EXECFN: u64 = 31;
    if first.is_some_and(|first| !is_other_name(file_name(first), file_name(&path[..n]))) {
        return n;
    }
    let Some(at) = os::auxiliary_value(AT_EXECFN) else { return n };
    // SAFETY: the kernel wrote the path and its NUL above all arguments and variables; the last word of the stack is 0.
    let started = unsafe { CStr::from_ptr(at as *const _) }.to_bytes();
    let Some((other, length)) = another_path(&path[..n], started) else { return n };
    let is_same = CStr::from_bytes_until_nul(&other).is_ok_and(|other| {
        let [named, runs] = [other, c"/proc/self/exe"].map(os::file_identity);
        named.is_some() && named == runs
    });
    if !is_same {
        return n;
    }
    *path = other;
    length
}

/// The path to look at, if its name is another one: a relative path is taken in the file's own folder. It ends with a
/// NUL.
fn another_path(file: &[u8], started: &[u8]) -> Option<([u8; MOST], usize)> {
    let name = file_name(started);
    // These are descriptors (fexecve), whose numbers are no names.
    let by_descriptor = started.starts_with(b"/dev/fd/") || started.starts_with(b"/proc/");
    if by_descriptor || !is_other_name(name, file_name(file)) {
        return None;
    }
    let folder = if started.starts_with(b"/") { started } else { file };
    let folder = &folder[..folder.len() - file_name(folder).len()];
    let (mut path, length) = ([0; MOST], folder.len() + name.len());
    if length >= MOST {
        return None;
    }
    path[..folder.len()].copy_from_slice(folder);
    path[folder.len()..length].copy_from_slice(name);
    Some((path, length))
}

#[cfg(test)]
#[test]
fn paths_of_other_names() {
    let of = |file: &[u8], started: &[u8]| another_path(file, started).map(|(path, n)| path[..n].to_vec());
    let server = b"/usr/bin/redis-server".to_vec();
    assert_eq!(of(b"/usr/bin/redis-check-rdb", b"/usr/bin/redis-server"), Some(server.clone()));
    assert_eq!(of(b"/usr/bin/redis-check-rdb", b"./redis-server"), Some(server.clone()));
    assert_eq!(of(b"/opt/redis/redis-check-rdb", b"/usr/bin/redis-server"), Some(server));
    for (file, started) in [
        ("/usr/bin/python3.11", "/usr/bin/python3"),
        ("/usr/bin/dash", "/bin/sh"),
        ("/usr/bin/node", "node"),
        ("/usr/bin/node", "/dev/fd/7"),
        ("/memfd:runc", "/proc/self/fd/6"),
        ("/usr/bin/node", ""),
    ] {
        assert_eq!(of(file.as_bytes(), started.as_bytes()), None, "{started}");
    }
    assert_eq!(of(&[b'a'; 900], &[&b"/"[..], &[b'b'; MOST - 1]].concat()), None);
}
