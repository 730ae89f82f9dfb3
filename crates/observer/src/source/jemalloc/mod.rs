//! Reads jemalloc 5's heap from outside: which pages are live, dirty, muzzy or released. For each run of small blocks,
//! it also reads how many blocks are in use. The target keeps running: it is neither stopped nor signalled. Neither
//! symbols nor the version are needed.
//!
//! jemalloc keeps one record for each extent (a range of pages), and a radix tree from addresses to records:
//!
//! ```text
//! .bss ── root: 2^18 words ───────────────────────────────▶ leaf: 2^18 elements ──▶ record of an extent:
//!           one for each GiB                                  one for each page      bits, address, size, …
//!
//! .bss ── root: 2^15 words ──────▶ node: 2^15 words ───────▶ leaf: 2^15 elements ──▶ the same
//!           one for each 4 TiB       one for each 128 MiB     one for each page      (tree, extent)
//! ```
//!
//! The second shape is that of a build on a CPU with 57-bit addresses, such as Debian 13's.
//!
//! A leaf itself proves that a word of .bss points at it. Its n-th element leads to a record with the address of page
//! n, in the same range for all elements. The number of that range gives the start of the root, and all other words of
//! the root must fit too. A node is proven by a leaf below it, whose range must be that of its position.
//!
//! Not supported: builds of 5.0 to 5.2 for 57-bit addresses, page sizes other than 4 KiB, and the free part of huge
//! pages that jemalloc manages itself (`hpa:true`).

mod extent;
mod tree;
mod walk;

pub use walk::{WalkError, walk};

#[cfg(test)]
mod tests;
