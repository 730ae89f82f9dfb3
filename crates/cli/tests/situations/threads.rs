//! Threads: their end, their number, and blocks that one passes to another.

use crate::build::compiled;
use crate::kit::{Observed, fresh_dir, situation, tidy};
use crate::situations;

/// What every native image exports; and no unwind tables, which Java code doesn't have.
const AS_IMAGE: &[&str] = &["-rdynamic", "-Wl,--defsym=__svm_version_info=main", "-fno-asynchronous-unwind-tables"];

situations! {
    key_destructors over both_musl_in_full => situation("key_destructors");
    orphans over both_musl_in_full => situation("orphans").moments(4);
    producer_consumer over both_musl_in_full => situation("producer_consumer");
    thread_ends over both => situation("thread_ends");
    threads_sequential over both => situation("threads_sequential").moments(5);
    threads_at_once over both_musl_in_full => situation("threads_at_once").moments(2);
    small_stacks over both => situation("small_stacks");
    small_contexts over both => situation("small_contexts");
    alternate_stack over both => situation("alternate_stack");
    // musl has no swapcontext.
    switched_stacks over glibc => situation("switched_stacks");
    detached over both_musl_in_full => situation("detached");
    c11_thread over both_musl_in_full => situation("c11_thread");
    // The tracker takes these programs for native images without NMT: after 256 blocks they leave the slow path. Native
    // images are linked with glibc.
    image_without_headers over glibc => situation("producer_consumer").named("image_without_headers").flags(AS_IMAGE);
    image_of_mixed_calls over glibc => situation("mix").named("image_of_mixed_calls").flags(AS_IMAGE).moments(4);
    image_block_of_another over glibc => situation("image_block_of_another").flags(&["-rdynamic"]);
}

/// The guard lies below the stack, so it takes no space from walks.
#[test]
fn a_large_guard_takes_no_space_from_walks() {
    let row = situation("large_guard");
    for row in [row.clone(), row.over_musl()] {
        let dir = fresh_dir(&row.name);
        let seen = Observed::watch(row.command(&compiled(&row.program), Some("exact"), &dir), Some(&dir));
        let report =
            seen.moments.first().and_then(|moment| moment.report.clone()).expect("a moment").expect("a report");
        assert_eq!(report.counter("stacks_unwalked"), 0, "{}", row.name);
        tidy(&dir);
    }
}
