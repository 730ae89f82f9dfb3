//! account/side_table.rs against a HashMap.

use crate::segment::counter;
use crate::{Random, alone, books, fresh};
use plimsoll_segment::{Counter, Section};
use plimsoll_tracker::account::blocks::Key;
use plimsoll_tracker::account::{blocks, side_table, thread};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

const ROWS: u64 = 1 << 20;

fn key(random: &mut Random) -> Key {
    let requested = match random.below(4) {
        0 => random.below(100),
        1 => random.below(1 << 43),
        2 => (1 << 43) - 1,
        _ => random.below(1 << 20),
    };
    Key { row: random.below(ROWS) as u32, requested, sampled: random.below(2) == 0 }
}

/// The bucket of an address in the first level: addresses of one bucket collide there.
fn first_bucket(address: u64) -> u64 {
    (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 12)
}

#[test]
fn random_operations() {
    alone(|| {
        let mut random = Random(11);
        let mut twin = HashMap::<u64, Key>::new();
        let mut live = Vec::<u64>::new();
        let (mut inserted, mut removed, mut again, mut absent) = (0u64, 0u64, 0u64, 0u64);
        let mut gone = Vec::<u64>::new();
        for step in 0..600_000u64 {
            // Grow beyond the first level (2^15 entries), shrink again.
            let growing = step % 300_000 < 180_000;
            if live.is_empty() || random.below(100) < if growing { 75 } else { 25 } {
                let address = match gone.pop() {
                    Some(a) if random.below(3) == 0 => {
                        again += 1;
                        a
                    }
                    _ => 0x7f00_0000_0000 + random.below(1 << 34) * 16,
                };
                if twin.contains_key(&address) {
                    continue;
                }
                let k = key(&mut random);
                assert!(side_table::insert(address as *mut u8, k), "{address:#x}");
                twin.insert(address, k);
                live.push(address);
                inserted += 1;
            } else if random.below(10) == 0 {
                let address = 0x7e00_0000_0000 + random.below(1 << 34) * 16;
                assert_eq!(side_table::get(address as *mut u8), None);
                assert_eq!(side_table::remove(address as *mut u8), None);
                absent += 1;
            } else {
                let address = live.swap_remove(random.below(live.len() as u64) as usize);
                assert_eq!(side_table::get(address as *mut u8), twin.get(&address).copied());
                assert_eq!(side_table::remove(address as *mut u8), twin.remove(&address), "{address:#x}");
                assert_eq!(side_table::remove(address as *mut u8), None, "removed twice");
                gone.push(address);
                removed += 1;
            }
        }
        let largest = live.len();
        for (address, k) in &twin {
            assert_eq!(side_table::get(*address as *mut u8), Some(*k));
        }
        println!(
            "exercised: {inserted} inserts, {removed} removes, {again} again, {absent} absent, {largest} at the end"
        );
        assert!(again > 1000 && absent > 1000 && largest > 50_000 && removed > 100_000);
    });
}

/// Addresses that share a full bucket of the first level go to the next level; none is lost, and a hole is filled again.
#[test]
fn full_buckets_overflow() {
    alone(|| {
        let crowd: Vec<u64> =
            (1..).map(|i| 0x5500_0000_0000 + i * 16).filter(|a| first_bucket(*a) == 7).take(400).collect();
        for (i, a) in crowd.iter().enumerate() {
            assert!(side_table::insert(*a as *mut u8, Key { row: i as u32, requested: i as u64, sampled: false }));
        }
        let seen = |i: usize| side_table::get(crowd[i] as *mut u8);
        assert!((0..crowd.len()).all(|i| seen(i) == Some(Key { row: i as u32, requested: i as u64, sampled: false })));
        for i in (0..crowd.len()).step_by(3) {
            assert!(side_table::remove(crowd[i] as *mut u8).is_some());
        }
        assert!((0..crowd.len()).all(|i| seen(i).is_some() == (i % 3 != 0)));
        for i in (0..crowd.len()).step_by(3) {
            assert!(side_table::insert(crowd[i] as *mut u8, Key { row: 9, requested: 9, sampled: true }));
        }
        assert!((0..crowd.len()).all(|i| seen(i).is_some_and(|k| (k.row == 9) == (i % 3 == 0 || i == 9))));
        println!("exercised: {} addresses of one bucket of 8", crowd.len());
    });
}

/// Four threads at once, each with its own blocks; then blocks that change hands.
#[test]
fn four_threads() {
    alone(|| {
        let shared = std::sync::Mutex::new(Vec::<(u64, Key)>::new());
        let handed = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (shared, handed) = (&shared, &handed);
                scope.spawn(move || {
                    let mut random = Random(100 + t);
                    let mut own = HashMap::<u64, Key>::new();
                    for i in 0..60_000u64 {
                        // Addresses of all threads interleave, so that they share buckets.
                        let address = 0x7000_0000_0000 + (i * 4 + t) * 16;
                        let k = key(&mut random);
                        assert!(side_table::insert(address as *mut u8, k));
                        own.insert(address, k);
                        if i % 5 == 0 {
                            let (a, k) = own.iter().next().map(|(a, k)| (*a, *k)).expect("one");
                            own.remove(&a);
                            shared.lock().expect("list").push((a, k));
                        }
                        if i % 5 == 1
                            && let Some((a, k)) = shared.lock().expect("list").pop()
                        {
                            assert_eq!(side_table::remove(a as *mut u8), Some(k));
                            handed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        if i % 3 == 0 && own.len() > 100 {
                            let a = *own.keys().next().expect("one");
                            assert_eq!(side_table::remove(a as *mut u8), own.remove(&a));
                        }
                    }
                    for (a, k) in own {
                        assert_eq!(side_table::remove(a as *mut u8), Some(k), "{a:#x}");
                    }
                });
            }
        });
        for (a, k) in shared.into_inner().expect("list") {
            assert_eq!(side_table::remove(a as *mut u8), Some(k));
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
        let k = Key { row: 3, requested: 7, sampled: false };
        let twins: Vec<(u32, u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|t| {
                    scope.spawn(move || {
                        let slot = thread::attach(segment, None).expect("a slot").slot;
                        let address = |i: u64| (0x7000_0000_0000 + (i * 4 + t) * 16) as *mut u8;
                        let (inserts, removes) = (1000 * (t + 1), 300 * (t + 1));
                        for i in 0..inserts {
                            assert!(side_table::insert(address(i), k));
                            if i % 2 == 0 {
                                assert_eq!(side_table::remove(address(u64::MAX >> 20)), None, "never put in");
                            }
                        }
                        (0..removes).for_each(|i| assert_eq!(side_table::remove(address(i)), Some(k)));
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
        assert!(side_table::insert(64 as *mut u8, k) && side_table::insert(128 as *mut u8, k));
        assert_eq!(side_table::remove(64 as *mut u8), Some(k));
        assert_eq!(header(), (2, 1));
        // SAFETY: no thread is in a hook: there are none.
        unsafe { thread::reset_books(books(segment)) };
        assert!(twins.iter().all(|&(slot, ..)| (put(slot), taken(slot)) == (0, 0)));
        println!("exercised: {} slots and the header", twins.len());
    });
}
