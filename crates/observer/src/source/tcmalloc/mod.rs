//! tcmalloc of gperftools, read from outside: which pages hold live blocks, which lie free in the page heap or were given back,
//! and how many blocks the central lists, transfer caches and threads keep free. The target runs on. No symbol and no version
//! is asked for.
//!
//! tcmalloc keeps one record for each run of pages (a span), and a table of two levels from pages to spans, in .bss:
//!
//! ```text
//! .bss ── root: 2^17 words ──▶ leaf: 2^18 words ──▶ span: start, length, …, blocks in use, size class, state     (pagemap)
//!   │       one for 2 GiB        one for each page of 8 KiB
//!   ├─── PageHeap::Stats, behind the root: bytes of all spans, of the free ones, of those given back             (pagemap)
//!   ├─── SizeMap: block size of each class                                                                       (sizes)
//!   ├─── central lists, one for each class: spans, free blocks, transfer cache                                   (caches)
//!   └─── ThreadCache ──▶ ThreadCache ──▶ …: a list of free blocks for each class                                 (caches)
//! ```
//!
//! The proof of the table is a sum: all spans that it leads to have to have the lengths that tcmalloc's own counters state, in
//! each state. The other records are proven by the spans: blocks have to fit them, and the central lists' counts are theirs.
//!
//! Left out: Google's newer tcmalloc (another layout: it stays closed), builds with a table of three levels
//! (TCMALLOC_SMALL_BUT_SLOW), and versions whose thread caches don't state the block size (before 2.6).

mod caches;
mod pagemap;
mod sizes;
mod walk;

pub use walk::{Unopened, walk};

#[cfg(test)]
mod tests;
