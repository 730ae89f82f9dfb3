//! Memory that the program locks (mlock(2), mlockall(2)).
//!
//! While MCL_FUTURE is in force the kernel locks each new mapping, and makes all of it resident. The tracker's mappings
//! are large and nearly empty, so they must not be locked. The kernel has no flag for that, but a mapping that grows
//! keeps its own flags (mm/mremap.c):
//!
//! ```text
//! mmap one page: locked ── munlock ── mremap to all bytes: not locked, not resident
//! ```

use super::super::cpu::{nr, syscall};
use super::{RLIMIT_MEMLOCK, rlimit};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// See mlockall(2).
pub const MCL_CURRENT: i32 = 1;
/// See mlockall(2).
pub const MCL_FUTURE: i32 = 2;
/// See mlockall(2).
pub const MCL_ONFAULT: i32 = 4;

/// Whether the kernel may lock new mappings. Never reset: an outdated `true` only makes a mapping take three calls
/// instead of one.
static LOCKS_NEW: AtomicBool = AtomicBool::new(false);

/// Notes that from now on the kernel may lock new mappings.
pub fn new_mappings_are_locked() {
    LOCKS_NEW.store(true, Relaxed);
}

/// Whether the kernel may lock new mappings.
pub fn locks_new_mappings() -> bool {
    LOCKS_NEW.load(Relaxed)
}

/// The same in a process that runs already, if some of its memory is locked: returns that. Under MCL_FUTURE at least a
/// page is, which is mapped meanwhile.
pub fn find_locked_mappings() -> bool {
    /// PROT_READ and PROT_WRITE.
    const READ_WRITE: usize = 0x3;
    /// MAP_PRIVATE, MAP_ANONYMOUS and MAP_NORESERVE.
    const FLAGS: usize = 0x2 | 0x20 | 0x4000;
    let mut is_locked = false;
    // SAFETY: a new mapping at an address the kernel chooses, unmapped below.
    let page = unsafe { syscall(nr::MMAP, [0, 4096, READ_WRITE, FLAGS, usize::MAX, 0]) };
    super::each_line(super::OwnFile::STATUS, |line| {
        let locked = line.strip_prefix(b"VmLck:").unwrap_or_default();
        is_locked |= locked.iter().any(|b| (b'1'..=b'9').contains(b));
    });
    if let Ok(page) = page {
        // SAFETY: the mapping that was just made, which nobody knows of.
        let _ = unsafe { syscall(nr::MUNMAP, [page, 4096, 0, 0, 0, 0]) };
    }
    LOCKS_NEW.fetch_or(is_locked, Relaxed);
    is_locked
}

/// Unlocks memory of ours. False: a filter refuses the call, or the memory isn't mapped.
pub fn unlock(start: usize, bytes: usize) -> bool {
    // SAFETY: changes no byte and no mapping's address or protection.
    unsafe { syscall(nr::MUNLOCK, [start, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// Locks memory of the program on its behalf, and makes it resident; with `on_fault`, locks each page when it becomes
/// resident. False: not all of the memory was locked.
pub fn lock_for_program(start: usize, bytes: usize, on_fault: bool) -> bool {
    const MLOCK_ONFAULT: usize = 1;
    let (number, flags) = if on_fault { (nr::MLOCK2, MLOCK_ONFAULT) } else { (nr::MLOCK, 0) };
    // SAFETY: the program has asked for it; changes no byte.
    unsafe { syscall(number, [start, bytes, flags, 0, 0, 0]) }.is_ok()
}

/// Has the kernel lock new mappings: `flags` have MCL_FUTURE, and not MCL_CURRENT.
pub fn lock_new_for_program(flags: i32) -> bool {
    // SAFETY: the program has asked for it; changes no mapping.
    unsafe { syscall(nr::MLOCKALL, [flags as usize, 0, 0, 0, 0, 0]) }.is_ok()
}

/// Unlocks all memory, and new mappings.
pub fn unlock_all() -> bool {
    // SAFETY: the program locks it again at once; changes no byte.
    unsafe { syscall(nr::MUNLOCKALL, [0; 6]) }.is_ok()
}

/// Whether the kernel would let this process lock this many bytes in total (mm/mlock.c, `mlockall`). It does if they
/// are within RLIMIT_MEMLOCK, or if the process has CAP_IPC_LOCK in the first user namespace. No call reports the
/// capability. But only a process that has it can map locked memory above the limit, even if the mapping has no pages.
pub fn may_lock(bytes: usize) -> bool {
    /// MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE and MAP_LOCKED.
    const FLAGS: usize = 0x2 | 0x20 | 0x4000 | 0x2000;
    let limit = rlimit(RLIMIT_MEMLOCK);
    if bytes as u64 <= limit {
        return true;
    }
    let over = (limit as usize & !4095) + 4096;
    // SAFETY: a new mapping without access at an address the kernel chooses, unmapped at once.
    unsafe {
        let tried = syscall(nr::MMAP, [0, over, 0, FLAGS, usize::MAX, 0]);
        tried.is_ok_and(|p| syscall(nr::MUNMAP, [p, over, 0, 0, 0, 0]).is_ok())
    }
}
