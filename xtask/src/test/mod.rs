//! `make check`, `make test`, `make test-full`: runs the groups of `groups.rs` in their order and never stops at a
//! failure. Ends in a table of groups, the failures with the command that reruns each, and the line `N passed, N
//! failed, N skipped`.

#[cfg(test)]
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../../../fixtures/child.rs"]
mod child;
mod groups;
mod mounts;
mod plan;
mod record;
mod run;
mod schedule;
mod screen;
mod sockets;

use crate::stage::{self, Result};
use groups::{GROUPS, Group, Tier, Work};
use plan::Built;
use record::{PassedTests, Seconds};
use run::{Job, Outcome};
use schedule::{Event, Piece};
use screen::Screen;
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::time::Instant;

pub const USAGE: &str = "test check|test|full [--group NAME,…] [--again]";

struct Options {
    tier: Tier,
    groups: Vec<&'static Group>,
    /// For test-full: also run what has passed on these sources.
    again: bool,
}

fn options(arguments: &[String]) -> Result<Options> {
    let mut words = arguments.iter().map(String::as_str);
    let tier = match words.next() {
        Some("check") => Tier::Check,
        Some("test") => Tier::Test,
        Some("full") => Tier::Full,
        _ => return Err(format!("usage: xtask {USAGE}").into()),
    };
    let (mut only, mut again): (Option<&str>, bool) = (None, false);
    while let Some(word) = words.next() {
        match word {
            "--group" => only = Some(words.next().unwrap_or_default()),
            "--again" => again = true,
            _ => return Err(format!("unknown argument '{word}'. usage: xtask {USAGE}").into()),
        }
    }
    let of_tier = || GROUPS.iter().filter(|group| group.tier <= tier);
    let Some(only) = only else { return Ok(Options { tier, groups: of_tier().collect(), again }) };
    let find = |name: &str| {
        of_tier().find(|group| group.name == name).ok_or_else(|| {
            let known = of_tier().map(|group| format!("  {:14} {}\n", group.name, group.covers));
            format!("unknown group '{name}'. The groups of this command:\n{}", known.collect::<String>())
        })
    };
    let groups = only.split(',').map(find).collect::<std::result::Result<_, _>>()?;
    Ok(Options { tier, groups, again })
}

