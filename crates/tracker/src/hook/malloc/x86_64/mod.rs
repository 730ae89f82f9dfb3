//! malloc and free in assembly for x86-64: [`glibc`] over glibc's malloc, [`other`] over any other, [`parts`] that both consist of.

pub mod glibc;
pub mod other;
pub mod parts;

pub use glibc::{free_glibc, free_glibc_in_windows};
pub use parts::at;
