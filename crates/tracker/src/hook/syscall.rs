//! The real syscall(2), and the object in which the real mmap lies.

use super::entry;
use crate::sys::libc::{self, Call};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// The target of the entry for a number that [`super::calls`] doesn't name: at first a stub that finds the real
/// function, from then on that function.
pub static PASS_THROUGH: AtomicPtr<()> = AtomicPtr::new(entry::first_syscall as *mut ());

/// First address of that object, and one past the last.
static REAL_MMAP: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Called when the real functions are known.
pub fn init() {
    let syscall = libc::real(Call::syscall);
    if syscall != 0 {
        PASS_THROUGH.store(syscall as *mut (), Relaxed);
    }
    if let Some(object) = libc::find_object(libc::real(Call::mmap)) {
        REAL_MMAP[1].store(object.end, Relaxed);
        REAL_MMAP[0].store(object.start, Relaxed);
    }
}

/// Whether an address lies in the object that has the real mmap.
#[inline(always)]
pub fn is_of_real_mmap(address: usize) -> bool {
    (REAL_MMAP[0].load(Relaxed)..REAL_MMAP[1].load(Relaxed)).contains(&address)
}
