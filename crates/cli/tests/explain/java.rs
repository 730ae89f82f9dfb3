//! Java programs on each JVM of `jdks`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::child::wait_until;
use crate::fixture::{Explained, Fixture, PLIMSOLL, explain, fresh, is_root, root, run, scratch, skip};
use crate::jdks::{Jdk, javac, jdks};
use crate::stage::mounting;

const MIB: u64 = 1 << 20;

/// Classes of all fixtures.
pub fn classes() -> &'static PathBuf {
    static CLASSES: OnceLock<PathBuf> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let folder = scratch().join("classes");
        let sources = std::fs::read_dir(root().join("fixtures/explain")).expect("fixtures");
        let sources =
            sources.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "java"));
        assert!(javac().arg("-d").arg(&folder).args(sources).status().expect("javac runs").success());
        folder
    })
}

fn java(jdk: &Jdk, flags: &[&str], class: &str, arguments: &[&str]) -> Fixture {
    let mut command = jdk.tool("java");
    command.arg("-XX:-UsePerfData").args(flags).arg("-cp").arg(classes()).arg(class).args(arguments);
    Fixture::run(&mut command)
}

fn for_each_jdk(test: &str, run: impl Fn(&Jdk)) {
    for jdk in jdks() {
        eprintln!("{test} on {jdk:?}");
        run(jdk);
    }
}

fn unexplained(explained: &Explained) -> f64 {
    let rss = explained.0["rss_bytes"].as_u64().unwrap() as f64;
    let remainder = explained.0["remainder_bytes"].as_u64().unwrap();
    (remainder + explained.line("other-anonymous") + explained.line("glibc-unknown")) as f64 * 100.0 / rss
}

/// Fails unless exactly these verdicts warn. Notes don't count, and neither does `limit-near`, because the machine's
/// own cgroup may be near its limit.
#[track_caller]
fn only_warns(explained: &Explained, expected: &[&str]) {
    let verdicts = explained.0["verdicts"].as_array().unwrap();
    let warned: Vec<&str> = verdicts
        .iter()
        .filter(|verdict| verdict["severity"] != "note" && verdict["id"] != "limit-near")
        .map(|verdict| verdict["id"].as_str().unwrap())
        .collect();
    assert_eq!(warned, expected, "{:#}", explained.0["verdicts"]);
}

#[test]
fn a_healthy_vm_is_explained_whatever_its_nmt_says() {
    for_each_jdk("healthy VM", |jdk| {
        for (mode, bar) in [("off", 5.0), ("summary", 5.0), ("detail", 2.0)] {
            let fixture = java(jdk, &["-Xmx256m", &format!("-XX:NativeMemoryTracking={mode}")], "HeapFull", &[]);
            let explained = fixture.explained();
            let left = unexplained(&explained);
            assert!(left <= bar, "NMT {mode}: {left:.1} % unexplained\n{:#}", explained.0["lines"]);
            assert!(explained.line("java-heap") >= fixture.truth("live"));
            only_warns(&explained, &[]);
        }
    });
}

/// Resident bytes as the kernel sums them.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let rss = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("a sum");
    rss.trim().trim_end_matches(" kB").parse::<u64>().expect("KiB") << 10
}

