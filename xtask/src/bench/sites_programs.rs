//! Exact sites in programs that people use: their cost, how often the memo knows a stack, and whether it is ever wrong.

use super::cost::{cc1plus, javac};
use super::counters::RunCounters;
use super::measure::{children, instructions, pairs, together};
use super::results::{Results, verdict};
use super::setup::Setup;
use super::time_limit::must_within_limit;
use super::{Bench, words};
use crate::stage::{Result, any_jdk};
use std::path::{Path, PathBuf};

const PLAIN: Setup = Setup::Plain("plain");
const EXACT: Setup = Setup::Tracked("exact");
/// Comparisons in which the memo must agree, in all programs together.
const CHECKS: f64 = 1e7;
/// The part of all comparisons that must be reached after each program. Javac has the smallest step because it is the
/// slowest: a second of javac gives 9,000 comparisons, of cc1plus 37,000, of numpy 32,000.
const SHARES: [f64; 3] = [0.45, 0.9, 1.0];

/// A program and its arguments.
type Program = (&'static str, PathBuf, Vec<String>);

fn programs() -> Result<Vec<Program>> {
    let numpy = "import numpy as n\ng=n.random.default_rng(7)\nt=0.0\nfor i in range(300):\n a=g.random((i%50+2,i%40+2))\n \
        t+=float((a@a.T).sum())+len(n.unique(n.round(a,1)))\nd={str(i):n.arange(i%9) for i in range(20000)}\n\
        print(t,sum(map(len,d.values())))";
    let (compiler, compile) = cc1plus()?;
    let home = any_jdk()?;
    Ok(vec![
        ("cc1plus", compiler, compile),
        ("python3 with numpy", Path::new("/usr/bin/python3").to_path_buf(), words(&["-c", numpy])),
        ("javac", home.join("bin/javac"), javac()?),
    ])
}

pub fn cost(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Exact sites in real programs",
        "Instructions of whole runs by callgrind. A walk is a deep one, for a stack that the memo didn't know; what it costs is all \
         that exact sites gain over plain, divided by the walks: booking included, so it is an upper bound.",
    );
    results.head(&[
        "program",
        "plain",
        "exact",
        "ratio",
        "bar",
        "",
        "blocks",
        "walks",
        "memo hits, %",
        "frames of a walk",
        "gained for each walk",
    ]);
    for (name, program, arguments) in programs()? {
        let count = |setup: &Setup| instructions(setup, &program, &arguments).map(|count| count as f64);
        // A VM's threads wait for one another, so other programs that run change its count.
        let (plain, exact) = match name {
            "javac" => (count(&PLAIN)?, count(&EXACT)?),
            _ => together(|| count(&PLAIN), || count(&EXACT))?,
        };
        let counters = RunCounters::of(&program, &arguments, "exact", false)?;
        let ratio = exact / plain;
        results.row(&[
            name.into(),
            format!("{plain:.0}"),
            format!("{exact:.0}"),
            format!("{ratio:.4}"),
            "≤ 1.50".into(),
            verdict(ratio, 1.5),
            format!("{:.0}", counters.blocks),
            format!("{:.0}", counters.walks),
            format!("{:.3}", 100.0 * (1.0 - counters.walks / counters.blocks)),
            format!("{:.1}", counters.frames / counters.walks),
            format!("{:.0}", (exact - plain) / counters.walks),
        ]);
    }

    results.add("\nAs they run, user CPU: valgrind's JVM is not quite the one that people have.\n\n");
    results.head(&["program", "way", "user ms", "ratio", "95 % bound", "bar", ""]);
    let setups = [PLAIN, Setup::Plain("plain again"), Setup::Tracked("sampled"), EXACT];
    for (name, program, arguments) in programs()? {
        let values = pairs(bench.rounds, &setups, |setup| {
            let before = children()?[0];
            must_within_limit(&mut setup.command(&program, &arguments)?)?;
            Ok((children()?[0] - before) * 1e3)
        })?;
        results.pairs(name, &values, &setups, &[("Plimsoll, sites exact", 1.5)]);
    }
    Ok(())
}

/// Each remembered stack is also walked and compared.
pub fn check(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "The memo against full walks",
        "The same programs with PLIMSOLL_CHECK=1 and exact sites, two at a time, over and over until all together made 10⁷ comparisons \
         (once in a quick run). With fewer, the bar is `open`.",
    );
    results.head(&["program", "runs", "comparisons", "disagreements", "bar", ""]);
    let programs = programs()?;
    let (mut checks, mut disagreements) = (0.0, 0.0);
    for ((name, program, arguments), share) in programs.iter().zip(SHARES) {
        // If a program does less than its share, the next ones do more.
        let share = CHECKS * share;
        let (mut runs, mut own) = (0, RunCounters::default());
        while runs == 0 || !bench.quick && runs < 200 && checks + own.checks < share {
            let count = || RunCounters::of(program, arguments, "exact", true);
            let (one, other) = together(count, count)?;
            for counters in [one, other] {
                own.checks += counters.checks;
                own.disagreements += counters.disagreements;
                runs += 1;
            }
        }
        let figures = [runs.to_string(), format!("{:.0}", own.checks), format!("{:.0}", own.disagreements)];
        results.row(&[&[name.to_string()], figures.as_slice(), &[const { String::new() }; 2]].concat());
        checks += own.checks;
        disagreements += own.disagreements;
    }
    let verdict = match (disagreements > 0.0, checks >= CHECKS) {
        (true, _) => "fails",
        (false, true) => "holds",
        (false, false) => "open: too few",
    };
    let figures = [String::new(), format!("{checks:.0}"), format!("{disagreements:.0}"), "≤ 0".into(), verdict.into()];
    results.row(&[&["all".to_string()], figures.as_slice()].concat());
    Ok(())
}
