//! The mappings from before an attach: those of the program, and no others.

use std::process::Command;

use serde_json::Value;

use crate::kit::Java as Program;
use crate::native::compiled_from;

const MIB: u64 = 1 << 20;

/// Starts a program whose threads have stacks of 1 MiB and share one arena, as the thread does that loads the tracker.
fn start(name: &str, source: &str) -> Program {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 1024 && exec \"$0\""]).arg(compiled_from(source, &[]));
    Program::start(command.env("MALLOC_ARENA_MAX", "2"), name)
}

/// The bytes of the mappings that are of no file and have no name.
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
    // What comes on top: the stack of the thread that loads the tracker, and a region of 256 KiB for its start.
    assert!((64 * MIB..had + 2 * MIB).contains(&reserved), "{had} B before, then {reserved}: {}", program.mappings());
}
