//! The path by which a process was started, where that is another name of its file: Debian's redis-server is a link to
//! redis-check-rdb, and the kernel names the file in its mappings. The tracker does the same (`sys/program.rs`).

use std::os::unix::fs::FileExt;

use plimsoll_facts::snapshot::Process;
use plimsoll_segment::rules::{file_name, is_other_name};

use super::Target;

/// Longest path of the kernel, PATH_MAX.
const MOST: usize = 4096;

pub(crate) fn read_started_as(target: &Target, process: &Process) -> Option<String> {
    let file = process.executable.as_deref()?;
    // The kernel's name of a process is that of the path of its exec, unless the program changed it.
    if !is_other_name(process.name.as_bytes(), file_name(file.as_bytes())) {
        return None;
    }
    let at = parse_path_address(&target.read("auxv").ok()?)?;
    let mut text = [0; MOST];
    let n = target.file("mem").ok()?.read_at(&mut text, at).ok()?;
    let path = another_path(file, parse_path(&text[..n])?)?;
    target.runs(&path).then_some(path)
}

/// The address of the path of the exec (AT_EXECFN, getauxval(3)).
fn parse_path_address(auxv: &[u8]) -> Option<u64> {
    const AT_EXECFN: u64 = 31;
    let (words, _) = auxv.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().map(|pair| pair.map(u64::from_ne_bytes)).find(|pair| pair[0] == AT_EXECFN).map(|pair| pair[1])
}

/// The text up to its NUL.
fn parse_path(text: &[u8]) -> Option<&str> {
    str::from_utf8(text.split(|byte| *byte == 0).next()?).ok()
}

/// A relative path is taken in the file's own folder. The names of descriptors (fexecve) are no names of programs.
fn another_path(file: &str, started: &str) -> Option<String> {
    let (folder, name) = started.rsplit_once('/').unwrap_or(("", started));
    let by_descriptor = started.starts_with("/dev/fd/") || started.starts_with("/proc/");
    if by_descriptor || !is_other_name(name.as_bytes(), file_name(file.as_bytes())) {
        return None;
    }
    let folder = if started.starts_with('/') { folder } else { file.rsplit_once('/')?.0 };
    Some(format!("{folder}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_names() {
        let server = Some("/usr/bin/redis-server".to_owned());
        assert_eq!(another_path("/usr/bin/redis-check-rdb", "/usr/bin/redis-server"), server);
        assert_eq!(another_path("/usr/bin/redis-check-rdb", "./redis-server"), server);
        for (file, started) in [
            ("/usr/bin/python3.11", "/usr/bin/python3"),
            ("/usr/bin/dash", "/bin/sh"),
            ("/usr/bin/node", "node"),
            ("/usr/bin/node", "/dev/fd/7"),
            ("/memfd:runc", "/proc/self/fd/6"),
            ("/usr/bin/node", ""),
        ] {
            assert_eq!(another_path(file, started), None, "{started}");
        }
    }

    #[test]
    fn the_address_is_that_of_the_entry() {
        let auxv: Vec<u8> = [6, 4096, 31, 0x7ffd, 0, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
        assert_eq!(parse_path_address(&auxv), Some(0x7ffd));
        assert_eq!((parse_path_address(&auxv[..30]), parse_path_address(b"")), (None, None));
        assert_eq!((parse_path(b"/bin/a\0b"), parse_path(b"\xff\0")), (Some("/bin/a"), None));
    }
}
