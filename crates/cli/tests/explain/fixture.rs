//! Builds, starts and stops the programs of fixtures/explain, and reads plimsoll's output about them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::stage::{cached, fetch, fetcher, in_short, installed};

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// Limit for a fact on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// An empty folder for this process. PIDs are reused, so a failed or killed run may have left files under the same
/// name.
pub fn fresh(name: &str) -> PathBuf {
    let folder = scratch().join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("scratch");
    folder
}

/// A fixture that has done its work and now waits. Killed when dropped.
pub struct Fixture {
    child: Child,
    output: BufReader<ChildStdout>,
    truths: HashMap<String, u64>,
}

impl Fixture {
    pub fn c(name: &str, arguments: &[&str]) -> Fixture {
        Fixture::run(Command::new(compiled(name, &[])).args(arguments))
    }

    /// Starts a program that prints its truths and then `ready`.
    pub fn run(command: &mut Command) -> Fixture {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the fixture starts");
        let mut truths = HashMap::new();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut is_ready = false;
        for line in output.by_ref().lines().map_while(Result::ok) {
            if line == "ready" {
                is_ready = true;
                break;
            }
            if let Some((word, number)) = line.split_once(' ')
                && let Ok(number) = number.parse()
            {
                truths.insert(word.to_owned(), number);
            }
        }
        assert!(is_ready, "the fixture ended before it was ready");
        let fixture = Fixture { child, output, truths };
        // The fixture prints before it waits, and its waiting call maps in neighbouring pages. So two readings agree
        // only once all its threads sleep.
        fixture.rests();
        fixture
    }

    fn rests(&self) {
        let began = Instant::now();
        while !all_sleep(self.pid()) {
            assert!(began.elapsed() < LIMIT, "the fixture doesn't come to rest");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Has a fixture serve one round of load, and waits until it has served it. Its standard input must be a pipe.
    pub fn serves(&mut self) {
        let input = self.child.stdin.as_mut().expect("piped");
        input.write_all(b"go\n").and_then(|()| input.flush()).expect("it reads");
        let served = self.output.by_ref().lines().map_while(Result::ok).any(|line| line == "served");
        assert!(served, "the load was not served");
        self.rests();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Makes a C fixture trim its allocator, and waits until it is done. Resident bytes before and after.
    pub fn trims(&self) -> [u64; 2] {
        let resident = || {
            let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).expect("it runs");
            statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
        };
        let before = resident();
        assert!(Command::new("kill").args(["-USR1", &self.pid().to_string()]).status().expect("kill").success());
        // Done: the fixture sleeps again, and two readings in a row agree.
        let (mut after, began) = (before, Instant::now());
        while began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
            let now = resident();
            if now == after && now < before && all_sleep(self.pid()) {
                return [before, after];
            }
            after = now;
        }
        panic!("no trim: {before} bytes resident before, {after} after");
    }

    pub fn truth(&self, word: &str) -> u64 {
        self.truths[word]
    }

    pub fn explained(&self) -> Explained {
        explain(self.pid(), &[])
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of the compiled fixture; each list of flags makes a variant of its own. Compiled once: gdb can't read the
/// symbols of a program whose file was replaced.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let source = root().join("fixtures/explain").join(format!("{name}.c"));
    let binary = scratch().join(format!("{name}{}", flags.concat()));
    if made.contains(&binary) {
        return binary;
    }
    // Test programs run concurrently: each compiles to a file of its own and moves it into place. `fresh` makes no
    // folder of this name.
    let own = scratch().join(format!("{name}-{}.new", std::process::id()));
    let built = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-pthread", "-o"])
        .arg(&own)
        .arg(source)
        .args(flags)
        .status()
        .expect("a C compiler named cc");
    assert!(built.success(), "{name} does not compile");
    std::fs::rename(&own, &binary).expect("same directory");
    made.push(binary.clone());
    binary
}

/// A program of fixtures/rust, built once with the versions of its Cargo.lock.
pub fn rust(package: &str, program: &str) -> PathBuf {
    let source = root().join("fixtures/rust").join(package);
    let mut hasher = DefaultHasher::new();
    for file in ["Cargo.toml", "Cargo.lock", "src/main.rs"] {
        std::fs::read(source.join(file)).expect("a package").hash(&mut hasher);
    }
    let folder = cached(&format!("rust-{package}-{:x}", hasher.finish()), |part| {
        let mut build = fetcher("cargo");
        build.args(["build", "--release", "--locked", "--manifest-path"]).arg(source.join("Cargo.toml"));
        fetch(build.arg("--target-dir").arg(part.join("target")), part);
        std::fs::rename(part.join("target/release").join(program), part.join(program)).expect("it was built");
        std::fs::remove_dir_all(part.join("target")).expect("ours");
    });
    folder.join(program)
}

#[derive(Debug)]
pub struct Explained(pub Value);

/// Whether all threads of a process sleep. A thread that ends meanwhile is at rest, too.
pub fn all_sleep(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let mut stats = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    stats.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['S', 'Z'])))
}

/// `plimsoll explain PID`. One that hangs is killed.
pub fn run(pid: u32, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", PLIMSOLL, "explain", &pid.to_string()]).args(arguments);
    command.output().expect("plimsoll runs")
}

/// Words of gaps that say that a part of the reading was late, as on a busy machine: the next one may be in time.
const LATE: [&str; 5] =
    ["didn't answer within", "no answer within", "time limit", "not read in time", "the command's time was over"];

