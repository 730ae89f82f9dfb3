//! Children, exec, and the ways to end.

use crate::build::compiled;
use crate::kit::{End, Observed, fresh_dir, scratch, situation, skipped, tidy};
use crate::situations;
use std::path::Path;

situations! {
    fork over both => situation("fork").moments(7);
    fork_both_go_on over both_musl_in_full => situation("fork_both_go_on").moments(7);
    fork_storm over both_musl_in_full => situation("fork_storm").moments(12);
    fork_threads over both_musl_in_full => situation("fork_threads");
    fork_snapshot over both_musl_in_full => situation("fork_snapshot").moments(6);
    fork_storm_of_threads over both_musl_in_full => situation("fork_busy_threads").moments(51);
    fork_nested over both => situation("fork_nested").moments(8);
    fork_in_handler over both_musl_in_full => situation("fork_in_handler").links(&["libbump"]).moments(21);
    fork_execs over both => situation("fork_execs");
    // musl-gcc doesn't find the kernel's headers.
    fork_rights over glibc => situation("fork_rights").args(&[scratch("empty-root").to_str().expect("path")]).moments(11);
    vfork_exec over both => situation("vfork_exec").follow().moments(12);
    spawn over both_musl_in_full => situation("spawn").follow().moments(9);
    ends_by_return over both_musl_in_full => situation("endings").exits(47);
    ends_by_exit_call over both_musl_in_full => situation("endings").named("ends_by_exit_call").args(&["_exit"]).exits(37);
    ends_by_exit_group over both_musl_in_full => situation("endings").named("ends_by_exit_group").args(&["exit_group"]).exits(41);
    ends_by_quick_exit over both_musl_in_full => situation("endings").named("ends_by_quick_exit").args(&["quick_exit"]).exits(43);
    ends_by_abort over both_musl_in_full => situation("endings").named("ends_by_abort").args(&["abort"]).dies(libc::SIGABRT);
    ends_by_raise over both_musl_in_full => situation("endings").named("ends_by_raise").args(&["segv"]).dies(libc::SIGSEGV);
    ends_by_fault over both_musl_in_full => situation("endings").named("ends_by_fault").args(&["fault"]).dies(libc::SIGSEGV);
    ends_by_kill over both => situation("endings").named("ends_by_kill").args(&["kill"]).dies(libc::SIGKILL);
    ends_by_term over both_musl_in_full => situation("endings").named("ends_by_term").args(&["term"]).dies(libc::SIGTERM);
    ends_in_thread over both_musl_in_full => situation("endings").named("ends_in_thread").args(&["thread_exit"]).exits(29);
    ends_in_thread_at_once over both_musl_in_full => situation("endings").named("ends_in_thread_at_once").args(&["thread_exit_group"]).exits(31);
    daemonize over both_musl_in_full => situation("daemonize");
    raw_clone over both_musl_in_full => situation("raw_clone").moments(2);
    // musl-gcc doesn't find the kernel's headers.
    seccomp_strict over glibc => situation("seccomp_strict");
    exec_self over both => situation("exec_self").moments(4);
    exec_self_followed over both_musl_in_full => situation("exec_self").named("exec_self_followed").follow().moments(4);
    exec_small_stack over both => situation("exec_small_stack").follow().moments(5);
    exec_small_stack_in_place over both => situation("exec_small_stack").named("exec_small_stack_in_place").args(&["in place"]).exits(17);
    // musl has no execveat, which this program calls.
    exec_ways over glibc => situation("exec_ways").moments(11);
    exec_too_large over glibc => situation("exec_ways").named("exec_too_large").args(&["large"]);
}

/// Also with exact sites, so that every table grows behind the filter.
#[test]
fn sandbox() {
    situation("sandbox").moments(2).run_modes(&["off", "sampled", "exact"]);
}

/// The same if the filter forbids all calls by which tables grow, and children are made.
#[test]
fn sandbox_narrow() {
    let narrow = situation("sandbox").named("sandbox_narrow").args(&["narrow"]);
    narrow.moments(2).run_modes(&["off", "sampled", "exact"]);
}

/// If a filter allows it, tables grow; if not, their pages are requested before the filter.
#[test]
fn sandboxes_have_whole_books() {
    for (args, mode, sites) in [(&[][..], "exact", 1024), (&["narrow"], "sampled", 4)] {
        let row = situation("sandbox").args(args);
        let dir = fresh_dir(&format!("sandboxes_have_whole_books-{mode}"));
        let seen = Observed::watch(row.command(&compiled(&row.program), Some(mode), &dir), Some(&dir));
        let moment = seen.moments.iter().find(|m| m.label == "shut in").expect("a moment behind the filter");
        let json = &moment.report.as_ref().expect("live").as_ref().expect("a report").json;
        let counters = json["counters"].as_array().expect("counters");
        let failures = counters.iter().find(|c| c["name"] == "grow_failures").expect("counted");
        assert_eq!(failures["value"], 0, "{mode}: {}", json["gaps"]);
        let found = json["sites"].as_array().expect("sites").len();
        assert!(found >= sites, "{mode}: {found} sites\n{}", seen.output);
        tidy(&dir);
    }
}

