//! Sites of programs with known answers: stacks that are hard to walk, and modes that change while a program runs.

mod harness;

use harness::{PLIMSOLL, compiled, number, only_segment, output_of, read_report};
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_segment::sites;
use plimsoll_tracked::segment;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn scratch(name: &str) -> PathBuf {
    harness::scratch("site_modes", name)
}

/// (Live blocks, their requested bytes) of sites whose functions begin with these, innermost first.
fn live(report: &Value, functions: &[&str]) -> (u64, u64) {
    let begins = |s: &&Value| {
        let frames = s["frames"].as_array().expect("frames");
        functions.len() <= frames.len()
            && functions.iter().zip(frames).all(|(f, frame)| frame["function"] == **f || frame["kind"] == **f)
    };
    let sites = report["sites"].as_array().expect("sites").iter().filter(begins);
    sites.fold((0, 0), |(n, b), s| (n + number(s, "live_count"), b + number(s, "requested_bytes")))
}

/// With and without frame pointers, and with the smallest depth.
#[test]
fn stacks_that_are_hard_to_walk_have_their_blocks() {
    for (name, flags, depth) in [
        ("plain", &[][..], "256"),
        ("frame_pointers", &["-fno-omit-frame-pointer"][..], "1024"),
        ("unwind_tables_off", &["-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer"][..], "16"),
    ] {
        for check in ["0", "1"] {
            let folder = scratch(&format!("hard-{name}-{check}"));
            let segments = scratch(&format!("hard-{name}-{check}-segments"));
            let program = compiled("deep_stacks", &folder.join("deep_stacks"), flags);
            let output = Command::new(PLIMSOLL)
                .args(["run", "--sites", "exact", "--depth", depth, "--dir"])
                .arg(&segments)
                .args(["--", &program])
                .env("PLIMSOLL_CHECK", check)
                .output()
                .expect("plimsoll");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "kept 18\n", "{name}: {output:?}");
            let segment = only_segment(&segments).display().to_string();
            let report = read_report(&output_of(&["report", "--by", "site", "--format", "json", &segment]));
            let of = |functions: &[&str]| live(&report, functions);
            assert_eq!(of(&["descend"; 12]), (3, 3 * 1001), "{name}: 10,000 frames are cut at their outer end");
            assert_eq!(of(&["in_handler", "handler"]), (2, 2 * 2002), "{name}: on a signal's own stack");
            assert_eq!(of(&["routine"]), (4, 4 * 3003), "{name}: on coroutines' stacks");
            assert_eq!(of(&["jit"]), (2, 2 * 4004), "{name}: generated code");
            assert_eq!(of(&["with_garbage"]), (2, 2 * 5005), "{name}: a frame pointer that leads nowhere");
            assert_eq!(of(&["thread_routine"]), (5, 5 * 6006), "{name}: threads");
            if name == "plain" {
                // Through the signal's trampoline back to the interrupted stack, and through generated code to its
                // caller.
                assert_eq!(of(&["jit", "enter_generated", "main"]), (2, 2 * 4004));
                let frames = report["sites"].as_array().expect("sites").iter().filter_map(|s| s["frames"].as_array());
                let interrupted = frames.filter(|f| f.iter().any(|f| f["function"] == "in_handler"));
                let mut whole = 0;
                for frames in interrupted {
                    assert!(frames.iter().any(|f| f["function"] == "wait_for"), "{frames:?}");
                    assert!(frames.iter().any(|f| f["function"] == "main"), "{frames:?}");
                    whole += 1;
                }
                assert!(whole > 0);
            }
            let read = segment::read(&only_segment(&segments), Deadline::after(NAMES)).expect("segment");
            assert_eq!((read.counter("memo_disagreements"), read.counter("faults")), (0, 0), "{name}");
            let cut = read.callers.iter().filter(|c| c.is_site()).filter(|c| {
                let last = sites::stack(&read.frames, c.stack).last();
                last.is_some_and(|f| f.kind() == plimsoll_segment::FrameKind::Cut && f.value == 0)
            });
            assert!(cut.count() >= 1, "{name}: no stack of the recursion ends with the mark of a cut");
        }
    }
}

/// off → sampled → exact → off, on one running program; the books by category stay complete.
#[test]
fn modes_are_switched_while_the_program_runs() {
    let (folder, segments) = (scratch("switch"), scratch("switch-segments"));
    let program = compiled("churn", &folder.join("churn"), &[]);
    let mut child = Command::new(PLIMSOLL)
        .args(["run", "--sites", "off", "--dir"])
        .arg(&segments)
        .args(["--", &program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("plimsoll");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("ready");
    let path = only_segment(&segments);
    let sites_of = |s: &segment::Segment| s.callers.iter().filter(|c| c.is_site()).count();
    // How many blocks were ever booked for sites.
    let booked = |s: &segment::Segment| -> u64 {
        let is_site = |r: &&segment::RowSums| s.callers.get(r.caller as usize).is_some_and(|c| c.is_site());
        s.rows.iter().filter(is_site).map(|r| r.alloc_count).sum()
    };
    let before = segment::read(&path, Deadline::after(NAMES)).expect("segment");
    assert_eq!((before.head.mode, sites_of(&before)), (0, 0), "mode off keeps no sites");
    let mut last = before;
    for (number, enough) in [(1, 5), (2, 5000), (0, 0)] {
        segment::set_control(child.id(), &path, number, 4096, Deadline::after(NAMES)).expect("the word is written");
        let deadline = Instant::now() + Duration::from_secs(60);
        let now = loop {
            let now = segment::read(&path, Deadline::after(NAMES)).expect("segment");
            if now.head.mode == number && booked(&now) >= booked(&last) + enough {
                break now;
            }
            assert!(Instant::now() < deadline, "mode {number}: {} booked, {} before", booked(&now), booked(&last));
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(now.head.sample_mean, 4096);
        if number != 0 {
            assert!(now.counter("samples") > last.counter("samples"));
        }
        last = now;
    }
    // A thread that was interrupted inside a hook may still book one block in the old mode; then only callers are
    // booked.
    let sum = |s: &segment::Segment| s.rows.iter().map(|r| r.alloc_count).sum::<u64>();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut quiet, mut beyond) = (last, 0);
    while beyond < 1000 {
        assert!(Instant::now() < deadline, "mode off goes on booking in sites, or nothing is booked: {beyond}");
        std::thread::sleep(Duration::from_millis(20));
        let now = segment::read(&path, Deadline::after(NAMES)).expect("segment");
        if booked(&now) == booked(&quiet) {
            beyond = sum(&now) - sum(&quiet);
        } else {
            quiet = now;
        }
    }
    child.stdin.take().expect("piped").write_all(b"\n").expect("the program listens");
    assert!(child.wait().expect("status").success());
    let end = segment::read(&path, Deadline::after(NAMES)).expect("segment");
    let live: i64 = end.rows.iter().map(|r| r.alloc_count as i64 - r.free_count as i64).sum();
    let kept = end.rows.iter().map(|r| r.alloc_count).sum::<u64>() / 200;
    assert!(live > 0 && (live - kept as i64).abs() < 20, "{live} live, about {kept} were kept");
}
