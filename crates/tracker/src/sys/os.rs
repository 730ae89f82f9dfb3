//! The tracker's system calls, one function for each purpose, with one contract each. Over 800 lines: this file is the
//! fence around nearly all unsafe system calls.

use super::cpu::{nr, syscall};
use super::errno;
use super::filter::Filter;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use plimsoll_segment::{FILE_BYTES, Purpose};

const PROT_R: usize = 1;
const PROT_RW: usize = 3;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_FIXED: usize = 0x10;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
const MAP_ANON_NORESERVE: usize = 0x20 | 0x4000;
const MADV_DONTNEED: usize = 4;
const MADV_NOHUGEPAGE: usize = 15;
const MADV_WIPEONFORK: usize = 18;
const MADV_POPULATE_WRITE: usize = 23;
const S_IFMT: u32 = 0o170000;
const S_IFREG: u32 = 0o100000;
const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_NOCTTY: usize = 0o400;
const O_NONBLOCK: usize = 0o4000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: usize = 0o400000;
#[cfg(target_arch = "x86_64")]
const O_DIRECTORY: usize = 0o200000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: usize = 0o100000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: usize = 0o40000;
const O_CLOEXEC: usize = 0o2000000;
const O_PATHLESS: usize = O_NOFOLLOW | O_CLOEXEC;
const PR_SET_VMA: usize = 0x53564d41;
const PR_GET_SECCOMP: usize = 21;
/// See getrlimit(2).
pub const RLIMIT_FSIZE: usize = 1;
const RLIMIT_STACK: usize = 3;
/// See getrlimit(2).
pub const RLIMIT_AS: usize = 9;
/// See getrlimit(2).
pub const RLIMIT_NOFILE: usize = 7;

/// A descriptor that lives only during boot or fork.
#[derive(Clone, Copy)]
pub struct Fd(usize);

impl Fd {
    /// A descriptor that others have opened, by its number in decimal digits.
    pub fn of_number(digits: &[u8]) -> Option<Fd> {
        let digit = |n: usize, d: &u8| n.checked_mul(10)?.checked_add(usize::from(d - b'0'));
        let are_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        are_digits.then_some(digits)?.iter().try_fold(0, digit).map(Fd)
    }
}

/// Small pieces of the tracker's memory are cut from pools of this size, aligned to it. One reservation at boot
/// suffices for the tables and the first hundreds of threads. Its untouched pages cost address space only. Under a
/// limit on address space (RLIMIT_AS), pools are smaller and a large piece gets a mapping of its own.
const POOL: usize = 8 << 20;
const SMALL_POOL: usize = 256 << 10;
/// Address of the next piece; the six low bits have the logarithm of the pool's size. Pools are aligned to their size,
/// so this one word is the whole state.
static POOL_AT: AtomicUsize = AtomicUsize::new(0);
/// Bytes of address space that were reserved in total.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// Set if the tracker's reservations would be a noticeable part of the limit on address space (RLIMIT_AS).
static TIGHT: AtomicBool = AtomicBool::new(false);

/// Whether address space is scarce.
pub fn is_tight() -> bool {
    TIGHT.load(Relaxed)
}

/// Notes a limit on address space. False: the limit is far above the size of a segment.
pub fn note_limit(limit: u64) -> bool {
    let is_tight = limit / 64 < FILE_BYTES as u64;
    TIGHT.fetch_or(is_tight, Relaxed);
    is_tight
}

/// A private mapping of the tracker. The segment has the list of them for observers.
#[derive(Clone, Copy)]
pub struct Mapping {
    /// First address.
    pub start: usize,
    /// Bytes.
    pub bytes: usize,
    /// What it is used for.
    pub purpose: Purpose,
}

