//! kill -9 of the recorder and of the target, at arbitrary moments.

use crate::random::Random;
use crate::values::sums_hold;
use crate::{Running, Workspace, cgroup, events, now_ns, reader, readers, stage, wait_until};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

/// Divisible by 8: in every eighth round the kill comes before the first instant.
fn rounds() -> usize {
    if stage::is_full() { 200 } else { 16 }
}

/// The moments at which a recording has events.
fn instants_of(read: &reader::Read) -> impl Iterator<Item = u64> {
    events(read, "jdk.ResidentSetSize").map(|event| event.time_ns)
}

#[test]
fn a_killed_recorder_leaves_a_file_that_every_reader_opens() {
    let workspace = Workspace::new("killed-recorder");
    let target = Running::ready(workspace.plimsoll(&["run", "--"]).arg(workspace.steps()).args(["5000", "500"]));
    std::fs::create_dir(workspace.path("files")).expect("the folder is new");
    let (mut random, rounds) = (Random(1), rounds());
    let (mut kept, mut instants, mut latest) = (0, 0, Vec::new());
    for round in 0..rounds {
        let name = format!("files/{round:03}.jfr");
        let mut recorder = Running(
            workspace
                .plimsoll(&["record", &target.pid(), "-o", &name, "--interval", "10ms"])
                .stderr(Stdio::null())
                .spawn()
                .expect("plimsoll starts"),
        );
        // The kill comes before the first instant, or after one, or after some dozens. The sleep below moves it to any
        // phase of an instant.
        if round % 8 != 0 {
            wait_until("the file", || workspace.path(&name).exists());
            let more = if round % 5 == 0 { 2 + random.below(30) as usize } else { 1 };
            // An instant may be written while the test reads.
            let seen = |bytes: Vec<u8>| reader::read(&bytes).map_or(0, |read| instants_of(&read).count());
            wait_until("instants", || std::fs::read(workspace.path(&name)).map_or(0, seen) >= more);
        }
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        let killed_at = now_ns();
        recorder.0.kill().expect("our child");
        recorder.0.wait().expect("our child");
        if !workspace.path(&name).exists() {
            assert_eq!(round % 8, 0, "a file that was there stays");
            continue;
        }
        kept += 1;
        let read = workspace.read(&name);
        sums_hold(&read);
        let times: Vec<u64> = instants_of(&read).collect();
        assert!(!times.is_empty(), "a file in place has its first instant");
        assert_eq!(times.len(), events(&read, "plimsoll.Recorder").count(), "no half instants");
        instants += times.len();
        latest.push(killed_at.saturating_sub(*times.last().expect("not empty")));
    }
    assert!(kept >= rounds * 7 / 8 && instants > 2 * kept, "{kept} files, {instants} instants");
    // No limit for the time since the last instant: on a busy machine an instant may take any time. The median is
    // reported.
    latest.sort_unstable();
    stage::log_line(&format!(
        "record: {rounds} recorders killed, {kept} files with {instants} instants; last instant before the kill: median {} ms",
        latest[latest.len() / 2] / 1_000_000
    ));
    // The temporary file has a hidden name; a killed recorder leaves it behind.
    for entry in std::fs::read_dir(workspace.path("files")).expect("the folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with('.') {
            std::fs::remove_file(entry.path()).expect("ours");
        }
    }
    readers::open_all(&workspace.path("files"), kept);
}

