//! Threads: their end, their number, and blocks that one passes to another.

use crate::harness::situation;
use crate::situations;

/// What every native image exports; and no unwind tables, which Java code doesn't have.
const AS_IMAGE: &[&str] = &["-rdynamic", "-Wl,--defsym=__svm_version_info=main", "-fno-asynchronous-unwind-tables"];

situations! {
    key_destructors => situation("key_destructors");
    orphans => situation("orphans").moments(4);
    producer_consumer => situation("producer_consumer");
    thread_ends => situation("thread_ends");
    threads_sequential => situation("threads_sequential").moments(5);
    threads_at_once => situation("threads_at_once").moments(2);
    small_stacks => situation("small_stacks");
    small_contexts => situation("small_contexts");
    switched_stacks => situation("switched_stacks");
    detached => situation("detached");
    c11_thread => situation("c11_thread");
    // The tracker takes these programs for native images without NMT: after 256 blocks they leave the slow path.
    image_without_headers => situation("producer_consumer").named("image_without_headers").flags(AS_IMAGE);
    image_of_mixed_calls => situation("mix").named("image_of_mixed_calls").flags(AS_IMAGE).moments(4);
    image_block_of_another => situation("image_block_of_another").flags(&["-rdynamic"]);
}
