//! Names of the tracker's own files in a process's mappings. The target controls them, so readers must bound what they
//! believe.

use plimsoll_process::proc::is_trackers_library;
pub use plimsoll_process::processes::is_segment;

/// Whether the path is that of the library, or of compiled rules in one of our directories.
pub fn is_library_or_rules(path: &str) -> bool {
    match path {
        path if path.ends_with(".rules") => path.contains("/plimsoll"),
        path => is_trackers_library(path),
    }
}
