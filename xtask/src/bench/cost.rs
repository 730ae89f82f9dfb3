//! Counted, not timed: instructions, system calls, resident bytes.

use super::measure::{Waiting, callgrind, collected, instructions, system_calls, together};
use super::results::{Results, barred};
use super::setup::Setup;
use super::time_limit::{ONE_RUN, must_within_limit, output, within};
use super::{Bench, java, words};
use crate::stage::{Result, any_jdk, folder, repository};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PLAIN: Setup = Setup::Plain("plain");
const DEFAULT: Setup = Setup::Tracked("sampled");
const OFF: Setup = Setup::Tracked("off");

/// Measures the figures that `goldens/instructions.txt` holds, too.
pub fn pair_instructions(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group("Instructions of one malloc+free pair", "bench/mtalloc.c, one thread, by callgrind; two lengths subtracted. HotSpot 25 summary gains 172 at 512 B and 344 at 1 KiB.");
    results.head(&["way", "instructions", "gained", "bar", ""]);
    let plain = bench.pair(&PLAIN)?;
    let ways = [(PLAIN, None), (OFF, Some(75.0)), (DEFAULT, Some(85.0)), (Setup::Tracked("exact"), Some(150.0))];
    for (setup, bar) in ways {
        let count = bench.pair(&setup)?;
        let [bar, judged] = bar.map_or([const { String::new() }; 2], |bar| barred(count - plain, bar));
        results.row(&[setup.name(), format!("{count:.1}"), format!("{:.1}", count - plain), bar, judged]);
    }
    Ok(())
}

/// Whole runs of programs that people use.
pub fn real_programs(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group("Real programs, instructions", "Whole runs by callgrind, `plimsoll run` itself not counted.");
    results.head(&["program", "plain", "Plimsoll, default", "ratio", "bar", ""]);
    let home = any_jdk();
    if let Err(error) = &home {
        results.missing(&["javac"], &error.to_string());
    }
    let mut row = |name: &str, count: &mut dyn FnMut(&Setup) -> Result<u64>| -> Result<()> {
        let (plain, tracked) = (count(&PLAIN)?, count(&DEFAULT)?);
        let ratio = tracked as f64 / plain as f64;
        let [bar, judged] = barred(ratio, if name.starts_with("redis") { 1.15 } else { 1.05 });
        results.row(&[name.into(), plain.to_string(), tracked.to_string(), format!("{ratio:.4}"), bar, judged]);
        Ok(())
    };

    let (cc1plus, compile) = cc1plus()?;
    row("cc1plus", &mut |setup| instructions(setup, &cc1plus, &compile))?;

    let work = "import json,re,zlib\nd={str(i):[i,str(i)*3] for i in range(20000)}\ns=json.dumps(d)\nassert json.loads(s)==d\n\
        print(len(re.findall('[0-9]+',s)),len(zlib.compress(s.encode())))";
    row("python3", &mut |setup| instructions(setup, Path::new("/usr/bin/python3"), &words(&["-c", work])))?;

    if let Ok(home) = home {
        let flags = javac()?;
        row("javac", &mut |setup| instructions(setup, &home.join("bin/javac"), &flags))?;
    }
    let requests = if bench.quick { "2000" } else { "20000" };
    row("redis under load", &mut |setup| redis(setup, requests))
}

/// The compiler itself on a preprocessed file of a few standard headers.
pub fn cc1plus() -> Result<(PathBuf, Vec<String>)> {
    let out = folder("bench/out")?;
    let (source, preprocessed) = (out.join("big.cpp"), out.join("big.ii"));
    let headers = "#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n";
    fs::write(
        &source,
        format!(
            "{headers}int f(int x) {{ std::map<std::string, std::vector<int>> m; m[std::to_string(x)].push_back(x); return m.size(); }}\n"
        ),
    )?;
    must_within_limit(Command::new("g++").arg("-E").arg(&source).arg("-o").arg(&preprocessed))?;
    let program = must_within_limit(Command::new("g++").arg("-print-prog-name=cc1plus"))?;
    let arguments =
        vec![preprocessed.display().to_string(), "-quiet".into(), "-O1".into(), "-o".into(), "/dev/null".into()];
    Ok((PathBuf::from(program.trim()), arguments))
}

