//! Processes that cannot be explained, or only in part: one clear line and exit status 2, or gaps; never a wrong sum.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::child::Running;
use crate::executable;
use crate::fixture::{Explained, Fixture, PLIMSOLL, is_root, run, skip};

#[track_caller]
fn one_clear_line(pid: u32, words: &str) {
    let output = run(pid, &[]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty());
    assert!(error.contains(words) && error.trim_end().lines().count() == 1, "{error}");
}

#[test]
fn a_pid_without_a_process_is_refused() {
    // Above the largest pid_max.
    one_clear_line(4_194_305, "no process");
}

#[test]
fn a_process_that_has_ended_is_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    one_clear_line(pid, "no process");
}

#[test]
fn a_zombie_is_refused() {
    let fixture = Fixture::c("zombie", &[]);
    one_clear_line(fixture.truth("child") as u32, "zombie");
}

#[test]
fn a_thread_names_its_process() {
    let (send, receive) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        send.send(link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()).unwrap();
        let _ = stopped.recv();
    });
    let tid = receive.recv().unwrap();
    one_clear_line(tid, &format!("is a thread of process {}", std::process::id()));
    drop(stop);
    thread.join().unwrap();
}

#[test]
fn a_limit_is_a_number_of_bytes_with_or_without_a_unit() {
    let fixture = Fixture::c("healthy", &["8"]);
    for limit in ["536870912", "512m", "524288K"] {
        let text = String::from_utf8(run(fixture.pid(), &["--limit", limit]).stdout).unwrap();
        assert!(text.lines().nth(1).unwrap().contains("% of 512 MiB (--limit)"), "{text}");
    }
    for limit in ["0", "m", "1TB", "99999999999999g", "1.5g", ""] {
        assert_eq!(run(fixture.pid(), &["--limit", limit]).status.code(), Some(2), "{limit}");
    }
}

#[test]
fn a_limit_given_by_option_is_in_the_json() {
    let fixture = Fixture::c("healthy", &["8"]);
    let explained = crate::fixture::explain(fixture.pid(), &["--limit", "512m"]);
    let limit = &explained.0["limit"];
    assert_eq!((limit["source"].as_str(), limit["bytes"].as_u64()), (Some("--limit"), Some(512 << 20)));
    assert_eq!(limit["charged_bytes"], explained.0["rss_bytes"]);
}

#[test]
fn a_report_that_nobody_can_get_is_refused() {
    let fixture = Fixture::c("healthy", &["8"]);
    let shell = format!("exec \"{PLIMSOLL}\" explain {} >&-", fixture.pid());
    let output = Command::new("sh").args(["-c", &shell]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("standard output is closed") && error.trim_end().lines().count() == 1, "{error}");
}

#[test]
fn a_kernel_thread_is_refused() {
    let is_kthreadd = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    if !is_kthreadd {
        return skip("kernel thread", "none can be seen from this PID namespace");
    }
    one_clear_line(2, "kernel thread");
}

/// The process is killed before the first reading, then at moments spread over the time that a reading takes, and at
/// last not at all. A busy machine only moves these moments: each answer must be right at any of them.
#[test]
fn a_process_that_vanishes_at_any_moment_is_never_a_wrong_sum() {
    const ROUNDS: u32 = 40;
    let start = || Running(Command::new("sleep").arg("600").spawn().unwrap());
    let began = std::time::Instant::now();
    assert!(run(start().id(), &["--format", "json"]).status.success());
    let takes = began.elapsed();
    let (mut explained, mut refused) = (0, 0);
    for round in 0..=ROUNDS {
        let mut target = start();
        let pid = target.id();
        let mut end = || target.kill().and_then(|()| target.wait()).unwrap();
        let reading = || run(pid, &["--format", "json"]);
        let output = match round {
            0 => {
                end();
                reading()
            }
            ROUNDS => reading(),
            _ => std::thread::scope(|scope| {
                let output = scope.spawn(reading);
                std::thread::sleep(takes * round / ROUNDS);
                end();
                output.join().unwrap()
            }),
        };
        match output.status.code() {
            Some(0) => {
                Explained(serde_json::from_slice(&output.stdout).unwrap()).adds_up();
                explained += 1;
            }
            Some(2) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(explained > 0 && refused > 0, "{explained} {refused}");
    crate::stage::log_line(&format!("a process that vanishes: explained {explained} times, refused {refused} times"));
}

#[test]
fn another_users_process_has_gaps_and_a_sum() {
    if !is_root() {
        return skip("another user", "needs root to become nobody");
    }
    let fixture = Fixture::c("healthy", &[]);
    // The program may lie in a directory that others cannot enter, so a copy of it is run.
    let copy = std::env::temp_dir().join(format!("plimsoll-{}", std::process::id()));
    executable::copy(PLIMSOLL, &copy);
    let as_nobody = |format: &str| {
        let mut command = Command::new(&copy);
        command.args(["explain", &fixture.pid().to_string(), "--format", format]).uid(65534).gid(65534).output()
    };
    let (output, text) = (as_nobody("json"), as_nobody("text"));
    std::fs::remove_file(&copy).unwrap();
    let (output, text) = (output.unwrap(), String::from_utf8(text.unwrap().stdout).unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = String::from_utf8_lossy(&output.stdout);
    let has_sudo = std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|dir| dir.join("sudo").is_file());
    let typed = format!("plimsoll explain {}   # ", fixture.pid());
    let typed = if has_sudo { format!("\"sudo {typed}or with ") } else { format!("\"{typed}as root, or with ") };
    assert!(json.contains(&typed), "what to type can be pasted: {json}");
    let explained = Explained(serde_json::from_slice(&output.stdout).unwrap());
    explained.adds_up();
    assert!(explained.gaps().contains(&"proc"), "{:?}", explained.gaps());
    assert!(explained.0["rss_bytes"].as_u64().unwrap() >= fixture.truth("live"));
    // A line that holds everything of one kind has a note that says so.
    assert!(text.contains("all files, libraries too"), "{text}");
    assert!(!explained.verdicts().contains(&"healthy"), "too little is known to say so");
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    for arguments in [&["explain", "no-such-name"][..], &["explain", "1", "--format", "xml"], &["explain", "-1"]] {
        let output = Command::new(PLIMSOLL).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
}
