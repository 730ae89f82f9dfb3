//! The books of mappings: who may write the map of [`super::vmas`], in which order, and what was mapped before the tracker came.

pub mod books;
pub mod existing;
mod sync;
mod turns;
