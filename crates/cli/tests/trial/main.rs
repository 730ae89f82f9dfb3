//! `plimsoll try` and `plimsoll compare`: savings that are known, programs that behave oddly, and nothing left behind.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
mod compare;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../../../../fixtures/jdks.rs"]
mod jdks;
mod kit;
mod live;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../harness/redis.rs"]
mod redis;

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::Command;

use child::{Running, wait_for, wait_until};
use kit::{Trial, groups, mib, row, signal};
use serde_json::Value;

/// Eight threads keep 8 MiB each in arenas of their own.
const BURST: [&str; 2] = ["8", "8"];
const READY: [&str; 2] = ["--ready", "log:burst done"];
const SHORT: [&str; 4] = ["--for", "0.1", "--idle", "0.1"];

#[test]
fn a_cap_saves_the_known_sum_and_a_trim_the_free_pages() {
    let trial = Trial::new("known");
    let with = ["--rounds", "3", "--with", "arenas=1,2", "--with", "trim"];
    let burst = trial.burst();
    let program = [&[burst.as_str()][..], &BURST].concat();
    let (status, found, error) = trial.json(&[&READY[..], &SHORT, &with].concat(), &program);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    for (name, arenas) in [("plain", 8.0), ("arenas=1", 1.0), ("arenas=2", 2.0)] {
        let (steady, retained) = (mib(&found, name, "steady_bytes"), mib(&found, name, "retained_bytes"));
        assert!((retained - 8.0 * arenas).abs() < 1.0, "{name}: {retained}");
        assert!((0.0..6.0).contains(&(steady - retained)), "{name}: {steady}");
        assert!(mib(&found, name, "peak_bytes") >= steady - 0.5, "{name}");
    }
    let difference = &row(&found, "arenas=1")["figures"]["idle_bytes"]["difference"];
    assert_eq!((&difference["significant"], &difference["pairs"]), (&true.into(), &3.into()));
    let mean = difference["mean"].as_f64().expect("a number") / f64::from(1 << 20);
    assert!((mean + 56.0).abs() < 2.0, "{mean}");
    // The trim comes after the steady figure, and once.
    assert!(mib(&found, "trim", "steady_bytes") > 60.0 && mib(&found, "trim", "idle_bytes") < 10.0, "{found:#}");
    assert_eq!((&found["best"]["kind"], &found["best"]["row"]), (&"saves".into(), &"arenas=1".into()));
    let predicted = row(&found, "trim")["predicted_saving"].clone();
    let saved = mib(&found, "plain", "idle_bytes") - mib(&found, "trim", "idle_bytes");
    let bounds = ["least_bytes", "most_bytes"].map(|key| predicted[key].as_f64().expect("bytes") / f64::from(1 << 20));
    assert!(bounds[0] - 1.0 < saved && saved < bounds[1] + 1.0, "{saved} outside of {predicted}");
}

#[test]
fn without_remedies_it_tries_those_that_explain_proposes() {
    let trial = Trial::new("proposed");
    let burst = trial.burst();
    let program = [&[burst.as_str()][..], &BURST].concat();
    let (status, found, _) = trial.json(&[&READY[..], &SHORT, &["--rounds", "1"]].concat(), &program);
    assert_eq!(status, Some(0));
    assert!((mib(&found, "arenas=4", "retained_bytes") - 32.0).abs() < 1.0, "{found:#}");
    assert_eq!(row(&found, "jemalloc,background")["changes"][0], "jemalloc");
    assert_eq!(found["best"]["kind"], "too-few");
}

/// Its peak comes from the kernel's account of the ended process, not from a sample that may miss it.
#[test]
fn a_program_that_ends_by_itself_has_its_peak() {
    let trial = Trial::new("ends");
    let burst = trial.burst();
    let program = [&[burst.as_str()][..], &BURST, &["end"]].concat();
    let (status, found, _) = trial.json(&["--rounds", "1", "--with", "arenas=1", "--with", "env:A=b"], &program);
    assert_eq!(status, Some(0));
    let [plain, one, same] = ["plain", "arenas=1", "A=b"].map(|name| mib(&found, name, "peak_bytes"));
    assert!((64.0..72.0).contains(&plain) && (8.0..14.0).contains(&one) && (64.0..72.0).contains(&same), "{found:#}");
    assert_eq!(found["runs"][0]["end"], "completed");
    assert!(row(&found, "plain")["figures"]["took_seconds"]["median"].as_f64().is_some_and(|took| took > 0.0));
}

