//! Programs whose first thread has ended while others go on: the kernel then shows neither their memory nor their
//! arguments in /proc/PID, nor in /proc/self.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::child::Running;
use crate::kit::{fixtures, plimsoll, scratch};
use crate::stage::{Scratch, must};

fn compiled(folder: &Scratch) -> PathBuf {
    let to = folder.path().join("first_thread_left");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu17", "-O1", "-g", "-pthread"]).arg(fixtures().join("explain/first_thread_left.c"));
    must(gcc.arg("-o").arg(&to));
    to
}

/// Starts the program, and returns what it holds once it is ready.
fn started(file: &Path, arguments: &[&str]) -> (Running, u64) {
    let mut command = Command::new(file);
    command.args(arguments).env("PLIMSOLL_DIR", scratch("segments-first-thread"));
    let mut program = Running(command.stdout(Stdio::piped()).spawn().expect("the program starts"));
    let mut held = None;
    for line in BufReader::new(program.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        match line.strip_prefix("live ") {
            Some(bytes) => held = bytes.parse().ok(),
            None if line == "ready" => return (program, held.expect("what it holds")),
            None => panic!("{line}"),
        }
    }
    panic!("the program has ended");
}

fn done(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The tracker reads these by the thread that it runs in.
#[test]
fn a_program_whose_first_thread_has_left_has_a_name_and_its_memory() {
    let folder = Scratch::new("attach-first-thread");
    let file = compiled(&folder);
    let arguments = ["--port", "80", "two words"];
    let (program, held) = started(&file, &arguments);
    let pid = program.id().to_string();
    done(&["attach", &pid]);
    let report: Value = serde_json::from_str(&done(&["report", &pid, "--format", "json"])).expect("JSON");

    let process = &report["process"];
    assert_eq!(process["executable"].as_str().map(Path::new), Some(&*file), "{process}");
    let given: Vec<&str> =
        process["arguments"].as_array().expect("a list").iter().filter_map(|argument| argument.as_str()).collect();
    assert_eq!(given[1..], arguments, "{process}");

    // 24 MiB in the thread's arena, and no more than an arena of 64 MiB, the main heap and two stacks besides.
    let categories = report["categories"].as_array().expect("categories");
    let before = categories.iter().find(|line| line["name"] == "before the attach").expect("older mappings");
    let of = |name: &str| before[name].as_u64().unwrap_or(0);
    assert!((held..held + (64 << 20)).contains(&of("committed_bytes")), "{held} held: {before}");
    assert!((held..held + (2 << 20)).contains(&of("resident_bytes")), "{held} held: {before}");
    done(&["detach", &pid]);
}
