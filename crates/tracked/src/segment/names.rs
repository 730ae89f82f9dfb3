//! Names of the tracker's own files in a process's mappings. The target controls them, so readers must bound what they
//! believe.

pub use plimsoll_process::processes::is_segment;

/// Whether it is the library, or compiled rules in one of our directories.
pub fn is_library_or_rules(path: &str) -> bool {
    match path {
        path if path.ends_with(".rules") => path.contains("/plimsoll"),
        path => path.ends_with(".so") && is_library(file_name(path)),
    }
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
