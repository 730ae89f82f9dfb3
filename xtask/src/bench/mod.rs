//! `make bench`: the figures of Plimsoll and of its peers, in one session on one machine.

mod cost;
mod measure;
mod results;
mod servers;
mod speed;
mod stats;
mod way;

use crate::stage::{Result, folder, jdk, must, repository};
use results::Results;
use std::path::{Path, PathBuf};
use std::process::Command;
use way::Way;

/// What all groups share: the compiled programs and how long to run.
pub struct Bench {
    pub quick: bool,
    pub rounds: usize,
}

type Group = fn(&Bench, &mut Results) -> Result<()>;

const GROUPS: &[(&str, Group)] = &[
    ("pairs", speed::pairs),
    ("unsafe", speed::unsafe_pairs),
    ("instructions", cost::pair_instructions),
    ("programs", cost::real_programs),
    ("memory", cost::memory),
    ("start", cost::start),
    ("mappings", cost::mappings),
    ("reports", servers::reports),
    ("servers", servers::mapping_operations),
];

pub fn run(arguments: &[String]) -> Result<()> {
    let (mut quick, mut only) = (false, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--only" => only = rest.next().map(|list| list.split(',').collect::<Vec<_>>()),
            other => return Err(format!("bench: {other}? --quick, --only GROUP,…").into()),
        }
    }
    let known = |name: &&str| GROUPS.iter().any(|(group, _)| group == name);
    if let Some(unknown) = only.iter().flatten().find(|name| !known(name)) {
        let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
        return Err(format!("bench: no group {unknown}; there are {}", names.join(", ")).into());
    }
    let bench = Bench { quick, rounds: if quick { 3 } else { 15 } };
    let mut results = Results::default();
    for (name, group) in GROUPS {
        if only.as_ref().is_none_or(|only| only.contains(name)) {
            // One group that fails must not cost the others their figures.
            if let Err(error) = group(&bench, &mut results) {
                results.add(&format!("\n**{name} could not be measured: {error}**\n"));
            }
        }
    }
    way::remove_segments();
    results.write(quick || only.is_some())
}

impl Bench {
    /// Compiles bench/NAME.c.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let (source, program) = (repository().join(format!("bench/{name}.c")), folder("bench")?.join(name));
        must(Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source))?;
        Ok(program)
    }

    /// Compiles bench/unsafe for all JDKs: the class path.
    pub fn classes(&self) -> Result<PathBuf> {
        let classes = folder("bench/classes")?;
        let home = jdk(17).or_else(|| jdk(25)).ok_or("a JDK is needed")?;
        let sources = repository().join("bench/unsafe");
        let mut javac = Command::new(home.join("bin/javac"));
        javac.args(["-nowarn", "-XDenableSunApiLintControl", "-source", "17", "-target", "17", "-d"]).arg(&classes);
        must(javac.args([sources.join("Pairs.java"), sources.join("Hello.java")]))?;
        Ok(classes)
    }

    /// Instructions of one malloc+free pair: two runs of different length, so that start and end cancel.
    pub fn pair(&self, way: &Way) -> Result<f64> {
        let program = self.program("mtalloc")?;
        let (short, long) = (20_000u64, 120_000u64);
        let count =
            |pairs: u64| measure::instructions(way, &program, &words(&["1", &pairs.to_string(), "1000", "512", "8"]));
        Ok((count(long)? as f64 - count(short)? as f64) / (long - short) as f64)
    }
}

pub fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| word.to_string()).collect()
}

pub fn java(home: &Path) -> PathBuf {
    home.join("bin/java")
}
