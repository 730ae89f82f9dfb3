//! Pages of the segment: whether they can be written, and get memory before they are.

use super::super::cpu::{nr, syscall};
use super::super::errno;
use super::super::filter::Filter;
use super::files::Fd;
use super::signals::mask_arguments;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::*};

const MADV_NOHUGEPAGE: usize = 15;
const MADV_POPULATE_WRITE: usize = 23;

/// Whether the segment lies on tmpfs.
static ON_TMPFS: AtomicBool = AtomicBool::new(false);
/// Whether the program's own code has run, which may have entered a sandbox.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Notes the type of the segment's file system.
pub fn note_file_system(fd: Fd) {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let mut of = MaybeUninit::<[u64; 15]>::zeroed();
    // SAFETY: fstatfs fills one struct statfs, 120 bytes, its type first.
    let r = unsafe { syscall(nr::FSTATFS, [fd.0, of.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    // SAFETY: zeroed, whether or not it was filled.
    ON_TMPFS.store(r.is_ok() && unsafe { of.assume_init() }[0] == TMPFS_MAGIC, Relaxed);
}

/// Notes that the program's own code runs from here on.
pub fn started() {
    STARTED.store(true, Relaxed);
}

/// Makes pages of the segment's file safe to write, as [`populate`] does.
///
/// Some sandboxes kill for an advice of madvise that they don't know (OpenSSH's), and the tracker doesn't see every
/// sandbox. So once the program's own code runs, the pages are read through rt_sigprocmask, which most sandboxes allow.
/// On tmpfs that read allocates the page (mm/shmem.c, `SGP_CACHE`), and fails if the file system is full. A sandbox
/// that refuses rt_sigprocmask with this `how` (Tor's) may allow madvise.
pub fn make_writable(p: usize, bytes: usize) -> bool {
    if !STARTED.load(Relaxed) || !ON_TMPFS.load(Relaxed) {
        return populate(p, bytes);
    }
    // A word across the border of two pages reads both with one call.
    for page in (p..p + bytes).step_by(2 * 4096) {
        let is_pair = page + 4096 < p + bytes;
        match probe(if is_pair { page + 4096 - 4 } else { page }) {
            Err(errno::EINVAL) => {}
            Err(errno::EFAULT) => return false,
            _ => return populate(p, bytes),
        }
    }
    true
}

/// Whether [`make_writable`] could get pages with this filter in force too.
pub fn grows_under(filter: Filter) -> bool {
    let (probe_arguments, populate_arguments) = (mask_arguments(0), [0, 4096, MADV_POPULATE_WRITE, 0, 0, 0]);
    let populates = if WITHOUT_POPULATE.load(Relaxed) {
        filter.permits(nr::FUTEX, &unchanged(0))
    } else {
        filter.permits(nr::MADVISE, &populate_arguments)
    };
    (ON_TMPFS.load(Relaxed) && filter.permits(nr::RT_SIGPROCMASK, &probe_arguments)) || populates
}

/// Set if the kernel is older than 5.14, and refused `MADV_POPULATE_WRITE` as unknown.
static WITHOUT_POPULATE: AtomicBool = AtomicBool::new(false);

/// Allocates the blocks under whole pages of a shared file mapping now, so that a full file system is an error here and
/// not a SIGBUS later (`MADV_POPULATE_WRITE`; before Linux 5.14 by [`make_page_writable`]).
pub fn populate(p: usize, bytes: usize) -> bool {
    populate_by_advice(p, bytes).unwrap_or_else(|| (p..p + bytes).step_by(4096).all(make_page_writable))
}

/// As [`populate`], by one call, also once the program's own code runs. False: not all pages were populated.
///
/// A sandbox that the tracker didn't see may kill the process for this advice. So this is for programs that none of
/// those sandboxes would allow to start: a HotSpot VM gives advice of its own (transparent huge pages, pretouching).
pub fn populate_at_once(p: usize, bytes: usize) -> bool {
    populate_by_advice(p, bytes) == Some(true)
}

/// `None`: the kernel doesn't know the advice.
fn populate_by_advice(p: usize, bytes: usize) -> Option<bool> {
    if WITHOUT_POPULATE.load(Relaxed) {
        return None;
    }
    // SAFETY: populating changes no byte; a range that isn't mapped is refused by the kernel.
    match unsafe { syscall(nr::MADVISE, [p, bytes, MADV_POPULATE_WRITE, 0, 0, 0]) } {
        Err(errno::EINVAL) => {
            WITHOUT_POPULATE.store(true, Relaxed);
            None
        }
        result => Some(result.is_ok()),
    }
}

/// Makes the page at `p` safe to write, without a change of its bytes: the kernel adds 0 to a word of it. False: the
/// page isn't writable, or the file system has no space for it.
///
/// FUTEX_WAKE_OP changes a word atomically, and resolves the fault of that store itself (kernel/futex, `futex_wake_op`,
/// `fault_in_user_writeable`): where a store of the program's would be a SIGBUS, the call fails with EFAULT.
pub fn make_page_writable(p: usize) -> bool {
    // SAFETY: adds 0, and wakes nobody.
    unsafe { syscall(nr::FUTEX, unchanged(p)) }.is_ok()
}

fn unchanged(p: usize) -> [usize; 6] {
    const FUTEX_WAKE_OP_PRIVATE: usize = 5 | 128;
    /// `FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)`.
    const ADD_NOTHING: usize = 1 << 28;
    [p, FUTEX_WAKE_OP_PRIVATE, 0, 0, p, ADD_NOTHING]
}

/// Switches readahead off. A segment on disk is sparse and accessed at random, and by default the kernel reads
/// megabytes ahead at each page of a hole (mm/filemap.c, `do_sync_mmap_readahead`).
pub fn expect_random(p: *mut u8, bytes: usize) {
    const MADV_RANDOM: usize = 1;
    if !ON_TMPFS.load(Relaxed) {
        // SAFETY: changes no byte of our own mapping.
        let _ = unsafe { syscall(nr::MADVISE, [p as usize, bytes, MADV_RANDOM, 0, 0, 0]) };
    }
}

/// Switches huge pages off. On a tmpfs mounted with `huge=always` each touched page of a sparse file takes 2 MiB. Only
/// before the program's own code runs: later a sandbox might kill the process for this call.
pub fn no_huge_pages(p: *mut u8, bytes: usize) {
    if ON_TMPFS.load(Relaxed) {
        // SAFETY: changes no byte of our own mapping.
        let _ = unsafe { syscall(nr::MADVISE, [p as usize, bytes, MADV_NOHUGEPAGE, 0, 0, 0]) };
    }
}

/// Whether eight bytes at `p` can be read. The kernel answers: rt_sigprocmask copies the new mask in before it checks
/// `how`. With an invalid `how` it fails with EINVAL if the memory is readable and with EFAULT if not, and changes
/// nothing.
pub fn readable(p: usize) -> bool {
    probe(p) == Err(errno::EINVAL)
}

/// The kernel's answer to the call that [`readable`] makes. Anything but EINVAL and EFAULT comes from a filter.
pub fn probe(p: usize) -> Result<usize, i32> {
    // SAFETY: `how` is invalid on purpose: the mask stays as it is.
    unsafe { syscall(nr::RT_SIGPROCMASK, mask_arguments(p)) }
}
