//! Can the users of a program notice that it is tracked? They notice the time of a request or of a whole run, and its
//! processor time. JVM servers are in `load` and `rest`, Redis is in `workloads`.

use super::measure::{Pairs, children, children_of, of_family, pairs_of};
use super::postgres::{Data, Server};
use super::results::Results;
use super::setup::{Setup, segments};
use super::time_limit::{must_within_limit, output};
use super::{Bench, words};
use crate::stage::{Result, repository};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SETUPS: [Setup; 4] =
    [Setup::Plain("plain"), Setup::Plain("plain again"), Setup::Tracked("off"), Setup::Tracked("sampled")];

/// The most that users don't notice, for the default setup.
const BAR: f64 = 1.03;

pub fn programs(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "What users of real programs see",
        "Milliseconds of a whole run with `plimsoll run` itself: fixtures/scripts under node and python3 with numpy. Microseconds of a transaction of \
         PostgreSQL (pgbench, one client that stays connected): its own script of three updates, a query and an insertion, and one \
         query by key; processor time of the server and its children. Bar: ≤ 1.03, `open` where the bound of plain against plain \
         is wider than ± 3 % and the ratio isn't beyond it: these runs could not have shown more.",
    );
    results.head(&["program", "way", "figure", "ratio", "95 % of the ratio", "bar", ""]);
    let scripts = repository().join("fixtures/scripts");
    for (name, program, script) in
        [("node", "/usr/bin/node", "orders.js"), ("python3 with numpy", "/usr/bin/python3", "matrices.py")]
    {
        let arguments = [scripts.join(script).display().to_string()];
        let figures = pairs_of(bench.rounds, &SETUPS, |setup| {
            let (before, begin) = (children()?, Instant::now());
            // The script for node ends with the exit code 5.
            let output = output(&mut setup.command(Path::new(program), &arguments)?)?;
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
        must_within_limit(data.client("pgbench")?.args(["-q", "-i", "-s", "2", "postgres"]))?;
    }
    for (name, options) in
        [("PostgreSQL, updates", words(&["-t", "6000"])), ("PostgreSQL, a query", words(&["-S", "-t", "36000"]))]
    {
        let figures = pairs_of(bench.rounds, &SETUPS, |setup| {
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

/// `figures`: wall time and processor time.
fn rows(results: &mut Results, name: &str, figures: &[Pairs; 2]) {
    for (what, pairs) in ["time", "processor time"].into_iter().zip(figures) {
        let columns = pairs.columns(&SETUPS);
        for (setup, column) in SETUPS.iter().zip(&columns) {
            let is_judged = matches!(setup, Setup::Tracked("sampled"));
            let verdict = is_judged.then(|| column.ratio.verdict_beside(BAR, &columns[1].ratio));
            results.row(&[
                format!("{name}, {what}"),
                column.name.clone(),
                format!("{:.1}", column.median),
                format!("{:.3}", column.ratio.value),
                format!("{:.3} to {:.3}", column.ratio.low, column.ratio.high),
                if is_judged { format!("≤ {BAR}") } else { String::new() },
                verdict.unwrap_or_default(),
            ]);
        }
    }
}

/// Microseconds of one transaction, for the client and of the server.
fn transactions(data: &Data, server: &Server, options: &[String]) -> Result<[f64; 2]> {
    let client = |options: &[String]| -> Result<String> {
        let mut command: Command = data.client("pgbench")?;
        must_within_limit(command.args(["-n", "-c", "1"]).args(options).arg("postgres"))
    };
    let count = options.last().and_then(|count| count.parse::<f64>().ok()).ok_or("pgbench: no count")?;
    client(&[&options[..options.len() - 1], &words(&["300"])].concat())?;
    // The time of a backend counts once the server has waited for it. It comes in ticks, so it must be long beside one.
    let settle = |least: usize| -> Result<usize> {
        for _ in 0..500 {
            let now = children_of(server.pid())?.len();
            if now <= least {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err("a backend of PostgreSQL stays".into())
    };
    std::thread::sleep(Duration::from_millis(100));
    let resting = settle(usize::MAX)?;
    let before = of_family(server.pid())?;
    let answer = client(options)?;
    settle(resting)?;
    let spent = of_family(server.pid())? - before;
    // "tps = 5231.97 (without initial connection time)"
    let rate = answer.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse::<f64>().ok());
    Ok([1e6 / rate.ok_or_else(|| format!("pgbench printed {answer}"))?, spent / count * 1e6])
}
