//! One small service on each JDK in service: Debian's builds for its newest suite, in a root of their own. What
//! `explain` and `attach` find in them is compared with what the service reports of itself. `make test` has JDK 8 only.

#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../explain/fixture.rs"]
mod fixture;
mod options;
#[path = "../harness/page.rs"]
mod page;
#[path = "../../../../fixtures/roots.rs"]
mod roots;
mod services;
#[allow(dead_code, reason = "shared with other test programs")]
#[path = "../subjects/stage.rs"]
mod stage;
mod table;

use services::{Service, in_root, services};

/// Heap, stacks with the threads' whole names, and the direct buffer to within 3 %, without NMT and with it.
#[test]
fn explain_finds_the_heap_the_threads_and_the_direct_buffer() {
    for (service, has_nmt) in [false, true].into_iter().flat_map(|nmt| {
        services(if nmt { &["-XX:NativeMemoryTracking=detail"] } else { &[] }).map(move |service| (service, nmt))
    }) {
        let explained = service.explained();
        for line in ["java-heap", "class", "code-cache", "gc"] {
            let is_known = line != "class" || in_root(service.jdk).shows_metaspace() || has_nmt;
            assert_eq!(explained.line(line) > 0, is_known, "{service}: {line}: {:#}", explained.0["lines"]);
        }
        let (found, truth) = (explained.line("direct-buffers"), service.truth("direct"));
        assert!(found.abs_diff(truth) * 100 <= truth * 3, "{service}: {found} of {truth}");
        let stacks = explained.child("thread-stacks", "service-worker-with-a-long-name");
        assert!(stacks >= service.truth("workers") * 8192, "{service}: {stacks}: {:#}", explained.0["lines"]);
    }
}

/// Blocks of the Deflaters made after the attach: none is lost, none counted twice. After the detach the service goes
/// on.
#[test]
fn attach_counts_every_block_from_then_on() {
    for mut service in services(&[]) {
        service.plimsoll(&["attach", "--sites", "exact", "--yes"]);
        service.serves();
        let zlib = service.category("zlib");
        let blocks = Service::ZLIB_BLOCKS * service.truth("deflaters");
        assert_eq!(zlib["live_count"], blocks, "{service}: {zlib:#}");
        service.plimsoll(&["detach"]);
        service.serves();
    }
}

/// However the Java code ran, each block of a Deflater has the whole way to it with the right lines, and every JDK's
/// tables lead there. `make test` leaves it to the VM how the code runs.
#[test]
fn stacks_have_the_java_methods_and_their_lines() {
    let modes = [
        &[][..],
        &["-Xint"],
        &["-Xcomp", "-XX:TieredStopAtLevel=1", "-XX:CompileCommand=quiet"],
        &["-Xcomp", "-XX:-TieredCompilation", "-XX:CompileCommand=quiet"],
    ];
    for mode in &modes[..if stage::is_full() { modes.len() } else { 1 }] {
        for mut service in services(mode) {
            service.plimsoll(&["attach", "--sites", "exact", "--yes"]);
            service.serves();
            let truth = Service::ZLIB_BLOCKS * service.truth("deflaters");
            assert_eq!(service.blocks_with_java_frames(), truth, "{service} {mode:?}");
        }
    }
}
