//! The books of a process that could not end in order: after kill -9, and after the OOM killer of a memory cgroup. The
//! next start of a container finds its predecessor's last books. docs/containers.md describes the same for users.

use crate::books::BooksReport;
use crate::cgroup::Cgroup;
use crate::launcher::{Launcher, Running, plimsoll, wait_end, wait_for};
use crate::stage::{Scratch, c_program, log_line};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The largest block that fixtures/c/logged.c requests, and the most usable bytes that an allocator may give for it.
const MAX_BLOCK: i128 = 8191;
const MAX_USABLE: i128 = 8192 + 16;

/// The file in which fixtures/c/logged.c keeps its own books.
struct Log(fs::File);

struct Logged {
    requested: i128,
    usable: i128,
    blocks: i128,
    operations: i128,
}

impl Log {
    fn open(path: &Path) -> Option<Log> {
        fs::File::options().read(true).write(true).open(path).ok().map(Log)
    }

    fn word(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_at(&mut bytes, index * 8).map_or(0, |_| u64::from_ne_bytes(bytes))
    }

    fn go(&self) {
        self.0.write_all_at(&1u64.to_ne_bytes(), 8).expect("the log can be written");
    }

    fn sums(&self, threads: u64) -> Logged {
        let sum = |offset: u64| (0..threads).map(|thread| i128::from(self.word(8 + 8 * thread + offset) as i64)).sum();
        Logged { requested: sum(0), usable: sum(1), blocks: sum(2), operations: sum(3) }
    }
}

/// Waits until all threads wait at the gate. The program's own log doesn't include what is live then.
fn at_the_gate(log: &Path, threads: u64, child: &mut Child) -> Log {
    wait_for("the threads are ready", child, || Log::open(log).is_some_and(|log| log.word(0) == threads));
    Log::open(log).expect("it was there")
}

/// Compares the dead process's books with its log. Stated bound: if a thread is killed after malloc returns and before
/// it logs the block, the books have one block more.
fn hold_beside(whose: &str, before: &BooksReport, dead: &BooksReport, logged: &Logged, threads: i128) {
    assert_eq!(dead.state, "dead", "{whose}");
    assert!(logged.operations > 1000, "{whose}: only {} operations before the kill", logged.operations);
    let grown = |figure: &str| dead.total.get(figure) - before.total.get(figure);
    let differences = [
        ("requested_bytes", grown("requested_bytes") - logged.requested, MAX_BLOCK),
        ("live_bytes", grown("live_bytes") - logged.usable, MAX_USABLE),
        ("live_count", grown("live_count") - logged.blocks, 1),
    ];
    for (figure, difference, bound) in differences {
        assert!(
            (0..=threads * bound).contains(&difference),
            "{whose}: {figure} is {difference} above the program's own log\n{dead}"
        );
    }
    log_line(&format!(
        "subject {whose}: after {} operations of {threads} thread(s) {} B in {} blocks by its own log; the dead segment says {:+} B, {:+} blocks",
        logged.operations, logged.usable, logged.blocks, differences[1].1, differences[2].1
    ));
}

#[test]
fn the_books_survive_kill_9() {
    let scratch = Scratch::new("kill9");
    let program = c_program("logged", scratch.path());
    for (round, threads) in [(0, 1u64), (1, 4), (2, 4), (3, 1)] {
        let folder = scratch.path().join(round.to_string());
        let log = folder.join("log");
        let launcher = Launcher::tracked(&folder, "off");
        let mut command = launcher.command(&program);
        let mut child = Running::start(command.arg(&log).arg(threads.to_string()).arg("churn"), Stdio::null());
        let file = at_the_gate(&log, threads, &mut child);
        let before = launcher.live_books(&child, "at the gate").expect("the subject is tracked");
        file.go();
        // An arbitrary moment after many operations.
        wait_for("some operations", &mut child, || file.sums(threads).operations > 100_000);
        child.kill().expect("a child can be killed");
        let status = child.wait().expect("a child can be waited for");
        assert_eq!(status.signal(), Some(9), "run execs in place, so the signal is the subject's own end");
        let dead = launcher.balanced_books("after kill -9").pop().expect("a segment");
        hold_beside(&format!("kill-9, round {round}"), &before, &dead, &file.sums(threads), i128::from(threads));
    }
}

fn cgroup(name: &str, skipped: &str) -> Option<Cgroup> {
    let made = Cgroup::make(name);
    if let Err(reason) = &made {
        log_line(&format!("subject {skipped}: skipped, {reason}"));
    }
    made.ok()
}

