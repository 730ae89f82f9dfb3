//! A Java heap that grew for a peak: each collector's remedy prints flags, and a new start with them takes less; ZGC's
//! and Shenandoah's also prints a command. Neither promises a figure: how fast the collector gives back isn't known.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::{Explained, Fixture};
use crate::kit::{MIB, has, how, on, remedy, resident, saved, start, typed};
use crate::stage::Jdk;

/// The collector gives memory back in steps after an idle minute; on a busy machine that may take several minutes. For
/// collectors that give nothing back without the remedy.
const PATIENCE: Duration = Duration::from_secs(600);
/// Without the remedy Shenandoah, and ZGC up to JDK 21, give back after their default delay of 300 s.
const BEFORE_DEFAULT: Duration = Duration::from_secs(240);
/// ZGC of JDK 25 gives back in steps: with the default delay nothing within 8 min (docs/decisions/verdicts.md).
const BEFORE_DEFAULT_IN_STEPS: Duration = Duration::from_secs(450);
/// For a collection that gives back at once.
const AT_ONCE: Duration = Duration::from_secs(60);

fn peak(jdk: &Jdk, options: &[&str]) -> Fixture {
    start(jdk, &[&["-Xmx512m"], options].concat(), "Peak", &["360", "40"], &[])
}

/// Starts anew with one of the verdict's remedies. `which`: its index; `replaces`: the option in whose place it goes;
/// `within`: a time in which nothing goes back without the remedy.
fn restarted(jdk: &Jdk, options: &[&str], which: usize, replaces: &str, marks: &[&str], within: Duration) {
    let case = format!("heap after a peak, {}, JDK {}", options.join(" "), jdk.major);
    let grown = peak(jdk, options);
    let explained = grown.explained();
    has(&case, &explained, &["healthy", "heap-committed-unused"]);
    let before = resident(&grown);
    drop(grown);
    let flags = remedy(&explained, "heap-committed-unused", which);
    for mark in marks {
        assert!(how(&flags).contains(mark), "{case}: {mark}: {flags:#}");
    }
    let kept: Vec<&str> = options.iter().copied().filter(|option| !option.starts_with(replaces)).collect();
    let new: Vec<&str> = how(&flags).split(' ').collect();
    let mut flagged = peak(jdk, &[&kept[..], &new].concat());
    gives_back(&case, &mut flagged, before, &explained, &flags, within);
}

/// Waits until half of what is unused has gone back.
fn gives_back(case: &str, heap: &mut Fixture, before: u64, explained: &Explained, remedy: &Value, within: Duration) {
    let unused = explained.verdict("heap-committed-unused")["bytes"].as_u64().unwrap();
    assert!(unused > 200 * MIB, "{case}: {unused}");
    let began = Instant::now();
    while before.saturating_sub(resident(heap)) < unused / 2 {
        assert!(began.elapsed() < within, "{case}: {} of {before} left with {remedy:#}", resident(heap));
        std::thread::sleep(Duration::from_millis(500));
    }
    saved(case, remedy, before, resident(heap));
    heap.serves();
}

/// Load for this long, and the part of it at the end that is measured: a first delay of ZGC has passed by then.
const LOAD: Duration = Duration::from_secs(150);
const MEASURED: Duration = Duration::from_secs(90);

