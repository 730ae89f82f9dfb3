//! What of a recording could not be read.

use std::fmt;
use std::path::PathBuf;

/// A part of a recording that could not be read. Reading goes on behind it; nothing that a file says ends in a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The name that the input was given; `None` for an input without one.
    pub file: Option<PathBuf>,
    /// Bytes from the start of the input.
    pub offset: u64,
    /// One clause, without a full stop.
    pub what: String,
    /// What is missing because of it.
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
