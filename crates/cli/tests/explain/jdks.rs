//! The JVMs that the cases run on: every JDK from 17 on that the machine has, and a JRE 21 out of a Python package, since
//! Debian 12 has none.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::stage::{in_this_tier, is_full, jre_21};

#[derive(Debug)]
pub struct Jdk {
    pub home: PathBuf,
    pub major: u32,
}

impl Jdk {
    fn at(home: PathBuf) -> Option<Jdk> {
        let release = std::fs::read_to_string(home.join("release")).ok()?;
        let major = release.split_once("JAVA_VERSION=\"")?.1.split(['.', '"']).next()?.parse().ok()?;
        (major >= 17 && home.join("bin/java").exists()).then_some(Jdk { home, major })
    }

    pub fn java(&self) -> Command {
        Command::new(self.home.join("bin/java"))
    }
}

/// Of the JDKs under /usr/lib/jvm and of JAVA_HOME one for each major version, and 21; of these the ones of this
/// tier. Oldest first.
pub fn jdks() -> &'static [Jdk] {
    static JDKS: OnceLock<Vec<Jdk>> = OnceLock::new();
    JDKS.get_or_init(|| {
        let installed = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path());
        let named = std::env::var_os("JAVA_HOME").map(PathBuf::from);
        let homes = installed.chain(named).filter_map(|home| home.canonicalize().ok());
        let mut jdks: Vec<Jdk> = homes.filter_map(Jdk::at).collect();
        if is_full() && jdks.iter().all(|jdk| jdk.major != 21) {
            jdks.push(Jdk::at(jre_21()).expect("the package holds a JRE"));
        }
        jdks.sort_by_key(|jdk| jdk.major);
        jdks.dedup_by_key(|jdk| jdk.major);
        jdks.retain(|jdk| in_this_tier(jdk.major));
        jdks
    })
}

/// javac of whichever JDK has one; the fixtures are compiled for 17.
pub fn javac() -> Command {
    let compiler = jdks().iter().map(|jdk| jdk.home.join("bin/javac")).find(|path| path.exists());
    let mut command = Command::new(compiler.expect("a JDK with javac under /usr/lib/jvm or JAVA_HOME"));
    command.args(["--release", "17"]);
    command
}

/// jcmd of whichever JDK has one: the package of 21 has it without the right to run it.
#[allow(dead_code)]
pub fn jcmd() -> Command {
    let runs = |path: &PathBuf| path.metadata().is_ok_and(|of| of.permissions().mode() & 0o111 != 0);
    let found = jdks().iter().map(|jdk| jdk.home.join("bin/jcmd")).find(runs);
    Command::new(found.expect("a JDK with jcmd under /usr/lib/jvm or JAVA_HOME"))
}
