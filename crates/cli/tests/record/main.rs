//! `plimsoll record`: what its files contain, who can read them, and what a kill leaves of them.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/cgroup.rs"]
mod cgroup;
#[path = "../../../../fixtures/child.rs"]
mod child;
mod java;
mod killed;
mod output_files;
#[path = "../../../../fixtures/random.rs"]
mod random;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../jfr/tests/chunks/decoder.rs"]
mod reader;
mod readers;
mod reads;
mod replaced;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;
mod values;

use child::{Running, wait_for, wait_until};
use reader::Read;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of one test, with a cache of the tracker that all tests of this run share.
struct Workspace {
    scratch: stage::Scratch,
}

impl Workspace {
    fn new(name: &str) -> Workspace {
        Workspace { scratch: stage::Scratch::new(&format!("record-{name}")) }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
    fn plimsoll(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .args(arguments)
            .env("PLIMSOLL_DIR", self.path("segments"))
            .stdin(Stdio::null())
            .current_dir(self.scratch.path());
        command.env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("record-cache"));
        command
    }
    fn steps(&self) -> PathBuf {
        let program = self.path("steps");
        if program.exists() { program } else { stage::c_program("steps", self.scratch.path()) }
    }
    fn read(&self, name: &str) -> Read {
        let bytes = std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        reader::read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Running {
    /// Starts a program and waits until it prints `ready`.
    fn ready(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says so");
        assert_eq!(line, "ready\n");
        Running(child)
    }
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
    fn signal(&self, name: &str) {
        stage::must(Command::new("kill").args([&format!("-{name}"), &self.pid()]));
    }
}

/// Events of one kind, in their order.
fn events<'r>(read: &'r Read, name: &'r str) -> impl Iterator<Item = &'r reader::Event> {
    read.events.iter().filter(move |event| event.name == name)
}

fn now_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
