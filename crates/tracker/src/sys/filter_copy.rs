//! Copies a filter of system calls (seccomp) from the program's memory just before the program installs it.

use super::filter::{Filter, Instruction, KNOWN, close, known};
use super::{errno, os};

/// `struct sock_fprog` (linux/filter.h).
#[repr(C)]
struct SockFprog {
    instructions: u16,
    first: *const Instruction,
}

/// The kernel's limit of instructions (BPF_MAXINSNS).
const MOST: usize = 4096;

/// Copies the filter that `given` points to (`struct sock_fprog`). `None`: an equal filter is in the list (each thread
/// may install it), or the kernel will refuse the filter, or the filter can't be copied. It can't if another filter
/// refuses the check of its memory, or if no memory is left. If it can't be copied, the tracker makes no more calls.
pub fn filter_at(given: usize) -> Option<Filter> {
    let readable = |from: usize, bytes: usize| {
        // Programs pass a null pointer to probe the kernel. `os::probe` can't check it: to rt_sigprocmask it means "no
        // new mask".
        let end = if from == 0 { None } else { from.checked_add(bytes) };
        let Some(end) = end else { return false };
        let pages = (from & !4095..end).step_by(4096).map(|page| page.max(from).min(end - 8));
        match pages.chain([end - 8]).map(os::probe).find(|answer| *answer != Err(errno::EINVAL)) {
            None => true,
            Some(Err(errno::EFAULT)) => false,
            Some(_) => {
                close();
                false
            }
        }
    };
    if !readable(given, size_of::<SockFprog>()) {
        return None;
    }
    // SAFETY: these bytes were found readable; the kernel will read the same.
    let SockFprog { instructions, first } = unsafe { (given as *const SockFprog).read_unaligned() };
    let n = instructions as usize;
    if n == 0 || n > MOST || !readable(first as usize, n * size_of::<Instruction>()) {
        return None;
    }
    // SAFETY: the instructions were found readable. Volatile, because another thread of the program may write them
    // meanwhile.
    let theirs = |i: usize| unsafe { (first as *const [u8; 8]).add(i).read_volatile() };
    if (0..KNOWN).filter_map(known).any(|f| f.0.len() == n && is_equal(f, theirs)) {
        return None;
    }
    let Some(copy) = os::private(n * size_of::<Instruction>()).map(|p| p as *mut Instruction) else {
        close();
        return None;
    };
    for i in 0..n {
        let [c, d, yes, no, k @ ..] = theirs(i);
        let own = Instruction { code: u16::from_ne_bytes([c, d]), yes, no, k: u32::from_ne_bytes(k) };
        // SAFETY: fresh memory of our own for n instructions.
        unsafe { copy.add(i).write(own) };
    }
    // SAFETY: just written, never given back.
    Some(Filter(unsafe { core::slice::from_raw_parts(copy, n) }))
}

fn is_equal(known: Filter, theirs: impl Fn(usize) -> [u8; 8]) -> bool {
    let bytes = |own: &Instruction| {
        let [c, d] = own.code.to_ne_bytes();
        let [k, l, m, n] = own.k.to_ne_bytes();
        [c, d, own.yes, own.no, k, l, m, n]
    };
    known.0.iter().enumerate().all(|(i, own)| bytes(own) == theirs(i))
}
