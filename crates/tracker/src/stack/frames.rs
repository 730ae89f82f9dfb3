//! Frames: the stacks of sites as a tree. A stack is its innermost node. Stacks that agree from a frame outwards share
//! the nodes from there on, so the 100,000 stacks of a large program take a few nodes each. Numbered when first seen,
//! never removed; a node whose address other code has taken is retired and no longer found.

use crate::segment::Segment;
use crate::segment::index::Index;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::{Counter, FrameKind, FrameNode, Purpose, Section, frame_flags};

/// Hash → node.
static INDEX: Index = Index::new(Section::Frames.capacity(), &[11, 14, 17, 20, 18], Purpose::FrameIndex);

/// Reserves the index. Node 0 is made with the first stack: a program without sites has no page for them.
pub fn init() -> bool {
    INDEX.init()
}

/// Reserves all of the index, for a program that is about to forbid system calls.
pub fn reserve() {
    INDEX.reserve();
}

/// One frame as it is written into the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub value: u64,
    pub kind: FrameKind,
    pub flags: u8,
}

fn hash(parent: u32, f: Frame) -> u64 {
    let h = f.value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (parent as u64) << 16 ^ (f.kind as u64) << 8 ^ f.flags as u64;
    let h = (h ^ (h >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    h ^ (h >> 32)
}

fn is(node: &FrameNode, parent: u32, f: Frame) -> bool {
    node.value.load(Relaxed) == f.value
        && node.parent.load(Relaxed) == parent
        && node.kind.load(Relaxed) == f.kind as u8
        && node.flags.load(Relaxed) == f.flags
}

/// The node of a frame under a node. `None`: there is no space.
fn node(segment: Segment, parent: u32, f: Frame, depth: u16) -> Option<u32> {
    let h = hash(parent, f);
    let mut own = None;
    loop {
        let used = segment.used(Section::Frames);
        // A node has a larger number than its parent.
        let free = match INDEX.find(h, used, parent, |i| is(segment.frame(i), parent, f)) {
            Ok(i) => return Some(i),
            Err(free) => free?,
        };
        let i = match own {
            Some(i) => i,
            None => make(segment, parent, f, depth)?,
        };
        // Another thread took the place, perhaps for the same frame: look again.
        if free.put(i) {
            return Some(i);
        }
        own = Some(i);
    }
}

fn make(segment: Segment, parent: u32, f: Frame, depth: u16) -> Option<u32> {
    let i = segment.append(Section::Frames)?;
    let node = segment.frame(i);
    node.value.store(f.value, Relaxed);
    node.parent.store(parent, Relaxed);
    node.kind.store(f.kind as u8, Relaxed);
    node.flags.store(f.flags, Relaxed);
    node.depth.store(depth, Relaxed);
    Some(i)
}

/// The node of a stack's innermost frame, and of each frame in `nodes`: `frames` under the node `parent` (0 = none),
/// which has this depth. `None`: the section is full, or there are no frames.
pub fn stack(segment: Segment, parent: u32, depth: usize, frames: &[Frame], nodes: &mut [u32]) -> Option<u32> {
    if segment.used(Section::Frames) == 0 {
        // Two threads may do this at the same time: then one more node stays unused.
        segment.append(Section::Frames)?;
    }
    let mut parent = parent;
    for (i, (f, to)) in frames.iter().zip(nodes).rev().enumerate() {
        let Some(next) = node(segment, parent, *f, (depth + i + 1).min(u16::MAX as usize) as u16) else {
            segment.count(Counter::frames_cut, 1);
            return None;
        };
        parent = next;
        *to = next;
    }
    (parent != 0).then_some(parent)
}

/// Retires the nodes in this range, because other code has taken its place, and all nodes further in. They are no
/// longer found.
pub fn retire(segment: Segment, range: core::ops::Range<u64>) {
    for i in 1..segment.used(Section::Frames) as u32 {
        let node = segment.frame(i);
        let native = matches!(FrameKind::of(node.kind.load(Relaxed)), FrameKind::Native | FrameKind::Interrupted);
        let parent = node.parent.load(Relaxed);
        // Parents have smaller numbers: they are settled by now.
        let outer = parent != 0 && parent < i && is_retired(segment, parent);
        if outer || (native && range.contains(&(node.value.load(Relaxed).wrapping_sub(1)))) {
            node.flags.fetch_or(frame_flags::RETIRED, Relaxed);
        }
    }
}

/// Whether other code lies now where a stack's frames were.
pub fn is_retired(segment: Segment, stack: u32) -> bool {
    segment.frame(stack).flags.load(Relaxed) & frame_flags::RETIRED != 0
}
