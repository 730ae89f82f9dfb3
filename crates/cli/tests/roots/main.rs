//! The program as `make dist` links it, in roots of other Debian releases and in one that holds nothing but it: the
//! static program starts, the tracker inside it keeps the books of that root's C library.

#[path = "../../../../fixtures/roots.rs"]
mod roots;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use roots::{Root, SUITES};
use serde_json::Value;

fn target() -> &'static Path {
    roots::target(env!("CARGO_TARGET_TMPDIR"))
}

/// The program, linked statically; built once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = target().join("static");
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "-q", "--locked", "-p", "plimsoll", "--target", &triple, "--target-dir"]).arg(&folder);
        let done = cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
            .output()
            .expect("cargo");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        folder.join(triple).join("debug/plimsoll")
    })
}

/// The root of a suite with the program in it.
fn furnished(suite: &str) -> Option<Root> {
    let root = Root::of(suite, target())?;
    fs::copy(program(), root.0.join("plimsoll")).expect("the program");
    Some(root)
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("unshare")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The report of a run of the program `books N`.
fn report(root: &Root, books: &str, blocks: u32) -> Value {
    let script = format!(
        "/plimsoll run --dir /tmp/segments -- {books} {blocks} && exec /plimsoll report /tmp/segments --format json"
    );
    let done = output(root.command("/bin/sh").args(["-c", &script]));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", text(&done.stdout), text(&done.stderr)))
}

/// Blocks that one of two runs makes more are in its books, to the byte.
#[test]
fn the_tracker_keeps_exact_books_with_each_glibc() {
    for (suite, release) in SUITES {
        let Some(root) = furnished(suite) else { return };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/c/many_blocks.c");
        let Some(books) = root.compiled(&source, target()) else { return };
        let [none, some] = [0, 1000].map(|blocks| report(&root, &books, blocks));
        let more = |figure: &str| {
            let of = |report: &Value| report["total"][figure].as_i64().unwrap_or_else(|| panic!("{report}"));
            of(&some) - of(&none)
        };
        assert_eq!(more("live_count"), 1000, "glibc {release}");
        assert_eq!(more("requested_bytes"), 1000 * 1234, "glibc {release}");
    }
}

/// `explain` of a living process of that root, from inside and from outside: the sum is RSS, and glibc has no gap.
#[test]
fn explain_opens_each_glibc() {
    for (suite, release) in SUITES {
        let Some(root) = furnished(suite) else { return };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/c/many_blocks.c");
        let Some(books) = root.compiled(&source, target()) else { return };
        let script = format!("{books} 1000 stay & read ready </tmp/ready; /plimsoll explain $! --format json; kill $!");
        let script = format!("mkfifo /tmp/ready; {script}");
        let done = output(root.command("/bin/sh").args(["-c", &script]));
        let explained: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|e| panic!("{suite}: {e}: {}{}", text(&done.stdout), text(&done.stderr)));
        assert_eq!(explained["process"]["runtime_version"], *release, "{explained}");
        let gaps: Vec<_> =
            explained["gaps"].as_array().expect("gaps").iter().filter(|gap| gap["source"] == "glibc").collect();
        assert!(gaps.is_empty(), "{suite}: {gaps:?}");
    }
}

/// `FROM scratch`: no C library, no shell.
#[test]
fn the_program_runs_where_nothing_else_is() {
    let Some(root) = Root::bare(target(), &[program(), Path::new("/bin/busybox")]) else { return };
    let said = |arguments: &[&str]| {
        let done = output(root.command("/plimsoll").args(arguments));
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    let (code, version) = said(&["--version"]);
    assert!(code == Some(0) && version.starts_with("plimsoll "), "{version}");
    let (code, doctor) = said(&["doctor"]);
    assert!(code == Some(0) && doctor.contains("C library  not glibc"), "{doctor}");
    let (code, explained) = said(&["explain", &std::process::id().to_string()]);
    assert!(code == Some(0) && explained.contains("= RSS"), "{explained}");
    let (code, run) = said(&["run", "--", "/busybox", "echo", "still runs"]);
    assert!(code == Some(0) && run.contains("static executable") && run.contains("still runs"), "{run}");
    fs::remove_dir_all(&root.0).expect("ours");
}