/// A mapping in the list. The node of a pool is the pool's first cache line; the node of a table is a piece of a pool.
/// A node is never freed, and after it is linked only its length changes.
#[repr(C, align(64))]
struct Node {
    next: *const Node,
    start: usize,
    bytes: AtomicUsize,
    purpose: Purpose,
}
const _: () = assert!(size_of::<Node>() == 64);
/// The newest node.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);
/// `fn(Mapping)`, called for each mapping after it is linked; 0 = none.
static ON_MAPPING: AtomicUsize = AtomicUsize::new(0);

/// Links a mapping and reports it.
///
/// # Safety
/// `node` is 64 bytes of our own memory, aligned to that, used by nobody else.
unsafe fn link(node: *mut Node, mapping: Mapping) {
    let mut next = MAPPINGS.load(Acquire);
    loop {
        // SAFETY: the caller's contract; not linked yet, so nobody reads it.
        unsafe {
            let Mapping { start, bytes, purpose } = mapping;
            node.write(Node { next: next as *const Node, start, bytes: AtomicUsize::new(bytes), purpose });
        }
        match MAPPINGS.compare_exchange(next, node as usize, AcqRel, Acquire) {
            Ok(_) => break,
            Err(newer) => next = newer,
        }
    }
    let report = ON_MAPPING.load(Acquire);
    if report != 0 {
        // SAFETY: the word is 0 or a function of this type: only `on_mapping` writes it.
        unsafe { core::mem::transmute::<usize, fn(Mapping)>(report)(mapping) };
    }
}

/// Visits all private mappings of the tracker, newest first.
pub fn each_mapping(mut visit: impl FnMut(Mapping)) {
    let mut at = MAPPINGS.load(Acquire) as *const Node;
    // SAFETY: nodes are complete before they are linked, don't change and stay mapped for the life of the process.
    while let Some(node) = unsafe { at.as_ref() } {
        visit(Mapping { start: node.start, bytes: node.bytes.load(Relaxed), purpose: node.purpose });
        at = node.next;
    }
}

/// Sets the function that is called for each new mapping, in the thread that makes it.
pub fn on_mapping(report: fn(Mapping)) {
    ON_MAPPING.store(report as usize, Release);
}

/// Bytes of address space that this process's tracker has reserved for itself, outside of the segment.
pub fn reserved_bytes() -> usize {
    RESERVED.load(Relaxed)
}

/// Allocates zeroed private memory, aligned to a cache line. It is never freed. `None`: no memory.
pub fn private(bytes: usize) -> Option<*mut u8> {
    let bytes = bytes.next_multiple_of(64);
    if is_tight() && bytes > SMALL_POOL / 2 { map_listed(bytes, Purpose::Pool) } else { piece(bytes) }
}

/// The same for a table of any size. A large table gets a mapping of its own, listed with its purpose. Levels of the
/// side table are listed even inside a pool, because they are the cost of the program's blocks.
pub fn table(bytes: usize, purpose: Purpose) -> Option<*mut u8> {
    if bytes > POOL / 2 {
        return map_listed(bytes, purpose);
    }
    let start = private(bytes)?;
    if purpose == Purpose::SideTable
        && let Some(node) = piece(size_of::<Node>())
    {
        // SAFETY: a piece for this node alone.
        unsafe { link(node.cast::<Node>(), Mapping { start: start as usize, bytes, purpose }) };
    }
    Some(start)
}

/// A mapping of its own.
fn map_listed(bytes: usize, purpose: Purpose) -> Option<*mut u8> {
    let node = piece(size_of::<Node>())?.cast::<Node>();
    let start = reserve(bytes)?;
    // SAFETY: a piece for this node alone.
    unsafe { link(node, Mapping { start: start as usize, bytes: bytes.next_multiple_of(4096), purpose }) };
    Some(start)
}

/// Decodes a word of [`POOL_AT`]: address of the next piece, and end of the pool. 0 and 1 if there is no pool.
fn pool_of(at: usize) -> (usize, usize) {
    let (next, size) = (at & !63, 1 << (at & 63));
    (next, (next & !(size - 1)) + size)
}

