//! Wall-clock ratios: the malloc+free pair of a C program and the Unsafe allocate/free loop of a JVM.

use super::measure::{Column, alternate};
use super::results::Results;
use super::setup::{Setup, library};
use super::{Bench, java, words};
use crate::stage::{Result, jdk};

const HEAD: [&str; 7] = ["what", "way", "ns for a pair", "ratio", "95 % bound", "bar", ""];

/// One, two, and many threads on a changing set of 1,000 blocks of 16 to 528 B, below 8 frames.
pub fn pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("mtalloc")?;
    results.group(
        "malloc+free pair",
        "bench/mtalloc.c: threads that churn 1,000 live blocks of 16 to 528 B each, below 8 frames. Nanoseconds of one thread's pair. \
         bench/least.c has the two rows without stacks: what any bookkeeper in the process must do.",
    );
    results.head(&HEAD);
    let most: u64 = if bench.quick { 400_000 } else { 2_000_000 };
    for threads in [1u64, 2, 8, 64] {
        let mut setups =
            vec![Setup::Plain("plain"), Setup::Plain("plain again"), Setup::Tracked("off"), Setup::Tracked("sampled")];
        if threads <= 2 {
            setups.extend(bench.least()?);
            setups.extend([
                Setup::Tracked("exact"),
                Setup::Heaptrack,
                Setup::AsyncProfiler(""),
                Setup::AsyncProfiler("=512k"),
            ]);
            let allocators = [
                ("jemalloc", "libjemalloc.so.2"),
                ("tcmalloc", "libtcmalloc_minimal.so.4"),
                ("mimalloc", "libmimalloc.so.2.0"),
            ];
            for (name, file) in allocators {
                if let Some(path) = library(file) {
                    setups.extend([Setup::Allocator(name, path.clone()), Setup::TrackedOver(name, path)]);
                }
            }
        }
        let pairs = alternate(bench.short(), &setups, |setup| {
            let count = most / threads.max(2) * 2 / setup.slowness();
            setup.command(&program, &words(&[&threads.to_string(), &count.to_string(), "1000", "512", "8"]))
        })?;
        let over: Vec<String> =
            setups.iter().filter(|setup| matches!(setup, Setup::TrackedOver(..))).map(Setup::name).collect();
        let mut bars =
            vec![("Plimsoll, sites off", 1.2), ("Plimsoll, sites sampled", 1.3), ("Plimsoll, sites exact", 1.6)];
        bars.extend(over.iter().map(|name| (name.as_str(), 1.8)));
        results.setups(
            &format!("{threads} thread(s)"),
            &pairs.columns(&setups),
            if threads <= 2 { &bars } else { &[] },
        );
    }
    results.add("\nWith 8 and 64 threads on 2 cores, a thread that is interrupted while it works holds up others: compare with the A/A row.\n");
    Ok(())
}

/// In the same session as NativeMemoryTracking, which runs in every third round.
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
            results.add(&format!("\nNo JDK {major} on this machine.\n"));
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
                let columns = alternate(bench.rounds, &setups, |setup| {
                    let mut arguments = words(&["-XX:+UseSerialGC", "-Xmx64m", "-cp"]);
                    arguments.push(classes.display().to_string());
                    arguments.extend(words(&["Pairs", threads, size, milliseconds]));
                    setup.command(&java(&home), &arguments)
                })?
                .columns(&setups);
                let bars = [("Plimsoll, sites sampled", 1.30)];
                results.setups(&format!("JDK {major}, {size} B, {threads} thread(s)"), &columns, &bars);
                by_threads.push(columns);
            }
            for (one, two) in by_threads[0].iter().zip(&by_threads[1]) {
                gains += &format!("| JDK {major}, {size} B | {} | {:.2} × |\n", one.name, one.median / two.median);
            }
        }
    }
    results.add("\nWhat a second thread gains:\n\n");
    results.head(&["what", "way", "throughput of two threads against one"]);
    results.add(&gains);
    Ok(())
}
