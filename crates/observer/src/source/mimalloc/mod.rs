//! Reads the heap of mimalloc 2.x from outside: which blocks are live, and which are free in pages that also hold live
//! ones. It also finds the pages that are free and still resident. The target keeps running. Neither symbols nor the
//! version are needed.
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
//! The offsets of the fields depend on the build. Three facts prove them. The slices of a segment add up to its end,
//! and its pages to the count in the header. The cookie is the segment's address XOR a secret that all segments share.
//! And the secret is in the data of the object that contains mimalloc (`_mi_heap_main.cookie`).
//!
//! Not supported: mimalloc 1.x and 3.x (they have no such segments, so their heaps aren't read), and builds with
//! another slice size.

mod segment;
mod shape;
mod walk;

pub(crate) use walk::Unread;
pub use walk::{WalkError, walk};

#[cfg(test)]
mod tests;
