//! Threads with little of their stack left, and other memory of the program below it: they must not be borrowed.

use crate::native::{compiled_from, start};

/// The thread waits, so plimsoll tries it first; it borrows the program's other thread, which never waits. On an
/// alternate stack, the functions that the signal interrupted may hold any lock, too.
#[test]
fn what_lies_below_a_small_stack_stays_whole() {
    let file = compiled_from("attach_small_stack", &["-Wl,-z,now"]);
    for kind in ["pool", "handler"] {
        let mut program = start(&format!("small-stack-{kind}"), &file, &[kind]);
        for command in ["attach", "detach"] {
            program.done(&[command, &program.pid()]);
            assert_eq!(program.send("check"), "whole", "{kind}, {command}");
        }
    }
}
