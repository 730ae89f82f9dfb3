//! The tracker: what runs in the target process. It only counts, and writes raw facts into the segment.
//!
//! ```text
//! hook → guard → stack → account → ║ segment ║
//! ```
//!
//! It never allocates from the allocator that it tracks (`no_std` without `alloc`: the compiler rejects it), takes no
//! lock that a fork or a signal handler could find held, and never aborts the program. After boot it opens files only
//! for what ARCHITECTURE.md lists under "What is deliberately absent".
#![cfg_attr(not(test), no_std)]
#![warn(unreachable_pub)]

pub mod account;
pub mod agent;
pub mod boot;
pub mod fixed_string;
pub mod guard;
pub mod hook;
pub mod options;
pub mod patch;
pub mod phase;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod rules;
pub mod segment;
pub mod stack;
pub mod stack_bounds;
pub mod summary;
pub mod sys;
