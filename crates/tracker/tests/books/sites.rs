//! stack/frames.rs and the sites of stack/callers.rs against a map of whole stacks.

use crate::{Random, alone, fresh};
use plimsoll_segment::{CallerFacts, FrameKind, FrameNodeFacts, Section, sites};
use plimsoll_tracker::account::classify;
use plimsoll_tracker::segment::Segment;
use plimsoll_tracker::stack::frames::Frame;
use plimsoll_tracker::stack::{callers, frames};
use std::collections::{HashMap, HashSet};
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
