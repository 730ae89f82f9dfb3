//! Can the users of a program notice that it is tracked? They notice the time of a request or of a whole run, and its
//! processor time. JVM servers are in `load` and `rest`, Redis is in `workloads`.

use super::measure::{children, turns, with_children};
use super::postgres::{Data, Server};
use super::results::Results;
use super::setup::{Setup, segments};
use super::stats::{median, paired};
use super::{Bench, words};
use crate::stage::{Result, must, repository};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SETUPS: [Setup; 4] =
    [Setup::Plain("plain"), Setup::Plain("plain again"), Setup::Tracked("off"), Setup::Tracked("sampled")];

/// Figures by setup, round by round: wall time and processor time.
type Figures = [Vec<Vec<f64>>; 2];

pub fn programs(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "What users of real programs see",
        "Milliseconds of a whole run with `plimsoll run` itself: fixtures/scripts under node and python3 with numpy. Microseconds of a transaction of \
         PostgreSQL (pgbench, one client that stays connected): its own script of three updates, a query and an insertion, and one \
         query by key; processor time of the server alone. Ratios are medians of each round's.",
    );
    results.head(&["program", "way", "figure", "ratio", "95 % of the ratio", "bar", ""]);
    let scripts = repository().join("fixtures/scripts");
    for (name, program, script) in
        [("node", "/usr/bin/node", "orders.js"), ("python3 with numpy", "/usr/bin/python3", "matrices.py")]
    {
        let arguments = [scripts.join(script).display().to_string()];
        let figures = both(bench.rounds, |setup| {
            let (before, begin) = (children()?, Instant::now());
            // The script for node ends with the exit code 5.
            let output = setup.command(Path::new(program), &arguments)?.output()?;
            if output.stdout.is_empty() || !output.stderr.is_empty() {
                return Err(format!("{name}: {output:?}").into());
            }
            let wall = begin.elapsed().as_secs_f64();
            let spent = children()?.iter().sum::<f64>() - before.iter().sum::<f64>();
            Ok([wall * 1e3, spent * 1e3])
        })?;
        rows(results, name, &figures);
    }
    let data = Data::create()?;
    {
        let _server = data.serve(None)?;
        must(data.client("pgbench")?.args(["-q", "-i", "-s", "2", "postgres"]))?;
    }
    for (name, options) in
        [("PostgreSQL, updates", words(&["-t", "3000"])), ("PostgreSQL, a query", words(&["-S", "-t", "12000"]))]
    {
        let figures = both(bench.rounds, |setup| {
            let directory = segments()?;
            let server = data.serve(match setup {
                Setup::Tracked(sites) => Some((sites, &directory)),
                _ => None,
            })?;
            transactions(&data, &server, &options)
        })?;
        rows(results, name, &figures);
    }
    Ok(())
}

fn both(rounds: usize, mut run: impl FnMut(&Setup) -> Result<[f64; 2]>) -> Result<Figures> {
    let mut processor = vec![Vec::new(); SETUPS.len()];
    let mut turn = 0;
    let wall = turns(rounds, &SETUPS, |setup| {
        let [wall, spent] = run(setup)?;
        // The first round warms up.
        if turn >= SETUPS.len() {
            processor[turn % SETUPS.len()].push(spent);
        }
        turn += 1;
        Ok(wall)
    })?;
    Ok([wall, processor])
}

fn rows(results: &mut Results, name: &str, figures: &Figures) {
    for (what, values) in ["time", "processor time"].into_iter().zip(figures) {
        let again = paired(&values[0], &values[1]);
        for (setup, own) in SETUPS.iter().zip(values) {
            // The bar for the default setup: the upper bound of plain against plain, but at least 1.03.
            let bar = matches!(setup, Setup::Tracked("sampled")).then_some(again.high.max(1.03));
            results.judged(
                &format!("{name}, {what}"),
                &setup.name(),
                &format!("{:.1}", median(own)),
                paired(&values[0], own),
                bar,
            );
        }
    }
}

/// Microseconds of one transaction, for the client and of the server.
fn transactions(data: &Data, server: &Server, options: &[String]) -> Result<[f64; 2]> {
    let client = |options: &[String]| -> Result<String> {
        let mut command: Command = data.client("pgbench")?;
        must(command.args(["-n", "-c", "1"]).args(options).arg("postgres"))
    };
    let count = options.last().and_then(|count| count.parse::<f64>().ok()).ok_or("pgbench: no count")?;
    client(&[&options[..options.len() - 1], &words(&["300"])].concat())?;
    // The time of a backend counts once the server has waited for it.
    let children = || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid()));
    let count_of = |list: String| list.split_whitespace().count();
    let settle = |least: usize| -> Result<usize> {
        for _ in 0..500 {
            let now = count_of(children()?);
            if now <= least {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err("a backend of PostgreSQL stays".into())
    };
    std::thread::sleep(Duration::from_millis(100));
    let resting = settle(usize::MAX)?;
    let before = with_children(server.pid())?;
    let answer = client(options)?;
    settle(resting)?;
    let spent = with_children(server.pid())? - before;
    // "tps = 5231.97 (without initial connection time)"
    let rate = answer.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    Ok([1e6 / rate.ok_or_else(|| format!("pgbench printed {answer}"))?, spent / count * 1e6])
}
