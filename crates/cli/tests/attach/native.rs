//! Attach to programs that have no way of their own to load an agent: C, Redis, Python, Node, a JVM that opens no
//! socket. The program notices any harm itself (fixtures/c/attach_rounds.c), and its own log is what the books are
//! compared with.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::child::Running;
use crate::environments::{can_contain, contained, nothing_executable};
use crate::kit::{Java as Program, PLIMSOLL, fixtures, is_trackers, jdks, once, plimsoll, scratch};
use crate::stage::{Scratch, must};
use crate::{category, counter, held, wait_until};

/// The fixture, compiled with these flags.
pub fn compiled(flags: &[&str]) -> PathBuf {
    compiled_from("attach_rounds", flags)
}

/// The program of fixtures/c/SOURCE.c.
pub fn compiled_from(source: &str, flags: &[&str]) -> PathBuf {
    let to = scratch("native").join(format!("{source}{}-{}", flags.concat(), std::process::id()));
    let mut gcc = Command::new("gcc");
    // Without -fno-builtin the compiler may remove a malloc whose block is not used.
    gcc.args(["-std=gnu17", "-O1", "-g", "-fno-builtin", "-pthread", "-w"]).args(flags);
    gcc.arg(fixtures().join(format!("c/{source}.c"))).arg("-o").arg(&to);
    once(&to, || drop(must(&mut gcc)));
    to
}

pub fn start(name: &str, program: &Path, arguments: &[&str]) -> Program {
    let mut command = Command::new(program);
    command.args(arguments);
    Program::start(command, name)
}

/// If the attach didn't note a library, the report would show it as loaded at its first call after the attach.
#[test]
fn an_attach_notes_all_loaded_objects() {
    // Nothing calls libm.
    let file = compiled(&["-Wl,--no-as-needed", "-lm"]);
    let mut program = start("objects", &file, &["3"]);
    program.done(&["attach", &program.pid()]);
    let report = program.report();
    // The loader and the kernel may name folders differently.
    let name = |path: &str| path.rsplit('/').next().unwrap_or("").to_string();
    let modules: Vec<String> =
        report["modules"].as_array().expect("modules").iter().filter_map(|m| m["path"].as_str()).map(name).collect();
    let maps = program.mappings();
    let is_object = |path: &&str| (path.contains(".so") && !is_trackers(path)) || Path::new(path) == file;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let loaded: std::collections::BTreeSet<String> = paths.filter(is_object).map(name).collect();
    assert!(loaded.len() >= 4 && loaded.contains("libm.so.6"), "{maps}");
    let missing: Vec<&String> = loaded.iter().filter(|name| !modules.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} is not in {modules:?}");
    assert_eq!(program.send("go"), "gone");
}

