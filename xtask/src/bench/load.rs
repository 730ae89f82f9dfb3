//! A JVM server under load: the cost of a request under the tracker, and its latency.
//!
//! JVMs that run side by side differ by more than the effect (0.7 to 1.4 between two plain ones: each compiles its code
//! in its own order). So *one* server takes all setups in turn, by attach, change of sites and detach:
//!
//! ```text
//! round:  P p p P P p p P ─ attach ─ o s e e s o o s e e s o ─ detach
//!         └ plain, plain again       └ sites off, sampled, exact; each letter a block of requests
//! ```
//! The figure of a setup in a round is the median of its blocks, so a collection or compilation in one block does not
//! count. Its ratio is the median over rounds of its figure divided by the plain figure of the round. The instructions
//! of a JIT cannot be counted here (callgrind would interpret it, and shared machines have no counters), so the cost of
//! a request is the server's CPU time.

use super::measure::{Column, of_threads};
use super::results::Results;
use super::setup::Setup;
use super::stats::{median, paired};
use super::{Bench, java, words};
use crate::stage::{Result, any_jdk, folder, jars, must, plimsoll, repository};
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
    ("plain", None),
    ("plain again", None),
    ("attached, sites off", Some("off")),
    ("attached, sites sampled", Some("sampled")),
    ("attached, sites exact", Some("exact")),
];
const SAMPLED: usize = 3;
/// The blocks of each setup in a round.
const DETACHED: [usize; 8] = [0, 1, 1, 0, 0, 1, 1, 0];
const ATTACHED: [usize; 12] = [2, 3, 4, 4, 3, 2, 2, 3, 4, 4, 3, 2];

/// Requests after an attach, detach or change that are not measured: books, memos and caches are cold. With sampled
/// sites a thread also has to find its mean, which takes some 50 ms of this load (`account/sampling.rs` of the tracker).
const SETTLE: [usize; SETUPS.len()] = [100, 100, 300, 1_500, 300];

fn run_verb(verb: &[&str], pid: u32) -> Result<()> {
    must(Command::new(plimsoll()?).args(verb).arg(pid.to_string())).map(drop)
}

/// Figures by setup and kind.
fn round(server: &mut Server) -> Result<[[f64; 3]; SETUPS.len()]> {
    let mut blocks = [const { [const { Vec::new() }; 3] }; SETUPS.len()];
    let pid = server.child.id();
    for schedule in [&DETACHED[..], &ATTACHED] {
        let mut last = None;
        for &setup in schedule {
            if last != Some(setup) {
                if let Some(sites) = SETUPS[setup].1 {
                    run_verb(&["attach", "--yes", "--sites", sites], pid)?;
                }
                block(server, SETTLE[setup])?;
            }
            last = Some(setup);
            blocks[setup].iter_mut().zip(block(server, BLOCK)?).for_each(|(list, value)| list.push(value));
        }
    }
    run_verb(&["detach"], pid)?;
    Ok(blocks.map(|kinds| kinds.map(|list| median(&list))))
}

pub fn requests(bench: &Bench, results: &mut Results) -> Result<()> {
    let home = any_jdk()?;
    let mut server = Server::start(&Setup::Plain("plain"), &home, &shop(&home)?)?;
    for _ in 0..if bench.quick { 100 } else { 300 } {
        block(&mut server, BLOCK)?;
    }
    let mut figures = vec![[const { Vec::new() }; 3]; SETUPS.len()];
    // A whole run, with start and warm-up, must take less than five minutes.
    let (begin, most) = (Instant::now(), Duration::from_secs(if bench.quick { 30 } else { 240 }));
    while begin.elapsed() < most {
        for (lists, values) in figures.iter_mut().zip(round(&mut server)?) {
            lists.iter_mut().zip(values).for_each(|(list, value)| list.push(value));
        }
    }
    results.group(
        "A JVM server under load",
        &format!(
            "Spring Boot (fixtures/java/shop), one server, one connection, {} rounds of attach, switches of sites and detach; in a round \
             each way has {} blocks of {BLOCK} requests, in turn. Ratios are medians of each round's. Bars: a request's \
             processor time ≤ 1.02, latencies inside the bound of plain against plain.",
            figures[0][0].len(),
            DETACHED.len() / 2,
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
        let bound = if kind == 0 { 1.02 } else { columns[1].ratio.high };
        columns.push(against(SAMPLED - 1, SAMPLED, "sampled against off"));
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
    must(compiler.arg("-d").arg(target.join("classes")).arg(source.join("shop/Shop.java")))?;
    Ok(format!("{0}/classes:{0}/jars/*", target.display()))
}
