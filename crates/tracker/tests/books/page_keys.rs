//! account/side_table/page_keys.rs against a HashMap, under an allocator of this file that keeps blocks of one size on
//! a run of pages.

use crate::segment::of_tables;
use crate::{Random, alone, fresh};
use plimsoll_segment::Allocator;
use plimsoll_tracker::account::blocks::{self, Key};
use plimsoll_tracker::account::keys;
use plimsoll_tracker::account::rows::ROW_EARLY;
use plimsoll_tracker::account::side_table::page_keys::{self, SLACK};
use plimsoll_tracker::hook::resolve;
use plimsoll_tracker::sys::cpu::{SLOT_MARK, tls_set};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Sizes of jemalloc 5 below 4 KiB.
fn sizes() -> Vec<u16> {
    let small = [8, 16, 32, 48, 64, 80, 96, 112, 128];
    let doubling = |from: u16| (1..=4).map(move |i| from + from / 4 * i);
    small.into_iter().chain([128, 256, 512, 1024, 2048].into_iter().flat_map(doubling)).collect()
}

fn begin() {
    blocks::init(Allocator::Jemalloc);
    assert!(page_keys::enable(&sizes()) && blocks::publish(fresh()));
}

/// From now on this thread uses this lane.
fn take_lane(lane: u64) {
    tls_set::<SLOT_MARK>(2 + lane as usize);
}

/// A run of three pages with blocks of one size, from `start` on.
struct Run {
    start: u64,
    size: u64,
    /// The key and the lane of each block.
    live: BTreeMap<u64, (Key, u64)>,
}

const RUN: u64 = 3 << 12;

impl Run {
    fn blocks(&self) -> u64 {
        (RUN - self.start % 4096) / self.size
    }
}

fn some_key(random: &mut Random, usable: u64) -> Key {
    let most = [0, 7, (usable - 1).min(SLACK as u64)][random.below(3) as usize];
    let slack = random.below(most + 1);
    Key { row: 1 + random.below((1 << 20) - 1) as u32, requested: usable - slack, sampled: random.one_in(5) }
}

/// A block of a constructor that runs before ours has space for a trailer, and gets none.
#[test]
fn early_blocks_have_no_trailers() {
    alone(|| {
        resolve::resolve();
        blocks::init(Allocator::Jemalloc);
        // SAFETY: a block of the allocator below, which the test owns.
        let p = unsafe { std::alloc::alloc(std::alloc::Layout::from_size_align(1000, 16).expect("a layout")) };
        // SAFETY: as above.
        let usable = unsafe { blocks::usable(p) };
        let key = Key { row: ROW_EARLY, requested: usable as u64 - 20, sampled: false };
        // SAFETY: as above.
        let booked = unsafe { keys::set_early_key(p, key) }.expect("space in the table");
        assert_eq!((booked.usable, booked.requested), (usable as u64, key.requested));
        assert!(page_keys::enable(&sizes()) && blocks::publish(fresh()));
        blocks::small_keys_are_in_pages();
        assert!(blocks::has_no_trailer(usable));
        // SAFETY: as above.
        let (trailer, taken) = unsafe { (blocks::read_trailer(p, usable), keys::take_key(p)) };
        assert_eq!((trailer, taken.map(|(key, amount)| (key, amount.usable))), (None, Some((key, usable as u64))));
    });
}