#[test]
fn a_load_is_read_and_its_failure_is_a_sentence() {
    let trial = Trial::new("load");
    let options = ["--ready", "seconds:0.1", "--idle", "0.1", "--rounds", "1", "--with", "env:A=b"];
    let load = concat!(env!("CARGO_MANIFEST_DIR"), "/../trial/captured/wrk.txt");
    let (status, found, _) =
        trial.json(&[&options[..], &["--load", &format!("cat {load}")]].concat(), &["sleep", "1000"]);
    assert_eq!(status, Some(0));
    let figures = &row(&found, "A=b")["figures"];
    assert_eq!(
        (&figures["p99_milliseconds"]["median"], &figures["throughput_per_second"]["median"]),
        (&36.74.into(), &983.21.into())
    );
    let (status, found, error) =
        trial.json(&[&options[..], &["--load", "echo no route >&2; exit 4"]].concat(), &["sleep", "1000"]);
    assert_eq!((status, &found["runs"][0]["end"]), (Some(2), &"load-failed".into()));
    assert!(error.contains("the load command ended with exit status 4: no route"), "{error}");
}

/// Like a monitor that the command starts beside the load generator.
#[test]
fn a_load_ends_with_its_command() {
    let trial = Trial::new("background");
    let load = format!("sleep 1000 & cat {}/../trial/captured/wrk.txt", env!("CARGO_MANIFEST_DIR"));
    let options = ["--ready", "seconds:0.1", "--load", &load, "--idle", "0.1", "--rounds", "1"];
    let (status, found, error) = trial.json(&options, &["sleep", "1001"]);
    assert_eq!(status, Some(0), "{error}");
    assert_eq!(row(&found, "plain")["figures"]["p99_milliseconds"]["median"], 36.74);
}

