//! After SIGKILL; signals, stop and continue under a `run` that reports at the end; overwritten keys.

use crate::build::compiled;
use crate::kit::tidy;
use crate::kit::{
    End, Figures, MODES, PLIMSOLL, Situation, fresh_dir, read_all, scratch, situation, verdict, watchdog,
};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn kill(pid: i64, signal: i32) {
    // SAFETY: kill takes no pointers; the PID is that of our unreaped child, or of that child's child.
    unsafe { libc::kill(pid as i32, signal) };
}

/// The process is killed in the middle of its work. The books of the dead process equal its own log, except for the one
/// operation that each thread was performing.
fn killed_with(threads: usize) {
    /// Words of the log for each thread.
    const LOG: usize = 8;
    let words = |log: &Path| -> Vec<i64> {
        let bytes = fs::read(log).expect("log");
        bytes.chunks_exact(8).map(|word| i64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect()
    };
    let name = format!("killed_{threads}");
    let (mut faults, mut compared, mut most) = (String::new(), 0, 0);
    for mode in MODES {
        for round in 0..8i64 {
            let dir = fresh_dir(&format!("{name}-{mode}-{round}"));
            let log = scratch("logs").join(format!("{name}-{mode}-{round}"));
            let row = situation("killed").args(&[log.to_str().expect("path"), &threads.to_string()]);
            let mut command = row.command(&compiled(&row.program), Some(mode), &dir);
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn().expect("spawn");
            let (finished, late) = watchdog(&child);
            let mut lines = BufReader::new(child.stdout.take().expect("stdout"));
            let mut ready = String::new();
            lines.read_line(&mut ready).expect("ready");
            let pid = i64::from(child.id());
            let base = Figures::of_process(&dir, pid);
            child.stdin.take().expect("stdin").write_all(b"\n").expect("go");
            // After some steps of the program, however long they take: an arbitrary moment.
            let steps = |log: &[i64]| log.chunks(LOG).map(|thread| thread[4]).sum::<i64>();
            while steps(&words(&log)) < 50 + 4_000 * round * round && child.try_wait().expect("wait").is_none() {
                std::thread::sleep(Duration::from_micros(500));
            }
            child.kill().expect("kill");
            let end = End::of(child.wait().expect("wait"));
            let _ = finished.send(());
            let late = late.join().unwrap_or(false);
            if late || end != End::Signal(libc::SIGKILL) {
                let _ = writeln!(faults, "  {mode} {round}: ended with {end:?}, too late {late}");
            }
            let (base, seen) = match (base, Figures::of_process(&dir, pid)) {
                (Ok(base), Ok(seen)) => (base, seen),
                (base, seen) => {
                    let _ = writeln!(faults, "  {mode} {round}: {:?} {:?}", base.err(), seen.err());
                    continue;
                }
            };
            if seen.state != "dead" {
                let _ = writeln!(faults, "  {mode} {round}: state '{}'", seen.state);
            }
            tidy(&dir);
            // The log is { count, requested, count before, requested before, steps } of each thread: the books must lie
            // between the two states of every thread.
            let log = words(&log);
            let sums = |pick: fn(i64, i64) -> i64, i: usize| {
                log.chunks(LOG).map(|thread| pick(thread[i], thread[i + 2])).sum::<i64>()
            };
            let steps = steps(&log);
            most = most.max(steps);
            for (key, i) in [("live_count", 0), ("requested", 1)] {
                let have = seen.value[key] - base.value[key];
                let (least, most) = (sums(i64::min, i), sums(i64::max, i));
                if !(least..=most).contains(&have) {
                    let _ = writeln!(
                        faults,
                        "  {mode} {round}: {key} {have}, the log has {least} to {most} after {steps} steps"
                    );
                }
                compared += 1;
            }
        }
    }
    if most < 10_000 {
        let _ = writeln!(faults, "  at most {most} steps before a kill: nothing was exercised");
    }
    verdict(&name, &faults, compared);
}

#[test]
fn killed_alone() {
    killed_with(1);
}

#[test]
fn killed_with_four_threads() {
    killed_with(4);
}

/// Parents and children are killed together, at arbitrary moments while they fork. What each leaves is books, or a note
/// that its process was killed while starting.
#[test]
fn killed_while_forking() {
    let row = situation("fork_killed");
    let (mut faults, mut whole, mut begun) = (String::new(), 0, 0);
    for round in 0..24u64 {
        let dir = fresh_dir(&format!("killed_while_forking-{round}"));
        let mut command = row.command(&compiled(&row.program), Some(MODES[round as usize % 2]), &dir);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn().expect("spawn");
        let (finished, late) = watchdog(&child);
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut ready).expect("ready");
        // After some forks, however long they take.
        let segments = || fs::read_dir(&dir).expect("segments").count();
        while segments() < 4 && child.try_wait().expect("wait").is_none() {
            std::thread::sleep(Duration::from_micros(500));
        }
        std::thread::sleep(Duration::from_micros(317 * round));
        kill(-i64::from(child.id()), libc::SIGKILL);
        child.wait().expect("wait");
        let _ = finished.send(());
        assert!(!late.join().unwrap_or(false) && ready == "ready\n", "{ready}");
        for file in fs::read_dir(&dir).expect("segments").flatten().filter(|f| f.path().extension().is_some()) {
            match Figures::of_segment(&file.path()) {
                Ok(_) => whole += 1,
                Err(printed) if printed.contains("killed while starting") => begun += 1,
                Err(printed) => {
                    let _ = writeln!(faults, "  {round}: {:?}: {printed}", file.file_name());
                }
            }
        }
        tidy(&dir);
    }
    if whole < 48 {
        let _ = writeln!(faults, "  {whole} segments: nothing was exercised");
    }
    verdict("killed_while_forking", &faults, whole + begun);
}