/// A piece of a pool; `bytes` is a multiple of 64. `None`: no memory, or more than a pool has.
fn piece(bytes: usize) -> Option<*mut u8> {
    if bytes >= POOL - 64 {
        return None;
    }
    loop {
        let at = POOL_AT.load(Acquire);
        let (next, end) = pool_of(at);
        if next + bytes < end {
            if POOL_AT.compare_exchange(at, at + bytes, AcqRel, Relaxed).is_ok() {
                return Some(next as *mut u8);
            }
            continue;
        }
        let size = if is_tight() && bytes < SMALL_POOL - 64 { SMALL_POOL } else { POOL };
        let raw = reserve(2 * size)? as usize;
        let pool = raw.next_multiple_of(size);
        // SAFETY: both ends of our own fresh mapping, used by nobody.
        unsafe {
            if pool > raw {
                unmap(raw as *mut u8, pool - raw);
            }
            if pool + size < raw + 2 * size {
                unmap((pool + size) as *mut u8, raw + size - pool);
            }
        }
        RESERVED.fetch_sub(size, Relaxed);
        // The first and the last cache line stay unused, so that `next` always lies inside the pool.
        let fresh = (pool + 64) | size.trailing_zeros() as usize;
        if POOL_AT.compare_exchange(at, fresh, AcqRel, Relaxed).is_err() {
            // SAFETY: another thread installed its pool first; no piece of this one was allocated.
            unsafe { unmap(pool as *mut u8, size) };
            RESERVED.fetch_sub(size, Relaxed);
            continue;
        }
        // SAFETY: the first cache line of the pool is never allocated.
        unsafe { link(pool as *mut Node, Mapping { start: pool, bytes: size, purpose: Purpose::Pool }) };
    }
}

/// Unmaps the pool's pages that hold no piece yet, and reports the rest. The next piece comes from a new pool.
pub fn cut_pool(report: fn(Mapping)) {
    let at = POOL_AT.load(Acquire);
    if at == 0 {
        return;
    }
    let (next, end) = pool_of(at);
    let (keep, last) = (next.next_multiple_of(4096), end - 64);
    // Marks the pool as full for all other threads, so that its free rest belongs to this thread alone.
    if keep >= end || POOL_AT.compare_exchange(at, last | (at & 63), AcqRel, Relaxed).is_err() {
        return;
    }
    let start = end - (1 << (at & 63));
    let bytes = keep - start;
    // SAFETY: no piece lies behind `keep`, and no piece of this pool is allocated any more.
    unsafe { unmap(keep as *mut u8, end - keep) };
    RESERVED.fetch_sub(end - keep, Relaxed);
    let mut node = MAPPINGS.load(Acquire) as *const Node;
    // SAFETY: as in `each_mapping`.
    while let Some(of) = unsafe { node.as_ref() } {
        if of.start == start {
            of.bytes.store(bytes, Relaxed);
            report(Mapping { start, bytes, purpose: of.purpose });
        }
        node = of.next;
    }
}

fn reserve(bytes: usize) -> Option<*mut u8> {
    // SAFETY: a new anonymous mapping at an address the kernel chooses; touches no memory of the program.
    let p = unsafe { syscall(nr::MMAP, [0, bytes, PROT_RW, MAP_PRIVATE | MAP_ANON_NORESERVE, usize::MAX, 0]) }.ok()?;
    RESERVED.fetch_add(bytes, Relaxed);
    // Named `[anon:plimsoll]` where the kernel can (Linux 5.17 with CONFIG_ANON_VMA_NAME), so that an observer knows
    // it.
    // SAFETY: sets a label on our own mapping; the string is static.
    let _ = unsafe { syscall(nr::PRCTL, [PR_SET_VMA, 0, p, bytes, c"plimsoll".as_ptr() as usize, 0]) };
    // Tables are sparse: one touched word would become 2 MiB where huge pages are the kernel's default.
    // SAFETY: changes no byte of our own mapping.
    let _ = unsafe { syscall(nr::MADVISE, [p, bytes, MADV_NOHUGEPAGE, 0, 0, 0]) };
    Some(p as *mut u8)
}

