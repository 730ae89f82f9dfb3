//! Free blocks that tcmalloc counts neither as the program's nor in spans: those in thread caches and transfer caches.
//!
//! ```text
//! ThreadCache (thread_cache.h), for each class 32 bytes:     0 first block   8 blocks u32   …   24 block size u32
//! CentralFreeList (central_freelist.h), for each class:      class   two dummies of 48 bytes   spans   free blocks
//!                                                            batches   batches in use u32, batches at present u32, at most u32
//! ```
//! The offset of each of these is searched for. A ThreadCache has the block sizes of all classes. The central lists
//! have the numbers of their classes at regular steps, and the number of spans of each class.

use std::collections::BTreeSet;

use super::sizes::BlockSizes;
use crate::source::heap_data::{Anonymous, Data, words};
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, Untouched, half_at};

const LIST: usize = 32;
const LIST_LENGTH: usize = 8;
const LIST_SIZE: usize = 24;
/// Maximum offset of the lists: two sizes and the sampler precede them.
const LISTS_WITHIN: usize = 256;
/// Includes the fields after the lists, and lists of classes that a build doesn't use.
const LONGEST_CACHE: u64 = 256 * LIST as u64 + 512;
const MOST_CACHES: usize = 1 << 14;
const MOST_READS: usize = 1 << 20;

/// Free blocks of each class in the caches of all threads; None if no cache was found.
pub(crate) fn of_threads<M: Memory>(
    memory: &M,
    data: &[Data],
    anonymous: &Anonymous,
    sizes: &BlockSizes,
) -> Option<Vec<u64>> {
    let untouched = Untouched::new(memory);
    let lists = sizes.bytes.len() * LIST;
    let mut reads = MOST_READS;
    let mut read = |at: u64, length: usize| -> Option<Vec<u8>> {
        let could_be = at != 0 && at.is_multiple_of(8) && anonymous.holds(at, length as u64) && reads > 0;
        could_be.then_some(())?;
        reads -= 1;
        let mut bytes = vec![0; length];
        untouched.read(Avma(at), &mut bytes).then_some(bytes)
    };
    let is_cache = |bytes: &[u8], from: usize, classes: usize| {
        let size = |class: usize| half_at(bytes, from + class * LIST + LIST_SIZE).map(u64::from);
        (1..classes).all(|class| size(class) == Some(sizes.bytes[class]))
    };
    // A match of eight classes is enough to check further.
    let beginning = LISTS_WITHIN + 9 * LIST;
    let mut first = None;
    'found: for Data { bytes, .. } in data {
        for word in words(bytes) {
            let Some(begin) = read(word, beginning) else { continue };
            let Some(from) = (0..LISTS_WITHIN).step_by(8).find(|from| is_cache(&begin, *from, 9)) else { continue };
            if read(word, from + lists).is_some_and(|whole| is_cache(&whole, from, sizes.bytes.len())) {
                first = Some((word, from));
                break 'found;
            }
        }
    }
    let (first, from) = first?;
    let mut blocks = vec![0u64; sizes.bytes.len()];
    let (mut open, mut known) = (vec![first], BTreeSet::from([first]));
    while let Some(at) = open.pop() {
        let longest = anonymous.around(at).map_or(0, |around| (around.end.0 - at).min(LONGEST_CACHE)) as usize;
        let Some(cache) = read(at, longest) else { continue };
        for (class, blocks) in blocks.iter_mut().enumerate() {
            *blocks += u64::from(half_at(&cache, from + class * LIST + LIST_LENGTH).unwrap_or_default());
        }
        // It is unknown which words are next and previous, so those that lead to a cache are followed.
        for word in words(&cache) {
            let is_new = known.len() < MOST_CACHES && !known.contains(&word);
            if is_new && read(word, from + lists).is_some_and(|whole| is_cache(&whole, from, sizes.bytes.len())) {
                known.insert(word);
                open.push(word);
            }
        }
    }
    Some(blocks)
}

/// For one class: its spans, and the free blocks inside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Central {
    pub spans: u64,
    pub free: u64,
}

const MANY: u64 = 8;
/// kMaxNumTransferEntries.
const MOST_BATCHES: u32 = 64;
/// Words from one class's record to the next.
const STEPS: std::ops::RangeInclusive<usize> = 3..=512;

/// Limits of the search for the central lists. `MOST_PAIRS` bounds the pairs of a word 1 and a word 2 that are tried as
/// the classes of the first two lists. `MOST_LISTS` bounds the tables of lists whose counts are compared. 64 MiB of
/// hostile data have a billion such pairs, and hundreds of thousands of such tables.
pub(crate) const MOST_PAIRS: usize = 1 << 24;
pub(crate) const MOST_LISTS: usize = 1 << 10;

