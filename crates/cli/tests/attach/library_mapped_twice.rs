//! A program that has mapped the tracker's library itself (fixtures/c/maps_tracker.c): plimsoll must call the loaded
//! library.

use std::process::Command;

use crate::environments::{can_contain, contained, nothing_executable};
use crate::kit::Java as Program;
use crate::native::{compiled_from, start};

fn is_detached_and_attached_again(mut program: Program) {
    let pid = program.pid();
    program.done(&["attach", &pid]);
    assert_eq!(program.send("map"), "mapped");
    for command in ["detach", "attach", "detach"] {
        program.done(&[command, &pid]);
        assert_eq!(program.send("go"), "here", "{command}");
    }
    assert_eq!(program.stderr(), "");
}

#[test]
fn a_program_that_maps_the_library_as_data_is_detached() {
    is_detached_and_attached_again(start("mapped-again", &compiled_from("maps_tracker", &[]), &[]));
}

#[test]
fn a_program_that_maps_a_library_in_memory_as_data_is_detached() {
    if !can_contain("the library, mapped again from memory") {
        return;
    }
    let command = Command::new(compiled_from("maps_tracker", &[]));
    let mut command = contained(&[], &nothing_executable(), &command);
    command.env("HOME", "/nowhere").env_remove("XDG_CACHE_HOME").env_remove("PLIMSOLL_DIR");
    is_detached_and_attached_again(Program::start_as_it_is(command, "mapped-again-memory"));
}
