//! What is kept after a process has died, and for how long: segments, from any PID namespace, and files of the cache.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use stage::{Scratch, log_line, must};

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Far above the time of a start on a busy machine: a start that exceeds it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory that containers share, and the options with which each uses it.
struct Shared {
    scratch: Scratch,
}

impl Shared {
    fn new(name: &str) -> Shared {
        let scratch = Scratch::new(name);
        for name in ["books", "cache"] {
            let folder = scratch.path().join(name);
            fs::create_dir(&folder).expect("a folder");
            fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).expect("its owner may");
        }
        Shared { scratch }
    }

    fn cache(&self) -> PathBuf {
        self.scratch.path().join("cache/plimsoll")
    }

    /// Runs `program` under the tracker, in a PID namespace of its own or in ours.
    fn run(&self, contained: bool, program: &[&str]) -> Command {
        let mut command = Command::new(if contained { "unshare" } else { PLIMSOLL });
        if contained {
            command.args(["--pid", "--fork", "--mount-proc", "--kill-child", PLIMSOLL]);
        }
        command.args(["run", "--sites", "off", "--retain", "2", "--dir"]).arg(self.scratch.path().join("books"));
        command.arg("--").args(program).stdin(Stdio::null()).env("XDG_CACHE_HOME", self.scratch.path().join("cache"));
        command
    }

    fn segments(&self) -> Vec<String> {
        let all = fs::read_dir(self.scratch.path().join("books")).expect("the directory").flatten();
        all.map(|entry| entry.file_name().into_string().expect("a name")).filter(|n| n.ends_with(".seg")).collect()
    }
}

fn can_contain() -> bool {
    let mut unshare = Command::new("unshare");
    let done = unshare.args(["--pid", "--fork", "--mount-proc", "true"]).stdin(Stdio::null()).output();
    let can = done.is_ok_and(|output| output.status.success());
    if !can {
        log_line("retention over PID namespaces: skipped, the machine doesn't allow unshare --pid");
    }
    can
}

/// The only child of a process with one thread.
fn only_child(pid: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.trim().parse().ok()
}

/// From outside, the segment's process has another PID than in the header. From another container it can't be seen, but
/// the segment's lock shows that it lives.
#[test]
fn a_process_of_another_pid_namespace_is_found_by_its_segment() {
    if !can_contain() {
        return;
    }
    let shared = Shared::new("elsewhere");
    let start = |command: &mut Command| {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line).expect("it lives");
        let pid = only_child(child.id()).expect("process 1 of the container");
        (child, pid)
    };
    let waits = ["sh", "-c", "echo here; read end"];
    let (mut living, pid) = start(&mut shared.run(true, &waits));
    let contained = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let (mut untracked, other) = start(Command::new("unshare").args(contained).args(waits));
    let segments = shared.segments();
    let [segment] = segments.as_slice() else { panic!("{segments:?}") };
    let segment = shared.scratch.path().join("books").join(segment);
    let report = |command: &mut Command, target: &str| {
        command.args(["report", target, "--by", "thread"]).env("PLIMSOLL_DIR", shared.scratch.path().join("books"));
        let output = command.stdin(Stdio::null()).output().expect("plimsoll");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let path = segment.to_str().expect("a path of text");
    for target in [path, &pid.to_string()] {
        let printed = report(&mut Command::new(PLIMSOLL), target);
        assert!(printed.contains(&format!("   pid {pid}   (1 inside)   live   ")), "{printed}");
        assert!(printed.contains("  1 (sh)\n"), "the kernel has the name of thread {pid}: {printed}");
    }
    let printed = report(Command::new("unshare").args(contained).arg(PLIMSOLL), path);
    assert!(printed.contains("   pid 1   live   ") && printed.contains("can't be seen from here"), "{printed}");
    let printed = report(&mut Command::new(PLIMSOLL), &other.to_string());
    let is_untracked = printed.contains(&format!("process {other} is not tracked. ")) && !printed.contains(path);
    assert!(is_untracked, "the segment is another container's: {printed}");
    for child in [&mut living, &mut untracked] {
        child.kill().expect("our child");
        child.wait().expect("our child");
        // The last of the processes to die closes the pipe.
        std::io::Read::read_to_end(child.stdout.as_mut().expect("piped"), &mut Vec::new()).expect("a pipe");
    }
    let printed = report(&mut Command::new(PLIMSOLL), path);
    assert!(printed.contains("   pid 1   ended by "), "{printed}");
}