/// Means of two programs that serve the same load at the same time: 20 MiB of garbage, then half a second of rest.
fn under_load(mut heaps: [&mut Fixture; 2]) -> [u64; 2] {
    let (began, mut sums, mut readings) = (Instant::now(), [0; 2], 0);
    while began.elapsed() < LOAD {
        heaps.iter_mut().for_each(|heap| heap.serves());
        if began.elapsed() >= LOAD - MEASURED {
            heaps.iter().zip(&mut sums).for_each(|(heap, sum)| *sum += resident(heap));
            readings += 1;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    sums.map(|sum| sum / readings)
}

/// Under load the heap stays smaller with the command than without it. An idle program gives back the same without it
/// (docs/decisions/verdicts.md). ZGC of 21 has generations with an option only; that of 25 has them always.
#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn zgc_aims_at_a_smaller_heap() {
    on(25).iter().for_each(|jdk| {
        for generations in [&[][..], &["-XX:+ZGenerational"]] {
            if generations.is_empty() || jdk.has_zgc_generations_by_option() {
                let case = format!("ZGC after a peak, {generations:?}, JDK {}", jdk.major);
                let options = [&["-XX:+UseZGC", "-XX:ZUncommitDelay=15"], generations].concat();
                let [mut grown, mut untouched] = [(); 2].map(|()| peak(jdk, &options));
                let explained = grown.explained();
                has(&case, &explained, &["healthy", "heap-committed-unused"]);
                let aim = remedy(&explained, "heap-committed-unused", 0);
                let command = format!("jcmd {} VM.set_flag SoftMaxHeapSize ", grown.pid());
                assert!(how(&aim).starts_with(&command), "{case}: {aim:#}");
                typed(&mut grown, &aim);
                let [with_it, without] = under_load([&mut grown, &mut untouched]);
                saved(&case, &aim, without, with_it);
                assert!(with_it + 32 * MIB < without, "{case}: {with_it} with it, {without} without");
            }
        }
    });
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn zgc_gives_back_sooner() {
    on(25).iter().for_each(|jdk| {
        let in_steps = jdk.has_zgc_that_gives_back_in_steps();
        let within = if in_steps { BEFORE_DEFAULT_IN_STEPS } else { BEFORE_DEFAULT };
        restarted(jdk, &["-XX:+UseZGC"], 1, "-Xms", &["-XX:ZUncommitDelay=60 -XX:SoftMaxHeapSize="], within);
    });
}

/// ZGC gives nothing back without its permission, so no command is printed.
#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn zgc_that_may_not_give_back_gets_the_permission() {
    on(25).iter().for_each(|jdk| {
        restarted(
            jdk,
            &["-XX:+UseZGC", "-XX:-ZUncommit"],
            0,
            "-XX:-ZUncommit",
            &["-XX:+ZUncommit ", "SoftMaxHeapSize"],
            PATIENCE,
        );
    });
}

/// After a collection of its own, Shenandoah keeps the memory for five minutes; the whole test takes less.
#[test]
#[ignore = "full: waits for a collection"]
fn a_collection_of_shenandoah_gives_back_at_once() {
    on(25).iter().for_each(|jdk| {
        let case = format!("Shenandoah after a peak, JDK {}", jdk.major);
        let interval = ["-XX:+UnlockExperimentalVMOptions", "-XX:ShenandoahGuaranteedGCInterval=2000"];
        let options = [&["-Xmx512m", "-XX:+UseShenandoahGC"], &interval[..]].concat();
        let mut grown = start(jdk, &options, "Peak", &["360", "40", "itself"], &[]);
        let began = Instant::now();
        let explained = loop {
            let explained = grown.explained();
            if explained.verdicts().contains(&"heap-committed-unused") {
                break explained;
            }
            let is_early = began.elapsed() + AT_ONCE < BEFORE_DEFAULT;
            assert!(is_early, "{case}: no collection: {:#}", explained.0["verdicts"]);
        };
        has(&case, &explained, &["healthy", "heap-committed-unused"]);
        let collect = remedy(&explained, "heap-committed-unused", 0);
        assert_eq!(how(&collect), format!("jcmd {} GC.run", grown.pid()), "{case}");
        let before = resident(&grown);
        typed(&mut grown, &collect);
        gives_back(&case, &mut grown, before, &explained, &collect, AT_ONCE);
    });
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn shenandoah_gives_back_sooner() {
    on(25).iter().for_each(|jdk| {
        let first = ["-XX:+UseShenandoahGC", "-Xms400m"];
        restarted(jdk, &first, 0, "-Xms", &["-Xms", "ShenandoahUncommitDelay", "SoftMaxHeapSize"], BEFORE_DEFAULT);
    });
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn an_initial_heap_above_the_need_is_the_first_remedy() {
    on(17).iter().for_each(|jdk| {
        let first = ["-XX:+UseG1GC", "-Xms400m"];
        restarted(jdk, &first, 0, "-Xms", &["-Xms", "G1PeriodicGCInterval"], PATIENCE);
    });
}

#[test]
#[ignore = "full: minutes until the collector gives memory back"]
fn parallel_is_replaced_by_g1() {
    on(25).iter().for_each(|jdk| {
        restarted(
            jdk,
            &["-XX:+UseParallelGC"],
            0,
            "-XX:+UseParallelGC",
            &["-XX:+UseG1GC", "G1PeriodicGCInterval"],
            PATIENCE,
        );
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
        let before = resident(&grown);
        let options = ["-Xmx512m", "-XX:+UseSerialGC", "-Xms512m", how(untouched)];
        let mut lazy = start(jdk, &options, "Peak", &["40", "20"], &[]);
        saved(&case, untouched, before, resident(&lazy));
        assert!(before - resident(&lazy) > 300 * MIB, "{case}");
        lazy.serves();
    });
}
