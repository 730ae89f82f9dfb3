//! Runs one fixture plain and under `plimsoll run`, and compares the tracker's books with the fixture's own.
//!
//! A fixture writes `moment ready|final LABEL pid=P base=B key=value…` for each moment (fixtures/c/books.h explains the
//! keys). At `ready` it waits, and the report on the live process is read; `final` is compared with the report on the
//! dead one. Only the growth since the base moment is compared, so allocations of the loader do not matter.

use crate::build;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The program under test.
pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");
/// A situation that takes longer hangs. Far above the time on a busy machine: beside four busy loops on 2 CPUs, each
/// run of 10,000 threads takes 20 s, one of them CPU.
const PATIENCE: Duration = Duration::from_secs(400);
/// Both kinds of books: without stacks, and with those of sampled blocks.
pub const MODES: [&str; 2] = ["off", "sampled"];

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

impl End {
    pub fn of(status: ExitStatus) -> Self {
        status.code().map_or_else(|| End::Signal(status.signal().unwrap_or(0)), End::Exit)
    }
}

/// One row: a program, its arguments, how it ends.
#[derive(Clone)]
pub struct Situation {
    pub name: String,
    pub program: build::Program,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub end: End,
    /// A shell prefix for limits and redirections: runs as `PREFIX exec PROGRAM…`.
    pub shell: String,
    /// `run --follow`: programs that this one starts by exec are tracked, too.
    pub follow: bool,
    /// Fewest moments that must be compared: a row that compares nothing would not be a test.
    pub moments: usize,
}

pub fn situation(source: &str) -> Situation {
    Situation {
        name: source.to_string(),
        program: build::Program::of(source),
        args: vec![],
        env: vec![],
        end: End::Exit(0),
        shell: String::new(),
        follow: false,
        moments: 1,
    }
}

impl Situation {
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|a| a.to_string()));
        self
    }
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_string(), value.to_string()));
        self
    }
    pub fn over_musl(mut self) -> Self {
        self.name = format!("{}_over_musl", self.name);
        self.program = self.program.over_musl();
        self
    }
    pub fn links(mut self, libraries: &[&str]) -> Self {
        self.program.libraries.extend(libraries.iter().map(|l| l.to_string()));
        self
    }
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.program = self.program.flags(flags);
        self
    }
    pub fn exits(mut self, code: i32) -> Self {
        self.end = End::Exit(code);
        self
    }
    pub fn dies(mut self, signal: i32) -> Self {
        self.end = End::Signal(signal);
        self
    }
    pub fn moments(mut self, n: usize) -> Self {
        self.moments = n;
        self
    }
    pub fn follow(mut self) -> Self {
        self.follow = true;
        self
    }
    pub fn shell(mut self, prefix: &str) -> Self {
        self.shell = prefix.to_string();
        self
    }

    /// Runs the row in all modes; panics with all differences.
    pub fn run(self) {
        self.run_modes(&MODES);
    }

    pub fn run_modes(self, modes: &[&str]) {
        let program = build::compiled(&self.program);
        let mut faults = String::new();
        let plain = Observed::watch(self.command(&program, None, Path::new("")), None);
        if let Some(reason) = plain.output.lines().find_map(|l| l.strip_prefix("SKIP ")) {
            return skipped(&self.name, reason);
        }
        assert!(
            plain.end == self.end,
            "{}: the fixture by itself ends with {:?}\n{}",
            self.name,
            plain.end,
            plain.output
        );
        assert!(!plain.output.contains("FAILED"), "{}: the fixture by itself fails\n{}", self.name, plain.output);
        let mut compared = 0;
        for mode in modes {
            let dir = fresh_dir(&format!("{}-{mode}", self.name));
            let tracked = Observed::watch(self.command(&program, Some(mode), &dir), Some(&dir));
            let _ = writeln!(faults, "{}", tracked.transparency(&plain, mode));
            let (n, differences) = tracked.books(&dir, || self.nothing(mode));
            tidy(&dir);
            let _ = writeln!(faults, "{}", differences.iter().map(|d| format!("  {mode}: {d}\n")).collect::<String>());
            if n < self.moments {
                let _ = writeln!(faults, "  {mode}: only {n} moments compared, expected {}", self.moments);
            }
            compared += n;
        }
        verdict(&self.name, &faults, compared);
    }

    /// The command line: plain, or under the tracker.
    pub fn command(&self, program: &Path, mode: Option<&str>, dir: &Path) -> Command {
        let mut words: Vec<String> = vec![];
        if let Some(mode) = mode {
            words.extend([PLIMSOLL, "run", "--sites", mode, "--dir"].map(str::to_string));
            words.push(dir.display().to_string());
            if self.follow {
                words.push("--follow".to_string());
            }
            words.push("--".to_string());
        }
        words.push(program.display().to_string());
        words.extend(self.args.iter().cloned());
        let mut command = if self.shell.is_empty() {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        } else {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", &format!("{} exec \"$@\"", self.shell), "sh"]).args(&words);
            command
        };
        command.env("XDG_CACHE_HOME", scratch("cache"));
        for (key, value) in &self.env {
            command.env(key, value.replace("$MODE", mode.unwrap_or("plain")));
        }
        command
    }

    /// What an idle program of this kind holds: the base of programs that cannot wait before their first block.
    fn nothing(&self, mode: &str) -> Result<Figures, String> {
        let mut row = self.clone();
        row.program.source = "nothing".into();
        row.name = format!("{}-nothing", self.name);
        row.program.libraries.clear();
        row.env.retain(|(key, _)| key != "LD_PRELOAD");
        row.args.clear();
        row.shell.clear();
        row.env.retain(|(key, _)| key != "BOOKS_LOG");
        let dir = fresh_dir(&format!("{}-{mode}", row.name));
        let seen = Observed::watch(row.command(&build::compiled(&row.program), Some(mode), &dir), Some(&dir));
        tidy(&dir);
        seen.moments.first().and_then(|m| m.report.clone()).unwrap_or(Err("`nothing` showed no moment".into()))
    }
}