/// Reads again while the report says that a part of it was late.
pub fn explain(pid: u32, arguments: &[&str]) -> Explained {
    let began = Instant::now();
    loop {
        let output = run(pid, &[&["--format", "json"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let explained = Explained(serde_json::from_slice(&output.stdout).expect("JSON"));
        explained.adds_up();
        let mut reasons = explained.0["gaps"].as_array().unwrap().iter().map(|gap| gap["reason"].as_str().unwrap());
        let is_late = reasons.any(|reason| LATE.iter().any(|words| reason.contains(words)));
        if !is_late || began.elapsed() > LIMIT {
            return explained;
        }
    }
}

/// The verdicts are exactly these. `limit-near` doesn't count: the machine's own cgroup may be near its limit.
#[track_caller]
pub fn has(case: &str, explained: &Explained, expected: &[&str]) {
    let mut found: Vec<&str> = explained.verdicts().into_iter().filter(|id| *id != "limit-near").collect();
    found.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected, "{case}: {:#}", explained.0["verdicts"]);
}

impl Explained {
    /// Conservation (ARCHITECTURE.md, invariants): Σ lines + remainder = RSS. Children and groups add up, too.
    pub fn adds_up(&self) {
        let rss = self.0["rss_bytes"].as_u64().unwrap();
        let remainder = self.0["remainder_bytes"].as_u64().unwrap();
        let lines = self.0["lines"].as_array().unwrap();
        let sum: u64 = lines.iter().map(resident).sum();
        assert_eq!(sum + remainder, rss);
        let groups: u64 = self.0["groups"].as_array().unwrap().iter().map(resident).sum();
        assert_eq!(groups, rss);
        for line in lines {
            let children = line["children"].as_array().unwrap();
            if !children.is_empty() {
                assert_eq!(children.iter().map(resident).sum::<u64>(), resident(line), "{}", line["id"]);
            }
        }
    }

    pub fn line(&self, id: &str) -> u64 {
        self.0["lines"].as_array().unwrap().iter().filter(|line| line["id"] == id).map(resident).sum()
    }

    pub fn reserved(&self, id: &str) -> u64 {
        let lines = self.0["lines"].as_array().unwrap().iter().filter(|line| line["id"] == id);
        lines.map(|line| line["reserved_bytes"].as_u64().unwrap()).sum()
    }

    /// Resident bytes of a line's children whose name contains `part`.
    pub fn child(&self, id: &str, part: &str) -> u64 {
        let lines = self.0["lines"].as_array().unwrap().iter().filter(|line| line["id"] == id);
        let children = lines.flat_map(|line| line["children"].as_array().unwrap());
        children.filter(|child| child["name"].as_str().unwrap().contains(part)).map(resident).sum()
    }

    /// Types a verdict's remedy as it is printed, in a shell that finds plimsoll and a JDK's tools. Returns what it
    /// prints.
    #[track_caller]
    pub fn typed(&self, verdict: &str, which: usize) -> String {
        let how = self.verdict(verdict)["remedies"][which]["how"].as_str().expect("a command");
        let folder = |program: &Path| program.parent().expect("a folder").display().to_string();
        let tools = installed().first().map(|jdk| folder(&jdk.bin("jcmd"))).unwrap_or_default();
        let path = format!("{}:{tools}:{}", folder(PLIMSOLL.as_ref()), std::env::var("PATH").expect("a path"));
        let output = Command::new("sh").args(["-c", &in_short(how)]).env("PATH", path).output().expect("a shell");
        assert!(output.status.success(), "{how}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Types a remedy that gives memory back. The saving is inside the bounds that it promises, except for memory that
    /// the call itself takes.
    #[track_caller]
    pub fn typed_and_saves(&self, verdict: &str, which: usize) {
        let pid = self.0["process"]["pid"].as_u64().expect("a PID");
        let rss = || {
            let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
            statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
        };
        let before = rss();
        self.typed(verdict, which);
        let saved = before.saturating_sub(rss());
        let remedy = &self.verdict(verdict)["remedies"][which];
        let [least, most] = ["saving_least_bytes", "saving_bytes"].map(|key| remedy[key].as_u64().expect("a figure"));
        assert!(saved + (2 << 20) >= least && saved <= most + (1 << 20), "saved {saved}: {remedy:#}");
    }

    #[track_caller]
    pub fn line_is(&self, id: &str, truth: u64) {
        let found = self.line(id);
        assert!(found.abs_diff(truth) * 100 <= truth * 3, "{id}: found {found}, truth {truth}\n{:#}", self.0["lines"]);
    }

    pub fn verdicts(&self) -> Vec<&str> {
        self.0["verdicts"].as_array().unwrap().iter().map(|verdict| verdict["id"].as_str().unwrap()).collect()
    }

    pub fn verdict(&self, id: &str) -> &Value {
        self.0["verdicts"].as_array().unwrap().iter().find(|verdict| verdict["id"] == id).expect(id)
    }

    /// Exactly these, in any order.
    #[track_caller]
    pub fn verdicts_are(&self, ids: &[&str]) {
        let (mut found, mut expected) = (self.verdicts(), ids.to_vec());
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{:#}", self.0["verdicts"]);
    }

    pub fn gaps(&self) -> Vec<&str> {
        self.0["gaps"].as_array().unwrap().iter().map(|gap| gap["source"].as_str().unwrap()).collect()
    }
}

pub fn resident(line: &Value) -> u64 {
    line["resident_bytes"].as_u64().unwrap()
}

/// Reports a case that this machine cannot run; the gate counts it.
pub fn skip(test: &str, reason: &str) {
    crate::stage::log_line(&format!("{test}: skipped, {reason}"));
}

pub fn is_root() -> bool {
    effective_user() == Some(0)
}

fn effective_user() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1)?.parse().ok())
}
