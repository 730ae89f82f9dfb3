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
    root.take(program());
    Some(root)
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("unshare")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/c/many_blocks.c")
}

/// The report of a run of the program `many_blocks N`.
fn report(root: &Root, program: &str, blocks: u32) -> Value {
    let script = format!(
        "/plimsoll run --dir /tmp/segments -- {program} {blocks} && exec /plimsoll report /tmp/segments --format json"
    );
    let done = output(root.command("/bin/sh").args(["-c", &script]));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", text(&done.stdout), text(&done.stderr)))
}

/// Blocks that one of two runs makes more are in its books, to the byte.
#[test]
fn the_tracker_keeps_exact_books_with_each_glibc() {
    for (suite, release) in SUITES {
        let Some(root) = furnished(suite) else { return };
        let Some(books) = root.compiled(&source(), target()) else { return };
        let [none, some] = [0, 1000].map(|blocks| report(&root, &books, blocks));
        let more = |figure: &str| {
            let of = |report: &Value| report["total"][figure].as_i64().unwrap_or_else(|| panic!("{report}"));
            of(&some) - of(&none)
        };
        assert_eq!(more("live_count"), 1000, "glibc {release}");
        assert_eq!(more("requested_bytes"), 1000 * 1234, "glibc {release}");
    }
}

/// What `explain` says of the living program `many_blocks N`, from inside the root.
fn explained(root: &Root, program: &str, blocks: u32) -> Value {
    let script = format!(
        "mkfifo /tmp/ready; {program} {blocks} stay & read ready </tmp/ready; /plimsoll explain $! --format json; kill $!"
    );
    let done = output(root.command("/bin/sh").args(["-c", &script]));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", text(&done.stdout), text(&done.stderr)))
}

/// The walk finds the blocks that one of two processes has more: a chunk of 1,248 bytes each. glibc has no gap.
#[test]
fn explain_opens_each_glibc() {
    for (suite, release) in SUITES {
        let Some(root) = furnished(suite) else { return };
        let Some(program) = root.compiled(&source(), target()) else { return };
        let both = [0, 1000].map(|blocks| explained(&root, &program, blocks));
        let [none, some] = both.each_ref().map(|ledger| ledger["arenas"][0]["live_bytes"].as_u64().expect("an arena"));
        assert_eq!(some - none, 1000 * 1248, "glibc {release}");
        let gaps = both.iter().flat_map(|ledger| ledger["gaps"].as_array().expect("gaps"));
        let gaps: Vec<_> = gaps.filter(|gap| gap["source"] == "glibc").collect();
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
