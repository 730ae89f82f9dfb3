//! The side table: keys of blocks that have no space for a trailer.
//!
//! ```text
//! small blocks   63                 26 25  24  23        20      0      one word, in levels from 8 KiB
//!                │ rest of the hash 38 │ 0 │ 1 │ sampled │ slack 3 │ row 20 │
//!
//! any block      address │ row 20 bits << 44 | sampled 1 bit << 43 | requested 43 bits      two words, in levels from 4 KiB
//! ```
//!
//! A block below 64 KiB is here because fewer than eight of its usable bytes weren't requested: that slack, three bits,
//! gives the requested bytes. The hash is the address times an odd number, so 45 bits of address give 45 bits of hash.
//! A bucket's number is its upper bits, at least seven, so the other 38 name the address. Large blocks, and addresses
//! that aren't of this kind, have the wide form. [`levels`] has the table itself.

pub mod levels;
pub mod page_keys;

use self::levels::Levels;
use super::blocks::{Key, TABLE_FROM, TRAILER};
use crate::segment::Segment;
use crate::sys::cpu::{SLOT_MARK, count_own, tls_get};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::{Counter, Section, Thread};

/// Also read and written by `hook/malloc/x86_64/other.rs`.
pub static SMALL: Levels<1> = Levels::new(10);
static WIDE: Levels<2> = Levels::new(8);

const ROWS: u64 = Section::Rows.capacity() as u64 - 1;
/// First bit of the slack.
pub const SLACK_SHIFT: u32 = 20;
const SLACK: u64 = TRAILER as u64 - 1;
/// The block is among the live samples.
pub const SAMPLED: u64 = 1 << 23;
/// Set in each entry, so that no entry is 0.
pub const USED: u64 = 1 << 24;
/// The odd number that an address is multiplied by, for its hash.
pub const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits that name a block in a small entry.
const NAME: u64 = !(USED - 1);
const REQUESTED: u64 = (1 << 43) - 1;
const _: () = assert!(ROWS < 1 << SLACK_SHIFT && SLACK << SLACK_SHIFT < SAMPLED && SAMPLED < USED);

/// The hash of the address's bits 3 to 47, at the top of the word.
#[inline(always)]
fn hash(p: *mut u8) -> u64 {
    ((p as u64) << 16).wrapping_mul(FACTOR)
}

/// The part of a hash that names a block in a small entry. The seven upper bits are left out: in every level they
/// follow from the bucket's number.
#[inline(always)]
fn name(hash: u64) -> u64 {
    hash << 7 | USED
}

/// Whether a hash distinguishes this address from all others: a multiple of eight below 2^48.
#[inline(always)]
fn is_named(p: *mut u8) -> bool {
    (p as u64).rotate_right(3) < 1 << 45
}

/// Inserts a block. False: no memory, or all its buckets are full.
#[inline(always)]
pub fn insert(p: *mut u8, usable: usize, key: Key) -> bool {
    let slack = (usable as u64).wrapping_sub(key.requested);
    let inserted = if usable < TABLE_FROM && slack <= SLACK && is_named(p) {
        let rest = slack << SLACK_SHIFT | (key.sampled as u64 * SAMPLED) | key.row as u64 & ROWS;
        let hash = hash(p);
        SMALL.claim(hash, name(hash) | rest).is_some()
    } else {
        insert_wide(p, key)
    };
    if inserted {
        count_insert();
    }
    inserted
}

#[cold]
#[inline(never)]
fn insert_wide(p: *mut u8, key: Key) -> bool {
    let Some(e) = WIDE.claim(hash(p), p as u64) else { return false };
    e[1].store((key.row as u64 & ROWS) << 44 | (key.sampled as u64) << 43 | key.requested.min(REQUESTED), Release);
    true
}

/// Looks a block up, and removes it if `take`. The second table is searched for a block whose size was changed in place
/// by a call that isn't hooked.
#[inline(always)]
fn find(p: *mut u8, usable: usize, take: bool) -> Option<Key> {
    if usable < TABLE_FROM {
        find_small(p, usable, take).or_else(|| find_wide(p, take))
    } else {
        find_wide(p, take).or_else(|| find_small(p, usable, take))
    }
}

#[inline(always)]
fn find_small(p: *mut u8, usable: usize, take: bool) -> Option<Key> {
    if !is_named(p) {
        return None;
    }
    let hash = hash(p);
    let e = SMALL.find(hash, name(hash), NAME)?;
    let word = e[0].load(Relaxed);
    if take {
        e[0].store(0, Release);
    }
    let requested = (usable as u64).wrapping_sub(word >> SLACK_SHIFT & SLACK);
    Some(Key { row: (word & ROWS) as u32, requested, sampled: word & SAMPLED != 0 })
}

#[cold]
#[inline(never)]
fn find_wide(p: *mut u8, take: bool) -> Option<Key> {
    let e = WIDE.find(hash(p), p as u64, !0)?;
    let word = e[1].load(Acquire);
    if take {
        // The key was read before: from here on another thread may claim the entry.
        e[0].store(0, Release);
    }
    Some(Key { row: (word >> 44 & ROWS) as u32, requested: word & REQUESTED, sampled: word >> 43 & 1 != 0 })
}

/// Removes a block; `usable` as when it was inserted.
#[inline(always)]
pub fn remove(p: *mut u8, usable: usize) -> Option<Key> {
    let key = find(p, usable, true)?;
    count_remove();
    Some(key)
}

/// Looks a block up.
pub fn get(p: *mut u8, usable: usize) -> Option<Key> {
    find(p, usable, false)
}

/// New books: removes all blocks, and returns the memory to the kernel.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books() {
    // SAFETY: the caller's contract.
    unsafe {
        SMALL.clear();
        WIDE.clear();
    }
}

static EARLY_INSERTS: AtomicU64 = AtomicU64::new(0);
static EARLY_REMOVES: AtomicU64 = AtomicU64::new(0);

/// Counts a block that has its key here or in the array of its page.
#[inline(always)]
pub fn count_insert() {
    count::<{ offset_of!(Thread, table_inserts) }>(Counter::table_inserts, &EARLY_INSERTS);
}

/// Counts the removal of such a key.
#[inline(always)]
pub fn count_remove() {
    count::<{ offset_of!(Thread, table_removes) }>(Counter::table_removes, &EARLY_REMOVES);
}

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
