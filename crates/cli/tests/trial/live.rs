//! `plimsoll try --pid`: what each step does to a running program, and that no change remains afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::child::{Running, wait_until};
use crate::harness::{self, fixture};
use crate::jdks::{self, Jdk};
use crate::kit::{Trial, signal};

const MIB: f64 = 1048576.0;
const SHORT: [&str; 2] = ["--idle", "0.2"];

/// A program that has printed `ready`; killed at the end.
struct Program {
    child: Running,
    truth: BTreeMap<String, u64>,
}

impl Program {
    fn start(mut command: Command) -> Program {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut program = Program { child: Running(child), truth: BTreeMap::new() };
        let output = program.child.stdout.take().expect("a pipe");
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == "ready" {
                return program;
            }
            let printed = line.split_once(' ').and_then(|(word, figure)| Some((word.to_owned(), figure.parse().ok()?)));
            program.truth.extend(printed);
        }
        panic!("the program ended before it was ready");
    }

    fn java(trial: &Trial, jdk: &Jdk, flags: &[&str], main: &[&str]) -> Program {
        let classes = trial.folder.join(format!("classes-{}", jdk.major));
        let source = |name: &str| fixture(&format!("java/explain/{name}.java"));
        let javac = jdk.tool("javac").arg("-d").arg(&classes).args([source("Truth"), source(main[0])]).output();
        assert!(javac.expect("javac").status.success());
        let mut java = jdk.tool("java");
        java.args(flags).arg("-cp").arg(&classes).args(main);
        Program::start(java)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// A flag as the VM shows it.
    fn flag(&self, jdk: &Jdk, name: &str) -> String {
        let output = jdk.tool("jcmd").args([&self.pid(), "VM.flags", "-all"]).output().expect("jcmd");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).expect("the flag");
        line.split('=').nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap_or_default().to_owned()
    }
}

impl Trial {
    /// `plimsoll try --pid PID OPTIONS`: its exit status, its document, and its standard error.
    fn live(&self, pid: &str, options: &[&str]) -> (Option<i32>, Value, String) {
        let all = [&["--pid", pid, "--format", "json"], options].concat();
        let output = self.verb("try", &all).output().expect("plimsoll");
        self.assert_nothing_left();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), error)
    }
}

fn step<'v>(document: &'v Value, name: &str) -> &'v Value {
    let steps = document["steps"].as_array().unwrap_or_else(|| panic!("no steps in {document:#}"));
    steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step {name} in {document:#}"))
}

fn mib(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no bytes: {value}")) / MIB
}

const RATIOS: &str = "flag:-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30,gc";
const RATIOS_ROW: &str = "MinHeapFreeRatio=10 MaxHeapFreeRatio=30, gc";

/// The program filled 150 MiB of its heap with garbage, and says how much of the heap is committed and occupied: a
/// collection with these ratios leaves the occupied part, three tenths of the heap, and some regions.
#[test]
fn flags_of_a_live_vm_are_tried_and_set_back() {
    let trial = Trial::new("live-flags");
    for jdk in jdks::jdks() {
        let vm = Program::java(
            &trial,
            &jdk,
            &["-XX:+UseG1GC", "-Xmx300m", "-XX:MaxHeapFreeRatio=100"],
            &["HeapUnused", "150"],
        );
        let old = ["MinHeapFreeRatio", "MaxHeapFreeRatio"].map(|flag| vm.flag(&jdk, flag));
        let options = [&SHORT[..], &["--with", RATIOS, "--with", "flag:-XX:MaxHeapSize=9"]].concat();
        let (status, found, error) = trial.live(&vm.pid(), &options);
        assert_eq!(status, Some(0), "{error}");
        let (committed, occupied) = (vm.truth["committed"] as f64 / MIB, vm.truth["occupied"] as f64 / MIB);
        let saved = -mib(&step(&found, RATIOS_ROW)["difference_bytes"]);
        assert!(saved > 150.0 - occupied / 0.7 - 16.0 && saved < committed, "{saved}: {found:#}");
        let heap = &step(&found, RATIOS_ROW)["lines"][0];
        assert_eq!(heap["id"], "java-heap", "{found:#}");
        assert_eq!(step(&found, RATIOS_ROW)["set_back"][1]["value"], old[1].as_str());
        assert_eq!(["MinHeapFreeRatio", "MaxHeapFreeRatio"].map(|flag| vm.flag(&jdk, flag)), old);
        let refused = step(&found, "MaxHeapSize=9")["missing"].as_str().expect("a reason");
        assert!(refused.contains("can't change MaxHeapSize while it runs"), "{refused}");
        assert!(mib(&step(&found, "nothing")["difference_bytes"]).abs() < 5.0, "{found:#}");
        assert_eq!((&found["most"]["kind"], &found["most"]["step"]), (&"saves".into(), &RATIOS_ROW.into()));
        // It says beforehand what it will do.
        assert!(error.contains(&format!("jcmd {} VM.set_flag MaxHeapFreeRatio 30", vm.pid())), "{error}");
        assert!(error.contains("set back to the old value afterwards"), "{error}");
    }
}

