//! Finds out whether a thread runs on the stack that libc gave it. Two records in the target show that: libc's
//! descriptor of the thread, and the frame of each signal that the thread handles.
//!
//! ```text
//! descriptor (struct pthread, nptl/descr.h)        a signal's frame (struct rt_sigframe, arch/x86)
//!   +0, +16  its own address                         +0    libc's return from signals
//!   …        stackblock, stackblock_size, guardsize   +8    flags, link, alternate stack (struct ucontext)
//!                                                    +48   registers (struct sigcontext): rsp at 120, cs at 144
//! ```
//! The offset of `stackblock` differs between versions. Behind the control block and the thread's links, it is the only
//! pair of an address below the descriptor and of a length that ends just above it. The guard is part of the block.
//!
//! `crates/tracker/src/sys/thread_descriptor.rs` is the second reader of the descriptor at a known address: this crate
//! can't import the tracker.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::unwind::Stack;

/// Bytes of a descriptor that are searched.
const DESCRIPTOR: u64 = 2304;
/// The first word that is searched. In front lie the control block (704 bytes), the list of threads, the thread's number
/// and its robust mutexes: addresses close to the descriptor, which could pass for lengths and ends.
const SEARCHED_FROM: usize = 100;
/// A stack ends within this distance above its descriptor.
const WITHIN: u64 = 16 << 10;
/// The smallest stack of a thread (PTHREAD_STACK_MIN), so that no flag passes for a length.
const LEAST: u64 = 16 << 10;
/// Offsets in a signal's frame.
const LINK: u64 = 16;
const POINTER: u64 = 48 + 120;
const SEGMENTS: u64 = 48 + 144;
const USER_CODE: u64 = 0x33;

/// Where the stack of the thread with the descriptor at `thread` begins, in a mapping that ends at `end`. `None`: libc
/// has not made or been given a stack for it, as for the first thread.
pub fn lowest(memory: &File, thread: u64, end: u64) -> Option<u64> {
    let mut bytes = vec![0; DESCRIPTOR.min(end.checked_sub(thread)?) as usize];
    memory.read_exact_at(&mut bytes, thread).ok()?;
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes).collect();
    lowest_by(&words, thread)
}

fn lowest_by(descriptor: &[u64], thread: u64) -> Option<u64> {
    let is_own = descriptor.first() == Some(&thread) && descriptor.get(2) == Some(&thread);
    let searched = descriptor.get(SEARCHED_FROM..).filter(|_| is_own)?;
    searched.windows(3).find_map(|words| {
        let &[base, length, guard] = words else { return None };
        let top = base.checked_add(length)?;
        let is_stack = base != 0 && base < thread && length >= LEAST && thread < top && top - thread <= WITHIN;
        is_stack.then(|| base + if guard < length { guard } else { 0 })
    })
}

/// Whether a handler on this part of a stack interrupted a function whose frame isn't on it: the handler has an
/// alternate stack (sigaltstack(2)). `restorer`: libc's return from signals. A word of an earlier call may have this
/// value by chance, and is not a frame.
pub fn is_left_for_a_handler(stack: &Stack<'_>, restorer: u64) -> bool {
    (stack.at..stack.end()).step_by(8).filter(|at| stack.word(*at) == Some(restorer)).any(|at| {
        let part = |offset: u64| stack.word(at + offset);
        let is_frame = part(LINK) == Some(0) && part(SEGMENTS).is_some_and(|word| word & 0xffff == USER_CODE);
        is_frame && part(POINTER).is_some_and(|pointer| !(at..=stack.end()).contains(&pointer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As glibc 2.36 has it at 0x690: the block with its guard, in words.
    #[test]
    fn the_block_is_found_in_the_descriptor() {
        let thread = 0x7f00_0080_0640;
        let mut descriptor = vec![0; 288];
        (descriptor[0], descriptor[2]) = (thread, thread);
        // The thread's number, robust_prev and robust_head.
        (descriptor[90], descriptor[91], descriptor[92]) = (4711, thread + 736, thread + 736);
        assert_eq!(lowest_by(&descriptor, thread), None);
        // The first thread has the end of its stack in place of a length (__tls_init_tp).
        descriptor[211] = 0x7ffc_0000_0000;
        assert_eq!(lowest_by(&descriptor, thread), None);
        (descriptor[210], descriptor[211], descriptor[212]) = (0x7f00_0000_0000, 0x80_1000, 0x1000);
        assert_eq!(lowest_by(&descriptor, thread), Some(0x7f00_0000_1000));
        descriptor[212] = 0;
        assert_eq!(lowest_by(&descriptor, thread), Some(0x7f00_0000_0000));
        assert_eq!(lowest_by(&descriptor[..100], thread), None);
        descriptor[2] = 0;
        assert_eq!(lowest_by(&descriptor, thread), None);
    }

    #[test]
    fn a_handler_on_another_stack_is_known_by_its_frame() {
        let (at, restorer) = (0x7f00_0000_1000_u64, 0x7f11_2233_4455);
        let mut words = [0_u64; 64];
        let is_left = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            is_left_for_a_handler(&Stack { at, bytes: &bytes }, restorer)
        };
        (words[2], words[2 + 24]) = (restorer, 0x002b_0000_0000_0033);
        let pointer = 2 + 21;
        for (interrupted, expected) in [(at + 400, false), (at + 8, true), (at - 800, true), (at + 4096, true)] {
            words[pointer] = interrupted;
            assert_eq!(is_left(&words), expected, "{interrupted:x}");
        }
        // What sigaction(2) leaves.
        words[2 + 24] = 0;
        assert!(!is_left(&words) && !is_left(&words[..4]));
    }
}
