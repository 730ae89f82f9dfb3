//! The parts of a recording that could not be read.

use std::fmt;
use std::path::PathBuf;

/// A part of a recording that could not be read. The reader continues after it and never panics on what a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Name of the input; `None` for an input without a name.
    pub file: Option<PathBuf>,
    /// Bytes from the start of the input.
    pub offset: u64,
    /// What is wrong: one clause, without a full stop.
    pub what: String,
    /// What is missing because of the flaw.
    pub effect: &'static str,
}

impl fmt::Display for Flaw {
    /// `FILE, offset N: WHAT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}, ", file.display())?;
        }
        write!(f, "offset {}: {}", self.offset, self.what)
    }
}