/// As in an image that Jib has built: the main class is in a file. Behind it, the option would be an argument of the
/// Java program. The VM takes the last of two options.
#[test]
fn options_of_a_vm_come_before_a_main_class_in_a_file() {
    let trial = Trial::new("argument-file");
    let jdk = jdks::jdks().pop().expect("a JDK");
    let source = "class Seen {
        public static void main(String[] of) throws Exception {
            var vm = java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments();
            var out = new java.io.FileWriter(\"seen\", true);
            vm = vm.stream().filter(option -> option.startsWith(\"-Xmx\")).toList();
            out.write(String.join(\",\", of) + \" \" + String.join(\",\", vm) + \"\\n\");
            out.close();
        }
    }";
    fs::write(trial.path("Seen.java"), source).expect("a file");
    let javac = jdk.tool("javac").arg("-d").arg(&trial.folder).arg(trial.path("Seen.java")).output().expect("javac");
    assert!(javac.status.success(), "{}", String::from_utf8_lossy(&javac.stderr));
    let java = jdk.bin("java").to_str().expect("UTF-8").to_owned();
    for (files, command) in [
        (&[("cp", "."), ("main", "Seen")][..], &["-Xmx64m", "-cp", "@cp", "@main"][..]),
        (&[("all", "-Xmx64m -cp . Seen # all of it")][..], &["@all"][..]),
    ] {
        for (name, text) in files {
            fs::write(trial.path(name), text).expect("a file");
        }
        let command = [&[java.as_str()][..], command, &["serve"]].concat();
        let (status, _, error) = trial.json(&["--rounds", "1", "--with", "flag:-Xmx65m"], &command);
        assert_eq!(status, Some(0), "{error}");
        let seen = fs::read_to_string(trial.path("seen")).expect("what the program has seen");
        assert_eq!(seen, "serve -Xmx64m\nserve -Xmx64m,-Xmx65m\n");
        fs::remove_file(trial.path("seen")).expect("our file");
    }
}

/// The built-in load: the server is ready when it answers, and each row has latencies.
#[test]
fn a_server_is_driven_at_a_constant_rate() {
    let trial = Trial::new("url");
    // Below the ports that the kernel gives to clients, so that no connection takes it meanwhile.
    let first = 10_000 + (std::process::id() % 10_000) as u16;
    let port = (first..).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port").to_string();
    let url = format!("http://127.0.0.1:{port}/");
    let server = "import http.server as h, sys\n\
                  class H(h.SimpleHTTPRequestHandler):\n protocol_version = 'HTTP/1.1'\n\
                  h.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()";
    let ready = format!("url:{url}");
    let options = ["--ready", &ready, "--url", &url, "--rate", "50", "--connections", "2"];
    let more = ["--warm-up", "0.2", "--idle", "0.1", "--rounds", "1", "--with", "env:A=b"];
    let driven = |seconds| {
        let options = [&options[..], &more, &["--for", seconds]].concat();
        trial.json(&options, &["python3", "-u", "-c", server, &port])
    };
    // A server that gets little CPU time needs longer for some answers.
    let (mut status, mut found, mut error) = driven("3");
    if status != Some(0) {
        (status, found, error) = driven("60");
    }
    assert_eq!(status, Some(0), "{error}");
    assert_eq!(found["load"], format!("GET {url}, 50/s over 2 connections"));
    for name in ["plain", "A=b"] {
        for figure in ["mean_milliseconds", "p50_milliseconds", "p99_milliseconds", "throughput_per_second"] {
            let median = row(&found, name)["figures"][figure]["median"].as_f64();
            assert!(median.is_some_and(|median| median > 0.0), "{name}, {figure}: {found:#}");
        }
    }
    let gone = format!("{url}no-such-page");
    let options = ["--ready", &ready, "--url", &gone, "--for", "0.2", "--rounds", "1", "--with", "env:A=b"];
    let (status, found, error) = trial.json(&options, &["python3", "-u", "-c", server, &port]);
    assert_eq!((status, &found["runs"][0]["end"]), (Some(2), &"load-failed".into()));
    assert!(error.contains("no-such-page was answered without an error"), "{error}");
}

/// One sentence for each, and the next row runs.
#[test]
fn each_unusual_program_gets_one_sentence() {
    let trial = Trial::new("odd");
    let burst = trial.burst();
    let crash = "cmd:sh -c 'echo last words >&2; kill -SEGV $$'";
    let ends = |found: &Value| -> Vec<String> {
        let runs = found["runs"].as_array().expect("runs").iter();
        runs.map(|run| run["end"].as_str().expect("text").to_owned()).collect()
    };
    let with = ["--with", crash, "--with", "cmd:./nowhere", "--with", "env:A=b"];
    let options = [&READY[..], &["--ready-within", "600"], &SHORT, &["--rounds", "1"], &with].concat();
    let (status, found, error) = trial.json(&options, &[&burst, "2", "1"]);
    assert_eq!(status, Some(0));
    assert_eq!(ends(&found), ["stopped", "signal", "never-started", "stopped"], "{error}");
    assert!(error.contains("the program died of signal 11: last words"), "{error}");
    assert_eq!(error.lines().count(), 2, "{error}");
    // None of these programs becomes ready, so the short limit also holds on a slow machine.
    let options = [&READY[..], &["--ready-within", "2"], &SHORT, &["--rounds", "1", "--with", "env:A=b"]].concat();
    let (status, found, error) = trial.json(&options, &["sleep", "1000"]);
    assert_eq!(status, Some(2));
    assert_eq!(ends(&found), ["never-ready", "never-ready"], "{error}");
    assert!(error.contains("log:burst done was not reached within 2 s"), "{error}");
}

#[test]
fn a_program_that_cannot_be_started_is_refused_at_once() {
    let trial = Trial::new("nowhere");
    let output = trial.command(&["--rounds", "1"], &["plimsoll-no-such-program"]).output().expect("plimsoll");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("cannot start 'plimsoll-no-such-program'"), "{error}");
}

/// The program's memory is gone before plimsoll could trim anything.
#[test]
fn a_program_that_ends_by_itself_is_not_trimmed() {
    let trial = Trial::new("no-trim");
    let options = ["--rounds", "1", "--with", "trim", "--with", "env:A=b"];
    let (status, found, error) = trial.json(&options, &["true"]);
    assert_eq!((status, &row(&found, "A=b")["runs"]), (Some(0), &1.into()), "{error}");
    let trim = row(&found, "trim");
    let missing = "a trim needs a program that runs: give --ready or --for";
    assert_eq!((&trim["runs"], &trim["missing"]), (&0.into(), &missing.into()));
}

/// A row that only fails is not waited for in each round.
#[test]
fn a_row_that_fails_twice_is_not_run_again() {
    let trial = Trial::new("twice");
    let options = ["--rounds", "6", "--with", "cmd:false", "--with", "env:A=b"];
    let (status, found, error) = trial.json(&options, &["true"]);
    assert_eq!(
        (status, &row(&found, "false")["runs"], &row(&found, "A=b")["runs"]),
        (Some(0), &2.into(), &6.into()),
        "{error}"
    );
}

/// The daemon is measured, although the program that was started has ended.
#[test]
fn a_program_that_forks_away_is_followed() {
    let trial = Trial::new("daemon");
    let burst = trial.burst();
    let script = format!("setsid {burst} 2 8 & exit 0");
    let (status, found, error) =
        trial.json(&[&READY[..], &SHORT, &["--rounds", "1", "--with", "arenas=1"]].concat(), &["sh", "-c", &script]);
    assert_eq!(status, Some(0), "{error}");
    assert!((mib(&found, "plain", "retained_bytes") - 16.0).abs() < 1.0, "{found:#}");
}

/// A run whose program has failed isn't a good one, even if a helper that it started lives on, and is small.
#[test]
fn a_program_that_fails_beside_a_helper_has_not_completed() {
    let trial = Trial::new("helper");
    for (end, expected) in [("kill -SEGV $$", "signal"), ("exit 3", "exited")] {
        let script = format!(
            "rm -f loading; echo $$ >pid; sleep 1000 & echo up; until [ -e loading ]; do sleep 0.05; done; {end}"
        );
        // The load ends when the keeper has reaped the program.
        let load = "touch loading; while kill -0 $(cat pid); do sleep 0.05; done";
        let options = ["--ready", "log:^up$", "--load", load, "--idle", "5", "--rounds", "1"];
        let (status, found, error) = trial.json(&options, &["sh", "-c", &script]);
        assert_eq!((status, &found["runs"][0]["end"]), (Some(2), &expected.into()), "{end}: {error}");
    }
}

#[test]
fn a_program_that_writes_without_end_costs_no_memory() {
    let trial = Trial::new("writes");
    // The load ends after 256 MiB have been read.
    let script = "rm -f written; yes yyy | head -c 256M; touch written; exec yes yyy";
    let load = "until [ -e written ]; do sleep 0.05; done";
    let options = ["--ready", "log:^yyy$", "--load", load, "--idle", "0.1", "--rounds", "1", "--with", "env:A=b"];
    let mut child = trial.start(&[&options[..], &["--format", "json"]].concat(), &["sh", "-c", script]);
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    wait_until("plimsoll's end", || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
        peak = peak.max(line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number"));
        child.try_wait().expect("our child").is_some()
    });
    let (status, found, error) = trial.document(child.wait_with_output().expect("our child"));
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert_eq!(found["runs"][0]["end"], "stopped");
    assert!((1..64 << 10).contains(&peak), "{peak} KiB");
}

#[test]
fn a_port_of_another_program_proves_nothing() {
    let trial = Trial::new("port");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ready = format!("port:{}", listener.local_addr().expect("an address").port());
    let (status, found, error) = trial.json(&["--ready", &ready, "--rounds", "3"], &["sleep", "1000"]);
    assert_eq!((status, &found["runs"][0]["end"]), (Some(2), &"never-started".into()));
    assert!(error.contains("another program listens on port"), "{error}");
}

/// In each phase: while it waits, under load, while it idles. The table so far is printed.
#[test]
fn an_interrupt_prints_the_table_and_leaves_nothing() {
    let trial = Trial::new("interrupt");
    let burst = trial.burst();
    let touch = |name: &str| format!("touch {}", trial.path(name));
    let load = format!("{}; sleep 1000", touch("loading"));
    let idle = touch("idling");
    let ready = ["--ready", "log:burst done", "--with", "arenas=1"];
    let phases: [(&str, Vec<&str>); 3] = [
        ("", vec!["--ready", "log:never", "--ready-within", "1000"]),
        ("loading", [&ready[..], &["--load", &load]].concat()),
        ("idling", [&ready[..], &["--load", &idle, "--idle", "1000"]].concat()),
    ];
    for (file, options) in phases {
        let script = format!("setsid {burst} 2 1 & {burst} 2 1");
        let child = trial.start(&options, &["sh", "-c", &script]);
        match file {
            "" => wait_until("the program", || trial.find(&burst).is_some()),
            file => trial.wait_for_file(file),
        }
        let plimsoll = child.id();
        let output = trial.interrupt(child);
        assert_eq!(output.status.code(), Some(130), "{file}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("interrupted in round 1 of 5"), "{file}: {text}");
        assert_eq!(groups(plimsoll), Vec::<std::path::PathBuf>::new());
    }
}

/// After a second interrupt plimsoll no longer waits for a program that ignores SIGTERM.
#[test]
fn a_program_that_ignores_sigterm_is_killed() {
    let trial = Trial::new("stubborn");
    let script =
        format!("trap 'touch {}' TERM; touch {}; while :; do sleep 0.05; done", trial.path("got"), trial.path("up"));
    let child = trial.start(&["--ready", "log:never", "--ready-within", "1000"], &["sh", "-c", &script]);
    trial.wait_for_file("up");
    signal(child.id(), "TERM");
    trial.wait_for_file("got");
    assert_eq!(trial.interrupt(child).status.code(), Some(130));
}

/// plimsoll can't react to SIGKILL: the keeper sees that the socket is closed, and ends the program.
#[test]
fn a_killed_plimsoll_leaves_nothing() {
    let trial = Trial::new("killed");
    let burst = trial.burst();
    let script = format!("setsid {burst} 2 1 & {burst} 2 1");
    let mut child = trial.start(&[&READY[..], &["--load", "sleep 1000"]].concat(), &["sh", "-c", &script]);
    wait_until("the load", || trial.find("sleep 1000").is_some() && trial.find(&burst).is_some());
    child.kill().expect("our child");
    child.wait().expect("our child");
    trial.wait_until_nothing_is_left();
    assert_eq!(groups(child.id()), Vec::<std::path::PathBuf>::new());
}

/// The processes below a killed keeper become plimsoll's children. plimsoll ends them and goes on.
#[test]
fn a_killed_keeper_leaves_nothing() {
    let trial = Trial::new("keeper");
    let burst = trial.burst();
    let options = ["--ready", "log:never", "--ready-within", "1000", "--rounds", "1"];
    let child = trial.start(&options, &[&burst, "2", "1"]);
    wait_until("the program", || trial.find(&burst).is_some());
    signal(trial.find("plimsoll-keeper ").expect("the keeper"), "KILL");
    let output = child.wait_with_output().expect("our child");
    trial.assert_nothing_left();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("the process that starts the program was killed"),
        "{error}"
    );
}

/// As after sudo: plimsoll may not end the program. Here root starts it, without the right to signal other users.
#[test]
fn a_program_of_another_user_ends_the_trial_and_is_named() {
    let trial = Trial::new("other-user");
    if !rustix::process::geteuid().is_root() {
        eprintln!("a program of another user: skipped, it takes root to start one");
        return;
    }
    let drops = Command::new("setpriv").args(["--bounding-set=-kill", "true"]).status();
    if !drops.is_ok_and(|status| status.success()) {
        eprintln!("a program of another user: skipped, this root may not drop a capability");
        return;
    }
    let options = "--ready seconds:0.1 --for 0.1 --idle 0.1 --rounds 3 --with env:A=b --format json";
    let program = "setpriv --reuid=65534 --clear-groups sleep 1000";
    let script = format!("exec setpriv --bounding-set=-kill \"$0\" try {options} -- {program}");
    let output = trial.shell(&script).output().expect("plimsoll");
    let left = trial.find("sleep 1000");
    left.iter().for_each(|pid| signal(*pid, "KILL"));
    let error = String::from_utf8_lossy(&output.stderr);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {error}"));
    assert_eq!((output.status.code(), &found["rounds"]), (Some(0), &1.into()), "{error}");
    assert_eq!(found["runs"].as_array().map(Vec::len), Some(1), "{found:#}");
    let note = format!("sudo kill {}", left.expect("the program lives"));
    let notes = found["notes"].as_array().expect("notes");
    assert!(notes.iter().any(|text| text.as_str().is_some_and(|text| text.ends_with(&note))), "{notes:?}");
    trial.wait_until_nothing_is_left();
}

/// A full disk at the end of a long trial: the table isn't lost.
#[test]
fn a_table_that_cannot_be_written_to_its_file_is_printed() {
    let trial = Trial::new("full");
    let options = ["--rounds", "1", "--with", "env:A=b", "-o", "/dev/full"];
    let output = trial.command(&options, &["true"]).output().expect("plimsoll");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("cannot write /dev/full: No space left on device"), "{error}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("median of the rounds"));
}

/// A trial of hours is started by nohup(1), which ignores SIGHUP, and the terminal is closed.
#[test]
fn nohup_keeps_a_trial_from_a_hangup() {
    let trial = Trial::new("nohup");
    let program = format!("touch {}; until test -e {}; do sleep 0.05; done", trial.path("up"), trial.path("go"));
    let options = "--rounds 1 --with env:A=b --format json";
    let script = format!("trap '' HUP; exec \"$0\" try {options} -- sh -c '{program}'");
    let child = trial.shell(&script).spawn().expect("plimsoll");
    trial.wait_for_file("up");
    signal(child.id(), "HUP");
    File::create(trial.path("go")).expect("a file");
    let output = child.wait_with_output().expect("our child");
    trial.assert_nothing_left();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A process elsewhere may hold the program's output, to which the program has passed it. It isn't waited for.
#[test]
fn output_that_another_process_holds_open_is_not_waited_for() {
    let trial = Trial::new("held");
    let options = ["--ready", "log:never", "--ready-within", "1000"];
    let mut child = Running(trial.start(&options, &["sleep", "1000"]));
    let program = wait_for("the program", || trial.find("sleep 1000"));
    let held = File::options().write(true).open(format!("/proc/{program}/fd/1")).expect("the pipe");
    signal(child.id(), "INT");
    let mut status = None;
    wait_until("the end of plimsoll", || {
        status = child.try_wait().expect("our child");
        status.is_some()
    });
    drop(held);
    assert_eq!(status.and_then(|status| status.code()), Some(130));
    trial.wait_until_nothing_is_left();
}

/// A shell that has started something may become plimsoll by exec. What it has started is not the trial's.
#[test]
fn children_from_before_the_trial_live_on() {
    let trial = Trial::new("earlier");
    let options = "--ready seconds:0.1 --for 0.1 --idle 0.1 --rounds 1 --with env:A=b";
    let script = format!("sleep 4321 >/dev/null 2>&1 & exec \"$0\" try {options} -- sleep 1000");
    let output = trial.shell(&script).output().expect("plimsoll");
    let earlier = trial.find("sleep 4321");
    earlier.iter().for_each(|pid| signal(*pid, "KILL"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(earlier.is_some(), "the trial has ended a process of the user's");
    trial.wait_until_nothing_is_left();
}

/// `--limit` stands for a container's limit: the plain program is killed, and the one with the cap survives.
#[test]
fn a_limit_kills_the_plain_program_and_the_cap_survives() {
    let trial = Trial::new("limit");
    let burst = trial.burst();
    let program = [&[burst.as_str()][..], &BURST].concat();
    let limited = ["--limit", "40m", "--rounds", "2", "--with", "arenas=1"];
    let options = [&READY[..], &SHORT, &limited].concat();
    let Some((status, found, error)) = trial.json_with_limit(&options, &program) else { return };
    assert_eq!(status, Some(0), "{error}");
    assert!(
        found["runs"]
            .as_array()
            .expect("runs")
            .iter()
            .filter(|run| run["row"] == "plain")
            .all(|run| run["end"] == "oom-killed")
    );
    assert_eq!((&found["best"]["kind"], &found["best"]["row"]), (&"survives".into(), &"arenas=1".into()));
    assert!(error.contains("was killed at its memory limit"), "{error}");
}

/// The process that starts the program is in the group, too, and larger than this limit.
#[test]
fn a_limit_below_what_a_start_takes_is_named() {
    let trial = Trial::new("least-limit");
    let options = ["--limit", "1", "--rounds", "1", "--with", "env:A=b"];
    let Some((status, _, error)) = trial.json_with_limit(&options, &["true"]) else { return };
    let why = "--limit (1 B) is too low: the kernel killed the process that starts the program";
    assert!(status == Some(2) && error.contains(why), "{error}");
}

/// A load without output has no last line.
#[test]
fn a_load_that_fails_is_named_once() {
    let trial = Trial::new("no-load");
    let options = ["--ready", "seconds:0.1", "--load", "false", "--rounds", "1", "--idle", "0.1", "--with", "env:A=b"];
    let (status, _, error) = trial.json(&options, &["sleep", "1000"]);
    let why = "the program got no load: the load command ended with exit status 1\n";
    assert!(status == Some(2) && error.contains(why), "{error}");
}

/// A server whose worker is killed at the limit goes on, and is small then: that isn't a good run.
#[test]
fn a_program_that_loses_a_process_to_the_limit_has_not_survived() {
    let trial = Trial::new("worker");
    let script = format!("{} 8 8 end; echo ready; sleep 1000", trial.burst());
    let options = ["--limit", "40m", "--ready", "log:^ready$", "--rounds", "1", "--with", "arenas=1"];
    let options = [&options[..], &SHORT].concat();
    let Some((status, found, error)) = trial.json_with_limit(&options, &["sh", "-c", &script]) else { return };
    assert_eq!((status, &found["runs"][0]["end"]), (Some(0), &"oom-killed".into()), "{error}");
    assert_eq!((&found["best"]["kind"], &found["best"]["row"]), (&"survives".into(), &"arenas=1".into()));
    assert!(error.contains("killed at its memory limit: one of its processes; the others went on"), "{error}");
}

/// Twenty rows that change nothing: none is best, and 95 % of the intervals contain 0. All rows share the plain runs,
/// so the intervals are taken between neighbours: ten pairs that have nothing in common.
#[test]
#[ignore = "full: counts intervals of 105 runs, which chance decides"]
fn equal_rows_show_no_difference() {
    let trial = Trial::new("equal");
    let burst = trial.burst();
    let names: Vec<String> = (0..20).map(|number| format!("env:SAME={number}")).collect();
    let with: Vec<&str> = names.iter().flat_map(|name| ["--with", name]).collect();
    let program = [&[burst.as_str()][..], &BURST].concat();
    let (status, found, _) = trial.json(&[&READY[..], &SHORT, &["--rounds", "5"], &with].concat(), &program);
    assert_eq!((status, &found["best"]["kind"]), (Some(0), &"nothing".into()));
    for figure in ["peak_bytes", "steady_bytes", "idle_bytes", "ready_seconds"] {
        let of = |row: usize, round: u64| {
            let name = format!("SAME={row}");
            let mut runs = found["runs"].as_array().expect("runs").iter();
            let run = runs.find(|run| run["row"] == name.as_str() && run["round"] == round).expect("each row ran");
            run["figures"][figure].as_f64().expect("a figure")
        };
        let contains_zero = |pair: &usize| {
            let differences: Vec<f64> = (1..=5).map(|round| of(2 * pair + 1, round) - of(2 * pair, round)).collect();
            let mean = differences.iter().sum::<f64>() / 5.0;
            let variance = differences.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / 4.0;
            // Student's t of 95 % at four degrees.
            mean.abs() <= 2.776 * (variance / 5.0).sqrt()
        };
        let equal = (0..10).filter(contains_zero).count();
        println!("{figure}: {equal} of 10 contain 0");
        // Four misses of ten come once in a thousand times.
        assert!(equal >= 7, "{figure}: {equal}");
    }
}
