//! Reads where and when something was measured: the day, the commit, the machine and its load, and what is installed.

use super::setup::ASYNC_PROFILER;
use crate::stage::{jdk, must, repository};
use std::fs;
use std::process::Command;

/// The beginning of a measurement.
pub struct Begun {
    /// `2026-11-28 00:41`, UTC.
    time: String,
    /// The commit of the programs that are measured.
    commit: String,
    load: String,
}

impl Begun {
    /// `commit`: the one of the programs, which were built before the session.
    pub fn now(commit: &str) -> Begun {
        Begun { time: time(), commit: commit.to_owned(), load: load() }
    }

    pub fn day(&self) -> &str {
        day(&self.time)
    }

    /// `2026-11-28 00:41 to 00:49 UTC, commit 961cb834; 2 × AMD EPYC, Linux 6.18; load average 0.10 0.20 0.30 before,
    /// 1.20 0.80 0.50 after`. A commit that was made meanwhile is named, too. The load average after the measurement
    /// includes the measurement's own load.
    pub fn line(&self) -> String {
        let (until, commit) = (time(), commit());
        let until = match until.strip_prefix(self.day()) {
            Some(hour) => hour.trim_start(),
            None => until.as_str(),
        };
        let later = if commit == self.commit { String::new() } else { format!(" to {commit}") };
        format!(
            "{} to {until} UTC, commit {}{later}; {}; load average {} before, {} after",
            self.time,
            self.commit,
            machine(),
            self.load,
            load()
        )
    }
}

fn day(time: &str) -> &str {
    time.split(' ').next().unwrap_or_default()
}

fn time() -> String {
    output_of("date", &["-u", "+%F %H:%M"])
}

/// The commit of the checkout. `-dirty`: a file differs from it, beside the two that the bench itself writes.
pub fn commit() -> String {
    let top = repository().display().to_string();
    let commit = output_of("git", &["-C", &top, "rev-parse", "--short", "HEAD"]);
    let mut changed = Command::new("git");
    changed.args(["-C", &top, "status", "--porcelain", "--untracked-files=no", "--", "."]);
    changed.args([":(exclude)bench/RESULTS.md", ":(exclude)README.md"]);
    let is_dirty = must(&mut changed).is_ok_and(|list| !list.trim().is_empty());
    if is_dirty { commit + "-dirty" } else { commit }
}

fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// `2 × AMD EPYC, Linux 6.18.44`
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = processor("model name").unwrap_or("unknown".into());
    format!("{cores} × {model}, Linux {}", output_of("uname", &["-r"]))
}

/// A field of the first processor (proc_cpuinfo(5)).
fn processor(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.split_once(": ")?.1.to_owned()))
}

/// What a figure depends on beside the commit: versions of programs and libraries, and settings of the machine that stay
/// from session to session.
pub fn software() -> String {
    let mut all = vec![output_of("rustc", &["--version"]), output_of("gcc", &["--version"])];
    for major in [25, 17] {
        let release = jdk(major).and_then(|home| fs::read_to_string(home.join("release")).ok());
        let build = release.as_deref().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("JAVA_RUNTIME_VERSION="))?;
            Some(line.trim_matches('"').to_owned())
        });
        all.push(format!("JDK {major} {}", build.unwrap_or("not installed".into())));
    }
    all.push(format!("async-profiler {ASYNC_PROFILER}"));
    all.extend(packages());
    let setting = |file: &str| fs::read_to_string(file).map_or("unknown".into(), |text| text.trim().to_owned());
    let huge = setting("/sys/kernel/mm/transparent_hugepage/enabled");
    all.push(format!("transparent huge pages: {huge}"));
    all.push(format!("governor: {}", setting("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")));
    all.join("; ")
}

/// The installed packages of Debian that the bench runs or measures, with their versions.
fn packages() -> Vec<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f=${Package} ${Version}\\n", "libc6", "heaptrack", "libjemalloc2", "libtcmalloc-minimal4*"]);
    query.args(["libmimalloc[0-9]*", "redis-server", "postgresql-[0-9]*", "nodejs", "python3", "python3-numpy"]);
    query.args(["valgrind", "strace"]);
    // dpkg-query fails if one package is not installed, but prints the others.
    let Ok(output) = query.output() else { return vec!["packages: no dpkg-query".into()] };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::trim).filter(|line| line.contains(' ')).map(str::to_owned).collect()
}

/// The first line that a command prints.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let first = |text: String| text.lines().next().unwrap_or_default().trim().to_string();
    must(Command::new(program).args(arguments)).map_or_else(|_| "unknown".into(), first)
}

#[test]
fn a_measurement_has_its_day_commit_machine_and_load() {
    let begun = Begun { time: "2001-02-03 04:05".into(), commit: "abcd1234".into(), load: "0.10 0.20 0.30".into() };
    let line = begun.line();
    assert_eq!(begun.day(), "2001-02-03");
    // The measurement ended on another day, so both dates are printed; the tests' commit is another one.
    assert!(line.starts_with("2001-02-03 04:05 to 2"), "{line}");
    assert!(line.contains(" UTC, commit abcd1234 to "), "{line}");
    assert!(line.contains("; load average 0.10 0.20 0.30 before, "), "{line}");
    assert_eq!(line.split("; ").count(), 3, "{line}");
}
