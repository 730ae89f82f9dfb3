//! Reading a large recording of another JVM: ours on one core, beside the JDK's `jfr` and JDK Mission Control's parser.

use super::measure::ended;
use super::results::Results;
use super::time_limit::must_within_limit;
use super::{Bench, words};
use crate::stage::{Result, folder, jdk, plimsoll, repository, target};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The readers to which the bar applies.
const BARRED: [&str; 4] = [
    "plimsoll report",
    "plimsoll report --chart rss-gap",
    "plimsoll report --by class",
    "our reader, every field of every event",
];
/// This report decodes each frame of each stack, which takes more than a minute. It has no bar.
const SLOW: &str = "our reader, every frame's names too";
/// Number of events. Each has a stack and takes about 54 bytes.
const EVENTS: u64 = 10_000_000;

/// Wall seconds, CPU seconds, and peak resident memory in MiB of one child.
fn timed(program: &Path, arguments: &[String]) -> Result<[f64; 3]> {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    let [processor, memory] = ended(command.spawn()?).map_err(|error| format!("{command:?}: {error}"))?;
    Ok([begin.elapsed().as_secs_f64(), processor, memory])
}

pub fn reading(bench: &Bench, results: &mut Results) -> Result<()> {
    let home = jdk(25).ok_or("JDK 25 is needed")?;
    let (scratch, sources) = (folder("bench/recording")?, repository().join("bench/recording"));
    must_within_limit(Command::new(home.join("bin/javac")).arg("-d").arg(&scratch).arg(sources.join("Flood.java")))?;
    let file = scratch.join("flood.jfr");
    let events = if bench.quick { EVENTS / 10 } else { EVENTS };
    let mut flood = Command::new(home.join("bin/java"));
    flood.args(["-Xmx256m", "-Xlog:disable", "-XX:NativeMemoryTracking=summary"]);
    flood.arg(format!("-XX:StartFlightRecording=filename={},settings=profile,maxsize=0", file.display()));
    must_within_limit(flood.arg("-cp").arg(&scratch).arg("Flood").arg(events.to_string()))?;
    must_within_limit(Command::new("cargo").args([
        "build",
        "-q",
        "--release",
        "-p",
        "plimsoll-observer",
        "--example",
        "jfr_read",
    ]))?;

    let jars = scratch.join("jars");
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "dependency:copy-dependencies", "-f"]).arg(sources.join("pom.xml"));
    must_within_limit(maven.arg(format!("-DoutputDirectory={}", jars.display())))?;
    let path = format!("{}:{}/*", scratch.display(), jars.display());
    must_within_limit(
        Command::new(home.join("bin/javac")).args(["-cp", &path, "-d"]).arg(&scratch).arg(sources.join("Jmc.java")),
    )?;

    let mib = fs::metadata(&file)?.len() as f64 / 1048576.0;
    let name = file.display().to_string();
    let (jfr, java, reader) = (home.join("bin/jfr"), home.join("bin/java"), target().join("release/examples/jfr_read"));
    let ours = plimsoll()?;
    let setups: [(&str, &Path, Vec<String>); 9] = [
        ("plimsoll report", &ours, words(&["report", &name])),
        ("plimsoll report --chart rss-gap", &ours, words(&["report", &name, "--chart", "rss-gap"])),
        ("plimsoll report --by class", &ours, words(&["report", &name, "--by", "class"])),
        ("our reader, every event stepped over", &reader, words(&["skip", &name])),
        ("our reader, every field of every event", &reader, words(&["fields", &name])),
        (SLOW, &reader, words(&["stacks", &name])),
        ("jfr summary (JDK 25)", &jfr, words(&["summary", &name])),
        (
            "jfr print --events jdk.NativeMemoryUsage",
            &jfr,
            words(&["print", "--events", "jdk.NativeMemoryUsage", &name]),
        ),
        ("JMC's parser, -Xmx8g", &java, words(&["-Xmx8g", "-cp", &path, "Jmc", &name])),
    ];
    let how = format!(
        "bench/recording/Flood.java on JDK 25: {mib:.0} MiB, {events} events of an application with stacks beside the profile \
         settings. Each reader on one core (taskset), the better by processor time of its runs, the file in the page cache; memory \
         is the peak of RSS."
    );
    results.group("Reading a recording", &how);
    results.head(&["reader", "runs", "seconds", "of CPU", "MiB/s of CPU", "memory, MiB", "bar"]);
    for (name, program, arguments) in setups {
        let mut best: Option<[f64; 3]> = None;
        let rounds = runs(name);
        for _ in 0..rounds {
            let one = timed(program, &arguments)?;
            // By CPU time: other programs on the machine do not count.
            best = best.filter(|best| best[1] <= one[1]).or(Some(one));
        }
        let [wall, seconds, memory] = best.ok_or("no round")?;
        let bar = match name {
            _ if !BARRED.contains(&name) => "",
            _ if mib / seconds < 150.0 || memory > 256.0 => "≥ 150 MiB/s, ≤ 256 MiB: fails",
            _ => "≥ 150 MiB/s, ≤ 256 MiB: holds",
        };
        results.row(&[
            name.into(),
            rounds.to_string(),
            format!("{wall:.2}"),
            format!("{seconds:.2}"),
            format!("{:.0}", mib / seconds),
            format!("{memory:.0}"),
            bar.into(),
        ]);
    }
    fs::remove_file(file)?;
    Ok(())
}

/// As many of a peer as of ours: a single run may be a bad one.
fn runs(reader: &str) -> usize {
    if reader == SLOW { 1 } else { 2 }
}
