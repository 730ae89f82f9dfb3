//! The segment: the one file that a tracked process and its observers share.
//!
//! ```text
//! offset        what                      entry     capacity   who writes
//! 0             header                    4 KiB            1   boot; counters: every thread
//! 4 KiB         schema (text)             4 KiB            1   boot: names and units of what follows
//! 8 KiB         command (text)            8 KiB            1   boot: exe NUL argv[0] NUL argv[1] …
//! 16 KiB        categories                256 B        1,024   append; figures: every thread, atomically
//! 272 KiB       modules                   256 B        4,096   append, on the slow path
//! …             threads                   128 B       32,768   append; a dead thread's slot is adopted
//! …             callers                   128 B       65,536   append; never removed
//! …             rows                       64 B      262,144   append; one owner thread each
//! …             virtual memory map          raw       16 MiB   under its lock; format in vmap.rs
//! ```
//!
//! The exact offsets are in [`layout`], and in each file's own section table, which is what a reader must use.
//! The file is sparse: `file_bytes` is its bound, the blocks under the pages that were written are its cost.
//! Byte order is the writer's (the machine's); a reader of another order sees a wrong magic and stops.
//!
//! # Lifetime
//!
//! The tracker makes the file before `main`, maps it `MAP_SHARED`, closes the descriptor and never opens anything again.
//! Pages are populated (`MADV_POPULATE_WRITE`) before the first store into them, so that a full file system is an error
//! code and not a SIGBUS. Since the page cache holds the pages, the file outlives the process whatever kills it.
//!
//! # What a reader may rely on
//!
//! 1. `used` of a section only grows, and an entry below `used` has its identity (key, frames, name) complete:
//!    identity first, then `used` with release order. Rows and callers are claimed by index, so an entry below
//!    `used` whose key is 0 is one whose owner was killed, or is still, between the two steps: it holds nothing.
//! 2. The six counters of a row are monotone, and each has one writer. A block's allocation is booked before the
//!    program learns its address, its release before the real `free`. So a reader that reads *all* `free_*` of all rows
//!    first and *all* `alloc_*` afterwards has, for each caller, `allocated ≥ freed`: nothing is ever negative.
//! 3. Live = Σ rows (alloc − free). Σ categories = total, since both are sums of the same rows.
//! 4. A process killed at any instant leaves at most one half-booked operation for each thread.
//!
//! # READER ALGORITHM
//!
//! read header, check magic, version, record sizes → read categories, modules, threads, callers up to `used` → read
//! rows, keep `free_*` → read rows again, keep `alloc_*` → Σ by caller, Σ by category. The map has its own `seq`.
#![no_std]
#![deny(unsafe_code)]

pub mod counters;
pub mod layout;
mod record;
pub mod rules;
pub mod vmap;

pub use counters::{Counter, CounterRow};
pub use layout::*;