#[test]
fn the_books_survive_an_oom_kill() {
    let Some(group) = cgroup("oom", "oom-kill") else { return };
    group.limit(48 << 20);
    let scratch = Scratch::new("oom");
    let program = c_program("logged", scratch.path());
    let log = scratch.path().join("log");
    let launcher = Launcher::tracked(scratch.path(), "off");
    let mut child =
        Running::start(&mut group.wrap(launcher.command(&program).arg(&log).args(["2", "grow"])), Stdio::null());
    let file = at_the_gate(&log, 2, &mut child);
    let before = launcher.live_books(&child, "at the gate").expect("the subject is tracked");
    file.go();
    let status = wait_end("the OOM killer", &mut child);
    assert_eq!(status.signal(), Some(9), "killed by the kernel");
    assert!(group.oom_kills() >= 1, "the kill was the cgroup's");
    let dead = launcher.balanced_books("after an OOM kill").pop().expect("a segment");
    let logged = file.sums(2);
    assert!(logged.usable > 24 << 20, "most of the limit was the program's: {} B", logged.usable);
    hold_beside("oom-kill", &before, &dead, &logged, 2);
}

/// The kernel's log then has the number and the name of another thread.
#[test]
fn an_oom_kill_is_known_where_the_first_thread_has_left() {
    let Some(group) = cgroup("first-left", "first-thread-left") else { return };
    group.limit(48 << 20);
    let scratch = Scratch::new("first-left");
    let program = c_program("first_thread_left", scratch.path());
    let launcher = Launcher::tracked(scratch.path(), "off");
    let mut child = Running::start(&mut group.wrap(&launcher.command(&program)), Stdio::null());
    assert_eq!(wait_end("the OOM killer", &mut child).signal(), Some(9), "killed by the kernel");
    assert!(group.oom_kills() >= 1, "the kill was the cgroup's");
    let segment = launcher.segment_files().pop().expect("a segment");
    let report = |command: &mut Command| {
        let output = command.output().expect("plimsoll");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let here = report(Command::new(plimsoll()).arg("report").arg(&segment));
    let first = here.lines().next().unwrap_or_default();
    // In a PID namespace, the log's numbers are the host's.
    let unsure = ["the kernel's log can't be read", "has an OOM kill of a process"];
    assert!(first.contains("OOM-killed") || unsure.iter().any(|words| here.contains(words)), "{here}");
    // A container's /dev has no kmsg.
    let script = "mount -t tmpfs none /dev/ && exec \"$0\" report \"$1\"";
    let inside = report(Command::new("unshare").args(["-m", "sh", "-c", script]).arg(plimsoll()).arg(&segment));
    assert!(inside.contains("not known which") && inside.contains("this container has no kernel log"), "{inside}");
    assert!(inside.contains("read the segment on the host"), "{inside}");
}

/// A container dies and is started again with the same volume. Both are process 1 of their own PID namespace.
#[test]
fn the_next_start_finds_its_predecessors_books() {
    let Some(group) = cgroup("volume", "container") else { return };
    group.limit(48 << 20);
    let scratch = Scratch::new("volume");
    let program = c_program("logged", scratch.path());
    let log = scratch.path().join("log");
    let volume = Launcher::tracked(scratch.path(), "off");
    let container = |command: &Command| {
        let mut inside = Command::new("unshare");
        inside
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            inside.env(name, value.expect("only set"));
        }
        inside
    };

    // At the limit one thread can live for a minute: the kernel takes file pages from it and gives them back. Four
    // threads are killed at once.
    let first = container(volume.command(&program).arg(&log).args(["4", "grow"]));
    let mut child = Running::start(&mut group.wrap(&first), Stdio::null());
    let file = at_the_gate(&log, 4, &mut child);
    let predecessor = volume.segment_files().pop().expect("a segment in the volume");
    let before = BooksReport::read(plimsoll(), predecessor.to_str().expect("UTF-8"));
    file.go();
    wait_end("the OOM killer", &mut child);
    assert!(group.oom_kills() >= 1, "the kill was the cgroup's");

    // The next start is process 1 again. Here it only reads the books that its predecessor left.
    let report = ["report", "--format", "json", predecessor.to_str().expect("UTF-8")];
    let second = container(volume.command(plimsoll()).args(report)).output().expect("unshare starts");
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    let dead =
        BooksReport::parse(&String::from_utf8_lossy(&second.stdout), "the predecessor, seen from the next start");
    dead.assert_balanced("the predecessor");
    hold_beside("container-volume", &before, &dead, &file.sums(4), 4);
    // On the host, the kernel's log names the kill with another PID.
    let outside = Command::new(plimsoll()).args(report).output().expect("plimsoll");
    let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
    let expected = ["has an OOM kill of a process of this name", "the kernel's log can't be read", "has no kernel log"];
    assert!(expected.iter().any(|words| outside.contains(words)), "{outside}");
    let segments = volume.segment_files();
    assert_eq!(segments.len(), 2, "each start has a segment of its own: {segments:?}");
    let is_process_1 = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("1-"));
    assert!(segments.iter().all(|path| is_process_1(path)), "both were process 1: {segments:?}");
}

