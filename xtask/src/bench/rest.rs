//! JVM servers at rest: how long they take until their port is open, and how much memory they hold then.
//!
//! Two untracked servers differ by 7 MiB if they are started as people start them. The reason: the growth of the heap,
//! and the number of methods that C2 compiles at a time, depend on the clock. So the time is measured with the VM's own
//! choices, and the memory with C1 alone and a heap of fixed size, touched at the start.

use super::load::shop;
use super::measure::{pairs, resident_of, turns};
use super::published::quarkus;
use super::results::Results;
use super::setup::Setup;
use super::stats::median;
use super::{Bench, java, words};
use crate::stage::{Result, any_jdk, folder};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A server, and how it is started.
struct Subject {
    name: &'static str,
    java: PathBuf,
    /// The heap's size, all of which is touched.
    heap: &'static str,
    arguments: Vec<String>,
    /// What it prints once its port is open.
    ready: &'static str,
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Subject {
    /// Starts it, and returns it with the milliseconds until it was ready.
    fn start(&self, setup: &Setup, options: &[String]) -> Result<(Server, f64)> {
        let log = folder("bench/out")?.join("server.log");
        let output = File::create(&log)?;
        let mut command = setup.command(&self.java, &[options, &self.arguments].concat())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let begin = Instant::now();
        let mut server = Server(command.spawn()?);
        while !fs::read_to_string(&log)?.contains(self.ready) {
            if server.0.try_wait()?.is_some() || begin.elapsed() > Duration::from_secs(120) {
                return Err(format!("{} never opened: {}", self.name, fs::read_to_string(&log)?).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok((server, begin.elapsed().as_secs_f64() * 1e3))
    }

    /// RSS in MiB once three readings in a row agree, since the compiler continues for a while. False: they did not
    /// agree within 30 s, and this is the last reading.
    fn resident(&self, setup: &Setup) -> Result<(f64, bool)> {
        let fixed =
            [format!("-Xms{}", self.heap), format!("-Xmx{}", self.heap), "-XX:+AlwaysPreTouch".into(), C1.into()];
        let (server, _) = self.start(setup, &fixed)?;
        let (mut last, mut same) = (0, 0);
        for _ in 0..60 {
            std::thread::sleep(Duration::from_millis(500));
            let now = resident_of(server.0.id())?;
            same = if now == last { same + 1 } else { 0 };
            last = now;
            if same == 2 {
                break;
            }
        }
        Ok((last as f64 / f64::from(1 << 20), same == 2))
    }
}

const C1: &str = "-XX:TieredStopAtLevel=1";
const SETUPS: [Setup; 5] = [
    Setup::Plain("plain"),
    Setup::Plain("plain again"),
    Setup::Tracked("off"),
    Setup::Tracked("sampled"),
    Setup::Tracked("exact"),
];
/// By setup: the largest ratio of its time to plain, and the most MiB more than plain.
const BARS: [Option<(f64, f64)>; 5] = [None, None, Some((1.03, 1.0)), Some((1.05, 3.0)), Some((1.15, 10.0))];

pub fn servers(bench: &Bench, results: &mut Results) -> Result<()> {
    let home = any_jdk()?;
    let port = folder("bench/out")?.join("port").display().to_string();
    let kiosk = quarkus::server("3.20.0")?.display().to_string();
    let local = ["-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0"];
    let subjects = [
        Subject {
            name: "Spring Boot",
            java: java(&home),
            heap: "160m",
            arguments: words(&["-XX:+UseSerialGC", "-cp", &shop(&home)?, "shop.Shop", &port]),
            ready: "shop is open",
        },
        Subject {
            name: "Quarkus",
            java: java(&home),
            heap: "96m",
            arguments: words(&["-XX:+UseSerialGC", local[0], local[1], "-jar", &kiosk]),
            ready: "Listening on",
        },
    ];
    results.group(
        "A JVM server at rest",
        "Spring Boot (fixtures/java/shop) and Quarkus 3.20.0 (bench/published/quarkus), a new JVM for each run: milliseconds until it prints that its port is open.",
    );
    results.head(&["server", "way", "ms", "ratio", "95 % bound", "bar", ""]);
    let bars: Vec<(String, f64)> =
        SETUPS.iter().zip(BARS).filter_map(|(setup, bar)| Some((setup.name(), bar?.0))).collect();
    let bars: Vec<(&str, f64)> = bars.iter().map(|(name, bar)| (name.as_str(), *bar)).collect();
    for subject in &subjects {
        let times = pairs(bench.rounds, &SETUPS, |setup| Ok(subject.start(setup, &[])?.1))?;
        results.pairs(subject.name, &times, &SETUPS, &bars);
    }
    let rounds = bench.rounds / 3;
    results.add(&format!(
        "\nRSS at rest in MiB, in {rounds} rounds in turn, with {C1}, a fixed heap and AlwaysPreTouch, so that two untracked servers agree; \
         read once three readings in a row agree. More: against the median of all untracked runs; the bounds are the least and the most of all runs.\n\n"
    ));
    results.head(&["server", "way", "MiB", "more", "bounds", "bar", ""]);
    let mut restless = 0;
    for subject in &subjects {
        let resident = turns(rounds, &SETUPS, |setup| {
            let (mib, agree) = subject.resident(setup)?;
            restless += usize::from(!agree);
            Ok(mib)
        })?;
        let plain = resident[..2].concat();
        for ((setup, own), bar) in SETUPS.iter().zip(&resident).zip(BARS) {
            let (low, high) = (least(own) - most(&plain), most(own) - least(&plain));
            let (bar, verdict) = bar.map_or((String::new(), ""), |(_, bar)| {
                let verdict = if high <= bar {
                    "holds"
                } else if low > bar {
                    "fails"
                } else {
                    "open"
                };
                (format!("≤ {bar:.0}"), verdict)
            });
            results.row(&[
                subject.name.into(),
                setup.name(),
                format!("{:.1}", median(own)),
                format!("{:+.1}", median(own) - median(&plain)),
                format!("{low:+.1} to {high:+.1}"),
                bar,
                verdict.into(),
            ]);
        }
    }
    if restless > 0 {
        results.add(&format!("\nIn {restless} runs no three readings agreed within 30 s: the last one counts.\n"));
    }
    Ok(())
}

fn least(list: &[f64]) -> f64 {
    list.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(list: &[f64]) -> f64 {
    list.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
