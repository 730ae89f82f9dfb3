//! `plimsoll run` behaves as its program: output, exit status, signals, stops, PID, descriptors, dispositions.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "subjects/stage.rs"]
mod stage;

use child::wait_for;
use stage::Scratch;

/// The folder of one test.
struct Workspace(Scratch);

impl Workspace {
    fn new(name: &str) -> Workspace {
        Workspace(Scratch::new(&format!("run-{name}")))
    }
    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
    fn static_program(&self, name: &str, source: &str) -> PathBuf {
        let (source, program) = (self.file(&format!("{name}.c"), source), self.0.path().join(name));
        assert!(Command::new("cc").args(["-static", "-o"]).args([&program, &source]).status().unwrap().success());
        program
    }
    fn plimsoll(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .env("PLIMSOLL_DIR", self.0.path().join("segments"));
        command
    }
    /// A launcher that gets `plimsoll run …` as its last arguments.
    fn started_by(&self, launcher: &str, first: &[&str], options: &[&str], command: &[&str]) -> Command {
        let run = self.plimsoll(&[&["run"], options, &["--"], command].concat());
        let mut started = Command::new(launcher);
        started.args(first).arg(run.get_program()).args(run.get_args());
        started.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
        started
    }
    fn sh(&self, options: &[&str], script: &str) -> Output {
        let mut all = vec!["run"];
        all.extend(options);
        all.extend(["--", "sh", "-c", script]);
        self.plimsoll(&all).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Both ways of running: the program replaces this process, or is its child.
const LAUNCHES: [&[&str]; 2] = [&[], &["--report", "summary"]];

#[test]
fn exit_status_and_output_are_the_programs() {
    let workspace = Workspace::new("status");
    for launch in LAUNCHES {
        let out = workspace.sh(launch, "cat; echo out; echo err >&2; exit 37");
        assert_eq!(out.status.code(), Some(37));
        assert_eq!(text(&out.stdout), "out\n");
        assert!(text(&out.stderr).starts_with("err\n"), "{}", text(&out.stderr));
        assert_eq!(launch.is_empty(), text(&out.stderr) == "err\n", "the report, and only it, comes after");
    }
    let mut child = workspace
        .plimsoll(&["run", "--report", "summary", "--report-to", "/dev/null", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\0and through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through\0and through");
}

#[test]
fn death_by_signal_is_death_by_that_signal() {
    let workspace = Workspace::new("death");
    for launch in LAUNCHES {
        for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("USR1", 10)] {
            let out = workspace.sh(launch, &format!("kill -{name} $$"));
            assert_eq!(out.status.signal(), Some(number), "{launch:?} {name}");
        }
    }
}

#[test]
fn without_a_report_the_program_has_our_pid() {
    let workspace = Workspace::new("pid");
    let child = workspace.plimsoll(&["run", "--", "sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout).trim(), pid.to_string());
}

#[test]
fn signals_go_on_and_stops_are_mirrored() {
    let workspace = Workspace::new("signals");
    let ready = workspace.0.path().join("ready");
    let script = format!(
        "trap 'echo got; exit 5' USR1; echo $$ > {0}.tmp; mv {0}.tmp {0}; while :; do sleep 0.05; done",
        ready.display()
    );
    let child = workspace
        .plimsoll(&["run", "--report", "summary", "--report-to", "/dev/null", "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let inner = wait_for("the script", || std::fs::read_to_string(&ready).ok());
    let state = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    };
    let signal = |name: &str, pid: &str| assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
    let (ours, inner) = (child.id().to_string(), inner.trim().to_string());
    signal("-STOP", &inner);
    wait_for("our stop after the program's", || (state(&ours)? == 'T').then_some(()));
    signal("-CONT", &ours);
    wait_for("the program's going on after ours", || (state(&inner)? != 'T').then_some(()));
    signal("-USR1", &ours);
    let out = child.wait_with_output().unwrap();
    assert_eq!((text(&out.stdout).as_str(), out.status.code()), ("got\n", Some(5)));
}

/// exec keeps timers: `alarm 10; exec plimsoll run … -- server` sets the alarm for the server.
#[test]
fn a_timer_goes_on_to_the_program() {
    let workspace = Workspace::new("timers");
    let program = "import signal\nfor which in range(3):\n    print(int(signal.getitimer(which)[0] > 3000))\n";
    let launcher = "import os, signal, sys\nfor which in (0, 2):\n    signal.setitimer(which, 100000)\n\
                    os.execv(sys.argv[1], sys.argv[1:])\n";
    for launch in LAUNCHES {
        let out =
            workspace.started_by("python3", &["-c", launcher], launch, &["python3", "-c", program]).output().unwrap();
        assert_eq!(text(&out.stdout), "1\n0\n1\n", "{launch:?}: {}", text(&out.stderr));
    }
}

#[test]
fn killing_us_kills_the_program() {
    let workspace = Workspace::new("parent-death");
    let ready = workspace.0.path().join("ready");
    let script = format!("echo $$ > {0}.tmp; mv {0}.tmp {0}; while :; do sleep 0.2; done", ready.display());
    let mut child = workspace
        .plimsoll(&["run", "--report", "summary", "--report-to", "/dev/null", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let inner = wait_for("the script", || std::fs::read_to_string(&ready).ok());
    child.kill().unwrap();
    child.wait().unwrap();
    // The process that inherits the program may not reap it, so a zombie has ended, too.
    wait_for("the program's end", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", inner.trim())).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])).then_some(())
    });
}

#[test]
fn dispositions_mask_and_preload_are_as_we_found_them() {
    let workspace = Workspace::new("dispositions");
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    for ignored in ["", "trap '' PIPE; ", "trap '' CHLD HUP; "] {
        let plain = Command::new("sh").args(["-c", &format!("{ignored}exec sh -c \"{script}\"")]).output().unwrap();
        for launch in ["", "--report summary --report-to /dev/null"] {
            let run =
                format!("{ignored}exec \"{}\" run {launch} -- sh -c \"{script}\"", env!("CARGO_BIN_EXE_plimsoll"));
            let out = Command::new("sh")
                .args(["-c", &run])
                .env("XDG_CACHE_HOME", workspace.0.path())
                .env("PLIMSOLL_DIR", workspace.0.path().join("s"))
                .output()
                .unwrap();
            assert_eq!(text(&out.stdout), text(&plain.stdout), "{ignored} {launch}: {}", text(&out.stderr));
        }
    }
    // The tracker first, the user's own library after it.
    let out = workspace
        .plimsoll(&["run", "--follow", "--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", "libm.so.6")
        .output()
        .unwrap();
    let preload = text(&out.stdout);
    assert!(preload.contains("libplimsoll-") && preload.trim().ends_with(".so:libm.so.6"), "{preload}");
}

#[test]
fn the_report_is_of_this_run_and_goes_where_it_is_sent() {
    let workspace = Workspace::new("report");
    let to = workspace.0.path().join("report.txt");
    let out =
        workspace.sh(&["--report", "detail", "--style", "hotspot", "--report-to", to.to_str().unwrap()], "echo x; :");
    assert_eq!((text(&out.stdout).as_str(), text(&out.stderr).as_str()), ("x\n", ""));
    let report = std::fs::read_to_string(&to).unwrap();
    assert!(report.contains("Native Memory Tracking:") && report.contains("Details:"), "{report}");
    let out = workspace.sh(&["--report", "summary", "--style", "native-image", "--report-to", "stdout"], ":");
    assert!(text(&out.stdout).starts_with("Native memory tracking\n\nTotal\n    (reserved="), "{}", text(&out.stdout));
}

#[test]
fn what_cannot_be_started_or_tracked_is_reported_in_one_line() {
    let workspace = Workspace::new("refused");
    let one_line = |out: &Output| {
        let stderr = text(&out.stderr);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        stderr
    };
    let out = workspace.plimsoll(&["run", "--", "/nowhere/at-all"]).output().unwrap();
    assert_eq!(out.status.code(), Some(127));
    assert!(one_line(&out).contains("/nowhere/at-all"));
    let plain = workspace.file("plain", "not a program");
    let out = workspace.plimsoll(&["run", "--", plain.to_str().unwrap()]).output().unwrap();
    assert_eq!(out.status.code(), Some(126));
    one_line(&out);

    let program =
        workspace.static_program("static", "#include <stdio.h>\nint main(void) { puts(\"runs\"); return 3; }\n");
    for launch in LAUNCHES {
        let all = [&["run"], launch, &["--", program.to_str().unwrap()]].concat();
        let out = workspace.plimsoll(&all).output().unwrap();
        assert_eq!((text(&out.stdout).as_str(), out.status.code()), ("runs\n", Some(3)));
        assert!(one_line(&out).contains("static executable"));
    }
    let java = workspace.file("java", "#!/bin/sh\n");
    for (arguments, names) in [
        (&["run", "--sites", "many", "--", "true"][..], "--sites"),
        (&["run", "--nonsense", "--", "true"], "--nonsense"),
        (&["run"], "CMD"),
        (&["report", "--by", "colour", "1"], "--by"),
        (&["report", "/nowhere.seg"], "/nowhere.seg"),
        (&["report", plain.to_str().unwrap()], "plain"),
        (&["run", "--rules", "/nowhere.rules", "--", "true"], "/nowhere.rules"),
        (&["run", "--report", "summary", "--report-to", "/nowhere/r", "--", "true"], "--report-to"),
        (&["run", "--retain", "x", "--", "true"], "--retain"),
        (&["run", "--signal", "FOO", "--", "true"], "--signal"),
        (&["run", "--signal", "KILL", "--", "true"], "--signal"),
        (&["run", "--signal", "9", "--", "true"], "--signal"),
        (&["run", "--signal", "RTMIN+31", "--", "true"], "--signal"),
        (&["run", "--signal", "USR2", "--summary", "/nowhere/s", "--", "true"], "/nowhere"),
        (&["run", "--signal", "USR2", "--", java.to_str().unwrap()], "use --signal RTMIN+3"),
        (&["run", "--report-to", "stdout", "--", "true"], "--report"),
        (&["run", "--style", "hotspot", "--", "true"], "--report"),
        (&["diff", "1"], "AFTER"),
    ] {
        let out = workspace.plimsoll(arguments).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments:?}");
        assert!(one_line(&out).contains(names), "{arguments:?}: {}", text(&out.stderr));
        assert_eq!(text(&out.stdout), "");
    }
}

#[test]
fn a_changed_library_in_the_cache_is_not_used() {
    let workspace = Workspace::new("cache");
    assert!(workspace.sh(&[], ":").status.success());
    let cache = workspace.0.path().join("cache/plimsoll");
    let library = std::fs::read_dir(&cache)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "so"))
        .unwrap();
    let good = std::fs::read(&library).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    std::fs::remove_file(&library).unwrap();
    std::fs::write(&library, &bad).unwrap();
    assert!(workspace.sh(&[], ":").status.success());
    assert!(std::fs::read(&library).unwrap() == good, "the file is made anew");
    // A link in place of the directory is not followed: the next candidate is used.
    let elsewhere = workspace.0.path().join("elsewhere");
    std::fs::rename(&cache, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &cache).unwrap();
    let home = workspace.0.path().join("home");
    let mut command = workspace.plimsoll(&["run", "--follow", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let out = command.env("HOME", &home).output().unwrap();
    assert!(text(&out.stdout).starts_with(home.to_str().unwrap()), "{}", text(&out.stdout));
}

/// Live, after kill -9, saved and compared: one process through all verbs.
#[test]
fn report_and_diff_agree_on_a_process_live_dead_and_saved() {
    let workspace = Workspace::new("verbs");
    let source = workspace.file(
        "leak.c",
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
         int main(void) { char c; setvbuf(stdout, 0, _IONBF, 0);\n\
         for (int i = 0; i < 1009; i++) if (!malloc(7919)) return 1;\n\
         puts(\"one\"); read(0, &c, 1);\n\
         for (int i = 0; i < 211; i++) if (!malloc(104729)) return 1;\n\
         puts(\"two\"); read(0, &c, 1); return 0; }\n",
    );
    let program = workspace.0.path().join("leak");
    assert!(Command::new("cc").args(["-O0", "-o"]).arg(&program).arg(&source).status().unwrap().success());
    let mut child = workspace
        .plimsoll(&["run", "--", program.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut expect_line = |word: &str| {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        assert_eq!(line.trim(), word);
    };
    let report = |arguments: &[&str]| {
        let out = workspace.plimsoll(arguments).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let json = |target: &str| -> serde_json::Value {
        serde_json::from_str(&report(&["report", target, "--format", "json"])).unwrap()
    };
    let requested = |report: &serde_json::Value| {
        report["categories"].as_array().unwrap().iter().find(|c| c["name"] == "leak").unwrap()["requested_bytes"]
            .as_u64()
            .unwrap()
    };
    expect_line("one");
    let before = workspace.0.path().join("before.json");
    report(&["report", &pid, "--format", "json", "-o", before.to_str().unwrap()]);
    assert_eq!(json(&pid)["state"], "live");
    assert_eq!(requested(&json(&pid)), 1009 * 7919);
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    expect_line("two");
    assert_eq!(requested(&json(&pid)), 1009 * 7919 + 211 * 104_729);
    child.kill().unwrap();
    child.wait().unwrap();
    let dead = json(&pid);
    // `run` became the program by exec, so no process of plimsoll saw the end.
    let end = &dead["end"];
    assert_eq!(
        (&dead["state"], &end["orderly"], &end["time_is_exact"]),
        (&"dead".into(), &false.into(), &false.into())
    );
    assert_eq!(requested(&dead), 1009 * 7919 + 211 * 104_729, "all is still there after SIGKILL");
    for figure in
        ["live_bytes", "live_count", "requested_bytes", "cumulative_bytes", "reserved_bytes", "committed_bytes"]
    {
        let sum: u64 = dead["categories"].as_array().unwrap().iter().map(|c| c[figure].as_u64().unwrap()).sum();
        assert_eq!(sum, dead["total"][figure].as_u64().unwrap(), "Σ categories = total: {figure}");
    }
    let diff: serde_json::Value =
        serde_json::from_str(&report(&["diff", before.to_str().unwrap(), &pid, "--format", "json"])).unwrap();
    let grown = diff["categories"].as_array().unwrap().iter().find(|c| c["name"] == "leak").unwrap();
    assert_eq!(grown["requested_bytes_change"], 211 * 104_729);
    let by_caller = report(&["diff", before.to_str().unwrap(), &pid, "--by", "caller", "--format", "json"]);
    let by_caller: serde_json::Value = serde_json::from_str(&by_caller).unwrap();
    let grown = by_caller["callers"].as_array().unwrap().iter().find(|c| c["requested_bytes_change"] == 211 * 104_729);
    let frames = grown.expect("the caller that grew")["frames"].as_array().unwrap();
    assert!(frames.iter().any(|frame| frame["function"] == "main"), "{frames:?}");
    assert!(report(&["report", &pid, "--by", "caller"]).contains("main+0x"), "callers have names");
    assert!(
        report(&["report", workspace.0.path().join("segments").to_str().unwrap()]).contains("leak"),
        "a directory's newest"
    );
    assert!(report(&["diff", before.to_str().unwrap(), &pid, "--style", "hotspot"]).contains("+"));
}

/// An exec keeps PID and start time, yet the segment's program is gone.
#[test]
fn a_process_that_has_become_another_is_not_live() {
    let workspace = Workspace::new("exec");
    let ready = workspace.0.path().join("ready");
    let program = workspace.static_program(
        "waits",
        "#include <fcntl.h>\n#include <unistd.h>\nint main(int n, char **path) { creat(path[1], 0600); for (;;) pause(); }\n",
    );
    let script = format!("exec {} {}", program.display(), ready.display());
    // Its user chose the directory: no part of the name may run in a shell that the answer is pasted into.
    let chosen = workspace.0.path().join("a;id>o;").display().to_string();
    let mut child = workspace.plimsoll(&["run", "--dir", &chosen, "--", "sh", "-c", &script]).spawn().unwrap();
    wait_for("the second program", || ready.exists().then_some(()));
    let out = workspace.plimsoll(&["report", &child.id().to_string()]).output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(
        text(&out.stderr).contains(&format!(
            "is not tracked. An earlier process with that PID left a segment: plimsoll report '{chosen}/{}-",
            child.id()
        )),
        "{}",
        text(&out.stderr)
    );
}

/// The tracker knows every name that `run` accepts: the program then catches the signal of that number.
#[test]
fn the_tracker_catches_each_signal_that_run_accepts() {
    let workspace = Workspace::new("signals");
    let numbers = [("HUP", 1), ("USR1", 10), ("SIGUSR2", 12), ("URG", 23), ("VTALRM", 26), ("PROF", 27), ("WINCH", 28)];
    let more = [("IO", 29), ("PWR", 30), ("12", 12), ("RTMIN", 34), ("RTMIN+3", 37), ("SIGRTMIN+30", 64), ("64", 64)];
    for (name, number) in numbers.into_iter().chain(more) {
        let out = workspace
            .plimsoll(&["run", "--signal", name, "--", "grep", "SigCgt", "/proc/self/status"])
            .output()
            .unwrap();
        let caught = u64::from_str_radix(text(&out.stdout).rsplit('\t').next().unwrap().trim(), 16).unwrap();
        assert_eq!(caught >> (number - 1) & 1, 1, "{name}: {caught:x} {}", text(&out.stderr));
    }
}

/// Root may name /tmp, which must not be closed to other users. A volume or a fresh directory is closed, as it is meant
/// for segments.
#[test]
fn an_open_directory_is_closed_only_if_it_is_for_segments() {
    use std::os::unix::fs::PermissionsExt;
    let workspace = Workspace::new("open");
    let open = workspace.0.path().join("common");
    std::fs::create_dir(&open).unwrap();
    for (mode, tenant, taken) in [
        (0o1777, "", false),
        (0o755, "passwd", false),
        (0o710, "home", false),
        (0o755, "", true),
        (0o777, "lost+found", true),
        (0o755, "7-8.seg", true),
    ] {
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        let _ = (!tenant.is_empty()).then(|| std::fs::write(open.join(tenant), "").unwrap());
        let out = workspace.plimsoll(&["run", "--dir", open.to_str().unwrap(), "--", "true"]).output().unwrap();
        let left = std::fs::metadata(&open).unwrap().permissions().mode() & 0o7777;
        assert_eq!((out.status.success(), left), (taken, if taken { 0o700 } else { mode }), "{mode:o} {tenant}");
        assert_eq!(text(&out.stderr).contains("open to other users"), !taken, "{}", text(&out.stderr));
        let _ = (!tenant.is_empty()).then(|| std::fs::remove_file(open.join(tenant)));
    }
}

/// Exit status, signal and exec, in the report of `run` and in later ones of the segment.
#[test]
fn how_it_ended_stands_in_the_first_line() {
    let workspace = Workspace::new("ended");
    let by_start = |workspace: &Workspace| {
        let mut files: Vec<PathBuf> = std::fs::read_dir(workspace.0.path().join("segments"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        // PID-STARTTIME.seg; an exec keeps the process's start, and the segment has its own.
        let start = |path: &PathBuf| -> u64 {
            path.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap().1.parse().unwrap()
        };
        files.sort_by_key(start);
        files
    };
    let report_of = |workspace: &Workspace, segment: &PathBuf, format: &str| {
        let output = workspace.plimsoll(&["report", segment.to_str().unwrap(), "--format", format]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let report =
        |workspace: &Workspace, format: &str| report_of(workspace, by_start(workspace).last().unwrap(), format);
    for (script, words, how, code, signal) in [
        ("exit 7", "exited with status 7", "exited", Some(7), None),
        ("kill -SEGV $$", "killed by signal 11 (SIGSEGV)", "signal", None, Some(11)),
    ] {
        let ran = workspace.sh(&["--report", "summary", "--report-to", "stdout"], script);
        for printed in [text(&ran.stdout), report(&workspace, "text")] {
            assert!(printed.lines().next().unwrap().contains(words), "{script}: {printed}");
        }
        let json: serde_json::Value = serde_json::from_str(&report(&workspace, "json")).unwrap();
        let end = &json["end"];
        assert_eq!((end["how"].as_str(), end["code"].as_u64(), end["signal"].as_u64()), (Some(how), code, signal));
        assert_eq!(json["ended"], *end, "its first name stays");
    }
    // The shell waits for a line after its last entry in the segment, and is killed then: its parent knows when.
    let mut child = workspace
        .plimsoll(&["run", "--report", "summary", "--report-to", "stdout", "--", "sh", "-c"])
        .arg("echo up; read line; kill -KILL $$")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let live: serde_json::Value = serde_json::from_str(&report(&workspace, "json")).unwrap();
    assert_eq!((line.as_str(), &live["state"]), ("up\n", &"live".into()));
    writeln!(child.stdin.take().unwrap()).unwrap();
    let printed = std::io::read_to_string(output).unwrap();
    child.wait().unwrap();
    assert!(printed.contains("ran ") && !printed.contains("ran at least"), "{printed}");
    let json: serde_json::Value = serde_json::from_str(&report(&workspace, "json")).unwrap();
    let end = &json["end"];
    assert_eq!((end["how"].as_str(), end["time_is_exact"].as_bool()), (Some("signal"), Some(true)));
    assert!(end["time"].as_str() > live["time"].as_str(), "{end} {live:#}");
    // The first program is not waited for; another program goes on in its process.
    let mut child = workspace
        .plimsoll(&["run", "--", "sh", "-c", "echo up; exec sleep 60"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
    let comm = format!("/proc/{}/comm", child.id());
    wait_for("the exec", || std::fs::read_to_string(&comm).ok().filter(|name| name == "sleep\n"));
    let own = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{}-", child.id()));
    let both = wait_for("the segment of sleep", || {
        Some(by_start(&workspace).into_iter().filter(own).collect::<Vec<_>>()).filter(|found| found.len() == 2)
    });
    let printed = report_of(&workspace, &both[0], "text");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(printed.starts_with("sh -c") && printed.lines().next().unwrap().contains("replaced by exec"), "{printed}");
}

/// The program calls `prctl(PR_SET_NAME)`, as Perl's `$0 = …` does: no other program has replaced it.
#[test]
fn a_program_that_renamed_itself_has_its_own_ending() {
    let workspace = Workspace::new("renamed");
    let renamed = r#"#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
int main(void) { prctl(PR_SET_NAME, "worker"); return !malloc(5000) || raise(SIGKILL); }
"#;
    let (source, program) = (workspace.file("renamed.c", renamed), workspace.0.path().join("a-service"));
    assert!(Command::new("cc").args(["-fno-builtin", "-o"]).args([&program, &source]).status().unwrap().success());
    let ran = workspace
        .plimsoll(&["run", "--report", "summary", "--report-to", "stdout", "--", program.to_str().unwrap()])
        .output()
        .unwrap();
    let (printed, stderr) = (text(&ran.stdout), text(&ran.stderr));
    assert!(printed.lines().next().unwrap().contains("killed by signal 9"), "{printed}");
    assert!(stderr.contains("a-service' was called 'worker' when it ended: it had renamed itself"), "{stderr}");
    assert!(!stderr.contains("--follow"), "{stderr}");
}

/// A script that starts a tool and ends in `exec`: with and without `--follow`, the report describes the program that
/// replaced the script.
#[test]
fn the_report_is_of_the_last_program_under_the_pid() {
    let workspace = Workspace::new("family");
    let text_of_it = workspace.file("text", "#!/bin/sh\n/bin/ls / >/dev/null\nexec /usr/bin/sort /dev/null\n");
    let script = text_of_it.with_file_name("start.sh");
    // Another process writes the file: a child that a concurrent test forks holds our open files until its exec, and a
    // file that is open for writing cannot be executed (ETXTBSY).
    assert!(Command::new("install").args(["-m", "755"]).args([&text_of_it, &script]).status().unwrap().success());
    let script = script.to_str().unwrap();
    let ran =
        workspace.plimsoll(&["run", "--report", "summary", "--report-to", "stdout", "--", script]).output().unwrap();
    let (printed, stderr) = (text(&ran.stdout), text(&ran.stderr));
    let head = printed.lines().next().unwrap();
    assert!(head.starts_with("/usr/bin/sort /dev/null") && head.contains("exited with status 0"), "{printed}");
    assert!(stderr.is_empty() && !printed.contains("processes of this run"), "{stderr}{printed}");

    let program = workspace.static_program("a-static-one", "int main(void) { return 3; }\n");
    let ran = workspace.sh(&["--report", "summary", "--report-to", "stdout"], &format!("exec {}", program.display()));
    let (printed, stderr) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.code() == Some(3) && printed.lines().next().unwrap().contains("replaced by exec"), "{printed}");
    assert!(
        stderr.contains("replaced by 'a-static-one', which was not tracked") && stderr.contains("--follow"),
        "{stderr}"
    );

    let options = ["run", "--follow", "--report", "summary", "--report-to", "stdout", "--", script];
    let ran = workspace.plimsoll(&options).output().unwrap();
    let (printed, stderr) = (text(&ran.stdout), text(&ran.stderr));
    let head = printed.lines().next().unwrap();
    assert!(head.starts_with("/usr/bin/sort /dev/null") && head.contains("exited with status 0"), "{printed}");
    assert!(!stderr.contains("not tracked"), "{stderr}");
    let table: Vec<&str> = printed.lines().skip_while(|line| !line.contains("processes of this run")).skip(1).collect();
    let row = |words: &str| *table.iter().find(|row| row.contains(words)).expect(words);
    assert!(row("start.sh").contains("replaced by exec"), "{printed}");
    assert!(row("/bin/ls /").contains("exited"), "{printed}");
    assert!(row("sum").contains("2 processes"), "{printed}");
    // One PID for the script and the program that replaced it, another for the tool.
    let pid = |words: &str| row(words).split_whitespace().next().unwrap().to_owned();
    assert!(pid("start.sh") == pid("sort") && pid("/bin/ls") != pid("sort"), "{printed}");
}

/// A tracker that starts deletes the oldest segments beyond `--retain`: then the table of processes lacks rows.
#[test]
fn the_table_of_processes_tells_that_segments_may_be_missing() {
    let workspace = Workspace::new("family-pruned");
    let script = "for i in 1 2 3 4 5 6; do /bin/echo $i >/dev/null; done; exit 0";
    let sum_with = |retain: &str, books: &str| {
        let books = workspace.file(books, "").with_extension("d");
        let books = books.to_str().unwrap();
        let options = ["run", "--follow", "--retain", retain, "--dir", books, "--report", "summary"];
        let rest = ["--report-to", "stdout", "--", "/bin/sh", "-c", script];
        let ran = workspace.plimsoll(&[&options[..], &rest].concat()).output().unwrap();
        text(&ran.stdout).lines().last().unwrap().to_owned()
    };
    let all = sum_with("100", "all");
    assert!(all.contains(" 7 processes") && !all.contains("missing"), "{all}");
    let few = sum_with("2", "few");
    assert!(few.contains("; more may be missing: only 2 segments of ended processes were kept (--retain)"), "{few}");
}

/// A daemon's master process often forks its workers without having allocated: they begin with the books of its parent.
#[test]
fn a_child_of_a_fork_child_that_has_not_allocated_keeps_the_names_of_its_books() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static char *volatile kept[2];
int main(void) {
  kept[0] = strdup("of libc");
  kept[1] = malloc(1 << 20);
  if (fork() != 0) return wait(NULL) < 0;
  if (fork() != 0) {
    wait(NULL);
    _exit(0);
  }
  kept[1] = malloc(1 << 20);
  char number[16];
  int length = snprintf(number, sizeof number, "%d", (int)getpid());
  _exit(write(1, number, length) != length);
}
"#;
    let workspace = Workspace::new("silent-parent");
    let source = workspace.file("silent.c", SOURCE);
    let program = source.with_extension("");
    assert!(Command::new("cc").args(["-fno-builtin", "-o"]).args([&program, &source]).status().unwrap().success());
    let program = program.to_str().unwrap();
    let ran = workspace.plimsoll(&["run", "--", program]).output().unwrap();
    let pid = text(&ran.stdout);
    let report = workspace.plimsoll(&["report", &pid, "--by", "module"]).output().unwrap();
    let printed = text(&report.stdout);
    let row = |module: &str| printed.lines().find(|line| line.ends_with(module)).unwrap_or_else(|| panic!("{printed}"));
    assert!(row(program).trim_start().starts_with("2.01 MiB"), "{printed}");
    assert!(row("/libc.so.6").contains(" B "), "{printed}");
    assert!(!printed.contains("(no module"), "{printed}");
}

/// The child has no segment until it allocates. `attach` makes one, and `explain` proposes the attach.
#[test]
fn a_fork_child_without_books_is_not_called_untracked() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static char *volatile kept;
int main(void) {
  for (int i = 0; i < 640; i++) kept = memset(malloc(100000), 1, 100000);
  if (fork() != 0) return wait(NULL) < 0;
  char number[16];
  int length = snprintf(number, sizeof number, "%d\n", (int)getpid());
  _exit(write(1, number, length) != length || read(0, number, 1) != 0);
}
"#;
    let workspace = Workspace::new("no-books-yet");
    let source = workspace.file("waits.c", SOURCE);
    let program = source.with_extension("");
    assert!(Command::new("cc").args(["-fno-builtin", "-o"]).args([&program, &source]).status().unwrap().success());
    let mut run = workspace.plimsoll(&["run", "--", program.to_str().unwrap()]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let pid = pid.trim_end();
    let report = workspace.plimsoll(&["report", pid]).output().unwrap();
    let explain = workspace.plimsoll(&["explain", pid]).output().unwrap();
    let attach = workspace.plimsoll(&["attach", pid]).output().unwrap();
    let books = workspace.plimsoll(&["report", pid]).output().unwrap();
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    let expected = format!("To make them now: plimsoll attach {pid}");
    let printed = text(&report.stderr);
    assert!(printed.contains("no books yet") && printed.trim_end().ends_with(&expected), "{printed}");
    let printed = text(&explain.stdout);
    let mut reports = printed.lines().filter(|line| line.contains(&format!("report {pid} --by site"))).peekable();
    assert!(reports.peek().is_some(), "{printed}");
    assert!(reports.all(|line| line.contains(&format!("attach {pid} && "))), "{printed}");
    assert!(attach.status.success(), "{}", text(&attach.stderr));
    let printed = text(&books.stdout);
    let own = printed.lines().find(|line| line.starts_with("waits ")).expect("its category");
    assert!(own.split_whitespace().any(|word| word == "640"), "{own}");
}

/// No warning at the start names a child's allocator, so the report of its segment does.
#[test]
fn a_report_says_that_the_program_has_an_allocator_of_its_own() {
    const OWN: &str = r#"
#include <stddef.h>
static char pool[1 << 20];
static size_t used;
void *malloc(size_t bytes) { return pool + (used += (bytes + 31) / 16 * 16); }
void free(void *block) { (void)block; }
int main(void) { return !malloc(1000); }
"#;
    // Hands on to libc's malloc through dlsym: the books have its blocks.
    const HANDS_ON: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void *malloc(size_t bytes) { return ((void *(*)(size_t))dlsym(RTLD_NEXT, "malloc"))(bytes); }
int main(void) { return !malloc(1000); }
"#;
    // Calls __libc_malloc: the books have only the blocks of posix_memalign.
    const INTERNAL: &str = r#"
#include <stdlib.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t bytes) { return __libc_malloc(bytes); }
int main(void) {
  void *block;
  for (int i = 0; i < 100; i++) posix_memalign(&block, 64, 100);
  return !malloc(1000);
}
"#;
    let workspace = Workspace::new("own-malloc");
    let sources = [("own.c", OWN), ("hands-on.c", HANDS_ON), ("internal.c", INTERNAL)];
    let [own, hands_on, internal] = sources.map(|(name, source)| {
        let source = workspace.file(name, source);
        let program = source.with_extension("");
        let build = ["-w", "-fno-builtin", "-rdynamic", "-o"];
        assert!(Command::new("cc").args(build).args([&program, &source]).status().unwrap().success());
        program
    });
    let programs = [(own.as_path(), true), (&hands_on, false), (&internal, true), (Path::new("/bin/true"), false)];
    for (command, is_expected) in programs {
        let name = command.file_name().unwrap().to_str().unwrap();
        let (command, segments) = (command.to_str().unwrap(), workspace.0.path().join(format!("segments-{name}")));
        let segments = segments.to_str().unwrap();
        let run = ["run", "--follow", "--dir", segments, "--report", "summary", "--report-to", "stdout", "--"];
        let run = workspace.plimsoll(&[&run[..], &["/usr/bin/env", command]].concat()).output().unwrap();
        assert!(run.status.success(), "{}", text(&run.stderr));
        // The table of processes mentions the gap, too.
        let printed = text(&run.stdout);
        let row = printed.lines().rfind(|line| line.contains("exited with status 0")).expect("the program's row");
        assert_eq!(
            row.contains(&format!("1 gap: {} report {segments}/", env!("CARGO_BIN_EXE_plimsoll"))),
            is_expected,
            "{row}"
        );
        let report = workspace.plimsoll(&["report", segments]).output().unwrap();
        let printed = text(&report.stdout);
        let has_gap = printed.contains("has an allocator of its own (malloc)");
        assert!(report.status.success() && has_gap == is_expected, "{printed}");
    }
}

/// include/plimsoll.h: pushes nest, 14 deep; deeper ones keep the 14th. Each level has a block from the way in and one
/// from the way out, of sizes that name the level.
#[test]
fn a_programs_own_categories_nest() {
    const SOURCE: &str = r#"
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>
static void *kept[32];
int main(void) {
  plimsoll_category_t of[16];
  for (int i = 0; i < 16; i++) {
    char name[16];
    sprintf(name, "level %d", i + 1);
    of[i] = plimsoll_category(name);
  }
  for (int i = 0; i < 16; i++) {
    plimsoll_category_push(of[i]);
    kept[i] = malloc(1000 + i);
  }
  for (int i = 15; i >= 0; i--) {
    plimsoll_category_pop();
    kept[16 + i] = malloc(5000 + i);
  }
}
"#;
    let workspace = Workspace::new("categories");
    let (source, program) = (workspace.file("levels.c", SOURCE), workspace.0.path().join("levels"));
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../../include");
    assert!(Command::new("cc").args([include, "-o"]).args([&program, &source]).status().unwrap().success());
    let program = program.to_str().unwrap();
    let options = ["run", "--report", "summary", "--report-to", "/dev/null", "--dir"];
    let segments = workspace.0.path().join("levels.segments");
    let ran = workspace.plimsoll(&options).arg(&segments).args(["--", program]).output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let report = workspace.plimsoll(&["report", "--format", "json"]).arg(&segments).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let of = |level: usize| {
        let name = format!("level {level}");
        let mut categories = report["categories"].as_array().expect("categories").iter();
        categories
            .find(|category| category["name"] == name)
            .map_or(0, |of| of["requested_bytes"].as_u64().expect("bytes"))
    };
    for level in 1..14 {
        let (inwards, outwards) = (1000 + level - 1, 5000 + level);
        assert_eq!(of(level), (inwards + outwards) as u64, "level {level}: {report:#}");
    }
    // Two deeper levels, and the way out of the deepest two.
    assert_eq!(of(14), 1013 + 1014 + 1015 + 5015 + 5014, "{report:#}");
    assert_eq!([of(15), of(16)], [0, 0], "{report:#}");
}