/// Free blocks of each class in the transfer caches; None if they were not found.
pub(crate) fn of_transfers(data: &[Data], sizes: &BlockSizes, central: &[Central]) -> Option<Vec<u64>> {
    let batch = sizes.batch.as_ref()?;
    let classes = sizes.bytes.len();
    let (mut pairs, mut tables) = (0, 0);
    for Data { bytes, .. } in data {
        let all: &[u64] = &words(bytes).collect::<Vec<_>>();
        let places = |class: u64| (0..all.len()).filter(move |at| all[*at] == class);
        let seconds: Vec<usize> = places(2).collect();
        for first in places(1) {
            let is_step =
                |step: &usize| (3..classes).all(|class| all.get(first + (class - 1) * step) == Some(&(class as u64)));
            let near = seconds.partition_point(|second| *second < first + STEPS.start());
            let steps = seconds[near..].iter().map(|second| second - first).take_while(|step| STEPS.contains(step));
            let step = steps.inspect(|_| pairs += 1).find(is_step);
            tables += usize::from(step.is_some());
            if pairs > MOST_PAIRS || tables > MOST_LISTS {
                return None;
            }
            let Some(step) = step else { continue };
            // The last class's record may be shorter than a step.
            let records: Vec<&[u64]> = all[first..].chunks(step).take(classes - 1).collect();
            if let Some(used) = used_batches(&records, central) {
                return Some(used.iter().zip(batch).map(|(used, batch)| used * batch).collect());
            }
        }
    }
    None
}

/// Batches in use of each class, from class 0 on, if the records have the right numbers of spans.
fn used_batches(records: &[&[u64]], central: &[Central]) -> Option<Vec<u64>> {
    let of_class = || records.iter().zip(central.get(1..).unwrap_or_default());
    // The target keeps running, so its own counts differ a little from the walk's. Classes with few spans prove
    // nothing.
    let many = of_class().filter(|(_, central)| central.spans >= MANY).count();
    let counts = |central: &Central| central.spans >= if many > 0 { MANY } else { 1 };
    let knows = |record: &[u64], central: &Central, at: usize| match record.get(at..at + 2) {
        Some([spans, _]) if many > 0 => spans.abs_diff(central.spans) <= central.spans / 8,
        Some(stated) => *stated == [central.spans, central.free],
        None => false,
    };
    let in_use = of_class().filter(|(_, central)| counts(central)).count();
    let most_know = |at: &usize| {
        let agreeing = of_class().filter(|(record, central)| counts(central) && knows(record, central, *at)).count();
        in_use > 0 && agreeing * 4 >= in_use * 3
    };
    let spans = (1..records.first()?.len()).find(most_know)?;
    let shortest = records.iter().map(|record| record.len()).min()?;
    let half = |record: &[u64], at: usize| (record[at / 2] >> (at % 2 * 32)) as u32;
    let in_order = |record: &&[u64], at: usize| {
        let [used, present, most] = [at, at + 1, at + 2].map(|at| half(record, at));
        used <= present && present <= most && (1..=MOST_BATCHES).contains(&most)
    };
    // Take the last offset that fits: one word earlier, zeros and the number of batches would fit as well.
    let addresses = 2 * (spans + 2)..(2 * shortest).saturating_sub(2);
    let at = addresses.rev().find(|at| records.iter().all(|record| in_order(record, *at)))?;
    Some([0].into_iter().chain(records.iter().map(|record| u64::from(half(record, at)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const CLASSES: usize = 6;

    /// Compares each word with each of the possible steps.
    fn naive(data: &[u64], batch: &[u64], central: &[Central]) -> Option<Vec<u64>> {
        for first in (0..data.len()).filter(|at| data[*at] == 1) {
            let is_class = |class: usize, step: usize| data.get(first + (class - 1) * step) == Some(&(class as u64));
            let Some(step) = STEPS.into_iter().find(|step| (2..CLASSES).all(|class| is_class(class, *step))) else {
                continue;
            };
            let records: Vec<&[u64]> = data[first..].chunks(step).take(CLASSES - 1).collect();
            if let Some(used) = used_batches(&records, central) {
                return Some(used.iter().zip(batch).map(|(used, batch)| used * batch).collect());
            }
        }
        None
    }

    /// Central lists among other words that could be classes; in half of the lists, the counts are wrong.
    #[test]
    fn the_central_lists_are_those_that_a_look_at_each_word_finds() {
        let mut random = Random(41);
        let (mut found, mut missing) = (0, 0);
        for _ in 0..300 {
            let mut data: Vec<u64> = (0..3000).map(|_| random.below(40)).collect();
            let central: Vec<Central> =
                (0..CLASSES).map(|_| Central { spans: 100 + random.below(900), free: random.below(100) }).collect();
            for _ in 0..2 {
                let (at, step, lie) = (random.index(1000), 6 + random.index(300), 500 * random.below(2));
                for class in 1..CLASSES {
                    let used = random.below(20);
                    let record =
                        [class as u64, 0, central[class].spans + lie, central[class].free, used | 20 << 32, 64];
                    data[at + (class - 1) * step..][..record.len()].copy_from_slice(&record);
                }
            }
            let batch: Vec<u64> = (0..CLASSES as u64).map(|class| 2 + class).collect();
            let bytes = data.iter().flat_map(|word| word.to_le_bytes()).collect();
            let sizes = BlockSizes { bytes: vec![8; CLASSES], batch: Some(batch.clone()) };
            let blocks = of_transfers(&[Data { base: Avma(0), bytes }], &sizes, &central);
            assert_eq!(blocks, naive(&data, &batch, &central));
            if blocks.is_some() { found += 1 } else { missing += 1 }
        }
        assert!(found > 100 && missing > 30, "{found} {missing}");
    }
}
