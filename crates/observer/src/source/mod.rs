//! Where facts come from. Each source has its I/O in `read` and its formats in `parse` (bytes in, facts out). It
//! returns `Sourced<Facts>`: what it found, and a gap for what it could not find.
//! `collect` decides in which order the sources are read.

pub mod glibc;
pub(crate) mod golang;
pub(crate) mod heap_data;
pub mod hotspot;
pub(crate) mod jemalloc;
pub mod known_files;
pub(crate) mod load_segments;
pub(crate) mod mallocng;
pub(crate) mod mimalloc;
pub mod native_image;
pub(crate) mod native_objects;
pub(crate) mod other_heaps;
pub(crate) mod pymalloc;
mod python_frames;
pub(crate) mod tcmalloc;
pub(crate) mod v8;

#[cfg(test)]
pub(crate) mod made_image;
