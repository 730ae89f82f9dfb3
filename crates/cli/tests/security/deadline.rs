//! A target that delays whoever looks at it, in every way at once: one deadline bounds the whole command.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_observer::collect::{Regions, take};
use plimsoll_observer::foreign::Deadline;

use crate::commands::libc_file;
use crate::kit::{MALLORY, can, of_mallory};
use crate::stage::Scratch;
use crate::writing::fake_with;

/// For the command.
const DEADLINE: Duration = Duration::from_secs(3);
/// What a busy machine may add. With a limit of its own for the answers of the VM alone, this target would take ten seconds.
const MARGIN: Duration = Duration::from_secs(6);

#[test]
fn one_deadline_bounds_all_that_a_target_delays() {
    if !can("one deadline") {
        return;
    }
    let scratch = Scratch::new("deadline");
    let libjvm = of_mallory(&scratch, "lib").join("libjvm.so");
    fs::copy(libc_file(), &libjvm).expect("copied");
    chown(&libjvm, Some(MALLORY), Some(MALLORY)).expect("root may");
    // Each answer takes two seconds, and a FIFO lies where the library was.
    let (_target, pid) = fake_with(&scratch, &libjvm, Path::new("/"), "slow fifo");
    let began = Instant::now();
    let taken = take(pid.parse().expect("a PID"), Regions::AsNeeded, Deadline::after(DEADLINE));
    let took = began.elapsed();
    let _ = fs::remove_file(format!("/tmp/.java_pid{pid}"));
    let snapshot = taken.expect("a snapshot");
    assert!(took < DEADLINE + MARGIN, "{took:?}");
    // What was not reached is named.
    let reasons: Vec<&str> = snapshot.gaps.iter().map(|gap| gap.reason.as_str()).collect();
    assert!(
        reasons.iter().any(|reason| reason.starts_with("VM.native_memory") && reason.contains("was not asked")),
        "{reasons:#?}"
    );
    // The kernel's own figures are whole all the same.
    assert!(snapshot.vmas.iter().any(|vma| vma.name.ends_with("libjvm.so")), "{:#?}", snapshot.vmas);
}
