//! /proc/PID: mappings, residency, and facts about the process.

pub use crate::foreign::{Absent, Target, says_ended};

pub(crate) mod access;
pub(crate) mod allocators;
mod bss;
pub mod memory;
mod mount_lines;
mod read;
mod residency;
mod scan;
mod smaps;
pub(crate) mod sockets;
mod stacks;
pub(crate) mod start;
mod started_as;
pub mod stat;
pub(crate) mod status;
mod unpacked;

/// The kernel gives this inode to the first PID namespace (PROC_PID_INIT_INO, linux/proc_ns.h).
pub(crate) const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

pub use access::{Access, Closed};
pub use bss::find as find_bss;
pub use mount_lines::{MountLine, mount_lines};
pub use read::{
    KnownMappings, can_scan, file_remedy, is_of_mappings, is_too_much, now_ns, open_jars, permission_remedy,
    read_allocators, read_maps, read_pages, read_residency, read_smaps, read_these_threads, read_threads,
    scan_residency, seconds_since_epoch, start_of, why_closed, why_refused,
};
pub use read::{
    Mappings, ScannedPages, as_root, as_user, is_exiting, read_host, read_mappings, read_process, read_ranges, refusal,
    timed,
};
pub(crate) use read::{free_swap, swappiness};
pub(crate) use scan::zero_pages;
pub use smaps::{Smaps, parse_maps, parse_rollup, parse_smaps};
pub use sockets::listeners;
pub use stacks::find_stacks;
pub use start::{is_sanitizer, is_secure, is_trackers_library, read_start};
pub use status::{Status, has_more_rights_than_its_user, parse_limits, parse_status, status_field};
pub use unpacked::find as find_unpacked;
