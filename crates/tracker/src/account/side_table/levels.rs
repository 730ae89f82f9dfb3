//! A hash table whose entries never move, in levels that double: lock-free, private to the process.
//!
//! ```text
//! level 0   2^first entries        the newest level takes new entries; where its bucket is full, the older ones do
//! level 1   twice as many          a level is opened when an entry's buckets are full in all levels
//! …                                memory is reserved for several levels at once, and touched where used
//!
//! bucket    one cache line of entries; an entry has one bucket in each level
//! entry     name (0 = free) │ WORDS − 1 more words
//! ```
//!
//! All levels before the newest have about as many entries as the newest alone. So most look-ups read one line. A level
//! opens when those before it are two thirds full, so a table never touches much more than three words for one word in
//! use.
//!
//! Inserting claims an entry by compare-and-swap. Removing is a plain store: only the thread that frees a block removes
//! its entry, and the program's own hand-over of the pointer orders the two. No tombstones, no locks.

use crate::sys::os;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::Purpose;

/// Maximum number of levels.
const LEVELS: usize = 18;
/// Levels of the first mapping, and of each later one.
const FIRST_LEVELS: usize = 6;
const MORE_LEVELS: usize = 3;
/// Bytes of a bucket.
const LINE: usize = 64;

#[repr(C)]
pub struct Levels<const WORDS: usize> {
    /// The level to search first: its address, plus the number of bits by which a hash is shifted for an index into it.
    /// The address is a multiple of 64. 0: no level is open.
    newest: AtomicUsize,
    at: [AtomicUsize; LEVELS],
    open: AtomicUsize,
    /// log2 of the entries of the first level.
    first: u32,
}

/// An entry; its first word is the name.
pub type Entry<const WORDS: usize> = [AtomicU64; WORDS];

/// The levels that one mapping holds: its first level, and one past its last.
fn mapping_of(level: usize) -> (usize, usize) {
    if level < FIRST_LEVELS {
        return (0, FIRST_LEVELS);
    }
    let from = level - (level - FIRST_LEVELS) % MORE_LEVELS;
    (from, from + MORE_LEVELS)
}

impl<const WORDS: usize> Levels<WORDS> {
    /// Entries of a bucket.
    pub const BUCKET: usize = LINE / size_of::<Entry<WORDS>>();
    /// Offset of the word that names the newest level.
    pub const NEWEST_AT: usize = offset_of!(Self, newest);

    pub(super) const fn new(first: u32) -> Self {
        assert!(WORDS.is_power_of_two() && 1usize << first >= Self::BUCKET);
        Self {
            newest: AtomicUsize::new(0),
            at: [const { AtomicUsize::new(0) }; LEVELS],
            open: AtomicUsize::new(0),
            first,
        }
    }

    fn entries(&self, level: usize) -> usize {
        1 << (self.first as usize + level)
    }

    /// Entries of the levels in `from..to`.
    fn entries_of(&self, from: usize, to: usize) -> usize {
        self.entries(to) - self.entries(from)
    }

    /// Address and shift of a level, as in `newest`.
    #[inline(always)]
    fn word_of(&self, level: usize) -> usize {
        self.at[level].load(Acquire) | (64 - self.first as usize - level)
    }

