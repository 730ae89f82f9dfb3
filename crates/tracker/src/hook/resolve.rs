//! The first call of any hook: reads the loader's list to find the real functions (no dlsym, no allocation), and
//! determines which allocator is below the hooks.

use crate::account::{blocks, classes, image};
use crate::phase::{self, Phase};
use crate::sys::{elf, libc};
use plimsoll_segment::Allocator;

/// Finds the real functions and the owner of malloc.
#[cold]
pub fn resolve() {
    libc::resolve();
    super::real_mmap::init();
    if !libc::is_known() {
        phase::enter(Phase::Off);
        return;
    }
    if libc::glibc_version() >= 2043 {
        blocks::mapped_sizes_leave_a_header_out();
    }
    let below = elf::scope().find(|o| o.symbol(c"malloc").is_some());
    let allocator = match below {
        Some(o) if o.symbol(c"mallctl").or(o.symbol(c"je_mallctl")).is_some() => Allocator::Jemalloc,
        Some(o) if o.symbol(c"tc_malloc").is_some() => Allocator::Tcmalloc,
        Some(o) if o.symbol(c"mi_malloc").is_some() => Allocator::Mimalloc,
        Some(o) if libc::is_glibc() && o.is_libc() && chunks_are_glibc() => Allocator::Glibc,
        Some(o) if libc::is_musl() && o.is_libc() => {
            if !libc::set_allocator_of_musl(o) {
                phase::enter(Phase::Off);
                return;
            }
            Allocator::Musl
        }
        _ => Allocator::Other,
    };
    blocks::init(allocator);
    if let (Some(o), false) = (below, matches!(allocator, Allocator::Glibc | Allocator::Musl)) {
        libc::set_allocator(o);
        // A debugging allocator with a header of its own in front of each block.
        if o.symbol(c"malloc_usable_size").is_none() {
            libc::sizes_are_unknown();
            blocks::sizes_are_unknown();
        }
    }
    image::init();
    // Before the allocator registers its handlers: `prepare` handlers run in reverse order (pthread_atfork(3)), so ours
    // takes the map's lock when the allocator's locks are held already. In the other order, a thread that maps memory
    // under an allocator's lock and the thread that forks would wait for each other. After the phase has changed:
    // musl's function allocates (src/thread/pthread_atfork.c of 1.2.3), and the hook must not come back here.
    phase::leave_new();
    super::fork::init();
}

/// Learns the sizes of the allocator below the hooks, by a function that allocates nothing. In tcmalloc, a block of
/// each size would make half a MiB resident. Not called in the first call of a hook, which may come from inside the
/// allocator. mimalloc also allocates one small block, which shows whether it pads.
///
/// # Safety
/// [`resolve`] was called, and the caller isn't inside the allocator, whose locks the function may take.
pub unsafe fn learn_sizes() {
    // SAFETY: the caller's contract.
    unsafe {
        if blocks::allocator() != Allocator::Mimalloc as u32 || mimalloc_gives_whole_classes() {
            classes::learn(blocks::allocator(), |request| libc::size_of_request(request));
        }
    }
}

/// Whether every small block of this mimalloc has the size that `mi_good_size` reports. Not in builds with padding
/// (debug, secure). From 1.8.8 and 2.1.8 on, a build may put some blocks against a guard page (MI_GUARDED), which no
/// function reports.
///
/// # Safety
/// As [`learn_sizes`].
unsafe fn mimalloc_gives_whole_classes() -> bool {
    if !matches!(libc::mimalloc_version(), 170..=187 | 200..=217) {
        return false;
    }
    // SAFETY: the caller's contract; the block is freed again.
    unsafe {
        let request = 25;
        let p = libc::calls::malloc(request);
        if p.is_null() {
            return false;
        }
        let usable = libc::calls::malloc_usable_size(p);
        libc::calls::free(p);
        usable > request && usable == libc::size_of_request(request)
    }
}

/// Whether the word before a block holds the size that malloc_usable_size returns. Only small sizes are tried: freeing
/// a block with its own mapping would raise the program's mmap threshold for good (mallopt(3), M_MMAP_THRESHOLD).
fn chunks_are_glibc() -> bool {
    [1usize, 24, 25, 1000, 70_001].iter().all(|&n| {
        // SAFETY: resolved; the block is freed again. A libc that is not glibc has no gnu_get_libc_version.
        unsafe {
            let p = libc::calls::malloc(n);
            if p.is_null() {
                return false;
            }
            let same = blocks::usable_glibc(p) == libc::calls::malloc_usable_size(p);
            libc::calls::free(p);
            same
        }
    })
}