/// Without `--with`: a trim, a collection, and what the verdicts propose. Sixty threads have ended 25 streams each.
#[test]
fn a_live_vm_gives_back_what_its_arenas_keep_free() {
    let trial = Trial::new("live-trim");
    let jdk = jdks::jdks().pop().expect("a JDK");
    let vm = Program::java(&trial, &jdk, &["-Xmx64m"], &["Arenas"]);
    let (status, found, error) = trial.live(&vm.pid(), &SHORT);
    assert_eq!(status, Some(0), "{error}");
    let names: Vec<&Value> = found["steps"].as_array().expect("steps").iter().map(|step| &step["name"]).collect();
    assert_eq!(names[..3], ["nothing", "trim", "gc"]);
    let trim = step(&found, "trim");
    let saved = -mib(&trim["difference_bytes"]);
    let bounds = ["least_bytes", "most_bytes"].map(|key| mib(&trim["predicted_saving"][key]));
    assert!(saved > 100.0 && bounds[0] - 1.0 < saved && saved < bounds[1] + 1.0, "{saved} outside of {bounds:?}");
    assert_eq!(trim["lines"][0]["id"], "glibc-retained");
    assert_eq!((&found["most"]["step"], trim["commands"].as_array().map(Vec::len)), (&"trim".into(), Some(1)));
}

/// Ctrl-C, and a SIGKILL of plimsoll: the flag has its old value again. It is changed many times, so that a slow `jcmd`
/// sees it changed.
#[test]
fn flags_are_set_back_when_plimsoll_is_interrupted_or_killed() {
    let trial = Trial::new("live-killed");
    let jdk = jdks::jdks().pop().expect("a JDK");
    let vm = Program::java(&trial, &jdk, &["-Xmx64m"], &["HeapUnused", "1"]);
    let old = vm.flag(&jdk, "MaxHeapFreeRatio");
    let flags: Vec<String> = (41..70).map(|value| format!("flag:-XX:MaxHeapFreeRatio={value}")).collect();
    let with: Vec<&str> = flags.iter().flat_map(|flag| ["--with", flag]).collect();
    for how in ["INT", "KILL"] {
        let pid = vm.pid();
        let options = [&["--pid", &pid, "--idle", "20"][..], &with].concat();
        let child = trial.verb("try", &options).spawn().expect("plimsoll");
        wait_until("a new value", || vm.flag(&jdk, "MaxHeapFreeRatio") != old);
        signal(trial.find(&format!("{} try", harness::PLIMSOLL)).expect("plimsoll"), how);
        let output = child.wait_with_output().expect("our child");
        if how == "INT" {
            assert_eq!(output.status.code(), Some(130));
            assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted"), "{output:?}");
        }
        wait_until("the old value", || vm.flag(&jdk, "MaxHeapFreeRatio") == old);
        trial.wait_until_nothing_is_left();
    }
}

