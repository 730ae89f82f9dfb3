//! How deep a reader follows the stacks of a segment.

use plimsoll_segment::sites::{self, MOST_FRAMES};
use plimsoll_segment::{FrameNode, FrameNodeFacts};

/// One chain; node 0 stands for no node.
fn chain(length: u32) -> Vec<FrameNodeFacts> {
    let none = FrameNodeFacts::decode(&[0; size_of::<FrameNode>()]).expect("zeros decode");
    let node = |parent: u32| FrameNodeFacts { parent, value: u64::from(parent) + 1, ..none.clone() };
    std::iter::once(none.clone()).chain((0..length).map(node)).collect()
}

#[test]
fn a_stack_ends_where_the_trackers_stacks_do() {
    let most = MOST_FRAMES as u32;
    for (length, depth, is_too_deep) in [(3, 3, false), (most, most, false), (most + 1, most, true), (5000, most, true)]
    {
        let nodes = chain(length);
        let mut frames = sites::stack(&nodes, length);
        let values: Vec<u64> = frames.by_ref().map(|node| node.value).collect();
        let expected: Vec<u64> = (0..depth).map(|outwards| u64::from(length - outwards)).collect();
        assert_eq!((values, frames.is_too_deep()), (expected, is_too_deep));
    }
}