/// One stop of a traced child, at the entry or exit of a system call. False: the child has ended.
fn step(pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: the PID of a child that this thread traces and has not reaped; the status is a local.
    unsafe {
        libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, 0);
        libc::waitpid(pid, &mut status, 0) == pid && libc::WIFSTOPPED(status)
    }
}

/// A start is killed at each of its system calls, from the one that makes the segment to the end of the process.
/// `report` on what is left names the cause, or has books.
#[test]
fn killed_while_starting() {
    let (name, program) = ("killed_while_starting", compiled(&situation("hello").program));
    let (mut faults, mut starting, mut booting, mut booked) = (String::new(), 0, 0, 0);
    for stops in 0.. {
        let dir = fresh_dir(name);
        let mut command = Command::new(PLIMSOLL);
        command.args(["run", "--report", "none", "--dir"]).arg(&dir).arg("--").arg(&program).arg("argument");
        command.env("XDG_CACHE_HOME", scratch("cache")).stdout(Stdio::null());
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        let mut child = command.spawn().expect("plimsoll");
        let pid = child.id() as libc::pid_t;
        let segment = || {
            let mut all = fs::read_dir(&dir).expect("a folder").flatten().map(|entry| entry.path());
            all.find(|path| path.extension().is_some_and(|end| end == "seg"))
        };
        // SAFETY: as in `step`; the first stop is the exec's.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        let mut lives = true;
        while lives && segment().is_none() {
            lives = step(pid);
        }
        for _ in 0..stops {
            lives = lives && step(pid);
        }
        if lives {
            child.kill().expect("kill");
        }
        // If the child has ended, `step` has taken the status.
        let _ = child.wait();
        let Some(segment) = segment() else {
            let _ = writeln!(faults, "  after {stops} stops there is no segment");
            break;
        };
        let report = Command::new(PLIMSOLL).arg("report").arg(&segment).output().expect("plimsoll");
        let (printed, errors) = (String::from_utf8_lossy(&report.stdout), String::from_utf8_lossy(&report.stderr));
        match report.status.code() {
            Some(2) if errors.contains("killed while starting") && errors.lines().count() == 1 => starting += 1,
            Some(0) if printed.contains("killed while starting") => booting += 1,
            Some(0) if errors.is_empty() => booked += 1,
            _ => {
                let _ = writeln!(faults, "  after {stops} stops: {:?} {errors}", report.status);
            }
        }
        if !lives {
            break;
        }
    }
    if starting < 10 || booting < 10 || booked < 10 {
        let _ =
            writeln!(faults, "  killed before the header {starting}, before the books {booting}, later {booked} times");
    }
    tidy(&fresh_dir(name));
    verdict(name, &faults, starting + booting + booked);
}

