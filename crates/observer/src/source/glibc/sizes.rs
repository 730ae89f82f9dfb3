//! Counts the chunks in use by size. A leak often consists of many blocks of one size, because the same code allocates
//! them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::layout::ALIGN;
use plimsoll_facts::snapshot::{EqualBlocks, ZlibStates};
use plimsoll_facts::units::Bytes;

/// Sizes below this have a counter each; larger ones have an entry in a map, because a heap has few of them.
const SMALL: u64 = 128 << 10;
/// Number of sizes in the snapshot.
const KEPT: usize = 8;
/// Fewer blocks of one size may be a coincidence.
const MANY: u64 = 64;

/// Number of blocks, and their resident bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    resident: Bytes,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    small: Vec<Sum>,
    large: BTreeMap<u64, Sum>,
}

impl Sizes {
    pub(crate) fn add(&mut self, size: u64, resident: Bytes) {
        let sum = self.of(size);
        *sum = Sum { count: sum.count.saturating_add(1), resident: sum.resident + resident };
    }

    /// Removes a chunk that was counted but is free.
    pub(crate) fn remove(&mut self, size: u64, resident: Bytes) {
        let sum = self.of(size);
        *sum = Sum { count: sum.count.saturating_sub(1), resident: sum.resident - resident };
    }

    pub(crate) fn merge(&mut self, other: &Sizes) {
        let more = |sum: &mut Sum, more: &Sum| {
            *sum = Sum { count: sum.count.saturating_add(more.count), resident: sum.resident + more.resident };
        };
        if self.small.len() < other.small.len() {
            self.small.resize(other.small.len(), Sum::default());
        }
        self.small.iter_mut().zip(&other.small).for_each(|(sum, other)| more(sum, other));
        other.large.iter().for_each(|(size, other)| more(self.large.entry(*size).or_default(), other));
    }

    /// The sizes with the largest sums, largest first.
    pub(crate) fn peaks(&self) -> Vec<EqualBlocks> {
        let small = self.small.iter().enumerate().map(|(class, sum)| (class as u64 * ALIGN, *sum));
        let large = self.large.iter().map(|(size, sum)| (*size, *sum));
        let all = small.chain(large).filter(|(_, sum)| sum.count >= MANY);
        let mut peaks: Vec<EqualBlocks> = all
            .map(|(size, sum)| EqualBlocks { size: Bytes(size), count: sum.count, resident: sum.resident })
            .collect();
        peaks.sort_by_key(|peak| std::cmp::Reverse((peak.resident, peak.size)));
        peaks.truncate(KEPT);
        peaks
    }

    /// Counts zlib's open streams by the blocks that have the size of a stream's state.
    pub(crate) fn zlib(&self) -> ZlibStates {
        let number = |usable: RangeInclusive<u64>| {
            let of_class = |(class, sum): (usize, &Sum)| {
                let size = EqualBlocks { size: Bytes(class as u64 * ALIGN), ..EqualBlocks::default() };
                if usable.contains(&size.usable().0) { sum.count } else { 0 }
            };
            self.small.iter().enumerate().map(of_class).fold(0, u64::saturating_add)
        };
        let (inflaters, deflaters) = (number(ZlibStates::OF_INFLATER), number(ZlibStates::OF_DEFLATER));
        ZlibStates { inflaters, deflaters }
    }

    fn of(&mut self, size: u64) -> &mut Sum {
        if size >= SMALL {
            return self.large.entry(size).or_default();
        }
        if self.small.is_empty() {
            self.small = vec![Sum::default(); (SMALL / ALIGN) as usize];
        }
        &mut self.small[(size / ALIGN) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The sizes of chunks of 7,160 and 5,952 bytes, without and with a trailer, and sizes beside them.
    #[test]
    fn open_streams_are_counted_however_few() {
        let mut sizes = Sizes::default();
        for (size, number) in
            [(7152, 50), (7168, 3), (7184, 2), (7200, 70), (5952, 90), (5968, 1), (5984, 5), (6016, 9)]
        {
            (0..number).for_each(|_| sizes.add(size, Bytes(size)));
        }
        assert_eq!(sizes.zlib(), ZlibStates { inflaters: 5, deflaters: 6 });
        sizes.remove(7168, Bytes(7168));
        assert_eq!(sizes.zlib().inflaters, 4);
        assert_eq!(Sizes::default().zlib(), ZlibStates::default());
    }

    #[test]
    fn peaks_are_those_of_a_sorted_list() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut next = |below| random.below(below);
        let (mut few, mut large) = (0, 0);
        for _ in 0..100 {
            let mut twin = BTreeMap::<u64, u64>::new();
            let (mut one, mut other) = (Sizes::default(), Sizes::default());
            for _ in 0..next(12) {
                let size = if next(3) == 0 { SMALL + 16 * next(1000) } else { 32 + 16 * next(2000) };
                let count = next(200);
                let resident = Bytes(size / 2);
                (0..count).for_each(|n| if n % 2 == 0 { one.add(size, resident) } else { other.add(size, resident) });
                *twin.entry(size).or_default() += count;
                if count > 0 && next(2) == 0 {
                    one.remove(size, resident);
                    *twin.entry(size).or_default() -= 1;
                }
            }
            one.merge(&other);
            few += twin.values().filter(|count| **count < MANY).count();
            twin.retain(|_, count| *count >= MANY);
            let mut expected: Vec<(u64, u64)> = twin.iter().map(|(size, count)| (size / 2 * count, *size)).collect();
            expected.sort_unstable_by(|one, other| other.cmp(one));
            expected.truncate(KEPT);
            let found: Vec<(u64, u64)> = one.peaks().iter().map(|peak| (peak.resident.0, peak.size.0)).collect();
            assert_eq!(found, expected);
            large += found.iter().filter(|(_, size)| *size >= SMALL).count();
        }
        assert!(few > 50 && large > 20, "{few} {large}");
    }
}
