//! Copies programs that a test runs.

use std::path::Path;
use std::process::Command;

/// Copies a program by cp(1). A file that this process writes is also open in each child that another test forks at
/// that moment, until the child's exec; until then execve(2) refuses to run the file (ETXTBSY).
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().expect("cp").success());
}
