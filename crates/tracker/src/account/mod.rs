//! The books. Everything that lasts lies in the segment ([`segment`]); what only speeds up the way to it is private
//! ([`thread`]).
//!
//! ```text
//! block → key (caller, requested) → row of (this thread, caller) → six monotone counters       exact, lock-free
//!                                            └ drift → caller, category, total: live and peak    under one try-lock
//! ```

pub mod blocks;
pub mod callers;
pub mod categories;
pub mod control;
pub mod early;
pub mod frames;
pub mod image;
pub mod index;
pub mod inherited;
pub mod keys;
pub mod mapping;
pub mod memo;
pub mod own;
pub mod peaks;
pub mod retained;
pub mod rows;
pub mod samples;
pub mod sampling;
pub mod segment;
pub mod segment_file;
pub mod table;
pub mod thread;
pub mod vmas;
pub mod windows;
