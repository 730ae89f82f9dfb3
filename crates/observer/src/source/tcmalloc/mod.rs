//! Reads the heap of gperftools' tcmalloc from outside: which pages hold live blocks, and which are free in the page
//! heap or released. Also counts the free blocks that the central lists, transfer caches and threads keep. The target
//! keeps running. Neither symbols nor the version are needed.
//!
//! tcmalloc keeps one record for each run of pages (a span), and a two-level table from pages to spans, in .bss:
//!
//! ```text
//! .bss ── root: 2^17 words ──▶ leaf: 2^18 words ──▶ span: start, length, …, blocks in use, size class, state     (pagemap)
//!   │       one for 2 GiB        one for each page of 8 KiB
//!   ├─── PageHeap::Stats, after the root: bytes of all spans, of the free ones, of the released ones             (pagemap)
//!   ├─── SizeMap: block size of each class                                                                       (sizes)
//!   ├─── central lists, one for each class: spans, free blocks, transfer cache                                   (caches)
//!   └─── ThreadCache ──▶ ThreadCache ──▶ …: a list of free blocks for each class                                 (caches)
//! ```
//!
//! The table is proven by sums: the lengths of all spans, by state, must equal tcmalloc's own counters. The spans prove
//! the other records: blocks must fit into spans, and the central lists must have the same counts.
//!
//! Not supported: Google's newer tcmalloc (another layout; not read), builds with a three-level table
//! (TCMALLOC_SMALL_BUT_SLOW), and versions whose thread caches lack the block size (before 2.6).

mod caches;
mod pagemap;
mod sizes;
mod walk;

pub use walk::{WalkError, walk};

#[cfg(test)]
mod tests;
