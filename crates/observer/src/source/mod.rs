//! Where facts come from: each source has its I/O in `read` and its formats in `parse` (bytes in, facts out).

pub mod cgroup;
pub mod glibc;
pub mod memory;
pub mod proc;
