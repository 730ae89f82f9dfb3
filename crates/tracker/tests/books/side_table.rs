//! account/side_table/ against a HashMap.

use crate::segment::{counter, of_tables};
use crate::{Random, alone, books, fresh};
use plimsoll_segment::{Counter, Section};
use plimsoll_tracker::account::blocks::{Key, TABLE_FROM};
use plimsoll_tracker::account::{blocks, side_table, thread};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

const ROWS: u64 = 1 << 20;

/// A block's usable bytes, and its key: mostly of a small block with little slack, which has the short form.
fn key(random: &mut Random) -> (usize, Key) {
    let usable = match random.below(8) {
        0 => TABLE_FROM as u64 + random.below(1 << 42),
        1 => (1 << 43) - 1,
        2 => TABLE_FROM as u64 - random.below(8),
        _ => random.below(TABLE_FROM as u64),
    };
    let slack = if random.below(10) == 0 { random.below(usable + 1) } else { random.below(8).min(usable) };
    (usable as usize, Key { row: random.below(ROWS) as u32, requested: usable - slack, sampled: random.below(2) == 0 })
}

/// An address of a block; rarely one that no allocator returns.
fn address(random: &mut Random, base: u64) -> u64 {
    match random.below(200) {
        0 => base + random.below(1 << 34) * 16 + 1 + random.below(7),
        1 => base << 8 | random.below(1 << 34) << 4,
        2 => u64::MAX - random.below(1 << 20),
        _ => base + random.below(1 << 34) * 16,
    }
}

fn small(requested: u64) -> (usize, Key) {
    (1024, Key { row: 3, requested, sampled: false })
}

/// The bucket of an address in the first level of small blocks: addresses of one bucket collide there.
fn first_bucket(address: u64) -> u64 {
    (address << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 7)
}

#[test]
fn the_table_holds_what_a_map_holds() {
    alone(|| {
        let mut random = Random(11);
        let mut twin = HashMap::<u64, (usize, Key)>::new();
        let mut live = Vec::<u64>::new();
        let (mut inserted, mut removed, mut again, mut absent) = (0u64, 0u64, 0u64, 0u64);
        let mut gone = Vec::<u64>::new();
        for step in 0..600_000u64 {
            // Grow beyond several levels, shrink again.
            let growing = step % 300_000 < 180_000;
            if live.is_empty() || random.below(100) < if growing { 75 } else { 25 } {
                let address = match gone.pop() {
                    Some(a) if random.below(3) == 0 => {
                        again += 1;
                        a
                    }
                    _ => address(&mut random, 0x7f00_0000_0000),
                };
                if twin.contains_key(&address) {
                    continue;
                }
                let (usable, k) = key(&mut random);
                assert!(side_table::insert(address as *mut u8, usable, k), "{address:#x}");
                twin.insert(address, (usable, k));
                live.push(address);
                inserted += 1;
            } else if random.below(10) == 0 {
                let (address, (usable, _)) = (address(&mut random, 0x7e00_0000_0000), key(&mut random));
                assert_eq!(side_table::get(address as *mut u8, usable), None);
                assert_eq!(side_table::remove(address as *mut u8, usable), None);
                absent += 1;
            } else {
                let address = live.swap_remove(random.below(live.len() as u64) as usize);
                let (usable, k) = twin.remove(&address).expect("live");
                assert_eq!(side_table::get(address as *mut u8, usable), Some(k));
                assert_eq!(side_table::remove(address as *mut u8, usable), Some(k), "{address:#x}");
                assert_eq!(side_table::remove(address as *mut u8, usable), None, "removed twice");
                gone.push(address);
                removed += 1;
            }
        }
        let largest = live.len();
        for (address, (usable, k)) in &twin {
            assert_eq!(side_table::get(*address as *mut u8, *usable), Some(*k));
        }
        println!(
            "exercised: {inserted} inserts, {removed} removes, {again} again, {absent} absent, {largest} at the end"
        );
        assert!(again > 1000 && absent > 1000 && largest > 50_000 && removed > 100_000);
    });
}

/// Addresses that share a full bucket of the first level go to the next level; none is lost, and a hole is filled
/// again.
#[test]
fn a_full_bucket_continues_in_the_next_level() {
    alone(|| {
        let crowd: Vec<u64> =
            (1..).map(|i| 0x5500_0000_0000 + i * 16).filter(|a| first_bucket(*a) == 7).take(400).collect();
        let key = |i: usize| Key { row: i as u32, requested: 1017 + i as u64 % 8, sampled: false };
        for (i, a) in crowd.iter().enumerate() {
            assert!(side_table::insert(*a as *mut u8, 1024, key(i)));
        }
        let seen = |i: usize| side_table::get(crowd[i] as *mut u8, 1024);
        assert!((0..crowd.len()).all(|i| seen(i) == Some(key(i))));
        for i in (0..crowd.len()).step_by(3) {
            assert!(side_table::remove(crowd[i] as *mut u8, 1024).is_some());
        }
        assert!((0..crowd.len()).all(|i| seen(i).is_some() == (i % 3 != 0)));
        for i in (0..crowd.len()).step_by(3) {
            assert!(side_table::insert(crowd[i] as *mut u8, 1024, Key { row: 9, requested: 1020, sampled: true }));
        }
        assert!((0..crowd.len()).all(|i| seen(i).is_some_and(|k| (k.row == 9) == (i % 3 == 0 || i == 9))));
        println!("exercised: {} addresses of one bucket of 8", crowd.len());
    });
}

