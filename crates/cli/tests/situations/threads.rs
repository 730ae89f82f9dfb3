//! Threads: their end, their number, and blocks that one passes to another.

use crate::harness::situation;
use crate::situations;

situations! {
    key_destructors => situation("key_destructors");
    orphans => situation("orphans").moments(4);
    producer_consumer => situation("producer_consumer");
    thread_ends => situation("thread_ends");
    threads_sequential => situation("threads_sequential").moments(5);
    threads_at_once => situation("threads_at_once").moments(2);
    small_stacks => situation("small_stacks");
    switched_stacks => situation("switched_stacks");
    detached => situation("detached");
    c11_thread => situation("c11_thread");
    image_block_of_another => situation("image_block_of_another").flags(&["-rdynamic"]);
}
