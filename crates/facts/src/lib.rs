//! Plain types that one stage passes to the next: amounts, gaps, how a process ended, the names of lines, and the
//! snapshot of a process. No I/O; the only crate below is `segment`.

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