/// While one of many values of a flag is set, the test stops plimsoll and changes another flag. Then the VM refuses the
/// old value of the first flag.
#[test]
fn a_flag_that_stays_changed_is_a_failure() {
    let trial = Trial::new("live-kept");
    let jdk = jdks::jdks().pop().expect("a JDK");
    let vm = Program::java(&trial, &jdk, &["-Xmx64m", "-XX:MaxHeapFreeRatio=70"], &["HeapUnused", "1"]);
    let pid = vm.pid();
    let flags: Vec<String> = (81..=100).map(|value| format!("flag:-XX:MaxHeapFreeRatio={value}")).collect();
    let with: Vec<&str> = flags.iter().flat_map(|flag| ["--with", flag]).collect();
    let child = trial.verb("try", &[&["--pid", &pid, "--idle", "20"][..], &with].concat()).spawn().expect("plimsoll");
    let plimsoll = || trial.find(&format!("{} try", harness::PLIMSOLL)).expect("plimsoll");
    wait_until("a new value that holds", || {
        if vm.flag(&jdk, "MaxHeapFreeRatio") == "70" {
            return false;
        }
        signal(plimsoll(), "STOP");
        // Refused if the old value is there again.
        let set = jdk.tool("jcmd").args([&pid, "VM.set_flag", "MinHeapFreeRatio", "80"]).output().expect("jcmd");
        signal(plimsoll(), "CONT");
        set.status.success() && vm.flag(&jdk, "MinHeapFreeRatio") == "80"
    });
    // It may have ended since: no step works any more, and the note is the same.
    if let Some(pid) = trial.find(&format!("{} try", harness::PLIMSOLL)) {
        signal(pid, "INT");
    }
    let output = child.wait_with_output().expect("our child");
    assert_ne!(vm.flag(&jdk, "MaxHeapFreeRatio"), "70");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let note = format!("process {pid} keeps changed flags: the VM refuses MaxHeapFreeRatio=70");
    assert!(text.contains(&note) && output.status.code() == Some(2), "{:?}: {text}", output.status);
    trial.wait_until_nothing_is_left();
}

/// Redis at a TCP port, and a connection to its Unix socket.
struct Redis {
    program: Program,
    port: String,
    socket: PathBuf,
}

impl Redis {
    /// Values of 100 bytes, of which all are deleted: free pages of jemalloc.
    fn after_a_deletion(trial: &Trial, password: &str) -> Redis {
        let first = 20_000 + (std::process::id() % 5_000) as u16;
        let port = (first..).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port");
        let socket = trial.folder.join("redis.sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("redis-server");
        let port = port.to_string();
        command.args(["--port", &port, "--save", "", "--jemalloc-bg-thread", "no", "--daemonize", "no"]);
        command.args(["--requirepass", password, "--unixsocket"]).arg(&socket).arg("--dir").arg(&trial.folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("redis-server");
        let redis = Redis { program: Program { child: Running(child), truth: BTreeMap::new() }, port, socket };
        wait_until("redis", || UnixStream::connect(&redis.socket).is_ok());
        if password.is_empty() {
            redis.send((0..200_000).map(|key| format!("SET k{key} {}\r\n", "x".repeat(100))));
            redis.send((0..200_000).map(|key| format!("DEL k{key}\r\n")));
        }
        redis
    }

    fn send(&self, commands: impl Iterator<Item = String>) {
        crate::redis::send(&self.socket, commands);
    }
}

#[test]
fn redis_purges_by_its_own_protocol() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return eprintln!("redis: skipped, redis-server is not installed");
    }
    let trial = Trial::new("live-redis");
    let redis = Redis::after_a_deletion(&trial, "");
    let (status, found, error) = trial.live(&redis.program.pid(), &SHORT);
    assert_eq!(status, Some(0), "{error}");
    let purge = step(&found, "purge");
    let by_hand = format!("redis-cli -p {} MEMORY PURGE", redis.port);
    assert_eq!(purge["commands"], serde_json::json!([by_hand]), "{found:#}");
    assert!(error.contains(&format!("  {by_hand}: Redis gives free pages back")), "{error}");
    // 200,000 entries of more than 100 bytes are gone.
    let saved = -mib(&purge["difference_bytes"]);
    assert!(saved > 19.0, "{found:#}");
    let bounds = ["least_bytes", "most_bytes"].map(|key| mib(&purge["predicted_saving"][key]));
    assert!(bounds[0] * 0.97 < saved && saved < bounds[1] * 1.03, "{saved} outside of {bounds:?}");
    drop(redis);
    let redis = Redis::after_a_deletion(&trial, "secret");
    let (status, found, error) = trial.live(&redis.program.pid(), &SHORT);
    assert_eq!(status, Some(2), "{error}");
    let refused = step(&found, "purge")["missing"].as_str().expect("a reason");
    let by_hand = format!("redis-cli -p {} --askpass MEMORY PURGE", redis.port);
    assert_eq!(refused, format!("Redis asks for a password. Type: {by_hand}"));
}

