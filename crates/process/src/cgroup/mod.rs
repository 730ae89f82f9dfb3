//! The memory cgroup of a process, versions 1 and 2: the limit in force, the charge with its parts, OOM kills, and the
//! pressure (PSI).

pub(crate) mod parse;
mod read;

pub use parse::{CgroupPaths, parse_memory_stat, parse_oom_events, parse_paths};
pub use read::{OTHERS_UNKNOWN, groups_of, is_about_others, oom_kills, pressure, read_cgroup, read_limit};
