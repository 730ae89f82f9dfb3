//! `make check`, `make test`, `make test-full`: runs the groups of `groups.rs` one after the other and never stops at a
//! failure. Ends in a table of groups, the failures with the command that reruns each, and the line `N passed, N
//! failed, N skipped`.

mod groups;
mod plan;
mod record;
mod run;
mod screen;
mod sockets;

use crate::stage::Result;
use groups::{GROUPS, Group, Tier, Work};
use plan::Built;
use record::{Done, Seconds};
use run::{Job, Outcome};
use screen::Screen;
use std::collections::BTreeMap;
use std::path::Path;

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

    let name = ["check", "test", "full"][options.tier as usize];
    let (commit, sources) = record::sources()?;
    let mut seconds = Seconds::read(name)?;
    let mut done = Done::read(sources)?;
    let mut screen = Screen::new(&options.groups, &built, &seconds);
    let mut rows: Vec<(&str, Outcome)> = Vec::new();
    for group in &options.groups {
        sockets::clear(Path::new("/tmp"));
        screen.begin(group.name);
        let outcome = run_group(group, &built, &options, &mut done, &mut screen)?;
        screen.end(&outcome);
        seconds.put(group.name, outcome.seconds)?;
        if options.tier == Tier::Full {
            record::write_page(group.name, &outcome, &commit)?;
        }
        rows.push((group.name, outcome));
    }
    sockets::clear(Path::new("/tmp"));
    Ok(screen::summary(&rows))
}

fn run_group(
    group: &Group,
    built: &[Built],
    options: &Options,
    done: &mut Done,
    screen: &mut Screen,
) -> Result<Outcome> {
    let full = options.tier == Tier::Full;
    let log = |name: &str| -> Result<_> { Ok(record::folder()?.join(format!("{}.log", name.replace('/', "-")))) };
    if let Work::Command(words) = group.work {
        return run::command(words, log(group.name)?, &mut |ended| screen.progress(ended));
    }
    let needed = plan::needed(group);
    let memcheck = matches!(group.work, Work::Memcheck(_));
    let mut sum = Outcome::default();
    for built in built.iter().filter(|b| needed.contains(b.program.name.as_str())) {
        let program = &built.program;
        let tests = if memcheck { built.tests.clone() } else { built.of_group(group.name) };
        if tests.is_empty() {
            continue;
        }
        let what = format!("{}:{}", group.name, program.name);
        if let (true, false, Some(outcome)) = (full, options.again, done.of(&what)) {
            sum.add(outcome);
            continue;
        }
        let job = Job { program, path: &built.path, tests, full, memcheck, log: log(&what.replace(':', "-"))? };
        let before = sum.passed + sum.failed.len() + sum.left;
        let outcome = job.run(&mut |ended| screen.progress(before + ended))?;
        // `make test` runs fewer tests, and some of them on fewer subjects: that proves nothing about test-full.
        if full {
            done.put(&what, &outcome)?;
        }
        sum.add(outcome);
    }
    Ok(sum)
}
