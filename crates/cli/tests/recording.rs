//! `plimsoll report` and `diff` on recordings that a JDK makes here: the figures equal those of `jfr print`.

mod harness;
#[path = "../../../fixtures/jdks.rs"]
mod jdks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{output_of, plimsoll};
use jdks::{Jdk, jdks};
use plimsoll_report::words::parse_moment;
use serde_json::Value;

/// Ends once the recording has everything. The recorder writes each second's events in one round, and at the third
/// count of `rounds` at least one whole round lies behind the last allocation.
const SLEEPER: &str = "public class Sleeper { @jdk.jfr.Period(\"1 s\") static class Round extends jdk.jfr.Event {}\n\
    public static void main(String[] a) throws Exception {\n\
    java.util.List<Object> kept = new java.util.ArrayList<>();\n\
    for (int i = 0; i < Integer.parseInt(a[0]); i++) {\n\
        kept.add(java.nio.ByteBuffer.allocateDirect(4 << 20)); System.gc(); Thread.sleep(20); }\n\
    java.util.concurrent.CountDownLatch rounds = new java.util.concurrent.CountDownLatch(3);\n\
    jdk.jfr.FlightRecorder.addPeriodicEvent(Round.class, rounds::countDown);\n\
    rounds.await(); } }";

fn scratch(name: &str) -> PathBuf {
    harness::scratch("recording", &format!("{name}-{}", std::process::id()))
}

fn record(jdk: &Jdk, folder: &Path, name: &str, rounds: u32) -> PathBuf {
    let source = folder.join("Sleeper.java");
    fs::write(&source, SLEEPER).expect("scratch");
    let compiled = jdk.tool("javac").arg("-d").arg(folder).arg(&source).status().expect("javac");
    assert!(compiled.success());
    let file = folder.join(name);
    let output = jdk
        .tool("java")
        .args(["-Xmx64m", "-XX:MaxDirectMemorySize=1g", "-Xlog:disable", "-XX:NativeMemoryTracking=summary", "-cp"])
        .arg(folder)
        .arg(format!("-XX:StartFlightRecording=filename={},settings=default", file.display()))
        .args(["Sleeper", &rounds.to_string()])
        .output()
        .expect("java");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

fn refused(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    let sentence = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(sentence.trim_end().lines().count(), 1, "one sentence: {sentence}");
    sentence
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&output_of(&[arguments, &["--format", "json"]].concat())).expect("JSON")
}

/// A recording takes seconds, and on an overloaded machine perhaps so long that it shows growth.
fn lasts_a_minute(report: &Value) -> bool {
    let [from, to] = ["from", "to"].map(|end| report[end].as_str().and_then(parse_moment).expect("a time"));
    to - from >= 60_000_000_000
}

/// Values of one field of one event type, as `jfr print --json` shows them: by `key` if there is one.
fn printed(jdk: &Jdk, file: &Path, event: &str, key: Option<&str>, field: &str) -> Vec<(String, u64)> {
    let mut command = Command::new(jdk.home.join("bin/jfr"));
    let output = command.args(["print", "--json", "--events", event]).arg(file).output().expect("jfr");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let events = json["recording"]["events"].as_array().expect("events");
    let name = |values: &Value| key.map_or(String::new(), |key| values[key].as_str().expect("a name").to_string());
    let value = |values: &Value| field.split('.').fold(values, |of, part| &of[part]).as_u64().expect("a number");
    events.iter().map(|event| (name(&event["values"]), value(&event["values"]))).collect()
}

