//! Stacks of a C++ program: exceptions, recursion, signal handlers, coroutines, generated code, calls of mmap.

use serde_json::Value;
use std::process::Command;

use crate::harness::number;
use crate::{Tracked, adds_up, functions, has_in_order, native, stack_with, tracked_fixture};

#[test]
fn exceptions_pass_through_tracked_frames() {
    let (report, ..) = tracked_fixture("exceptions");
    has_in_order(stack_with(&report, "thrower"), &["thrower", "between", "catcher", "exceptions", "main"]);
    // The exceptions themselves were allocated and freed again.
    let sites = report["sites"].as_array().expect("sites");
    let thrown = sites.iter().find(|s| functions(s).iter().any(|f| f == "__cxa_allocate_exception")).expect("a throw");
    has_in_order(thrown, &["__cxa_allocate_exception", "thrower", "between"]);
    assert_eq!((number(thrown, "live_count"), number(thrown, "cumulative_count")), (0, 100));
    // The first call of new[] looks the operator up, and goes through libstdc++. Later ones don't.
    #[cfg(target_arch = "x86_64")]
    {
        let begins = |s: &&Value| functions(s).first().is_some_and(|f| f == "between");
        let guards: u64 = sites.iter().filter(begins).map(|s| number(s, "cumulative_count")).sum();
        assert!((299..=300).contains(&guards), "{guards} of 300 stacks begin at the caller of operator new[]");
    }
}

#[test]
fn a_recursion_of_ten_thousand_frames_is_cut_and_says_so() {
    let (report, ..) = tracked_fixture("recursion");
    let site = stack_with(&report, "deeper");
    assert_eq!(site["truncated"], true);
    let names = functions(site);
    assert!(names.len() >= 64 && names.iter().all(|f| f == "deeper"), "{} frames", names.len());
}

#[test]
fn a_handler_on_a_stack_of_its_own_shows_what_it_interrupted() {
    let (report, ..) = tracked_fixture("alternate");
    let site = stack_with(&report, "in_handler");
    has_in_order(site, &["in_handler", "__restore_rt", "interrupted", "alternate", "main"]);
}

#[test]
fn coroutines_keep_their_own_stacks_apart() {
    let (report, ..) = tracked_fixture("coroutines");
    has_in_order(stack_with(&report, "first_leaf"), &["first_leaf", "first_body"]);
    has_in_order(stack_with(&report, "second_leaf"), &["second_leaf", "second_body"]);
    for (leaf, other) in [("first_leaf", "second_body"), ("second_leaf", "first_body")] {
        assert!(!functions(stack_with(&report, leaf)).iter().any(|f| f == other), "{leaf} below {other}");
    }
}

#[test]
fn generated_code_has_its_name_and_code_at_a_reused_address_has_both() {
    let (report, ..) = tracked_fixture("jit");
    has_in_order(stack_with(&report, "jit_stays"), &["jit_stays", "call_jitted", "jit", "main"]);
    let frame = |s: &Value| s["frames"][0]["kind"].as_str().map(String::from);
    assert_eq!(frame(stack_with(&report, "jit_stays")).as_deref(), Some("jit"));
    has_in_order(stack_with(&report, "one of: jit_round_1 | jit_round_0"), &["call_jitted", "main"]);
}

#[test]
fn calls_of_mmap_are_counted_by_stack() {
    let (tracked, printed) = Tracked::start("mappings", &[], Command::new(native()).arg("mappings"));
    let report = tracked.json();
    adds_up(&report);
    let mut compared = 0;
    for line in &printed {
        let words: Vec<&str> = line.split(' ').collect();
        let ["mapped", leaf, count, bytes] = words[..] else { continue };
        let site = stack_with(&report, leaf);
        has_in_order(site, &[leaf, "mappings", "main"]);
        let found = (number(site, "mapped_count").to_string(), number(site, "mapped_bytes").to_string());
        assert_eq!(found, (count.to_string(), bytes.to_string()), "{leaf}");
        compared += 1;
    }
    assert_eq!(compared, 2);
    // A range that was mapped over is not counted twice: 7 + 5 calls, 7 MiB.
    let committed = |leaf: &str| number(stack_with(&report, leaf), "committed_bytes");
    assert_eq!(committed("map_here") + committed("map_again"), 7 << 20);
    // The start-up flame graph: no perf, no root.
    let svg = tracked.report(&["--by", "site", "--format", "svg", "--measure", "mapped", "--weight", "calls"]);
    assert!(svg.contains("<svg") && svg.contains("map_here") && svg.contains("map_again"), "{svg}");
    let folded = tracked.report(&["--by", "site", "--format", "folded", "--measure", "mapped", "--weight", "calls"]);
    let line = folded.lines().find(|l| l.contains("map_again")).expect("its line");
    assert!(line.ends_with(" 5") && line.contains("main;mappings;map_again"), "{line}");
    tracked.end();
}
