//! Shapes of allocation from allocator benchmarks, over each allocator; Redis; and what a service holds at rest.

use super::measure::{Waiting, alternate, pairs};
use super::results::{Results, barred};
use super::setup::Setup;
use super::time_limit::{ONE_RUN, must_within_limit, output, within};
use super::{Bench, words};
use crate::stage::{Result, folder};
use std::process::{Command, Stdio};
use std::time::Duration;

const PLAIN: Setup = Setup::Plain("plain");
const AGAIN: Setup = Setup::Plain("plain again");
const OFF: Setup = Setup::Tracked("off");
const DEFAULT: Setup = Setup::Tracked("sampled");
/// Behind the plain ways.
const OFF_AT: usize = 2;

/// Shape, threads, operations of a thread. Those with 8 threads run on the machine's 2 cores.
const SHAPES: [(&str, u64, u64); 9] = [
    ("larson", 2, 3_000_000),
    ("turnover", 2, 3_000_000),
    ("queue", 1, 1_500_000),
    ("churn", 1, 1_000_000),
    ("scratch", 2, 1_000_000),
    ("paths", 1, 1_000_000),
    ("larson", 8, 750_000),
    ("turnover", 8, 750_000),
    ("queue", 4, 400_000),
];

pub fn shapes(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("workloads")?;
    results.group(
        "Allocator benchmarks",
        "bench/workloads.c: the shapes that mimalloc-bench has (its head says what each does). Nanoseconds of one thread's operation. \
         bench/least.c has the two rows without stacks: what any bookkeeper in the process must do.",
    );
    results.head(&["shape", "way", "ns for one", "ratio", "95 % bound", "bar", ""]);
    let mut setups = vec![PLAIN, AGAIN, DEFAULT];
    setups.extend(bench.least()?);
    for (name, path) in results.allocators() {
        setups.extend([Setup::Allocator(name, path.clone()), Setup::TrackedOver(name, path)]);
    }
    let over = |setup: &Setup| matches!(setup, Setup::TrackedOver(..)).then(|| setup.name());
    for (shape, threads, most) in SHAPES {
        let count = if bench.quick { most / 10 } else { most };
        // Most blocks have a new stack here, so the cost without any stacks is a separate question.
        let has_off = shape == "paths";
        let mut setups = setups.clone();
        if has_off {
            setups.insert(OFF_AT, OFF);
        }
        let pairs = alternate(bench.short(), &setups, |setup| {
            setup.command(&program, &words(&[shape, &threads.to_string(), &count.to_string()]))
        })?;
        // `paths` needs a stack for each block, which is part of the work; the other shapes measure the books.
        let ours = if shape == "paths" { 1.2 } else { 1.3 };
        let names: Vec<String> = setups.iter().filter_map(over).collect();
        let mut bars = vec![("Plimsoll, sites sampled", ours)];
        bars.extend(has_off.then_some(("Plimsoll, sites off", 1.15)));
        bars.extend(names.iter().map(|name| (name.as_str(), 1.6)));
        results.pairs(&format!("{shape}, {threads} thread(s)"), &pairs, &setups, &bars);
    }
    Ok(())
}

/// Redis over the jemalloc that Debian links it with, by its own benchmark.
pub fn redis(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Redis under load",
        "Debian's redis-server over jemalloc, a new one for each run; redis-benchmark, 20 connections, SET of 200 B. Microseconds of wall time for one request of the whole server.",
    );
    results.head(&["what", "way", "µs for one", "ratio", "95 % bound", "bar", ""]);
    let requests = if bench.quick { "20000" } else { "100000" };
    let setups = [PLAIN, AGAIN, OFF, DEFAULT];
    let values = pairs(bench.rounds, &setups, |setup| one_redis(setup, requests))?;
    results.pairs("SET", &values, &setups, &[("Plimsoll, sites sampled", 1.03)]);
    Ok(())
}

fn one_redis(setup: &Setup, requests: &str) -> Result<f64> {
    let socket = folder("bench/out")?.join("redis-load.sock");
    let _ = std::fs::remove_file(&socket);
    let mut arguments = words(&["--port", "0", "--save", "", "--unixsocket"]);
    arguments.push(socket.display().to_string());
    let mut command = setup.command(std::path::Path::new("/usr/bin/redis-server"), &arguments)?;
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    for _ in 0..200 {
        if socket.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut load = Command::new("redis-benchmark");
    load.arg("-s").arg(&socket).args(["--csv", "-c", "20", "-n", requests, "-r", "100000", "-d", "200", "-t", "set"]);
    let answer = must_within_limit(&mut load);
    let _ = output(Command::new("redis-cli").arg("-s").arg(&socket).args(["shutdown", "nosave"]));
    if answer.is_err() {
        let _ = server.kill();
    }
    within(ONE_RUN, server.id(), &command, || Ok(server.wait()?))?;
    // "SET","187265.92",…
    let answer = answer?;
    let row = answer.lines().find(|line| line.starts_with("\"SET\"")).ok_or("redis-benchmark printed no row")?;
    let rate = row.split(',').nth(1).and_then(|cell| cell.trim_matches('"').parse::<f64>().ok());
    Ok(1e6 / rate.ok_or_else(|| format!("redis-benchmark printed {row}"))?)
}

/// What 300 threads that have all allocated cost at rest.
pub fn threads(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("service")?;
    results.group(
        "A service of 300 threads at rest",
        "bench/service.c: each thread has made 20,000 pairs below 8 frames and keeps 100 blocks. RSS, median of five.",
    );
    results.head(&["way", "RSS, MiB", "more, MiB", "bar, MiB", ""]);
    let mut plain = 0.0;
    let ways =
        [(PLAIN, None), (Setup::Tracked("off"), None), (DEFAULT, Some(8.0)), (Setup::Tracked("exact"), Some(25.0))];
    for (setup, bar) in ways {
        let mut resident = Vec::new();
        for _ in 0..5 {
            let waiting = setup.watched(|| Waiting::start(setup.command(&program, &words(&["300", "20000"]))?))?;
            std::thread::sleep(Duration::from_millis(300));
            resident.push(waiting.resident()?);
        }
        resident.sort_unstable();
        let mib = resident[2] as f64 / f64::from(1 << 20);
        if setup.name() == "plain" {
            plain = mib;
        }
        let [bar, judged] = bar.map_or([const { String::new() }; 2], |bar| barred(mib - plain, bar));
        results.row(&[setup.name(), format!("{mib:.1}"), format!("{:+.1}", mib - plain), bar, judged]);
    }
    Ok(())
}
