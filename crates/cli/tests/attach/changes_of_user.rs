//! Attach to a program that changes its user meanwhile (fixtures/c/changes_user.c). glibc then waits until each thread
//! has handled a signal, including the thread that plimsoll has started.

use std::fs;
use std::process::{Command, Stdio};

use crate::child::{Running, wait_until};
use crate::kit::{Java as Program, PLIMSOLL, scratch};
use crate::native::{compiled_from, start};

fn started(name: &str) -> Program {
    let library = compiled_from("changes_user", &["-shared", "-fPIC", "-DLIBRARY"]);
    start(name, &compiled_from("changes_user", &["-rdynamic"]), &[library.to_str().expect("a path")])
}

/// The injected thread exists and waits for the loader's lock when the program changes its user.
#[test]
fn a_program_changes_its_user_while_the_injected_thread_waits() {
    let mut program = started("changes-user-held");
    let pid = program.pid();
    assert_eq!(program.send("hold"), "held");
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").count();
    assert_eq!(threads(), 2);
    let mut attach = Command::new(PLIMSOLL);
    attach.args(["attach", &pid]).env("XDG_CACHE_HOME", scratch("cache"));
    let mut attach = Running(attach.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("plimsoll"));
    wait_until("the injected thread", || threads() > 2);
    assert_eq!(program.send("change"), "changed 0");
    assert_eq!(program.send("release"), "released");
    assert!(attach.wait().expect("it ends").success());
    program.done(&["detach", &pid]);
    assert_eq!(program.send("change"), "changed 0");
    assert_eq!(program.stderr(), "");
}

/// A change is under way at each step of a command: before, during and after the borrowed thread's calls.
#[test]
fn a_program_that_changes_its_user_without_end_is_entered() {
    let mut program = started("changes-user-always");
    let pid = program.pid();
    assert_eq!(program.send("begin"), "begun");
    for command in ["attach", "detach"].into_iter().cycle().take(12) {
        program.done(&[command, &pid]);
        let count = |program: &mut Program| program.send("count").parse::<u64>().expect("a number");
        let then = count(&mut program);
        wait_until("changes of the user", || count(&mut program) > then + 10);
    }
    assert_eq!(program.stderr(), "");
}