/// Prints one line for a situation, past the test runner's capture, so that a skipped one is never silent.
pub fn log_line(line: &str) {
    let _ = std::io::stderr().write_all(format!("situation {line}\n").as_bytes());
}

pub fn skipped(name: &str, reason: &str) {
    log_line(&format!("{name}: skipped, {reason}"));
}

pub fn verdict(name: &str, faults: &str, compared: usize) {
    let faults: Vec<&str> = faults.lines().filter(|l| !l.trim().is_empty()).collect();
    if faults.is_empty() {
        return log_line(&format!("{name}: ok, {compared} moments"));
    }
    let first = faults[0].trim();
    log_line(&format!(
        "{name}: FAILED, {} faults, first: {}",
        faults.len(),
        first.chars().take(160).collect::<String>()
    ));
    let shown = faults.iter().take(16).map(|f| f.chars().take(2000).collect()).collect::<Vec<String>>();
    panic!("{name}\n{}", shown.join("\n"));
}

/// A directory of this process. `make test` starts the next group while the last tests of one still run, and two groups
/// have tests of this program: each process compiles programs of its own under the same names.
pub fn scratch(name: &str) -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("situations");
    let own = all.join(std::process::id().to_string());
    static SWEPT: std::sync::Once = std::sync::Once::new();
    SWEPT.call_once(|| {
        sweep(&all, "");
        let _ = fs::remove_dir_all(&own);
    });
    let dir = own.join(name);
    fs::create_dir_all(&dir).expect("scratch directory");
    dir
}

/// An empty private directory for segments: in memory, their default, or among the other scratch files. No parent
/// folder belongs to this run: one test would remove it while another fills it.
pub fn fresh_dir(name: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    static SWEPT: std::sync::Once = std::sync::Once::new();
    SWEPT.call_once(|| sweep(memory, "plimsoll-situations-"));
    let dir = if memory.is_dir() {
        memory.join(format!("plimsoll-situations-{}-{name}", std::process::id()))
    } else {
        scratch("dirs").join(name)
    };
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("scratch directory");
    fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("private directory");
    dir
}

