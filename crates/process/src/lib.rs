//! Other processes as the kernel shows them: /proc, cgroups, the kernel's log, their memory. `foreign` is the one place
//! that opens files of others.

#![warn(unreachable_pub)]

pub mod cgroup;
pub mod foreign;
pub mod kernel_log;
#[cfg(test)]
#[path = "../../../fixtures/mutated.rs"]
mod mutated;
#[doc(hidden)]
pub mod parsers;
pub mod proc;
pub mod processes;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
