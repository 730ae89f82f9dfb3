//! Workers that deflated all together once, with a cap on the arenas and without: what malloc keeps afterwards, and a
//! trim.

use crate::fixture::Fixture;
use crate::kit::{evidence, has, how, on, promised, remedy, rss, saved, start, typed};
use crate::stage::Jdk;

/// Interpreted: compilers would take and give back memory between the readings, beside the workers'.
fn burst(jdk: &Jdk, cap: Option<&str>) -> Fixture {
    let environment: Vec<(&str, &str)> = cap.map(|cap| ("MALLOC_ARENA_MAX", cap)).into_iter().collect();
    start(jdk, &["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch", "-Xint"], "Burst", &["40", "12"], &environment)
}

fn trim_after_a_burst(jdk: &Jdk, cap: Option<&str>, verdict: &str, in_force: &str) {
    let case = format!("40 workers' burst, arena cap {}, JDK {}", cap.unwrap_or("none"), jdk.major);
    let mut workers = burst(jdk, cap);
    let explained = workers.explained();
    has(&case, &explained, &[verdict]);
    let evidence_text = evidence(&explained, verdict);
    assert!(
        evidence_text.contains(in_force) && evidence_text.contains("one burst, or several in turn, left the rest"),
        "{case}: {evidence_text}"
    );
    let remedies = explained.verdict(verdict)["remedies"].to_string();
    assert_eq!(
        remedies.contains("MALLOC_ARENA_MAX"),
        cap.is_none(),
        "{case}: a cap in force isn't proposed: {remedies}"
    );
    let trim = remedy(&explained, verdict, 0);
    assert_eq!(how(&trim), format!("jcmd {} System.trim_native_heap", workers.pid()), "{case}");
    let (least, most) = promised(&trim).expect("a figure");
    assert!(least > 60 << 20 && most < least * 5 / 4, "{case}: {least} to {most}");
    let before = rss(&workers);
    typed(&mut workers, &trim);
    saved(&case, &trim, before, rss(&workers));
    workers.serves();
}

#[test]
fn a_burst_under_a_cap_of_two() {
    on(17)
        .iter()
        .for_each(|jdk| trim_after_a_burst(jdk, Some("2"), "allocator-retention", "the arena cap in force is 2 (set)"));
}

#[test]
#[ignore = "full: a second case of bursts"]
fn a_burst_under_a_cap_of_four() {
    on(17)
        .iter()
        .for_each(|jdk| trim_after_a_burst(jdk, Some("4"), "allocator-retention", "the arena cap in force is 4 (set)"));
}

#[test]
#[ignore = "full: a third case of bursts"]
fn a_burst_without_a_cap() {
    on(17).iter().for_each(|jdk| trim_after_a_burst(jdk, None, "arena-retention", "the arena cap in force is"));
}