/// Maps `bytes` of a file shared at `address`. Without `exact` the kernel may choose another address.
pub fn map_file(fd: Fd, offset: usize, bytes: usize, address: usize, exact: bool) -> Option<*mut u8> {
    let flags = MAP_SHARED | if exact { MAP_FIXED_NOREPLACE } else { 0 };
    // SAFETY: a new mapping of our own file where nothing is mapped.
    let p = unsafe { syscall(nr::MMAP, [address, bytes, PROT_RW, flags, fd.0, offset]) }.ok()?;
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

/// Whether the mapping at `start` has at least so many bytes, whatever lies behind it. mremap checks the old size
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
    let p = unsafe { syscall(nr::MMAP, [0, bytes, PROT_RW, flags, usize::MAX, 0]) }.ok()?;
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

/// The same by one call, also once the program's own code runs. False: it wasn't done, or not wholly.
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

static ALTERNATE_STACKS: AtomicBool = AtomicBool::new(false);

/// Notes that the program's signal handlers may have stacks of their own.
pub fn alternate_stacks_exist() {
    // Every thread of a Rust program has one: mostly it is noted already.
    if !ALTERNATE_STACKS.load(Relaxed) {
        ALTERNATE_STACKS.store(true, Relaxed);
    }
}

/// The alternate stack on which this thread's signal handler runs: its lowest address and its bytes. `None`: it runs on
/// no such stack, the program has none ([`alternate_stacks_exist`]), a filter refuses the query, or the kernel has put
/// the stack out of use meanwhile (SS_AUTODISARM).
pub fn alternate_stack() -> Option<(usize, usize)> {
    if !ALTERNATE_STACKS.load(Relaxed) {
        return None;
    }
    /// `stack_t`.
    #[repr(C)]
    struct Stack {
        low: usize,
        flags: u32,
        bytes: usize,
    }
    const SS_ONSTACK: u32 = 1;
    let mut now = Stack { low: 0, flags: 0, bytes: 0 };
    // SAFETY: changes nothing, and the kernel writes the local.
    unsafe { syscall(nr::SIGALTSTACK, [0, &raw mut now as usize, 0, 0, 0, 0]) }.ok()?;
    (now.flags & SS_ONSTACK != 0).then_some((now.low, now.bytes))
}

fn mask_arguments(p: usize) -> [usize; 6] {
    [usize::MAX, p, 0, 8, 0, 0]
}

const SIG_SETMASK: usize = 2;

/// Blocks all signals of this thread; returns the previous mask. `None`: a filter refuses.
pub fn block_signals() -> Option<u64> {
    let (all, mut before) = (u64::MAX, 0u64);
    let arguments = [SIG_SETMASK, &raw const all as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: the kernel reads one local and writes the other.
    unsafe { syscall(nr::RT_SIGPROCMASK, arguments) }.ok().map(|_| before)
}

/// Restores a signal mask that [`block_signals`] returned.
pub fn unblock_signals(before: u64) {
    // SAFETY: the kernel reads the local.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, [SIG_SETMASK, &raw const before as usize, 0, 8, 0, 0]) };
}

/// Clocks.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Clock {
    /// Wall clock.
    Realtime = 0,
    /// Monotonic, coarse (a few ms).
    MonotonicCoarse = 6,
    /// Since boot, with suspended time: /proc/PID/stat's start time counts in it.
    Boottime = 7,
}

/// Nanoseconds on a clock, by system call.
pub fn clock_ns(clock: Clock) -> u64 {
    let mut t = [0i64; 2];
    // SAFETY: the kernel writes one timespec into the local.
    let _ = unsafe { syscall(nr::CLOCK_GETTIME, [clock as usize, t.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    t[0] as u64 * 1_000_000_000 + t[1] as u64
}

macro_rules! simple {
    ($($(#[doc = $d:literal])* $name:ident = $nr:ident;)*) => {$(
        $(#[doc = $d])*
        pub fn $name() -> u32 {
            // SAFETY: takes no arguments and writes no memory. 0 if the call isn't permitted.
            unsafe { syscall(nr::$nr, [0; 6]) }.unwrap_or(0) as u32
        }
    )*};
}
simple! {
    /// Process id in the own namespace.
    getpid = GETPID;
    /// Parent's process id.
    getppid = GETPPID;
    /// Kernel thread id.
    gettid = GETTID;
    /// Effective user id.
    geteuid = GETEUID;
}

/// Whether a process with this id exists.
pub fn process_exists(pid: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    let r = unsafe { syscall(nr::KILL, [pid as usize, 0, 0, 0, 0, 0]) };
    r != Err(errno::ESRCH)
}

/// Whether this process has no thread with this id. False if a filter refuses the query.
pub fn is_thread_gone(tid: u32) -> bool {
    // SAFETY: signal 0 is never delivered.
    unsafe { syscall(nr::TGKILL, [getpid() as usize, tid as usize, 0, 0, 0, 0]) == Err(errno::ESRCH) }
}

/// Mode of seccomp of this thread: 0 none, 1 strict, 2 filter; `None` where the kernel has none.
pub fn seccomp_mode() -> Option<usize> {
    // SAFETY: reads one number.
    unsafe { syscall(nr::PRCTL, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) }.ok()
}

fn rlimit(which: usize) -> u64 {
    let mut r = [u64::MAX; 2];
    // SAFETY: the kernel writes one rlimit64 into the local.
    let _ = unsafe { syscall(nr::PRLIMIT64, [0, which, 0, r.as_mut_ptr() as usize, 0, 0]) };
    r[0]
}

/// Soft limit of the stack, bytes; `u64::MAX` = unlimited.
pub fn stack_limit() -> u64 {
    rlimit(RLIMIT_STACK)
}

/// Soft limit of address space, bytes; `u64::MAX` = unlimited.
pub fn address_space_limit() -> u64 {
    rlimit(RLIMIT_AS)
}

/// Soft limit of file sizes, bytes. A larger ftruncate would raise SIGXFSZ.
pub fn file_size_limit() -> u64 {
    rlimit(RLIMIT_FSIZE)
}

/// Makes a directory that only its owner may enter, unless it exists.
pub fn make_dir(path: &core::ffi::CStr) {
    // SAFETY: a C string.
    let _ = unsafe { syscall(nr::MKDIRAT, [AT_CWD, path.as_ptr() as usize, 0o700, 0, 0, 0]) };
}

const AT_CWD: usize = -100isize as usize;

/// Opens a directory, never through a link at its last component.
pub fn open_dir(path: &core::ffi::CStr) -> Option<Fd> {
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_DIRECTORY | O_PATHLESS, 0, 0, 0]) }.ok().map(Fd)
}

/// Opens an existing regular file for reading, never through a link at its last component.
pub fn open_file(path: &core::ffi::CStr) -> Option<Fd> {
    open_at(Fd(AT_CWD), path)
}

/// Creates a file, readable and writable by its owner alone. It fails if the file exists.
pub fn create(dir: Fd, name: &core::ffi::CStr) -> Result<Fd, i32> {
    let flags = O_RDWR | O_CREAT | O_EXCL | O_PATHLESS;
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [dir.0, name.as_ptr() as usize, flags, 0o600, 0, 0]) }.map(Fd)
}

/// Opens a file that others map, for reading and writing.
pub fn open_to_map(dir: Fd, name: &core::ffi::CStr) -> Option<Fd> {
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [dir.0, name.as_ptr() as usize, O_RDWR | O_PATHLESS | O_NONBLOCK, 0, 0, 0]) }
        .ok()
        .map(Fd)
}