/// A burst of two threads whose free blocks stay in the allocator, over glibc or another.
fn burst(trial: &Trial, environment: &[(&str, &str)], tracked: bool) -> Program {
    let file = trial.burst();
    let mut command = Command::new(if tracked { harness::PLIMSOLL } else { &file });
    if tracked {
        command.args(["run", "--report", "none", "--dir", &trial.path("segments"), "--", &file]);
    }
    command.args(["2", "40"]).envs(environment.iter().copied());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut program = Program { child: Running(child), truth: BTreeMap::new() };
    let mut line = String::new();
    BufReader::new(program.child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "burst done\n");
    program
}

/// The numbers of threads and of anonymous executable mappings, which must be as before.
fn threads_and_regions(pid: &str) -> (usize, usize) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    (tasks, maps.lines().filter(|line| line.contains("r-xp") && line.split_whitespace().count() == 5).count())
}

/// A thread that plimsoll starts calls the function of each allocator, and ends. Two threads have freed 40 MiB, one
/// after the other. glibc and jemalloc give each thread an arena. tcmalloc serves the second thread with what the first
/// freed.
#[test]
fn a_program_without_a_vm_gives_free_pages_back() {
    const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
    let trial = Trial::new("live-native");
    let jemalloc = format!("{LIBRARIES}/libjemalloc.so.2");
    let tcmalloc = format!("{LIBRARIES}/libtcmalloc_minimal.so.4");
    type Row<'r> = (&'r str, &'r str, f64, &'r [(&'r str, &'r str)]);
    let rows: [Row; 3] = [
        ("trim", "malloc_trim(0)", 80.0, &[]),
        // It would give pages back by itself after ten seconds.
        (
            "purge",
            "mallctl(\"arena.4096.purge\"",
            80.0,
            &[("LD_PRELOAD", &jemalloc), ("MALLOC_CONF", "dirty_decay_ms:600000")],
        ),
        ("purge", "MallocExtension_ReleaseFreeMemory()", 40.0, &[("LD_PRELOAD", &tcmalloc)]),
    ];
    for (name, function, freed, environment) in rows {
        let program = burst(&trial, environment, false);
        let pid = program.pid();
        let before = threads_and_regions(&pid);
        let (status, found, error) = trial.live(&pid, &SHORT);
        assert_eq!(status, Some(0), "{function}: {error}");
        let names: Vec<&str> =
            found["steps"].as_array().expect("steps").iter().filter_map(|step| step["name"].as_str()).collect();
        assert_eq!(names[..2], ["nothing", name], "{found:#}");
        let step = step(&found, name);
        let called = step["commands"][0].as_str().expect("a call");
        assert!(called.starts_with(function), "{called}");
        let saved = -mib(&step["difference_bytes"]);
        let bounds = ["least_bytes", "most_bytes"].map(|key| mib(&step["predicted_saving"][key]));
        // The call itself touches pages of the library, and of its thread's stack: some 0.5 MiB.
        assert!(bounds[0] - 2.0 < saved && saved < bounds[1] + 1.0, "{function}: {saved} outside of {bounds:?}");
        assert!(saved > freed * 0.8 && saved < freed * 1.05, "{function}: {saved} of {freed}");
        wait_until("the thread of plimsoll ends", || threads_and_regions(&pid) == before);
    }
}