/// Starts `run --report summary` of this program, with its output piped.
fn reported(name: &str, program: &Situation, to: &Path) -> Child {
    let dir = fresh_dir(name);
    let mut command = Command::new(PLIMSOLL);
    command
        .args(["run", "--sites", "off", "--report", "summary", "--dir"])
        .arg(&dir)
        .arg("--report-to")
        .arg(to)
        .arg("--");
    command.arg(compiled(&program.program)).args(&program.args).env("XDG_CACHE_HOME", scratch("cache"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().expect("spawn")
}

/// How a child of ours that is waited for changed: stopped, or ended.
fn wait_change(child: &Child) -> i32 {
    let mut status = 0;
    // SAFETY: status outlives the call; the pid is our own unreaped child.
    unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED | libc::WCONTINUED) };
    status
}

#[test]
fn exit_and_death_are_mirrored() {
    let mut faults = String::new();
    let rows = [
        ("return", End::Exit(47)),
        ("_exit", End::Exit(37)),
        ("exit_group", End::Exit(41)),
        ("quick_exit", End::Exit(43)),
        ("abort", End::Signal(libc::SIGABRT)),
        ("fault", End::Signal(libc::SIGSEGV)),
        ("kill", End::Signal(libc::SIGKILL)),
        ("term", End::Signal(libc::SIGTERM)),
    ];
    for (way, end) in rows {
        let to = scratch("reports").join(way);
        let _ = fs::remove_file(&to);
        let mut child = reported(&format!("mirror-{way}"), &situation("endings").args(&[way]), &to);
        let (finished, late) = watchdog(&child);
        let errors = read_all(child.stderr.take().expect("stderr"));
        let output = read_all(child.stdout.take().expect("stdout")).join().expect("stdout");
        let seen = End::of(child.wait().expect("wait"));
        let _ = finished.send(());
        if late.join().unwrap_or(true) || seen != end {
            let _ = writeln!(faults, "  {way}: {seen:?}, the program's {end:?}");
        }
        let errors = errors.join().expect("stderr");
        if !output.contains("moment final") || !errors.is_empty() {
            let _ = writeln!(faults, "  {way}: stdout {output:?} stderr {errors:?}");
        }
        if fs::metadata(&to).map_or(0, |m| m.len()) == 0 {
            let _ = writeln!(faults, "  {way}: no report at the end");
        }
    }
    verdict("exit_and_death_are_mirrored", &faults, rows.len());
}