#[test]
fn a_recording_of_a_killed_target_ends_with_its_last_books() {
    let workspace = Workspace::new("killed-target");
    let program = workspace.steps();
    let (mut random, rounds) = (Random(2), rounds());
    std::fs::create_dir(workspace.path("files")).expect("the folder is new");
    let mut grown = 0;
    for round in 0..rounds / 4 {
        // One recorder, four targets at a time: their ends come at different phases of an instant.
        let targets: Vec<Running> = (0..4)
            .map(|_| Running::ready(workspace.plimsoll(&["run", "--"]).arg(&program).args(["20000", "300"])))
            .collect();
        let pids: Vec<String> = targets.iter().map(Running::pid).collect();
        let pattern = format!("files/{round:02}-%p.jfr");
        let mut recorder = Running(
            workspace
                .plimsoll(&["record", "-o", &pattern, "--interval", "20ms"])
                .args(&pids)
                .stderr(Stdio::null())
                .spawn()
                .expect("plimsoll starts"),
        );
        let file = |pid: &str| pattern.replace("%p", pid);
        wait_until("all files", || pids.iter().all(|pid| workspace.path(&file(pid)).exists()));
        for mut target in targets {
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
            target.0.kill().expect("our child");
            target.0.wait().expect("our child");
        }
        assert!(recorder.0.wait().expect("our child").success(), "it ends with its last target");
        for pid in &pids {
            let read = workspace.read(&file(pid));
            sums_hold(&read);
            let end = events(&read, "plimsoll.TargetEnd").next().unwrap_or_else(|| panic!("{pid} has no end"));
            assert_eq!(end.text("state"), "killed");
            let reported = workspace.plimsoll(&["report", pid, "--format", "json"]).output().expect("plimsoll starts");
            let reported: serde_json::Value = serde_json::from_slice(&reported.stdout).expect("JSON of a dead segment");
            assert_eq!(reported["state"], "dead");
            let last = events(&read, "plimsoll.Total").last().expect("books");
            assert_eq!(last.time_ns, end.time_ns);
            for (ours, theirs) in
                [("live", "live_bytes"), ("liveCount", "live_count"), ("cumulative", "cumulative_bytes")]
            {
                assert_eq!(reported["total"][theirs], last.long(ours), "{ours} of {pid}");
            }
            let before = events(&read, "plimsoll.Total").rev_nth(1);
            grown += usize::from(before.is_some_and(|before| before < last.long("cumulative")));
        }
    }
    let enough = if stage::is_full() { rounds / 4 } else { 0 };
    assert!(grown > enough, "in {grown} of {rounds} the segment knew of more than the last instant");
    readers::open_all(&workspace.path("files"), rounds);
}

trait FromTheEnd {
    /// `cumulative` of the n-th event from the end.
    fn rev_nth(self, n: usize) -> Option<u64>;
}

impl<'r, I: Iterator<Item = &'r crate::reader::Event>> FromTheEnd for I {
    fn rev_nth(self, n: usize) -> Option<u64> {
        let all: Vec<u64> = self.map(|event| event.long("cumulative")).collect();
        all.len().checked_sub(n + 1).map(|index| all[index])
    }
}

/// The resident bytes of each line that may hold malloc's blocks, in every ledger.
fn grown_lines(read: &reader::Read) -> impl Iterator<Item = u64> {
    events(read, "plimsoll.LedgerLine")
        .filter(|line| ["glibc-live", "glibc-unknown", "other-anonymous"].contains(&line.text("line")))
        .map(|line| line.long("resident"))
}

