//! The processes of this machine, as far as /proc shows them: to choose one by its name, or from a list.
//!
//! A listing reads two small files of each process. Its mappings are read only to see whether it is a JVM, and whether
//! the tracker is in it; `read` remembers the answer.

mod parse;
mod read;
pub(crate) mod seen;

pub use parse::{Identity, ProcessKind, is_segment};
pub use read::{KnownKinds, Listed, container_of, executable_of, list};
pub use seen::{Lacking, ProcView};
