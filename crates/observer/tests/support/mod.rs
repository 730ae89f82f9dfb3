//! Real processes for the tests: built with the machine's compilers, ended with the test.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use plimsoll_observer::snapshot::Vma;
use plimsoll_observer::source::proc::parse_smaps;

/// A child that is killed when the test is over, and what it printed until it was ready.
pub struct Subject {
    pub child: Child,
    pub said: String,
}

impl Subject {
    /// Starts the command and waits for a line that says READY.
    pub fn start(command: &mut Command) -> Subject {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        loop {
            let before = said.len();
            if lines.read_line(&mut said).expect("readable") == 0 {
                panic!("ended before READY: {said}");
            }
            if said[before..].trim_end().ends_with("READY") {
                break;
            }
        }
        // Keep the pipe open: a subject that goes on printing must not die of SIGPIPE.
        child.stdout = Some(lines.into_inner());
        Subject { child, said }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles tests/programs/NAME.c into the target directory, once for each test program that asks.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    // A program that another thread is still writing can't be started (ETXTBSY).
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{name}-{}{}",
        std::process::id(),
        flags.concat().replace('/', "_")
    ));
    if !binary.exists() {
        let status = Command::new("cc")
            .args(["-O1", "-pthread", "-o"])
            .arg(&binary)
            .arg(source)
            .args(flags)
            .status()
            .expect("cc");
        assert!(status.success());
    }
    binary
}

/// A JDK of this machine.
#[derive(Clone, Debug)]
pub struct Jdk {
    pub home: PathBuf,
    pub major: u32,
}

/// Every JDK from 17 on under /usr/lib/jvm and JAVA_HOME; at least one, or the test fails.
pub fn jdks() -> Vec<Jdk> {
    let mut homes: Vec<PathBuf> = std::fs::read_dir("/usr/lib/jvm")
        .map(|entries| entries.flatten().filter_map(|entry| entry.path().canonicalize().ok()).collect())
        .unwrap_or_default();
    homes.extend(std::env::var_os("JAVA_HOME").and_then(|home| PathBuf::from(home).canonicalize().ok()));
    homes.sort();
    homes.dedup();
    let jdks: Vec<Jdk> = homes
        .into_iter()
        .filter(|home| home.join("bin/javac").exists())
        .filter_map(|home| {
            let release = std::fs::read_to_string(home.join("release")).ok()?;
            let version = release.split_once("JAVA_VERSION=\"")?.1.split(['.', '"']).next()?.parse().ok()?;
            Some(Jdk { home, major: version })
        })
        .filter(|jdk| jdk.major >= 17)
        .collect();
    assert!(!jdks.is_empty(), "no JDK from 17 on under /usr/lib/jvm or JAVA_HOME");
    jdks
}

impl Jdk {
    pub fn tool(&self, name: &str) -> Command {
        Command::new(self.home.join("bin").join(name))
    }

    /// `java FLAGS -cp … NAME ARGUMENTS` for tests/programs/NAME.java, compiled first.
    pub fn program(&self, name: &str, flags: &[&str], arguments: &[&str]) -> Command {
        let mut java = self.tool("java");
        java.args(flags).arg("-cp").arg(self.compiled(name)).arg(name).args(arguments);
        java
    }

    pub fn compiled(&self, name: &str) -> PathBuf {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock();
        let classes =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}-{}", self.major, std::process::id()));
        if !classes.exists() {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.java"));
            let status = self.tool("javac").arg("-d").arg(&classes).arg(source).status().expect("javac");
            assert!(status.success());
        }
        classes
    }
}

/// The mappings as the proc source reads them.
pub fn vmas(pid: u32) -> Vec<Vma> {
    let text = std::fs::read(format!("/proc/{pid}/smaps")).expect("smaps");
    parse_smaps(&text, &[]).vmas
}
