//! The program and the tracker on Debian's kernels, in machines that have what a container lacks: a cgroup's limit with
//! a real OOM kill, Yama, hidepid, huge pages for everybody. What is expected comes from the C programs: their counts,
//! their sizes. `machine.rs` boots, fixtures/kernels/init has the commands, docs/kernels.md the table.

#[path = "../harness/page.rs"]
mod docs_page;
mod kernel;
mod machine;
mod page;
#[path = "../../../../fixtures/roots.rs"]
mod roots;
#[path = "../harness/rows.rs"]
mod rows;

use std::path::{Path, PathBuf};

use machine::machines;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn target() -> &'static Path {
    roots::target(env!("CARGO_TARGET_TMPDIR"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn line(ledger: &Value, id: &str) -> u64 {
    let lines = ledger["lines"].as_array().expect("lines").iter().filter(|line| line["id"] == id);
    lines.map(|line| bytes(&line["resident_bytes"])).sum()
}

fn has_verdict(ledger: &Value, id: &str) -> bool {
    ledger["verdicts"].as_array().expect("verdicts").iter().any(|verdict| verdict["id"] == id)
}

/// `many_blocks N` has N blocks of 1,234 bytes; in glibc each takes a chunk of 1,248.
#[test]
fn books_and_the_walk_of_the_heap_are_exact() {
    for machine in machines() {
        let at = &machine.release;
        let [none, some] = ["books-0", "books-1000"].map(|row| machine.json(row)["total"].clone());
        let more = |figure: &str| bytes(&some[figure]) - bytes(&none[figure]);
        assert_eq!((more("live_count"), more("requested_bytes")), (1000, 1000 * 1234), "{at}");
        let [none, some] = ["explain-0", "explain-1000"].map(|row| {
            let ledger = machine.json(row);
            assert_eq!(ledger["gaps"], Value::Array(Vec::new()), "{at}");
            bytes(&ledger["arenas"][0]["live_bytes"])
        });
        assert_eq!(some - none, 1000 * 1248, "{at}");
    }
}

/// The last reading of a series.
fn last(recording: &Value, measure: &str, name: &str) -> u64 {
    let mut series = recording["series"].as_array().expect("series").iter();
    let of = series.find(|series| series["measure"] == measure && series["name"] == name);
    bytes(&of.unwrap_or_else(|| panic!("no {measure} {name}: {recording:#}"))["last"])
}

#[test]
fn recordings_have_the_lines_and_the_books() {
    for machine in machines() {
        let at = &machine.release;
        machine.text("record-living");
        let living = machine.json("report-living");
        let live = last(&living, "line", "glibc-live");
        assert!((20_000 * 1248..20_000 * 1248 + 8192).contains(&live), "{at}: {live}");
        assert_eq!(last(&living, "cgroup-limit", "memory limit"), 512 * MIB, "{at}");
        machine.text("record-command");
        let command = machine.json("report-command");
        assert_eq!(last(&command, "total-live", "live, all categories"), 1000 * 1248, "{at}");
        assert_eq!((&command["ended"]["how"], &command["ended"]["code"]), (&"exited".into(), &0.into()), "{at}");
    }
}

/// The limit is what was written into memory.max; the charge is split into parts that sum up to it.
#[test]
fn explain_has_the_limit_and_what_is_charged_against_it() {
    for machine in machines() {
        let at = &machine.release;
        let ledger = machine.json("limit");
        let (limit, group) = (&ledger["limit"], &ledger["cgroup"]);
        assert_eq!((bytes(&limit["bytes"]), &limit["source"]), (512 * MIB, &"memory.max".into()), "{at}");
        let (charged, truth) = (bytes(&limit["charged_bytes"]), machine.text("charge").trim().parse().expect("bytes"));
        // Between the two readings threads of the kernel may give back pages that they keep in reserve.
        assert!(charged.abs_diff(truth) < MIB, "{at}: {charged}, and then {truth}");
        let parts = group["lines"].as_array().expect("lines").iter().map(|line| bytes(&line["bytes"])).sum::<u64>();
        let rest = group["rest_bytes"].as_i64().expect("a rest");
        assert_eq!(parts as i64 + rest, charged as i64, "{at}: {group:#}");
        let processes = bytes(&group["lines"][0]["bytes"]);
        assert!((20_000 * 1248..20_000 * 1248 + 2 * MIB).contains(&processes), "{at}: {group:#}");
    }
}

/// `hog` counts each block of 1 MiB once it has written it. The kernel kills it while it requests or writes the next
/// one.
#[test]
fn the_books_of_a_program_that_the_oom_killer_ended_are_kept() {
    for machine in machines() {
        let at = &machine.release;
        let written = |row: &str| {
            let row = machine.row(row);
            assert_eq!(row.status, 128 + 9, "{at}: {}{}", row.out, row.err);
            row.out
                .lines()
                .next_back()
                .and_then(|line| line.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("{}", row.out))
        };
        let blocks = written("oom-run");
        let books = machine.json("oom-json");
        let live = bytes(&books["total"]["live_count"]);
        assert!((blocks..=blocks + 1).contains(&live), "{at}: {live} of {blocks}");
        assert_eq!(bytes(&books["total"]["requested_bytes"]), live * MIB, "{at}");
        assert_eq!((&books["ended"]["how"], &books["ended"]["signal"]), (&"oom-killed".into(), &9.into()), "{at}");
        assert!(machine.text("oom-text").lines().next().is_some_and(|line| line.contains("OOM-killed")), "{at}");

        written("oom-waited");
        let waited = &machine.row("oom-waited").err;
        assert!(waited.lines().next().is_some_and(|line| line.contains("OOM-killed")), "{at}: {waited}");

        written("oom-recorded");
        let recording = machine.text("oom-recording");
        assert!(recording.lines().next().is_some_and(|line| line.ends_with("OOM-killed")), "{at}: {recording}");

        // Only root may read the kernel's log: the end is unknown, and a gap names the remedy.
        written("oom-user");
        let user = machine.text("oom-user-text");
        assert!(user.lines().next().is_some_and(|line| line.contains("killed, or replaced by exec")), "{at}: {user}");
        assert!(
            user.contains("an OOM kill of the process would not be recognised: run plimsoll as root"),
            "{at}: {user}"
        );
    }
}

#[test]
fn an_ordinary_user_tracks_its_own_programs_and_gets_a_remedy_for_those_of_others() {
    for machine in machines() {
        let at = &machine.release;
        let own = machine.json("user-report");
        assert_eq!(bytes(&own["total"]["requested_bytes"]), 1000 * 1234, "{at}");
        let other = machine.text("user-other");
        assert!(other.contains("smaps can't be read: process") && other.contains("is another user's"), "{at}: {other}");
        assert!(other.contains("type plimsoll explain ") && other.contains("   # as root, or "), "{at}: {other}");
    }
}

#[test]
fn hidden_processes_have_a_sentence_with_the_remedy() {
    for machine in machines() {
        let at = &machine.release;
        let other = machine.row("hidepid-other");
        assert_eq!(other.status, 2, "{at}: {}", other.out);
        assert!(other.err.ends_with("or /proc hides it (hidepid): run plimsoll as root\n"), "{at}: {}", other.err);
        let doctor = machine.text("hidepid-doctor");
        assert!(doctor.contains("! processes  /proc hides processes of other users (hidepid)"), "{at}: {doctor}");
        assert!(machine.text("hidepid-root").contains("= RSS"), "{at}");
    }
}

/// `huge` touches one byte in each 2 MiB, and counts what became resident.
#[test]
fn huge_pages_for_everybody_have_a_verdict_and_the_tracker_has_none() {
    for machine in machines() {
        let at = &machine.release;
        let truth = machine.text("huge-truth").strip_prefix("resident ").and_then(|text| text.lines().next());
        let truth = truth.and_then(|text| text.parse::<u64>().ok()).expect("bytes");
        assert_eq!(truth, 128 * MIB, "{at}: no huge pages");
        let ledger = machine.json("huge-explain");
        assert!((truth..truth + 64 * 1024).contains(&line(&ledger, "other-anonymous")), "{at}: {:#}", ledger["lines"]);
        assert!(has_verdict(&ledger, "huge-pages"), "{at}: {:#}", ledger["verdicts"]);
        // The tracker's memory is smaller than one huge page.
        let tracked = machine.json("huge-tracked");
        assert!((1..2 * MIB).contains(&line(&tracked, "tracker")), "{at}: {:#}", tracked["lines"]);
    }
}

/// The segment of a program with 4,096 call paths needs more than the 1 MiB of this disk. The program ends well, and
/// what the books lack is counted. Only the kernel without MADV_POPULATE_WRITE has the module for the disk unpacked.
#[test]
fn a_full_disk_stops_the_books_and_not_the_program() {
    for machine in machines().filter(|machine| machine.has("full-run")) {
        let at = &machine.release;
        machine.text("full-run");
        let (books, disk) = (machine.json("full-report"), machine.text("full-df"));
        let counter = |name: &str| {
            let mut counters = books["counters"].as_array().expect("counters").iter();
            bytes(&counters.find(|counter| counter["name"] == name).expect("a counter")["value"])
        };
        assert!(counter("grow_failures") > 0, "{at}: {disk}");
        assert_eq!(counter("faults"), 0, "{at}");
        assert_eq!(bytes(&books["total"]["live_count"]), 4096, "{at}");
    }
    assert!(machines().take(1).all(|oldest| oldest.has("full-run")), "the oldest kernel has no disk");
}

/// What each scope of Yama leaves to an ordinary user who looks at its own process.
#[test]
fn each_scope_of_yama_has_its_sentence() {
    const REFUSED: [(&str, &str); 4] = [
        ("", ""),
        (
            "belongs to this user, but isn't a child of plimsoll, as kernel.yama.ptrace_scope = 1 requires",
            "   # as root",
        ),
        ("belongs to this user, but kernel.yama.ptrace_scope = 2 leaves tracing to root", "   # as root"),
        ("is closed to everybody: kernel.yama.ptrace_scope = 3 until the next boot", "plimsoll run --"),
    ];
    for machine in machines() {
        for (scope, (reason, remedy)) in REFUSED.into_iter().enumerate() {
            let at = format!("{} ptrace_scope {scope}", machine.release);
            let row = |what: &str| machine.row(&format!("yama-{scope}-{what}"));
            let (explained, attach, root) = (&row("explain").out, row("attach"), &row("root").out);
            // The mappings are shown with every scope.
            assert!(explained.contains("= RSS") && root.contains("= RSS"), "{at}: {explained}{root}");
            assert_eq!(root.contains("glibc, live"), scope < 3, "{at}: {root}");
            if scope == 0 {
                assert!(explained.contains("1,001 blocks"), "{at}: {explained}");
                assert!(attach.status == 0 && attach.out.starts_with("attached to process "), "{at}: {}", attach.err);
                continue;
            }
            assert!(
                explained.contains(&format!("/mem can't be opened: process {} {reason}", pid(attach))),
                "{at}: {explained}"
            );
            let is_typed = |line: &str| line.starts_with("    type ") && line.contains(remedy);
            assert!(explained.lines().any(is_typed), "{at}: {explained}");
            assert_eq!(attach.status, 2, "{at}: {}", attach.out);
            assert!(
                attach.err.contains(&format!("can't be traced: it {reason}. Try: ")) && attach.err.contains(remedy),
                "{at}: {}",
                attach.err
            );
            let doctor = &row("doctor").out;
            assert!(doctor.contains(&format!("! ptrace     kernel.yama.ptrace_scope = {scope}")), "{at}: {doctor}");
        }
        // The tracker and its books need no tracing.
        machine.text("yama-run");
        assert_eq!(bytes(&machine.json("yama-report")["total"]["requested_bytes"]), 1000 * 1234, "{}", machine.release);
    }
}

/// The PID of the refused process, from the message.
fn pid(attach: &rows::Row) -> &str {
    let words = attach.err.strip_prefix("plimsoll: process ");
    words.and_then(|text| text.split(' ').next()).unwrap_or_else(|| panic!("{}", attach.err))
}
