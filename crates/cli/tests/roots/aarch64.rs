//! aarch64, run by qemu-user on this machine.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::matrix::{Cell, Program, verbs};
use crate::tested_root::{CROSS, TestedRoot};
use crate::{fixture, output, target, text};

const TRIPLE: &str = "aarch64-unknown-linux-gnu";
/// As .ci/setup installs them.
const TOOLS: [(&str, &str); 3] = [
    ("/usr/bin/qemu-aarch64-static", "qemu-user-static"),
    ("/usr/bin/aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/lib/libc.a", "libc6-dev-arm64-cross"),
];

/// Whether Rust's library for this CPU, the cross compiler and the emulator are installed; if not, a line says so.
pub fn has_tools() -> bool {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    let library = output(rustc.args(["--print", "target-libdir", "--target", TRIPLE]));
    if !Path::new(text(&library.stdout).trim()).exists() {
        println!("aarch64: skipped, this Rust has no library for it: rustup target add {TRIPLE}");
        return false;
    }
    for (file, package) in TOOLS {
        if !Path::new(file).exists() {
            println!("aarch64: skipped, the package {package} isn't installed");
            return false;
        }
    }
    true
}

/// The C program for this CPU.
pub fn compiled(program: &Path) {
    let source = fixture("c/many_blocks.c");
    let done = output(Command::new(CROSS).args(["-O1", "-g", "-funwind-tables", "-o"]).arg(program).arg(source));
    assert!(done.status.success(), "{}", text(&done.stderr));
}

fn cargo(words: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(words).args(["--locked", "--target", TRIPLE, "--target-dir"]).arg(target().join("aarch64"));
    cargo.current_dir(fixture("..")).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CROSS);
    cargo
}

/// The tracker's library, as the program carries it.
fn tracker() -> PathBuf {
    let done = output(&mut cargo(&["build", "-q", "--release", "--manifest-path", "crates/preload/Cargo.toml"]));
    assert!(done.status.success(), "{}", text(&done.stderr));
    target().join("aarch64").join(TRIPLE).join("release/libplimsoll.so")
}

/// The cross compiler's C library suffices: no root of this CPU is needed.
#[test]
fn the_tracker_keeps_exact_books_and_stacks_on_aarch64() {
    if !has_tools() {
        return;
    }
    let folder = target().join("tmp").join(format!("aarch64-{}", std::process::id()));
    let program = folder.join("many_blocks");
    std::fs::create_dir_all(&folder).expect("target/ is ours");
    compiled(&program);
    let source = std::fs::read_to_string(fixture("c/many_blocks.c")).expect("the fixture");
    let line = 1 + source.lines().position(|line| line.contains("malloc(1234)")).expect("a call");
    let tracker = tracker();
    let report = |mode: &str, blocks: u32| -> Value {
        let segments = folder.join(format!("{mode}-{blocks}"));
        // The tracker writes only where nobody else can.
        std::fs::DirBuilder::new().mode(0o700).create(&segments).expect("a new folder");
        let mut qemu = Command::new("qemu-aarch64-static");
        qemu.args(["-L", "/usr/aarch64-linux-gnu", "-E"]).arg(format!("LD_PRELOAD={}", tracker.display()));
        qemu.args(["-E", &format!("PLIMSOLL_SITES={mode}"), "-E", &format!("PLIMSOLL_DIR={}", segments.display())]);
        let done = output(qemu.arg(&program).arg(blocks.to_string()));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let mut plimsoll = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let done = output(plimsoll.arg("report").arg(&segments).args(["--by", "site", "--format", "json"]));
        serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&done.stderr)))
    };
    for mode in ["sampled", "exact"] {
        let [none, some] = [0, 1000].map(|blocks| report(mode, blocks));
        let more = |figure: &str| {
            let of = |report: &Value| report["total"][figure].as_i64().unwrap_or_else(|| panic!("{report}"));
            of(&some) - of(&none)
        };
        assert_eq!((more("live_count"), more("requested_bytes")), (1000, 1000 * 1234), "{mode}");
        if mode == "exact" {
            let sites = some["sites"].as_array().expect("sites").iter();
            let sites: Vec<_> = sites.filter(|site| site["live_count"] == 1000).collect();
            let [site] = sites[..] else { panic!("{some:#}") };
            let frames = site["frames"].as_array().expect("frames");
            let (first, last) = (frames.first().expect("a frame"), frames.last().expect("a frame"));
            // Between them are two of the C library, whose names are in another package.
            let is_whole = first["function"] == "main" && first["line"] == line && last["function"] == "_start";
            assert!(is_whole && frames.len() == 4, "{frames:#?}");
        }
    }
    std::fs::remove_dir_all(folder).expect("ours");
}

/// The whole program, in a root of arm64. Under qemu-user, /proc/PID/maps shows the emulator's own heap instead of the
/// program's, so `explain` has a gap there; whether it has one on such a machine is unknown.
#[test]
#[ignore = "full: builds the program for another CPU"]
fn run_report_and_record_are_right_in_a_root_of_arm64() {
    let Some(tested) = TestedRoot::of_arm64() else { return };
    for (program, found) in [(Program::C, Cell::Exact), (Program::Python, Cell::Near)] {
        let gap = Cell::Gap("mp_ was not recognised in libc's data".to_owned());
        assert_eq!(verbs(&tested, program), [found.clone(), gap, found], "{}", program.name());
    }
}

/// The tracker's own tests that qemu-user can run: the unwinder beside gimli's, memory of the segment, import tables.
/// Others step through instructions, start themselves again, or compare with maps that qemu-user hides.
#[test]
#[ignore = "full: builds the tracker's tests for another CPU"]
fn the_trackers_own_tests_pass_on_aarch64() {
    if !has_tools() {
        return;
    }
    let mut tests = cargo(&["test", "-p", "plimsoll-tracker"]);
    tests.args(["--test", "unwind_walk", "--test", "memory", "--test", "import_tables"]);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64-static -L /usr/aarch64-linux-gnu");
    let done = output(&mut tests);
    let printed = text(&done.stdout);
    assert!(done.status.success(), "{printed}{}", text(&done.stderr));
    let passed = printed.lines().filter(|line| line.starts_with("test ") && line.ends_with(" ... ok")).count();
    assert!(passed >= 12, "{printed}");
}
