//! Copies of a profile with other stacks. Without innermost frames, they show the callers of the allocator's wrappers.
//! Other copies have the names that another profile has for the same code.

use std::collections::HashMap;

use super::{Frame, FrameId, FrameOrigin, Profile, StackId};

impl Profile {
    /// `leading` gives the number of innermost frames of a stack to drop; a stack keeps at least one. The second result
    /// maps old stacks to new ones.
    pub fn trimmed(&self, mut leading: impl FnMut(&[FrameId]) -> usize) -> (Profile, HashMap<StackId, StackId>) {
        self.with_stacks(self.emptied(), |frames| {
            let skip = leading(frames);
            if skip < frames.len() { frames[skip..].to_vec() } else { frames.to_vec() }
        })
    }

    /// Native frames without a name get the name that `other` has for the same code: for the same offset in the same
    /// build. The second result maps old stacks to new ones. None: `other` knows no more.
    pub fn named_by(&self, other: &Profile) -> Option<(Profile, HashMap<StackId, StackId>)> {
        // Inlined frames have the offset of the function that they were inlined into.
        let names: HashMap<(&[u8], u64), &Frame> = other
            .all_frames()
            .filter(|frame| frame.function.is_some() && !frame.inlined)
            .filter_map(|frame| Some((other.code_of(frame)?, frame)))
            .collect();
        let name =
            |frame: &Frame| frame.function.is_none().then(|| names.get(&self.code_of(frame)?).copied()).flatten();
        let mut profile = self.emptied();
        let mut is_new = false;
        let mut to = Vec::with_capacity(self.function_of.len());
        for (number, frame) in self.all_frames().enumerate() {
            to.push(match name(frame) {
                Some(Frame { function, file, line, .. }) => {
                    is_new = true;
                    let (function, file) = (function.clone(), file.clone());
                    profile.frame(Frame { function, file, line: *line, ..frame.clone() })
                }
                None => FrameId(number as u32),
            });
        }
        is_new.then(|| self.with_stacks(profile, |frames| frames.iter().map(|frame| to[frame.number()]).collect()))
    }

    fn all_frames(&self) -> impl Iterator<Item = &Frame> {
        (0..self.function_of.len()).map(|number| self.frame_at(FrameId(number as u32)))
    }

    /// Build id and offset of a native frame.
    fn code_of(&self, frame: &Frame) -> Option<(&[u8], u64)> {
        let module = frame.module.filter(|_| frame.kind == FrameOrigin::Native)?;
        let build_id = self.module_at(module).build_id.as_slice();
        (!build_id.is_empty()).then_some((build_id, frame.offset))
    }

    /// Adds this profile's entries to `profile`, with the frames that `change` gives for a stack.
    fn with_stacks(
        &self,
        mut profile: Profile,
        mut change: impl FnMut(&[FrameId]) -> Vec<FrameId>,
    ) -> (Profile, HashMap<StackId, StackId>) {
        let mut to: HashMap<StackId, StackId> = HashMap::new();
        for (entry, values) in self.entries() {
            let stack = *to.entry(entry.stack).or_insert_with(|| profile.stack(&change(self.frames_of(entry.stack))));
            profile.add_copy(self, entry, (stack, entry.labels), values);
        }
        (profile, to)
    }
}
