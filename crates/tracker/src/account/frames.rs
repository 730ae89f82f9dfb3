//! Frames: the stacks of sites as a tree. A stack is its innermost node; stacks that agree from a frame outwards share
//! the nodes from there on, so the 100,000 stacks of a large program take a few nodes each. Numbered when first seen,
//! never removed; what lies at an address that other code has taken is retired and no longer found.

use super::segment::Segment;
use crate::stack::deep::Frame;
use crate::sys::os;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::{Counter, FrameKind, FrameNode, Purpose, Section, frame_flags};

/// Hash → node, small first as in `callers`.
static SMALL: AtomicUsize = AtomicUsize::new(0);
static LARGE: AtomicUsize = AtomicUsize::new(0);
const SMALL_ENTRIES: usize = 2 << 10;
const LARGE_ENTRIES: usize = 2 * Section::Frames.capacity();

/// Reserves the tables. Node 0 is made with the first stack: a program without sites has no page for them.
pub fn init() -> bool {
    if SMALL.load(Relaxed) == 0 {
        let (Some(small), Some(large)) =
            (os::private(SMALL_ENTRIES * 4), os::table(LARGE_ENTRIES * 4, Purpose::FrameIndex))
        else {
            return false;
        };
        SMALL.store(small as usize, Release);
        LARGE.store(large as usize, Release);
    }
    true
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

/// The node of a frame under a node. `None`: there is no room.
fn node(segment: Segment, parent: u32, f: Frame, depth: u16) -> Option<u32> {
    let h = hash(parent, f);
    for (table, entries) in [(&SMALL, SMALL_ENTRIES), (&LARGE, LARGE_ENTRIES)] {
        let base = table.load(Acquire);
        if base == 0 {
            break;
        }
        let full = entries == SMALL_ENTRIES && segment.used(Section::Frames) > SMALL_ENTRIES / 2;
        let mut at = h as usize & (entries - 1);
        for _ in 0..entries {
            // SAFETY: `at` is below the table's size; atomics in private zeroed memory.
            let cell = unsafe { &*((base + at * 4) as *const AtomicU32) };
            let mut i = cell.load(Acquire);
            if i == 0 {
                if full {
                    break;
                }
                i = insert(segment, cell, parent, f, depth)?;
            }
            if is(segment.frame(i), parent, f) {
                return Some(i);
            }
            at = (at + 1) & (entries - 1);
        }
    }
    None
}

/// What the cell holds afterwards: the new node, or the one that another thread put there meanwhile.
fn insert(segment: Segment, cell: &AtomicU32, parent: u32, f: Frame, depth: u16) -> Option<u32> {
    let i = segment.append(Section::Frames)?;
    let node = segment.frame(i);
    node.value.store(f.value, Relaxed);
    node.parent.store(parent, Relaxed);
    node.kind.store(f.kind as u8, Relaxed);
    node.flags.store(f.flags, Relaxed);
    node.depth.store(depth, Relaxed);
    Some(cell.compare_exchange(0, i, AcqRel, Acquire).map_or_else(|other| other, |_| i))
}

/// The node of a stack's innermost frame, and of each frame in `nodes`: `frames` under the node `parent` (0 = none), which
/// has this depth. `None`: the section is full, or there are no frames.
pub fn stack(segment: Segment, parent: u32, depth: usize, frames: &[Frame], nodes: &mut [u32]) -> Option<u32> {
    if segment.used(Section::Frames) == 0 {
        // Two threads may both: a node more that nobody names.
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

/// The code in this range has been replaced: its nodes, and all that lie further in, are found no more. Answers whether
/// a stack is among them, for any node.
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
