//! Finds the path by which the process was started, where that is another name of its file. Example: Debian's
//! redis-server is a link to redis-check-rdb, and the kernel names the file only.
//!
//! ```text
//! AT_EXECFN ─▶ /usr/bin/redis-server ─▶ file ┐
//!                                            ├─ the same device and inode: the path is a name of the program
//! /proc/self/exe ──────────────────────▶ file ┘
//! ```
//! For a script, AT_EXECFN (getauxval(3)) is the script's path: another file.

use super::os;
use core::ffi::CStr;
use plimsoll_segment::rules::{file_name, is_other_name, other_path};

/// The bytes of a path that are kept.
pub const MOST: usize = 1024;

/// Replaces the path of the executable, which has `n` bytes, by the path by which it was started, and returns the bytes
/// of that. If the first argument is known and isn't another name, which is usual, no file is opened. `is_late`: the
/// program runs already.
pub fn name_as_started(path: &mut [u8; MOST], n: usize, first: Option<&[u8]>, is_late: bool) -> usize {
    const AT_EXECFN: u64 = 31;
    if first.is_some_and(|first| !is_other_name(file_name(first), file_name(&path[..n]))) {
        return n;
    }
    let Some(at) = os::auxiliary_value(AT_EXECFN) else { return n };
    let mut copy = [0; MOST];
    let started = if is_late {
        let Some(started) = copied(at, &mut copy) else { return n };
        started
    } else {
        // SAFETY: the kernel wrote the path and its NUL above all arguments and variables; the last word of the stack
        // is 0. At most constructors of libraries have run.
        unsafe { CStr::from_ptr(at as *const _) }.to_bytes()
    };
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

/// Copies a C string that a running program may have overwritten, or whose pages it may have unmapped. `None`: it can't
/// be read, or has no NUL within the buffer.
fn copied(at: usize, into: &mut [u8; MOST]) -> Option<&[u8]> {
    /// The smallest page size of any kernel.
    const PAGE: usize = 4096;
    for n in 0..MOST {
        let p = at.checked_add(n)?;
        // Eight bytes of this page that the kernel reads: none of the next page.
        if (n == 0 || p.is_multiple_of(PAGE)) && !os::readable(p.min((p | (PAGE - 1)) - 7)) {
            return None;
        }
        // SAFETY: the kernel has just found this page readable. Only a program that unmaps it in the moment between
        // would fail here. Volatile, because another thread may write there.
        into[n] = unsafe { (p as *const u8).read_volatile() };
        if into[n] == 0 {
            return Some(&into[..n]);
        }
    }
    None
}

/// The path to look at, if its name is another one. It ends with a NUL.
fn another_path(file: &[u8], started: &[u8]) -> Option<([u8; MOST], usize)> {
    let [folder, name] = other_path(file, started)?;
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
fn a_string_of_a_running_program_is_copied_where_it_can_be_read() {
    let pages = os::map_private(8192, 4096).expect("two pages") as usize;
    // SAFETY: both pages are this test's own.
    let write = |at: usize, text: &[u8]| unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), (pages + at) as *mut u8, text.len());
    };
    let of = |at: usize| copied(pages + at, &mut [0; MOST]).map(<[u8]>::to_vec);
    write(4093, b"/bin/a\0");
    write(5000, &[b'b'; MOST]);
    assert_eq!((of(4093), of(4092), of(5000)), (Some(b"/bin/a".to_vec()), Some(vec![]), None));
    unsafe extern "C" {
        fn mprotect(p: usize, bytes: usize, protection: i32) -> i32;
    }
    // SAFETY: the second page is this test's own. It stays mapped, so that no other test gets its address.
    assert_eq!(unsafe { mprotect(pages + 4096, 4096, 0) }, 0);
    assert_eq!((of(4093), of(4092), of(4096)), (None, Some(vec![]), None));
    write(4090, b"/bin/\0");
    assert_eq!(of(4090), Some(b"/bin/".to_vec()));
    assert_eq!((copied(0, &mut [0; MOST]), copied(usize::MAX - 3, &mut [0; MOST])), (None, None));
}

#[cfg(test)]
#[test]
fn only_a_path_with_another_file_name_is_examined() {
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
