//! The mappings from before an attach: those of the program, and no others.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::kit::Java as Program;
use crate::native::compiled_from;
use crate::wait_until;

const MIB: u64 = 1 << 20;

/// Starts a program whose threads have stacks of 1 MiB and share one arena, also with the thread that loads the
/// tracker.
fn start(name: &str, source: &str) -> Program {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 1024 && exec \"$0\""]).arg(compiled_from(source, &[]));
    command.env("MALLOC_ARENA_MAX", "2");
    Program::start(command, name)
}

/// The bytes of the mappings that have neither a file nor a name.
fn anonymous(maps: &str) -> u64 {
    let lines = maps.lines().filter(|line| !line.contains(['/', '[']));
    let bytes = lines.filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
    });
    bytes.sum()
}

fn before(report: &Value) -> &Value {
    let categories = report["categories"].as_array().expect("categories");
    categories.iter().find(|line| line["name"] == "before the attach").expect("older mappings")
}

/// The tracker maps 16 MiB and more before it reads the kernel's list. Most kernels don't show its name there.
#[test]
fn the_trackers_own_memory_is_not_from_before_the_attach() {
    let program = start("before-own", "attach_arena");
    let had = anonymous(&program.mappings());
    program.done(&["attach", &program.pid()]);
    let report = program.report();
    let reserved = before(&report)["reserved_bytes"].as_u64().expect("bytes");
    // What is added: the stack of the thread that loads the tracker, and a region of 256 KiB for its start.
    assert!((64 * MIB..had + 2 * MIB).contains(&reserved), "{had} B before, then {reserved}: {}", program.mappings());
}

/// Four stacks without a guard, which the kernel joins to one mapping. Each thread that allocates after the attach has
/// its own stack, and takes it and nothing else out of the older mappings.
#[test]
fn a_thread_from_before_the_attach_has_its_own_stack() {
    let mut program = start("before-stacks", "attach_stacks");
    program.done(&["attach", &program.pid()]);
    // The thread that loads the tracker unmaps its code last.
    let threads = || fs::read_dir(format!("/proc/{}/task", program.pid())).expect("it lives").count();
    wait_until("that thread to end", || threads() == 5);
    let reserved = |report: &Value| before(report)["reserved_bytes"].as_u64().expect("bytes");
    let first = reserved(&program.report());
    let answer = program.send("allocate");
    let numbers: Vec<u64> = answer.split(' ').map(|n| n.parse().expect("a number")).collect();
    let report = program.report();
    let threads = report["threads"].as_array().expect("threads");
    let mut stacks = 0;
    for stack in numbers.chunks(3) {
        let thread = threads.iter().find(|t| t["tid"] == stack[0]).unwrap_or_else(|| panic!("{stack:?}: {threads:?}"));
        let of = |name: &str| thread[name].as_u64().expect("a number");
        assert_eq!([of("stack_low"), of("stack_high")], stack[1..], "{answer}: {}", program.mappings());
        assert_eq!((of("stack_kind"), of("guard_bytes")), (0, 0));
        stacks += stack[2] - stack[1];
    }
    assert_eq!((numbers.len(), stacks), (12, MIB), "{answer}");
    let now = reserved(&report);
    assert_eq!(first - now, stacks, "{first} B of older mappings, then {now}");
}
