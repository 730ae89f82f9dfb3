//! /proc/PID: mappings, residency, and facts about the process.

pub use crate::foreign::{Absent, Target};

pub(crate) mod access;
pub(crate) mod allocators;
mod read;
mod residency;
mod scan;
mod smaps;
mod stacks;
pub(crate) mod status;
mod unpacked;

pub use access::Closed;
pub use read::{
    KnownMappings, Mappings, Pages, file_remedy, is_exiting, open_jars, permission_remedy, read_allocators, read_host,
    read_mappings, read_pages, read_process, read_residency, read_smaps, read_these_threads, read_threads, refusal,
    seconds_since_epoch, timed, why_closed,
};
pub use scan::zero_pages;
pub use smaps::{Smaps, parse_maps, parse_rollup, parse_smaps};
pub use stacks::find_stacks;
pub use status::{Status, parse_status};
pub use unpacked::find as find_unpacked;
