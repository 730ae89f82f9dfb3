//! Starts fixtures/java/jdks/Service.java on each JDK of the root.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::fixture::{Explained, Fixture, PLIMSOLL, fresh};
use crate::roots::{JDKS, Root, home_of, target};
use crate::stage::{Jdk, installed, is_full, must, repository};

/// The service's classes, compiled once for the oldest of the JDKs.
fn classes() -> &'static Path {
    static CLASSES: OnceLock<PathBuf> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let folder = fresh("jdks");
        let mut javac = installed().first().expect("a JDK (run .ci/setup)").tool("javac");
        must(javac.args(["-nowarn", "-Xlint:-options", "--release", "8", "-d"]).arg(&folder).arg(source()));
        folder
    })
}

fn source() -> PathBuf {
    repository().join("fixtures/java/jdks/Service.java")
}

/// The service on one JDK. Ends when dropped.
pub struct Service {
    pub jdk: u32,
    fixture: Fixture,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JDK {}", self.jdk)
    }
}

/// The oldest of the JDKs; in `make test-full` all.
fn majors() -> &'static [u32] {
    if is_full() { &JDKS } else { &JDKS[..1] }
}

/// The root with the JDKs. None, with a line that says so, where the machine doesn't allow a root of its own.
pub fn jdks() -> Option<Root> {
    Root::of_jdks(majors(), target(env!("CARGO_TARGET_TMPDIR")))
}

/// This version in the root; `home` is its path there.
pub fn in_root(major: u32) -> Jdk {
    Jdk { home: home_of(major), major }
}

/// The command that starts this JDK's VM in the root.
pub fn java(root: &Root, jdk: u32) -> Command {
    root.command(home_of(jdk).join("bin/java").to_str().expect("a path"))
}

/// The service on one JDK after another.
pub fn services(flags: &[&str]) -> impl Iterator<Item = Service> {
    jdks().into_iter().flat_map(move |root| majors().iter().map(move |jdk| Service::start(&root, *jdk, flags)))
}

impl Service {
    /// Blocks of one Deflater: java.util.zip's and deflateInit's.
    pub const ZLIB_BLOCKS: u64 = 6;

    pub fn start(root: &Root, jdk: u32, flags: &[&str]) -> Service {
        // Tests of one process start services at the same time.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let inside = format!("/service-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        must(Command::new("cp").args(["-rT"]).arg(classes()).arg(root.0.join(&inside[1..])));
        let mut java = java(root, jdk);
        java.args(["-Xms64m", "-Xmx64m"]).args(flags).args(["-cp", &inside, "Service"]);
        let fixture = Fixture::run(java.stdin(Stdio::piped()));
        // The service has loaded the classes that it needs.
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
    fn report(&self, by: &str) -> Value {
        serde_json::from_slice(&self.plimsoll(&["report", "--by", by, "--format", "json"])).expect("JSON")
    }

    #[track_caller]
    pub fn category(&self, name: &str) -> Value {
        let report = self.report("category");
        let mut all = report["categories"].as_array().expect("categories").iter();
        all.find(|one| one["name"] == name).unwrap_or_else(|| panic!("{self}: {:#}", report["categories"])).clone()
    }

    /// Blocks of Deflaters whose stack has the whole way: from the native method out to main each frame in its turn,
    /// the service's own ones at the lines of the source. The VM's own blocks, made when it links the native method,
    /// don't count.
    pub fn blocks_with_java_frames(&self) -> u64 {
        let source = fs::read_to_string(source()).expect("the fixture");
        let line_of =
            |text: &str| 1 + source.lines().position(|line| line.contains(text)).expect("in the source") as u64;
        let way = [
            ("java.util.zip.Deflater.init", None),
            ("java.util.zip.Deflater.<init>", None),
            ("Service.pack", Some(line_of("KEPT.add(new Deflater())"))),
            ("Service.main", Some(line_of("pack();"))),
        ];
        let is_whole = |site: &&Value| {
            let mut frames = site["frames"].as_array().expect("frames").iter();
            way.iter().all(|(name, line)| {
                frames.any(|frame| frame["function"] == **name && line.is_none_or(|line| frame["line"] == line))
            })
        };
        let report = self.report("site");
        let sites = report["sites"].as_array().expect("sites").iter().filter(|site| site["category"] == "zlib");
        sites.filter(is_whole).map(|site| site["live_count"].as_u64().expect("a count")).sum()
    }
}
