//! /proc/PID: what exists, what is resident, who runs.

mod allocators;
mod read;
mod residency;
mod smaps;
mod stacks;
mod status;
mod target;

pub use allocators::recognise_allocators;
pub use read::{
    Mappings, PERMISSION_REMEDY, read_host, read_mappings, read_process, read_threads, refusal, seconds_since_epoch,
    timed,
};
pub use residency::{Residency, read_residency};
pub use smaps::{Smaps, parse_maps, parse_rollup, parse_smaps};
pub use stacks::find_stacks;
pub use target::{Absent, Target};