/// Arguments of javac: C1 alone and serial GC leave fewer threads that vary. The ratio shows the remaining spread.
pub fn javac() -> Result<Vec<String>> {
    let source = repository().join("bench/unsafe/Hello.java").display().to_string();
    let classes = folder("bench/javac")?.display().to_string();
    let flags = ["-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-J-Xshare:auto", "-d", &classes, &source];
    Ok(words(&flags))
}

/// redis-server in callgrind, driven by redis-benchmark over a socket.
fn redis(setup: &Setup, requests: &str) -> Result<u64> {
    let out = folder("bench/out")?;
    let (socket, log) = (out.join("redis.sock"), out.join("redis.callgrind"));
    let _ = fs::remove_file(&socket);
    let mut arguments = words(&["--port", "0", "--save", "", "--unixsocket"]);
    arguments.push(socket.display().to_string());
    let mut command = callgrind(setup, Path::new("/usr/bin/redis-server"), &arguments)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
    let mut child = command.spawn()?;
    for _ in 0..600 {
        if socket.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut load = Command::new("redis-benchmark");
    load.arg("-s").arg(&socket).args(["-q", "-c", "10", "-n", requests, "-d", "200", "-t", "set,get,lpush,hset"]);
    let done = must_within_limit(&mut load);
    let _ = output(Command::new("redis-cli").arg("-s").arg(&socket).args(["shutdown", "nosave"]));
    if done.is_err() {
        let _ = child.kill();
    }
    let ended = within(ONE_RUN, child.id(), &command, || Ok(child.wait()?))?;
    done?;
    if !ended.success() {
        return Err(format!("redis under callgrind: {ended}").into());
    }
    collected(&fs::read_to_string(log)?).ok_or("redis: no count".into())
}

/// The growth of RSS for each live block.
pub fn memory(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("blocks")?;
    results.group(
        "Resident bytes of live blocks",
        "bench/blocks.c: growth of RSS in one run, divided by the blocks. Bars: 8 B more for sizes that are spread, 24 B for 1,024 B, which is a size class.",
    );
    results.head(&["blocks", "allocator", "plain, B for a block", "tracked", "more", "bar", "", "more, % of plain"]);
    let mut allocators = vec![("glibc", None)];
    allocators.extend(results.allocators().into_iter().map(|(name, path)| (name, Some(path))));
    let shapes = [
        ("16 to 528 B, touched", ["1000000", "16", "528", "all"], Some(8.0)),
        ("1,024 B, touched", ["300000", "1024", "1024", "all"], Some(24.0)),
        ("64 KiB to 1 MiB, first byte touched", ["2000", "65536", "1048576", "first"], None),
    ];
    for (shape, arguments, bar) in shapes {
        let blocks: f64 = arguments[0].parse()?;
        for (name, path) in &allocators {
            let (plain, tracked) = match path {
                None => (PLAIN, DEFAULT),
                Some(path) => (Setup::Allocator(name, path.clone()), Setup::TrackedOver(name, path.clone())),
            };
            let grown = |setup: &Setup| -> Result<f64> {
                let printed = setup.watched(|| must_within_limit(&mut setup.command(&program, &words(&arguments))?))?;
                Ok(printed.trim().parse::<f64>()? / blocks)
            };
            let (plain, tracked) = (grown(&plain)?, grown(&tracked)?);
            let more = tracked - plain;
            let cells = [plain, tracked, more].map(|figure| format!("{figure:.1}"));
            let judged = bar.map_or([const { String::new() }; 2], |bar| barred(more, bar));
            let percent = [format!("{:.1}", 100.0 * more / plain)];
            results.row(&[&[shape.to_string(), name.to_string()], cells.as_slice(), &judged, &percent].concat());
        }
    }
    Ok(())
}

/// Instructions, system calls and KiB that a JVM's start may gain.
const START_BARS: [f64; 3] = [6_000_000.0, 120.0, 1_024.0];

/// A small program and a JVM that says hello.
pub fn start(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Start",
        "More than plain. Instructions by callgrind and system calls by strace, of the program and its children (--follow) without \
         `plimsoll run` itself; RSS of the waiting program, started by `plimsoll run` without --follow, from /proc/PID/status, median of five runs. The bars \
         are for a JVM, by default.",
    );
    results.head(&["program", "way", "instructions", "bar", "system calls", "bar", "RSS, KiB", "bar"]);
    let crowd = bench.program("crowd")?;
    let home = any_jdk()?;
    let classes = bench.classes()?.display().to_string();
    let hello =
        |wait: &[&str]| words(&[&["-XX:+UseSerialGC", "-Xmx64m", "-Xint", "-cp", &classes, "Hello"], wait].concat());
    let programs = [
        ("/bin/true", Path::new("/bin/true").to_path_buf(), Vec::new(), crowd, words(&["0", "0"])),
        ("java Hello, -Xint", java(&home), hello(&[]), java(&home), hello(&["60000"])),
    ];
    for (name, program, arguments, waiting, waiting_arguments) in programs {
        let figures = |setup: &Setup| -> Result<[i64; 3]> {
            let count = instructions(setup, &program, &arguments)?;
            let calls = system_calls(setup, &program, &arguments)?;
            let mut resident: Vec<u64> = Vec::new();
            for _ in 0..5 {
                let waiting = setup.watched(|| Waiting::start(setup.command(&waiting, &waiting_arguments)?))?;
                std::thread::sleep(Duration::from_millis(300));
                resident.push(waiting.resident()?);
            }
            resident.sort_unstable();
            Ok([count as i64, calls as i64, (resident[2] >> 10) as i64])
        };
        let plain = figures(&PLAIN)?;
        let mut row = |way: &Setup, figures: [i64; 3]| {
            let has_bars = name.starts_with("java") && matches!(way, Setup::Tracked("sampled"));
            let cells = figures.iter().zip(START_BARS).flat_map(|(figure, bar)| {
                let judged = if has_bars { barred(*figure as f64, bar).join(": ") } else { String::new() };
                let is_more = matches!(way, Setup::Tracked(_));
                [if is_more { format!("{figure:+}") } else { figure.to_string() }, judged]
            });
            let cells: Vec<String> = [name.to_string(), way.name()].into_iter().chain(cells).collect();
            results.row(&cells);
        };
        row(&PLAIN, plain);
        for setup in [OFF, DEFAULT] {
            let tracked = figures(&setup)?;
            row(&setup, [0, 1, 2].map(|i| tracked[i] - plain[i]));
        }
    }
    Ok(())
}

