//! Runs `plimsoll try` and `plimsoll compare`, and finds what it left behind.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::child::wait_until;
use crate::harness;

/// In the environment of everything that a test starts, daemons included.
const MARK: &str = "PLIMSOLL_TEST_TRIAL";

pub struct Trial {
    pub folder: PathBuf,
    mark: String,
}

impl Trial {
    pub fn new(name: &str) -> Trial {
        Trial { folder: harness::scratch("trial", name), mark: format!("{MARK}={name}-{}.", std::process::id()) }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// The program whose arenas keep THREADS × MIB.
    pub fn burst(&self) -> String {
        harness::compiled("arena_burst", &self.folder.join("arena_burst"), &[])
    }

    /// `plimsoll try OPTIONS -- COMMAND`.
    pub fn command(&self, options: &[&str], command: &[&str]) -> Command {
        self.verb("try", &[options, &["--"], command].concat())
    }

    /// `plimsoll VERB ARGUMENTS`.
    pub fn verb(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut plimsoll = Command::new("timeout");
        plimsoll.args(["-s", "KILL", "900", harness::PLIMSOLL, verb]).args(arguments);
        self.prepared(plimsoll)
    }

    /// `plimsoll try` without `timeout`, so that its PID is plimsoll's.
    pub fn start(&self, options: &[&str], command: &[&str]) -> Child {
        let mut plimsoll = Command::new(harness::PLIMSOLL);
        plimsoll.arg("try").args(options).arg("--").args(command);
        self.prepared(plimsoll).spawn().expect("plimsoll")
    }

    /// A shell that runs this script. Its $0 is plimsoll.
    pub fn shell(&self, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, harness::PLIMSOLL]);
        self.prepared(shell)
    }

    fn prepared(&self, mut command: Command) -> Command {
        let (name, value) = self.mark.split_once('=').expect("a pair");
        command.env(name, value).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Its exit status, its document, and its standard error. Nothing is left afterwards.
    pub fn json(&self, options: &[&str], command: &[&str]) -> (Option<i32>, Value, String) {
        self.document(self.command(&[options, &["--format", "json"]].concat(), command).output().expect("plimsoll"))
    }

    pub fn document(&self, output: Output) -> (Option<i32>, Value, String) {
        self.assert_nothing_left();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {error}"));
        (output.status.code(), document, error)
    }

    /// The same with `--limit`. `None`, with a line that says so, on a machine that lets us make no memory cgroup.
    pub fn json_with_limit(&self, options: &[&str], command: &[&str]) -> Option<(Option<i32>, Value, String)> {
        let output = self.command(&[options, &["--format", "json"]].concat(), command).output().expect("plimsoll");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if error.contains("no memory cgroup with a limit can be made") {
            assert!(output.status.code() == Some(2) && error.contains("Run without --limit"), "{error}");
            eprintln!("a limit: skipped, {error}");
            return None;
        }
        Some(self.document(output))
    }

    /// Processes with our mark in their environment: plimsoll, keepers, programs, daemons.
    pub fn processes(&self) -> Vec<u32> {
        let of_us = |pid: u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|pair| pair == self.mark.as_bytes())
        };
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = all.filter_map(|entry| std::str::from_utf8(entry.file_name().as_bytes()).ok()?.parse().ok());
        numbers.filter(|pid| *pid != std::process::id() && of_us(*pid)).collect()
    }

    pub fn assert_nothing_left(&self) {
        let left = self.processes();
        assert!(left.is_empty(), "left behind: {:?}", left.iter().map(|pid| named(*pid)).collect::<Vec<_>>());
    }

    pub fn wait_until_nothing_is_left(&self) {
        wait_until("the end of all processes", || self.processes().is_empty());
    }

    pub fn wait_for_file(&self, name: &str) {
        wait_until(name, || self.folder.join(name).exists());
    }

    /// Sends a signal to plimsoll, and returns what it printed.
    pub fn interrupt(&self, child: Child) -> Output {
        signal(child.id(), "INT");
        let output = child.wait_with_output().expect("our child");
        self.assert_nothing_left();
        output
    }

    /// A process with our mark whose command line starts so. Those of plimsoll and its keepers contain the program's.
    pub fn find(&self, start: &str) -> Option<u32> {
        self.processes().into_iter().find(|pid| named(*pid).starts_with(start))
    }
}

pub fn named(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().expect("kill").success());
}

/// The directories of cgroups that a plimsoll with this PID has made.
pub fn groups(plimsoll: u32) -> Vec<PathBuf> {
    fn walk(folder: &Path, start: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(start) {
                    found.push(entry.path());
                }
                walk(&entry.path(), start, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), &format!("plimsoll-try-{plimsoll}-"), &mut found);
    found
}

/// The row of this name.
pub fn row<'v>(document: &'v Value, name: &str) -> &'v Value {
    let rows = document["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name} in {document:#}"))
}

/// A median in MiB.
pub fn mib(document: &Value, name: &str, figure: &str) -> f64 {
    let median = &row(document, name)["figures"][figure]["median"];
    median.as_f64().unwrap_or_else(|| panic!("no {figure} of {name} in {document:#}")) / f64::from(1 << 20)
}
