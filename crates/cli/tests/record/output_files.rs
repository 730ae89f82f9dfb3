//! Starting, stopping and rotating recordings.

use crate::{Running, Workspace, events, stage, wait_until};
use plimsoll_facts::units::Bytes;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

#[test]
fn a_command_is_recorded_from_its_first_block_to_its_end() {
    let workspace = Workspace::new("command");
    let program = workspace.steps();
    for (verb, options) in [("record", &["-o", "c.jfr", "--interval", "20ms"][..]), ("run", &["--record", "c.jfr"])] {
        let out =
            workspace.plimsoll(&[verb]).args(options).arg("--").arg(&program).args(["100000", "1000", "300"]).output();
        let out = out.expect("plimsoll starts");
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(7), "the program's own status; {errors}");
        assert_eq!(out.stdout, b"ready\n");
        assert!(errors.contains("in c.jfr ("), "{errors}");
        let read = workspace.read("c.jfr");
        let end = events(&read, "plimsoll.TargetEnd").next().expect("an end");
        assert_eq!((end.text("state"), end.long("exitCode"), end.long("signal")), ("exited", 7, 0), "{verb}");
        // 300 steps: 200 blocks kept, all of them requested by now.
        let last = events(&read, "plimsoll.Total").last().expect("books");
        assert_eq!(last.time_ns, end.time_ns, "the recording ends with the last books");
        assert!(last.long("liveCount") >= 200 && last.long("cumulativeCount") >= 300, "{last:?}");
        assert!(last.long("live") >= 200 * 100_000);
        std::fs::remove_file(workspace.path("c.jfr")).expect("a recording");
    }
    let out = workspace
        .plimsoll(&["record", "-o", "k.jfr", "--", "sh", "-c", "kill -9 $$"])
        .output()
        .expect("plimsoll starts");
    assert_eq!(out.status.signal(), Some(9), "plimsoll ends by the signal of its command");
    assert_eq!(events(&workspace.read("k.jfr"), "plimsoll.TargetEnd").next().expect("an end").long("signal"), 9);
}

/// Autoreloaders and launchers execute themselves: PID and program stay, the memory is new.
#[test]
fn an_exec_of_the_same_file_begins_other_books() {
    let workspace = Workspace::new("exec");
    let program = stage::c_program("exec_itself_smaller", workspace.scratch.path());
    let mut recorder = workspace.plimsoll(&["record", "-o", "e.jfr", "--interval", "20ms", "--"]);
    let mut recorder = Running::ready(recorder.arg(&program).stderr(Stdio::null()));
    let is_live = |bytes: std::ops::Range<u64>| {
        // An instant may be written while the test reads.
        let read = crate::reader::read(&std::fs::read(workspace.path("e.jfr")).unwrap_or_default());
        read.is_ok_and(|read| events(&read, "plimsoll.Total").last().is_some_and(|of| bytes.contains(&of.long("live"))))
    };
    wait_until("the first books", || is_live(50 << 20..u64::MAX));
    std::fs::write(workspace.path("GO"), "").expect("the folder is ours");
    wait_until("the second books", || is_live(5 << 20..10 << 20));
    std::fs::write(workspace.path("END"), "").expect("the folder is ours");
    assert_eq!(recorder.0.wait().expect("our child").code(), Some(3));
    let read = workspace.read("e.jfr");
    let last = events(&read, "plimsoll.Total").last().expect("books");
    assert!((5 << 20..10 << 20).contains(&last.long("live")), "{last:?}");
    // No instant after the exec has the books from before, but one may read them in the middle of it.
    let mut later = events(&read, "jdk.ResidentSetSize").skip_while(|rss| rss.long("size") < 30 << 20);
    let replaced = later.find(|rss| rss.long("size") < 30 << 20).expect("a small one").time_ns;
    let stale = events(&read, "plimsoll.Total").filter(|of| of.time_ns > replaced && of.long("live") >= 50 << 20);
    assert!(stale.count() <= 1);
    let segments = std::fs::read_dir(workspace.path("segments")).expect("segments").map(|entry| entry.unwrap().path());
    let mut heads: Vec<String> = segments
        .map(|segment| {
            let output = workspace.plimsoll(&["report", segment.to_str().expect("a path")]).output().expect("plimsoll");
            String::from_utf8(output.stdout).expect("UTF-8").lines().next().unwrap_or_default().to_owned()
        })
        .collect();
    heads.sort_by_key(|head| head.contains("again"));
    assert!(heads.len() == 2 && heads[0].contains("replaced by exec"), "{heads:?}");
    assert!(heads[1].contains("exited with status 3"), "{heads:?}");
}

