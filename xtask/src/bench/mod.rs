//! `make bench`: the figures of Plimsoll and of its peers. Each group is measured in one session on one machine, and
//! writes its part of bench/RESULTS.md when it is done.

mod attach;
mod attach_native;
mod compare_growth;
mod cost;
mod counters;
mod day;
mod forks;
mod load;
mod machine;
mod mapping_calls;
pub mod measure;
mod observers;
mod postgres;
pub mod published;
mod recorder;
mod recordings;
mod rest;
mod result_parts;
mod results;
mod run_order;
mod savings;
mod servers;
mod setup;
mod sites;
mod sites_programs;
mod speed;
mod stats;
mod time_limit;
mod try_noise;
mod users;
mod workloads;

use crate::stage::{Result, folder, jdk, repository};
use results::Results;
use setup::Setup;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use time_limit::must_within_limit;

/// Shared by all groups: the compiled programs and how long to run.
pub struct Bench {
    pub quick: bool,
    pub rounds: usize,
}

type Group = fn(&Bench, &mut Results) -> Result<()>;

/// The timed groups come first, because they need a quiet machine. Other work on the machine doesn't change what is
/// counted.
const GROUPS: &[(&str, Group)] = &[
    ("pairs", speed::pairs),
    ("unsafe", speed::unsafe_pairs),
    ("workloads", workloads::shapes),
    ("redis", workloads::redis),
    ("sites", sites::pairs),
    ("sites-cpp", sites::cpp),
    ("rest", rest::servers),
    ("load", load::requests),
    ("users", users::programs),
    ("forks", forks::cost),
    ("day", day::played),
    ("try-noise", try_noise::intervals),
    ("attach", attach::pause),
    ("attach-native", attach_native::pause),
    ("detach", attach::afterwards),
    ("record", recorder::cost),
    ("record-slowdown", recorder::slowdown),
    ("reports", servers::reports),
    ("recordings", recordings::reading),
    ("report-sites", observers::many_sites),
    ("explain", observers::explain),
    ("arena", observers::arena),
    ("sites-programs", sites_programs::cost),
    ("instructions", cost::pair_instructions),
    ("programs", cost::real_programs),
    ("memory", cost::memory),
    ("threads", workloads::threads),
    ("start", cost::start),
    ("mappings", cost::mappings),
    ("mapping-calls", mapping_calls::alone),
    ("servers", servers::mapping_operations),
    ("sites-check", sites_programs::check),
    ("savings", savings::savings),
    ("compare", compare_growth::found),
];

pub fn run(arguments: &[String]) -> Result<()> {
    let (mut quick, mut only) = (false, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--only" => {
                let list = rest.next().ok_or("--only needs the names of groups, with commas between them")?;
                only = Some(list.split(',').collect::<Vec<_>>());
            }
            other => return Err(format!("unknown argument '{other}'. Usage: bench [--quick] [--only GROUP,…]").into()),
        }
    }
    let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = only.iter().flatten().find(|name| !names.contains(name)) {
        return Err(format!("unknown group '{unknown}'. The groups: {}", names.join(", ")).into());
    }
    let chosen = |name: &str| only.as_ref().is_none_or(|only| only.contains(&name));
    let groups: Vec<(&str, Group)> = GROUPS.iter().filter(|(name, _)| chosen(name)).copied().collect();
    setup::remove_leftovers();
    setup::has_space()?;
    let bench = Bench { quick, rounds: if quick { 3 } else { 15 } };
    let done = measure_all(&bench, &mut Results::new(quick), &groups, &names);
    setup::remove_segments();
    done
}

/// Runs groups, and writes each one's part when it is done. A group that fails doesn't cost the others their figures.
fn measure_all(bench: &Bench, results: &mut Results, groups: &[(&str, Group)], all: &[&str]) -> Result<()> {
    let mut failed = Vec::new();
    for (number, (name, group)) in groups.iter().enumerate() {
        let begin = Instant::now();
        results.begin();
        let done = group(bench, results);
        results.finish(name, all, &done)?;
        eprintln!("{name}: {} s", begin.elapsed().as_secs());
        if let Err(error) = done {
            eprintln!("{name}: {error}");
            failed.push(*name);
        }
        let left: Vec<&str> = groups[number + 1..].iter().map(|(name, _)| *name).collect();
        if !left.is_empty() {
            eprintln!("to go on from here: make bench GROUP={}", left.join(","));
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(format!("not measured: {0} (again: make bench GROUP={0})", failed.join(",")).into()),
    }
}

impl Bench {
    /// Rounds of runs that take a tenth of a second.
    pub fn short(&self) -> usize {
        4 * self.rounds
    }

    /// Compiles bench/NAME.c.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        self.program_with(name, name, &[])
    }

    /// Compiles with these additional flags, under a name of its own.
    pub fn program_with(&self, name: &str, as_name: &str, flags: &[&str]) -> Result<PathBuf> {
        let (source, program) = (repository().join(format!("bench/{name}.c")), folder("bench")?.join(as_name));
        must_within_limit(
            Command::new("gcc").args(["-O2", "-pthread"]).args(flags).arg("-o").arg(&program).arg(source),
        )?;
        Ok(program)
    }

    /// Libraries of bench/least.c for LD_PRELOAD: what any bookkeeper in the process must do, over glibc.
    pub fn least(&self) -> Result<[Setup; 2]> {
        let library = |as_name: &str, flag| self.program_with("least", as_name, &["-shared", "-fPIC", flag]);
        Ok([
            Setup::Allocator("hooks that pass the calls on", library("calls-on.so", "-UBOOKS")?),
            Setup::Allocator("books without stacks", library("books.so", "-DBOOKS")?),
        ])
    }

    /// Compiles bench/unsafe for all JDKs, and returns the class path.
    pub fn classes(&self) -> Result<PathBuf> {
        self.classes_of(&["bench/unsafe/Pairs.java", "bench/unsafe/Hello.java"])
    }

    pub fn classes_of(&self, sources: &[&str]) -> Result<PathBuf> {
        let classes = folder("bench/classes")?;
        let home = jdk(17).or_else(|| jdk(25)).ok_or("a JDK is needed")?;
        let mut javac = Command::new(home.join("bin/javac"));
        javac.args(["-nowarn", "-XDenableSunApiLintControl", "-source", "17", "-target", "17", "-d"]).arg(&classes);
        must_within_limit(javac.args(sources.iter().map(|source| repository().join(source))))?;
        Ok(classes)
    }

    /// Instructions of one malloc+free pair: two runs of different length, so that start and end cancel.
    pub fn pair(&self, setup: &Setup) -> Result<f64> {
        let program = self.program("mtalloc")?;
        let (short, long) = (20_000u64, 120_000u64);
        let count =
            |pairs: u64| measure::instructions(setup, &program, &words(&["1", &pairs.to_string(), "1000", "512", "8"]));
        Ok((count(long)? as f64 - count(short)? as f64) / (long - short) as f64)
    }
}

pub fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| word.to_string()).collect()
}

pub fn java(home: &Path) -> PathBuf {
    home.join("bin/java")
}
