//! The readers that people use: the `jfr` of both JDKs, jdk.jfr.consumer, JDK Mission Control's parser and
//! async-profiler's.

use crate::reader::Value;
use crate::stage::{Jdk, cached, fetch, fetcher, jdks, log_line, must, repository};
use crate::{Running, Workspace, events, wait_until};
use plimsoll_facts::units::Bytes;
use plimsoll_jfr::writer::{Batch, Frame, Recording, Series, Stack};
use plimsoll_report::jfr::{TABLE, events as e};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// fixtures/java/recording: a class path.
fn classes() -> String {
    let source = repository().join("fixtures/java/recording");
    let mut hash = DefaultHasher::new();
    for name in ["pom.xml", "Readers.java"] {
        fs::read(source.join(name)).expect("a fixture").hash(&mut hash);
    }
    let folder = cached(&format!("recording-{:016x}", hash.finish()), |part| {
        let mut maven = fetcher("mvn");
        maven.args(["-q", "-B", "-U", "dependency:copy-dependencies", "-f"]).arg(source.join("pom.xml"));
        maven.arg(format!("-DoutputDirectory={}", part.join("jars").display()));
        maven.arg(format!("-Dmaven.repo.local={}", crate::stage::cache().join("m2").display()));
        fetch(&mut maven, part);
        let mut compiler = jdks()[0].tool("javac");
        compiler.args(["--release", "17", "-cp"]).arg(part.join("jars/*"));
        compiler.arg("-d").arg(part.join("classes")).arg(source.join("Readers.java"));
        must(&mut compiler);
    });
    format!("{0}/classes:{0}/jars/*", folder.display())
}

fn java(home: &Path, mode: &str, path: &Path) -> String {
    let mut command = Command::new(home.join("bin/java"));
    command.args(["-Dfile.encoding=UTF-8", "-cp", &classes(), "Readers", mode]).arg(path);
    String::from_utf8(must(&mut command)).expect("UTF-8")
}

/// Reads every file of a folder with all readers of both JDKs, in one process for each JDK.
pub fn open_all(folder: &Path, files: usize) {
    for Jdk { major, home } in jdks() {
        let opened = java(&home, "open", folder);
        assert_eq!(opened.lines().count(), files, "JDK {major}");
        for line in opened.lines() {
            let count: usize = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
            assert!(count > 5, "JDK {major}: {line}");
        }
    }
}

/// Which category grew until an OOM kill, found as a person would.
pub fn view_oom(file: &Path) {
    for jdk in jdks() {
        let Jdk { major, home } = &jdk;
        let printed = jfr(home, &["print", "--events", "plimsoll.TargetEnd"], file);
        assert!(printed.contains("oomKilled = true") && printed.contains("memory limit"), "JDK {major}: {printed}");
        if jdk.views_recordings() {
            let sites = jfr(home, &["view", "--width", "300", "plimsoll.Site"], file);
            assert!(sites.contains("hoard"), "{sites}");
            let usage = jfr(home, &["view", "native-memory-committed"], file);
            assert!(usage.contains("steps"), "{usage}");
        }
    }
}

fn jfr(home: &Path, arguments: &[&str], file: &Path) -> String {
    let mut command = Command::new(home.join("bin/jfr"));
    command.args(arguments).arg(file);
    String::from_utf8_lossy(&must(&mut command)).into_owned()
}

