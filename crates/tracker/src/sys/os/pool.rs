//! The tracker's own memory: pieces that are cut from pools, and mappings of their own where they are larger.

use super::super::cpu::{nr, syscall};
use super::mappings::{MAP_ANON_NORESERVE, MAP_PRIVATE, PROT_RW, map_unlocked, unmap};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use plimsoll_segment::{FILE_BYTES, Purpose};

const MADV_NOHUGEPAGE: usize = 15;
const PR_SET_VMA: usize = 0x53564d41;

/// Small pieces of the tracker's memory are cut from pools of this size, aligned to it. One reservation at boot
/// suffices for the tables and the first hundreds of threads. Its untouched pages cost address space only. Where that
/// counts ([`is_tight`]), pools are smaller and a large piece gets a mapping of its own.
const POOL: usize = 8 << 20;
const SMALL_POOL: usize = 256 << 10;
/// Address of the next piece; the six low bits have the logarithm of the pool's size. Pools are aligned to their size,
/// so this one word is the whole state.
static POOL_AT: AtomicUsize = AtomicUsize::new(0);
/// Bytes of address space that were reserved in total.
static RESERVED: AtomicUsize = AtomicUsize::new(0);
/// See [`is_tight`]. Not reset: the segment has been cut by then.
static TIGHT: AtomicBool = AtomicBool::new(false);

/// Whether the tracker maps no more than it uses. Its reservations would be a noticeable part of a limit on address
/// space (RLIMIT_AS) or on writable private memory (RLIMIT_DATA), or mlockall(2) would make them resident: in a
/// detached process, and where the tracker's memory can't be left out of such a call.
pub fn is_tight() -> bool {
    TIGHT.load(Relaxed)
}

/// Notes a limit on address space or on writable private memory; 0: mlockall(2) would make all of it resident. False:
/// the limit is far above the size of a segment.
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

/// As [`private`], for a table of any size. A large table gets a mapping of its own, listed with its purpose. Levels of
/// the side table are listed even inside a pool, because they are the cost of the program's blocks.
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

/// Makes a listed mapping for one table.
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
    let p =
        unsafe { map_unlocked([0, bytes, PROT_RW, MAP_PRIVATE | MAP_ANON_NORESERVE, usize::MAX, 0], false) }.ok()?;
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
