//! A table of facts by address, for all threads: fifteen words each, the first of which is the address.
//!
//! Cells are taken one after the other, so that only used pages are touched. When all are taken, or when two addresses
//! fall on the same slot, the later one replaces the other. No thread waits: if another thread is writing a cell, the
//! fact counts as unknown, or isn't kept.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::*, fence};

/// Words of a cell.
pub const WORDS: usize = 15;

/// A copy is complete if the version is even and the same before and after.
#[repr(C, align(128))]
struct Cell {
    version: AtomicU32,
    words: [AtomicU64; WORDS],
}

/// `CELLS` cells of 128 B. Addresses are spread over `BUCKETS` places, a power of two.
pub struct Cells<const CELLS: usize, const BUCKETS: usize> {
    /// The index of an address's cell, plus 1.
    buckets: [AtomicU16; BUCKETS],
    taken: AtomicU32,
    cells: [Cell; CELLS],
}

impl<const CELLS: usize, const BUCKETS: usize> Cells<CELLS, BUCKETS> {
    pub const fn empty() -> Self {
        const { assert!(CELLS < u16::MAX as usize && BUCKETS.is_power_of_two()) }
        Self {
            buckets: [const { AtomicU16::new(0) }; BUCKETS],
            taken: AtomicU32::new(0),
            cells: [const { Cell { version: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; WORDS] } }; CELLS],
        }
    }

    #[inline(always)]
    fn bucket(&self, address: u64) -> &AtomicU16 {
        let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BUCKETS.trailing_zeros());
        &self.buckets[hash as usize & (BUCKETS - 1)]
    }

    /// The words that were kept for this address.
    #[inline(always)]
    pub fn kept(&self, address: u64) -> Option<[u64; WORDS]> {
        self.read(address, |words| {
            let copy: [u64; WORDS] = core::array::from_fn(|i| words[i].load(Relaxed));
            (copy[0], copy)
        })
    }

    /// The last of the words that were kept for this address.
    #[inline(always)]
    pub fn last_kept<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        const { assert!(N < WORDS) }
        self.read(address, |words| {
            (words[0].load(Relaxed), core::array::from_fn(|i| words[WORDS - N + i].load(Relaxed)))
        })
    }

    /// What `copy` returns beside the address, if the cell belongs to this address and no thread writes it meanwhile.
    #[inline(always)]
    fn read<T>(&self, address: u64, copy: impl FnOnce(&[AtomicU64; WORDS]) -> (u64, T)) -> Option<T> {
        let cell = self.cells.get((self.bucket(address).load(Relaxed) as usize).wrapping_sub(1))?;
        let version = cell.version.load(Acquire);
        let (of, words) = copy(&cell.words);
        fence(Acquire);
        let whole = version & 1 == 0 && cell.version.load(Relaxed) == version;
        (whole && of == address).then_some(words)
    }

    pub fn put(&self, words: [u64; WORDS]) {
        let bucket = self.bucket(words[0]);
        if bucket.load(Relaxed) == 0 {
            let taken = self.taken.load(Relaxed) as usize;
            // Two threads may take the same cell: the address in the cell decides.
            let next = if taken < CELLS { taken } else { words[0] as usize / 8 % CELLS };
            self.taken.store((taken + 1).min(CELLS) as u32, Relaxed);
            bucket.store(next as u16 + 1, Relaxed);
        }
        let cell = &self.cells[bucket.load(Relaxed) as usize - 1];
        let version = cell.version.load(Relaxed);
        let odd = version.wrapping_add(1);
        if version & 1 != 0 || cell.version.compare_exchange(version, odd, Acquire, Relaxed).is_err() {
            return;
        }
        fence(Release);
        for (to, word) in cell.words.iter().zip(words) {
            to.store(word, Relaxed);
        }
        cell.version.store(odd.wrapping_add(1), Release);
    }
}