#[test]
fn an_oom_kill_is_reported_with_what_grew_until_then() {
    let group = match cgroup::Cgroup::make("record-oom") {
        Ok(group) => group,
        Err(reason) => return stage::log_line(&format!("record oom: skipped, {reason}")),
    };
    group.limit(64 << 20);
    let workspace = Workspace::new("oom");
    // 40 steps of 1 MB; after the recording has seen them, as many more as the memory allows.
    // The recorder is in the group, too: it is small, and the kernel kills the biggest process.
    let mut recorder = workspace.plimsoll(&["record", "-o", "oom.jfr", "--interval", "50ms", "--"]);
    recorder.arg(workspace.steps()).args(["1000000", "10000", "40", "go"]);
    let mut command = group.wrap(&recorder);
    command.current_dir(workspace.path("")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut recorder = Running(command.spawn().expect("plimsoll starts"));
    wait_until("a ledger with them", || {
        // An instant may be written while the test reads.
        let bytes = std::fs::read(workspace.path("oom.jfr")).unwrap_or_default();
        reader::read(&bytes).is_ok_and(|read| grown_lines(&read).max() > Some(16 << 20))
    });
    std::fs::write(workspace.path("go"), "").expect("the folder is ours");
    let status = recorder.0.wait().expect("our child");
    assert_eq!(status.signal(), Some(9), "the kernel kills the command, and plimsoll ends by the same signal");
    assert!(group.oom_kills() >= 1);
    let read = workspace.read("oom.jfr");
    let end = events(&read, "plimsoll.TargetEnd").next().expect("an end");
    assert_eq!((end.text("state"), end.long("signal"), end.long("oomKilled")), ("killed", 9, 1), "{end:?}");
    assert!(end.text("how").contains("memory limit"), "{end:?}");
    // The first line of each report says so: the report of the recording, and that of the segment that the process
    // left.
    let report = |target: &str, format: &str| {
        let output =
            workspace.plimsoll(&["report", target, "--format", format]).current_dir(workspace.path("")).output();
        String::from_utf8(output.expect("plimsoll starts").stdout).expect("UTF-8")
    };
    let pid = events(&read, "plimsoll.Target").next().expect("a target").long("pid").to_string();
    for target in ["oom.jfr", &pid] {
        let (text, json) = (report(target, "text"), report(target, "json"));
        assert!(text.lines().next().is_some_and(|line| line.contains("OOM-killed")), "{target}: {text}");
        let ended = &serde_json::from_str::<serde_json::Value>(&json).expect("JSON")["ended"];
        assert_eq!(
            (ended["how"].as_str(), ended["oom_killed"].as_bool()),
            (Some("oom-killed"), Some(true)),
            "{target}"
        );
    }
    let output = workspace.plimsoll(&["report", &pid, "--format", "jfr", "-o", "dead.jfr"]).output();
    assert!(output.expect("plimsoll starts").status.success());
    let dead = workspace.read("dead.jfr");
    let end_of_segment = events(&dead, "plimsoll.TargetEnd").next().expect("an end");
    assert_eq!((end_of_segment.long("signal"), end_of_segment.long("oomKilled")), (9, 1), "{end_of_segment:?}");
    let limit = events(&read, "plimsoll.Cgroup").last().expect("the limit");
    assert_eq!(limit.long("limit"), 64 << 20);
    // The growth: the allocator's live line, and the site that keeps the blocks.
    assert!(grown_lines(&read).max() > Some(16 << 20), "{:?}", grown_lines(&read).collect::<Vec<_>>());
    let site =
        events(&read, "plimsoll.Site").filter(|site| site.time_ns == end.time_ns).max_by_key(|site| site.long("live"));
    let site = site.expect("sites of the last books");
    assert!(format!("{:?}", site.fields["stackTrace"]).contains("\"hoard\""), "{site:?}");
    assert!(site.long("live") > 32 << 20, "{site:?}");
    assert!(sums_hold(&read) > 10);
    readers::view_oom(&workspace.path("oom.jfr"));
}

/// In a group of 100 MiB the kernel kills dd, the shell's child, which touches a buffer of 300 MiB. The shell then ends
/// as it wants to. dd's kill moves the group's counter within the shell's last seconds.
#[test]
fn an_oom_kill_of_a_child_is_not_the_parents() {
    const EAT: &str = "dd if=/dev/zero of=/dev/null bs=300M count=1";
    let group = match cgroup::Cgroup::make("record-oom-child") {
        Ok(group) => group,
        Err(reason) => return stage::log_line(&format!("record oom of a child: skipped, {reason}")),
    };
    group.limit(100 << 20);
    let workspace = Workspace::new("oom-child");
    let in_group = |command: &std::process::Command| {
        let mut inside = group.wrap(command);
        inside.current_dir(workspace.path("")).stdout(Stdio::null()).stderr(Stdio::piped());
        inside
    };
    let report = |target: &str| {
        let report = workspace.plimsoll(&["report", target]).current_dir(workspace.path("")).output();
        let text = String::from_utf8(report.expect("plimsoll starts").stdout).expect("UTF-8");
        text.lines().next().unwrap_or_default().to_owned()
    };
    let mut kills = 0;
    let mut killed_one_more = |what: &str| {
        assert!(group.oom_kills() > kills, "{what}: the kernel killed dd");
        kills = group.oom_kills();
    };
    // With a status.
    let mut recorded = workspace.plimsoll(&["record", "-o", "child.jfr", "--interval", "50ms", "--"]);
    let ended = in_group(recorded.args(["sh", "-c", &format!("{EAT}; exit 3")])).output().expect("plimsoll starts");
    killed_one_more("record -- COMMAND");
    assert_eq!(ended.status.code(), Some(3));
    let read = workspace.read("child.jfr");
    let end = events(&read, "plimsoll.TargetEnd").next().expect("an end");
    assert_eq!((end.text("state"), end.long("exitCode"), end.long("signal")), ("exited", 3, 0), "{end:?}");
    let pid = events(&read, "plimsoll.Target").next().expect("a target").long("pid").to_string();
    for target in ["child.jfr", &pid] {
        assert!(report(target).contains("exited with status 3"), "{target}: {}", report(target));
    }
    // Without a status.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &format!("read go; {EAT}; exit 0")]);
    let mut shell = Running(in_group(&shell).stdin(Stdio::piped()).spawn().expect("a shell"));
    let recorder = workspace.plimsoll(&["record", &shell.pid(), "-o", "pid.jfr", "--interval", "50ms"]).spawn();
    let mut recorder = Running(recorder.expect("plimsoll starts"));
    wait_until("the file", || workspace.path("pid.jfr").exists());
    drop(shell.0.stdin.take());
    assert_eq!(shell.0.wait().expect("our child").code(), Some(0));
    assert!(recorder.0.wait().expect("our child").success());
    killed_one_more("record PID");
    let read = workspace.read("pid.jfr");
    let end = events(&read, "plimsoll.TargetEnd").next().expect("an end");
    assert_eq!((end.text("state"), end.long("signal") == 9), ("ended", false), "{end:?}");
    assert!(!report("pid.jfr").contains("OOM-killed"), "{}", report("pid.jfr"));
    // By SIGKILL, from a user.
    let mut run = workspace.plimsoll(&["run", "--report", "summary", "--"]);
    let ended = in_group(run.args(["sh", "-c", &format!("{EAT}; kill -9 $$")])).output().expect("plimsoll starts");
    killed_one_more("run --report");
    assert_eq!(ended.status.signal(), Some(9));
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    let first = text.lines().find(|line| line.contains("pid ")).unwrap_or_default();
    assert!(first.contains("killed by signal 9 (SIGKILL; ") && first.contains("unknown whether"), "{text}");
    let pid = first.split("pid ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("its PID");
    assert!(report(pid).contains("unknown whether"), "{}", report(pid));
}

/// The VM's buffers grow from 24 MiB to the group's limit, faster than the recorder queries the VM and malloc's arenas.
/// Halfway they wait for a ledger: a recorder that gets no processor time for a second would have only the first one.
#[test]
fn the_last_instant_of_an_oom_killed_vm_has_its_direct_buffers() {
    let group = match cgroup::Cgroup::make("record-oom-vm") {
        Ok(group) => group,
        Err(reason) => return stage::log_line(&format!("record oom of a VM: skipped, {reason}")),
    };
    group.limit(192 << 20);
    let workspace = Workspace::new("oom-vm");
    let jdk = stage::jdks().pop().expect("a JDK");
    let source = stage::repository().join("fixtures/java/recording/Buffers.java");
    stage::must(jdk.tool("javac").arg("-d").arg(workspace.path("")).arg(source));
    let mut recorder = workspace.plimsoll(&["record", "-o", "oom.jfr", "--interval", "200ms", "--"]);
    recorder.arg(jdk.bin("java")).args(["-Xmx32m", "-XX:MaxDirectMemorySize=1g", "-cp", ".", "Buffers", "go"]);
    let mut command = group.wrap(&recorder);
    command.current_dir(workspace.path("")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut recorder = Running(command.spawn().expect("plimsoll starts"));
    let most = |what: &str, of: &dyn Fn(&reader::Read) -> Option<u64>, bytes: u64| {
        wait_until(what, || {
            let file = std::fs::read(workspace.path("oom.jfr")).unwrap_or_default();
            reader::read(&file).is_ok_and(|read| of(&read) >= Some(bytes))
        });
    };
    let direct = |read: &reader::Read| {
        let lines = events(read, "plimsoll.LedgerLine").filter(|line| line.text("line") == "direct-buffers");
        lines.map(|line| line.long("resident")).max()
    };
    let rss = |read: &reader::Read| events(read, "plimsoll.Ledger").map(|ledger| ledger.long("rss")).max();
    most("a ledger with the first buffers", &direct, 24 << 20);
    let before = rss(&workspace.read("oom.jfr")).expect("a ledger");
    let buffers = |mib: u32| std::fs::write(workspace.path("go"), mib.to_string()).expect("the folder is ours");
    buffers(96);
    most("a ledger with most of the buffers", &rss, before + (64 << 20));
    buffers(u32::MAX >> 1);
    let status = recorder.0.wait().expect("our child");
    assert_eq!(status.signal(), Some(9), "the kernel kills the command, and plimsoll ends by the same signal");
    let read = workspace.read("oom.jfr");
    let last = events(&read, "plimsoll.Ledger").last().expect("a ledger").time_ns;
    let mut lines: Vec<_> = events(&read, "plimsoll.LedgerLine").filter(|line| line.time_ns == last).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.long("resident")));
    assert_eq!(lines[0].text("line"), "direct-buffers", "{lines:?}");
    assert!(lines[0].long("resident") > 64 << 20, "{lines:?}");
    assert!(sums_hold(&read) > 2);
}
