//! Signals of the thread: the mask, and whether a handler runs on a stack of its own.

use super::super::cpu::{nr, syscall};
use core::sync::atomic::{AtomicBool, Ordering::*};

static ALTERNATE_STACKS: AtomicBool = AtomicBool::new(false);

/// Notes that the program's signal handlers may have stacks of their own.
pub fn alternate_stacks_exist() {
    // Every thread of a Rust program has an alternate stack, so mostly this is noted already.
    if !ALTERNATE_STACKS.load(Relaxed) {
        ALTERNATE_STACKS.store(true, Relaxed);
    }
}

/// The alternate stack on which this thread's signal handler runs: its lowest address and its bytes. `None`: it runs on
/// no such stack, the program has none ([`alternate_stacks_exist`]), a filter refuses the query, or the kernel has put
/// the stack out of use meanwhile (SS_AUTODISARM).
pub fn alternate_stack() -> Option<(usize, usize)> {
    if !ALTERNATE_STACKS.load(Relaxed) {
        return None;
    }
    /// `stack_t`.
    #[repr(C)]
    struct Stack {
        low: usize,
        flags: u32,
        bytes: usize,
    }
    const SS_ONSTACK: u32 = 1;
    let mut now = Stack { low: 0, flags: 0, bytes: 0 };
    // SAFETY: changes nothing, and the kernel writes the local.
    unsafe { syscall(nr::SIGALTSTACK, [0, &raw mut now as usize, 0, 0, 0, 0]) }.ok()?;
    (now.flags & SS_ONSTACK != 0).then_some((now.low, now.bytes))
}

pub(super) fn mask_arguments(p: usize) -> [usize; 6] {
    [usize::MAX, p, 0, 8, 0, 0]
}

const SIG_SETMASK: usize = 2;

/// Blocks all signals of this thread; returns the previous mask. `None`: a filter refuses.
pub fn block_signals() -> Option<u64> {
    let (all, mut before) = (u64::MAX, 0u64);
    let arguments = [SIG_SETMASK, &raw const all as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: the kernel reads one local and writes the other.
    unsafe { syscall(nr::RT_SIGPROCMASK, arguments) }.ok().map(|_| before)
}

/// Restores a signal mask that [`block_signals`] returned.
pub fn unblock_signals(before: u64) {
    // SAFETY: the kernel reads the local.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_SETMASK, &raw const before as usize, 0, 8, 0, 0]) };
}
