//! Interruptions of an attach: either side is killed, the target calls exec, is stopped, or forks, many commands run at
//! once, the disk is full, the segment is gone. The result is a clear sentence or a gap, and the target goes on.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::environments::{can_contain, contained};
use crate::kit::{Java, PLIMSOLL, jdks, plimsoll, scratch};
use crate::stage::is_full;

fn begin(arguments: &[&str]) -> Child {
    let mut command = Command::new(PLIMSOLL);
    command.args(arguments).env("XDG_CACHE_HOME", scratch("cache"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("plimsoll")
}

/// The announcement that comes before the outcome.
const ANNOUNCED: [&str; 2] = ["will warn on its", "waiting for"];

/// How the command ended: done, or one clear sentence (besides the announcement of the VM's warning).
#[track_caller]
fn is_clear(output: &Output, context: &str) -> bool {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let sentences: Vec<&str> = stderr.lines().filter(|line| !ANNOUNCED.iter().any(|a| line.contains(a))).collect();
    match output.status.code() {
        Some(0) => assert!(sentences.is_empty(), "{context}: {stderr}"),
        Some(2) => {
            let one = sentences.len() == 1 && sentences[0].starts_with("plimsoll: ") && !stderr.contains("panicked");
            assert!(one && !stderr.contains("os error"), "{context}: {stderr}");
        }
        other => panic!("{context}: {other:?} {stderr}"),
    }
    output.status.success()
}

/// How long one attach and one detach take on this machine. Interruptions at fractions of these times meet each phase.
/// A busy machine only moves them to other phases: what the tests expect holds at any moment.
fn durations(java: &Java) -> [Duration; 2] {
    ["attach", "detach"].map(|verb| {
        let began = Instant::now();
        java.done(&[verb, &java.pid()]);
        began.elapsed()
    })
}

/// In every phase of attach and detach the target is killed, or calls exec.
#[test]
fn a_target_that_goes_away_is_done_or_refused_in_one_sentence() {
    let phases = if is_full() { 6 } else { 1 };
    let (mut done, mut refused) = (0, 0);
    for (n, action) in ["kill", "exec"].into_iter().enumerate() {
        for phase in 0..=phases {
            let jdk = &jdks()[(phase as usize + n) % jdks().len()];
            let library = jdk.native("rounds");
            let mut first = jdk.start("measured", &[]);
            let [attach, detach] = durations(&first);
            for (verb, takes) in [("attach", attach), ("detach", detach)] {
                // The target that was measured serves for the detach.
                let mut fresh = (verb == "attach").then(|| jdk.start("gone", &[]));
                let java = fresh.as_mut().unwrap_or(&mut first);
                assert_eq!(java.send(&format!("load {}", library.display())), "loaded");
                if verb == "detach" {
                    java.done(&["attach", &java.pid()]);
                }
                let command = begin(&[verb, &java.pid()]);
                sleep(takes * phase / phases);
                match action {
                    "kill" => java.child.kill().expect("our child"),
                    _ => writeln!(java.input(), "exec").expect("the program reads"),
                }
                let output = command.wait_with_output().expect("plimsoll");
                let context = format!("JDK {}: {verb}, {action} in phase {phase} of {phases}", jdk.major);
                *if is_clear(&output, &context) { &mut done } else { &mut refused } += 1;
            }
        }
    }
    println!("exercised: {done} attaches and detaches that were done all the same, {refused} that were refused");
    assert!(refused > 0 && done + refused == 4 * (phases + 1), "{done} {refused}");
}

/// The command is killed in every phase: the target goes on, and the next command works.
#[test]
fn the_target_and_the_next_command_survive_a_killed_command() {
    let phases = if is_full() { 10 } else { 2 };
    for jdk in jdks() {
        let mut java = jdk.start("command", &[]);
        let [attach, detach] = durations(&java);
        drop(java);
        // The very first attach has more phases than later ones.
        for fresh in [true, false] {
            java = jdk.start("command", &[]);
            for phase in 0..=phases {
                for (verb, takes) in [("attach", attach), ("detach", detach)] {
                    let mut command = begin(&[verb, &java.pid()]);
                    sleep(takes * phase / phases);
                    command.kill().expect("our child");
                    command.wait().expect("our child");
                }
                if fresh && phase % 4 == 3 {
                    java = jdk.start("command", &[]);
                }
            }
            assert_eq!(java.send("turn"), "turned", "JDK {}", jdk.major);
            // The VM may still have the killed command's request in its queue, and that request may undo a later
            // attach. A detach goes into the queue behind it first.
            is_clear(&plimsoll(&["detach", &java.pid()]), "after them");
            java.done(&["attach", &java.pid(), "--sites", "exact"]);
            assert_eq!(java.send("turn"), "turned");
            let log = java.stop();
            assert_eq!(crate::category(&java.report(), "zlib").0, 2 * log.inflaters, "JDK {}", jdk.major);
            assert_eq!(java.send("go"), "gone");
            java.done(&["detach", &java.pid()]);
        }
    }
}

/// Many simultaneous commands: each succeeds or reports that another is under way, and the books are those of one
/// attach.
#[test]
fn commands_at_the_same_time_make_the_books_of_one_attach() {
    for jdk in jdks() {
        let mut java = jdk.start("together", &[]);
        for round in 0..4 {
            let verbs = [["attach"; 6], ["attach", "detach", "attach", "attach", "detach", "attach"]][round % 2];
            let all: Vec<Child> = verbs.iter().map(|verb| begin(&[verb, &java.pid()])).collect();
            let ended = all.into_iter().map(|child| child.wait_with_output().expect("plimsoll"));
            let done = ended.filter(|output| is_clear(output, "at the same time")).count();
            assert!(done > 0, "nobody got through");
        }
        let output = plimsoll(&["attach", &java.pid()]);
        is_clear(&output, "after them");
        assert_eq!(java.send("turn"), "turned");
        let log = java.stop();
        assert_eq!(crate::category(&java.report(), "zlib").0, 2 * log.inflaters, "JDK {}: {log:?}", jdk.major);
        assert_eq!(java.send("go"), "gone");
        java.done(&["detach", &java.pid()]);
    }
}

/// The target is stopped for a while in every phase, or stopped for good: the command reports the latter at once.
#[test]
fn a_stopped_target_is_reported_and_one_that_goes_on_is_entered() {
    const PHASES: u32 = 5;
    let jdk = &jdks()[0];
    let mut java = jdk.start("halted", &[]);
    let [attach, detach] = durations(&java);
    let pid = java.pid();
    for phase in 0..=PHASES {
        for (verb, takes) in [("attach", attach), ("detach", detach)] {
            let command = begin(&[verb, &pid]);
            sleep(takes * phase / PHASES);
            java.halt();
            // The command may notice the stop meanwhile, and its outcome is clear either way.
            sleep(Duration::from_millis(100));
            java.signal("-CONT");
            is_clear(&command.wait_with_output().expect("plimsoll"), &format!("{verb}, phase {phase}"));
        }
    }
    assert_eq!(java.send("turn"), "turned");
    is_clear(&plimsoll(&["attach", &pid]), "it goes on");
    java.halt();
    // Reports need nothing from the program and work; attach and detach are refused.
    let switched = plimsoll(&["attach", &pid, "--sites", "off"]);
    assert!(String::from_utf8_lossy(&switched.stdout).contains("tracked already"), "{switched:?}");
    let refused = plimsoll(&["detach", &pid]);
    let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!is_clear(&refused, "stopped") && sentence.contains("stopped") && sentence.contains("-CONT"), "{sentence}");
    java.signal("-CONT");
    java.done(&["detach", &pid]);
}

/// A thread that forks all the time: no child dies of what happens to its parent.
#[test]
fn no_child_of_a_thread_that_forks_dies_of_an_attach() {
    for jdk in jdks() {
        let mut java = jdk.start("forks", &[]);
        assert_eq!(java.send(&format!("load {}", jdk.native("rounds").display())), "loaded");
        let children = |java: &mut Java| -> [u64; 2] {
            let stderr = java.send("fork");
            let mut numbers = stderr.split(' ').skip(1).map(|n| n.parse().expect("a number"));
            [numbers.next().expect("born"), numbers.next().expect("failed")]
        };
        let before = children(&mut java);
        for sites in ["sampled", "exact", "sampled", "off", "exact", "sampled"] {
            java.done(&["attach", &java.pid(), "--sites", sites]);
            assert_eq!(java.send("turn"), "turned");
            java.done(&["detach", &java.pid()]);
        }
        let [born, failed] = children(&mut java);
        assert!(failed == 0 && born > before[0], "JDK {}: {born} children, {failed} failed", jdk.major);
        println!("exercised: JDK {}: {born} children over 6 rounds", jdk.major);
    }
}

/// No space for a segment: a sentence, and an attach once there is space. Little space: the target goes on, and the
/// tracker has no fault.
#[test]
fn a_target_survives_a_segment_without_space() {
    if !can_contain("a full disk") {
        return;
    }
    let jdk = jdks().last().expect("a JDK");
    let mounts = "mount -t tmpfs none /tmp; mkdir /tmp/books; mount -t tmpfs -o size=16k,mode=700 none /tmp/books";
    let mut command = contained(&[], mounts, &jdk.java(&[], &["Rounds"]));
    command.env("PLIMSOLL_DIR", "/tmp/books").env("HOME", "/nowhere").env_remove("XDG_CACHE_HOME");
    let mut java = Java::start_as_it_is(command, "no-space");
    let refused = plimsoll(&["attach", &java.pid()]);
    let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!is_clear(&refused, "no space") && sentence.contains("full"), "{sentence}");
    assert_eq!(java.send("turn"), "turned");
    let resize = |size: &str| {
        let mut mount = Command::new("nsenter");
        mount.args(["-t", &java.pid(), "-m", "mount", "-o", &format!("remount,size={size}"), "/tmp/books"]);
        crate::stage::must(&mut mount);
    };
    // Enough space to begin, but not for everything.
    let mut size = 32;
    let began = loop {
        resize(&format!("{size}k"));
        let output = plimsoll(&["attach", &java.pid(), "--sites", "exact"]);
        if is_clear(&output, "little space") || size > 1 << 14 {
            break output.status.success();
        }
        size += 16;
    };
    assert!(began, "no attach succeeds with {size} KiB of space");
    for _ in 0..3 {
        assert_eq!(java.send("turn"), "turned");
    }
    let report = java.report();
    assert_eq!(report["state"], "live");
    println!("exercised: {size} KiB were enough to begin with; gaps: {}", report["gaps"]);
    assert_eq!(crate::counter(&report, "faults"), 0);
    java.done(&["detach", &java.pid()]);
    // With enough space again, the books are complete.
    let mut mount = Command::new("nsenter");
    crate::stage::must(mount.args(["-t", &java.pid(), "-m", "mount", "-o", "remount,size=256m", "/tmp/books"]));
    java.done(&["attach", &java.pid(), "--sites", "exact"]);
    assert_eq!(java.send("turn"), "turned");
    let log = java.stop();
    assert_eq!(crate::category(&java.report(), "zlib").0, 2 * log.inflaters);
}