/// Each container has its own tmpfs, which numbers its files from the beginning, and each program is process 1.
#[test]
fn a_segment_is_not_taken_for_that_of_another_container() {
    if !can_contain() {
        return;
    }
    let shared = Shared::new("same-number");
    let books = shared.scratch.path().join("books");
    let start = || {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o mode=700 none \"$0\" && exec \"$@\"";
        command.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]).arg(&books);
        command.args([PLIMSOLL, "run", "--sites", "off", "--dir"]).arg(&books);
        command.args(["--", "sh", "-c", "echo here; read end"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("XDG_CACHE_HOME", shared.scratch.path().join("cache"));
        let mut child = command.spawn().expect("unshare");
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line).expect("it lives");
        let pid = only_child(child.id()).expect("process 1 of the container");
        let inside = books.strip_prefix("/").expect("an absolute path");
        let files = fs::read_dir(Path::new(&format!("/proc/{pid}/root")).join(inside)).expect("its books").flatten();
        let is_segment = |path: &PathBuf| path.extension().is_some_and(|end| end == "seg");
        let segment = files.map(|entry| entry.path()).find(is_segment).expect("a segment");
        (child, pid, segment)
    };
    let mut both = [start(), start()];
    let [first, second] = both.each_ref().map(|(_, _, segment)| fs::metadata(segment).expect("a segment").ino());
    if first == second {
        for (_, pid, segment) in &both {
            let report = Command::new(PLIMSOLL).arg("report").arg(segment).args(["--by", "thread"]).output();
            let printed = String::from_utf8_lossy(&report.expect("plimsoll").stdout).into_owned();
            assert!(printed.contains(&format!("   pid {pid}   (1 inside)   live   ")), "{printed}");
        }
    } else {
        log_line("segments of the same number: skipped, this kernel numbers the files of all tmpfs together");
    }
    for (child, ..) in &mut both {
        child.kill().expect("our child");
        child.wait().expect("our child");
    }
}

/// Each process is number 1 of its own container, so all have the same PID. Living ones keep their segments, dead ones
/// lose them.
#[test]
fn who_lives_in_another_pid_namespace_is_not_dead() {
    if !can_contain() {
        return;
    }
    let shared = Shared::new("retention");
    // Process 1 of the container, and a second process whose PID is free or belongs to another process outside.
    let mut living = shared.run(true, &["sh", "-c", "echo here; sleep 600; :"]);
    let mut living = living.stdout(Stdio::piped()).spawn().expect("unshare");
    let mut line = [0; 5];
    std::io::Read::read_exact(living.stdout.as_mut().expect("piped"), &mut line).expect("it lives");
    // Once sleep runs, both have all the segments that they will ever have.
    let runs_sleep = || {
        let shell = only_child(living.id())?;
        fs::read_to_string(format!("/proc/{}/comm", only_child(shell)?)).ok().filter(|name| name == "sleep\n")
    };
    let until = Instant::now() + LIMIT;
    while runs_sleep().is_none() {
        assert!(Instant::now() < until, "the shell starts no sleep");
        std::thread::sleep(Duration::from_millis(5));
    }
    let held = shared.segments();
    assert!(!held.is_empty() && held.iter().any(|name| name.starts_with("1-")), "{held:?}");
    for n in 0..24 {
        must(&mut shared.run(n % 2 == 0, &["true"]));
    }
    let left = shared.segments();
    assert!(held.iter().all(|name| left.contains(name)), "{held:?} of the living, {left:?} are left");
    // Two are kept, half as many again until the next pruning, and the one that was made after it.
    assert!(left.len() <= held.len() + 4, "{held:?} of the living, {left:?} are left");
    let as_process_1 = left.iter().filter(|name| name.starts_with("1-")).count();
    assert!(as_process_1 <= 1 + 4, "those of dead containers go: {left:?}");
    living.kill().expect("our child");
    living.wait().expect("our child");
    // The last of the processes to die closes the pipe.
    std::io::Read::read_to_end(living.stdout.as_mut().expect("piped"), &mut Vec::new()).expect("a pipe");
    for _ in 0..8 {
        must(&mut shared.run(true, &["true"]));
    }
    assert!(held.iter().all(|name| !shared.segments().contains(name)), "dead now: {held:?}, {:?}", shared.segments());
}