/// Removes what ended runs of these tests left in a folder so that somebody could examine their failures: names of this
/// prefix and a PID.
fn sweep(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().to_string();
        let Some(pid) = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Deletes the segments of a row that passed.
pub fn tidy(dir: &Path) {
    let _ = fs::remove_dir_all(dir);
}

/// The figures of one report that fixtures know, by the fixtures' names.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub value: HashMap<String, i64>,
    pub gaps: String,
    pub state: String,
    pub json: Value,
}

/// The fixture's key and the report's. `live_bytes` are usable bytes, as the program sees them.
const KEYS: [(&str, &str); 6] = [
    ("live_count", "live_count"),
    ("requested", "requested_bytes"),
    ("usable", "live_bytes"),
    ("cumulative_count", "cumulative_count"),
    ("reserved", "reserved_bytes"),
    ("committed", "committed_bytes"),
];

impl Figures {
    /// The report on one segment, checked for what holds in every report: Σ categories = total, nothing negative.
    pub fn of_segment(segment: &Path) -> Result<Figures, String> {
        let output = Command::new(PLIMSOLL)
            .args(["report", "--format", "json"])
            .arg(segment)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("plimsoll report: {e}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("plimsoll report: {} {}", output.status, stderr.trim()));
        }
        let json: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("the report is not JSON: {e}"))?;
        if json["schema"] != "plimsoll.report/1" {
            return Err(format!("schema is {}", json["schema"]));
        }
        let mut figures = Figures {
            gaps: json["gaps"].to_string(),
            state: json["state"].as_str().unwrap_or("").to_string(),
            ..Figures::default()
        };
        if figures.gaps.contains("freed than allocated") {
            return Err(format!("more freed than allocated: {}", figures.gaps));
        }
        let categories = json["categories"].as_array().ok_or("no categories")?;
        for (key, name) in KEYS {
            let total =
                json["total"][name].as_i64().ok_or_else(|| format!("total.{name} is {}", json["total"][name]))?;
            if !(0..1 << 60).contains(&total) {
                return Err(format!("total.{name} is {total}"));
            }
            let sum: i64 = categories.iter().map(|c| c[name].as_i64().unwrap_or(0)).sum();
            if sum != total {
                return Err(format!("Σ categories ≠ total: {name} {sum} ≠ {total}"));
            }
            // Stacks, libraries and Plimsoll's own memory are in the total, but not from the program's own calls.
            let not_called =
                |c: &&Value| ["Plimsoll", "Thread Stack", "Loaded Libraries"].iter().any(|n| c["name"] == *n);
            let mapping = name == "reserved_bytes" || name == "committed_bytes";
            let others: i64 = if mapping {
                categories.iter().filter(not_called).map(|c| c[name].as_i64().unwrap_or(0)).sum()
            } else {
                0
            };
            figures.value.insert(key.to_string(), total - others);
        }
        let peak = json["total"]["peak_bytes"].as_i64().ok_or("no total.peak_bytes")?;
        if peak < figures.value["usable"] {
            return Err(format!("peak {peak} below the live bytes {}", figures.value["usable"]));
        }
        figures.json = json;
        Ok(figures)
    }

    /// The report on the newest segment of `pid` in `dir`.
    pub fn of_process(dir: &Path, pid: i64) -> Result<Figures, String> {
        Figures::of_segment(&segment_of(dir, pid)?)
    }
}

impl Figures {
    /// The tracker's counters that aren't 0.
    fn counters(&self) -> String {
        let counters = self.json["counters"].as_array().into_iter().flatten();
        let counted = counters.filter(|counter| counter["value"] != 0);
        counted.map(|counter| format!("{} {}", counter["name"], counter["value"])).collect::<Vec<_>>().join(", ")
    }

    /// A counter of the tracker.
    pub fn counter(&self, name: &str) -> i64 {
        let counters = self.json["counters"].as_array().expect("counters");
        let counter = counters.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no counter {name}"));
        counter["value"].as_i64().expect("a number")
    }
}

