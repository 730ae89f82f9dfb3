//! Reports on live processes, and how often servers map memory.

use super::measure::Waiting;
use super::results::Results;
use super::setup::Setup;
use super::stats::bounded;
use super::{Bench, java, words};
use crate::stage::{Result, jdk, must, plimsoll, repository};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The whole command `plimsoll report PID`, including the start of the program.
pub fn reports(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Reports on live processes",
        "Wall time of the whole command, median and slowest of 21; and what the target allocated meanwhile.",
    );
    results.head(&[
        "target",
        "median ms",
        "95 % bound",
        "slowest ms",
        "blocks allocated in the target meanwhile",
        "bar of the median, ms",
        "",
    ]);
    let crowd = bench.program("crowd")?;
    let most = limit("/proc/sys/vm/max_map_count").min(65_000);
    // A thread's stack is two mappings, with its guard page.
    let threads =
        limit("/proc/sys/kernel/threads-max").min(limit("/proc/sys/kernel/pid_max")).saturating_sub(2000).min(10_000);
    let mappings = 60_000u64.min(most).saturating_sub(2 * threads + 100);
    let name = format!("{threads} threads, {mappings} mappings more");
    let arguments = words(&[&threads.to_string(), &mappings.to_string()]);
    report(results, &name, &crowd, &arguments, 50.0)?;
    for major in [25, 17] {
        let name = format!("JDK {major}, idle");
        let Some(home) = jdk(major) else {
            results.missing(&[&name], "it is not installed");
            continue;
        };
        let classes = bench.classes()?.display().to_string();
        let arguments = words(&["-XX:+UseSerialGC", "-Xmx64m", "-cp", &classes, "Hello", "600000"]);
        report(results, &name, &java(&home), &arguments, 30.0)?;
    }
    Ok(())
}

fn limit(file: &str) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX)
}

fn report(results: &mut Results, name: &str, program: &Path, arguments: &[String], bar: f64) -> Result<()> {
    let waiting = Waiting::start(Setup::Tracked("sampled").command(program, arguments)?)?;
    std::thread::sleep(Duration::from_secs(1));
    let segment = segment(waiting.pid())?;
    let report_as = |format: &str| must(Command::new(plimsoll()?).args(["report", "--format", format]).arg(&segment));
    let allocated = || -> Result<i64> {
        let json = report_as("json")?;
        // The first entry is the total's.
        let at = json.find("\"cumulative_count\":").ok_or("no cumulative_count")? + "\"cumulative_count\":".len();
        let digits: String = json[at..].trim_start().chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    };
    let before = allocated()?;
    let mut times = Vec::new();
    for _ in 0..21 {
        let begin = Instant::now();
        report_as("text")?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let meanwhile = allocated()? - before;
    let (bound, slowest) = (bounded(&times), times.iter().copied().fold(0.0, f64::max));
    results.row(&[
        name.into(),
        format!("{:.1}", bound.value),
        format!("{:.1} to {:.1}", bound.low, bound.high),
        format!("{slowest:.1}"),
        meanwhile.to_string(),
        format!("≤ {bar}"),
        bound.verdict(bar).into(),
    ]);
    Ok(())
}

/// The segment of a process of this bench: the one file that begins with its PID.
fn segment(pid: u32) -> Result<std::path::PathBuf> {
    let folder = Path::new("/dev/shm").join(format!("plimsoll-bench-{}", std::process::id()));
    let is_its = |name: &str| name.strip_prefix(&pid.to_string()).is_some_and(|rest| rest.starts_with('-'));
    let mut files = fs::read_dir(&folder)?.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.file_name().is_some_and(|name| is_its(&name.to_string_lossy())));
    file.ok_or_else(|| format!("no segment of {pid} in {}", folder.display()).into())
}

/// The real subjects count their calls: is mapping a hot path?
pub fn mapping_operations(_: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Mapping operations of real servers",
        "Lines of the real subjects (crates/cli/tests/subjects), which say what they counted.",
    );
    let mut tests = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    tests.args(["test", "-q", "--release", "-p", "plimsoll", "--test", "subjects", "--", "--test-threads", "1"]);
    tests.args(["spring_boot", "pgbench", "redis_under", "node", "python"]).current_dir(repository());
    let output = tests.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    results.head(&["subject", "what it did"]);
    for line in text.lines().filter(|line| line.contains("mapping operations")) {
        let line = &line[line.find("subject ").unwrap_or(0)..];
        if let Some((name, rest)) = line.trim_start_matches("subject ").split_once(": ") {
            results.row(&[name.into(), rest.split(" B live").next().unwrap_or(rest).into()]);
        }
    }
    if output.status.success() { Ok(()) } else { Err("a subject failed".into()) }
}
