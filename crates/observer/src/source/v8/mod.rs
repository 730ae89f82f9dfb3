//! V8's heap, read from outside: objects and free space in its pages, by generation, for each isolate (the main thread's and each
//! worker's). The target runs on. No symbol and no version is asked for.
//!
//! V8 takes its heap in pages of 256 KiB, aligned to that, and larger ones with one large object each. Each page has a record;
//! up to V8 12 the record begins the page, later the page's second word points at it:
//!
//! ```text
//! page ──▶ record: size, heap, owner, area's start and end, bytes allocated, bytes wasted, high-water mark,
//!            │             │      │     neighbours in the owner's list                                        (layout)
//!            │             │      └──▶ space: vtable, heap, id, bytes committed, …, bytes allocated
//!            │             └──▶ Heap, inside the Isolate, which begins with the two areas of free space where
//!            │                  new objects go: (start, top, limit) of the young and of the old generation     (walk)
//!            └── flags, in the page's own header: 8 and 16 for the two halves of the young generation
//! ```
//!
//! Versions order the record's fields differently, so the order is found by search (`layout`). The proof is a sum: each space states the
//! bytes that it has committed, and all its pages together must have that size. The field with the bytes allocated is proven likewise.
//!
//! Array buffers lie outside these pages, in malloc's memory: `buffers`.
//!
//! Left out: pointer compression and the sandbox (Chromium, Electron), whose headers have no pointers; such a heap stays closed.

mod buffers;
mod layout;
mod walk;

pub use walk::{Unopened, walk};

#[cfg(test)]
mod tests;