#[test]
fn arrays_hold_what_a_map_holds() {
    alone(|| {
        begin();
        let (mut random, sizes) = (Random(17), sizes());
        // Runs in four different GiB, and in neighbouring pages.
        let mut runs: Vec<Run> = (0..60u64)
            .map(|i| Run { start: 0x7e00_0000_0000 + ((i % 4) << 30) + (i << 14), size: 8, live: BTreeMap::new() })
            .collect();
        let (mut inserted, mut removed, mut changed, mut refused, mut replaced) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let mut elsewhere = 0u64;
        for _ in 0..400_000 {
            let at = random.index(runs.len());
            let run = &mut runs[at];
            if run.live.is_empty() && random.one_in(3) {
                run.size = sizes[random.index(sizes.len())] as u64;
                // The first block needn't lie at the start of a page.
                run.start = (run.start & !4095) + random.below(64) * 8;
                changed += 1;
            }
            let block = run.start + random.below(run.blocks()) * run.size;
            let p = block as *mut u8;
            let lane = random.below(2);
            take_lane(lane);
            assert_eq!(page_keys::get(p), run.live.get(&block).map(|(key, _)| *key), "{block:#x}");
            match run.live.remove(&block) {
                Some((key, of)) if random.below(8) > 0 => {
                    assert_eq!(page_keys::take(p), Some((key, run.size as usize)));
                    removed += 1;
                    elsewhere += u64::from(of != lane);
                }
                // The block is freed by a function that isn't hooked. The next block at that address has its key in the
                // array, or elsewhere.
                Some((_, of)) => {
                    let (usable, key) = match random.below(3) {
                        0 => (run.size as usize, some_key(&mut random, run.size)),
                        1 => (run.size as usize + 1, Key { row: 5, requested: run.size, sampled: false }),
                        _ => (9000, Key { row: 5, requested: 9000, sampled: false }),
                    };
                    let inserts = usable == run.size as usize;
                    if inserts {
                        take_lane(of);
                    }
                    assert_eq!(page_keys::insert(p, usable, key), inserts);
                    if inserts {
                        run.live.insert(block, (key, of));
                        replaced += 1;
                    } else {
                        refused += 1;
                    }
                    assert_eq!(page_keys::get(p), inserts.then_some(key), "an old key is gone");
                }
                None => {
                    let key = some_key(&mut random, run.size);
                    let n = key.requested as usize;
                    assert!(random.below(2) == 0 || page_keys::prepare(p, run.size as usize, n));
                    assert!(page_keys::insert(p, run.size as usize, key));
                    run.live.insert(block, (key, lane));
                    inserted += 1;
                }
            }
            if random.one_in(40) {
                for (block, (key, _)) in std::mem::take(&mut run.live) {
                    assert_eq!(page_keys::take(block as *mut u8), Some((key, run.size as usize)));
                    assert_eq!(page_keys::take(block as *mut u8), None, "taken twice");
                }
            }
        }
        println!(
            "exercised: {inserted} inserted, {removed} removed, {elsewhere} of them in the other lane, {replaced} \
             replaced, {refused} refused, {changed} runs got another size"
        );
        assert!(elsewhere > 20_000);
        assert!(inserted > 100_000 && removed > 50_000 && replaced > 1_000 && refused > 1_000 && changed > 1_000);

        // Sizes and addresses for which there is no array.
        let key = Key { row: 7, requested: 64, sampled: false };
        for (p, usable) in [(1 << 47, 64), (usize::MAX - 63, 64), (0x1000, 72), (0x1000, 65), (0x1000, 5120)] {
            assert!(!page_keys::insert(p as *mut u8, usable, key) && page_keys::take(p as *mut u8).is_none());
        }
        let slack = Key { row: 7, requested: 4096 - SLACK as u64 - 1, sampled: false };
        assert!(!page_keys::insert(0x2000 as *mut u8, 4096, slack));
        assert!(page_keys::insert(0x2000 as *mut u8, 4096, Key { requested: slack.requested + 1, ..slack }));

        // SAFETY: no hook runs in these tests.
        unsafe { page_keys::reset_books() };
        let left: Vec<u64> = runs.iter().flat_map(|run| run.live.keys().copied()).collect();
        assert!(left.len() > 100 && left.iter().all(|block| page_keys::get(*block as *mut u8).is_none()));
    });
}

/// An entry that stays after a release by a function that isn't hooked doesn't pass for the entry of a block of another
/// size.
#[test]
fn nothing_is_left_when_a_page_gets_another_size() {
    alone(|| {
        begin();
        let page = 0x6000_0000_0000u64;
        let blocks = |size: u64| (0..4096 / size).map(move |i| (page + i * size) as *mut u8);
        let mut sizes = [16u64, 2048, 64, 4096, 48, 8].into_iter().cycle();
        let mut size = sizes.next().expect("a size");
        for _ in 0..12 {
            let key = |requested| Key { row: 9, requested, sampled: false };
            for (i, p) in blocks(size).enumerate() {
                take_lane(i as u64 % 3 % 2);
                assert!(page_keys::insert(p, size as usize, key(1.max(size.saturating_sub(2000)))));
            }
            size = sizes.next().expect("a size");
            let first = page as *mut u8;
            assert!(page_keys::insert(first, size as usize, key(size)));
            for lane in [0, 1] {
                take_lane(lane);
                assert!(blocks(size).skip(1).all(|p| page_keys::get(p).is_none()), "{size}");
            }
            assert_eq!(page_keys::take(first), Some((key(size), size as usize)));
        }
    });
}

