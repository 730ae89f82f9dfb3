//! The virtual memory map.

use crate::build::compiled;
use crate::kit::{Observed, fresh_dir, situation, skipped, tidy};
use crate::situations;

situations! {
    map_basic over both => situation("map_basic").moments(3);
    map_commit over both_musl_in_full => situation("map_commit").moments(10);
    map_remap over both => situation("map_remap").moments(8);
    map_partial over both_musl_in_full => situation("map_partial").moments(7);
    // musl's mprotect rounds an address that isn't a page's; glibc's fails.
    map_errors over glibc => situation("map_errors").moments(2);
    map_protect over both_musl_in_full => situation("map_protect").moments(6);
    map_refused over both_musl_in_full => situation("map_refused").moments(6);
    map_advice over both_musl_in_full => situation("map_advice");
    // M_TOP_PAD, and a break that malloc moves, are glibc's.
    map_brk over glibc => situation("map_brk").moments(6);
    map_shm over both_musl_in_full => situation("map_shm").moments(4);
    map_shm_many over both_musl_in_full => situation("map_shm_many").moments(5);
    map_threads over both_musl_in_full => situation("map_threads");
    fork_maps over both_musl_in_full => situation("fork_maps").moments(3);
    map_many over both_musl_in_full => situation("map_many").moments(3);
    map_raw over both => situation("map_raw").moments(5);
    map_holder_stopped over both_musl_in_full => situation("map_holder_stopped").moments(12);
}

/// The counter in the books: the other threads found the stopped thread holding the lock, and none took the lock from
/// it.
#[test]
fn no_thread_takes_the_maps_lock_from_its_holder() {
    let row = situation("map_holder_stopped");
    let dir = fresh_dir("map_holder_never_robbed");
    let seen = Observed::watch(row.command(&compiled(&row.program), Some("off"), &dir), Some(&dir));
    if let Some(reason) = seen.output.lines().find_map(|l| l.strip_prefix("SKIP ")) {
        return skipped("map_holder_never_robbed", reason);
    }
    assert_eq!(seen.output, "stopped 30 times\n", "{}", seen.errors);
    let after = seen.moments.iter().find(|m| m.label == "all are gone").and_then(|m| m.report.clone());
    let after = after.expect("the moment").expect("its report");
    let [deferred, lost, faults] = ["vmap_deferred", "vmap_lost", "faults"].map(|name| after.counter(name));
    // 120 operations of each of three threads, which queue after their first wait. The unlocked end of the call is not
    // included.
    assert!(deferred > 15 * 100, "stopped inside the lock some of the time only: {deferred} operations were queued");
    assert_eq!((lost, faults), (0, 0), "operations lost, and faults: a thread took the lock from its holder");
    tidy(&dir);
}
