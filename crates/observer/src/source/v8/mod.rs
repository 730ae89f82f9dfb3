//! Reads V8's heap from outside: objects and free space in its pages, by generation, for each isolate (the main
//! thread's and each worker's). The target keeps running. Neither symbols nor the version are needed.
//!
//! V8's heap consists of pages of 256 KiB, aligned to their size, and of larger ones with one large object each. Each
//! page has a record. Up to V8 12, the record is the start of the page; later, the page's second word points at it:
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
//! Versions order the record's fields differently, so the order is found by search (`layout`). The proof is a sum: each
//! space states the bytes that it has committed, and all its pages together must have that size. The field with the
//! bytes allocated is proven in the same way.
//!
//! Array buffers lie outside these pages, in malloc's memory (`buffers`).
//!
//! Not supported: pointer compression and the sandbox (Chromium, Electron). Their headers contain no pointers, so such
//! a heap isn't read.

mod buffers;
mod layout;
mod walk;

pub use walk::{WalkError, walk};

#[cfg(test)]
mod tests;
