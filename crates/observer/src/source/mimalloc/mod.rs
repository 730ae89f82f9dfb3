//! mimalloc 2.x, read from outside: which blocks are live, which are free in pages that also hold live ones, and which pages
//! are free and still resident. The target runs on. No symbol and no version is needed.
//!
//! mimalloc takes memory in segments, aligned to 32 MiB (64 MiB before 2.0.9). Each begins with its own records:
//!
//! ```text
//! segment ── header: pages in use, cookie, slices, owner                              (shape)
//!    │       records, one for each slice of 64 KiB: a page (block size, capacity,     (segment)
//!    │       blocks in use, lists of free blocks) or a free span
//!    ├────── pages: blocks of one size each; a block that another thread freed stays
//!    │       in its page's list until the owner takes it back                         (segment)
//!    └────── free spans: resident until mimalloc purges them
//! arena ───── 1 GiB that segments are cut from (from 2.1 on)                          (walk)
//! ```
//!
//! A build decides where the fields lie. The proof is threefold. The slices of a segment add up to its end, and their pages to
//! the count in the header. The cookie is the segment's address XOR one secret, which all segments share. And the
//! secret is in the data of the object that holds mimalloc (`_mi_heap_main.cookie`).
//!
//! Left out: mimalloc 1.x and 3.x (without such segments: they stay closed), and builds with another slice size.

mod segment;
mod shape;
mod walk;

pub use walk::{Unopened, walk};

#[cfg(test)]
mod tests;