#[test]
#[allow(clippy::zombie_processes, reason = "waitpid itself waits for it, with stops and continuations")]
fn stop_and_continue_are_mirrored() {
    let mut faults = String::new();
    let mut child = reported("stop", &situation("stops").args(&["stop"]), &scratch("reports").join("stop"));
    let (finished, late) = watchdog(&child);
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    if lines.next().as_deref() != Some("stopping") {
        let _ = writeln!(faults, "  no first line");
    }
    let status = wait_change(&child);
    if !libc::WIFSTOPPED(status) {
        let _ = writeln!(faults, "  the program stopped, run did not: status {status:#x}");
    }
    kill(i64::from(child.id()), libc::SIGCONT);
    let rest: Vec<String> = lines.collect();
    if rest.first().map(String::as_str) != Some("continued") {
        let _ = writeln!(faults, "  after SIGCONT: {rest:?}");
    }
    let end = loop {
        let status = wait_change(&child);
        if !libc::WIFCONTINUED(status) && !libc::WIFSTOPPED(status) {
            break End::of(std::process::ExitStatus::from_raw(status));
        }
    };
    let _ = finished.send(());
    if late.join().unwrap_or(true) || end != End::Exit(83) {
        let _ = writeln!(faults, "  ended with {end:?}");
    }
    verdict("stop_and_continue_are_mirrored", &faults, 1);
}

#[test]
fn signals_are_forwarded() {
    let mut faults = String::new();
    let mut child = reported("signals", &situation("stops").args(&["signals"]), &scratch("reports").join("signals"));
    let (finished, late) = watchdog(&child);
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let first_line = lines.next().unwrap_or_default();
    if first_line.strip_prefix("pid ") == Some(&child.id().to_string()) {
        let _ = writeln!(faults, "  with a report to print, run must be the parent");
    }
    for signal in
        [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGINT, libc::SIGWINCH, libc::SIGQUIT]
    {
        kill(i64::from(child.id()), signal);
        let line = lines.next().unwrap_or_default();
        if line != format!("signal {signal}") {
            let _ = writeln!(faults, "  sent {signal}, the program says '{line}'");
        }
    }
    let _ = lines.count();
    let end = End::of(child.wait().expect("wait"));
    let _ = finished.send(());
    if late.join().unwrap_or(true) || end != End::Exit(89) {
        let _ = writeln!(faults, "  ended with {end:?}");
    }
    verdict("signals_are_forwarded", &faults, 7);
}

/// A program that writes beyond its usable bytes (inside its own glibc chunk): nothing crashes, and each block whose
/// key was overwritten is counted.
#[test]
fn overwritten_keys_are_counted() {
    let mut faults = String::new();
    let mut hits = 0;
    for (args, name) in [(&[][..], "all"), (&["some"][..], "some")] {
        for mode in MODES {
            let row = situation("trailer_clobber").args(args);
            let dir = fresh_dir(&format!("trailer_clobber-{name}-{mode}"));
            let program = compiled(&row.program);
            let seen = crate::kit::Observed::watch(row.command(&program, Some(mode), &dir), Some(&dir));
            if seen.end != End::Exit(0) || seen.late {
                let _ = writeln!(faults, "  {mode} {name}: ended with {:?}: {}{}", seen.end, seen.output, seen.errors);
                continue;
            }
            let hit: i64 = seen
                .output
                .lines()
                .find_map(|l| l.strip_prefix("note overwritten="))
                .and_then(|n| n.parse().ok())
                .unwrap_or(-1);
            let pid = seen.moments.first().map_or(0, |m| m.pid);
            match Figures::of_process(&dir, pid) {
                Ok(figures) => {
                    let counted = unknown_frees(&figures);
                    if counted != Some(hit) {
                        let _ = writeln!(
                            faults,
                            "  {mode} {name}: {counted:?} unknown or overwritten, the program overwrote {hit}"
                        );
                    }
                }
                Err(e) => drop(writeln!(faults, "  {mode} {name}: {e}")),
            }
            hits += hit.max(0);
        }
    }
    if hits == 0 {
        let _ = writeln!(faults, "  nothing was overwritten: blocks have no trailer here, so this row tests nothing");
    }
    verdict("overwritten_keys_are_counted", &faults, 4);
}

/// The segment's counter `unknown_frees`, as the report lists it.
fn unknown_frees(figures: &Figures) -> Option<i64> {
    let counters = figures.json["counters"].as_array()?;
    counters.iter().find(|c| c["name"] == "unknown_frees")?["value"].as_i64()
}
