//! Java programs, one situation each, on every JDK of the machine, with NMT off and on. The answer is what the fixture says
//! it did.

#[allow(dead_code)]
#[path = "explain/fixture.rs"]
mod fixture;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use fixture::{Explained, Fixture, root, scratch};

const MIB: u64 = 1 << 20;
const NMT: [&str; 3] = ["off", "summary", "detail"];

struct Jdk {
    home: PathBuf,
    major: u32,
}

/// Every JDK from 17 on under /usr/lib/jvm and JAVA_HOME; at least one, or the test fails.
fn jdks() -> Vec<Jdk> {
    let installed = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut homes: Vec<PathBuf> = installed
        .chain(std::env::var_os("JAVA_HOME").map(PathBuf::from))
        .filter_map(|home| home.canonicalize().ok())
        .filter(|home| home.join("bin/javac").exists())
        .collect();
    homes.sort();
    homes.dedup();
    let jdks: Vec<Jdk> = homes
        .into_iter()
        .filter_map(|home| {
            let release = std::fs::read_to_string(home.join("release")).ok()?;
            let major = release.split_once("JAVA_VERSION=\"")?.1.split(['.', '"']).next()?.parse().ok()?;
            Some(Jdk { home, major })
        })
        .filter(|jdk| jdk.major >= 17)
        .collect();
    assert!(!jdks.is_empty(), "no JDK from 17 on under /usr/lib/jvm or JAVA_HOME");
    jdks
}

impl Jdk {
    fn run(&self, name: &str, flags: &[&str], arguments: &[&str]) -> Fixture {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let sources = root().join("fixtures/java/explain");
        let classes = scratch().join(format!("java-{}-{}", self.major, std::process::id()));
        let compiled = {
            let _guard = ONE_AT_A_TIME.lock();
            let own = classes.join(name);
            if !own.exists() {
                let status = Command::new(self.home.join("bin/javac"))
                    .arg("-d")
                    .arg(&own)
                    .args([sources.join("Truth.java"), sources.join(format!("{name}.java"))])
                    .status()
                    .expect("javac");
                assert!(status.success(), "{name} does not compile");
            }
            own
        };
        let mut java = Command::new(self.home.join("bin/java"));
        Fixture::run(java.args(flags).arg("-cp").arg(compiled).arg(name).args(arguments))
    }
}

/// The heap is small and touched from the start, so that what grows is native.
const SMALL_HEAP: [&str; 3] = ["-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch"];

/// Each JDK with each NMT level. Names in full reports make failures readable.
fn everywhere(name: &str, flags: &[&str], arguments: &[&str], check: impl Fn(&str, &Fixture, &Explained)) {
    for jdk in jdks() {
        for nmt in NMT {
            let level = format!("-XX:NativeMemoryTracking={nmt}");
            let flags = [flags, &[level.as_str()]].concat();
            let fixture = jdk.run(name, &flags, arguments);
            let explained = fixture.explained();
            let unexplained = explained.0["remainder_bytes"].as_u64().unwrap()
                + explained.line("other-anonymous")
                + explained.line("glibc-unknown");
            let rss = explained.0["rss_bytes"].as_u64().unwrap();
            let most = if nmt == "off" { 5 } else { 2 };
            assert!(
                unexplained * 100 <= rss * most,
                "{name} {} {nmt}: {unexplained} of {rss}: {:#} {:#}",
                jdk.major,
                explained.0["gaps"],
                explained.0["lines"]
            );
            check(&format!("{name} on {} with NMT {nmt}", jdk.major), &fixture, &explained);
        }
    }
}

/// These must be found; the machine's own cgroup may be near its limit besides.
#[track_caller]
fn has(case: &str, explained: &Explained, expected: &[&str]) {
    let mut found: Vec<&str> = explained.verdicts().into_iter().filter(|id| *id != "limit-near").collect();
    found.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected, "{case}: {:#}", explained.0["verdicts"]);
}

