//! Reads the heap of musl's malloc (mallocng, musl 1.2.1 and later) from outside: which slots hold live blocks, which
//! are free, and where its records lie. The target keeps running. No symbols are needed.
//!
//! Blocks of one size lie in the slots of a group. A group is a mapping, or lies in a slot of a larger group. Its
//! record (meta) lies elsewhere, in pages that begin with a secret:
//!
//! ```text
//! .bss ── context: secret, …, first area ──▶ area: secret, next, metas ──▶ area ──▶ …       (context, metas)
//!                                                            │
//!                                           meta: group, two masks of free slots, size class, pages
//!                                                            ▼
//!                                           group: its meta, slot, slot, …                   (walk)
//! ```
//!
//! The secret, 64 random bits, proves the context and each area. A group's first word, the address of its meta, proves
//! the meta.
//!
//! Not read: musl's older malloc (before 1.2.1), and the ends of libraries' data pages that musl adds to its heap.
//! These stay in the line of the libraries.

mod context;
mod metas;
mod walk;

pub use context::WalkError;
pub use walk::walk;

#[cfg(test)]
mod tests;
