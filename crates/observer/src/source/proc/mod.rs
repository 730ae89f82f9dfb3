//! /proc/PID: what exists, what is resident, who runs.

mod allocators;
mod read;
mod residency;
mod smaps;
mod stacks;
mod status;
mod target;

pub use read::{
    Mappings, PERMISSION_REMEDY, read_allocators, read_host, read_mappings, read_process, read_residency, read_threads,
    refusal, seconds_since_epoch, timed,
};
pub use residency::Residency;
pub use smaps::{Smaps, parse_maps, parse_rollup, parse_smaps};
pub use stacks::find_stacks;
pub use target::{Absent, Target};
