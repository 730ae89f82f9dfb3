//! Wall-clock ratios of call stacks in three modes: a malloc-bound C loop, and C++ as Debian builds it.

use super::measure::alternate;
use super::results::Results;
use super::setup::{Setup, has_profiler, library};
use super::stats::paired;
use super::{Bench, words};
use crate::stage::{Result, folder, must, repository};
use std::process::Command;

const HEAD: [&str; 7] = ["what", "way", "ns for one", "ratio", "95 % bound", "bar", ""];
const OFF: &str = "off";
const SAMPLED: &str = "sampled";
const EXACT: &str = "exact";

/// 8 and 16 frames between the loop and malloc, with and without frame pointers; peers at 8 without.
pub fn pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Sites: malloc+free pair",
        "bench/mtalloc.c: threads that churn 1,000 live blocks of 16 to 528 B each, below 8 or 16 frames, built without (gcc's \
         default) and with -fno-omit-frame-pointer. Nanoseconds of one thread's pair.",
    );
    let jemalloc = library("libjemalloc.so.2");
    let profiled = jemalloc.as_ref().filter(|path| has_profiler(path));
    if profiled.is_none() {
        results.add("jemalloc's own profiler isn't beside it: no libjemalloc.so.2 that was built with it.\n\n");
    }
    results.head(&HEAD);
    let most: u64 = if bench.quick { 1_000_000 } else { 2_000_000 };
    for (build, flag) in [("no frame pointers", "-fomit-frame-pointer"), ("frame pointers", "-fno-omit-frame-pointer")]
    {
        let program = bench.program_with("mtalloc", &format!("mtalloc{flag}"), &[flag])?;
        for depth in ["8", "16"] {
            // With exact sites: the rounds of one thread, then the rounds of two.
            let (mut exact, mut again): (Vec<Vec<f64>>, Vec<Vec<f64>>) = Default::default();
            for threads in ["1", "2"] {
                let mut setups = vec![Setup::Plain("plain"), Setup::Plain("plain again")];
                setups.extend([OFF, SAMPLED, EXACT].map(Setup::Tracked));
                if depth == "8" && flag == "-fomit-frame-pointer" {
                    setups.extend(["", "=512k", "=512k,nofree"].map(Setup::AsyncProfiler));
                    setups.push(Setup::Heaptrack);
                    setups.extend(jemalloc.iter().map(|path| Setup::Allocator("jemalloc", path.clone())));
                    setups.extend(profiled.map(|path| Setup::JemallocProfiler(path.clone())));
                }
                let pairs = alternate(bench.short(), &setups, |setup| {
                    let count = (most / setup.slowness()).to_string();
                    setup.command(&program, &words(&[threads, &count, "1000", "512", depth]))
                })?;
                let what = format!("{depth} frames, {build}, {threads} thread(s)");
                let bars = [("Plimsoll, sites sampled", 1.45), ("Plimsoll, sites exact", 1.70)];
                results.setups(&what, &pairs.columns(&setups), &bars);
                let against_off = paired(&pairs.relative(2), &pairs.relative(3));
                results.judged(&what, "sampled against sites off", "", against_off, Some(1.05));
                exact.push(pairs.relative(4));
                again.push(pairs.relative(1));
            }
            // The ratio to plain at two threads divided by the ratio at one thread. It may vary as much as plain
            // against plain does.
            let noise = paired(&again[0], &again[1]).high.max(1.0);
            let bar = noise.is_finite().then_some(noise);
            let what = format!("{depth} frames, {build}");
            results.judged(&what, "exact, ratio of 2 threads against 1", "", paired(&exact[0], &exact[1]), bar);
        }
    }
    Ok(())
}

/// Strings, maps, streams, virtual calls through libstdc++, with the flags of Debian's packages.
pub fn cpp(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Sites: C++ without frame pointers",
        "bench/orders.cc, g++ -g -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2, as Debian builds. Nanoseconds of one order.",
    );
    results.head(&HEAD);
    let (source, program) = (repository().join("bench/orders.cc"), folder("bench")?.join("orders"));
    let flags = ["-std=c++17", "-g", "-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-o"];
    must(Command::new("g++").args(flags).arg(&program).arg(source))?;
    let mut setups = vec![Setup::Plain("plain"), Setup::Plain("plain again")];
    setups.extend([OFF, SAMPLED, EXACT].map(Setup::Tracked));
    setups.extend([Setup::Heaptrack, Setup::AsyncProfiler(""), Setup::AsyncProfiler("=512k,nofree")]);
    let most = if bench.quick { 50_000 } else { 100_000 };
    let pairs = alternate(bench.short(), &setups, |setup| {
        setup.command(&program, &words(&[&(most / setup.slowness()).to_string()]))
    })?;
    let bars = [("Plimsoll, sites off", 1.15), ("Plimsoll, sites sampled", 1.2), ("Plimsoll, sites exact", 3.0)];
    results.setups("an order", &pairs.columns(&setups), &bars);
    Ok(())
}
