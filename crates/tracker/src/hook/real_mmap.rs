//! The object in which the real mmap lies.

use crate::sys::libc::{self, Call};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Its first address, and one past the last.
static REAL_MMAP: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Called when the real functions are known.
pub fn init() {
    if let Some(object) = libc::find_object(libc::real(Call::mmap)) {
        REAL_MMAP[1].store(object.end, Relaxed);
        REAL_MMAP[0].store(object.start, Relaxed);
    }
}

/// Whether an address lies in that object.
#[inline(always)]
pub fn is_of_real_mmap(address: usize) -> bool {
    (REAL_MMAP[0].load(Relaxed)..REAL_MMAP[1].load(Relaxed)).contains(&address)
}
