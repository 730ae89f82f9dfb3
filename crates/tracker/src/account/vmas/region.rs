//! The words of the map's region: every load and store of the map goes through here. None leaves the region, whatever
//! the tracked program may have written into it.

use core::hint::select_unpredictable;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use plimsoll_segment::vmap::{BLOCK, BLOCK_WORDS, NODE_SLOTS, Vma};

pub(super) struct Region {
    base: *mut u64,
    blocks: usize,
}

/// The first word of the entry in place `at` of a leaf's order: four times [`plimsoll_segment::vmap::entry_number`].
#[inline(always)]
pub(super) fn entry_word(order: u64, at: usize) -> usize {
    (order.rotate_right(4 * at as u32 + 2) & 0x3c) as usize
}

/// A block of the region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Block(*mut u64);

// SAFETY: the pointer is to memory that only this writer uses (the contract of `Region::new`), so it may move with it.
unsafe impl Send for Region {}

impl Region {
    /// # Safety
    /// `base` is aligned to 8 bytes and valid for loads and stores of `capacity` bytes (at least one block) for as long
    /// as the value and its blocks live, and nothing else in this process stores there.
    pub(super) unsafe fn new(base: *mut u8, capacity: usize) -> Self {
        Self { base: base.cast(), blocks: capacity / BLOCK }
    }

    pub(super) fn capacity(&self) -> usize {
        self.blocks * BLOCK
    }

    #[inline(always)]
    pub(super) fn header(&self) -> Block {
        Block(self.base)
    }

    /// A number out of range gives the header: a wrong block, but inside the region.
    #[inline(always)]
    pub(super) fn block(&self, number: u64) -> Block {
        let inside = if number < self.blocks as u64 { number as usize } else { 0 };
        // SAFETY: `inside < blocks`, or 0, and `new` requires at least one block.
        Block(unsafe { self.base.add(inside * BLOCK_WORDS) })
    }

    /// An atomic store, since a reader may copy the file at any time; a plain instruction on every machine.
    #[inline(always)]
    pub(super) fn put(&mut self, block: Block, at: usize, value: u64) {
        // SAFETY: `at` is brought below BLOCK_WORDS, and a Block is whole, in the region and aligned; AtomicU64 has the
        // layout of u64. Nobody else in this process stores to the word, and others (a fork's copy) load it as an
        // atomic.
        unsafe { AtomicU64::from_ptr(block.0.add(at % BLOCK_WORDS)) }.store(value, Ordering::Relaxed);
        #[cfg(test)]
        super::tests::stored(self.base.cast(), self.blocks * BLOCK);
    }

    /// The store that makes the earlier stores valid. Neither the compiler nor the processor moves a store across it.
    /// The first matters for a SIGKILL, which cuts the stores off in program order; the second for a reader on another
    /// processor.
    #[inline(always)]
    pub(super) fn publish(&mut self, block: Block, at: usize, value: u64) {
        fence(Ordering::Release);
        self.put(block, at, value);
        fence(Ordering::Release);
    }

    /// Adds one to a word, as [`Region::publish`] stores: one instruction, since no barrier parts load and store.
    #[inline(always)]
    pub(super) fn count(&mut self, block: Block, at: usize) {
        fence(Ordering::Release);
        // SAFETY: as in `put`.
        let word = unsafe { AtomicU64::from_ptr(block.0.add(at % BLOCK_WORDS)) };
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        #[cfg(test)]
        super::tests::stored(self.base.cast(), self.blocks * BLOCK);
        fence(Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn put_entry(&mut self, leaf: Block, number: usize, vma: &Vma) {
        for (n, word) in vma.words().into_iter().enumerate() {
            self.put(leaf, 4 * number + n, word);
        }
    }
}

impl Block {
    #[inline(always)]
    pub(super) fn get(self, at: usize) -> u64 {
        // SAFETY: a word of the region as in `put`; a plain load races with no store, since only this writer stores.
        unsafe { self.0.add(at % BLOCK_WORDS).read() }
    }

    #[inline(always)]
    pub(super) fn entry(self, order: u64, at: usize) -> Vma {
        let word = entry_word(order, at);
        Vma::from_words([self.get(word), self.get(word + 1), self.get(word + 2), self.get(word + 3)])
    }

    /// How many entries of a leaf start at `address` or below; free entries start at NOWHERE. Four comparisons.
    #[inline(always)]
    pub(super) fn entries_from(self, order: u64, address: u64) -> usize {
        let mut at = 0;
        for step in [8, 4, 2, 1] {
            let start = self.get(entry_word(order, at + step - 1));
            at = select_unpredictable(start <= address, at + step, at);
        }
        at
    }

    /// The word of the slot whose share `key` falls in: the last one not above it, or the first. Six comparisons, since
    /// an unused slot is above every key.
    #[inline(always)]
    pub(super) fn slot_word(self, key: u64) -> usize {
        let mut at = 0;
        for step in [32, 16, 8, 4, 2, 1] {
            at = select_unpredictable(self.get(at + step) <= key, at + step, at);
        }
        at.clamp(1, NODE_SLOTS)
    }

    pub(super) fn slots(self) -> usize {
        (self.get(0) as u32 as usize).clamp(1, NODE_SLOTS)
    }
}
