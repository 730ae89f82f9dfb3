//! A hash index: from a hash to the number of an entry in a section of the segment. Private to the process,
//! append-only, lock-free.
//!
//! ```text
//! level 0 │ level 1 │ …      each level is an open-addressed table, probed one after the other
//! cell    │ tag, bits of the hash │ number │      32 bits; 0 = free
//! ```
//!
//! A hash touches a table all over, so a table that is large from the start is soon resident as a whole. For example,
//! 10,000 entries of 4 bytes touch each page of 8 MiB. A level takes new entries until three quarters of it and of the
//! levels before it are in use. So a program with few entries touches the small levels only. Large levels are reserved
//! when they are needed, or before the program forbids system calls. Because of the tag, most entries with another hash
//! needn't be read.

use crate::sys::os;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::Purpose;

/// Maximum number of levels.
const LEVELS: usize = 5;
/// log2 of the cells of the largest level that is reserved from the start.
const SMALL: u32 = 15;

pub struct Index {
    levels_at: [AtomicUsize; LEVELS],
    purpose: Purpose,
    /// Bits of an entry's number in a cell. The number 0 marks a free cell.
    number_bits: u32,
    /// log2 of each level's cells.
    levels: &'static [u32],
}

/// A cell that was free when it was looked at.
pub struct Free {
    cell: &'static AtomicU32,
    tag: u32,
}

impl Free {
    /// Enters a number. False: another thread took the cell meanwhile.
    pub fn put(&self, number: u32) -> bool {
        self.cell.compare_exchange(0, self.tag | number, AcqRel, Relaxed).is_ok()
    }
}

impl Index {
    /// For the numbers of a section of `capacity` entries.
    pub const fn new(capacity: usize, levels: &'static [u32], purpose: Purpose) -> Index {
        assert!(capacity.is_power_of_two() && levels.len() <= LEVELS);
        let (mut cells, mut i) = (0, 0);
        while i < levels.len() {
            cells += 1usize << levels[i];
            i += 1;
        }
        assert!(cells / 4 * 3 >= capacity, "a full section fits");
        let levels_at = [const { AtomicUsize::new(0) }; LEVELS];
        Index { levels_at, purpose, number_bits: capacity.trailing_zeros(), levels }
    }

    /// Reserves the small levels. False: no address space.
    pub fn init(&self) -> bool {
        (0..self.levels.len()).filter(|i| self.levels[*i] <= SMALL).all(|i| self.level(i).is_some())
    }

    /// Reserves all levels, for a program that is about to forbid system calls.
    pub fn reserve(&self) {
        (0..self.levels.len()).for_each(|i| {
            self.level(i);
        });
    }

    /// The first cell of a level. `None`: no address space.
    #[inline]
    fn level(&self, i: usize) -> Option<usize> {
        match self.levels_at[i].load(Acquire) {
            0 => self.reserve_level(i),
            at => Some(at),
        }
    }

    #[cold]
    fn reserve_level(&self, i: usize) -> Option<usize> {
        let p = os::table(size_of::<AtomicU32>() << self.levels[i], self.purpose)? as usize;
        // If another thread was first, ours stays reserved and untouched.
        Some(self.levels_at[i].compare_exchange(0, p, AcqRel, Acquire).err().unwrap_or(p))
    }

    /// The number that was entered with this hash and that `is` accepts. `Err`: the free cell where it belongs, or
    /// `None` without an index. `used`: about how many numbers were entered so far; it never falls.
    pub fn find(&self, hash: u64, used: usize, mut is: impl FnMut(u32) -> bool) -> Result<u32, Option<Free>> {
        let tag = ((hash >> 40) as u32) << self.number_bits;
        let mut limit = 0;
        for (i, bits) in self.levels.iter().enumerate() {
            let cells = 1usize << bits;
            limit += cells / 4 * 3;
            let Some(base) = self.level(i) else { return Err(None) };
            let mut at = (hash >> 17) as usize & (cells - 1);
            for _ in 0..cells {
                // SAFETY: `at` is below the level's cells; atomics in private zeroed memory, never unmapped.
                let cell = unsafe { &*((base + at * size_of::<AtomicU32>()) as *const AtomicU32) };
                let known = cell.load(Acquire);
                if known == 0 {
                    if used < limit {
                        return Err(Some(Free { cell, tag }));
                    }
                    break;
                }
                let number = known & ((1 << self.number_bits) - 1);
                if known ^ number == tag && is(number) {
                    return Ok(number);
                }
                at = (at + 1) & (cells - 1);
            }
        }
        Err(None)
    }
}