/// A program begins and ends between two readings. Only its recorder knows the directory of its segments.
#[test]
fn the_last_books_are_found_in_the_directory_of_the_command() {
    let workspace = Workspace::new("late-exec");
    let program = stage::c_program("exec_itself_smaller", workspace.scratch.path());
    std::fs::write(workspace.path("END"), "").expect("the folder is ours");
    let script = format!("echo ready; while [ ! -e GO ]; do sleep 0.01; done; exec {} again", program.display());
    let mut recorder = workspace.plimsoll(&["record", "-o", "l.jfr", "--interval", "60s", "--dir", "named", "--"]);
    let mut recorder = Running::ready(recorder.args(["sh", "-c", &script]).stderr(Stdio::null()));
    let first = || crate::reader::read(&std::fs::read(workspace.path("l.jfr")).unwrap_or_default());
    let has_first = || first().is_ok_and(|read| events(&read, "jdk.ResidentSetSize").next().is_some());
    wait_until("the first reading", has_first);
    std::fs::write(workspace.path("GO"), "").expect("the folder is ours");
    assert_eq!(recorder.0.wait().expect("our child").code(), Some(3));
    let read = workspace.read("l.jfr");
    let last = events(&read, "plimsoll.Total").last().expect("books");
    assert!((5 << 20..10 << 20).contains(&last.long("live")), "{last:?}");
    let target = events(&read, "plimsoll.Target").last().expect("a target");
    assert_eq!(target.text("mode"), "sampled");
    assert!(target.text("executable").ends_with("exec_itself_smaller"), "{target:?}");
}

#[test]
fn signals_stop_it_cleanly_and_hangup_begins_another_file() {
    let workspace = Workspace::new("signals");
    let target = Running::ready(Command::new(workspace.steps()).args(["1000", "1000"]));
    for signal in ["INT", "TERM"] {
        let mut recorder = Running(
            workspace
                .plimsoll(&["record", &target.pid(), "-o", "s.jfr", "--interval", "20ms"])
                .stderr(Stdio::null())
                .spawn()
                .expect("starts"),
        );
        wait_until("the file", || workspace.path("s.jfr").exists());
        if signal == "TERM" {
            let length = || workspace.path("s.jfr").metadata().map_or(0, |file| file.len());
            let begun = length();
            wait_until("another instant", || length() > begun);
            recorder.signal("HUP");
            wait_until("the full file", || full(&workspace, "s.").len() == 1);
            wait_until("the next", || workspace.path("s.jfr").exists());
        }
        recorder.signal(signal);
        assert!(recorder.0.wait().expect("our child").success(), "{signal}");
        let read = workspace.read("s.jfr");
        assert!(events(&read, "jdk.ResidentSetSize").count() >= 2, "one at the start, one at the stop");
        assert_eq!(events(&read, "plimsoll.TargetEnd").count(), 0, "it lives on");
        std::fs::remove_file(workspace.path("s.jfr")).expect("a recording");
    }
    let turned = full(&workspace, "s.");
    assert!(events(&workspace.read(&turned[0]), "jdk.ResidentSetSize").count() >= 1, "{turned:?}");
}

/// Each file may be read without the others, so each has sites, peaks and arenas.
#[test]
fn every_file_begins_with_a_full_instant() {
    let workspace = Workspace::new("full");
    let target = Running::ready(workspace.plimsoll(&["run", "--"]).arg(workspace.steps()).args(["1000", "1000"]));
    let arguments = ["record", &target.pid(), "-o", "f.jfr", "--interval", "20ms"];
    let mut recorder = Running(workspace.plimsoll(&arguments).stderr(Stdio::null()).spawn().expect("starts"));
    let length = || workspace.path("f.jfr").metadata().map_or(0, |file| file.len());
    for files in 1..=2 {
        wait_until("the file", || length() > 0);
        let begun = length();
        wait_until("another instant", || length() > begun);
        recorder.signal("HUP");
        wait_until("the full file", || full(&workspace, "f.").len() == files);
    }
    wait_until("the last file", || length() > 0);
    recorder.signal("TERM");
    assert!(recorder.0.wait().expect("our child").success());
    let names = full(&workspace, "f.");
    for name in names.iter().map(String::as_str).chain(["f.jfr"]) {
        let read = workspace.read(name);
        let first = read.events.iter().map(|event| event.time_ns).min().expect("events");
        let peaks = events(&read, "jdk.NativeMemoryUsageTotalPeak").map(|event| event.time_ns).min();
        assert_eq!(peaks, Some(first), "{name}");
    }
}

