//! Why the tracker isn't loaded into a process.

/// The texts follow "process PID".
pub enum Fault {
    /// The loader refused the file, with its reason. In another directory it may work.
    File(String),
    Final(String),
}

impl Fault {
    pub fn text(&self) -> &str {
        match self {
            Fault::File(text) | Fault::Final(text) => text,
        }
    }
}