/// A FIFO, a socket, a directory and a link to a FIFO with the names of the oldest segments: any user of a shared
/// directory can make them. A start and a fork wait for none of them, and still remove the segments of the dead.
#[test]
fn a_start_waits_for_no_fifo_that_is_named_like_a_segment() {
    let shared = Shared::new("fifos");
    let books = shared.scratch.path().join("books");
    for n in 0..4 {
        must(Command::new("mkfifo").arg(books.join(format!("{n}-10{n}.seg"))));
    }
    std::os::unix::fs::symlink(books.join("0-100.seg"), books.join("5-105.seg")).expect("a link");
    fs::create_dir(books.join("6-106.seg")).expect("a folder");
    let _socket = std::os::unix::net::UnixListener::bind(books.join("7-107.seg")).expect("a socket");
    let foreign = shared.segments();
    for _ in 0..8 {
        let mut run = shared.run(false, &["sh", "-c", "true & wait; echo $(true) done"]);
        let mut start = run.stdout(Stdio::piped()).spawn().expect("plimsoll");
        let until = Instant::now() + LIMIT;
        while start.try_wait().expect("our child").is_none() {
            if Instant::now() > until {
                start.kill().expect("our child");
                start.wait().expect("our child");
                panic!("a start waits for a FIFO");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = start.wait_with_output().expect("our child");
        assert_eq!(output.stdout, b"done\n");
    }
    let left = shared.segments();
    // Eight shells with two or three children each; three are kept, and those that the last shell made after its
    // pruning.
    assert!(left.len() <= foreign.len() + 3 + 4, "the dead are still pruned: {left:?}");
    assert!(left.len() > foreign.len(), "they are tracked: {left:?}");
    // Compares whole names: the second number of a name is a start time, whose first digits can be those of any PID.
    assert!(foreign.iter().all(|name| left.contains(name)), "{foreign:?}, of them {left:?}");
}

/// An uptime of 31 years, in ns: CLOCK_BOOTTIME of a start in an earlier boot.
const EARLIER_BOOT: u64 = 1_000_000_000_000_000_000;

/// CLOCK_BOOTTIME begins anew at each boot, and a directory on a disk survives it.
#[test]
fn segments_of_an_earlier_boot_are_deleted_first() {
    let shared = Shared::new("earlier-boot");
    for _ in 0..2 {
        must(&mut shared.run(false, &["true"]));
    }
    let start = |name: &String| name.split(['-', '.']).nth(1).and_then(|start| start.parse::<u64>().ok());
    let newest = shared.segments().into_iter().max_by_key(start).expect("they were tracked");
    let earlier: Vec<String> = (0..4).map(|n| format!("{}-{}.seg", n + 1, EARLIER_BOOT + n)).collect();
    for name in &earlier {
        File::create(shared.scratch.path().join("books").join(name)).expect("a file");
    }
    must(&mut shared.run(false, &["true"]));
    let left = shared.segments();
    assert!(left.len() == 2 && left.contains(&newest), "{newest} and {earlier:?}, {left:?} are left");
}

/// The child of `run` has the PID of a process of an earlier boot, which was up for longer than this one.
#[test]
fn a_segment_of_an_earlier_boot_is_not_the_newest() {
    if !can_contain() {
        return;
    }
    let shared = Shared::new("reboot");
    let books = shared.scratch.path().join("books");
    must(&mut shared.run(false, &["true"]));
    let segments = shared.segments();
    let [name] = segments.as_slice() else { panic!("{segments:?}") };
    let mut header = vec![0; 4096];
    let mut file = File::open(books.join(name)).expect("a segment");
    std::io::Read::read_exact(&mut file, &mut header).expect("a header");
    // docs/segment.md: 24 pid, 32 start_boottime_ns, 40 start_realtime_ns.
    let today = u64::from_le_bytes(header[40..48].try_into().expect("8 bytes"));
    header[32..40].copy_from_slice(&EARLIER_BOOT.to_le_bytes());
    header[40..48].copy_from_slice(&(today - DAY.as_nanos() as u64).to_le_bytes());
    // In a PID namespace of its own, the child's number is low. plimsoll and its threads take some, too.
    let earlier: Vec<(PathBuf, Vec<u8>)> = (1..64u32)
        .map(|pid| {
            header[24..28].copy_from_slice(&pid.to_le_bytes());
            (books.join(format!("{pid}-{EARLIER_BOOT}.seg")), header.clone())
        })
        .collect();
    for (path, header) in &earlier {
        fs::write(path, header).expect("a file");
    }
    let mut run = Command::new("unshare");
    run.args(["--pid", "--fork", "--mount-proc", "--kill-child", PLIMSOLL, "run", "--sites", "off"]);
    run.args(["--retain", "1000", "--report", "summary", "--report-to", "stdout", "--dir"]).arg(&books);
    run.args(["--", "sh", "-c", "exit 3"]);
    run.stdin(Stdio::null()).env("XDG_CACHE_HOME", shared.scratch.path().join("cache"));
    let ran = run.output().expect("unshare");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&ran.stdout), text(&ran.stderr));
    assert!(printed.contains("exited with status 3"), "{printed}{errors}");
    for (path, header) in &earlier {
        assert!(fs::read(path).is_ok_and(|now| now == *header), "{} was changed", path.display());
    }
    let report = Command::new(PLIMSOLL).arg("report").arg(&books).stdin(Stdio::null()).output().expect("plimsoll");
    let (printed, errors) = (text(&report.stdout), text(&report.stderr));
    assert!(printed.contains("exited with status 3"), "{printed}{errors}");
}

