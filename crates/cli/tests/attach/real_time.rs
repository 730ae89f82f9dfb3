//! A program one of whose two threads has a real-time policy (fixtures/c/real_time.c). The injected thread inherits the
//! policy of the borrowed one.

use std::fs;
use std::process::{Command, Stdio};

use crate::kit::{PLIMSOLL, scratch};
use crate::native::{compiled_from, start};
use crate::stage::log_line;
use crate::wait_until;

/// Both threads wait in calls that the kernel restarts. strace lists the threads that plimsoll seizes.
#[test]
fn a_thread_with_a_real_time_policy_is_not_tried_if_another_one_is_fit() {
    let mut program = start("real-time", &compiled_from("real_time", &[]), &[]);
    let other = program.send("");
    if other == "refused" {
        return log_line("attach, real-time policy: skipped, this process may not set one");
    }
    let pid = program.pid();
    let call = || fs::read_to_string(format!("/proc/{pid}/task/{other}/syscall")).unwrap_or_default();
    wait_until("the other thread to wait", || call().starts_with(&format!("{} ", libc::SYS_pause)));
    let log = scratch("real-time").join(format!("{pid}.log"));
    for command in ["attach", "detach"] {
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-e", "trace=ptrace", "-o"]).arg(&log).args([PLIMSOLL, command, &pid]);
        let output = strace.env("XDG_CACHE_HOME", scratch("cache")).stdin(Stdio::null()).output().expect("strace");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let log = fs::read_to_string(&log).expect("strace's log");
        let is_seized = |tid: &str| log.contains(&format!("PTRACE_SEIZE, {tid}, "));
        assert!(is_seized(&other) && !is_seized(&pid), "{command}: {log}");
    }
    assert_eq!(program.send(""), other);
    assert_eq!(program.stderr(), "");
}
