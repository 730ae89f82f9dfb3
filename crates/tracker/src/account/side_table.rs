//! The side table: keys of blocks that have no room for a trailer.
//!
//! ```text
//! level 0      2^15 entries of 16 B     512 KiB
//! level 1      2^18                       4 MiB
//! …  × 8       level 4: 2^27              2 GiB        reserved when first needed, touched where used
//!
//! entry        address (0 = free) │ row 20 bits << 44 | sampled 1 bit << 43 | requested 43 bits
//! bucket       8 entries, two cache lines; an address has one bucket in each level
//! ```
//!
//! A block goes to the first level whose bucket has a free entry, so a look-up reads at most one bucket in each level.
//! Inserting claims an entry by compare-and-swap. Removing is a plain store: only the thread that frees the block removes it,
//! and the program's own hand-over of the pointer orders the two. No tombstones, no locks; entries never move.

use super::blocks::Key;
use crate::segment::Segment;
use crate::sys::cpu::{SLOT_MARK, count_own, tls_get};
use crate::sys::os;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{Counter, Purpose, Section, Thread};

#[repr(C)]
struct Entry {
    address: AtomicU64,
    key: AtomicU64,
}

const REQUESTED: u64 = (1 << 43) - 1;
const BUCKET: usize = 8;
const LEVELS: usize = 5;
const fn entries(level: usize) -> usize {
    1 << (15 + 3 * level)
}

static LEVEL: [AtomicUsize; LEVELS] = [const { AtomicUsize::new(0) }; LEVELS];

#[inline(always)]
fn bucket(level: usize, address: u64) -> Option<&'static [Entry; BUCKET]> {
    let base = LEVEL[level].load(Acquire);
    if base == 0 {
        return None;
    }
    let hash = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let i = (hash >> (64 - 12 - 3 * level)) as usize;
    // SAFETY: the level has 2^(12 + 3·level) buckets, i is below that; reserved memory, never unmapped, atomics only.
    Some(unsafe { &*((base + i * size_of::<[Entry; BUCKET]>()) as *const [Entry; BUCKET]) })
}

fn reserve(level: usize) -> bool {
    let bytes = entries(level) * size_of::<Entry>();
    let Some(p) = os::table(bytes, Purpose::SideTable) else { return false };
    // If another thread was first, ours stays reserved and untouched.
    let _ = LEVEL[level].compare_exchange(0, p as usize, AcqRel, Relaxed);
    true
}

/// Inserts a block. False: no memory, or all its buckets are full.
#[inline(always)]
pub fn insert(p: *mut u8, key: Key) -> bool {
    let word = (key.row as u64) << 44 | (key.sampled as u64) << 43 | key.requested.min(REQUESTED);
    let entered = enter(0, p as u64, word) || enter_deeper(p as u64, word);
    if entered {
        count::<{ offset_of!(Thread, table_inserts) }>(Counter::table_inserts, &EARLY_INSERTS);
    }
    entered
}

#[inline(always)]
fn enter(level: usize, address: u64, word: u64) -> bool {
    let Some(b) = bucket(level, address) else { return false };
    for e in b {
        if e.address.load(Relaxed) == 0 && e.address.compare_exchange(0, address, AcqRel, Relaxed).is_ok() {
            e.key.store(word, Release);
            return true;
        }
    }
    false
}

/// Inserts a block when its bucket in the first level is full, or the first level isn't reserved yet.
#[cold]
#[inline(never)]
fn enter_deeper(address: u64, word: u64) -> bool {
    for (level, base) in LEVEL.iter().enumerate() {
        if base.load(Acquire) == 0 && !reserve(level) {
            return false;
        }
        if enter(level, address, word) {
            return true;
        }
    }
    false
}

#[inline(always)]
fn find(p: *mut u8) -> Option<&'static Entry> {
    find_in(0, p).or_else(|| find_deeper(p))
}

#[inline(always)]
fn find_in(level: usize, p: *mut u8) -> Option<&'static Entry> {
    bucket(level, p as u64)?.iter().find(|e| e.address.load(Relaxed) == p as u64)
}

#[cold]
#[inline(never)]
fn find_deeper(p: *mut u8) -> Option<&'static Entry> {
    (1..LEVELS).find_map(|level| find_in(level, p))
}

fn key_of(e: &Entry) -> Key {
    let word = e.key.load(Acquire);
    Key {
        row: (word >> 44) as u32 & (Section::Rows.capacity() as u32 - 1),
        requested: word & REQUESTED,
        sampled: word >> 43 & 1 != 0,
    }
}

/// Removes a block.
#[inline(never)]
pub fn remove(p: *mut u8) -> Option<Key> {
    let e = find(p)?;
    let key = key_of(e);
    e.address.store(0, Release);
    count::<{ offset_of!(Thread, table_removes) }>(Counter::table_removes, &EARLY_REMOVES);
    Some(key)
}

/// Looks a block up.
pub fn get(p: *mut u8) -> Option<Key> {
    find(p).map(key_of)
}

/// New books: removes all blocks, and returns the memory to the kernel.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books() {
    for (level, base) in LEVEL.iter().enumerate() {
        let base = base.load(Acquire);
        if base != 0 {
            // SAFETY: our own private reservation, which no thread uses now.
            unsafe { os::empty(base as *mut u8, entries(level) * size_of::<Entry>()) };
        }
    }
}

static EARLY_INSERTS: AtomicU64 = AtomicU64::new(0);
static EARLY_REMOVES: AtomicU64 = AtomicU64::new(0);

/// Each thread counts in its slot: one counter for all threads would cost more than the table itself.
#[inline(always)]
fn count<const IN_SLOT: usize>(c: Counter, early: &AtomicU64) {
    match (Segment::current(), tls_get::<SLOT_MARK>() as u32) {
        (Some(segment), 0) => segment.count(c, 1),
        // SAFETY: a field of this thread's own slot.
        (Some(segment), mark) => unsafe { count_own::<IN_SLOT>((&raw const *segment.thread(mark - 1)).cast()) },
        (None, _) => {
            early.fetch_add(1, Relaxed);
        }
    }
}

/// Moves the counts from before boot into the segment.
pub fn settle(segment: Segment) {
    segment.count(Counter::table_inserts, EARLY_INSERTS.swap(0, Relaxed));
    segment.count(Counter::table_removes, EARLY_REMOVES.swap(0, Relaxed));
}
