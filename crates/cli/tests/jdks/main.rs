//! One small service on each JDK in service: Debian's builds for its newest suite, in a root of their own. What `explain`
//! and `attach` find in them is compared with what the service reports of itself.

#[allow(dead_code)]
#[path = "../explain/fixture.rs"]
mod fixture;
mod options;
#[path = "../../../../fixtures/roots.rs"]
mod roots;
mod services;
#[allow(dead_code)]
#[path = "../subjects/stage.rs"]
mod stage;

use std::fs;

use serde_json::Value;
use services::{Service, services, source};

/// Heap, stacks with the threads' whole names, and the direct buffer to within 3 %, without NMT and with it.
#[test]
#[ignore = "full: makes a root with seven JDKs"]
fn explain_finds_the_heap_the_threads_and_the_direct_buffer() {
    for (service, has_nmt) in [false, true].into_iter().flat_map(|nmt| {
        services(if nmt { &["-XX:NativeMemoryTracking=detail"] } else { &[] }).map(move |service| (service, nmt))
    }) {
        let explained = service.explained();
        for line in ["java-heap", "class", "code-cache", "gc"] {
            // Only NMT's detail tells where JDK 8 has its metaspace.
            let is_known = line != "class" || service.jdk > 8 || has_nmt;
            assert_eq!(explained.line(line) > 0, is_known, "{service}: {line}: {:#}", explained.0["lines"]);
        }
        let (found, truth) = (explained.line("direct-buffers"), service.truth("direct"));
        assert!(found.abs_diff(truth) * 100 <= truth * 3, "{service}: {found} of {truth}");
        let stacks = explained.child("thread-stacks", "service-worker-with-a-long-name");
        assert!(stacks >= service.truth("workers") * 8192, "{service}: {stacks}: {:#}", explained.0["lines"]);
    }
}

/// Blocks of the Deflaters made after the attach: none is lost, none counted twice. After the detach the service goes on.
#[test]
#[ignore = "full: makes a root with seven JDKs"]
fn attach_counts_every_block_from_then_on() {
    for mut service in services(&[]) {
        service.plimsoll(&["attach", "--sites", "exact", "--yes"]);
        service.serves();
        let report = service.report();
        let zlib = report["categories"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "zlib"));
        let zlib = zlib.unwrap_or_else(|| panic!("{service}: {:#}", report["categories"]));
        let blocks = Service::ZLIB_BLOCKS * service.truth("deflaters");
        assert_eq!(zlib["live_count"], blocks, "{service}: {zlib:#}");
        service.plimsoll(&["detach"]);
        service.serves();
    }
}

/// However the Java code ran, each block of a Deflater has the whole way to it with the right lines, and every JDK's tables
/// lead there.
#[test]
#[ignore = "full: makes a root with seven JDKs"]
fn stacks_have_the_java_methods_and_their_lines() {
    for mode in [
        &[][..],
        &["-Xint"],
        &["-Xcomp", "-XX:TieredStopAtLevel=1", "-XX:CompileCommand=quiet"],
        &["-Xcomp", "-XX:-TieredCompilation", "-XX:CompileCommand=quiet"],
    ] {
        for mut service in services(mode) {
            service.plimsoll(&["attach", "--sites", "exact", "--yes"]);
            service.serves();
            let report = service.report_by_site();
            let sites = report["sites"].as_array().expect("sites").iter();
            let blocks =
                sites.filter(|site| is_of_a_deflater(site)).map(|site| site["live_count"].as_u64().expect("a count"));
            let truth = Service::ZLIB_BLOCKS * service.truth("deflaters");
            assert_eq!(blocks.sum::<u64>(), truth, "{service} {mode:?}: {:#}", report["sites"]);
        }
    }
}

/// From the native method out to main: each frame in its turn, the service's own ones at the lines of the source. The VM's
/// own blocks, made when it links the native method, don't count.
fn is_of_a_deflater(site: &Value) -> bool {
    if site["category"] != "zlib" {
        return false;
    }
    let source = fs::read_to_string(source()).expect("the fixture");
    let line_of = |text: &str| 1 + source.lines().position(|line| line.contains(text)).expect("in the source") as u64;
    let way = [
        ("java.util.zip.Deflater.init", None),
        ("java.util.zip.Deflater.<init>", None),
        ("Service.pack", Some(line_of("KEPT.add(new Deflater())"))),
        ("Service.main", Some(line_of("pack();"))),
    ];
    let mut frames = site["frames"].as_array().expect("frames").iter();
    way.iter().all(|(name, line)| {
        frames.any(|frame| frame["function"] == **name && line.is_none_or(|line| frame["line"] == line))
    })
}
