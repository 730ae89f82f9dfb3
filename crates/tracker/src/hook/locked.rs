//! mlockall, also by syscall(2). With MCL_CURRENT the kernel makes all of each mapping resident, and with MCL_FUTURE all
//! of each new one. The tracker's mappings are large and nearly empty, so the tracker leaves them out: it locks the
//! program's mappings one by one, as /proc/self/maps lists them, and doesn't let its later ones be locked. Its own
//! memory is therefore not locked, and doesn't count against `RLIMIT_MEMLOCK`; mlockall(2) returns what it would
//! without the tracker. If /proc isn't mounted, or a filter refuses mlock(2), the tracker unmaps what it doesn't use,
//! and the kernel makes the rest resident, 9 to 10 MiB. If a library's constructor calls mlockall before the tracker's
//! constructor has run, that is the tracker's library. A program that makes the system call itself (without libc) isn't
//! seen.
//!
//! Elasticsearch (`bootstrap.memory_lock`) and real-time programs make this call. In a fork child nothing is locked.

use super::limits;
use crate::account::mapping::existing::maps;
use crate::account::mapping::own_memory::{each_part_of_program, own_from};
use crate::phase::resolved;
use crate::segment::{LASTING, Segment, windows};
use crate::sys::elf;
use crate::sys::libc::calls;
use crate::sys::os::{self, MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT};
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::vmap::ADDRESS_END;

/// mlockall(2).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if !resolved() {
        super::resolve::resolve();
    }
    // SAFETY: the program's argument.
    locked(flags, || unsafe { calls::mlockall(flags) })
}

/// Locks as `lock` would, without the tracker's memory.
#[cold]
pub(super) fn locked(flags: c_int, lock: impl FnOnce() -> c_int) -> c_int {
    // A fork child maps its segment now: later that would be locked.
    let _ = Segment::current();
    let is_known = flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
    if is_known && flags & MCL_FUTURE != 0 {
        os::new_mappings_are_locked();
    }
    if !is_known || flags & MCL_CURRENT == 0 {
        return lock();
    }
    if LASTING.load(Relaxed) == 0 {
        // A constructor that runs before the tracker's: there is no segment yet.
        return lock_before_start(lock);
    }
    let mut bytes = 0;
    each_of_program(|range| bytes += range.len());
    let on_fault = flags & MCL_ONFAULT != 0;
    // For 0 bytes, mlock(2) only checks the right to lock memory.
    let can_lock = bytes != 0 && os::may_lock(bytes) && os::lock_for_program(0, 0, on_fault);
    if !can_lock || !lock_new(flags) {
        // If the kernel refuses so many bytes, it refuses more too, with the right error.
        return lock_what_is_used(lock);
    }
    each_of_program(|range| {
        os::lock_for_program(range.start, range.len(), on_fault);
    });
    0
}

/// Sets what becomes of new mappings. False: the kernel refuses.
fn lock_new(flags: c_int) -> bool {
    if flags & MCL_FUTURE != 0 {
        return os::lock_new_for_program(flags & !MCL_CURRENT);
    }
    // The call ends MCL_FUTURE. Only munlockall(2) does that without a lock on each mapping.
    !os::locks_new_mappings() || os::unlock_all()
}

/// The call as it is, after the tracker has unmapped what it doesn't use. Then the tracker unlocks the rest, which is
/// resident now.
fn lock_what_is_used(lock: impl FnOnce() -> c_int) -> c_int {
    os::note_limit(0);
    limits::unmap_unused();
    let r = lock();
    unlock_own();
    r
}

/// The call as it is. Then the tracker unlocks its library, and what its first blocks have made it map.
fn lock_before_start(lock: impl FnOnce() -> c_int) -> c_int {
    if elf::own_extent().is_empty() {
        elf::note_own_extent();
    }
    let r = lock();
    unlock_own();
    r
}

/// Unlocks the tracker's memory.
pub fn unlock_own() {
    if let Some(segment) = Segment::mapped() {
        windows::unlock(segment);
    }
    let mut at = 0;
    while let Some(own) = own_from(at) {
        os::unlock(own.start, own.len());
        at = own.end;
    }
}

/// Visits the mappings of this process that aren't the tracker's.
fn each_of_program(mut visit: impl FnMut(Range<usize>)) {
    os::each_line(os::OwnFile::MAPS, |line| {
        // Above is the kernel's page for old vsyscalls.
        let Some(m) = maps::parse(line).filter(|m| m.end <= ADDRESS_END as usize) else { return };
        each_part_of_program(m.start..m.end, &mut visit);
    });
}
