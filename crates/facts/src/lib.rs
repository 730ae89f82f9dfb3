//! Plain types that the stages hand on: amounts, gaps, how a process ended, the names of lines, and the snapshot of a
//! process. No I/O, no dependency.

#![warn(unreachable_pub)]

pub mod ending;
pub mod gap;
pub mod lines;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod shell;
pub mod snapshot;
pub mod units;
