//! Mappings of the segment, and what becomes of their pages.

use super::super::cpu::{nr, syscall};
use super::super::errno;
use super::files::Fd;
use super::locked::{locks_new_mappings, unlock};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use plimsoll_segment::FILE_BYTES;

const PROT_R: usize = 1;
pub(super) const PROT_RW: usize = 3;
const MAP_SHARED: usize = 1;
pub(super) const MAP_PRIVATE: usize = 2;
const MAP_FIXED: usize = 0x10;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
pub(super) const MAP_ANON_NORESERVE: usize = 0x20 | 0x4000;
const MADV_DONTNEED: usize = 4;
const MADV_WIPEONFORK: usize = 18;

/// mmap(2) of new memory, which is not locked. The kernel places it, unless `exact`.
///
/// # Safety
/// As for mmap(2) with these arguments; `flags` don't have MAP_FIXED.
pub(super) unsafe fn map_unlocked(arguments: [usize; 6], exact: bool) -> Result<usize, i32> {
    const MREMAP_MAYMOVE: usize = 1;
    let [address, bytes, prot, flags, fd, offset] = arguments;
    if !locks_new_mappings() {
        // SAFETY: the caller's contract.
        return unsafe { syscall(nr::MMAP, arguments) };
    }
    // SAFETY: the caller's contract, for the first page; then it is our own mapping, which nobody knows of.
    unsafe {
        let page = syscall(nr::MMAP, [address, 4096, prot, flags, fd, offset])?;
        let is_moved = exact && page != address;
        let may_move = if exact { 0 } else { MREMAP_MAYMOVE };
        let grown = match is_moved || !unlock(page, 4096) {
            true => Err(errno::ENOMEM),
            false if bytes <= 4096 => return Ok(page),
            false => syscall(nr::MREMAP, [page, 4096, bytes, may_move, 0, 0]),
        };
        if grown.is_err() {
            unmap(page as *mut u8, 4096);
        }
        grown
    }
}

/// Maps `bytes` of a file shared at `address`. Without `exact` the kernel may choose another address.
pub fn map_file(fd: Fd, offset: usize, bytes: usize, address: usize, exact: bool) -> Option<*mut u8> {
    let flags = MAP_SHARED | if exact { MAP_FIXED_NOREPLACE } else { 0 };
    // SAFETY: a new mapping of our own file where nothing is mapped.
    let p = unsafe { map_unlocked([address, bytes, PROT_RW, flags, fd.0, offset], exact) }.ok()?;
    if exact && p != address {
        // Linux before 4.17 ignores MAP_FIXED_NOREPLACE and treats the address as a hint.
        // SAFETY: the mapping that was just made.
        unsafe { unmap(p as *mut u8, bytes) };
        return None;
    }
    Some(p as *mut u8)
}

/// Enlarges a mapping of ours in place. False: something lies behind it, or the limit on address space is reached.
pub fn widen(start: usize, from: usize, to: usize) -> bool {
    // SAFETY: without MREMAP_MAYMOVE nothing that is mapped changes.
    unsafe { syscall(nr::MREMAP, [start, from, to, 0, 0, 0]) }.is_ok()
}

/// Whether the mapping at `start` has at least this many bytes, whatever lies behind it. mremap checks the old size
/// before it tries to enlarge the mapping (mm/mremap.c), and fails with EFAULT if the mapping is shorter.
pub fn is_one_mapping(start: usize, bytes: usize) -> bool {
    let more = bytes + 4096;
    // SAFETY: without MREMAP_MAYMOVE nothing that is mapped changes.
    match unsafe { syscall(nr::MREMAP, [start, bytes, more, 0, 0, 0]) } {
        Ok(_) => {
            // SAFETY: the page that this call has just mapped.
            unsafe { unmap((start + bytes) as *mut u8, more - bytes) };
            true
        }
        Err(e) => e != errno::EFAULT,
    }
}

/// Chooses an address for a segment, a different one each time. The range of 4 TiB lies far below the kernel's own
/// choices and above programs. The kernel fills gaps from the top down, so it would fill the gaps of a segment that was
/// mapped among its own choices. The start follows from address space randomisation; the steps are larger than a
/// segment.
pub fn choose_segment_address() -> usize {
    const STEP: usize = 256 << 20;
    const _: () = assert!(FILE_BYTES <= STEP);
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let here = &raw const NEXT as usize >> 12;
    let n = (here ^ here >> 14).wrapping_add(NEXT.fetch_add(1, Relaxed)) & 0x3fff;
    0x6000_0000_0000 + n * STEP
}

