//! malloc and free in assembly for x86-64: [`glibc`] over glibc's malloc, [`other`] over any other. [`parts`] has what
//! both share, [`pages`] the steps for keys in the array of a page, [`table`] those for other blocks without a trailer.
//! [`operators`] has libstdc++'s operator new and delete.

pub mod glibc;
pub mod operators;
pub mod other;
pub mod pages;
mod parts;
pub mod table;

pub use glibc::{free_glibc, free_glibc_in_windows};
pub use parts::at;
