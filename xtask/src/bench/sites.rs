//! Wall-clock ratios of call stacks in three modes: a malloc-bound C loop, and C++ as Debian builds it.

use super::measure::alternate;
use super::results::Results;
use super::setup::Setup;
use super::speed::{ExactByThreads, PAIR_BARS};
use super::time_limit::must_within_limit;
use super::{Bench, words};
use crate::stage::{Result, folder, repository};
use std::process::Command;

const HEAD: [&str; 7] = ["what", "way", "ns for one", "ratio", "95 % bound", "bar", ""];
const OFF: &str = "off";
const SAMPLED: &str = "sampled";
const EXACT: &str = "exact";

/// 8 and 16 frames between the loop and malloc, with and without frame pointers; *malloc+free pair* has 8 frames
/// without.
pub fn pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    results.group(
        "Sites: malloc+free pair",
        "bench/mtalloc.c: threads that churn 1,000 live blocks of 16 to 528 B each, below 8 or 16 frames, built without (gcc's \
         default) and with -fno-omit-frame-pointer; 8 frames without are in *malloc+free pair*. Nanoseconds of one thread's pair.",
    );
    results.head(&HEAD);
    let most: u64 = if bench.quick { 1_000_000 } else { 2_000_000 };
    let builds = [
        ("16", "no frame pointers", "-fomit-frame-pointer"),
        ("8", "frame pointers", "-fno-omit-frame-pointer"),
        ("16", "frame pointers", "-fno-omit-frame-pointer"),
    ];
    for (depth, build, flag) in builds {
        let program = bench.program_with("mtalloc", &format!("mtalloc{flag}"), &[flag])?;
        let mut exact = ExactByThreads::default();
        for threads in ["1", "2"] {
            let mut setups = vec![Setup::Plain("plain"), Setup::Plain("plain again")];
            setups.extend([OFF, SAMPLED, EXACT].map(Setup::Tracked));
            let pairs = alternate(bench.short(), &setups, |setup| {
                setup.command(&program, &words(&[threads, &most.to_string(), "1000", "512", depth]))
            })?;
            let what = format!("{depth} frames, {build}, {threads} thread(s)");
            results.pairs(&what, &pairs, &setups, &PAIR_BARS);
            exact.add(results, &what, &pairs);
        }
        exact.judge(results, &format!("{depth} frames, {build}"));
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
    must_within_limit(Command::new("g++").args(flags).arg(&program).arg(source))?;
    let mut setups = vec![Setup::Plain("plain"), Setup::Plain("plain again")];
    setups.extend([OFF, SAMPLED, EXACT].map(Setup::Tracked));
    setups.extend([Setup::Heaptrack, Setup::AsyncProfiler(""), Setup::AsyncProfiler("=512k,nofree")]);
    let most = if bench.quick { 50_000 } else { 100_000 };
    let pairs = alternate(bench.short(), &setups, |setup| {
        setup.command(&program, &words(&[&(most / setup.slowness()).to_string()]))
    })?;
    let bars = [("Plimsoll, sites off", 1.15), ("Plimsoll, sites sampled", 1.2), ("Plimsoll, sites exact", 3.0)];
    results.pairs("an order", &pairs, &setups, &bars);
    Ok(())
}
