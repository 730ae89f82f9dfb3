//! The words of the map's region: every load and store of the map goes through here, and none leaves the region, whatever
//! the tracked program may have scribbled into it.

use core::sync::atomic::{AtomicU64, Ordering, fence};
use plimsoll_segment::vmap::{BLOCK, BLOCK_WORDS, LEAF_ENTRIES, LEAF_FIRST, NODE_SLOTS, Vma};

pub(super) struct Region {
    base: *mut u64,
    blocks: usize,
}

// SAFETY: the pointer is to memory that only this writer uses (the contract of `Region::new`), so it may move with it.
unsafe impl Send for Region {}

impl Region {
    /// # Safety
    /// `base` is aligned to 8 bytes and valid for loads and stores of `capacity` bytes (at least one block) for as long
    /// as the value lives, and nothing else in this process stores there.
    pub(super) unsafe fn new(base: *mut u8, capacity: usize) -> Self {
        Self { base: base.cast(), blocks: capacity / BLOCK }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// A block out of range becomes the header: wrong, but ours.
    #[inline(always)]
    fn block(&self, block: u32) -> *mut u64 {
        let inside = if (block as usize) < self.blocks { block as usize } else { 0 };
        // SAFETY: `inside < blocks`, or 0, and `new` asked for at least one block.
        unsafe { self.base.add(inside * BLOCK_WORDS) }
    }

    #[inline(always)]
    pub(super) fn get(&self, block: u32, at: usize) -> u64 {
        // SAFETY: `at` is brought below BLOCK_WORDS, so the word is of that block; words are aligned.
        unsafe { self.block(block).add(at % BLOCK_WORDS).read() }
    }

    /// An atomic store, since a reader may copy the file at any time; plain instructions on every machine.
    #[inline(always)]
    pub(super) fn put(&mut self, block: u32, at: usize, value: u64) {
        // SAFETY: as in `get`; this process has no other access to the word, and AtomicU64 has the layout of u64.
        unsafe { AtomicU64::from_ptr(self.block(block).add(at % BLOCK_WORDS)) }.store(value, Ordering::Relaxed);
        #[cfg(test)]
        super::tests::stored(self.base.cast(), self.blocks * BLOCK);
    }

    /// The one store that makes what was built before it reachable. Nothing moves across it, neither by the compiler (a
    /// SIGKILL sees program order) nor by the processor (a live reader doesn't).
    #[inline(always)]
    pub(super) fn publish(&mut self, block: u32, at: usize, value: u64) {
        fence(Ordering::Release);
        self.put(block, at, value);
        fence(Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn entry(&self, leaf: u32, at: usize) -> Vma {
        let at = at.min(LEAF_ENTRIES - 1);
        // SAFETY: entries lie in words LEAF_FIRST.. of the block (asserted with the format); a Vma is four u64.
        unsafe { self.block(leaf).add(LEAF_FIRST).cast::<Vma>().add(at).read() }
    }

    #[inline(always)]
    pub(super) fn put_entry(&mut self, leaf: u32, at: usize, vma: &Vma) {
        for (n, word) in vma.words().into_iter().enumerate() {
            self.put(leaf, LEAF_FIRST + at * 4 + n, word);
        }
    }

    /// `n` words from one block into another that nobody can reach yet.
    #[inline(always)]
    pub(super) fn copy(&mut self, from: u32, from_at: usize, to: u32, to_at: usize, n: usize) {
        if from == to || from_at.max(to_at) + n > BLOCK_WORDS {
            return;
        }
        // SAFETY: both runs end inside their blocks, and different blocks don't overlap. (Two numbers out of range would
        // both be block 0: `copy` allows that.)
        unsafe { core::ptr::copy(self.block(from).add(from_at), self.block(to).add(to_at), n) };
        #[cfg(test)]
        super::tests::stored(self.base.cast(), self.blocks * BLOCK);
    }

    #[inline(always)]
    pub(super) fn leaf_count(&self, leaf: u32) -> usize {
        (self.get(leaf, 0) as u32 as usize).min(LEAF_ENTRIES)
    }

    #[inline(always)]
    pub(super) fn node_count(&self, node: u32) -> usize {
        (self.get(node, 0) as u32 as usize).clamp(1, NODE_SLOTS)
    }

    /// The slot whose share `key` falls in: the last one not above it, or the first.
    #[inline(always)]
    pub(super) fn search_node(&self, node: u32, count: usize, key: u64) -> usize {
        let slots = self.block(node);
        let (mut low, mut n) = (0, count.min(NODE_SLOTS));
        while n > 1 {
            let half = n / 2;
            // SAFETY: low + half < count ≤ NODE_SLOTS, and slots begin at word 1 of a block of NODE_SLOTS + 1 words.
            let slot = unsafe { slots.add(1 + low + half).read() };
            low = if slot <= key { low + half } else { low };
            n -= half;
        }
        low
    }

    /// The first entry that ends above `address`; `count` if none does.
    #[inline(always)]
    pub(super) fn search_leaf(&self, leaf: u32, count: usize, address: u64) -> usize {
        // SAFETY: entries lie in words LEAF_FIRST.. of the block.
        let entries = unsafe { self.block(leaf).add(LEAF_FIRST) };
        let (mut low, mut n) = (0, count.min(LEAF_ENTRIES));
        while n > 0 {
            let half = n / 2;
            // SAFETY: low + half < count ≤ LEAF_ENTRIES; the end is the second of an entry's four words.
            let end = unsafe { entries.add((low + half) * 4 + 1).read() };
            (low, n) = if end <= address { (low + half + 1, n - half - 1) } else { (low, half) };
        }
        low
    }
}