#[test]
fn explain_leaves_no_symbols_in_a_tracked_vm_and_maps_says_that_it_does() {
    for_each_jdk("memory that explain leaves", |jdk| {
        let folder = fresh(&format!("left-{}", jdk.major));
        let mut command = Command::new(PLIMSOLL);
        command.args(["run", "--sites", "exact", "--dir"]).arg(&folder).arg("--").arg(jdk.home.join("bin/java"));
        command.args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(classes()).arg("Pools");
        let fixture = Fixture::run(&mut command);
        let kept = |explained: &Explained| explained.0["vm_keeps_symbols_for"].clone();
        let before = resident(fixture.pid());
        let explained = fixture.explained();
        let after = resident(fixture.pid());
        // More than 4 % of RSS. explain queries more of the VM if 2 % is unexplained; the tracker's memory isn't.
        let (tracker, rss) = (explained.line("tracker"), explained.0["rss_bytes"].as_u64().unwrap());
        assert!(tracker * 25 > rss, "{tracker} of {rss}");
        assert_eq!(kept(&explained), serde_json::json!([]), "{:#}", explained.0["lines"]);
        // Allowed growth: the attach listener's stack and its messages.
        assert!(after < before + MIB, "{before}, {after}");

        let output = run(fixture.pid(), &["--maps", "--format", "json"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            stderr.contains("--maps sends VM.info to the JVM") && stderr.contains("larger until it ends"),
            "{stderr}"
        );
        let explained = Explained(serde_json::from_slice(&output.stdout).expect("JSON"));
        assert_eq!(kept(&explained), serde_json::json!(["VM.info"]));
        let grown = resident(fixture.pid()) - after;
        assert!((3 * MIB..8 * MIB).contains(&grown), "JDK {}: {grown}", jdk.major);
        drop(fixture);
        std::fs::remove_dir_all(folder).unwrap();
    });
}

#[test]
fn pools_that_multiply_are_named_with_their_full_names() {
    for_each_jdk("pools", |jdk| {
        let fixture = java(jdk, &["-Xmx64m"], "Pools", &[]);
        let explained = fixture.explained();
        let stacks =
            explained.0["lines"].as_array().unwrap().iter().find(|line| line["id"] == "thread-stacks").unwrap();
        let children = stacks["children"].to_string();
        assert!(children.contains("\"lettuce-nioEventLoop-"), "{children}");
    });
}

#[test]
fn a_limit_below_flags_and_native_memory_is_no_leak() {
    for_each_jdk("limit too low", |jdk| {
        let fixture = java(jdk, &["-Xmx256m"], "HeapFull", &[]);
        let explained = explain(fixture.pid(), &["--limit", &(280 * MIB).to_string()]);
        let verdict = explained.verdict("limit-near");
        assert!(verdict["evidence"].to_string().contains("without any leak"), "{verdict:#}");
        // The heap is full: a cap would take away what it holds. Only a higher limit helps.
        let remedies = verdict["remedies"].to_string();
        assert!(remedies.contains("--memory ") && !remedies.contains("-Xmx"), "{verdict:#}");
        // That limit suffices.
        let raised = remedies.split_once("--memory ").expect("a size").1;
        let raised = &raised[..raised.find(|c: char| !c.is_ascii_alphanumeric()).expect("its end")];
        let explained = explain(fixture.pid(), &["--limit", raised]);
        assert!(!explained.verdicts().contains(&"limit-near"), "{raised}: {:#}", explained.0["verdicts"]);
    });
}

#[test]
fn a_stopped_vm_is_a_gap_and_no_hang() {
    for_each_jdk("stopped VM", |jdk| {
        let fixture = java(jdk, &["-Xmx256m"], "HeapFull", &[]);
        let signal = |name: &str| {
            assert!(Command::new("kill").arg(name).arg(fixture.pid().to_string()).status().unwrap().success())
        };
        signal("-STOP");
        let explained = fixture.explained();
        let text = String::from_utf8(run(fixture.pid(), &[]).stdout).expect("UTF-8");
        signal("-CONT");
        assert!(explained.gaps().contains(&"hotspot"), "{:?}", explained.gaps());
        // The address of the heap comes from the VM's own fields, and no part of it counts as the program's mappings.
        assert!(explained.line("java-heap") >= 100 * MIB && !text.contains("its own mmap"), "{text}");
        let other = explained.line("other-anonymous");
        assert!(other * 10 < explained.line("java-heap"), "{text}");
    });
}

/// Two containers with one /tmp: each VM is process 1 inside, so both have the same socket name there.
#[test]
fn a_vm_is_not_queried_through_another_vms_socket() {
    if !is_root() {
        return skip("two VMs with one /tmp", "needs root");
    }
    for_each_jdk("one /tmp", |jdk| {
        let started = |first: Option<u32>, heap: &str| {
            let mut command = Command::new(if first.is_some() { "nsenter" } else { "unshare" });
            match first {
                Some(pid) => command.args([&format!("--mount=/proc/{pid}/ns/mnt"), "unshare", "--pid"]),
                None => command.args(["--mount", "--pid"]),
            };
            let own_tmp = if first.is_some() { "" } else { "mount -t tmpfs none /tmp" };
            command.args(["--fork", "--kill-child"]).args(mounting(own_tmp));
            command.arg(jdk.bin("java")).args(["-XX:-UsePerfData", heap, "-cp"]).arg(classes());
            let fixture = Fixture::run(command.arg("HeapFull"));
            let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", fixture.pid())).unwrap();
            (fixture, children.trim().parse::<u32>().unwrap())
        };
        // Start both before either is queried: a VM that starts removes an old socket of its name.
        let (first, first_vm) = started(None, "-Xmx200m");
        let (_second, second_vm) = started(Some(first_vm), "-Xmx300m");
        assert!(!explain(first_vm, &[]).gaps().contains(&"hotspot"));
        let explained = explain(second_vm, &[]);
        assert!(
            explained.0["gaps"].to_string().contains(&format!("process {first_vm}'s")),
            "{:#}",
            explained.0["gaps"]
        );
        assert_eq!(explained.0["process"]["runtime_version"], serde_json::Value::Null, "the other one's");
        // And the first VM's socket was not replaced.
        assert!(!explain(first_vm, &[]).gaps().contains(&"hotspot"));
        drop(first);
        // A VM's socket exists until its last thread has ended.
        let is_answered = || !explain(second_vm, &[]).gaps().contains(&"hotspot");
        wait_until("an answer, though a dead VM's socket is left", is_answered);
    });
}
