//! The object in which the real mmap lies.

use crate::sys::libc::{self, Call};
use crate::sys::{elf, os};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Its first address, and one past the last.
static REAL_MMAP: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Called when the real functions are known.
pub fn init() {
    let address = libc::real(Call::mmap);
    // glibc before 2.35 can't be queried. The objects that the search for the real functions has read stay loaded.
    let listed = || elf::scope().filter_map(|o| o.extent(os::readable)).find(|o| (o.0..o.1).contains(&address));
    let found = libc::find_object(address).map(|object| (object.start, object.end));
    if let Some((start, end)) = found.or_else(|| listed().map(|(start, end, _)| (start, end))) {
        REAL_MMAP[1].store(end, Relaxed);
        REAL_MMAP[0].store(start, Relaxed);
    }
}

/// Whether an address lies in that object.
#[inline(always)]
pub fn is_of_real_mmap(address: usize) -> bool {
    (REAL_MMAP[0].load(Relaxed)..REAL_MMAP[1].load(Relaxed)).contains(&address)
}
