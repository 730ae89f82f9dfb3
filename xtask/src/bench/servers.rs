//! Reports on live processes, and how often servers map memory.

use super::measure::Waiting;
use super::results::Results;
use super::setup::Setup;
use super::stats::bounded;
use super::time_limit::{MANY_RUNS, must_within_limit, output_within};
use super::{Bench, java, words};
use crate::stage::{Result, jdk, plimsoll, repository};
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
    let report_as =
        |format: &str| must_within_limit(Command::new(plimsoll()?).args(["report", "--format", format]).arg(&segment));
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

/// The subjects whose tests print a line.
const SUBJECTS: [&str; 8] = [
    "jdk17-spring-boot",
    "jdk25-spring-boot",
    "postgres",
    "redis",
    "node",
    "node-sampled",
    "python3-numpy",
    "python3-numpy-sampled",
];

/// What a subject counted. Its seconds are left out: it ran once, beside its own checks.
fn counted(text: &str, subject: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.split_once(&format!("subject {subject}: ")).map(|(_, rest)| rest))?;
    let parts = line.split(", ").filter(|part| !part.ends_with(" s plain") && !part.ends_with(" s tracked"));
    let parts: Vec<&str> = parts.take(3).map(|part| part.split(" (").next().unwrap_or(part)).collect();
    parts.last()?.ends_with(" mapping operations").then(|| parts.join(", "))
}

/// Why a subject has no line: `subject jdk17: skipped, no JDK 17`.
fn skipped<'t>(text: &'t str, subject: &str) -> &'t str {
    let skips = text.lines().filter_map(|line| line.split_once("subject ")?.1.split_once(": skipped, "));
    let mut own = skips.filter(|(name, _)| subject.starts_with(*name));
    own.next().map_or("its test printed no line", |(_, reason)| reason)
}

/// The real subjects count their calls: is mapping a hot path?
pub fn mapping_operations(_: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Mapping operations of real servers",
        "Lines of the real subjects (crates/cli/tests/subjects), which say what they counted in one tracked run.",
    );
    let mut tests = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    tests.args(["test", "-q", "--release", "-p", "plimsoll", "--test", "subjects", "--", "--test-threads", "1"]);
    tests.args(["spring_boot", "pgbench", "redis_under", "node", "python"]).current_dir(repository());
    let output = output_within(MANY_RUNS, &mut tests)?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    results.head(&["subject", "what it did"]);
    for subject in SUBJECTS {
        match counted(&text, subject) {
            Some(counts) => results.row(&[subject.into(), counts]),
            None => results.missing(&[subject], skipped(&text, subject)),
        }
    }
    if output.status.success() { Ok(()) } else { Err("a subject failed".into()) }
}

#[test]
fn a_subject_without_a_line_is_named() {
    let text = "noise subject node: 1 process(es), 0.58 s plain, 1.40 s tracked, 509100 blocks allocated, \
        2870 mapping operations (2053/s), 980264 B live at the end, 2 categories: a, b\n\
        subject jdk17: skipped, no JDK 17 in JAVA_HOME or /usr/lib/jvm\nsubject redis: 1 process(es)\n";
    let counts = "1 process(es), 509100 blocks allocated, 2870 mapping operations";
    assert_eq!(counted(text, "node").as_deref(), Some(counts));
    let others = ["node-sampled", "jdk17-spring-boot", "redis"];
    assert_eq!(others.map(|subject| counted(text, subject)), [None, None, None]);
    assert_eq!(skipped(text, "jdk17-spring-boot"), "no JDK 17 in JAVA_HOME or /usr/lib/jvm");
    assert_eq!(skipped(text, "node-sampled"), "its test printed no line");
}