/// The case that remains: a function that isn't hooked freed a block of one lane, and the next block there is booked in
/// the other. A release in the first lane is booked with the old key, the next one with the new key.
#[test]
fn what_is_left_in_the_other_lane_is_taken_first_there() {
    alone(|| {
        begin();
        let (p, key) = (0x5800_0000_1040 as *mut u8, |row| Key { row, requested: 60, sampled: false });
        for (row, lane) in [(9, 0), (11, 1)] {
            take_lane(lane);
            assert!(page_keys::insert(p, 64, key(row)));
        }
        assert_eq!(page_keys::get(p), Some(key(11)), "the own lane first");
        take_lane(0);
        for row in [9, 11] {
            assert_eq!(page_keys::take(p), Some((key(row), 64)));
        }
        assert_eq!(page_keys::take(p), None);
    });
}

/// A child of a raw clone, which no handler prepared, has its parent's memory and no keys.
#[test]
fn an_unprepared_child_has_no_keys() {
    alone(|| {
        begin();
        let (p, key) = (0x5000_0000_1040 as *mut u8, Key { row: 9, requested: 60, sampled: false });
        assert!(page_keys::insert(p, 64, key));
        // SAFETY: the child only looks and ends.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let without = page_keys::get(p).is_none() && !page_keys::insert(p, 64, key);
                libc::_exit(i32::from(!without));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
            assert_eq!(status, 0);
        }
        assert_eq!(page_keys::get(p), Some(key));
    });
}

/// Threads begin the same pages at the same time, each with its own blocks on them. Then blocks change hands.
#[test]
fn four_threads_share_pages() {
    alone(|| {
        begin();
        let (sizes, pages) = (sizes(), 3_000u64);
        let barrier = std::sync::Barrier::new(4);
        let shared = std::sync::Mutex::new(HashMap::<u64, (usize, Key)>::new());
        let handed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (shared, handed, barrier, sizes) = (&shared, &handed, &barrier, &sizes);
                scope.spawn(move || {
                    let mut random = Random(100 + t);
                    take_lane(t);
                    for round in 0..6u64 {
                        barrier.wait();
                        for page in 0..pages {
                            let size = sizes[((page + round * 5) % 20) as usize] as u64;
                            let mut own = vec![];
                            // Every fourth block is this thread's.
                            for i in (t..4096 / size).step_by(4) {
                                let block = 0x7000_0000_0000 + (page << 12) + i * size;
                                let key = some_key(&mut random, size);
                                assert!(page_keys::insert(block as *mut u8, size as usize, key));
                                own.push((block, key));
                            }
                            if page % 16 == 0
                                && let Some((block, key)) = own.pop()
                            {
                                shared.lock().expect("map").insert(block, (size as usize, key));
                            }
                            for (block, key) in own {
                                assert_eq!(page_keys::take(block as *mut u8), Some((key, size as usize)));
                            }
                        }
                        barrier.wait();
                        let take = |map: &mut HashMap<u64, (usize, Key)>| {
                            let block = *map.keys().next()?;
                            map.remove(&block).map(|(size, key)| (block, size, key))
                        };
                        while let Some((block, size, key)) = { take(&mut shared.lock().expect("map")) } {
                            assert_eq!(page_keys::take(block as *mut u8), Some((key, size)));
                            handed.fetch_add(1, Relaxed);
                        }
                    }
                });
            }
        });
        let handed = handed.into_inner();
        println!("exercised: {handed} blocks handed over");
        assert!(handed > 2_000);
    });
}