/// Maps a file shared over a mapping of ours.
///
/// # Safety
/// The range is ours, and nobody needs what is there.
pub unsafe fn map_shared_at(fd: Fd, at: usize, bytes: usize, offset: usize) -> bool {
    // SAFETY: the caller's contract.
    unsafe { syscall(nr::MMAP, [at, bytes, PROT_RW, MAP_SHARED | MAP_FIXED, fd.0, offset]) }.is_ok()
}

/// Maps zeroed private memory that isn't listed; free it with [`unmap`]. The first `at_once` bytes are populated, if
/// the program's filters allow that.
pub fn map_private(bytes: usize, at_once: usize) -> Option<*mut u8> {
    const MAP_POPULATE: usize = 0x8000;
    let flags = MAP_PRIVATE | MAP_ANON_NORESERVE;
    // SAFETY: a new anonymous mapping at an address the kernel chooses.
    let p = unsafe { map_unlocked([0, bytes, PROT_RW, flags, usize::MAX, 0], false) }.ok()?;
    if locks_new_mappings() {
        // MAP_POPULATE would lock that part.
        return Some(p as *mut u8);
    }
    let arguments = [p, at_once, PROT_RW, flags | MAP_FIXED | MAP_POPULATE, usize::MAX, 0];
    // SAFETY: in the place of the first part of that mapping, which nobody has used.
    match unsafe { syscall(nr::MMAP, arguments) } {
        // A filter refused the call, so nothing changed.
        Ok(_) | Err(errno::EPERM) => Some(p as *mut u8),
        Err(_) => {
            // SAFETY: just mapped, and used by nobody; the failed call may have left a hole.
            unsafe { unmap(p as *mut u8, bytes) };
            None
        }
    }
}

/// Maps a file private and read-only.
pub fn map_readonly(fd: Fd, bytes: usize) -> Option<*const u8> {
    // SAFETY: a new mapping at an address the kernel chooses.
    unsafe { syscall(nr::MMAP, [0, bytes, 1, MAP_PRIVATE, fd.0, 0]) }.ok().map(|p| p as *const u8)
}

/// Unmaps memory of our own.
///
/// # Safety
/// The range is ours and nobody uses it any more.
pub unsafe fn unmap(p: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    let _ = unsafe { syscall(nr::MUNMAP, [p as usize, bytes, 0, 0, 0, 0]) };
}

/// Replaces a mapping of ours with private zeroed memory. False: the kernel refuses.
///
/// # Safety
/// The range is ours.
pub unsafe fn replace_with_zeros(p: *mut u8, bytes: usize) -> bool {
    let flags = MAP_PRIVATE | MAP_ANON_NORESERVE | MAP_FIXED;
    // SAFETY: the caller's contract.
    unsafe { syscall(nr::MMAP, [p as usize, bytes, PROT_RW, flags, usize::MAX, 0]) }.is_ok()
}

/// Clears private memory of ours; returns whole pages to the kernel if possible.
///
/// # Safety
/// The range is ours, anonymous, and what it holds isn't needed.
pub unsafe fn empty(p: *mut u8, bytes: usize) {
    let (start, end) = (p as usize, p as usize + bytes);
    let (low, high) = (start.next_multiple_of(4096).min(end), (end & !4095).max(start));
    // SAFETY: the caller's contract.
    unsafe {
        if low < high && syscall(nr::MADVISE, [low, high - low, MADV_DONTNEED, 0, 0, 0]).is_ok() {
            core::ptr::write_bytes(high as *mut u8, 0, end - high);
            core::ptr::write_bytes(p, 0, low - start);
        } else {
            core::ptr::write_bytes(p, 0, bytes);
        }
    }
}

/// Makes pages that the loader has made read-only writable for a moment, or read-only again.
///
/// # Safety
/// The pages are a loaded object's data, and nobody else changes their protection or writes them.
pub unsafe fn protect(p: usize, bytes: usize, writable: bool) -> bool {
    let prot = if writable { PROT_RW } else { PROT_R };
    // SAFETY: the caller's contract; the pages stay readable for all threads.
    unsafe { syscall(nr::MPROTECT, [p, bytes, prot, 0, 0, 0]) }.is_ok()
}

/// Has the kernel zero this page in every child process, whichever call makes it (MADV_WIPEONFORK).
///
/// # Safety
/// The page is ours, and zeroes are valid for all that lies there.
pub unsafe fn wipe_on_fork(p: usize, bytes: usize) -> bool {
    // SAFETY: the caller's contract; the parent's copy is unchanged.
    unsafe { syscall(nr::MADVISE, [p, bytes, MADV_WIPEONFORK, 0, 0, 0]) }.is_ok()
}
