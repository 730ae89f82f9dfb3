//! A target that delays every reader, in every way at once: one deadline limits the whole command.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use plimsoll_observer::collect::{Regions, take_snapshot};
use plimsoll_process::foreign::{Deadline, FileKind, Requirements, open};

use crate::child::{Running, wait_until};
use crate::commands::{LIMIT, libc_file};
use crate::kit::{MALLORY, can, of_mallory, roots};
use crate::stage::{Scratch, log_line};
use crate::writing::{commands_of, fake_with, java};

/// Limits of the command in seconds, until it reaches the target in time. It may take longer by what a busy machine
/// needs.
const DEADLINES: [u64; 5] = [3, 6, 12, 24, 60];

#[test]
fn one_deadline_bounds_all_that_a_target_delays() {
    if !can("one deadline") {
        return;
    }
    let delayed = |seconds: u64| {
        let scratch = Scratch::new("deadline");
        let libjvm = of_mallory(&scratch, "lib").join("libjvm.so");
        fs::copy(libc_file(), &libjvm).expect("copied");
        chown(&libjvm, Some(MALLORY), Some(MALLORY)).expect("root may");
        // Each answer takes two thirds of the time, and a FIFO replaces the library.
        let (target, pid) = fake_with(&scratch, &libjvm, Path::new("/"), "slow fifo", seconds * 2 / 3);
        let deadline = Deadline::after(Duration::from_secs(seconds));
        let taken = take_snapshot(pid.parse().expect("a PID"), Regions::AsNeeded, deadline);
        let _ = fs::remove_file(format!("/tmp/.java_pid{pid}"));
        (commands_of(target), taken.expect("a snapshot"))
    };
    let (asked, snapshot) = DEADLINES.into_iter().map(delayed).find(|(asked, _)| *asked > 0).expect("a command");
    // With a limit for each command instead, five would be answered. However busy the machine is, plimsoll sends no
    // third command before the deadline.
    assert!(asked <= 2, "{asked} commands");
    // The sources that were not reached are named.
    let reasons: Vec<&str> = snapshot.gaps.iter().map(|gap| gap.reason.as_str()).collect();
    assert!(
        reasons.iter().any(|reason| reason.starts_with("VM.native_memory") && reason.contains("was not sent")),
        "{reasons:#?}"
    );
    // The kernel's own figures are complete all the same.
    assert!(snapshot.vmas.iter().any(|vma| vma.name.ends_with("libjvm.so")), "{:#?}", snapshot.vmas);
}

/// A program of mallory's whose library is on a file system that answers each read after `milliseconds`, or never if
/// that is negative. Returns its PID and what it prints; `None`: this machine has no FUSE.
fn on_fuse(scratch: &Scratch, milliseconds: i32) -> Option<(Running, String, BufReader<ChildStdout>)> {
    let program = scratch.path().join("fuse");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/security/attacks/fuse.c");
    let compiled = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).status();
    assert!(compiled.expect("cc").success());
    let libjvm = java().parent().and_then(Path::parent).expect("a JDK").join("lib/server/libjvm.so");
    let mount = scratch.path().join("served");
    fs::create_dir(&mount).expect("a folder");
    let mut command = Command::new(program);
    command.arg(libjvm).arg(&mount).args(["libjvm.so", &MALLORY.to_string(), &milliseconds.to_string()]);
    let mut target = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut output = BufReader::new(target.0.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let line = line.trim().to_owned();
    if line.parse::<u32>().is_err() {
        log_line(&format!("security, a slow file system: skipped, {line}"));
        return None;
    }
    Some((target, line, output))
}

/// Each read of the target's library takes longer than the command may; reading everything takes many.
#[test]
fn a_file_system_that_drips_is_read_until_the_deadline() {
    if !can("a slow file system") {
        return;
    }
    let mut dripped = None;
    for seconds in DEADLINES {
        let scratch = Scratch::new("drip");
        let Some((target, pid, mut output)) = on_fuse(&scratch, seconds as i32 * 4000 / 3) else { return };
        let deadline = Deadline::after(Duration::from_secs(seconds));
        let taken = take_snapshot(pid.parse().expect("a PID"), Regions::AsNeeded, deadline);
        let mut printed = String::new();
        drop(target);
        output.read_to_string(&mut printed).expect("text");
        let reads = printed.lines().filter(|line| *line == "a read").count();
        if reads > 0 {
            dripped = Some((reads, taken.expect("a snapshot")));
            break;
        }
    }
    let (reads, snapshot) = dripped.expect("a read");
    // The first read outlasts the deadline, however busy the machine is. The kernel may divide it, or read ahead.
    assert!(reads <= 4, "{reads} reads");
    let reasons: Vec<&str> = snapshot.gaps.iter().map(|gap| gap.reason.as_str()).collect();
    let is_named = |reason: &&str| reason.contains("libjvm.so was not read in time");
    assert!(reasons.iter().any(is_named), "{reasons:#?}");
}

/// Not even SIGKILL ends a read that the file system's server has accepted and does not answer. The read ends with the
/// server.
#[test]
fn a_file_system_that_never_answers_holds_a_command_no_longer_than_its_server_lives() {
    if !can("a silent file system") {
        return;
    }
    let scratch = Scratch::new("silent");
    let Some((target, pid, mut output)) = on_fuse(&scratch, -1) else { return };
    let mut explain = Running(roots(&scratch, &["explain", &pid]).stdout(Stdio::null()).spawn().expect("plimsoll"));
    let mut line = String::new();
    while line.trim() != "a read" {
        line.clear();
        assert!(output.read_line(&mut line).expect("a line") > 0, "the server has ended");
    }
    drop(target);
    wait_until("explain ends after its server", || explain.0.try_wait().expect("our child").is_some());
}

/// The server invents inodes and times: they cannot identify a file in a cache.
#[test]
fn a_file_that_a_users_program_serves_has_no_name_in_a_cache() {
    if !can("a served file") {
        return;
    }
    let scratch = Scratch::new("served");
    let Some((_target, pid, _output)) = on_fuse(&scratch, 0) else { return };
    let served = scratch.path().join("served/libjvm.so");
    let inside = Path::new("/proc").join(pid).join("root").join(served.strip_prefix("/").expect("absolute"));
    let soon = Deadline::after(LIMIT);
    let served = open(&inside, Requirements::of(FileKind::Object), soon).expect("root may");
    assert_eq!(served.identity(), None);
    let own = open(&libc_file(), Requirements::of(FileKind::Object), soon).expect("readable");
    assert!(own.identity().is_some());
}
