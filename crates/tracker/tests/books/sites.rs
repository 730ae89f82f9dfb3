//! stack/frames.rs and the sites of stack/callers.rs against a map of whole stacks.

use crate::{Random, alone, fresh, touched};
use plimsoll_segment::{CallerFacts, FrameKind, FrameNodeFacts, Purpose, Section, sites};
use plimsoll_tracker::account::classify;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::stack::frames::Frame;
use plimsoll_tracker::stack::{callers, frames};
use plimsoll_tracker::sys::os;
use std::collections::{HashMap, HashSet};
use std::sync::Barrier;
use std::sync::atomic::Ordering::*;

fn random_stack(random: &mut Random) -> Vec<Frame> {
    let n = 1 + random.below(12);
    let frame = |_| Frame { value: 0x1000 + random.below(6) * 16, kind: FrameKind::Native, flags: 0 };
    (0..n).map(frame).collect()
}

fn number(segment: Segment, stack: &[Frame]) -> u32 {
    let mut nodes = vec![0; stack.len()];
    let node = frames::stack(segment, 0, 0, stack, &mut nodes).expect("room");
    assert_eq!(nodes[0], node);
    let caller = classify::caller(segment, &[stack[0].value], 0, 1);
    callers::site(segment, caller, node, 0)
}

fn section<T>(segment: Segment, s: Section, decode: fn(&[u8]) -> Option<T>) -> Vec<T> {
    let bytes = segment.used(s) * s.entry_bytes();
    // SAFETY: the used part of a section.
    let bytes = unsafe { std::slice::from_raw_parts((segment.base() + s.offset()) as *const u8, bytes) };
    bytes.chunks_exact(s.entry_bytes()).filter_map(decode).collect()
}

/// Each site as a reader finds it: its stack and the innermost frame of its caller.
fn reader(segment: Segment) -> impl Fn(u32) -> (Vec<u64>, u64) {
    let callers = section(segment, Section::Callers, CallerFacts::decode);
    let nodes = section(segment, Section::Frames, FrameNodeFacts::decode);
    move |site| {
        let entry = &callers[site as usize];
        assert!(entry.is_site());
        let stack: Vec<&FrameNodeFacts> = sites::stack(&nodes, entry.stack).collect();
        assert_eq!(stack.len(), entry.depth as usize);
        (stack.iter().map(|n| n.value).collect(), callers[sites::caller_of(&callers, site as usize)].frames[0])
    }
}

#[test]
fn a_stack_has_one_number_and_reads_as_it_was() {
    alone(|| {
        let segment = fresh();
        let mut random = Random(77);
        let mut known = HashMap::<Vec<u64>, u32>::new();
        let mut again = 0u64;
        for _ in 0..30_000 {
            let stack = random_stack(&mut random);
            let site = number(segment, &stack);
            let key: Vec<u64> = stack.iter().map(|f| f.value).collect();
            if let Some(before) = known.insert(key, site) {
                assert_eq!(before, site);
                again += 1;
            }
        }
        let read = reader(segment);
        for (stack, site) in &known {
            assert_eq!(read(*site), (stack.clone(), stack[0]));
        }
        let distinct: HashSet<&u32> = known.values().collect();
        assert_eq!(distinct.len(), known.len());
        println!("exercised: {} stacks, {again} seen again, {} nodes", known.len(), segment.used(Section::Frames));
        assert!(again > 1000 && known.len() > 10_000);
    });
}

/// The nodes of a stack, innermost first.
fn nodes(segment: Segment, stack: &[u64]) -> Vec<u32> {
    let stack: Vec<Frame> =
        stack.iter().map(|value| Frame { value: *value, kind: FrameKind::Native, flags: 0 }).collect();
    let mut nodes = vec![0; stack.len()];
    assert_eq!(frames::stack(segment, 0, 0, &stack, &mut nodes), Some(nodes[0]));
    nodes
}

#[test]
fn threads_that_add_the_same_stacks_have_the_same_nodes() {
    const THREADS: usize = 8;
    // So few frames and so flat stacks that all possible nodes, 1,364, fit into the first level of the index.
    const FRAMES: u64 = 4;
    const DEEPEST: u64 = 5;
    alone(|| {
        let segment = fresh();
        let mut random = Random(91);
        let stack = |random: &mut Random| -> Vec<u64> {
            (0..1 + random.below(DEEPEST)).map(|_| 0x1000 + random.below(FRAMES) * 16).collect()
        };
        let stacks: Vec<Vec<u64>> = (0..4000).map(|_| stack(&mut random)).collect();
        let start = Barrier::new(THREADS);
        let all: Vec<Vec<Vec<u32>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (stacks, start) = (&stacks, &start);
                    scope.spawn(move || {
                        let mut found = vec![vec![]; stacks.len()];
                        start.wait();
                        // Two threads begin at each of four places.
                        let first = thread / 2 * stacks.len() / THREADS;
                        for i in (first..stacks.len()).chain(0..first) {
                            found[i] = nodes(segment, &stacks[i]);
                        }
                        found
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("its nodes")).collect()
        });
        assert!(all.iter().all(|found| *found == all[0]), "threads disagree");
        let facts = section(segment, Section::Frames, FrameNodeFacts::decode);
        let mut twin = HashMap::<&[u64], u32>::new();
        for (stack, nodes) in stacks.iter().zip(&all[0]) {
            for (i, node) in nodes.iter().enumerate() {
                let outwards = &stack[i..];
                assert_eq!(*twin.entry(outwards).or_insert(*node), *node, "{outwards:x?}");
                let read: Vec<u64> = sites::stack(&facts, *node).map(|node| node.value).collect();
                assert_eq!((&read[..], facts[*node as usize].depth as usize), (outwards, outwards.len()));
            }
        }
        let distinct: HashSet<&u32> = twin.values().collect();
        assert_eq!(distinct.len(), twin.len());
        println!("exercised: {} nodes, {} of them unused", facts.len(), facts.len() - 1 - twin.len());
        assert!(twin.len() > 600);
    });
}

