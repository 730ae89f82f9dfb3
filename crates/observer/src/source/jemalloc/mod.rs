//! Reads jemalloc 5's heap from outside: which pages are live, dirty, muzzy or released, and how many blocks of each
//! run of small blocks are in use. The target keeps running: it is neither stopped nor signalled. Neither symbols nor
//! the version are needed.
//!
//! jemalloc keeps one record for each extent (a range of pages), and a radix tree from addresses to records:
//!
//! ```text
//! .bss ── root: 2^18 words ──▶ leaf: 2^18 words ──▶ record of an extent: bits, address, size, …     (tree, extent)
//!           one for each GiB       one for each page
//! ```
//!
//! A word of .bss is proven to point at a leaf by the leaf itself: its n-th word leads to a record with the address of
//! page n, in the same GiB for all words. The number of that GiB gives the start of the root, and all other words of
//! the root must fit too.
//!
//! Not supported: builds for 57-bit addresses (three levels), page sizes other than 4 KiB, and the free part of huge
//! pages that jemalloc manages itself (`hpa:true`).

mod extent;
mod tree;
mod walk;

pub use walk::{Unopened, walk};

#[cfg(test)]
mod tests;
