//! The memory cgroup of the target, versions 1 and 2.

pub(crate) mod parse;
mod read;

pub use parse::{CgroupPaths, parse_memory_stat, parse_oom_events, parse_paths};
pub use read::read_cgroup;
pub use read::{oom_kills, pressure, read_limit};
