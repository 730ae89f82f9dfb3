//! Options that verdicts propose: each VM starts with those that are proposed for it, and refuses those of later
//! versions.

use std::process::Output;

use serde_json::Value;

use crate::roots::{JDKS, Root};
use crate::services::{Service, java, jdks};

/// Options that a verdict proposes from a version on (docs/verdicts/heap-committed-unused.md), and that version.
const CITED: [(&[&str], u32); 5] = [
    (&["-XX:+UseSerialGC", "-XX:-ShrinkHeapInSteps"], 9),
    (&["-XX:+UseG1GC", "-XX:G1PeriodicGCInterval=60000"], 12),
    (&["-XX:SoftMaxHeapSize=64m"], 13),
    (&["-XX:ZUncommitDelay=60"], 13),
    (&["-XX:+UnlockExperimentalVMOptions", "-XX:TrimNativeHeapInterval=60000"], 17),
];
/// Each collector with the first of the seven JDKs that starts with it, and the first that has an option by which its
/// heap becomes smaller.
const COLLECTORS: [(&str, u32, u32); 5] = [
    ("UseSerialGC", 8, 11),
    ("UseParallelGC", 8, 17),
    ("UseG1GC", 8, 17),
    ("UseShenandoahGC", 11, 17),
    ("UseZGC", 17, 17),
];

fn started(root: &Root, jdk: u32, options: &[&str]) -> Output {
    java(root, jdk).args(options).arg("-version").output().expect("java")
}

#[test]
#[ignore = "full: makes a root with seven JDKs"]
fn options_exist_from_the_version_that_the_pages_name() {
    let Some(root) = jdks() else { return };
    for (options, since) in CITED {
        for jdk in JDKS {
            let done = started(&root, jdk, options);
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.success(), jdk >= since, "JDK {jdk} {options:?}: {stderr}");
            assert!(jdk >= since || stderr.contains("Unrecognized VM option"), "JDK {jdk} {options:?}: {stderr}");
        }
    }
}

/// A heap of 256 MiB that was touched at start and is empty. Every VM starts with the options that are proposed for it,
/// and prints no warning. Where a collector has an option that makes the heap smaller, that option is proposed.
#[test]
#[ignore = "full: makes a root with seven JDKs"]
fn every_vm_starts_with_the_options_that_are_proposed_for_it() {
    let Some(root) = jdks() else { return };
    let mut tried = 0;
    for (collector, first, first_that_shrinks) in COLLECTORS {
        for jdk in JDKS.into_iter().filter(|jdk| *jdk >= first) {
            let collector_flag = format!("-XX:+{collector}");
            let flags = [&collector_flag, "-XX:+AlwaysPreTouch", "-Xms256m", "-Xmx512m"];
            let explained = Service::start(&root, jdk, &flags).explained();
            let context = format!("JDK {jdk} {collector}");
            assert!(explained.verdicts().contains(&"heap-committed-unused"), "{context}: {:#}", explained.0["lines"]);
            let proposed = options(explained.verdict("heap-committed-unused"));
            let shrinks = ["ShrinkHeapInSteps", "G1PeriodicGCInterval", "UncommitDelay"];
            let is_offered = proposed.iter().any(|how| shrinks.iter().any(|option| how.contains(option)));
            assert_eq!(is_offered, jdk >= first_that_shrinks, "{context}: {proposed:?}");
            for how in proposed {
                let options: Vec<&str> = [&collector_flag[..], "-Xmx512m"].into_iter().chain(how.split(' ')).collect();
                // A remedy may choose another collector: it is typed behind the one in force.
                let done = started(&root, jdk, &options);
                let stderr = String::from_utf8_lossy(&done.stderr);
                assert!(
                    done.status.success() && !stderr.to_lowercase().contains("warning"),
                    "{context} {options:?}: {stderr}"
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 40, "{tried}");
}

/// The remedies of a verdict that are options of a new start.
fn options(verdict: &Value) -> Vec<&str> {
    let remedies = verdict["remedies"].as_array().expect("remedies").iter();
    remedies.filter_map(|remedy| remedy["how"].as_str()).filter(|how| how.starts_with("-X")).collect()
}
