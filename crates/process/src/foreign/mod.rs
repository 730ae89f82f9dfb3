//! The only place that opens files of another process or another user.
//!
//! ```text
//! Root (/proc/PID/root, or ours)
//!   └─ path ─▶ openat2 IN_ROOT, O_PATH ─▶ fstat: regular? owner? inode? ─▶ reopened by /proc/self/fd, non-blocking
//!        └─▶ Regular: bounded by `FileKind`, by holes, and by the `Deadline` of the whole command
//! ```
//! The target's owner decides what lies at a path, and may exchange it at any time. It may be a FIFO, a device, a link
//! out of a container, or a sparse file of a terabyte. So nothing is opened before the inode is known to be a regular
//! file, and all checks use descriptors, never a path twice. The contents of a regular file stay untrusted; parsers
//! check them.
//!
//! Only `as_target` and `own_files` write. `Regular::writable` and `Target::memory_for_writing` open for callers that
//! write; everything else here reads.

mod argument;
pub mod as_target;
mod deadline;
mod file_kind;
mod folder;
mod lock;
mod open;
pub mod own_files;
mod pieces;
mod regular;
mod resolve;
mod target;
#[cfg(test)]
mod tests;
mod time_slice;
mod trust;

pub use argument::read_argument;
pub use deadline::{ATTACH, Deadline, LOOK, NAMES};
pub use file_kind::FileKind;
pub use folder::Folder;
pub use open::{Requirements, Root, linked, open};
pub use pieces::Pieces;
pub use regular::{Regular, Why};
pub use target::{Absent, Target, says_ended};
pub use time_slice::begin_turn;
#[cfg(test)]
pub(crate) use time_slice::offers;
pub(crate) use time_slice::{Stopwatch, give_way};
