//! The borrowed thread waits for plimsoll for a tenth of a second only, and the kernel may refuse a call that it is to
//! make. The program, which has no other thread, must then go on as if nothing had happened (fixtures/c/waits_alone.c).

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::environments::is_root;
use crate::kit::{Java as Program, PLIMSOLL, fixtures, once, scratch};
use crate::native::done;
use crate::stage::{Scratch, must};

/// Longer than the thread waits, in microseconds.
const DELAY: &str = "delay_enter=300000";
/// A busy machine may keep the thread from running for longer than plimsoll.
const ATTEMPTS: usize = 20;

fn compiled() -> PathBuf {
    let to = scratch("late").join(format!("waits_alone-{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g"]).arg(fixtures().join("c/waits_alone.c")).arg("-o").arg(&to);
    once(&to, || drop(must(&mut gcc)));
    to
}

/// Waits, waits that ended with EINTR, signals raised, signals handled, waits that changed errno, waits that changed a
/// vector register.
fn answer(program: &mut Program) -> [u64; 6] {
    let line = program.send("");
    let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
    numbers.try_into().expect("six numbers")
}

/// Attaches, with these calls of plimsoll delayed, until `was_late` holds for strace's log of them.
fn late(name: &str, arguments: &[&str], calls: &str, was_late: impl Fn(&str) -> bool) {
    let mut command = Command::new(compiled());
    command.args(arguments);
    let mut program = Program::start(command, name);
    let log = scratch("late").join(format!("{name}-{}.log", std::process::id()));
    for attempt in 1.. {
        let mut strace = Command::new("strace");
        let traced = format!("trace=ptrace,{calls}");
        let inject = format!("inject={calls}:{DELAY}");
        strace.args(["-qq", "-e", &traced, "-e", &inject, "-o"]).arg(&log);
        strace.args([PLIMSOLL, "attach", &program.pid()]).env("XDG_CACHE_HOME", scratch("cache"));
        let output = strace.stdin(Stdio::null()).output().expect("strace");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let before = answer(&mut program);
        let after = answer(&mut program);
        assert!(after[0] > before[0], "it goes on");
        let [_, interrupted, raised, handled, changed, lost] = after;
        assert_eq!((interrupted, raised, changed, lost), (0, handled, 0, 0), "{after:?}");
        done(&["detach", &program.pid()]);
        let log = fs::read_to_string(&log).expect("strace's log");
        if was_late(&log) {
            break;
        }
        assert!(attempt < ATTEMPTS, "plimsoll was never late: {log}");
    }
    assert_eq!(program.stderr(), "");
}

/// Whether the thread was let go as it was when plimsoll last stopped it.
fn was_let_go(log: &str) -> bool {
    let (before, end) = log.rsplit_once("PTRACE_INTERRUPT").expect("the thread is stopped");
    assert!(before.contains("PTRACE_SETREGS") && end.contains("PTRACE_DETACH"), "{log}");
    !end.contains("PTRACE_SETSIGMASK")
}

#[test]
fn a_thread_that_waits_again_sees_no_eintr() {
    late("late-waits", &[], "ptrace", was_let_go);
}

#[test]
fn a_thread_that_has_restored_itself_gets_its_own_signals() {
    late("late-signals", &["signals"], "wait4", |log| {
        let (_, end) = log.rsplit_once("PTRACE_CONT").expect("the thread runs");
        end.contains("SIGSEGV")
    });
}

/// Limits that a running program gets: the kernel refuses the first and the last call of the borrowed thread.
#[test]
fn a_call_that_fails_leaves_the_program_as_it_was() {
    if !is_root("a program that may not start threads") {
        return;
    }
    // root may start any number of threads. Another user can't reach the folder of the tests.
    let folder = Scratch::new("limits");
    let file = folder.path().join("waits_alone");
    fs::copy(compiled(), &file).expect("copied");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    for (limit, message) in [
        ("--as=4096:", "has no memory for a thread of plimsoll: Cannot allocate memory"),
        ("--nproc=0:", "cannot start a thread: Resource temporarily unavailable"),
    ] {
        let mut command = Command::new("setpriv");
        command.args(user).arg(&file);
        let mut program = Program::start(command, "late-limits");
        let pid = program.pid();
        // As the program's own user: a root without CAP_SYS_RESOURCE may not.
        must(Command::new("setpriv").args(user).args(["prlimit", "--pid", &pid, limit]));
        let output = program.plimsoll(&["attach", &pid]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        // libc keeps the stack that it had mapped for the thread. Our region begins with code.
        let maps = program.mappings();
        assert!(!maps.lines().any(|line| line.contains(" r-xp 00000000 00:00 0 ") && !line.contains('[')), "{maps}");
        let [waits, interrupted, .., changed, lost] = answer(&mut program);
        assert_eq!((interrupted, changed, lost), (0, 0, 0), "{limit}");
        assert!(answer(&mut program)[0] > waits, "{limit}");
        assert_eq!(program.stderr(), "");
    }
}
