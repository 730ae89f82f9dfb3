//! Wall-clock ratios: the malloc+free pair of a C program and the Unsafe allocate/free loop of a JVM.

use super::measure::{Column, Pairs, alternate};
use super::results::Results;
use super::setup::{Setup, has_profiler, library};
use super::stats::paired;
use super::{Bench, java, words};
use crate::stage::{Result, jdk};

const HEAD: [&str; 7] = ["what", "way", "ns for a pair", "ratio", "95 % bound", "bar", ""];

/// The bars of a pair over glibc with 1 and 2 threads, below 8 to 16 frames, however it was built.
pub const PAIR_BARS: [(&str, f64); 3] =
    [("Plimsoll, sites off", 1.2), ("Plimsoll, sites sampled", 1.3), ("Plimsoll, sites exact", 1.6)];

/// The ratios of exact sites to plain, and of plain to itself, at one thread and at two. Sites off, sampled and exact
/// are the setups 2, 3 and 4.
#[derive(Default)]
pub struct ExactByThreads {
    exact: Vec<Vec<f64>>,
    again: Vec<Vec<f64>>,
}

impl ExactByThreads {
    /// Takes the rounds of one number of threads, and judges what sampling adds.
    pub fn add(&mut self, results: &mut Results, what: &str, pairs: &Pairs) {
        let against_off = paired(&pairs.relative(2), &pairs.relative(3));
        results.judged(what, "sampled against sites off", "", against_off, Some(1.05));
        self.exact.push(pairs.relative(4));
        self.again.push(pairs.relative(1));
    }

    /// The ratio to plain at two threads divided by the ratio at one thread. It may vary as much as plain against plain
    /// does.
    pub fn judge(&self, results: &mut Results, what: &str) {
        let ([one, two], [again, again_two]) = (self.exact.as_slice(), self.again.as_slice()) else { return };
        let noise = paired(again, again_two).high.max(1.0);
        let bar = noise.is_finite().then_some(noise);
        results.judged(what, "exact, ratio of 2 threads against 1", "", paired(one, two), bar);
    }
}

/// One, two, and many threads on a changing set of 1,000 blocks of 16 to 528 B, below 8 frames.
pub fn pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    let flag = "-fomit-frame-pointer";
    let program = bench.program_with("mtalloc", &format!("mtalloc{flag}"), &[flag])?;
    results.group(
        "malloc+free pair",
        "bench/mtalloc.c: threads that churn 1,000 live blocks of 16 to 528 B each, below 8 frames, built without frame pointers. \
         Nanoseconds of one thread's pair. \
         bench/least.c has the two rows without stacks: what any bookkeeper in the process must do.",
    );
    let jemalloc = library("libjemalloc.so.");
    let profiled = jemalloc.filter(|path| has_profiler(path));
    if profiled.is_none() {
        results.add("jemalloc's own profiler isn't beside it: no libjemalloc that was built with it.\n\n");
    }
    results.head(&HEAD);
    let allocators = results.allocators();
    let most: u64 = if bench.quick { 400_000 } else { 2_000_000 };
    let mut exact = ExactByThreads::default();
    for threads in [1u64, 2, 8, 64] {
        let mut setups =
            vec![Setup::Plain("plain"), Setup::Plain("plain again"), Setup::Tracked("off"), Setup::Tracked("sampled")];
        if threads <= 2 {
            setups.push(Setup::Tracked("exact"));
            setups.extend(bench.least()?);
            setups.push(Setup::Heaptrack);
            setups.extend(["", "=512k", "=512k,nofree"].map(Setup::AsyncProfiler));
            for (name, path) in &allocators {
                setups.extend([Setup::Allocator(name, path.clone()), Setup::TrackedOver(name, path.clone())]);
            }
            setups.extend(profiled.iter().cloned().map(Setup::JemallocProfiler));
        }
        let pairs = alternate(bench.short(), &setups, |setup| {
            let count = most / threads.max(2) * 2 / setup.slowness();
            setup.command(&program, &words(&[&threads.to_string(), &count.to_string(), "1000", "512", "8"]))
        })?;
        let over: Vec<String> =
            setups.iter().filter(|setup| matches!(setup, Setup::TrackedOver(..))).map(Setup::name).collect();
        let mut bars = PAIR_BARS.to_vec();
        bars.extend(over.iter().map(|name| (name.as_str(), 1.8)));
        let what = format!("{threads} thread(s)");
        results.pairs(&what, &pairs, &setups, if threads <= 2 { &bars } else { &[] });
        if threads <= 2 {
            exact.add(results, &what, &pairs);
        }
    }
    exact.judge(results, "1 and 2 threads");
    results.add("\nWith 8 and 64 threads on 2 cores, a thread that is interrupted while it works holds up others: compare with the A/A row.\n");
    Ok(())
}

/// In the same session as NativeMemoryTracking.
pub fn unsafe_pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    let classes = bench.classes()?;
    results.group(
        "Unsafe allocate/free in a JVM",
        "bench/unsafe/Pairs.java: allocate, one store, free. Wall nanoseconds divided by the pairs of all threads, so a second thread should halve it.",
    );
    results.head(&HEAD);
    let milliseconds = "250";
    let mut gains = String::new();
    for major in [25, 17] {
        let Some(home) = jdk(major) else {
            results.missing(&[&format!("JDK {major}")], "it is not installed");
            continue;
        };
        for size in ["512", "1024"] {
            let mut by_threads: Vec<Vec<Column>> = Vec::new();
            for threads in ["1", "2"] {
                let setups = [
                    Setup::Plain("plain"),
                    Setup::Plain("plain again"),
                    Setup::Tracked("off"),
                    Setup::Tracked("sampled"),
                    Setup::Nmt("summary"),
                    Setup::Nmt("detail"),
                    Setup::AsyncProfiler("=512k"),
                ];
                let pairs = alternate(bench.rounds, &setups, |setup| {
                    let mut arguments = words(&["-XX:+UseSerialGC", "-Xmx64m", "-cp"]);
                    arguments.push(classes.display().to_string());
                    arguments.extend(words(&["Pairs", threads, size, milliseconds]));
                    setup.command(&java(&home), &arguments)
                })?;
                let bars = [("Plimsoll, sites sampled", 1.30)];
                results.pairs(&format!("JDK {major}, {size} B, {threads} thread(s)"), &pairs, &setups, &bars);
                by_threads.push(pairs.columns(&setups));
            }
            for one in &by_threads[0] {
                let Some(two) = by_threads[1].iter().find(|two| two.name == one.name) else { continue };
                gains += &format!("| JDK {major}, {size} B | {} | {:.2} × |\n", one.name, one.median / two.median);
            }
        }
    }
    results.add(
        "\nWhat a second thread gains: a quotient of the medians of two sessions, without a bound. Plain and plain again differ by \
         what noise alone makes.\n\n",
    );
    results.head(&["what", "way", "throughput of two threads against one"]);
    results.add(&gains);
    Ok(())
}
