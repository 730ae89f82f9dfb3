//! The same profile with stacks that begin further out: who calls the allocator's own wrappers.

use std::collections::HashMap;

use super::{FrameId, Profile, StackId};

impl Profile {
    /// `leading` says how many innermost frames of a stack are left out; a stack keeps at least one. Second: what became
    /// of each stack.
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