/// `run` forwards every signal. Only `record` begins another file.
#[test]
fn a_hangup_is_for_the_program_that_run_records() {
    let workspace = Workspace::new("hangup");
    let script = "trap 'exit 9' HUP; echo ready; while :; do sleep 0.1; done";
    for (words, expected) in [(["run", "--record"], "ended"), (["record", "-o"], "rotated")] {
        // A shell can't trap a signal that it was started without (nohup).
        let direct = workspace.plimsoll(&words);
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(direct.get_program()).args(direct.get_args());
        command.envs(direct.get_envs().map(|(name, value)| (name, value.expect("only set"))));
        command.args(["h.jfr", "--", "sh", "-c", script]).current_dir(workspace.path("")).stderr(Stdio::null());
        let mut recorder = Running::ready(&mut command);
        wait_until("the file", || workspace.path("h.jfr").exists());
        recorder.signal("HUP");
        let mut came = "nothing";
        wait_until("the program's end, or another file", || {
            came = match recorder.0.try_wait().expect("our child") {
                Some(status) => {
                    assert_eq!(status.code(), Some(9));
                    "ended"
                }
                None if !full(&workspace, "h.").is_empty() => "rotated",
                None => "nothing",
            };
            came != "nothing"
        });
        assert_eq!(came, expected, "{words:?}");
    }
}

/// A shell with this script that plimsoll starts, both in a PID namespace of their own; `None` where the machine doesn't
/// allow one.
fn contained(workspace: &Workspace, before: &[&str], words: &[&str], script: &str) -> Option<Output> {
    let namespace = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !Command::new("unshare").args(namespace).arg("true").status().is_ok_and(|status| status.success()) {
        stage::log_line("plimsoll in a PID namespace: skipped, the machine doesn't allow unshare --pid");
        return None;
    }
    let direct = workspace.plimsoll(words);
    let mut command = Command::new("unshare");
    command
        .args(namespace)
        .args(before)
        .arg(direct.get_program())
        .args(direct.get_args())
        .args(["--", "sh", "-c", script]);
    command.envs(direct.get_envs().map(|(name, value)| (name, value.expect("only set"))));
    Some(command.stdin(Stdio::null()).current_dir(workspace.path("")).output().expect("unshare"))
}

/// Both ways of having a child.
const PARENTS: [&[&str]; 2] = [&["run", "--report", "summary"], &["record", "-o", "o.jfr"]];