/// Segments are named `PID-BOOTTIME_NS.seg`; after an exec the newest is the process's.
pub fn segment_of(dir: &Path, pid: i64) -> Result<PathBuf, String> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(dir).map_err(|e| e.to_string())?.flatten() {
        let name = entry.file_name().to_string_lossy().to_string();
        let Some((p, start)) = name.strip_suffix(".seg").and_then(|n| n.split_once('-')) else { continue };
        let (Ok(p), Ok(start)) = (p.parse::<i64>(), start.parse::<u64>()) else { continue };
        if p == pid && newest.as_ref().is_none_or(|(s, _)| start > *s) {
            newest = Some((start, entry.path()));
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| format!("no segment of process {pid} in the directory"))
}

/// Whether this process is still visible, other than as a zombie.
fn is_there(pid: i64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A moment that a fixture reported, and the report at it (of a live process).
#[derive(Clone, Debug)]
pub struct Moment {
    pub last: bool,
    pub label: String,
    pub pid: i64,
    pub base: i64,
    pub says: HashMap<String, i64>,
    pub report: Option<Result<Figures, String>>,
}

impl Moment {
    pub fn parse(line: &str) -> Option<Moment> {
        let rest = line.strip_prefix("moment ")?;
        let (word, rest) = rest.split_once(' ')?;
        let (label, rest) = rest.split_at(rest.find(" pid=")?);
        let says: HashMap<String, i64> = rest
            .split_whitespace()
            .filter_map(|w| w.split_once('='))
            .filter_map(|(k, v)| Some((k.into(), v.parse().ok()?)))
            .collect();
        let (pid, base) = (*says.get("pid")?, *says.get("base")?);
        Some(Moment { last: word == "final", label: label.to_string(), pid, base, says, report: None })
    }

    /// The report on the live process, or else the one on the dead process. An orphan closes its output a little before
    /// it ends, so this waits for its end.
    fn seen(&self, dir: &Path) -> Result<Figures, String> {
        if let Some(report) = &self.report {
            return report.clone();
        }
        let start = Instant::now();
        loop {
            let there = self.last && is_there(self.pid);
            let seen = Figures::of_process(dir, self.pid)?;
            if seen.state != "live" || !there || start.elapsed() > PATIENCE {
                return Ok(seen);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The differences between the report and the program, both since their base.
    fn differences(&self, seen: &Figures, base: (&HashMap<String, i64>, &Figures)) -> Vec<String> {
        let doubt = |key: &str| self.says.get(key).copied().unwrap_or(0);
        let mut found = vec![];
        for (key, _) in KEYS {
            let Some(says) = self.says.get(key) else { continue };
            let want = says - base.0.get(key).copied().unwrap_or(0);
            let have = seen.value[key] - base.1.value[key];
            let slack = if key == "live_count" { doubt("doubt_count") } else { doubt("doubt_bytes") };
            if (want - have).abs() > slack {
                let by = if slack > 0 { format!(" (± {slack})") } else { String::new() };
                found.push(format!("'{}' pid {}: {key} {have}, the program has {want}{by}", self.label, self.pid));
            }
        }
        found
    }
}

/// The observations of one run.
pub struct Observed {
    pub output: String,
    pub errors: String,
    pub moments: Vec<Moment>,
    pub end: End,
    pub late: bool,
}

impl Observed {
    /// Runs `command` to its end. With a directory, each `ready` is answered after a look at the books; without one,
    /// stdin is empty.
    pub fn watch(mut command: Command, dir: Option<&Path>) -> Observed {
        let own_stdio = command.get_envs().any(|(key, _)| key == "BOOKS_LOG");
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if dir.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().expect("spawn");
        let mut input = child.stdin.take();
        let output = child.stdout.take().expect("stdout");
        let errors = read_all(child.stderr.take().expect("stderr"));
        let (finished, late) = watchdog(&child);
        let mut seen =
            Observed { output: String::new(), errors: String::new(), moments: vec![], end: End::Exit(0), late: false };
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).to_string();
            seen.line(&line, dir);
            if line.starts_with("moment ready")
                && let Some(input) = &mut input
            {
                let _ = input.write_all(b"\n");
            }
        }
        seen.end = End::of(child.wait().expect("wait"));
        let _ = finished.send(());
        seen.late = late.join().unwrap_or(false);
        seen.errors = errors.join().unwrap_or_default();
        if own_stdio {
            let log = command.get_envs().find(|(key, _)| *key == "BOOKS_LOG").and_then(|(_, v)| v).expect("log");
            for line in fs::read_to_string(log).unwrap_or_default().lines() {
                seen.line(line, None);
            }
        }
        seen
    }

    fn line(&mut self, line: &str, dir: Option<&Path>) {
        match Moment::parse(line) {
            Some(mut moment) => {
                if let (false, Some(dir)) = (moment.last, dir) {
                    moment.report = Some(Figures::of_process(dir, moment.pid));
                }
                self.moments.push(moment);
            }
            None => {
                self.output.push_str(line);
                self.output.push('\n');
            }
        }
    }

    /// Transparent (ARCHITECTURE.md, invariants): the same output, the same end, and no other message.
    pub fn transparency(&self, plain: &Observed, mode: &str) -> String {
        let mut faults = String::new();
        if self.late {
            let _ = writeln!(faults, "  {mode}: not done after {PATIENCE:?}");
        }
        if self.end != plain.end {
            let _ = writeln!(faults, "  {mode}: ended with {:?}, by itself with {:?}", self.end, plain.end);
        }
        if self.output != plain.output {
            let _ = writeln!(
                faults,
                "  {mode}: stdout differs\n--- plain\n{}--- tracked\n{}---",
                plain.output, self.output
            );
        }
        if self.errors != plain.errors {
            let _ = writeln!(
                faults,
                "  {mode}: stderr differs\n--- plain\n{}--- tracked\n{}---",
                plain.errors, self.errors
            );
        }
        faults
    }

    /// Exact books (ARCHITECTURE.md, invariants): at every moment the report equals the program's figures. Returns how
    /// many moments were compared.
    pub fn books(&self, dir: &Path, nothing: impl Fn() -> Result<Figures, String>) -> (usize, Vec<String>) {
        let mut bases: HashMap<i64, (HashMap<String, i64>, Figures)> = HashMap::new();
        let (mut compared, mut found) = (0, vec![]);
        for moment in &self.moments {
            if moment.base == -1 && !bases.contains_key(&-1) {
                match nothing() {
                    Ok(figures) => drop(bases.insert(-1, (HashMap::new(), figures))),
                    Err(e) => found.push(format!("base: {e}")),
                }
            }
            let seen = match moment.seen(dir) {
                Ok(seen) => seen,
                Err(e) => {
                    found.push(format!("'{}' pid {}: {e}", moment.label, moment.pid));
                    continue;
                }
            };
            let state = if moment.last { "dead" } else { "live" };
            if seen.state != state {
                found.push(format!(
                    "'{}' pid {}: state '{}' of a {state} process",
                    moment.label, moment.pid, seen.state
                ));
            }
            let opens = moment.base == moment.pid && !moment.last;
            if opens && (moment.label == "base" || !bases.contains_key(&moment.pid)) {
                bases.insert(moment.pid, (moment.says.clone(), seen));
                continue;
            }
            let Some((says, figures)) = bases.get(&moment.base) else {
                found.push(format!("'{}' pid {}: no base to compare with", moment.label, moment.pid));
                continue;
            };
            let mut differences = moment.differences(&seen, (says, figures));
            if let Some(first) = differences.first_mut() {
                *first += &format!("; gaps {}, counters: {}", seen.gaps, seen.counters());
            }
            found.extend(differences);
            compared += 1;
        }
        (compared, found)
    }
}

/// Kills the process group of a child that hangs; the thread returns whether that was necessary.
pub fn watchdog(child: &Child) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<bool>) {
    let (finished, wait) = channel();
    let group = child.id() as i32;
    let late = std::thread::spawn(move || {
        let late = wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        if late {
            // SAFETY: kill takes no pointers. The group belongs to our own child, which has not been reaped: it is
            // waited for only after its output ended.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        late
    });
    (finished, late)
}

pub fn read_all(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = vec![];
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).to_string()
    })
}
