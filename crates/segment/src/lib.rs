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
//! …             callers and sites         128 B      131,072   append; never removed
//! …             rows                       64 B    1,048,576   append; one owner thread each
//! …             virtual memory map          raw       16 MiB   under its lock; format in vmap.rs
//! …             frames                     16 B    1,048,576   append; never removed
//! …             methods                    64 B       65,536   append; never removed
//! …             names (text)               text       16 MiB   append; never removed
//! …             samples                    64 B       65,536   live blocks that were sampled; entries are used again
//! …             site samples              256 B      131,072   append; figures: every thread, atomically
//! ```
//!
//! The exact offsets are in [`layout`], and in each file's own section table, which is what a reader must use.
//! The file is sparse: `file_bytes` is its bound, the blocks under the pages that were written are its cost.
//! Byte order is the writer's (the machine's); a reader of another order sees a wrong magic and stops.
//!
//! # Lifetime
//!
//! The tracker makes the file before `main`, maps it `MAP_SHARED`, closes the descriptor and never opens anything again. A
//! child of fork() makes its own when it first allocates, frees or maps anything; its books begin as its parent's were at the
//! instant of fork(). Other threads of the parent that were at work then may be in them with a few operations more or less.
//! Under a limit on address space (RLIMIT_AS) each section is a mapping of its own that grows with use.
//! Pages are populated (`MADV_POPULATE_WRITE`, or on tmpfs read by a system call) before the first store into them, so
//! that a full file system is an error code and not a SIGBUS. Since the page cache holds the pages, the file outlives
//! the process whatever kills it.
//!
//! # Sites
//!
//! ```text
//! row ──caller──▶ caller 5            frames[8], category                       blocks of no known site, or mode off
//! row ──caller──▶ site 77 ──parent──▶ caller 5                                  exact: all its blocks; sampled: the samples
//!                    ├─────stack────▶ frame 900 ─parent▶ frame 31 ─▶ … ─▶ 0     innermost … outermost, interned
//!                    └─frames[0]────▶ site samples 12                           Σ weights and variances of its samples
//! ```
//! A site's rows add to its caller's. In *sampled* mode only sampled blocks are booked in their site, so what a site's
//! rows hold are the samples themselves, unweighted; its figures are the estimates. In *exact* mode its rows are exact,
//! and estimates are kept too (ages, temporary share, sizes). Mappings name their site in both modes.
//!
//! Rows name a caller or a site by the same number, so a block's key, the peaks, the drift and the shared rows are the
//! same for both, and a sum by category never asks which it was. The rows are 2^20 because an exact site costs one for
//! each thread that allocates there; the key of a block has 20 bits for them.
//!
//! # What a reader may rely on
//!
//! 1. An entry is claimed by raising `used`, gets its identity (key, frames, name) and is named by others after that: what
//!    is referred to is complete. An entry below `used` whose key is 0 is one whose owner was killed, or is still, between
//!    the first two steps: it holds nothing. `used` only grows, but for such entries that found no room.
//! 2. The six counters of a row are monotone, and each has one writer. A block's allocation is booked before the
//!    program learns its address, its release before the real `free`. So a reader that reads *all* `free_*` of all rows
//!    first and *all* `alloc_*` afterwards, up to a newer `used`, has, for each caller, `allocated ≥ freed`: nothing is
//!    ever negative.
//! 3. Live = Σ rows (alloc − free). Σ categories = total, since both are sums of the same rows.
//! 4. A frame's, a site's and a method's references (parent, stack, names) are to entries that were complete before it,
//!    with smaller indexes where they are of its own section: no cycle can be built.
//! 5. A sample is in the table before the program learns the block's address, and leaves it before the real `free`.
//!    Its site's estimates are raised after it entered, and their free side after it left.
//! 6. A process killed at any instant leaves at most one half-booked operation for each thread.
//!
//! # READER ALGORITHM
//!
//! read header, check magic, version, record sizes → read rows and site samples, keep `free_*` → read header and rows
//! again, keep `alloc_*` (an entry that is new has freed nothing) → read samples and the map → read header and callers →
//! read header, site samples again, frames, methods, names, threads, modules, categories up to `used` (what refers before
//! what is referred to) → Σ by site, Σ by caller, Σ by category. The map has its own `seq`: a copy is good if it was even
//! and the same before and after; if it stays odd, when two copies are equal.
#![no_std]
#![deny(unsafe_code)]

pub mod agent;
pub mod counters;
pub mod layout;
mod record;
pub mod rules;
pub mod sites;
pub mod vmap;

pub use counters::{Counter, CounterRow};
pub use layout::*;
pub use record::Record;
