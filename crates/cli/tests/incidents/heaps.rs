//! A Java heap that grew for a peak: each collector's remedy prints flags, and a new start with them takes less. The
//! flags promise no figure.

use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::kit::{MIB, has, how, on, remedy, rss, saved, start};
use crate::stage::Jdk;

/// The collector gives memory back in steps after an idle minute; on a busy machine that may take several minutes.
const PATIENCE: Duration = Duration::from_secs(400);

fn peak(jdk: &Jdk, options: &[&str]) -> Fixture {
    start(jdk, &[&["-Xmx512m"], options].concat(), "Peak", &["360", "40"], &[])
}

/// Starts anew with one of the verdict's remedies. `which`: its index; `replaces`: the option in whose place it goes.
fn restarted(jdk: &Jdk, options: &[&str], which: usize, replaces: &str, marks: &[&str]) {
    let case = format!("heap after a peak, {}, JDK {}", options.join(" "), jdk.major);
    let grown = peak(jdk, options);
    let explained = grown.explained();
    has(&case, &explained, &["healthy", "heap-committed-unused"]);
    let before = rss(&grown);
    drop(grown);
    let flags = remedy(&explained, "heap-committed-unused", which);
    for mark in marks {
        assert!(how(&flags).contains(mark), "{case}: {mark}: {flags:#}");
    }
    let kept: Vec<&str> = options.iter().copied().filter(|option| !option.starts_with(replaces)).collect();
    let new: Vec<&str> = how(&flags).split(' ').collect();
    let mut flagged = peak(jdk, &[&kept[..], &new].concat());
    let unused = explained.verdict("heap-committed-unused")["bytes"].as_u64().unwrap();
    assert!(unused > 200 * MIB, "{case}: {unused}");
    let began = Instant::now();
    while before.saturating_sub(rss(&flagged)) < unused / 2 {
        assert!(began.elapsed() < PATIENCE, "{case}: {} of {before} left with {flags:#}", rss(&flagged));
        std::thread::sleep(Duration::from_millis(500));
    }
    saved(&case, &flags, before, rss(&flagged));
    flagged.serves();
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn shenandoah_gives_back_sooner() {
    on(25).iter().for_each(|jdk| {
        let first = ["-XX:+UseShenandoahGC", "-Xms400m"];
        restarted(jdk, &first, 0, "-Xms", &["-Xms", "ShenandoahUncommitDelay", "SoftMaxHeapSize"]);
    });
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn a_first_size_above_the_need_goes_first() {
    on(17).iter().for_each(|jdk| {
        let first = ["-XX:+UseG1GC", "-Xms400m"];
        restarted(jdk, &first, 0, "-Xms", &["-Xms", "G1PeriodicGCInterval"]);
    });
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn parallel_is_replaced_by_g1() {
    on(25).iter().for_each(|jdk| {
        restarted(jdk, &["-XX:+UseParallelGC"], 0, "-XX:+UseParallelGC", &["-XX:+UseG1GC", "G1PeriodicGCInterval"]);
    });
}

#[test]
#[ignore = "full: a second case of heaps"]
fn a_heap_touched_at_start() {
    on(17).iter().for_each(|jdk| {
        let jdk_s = ["-XX:+UseSerialGC", "-Xms512m", "-XX:+AlwaysPreTouch"];
        let grown = start(jdk, &[&["-Xmx512m"], &jdk_s[..]].concat(), "Peak", &["40", "20"], &[]);
        let case = format!("heap touched at start, JDK {}", jdk.major);
        let explained = grown.explained();
        has(&case, &explained, &["healthy", "heap-committed-unused"]);
        let remedies = explained.verdict("heap-committed-unused")["remedies"].as_array().unwrap().clone();
        let untouched = remedies.iter().find(|remedy| how(remedy) == "-XX:-AlwaysPreTouch").expect("its remedy");
        let before = rss(&grown);
        let options = ["-Xmx512m", "-XX:+UseSerialGC", "-Xms512m", how(untouched)];
        let mut lazy = start(jdk, &options, "Peak", &["40", "20"], &[]);
        saved(&case, untouched, before, rss(&lazy));
        assert!(before - rss(&lazy) > 300 * MIB, "{case}");
        lazy.serves();
    });
}