/// The region of plimsoll's thread is no mapping of the program's: the books stay as they are.
#[test]
fn a_trim_leaves_the_books_of_a_tracked_program() {
    let trial = Trial::new("live-tracked");
    let program = burst(&trial, &[], true);
    let books = || {
        let output = trial.verb("report", &[&program.pid(), "--format", "json"]).output().expect("plimsoll");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        ["live_bytes", "live_count", "cumulative_count", "reserved_bytes"]
            .map(|key| report["total"][key].as_u64().expect("a figure"))
    };
    let before = books();
    let (status, found, error) = trial.live(&program.pid(), &[&SHORT[..], &["--with", "trim"]].concat());
    assert_eq!(status, Some(0), "{error}");
    assert!(-mib(&step(&found, "trim")["difference_bytes"]) > 60.0, "{found:#}");
    let [bytes, count, cumulative, reserved] = books();
    // libc keeps the stack of an ended thread for the next one, with a block for its thread-local storage.
    assert!(count - before[1] <= 1 && bytes - before[0] <= 1024, "{bytes} B in {count} after {before:?}");
    assert!(cumulative - before[2] <= 4 && reserved == before[3], "{cumulative}, {reserved} after {before:?}");
}

/// One sentence each, and nothing is done.
#[test]
fn what_cannot_be_tried_is_a_sentence() {
    let trial = Trial::new("live-refused");
    let burst = burst(&trial, &[], false);
    let pid = burst.pid();
    let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let names = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("a thread").file_name().into_string().ok();
    let thread = tasks.find_map(|entry| names(entry).filter(|tid| *tid != pid)).expect("a second thread");
    let program = harness::compiled("arena_burst", &trial.folder.join("static"), &["-static"]);
    let fixed = Running(
        Command::new(&program)
            .args(["1", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts"),
    );
    let fixed = fixed.id().to_string();
    let leader = format!("{thread} is a thread of process {pid}: plimsoll try --pid {pid}");
    let cases: [(&[&str], &str); 11] = [
        (&["--pid", &pid, "--with", "gc"], "gc can't be tried on process"),
        (&["--pid", &fixed], "nothing can be tried on process"),
        (&["--pid", &pid, "--with", "gc"], "it isn't a JVM. What can be: --with trim. What needs a restart: "),
        (&["--pid", &thread, "--with", "trim"], &leader),
        (&["--pid", &pid, "--with", "tri"], "Did you mean 'trim'?"),
        (&["--pid", &pid, "--with", "nothing"], "; with --pid one of trim, gc, purge, "),
        (
            &["--pid", &pid, "--with", "purge"],
            "it is neither Redis nor Valkey, and has no library of jemalloc or tcmalloc",
        ),
        (&["--pid", &pid, "--with", "arenas=2"], "what needs a restart is tried on a command, without --pid"),
        (&["--with", "gc", "--", "true"], "gc and purge need a running process (--pid)"),
        (&["--pid", "999999999"], "no process 999999999"),
        (&["--pid", &pid, "--rounds", "3"], "--rounds"),
    ];
    for (options, expected) in cases {
        let output = trial.verb("try", options).output().expect("plimsoll");
        let error = String::from_utf8_lossy(&output.stderr);
        // clap prints the usage, too.
        let lines = error.lines().count();
        let is_mistyped = ["tri", "nothing"].iter().any(|remedy| options.contains(remedy));
        assert!(output.status.code() == Some(2) && (lines == 1 || is_mistyped), "{options:?}: {error}");
        assert!(error.contains(expected), "{options:?}: {error}");
    }
    // What needs a restart can be pasted.
    let error = trial.verb("try", &["--pid", &pid, "--with", "gc"]).output().expect("plimsoll").stderr;
    let restart = format!("plimsoll try -- {} 2 40\n", trial.burst());
    assert!(String::from_utf8_lossy(&error).ends_with(&restart), "{}", String::from_utf8_lossy(&error));
}