/// In a container plimsoll is process 1, and the kernel gives it every orphan. The program sees which processes there
/// are: process 1 and itself, once the others have been reaped.
#[test]
fn orphans_of_a_container_are_reaped() {
    let workspace = Workspace::new("orphans");
    let script = "for i in 1 2 3 4 5; do (sleep 0.1 & echo $! >>started); done
        [ $(wc -l <started) = 5 ] || exit 4
        for i in $(seq 3000); do set -- /proc/[0-9]*; [ $# = 2 ] && exit 7; sleep 0.1; done
        exit 3";
    for words in PARENTS {
        let Some(output) = contained(&workspace, &[], words, script) else { return };
        assert_eq!(output.status.code(), Some(7), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_file(workspace.path("started")).expect("orphans");
    }
}

/// In a PID namespace the session can be one of outside. Its number is 0 then.
#[test]
fn signals_go_on_where_the_session_is_of_another_pid_namespace() {
    let workspace = Workspace::new("foreign-session");
    let script = "trap 'exit 5' USR1; kill -USR1 $PPID; while :; do sleep 0.05; done";
    let session = ["python3", "-c", "import os, sys\nif os.getsid(0) == 0: os.execv(sys.argv[1], sys.argv[1:])"];
    for words in PARENTS {
        let Some(output) = contained(&workspace, &session, words, script) else { return };
        assert_eq!(output.status.code(), Some(5), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_file_that_can_no_longer_be_written_is_reported_and_the_command_continues() {
    let workspace = Workspace::new("unwritable");
    let target = Running::ready(Command::new(workspace.steps()).args(["1000", "1000"]));
    let pid = target.pid();
    // The command ends when its standard input does.
    for (recorded, status) in [(&["--", "sh", "-c", "cat; exit 7"][..], 7), (&[&pid[..]], 2)] {
        std::fs::create_dir_all(workspace.path("s")).expect("a folder");
        let mut record = workspace.plimsoll(&["record", "-o", "s/k.jfr", "--interval", "20ms"]);
        record.args(recorded).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut recorder = Running(record.spawn().expect("plimsoll starts"));
        wait_until("the file", || workspace.path("s/k.jfr").exists());
        // The directory is deleted; then SIGHUP makes the recorder begin a file in it.
        std::fs::remove_dir_all(workspace.path("s")).expect("ours");
        recorder.signal("HUP");
        let mut stderr = BufReader::new(recorder.0.stderr.take().expect("piped"));
        let mut errors = String::new();
        stderr.read_line(&mut errors).expect("a line");
        assert!(errors.contains("cannot make") && errors.contains("s/k.jfr"), "{errors}");
        drop(recorder.0.stdin.take());
        stderr.read_to_string(&mut errors).expect("text");
        assert_eq!(recorder.0.wait().expect("our child").code(), Some(status), "{errors}");
    }
}

/// `mv`, then SIGHUP: that is how logs are rotated. Whoever moves or replaces a file decides what becomes of it.
#[test]
fn a_file_that_was_moved_stays_and_the_recording_goes_on() {
    let workspace = Workspace::new("moved");
    let target = Running::ready(Command::new(workspace.steps()).args(["1000", "1000"]));
    let mut record = workspace.plimsoll(&["record", &target.pid(), "-o", "s.jfr", "--interval", "10ms"]);
    let mut recorder = Running(record.stderr(Stdio::piped()).spawn().expect("plimsoll starts"));
    for moved in ["first.jfr", "second.jfr"] {
        wait_until("the file", || workspace.path("s.jfr").exists());
        std::fs::rename(workspace.path("s.jfr"), workspace.path(moved)).expect("ours");
        recorder.signal("HUP");
    }
    wait_until("the third file", || workspace.path("s.jfr").exists());
    recorder.signal("TERM");
    let mut errors = String::new();
    recorder.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("UTF-8");
    assert!(recorder.0.wait().expect("our child").success(), "{errors}");
    let mut instants = 0;
    for name in ["first.jfr", "second.jfr", "s.jfr"] {
        let read = workspace.read(name);
        assert!(events(&read, "jdk.ResidentSetSize").next().is_some(), "{name}");
        instants += events(&read, "jdk.ResidentSetSize").count();
    }
    assert!(errors.contains(&format!("{instants} instants of process {} in 3 files", target.pid())), "{errors}");
    assert!(full(&workspace, "s.").is_empty(), "no file was renamed");
}

/// Rotated files have their start time in their names.
fn full(workspace: &Workspace, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(workspace.path("")).expect("the folder");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with(prefix) && name.ends_with(".jfr") && name.len() > "s.jfr".len() + 10);
    names.sort();
    names
}

#[test]
fn full_files_are_rotated_and_old_ones_are_deleted() {
    let workspace = Workspace::new("rotation");
    let program = workspace.steps();
    let first = Running::ready(Command::new(&program).args(["1000", "1000"]));
    let second = Running::ready(Command::new(&program).args(["1000", "1000"]));
    // A file has about 20 KiB with its first instant and grows by 16 KiB: each is full after an instant or a few.
    let mut recorder = Running(
        workspace
            .plimsoll(&["record", &first.pid(), &second.pid(), "-o", "r-%p.jfr", "--interval", "10ms"])
            .args(["--max-size", "24k", "--keep", "2"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("plimsoll starts"),
    );
    let mut seen = [(first.pid(), BTreeSet::new()), (second.pid(), BTreeSet::new())];
    wait_until("a third full file of each", || {
        seen.iter_mut().for_each(|(pid, names)| names.extend(full(&workspace, &format!("r-{pid}."))));
        seen.iter().all(|(_, names)| names.len() > 2)
    });
    recorder.signal("TERM");
    let mut errors = String::new();
    recorder.0.stderr.take().expect("piped").read_to_string(&mut errors).expect("UTF-8");
    assert!(recorder.0.wait().expect("our child").success(), "{errors}");
    for pid in [first.pid(), second.pid()] {
        let stderr = errors.lines().find(|line| line.contains(&format!(", the last r-{pid}.jfr ("))).expect("a line");
        // Two full ones, and the last.
        assert!(stderr.contains(" files, of which 3 are kept, ") && stderr.ends_with(" together)"), "{stderr}");
        let prefix = format!("r-{pid}.");
        let kept: Vec<String> = full(&workspace, &prefix);
        assert_eq!(kept.len(), 2, "{kept:?}");
        let mut times = Vec::new();
        for name in kept.iter().chain([&format!("r-{pid}.jfr")]) {
            let read = workspace.read(name);
            let before = times.len();
            times.extend(events(&read, "jdk.ResidentSetSize").map(|event| event.time_ns));
            assert!(times.len() > before, "{name} has no instant");
            assert_eq!(
                events(&read, "plimsoll.Target").next().expect("each says whose it is").long("pid").to_string(),
                pid
            );
        }
        assert!(times.is_sorted(), "{times:?}");
    }
    assert_eq!(
        stage::must(Command::new("find").arg(workspace.path("")).args(["-mindepth", "1", "-name", ".*"])),
        b"",
        "a temporary file is left"
    );
}

#[test]
fn the_size_of_the_file_is_true_and_its_start_is_in_its_name_once() {
    let workspace = Workspace::new("named");
    let target = Running::ready(Command::new(workspace.steps()).args(["1000", "1000"]));
    let record = |name: &str| workspace.plimsoll(&["record", &target.pid(), "--interval", "10ms", "-o", name]);
    let out = record("one.jfr").args(["--duration", "300ms"]).output().expect("plimsoll starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    let length = std::fs::metadata(workspace.path("one.jfr")).expect("a recording").len();
    assert!(stderr.trim_end().ends_with(&format!(" in one.jfr ({})", Bytes(length))), "{stderr}: {length}");
    let mut recorder = Running(record("of-%t.jfr").stderr(Stdio::null()).spawn().expect("starts"));
    wait_until("the file", || full(&workspace, "of-").len() == 1);
    recorder.signal("HUP");
    wait_until("the next", || full(&workspace, "of-").len() == 2);
    recorder.signal("TERM");
    assert!(recorder.0.wait().expect("our child").success());
    for name in full(&workspace, "of-") {
        assert_eq!((name.len(), name.matches('.').count()), ("of-20261121-004512.250.jfr".len(), 2), "{name}");
    }
}

/// The interval is longer than the duration, so only the first and the last instant are in the file.
#[test]
fn the_last_instant_is_at_the_end_of_the_duration() {
    let workspace = Workspace::new("duration");
    let target = Running::ready(Command::new(workspace.steps()).args(["1000", "1000"]));
    let arguments = ["record", &target.pid(), "-o", "d.jfr", "--interval", "1h", "--duration", "500ms"];
    let out = workspace.plimsoll(&arguments).output().expect("plimsoll starts");
    assert!(out.status.success(), "{out:?}");
    let read = workspace.read("d.jfr");
    let of_rss = read.events.iter().filter(|event| event.name == "jdk.ResidentSetSize");
    let times: Vec<u64> = of_rss.map(|event| event.time_ns).collect();
    assert!(matches!(times[..], [first, last] if first < last), "{times:?}");
}

#[test]
fn what_cannot_be_recorded_is_reported_in_one_sentence() {
    let workspace = Workspace::new("refused");
    let own = std::process::id().to_string();
    for (arguments, sentence) in [
        (&["record", "4194304", "-o", "x.jfr"][..], "no process 4194304"),
        (&["record", &own, "-o", "no/such/folder/x.jfr"], "cannot make"),
        (&["record", &own, "1", "-o", "x.jfr"], "put %p into the name"),
        (&["record", &own, "--interval", "5ms"], "at least 10ms"),
        (&["record", &own, "--duration", "soon"], "expected a duration"),
        (&["record"], "is missing"),
        (&["record", &own, "--sites", "exact"], "give --sites <SITES> or PID|NAME, not both"),
        (
            &["record", "-p", &own, "--sample", "4096"],
            "give --sample <BYTES> or --process <PID|NAME|CONTAINER>, not both",
        ),
        (&["record", &own, "--depth", "16"], "give --depth <FRAMES> or PID|NAME, not both"),
        (&["record", &own, "--dir", "."], "give --dir <DIR> or PID|NAME, not both"),
        (&["record", &own, "--follow"], "give --follow or PID|NAME, not both"),
        (&["record", &own, "--signal", "USR2"], "give --signal <SIGNAL> or PID|NAME, not both"),
        (&["record", &own, "--retain", "3"], "give --retain <N> or PID|NAME, not both"),
        (&["record", "-p", &own, "--rules", "x"], "give --rules <FILE> or --process <PID|NAME|CONTAINER>, not both"),
        (&["record", "-o", "no/such/folder/x.jfr", "--", "true"], "cannot make"),
    ] {
        let out = workspace.plimsoll(arguments).output().expect("plimsoll starts");
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(sentence) && errors.lines().count() <= 2, "{arguments:?}: {errors}");
    }
    let out =
        workspace.plimsoll(&["record", "-o", "x.jfr", "--", "no-such-program"]).output().expect("plimsoll starts");
    assert_eq!(out.status.code(), Some(127));
    assert!(!workspace.path("x.jfr").exists());
}
