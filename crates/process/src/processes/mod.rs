//! The processes of this machine, as far as /proc shows them: to choose one by its name, or from a list.
//!
//! A listing reads two small files of each process. Its mappings are read only to see whether it is a JVM, and whether
//! the tracker is in it; `read` remembers the answer.

mod parse;
pub(crate) mod proc_view;
mod read;

pub use parse::{Identity, JvmLibrary, ProcessKind, is_segment, jvm_library};
pub use proc_view::{Lacking, ProcView};
pub use read::{KnownKinds, Listed, Listing, container_of, executable_of, list};