#[test]
fn the_table_has_the_figures_that_jfr_prints() {
    let folder = scratch("table");
    let mut compared = 0;
    for jdk in jdks() {
        let file = record(&jdk, &folder, "one.jfr", 25);
        let name = file.display().to_string();
        let report = json(&["report", &name]);
        assert_eq!(report["schema"], "plimsoll.recording/1");
        assert!(report["process"]["runtime"].as_str().is_some_and(|name| name.contains("Server VM")));
        assert!(report["process"]["command"].as_str().is_some_and(|command| command.starts_with("Sleeper 25")));
        let series = report["series"].as_array().expect("series");
        let of = |section: &str, measure: &str, name: &str| {
            series.iter().find(|series| {
                series["section"] == section
                    && series["measure"] == measure
                    && (name.is_empty() || series["name"] == name)
            })
        };
        for (event, key, field, section, measure) in [
            ("jdk.NativeMemoryUsage", Some("type"), "committed", "categories", "category-committed"),
            ("jdk.NativeMemoryUsage", Some("type"), "reserved", "categories-reserved", "category-reserved"),
            ("jdk.NativeMemoryUsageTotal", None, "committed", "process", "total-committed"),
            ("jdk.ResidentSetSize", None, "size", "process", "rss"),
            ("jdk.GCHeapSummary", None, "heapUsed", "process", "heap-occupied"),
            ("jdk.GCHeapSummary", None, "heapSpace.committedSize", "process", "heap-committed"),
        ] {
            let their = printed(&jdk, &file, event, key, field);
            let mut names: Vec<&str> = their.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let values = || their.iter().filter(|(of, _)| of == name).map(|(_, value)| *value);
                let ours = of(section, measure, name).unwrap_or_else(|| panic!("{event} {name}"));
                assert_eq!(ours["readings"].as_u64(), Some(values().count() as u64), "{event} {name}");
                let figures = [values().next(), values().next_back(), values().min(), values().max()];
                let our = ["first", "last", "min", "max"].map(|figure| ours[figure].as_u64());
                assert_eq!(our, figures, "{event} {name}");
                compared += 1;
            }
        }
        let text = output_of(&["report", &name]);
        assert!(text.contains("Java heap committed (GC)"), "{text}");
        assert!(text.contains("growth needs at least one minute") || lasts_a_minute(&report), "{text}");
        if jdk.records_memory() {
            assert_eq!(report["gaps"].as_array().map(Vec::len), Some(0), "{}", report["gaps"]);
            assert!(text.contains("\nRSS ") && text.contains("committed by category"), "{text}");
        } else if jdk.records_no_memory() {
            // Both events are missing: each is reported once, with what to do.
            assert_eq!(text.lines().filter(|line| line.starts_with("gap: ")).count(), 2, "{text}");
        }
        let later = json(&["report", &name, "--from", "-1s"]);
        let from = |report: &Value| report["from"].as_str().map(String::from);
        assert!(from(&later) > from(&report) && later["to"] == report["to"], "{later}");
    }
    assert!(compared > 10, "{compared}");
    let _ = fs::remove_dir_all(folder);
}

/// A small XML reader: tags closed in order, attributes quoted, no bare `&` or `<`.
fn well_formed(svg: &str) -> usize {
    let (mut open, mut tags) = (Vec::new(), 0);
    let mut rest = svg.trim_start_matches("<?xml version=\"1.0\" encoding=\"UTF-8\"?>").trim();
    while let Some(begin) = rest.find('<') {
        assert!(!rest[..begin].contains('>'), "{}", &rest[..begin]);
        for (at, _) in rest[..begin].match_indices('&') {
            assert!(
                ["&amp;", "&lt;", "&gt;", "&quot;"].iter().any(|e| rest[at..].starts_with(e)),
                "{}",
                &rest[at..begin]
            );
        }
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().expect("a name");
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{tag}"),
            (_, true) => {}
            _ => open.push(name),
        }
        tags += 1;
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    tags
}

