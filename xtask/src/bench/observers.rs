//! The cost of observing: a report with 100,000 sites, `explain` on a crowded JVM, the walk of a 1 GiB heap.

use super::counters;
use super::measure::{Waiting, children};
use super::results::Results;
use super::setup::Setup;
use super::stats::bounded;
use super::time_limit::{ONE_RUN, must_within_limit, within};
use super::{Bench, java, words};
use crate::stage::{Result, folder, jdk, plimsoll, repository};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Wall milliseconds of a whole command, repeated; the mean of its CPU time.
fn timed(times: usize, command: impl Fn() -> Result<Command>) -> Result<(Vec<f64>, f64)> {
    let mut walls = Vec::new();
    let before = children()?;
    for _ in 0..times {
        let mut command = command()?;
        let begin = Instant::now();
        // Through a pipe to a reader that discards everything: keeping 300 MB of JSON would cost as much as writing it.
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let status = within(ONE_RUN, child.id(), &command, || {
            if let Some(mut output) = child.stdout.take() {
                io::copy(&mut output, &mut io::sink())?;
            }
            Ok(child.wait()?)
        })?;
        walls.push(begin.elapsed().as_secs_f64() * 1e3);
        if !status.success() {
            return Err(format!("{command:?}: {status}").into());
        }
    }
    let after = children()?;
    let processor = (after[0] - before[0] + after[1] - before[1]) * 1e3 / times as f64;
    Ok((walls, processor))
}

fn row(results: &mut Results, what: &str, (walls, processor): &(Vec<f64>, f64), bar: f64) {
    let bound = bounded(walls);
    results.row(&[
        what.into(),
        format!("{:.1}", bound.value),
        format!("{:.1} to {:.1}", bound.low, bound.high),
        format!("{:.1}", walls.iter().copied().fold(0.0, f64::max)),
        format!("{processor:.1}"),
        format!("≤ {bar:.0}"),
        bound.verdict(bar).into(),
    ]);
}

const HEAD: [&str; 7] =
    ["what", "median ms", "95 % bound", "slowest ms", "processor ms, mean", "bar of the median, ms", ""];

/// A program with 100,000 call paths, run with exact sites, leaves the segment.
pub fn many_sites(bench: &Bench, results: &mut Results) -> Result<()> {
    let folder = folder("bench/many")?;
    let (source, program) = (folder.join("many.c"), folder.join("many"));
    let text = must_within_limit(Command::new("python3").arg(repository().join("fixtures/sites/many.py")))?;
    std::fs::write(&source, text)?;
    must_within_limit(Command::new("gcc").args(["-g", "-O1", "-o"]).arg(&program).arg(&source))?;
    let segments = counters::run(&program, &words(&["100000"]), "exact", false)?;
    let [segment] = segments.as_slice() else { return Err(format!("{} segments", segments.len()).into()) };
    let report = |format: &str| -> Result<Command> {
        let mut command = Command::new(plimsoll()?);
        command.args(["report", "--by", "site", "--format", format]).arg(segment);
        Ok(command)
    };
    let stacks = must_within_limit(&mut report("folded")?)?.lines().count();
    let times = bench.rounds.max(5);
    results.group(
        "A report with 100,000 sites",
        &format!(
            "fixtures/sites/many.py, 18 frames each, run with exact sites, {stacks} stacks in the report; symbolised from its DWARF, the \
             symbol cache and the files warm. Whole commands, {times} in a row."
        ),
    );
    results.head(&HEAD);
    for format in ["text", "tree", "folded", "svg", "pprof", "html", "json"] {
        let measured = timed(times, || report(format))?;
        row(results, &format!("report --by site --format {format}"), &measured, 1000.0);
    }
    // The file is large, and the next groups need the space.
    std::fs::remove_file(segment)?;
    if stacks < 100_000 { Err(format!("only {stacks} stacks").into()) } else { Ok(()) }
}

/// The whole command, at each level of the VM's own NMT.
pub fn explain(bench: &Bench, results: &mut Results) -> Result<()> {
    let times = if bench.quick { 7 } else { 21 };
    results.group(
        "Explain a crowded JVM",
        &format!(
            "The whole command `plimsoll explain PID`, {times} times in a row; fixtures/java/explain/Crowd.java with 200 threads and 2,000 \
             mappings, untracked."
        ),
    );
    results.head(&HEAD);
    let classes = bench.classes_of(&["fixtures/java/explain/Crowd.java", "fixtures/java/explain/Truth.java"])?;
    for major in [25, 17] {
        let Some(home) = jdk(major) else {
            results.missing(&[&format!("JDK {major}")], "it is not installed");
            continue;
        };
        let arguments = words(&["-Xmx128m", "-cp", &classes.display().to_string(), "Crowd", "200", "2000"]);
        for level in ["off", "summary", "detail"] {
            let crowd = Waiting::start(Setup::Nmt(level).command(&java(&home), &arguments)?)?;
            std::thread::sleep(Duration::from_secs(1));
            let measured = timed(times, || explained(crowd.pid()))?;
            row(results, &format!("JDK {major}, NativeMemoryTracking={level}"), &measured, 150.0);
        }
    }
    Ok(())
}

pub fn arena(bench: &Bench, results: &mut Results) -> Result<()> {
    let times = bench.rounds.max(5);
    results.group(
        "Explain a heap of 1 GiB",
        &format!(
            "bench/arena.c: blocks of 16 to 1,040 B in glibc's main arena, 1 GiB of them live, every third freed on the way. The whole \
             command `plimsoll explain PID`, {times} times in a row."
        ),
    );
    results.head(&HEAD);
    let program = bench.program("arena")?;
    let arena = Waiting::start(Setup::Plain("plain").command(Path::new(&program), &words(&["1024"]))?)?;
    let measured = timed(times, || explained(arena.pid()))?;
    row(results, &format!("{} MiB resident", arena.resident()? >> 20), &measured, 1000.0);
    Ok(())
}

fn explained(pid: u32) -> Result<Command> {
    let mut command = Command::new(plimsoll()?);
    command.args(["explain", &pid.to_string()]);
    Ok(command)
}