/// The cost of booking one mapping call, at few and at many mappings.
pub fn mappings(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("mapping")?;
    results.group("Booking one mapping call", "bench/mapping.c by callgrind: user-mode instructions of one call (mmap and munmap, or mprotect), two lengths subtracted. HotSpot 25 summary: 680 to 740 at few regions, 20,800 at 1,200 thread stacks.");
    results.head(&["call", "mappings", "plain", "sites off", "default", "gained by default", "bar", ""]);
    for (call, verb, bar) in [("mmap + munmap, each", "map", 200.0), ("mprotect", "protect", 300.0)] {
        for count in ["20", "2000", "20000"] {
            let cost = |setup: &Setup| -> Result<f64> {
                let run = |rounds: &str| instructions(setup, &program, &words(&[count, rounds, verb]));
                // A round has two calls.
                Ok((run("3000")? as f64 - run("1000")? as f64) / 4000.0)
            };
            let (tracked, plain) = together(|| Ok([cost(&OFF)?, cost(&DEFAULT)?]), || cost(&PLAIN))?;
            let [off, default] = tracked;
            let figures = [plain, off, default, default - plain].map(|figure| format!("{figure:.0}"));
            let mut cells = vec![call.to_string(), count.to_string()];
            cells.extend(figures);
            cells.extend(barred(default - plain, bar));
            results.row(&cells);
        }
    }
    Ok(())
}
