//! stack/callers.rs and account/classify.rs: one number for each stack.

use crate::segment::counter;
use crate::{Random, alone, fresh};
use plimsoll_segment::{CALLER_OVERFLOW, CategoryKind, Counter, Section};
use plimsoll_tracker::account::classify;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::segment::categories;
use plimsoll_tracker::stack::callers;
use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::Ordering::*;

/// What distinguishes callers: frames, flags, pushed category.
type Stack = (Vec<u64>, u32, u32);

fn stack(random: &mut Random) -> Stack {
    // Few addresses, so that many stacks differ in one frame, or are a piece of another.
    let depth = 1 + random.below(callers::FRAMES as u64) as usize;
    let frames = (0..depth).map(|_| 0x7f00_0000_0001 + random.below(5) * 0x40).collect();
    let flags = [0, 0, 0, callers::TRUNCATED, callers::JIT][random.below(5) as usize];
    (frames, flags, random.below(4) as u32)
}

fn number(segment: Segment, s: &Stack) -> u32 {
    classify::caller(segment, &s.0, s.1, s.2)
}

#[test]
fn the_same_stack_has_one_number() {
    alone(|| {
        let segment = fresh();
        for name in ["one", "two", "three"] {
            categories::register(segment, name.as_bytes(), CategoryKind::Program);
        }
        let mut random = Random(23);
        let (mut known, mut owner) = (HashMap::<Stack, u32>::new(), HashMap::<u32, Stack>::new());
        let (mut again, mut fresh) = (0u64, 0u64);
        for _ in 0..60_000 {
            let s = stack(&mut random);
            let n = number(segment, &s);
            match known.get(&s) {
                Some(k) => {
                    assert_eq!(n, *k, "{s:x?}");
                    again += 1;
                }
                None => {
                    assert_eq!(owner.insert(n, s.clone()), None, "two stacks are caller {n}");
                    let c = segment.caller(n);
                    assert_eq!(c.depth.load(Relaxed) as usize, s.0.len());
                    assert!(s.0.iter().zip(&c.frames).all(|(f, k)| *f == k.load(Relaxed)));
                    assert_eq!((c.flags.load(Relaxed), c.hash.load(Relaxed) >> 63), (s.1, 1));
                    if s.2 != 0 {
                        assert_eq!(c.category.load(Relaxed) as u32, s.2 - 1);
                    }
                    known.insert(s, n);
                    fresh += 1;
                }
            }
        }
        println!("exercised: {fresh} callers, {again} times known");
        assert!(fresh > 10_000 && again > 5_000, "both tables");
        assert_eq!(counter(segment, Counter::callers_merged), 0);
        // Only the first eight frames count.
        let long: Vec<u64> = (1..12).collect();
        assert_eq!(classify::caller(segment, &long, 0, 0), classify::caller(segment, &long[..callers::FRAMES], 0, 0));
    });
}

#[test]
fn four_threads_give_one_stack_one_number() {
    alone(|| {
        let segment = fresh();
        let mut random = Random(5);
        let stacks: Vec<Stack> = (0..2000).map(|_| stack(&mut random)).collect();
        // All four threads look up the same stack at about the same moment, each time.
        let together = Barrier::new(4);
        let numbers: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let run = || {
                let each = |s| {
                    together.wait();
                    number(segment, s)
                };
                stacks.iter().map(each).collect()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().expect("thread")).collect()
        });
        // If two threads come at once, each may have made an entry, but all must have got the same one.
        assert!(numbers.iter().all(|n| *n == numbers[0]), "threads disagree");
        let empty = (3..segment.used(Section::Callers) as u32).filter(|i| segment.caller(*i).hash.load(Relaxed) == 0);
        println!("exercised: 4 threads, {} stacks, {} entries given up", stacks.len(), empty.count());
    });
}

#[test]
fn a_full_section_merges_and_counts() {
    alone(|| {
        let segment = fresh();
        let room = Section::Callers.capacity() - segment.used(Section::Callers);
        let of = |i: usize| classify::caller(segment, &[0x1000 + i as u64 * 2, 0x77], 0, 0);
        let numbers: Vec<u32> = (0..room).map(of).collect();
        assert!(numbers.iter().all(|n| *n > CALLER_OVERFLOW));
        assert_eq!(counter(segment, Counter::callers_merged), 0);
        for i in room..room + 1000 {
            assert_eq!(of(i), CALLER_OVERFLOW);
        }
        assert_eq!(counter(segment, Counter::callers_merged), 1000);
        assert_eq!(segment.used(Section::Callers), Section::Callers.capacity());
        // Callers that have an entry keep it.
        assert!((0..room).step_by(997).all(|i| of(i) == numbers[i]));
        println!("exercised: {room} callers, 1000 merged");
    });
}
