//! malloc and free in assembly for x86-64: [`glibc`] over glibc's malloc, [`other`] over any other. [`parts`] has what
//! both share, [`table`] the steps for blocks without a trailer.

pub mod glibc;
pub mod other;
pub mod parts;
pub mod table;

pub use glibc::{free_glibc, free_glibc_in_windows};
pub use parts::at;
