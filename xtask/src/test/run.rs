//! Runs one test program, or one command, and collects what it reports.
//!
//! libtest prints `test NAME ... ok`, `... FAILED` or `... ignored, REASON` for each test. A test that prints none of
//! these did not finish, and counts as failed.

use crate::stage::{Result, repository};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// If no test of a program ends for this long, the program hangs and is killed, so that the other groups can run. On a
/// quiet machine the longest test of `make test` takes less than a minute, that of `make test-full` about ten.
const STALLED: Duration = Duration::from_secs(40 * 60);
/// How often progress is printed.
const TICK: Duration = Duration::from_millis(500);

/// The result of a group, or of a part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub passed: usize,
    pub failed: Vec<Failure>,
    /// Cases that this machine cannot run, with the reason.
    pub skipped: Vec<String>,
    /// Tests that belong to test-full.
    pub left: usize,
    pub seconds: f64,
    pub cpu: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Program and test, or the command.
    pub what: String,
    /// The command that runs it again.
    pub again: String,
    pub log: PathBuf,
}

impl Outcome {
    pub fn add(&mut self, other: Outcome) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.left += other.left;
        self.seconds += other.seconds;
        self.cpu += other.cpu;
    }
}

/// How to start a test program.
pub struct Job<'a> {
    pub program: &'a super::plan::Program,
    pub path: &'a Path,
    /// Each test, and whether it is marked `#[ignore]`.
    pub tests: BTreeMap<String, bool>,
    /// Whether to run the ignored ones, too.
    pub full: bool,
    pub memcheck: bool,
    /// How many tests run at once; None: as many as there are CPUs.
    pub threads: Option<usize>,
    pub log: PathBuf,
}

/// Valgrind's own errors end with this status; libtest's failures with 101.
const MEMCHECK: [&str; 4] = ["--tool=memcheck", "--error-exitcode=99", "--leak-check=no", "--quiet"];

/// Suppresses valgrind's reports on what the tracker does on purpose.
const SUPPRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/test/memcheck.supp");

impl Job<'_> {
    fn command(&self) -> Command {
        let mut command = if self.memcheck {
            let mut command = Command::new("valgrind");
            command.args(MEMCHECK).arg(format!("--suppressions={SUPPRESSIONS}")).arg(self.path);
            command
        } else {
            Command::new(self.path)
        };
        command.arg("--show-output").arg("--exact").args(self.tests.keys());
        command.args(self.threads.map(|threads| format!("--test-threads={threads}")));
        if self.full {
            command.arg("--include-ignored").env("PLIMSOLL_TESTS", "full");
        }
        command.current_dir(&self.program.folder).env("CARGO_MANIFEST_DIR", &self.program.folder);
        command
    }

    /// The command for a single test, as typed at the top of the repository.
    fn again(&self, test: &str) -> String {
        let (full, ignored) = if self.full { ("PLIMSOLL_TESTS=full ", " --include-ignored") } else { ("", "") };
        format!("{full}cargo test {} -- --exact{ignored} {test}", self.program.choose.join(" "))
    }

    /// Runs it. Calls `shown` now and then with the number of tests that have ended.
    pub fn run(&self, shown: &mut dyn FnMut(usize)) -> Result<Outcome> {
        let mut running = Running::start(&mut self.command(), &self.log)?;
        let mut results: BTreeMap<&str, String> = BTreeMap::new();
        let mut outcome = Outcome::default();
        let mut last = Instant::now();
        let mut end = String::new();
        loop {
            match running.lines.recv_timeout(TICK) {
                Ok(line) => {
                    if let Some((test, result)) = verdict(&line)
                        && let Some((test, _)) = self.tests.get_key_value(test)
                    {
                        last = Instant::now();
                        results.insert(test, result.to_string());
                    }
                    if let Some(reason) = skipped(&line) {
                        outcome.skipped.push(reason.to_string());
                    }
                }
                Err(RecvTimeoutError::Timeout) if last.elapsed() > STALLED => {
                    end = format!(" (killed: no test ended for {} min)", STALLED.as_secs() / 60);
                    running.child.kill()?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            shown(results.len());
        }
        let (status, seconds, cpu) = running.end()?;
        (outcome.seconds, outcome.cpu) = (seconds, cpu);
        for (test, result) in &results {
            match (result.as_str(), result.strip_prefix("ignored")) {
                ("ok", _) => outcome.passed += 1,
                (_, Some(reason)) if reason.starts_with(", full: ") => outcome.left += 1,
                (_, Some(_)) => outcome.failed.push(self.failure(test, " (#[ignore] without \"full: REASON\")")),
                _ => outcome.failed.push(self.failure(test, "")),
            }
        }
        if end.is_empty() {
            end = format!(" (no result; the program ended with {status})");
        }
        for test in self.tests.keys().filter(|test| !results.contains_key(test.as_str())) {
            outcome.failed.push(self.failure(test, &end));
        }
        if !status.success() && outcome.failed.is_empty() {
            let what = format!("{}: {status}, though every test passed", self.program.name);
            let again = format!("cargo test {}", self.program.choose.join(" "));
            outcome.failed.push(Failure { what, again, log: self.log.clone() });
        }
        Ok(outcome)
    }

    fn failure(&self, test: &str, how: &str) -> Failure {
        let what = format!("{} {test}{how}", self.program.name);
        Failure { what, again: self.again(test), log: self.log.clone() }
    }
}

/// Runs a command that passes or fails as a whole.
pub fn command(words: &[&str], log: PathBuf, shown: &mut dyn FnMut(usize)) -> Result<Outcome> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(repository());
    let running = Running::start(&mut command, &log)?;
    loop {
        match running.lines.recv_timeout(TICK) {
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => shown(0),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let (status, seconds, cpu) = running.end()?;
    let mut outcome = Outcome { seconds, cpu, ..Outcome::default() };
    if status.success() {
        outcome.passed = 1;
    } else {
        let again = words.join(" ");
        outcome.failed.push(Failure { what: format!("{again}: {status}"), again, log });
    }
    Ok(outcome)
}

/// `test NAME ... RESULT`, even after output of a subject that did not end its line.
fn verdict(line: &str) -> Option<(&str, &str)> {
    let (before, result) = line.rsplit_once(" ... ")?;
    let name = before.rfind("test ").map(|at| &before[at + 5..])?;
    let known = result == "ok" || result == "FAILED" || result.starts_with("ignored");
    known.then_some((name.strip_suffix(" - should panic").unwrap_or(name), result))
}

/// All tests report a skipped case in one form: `CASE: skipped, REASON`.
fn skipped(line: &str) -> Option<&str> {
    line.contains(": skipped, ").then_some(line.trim())
}

/// A child whose output and errors go line by line to a log and to this process.
struct Running {
    child: Child,
    lines: Receiver<String>,
    readers: Vec<JoinHandle<()>>,
    began: Instant,
}

/// Held while this process waits for a child, so that meanwhile the CPU time of all children grows by that child's
/// only.
static REAPED: Mutex<()> = Mutex::new(());

impl Running {
    fn start(command: &mut Command, log: &Path) -> Result<Running> {
        let log = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
        let began = Instant::now();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let (to, lines) = channel();
        let output = child.stdout.take().map(|output| read(output, to.clone(), log.try_clone()));
        let errors = child.stderr.take().map(|errors| read(errors, to, Ok(log)));
        Ok(Running { child, lines, readers: output.into_iter().chain(errors).collect(), began })
    }

    fn end(mut self) -> Result<(std::process::ExitStatus, f64, f64)> {
        for reader in self.readers {
            let _ = reader.join();
        }
        let reaped = REAPED.lock();
        let before = cpu_of_children();
        let status = self.child.wait()?;
        let cpu = cpu_of_children() - before;
        drop(reaped);
        Ok((status, self.began.elapsed().as_secs_f64(), cpu))
    }
}

fn read(from: impl Read + Send + 'static, to: Sender<String>, log: std::io::Result<File>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let Ok(mut log) = log else { return };
        for line in BufReader::new(from).split(b'\n').map_while(std::io::Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            let _ = log.write_all(format!("{line}\n").as_bytes());
            let _ = to.send(line);
        }
    })
}