/// Whether everything passed.
pub fn run(arguments: &[String]) -> Result<bool> {
    let options = options(arguments)?;
    let began = Instant::now();
    let programs = plan::programs()?;
    plan::check_programs(&programs)?;
    let needed: BTreeMap<_, _> = options
        .groups
        .iter()
        .flat_map(|group| plan::needed(group))
        .filter_map(|name| Some((name.to_string(), programs.get(name)?.clone())))
        .collect();
    let built = if needed.is_empty() { Vec::new() } else { plan::build(&needed)? };
    plan::check_tests(&built)?;

    let target = stage::target();
    let _lock = mounts::share(&target.join("run.lock"), || {
        mounts::clear(&target.join("tmp"));
        forget_skipped(&target.join("roots"));
    })?;
    let name = ["check", "test", "full"][options.tier as usize];
    let full = options.tier == Tier::Full;
    let (commit, sources) = record::sources()?;
    let mut seconds = Seconds::read(name)?;
    let mut done = PassedTests::read(sources)?;
    let (mut pieces, mut left) = (Vec::new(), Vec::new());
    for (at, group) in options.groups.iter().enumerate() {
        let of_group = of_group(at, group, &built, full, |what| done.of(what).filter(|_| full && !options.again))?;
        left.push(of_group.len());
        pieces.extend(of_group);
    }
    let started: Vec<(usize, String)> = pieces.iter().map(|piece| (piece.group, piece.what.clone())).collect();
    let mut outcomes = vec![Outcome::default(); options.groups.len()];
    let mut screen = Screen::new(&options.groups, &built, &seconds);
    // Some tests of test-full fill the machine, others measure, so there each program waits for the one before.
    let busy = if full { 0 } else { cpus() };
    schedule::run(pieces, busy, &mut |at, event| {
        let (group, what) = (started[at].0, &started[at].1);
        match event {
            Event::Began => {
                sockets::clear(Path::new("/tmp"));
                screen.begin(group);
            }
            Event::Ended(ended) => screen.progress(group, at, ended),
            Event::Done(outcome) => {
                // `make test` runs fewer tests, and some of them on fewer subjects: that proves nothing about
                // test-full.
                if full && matches!(options.groups[group].work, Work::Tests(_) | Work::Memcheck(_)) {
                    done.put(what, &outcome)?;
                }
                outcomes[group].add(outcome);
                left[group] -= 1;
                if left[group] == 0 {
                    // In test-full, the time stays the sum of its programs: some may have passed in an earlier run.
                    if !full {
                        outcomes[group].seconds = screen.elapsed(group);
                    }
                    screen.end(group, &outcomes[group]);
                    seconds.put(options.groups[group].name, outcomes[group].seconds)?;
                    if full {
                        record::write_page(options.groups[group].name, &outcomes[group], &commit)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    sockets::clear(Path::new("/tmp"));
    let names = options.groups.iter().map(|group| group.name);
    Ok(screen::summary(&names.zip(outcomes).collect::<Vec<_>>(), began.elapsed().as_secs_f64()))
}

/// Makes this run try again to fetch what an earlier run could not fetch (`fixtures/roots.rs`).
fn forget_skipped(roots: &Path) {
    for entry in fs::read_dir(roots).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.ends_with("unreachable") || path.extension().is_some_and(|kind| kind == "skipped") {
            let _ = fs::remove_file(path);
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The pieces of a group. `known` gives the outcome of a program that needn't run again.
fn of_group<'a>(
    at: usize,
    group: &'static Group,
    built: &'a [Built],
    full: bool,
    known: impl Fn(&str) -> Option<Outcome>,
) -> Result<Vec<Piece<'a>>> {
    let log = |name: &str| -> Result<_> { Ok(record::folder()?.join(format!("{}.log", name.replace('/', "-")))) };
    if let Work::Command(words) = group.work {
        let log = log(group.name)?;
        let work: schedule::Work = Box::new(move |ended| run::command(words, log, ended));
        return Ok(vec![Piece { group: at, what: group.name.to_string(), tests: None, work }]);
    }
    let needed = plan::needed(group);
    let memcheck = matches!(group.work, Work::Memcheck(_));
    let mut pieces = Vec::new();
    for built in built.iter().filter(|b| needed.contains(b.program.name.as_str())) {
        let program = &built.program;
        let tests = if memcheck { built.tests.clone() } else { built.of_group(group.name) };
        if tests.is_empty() {
            continue;
        }
        let what = format!("{}:{}", group.name, program.name);
        let count = tests.len();
        let work: schedule::Work = match known(&what) {
            Some(outcome) => Box::new(|_| Ok(outcome)),
            None => {
                // One more than CPUs: tests wait for the programs that they start.
                let threads = if full { None } else { Some(cpus() + 1) };
                let log = log(&what.replace(':', "-"))?;
                let job = Job { program, path: &built.path, tests, full, memcheck, threads, log };
                Box::new(move |ended| job.run(ended))
            }
        };
        pieces.push(Piece { group: at, what, tests: Some(count), work });
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_forgets_what_could_not_be_fetched_and_keeps_the_roots() -> Result<()> {
        let folder = stage::folder("test-of-roots")?;
        for name in ["unreachable", "jdks-8.skipped", "jdks-8.lock", "bullseye"] {
            fs::write(folder.join(name), "")?;
        }
        forget_skipped(&folder);
        let left = ["unreachable", "jdks-8.skipped", "jdks-8.lock", "bullseye"].map(|name| folder.join(name).exists());
        assert_eq!(left, [false, false, true, true]);
        Ok(fs::remove_dir_all(folder)?)
    }
}
