//! The figures of an instant against the reports of the same moment. The process is stopped, so that both see the same.

use crate::reader::{Event, Read};
use crate::{Running, Workspace, events, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// The figures of each book: the fields of the events, and the keys of the JSON report.
const FIGURES: [(&str, &str); 7] = [
    ("live", "live_bytes"),
    ("liveCount", "live_count"),
    ("requested", "requested_bytes"),
    ("peak", "peak_bytes"),
    ("countAtPeak", "count_at_peak"),
    ("cumulative", "cumulative_bytes"),
    ("cumulativeCount", "cumulative_count"),
];

fn report(command: &mut Command) -> Value {
    let output = command.output().expect("plimsoll starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The events of the last moment that has one of this kind.
fn last<'r>(read: &'r Read, name: &'r str) -> Vec<&'r Event> {
    let time = events(read, name).map(|event| event.time_ns).max();
    events(read, name).filter(|event| Some(event.time_ns) == time).collect()
}

/// The sums that docs/jfr-events.md promises, in every instant. A category that did not change is not written again:
/// its last event is valid.
pub fn sums_hold(read: &Read) -> usize {
    let mut instants: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
    for event in &read.events {
        instants.entry(event.time_ns).or_default().push(event);
    }
    let mut held = 0;
    let mut categories: BTreeMap<&str, &Event> = BTreeMap::new();
    for events in instants.values() {
        if events.iter().any(|event| event.name == "plimsoll.Target") {
            categories.clear();
        }
        for category in events.iter().filter(|event| event.name == "plimsoll.Category") {
            categories.insert(category.text("category"), category);
        }
        let of = |name: &str| events.iter().filter(|event| event.name == name).copied().collect::<Vec<_>>();
        for (total, parts, figures) in [
            ("plimsoll.Ledger", "plimsoll.LedgerLine", &[("rss", "resident")][..]),
            (
                "plimsoll.Total",
                "plimsoll.Category",
                &["live", "liveCount", "requested", "cumulative", "cumulativeCount", "reserved", "committed"]
                    .map(|f| (f, f)),
            ),
            ("jdk.NativeMemoryUsageTotal", "jdk.NativeMemoryUsage", &["reserved", "committed"].map(|f| (f, f))),
            (
                "plimsoll.Total",
                "plimsoll.Site",
                &["live", "liveCount", "requested", "cumulative", "cumulativeCount"].map(|f| (f, f)),
            ),
        ] {
            let parts = match parts {
                "plimsoll.Category" if !of(total).is_empty() => categories.values().copied().collect(),
                parts => of(parts),
            };
            if parts.is_empty() {
                continue;
            }
            for (whole, part) in figures {
                let sum: u64 = parts.iter().map(|event| event.long(part)).sum();
                assert_eq!(of(total)[0].long(whole), sum, "{total}.{whole} at {}", events[0].time_ns);
                held += 1;
            }
        }
    }
    held
}

#[test]
fn an_instant_of_a_tracked_process_has_the_figures_of_the_reports() {
    let workspace = Workspace::new("values");
    let program = workspace.steps();
    // Steps of 2 ms until it is stopped.
    let target = Running::ready(workspace.plimsoll(&["run", "--"]).arg(program).args(["300000", "2000"]));
    let pid = target.pid();
    let dir = workspace.path("segments");
    wait_until("a segment", || std::fs::read_dir(&dir).is_ok_and(|entries| entries.count() > 0));
    // Some dozen steps, however long they take.
    let books = || report(&mut workspace.plimsoll(&["report", &pid, "--format", "json"]));
    wait_until("blocks", || books()["total"]["live_bytes"].as_u64() > Some(5 << 20));
    target.signal("STOP");
    wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    });
    let output = workspace
        .plimsoll(&["record", &pid, "-o", "v.jfr", "--interval", "200ms", "--duration", "400ms"])
        .output()
        .expect("plimsoll starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let explained = report(&mut workspace.plimsoll(&["explain", &pid, "--format", "json"]));
    let reported = report(&mut workspace.plimsoll(&["report", &pid, "--format", "json"]));
    let read = workspace.read("v.jfr");

    let ledger = last(&read, "plimsoll.Ledger")[0];
    assert_eq!(ledger.long("rss"), explained["rss_bytes"]);
    assert_eq!(ledger.long("remainder"), explained["remainder_bytes"]);
    let lines: BTreeMap<&str, u64> =
        last(&read, "plimsoll.LedgerLine").iter().map(|line| (line.text("line"), line.long("resident"))).collect();
    let of_explain = explained["lines"].as_array().expect("lines");
    assert_eq!(lines.len(), of_explain.len() + 1, "{lines:?} and the remainder");
    for line in of_explain {
        let id = line["id"].as_str().expect("id");
        assert_eq!(line["resident_bytes"], lines[id], "{id}");
    }
    assert!(lines["glibc-live"] > 1 << 20, "{lines:?}");

    let total = last(&read, "plimsoll.Total")[0];
    let categories = last(&read, "plimsoll.Category");
    for (ours, theirs) in &FIGURES {
        assert_eq!(reported["total"][theirs], total.long(ours), "{ours}");
    }
    // A recorder doesn't read the kernel's map each second, so it has the libraries that the tracker lists.
    let reported_categories = reported["categories"].as_array().expect("categories");
    let libraries = reported_categories.iter().find(|one| one["name"] == "Loaded Libraries").expect("libc at least");
    let listed = categories.iter().find(|one| one.text("category") == "Loaded Libraries").expect("libc at least");
    for (ours, theirs) in [("reserved", "reserved_bytes"), ("committed", "committed_bytes")] {
        let of = |one: &Value| one[theirs].as_u64().expect("a number");
        let beside = of(&reported["total"]) - of(libraries);
        assert_eq!(beside, total.long(ours) - listed.long(ours), "{ours}");
        assert!(of(libraries) >= listed.long(ours), "{ours}");
    }
    assert!(categories.len() >= 2, "{categories:?}");
    for category in &categories {
        let name = category.text("category");
        let of_report = reported["categories"].as_array().expect("categories").iter().find(|one| one["name"] == name);
        let of_report = of_report.unwrap_or_else(|| panic!("{name}"));
        for (ours, theirs) in &FIGURES {
            assert_eq!(of_report[theirs], category.long(ours), "{name} {ours}");
        }
    }
    // The two functions of the program are two sites, with names.
    let sites = last(&read, "plimsoll.Site");
    for (function, least) in [("hoard", 2), ("borrow", 0)] {
        let of: Vec<_> = sites
            .iter()
            .filter(|site| format!("{:?}", site.fields["stackTrace"]).contains(&format!("{function:?}")))
            .collect();
        // Blocks that no sample hit are separate from the deep stacks, under the caller's short stack.
        let sum = |figure: &str| of.iter().map(|site| site.long(figure)).sum::<u64>();
        assert!(sum("liveCount") >= least && sum("cumulativeCount") >= 3, "{function}: {of:?}");
    }
    assert_eq!(events(&read, "plimsoll.Target").next().expect("a target").text("mode"), "sampled");
    assert!(events(&read, "jdk.NativeLibrary").any(|library| library.text("name").ends_with("/steps")));
    assert!(sums_hold(&read) > 20);
}

/// One moment as a recording and as JSON. The process is dead, so both describe the same moment.
#[test]
fn a_report_as_a_recording_has_the_figures_of_the_report() {
    let workspace = Workspace::new("report");
    let out = workspace.plimsoll(&["run", "--"]).arg(workspace.steps()).args(["100000", "1000", "300"]).output();
    assert_eq!(out.expect("plimsoll starts").status.code(), Some(7));
    let dir = workspace.path("segments").display().to_string();
    let output =
        workspace.plimsoll(&["report", &dir, "--format", "jfr", "-o", "one.jfr"]).output().expect("plimsoll starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let piped = workspace.plimsoll(&["report", &dir, "--format", "jfr"]).output().expect("plimsoll starts");
    assert_eq!(piped.stdout, std::fs::read(workspace.path("one.jfr")).expect("written"));
    let read = workspace.read("one.jfr");
    let reported = report(&mut workspace.plimsoll(&["report", &dir, "--format", "json"]));

    let total = events(&read, "plimsoll.Total").next().expect("books");
    let mut compared = 0;
    let categories = reported["categories"].as_array().expect("categories");
    for (ours, theirs) in &FIGURES {
        assert_eq!(reported["total"][theirs], total.long(ours), "{ours}");
        for category in events(&read, "plimsoll.Category") {
            let of_report = categories.iter().find(|one| one["name"] == category.text("category")).expect("the same");
            assert_eq!(of_report[theirs], category.long(ours), "{} {ours}", category.text("category"));
            compared += 1;
        }
    }
    assert!(compared >= 14 && sums_hold(&read) >= 14, "{compared}");
    let mut ours: Vec<(u64, u64)> =
        events(&read, "plimsoll.Site").map(|site| (site.long("live"), site.long("cumulativeCount"))).collect();
    let theirs = reported["sites"].as_array().expect("sites").iter();
    let figure = |site: &Value, name: &str| site[name].as_u64().expect("a number");
    // Sites that only map memory have no event.
    let has_blocks =
        |site: &&Value| ["live_bytes", "cumulative_bytes", "peak_bytes"].iter().any(|name| figure(site, name) > 0);
    let theirs = theirs.filter(has_blocks);
    let mut theirs: Vec<_> =
        theirs.map(|site| (figure(site, "live_bytes"), figure(site, "cumulative_count"))).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs, "fewer than 200: each is there");
    let end = events(&read, "plimsoll.TargetEnd").next().expect("it is dead");
    assert_eq!(end.text("state"), "exited");

    // Our own reader, and the options that it refuses.
    let history = report(&mut workspace.plimsoll(&["report", "one.jfr", "--format", "json"]));
    assert_eq!(history["schema"], "plimsoll.recording/1");
    for (arguments, sentence) in [
        (&["report", "one.jfr", "--format", "jfr"][..], "a flight recording already"),
        (&["report", &dir, "--format", "jfr", "--focus", "x"], "leave --focus"),
        (&["diff", &dir, &dir, "--format", "jfr"], "a diff has no"),
        (&["report", "one.jfr", "--by", "thread"], "doesn't divide sites by threads"),
    ] {
        let output = workspace.plimsoll(arguments).output().expect("plimsoll starts");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(sentence), "{arguments:?}");
    }
}

#[test]
fn a_process_without_the_tracker_has_its_ledger() {
    let workspace = Workspace::new("untracked");
    let target = Running::ready(std::process::Command::new(workspace.steps()).args(["100000", "1000"]));
    let output = workspace
        .plimsoll(&["record", &target.pid(), "-o", "u.jfr", "--interval", "50ms", "--duration", "1s"])
        .output()
        .expect("plimsoll starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = workspace.read("u.jfr");
    assert!(events(&read, "plimsoll.Ledger").count() >= 2);
    assert_eq!(events(&read, "plimsoll.Total").count(), 0);
    assert_eq!(events(&read, "plimsoll.Target").next().expect("a target").text("mode"), "untracked");
    assert!(sums_hold(&read) >= 2);
    let output = workspace.plimsoll(&["report", "u.jfr", "--by", "site"]).output().expect("plimsoll starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && errors.contains("without the tracker"), "{errors}");
}

/// Only the parent knows the status of a process without the tracker. It may have ended normally.
#[test]
fn an_end_that_nobody_saw_is_not_called_a_kill() {
    let workspace = Workspace::new("unseen-end");
    let script = ["-c", "echo ready; read line; exit 5"];
    let mut target = Running::ready(Command::new("sh").args(script).stdin(Stdio::piped()));
    let mut recorder = workspace
        .plimsoll(&["record", &target.pid(), "-o", "u.jfr", "--interval", "50ms"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("plimsoll starts");
    wait_until("the first instant", || workspace.path("u.jfr").exists());
    drop(target.0.stdin.take());
    assert!(recorder.wait().expect("it ends").success());
    let output = workspace.plimsoll(&["report", "u.jfr"]).output().expect("plimsoll starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let head = text.lines().next().unwrap_or_default();
    assert!(head.ends_with("ended (how isn't known: only its parent knows)"), "{text}");
}