/// The index has a cell for each branch. A cell for each of 200,000 nodes would touch 4 MiB.
#[test]
fn stacks_that_share_no_frame_take_one_cell_each() {
    alone(|| {
        let segment = fresh();
        let touched_bytes = || {
            let mut bytes = 0;
            os::each_mapping(|of| bytes += if of.purpose == Purpose::Data { 0 } else { touched(of) });
            bytes
        };
        let before = touched_bytes();
        let stack = |i: u64| -> Vec<u64> { (0..20).map(|k| 0x1000 + (i * 20 + k) * 16).collect() };
        let first: Vec<Vec<u32>> = (0..10_000).map(|i| nodes(segment, &stack(i))).collect();
        let kib = (touched_bytes() - before) >> 10;
        assert!(first.iter().all(|nodes| nodes.is_sorted_by(|inner, outer| *inner == *outer + 1)));
        assert!((0..10_000).all(|i| nodes(segment, &stack(i)) == first[i as usize]));
        println!("exercised: {} nodes, {kib} KiB", segment.used(Section::Frames));
        // Levels of 8 and 64 KiB, each of which may begin in the middle of a page.
        assert!(kib <= 80, "{kib}");
    });
}

/// A frame that is added right behind its outer frame's node must not pass for one of the same chain: another thread
/// may have added it too, with a cell in the index.
#[test]
fn a_frame_under_the_last_node_is_not_beside_it() {
    alone(|| {
        let segment = fresh();
        let short = nodes(segment, &[0x2000, 0x1000]);
        let long = nodes(segment, &[0x3000, 0x2000, 0x1000]);
        assert_eq!(long[1..], short);
        assert!(long[0] > short[0] + 1, "{long:?}");
        let other = nodes(segment, &[0x4000, 0x2000, 0x1000]);
        assert!(other[1..] == short && other[0] != long[0]);
        assert_eq!(nodes(segment, &[0x3000, 0x2000, 0x1000]), long);
        assert_eq!(nodes(segment, &[0x4000, 0x2000, 0x1000]), other);
        println!("exercised: {long:?} and {other:?}");
    });
}

#[test]
fn a_chain_goes_on_elsewhere_where_its_code_was_replaced() {
    alone(|| {
        let segment = fresh();
        let stack = [0x7010, 0x7000, 0x5008, 0x9010, 0x9000];
        let old = nodes(segment, &stack);
        callers::retire(segment, 0x5000..0x6000);
        let new = nodes(segment, &stack);
        assert_eq!(new[3..], old[3..], "further out nothing has changed");
        assert!(new[..3].iter().all(|node| !old.contains(node)));
        assert_eq!(nodes(segment, &stack), new);
        println!("exercised: {old:?} and {new:?}");
    });
}

#[test]
fn replaced_code_is_found_no_more() {
    alone(|| {
        let segment = fresh();
        let frame = |value| Frame { value, kind: FrameKind::Native, flags: 0 };
        let (inside, outside) = ([frame(0x5008), frame(0x9000)], [frame(0x7000), frame(0x9000)]);
        let (a, b) = (number(segment, &inside), number(segment, &outside));
        let under = number(segment, &[frame(0x7000), frame(0x5008), frame(0x9000)]);
        callers::retire(segment, 0x5000..0x6000);
        assert_eq!(number(segment, &outside), b);
        assert_ne!(number(segment, &inside), a);
        assert_ne!(number(segment, &[frame(0x7000), frame(0x5008), frame(0x9000)]), under, "further in, too");
        assert_eq!(reader(segment)(a).0, [0x5008, 0x9000], "the old one stays readable");
    });
}

#[test]
fn a_full_section_merges_into_the_caller() {
    alone(|| {
        let segment = fresh();
        let frame = |value| Frame { value, kind: FrameKind::Native, flags: 0 };
        let (mut made, mut merged) = (0u64, 0u64);
        for i in 0..Section::Callers.capacity() as u64 {
            let site = number(segment, &[frame(0x4000), frame(0x10_0000 + i)]);
            if segment.caller(site).parent.load(Relaxed) != 0 { made += 1 } else { merged += 1 }
        }
        println!("exercised: {made} sites, {merged} merged");
        assert!(made >= 100_000 && merged > 10_000);
        let counted = segment.header().values[plimsoll_segment::Counter::sites_merged as usize].load(Relaxed);
        assert_eq!(counted, merged);
        let caller = classify::caller(segment, &[0x4000], 0, 1);
        assert_eq!(number(segment, &[frame(0x4000), frame(1)]), caller, "its blocks are the caller's own");
        assert_ne!(
            classify::caller(segment, &[0x8000], 0, 1),
            plimsoll_segment::CALLER_OVERFLOW,
            "callers have room left"
        );
    });
}
