//! A program one of whose threads keeps the loader's list locked, while another one, in dlopen, searches the list for
//! new objects (fixtures/c/list_held.c).

use std::fs;

use crate::kit::plimsoll;
use crate::native::{compiled_from, start};
use crate::wait_until;

/// The tracker can't remove its hooks meanwhile. So it must not stop booking: a program that doesn't book counts as
/// detached, and nobody could remove the hooks later.
#[test]
fn a_detach_while_the_loaders_list_is_locked_changes_nothing() {
    let mut program = start("list-held", &compiled_from("list_held", &[]), &[]);
    let pid = program.pid();
    program.done(&["attach", &pid]);
    assert_eq!(program.send("hold"), "held");
    let opener = program.send("open");
    let call = || fs::read_to_string(format!("/proc/{pid}/task/{opener}/syscall")).unwrap_or_default();
    wait_until("the search to wait", || call().starts_with(&format!("{} ", libc::SYS_futex)));

    let refused = plimsoll(&["detach", &pid]);
    let sentence = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), sentence.lines().count()), (Some(2), 1), "{sentence}");
    assert!(sentence.contains("nothing was changed") && sentence.contains("try again"), "{sentence}");

    assert_eq!(program.send("release"), "released");
    for command in ["detach", "attach", "detach"] {
        program.done(&[command, &pid]);
    }
    assert_eq!(program.stderr(), "");
}