#[track_caller]
fn near(case: &str, explained: &Explained, line: &str, truth: u64) {
    let found = explained.line(line);
    assert!(
        found.abs_diff(truth) * 100 <= truth * 3,
        "{case}: {line} is {found}, truth {truth}: {:#}",
        explained.0["lines"]
    );
}

#[test]
fn direct_buffers() {
    everywhere("DirectBuffers", &["-Xmx256m"], &["160", "1048576"], |case, fixture, explained| {
        near(case, explained, "direct-buffers", fixture.truth("direct"));
        has(case, explained, &["direct-buffer-growth"]);
    });
}

#[test]
fn buffers_that_nio_keeps_for_each_thread() {
    everywhere("NioCache", &["-Xmx256m"], &["16", "8388608"], |case, fixture, explained| {
        if case == "NioCache on 25 with NMT off" {
            // JDK 25 leaves these buffers out of java.nio's count, so that nothing but NMT tells them from other blocks.
            assert!(explained.line("glibc-live") >= fixture.truth("direct"), "{case}");
            return;
        }
        near(case, explained, "direct-buffers", fixture.truth("direct"));
        has(case, explained, &["direct-buffer-growth"]);
    });
}

#[test]
fn inflaters_that_were_never_ended() {
    everywhere("InflaterLeak", &SMALL_HEAP, &["6000"], |case, fixture, explained| {
        let grown = fixture.truth("grown");
        assert!(grown > 200 * MIB, "{case}: {grown}");
        if !case.ends_with("off") {
            near(case, explained, "glibc-live", grown * 6200 / 6000);
        }
        has(case, explained, &["native-leak"]);
    });
}

#[test]
fn a_library_that_forgets_its_blocks() {
    let library = scratch().join(format!("libjni_leak-{}.so", std::process::id()));
    let source = root().join("fixtures/java/explain/jni_leak.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("a C compiler named cc").success());
    everywhere("JniLeak", &SMALL_HEAP, &[library.to_str().unwrap(), "60000", "4072"], |case, fixture, explained| {
        let leaked = fixture.truth("leaked") / 4072 * 4080;
        if case.ends_with("off") {
            assert!(explained.line("glibc-live") >= leaked, "{case}");
        } else {
            near(case, explained, "glibc-live", leaked);
        }
        has(case, explained, &["native-leak"]);
    });
}

#[test]
fn executors_that_were_never_shut_down() {
    everywhere("ThreadLeak", &["-Xmx64m"], &["300", "600"], |case, _, explained| {
        assert!(explained.verdicts().contains(&"thread-stacks"), "{case}: {:#}", explained.0["verdicts"]);
        let evidence = explained.verdict("thread-stacks")["evidence"].to_string();
        assert!(evidence.contains("300 × leaked-executor-thread"), "{case}: {evidence}");
    });
}

#[test]
fn class_loaders_that_stay() {
    everywhere("ClassLoaderLeak", &["-Xmx256m"], &["6000"], |case, fixture, explained| {
        let (line, committed) = (explained.line("class"), fixture.truth("committed"));
        // Beside metaspace the line has the CDS archive (at most 20 MiB) and what the VM mallocs for loaders.
        assert!(line * 100 >= committed * 90 && line <= committed * 3 / 2 + 20 * MIB, "{case}: {line}, {committed}");
        assert!(explained.verdicts().contains(&"class-growth"), "{case}: {:#}", explained.0["verdicts"]);
        let evidence = explained.verdict("class-growth")["evidence"].to_string();
        assert!(evidence.contains("class loaders"), "{case}: {evidence}");
    });
}

#[test]
fn a_heap_that_grew_for_a_peak() {
    everywhere("HeapUnused", &["-Xms512m", "-Xmx512m", "-XX:+UseParallelGC"], &["400"], |case, fixture, explained| {
        assert!(fixture.truth("occupied") < 32 * MIB, "{case}");
        has(case, explained, &["heap-committed-unused", "healthy"]);
    });
}
