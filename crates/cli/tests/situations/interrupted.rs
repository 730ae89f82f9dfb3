//! A signal handler that allocates after each instruction of the hooks (fixtures/c/interrupted.c): the books are exact,
//! and each block is booked under its own caller.

use crate::build::{Program, compiled, library_dir};
use crate::kit::{End, Figures, Observed, PLIMSOLL, fresh_dir, scratch, tidy, verdict};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// The least number of instructions that must be interrupted, in all kinds of calls together: two thirds of the usual
/// number. Over glibc that varies by a fifth, since the handler allocates nothing where any word on the stack, even a
/// stale one, points into libc.
const FEWEST: i64 = 1_000;
/// More instructions than any kind of call has: each is interrupted.
const ALL: u32 = 1_000_000;
/// Covers every instruction of the fast paths, and one of several in a walk.
const SOME: u32 = 450;

/// The allocator below the hooks.
#[derive(Clone, Copy)]
enum Below {
    Glibc,
    /// An allocator that a handler may interrupt anywhere, so that no instruction of the hooks is left out.
    Bump,
    Debians(&'static str),
}

impl Below {
    fn preload(self) -> Option<PathBuf> {
        match self {
            Below::Glibc => None,
            Below::Bump => {
                compiled(&Program::library("libbump"));
                Some(library_dir().join("libbump.so"))
            }
            Below::Debians(file) => {
                let path = PathBuf::from(format!("/usr/lib/{}-linux-gnu/{file}", std::env::consts::ARCH));
                assert!(path.exists(), "{file} is not installed; .ci/setup does that");
                Some(path)
            }
        }
    }
}

/// Interrupts at most `most` instructions of each kind of call, with these options of `plimsoll run`.
fn interrupt(name: &str, below: Below, most: u32, options: &[&str]) {
    let program = compiled(&Program::of("interrupted"));
    let dir = fresh_dir(&format!("interrupted-{name}"));
    let mut command = Command::new(PLIMSOLL);
    command.args(["run", "--dir"]).arg(&dir).args(options).arg("--").arg(&program);
    command.arg(if matches!(below, Below::Bump) { "anywhere" } else { "outside" }).arg(most.to_string());
    command.env("XDG_CACHE_HOME", scratch("cache"));
    if let Some(path) = below.preload() {
        command.env("LD_PRELOAD", path);
    }
    let seen = Observed::watch(command, Some(&dir));
    let (compared, differences) = seen.books(&dir, || Err("no base".into()));
    let mut faults = differences.iter().map(|d| format!("  {d}\n")).collect::<String>();
    if seen.late || seen.end != End::Exit(0) || !seen.errors.is_empty() || seen.output.contains("FAILED") {
        let _ = writeln!(faults, "  {:?} {} {}", seen.end, seen.output, seen.errors);
    }
    match seen.moments.last().map(|last| Figures::of_process(&dir, last.pid)) {
        Some(Ok(figures)) => faults += &by_caller(&seen.output, &figures),
        other => faults += &format!("  no last report: {other:?}\n"),
    }
    let interrupted: i64 = seen.output.lines().filter_map(|line| figure(line, " at=")).sum();
    if interrupted < FEWEST {
        let _ = writeln!(faults, "  only {interrupted} instructions were interrupted\n{}", seen.output);
    }
    tidy(&dir);
    verdict(&format!("interrupted_{name}"), &faults, compared);
}

/// The number behind a key in a line of the fixture.
fn figure(line: &str, key: &str) -> Option<i64> {
    line.split_once(key)?.1.split(' ').next()?.parse().ok()
}

/// The interrupted calls and the handler are two groups of callers. Each group's blocks are booked under its own
/// callers, and no block is left.
fn by_caller(output: &str, figures: &Figures) -> String {
    let mut faults = String::new();
    if figures.counter("unknown_frees") + figures.counter("unbooked_blocks") + figures.counter("faults") != 0 {
        let _ = writeln!(faults, "  counters: {}", figures.json["counters"]);
    }
    let callers = figures.json["callers"].as_array().expect("callers");
    let mut groups = 0;
    for line in output.lines().filter(|line| line.starts_with("callers ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let [from, to] = [2, 3].map(|i| i64::from_str_radix(words[i], 16).expect("an offset"));
        let is_here = |caller: &&Value| {
            let frame = &caller["frames"][0];
            let module = frame["module"].as_str().unwrap_or("");
            let name = module.rsplit('/').next().unwrap_or("");
            name.starts_with("interrupted-") && frame["offset"].as_i64().is_some_and(|at| at > from && at <= to)
        };
        let sum = |key: &str| callers.iter().filter(is_here).filter_map(|c| c[key].as_i64()).sum::<i64>();
        let says = figure(line, "allocated=").expect("a number");
        let has = sum("cumulative_count");
        if has != says {
            let _ = writeln!(faults, "  {}: {has} blocks are booked under its callers, it allocated {says}", words[1]);
        }
        for left in callers.iter().filter(is_here) {
            if ["live_count", "live_bytes", "requested_bytes"].iter().any(|key| left[key] != 0) {
                let _ = writeln!(faults, "  {}: all blocks are freed, and one caller has {left}", words[1]);
            }
        }
        groups += 1;
    }
    if groups != 2 {
        let _ = writeln!(faults, "  {groups} groups of callers\n{output}");
    }
    faults
}

macro_rules! interrupted {
    ($($(#[$m:meta])* $test:ident => $below:expr, $most:expr, $options:expr;)*) => {
        $($(#[$m])* #[test] fn $test() { interrupt(stringify!($test), $below, $most, &$options) })*
    };
}

const JEMALLOC: Below = Below::Debians("libjemalloc.so.2");
const TCMALLOC: Below = Below::Debians("libtcmalloc_minimal.so.4");
const MIMALLOC: Below = Below::Debians("libmimalloc.so.2");

interrupted! {
    over_glibc_fast_paths => Below::Glibc, SOME, ["--sites", "sampled"];
    over_bump_fast_paths => Below::Bump, SOME, ["--sites", "sampled"];
    #[ignore = "full: every instruction"]
    over_glibc => Below::Glibc, ALL, ["--sites", "sampled"];
    #[ignore = "full: every instruction"]
    over_bump => Below::Bump, ALL, ["--sites", "sampled"];
    #[ignore = "full: every instruction"]
    over_bump_off => Below::Bump, ALL, ["--sites", "off"];
    #[ignore = "full: every instruction"]
    over_bump_exact => Below::Bump, ALL, ["--sites", "exact"];
    #[ignore = "full: every instruction"]
    over_glibc_exact => Below::Glibc, ALL, ["--sites", "exact"];
    #[ignore = "full: which blocks are samples depends on luck"]
    over_bump_all_samples => Below::Bump, ALL, ["--sites", "sampled", "--sample", "256"];
    #[ignore = "full: which blocks are samples depends on luck"]
    over_glibc_all_samples => Below::Glibc, ALL, ["--sites", "sampled", "--sample", "256"];
    #[ignore = "full: every instruction"]
    over_jemalloc => JEMALLOC, ALL, ["--sites", "sampled"];
    #[ignore = "full: every instruction"]
    over_tcmalloc => TCMALLOC, ALL, ["--sites", "sampled"];
    #[ignore = "full: every instruction"]
    over_mimalloc => MIMALLOC, ALL, ["--sites", "sampled"];
}
