//! /proc/PID: what exists, what is resident, who runs.

mod residency;
mod target;

pub use residency::{Residency, read_residency};
pub use target::{Absent, Target};
