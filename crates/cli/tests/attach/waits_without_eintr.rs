//! The only thread of a program is borrowed while it waits (fixtures/c/waits_in.c). The stop ends each of these waits
//! with EINTR, which the program must not see.

use crate::native::{compiled_from, start};
use crate::stage::log_line;

fn is_entered_in(call: &str) {
    let mut program = start(&format!("waits-{call}"), &compiled_from("waits_in", &[]), &[call]);
    let pid = program.pid();
    let mut before = 0;
    for command in ["attach", "detach", "attach", "detach"] {
        program.done(&[command, &pid]);
        let line = program.send("");
        if line == "refused" {
            return log_line(&format!("attach, {call}: skipped, the kernel doesn't let this process use io_uring"));
        }
        let (waits, interrupted) = line.split_once(' ').expect("two numbers");
        let waits: u64 = waits.parse().expect("a number");
        assert!(waits > before && interrupted == "0", "{call}, {command}: {line}");
        before = waits;
    }
    assert_eq!(program.stderr(), "", "{call}");
}

#[test]
fn a_wait_on_a_socket_with_a_timeout_sees_no_eintr() {
    for call in ["readv", "preadv2", "writev", "pwritev2", "sendmmsg"] {
        is_entered_in(call);
    }
}

#[test]
fn a_wait_for_events_sees_no_eintr() {
    for call in ["epoll_wait", "sigtimedwait", "io_uring_enter"] {
        is_entered_in(call);
    }
}