/// A recording with everything that the tracker counts, of more events than one chunk holds.
fn recording(workspace: &Workspace) -> PathBuf {
    let target = Running::ready(workspace.plimsoll(&["run", "--"]).arg(workspace.steps()).args(["100000", "1000"]));
    let dir = workspace.path("segments");
    wait_until("a segment", || fs::read_dir(&dir).is_ok_and(|entries| entries.count() > 0));
    for name in ["a.jfr", "b.jfr"] {
        let arguments = ["record", &target.pid(), "-o", name, "--interval", "50ms", "--duration", "1s"];
        let output = workspace.plimsoll(&arguments).output().expect("plimsoll starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    workspace.path("a.jfr")
}

#[test]
fn all_readers_see_the_same() {
    let workspace = Workspace::new("readers");
    let file = recording(&workspace);
    let ours = workspace.read("a.jfr");
    let sum = |name: &str, field: &str| events(&ours, name).map(|event| event.long(field)).sum::<u64>();
    for Jdk { major, home } in jdks() {
        // Compares each event, field by field.
        let printed = java(&home, "events", &file);
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines.len(), ours.events.len(), "JDK {major}");
        let mut theirs: BTreeMap<(String, u64), Vec<String>> = BTreeMap::new();
        for line in lines {
            let (head, fields) = line.split_once('\t').expect("fields");
            let (name, time) = head.split_once(' ').expect("name and time");
            theirs.entry((name.into(), time.parse().expect("ns"))).or_default().push(fields.into());
        }
        let mut compared = 0;
        for event in &ours.events {
            let same = &theirs[&(event.name.clone(), event.time_ns)];
            let text = |name: &str, value: &str| {
                same.iter().any(|fields| fields.split('\t').any(|field| field == format!("{name}={value}")))
            };
            for (name, value) in &event.fields {
                let shown = match value {
                    Value::Text(value) => value.clone(),
                    Value::Long(value) if name != "startTime" && event.name != "plimsoll.TargetEnd" => {
                        (*value as i64).to_string()
                    }
                    _ => continue,
                };
                if !["oomKilled", "limited"].contains(&name.as_str()) {
                    assert!(text(name, &shown), "JDK {major}: {} {name} is not {shown} in {same:?}", event.name);
                    compared += 1;
                }
            }
        }
        assert!(compared > 300, "{compared}");
        // The sums that Mission Control computes, and the stacks that it and async-profiler show.
        let seen = java(&home, "same", &file);
        let words: Vec<Vec<&str>> = seen.lines().map(|line| line.split(' ').collect()).collect();
        let figure = |key: &str| {
            let line = words.iter().find(|line| line[..line.len() - 1].join(" ") == key);
            line.unwrap_or_else(|| panic!("no {key} in {seen}"))
                .last()
                .and_then(|last| last.parse::<u64>().ok())
                .expect("a number")
        };
        for (event, field) in [
            ("plimsoll.LedgerLine", "resident"),
            ("plimsoll.Ledger", "rss"),
            ("plimsoll.Category", "live"),
            ("plimsoll.Site", "cumulative"),
            ("jdk.NativeMemoryUsage", "committed"),
            ("jdk.NativeMemoryUsagePeak", "peakCommitted"),
            ("jdk.ResidentSetSize", "size"),
        ] {
            assert_eq!(figure(&format!("control {event}.{field}")), sum(event, field), "JDK {major} {event}.{field}");
        }
        assert!(figure("profiler-stacks") >= 2);
        let with_stack = events(&ours, "plimsoll.Site").filter(|site| site.fields["stackTrace"] != Value::Null);
        assert_eq!(figure("control-stacks"), with_stack.count() as u64);
        // The flame view weighs by the unit of the first quantity.
        let flame = words.iter().find(|line| line[0] == "flame").expect("a tree");
        let weight: f64 = flame[1].parse().expect("a weight");
        let live = sum("plimsoll.Site", "live") as f64;
        assert!((0..5).any(|unit| (weight * 1024f64.powi(unit) / live - 1.0).abs() < 0.01), "{weight} of {live}");
    }
}

#[test]
fn the_jdks_tools_read_a_recording() {
    let workspace = Workspace::new("tools");
    let file = recording(&workspace);
    let count = workspace.read("a.jfr").events.len();
    for jdk in jdks() {
        let Jdk { major, home } = &jdk;
        let summary = jfr(home, &["summary"], &file);
        let counted: usize = summary
            .lines()
            .filter(|line| line.trim_start().starts_with("plimsoll.") || line.trim_start().starts_with("jdk."))
            .filter(|line| !line.contains("jdk.Metadata") && !line.to_lowercase().contains("jdk.checkpoint"))
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok())
            .sum();
        assert_eq!(counted, count, "JDK {major}: {summary}");
        let metadata = jfr(home, &["metadata"], &file);
        assert!(metadata.contains("@Name(\"plimsoll.Site\")") && metadata.contains("@Experimental"), "JDK {major}");
        let printed = jfr(home, &["print", "--json", "--events", "plimsoll.Site,jdk.NativeMemoryUsagePeak"], &file);
        let json: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        let all = json["recording"]["events"].as_array().expect("events");
        let hoard = all.iter().any(|event| event["values"]["stackTrace"]["frames"][0]["method"]["name"] == "hoard");
        assert!(hoard, "JDK {major}: {printed}");

        // Two recordings concatenated, then split again by chunk, and without their sites.
        let parts = workspace.path(&format!("parts-{major}"));
        fs::create_dir(&parts).expect("new");
        for name in ["a.jfr", "b.jfr"] {
            fs::copy(workspace.path(name), parts.join(name)).expect("a copy");
        }
        let both = workspace.path(&format!("both-{major}.jfr"));
        must(Command::new(home.join("bin/jfr")).arg("assemble").arg(&parts).arg(&both));
        let more = workspace.read("b.jfr").events.len();
        assert_eq!(workspace.read(&format!("both-{major}.jfr")).events.len(), count + more);
        let split = workspace.path(&format!("apart-{major}"));
        fs::create_dir(&split).expect("new");
        let arguments = ["disassemble", "--max-chunks", "1", "--output"];
        must(Command::new(home.join("bin/jfr")).args(arguments).arg(&split).arg(&both));
        let mut found = 0;
        for entry in fs::read_dir(&split).expect("parts").flatten() {
            found += crate::reader::read(&fs::read(entry.path()).expect("a part")).expect("a whole file").events.len();
        }
        assert_eq!(found, count + more, "JDK {major}");
        if jdk.scrubs_recordings() {
            let scrubbed = workspace.path("scrubbed.jfr");
            let arguments = ["scrub", "--exclude-events", "plimsoll.Site,plimsoll.Target"];
            must(Command::new(home.join("bin/jfr")).args(arguments).arg(&both).arg(&scrubbed));
            let left = java(home, "events", &scrubbed);
            assert!(
                !left.contains("plimsoll.Site ") && !left.contains("plimsoll.Target "),
                "command lines can be taken out"
            );
            assert!(left.lines().count() > (count + more) / 2 && left.contains("category="), "and the rest is whole");
        }
        if jdk.views_recordings() {
            for view in ["plimsoll.LedgerLine", "native-memory-committed", "native-memory-reserved", "plimsoll.Site"] {
                let shown = jfr(home, &["view", "--width", "200", view], &file);
                assert!(shown.lines().count() > 5, "{view}: {shown}");
            }
        }
        log_line(&format!("record: JDK {major}'s jfr reads {count} events"));
    }
}

