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

/// The mappings as the proc source reads them.
pub fn vmas(pid: u32) -> Vec<Vma> {
    let text = std::fs::read(format!("/proc/{pid}/smaps")).expect("smaps");
    parse_smaps(&text, &[]).vmas
}
