//! Programs between which and their allocator nobody can stand: one clear sentence, and they run all the same.

use crate::build::{Program, compiled};
use crate::harness::{End, Observed, fresh_dir, scratch, situation, skipped, verdict};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// One sentence that begins with our name, has the word that tells why, and nothing else.
fn sentence_fault(errors: &str, word: &str) -> Option<String> {
    let lines: Vec<&str> = errors.lines().collect();
    match lines[..] {
        [line] if line.starts_with("plimsoll: ") && line.contains(word) => None,
        _ => Some(format!("stderr is {errors:?}, wanted one sentence with '{word}'")),
    }
}

fn refused(name: &str, program: Program, word: &str, end: End) {
    let mut row = situation("hello").named(name).args(&["argument"]);
    row.program = program;
    let path = compiled(&row.program);
    let plain = Observed::watch(row.command(&path, None, Path::new("")), None);
    assert_eq!(plain.end, end, "{name} by itself: {}", plain.errors);
    let tracked = Observed::watch(row.command(&path, Some("off"), &fresh_dir(name)), None);
    let mut faults = String::new();
    if (tracked.end, &tracked.output) != (plain.end, &plain.output) {
        let _ = writeln!(faults, "  {:?} {:?}, plain {:?} {:?}", tracked.end, tracked.output, plain.end, plain.output);
    }
    if let Some(fault) = sentence_fault(&tracked.errors, word) {
        let _ = writeln!(faults, "  {fault}");
    }
    verdict(name, &faults, 1);
}

#[test]
fn static_executable() {
    refused("static_executable", Program::of("hello").flags(&["-static"]), "static", End::Exit(61));
}
#[test]
fn static_pie() {
    refused("static_pie", Program::of("hello").flags(&["-static-pie"]), "static", End::Exit(61));
}
#[test]
fn own_malloc_exported() {
    refused("own_malloc_exported", Program::of("own_malloc").flags(&["-rdynamic"]), "malloc", End::Exit(67));
}
#[test]
fn own_malloc_hidden() {
    refused("own_malloc_hidden", Program::of("own_malloc").flags(&["-DHIDDEN"]), "malloc", End::Exit(67));
}

#[test]
fn setuid_program() {
    let name = "setuid_program";
    // SAFETY: no arguments, never fails.
    if unsafe { libc::geteuid() } != 0 {
        return skipped(name, "only root can make another user's setuid program");
    }
    const NOBODY: u32 = 65534;
    const SOMEONE: u32 = 12_345;
    // The other user must be able to walk to it, so it lies in a directory of its own below the system's temporary one.
    let home = std::env::temp_dir().join(format!("plimsoll-setuid-{}", std::process::id()));
    fs::create_dir_all(&home).expect("directory");
    let program = home.join("hello");
    // By cp: a copy of our own could still be open for writing in a child of another test (ETXTBSY).
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        assert!(std::process::Command::new("cp").args([from, to]).status().expect("cp").success());
    };
    copy(compiled(&Program::of("hello")).as_ref(), &program);
    let tool = home.join("plimsoll");
    copy(crate::harness::PLIMSOLL.as_ref(), &tool);
    chown(&program, Some(NOBODY), Some(NOBODY)).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let segments = home.join("segments");
    fs::create_dir_all(&segments).expect("directory");
    for dir in [&home, &segments] {
        chown(dir, Some(SOMEONE), Some(SOMEONE)).expect("chown");
    }
    fs::set_permissions(&segments, fs::Permissions::from_mode(0o700)).expect("chmod");
    let mut command = std::process::Command::new(&tool);
    command.args(["run", "--sites", "off", "--dir"]).arg(&segments).arg("--").arg(&program).arg("argument");
    command.env("XDG_CACHE_HOME", home.join("cache")).env("HOME", &home).current_dir(&home).uid(SOMEONE).gid(SOMEONE);
    let seen = Observed::watch(command, None);
    let mut faults = String::new();
    if seen.end != End::Exit(61) || seen.output != "hello 2 8\n" {
        let _ = writeln!(faults, "  {:?} {:?}", seen.end, seen.output);
    }
    if let Some(fault) = sentence_fault(&seen.errors, "setuid") {
        let _ = writeln!(faults, "  {fault}");
    }
    let _ = fs::remove_dir_all(&home);
    let _ = scratch("bin");
    verdict(name, &faults, 1);
}