/// Files of one recorder, each of two chunks, one after the other as `jfr assemble` and cat join them.
#[test]
fn the_jdks_tools_read_times_and_names_of_every_chunk_and_of_joined_files() {
    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_790_000_000 * SECOND + 123_000_000;
    let workspace = Workspace::new("chunks");
    let folder = workspace.path("files");
    fs::create_dir(&folder).expect("new");
    let mut series = Series::new(&TABLE);
    let (mut joined, mut expected) = (Vec::new(), Vec::new());
    for file in 0..3 {
        let mut recording = Recording::of_series(Vec::new(), series);
        // A chunk ends after 15 minutes.
        for second in [0, 1, 1000] {
            let time = START + (file * 5000 + second) * SECOND;
            let name = format!("{second} of {file}");
            let frame = Frame { class: "libz.so.1".into(), function: name.clone(), ..Frame::default() };
            let stack = Stack { frames: vec![frame], truncated: false };
            let write = |batch: &mut Batch<'_>| {
                e::Target {
                    pid: file,
                    command: &name,
                    executable: "",
                    runtime: "native",
                    runtime_version: "",
                    mode: "exact",
                    interval: SECOND,
                    callers: "",
                    plimsoll: "",
                }
                .write(batch);
                site(batch, &stack, &name);
            };
            recording.instant(time, write).expect("memory takes all");
            expected.push((time, name));
        }
        let (bytes, rest) = recording.finish_file().expect("memory takes all");
        series = rest;
        fs::write(folder.join(format!("{file}.jfr")), &bytes).expect("a file");
        joined.extend(bytes);
    }
    let cat = workspace.path("cat.jfr");
    fs::write(&cat, joined).expect("a file");
    for Jdk { major, home } in jdks() {
        let assembled = workspace.path(&format!("assembled-{major}.jfr"));
        must(Command::new(home.join("bin/jfr")).arg("assemble").arg(&folder).arg(&assembled));
        for file in [&cat, &assembled] {
            let shown = java(&home, "events", file);
            let sites = shown.lines().filter_map(|line| line.strip_prefix("plimsoll.Site "));
            let mut found: Vec<(u64, String)> = Vec::new();
            for site in sites {
                let (time, fields) = site.split_once('\t').expect("fields");
                let name = fields.split('\t').find_map(|field| field.strip_prefix("category=")).expect("a category");
                found.push((time.parse().expect("ns"), name.into()));
            }
            found.sort();
            assert_eq!(found, expected, "JDK {major} {}", file.display());
            let printed = jfr(&home, &["print", "--json", "--events", "plimsoll.Site"], file);
            let json: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
            let all = json["recording"]["events"].as_array().expect("events");
            assert_eq!(all.len(), expected.len());
            for event in all {
                let values = &event["values"];
                let function = &values["stackTrace"]["frames"][0]["method"]["name"];
                assert_eq!(function, &values["category"], "JDK {major}: {event}");
            }
        }
    }
}

fn site(batch: &mut Batch<'_>, stack: &Stack, category: &str) {
    let zero = Bytes(0);
    e::Site {
        stack_trace: Some(stack),
        category,
        live: Bytes(1),
        live_count: 1,
        requested: zero,
        peak: zero,
        count_at_peak: 0,
        cumulative: zero,
        cumulative_count: 0,
        error: zero,
    }
    .write(batch);
}