/// CPU time of this process's ended children and of their children so far, in seconds.
fn cpu_of_children() -> f64 {
    crate::bench::measure::children().map_or(0.0, |[user, system]| user + system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::plan::Program;

    fn job<'a>(program: &'a Program, script: &'a Path, tests: &[&str]) -> Job<'a> {
        let tests = tests.iter().map(|test| (test.to_string(), false)).collect();
        let log = script.with_extension("log");
        Job { program, path: script, tests, full: false, memcheck: false, threads: None, log }
    }

    /// A stand-in for a test program: it prints these lines.
    fn script(name: &str, lines: &str) -> (Program, PathBuf) {
        let folder = crate::stage::folder("test-of-the-runner").expect("a folder");
        let path = folder.join(name);
        // Another process writes the file: a child of a concurrent test would inherit our open file, and a file that is
        // open for writing cannot be executed.
        let write = "printf '#!/bin/sh\n%s\n' \"$1\" >\"$2\" && chmod +x \"$2\"";
        let status = Command::new("sh").args(["-c", write, "sh", lines]).arg(&path).status();
        assert!(status.is_ok_and(|status| status.success()), "{}", path.display());
        (Program { name: "cli/x".into(), choose: vec!["-p".into(), "plimsoll".into()], folder }, path)
    }

    #[test]
    fn a_test_without_a_result_fails() {
        let (program, path) = script(
            "crash",
            "echo 'test a::one ... ok'; echo 'noise test a::two ... ok'; echo 'cgroup: skipped, no root'; kill -9 $$",
        );
        let outcome = job(&program, &path, &["a::one", "a::two", "a::three"]).run(&mut |_| ()).expect("it runs");
        assert_eq!((outcome.passed, outcome.skipped.len(), outcome.failed.len()), (2, 1, 1), "{outcome:?}");
        assert!(
            outcome.failed[0].what.contains("a::three (no result; the program ended with signal: 9"),
            "{outcome:?}"
        );
        assert_eq!(outcome.failed[0].again, "cargo test -p plimsoll -- --exact a::three");
    }

    #[test]
    fn an_ignored_test_needs_its_tier() {
        let lines = "echo 'test a ... ignored, full: 300 rounds'; echo 'test b ... ignored, fails today'; echo 'test c ... FAILED'";
        let (program, path) = script("ignored", lines);
        let outcome = job(&program, &path, &["a", "b", "c"]).run(&mut |_| ()).expect("it runs");
        assert_eq!((outcome.passed, outcome.left, outcome.failed.len()), (0, 1, 2), "{outcome:?}");
    }

    #[test]
    fn a_program_that_fails_after_its_tests_fails() {
        let (program, path) = script("late", "echo 'test a ... ok'; exit 3");
        let outcome = job(&program, &path, &["a"]).run(&mut |_| ()).expect("it runs");
        assert_eq!((outcome.passed, outcome.failed.len()), (1, 1), "{outcome:?}");
    }
}