/// A block that its allocator made larger or smaller in place, by a call that isn't hooked, is still found.
#[test]
fn a_block_is_found_by_another_size() {
    alone(|| {
        let p = 0x7f00_0000_0000u64 as *mut u8;
        for [before, after] in [[1024, TABLE_FROM], [TABLE_FROM, 1024], [1024, 2048]] {
            let key = Key { row: 5, requested: before as u64 - 3, sampled: true };
            assert!(side_table::insert(p, before, key));
            let found = side_table::remove(p, after).expect("the block");
            assert_eq!((found.row, found.sampled), (5, true), "{before} to {after}");
            assert_eq!((side_table::get(p, before), side_table::get(p, after)), (None, None));
        }
    });
}

/// Memory follows the number of blocks, few or many: each level holds as many as all before it.
#[test]
fn an_entry_costs_little_memory_at_any_number() {
    alone(|| {
        let mut random = Random(5);
        let (mut n, mut sums) = (0u64, vec![]);
        for number in [300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000] {
            while n < number {
                // Blocks side by side, in runs, like those of one size class of an allocator.
                let (usable, key) = small(1024);
                let run = 0x7f00_0000_0000 + random.below(1 << 18) * (1 << 20);
                let at = |i: u64| (run + i * 1024) as *mut u8;
                if side_table::get(at(0), usable).is_none() {
                    (0..64).for_each(|i| assert!(side_table::insert(at(i), usable, key)));
                    n += 64;
                }
            }
            sums.push((n, of_tables() as u64 / n));
        }
        println!("blocks, bytes each: {sums:?}");
        // The least memory is a few pages.
        assert!(sums.iter().all(|&(n, bytes)| bytes <= 32 + 16_384 / n), "{sums:?}");
        let mean = sums[3..].iter().map(|(_, bytes)| bytes).sum::<u64>() / (sums.len() as u64 - 3);
        assert!(mean <= 24, "{sums:?}");
    });
}

/// Four threads at once, each with its own blocks; then blocks that change hands.
#[test]
fn no_block_of_four_threads_is_lost() {
    alone(|| {
        let shared = std::sync::Mutex::new(Vec::<(u64, (usize, Key))>::new());
        let handed = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (shared, handed) = (&shared, &handed);
                scope.spawn(move || {
                    let mut random = Random(100 + t);
                    let mut own = HashMap::<u64, (usize, Key)>::new();
                    for i in 0..60_000u64 {
                        // Addresses of all threads interleave, so that they share buckets.
                        let address = 0x7000_0000_0000 + (i * 4 + t) * 16;
                        let k = key(&mut random);
                        assert!(side_table::insert(address as *mut u8, k.0, k.1));
                        own.insert(address, k);
                        if i % 5 == 0 {
                            let (a, k) = own.iter().next().map(|(a, k)| (*a, *k)).expect("one");
                            own.remove(&a);
                            shared.lock().expect("list").push((a, k));
                        }
                        if i % 5 == 1
                            && let Some((a, k)) = shared.lock().expect("list").pop()
                        {
                            assert_eq!(side_table::remove(a as *mut u8, k.0), Some(k.1));
                            handed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        if i % 3 == 0 && own.len() > 100 {
                            let a = *own.keys().next().expect("one");
                            let (usable, k) = own.remove(&a).expect("own");
                            assert_eq!(side_table::remove(a as *mut u8, usable), Some(k));
                        }
                    }
                    for (a, k) in own {
                        assert_eq!(side_table::remove(a as *mut u8, k.0), Some(k.1), "{a:#x}");
                    }
                });
            }
        });
        for (a, k) in shared.into_inner().expect("list") {
            assert_eq!(side_table::remove(a as *mut u8, k.0), Some(k.1));
        }
        let handed = handed.into_inner();
        println!("exercised: {handed} blocks removed by another thread");
        assert!(handed > 10_000);
    });
}

/// Each thread counts in its slot, and a thread without one in the header: inserted less removed equals present.
#[test]
fn blocks_are_counted_by_who_moves_them() {
    alone(|| {
        let segment = fresh();
        assert!(blocks::publish(segment));
        let (put, taken) = (
            |slot| segment.thread(slot).table_inserts.load(Relaxed),
            |slot| segment.thread(slot).table_removes.load(Relaxed),
        );
        let (usable, k) = small(1020);
        let twins: Vec<(u32, u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|t| {
                    scope.spawn(move || {
                        let slot = thread::attach(segment, None).expect("a slot").slot;
                        let address = |i: u64| (0x7000_0000_0000 + (i * 4 + t) * 16) as *mut u8;
                        let (inserts, removes) = (1000 * (t + 1), 300 * (t + 1));
                        for i in 0..inserts {
                            assert!(side_table::insert(address(i), usable, k));
                            if i % 2 == 0 {
                                assert_eq!(side_table::remove(address(u64::MAX >> 20), usable), None, "never put in");
                            }
                        }
                        (0..removes).for_each(|i| assert_eq!(side_table::remove(address(i), usable), Some(k)));
                        (slot, inserts, removes)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert_eq!(segment.used(Section::Threads), 1 + twins.len());
        for &(slot, inserts, removes) in &twins {
            assert_eq!((put(slot), taken(slot)), (inserts, removes), "slot {slot}");
        }
        // The test's own thread has no slot.
        let header = || (counter(segment, Counter::table_inserts), counter(segment, Counter::table_removes));
        assert_eq!(header(), (0, 0));
        assert!(side_table::insert(64 as *mut u8, usable, k) && side_table::insert(128 as *mut u8, usable, k));
        assert_eq!(side_table::remove(64 as *mut u8, usable), Some(k));
        assert_eq!(header(), (2, 1));
        // SAFETY: no thread is in a hook: there are none.
        unsafe { thread::reset_books(books(segment)) };
        assert!(twins.iter().all(|&(slot, ..)| (put(slot), taken(slot)) == (0, 0)));
        println!("exercised: {} slots and the header", twins.len());
    });
}
