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
//! …             own mappings               32 B        4,096   append; never removed
//! ```
//!
//! The exact offsets are in [`layout`], and in the section table of each file; a reader must use the section table.
//! The file is sparse: `file_bytes` is an upper bound, and only written pages take memory or disk space.
//! The byte order is that of the machine; a reader with another order sees a wrong magic number and stops.
//!
//! # Lifetime
//!
//! The tracker makes the file before `main` or at an attach, maps it `MAP_SHARED`, closes the descriptor and doesn't
//! open the file again. A child of fork() makes its own file when it first allocates, frees or maps anything. Its books
//! begin with those of its parent at the instant of fork(). If other threads of the parent were inside the tracker, a
//! few of their operations may be missing, or may be there too early. Each section is a separate mapping that grows
//! with use, under a limit on address space (RLIMIT_AS) or on writable private memory (RLIMIT_DATA), after a detach,
//! and where mlockall(2) would make the whole segment resident. Pages are populated before the first store: by
//! `MADV_POPULATE_WRITE`; before Linux 5.14 by futex(2); on tmpfs, once a program other than a JVM runs, by a system
//! call that reads them. So a full file system gives an error code and not a SIGBUS. The page cache holds the pages, so
//! the file survives every kind of death of the process.
//!
//! # Sites
//!
//! ```text
//! row ──caller──▶ caller 5            frames[8], category                       blocks of no known site, or mode off
//! row ──caller──▶ site 77 ──parent──▶ caller 5                                  exact: all its blocks; sampled: the samples
//!                    ├─────stack────▶ frame 900 ─parent▶ frame 31 ─▶ … ─▶ 0     innermost … outermost, interned
//!                    └─frames[0]────▶ site samples 12                           Σ weights and variances of its samples
//! ```
//! A site's rows are added to those of its caller. In *sampled* mode only sampled blocks are booked in their site: the
//! rows of a site have the unweighted samples, and its figures are estimates. In *exact* mode the rows are exact,
//! and estimates are kept too (ages, temporary share, sizes). Mappings refer to their site in both modes.
//!
//! Rows refer to a caller or to a site by the same kind of number. So a block's key, the peaks, the drift and the
//! shared rows are the same for both, and a sum by category needn't distinguish them. There are 2^20 rows, because an
//! exact site needs one for each thread that allocates there; the key of a block has 20 bits for the row.
//!
//! # What a reader may rely on
//!
//! 1. A writer claims an entry by raising `used`, then writes its identity (key, frames, name), and only then refers to
//!    it. So every entry that another one refers to is complete. If an entry below `used` has the key 0, its writer is
//!    still between the first two steps, or was killed there; the entry is empty. `used` only grows, except when such
//!    an entry finds no space.
//! 2. The six counters of a row are monotone, and each has one writer. A block's allocation is booked before the
//!    program learns its address, its release before the real `free`. So a reader that reads *all* `free_*` of all rows
//!    first and *all* `alloc_*` afterwards, up to a newer `used`, gets `allocated ≥ freed` for each caller: no figure
//!    is ever negative.
//! 3. Live = Σ rows (alloc − free). Σ categories = total, since both are sums of the same rows.
//! 4. A frame, a site and a method refer (by parent, stack, names) only to entries that were complete before. In the
//!    same section these have smaller indexes, so there is no cycle.
//! 5. A sample is in the table before the program learns the block's address, and leaves it before the real `free`.
//!    The estimates of its site are raised after it entered; their `free_*` fields after it left.
//! 6. A process killed at any instant leaves at most one half-booked operation for each thread.
//!
//! # READER ALGORITHM
//!
//! read header, check magic, version, record sizes → read rows and site samples, keep `free_*` → read header and rows
//! again, keep `alloc_*` (an entry that is new has freed nothing) → read samples and the map → read header and callers
//! → read header, site samples again, frames, methods, names, threads, modules, categories up to `used` (a section that
//! refers to another one is read before it) → Σ by site, Σ by caller, Σ by category. The map has its own `seq`: a copy
//! is valid if `seq` was even, and the same before and after the copy. If `seq` stays odd, a copy is valid if two
//! copies are equal.
#![no_std]
#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod agent;
pub mod counters;
pub mod layout;
mod record;
pub mod rules;
pub mod sites;
pub mod vmap;

pub use counters::Counter;
pub use layout::*;
pub use record::Record;