/// Four bytes for an entry, and little beside it, at any size of blocks.
#[test]
fn an_entry_costs_a_few_bytes() {
    alone(|| {
        begin();
        for (i, size) in [16u64, 48, 192, 512, 1024, 2048, 3584, 4096].into_iter().enumerate() {
            let (before, n) = (of_tables(), 300_000);
            for block in (0..n).map(|at| 0x7f00_0000_0000 + ((i as u64) << 32) + at * size) {
                let key = Key { row: 5, requested: size, sampled: false };
                assert!(page_keys::insert(block as *mut u8, size as usize, key));
            }
            let each = (of_tables() - before) as u64 / n;
            println!("exercised: {n} blocks of {size} B, {each} B for each");
            // For each page a word of 8 B in each lane, and an array with 4 B for its capacity, in multiples of 8.
            assert!(each <= 5 + 28 * size / 4096, "{each} B for a block of {size}");
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod interrupted {
    use super::*;
    use std::arch::asm;

    static STEP: AtomicU64 = AtomicU64::new(0);
    /// The step that the handler works at.
    static DUE: AtomicU64 = AtomicU64::new(0);
    static AT: AtomicU64 = AtomicU64::new(0);
    /// The number of the handler's blocks whose key was elsewhere because an array was being cleared.
    static ELSEWHERE: AtomicU64 = AtomicU64::new(0);
    static FAULTS: AtomicU64 = AtomicU64::new(0);
    const ITS: Key = Key { row: 77, requested: 63, sampled: true };

    extern "C" fn on_trap(_: i32) {
        if STEP.fetch_add(1, Relaxed) != DUE.load(Relaxed) {
            return;
        }
        // A block of the same page, and a block of the next page, whose key is taken out again.
        let (p, other) = (AT.load(Relaxed) + 64, AT.load(Relaxed) + 4096);
        let inserted = page_keys::insert(p as *mut u8, 64, ITS);
        ELSEWHERE.fetch_add(u64::from(!inserted), Relaxed);
        let taken = page_keys::insert(other as *mut u8, 64, ITS)
            && page_keys::take(other as *mut u8) == Some((ITS, 64))
            && page_keys::get(p as *mut u8) == inserted.then_some(ITS);
        FAULTS.fetch_add(u64::from(!taken), Relaxed);
    }

    /// Inserts a block of 64 bytes, while the handler works at one step. Returns the number of steps.
    fn step(block: u64, due: u64) -> u64 {
        AT.store(block, Relaxed);
        DUE.store(due, Relaxed);
        STEP.store(0, Relaxed);
        let elsewhere = ELSEWHERE.load(Relaxed);
        let key = Key { row: 3, requested: 60, sampled: false };
        // SAFETY: sets the trap flag for one call; the handler is in place.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        let inserted = page_keys::insert(block as *mut u8, 64, key);
        // SAFETY: clears it.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        let steps = STEP.load(Relaxed);
        let what = format!("step {due} of {steps} at {block:#x}");
        assert!(inserted && FAULTS.load(Relaxed) == 0, "{what}");
        assert_eq!(page_keys::take(block as *mut u8), Some((key, 64)), "{what}");
        let is_there = due < steps && elsewhere == ELSEWHERE.load(Relaxed);
        assert_eq!(page_keys::take((block + 64) as *mut u8), is_there.then_some((ITS, 64)), "{what}");
        steps
    }

    /// Interrupts the insertion at every `stride`-th step, each time on a fresh page that `prepare` has seen.
    fn interrupt(from: u64, apart: u64, stride: u64, prepare: impl Fn(u64)) -> u64 {
        let (mut n, mut due) = (0, 0);
        loop {
            n += 1;
            let block = from + n * apart;
            prepare(block);
            if step(block, due) <= due {
                return n;
            }
            due += stride;
        }
    }

    /// A signal handler that enters blocks while a leaf, a chunk or an array is made, or an array is cleared.
    #[test]
    fn a_handler_may_use_a_page_while_its_array_is_made() {
        alone(|| {
            begin();
            // SAFETY: the handler makes no call that a handler may not make.
            unsafe { libc::signal(libc::SIGTRAP, on_trap as extern "C" fn(i32) as usize) };
            // Each page in a GiB of its own, which has no leaf; then fresh pages; then pages with leftover entries of
            // other blocks.
            let leaves = interrupt(0x10_0000_0000, 1 << 30, 61, |_| {});
            let arrays = interrupt(0x10_0000_0000, 1 << 13, 3, |_| {});
            let cleared = interrupt(0x700_0000_0000, 1 << 13, 503, |page| {
                let left = Key { row: 8, requested: 1, sampled: false };
                for i in 0..4096 / 48 {
                    take_lane(i % 3 % 2);
                    assert!(page_keys::insert((page + i * 48) as *mut u8, 48, left));
                }
            });
            let elsewhere = ELSEWHERE.load(Relaxed);
            println!("exercised: {leaves}, {arrays} and {cleared} interrupted insertions, {elsewhere} keys elsewhere");
            assert!(leaves > 10 && arrays > 50 && cleared > 15 && elsewhere > 10);
        });
    }
}