fn aged(path: &Path, age: Duration) -> PathBuf {
    let then = SystemTime::now() - age;
    let file = File::create(path).expect("a file");
    file.set_times(FileTimes::new().set_modified(then).set_accessed(then)).expect("its owner may");
    path.to_path_buf()
}

/// The next start deletes files that nobody has used for long. Used files stay, however old, and so do files that are
/// not ours.
#[test]
fn the_cache_forgets_what_nobody_uses() {
    let shared = Shared::new("cache");
    must(&mut shared.run(false, &["true"]));
    let files = || -> Vec<PathBuf> {
        let all = fs::read_dir(shared.cache()).expect("the cache").flatten().map(|entry| entry.path());
        all.filter(|path| !path.ends_with(".pruned")).collect()
    };
    let own = files();
    assert!(own.iter().any(|path| path.to_string_lossy().contains("/libplimsoll-")), "{own:?}");
    // The files of this version are old and used again: they stay.
    let then = SystemTime::now() - 400 * DAY;
    for path in &own {
        let times = FileTimes::new().set_modified(then).set_accessed(then);
        File::open(path).and_then(|file| file.set_times(times)).expect("its owner may");
    }
    let name = |name: &str| shared.cache().join(name);
    let digest = "0123456789abcdef".repeat(4);
    let old = [
        aged(&name(&format!("libplimsoll-{digest}.so")), 31 * DAY),
        aged(&name("attach-0123456789abcdef.rules"), 31 * DAY),
        aged(&name("run-0123456789abcdef0123456789abcdef.rules"), 31 * DAY),
        aged(&name("0123456789abcdef-0123456789abcdef-libc.so.6.rules"), 31 * DAY),
        aged(&name(".run-1-2"), 2 * DAY),
        aged(&name(&format!(".libplimsoll-{digest}.so-1-2")), 2 * DAY),
    ];
    let kept = [
        aged(&name(&format!("libplimsoll-{}.so", digest.replace('0', "f"))), 20 * DAY),
        aged(&name("attach-fedcba9876543210.rules"), 20 * DAY),
        aged(&name("1.rules.mine"), 400 * DAY),
        aged(&name("notes.txt"), 400 * DAY),
        aged(&name(".run-3-4"), Duration::from_secs(60)),
    ];
    // A library of another version, in use: a process has it mapped.
    let mapped = aged(&name(&format!("libplimsoll-{}.so", digest.replace('1', "e"))), 400 * DAY);
    fs::write(&mapped, vec![0; 4096]).expect("written");
    let mut holder = Command::new("/usr/bin/python3");
    let program = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),4096,mmap.MAP_PRIVATE,mmap.PROT_READ); print('here',flush=True); sys.stdin.read()";
    let mut holder = holder
        .args(["-c", program])
        .arg(&mapped)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 (run .ci/setup)");
    let mut line = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().expect("piped"), &mut line).expect("it holds it");
    // Mapping the file counted as a use of it.
    let long_ago = || {
        let times = FileTimes::new().set_modified(then).set_accessed(then);
        File::open(&mapped).and_then(|file| file.set_times(times)).expect("its owner may");
    };
    long_ago();

    // The first start has just pruned; the next pruning is a day later.
    must(&mut shared.run(false, &["true"]));
    assert!(old.iter().all(|path| path.exists()), "once a day is enough");
    let _ = aged(&name(".pruned"), 2 * DAY);
    // Several starts at once, as when many containers start: each must find its library.
    let starts: Vec<_> = (0..6).map(|_| shared.run(false, &["true"]).spawn().expect("it starts")).collect();
    for mut start in starts {
        assert!(start.wait().expect("our child").success());
    }
    for path in &old {
        assert!(!path.exists(), "{} is still there", path.display());
    }
    for path in own.iter().chain(&kept).chain([&mapped]) {
        assert!(path.exists(), "{} is gone", path.display());
    }
    drop(holder.stdin.take());
    holder.wait().expect("our child");
    long_ago();
    let _ = aged(&name(".pruned"), 2 * DAY);
    must(&mut shared.run(false, &["true"]));
    assert!(!mapped.exists(), "nobody holds it any more");
    assert!(own.iter().all(|path| path.exists()), "{own:?}");
}
