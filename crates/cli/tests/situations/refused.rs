//! Programs whose allocator the tracker cannot reach: one clear sentence, and they run all the same.

use crate::build::{Program, compiled};
use crate::executable;
use crate::kit::{End, Observed, fresh_dir, scratch, situation, skipped, tidy, verdict};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// One sentence that begins with our name and contains the word of the reason, and nothing else.
fn sentence_fault(errors: &str, word: &str) -> Option<String> {
    let lines: Vec<&str> = errors.lines().collect();
    match lines[..] {
        [line] if line.starts_with("plimsoll: ") && line.contains(word) => None,
        _ => Some(format!("stderr is {errors:?}, expected one sentence with '{word}'")),
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

/// A program without a C library, by itself: one sentence. As a child of a tracked shell, which has the library in
/// LD_PRELOAD: it runs as without the tracker.
fn without_libc(name: &str, path: &Path, end: i32, output: &str) {
    let environment = |mut command: Command| {
        command.env("XDG_CACHE_HOME", scratch("cache"));
        Observed::watch(command, None)
    };
    let plain = environment(Command::new(path));
    assert_eq!((plain.end, plain.output.as_str()), (End::Exit(end), output), "{name} by itself: {}", plain.errors);
    let mut faults = String::new();
    let tracked = |arguments: &[&str]| {
        let mut command = Command::new(crate::kit::PLIMSOLL);
        command.args(["run", "--dir"]).arg(fresh_dir(name)).args(arguments).arg(path);
        environment(command)
    };
    let alone = tracked(&["--"]);
    let child = tracked(&["--follow", "--", "sh", "-c", "\"$0\"; exit $?"]);
    for (how, seen) in [("alone", &alone), ("child", &child)] {
        if (seen.end, &seen.output) != (plain.end, &plain.output) {
            let _ = writeln!(faults, "  {how}: {:?} {:?} {:?}", seen.end, seen.output, seen.errors);
        }
    }
    if let Some(fault) = sentence_fault(&alone.errors, "uses no C library") {
        let _ = writeln!(faults, "  {fault}");
    }
    if !child.errors.is_empty() {
        let _ = writeln!(faults, "  child: stderr is {:?}", child.errors);
    }
    tidy(&fresh_dir(name));
    verdict(name, &faults, 2);
}

const LOADER: &str = if cfg!(target_arch = "aarch64") {
    "-Wl,--dynamic-linker=/lib/ld-linux-aarch64.so.1"
} else {
    "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2"
};

#[test]
fn no_libc() {
    let program = Program::of("no_libc").flags(&["-nostdlib", "-fno-stack-protector", "-pie", "-fPIE", LOADER]);
    without_libc("no_libc", &compiled(&program), 71, "no libc 0\n");
}

/// Here the hooks are called: each passes the call on to an allocator other than libc's.
#[test]
fn no_libc_but_malloc() {
    compiled(&Program::library("libno_libc").flags(&["-nostdlib"]));
    let flags = ["-nostdlib", "-fno-stack-protector", "-pie", "-fPIE", "-DALLOCATES", LOADER];
    let mut program = Program::of("no_libc").flags(&flags);
    program.libraries.push("libno_libc.so".into());
    without_libc("no_libc_but_malloc", &compiled(&program), 71, "no libc 1\n");
}

#[test]
fn go_without_c() {
    let path = scratch("bin").join("blocks-go");
    let source = crate::build::fixtures().join("../go/blocks.go");
    let mut build = Command::new("go");
    build.args(["build", "-buildmode=pie", "-o"]).arg(&path).arg(source).env("CGO_ENABLED", "0");
    let output = build.output().expect("go (.ci/setup installs it)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    without_libc("go_without_c", &path, 73, "go 100\n");
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
    // The other user must be able to enter its directory, so that is below the system's temporary one.
    let home = std::env::temp_dir().join(format!("plimsoll-setuid-{}", std::process::id()));
    fs::create_dir_all(&home).expect("directory");
    let program = home.join("hello");
    executable::copy(compiled(&Program::of("hello")), &program);
    let tool = home.join("plimsoll");
    executable::copy(crate::kit::PLIMSOLL, &tool);
    chown(&program, Some(NOBODY), Some(NOBODY)).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let segments = home.join("segments");
    fs::create_dir_all(&segments).expect("directory");
    for dir in [&home, &segments] {
        chown(dir, Some(SOMEONE), Some(SOMEONE)).expect("chown");
    }
    fs::set_permissions(&segments, fs::Permissions::from_mode(0o700)).expect("chmod");
    let mut command = Command::new(&tool);
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