/// native-image writes such a library beside an image that uses AWT or JMX: no VM that could load an agent.
#[test]
fn a_program_with_an_empty_libjvm_is_attached_to_as_any_other() {
    let folder = scratch("native").join(format!("shim-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (source, shim) = (folder.join("empty.c"), folder.join("libjvm.so"));
    fs::write(&source, "").expect("a file");
    drop(must(Command::new("gcc").args(["-shared", "-fPIC"]).arg(&source).arg("-o").arg(&shim)));
    let mut command = Command::new(compiled(&[]));
    command.arg("3").env("LD_PRELOAD", &shim);
    let mut program = Program::start(command, "shim");
    assert!(program.mappings().contains("/libjvm.so"));
    program.done(&["attach", &program.pid()]);
    assert_eq!(program.send("go"), "gone");
    fs::remove_dir_all(folder).expect("removed");
}

/// plimsoll may find the functions of one copy, while the borrowed thread holds a lock of the other copy.
#[test]
fn a_program_with_two_copies_of_libc_is_not_entered() {
    let program = start("two-libcs", &compiled_from("two_libcs", &[]), &[]);
    let pid = program.pid();
    for command in [&["attach", &pid][..], &["try", "--pid", &pid, "--with", "trim", "--idle", "0.1"]] {
        let output = plimsoll(command);
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let is_refused = !output.status.success() && printed.contains("has its C library loaded twice");
        assert!(is_refused, "{command:?}: {printed}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("it runs");
    assert!(status.contains("State:\tR") && status.contains("Threads:\t2\n"), "{status}");
}

/// An arena from before the attach is a mapping in the books. The blocks that it got since then count in their own
/// lines, and must not count again in the mapping's line. Nor must the memory that they leave free.
#[test]
fn blocks_in_an_arena_from_before_the_attach_count_once() {
    const FILLED: u64 = 320 * (100 << 10);
    let mut program = start("arena", &compiled_from("attach_arena", &[]), &[]);
    program.done(&["attach", &program.pid()]);
    let sums = |program: &Program| {
        let report = program.report();
        let of = |line: &Value, name: &str| line[name].as_u64().unwrap_or(0);
        let held = |line: &Value| {
            let resident = of(line, "resident_bytes") - of(line, "resident_file_bytes");
            of(line, "live_bytes") + resident - of(line, "resident_arena_bytes")
        };
        let lines = report["categories"].as_array().expect("categories");
        let before = lines.iter().find(|line| line["name"] == "before the attach").expect("older mappings");
        let all: u64 = lines.iter().map(held).sum();
        (all, held(before), of(before, "resident_bytes"), of(&report["process"], "anonymous_bytes"))
    };
    let (all, before, ..) = sums(&program);
    assert_eq!(program.send("fill"), "filled");
    let (filled, older, resident, anonymous) = sums(&program);
    println!(
        "exercised: {all} B held, then {filled} of {anonymous} anonymous; older {before}, then {older} of {resident}"
    );
    assert!(resident > FILLED, "the blocks are in an older arena: {resident}");
    assert!((FILLED..FILLED + (2 << 20)).contains(&(filled - all)), "{all} B, then {filled}");
    assert!(filled <= anonymous + (1 << 20), "{filled} of {anonymous}");
    assert!(older < before + (1 << 20), "{before}, then {older}");
    // No line has the free memory of the arena.
    assert_eq!(program.send("empty"), "emptied");
    let (emptied, older, ..) = sums(&program);
    assert!(emptied < all + (2 << 20) && older < before + (1 << 20), "{all} B, then {emptied}; {before}, then {older}");
}

/// A server whose master was attached and detached: a worker that is forked after that has the tracker's memory of its
/// parent, without its books. One that is forked while the master is attached has books of its own.
#[test]
fn a_worker_of_a_master_that_was_detached_is_not_entered() {
    let mut master = start("prefork", &compiled_from("attach_prefork", &[]), &[]);
    let pid = master.pid();
    master.done(&["attach", &pid]);
    assert_eq!(master.send("turn"), "turned");
    master.done(&["detach", &pid]);
    let worker = master.send("fork");
    let refused = plimsoll(&["attach", &worker]);
    let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
    let is_refused =
        refused.status.code() == Some(2) && sentence.contains("forked by a process that had been attached");
    assert!(is_refused, "{sentence}");
    let turns = |master: &mut Program| master.send("count").parse::<u64>().expect("a number");
    let before = turns(&mut master);
    wait_until("turns of the worker", || turns(&mut master) > before + 100);

    master.done(&["attach", &pid]);
    let worker = master.send("fork");
    let before = turns(&mut master);
    wait_until("turns of the worker", || turns(&mut master) > before + 100);
    assert!(master.done(&["attach", &worker]).contains("tracked already"));
}

/// No directory of the program can hold a library that can be loaded: the injected thread loads it from a file in
/// memory. The library's descriptor stays, because the loader's name for the library is the path of that descriptor.
#[test]
fn where_no_directory_can_hold_the_library_it_comes_from_memory() {
    if !can_contain("a native program without a place for the library") {
        return;
    }
    let file = compiled(&[]);
    let mut command = contained(&[], &nothing_executable(), Command::new(&file).arg("3"));
    command.env("HOME", "/nowhere").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR");
    let mut program = Program::start_as_it_is(command, "native-memory");
    for round in 0..4 {
        program.done(&["attach", &program.pid(), "--sites", ["exact", "sampled"][round % 2]]);
        assert_eq!(program.send("turn"), "turned");
        let log = stop(&mut program);
        let report = program.report();
        assert_eq!(category(&report, &own(&file)), (log.blocks, log.bytes), "round {round}");
        assert_eq!((counter(&report, "faults"), log.interrupted), (0, 0));
        let maps = program.mappings();
        let of = |name: &str| maps.lines().filter(|line| line.contains(&format!("/memfd:/plimsoll/{name}"))).count();
        assert!(of("libplimsoll-") > 2 && of("attach.rules") == 1, "{maps}");
        let open = fs::read_dir(format!("/proc/{}/fd", program.pid())).expect("it lives").flatten();
        let open: Vec<PathBuf> = open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
        let in_memory: Vec<_> =
            open.iter().map(|link| link.to_string_lossy()).filter(|l| l.contains("memfd")).collect();
        assert!(in_memory.len() == 1 && in_memory[0].starts_with("/memfd:/plimsoll/libplimsoll-"), "{open:?}");
        let explained: serde_json::Value =
            serde_json::from_str(&done(&["explain", &program.pid(), "--format", "json"])).expect("JSON");
        let lines = explained["lines"].as_array().expect("lines").iter();
        let shared = lines.clone().find(|line| line["id"] == "shared-memory");
        assert!(shared.is_none_or(|line| line["resident_bytes"] == 0), "it is the tracker's: {shared:?}");
        assert_eq!(program.send("go"), "gone");
        program.done(&["detach", &program.pid()]);
    }
    assert_eq!(program.stderr(), "");
}

/// Another version of plimsoll, whose library has another SHA-256: this one with another number in its place.
fn other_version(sha256: &str) -> PathBuf {
    let file = scratch("native").join(format!("other-version-{}", std::process::id()));
    let copy = "LC_ALL=C sed \"s/$1/$2/g\" \"$3\" >\"$4\" && chmod 700 \"$4\" && ! cmp -s \"$3\" \"$4\"";
    must(Command::new("sh").args(["-c", copy, "sh", sha256, &"0".repeat(64), PLIMSOLL]).arg(&file));
    file
}

/// One process can hold one version of the tracker. Another version reports that, also at a detach, and changes
/// nothing.
#[test]
fn a_second_version_is_refused_where_the_first_came_from_memory() {
    if !can_contain("two versions from memory") {
        return;
    }
    let file = compiled(&[]);
    let mut command = contained(&[], &nothing_executable(), Command::new(&file).arg("1"));
    command.env("HOME", "/nowhere").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR");
    let mut program = Program::start_as_it_is(command, "native-versions");
    let pid = program.pid();
    program.done(&["attach", &pid]);
    let maps = program.mappings();
    let library = maps.lines().find_map(|line| line.split_once("/memfd:/plimsoll/libplimsoll-")).expect("from memory");
    let other = other_version(&library.1[..64]);
    let refused = |verb: &str| {
        let output = Command::new(&other).args([verb, &pid]).stdin(Stdio::null()).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{verb}: {stderr}");
        assert!(
            stderr.contains("holds the tracker of another plimsoll") && stderr.contains(&library.1[..64]),
            "{stderr}"
        );
    };
    refused("detach");
    program.done(&["detach", &pid]);
    refused("attach");
    program.done(&["attach", &pid, "--sites", "exact"]);
    assert_eq!(program.send("turn"), "turned");
    let log = stop(&mut program);
    assert_eq!(category(&program.report(), &own(&file)), (log.blocks, log.bytes));
    assert_eq!(program.send("go"), "gone");
    program.done(&["detach", &pid]);
    fs::remove_file(&other).expect("removed");
}

/// What the fixture answers to `stop`.
pub struct Held {
    pub blocks: u64,
    pub bytes: u64,
    pub operations: u64,
    pub interrupted: u64,
}

pub fn stop(program: &mut Program) -> Held {
    let line = program.send("stop");
    let mut numbers = line.split(' ').skip(1).map(|n| n.parse().expect("a number"));
    let mut next = || numbers.next().unwrap_or_else(|| panic!("{line}; it says: {}", program.stderr()));
    Held { blocks: next(), bytes: next(), operations: next(), interrupted: next() }
}

/// The category of the fixture's own calls: its file's name.
pub fn own(program: &Path) -> String {
    program.file_name().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn books_of_a_c_program_are_exact_from_the_attach_on() {
    rounds(6);
}

#[test]
#[ignore = "full: 100 rounds; make test has 6 of them"]
fn a_hundred_rounds_in_a_c_program_lose_and_leak_nothing() {
    rounds(100);
}

fn rounds(rounds: usize) {
    let file = compiled(&[]);
    let mut program = start("native-rounds", &file, &["3"]);
    let (mut settled, mut mappings) = ([0; 3], 0);
    for n in 0..rounds {
        program.done(&["attach", &program.pid(), "--sites", ["sampled", "exact"][n % 2]]);
        assert_eq!(program.send("turn"), "turned");
        let log = stop(&mut program);
        let report = program.report();
        assert_eq!(category(&report, &own(&file)), (log.blocks, log.bytes), "round {n}");
        assert_eq!((counter(&report, "unbooked_blocks"), counter(&report, "faults")), (0, 0));
        assert_eq!(counter(&report, "attaches"), n as u64 + 1);
        assert!(counter(&report, "unknown_frees") > 0, "blocks from before are freed in every round");
        // The threads that wait in epoll_wait, nanosleep and recv have noticed nothing.
        assert_eq!(log.interrupted, 0, "round {n}");
        assert!(log.operations > 0 && report["process"]["runtime"] != "hotspot");
        assert_eq!(program.send("go"), "gone");
        let now = program.mappings().lines().count();
        if n == 2 {
            (settled, mappings) = (held(&program, &report), now);
        } else if n > 2 {
            let own = held(&program, &report);
            assert!(own[0] <= settled[0] + 2 && own[2] <= settled[2] + (16 << 20), "{own:?}, {settled:?} in round 2");
            // Arenas of malloc come and go with the load; a region in each round would not go.
            assert!(now <= mappings + 12, "{now} mappings, {mappings} in round 2");
        }
        program.done(&["detach", &program.pid()]);
    }
    assert_eq!(program.stderr(), "");
}

/// strace kills plimsoll before its Nth call of ptrace, for every N (in `make test`, every second). The program must go
/// on as if nothing had happened.
#[test]
fn plimsoll_is_killed_at_any_step() {
    let every = if crate::stage::is_full() { 1 } else { 2 };
    let mut program = start("native-killed", &compiled(&[]), &["2"]);
    assert_eq!(killed_at_any_step(&mut program, every), 0);
}

/// Returns how many waits have ended with EINTR.
pub fn killed_at_any_step(program: &mut Program, every: usize) -> u64 {
    let threads = |pid: &str| std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").count();
    let at_start = threads(&program.pid());
    let (mut killed, mut n, mut operations) = (0, 1, 0);
    let interrupted = loop {
        let inject = format!("inject=ptrace:signal=KILL:when={n}");
        let mut strace = Command::new("strace");
        strace.args([
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=ptrace",
            "-e",
            &inject,
            PLIMSOLL,
            "attach",
            &program.pid(),
        ]);
        let output = strace.env("XDG_CACHE_HOME", scratch("cache")).stdin(Stdio::null()).output().expect("strace");
        let is_killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
        killed += usize::from(is_killed);
        let log = stop(program);
        assert!(log.operations > operations, "step {n}: the workers go on");
        operations = log.operations;
        assert_eq!(program.send("go"), "gone");
        if !is_killed {
            assert!(output.status.success(), "step {n}: {}", String::from_utf8_lossy(&output.stderr));
            break log.interrupted;
        }
        // An injected thread that plimsoll started before it was killed runs on: wait until it has attached or ended.
        wait_until("a detach", || {
            let is_injected = threads(&program.pid()) > at_start;
            let detached = plimsoll(&["detach", &program.pid()]);
            let stderr = String::from_utf8_lossy(&detached.stderr).into_owned();
            detached.status.success() || !is_injected && stderr.contains("not attached")
        });
        n += every;
    };
    assert!(killed * every > 20, "killed at {killed} steps of {n}");
    println!("exercised: killed at {killed} of {n} calls of ptrace; {interrupted} EINTR");
    assert_eq!(program.stderr(), "");
    interrupted
}

impl Running {
    fn start(command: &mut Command) -> Running {
        Running::start_reading(command, Stdio::null())
    }

    fn start_reading(command: &mut Command, input: Stdio) -> Running {
        Running(command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    fn pid(&self) -> String {
        self.id().to_string()
    }
}

pub fn done(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

pub fn books(pid: &str) -> serde_json::Value {
    serde_json::from_str(&done(&["report", pid, "--by", "caller", "--format", "json"])).expect("JSON")
}

pub fn live_bytes(report: &serde_json::Value) -> u64 {
    let all = report["categories"].as_array().expect("categories");
    all.iter().map(|c| c["live_bytes"].as_u64().expect("a number")).sum()
}

pub struct Redis {
    pub server: Running,
    socket: PathBuf,
    _folder: Scratch,
}

impl Redis {
    fn start(name: &str) -> Redis {
        Redis::start_under(name, Command::new("redis-server"))
    }

    /// `server`: a command that starts redis-server, and takes its arguments.
    pub fn start_under(name: &str, mut server: Command) -> Redis {
        let folder = Scratch::new(name);
        let socket = folder.path().join("redis.sock");
        server.args(["--port", "0", "--save", "", "--daemonize", "no", "--unixsocket"]).arg(&socket);
        server.arg("--dir").arg(folder.path()).env("PLIMSOLL_DIR", scratch("segments-redis"));
        let redis = Redis { server: Running::start(&mut server), socket, _folder: folder };
        wait_until("redis", || redis.command(&["ping"]) == "PONG\n");
        redis
    }

    pub fn command(&self, words: &[&str]) -> String {
        crate::redis::reply(&self.socket, words)
    }

    pub fn figure(&self, section: &str, key: &str) -> u64 {
        let info = self.command(&["info", section]);
        let figure = info.lines().find_map(|line| line.trim_end().strip_prefix(key));
        figure.unwrap_or_else(|| panic!("no {key} in {info}")).parse().expect("a number")
    }
}

/// Redis counts the usable sizes of its blocks itself: `used_memory`. The books must equal the growth of that figure
/// since the attach.
#[test]
fn books_of_redis_match_its_own_count() {
    let redis = Redis::start("redis-attach");
    let used = || redis.figure("memory", "used_memory:");
    let fill = |from: u32, to: u32| {
        let script =
            format!("for i={from},{to} do redis.call('set', 'key:'..i, string.rep('v', i % 700)) end return 1");
        assert_eq!(redis.command(&["eval", &script, "0"]).trim(), "1");
    };
    fill(1, 1000);
    let before = used();
    done(&["attach", &redis.server.pid(), "--sites", "exact"]);
    fill(1001, 41_000);
    let (own, ours) = (used() - before, live_bytes(&books(&redis.server.pid())));
    println!("exercised: redis counts {own} B since the attach, the books {ours} B");
    assert!(own > 10 << 20);
    // Two causes of a difference: Redis frees the earlier table of keys when it grows, and the client's connection
    // takes memory.
    assert!(ours.abs_diff(own) < own / 50, "redis counts {own} B since the attach, the books {ours} B");
    done(&["detach", &redis.server.pid()]);
    assert_eq!(redis.command(&["dbsize"]).trim(), "41000", "it serves on");
}

/// A program that counts its steps in a file.
struct Beating {
    service: Running,
    heartbeat: PathBuf,
}

impl Beating {
    fn start(name: &str, program: &str, arguments: &[&str]) -> Beating {
        let heartbeat = scratch("native").join(format!("{name}-{}", std::process::id()));
        let shell = format!("exec {program} \"$@\" 3>'{}'", heartbeat.display());
        let mut command = Command::new("sh");
        command.args(["-c", &shell, "sh"]).args(arguments).env("PLIMSOLL_DIR", scratch("segments-beating"));
        let beating = Beating { service: Running::start(&mut command), heartbeat };
        wait_until("its first steps", || beating.beats() > 10);
        beating
    }

    fn beats(&self) -> u64 {
        fs::read_to_string(&self.heartbeat).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until the program has made progress.
    fn goes_on(&self) {
        let then = self.beats();
        wait_until("it to go on", || self.beats() > then + 10);
    }
}

const PYTHON: &str =
    "import json,os\nn=0\nwhile True:\n json.loads(json.dumps(list(range(500)))); n+=1\n os.pwrite(3,b'%9d'%n,0)";
const NODE: &str =
    "const fs=require('fs');let n=0;setInterval(()=>{Buffer.alloc(20000);fs.writeSync(3,String(++n).padStart(9),0)},1)";

/// Interpreters: allocators of their own, many threads, compiled code.
#[test]
fn python_and_node_go_on() {
    for (program, flag, script) in [("python3", "-c", PYTHON), ("node", "-e", NODE)] {
        let program = Beating::start(program, program, &[flag, script]);
        let pid = program.service.pid();
        for _ in 0..3 {
            done(&["attach", &pid]);
            program.goes_on();
            let report = books(&pid);
            assert!(counter(&report, "import_words") > 5 && counter(&report, "faults") == 0);
            done(&["detach", &pid]);
        }
    }
}

/// Whether the program's first thread waits in a call of its own. Before that, the process may be a shell that will
/// exec, or its loader may have mapped no glibc yet.
fn is_idle(pid: &str, name: &str) -> bool {
    let waits = [
        libc::SYS_read,
        libc::SYS_poll,
        libc::SYS_pselect6,
        libc::SYS_clock_nanosleep,
        libc::SYS_futex,
        libc::SYS_epoll_pwait,
    ];
    let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let is_loaded = || of("comm").starts_with(name) && of("maps").contains("/libc.so");
    is_loaded() && waits.iter().any(|call| of("syscall").starts_with(&format!("{call} ")))
}

/// All threads wait, and words of earlier calls are left on their stacks.
#[test]
fn idle_programs_are_entered() {
    let rounds = if crate::stage::is_full() { 10 } else { 1 };
    let mut waits = Command::new(compiled(&["-DWAITS"]));
    waits.arg("a title");
    for (name, command) in [
        ("sleep", Command::new("sleep").arg("3600")),
        ("python", Command::new("python3").args(["-ic", "import json, threading"])),
        ("node", Command::new("node").args(["-e", "setTimeout(() => {}, 1e9)"])),
        ("attach_rounds", &mut waits),
    ] {
        let (reads, input) = std::io::pipe().expect("a pipe");
        let program = Running::start_reading(command.env("PLIMSOLL_DIR", scratch("segments-idle")), reads.into());
        let pid = program.pid();
        wait_until(name, || is_idle(&pid, name));
        for _ in 0..rounds {
            done(&["attach", &pid]);
            let report = books(&pid);
            assert_eq!(counter(&report, "faults"), 0, "{name}");
            done(&["detach", &pid]);
        }
        drop(input);
    }
}

/// The kernel grows the first thread's stack, so a thread that waits at its lowest page has as much of it as any other.
#[test]
fn a_thread_at_the_lowest_page_of_its_stack_is_borrowed() {
    let mut program = start("deepest-page", &compiled_from("deepest_page", &[]), &[]);
    let pid = program.pid();
    let of = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it lives");
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex");
    let above = || {
        let (maps, call) = (of("maps"), of("syscall"));
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).expect("a stack");
        let start = hex(stack.split('-').next().expect("a start"));
        let words: Vec<&str> = call.split_whitespace().collect();
        // read(2), its six arguments, then the stack pointer.
        (words.len() == 9 && words[0] == "0").then(|| hex(words[7]) - start)
    };
    for command in ["attach", "detach"] {
        wait_until("it waits for a line", || above().is_some_and(|left| left < 8 << 10));
        program.done(&[command, &pid]);
        assert_eq!(program.send("go"), "gone");
    }
    assert_eq!(program.stderr(), "");
}

/// setfsuid(2) changes the rights of one thread. Plimsoll doesn't borrow that thread, and doesn't conclude that the
/// process has become another program.
#[test]
fn a_thread_with_rights_of_its_own_is_left_alone() {
    let program = start("native-own-rights", &compiled(&["-DOWN_RIGHTS"]), &[]);
    program.done(&["attach", &program.pid()]);
    program.done(&["detach", &program.pid()]);
}

/// Attach and detach, in turn: each enters the program once. `check` asks the program, or waits for its progress.
fn entered(times: usize, name: &str, pid: &str, mut check: impl FnMut()) {
    let mappings = || fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives").lines().count();
    let mut settled = 0;
    for n in 0..times / 2 {
        done(&["attach", pid, "--sites", ["sampled", "exact"][n % 2]]);
        if n % 20 == 0 {
            check();
        }
        done(&["detach", pid]);
        if n == 10 {
            settled = mappings();
        }
    }
    check();
    // Arenas of malloc come and go with the load; a region for each time would not go.
    assert!(mappings() < settled + 20 + times / 10, "{name}: {settled} mappings, then {}", mappings());
    println!("exercised: {name}: entered {} times", times / 2 * 2);
}

/// How often each of the eight programs below is entered.
const INJECTIONS: usize = 1000;

fn c_program_is_entered(name: &str, flags: &[&str]) {
    let mut program = start("native-many", &compiled(flags), &["3"]);
    let (pid, mut operations) = (program.pid(), 0);
    entered(INJECTIONS, name, &pid, || {
        let log = stop(&mut program);
        assert!(log.operations > operations && log.interrupted == 0, "{name}: {} EINTR", log.interrupted);
        operations = log.operations;
        assert_eq!(program.send("go"), "gone");
    });
    assert_eq!(program.stderr(), "");
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_c_program() {
    c_program_is_entered("C", &[]);
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_vectorised_program() {
    c_program_is_entered("C, vectorised", &["-O3", "-march=native"]);
}

fn beating_program_is_entered(name: &str, program: &str, arguments: &[&str]) {
    let program = Beating::start(name, program, arguments);
    entered(INJECTIONS, name, &program.service.pid(), || program.goes_on());
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_program_whose_one_thread_is_in_malloc() {
    let alone = compiled(&["-DALONE"]);
    beating_program_is_entered("alone", alone.to_str().expect("a path"), &[]);
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_python() {
    beating_program_is_entered("python-many", "python3", &["-c", PYTHON]);
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_node() {
    beating_program_is_entered("node-many", "node", &["-e", NODE]);
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_sleep() {
    let sleep = Running::start(Command::new("sleep").arg("3600").env("PLIMSOLL_DIR", scratch("segments-sleep")));
    wait_until("sleep", || is_idle(&sleep.pid(), "sleep"));
    entered(INJECTIONS, "sleep", &sleep.pid(), || ());
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_jvm() {
    let jdk = jdks().last().expect("a JDK");
    let mut java = jdk.start("native-many-java", &["-XX:+DisableAttachMechanism"]);
    let (pid, mut operations) = (java.pid(), 0);
    entered(INJECTIONS, "java", &pid, || {
        let log = java.stop();
        assert!(log.operations > operations);
        operations = log.operations;
        assert_eq!(java.send("go"), "gone");
    });
}

#[test]
#[ignore = "full: 1,000 injections"]
fn a_thousand_injections_harm_no_redis() {
    let redis = Redis::start("redis-many");
    let mut load = Command::new("redis-benchmark");
    load.arg("-s").arg(&redis.socket).args(["-t", "set,get,lpush", "-r", "10000", "-d", "300"]);
    let _load = Running::start(load.args(["-c", "8", "-n", "100000000", "-q"]));
    let commands = || redis.figure("stats", "total_commands_processed:");
    entered(INJECTIONS, "redis", &redis.server.pid(), || {
        let then = commands();
        wait_until("redis to serve", || commands() > then + 1000);
    });
}

/// A VM that opens no socket is entered as a native program is.
#[test]
fn a_jvm_whose_attach_is_disabled_is_entered() {
    let jdk = jdks().last().expect("a JDK");
    let mut java = jdk.start("native-disabled", &["-XX:+DisableAttachMechanism"]);
    java.done(&["attach", &java.pid(), "--sites", "exact"]);
    assert_eq!(java.send("turn"), "turned");
    let log = java.stop();
    let report = java.report();
    assert_eq!(report["process"]["runtime"], "hotspot");
    assert_eq!(category(&report, "code in no file"), log.pointers);
    assert_eq!(category(&report, "zlib").0, 2 * log.inflaters);
    assert_eq!(java.send("go"), "gone");
    java.done(&["detach", &java.pid()]);
}

#[test]
fn what_cannot_be_entered_is_refused_in_one_line() {
    let refused = |pid: &str, words: &[&str]| {
        let output = plimsoll(&["attach", pid]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(words.iter().all(|word| stderr.contains(word)), "{stderr}");
    };
    let file = compiled(&[]);
    let program = start("native-static", &compiled(&["-static"]), &["0"]);
    refused(&program.pid(), &[&program.pid(), "static", "plimsoll explain"]);
    for (compiler, flags, words) in [
        // Without a C library, since this machine has none for 32 bits: it waits in pause(2).
        ("gcc", &["-m32", "-static", "-nostdlib", "-DSTART=_start", "-DPAUSE=29"][..], "another CPU"),
        ("musl-gcc", &["-DSTART=main", "-DPAUSE=34"], "musl"),
    ] {
        let other = scratch("native").join(format!("{compiler}-{}", std::process::id()));
        must(Command::new(compiler).args(flags).arg(fixtures().join("c/pauses.c")).arg("-o").arg(&other));
        let program = Running::start(&mut Command::new(&other));
        refused(&program.pid(), &[&program.pid(), words, "plimsoll explain"]);
    }
    let naive = scratch("native").join(format!("naive-{}", std::process::id()));
    let sources = ["attach_rounds.c", "libnaive.c"].map(|name| fixtures().join("c").join(name));
    must(Command::new("gcc").args(["-std=gnu17", "-rdynamic", "-pthread", "-w"]).args(sources).arg("-o").arg(&naive));
    let program = start("native-naive", &naive, &["0"]);
    refused(&program.pid(), &["allocator inside its program file", "plimsoll run -- "]);
    let mut program = start("native-refused", &file, &["1"]);
    program.halt();
    refused(&program.pid(), &[&program.pid(), "stopped", "kill -CONT"]);
    program.signal("-CONT");
    let tracer = Running::start(Command::new("strace").args(["-f", "-o", "/dev/null", "-p", &program.pid()]));
    let status = || fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("status");
    wait_until("the tracer", || status().contains(&format!("TracerPid:\t{}", tracer.pid())));
    refused(&program.pid(), &["traced by process", &tracer.pid()]);
    drop(tracer);
    wait_until("its end", || status().contains("TracerPid:\t0"));
    let limit =
        |bytes: &str| must(Command::new("prlimit").args(["--pid", &program.pid(), &format!("--fsize={bytes}:")]));
    limit("1048576");
    let raised = format!("prlimit --pid {} --fsize=unlimited", program.pid());
    refused(&program.pid(), &["limit on file sizes (ulimit -f)", &raised]);
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("maps");
    // The folder of the tests may have that name, too.
    let files = maps.lines().filter_map(|line| line.rsplit_once('/'));
    assert!(!files.into_iter().any(|(_, file)| file.contains("plimsoll")), "nothing was loaded: {maps}");
    limit("unlimited");
    program.done(&["attach", &program.pid()]);
    assert_eq!(program.send("turn"), "turned", "it goes on");
}