/// Without sites: a sampled block's stack is read by system calls, for which the filter kills the program.
#[test]
fn fork_rights_strict() {
    let root = scratch("empty-root");
    let row = situation("fork_rights").named("fork_rights_strict").args(&[root.to_str().expect("path"), "strict"]);
    row.run_modes(&["off"]);
}

/// System calls by number, as programs make those that the C library has no function for.
#[test]
fn fork_rights_by_number() {
    for way in ["pivot_root", "landlock"] {
        let root = scratch("empty-root");
        let row = situation("fork_rights").named(&format!("fork_rights_{way}"));
        row.args(&[root.to_str().expect("path"), way]).moments(2).run();
    }
}

/// A child that cannot have a segment: the parent's report says so.
#[test]
fn forks_without_a_segment_are_counted() {
    for why in ["dropped", "full"] {
        let row = situation("fork_rights").args(&[why]);
        let program = compiled(&row.program);
        let plain = Observed::watch(row.command(&program, None, Path::new("")), None);
        if plain.output.contains("SKIP") {
            return skipped("forks_without_a_segment_are_counted", "not root");
        }
        let dir = fresh_dir(&format!("forks_without_a_segment-{why}"));
        let seen = Observed::watch(row.command(&program, Some("off"), &dir), Some(&dir));
        assert_eq!((seen.end, &seen.output, seen.errors.as_str()), (End::Exit(0), &plain.output, ""));
        let moment = seen.moments.iter().find(|m| m.label == "forked").expect("a moment after the forks");
        let json = &moment.report.as_ref().expect("live").as_ref().expect("a report").json;
        let counter = |name: &str| {
            let counters = json["counters"].as_array().expect("counters");
            counters.iter().find(|c| c["name"] == name).expect("counted")["value"].clone()
        };
        assert_eq!((counter("forks"), counter("forks_untracked")), (3.into(), 3.into()), "{why}: {}", json["gaps"]);
        assert!(json["gaps"].to_string().contains("3 children of fork()"), "{}", json["gaps"]);
        let (compared, found) = seen.books(&dir, || Err("no base".into()));
        assert!(compared == 2 && found.is_empty(), "{why}: {compared} {found:?}");
        tidy(&dir);
    }
}

/// At any point of a table's resize the parent may fork: the child has nothing of its parent's file, has its own
/// segment, and its tables grow.
#[test]
fn fork_while_growing() {
    let stops = 6;
    // Tables grow often enough only with the stacks of all blocks.
    let under_limit = ("ulimit -v 200000;", &["exact"][..]);
    for (way, (limit, modes)) in [("grow", under_limit), ("handler", under_limit), ("cut", ("", &["off", "exact"]))] {
        let row = situation("fork_while_growing").args(&[way]).shell(limit);
        let program = compiled(&row.program);
        let plain = Observed::watch(row.command(&program, None, Path::new("")), None);
        if let Some(reason) = plain.output.lines().find_map(|l| l.strip_prefix("SKIP ")) {
            return skipped("fork_while_growing", reason);
        }
        for mode in modes {
            let dir = fresh_dir(&format!("fork_while_growing-{way}-{mode}"));
            let seen = Observed::watch(row.command(&program, Some(mode), &dir), Some(&dir));
            assert_eq!(
                (seen.end, &seen.output, seen.errors.as_str()),
                (End::Exit(0), &plain.output, ""),
                "{way} {mode}"
            );
            let stopped = seen.moments.iter().find_map(|m| m.label.strip_prefix("stopped "));
            assert_eq!(stopped, Some(stops.to_string().as_str()), "{way} {mode}");
            let (compared, found) = seen.books(&dir, || Err("no base".into()));
            assert!(compared >= stops + 2 && found.is_empty(), "{way} {mode}: {compared} {found:#?}");
            for moment in seen.moments.iter().filter(|m| !m.last) {
                let figures = moment.report.as_ref().expect("live").as_ref().expect("a report");
                let lost = ["grow_failures", "forks_untracked"].map(|name| figures.counter(name));
                assert_eq!(lost, [0, 0], "{way} {mode} '{}' {}", moment.label, figures.gaps);
            }
            tidy(&dir);
        }
    }
}
