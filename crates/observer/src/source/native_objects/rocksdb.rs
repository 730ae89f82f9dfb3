//! Reads the capacity and use of a RocksDB block cache (cache/lru_cache.h, cache/sharded_cache.h). Pure except for
//! `Memory`.
//!
//! ```text
//! LRUCache: … 2ⁿ-1 … capacity … shards ──▶ shard 0 │ shard 1 │ …        each of them:
//!                                            capacity / 2ⁿ, rounded up
//!                                            lru: next ─▶ entry ─▶ entry ─▶ back    entry: +24 next  +32 prev  +40 charge
//!                                            usage, usage of the entries in lru
//! ```
//! Versions order the fields differently, so each is found by search. The capacity is proven by its share in every
//! shard. The usage is proven by a shard in which the sum over the list's entries equals the word after the usage.
//!
//! Not supported: HyperClockCache. The bound of its blocks is unknown.

use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Limited, Memory, Untouched, word_at};

/// RocksDB gives each shard 512 KiB at least; a cache with a single shard has no proof.
const SMALLEST: u64 = 1 << 20;
const LARGEST: u64 = 1 << 44;
const MOST_SHARDS: u64 = 1 << 20;
/// An LRUCache has some 20 words.
const OBJECT_WORDS: usize = 64;
/// A shard consists of whole cache lines.
const LINE: u64 = 64;
const LONGEST_SHARD: u64 = 8 * LINE;
/// Limit of reads for one cache, whatever its memory claims. An entry takes one read.
const MOST_READS: u32 = 1 << 16;
/// A shard's capacity is one of its first words.
const FIRST_WORDS: u64 = 4;
/// Number of shards whose list is tried.
const TRIED: u64 = 8;
/// LRUHandle: value, helper or deleter, next of its hash, next, previous, charge.
const NEXT: u64 = 24;
const ENTRY: usize = 48;

/// Whether the symbol is the table of an LRUCache, or of the record of a shared pointer that contains one.
pub(crate) fn is_cache(symbol: &str) -> bool {
    symbol.contains("7rocksdb") && symbol.contains("8LRUCacheE")
}

struct Shards {
    at: u64,
    number: u64,
    length: u64,
}

impl Shards {
    fn words(&self, memory: &impl Memory, shard: u64) -> Option<Vec<u64>> {
        words(memory, self.at.checked_add(shard.checked_mul(self.length)?)?, self.length as usize)
    }
}

/// Capacity and usage of the cache in this block.
pub fn block_cache(memory: &impl Memory, block: AddressRange) -> Option<(Bytes, Option<Bytes>)> {
    let untouched = Untouched::new(memory);
    let memory = &Limited::new(&untouched, MOST_READS);
    let length = (block.length().0 as usize).min(OBJECT_WORDS * 8) / 8 * 8;
    let object = words(memory, block.start.0, length)?;
    let (capacity, shards) = shards(memory, &object)?;
    Some((Bytes(capacity), used(memory, &shards)))
}

fn words(memory: &impl Memory, at: u64, length: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; length];
    memory.read(Avma(at), &mut bytes).then(|| (0..length / 8).filter_map(|index| word_at(&bytes, index * 8)).collect())
}

/// The capacity, and where the shards are.
fn shards(memory: &impl Memory, object: &[u64]) -> Option<(u64, Shards)> {
    let halves = object.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    let mut numbers: Vec<u64> = halves.map(|half| u64::from(half) + 1).collect();
    numbers.retain(|number| number.is_power_of_two() && (2..=MOST_SHARDS).contains(number));
    numbers.sort_unstable();
    numbers.dedup();
    let capacities = || object.iter().copied().filter(|word| (SMALLEST..LARGEST).contains(word));
    let pointers = || object.iter().copied().filter(|word| word.is_multiple_of(LINE) && (4096..1 << 47).contains(word));
    for number in numbers.into_iter().rev() {
        for capacity in capacities() {
            let share = capacity.div_ceil(number);
            for at in pointers() {
                for length in (LINE..=LONGEST_SHARD).step_by(LINE as usize) {
                    let shards = Shards { at, number, length };
                    let has_share =
                        |shard: u64, field: u64| memory.word(Avma(at + shard * length + field * 8)) == Some(share);
                    let is_proven = |field: &u64| (0..number).all(|shard| has_share(shard, *field));
                    if (0..FIRST_WORDS).any(|field| is_proven(&field)) {
                        return Some((capacity, shards));
                    }
                }
            }
        }
    }
    None
}

/// The usage, summed over the shards, from the field that one of the shards proves.
fn used(memory: &impl Memory, shards: &Shards) -> Option<Bytes> {
    let field = (0..shards.number.min(TRIED)).find_map(|shard| usage_field(memory, shards, shard))?;
    let usage = |shard: u64| {
        let words = shards.words(memory, shard)?;
        let (all, in_list) = (*words.get(field)?, *words.get(field + 1)?);
        (in_list <= all && all < LARGEST).then_some(all)
    };
    (0..shards.number).try_fold(0u64, |sum, shard| sum.checked_add(usage(shard)?)).map(Bytes)
}

