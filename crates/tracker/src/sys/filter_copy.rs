//! Copies a filter of system calls that the program is about to set, out of the program's memory.

use super::filter::{Filter, Instruction, KNOWN, close, known};
use super::{errno, os};

/// `struct sock_fprog`.
#[repr(C)]
struct Given {
    instructions: u16,
    first: *const Instruction,
}

/// The kernel takes no more (BPF_MAXINSNS).
const MOST: usize = 4096;

/// A copy of what `given` points to (`struct sock_fprog`). `None`: one like it is known (each thread may set it), or the
/// kernel will refuse it, or it can't be read: then no call is made any more.
pub fn filter_at(given: usize) -> Option<Filter> {
    let readable = |from: usize, bytes: usize| {
        // Programs ask what the kernel can do with a null pointer, and so would the question below mean another one.
        let end = if from == 0 { None } else { from.checked_add(bytes) };
        let Some(end) = end else { return false };
        let pages = (from & !4095..end).step_by(4096).map(|page| page.max(from).min(end - 8));
        match pages.chain([end - 8]).map(os::ask).find(|answer| *answer != Err(errno::EINVAL)) {
            None => true,
            Some(Err(errno::EFAULT)) => false,
            Some(_) => {
                close();
                false
            }
        }
    };
    if !readable(given, size_of::<Given>()) {
        return None;
    }
    // SAFETY: all of it was found readable, as far as the kernel will read it too.
    let Given { instructions, first } = unsafe { (given as *const Given).read_unaligned() };
    let n = instructions as usize;
    if n == 0 || n > MOST || !readable(first as usize, n * size_of::<Instruction>()) {
        return None;
    }
    // SAFETY: the instructions were found readable. Volatile: the program may write them, and then sets what it likes.
    let theirs = |i: usize| unsafe { (first as *const [u8; 8]).add(i).read_volatile() };
    if (0..KNOWN).filter_map(known).any(|f| f.0.len() == n && is_made_of(f, theirs)) {
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

fn is_made_of(known: Filter, theirs: impl Fn(usize) -> [u8; 8]) -> bool {
    let bytes = |own: &Instruction| {
        let [c, d] = own.code.to_ne_bytes();
        let [k, l, m, n] = own.k.to_ne_bytes();
        [c, d, own.yes, own.no, k, l, m, n]
    };
    known.0.iter().enumerate().all(|(i, own)| bytes(own) == theirs(i))
}
