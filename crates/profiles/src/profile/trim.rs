//! Drops innermost frames of stacks, to show the callers of the allocator's wrappers.

use std::collections::HashMap;

use super::{FrameId, Profile, StackId};

impl Profile {
    /// `leading` gives the number of innermost frames of a stack to drop; a stack keeps at least one. The second result
    /// maps old stacks to new ones.
    pub fn trimmed(&self, mut leading: impl FnMut(&[FrameId]) -> usize) -> (Profile, HashMap<StackId, StackId>) {
        let mut profile = self.emptied();
        let mut to: HashMap<StackId, StackId> = HashMap::new();
        for (entry, values) in self.entries() {
            let stack = *to.entry(entry.stack).or_insert_with(|| {
                let frames = self.frames_of(entry.stack);
                let skip = leading(frames);
                profile.stack(if skip < frames.len() { &frames[skip..] } else { frames })
            });
            profile.add(stack, entry.labels, values);
        }
        (profile, to)
    }
}
