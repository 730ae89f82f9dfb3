//! jemalloc 5's heap, read from outside: which pages are live, dirty, muzzy or given back, and how many blocks of each run of
//! small blocks are in use. The target runs on: it is neither stopped nor signalled. No symbol and no version is asked for.
//!
//! jemalloc keeps one record for each extent (a run of pages), and a radix tree from addresses to records:
//!
//! ```text
//! .bss ── root: 2^18 words ──▶ leaf: 2^18 words ──▶ record of an extent: bits, address, size, …     (tree, extent)
//!           one for each GiB       one for each page
//! ```
//!
//! The proof that a word of .bss points at a leaf lies in the leaf: its n-th word leads to a record that states the address of
//! page n, in the same GiB for all of them. The number of that GiB gives the start of the root, and all other words of the root
//! have to hold likewise.
//!
//! Left out: builds for 57-bit addresses (three levels), pages other than 4 KiB, and the free part of huge pages that jemalloc
//! manages itself (`hpa:true`).

mod extent;
mod tree;
mod walk;

pub use walk::{Unopened, walk};

#[cfg(test)]
mod tests;
