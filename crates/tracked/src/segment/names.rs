//! Names of the tracker's own files in a process's mappings. The target controls them, so readers must bound what they
//! believe.

/// Whether it is `PID-BOOTTIME_NS.seg`, in any directory.
pub fn is_segment(path: &str) -> bool {
    let parts = file_name(path).strip_suffix(plimsoll_segment::SUFFIX).and_then(|stem| stem.split_once('-'));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.is_some_and(|(pid, start)| is_number(pid) && is_number(start))
}

/// Whether it is the library, or compiled rules in one of our directories.
pub fn is_library_or_rules(path: &str) -> bool {
    let file = file_name(path);
    (path.contains("/plimsoll") && file.ends_with(".rules")) || is_library(file)
}

/// Whether it is `libplimsoll.so`, with or without its SHA-256 as `run` and `attach` unpack it; not another build
/// product called libplimsoll….
fn is_library(file: &str) -> bool {
    let Some(hash) = file.strip_prefix("libplimsoll").and_then(|rest| rest.strip_suffix(".so")) else { return false };
    let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    hash.is_empty() || hash == "_preload" || hash.strip_prefix('-').is_some_and(is_hash)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}
