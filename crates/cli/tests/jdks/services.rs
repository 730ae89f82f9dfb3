//! Starts fixtures/java/jdks/Service.java on each JDK of the root.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::fixture::{Explained, Fixture, PLIMSOLL, fresh};
use crate::roots::{Root, target};
use crate::stage::{installed, must, repository};

/// The versions in service (docs/jdks.md).
pub const JDKS: [u32; 7] = [8, 11, 17, 21, 25, 26, 27];

/// The service's classes, compiled once for the oldest of them.
fn classes() -> &'static Path {
    static CLASSES: OnceLock<PathBuf> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let folder = fresh("jdks");
        let mut javac = installed().first().expect("a JDK (run .ci/setup)").tool("javac");
        must(javac.args(["-nowarn", "-Xlint:-options", "--release", "8", "-d"]).arg(&folder).arg(source()));
        folder
    })
}

/// The service's source.
pub fn source() -> PathBuf {
    repository().join("fixtures/java/jdks/Service.java")
}

/// The service on one JDK. It ends with this value.
pub struct Service {
    pub jdk: u32,
    fixture: Fixture,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JDK {}", self.jdk)
    }
}

/// The root with the JDKs. None, and a line about it, where nobody may make one.
pub fn jdks() -> Option<Root> {
    Root::of_jdks(&JDKS, target(env!("CARGO_TARGET_TMPDIR")))
}

/// The command that starts this JDK's VM in the root.
pub fn java(root: &Root, jdk: u32) -> Command {
    root.command(&format!("/usr/lib/jvm/java-{jdk}-openjdk-amd64/bin/java"))
}

/// The service on one JDK after another.
pub fn services(flags: &[&str]) -> impl Iterator<Item = Service> {
    jdks().into_iter().flat_map(move |root| JDKS.into_iter().map(move |jdk| Service::start(&root, jdk, flags)))
}

impl Service {
    /// Blocks of one Deflater: java.util.zip's and deflateInit's.
    pub const ZLIB_BLOCKS: u64 = 6;

    pub fn start(root: &Root, jdk: u32, flags: &[&str]) -> Service {
        let inside = format!("/service-{}", std::process::id());
        must(Command::new("cp").args(["-rT"]).arg(classes()).arg(root.0.join(&inside[1..])));
        let mut java = java(root, jdk);
        java.args(["-Xms64m", "-Xmx64m"]).args(flags).args(["-cp", &inside, "Service"]);
        let fixture = Fixture::run(java.stdin(Stdio::piped()));
        // The classes that it needs are loaded.
        let _ = fs::remove_dir_all(root.0.join(&inside[1..]));
        Service { jdk, fixture }
    }

    pub fn truth(&self, word: &str) -> u64 {
        self.fixture.truth(word)
    }

    pub fn serves(&mut self) {
        self.fixture.serves();
    }

    pub fn explained(&self) -> Explained {
        self.fixture.explained()
    }

    /// Standard output of a command that succeeds, about this process.
    #[track_caller]
    pub fn plimsoll(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(PLIMSOLL);
        let done = command.args(arguments).arg(self.fixture.pid().to_string()).output().expect("plimsoll");
        assert!(done.status.success(), "{self}: {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    }

    #[track_caller]
    pub fn report(&self) -> Value {
        serde_json::from_slice(&self.plimsoll(&["report", "--format", "json"])).expect("JSON")
    }

    #[track_caller]
    pub fn report_by_site(&self) -> Value {
        serde_json::from_slice(&self.plimsoll(&["report", "--by", "site", "--format", "json"])).expect("JSON")
    }
}