#[test]
fn charts_and_what_they_lack() {
    let folder = scratch("charts");
    for jdk in jdks() {
        let file = record(&jdk, &folder, "two.jfr", 22);
        let name = file.display().to_string();
        if jdk.records_memory() {
            for (chart, words) in [("rss-gap", ["RSS", "Java heap, committed"]), ("categories", ["Java Heap", "Other"])]
            {
                let target = folder.join("chart.svg");
                output_of(&["report", &name, "--chart", chart, "-o", target.to_str().expect("UTF-8")]);
                let svg = fs::read_to_string(&target).expect("written");
                assert!(well_formed(&svg) > 20 && svg.len() < 100_000, "{} bytes", svg.len());
                for word in words.iter().chain(&["MiB", "UTC", "Sleeper 22"]) {
                    assert!(svg.contains(word), "{chart} without {word}");
                }
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{chart}");
                // A viewer fetches nothing: the only address is the name of the format.
                assert_eq!(svg.matches("http").count(), 1);
            }
        } else if jdk.records_no_memory() {
            let sentence = refused(&["report", &name, "--chart", "rss-gap"]);
            assert!(sentence.contains("no RSS") && sentence.contains("plimsoll record"), "{sentence}");
            assert!(refused(&["report", &name, "--chart", "categories"]).contains("NativeMemoryTracking=summary"));
        }
        assert!(refused(&["report", &name, "--chart", "lines"]).contains("plimsoll record"));
        if !lasts_a_minute(&json(&["report", &name])) {
            assert!(refused(&["report", &name, "--chart", "growth"]).contains("one minute"));
        }
        assert!(refused(&["report", &name, "--chart", "pie"]).contains("rss-gap"));
        assert!(refused(&["report", &name, "--from", "+1h"]).contains("later than the end"));
        assert!(
            refused(&["report", &name, "--from", "noon"])
                .contains("'noon' for '--from <MOMENT>': expected a moment such as")
        );
    }
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn two_recordings_are_compared_line_by_line() {
    let folder = scratch("diff");
    let jdk = jdks().pop().expect("one");
    let [small, large] = [("small.jfr", 12), ("large.jfr", 30)].map(|(name, n)| record(&jdk, &folder, name, n));
    let [small, large] = [small.display().to_string(), large.display().to_string()];
    let diff = json(&["diff", &small, &large]);
    assert_eq!(diff["schema"], "plimsoll.recording-diff/1");
    let changes = diff["changes"].as_array().expect("changes");
    assert!(changes.len() > 5, "{diff}");
    for change in changes {
        let figure = |side: &str, name: &str| change[side][name].as_i64().unwrap_or(0);
        // A figure that one side didn't record has no change. A line or a category that one side lacks counts as 0
        // there.
        let is_unknown = change["section"] == "process" && ["before", "after"].iter().any(|of| change[of].is_null());
        for name in ["last", "max"] {
            let expected = (!is_unknown).then(|| figure("after", name) - figure("before", name));
            assert_eq!(change[format!("{name}_change")], serde_json::json!(expected), "{change}");
        }
    }
    if jdk.records_memory() {
        // 18 more buffers of 4 MiB, which HotSpot counts under Other.
        let other = changes.iter().find(|change| change["section"] == "categories" && change["name"] == "Other");
        let by = other.and_then(|other| other["max_change"].as_i64()).expect("Other");
        assert!(by.abs_diff(18 * (4 << 20)) < 1 << 20, "{by}");
        let text = output_of(&["diff", &small, &large]);
        let row = text.lines().find(|line| line.starts_with("Other ")).expect("a row");
        assert!(row.contains(" +"), "{row}");
    }
    assert!(refused(&["diff", &small, "1"]).contains("isn't a flight recording"));
    let _ = fs::remove_dir_all(folder);
}

#[test]
fn what_is_not_a_recording_is_refused_in_one_sentence() {
    let folder = scratch("refused");
    let file = folder.join("broken.jfr");
    let name = file.display().to_string();
    for bytes in [
        &b"FLR\0"[..],
        b"FLR\0\0\x02\0\x01",
        b"FLR\0\0\x09\0\x01 and so on and on, for more than the sixty-eight bytes of a header",
    ] {
        fs::write(&file, bytes).expect("scratch");
        assert!(refused(&["report", &name]).contains("no chunk"), "{bytes:?}");
    }
    // A JVM makes the file when it starts and writes it when it ends.
    fs::write(&file, "").expect("scratch");
    let expected = format!(
        "'{name}' is empty: a running JVM writes it at its end; jcmd PID JFR.dump filename={name} writes it now"
    );
    for arguments in [
        &["report", &name][..],
        &["report", &name, "--by", "class"],
        &["diff", &name, &name],
        &["compare", &name, &name],
    ] {
        assert!(refused(arguments).contains(&expected), "{arguments:?}");
    }
    fs::write(&file, "{}").expect("scratch");
    for arguments in [
        &["report", &name, "--from", "+1s"][..],
        &["report", &name, "--chart", "rss-gap"],
        &["diff", &name, &name, "--to", "+1s"],
    ] {
        assert!(refused(arguments).contains("need a flight recording"), "{arguments:?}");
    }
    assert!(refused(&["report", folder.to_str().expect("UTF-8"), "--from", "+1s"]).contains("need a flight recording"));
    let _ = fs::remove_dir_all(folder);
}

/// Conservation over time: the lines of each moment sum to its RSS, so their first, last and mean readings do, too.
#[test]
fn the_lines_of_our_own_recording_sum_to_rss() {
    let folder = scratch("own");
    let file = folder.join("own.jfr");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["record", "--duration", "3s", "-o"])
        .arg(&file)
        .args(["--", "sleep", "10"])
        .env("XDG_CACHE_HOME", &folder)
        .output()
        .expect("plimsoll");
    assert!(file.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    let name = file.display().to_string();
    let report = json(&["report", &name]);
    let series = report["series"].as_array().expect("series");
    let rss = series.iter().find(|series| series["measure"] == "ledger-rss").expect("RSS");
    let lines = || series.iter().filter(|series| series["section"] == "lines");
    assert!(lines().count() >= 4, "{report}");
    for figure in ["first", "last", "readings"] {
        let of_lines = lines().filter_map(|line| line[figure].as_u64());
        let sum = of_lines.sum::<u64>() / if figure == "readings" { lines().count() as u64 } else { 1 };
        assert_eq!(Some(sum), rss[figure].as_u64(), "{figure}");
    }
    let mean = |series: &Value| series["mean"].as_f64().unwrap_or(0.0) * series["readings"].as_f64().unwrap_or(0.0);
    assert!((lines().map(mean).sum::<f64>() - mean(rss)).abs() < 1.0, "{report}");
    let svg = output_of(&["report", &name, "--chart", "lines"]);
    assert!(well_formed(&svg) > 20 && svg.contains("libraries"));
    // A chart ignores none of the options beside it.
    let page = refused(&["report", &name, "--chart", "lines", "--format", "html"]);
    assert!(page.contains("--chart writes SVG"), "{page}");
    for option in [["--by", "site"], ["--focus", "x"], ["--measure", "live"], ["--weight", "calls"]] {
        let sentence = refused(&[&["report", &name, "--chart", "lines"][..], &option].concat());
        assert!(sentence.contains("--chart draws curves of lines: leave --by"), "{option:?}: {sentence}");
    }
    let _ = fs::remove_dir_all(folder);
}
