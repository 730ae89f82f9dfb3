//! The JVMs that the cases run on, and the tools of a JDK that they need.

use std::process::Command;
use std::sync::OnceLock;

pub use crate::stage::Jdk;
use crate::stage::{installed, vms};

pub fn jdks() -> &'static [Jdk] {
    static JDKS: OnceLock<Vec<Jdk>> = OnceLock::new();
    JDKS.get_or_init(vms)
}

/// The fixtures are compiled for 17.
pub fn javac() -> Command {
    let mut command = installed().first().expect("a JDK (run .ci/setup)").tool("javac");
    command.args(["--release", "17"]);
    command
}

/// An installed JDK: in the package of 21, jcmd is not executable.
#[allow(dead_code, reason = "shared with other test programs")]
pub fn jcmd() -> Command {
    installed().first().expect("a JDK (run .ci/setup)").tool("jcmd")
}
