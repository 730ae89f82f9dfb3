//! Go's heap, read from outside: which pages hold spans of objects, stacks or free memory, how many objects are live, and what was
//! given back. The target runs on. No symbol and no version is asked for.
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
//! The proof of the layout is a sum: spans in use, and pages free and given back, have to be what the runtime's own counters state.
//!
//! Left out: Go as a library of another program (the runtime is searched for in the executable), programs whose section names were
//! removed, and addresses of other than 48 bits.

mod pacer;
mod pages;
mod records;
mod spans;
mod walk;

pub use walk::{Places, walk};

#[cfg(test)]
mod tests;