/// Creates or truncates a file by path for writing (the summary on a signal).
pub fn create_path(path: &core::ffi::CStr) -> Option<Fd> {
    const O_TRUNC: usize = 0o1000;
    let flags = 1 | O_CREAT | O_TRUNC | O_PATHLESS;
    // SAFETY: a C string.
    unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, flags, 0o600, 0, 0]) }.ok().map(Fd)
}

/// Removes a name.
pub fn unlink(dir: Fd, name: &core::ffi::CStr) {
    // SAFETY: a C string.
    let _ = unsafe { syscall(nr::UNLINKAT, [dir.0, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Sets the size of a file.
pub fn truncate(fd: Fd, bytes: usize) -> bool {
    // SAFETY: our own descriptor.
    unsafe { syscall(nr::FTRUNCATE, [fd.0, bytes, 0, 0, 0, 0]) }.is_ok()
}

/// `struct flock` for the whole of a file (fcntl(2)): l_type, l_whence, l_start, l_len, l_pid.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// Locks an open file. The lock belongs to the open file description, and a mapping keeps that open, so it lasts until
/// the last descriptor *and mapping* is gone. It shows across PID namespaces whether a process still maps the file.
pub fn lock_while_mapped(fd: Fd) {
    let lock = Flock { kind: F_RDLCK, whence: 0, start: 0, length: 0, pid: 0 };
    // SAFETY: the kernel reads the local.
    let _ = unsafe { syscall(nr::FCNTL, [fd.0, F_OFD_SETLK, &lock as *const Flock as usize, 0, 0, 0]) };
}

/// Whether another open file description has that lock. `None`: the file system has no locks.
pub fn is_locked(fd: Fd) -> Option<bool> {
    let mut lock = Flock { kind: F_WRLCK, whence: 0, start: 0, length: 0, pid: 0 };
    // SAFETY: the kernel reads and writes the local.
    unsafe { syscall(nr::FCNTL, [fd.0, F_OFD_GETLK, &mut lock as *mut Flock as usize, 0, 0, 0]) }.ok()?;
    Some(lock.kind != F_UNLCK)
}

/// Opens a regular file of a directory for reading. Opening a FIFO, a terminal or a file with a lease could wait for
/// another process; O_NONBLOCK prevents that (open(2)).
pub fn open_at(dir: Fd, name: &core::ffi::CStr) -> Option<Fd> {
    let flags = O_PATHLESS | O_NONBLOCK | O_NOCTTY;
    // SAFETY: a C string.
    let fd = unsafe { syscall(nr::OPENAT, [dir.0, name.as_ptr() as usize, flags, 0, 0, 0]) }.ok().map(Fd)?;
    if file_facts(fd).is_some_and(|facts| facts.mode & S_IFMT == S_IFREG) {
        return Some(fd);
    }
    close(fd);
    None
}

/// Closes a descriptor of our own.
pub fn close(fd: Fd) {
    // SAFETY: our own descriptor, used by nobody else.
    let _ = unsafe { syscall(nr::CLOSE, [fd.0, 0, 0, 0, 0, 0]) };
}

/// Whether this process can still read a file after an exec. A process that was started as root may have kept
/// capabilities (setpriv) that an exec drops; access(2) ignores them unless the real user is root.
pub fn is_readable_after_exec(path: &core::ffi::CStr) -> bool {
    const R_OK: usize = 4;
    let path = path.as_ptr() as usize;
    // ld.so makes this call for /etc/ld.so.preload, so a filter that lets programs start allows it.
    #[cfg(target_arch = "x86_64")]
    let (number, arguments) = (nr::ACCESS, [path, R_OK, 0, 0, 0, 0]);
    #[cfg(not(target_arch = "x86_64"))]
    let (number, arguments) = (nr::FACCESSAT, [AT_CWD, path, R_OK, 0, 0, 0]);
    // SAFETY: a C string.
    unsafe { syscall(number, arguments) }.is_ok()
}

/// A regular file that may be executed, open for reading.
pub struct Program {
    fd: Fd,
    mode: u32,
}

/// The directory that a relative path begins in (`AT_FDCWD`).
pub const WORKING_DIRECTORY: i32 = -100;

impl Program {
    /// Follows links, as execve(2) does; never waits for another process.
    pub fn open(directory: i32, path: &core::ffi::CStr) -> Option<Program> {
        let flags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
        // SAFETY: a C string.
        let fd = unsafe { syscall(nr::OPENAT, [directory as usize, path.as_ptr() as usize, flags, 0, 0, 0]) };
        let fd = fd.ok().map(Fd)?;
        match file_facts(fd).filter(|facts| facts.mode & S_IFMT == S_IFREG) {
            Some(facts) => Some(Program { fd, mode: facts.mode }),
            None => {
                close(fd);
                None
            }
        }
    }

    /// Reads from offset `at`.
    pub fn read_at<'a>(&self, at: usize, buffer: &'a mut [u8]) -> &'a [u8] {
        let arguments = [self.fd.0, buffer.as_mut_ptr() as usize, buffer.len(), at, 0, 0];
        // SAFETY: the kernel writes at most the buffer's length.
        let n = unsafe { syscall(nr::PREAD64, arguments) };
        &buffer[..n.unwrap_or(0)]
    }

    /// Whether any user may execute the file.
    pub fn is_executable(&self) -> bool {
        self.mode & 0o111 != 0
    }

    /// Whether an exec of the file changes the user or group id (set-user-ID, set-group-ID).
    pub fn changes_user(&self) -> bool {
        self.mode & 0o6000 != 0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        close(self.fd);
    }
}

/// Directory entries (`struct linux_dirent64`); 0 at the end.
pub fn directory_entries(dir: Fd, buffer: &mut [u8]) -> usize {
    // SAFETY: the kernel writes at most the buffer's length.
    unsafe { syscall(nr::GETDENTS64, [dir.0, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }.unwrap_or(0)
}

/// Owner and mode of an open file, and its size.
pub struct FileFacts {
    /// Owner.
    pub uid: u32,
    /// st_mode.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
}

/// fstat.
pub fn file_facts(fd: Fd) -> Option<FileFacts> {
    let mut st = [0u64; 18];
    // SAFETY: struct stat has 144 bytes on x86-64 and 128 on aarch64.
    unsafe { syscall(nr::FSTAT, [fd.0, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    #[cfg(target_arch = "x86_64")]
    return Some(FileFacts { mode: st[3] as u32, uid: (st[3] >> 32) as u32, size: st[6] });
    #[cfg(target_arch = "aarch64")]
    return Some(FileFacts { mode: st[2] as u32, uid: st[3] as u32, size: st[6] });
}

/// Device and inode of the file at a path; links are followed.
pub fn file_identity(path: &core::ffi::CStr) -> Option<[u64; 2]> {
    const O_PATH: usize = 0o10000000;
    // SAFETY: a C string.
    let fd = unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_PATH | O_CLOEXEC, 0, 0, 0]) }.ok()?;
    let mut st = [0u64; 18];
    // SAFETY: as in `file_facts`; both fields come first.
    let found = unsafe { syscall(nr::FSTAT, [fd, st.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    close(Fd(fd));
    found.is_ok().then_some([st[0], st[1]])
}

/// A value that the kernel passed to the program (getauxval(3), which is newer than the glibc that programs may have).
pub fn auxiliary_value(tag: u64) -> Option<usize> {
    let mut buffer = [0u8; 1024];
    let auxv = read_file(c"/proc/self/auxv", &mut buffer).as_chunks::<16>().0;
    let word = |pair: &[u8; 16], at: usize| pair[at..].first_chunk().map_or(0, |w| u64::from_ne_bytes(*w));
    auxv.iter().find(|pair| word(pair, 0) == tag).map(|pair| word(pair, 8) as usize)
}

/// Reads a link's target into the buffer.
pub fn read_link<'a>(path: &core::ffi::CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the kernel writes at most the buffer's length.
    let n = unsafe {
        syscall(nr::READLINKAT, [AT_CWD, path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0])
    };
    &buffer[..n.unwrap_or(0)]
}

/// Reads a small file into the buffer; returns the bytes read.
pub fn read_file<'a>(path: &core::ffi::CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: a C string; then at most the buffer's length is written.
    let Ok(fd) = (unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]) }) else {
        return &[];
    };
    let mut n = 0;
    while n < buffer.len() {
        // SAFETY: the free tail of the buffer.
        match unsafe { syscall(nr::READ, [fd, buffer[n..].as_mut_ptr() as usize, buffer.len() - n, 0, 0, 0]) } {
            Ok(k) if k > 0 => n += k,
            _ => break,
        }
    }
    close(Fd(fd));
    &buffer[..n]
}

/// Calls a function with each line of a file. A line longer than the buffer is cut (a path has at most 4 KiB).
pub fn each_line(path: &core::ffi::CStr, mut visit: impl FnMut(&[u8])) {
    // SAFETY: a C string.
    let Ok(fd) = (unsafe { syscall(nr::OPENAT, [AT_CWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]) }) else {
        return;
    };
    let mut buffer = [0u8; 16 << 10];
    let mut n = 0;
    loop {
        // SAFETY: the free tail of the buffer.
        match unsafe { syscall(nr::READ, [fd, buffer[n..].as_mut_ptr() as usize, buffer.len() - n, 0, 0, 0]) } {
            Ok(k) if k > 0 => n += k,
            Err(errno::EINTR) => continue,
            _ => break,
        }
        let mut at = 0;
        while let Some(i) = buffer[at..n].iter().position(|b| *b == b'\n') {
            visit(&buffer[at..at + i]);
            at += i + 1;
        }
        buffer.copy_within(at..n, 0);
        n = if n - at == buffer.len() { 0 } else { n - at };
    }
    close(Fd(fd));
}

/// Writes all bytes, or as many as the file takes.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: reads the slice.
        match unsafe { syscall(nr::WRITE, [fd.0, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) } {
            Ok(n) if n > 0 => bytes = &bytes[n..],
            Err(errno::EINTR) => continue,
            _ => return false,
        }
    }
    true
}

/// Writes all bytes at an offset, and zeros behind them. False: no space, or a signal interrupted the call.
pub fn write_at(fd: Fd, at: usize, bytes: &[u8], zeros: usize) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    let (mut at, mut bytes, mut zeros) = (at, bytes, zeros);
    while !bytes.is_empty() || zeros > 0 {
        let tail = zeros.min(ZEROS.len());
        // struct iovec: address, length
        let parts = [bytes.as_ptr() as usize, bytes.len(), ZEROS.as_ptr() as usize, tail];
        let n = bytes.len() + tail;
        // SAFETY: reads the slices.
        if unsafe { syscall(nr::PWRITEV, [fd.0, parts.as_ptr() as usize, 2, at, 0, 0]) } != Ok(n) {
            return false;
        }
        (at, bytes, zeros) = (at + n, &[], zeros - tail);
    }
    true
}

/// Waits until a signal arrives.
pub fn pause() {
    // SAFETY: no descriptors, no timeout, no mask.
    let _ = unsafe { syscall(nr::PPOLL, [0; 6]) };
}

/// Sleeps for the given time.
pub fn sleep_ms(ms: u64) {
    let t = [0i64, ms as i64 * 1_000_000];
    // SAFETY: reads a timespec; no descriptors.
    let _ = unsafe { syscall(nr::PPOLL, [0, 0, t.as_ptr() as usize, 0, 0, 0]) };
}

/// Size of a System V shared memory segment.
pub fn shared_memory_bytes(id: i32) -> Option<usize> {
    const IPC_STAT: usize = 2;
    let mut ds = [0u64; 16];
    // SAFETY: struct shmid_ds has 112 bytes; shm_segsz follows the 48 bytes of ipc_perm.
    unsafe { syscall(nr::SHMCTL, [id as usize, IPC_STAT, ds.as_mut_ptr() as usize, 0, 0, 0]) }.ok()?;
    Some(ds[6] as usize)
}
