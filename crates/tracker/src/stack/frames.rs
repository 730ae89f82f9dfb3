//! Frames: the stacks of sites as a tree. A stack is its innermost node. Stacks that agree from a frame outwards share
//! the nodes from there on, so the 100,000 stacks of a large program take a few nodes each. Numbered when first seen,
//! never removed; a node whose address other code has taken is retired and no longer found.
//!
//! ```text
//! a ◀ b ◀ c         nodes 5, 6, 7      index: a under 0 ▶ 5
//! a ◀ b ◀ d ◀ e     nodes 5, 6, 8, 9          d under 6 ▶ 8           e lies behind d, its parent
//! ```
//! The frames of a stack that are new are one chain: claimed together, written, and only then found, by the outermost
//! one's cell in the index. So the index has a cell for each branch and not for each node. No chain begins behind the
//! node that it lies under, so a node with a child behind it has that child from its own chain: it was written before
//! the node could be found. Any other child is in the index. So each frame under a node has one node, whichever thread
//! adds it. A parent has a smaller number than its children, so a reader of a damaged file meets no circle.

use crate::segment::Segment;
use crate::segment::index::{Free, Index};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use plimsoll_segment::{Counter, FrameKind, FrameNode, Purpose, Section, frame_flags};

/// Hash → node that begins a chain.
static INDEX: Index = Index::new(Section::Frames.capacity(), &[11, 14, 17, 20, 18], Purpose::FrameIndex);
/// Nodes in the index.
static INDEXED: AtomicUsize = AtomicUsize::new(0);

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

/// The node of a frame under a node. `Err`: the free cell where it belongs, or `None` without an index.
fn find(segment: Segment, parent: u32, f: Frame) -> Result<u32, Option<Free>> {
    let next = parent + 1;
    // A node that isn't in use may lie on a page that isn't populated.
    let is_next = parent != 0 && (next as usize) < segment.used(Section::Frames);
    if is_next && is(segment.frame(next), parent, f) {
        return Ok(next);
    }
    INDEX.find(hash(parent, f), INDEXED.load(Acquire), |i| is(segment.frame(i), parent, f))
}

/// Claims at least `n` nodes under a node. Returns the end of the last `n`, which don't begin behind the parent.
/// `None`: there is no space.
fn claim(segment: Segment, parent: u32, n: usize) -> Option<u32> {
    // If another thread claims nodes after this comparison, the node in front of the chain stays unused, too.
    let is_behind = parent != 0 && segment.used(Section::Frames) == parent as usize + 1;
    let all = n + is_behind as usize;
    Some(segment.append_some(Section::Frames, all)? + all as u32)
}

/// Writes a chain: the outermost of these frames as the node `first` under `parent`, which has this depth.
fn write(segment: Segment, first: u32, parent: u32, depth: usize, frames: &[Frame]) {
    let mut parent = parent;
    for (i, f) in frames.iter().rev().enumerate() {
        let node = segment.frame(first + i as u32);
        node.kind.store(f.kind as u8, Relaxed);
        node.flags.store(f.flags, Relaxed);
        node.depth.store((depth + i + 1).min(u16::MAX as usize) as u16, Relaxed);
        // These come last: `retire` recognises the node by them, and the flag that it sets must not be overwritten.
        node.parent.store(parent, Release);
        node.value.store(f.value, Release);
        parent = first + i as u32;
    }
}

/// The node of a stack's innermost frame, and of each frame in `nodes`: `frames` under the node `parent` (0 = none),
/// which has this depth. `None`: the section is full, or there are no frames.
pub fn stack(segment: Segment, parent: u32, depth: usize, frames: &[Frame], nodes: &mut [u32]) -> Option<u32> {
    if segment.used(Section::Frames) == 0 {
        // Two threads may do this at the same time: then one more node stays unused.
        segment.append(Section::Frames)?;
    }
    let node = find_or_make(segment, parent, depth, frames, nodes);
    if node.is_none() {
        segment.count(Counter::frames_cut, 1);
    }
    node.filter(|node| *node != 0)
}

/// As [`stack`]; 0 = there are no frames.
fn find_or_make(segment: Segment, parent: u32, depth: usize, frames: &[Frame], nodes: &mut [u32]) -> Option<u32> {
    let all = frames.len().min(nodes.len());
    let (mut parent, mut left) = (parent, all);
    // End of this call's chain, which has space for all frames that are left; 0 = none is claimed yet.
    let mut end = 0;
    while left > 0 {
        let free = match find(segment, parent, frames[left - 1]) {
            Ok(known) => {
                left -= 1;
                nodes[left] = known;
                parent = known;
                continue;
            }
            Err(free) => free?,
        };
        // Another thread's node, which became known meanwhile, may lie behind this call's chain.
        if end == 0 || parent as usize >= end as usize - left {
            end = claim(segment, parent, left)?;
        }
        // A new node has no children, so the frames further in are new, too. If another thread has added some of the
        // chain's frames meanwhile, the last nodes of the chain take the rest. The node in front of these stays unused.
        let first = end - left as u32;
        write(segment, first, parent, depth + all - left, &frames[..left]);
        if free.put(first) {
            INDEXED.fetch_add(1, AcqRel);
            nodes[..left].iter_mut().rev().zip(first..).for_each(|(to, node)| *to = node);
            return Some(end - 1);
        }
        // Another thread took the cell, perhaps for the same frame: look again.
    }
    Some(parent)
}

/// Retires the nodes in this range, because other code has taken its place, and all nodes further in. They are no
/// longer found.
pub fn retire(segment: Segment, range: core::ops::Range<u64>) {
    for i in 1..segment.used(Section::Frames) as u32 {
        let node = segment.frame(i);
        let native = matches!(FrameKind::of(node.kind.load(Relaxed)), FrameKind::Native | FrameKind::Interrupted);
        let parent = node.parent.load(Acquire);
        // Parents have smaller numbers: they are settled by now.
        let outer = parent != 0 && parent < i && is_retired(segment, parent);
        if outer || (native && range.contains(&(node.value.load(Acquire).wrapping_sub(1)))) {
            node.flags.fetch_or(frame_flags::RETIRED, Relaxed);
        }
    }
}

/// Whether other code lies now where a stack's frames were.
pub fn is_retired(segment: Segment, stack: u32) -> bool {
    segment.frame(stack).flags.load(Relaxed) & frame_flags::RETIRED != 0
}