/// The directory of the segments is deleted: the books go on in the deleted file, which root can read; a detach works.
#[test]
fn a_deleted_segment_goes_on_and_detach_works() {
    let jdk = &jdks()[0];
    let mut java = jdk.start("deleted", &[]);
    let directory = scratch(&format!("segments-deleted-{}", jdk.major));
    java.done(&["attach", &java.pid()]);
    std::fs::remove_dir_all(&directory).expect("the directory");
    let whole = |java: &mut Java| {
        assert_eq!(java.send("turn"), "turned");
        let report = plimsoll(&["report", &java.pid(), "--format", "json"]);
        // Only root may open a deleted file through /proc/PID/map_files (proc_pid_map_files(5)).
        let is_read = is_clear(&report, "report");
        assert_eq!(is_read, rustix::process::geteuid().is_root(), "{}", String::from_utf8_lossy(&report.stderr));
        if is_read {
            let report = serde_json::from_slice(&report.stdout).expect("JSON");
            let log = java.stop();
            assert!(crate::category(&report, "zlib").0 > 0, "{log:?}");
            assert_eq!(java.send("go"), "gone");
        }
    };
    whole(&mut java);
    java.done(&["detach", &java.pid()]);
    let again = plimsoll(&["attach", &java.pid()]);
    if is_clear(&again, "attach again") {
        whole(&mut java);
    }
    java.done(&["detach", &java.pid()]);
    assert_eq!(java.send("turn"), "turned");
}

/// Two hundred threads that never sleep: a second attach waits until each has run, or reports how many have not. Once
/// they sleep, it succeeds.
#[test]
#[ignore = "full: 200 threads that never rest"]
fn a_second_attach_waits_for_threads_that_never_sleep_or_counts_them() {
    let jdk = &jdks()[0];
    let mut java = Java::start(jdk.java(&[], &["Rounds", "200"]), "crowd");
    java.done(&["attach", &java.pid()]);
    java.done(&["detach", &java.pid()]);
    let output = plimsoll(&["attach", &java.pid()]);
    if is_clear(&output, "a second attach") {
        java.done(&["detach", &java.pid()]);
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains("threads") && stderr.contains("have not run"), "{stderr}");
    }
    java.stop();
    java.done(&["attach", &java.pid(), "--sites", "exact"]);
    assert_eq!(java.send("go"), "gone");
    assert_eq!(java.send("turn"), "turned");
    let log = java.stop();
    assert_eq!(crate::category(&java.report(), "zlib").0, 2 * log.inflaters, "{log:?}");
}
