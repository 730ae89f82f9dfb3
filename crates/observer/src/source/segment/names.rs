//! Names of the tracker's own files, as a process maps them. The target chooses them: a reader bounds what it believes.

/// `PID-BOOTTIME_NS.seg`, in whatever directory the user says.
pub fn is_segment(path: &str) -> bool {
    let parts = file_name(path).strip_suffix(plimsoll_segment::SUFFIX).and_then(|stem| stem.split_once('-'));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    parts.is_some_and(|(pid, start)| is_number(pid) && is_number(start))
}

/// The library, or compiled rules, which lie in a directory of ours.
pub fn is_library_or_rules(path: &str) -> bool {
    let file = file_name(path);
    (path.contains("/plimsoll") && file.ends_with(".rules")) || is_library(file)
}

/// `libplimsoll.so`, or with its SHA-256 as `run` and `attach` unpack it; not whatever else a build calls libplimsoll….
fn is_library(file: &str) -> bool {
    let Some(hash) = file.strip_prefix("libplimsoll").and_then(|rest| rest.strip_suffix(".so")) else { return false };
    let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    hash.is_empty() || hash == "_preload" || hash.strip_prefix('-').is_some_and(is_hash)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}