/// The field with the usage: the word after it is the sum over the list's entries.
fn usage_field(memory: &impl Memory, shards: &Shards, shard: u64) -> Option<usize> {
    let at = shards.at + shard * shards.length;
    let words = shards.words(memory, shard)?;
    let sum = (3..words.len()).find_map(|next| list(memory, at + next as u64 * 8 - NEXT, words[next]))?;
    (1..words.len()).find(|field| words[*field] == sum && words[*field - 1] >= sum).map(|field| field - 1)
}

/// The sum of charges of a ring that leads from `head` back to `head`, if each entry also links back to the one before.
/// None if the list is broken or has no charge.
fn list(memory: &impl Memory, head: u64, first: u64) -> Option<u64> {
    let (mut before, mut entry, mut sum) = (head, first, 0u64);
    // A list that never leads back ends when the limit of reads is used up.
    loop {
        if entry == head {
            return Some(sum).filter(|sum| *sum > 0);
        }
        if !entry.is_multiple_of(8) || !(4096..1 << 47).contains(&entry) {
            return None;
        }
        let words = words(memory, entry, ENTRY)?;
        if words[4] != before {
            return None;
        }
        sum = sum.checked_add(words[5])?;
        (before, entry) = (entry, words[3]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::source::made_image::Image;

    const OBJECT: u64 = 0x7000_0000_1000;
    const SHARDS: u64 = 0x7000_0010_0000;
    const ENTRIES: u64 = 0x7000_0100_0000;

    struct Made {
        image: Image,
        capacity: u64,
        used: u64,
    }

    /// A cache like one of some version: fields moved by `moved` words, shards of `length` bytes.
    fn made(random: &mut Random, moved: u64, length: u64) -> Made {
        let number = 2u64 << random.below(6);
        let capacity = (1 << 20) * (1 + random.below(900)) + random.below(5000);
        let mut image = Image::default();
        image.put(OBJECT + (moved + 4) * 8, (random.below(1 << 31) << 32) | (number - 1));
        image.put(OBJECT + (moved + 6) * 8, capacity);
        image.put(OBJECT + (moved + 12) * 8, SHARDS);
        let (mut used, mut next) = (0, ENTRIES);
        for shard in 0..number {
            let at = SHARDS + shard * length;
            image.put(at + 8, capacity.div_ceil(number));
            let head = at + 48 + moved * 8;
            let (mut before, mut in_list) = (head, 0);
            for _ in 0..random.below(20) {
                let charge = 1 + random.below(9000);
                image.put(before + NEXT, next);
                image.put(next + NEXT + 8, before);
                image.put(next + NEXT + 16, charge);
                (before, in_list, next) = (next, in_list + charge, next + 64);
            }
            image.put(before + NEXT, head);
            image.put(head + NEXT + 8, before);
            let pinned = random.below(3) * random.below(4096);
            image.put(at + length - 32, in_list + pinned);
            image.put(at + length - 24, in_list);
            used += in_list + pinned;
        }
        Made { image, capacity, used }
    }

    fn read(image: &Image) -> Option<(Bytes, Option<Bytes>)> {
        block_cache(image, AddressRange::sized(Avma(OBJECT), Bytes(168)))
    }

    #[test]
    fn caches_of_several_layouts_are_read_to_the_byte() {
        let mut random = Random(11);
        for round in 0..200 {
            let made = made(&mut random, round % 4, 192 + 64 * (round % 3));
            let found = read(&made.image).expect("a cache");
            assert_eq!(found.0, Bytes(made.capacity));
            // A cache whose first shards have no entry proves no usage.
            assert!(found.1.is_none_or(|used| used == Bytes(made.used)), "{found:?}, {}", made.used);
            assert!(found.1.is_some() || made.used < 200_000, "{found:?}, {}", made.used);
        }
    }

    #[test]
    fn other_memory_is_no_cache() {
        let mut random = Random(12);
        let (mut none, mut other) = (0, 0);
        for round in 0..300 {
            let mut made = made(&mut random, round % 4, 256);
            let pages: Vec<u64> = made.image.pages.keys().copied().collect();
            for _ in 0..1 + random.below(60) {
                let page = pages[random.index(pages.len())];
                made.image.put(page * 4096 + 8 * random.below(512), random.below(u64::MAX));
            }
            match read(&made.image) {
                None | Some((_, None)) => none += 1,
                Some((capacity, Some(_))) => other += usize::from(capacity == Bytes(made.capacity)),
            }
        }
        assert!(none > 20 && other > 20, "{none} {other}");
    }
}
