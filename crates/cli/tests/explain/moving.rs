//! Figures that change while they are read: the error of a line covers what they were at the moment of smaps. The
//! fixture logs what it holds, with the time; the report states when smaps was read.

use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_report::words::parse_moment;
use serde_json::Value;

use crate::fixture::{Explained, Fixture, compiled, fresh, root};
use crate::jdks::{javac, jdks};

/// What the program held while smaps was read: the log's last entry before that, and the next one after it.
fn truth(log: &Path, explained: &Explained) -> [u64; 2] {
    // The report has the time of smaps' end, and since the reading's start all times in milliseconds. The next reading
    // begins after that end.
    let time = parse_moment(explained.0["time"].as_str().expect("a time")).expect("a time");
    let readings = explained.0["readings"].as_array().expect("readings");
    let began = |reading: &Value| reading["began_ms"].as_f64().expect("a time");
    let of_smaps = readings.iter().find(|reading| reading["source"] == "proc").map(began).expect("smaps");
    let later = readings.iter().map(began).filter(|began| *began > of_smaps).fold(f64::INFINITY, f64::min);
    assert!(later.is_finite(), "malloc is read after smaps: {readings:#?}");
    let start = time - ((later - of_smaps) * 1e6) as u64;
    let text = std::fs::read_to_string(log).expect("the log");
    let entries = text.lines().filter_map(|line| {
        let (time, bytes) = line.split_once(' ')?;
        Some((time.parse::<u64>().ok()?, bytes.parse::<u64>().ok()?))
    });
    let entries: Vec<(u64, u64)> = entries.collect();
    // The report's time is cut to the millisecond.
    let after = entries.partition_point(|(at, _)| *at <= start);
    let next = entries.partition_point(|(at, _)| *at <= time + 1_000_000);
    let (_, least) = entries[after.saturating_sub(1)];
    // On a slow machine the program may have stopped growing: then it holds what it held last.
    let (_, most) = *entries.get(next).or(entries.last()).expect("the program grew");
    [least, most]
}

fn line<'e>(explained: &'e Explained, id: &str) -> &'e Value {
    explained.0["lines"].as_array().unwrap().iter().find(|line| line["id"] == id).expect(id)
}

/// The line covers the truth within its error. `slack`: by how much the program's own figure may be wrong, or the line
/// hold other memory.
#[track_caller]
fn covers(case: &str, explained: &Explained, id: &str, [least, most]: [u64; 2], slack: u64) {
    let of = |key: &str| line(explained, id)[key].as_u64().unwrap();
    let (found, error) = (of("resident_bytes"), of("error_bytes"));
    let off = least.saturating_sub(found).max(found.saturating_sub(most));
    assert!(
        off <= error + slack,
        "{case}: {id} is {found} ± {error}, truth {least} to {most}: {:#}",
        explained.0["lines"]
    );
}

#[test]
fn direct_buffers_that_grow_while_they_are_read_have_an_error() {
    let classes = fresh("growing");
    let sources = root().join("fixtures/java/explain");
    let compiled = javac().arg("-d").arg(&classes).arg(sources.join("Growing.java")).status();
    assert!(compiled.expect("javac").success());
    for jdk in jdks() {
        for nmt in ["off", "summary"] {
            let case = format!("JDK {} with NMT {nmt}", jdk.major);
            let log = classes.join("log");
            let mut java = jdk.tool("java");
            java.args(["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch", "-XX:MaxDirectMemorySize=2g"]);
            java.arg(format!("-XX:NativeMemoryTracking={nmt}")).arg("-cp").arg(&classes).arg("Growing").arg(&log);
            let mut fixture = Fixture::run(java.stdin(Stdio::piped()));
            fixture.serves();
            let explained = fixture.explained();
            // NMT counts other memory of Unsafe, too.
            covers(&case, &explained, "direct-buffers", truth(&log, &explained), 256 << 10);
        }
    }
}

#[test]
fn live_blocks_that_grow_in_free_memory_while_they_are_read_have_an_error() {
    let log = fresh("refill").join("log");
    let mut fixture = Fixture::run(Command::new(compiled("refill", &[])).arg(&log).stdin(Stdio::piped()));
    let rest = fixture.explained().line("glibc-live");
    fixture.serves();
    let explained = fixture.explained();
    let truth = truth(&log, &explained).map(|bytes| rest + bytes);
    covers("refill", &explained, "glibc-live", truth, 64 << 10);
}

/// Large blocks that are freed between smaps and the walk of malloc: smaps has their pages, the walk finds no block.
#[test]
fn large_blocks_that_are_freed_while_they_are_read_are_live_with_an_error() {
    for place in [None, Some("merged")] {
        let log = fresh("shrinks").join("log");
        let mut shrinks = Command::new(compiled("shrinks", &[]));
        let mut fixture = Fixture::run(shrinks.args(place).arg(&log).stdin(Stdio::piped()));
        let rest = fixture.explained().line("glibc-live") - fixture.truth("blocks");
        fixture.serves();
        let explained = fixture.explained();
        let [before, after] = truth(&log, &explained).map(|bytes| rest + bytes);
        covers(&format!("{place:?}"), &explained, "glibc-live", [after, before], 256 << 10);
        assert!(explained.line("other-anonymous") < 4 << 20, "{:#}", explained.0["lines"]);
    }
}
