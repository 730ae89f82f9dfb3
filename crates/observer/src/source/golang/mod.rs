//! Reads Go's heap from outside: which pages hold spans of objects, stacks or free memory, and how many objects are
//! live. Also finds the pages that were given back to the kernel (Go: scavenged). The target keeps running. Neither
//! symbols nor the version are needed.
//!
//! The runtime keeps a record for each run of pages of 8 KiB (a span), and two bits for each page:
//!
//! ```text
//! .noptrbss ── mheap_.pages: five summaries, whose capacities no other data has                                   (pages)
//!   │            chunks ──▶ for each 4 MiB: 512 bits "allocated", 512 bits "given back"
//!   │            ranges of the address space in use
//!   ├───────── mheap_.allspans ──▶ span: start, pages, …, objects in use, class, state, size, end                 (spans)
//!   ├───────── gcController: GOGC, memory limit, live bytes at the last collection, goal; bytes in spans, given back, free (pacer)
//!   └───────── lists of the memory that its records lie in                                                      (records)
//! ```
//!
//! The proof of the layout is a sum: the bytes in spans, in free pages and in pages given back must equal the runtime's
//! own counters.
//!
//! Not supported: Go as a library of another program (only the executable is searched for the runtime), programs whose
//! section names were removed, and addresses that don't have 48 bits.

mod pacer;
mod pages;
mod records;
mod spans;
mod walk;

pub use walk::{GoMappings, walk};

#[cfg(test)]
mod tests;
