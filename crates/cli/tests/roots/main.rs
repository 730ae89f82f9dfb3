//! The program as `make dist` links it, in root directories of other Debian releases, and in one that holds nothing
//! else. The static program starts, and the tracker inside it keeps books over the C library of that root.

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
use serde_json::Value;

fn target() -> &'static Path {
    roots::target(env!("CARGO_TARGET_TMPDIR"))
}

fn program() -> &'static Path {
    roots::static_program(target())
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

/// The report of a run of the program `many_blocks N`. `shell`: a shell in the root.
fn report(mut shell: Command, program: &str, mode: &str, blocks: u32) -> Value {
    let script = format!(
        "/plimsoll run --sites {mode} --dir /tmp/segments -- {program} {blocks} && exec /plimsoll report /tmp/segments --format json"
    );
    let done = output(shell.args(["-c", &script]));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", text(&done.stdout), text(&done.stderr)))
}

/// The books of two runs differ by exactly the blocks that the second run allocates in addition.
fn books_are_exact(shell: impl Fn() -> Command, program: &str, mode: &str, root: &str) {
    let [none, some] = [0, 1000].map(|blocks| report(shell(), program, mode, blocks));
    let more = |figure: &str| {
        let of = |report: &Value| report["total"][figure].as_i64().unwrap_or_else(|| panic!("{report}"));
        of(&some) - of(&none)
    };
    assert_eq!(more("live_count"), 1000, "{root}");
    assert_eq!(more("requested_bytes"), 1000 * 1234, "{root}");
}

#[test]
fn the_tracker_keeps_exact_books_with_each_glibc() {
    for (suite, release) in SUITES {
        let Some(root) = furnished(suite) else { return };
        let Some(program) = root.compiled(&source(), target()) else { return };
        books_are_exact(|| root.command("/bin/sh"), &program, "sampled", &format!("glibc {release}"));
    }
}

/// The tracker's own assembly for aarch64, run by qemu-user.
#[test]
fn the_tracker_keeps_exact_books_on_aarch64() {
    const LINKER: &str = "aarch64-linux-gnu-gcc";
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    let library = output(rustc.args(["--print", "target-libdir", "--target", "aarch64-unknown-linux-gnu"]));
    if !Path::new(text(&library.stdout).trim()).exists() {
        return println!("aarch64: skipped: rustup target add aarch64-unknown-linux-gnu");
    }
    let Some(root) = Root::of_arm64(target()) else { return };
    if !output(&mut root.arm64_command("/bin/true")).status.success() {
        return println!("aarch64: skipped: before Linux 6.7 a namespace has no interpreters of its own (binfmt_misc)");
    }
    root.take(&roots::static_program_for("aarch64", LINKER, target()));
    let done = output(Command::new(LINKER).args(["-O1", "-o"]).arg(root.0.join("many_blocks")).arg(source()));
    assert!(done.status.success(), "{}", text(&done.stderr));
    for mode in ["sampled", "exact"] {
        books_are_exact(|| root.arm64_command("/bin/sh"), "/many_blocks", mode, &format!("aarch64, sites {mode}"));
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

/// The walk finds the blocks that the second of two processes has in addition: a chunk of 1,248 bytes each. No gap is
/// about glibc.
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

/// Before glibc 2.34, the first function of every thread lies beside functions that hold the lock of stacks
/// (`attach/native/objects.rs`). No thread could be borrowed if it were forbidden, too.
#[test]
fn attach_enters_threads_of_an_old_libpthread() {
    let Some(root) = Root::of(SUITES[0].0, target()) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/c/short_threads.c");
    let Some(program) = root.compiled(&source, target()) else { return };
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

/// `FROM scratch`: no C library, no shell.
#[test]
fn the_program_runs_where_nothing_else_is() {
    let Some(root) = Root::bare(target(), &[program(), Path::new("/bin/busybox")]) else { return };
    let printed = |arguments: &[&str]| {
        let done = output(root.command("/plimsoll").args(arguments));
        (done.status.code(), text(&done.stdout) + &text(&done.stderr))
    };
    let (code, version) = printed(&["--version"]);
    assert!(code == Some(0) && version.starts_with("plimsoll "), "{version}");
    let (code, doctor) = printed(&["doctor"]);
    assert!(code == Some(0) && doctor.contains("C library  not glibc"), "{doctor}");
    let (code, explained) = printed(&["explain", &std::process::id().to_string()]);
    assert!(code == Some(0) && explained.contains("= RSS"), "{explained}");
    let (code, run) = printed(&["run", "--", "/busybox", "echo", "still runs"]);
    assert!(code == Some(0) && run.contains("static executable") && run.contains("still runs"), "{run}");
    fs::remove_dir_all(&root.0).expect("ours");
}
