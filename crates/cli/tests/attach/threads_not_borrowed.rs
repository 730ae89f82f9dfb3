//! Threads that plimsoll stops, examines and lets go notice nothing (fixtures/c/not_borrowed.c). plimsoll tries threads
//! in system calls before those that run.

use crate::kit::Java as Program;
use crate::native::{compiled_from, start};
use crate::wait_until;

/// Waits, and waits that ended with EINTR.
fn answer(program: &mut Program) -> (u64, u64) {
    let line = program.send("");
    let numbers = line.split_once(' ').expect("two numbers");
    (numbers.0.parse().expect("a number"), numbers.1.parse().expect("a number"))
}

#[test]
fn a_thread_that_is_tried_and_not_borrowed_sees_no_eintr() {
    let file = compiled_from("not_borrowed", &[]);
    for why in ["coroutine", "rights"] {
        let mut program = start(&format!("not-borrowed-{why}"), &file, &[why]);
        let pid = program.pid();
        for command in ["attach", "detach"].into_iter().cycle().take(10) {
            program.done(&[command, &pid]);
            assert_eq!(answer(&mut program).1, 0, "{why}: {command}");
        }
        let (waits, _) = answer(&mut program);
        wait_until("further waits", || answer(&mut program).0 > waits + 20);
        assert_eq!((answer(&mut program).1, program.stderr().as_str()), (0, ""), "{why}");
    }
}
