//! The books. All lasting figures lie in the segment ([`crate::segment`]); state that only speeds up access to them is
//! private memory ([`thread`]).
//!
//! ```text
//! block → key (caller, requested) → row of (this thread, caller) → six monotone counters       exact, lock-free
//!                                            └ drift → caller, category, total: live and peak    under one try-lock
//! ```

pub mod blocks;
pub mod classes;
pub mod classify;
pub mod control;
pub mod early;
pub mod image;
pub mod inherited;
pub mod keys;
pub mod mapping;
pub mod memo;
pub mod own_mappings;
pub mod page_sizes;
pub mod peaks;
pub mod pending;
pub mod remote_free;
pub mod retained;
pub mod rows;
pub mod samples;
pub mod sampling;
pub mod segment_file;
pub mod side_table;
pub mod thread;
pub mod vmas;
