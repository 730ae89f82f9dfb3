//! Wall-clock ratios: the malloc+free pair of a C program and the Unsafe allocate/free loop of a JVM.

use super::measure::{Column, alternate};
use super::results::Results;
use super::way::{Way, library};
use super::{Bench, java, words};
use crate::stage::{Result, jdk};

const HEAD: [&str; 7] = ["what", "way", "ns for a pair", "ratio", "95 % bound", "bar", ""];

/// One, two, and many threads on a changing set of 1,000 blocks of 16 to 528 B, below 8 frames.
pub fn pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = bench.program("mtalloc")?;
    results.group(
        "malloc+free pair",
        "bench/mtalloc.c: threads that churn 1,000 live blocks of 16 to 528 B each, below 8 frames. Nanoseconds of one thread's pair.",
    );
    results.head(&HEAD);
    let most: u64 = if bench.quick { 400_000 } else { 4_000_000 };
    for threads in [1u64, 2, 8, 64] {
        let mut ways =
            vec![Way::Plain("plain"), Way::Plain("plain again"), Way::Tracked("off"), Way::Tracked("sampled")];
        if threads <= 2 {
            ways.extend([Way::Tracked("exact"), Way::Heaptrack, Way::AsyncProfiler(""), Way::AsyncProfiler("=512k")]);
            let allocators = [
                ("jemalloc", "libjemalloc.so.2"),
                ("tcmalloc", "libtcmalloc_minimal.so.4"),
                ("mimalloc", "libmimalloc.so.2.0"),
            ];
            for (name, file) in allocators {
                if let Some(path) = library(file) {
                    ways.extend([Way::Allocator(name, path.clone()), Way::TrackedOver(name, path)]);
                }
            }
        }
        let columns = alternate(bench.rounds, &ways, |way| {
            let count = most / threads.max(2) * 2 / way.slowness();
            way.command(&program, &words(&[&threads.to_string(), &count.to_string(), "1000", "512", "8"]))
        })?;
        let bars = [("Plimsoll, sites off", 1.25), ("Plimsoll, sites sampled", 1.40)];
        results.ways(&format!("{threads} thread(s)"), &columns, if threads <= 2 { &bars } else { &[] });
    }
    results.add("\nFor 8 and 64 threads the bar is the ratio of 2 threads.\n");
    Ok(())
}

/// In the same rounds as NativeMemoryTracking.
pub fn unsafe_pairs(bench: &Bench, results: &mut Results) -> Result<()> {
    let classes = bench.classes()?;
    results.group(
        "Unsafe allocate/free in a JVM",
        "bench/unsafe/Pairs.java: allocate, one store, free. Wall nanoseconds divided by the pairs of all threads, so a second thread should halve it.",
    );
    results.head(&HEAD);
    let milliseconds = if bench.quick { "200" } else { "500" };
    let mut gains = String::new();
    for major in [25, 17] {
        let Some(home) = jdk(major) else {
            results.add(&format!("\nNo JDK {major} on this machine.\n"));
            continue;
        };
        for size in ["512", "1024"] {
            let mut by_threads: Vec<Vec<Column>> = Vec::new();
            for threads in ["1", "2"] {
                let ways = [
                    Way::Plain("plain"),
                    Way::Plain("plain again"),
                    Way::Tracked("off"),
                    Way::Tracked("sampled"),
                    Way::Nmt("summary"),
                    Way::Nmt("detail"),
                    Way::AsyncProfiler("=512k"),
                ];
                let columns = alternate(bench.rounds, &ways, |way| {
                    let mut arguments = words(&["-XX:+UseSerialGC", "-Xmx64m", "-cp"]);
                    arguments.push(classes.display().to_string());
                    arguments.extend(words(&["Pairs", threads, size, milliseconds]));
                    way.command(&java(&home), &arguments)
                })?;
                let bars = [("Plimsoll, sites sampled", 1.30)];
                results.ways(&format!("JDK {major}, {size} B, {threads} thread(s)"), &columns, &bars);
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
