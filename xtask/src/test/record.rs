//! Keeps records between runs, in target/tests: how long each group took, and which groups of `make test-full` passed
//! on the current sources. And docs/tested.md, which names the commit of each group's last run.

use super::groups::GROUPS;
use super::run::Outcome;
use crate::stage::{Result, must, repository, target};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

const PAGE: &str = "docs/tested.md";

/// The folder of logs and records.
pub fn folder() -> Result<PathBuf> {
    let path = target().join("tests");
    fs::create_dir_all(&path)?;
    Ok(path)
}

fn git(arguments: &[&str]) -> Result<String> {
    must(Command::new("git").args(arguments).current_dir(repository()))
}

/// The commit, with `+` if files differ from it; and a hash of all sources.
pub fn sources() -> Result<(String, u64)> {
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?.trim().to_string();
    let page = format!(":!{PAGE}");
    let changes = git(&["diff", "HEAD", "--", ".", &page])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    let mut hash = DefaultHasher::new();
    (&commit, &changes, &new).hash(&mut hash);
    for file in new.lines() {
        fs::read(repository().join(file)).unwrap_or_default().hash(&mut hash);
    }
    let mark = if changes.is_empty() && new.is_empty() { "" } else { "+" };
    Ok((format!("{commit}{mark}"), hash.finish()))
}

/// Lines of `KEY VALUE…`, one for each key.
struct Lines {
    file: PathBuf,
    of: BTreeMap<String, String>,
}

impl Lines {
    fn read(name: &str) -> Result<Lines> {
        let file = folder()?.join(name);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let of = text.lines().filter_map(|line| line.split_once(' ')).map(|(k, v)| (k.into(), v.into())).collect();
        Ok(Lines { file, of })
    }

    fn put(&mut self, key: &str, value: String) -> Result<()> {
        self.of.insert(key.to_string(), value);
        let text: String = self.of.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        Ok(fs::write(&self.file, text)?)
    }
}

/// Seconds that each group took, by tier: the estimate of the time left uses them.
pub struct Seconds(Lines);

impl Seconds {
    pub fn read(tier: &str) -> Result<Seconds> {
        Ok(Seconds(Lines::read(&format!("seconds-{tier}"))?))
    }

    pub fn of(&self, group: &str) -> Option<f64> {
        self.0.of.get(group)?.parse().ok()
    }

    pub fn put(&mut self, group: &str, seconds: f64) -> Result<()> {
        self.0.put(group, format!("{seconds:.1}"))
    }
}

/// Programs of test-full that passed: `GROUP:PROGRAM SOURCES PASSED SECONDS CPU`.
pub struct PassedTests {
    lines: Lines,
    sources: u64,
}

impl PassedTests {
    pub fn read(sources: u64) -> Result<PassedTests> {
        Ok(PassedTests { lines: Lines::read("passed")?, sources })
    }

    pub fn of(&self, what: &str) -> Option<Outcome> {
        let fields: Vec<&str> = self.lines.of.get(what)?.split(' ').collect();
        let [sources, passed, seconds, cpu] = fields[..] else { return None };
        let mut outcome = Outcome { passed: passed.parse().ok()?, ..Outcome::default() };
        (outcome.seconds, outcome.cpu) = (seconds.parse().ok()?, cpu.parse().ok()?);
        (sources == format!("{:016x}", self.sources)).then_some(outcome)
    }

    /// Records a program without failures or skips: only such a program need not run again.
    pub fn put(&mut self, what: &str, outcome: &Outcome) -> Result<()> {
        if !outcome.failed.is_empty() || !outcome.skipped.is_empty() {
            return Ok(());
        }
        let Outcome { passed, seconds, cpu, .. } = outcome;
        self.lines.put(what, format!("{:016x} {passed} {seconds:.1} {cpu:.1}", self.sources))
    }
}

const HEAD: &str = "# What was tested, and when\n
When was each group of tests last run in full, on which commit and machine? `make test-full` writes this page after each
group; `make test-full GROUP=jdk` runs one. A `+` behind a commit: files differed from it. The groups are in
`xtask/src/test/groups.rs`.\n
| group | cases | failed | skipped | commit | date | machine |\n| --- | ---: | ---: | ---: | --- | --- | --- |\n";

/// Writes a group's row into docs/tested.md. The other rows stay.
pub fn write_page(group: &str, outcome: &Outcome, commit: &str) -> Result<()> {
    let file = repository().join(PAGE);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let date = must(Command::new("date").args(["-u", "+%F"]))?;
    let cells =
        format!("{} | {} | {}", outcome.passed + outcome.failed.len(), outcome.failed.len(), outcome.skipped.len());
    let row = format!("| {group} | {cells} | {commit} | {} | {} |", date.trim(), machine());
    Ok(fs::write(file, page(&text, group, &row))?)
}

/// The page with one row replaced, in the order of the table; rows of removed groups are dropped.
fn page(old: &str, group: &str, row: &str) -> String {
    let rows: BTreeMap<&str, &str> =
        old.lines().filter_map(|line| Some((line.strip_prefix("| ")?.split(" |").next()?, line))).collect();
    let of = |name: &'static str| if name == group { Some(row) } else { rows.get(name).copied() };
    let lines: Vec<&str> = GROUPS.iter().filter_map(|group| of(group.name)).collect();
    format!("{HEAD}{}\n", lines.join("\n"))
}

/// `AMD EPYC 7763, 2 CPUs, Linux 6.18.5`
fn machine() -> String {
    let of = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpu = of("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("?", |(_, m)| m);
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{model}, {cpus} CPUs, Linux {}", of("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_replaces_its_groups_only() {
        let first = page("", "jdk", "| jdk | 3 | 0 | 0 | abc |");
        let both = page(&first, "unit", "| unit | 9 | 0 | 0 | abc |");
        let again = page(&both, "jdk", "| jdk | 4 | 1 | 0 | def |");
        let rows: Vec<&str> = again.lines().skip_while(|line| !line.starts_with("| ---")).skip(1).collect();
        assert_eq!(rows, ["| unit | 9 | 0 | 0 | abc |", "| jdk | 4 | 1 | 0 | def |"]);
        assert!(!page(&again.replace("jdk", "gone"), "unit", "| unit |").contains("gone"));
    }
}
