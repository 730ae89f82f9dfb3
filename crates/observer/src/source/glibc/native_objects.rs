//! Counts blocks by their first word, if that points into given ranges: the constant data of native libraries. A C++
//! object with virtual functions begins with the address of its class's table there, so the word identifies the library
//! and the class.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_facts::snapshot::ObjectBlocks;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};

/// Limit of different words. Libraries have some hundred classes.
const MOST_WORDS: usize = 1 << 14;
/// Number of blocks of one word whose addresses are kept.
const KEPT: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Objects {
    /// Sorted, disjoint.
    ranges: Arc<[AddressRange]>,
    words: HashMap<Avma, ObjectBlocks>,
}

impl Objects {
    pub(crate) fn new(ranges: &[AddressRange]) -> Objects {
        Objects { ranges: ranges.into(), words: HashMap::new() }
    }

    /// No blocks yet, for the same ranges.
    pub(crate) fn empty(&self) -> Objects {
        Objects { ranges: Arc::clone(&self.ranges), words: HashMap::new() }
    }

    /// `block` begins at what malloc returned; `resident` counts the resident bytes of its chunk.
    pub(crate) fn add(&mut self, first_word: u64, block: AddressRange, resident: impl FnOnce() -> Bytes) {
        let word = Avma(first_word);
        let after = self.ranges.partition_point(|range| range.end <= word);
        if self.ranges.get(after).is_none_or(|range| range.start > word) {
            return;
        }
        let Some(of_word) = self.of_word(word) else { return };
        of_word.count = of_word.count.saturating_add(1);
        of_word.resident += resident();
        if of_word.some.len() < KEPT {
            of_word.some.push(block);
        }
    }

    fn of_word(&mut self, word: Avma) -> Option<&mut ObjectBlocks> {
        if self.words.len() >= MOST_WORDS && !self.words.contains_key(&word) {
            return None;
        }
        Some(self.words.entry(word).or_insert_with(|| ObjectBlocks { first_word: word, ..ObjectBlocks::default() }))
    }

    pub(crate) fn merge(&mut self, other: Objects) {
        for blocks in other.into_blocks() {
            let Some(of_word) = self.of_word(blocks.first_word) else { continue };
            of_word.count = of_word.count.saturating_add(blocks.count);
            of_word.resident += blocks.resident;
            let room = KEPT.saturating_sub(of_word.some.len());
            of_word.some.extend(blocks.some.into_iter().take(room));
        }
    }

    /// Largest first.
    pub(crate) fn into_blocks(self) -> Vec<ObjectBlocks> {
        let mut blocks: Vec<ObjectBlocks> = self.words.into_values().collect();
        blocks.sort_by_key(|blocks| (std::cmp::Reverse(blocks.resident), blocks.first_word));
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn blocks_are_counted_as_a_plain_list_counts_them() {
        let range = |start: u64, end: u64| AddressRange::new(Avma(start), Avma(end));
        let ranges = [range(0x1000, 0x1040), range(0x2000, 0x2010)];
        let mut random = Random(7);
        // Blocks of two walks.
        let mut objects = Objects::new(&ranges);
        let mut second = objects.empty();
        let (mut twin, mut outside) = (Vec::new(), 0);
        for at in 0..5000u64 {
            let word = [0xff8, 0x1000, 0x1038, 0x1040, 0x1ff8, 0x2000, 0x2008, 0x2010][random.index(8)];
            let bytes = 32 + 16 * random.below(4);
            let walk = if at.is_multiple_of(3) { &mut second } else { &mut objects };
            walk.add(word, range(at << 8, (at << 8) + bytes - 8), || Bytes(bytes));
            match ranges.iter().any(|range| range.contains(Avma(word))) {
                true => twin.push((word, bytes)),
                false => outside += 1,
            }
        }
        objects.merge(second);
        let blocks = objects.into_blocks();
        assert_eq!(blocks.len(), 4);
        assert!(outside > 1000);
        for blocks in &blocks {
            let own: Vec<u64> = twin.iter().filter(|(word, _)| *word == blocks.first_word.0).map(|(_, b)| *b).collect();
            assert_eq!((blocks.count, blocks.resident), (own.len() as u64, Bytes(own.iter().sum())));
            assert_eq!(blocks.some.len(), KEPT);
        }
        assert!(blocks.is_sorted_by_key(|blocks| std::cmp::Reverse(blocks.resident)));
    }
}
