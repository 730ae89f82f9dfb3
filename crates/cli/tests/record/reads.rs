//! What an instant reads of a process that doesn't change.

use crate::reader::{self, Read};
use crate::stage::{jdk, log_line, must, repository};
use crate::{Running, Workspace, events, now_ns, wait_for, wait_until};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

/// Read calls of a process so far.
fn reads_of(pid: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
}

/// Seconds since a process began (proc_pid_stat(5): field 22 in clock ticks after the boot).
fn age(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let began = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19)?.parse::<f64>().ok());
    let since_boot = std::fs::read_to_string("/proc/uptime").expect("/proc");
    let since_boot = since_boot.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    since_boot.expect("seconds") - began.expect("ticks") / rustix::param::clock_ticks_per_second() as f64
}

/// Once the owners are known, an instant reads neither the mappings (60 reads) nor the VM's classes (1,600 reads).
#[test]
fn an_instant_of_an_old_process_at_rest_reads_little() {
    let workspace = Workspace::new("reads");
    let java = jdk(25).expect("JDK 25 in /usr/lib/jvm or JAVA_HOME");
    let sources = ["Crowd", "Truth"].map(|name| repository().join(format!("fixtures/java/explain/{name}.java")));
    must(java.tool("javac").arg("-d").arg(workspace.path("")).args(sources));
    let mut command = java.tool("java");
    command.args(["-XX:+UseSerialGC", "-Xmx64m", "-cp"]).arg(workspace.path("")).args(["Crowd", "4", "3000"]);
    let mut target = Running(command.stdout(Stdio::piped()).spawn().expect("java"));
    let mut lines = BufReader::new(target.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "it ended before it was at rest");
    // In the first 10 s of a process, an instant may also look for its tracker.
    wait_until("an old process", || age(target.id()) > 11.0);
    let recorder = workspace.plimsoll(&["record", &target.id().to_string(), "-o", "r.jfr"]).spawn();
    let recorder = Running(recorder.expect("plimsoll starts"));
    let pid = recorder.pid();
    let Some(_) = reads_of(&pid) else {
        return log_line("reads of an instant: skipped, this kernel has no /proc/PID/io");
    };
    let length = || std::fs::metadata(workspace.path("r.jfr")).map_or(0, |meta| meta.len());
    wait_until("the first instant", || length() > 0);
    // Between two instants: the time, and the reads so far.
    let pause = || {
        wait_for("a pause", || {
            let now = (now_ns(), reads_of(&pid)?);
            std::thread::sleep(Duration::from_millis(150));
            (reads_of(&pid) == Some(now.1)).then_some(now)
        })
    };
    // An instant may be written while the test reads. About once a minute, an instant queries the VM again.
    let written = || reader::read(&std::fs::read(workspace.path("r.jfr")).unwrap_or_default()).ok();
    let (reads, instants) = wait_for("five instants without a query", || {
        let before = pause();
        let instants_of = |read: &Read| -> u64 {
            events(read, "plimsoll.Recorder").filter(|event| event.time_ns > before.0).count() as u64
        };
        wait_until("five instants", || written().is_some_and(|read| instants_of(&read) >= 5));
        let reads = pause().1 - before.1;
        let read = wait_for("whole events", written);
        let mut ledgers = events(&read, "plimsoll.Ledger").filter(|event| event.time_ns > before.0);
        ledgers.all(|ledger| ledger.long("provenanceAge") > 0).then(|| (reads, instants_of(&read)))
    });
    drop(recorder);
    log_line(&format!("reads of an instant of a JVM at rest: {reads} in {instants}"));
    assert!(instants >= 5 && reads < 200 * instants, "{reads} reads in {instants} instants");
}