/// What a segment costs the container: on a tmpfs, memory that only the file's deletion frees; on a disk, page cache.
#[test]
fn a_segment_is_charged_as_shared_memory_on_a_tmpfs_only() {
    let mut lines = String::new();
    for (kind, base) in [("tmpfs", Path::new("/dev/shm")), ("disk", std::env::temp_dir().as_path())] {
        let Some(group) = cgroup(&format!("charge-{kind}"), "segment-charge") else { return };
        let folder = base.join(format!("plimsoll-charge-{}", std::process::id()));
        // PIDs are reused: a failed test may have left a folder of this name.
        let _ = fs::remove_dir_all(&folder);
        let launcher = Launcher::tracked(&folder, "off");
        let cache = Scratch::new("charge");
        let mut command = launcher.command("sleep");
        // The unpacked tracker would be charged, too. Only the segment is measured, so the cache lies elsewhere.
        command.arg("600").env("XDG_CACHE_HOME", cache.path());
        let mut child = Running::start(&mut group.wrap(&command), Stdio::null());
        wait_for("a segment", &mut child, || !launcher.segment_files().is_empty());
        // Waits for the sleep itself, not only for the process's name: that is `sleep` while the tracker still fills
        // the segment.
        let sleeps =
            |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains("(sleep) S"));
        wait_for("sleep sleeps", &mut child, || sleeps(child_id(&launcher)));
        let segment = fs::metadata(&launcher.segment_files()[0]).expect("a segment");
        let blocks = segment.blocks() * 512;
        // The kernel sums up a group's counters every two seconds, later if it is busy. Until then they may be old, and
        // two equal readings prove nothing. So this waits until the blocks that must be there are charged.
        let start = Instant::now();
        let mut stat = group.stat();
        let kind = if is_tmpfs(base) { "shmem" } else { "file" };
        while stat.get(kind).is_none_or(|&bytes| bytes < blocks) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(200));
            stat = group.stat();
        }
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
        let (shmem, file) = (stat.get("shmem").copied().unwrap_or(0), stat["file"]);
        lines += &format!(
            "subject segment-charge, {kind}: the file is {} KiB long with {} KiB of blocks; charged: {} KiB shmem, {} KiB page cache, {} KiB anonymous\n",
            segment.len() >> 10,
            blocks >> 10,
            shmem >> 10,
            file >> 10,
            stat["anon"] >> 10
        );
        if kind == "tmpfs" && is_tmpfs(base) {
            assert_eq!(shmem, blocks, "a tmpfs charges the segment's blocks as shared memory, nothing else\n{lines}");
        } else if !is_tmpfs(base) {
            assert_eq!(shmem, 0, "a disk charges nothing that can't be written back\n{lines}");
            assert!(file >= blocks, "a disk charges the segment's blocks as page cache\n{lines}");
        }
        assert!(blocks < 4 << 20, "the segment of an idle program is small\n{lines}");
        fs::remove_dir_all(&folder).expect("it was ours");
    }
    log_line(lines.trim_end());
}

fn child_id(launcher: &Launcher) -> u32 {
    let file = launcher.segment_files().pop().expect("a segment");
    let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
    name.split('-').next().and_then(|pid| pid.parse().ok()).expect("PID-TIME.seg")
}

fn is_tmpfs(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").expect("proc");
    let under = |line: &&str| line.split(' ').nth(1).is_some_and(|point| path.starts_with(point));
    let deepest = mounts.lines().filter(under).max_by_key(|line| line.split(' ').nth(1).map(str::len));
    deepest.is_some_and(|line| line.split(' ').nth(2) == Some("tmpfs"))
}
