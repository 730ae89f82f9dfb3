//! Attach to programs that have locked their memory, or do so later (mlockall(2)): the tracker's memory is large and
//! nearly empty, so it must be neither locked nor made resident.

use std::fs;
use std::process::Command;

use crate::counter;
use crate::kit::{Java as Program, is_trackers};
use crate::native::compiled_from;

/// The mappings of the tracker, without its library, that are locked (VmFlags of /proc/PID/smaps, proc(5)).
fn locked_of_tracker(pid: &str) -> Vec<String> {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let (mut mapping, mut locked) = ("", vec![]);
    for line in smaps.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) if flags.split(' ').any(|flag| flag == "lo") => locked.push(mapping.to_owned()),
            None if line.split(' ').next().is_some_and(|first| first.contains('-')) => mapping = line,
            _ => {}
        }
    }
    locked.retain(|line| is_trackers(line) && !line.contains("libplimsoll-"));
    locked
}

/// A program that has locked its memory, with what it will map: the tracker's mappings are neither locked nor made
/// resident, not even under a limit on address space, where each section of the segment begins as one page. A detach
/// leaves none that a later mlockall(2) would make resident; what that has locked, the next attach unlocks.
#[test]
fn an_attach_to_a_program_that_locks_its_memory_leaves_it_small() {
    /// The library, which the loader maps locked, the stack of the thread that loads it (8 MiB, which libc keeps), and
    /// the books of 300 threads.
    const MOST: u64 = 20 << 10;
    /// In MiB; far below 64 segments.
    const LIMIT: &str = "4096";
    let cases = [
        (["3", "wait", ""], "1"),
        (["2", "wait", ""], "3"),
        (["1", "wait", ""], "2"),
        (["0", "wait", ""], "2"),
        (["0", "wait", ""], "3"),
        (["2", "wait", LIMIT], "3"),
        (["3", "wait", LIMIT], "1"),
    ];
    for (arguments, later) in cases {
        let given: Vec<&str> = arguments.into_iter().filter(|word| !word.is_empty()).collect();
        let mut command = Command::new(compiled_from("lock_memory", &[]));
        // How many arenas, of 64 MiB each, its threads make before the attach and after it is luck.
        command.args(&given).env("MALLOC_ARENA_MAX", "1");
        let mut program = Program::start(command, &format!("locked-{}", given.join("-")));
        let pid = program.pid();
        let kib = |key: &str| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line").to_owned();
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
        };
        let use_memory = |program: &mut Program| {
            let line = program.send("go");
            line.rsplit_once("VmRSS ").and_then(|(_, kib)| kib.parse::<u64>().ok()).expect("a number")
        };
        let used = use_memory(&mut program);
        let (resident, size) = (kib("VmRSS:"), kib("VmSize:"));
        program.done(&["attach", &pid]);
        let attached = kib("VmRSS:");
        let used_attached = use_memory(&mut program);
        let report = program.report();
        assert!(report["total"]["cumulative_count"].as_u64() > Some(4000), "{report}");
        assert_eq!(counter(&report, "grow_failures"), 0, "{given:?}");
        let locked = locked_of_tracker(&pid);
        assert!(locked.is_empty(), "{given:?}: {locked:#?}");
        let printed = program.done(&["detach", &pid]);
        let (left, left_size) = (kib("VmRSS:"), kib("VmSize:"));
        println!(
            "exercised: {given:?}: {resident} KiB, {attached} attached, {left} detached; size {size}, {left_size}; used {used}, {used_attached}"
        );
        assert!(attached <= resident + MOST && left <= resident + MOST, "{resident} KiB, {attached}, {left}");
        assert!(used_attached <= used + MOST, "{used} KiB, {used_attached}");
        assert!(left_size <= size + (24 << 10), "{size} KiB, {left_size}: {printed}");

        // No hook sees this call.
        assert_eq!(program.send(&format!("lock {later}")), "locked 0");
        let unseen = locked_of_tracker(&pid).len();
        program.done(&["attach", &pid]);
        // More of it is mapped then.
        use_memory(&mut program);
        let locked = locked_of_tracker(&pid);
        println!("exercised: mlockall({later}) locked {unseen} mappings");
        assert!(unseen > 0 || later == "2", "{given:?}");
        assert!(locked.is_empty(), "{given:?}, then {later}: {locked:#?}");
    }
}
