//! A JVM server under load: the cost of a request under the tracker, and its latency.
//!
//! JVMs that run side by side differ by more than the effect (0.7 to 1.4 between two plain ones: each compiles its code
//! in its own order). So *one* server takes all setups in turn, by attach, change of sites and detach:
//!
//! ```text
//! round:  D D D D ─ attach, detach ─ d d d d ─ attach ─ o s e e s o o s e e s o ─ detach
//!         └ detached                 └ again            └ sites off, sampled, exact; each letter a block of requests
//! ```
//! The server is attached between the two detached halves, so their ratio includes the effect of a change of phase. In
//! half of the rounds d is first, and in half of the rounds the attached phase is. The figure of a setup in a round is
//! the median of its blocks, so a collection or compilation in one block does not count. Its ratio is the median over
//! rounds of its figure divided by the detached figure of the round. The instructions of a JIT cannot be counted here
//! (callgrind would interpret it, and shared machines have no counters), so the cost of a request is the server's CPU
//! time. `attach::afterwards` measures what a detached server lost against one that was never attached.

use super::measure::{Column, of_threads};
use super::results::Results;
use super::setup::Setup;
use super::stats::{median, paired};
use super::time_limit::must_within_limit;
use super::{Bench, java, words};
use crate::stage::{Result, any_jdk, folder, jars, plimsoll, repository};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BLOCK: usize = 400;

