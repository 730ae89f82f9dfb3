//! The program in root directories of other Debian releases, of another CPU, and in one that holds nothing else: it
//! starts there, and the tracker inside it keeps books over the C library of that root.
//!
//! `make test` has the oldest release and the tracker on aarch64. `make test-full` has the program as `make dist` links
//! it; with `PLIMSOLL_RELEASE=dist`, the release files of that folder themselves.

mod aarch64;
mod matrix;
#[path = "../harness/page.rs"]
mod page;
#[path = "../harness/rows.rs"]
mod rows;
mod table;
mod tested_root;

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../../fixtures/child.rs"]
mod child;
#[path = "../../../../fixtures/roots.rs"]
mod roots;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use roots::{Root, SUITES};

fn target() -> &'static Path {
    roots::target(env!("CARGO_TARGET_TMPDIR"))
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("unshare")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// Before glibc 2.34, the first function of every thread lies beside functions that hold the lock of stacks
/// (`attach/native/objects.rs`). No thread could be borrowed if it were forbidden, too.
#[test]
#[ignore = "full: 50 rounds"]
fn attach_enters_threads_of_an_old_libpthread() {
    let Some(root) = Root::of(SUITES[0].0, target()) else { return };
    let Some(program) = root.compiled(&fixture("c/short_threads.c"), target()) else { return };
    let mut command = root.command(&program);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
    let mut program = child::Running(started);
    let mut input = program.0.stdin.take().expect("piped");
    let mut answers = BufReader::new(program.0.stdout.take().expect("piped")).lines();
    let mut answer = || answers.next().expect("it lives").expect("a line");
    assert_eq!(answer(), "ready");
    let pid = program.0.id().to_string();
    let done = |arguments: &[&str]| {
        let done = output(Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments));
        assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    };
    for round in 0..50 {
        let mut ended = || {
            writeln!(input, "how many?").expect("it lives");
            answer().parse::<u64>().expect("a number")
        };
        let before = ended();
        done(&["attach", &pid]);
        child::wait_until("threads to end", || ended() > before + 100);
        done(&["detach", &pid]);
        println!("exercised: round {round}, {before} threads ended");
    }
}

/// Before glibc 2.34, pthread_create is libpthread's, and a library may bring it long after the program's start.
#[test]
fn a_library_brings_an_old_libpthread() {
    let Some(tested) = tested_root::TestedRoot::of(0) else { return };
    let compiled = |name: &str, words: &[&str]| tested.root.compiled_with(&fixture(name), words, target());
    let Some(library) = compiled("c/liblate_threads.c", &["-shared", "-fPIC", "-pthread"]) else { return };
    let Some(program) = compiled("c/late_libpthread.c", &["-ldl"]) else { return };
    for words in ["", "$PLIMSOLL run --report none --"] {
        let done = output(tested.shell().args(["-c", &format!("{words} {program} {library}")]));
        assert!(done.status.success(), "'{words}': {} {}{}", done.status, text(&done.stdout), text(&done.stderr));
        assert_eq!(text(&done.stdout), "100 blocks of other threads\n", "'{words}'");
    }
}

/// `FROM scratch`: no C library, no shell.
#[test]
#[ignore = "full: builds the static program"]
fn the_program_runs_where_nothing_else_is() {
    let Some(root) = Root::bare(target(), &[&tested_root::self_contained("x86_64"), Path::new("/bin/busybox")]) else {
        return;
    };
    let printed = |arguments: &[&str]| {
        let done = output(root.command("/plimsoll").args(arguments));
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    let (code, version) = printed(&["--version"]);
    assert!(code == Some(0) && version.starts_with("plimsoll "), "{version}");
    let (code, doctor) = printed(&["doctor"]);
    assert!(code == Some(0) && doctor.contains("C library  neither glibc nor musl"), "{doctor}");
    let (code, explained) = printed(&["explain", &std::process::id().to_string()]);
    assert!(code == Some(0) && explained.contains("= RSS"), "{explained}");
    let (code, run) = printed(&["run", "--", "/busybox", "echo", "still runs"]);
    assert!(code == Some(0) && run.contains("static executable") && run.contains("still runs"), "{run}");
    fs::remove_dir_all(&root.0).expect("ours");
}

/// `run` has exact books over musl (docs/roots.md).
#[test]
#[ignore = "full: builds the static program"]
fn doctor_accepts_a_system_with_musl() {
    let Some(tested) = tested_root::TestedRoot::of_musl() else { return };
    let done = output(tested.root.command("/plimsoll").args(["doctor", "--format", "json"]));
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let library = found["checks"].as_array().expect("a list").iter().find(|check| check["id"] == "c-library");
    let library = library.expect("a check");
    assert!(library["ok"] == true && library["remedy"].is_null(), "{library}");
    assert!(library["text"].as_str().is_some_and(|text| text.starts_with("musl: ")), "{library}");
}

/// A module belongs to the machine's C library, and crashes a static program that loads it. Here nsswitch.conf names a
/// module first, then /etc/hosts.
#[test]
#[ignore = "full: builds the static program"]
fn the_static_program_looks_names_up_without_modules_of_the_machine() {
    let Some(root) = Root::bare(target(), &[&tested_root::self_contained("x86_64")]) else { return };
    let modules = root.0.join("lib/x86_64-linux-gnu");
    for folder in [&modules, &root.0.join("etc")] {
        fs::create_dir_all(folder).expect("ours");
    }
    let made = |command: &mut Command| {
        let done = output(command);
        assert!(done.status.success(), "{}", text(&done.stderr));
    };
    made(Command::new("mknod").args(["-m", "666"]).arg(root.0.join("dev/null")).args(["c", "1", "3"]));
    for (options, file, source) in [
        (&["-shared", "-fPIC", "-nostdlib"][..], modules.join("libnss_probe.so.2"), "c/libnss_probe.c"),
        (&["-static"][..], root.0.join("look_up"), "c/look_up.c"),
    ] {
        made(Command::new("gcc").args(options).arg("-o").arg(file).arg(fixture(source)));
    }
    fs::write(root.0.join("etc/nsswitch.conf"), "hosts: probe files dns\n").expect("ours");
    fs::write(root.0.join("etc/hosts"), "127.0.0.1 known.invalid\n").expect("ours");
    let loaded = root.0.join("loaded");
    // Any other static program loads it.
    let done = output(root.command("/look_up").arg("known.invalid"));
    assert_eq!(text(&done.stdout), "found\n", "{}", text(&done.stderr));
    fs::remove_file(&loaded).expect("the module was loaded");
    // The first name is found in /etc/hosts, so the sentence is about the second one.
    let names = ["--otlp", "http://known.invalid:4318", "--pyroscope", "http://unknown.invalid:4040"];
    let done = output(root.command("/plimsoll").args(["serve", "--all", "--listen", "127.0.0.1:0"]).args(names));
    let printed = text(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{printed}");
    assert!(printed.contains("cannot look up http://unknown.invalid:4040"), "{printed}");
    assert!(!loaded.exists(), "the program loaded the module");
    fs::remove_dir_all(&root.0).expect("ours");
}