    /// The entries of this hash's bucket in one level, the preferred one first. `word`: see [`Levels::word_of`].
    #[inline(always)]
    fn bucket(&self, word: usize, hash: u64) -> impl Iterator<Item = &'static Entry<WORDS>> {
        let index = (hash >> (word % LINE)) as usize;
        let base = word & !(LINE - 1);
        (0..Self::BUCKET).map(move |i| {
            // SAFETY: the index is below the level's entries, and i changes it within a bucket; reserved memory, never
            // unmapped, atomics only.
            unsafe { &*((base + (index ^ i) * size_of::<Entry<WORDS>>()) as *const Entry<WORDS>) }
        })
    }

    /// Claims a free entry for a name. `None`: no memory, or all its buckets are full.
    #[inline(always)]
    pub(super) fn claim(&self, hash: u64, name: u64) -> Option<&'static Entry<WORDS>> {
        match self.newest.load(Acquire) {
            0 => self.claim_deeper(hash, name),
            newest => self.claim_in(newest, hash, name).or_else(|| self.claim_deeper(hash, name)),
        }
    }

    #[inline(always)]
    fn claim_in(&self, word: usize, hash: u64, name: u64) -> Option<&'static Entry<WORDS>> {
        self.bucket(word, hash)
            .find(|e| e[0].load(Relaxed) == 0 && e[0].compare_exchange(0, name, AcqRel, Relaxed).is_ok())
    }

    /// As [`Levels::claim`], where the newest level has no free entry, or is still to be opened.
    #[cold]
    #[inline(never)]
    fn claim_deeper(&self, hash: u64, name: u64) -> Option<&'static Entry<WORDS>> {
        loop {
            let open = self.open.load(Acquire);
            let claimed = (0..open).rev().find_map(|level| self.claim_in(self.word_of(level), hash, name));
            if claimed.is_some() {
                return claimed;
            }
            if open == LEVELS || !self.reserve(open) {
                return None;
            }
            // Another thread may open this level first, or open one more: then that thread's level serves.
            let _ = self.open.compare_exchange(open, open + 1, AcqRel, Relaxed);
            self.note_newest();
        }
    }

    /// Notes the newest level. Until then, the search through all levels finds its entries.
    fn note_newest(&self) {
        loop {
            let open = self.open.load(Acquire);
            self.newest.store(self.word_of(open - 1), Release);
            if self.open.load(Acquire) == open {
                return;
            }
        }
    }

    /// Makes sure that a level has memory.
    fn reserve(&self, level: usize) -> bool {
        if self.at[level].load(Acquire) != 0 {
            return true;
        }
        let (from, to) = mapping_of(level);
        let bytes = self.entries_of(from, to) * size_of::<Entry<WORDS>>();
        let Some(p) = os::table(bytes, Purpose::SideTable) else { return false };
        for level in from..to {
            let at = p as usize + self.entries_of(from, level) * size_of::<Entry<WORDS>>();
            // If another thread was first, ours stays reserved and untouched.
            let _ = self.at[level].compare_exchange(0, at, AcqRel, Relaxed);
        }
        true
    }

    /// The entry whose name has these bits under this mask.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, name: u64, mask: u64) -> Option<&'static Entry<WORDS>> {
        match self.newest.load(Acquire) {
            // No level is open, or this is a signal handler that has interrupted the opening of the first.
            0 => self.find_deeper(hash, name, mask),
            newest => self.find_in(newest, hash, name, mask).or_else(|| self.find_deeper(hash, name, mask)),
        }
    }

    #[inline(always)]
    fn find_in(&self, word: usize, hash: u64, name: u64, mask: u64) -> Option<&'static Entry<WORDS>> {
        self.bucket(word, hash).find(|e| e[0].load(Relaxed) & mask == name)
    }

    #[cold]
    #[inline(never)]
    fn find_deeper(&self, hash: u64, name: u64, mask: u64) -> Option<&'static Entry<WORDS>> {
        let open = self.open.load(Acquire);
        (0..open).rev().find_map(|level| self.find_in(self.word_of(level), hash, name, mask))
    }

    /// Removes all entries, and returns the memory to the kernel.
    ///
    /// # Safety
    /// No thread is in a hook, and none enters one meanwhile.
    pub(super) unsafe fn clear(&self) {
        for (level, at) in self.at.iter().enumerate() {
            let at = at.load(Acquire);
            if at != 0 {
                // SAFETY: our own private reservation, which no thread uses now.
                unsafe { os::empty(at as *mut u8, self.entries(level) * size_of::<Entry<WORDS>>()) };
            }
        }
        self.newest.store(0, Release);
        self.open.store(0, Release);
    }
}