/// One server, and a connection to it that stays open.
struct Server {
    child: Child,
    connection: BufReader<TcpStream>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(setup: &Setup, home: &Path, class_path: &str) -> Result<Server> {
        let port_file = folder("bench/out")?.join("port");
        let _ = fs::remove_file(&port_file);
        let file = port_file.display().to_string();
        let arguments = words(&["-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path, "shop.Shop", &file]);
        let mut command = setup.command(&java(home), &arguments)?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let begin = Instant::now();
        let port = loop {
            if let Ok(Ok(port)) = fs::read_to_string(&port_file).map(|text| text.trim().parse::<u16>()) {
                break port;
            }
            if child.try_wait()?.is_some() || begin.elapsed() > Duration::from_secs(120) {
                let _ = child.kill();
                return Err("the shop never opened".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Server { child, connection: BufReader::new(stream) })
    }

    /// One request, until the last byte of its answer.
    fn get(&mut self, path: &str) -> Result<()> {
        self.connection.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut line = String::new();
        let (mut length, mut chunked) = (0, false);
        let mut next = |connection: &mut BufReader<TcpStream>| -> Result<String> {
            line.clear();
            connection.read_line(&mut line)?;
            Ok(line.trim_end().to_ascii_lowercase())
        };
        let status = next(&mut self.connection)?;
        if !status.contains(" 200") {
            return Err(format!("{path}: {status}").into());
        }
        loop {
            let header = next(&mut self.connection)?;
            match header.split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse()?,
                Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
                Some(_) => (),
                None => break,
            }
        }
        let take = |connection: &mut BufReader<TcpStream>, bytes: u64| -> Result<()> {
            let read = std::io::copy(&mut connection.take(bytes), &mut std::io::sink())?;
            if read == bytes { Ok(()) } else { Err("the answer was cut".into()) }
        };
        while chunked {
            let size = u64::from_str_radix(&next(&mut self.connection)?, 16)?;
            take(&mut self.connection, size + 2)?;
            chunked = size != 0;
        }
        take(&mut self.connection, length)
    }

    /// A tick of 10 ms would be a tenth of a block.
    fn processor_us(&self) -> Result<f64> {
        Ok(of_threads(self.child.id())? * 1e6)
    }
}

/// Figures of one block: CPU time of a request in µs, median and 99th percentile of its latency in µs.
fn block(server: &mut Server, requests: usize) -> Result<[f64; 3]> {
    let before = server.processor_us()?;
    let mut latencies = Vec::with_capacity(requests);
    for request in 0..requests {
        // The size of an answer depends on the number modulo 20, and each block has equally many of each.
        let path = format!("/orders/{request}");
        let begin = Instant::now();
        server.get(&path)?;
        latencies.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    latencies.sort_by(f64::total_cmp);
    let processor = (server.processor_us()? - before) / requests as f64;
    Ok([processor, median(&latencies), latencies[requests * 99 / 100]])
}

/// The setups of the one server, in the order of their figures; those with `--sites` need the tracker.
const SETUPS: [(&str, Option<&str>); 5] = [
    ("detached", None),
    ("detached again", None),
    ("attached, sites off", Some("off")),
    ("attached, sites sampled", Some("sampled")),
    ("attached, sites exact", Some("exact")),
];
const OFF: usize = 2;
const SAMPLED: usize = 3;
/// The blocks of each setup in a round.
const BLOCKS: usize = 4;
const ATTACHED: [usize; 3 * BLOCKS] = [2, 3, 4, 4, 3, 2, 2, 3, 4, 4, 3, 2];

/// Requests after an attach, detach or change that are not measured: books, memos and caches are cold. With sampled
/// sites the process also has to find its mean, which takes some 50 ms of this load (`account/sampling.rs` of the tracker).
const SETTLE: [usize; SETUPS.len()] = [100, 100, 300, 1_500, 300];

fn run_verb(verb: &[&str], pid: u32) -> Result<()> {
    must_within_limit(Command::new(plimsoll()?).args(verb).arg(pid.to_string())).map(drop)
}

/// A part of a round, which begins and ends detached.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The blocks of this detached setup.
    Detached(usize),
    /// An attach and a detach, and nothing measured.
    Null,
    Attached,
}

fn phases(round: usize) -> [Phase; 4] {
    let [first, second] = if round.is_multiple_of(2) { [0, 1] } else { [1, 0] };
    let mut phases = [Phase::Detached(first), Phase::Null, Phase::Detached(second), Phase::Attached];
    if !(round / 2).is_multiple_of(2) {
        phases.rotate_right(1);
    }
    phases
}

/// The figures of each block, by kind.
type Blocks = [Vec<f64>; 3];

fn add(blocks: &mut Blocks, figures: [f64; 3]) {
    blocks.iter_mut().zip(figures).for_each(|(list, figure)| list.push(figure));
}

fn attach(server: &mut Server, setup: usize) -> Result<()> {
    let sites = SETUPS[setup].1.ok_or("a detached setup")?;
    run_verb(&["attach", "--yes", "--sites", sites], server.child.id())?;
    block(server, SETTLE[setup]).map(drop)
}

/// Attaches, and detaches again.
fn null(server: &mut Server) -> Result<()> {
    attach(server, OFF)?;
    run_verb(&["detach"], server.child.id())
}

/// Figures by setup and kind.
fn round(server: &mut Server, number: usize) -> Result<[[f64; 3]; SETUPS.len()]> {
    let mut blocks: [Blocks; SETUPS.len()] = Default::default();
    for phase in phases(number) {
        match phase {
            Phase::Detached(setup) => {
                block(server, SETTLE[setup])?;
                for _ in 0..BLOCKS {
                    add(&mut blocks[setup], block(server, BLOCK)?);
                }
            }
            Phase::Null => null(server)?,
            Phase::Attached => {
                let mut last = None;
                for setup in ATTACHED {
                    if last.replace(setup) != Some(setup) {
                        attach(server, setup)?;
                    }
                    add(&mut blocks[setup], block(server, BLOCK)?);
                }
                run_verb(&["detach"], server.child.id())?;
            }
        }
    }
    Ok(blocks.map(|kinds| kinds.map(|list| median(&list))))
}

pub fn requests(bench: &Bench, results: &mut Results) -> Result<()> {
    let home = any_jdk()?;
    let mut server = Server::start(&Setup::Plain("plain"), &home, &shop(&home)?)?;
    for _ in 0..if bench.quick { 100 } else { 300 } {
        block(&mut server, BLOCK)?;
    }
    // So that the server was attached before the first round, too.
    null(&mut server)?;
    let mut figures: [Blocks; SETUPS.len()] = Default::default();
    // A whole run, with start and warm-up, must take less than five minutes.
    let (begin, most) = (Instant::now(), Duration::from_secs(if bench.quick { 30 } else { 240 }));
    while begin.elapsed() < most {
        let number = figures[0][0].len();
        for (lists, values) in figures.iter_mut().zip(round(&mut server, number)?) {
            add(lists, values);
        }
    }
    results.group(
        "A JVM server under load",
        &format!(
            "Spring Boot (fixtures/java/shop), one server, one connection, {} rounds of attach, switches of sites and detach; in a round \
             each way has {BLOCKS} blocks of {BLOCK} requests. Ratios are medians of each round's, to the detached server: the tracker's \
             library and its tables stay in it (*Speed after detach* has what that costs). Between its two halves the server was attached \
             and detached once more, so the second line has all that a change of phase makes. Bars: a request's processor time ≤ 1.02, \
             latencies inside the bound of detached against detached, or ≤ 1.",
            figures[0][0].len(),
        ),
    );
    results.head(&["figure", "way", "median µs", "ratio", "95 % of the ratio", "bar", "verdict"]);
    for (kind, what) in ["processor time", "latency p50", "latency p99"].into_iter().enumerate() {
        let against = |base: usize, setup: usize, name: &str| Column {
            name: name.into(),
            median: median(&figures[setup][kind]),
            ratio: paired(&figures[base][kind], &figures[setup][kind]),
        };
        let mut columns: Vec<Column> =
            SETUPS.iter().enumerate().map(|(setup, (name, _))| against(0, setup, name)).collect();
        let bound = if kind == 0 { 1.02 } else { columns[1].ratio.high.max(1.0) };
        columns.push(against(OFF, SAMPLED, "sampled against off"));
        results.setups(what, &columns, &[(SETUPS[SAMPLED].0, bound)]);
    }
    Ok(())
}

/// Jars and classes of the shop: a class path.
pub fn shop(home: &Path) -> Result<String> {
    let source = repository().join("fixtures/java/shop");
    let target = folder("bench/shop")?;
    jars(&source.join("pom.xml"), &target.join("jars"))?;
    let mut compiler = Command::new(home.join("bin/javac"));
    compiler.args(["-parameters", "--release", "17", "-cp"]).arg(target.join("jars/*"));
    must_within_limit(compiler.arg("-d").arg(target.join("classes")).arg(source.join("shop/Shop.java")))?;
    Ok(format!("{0}/classes:{0}/jars/*", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_detached_halves_have_the_same_places() {
        let rounds: Vec<[Phase; 4]> = (0..4).map(phases).collect();
        for setup in [0, 1] {
            let place = |phases: &[Phase; 4]| phases.iter().position(|phase| *phase == Phase::Detached(setup));
            let mut places: Vec<Option<usize>> = rounds.iter().map(place).collect();
            places.sort_unstable();
            assert_eq!(places, [Some(0), Some(1), Some(2), Some(3)]);
        }
        for phases in rounds {
            let null = phases.iter().position(|phase| *phase == Phase::Null).expect("it has one");
            assert!(matches!((phases[null - 1], phases[null + 1]), (Phase::Detached(_), Phase::Detached(_))));
        }
    }

    #[test]
    fn each_attached_setup_has_as_many_blocks_as_a_detached_one() {
        for (setup, (name, sites)) in SETUPS.iter().enumerate() {
            let blocks = ATTACHED.iter().filter(|block| **block == setup).count();
            assert_eq!(blocks, if sites.is_some() { BLOCKS } else { 0 }, "{name}");
        }
        assert_eq!(SETUPS[OFF].1, Some("off"));
        assert_eq!(SETUPS[SAMPLED].1, Some("sampled"));
    }
}
