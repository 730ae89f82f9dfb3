//! The frames of a JSON document, each once. In a document with a table, the `stack` of a site holds indices into the
//! table, innermost first. A frame then takes a few bytes, where names and paths take a few hundred. In a document
//! without a table, the text of each frame is made once and copied.

use std::collections::HashMap;

use plimsoll_profiles::profile::{FrameId, Profile, StackId};
use plimsoll_tracked::books::Books;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FrameLine {
    pub function: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub function_offset: u64,
    pub module: Option<String>,
    pub offset: u64,
    pub address: u64,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub kind: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A frame of a caller's short stack.
pub(crate) fn frame_line(books: &Books, frame: &plimsoll_tracked::books::Frame) -> FrameLine {
    FrameLine {
        function: frame.function.clone(),
        function_offset: frame.function_offset,
        module: frame.module.and_then(|i| books.modules.get(i)).map(|m| m.path.clone()),
        offset: frame.offset,
        address: frame.address.0,
        file: frame.file.clone(),
        line: frame.line,
        kind: if frame.module.is_some() { "native" } else { "unknown" }.into(),
        inlined: false,
    }
}

#[derive(Default)]
pub(crate) struct FrameTable {
    lines: Vec<FrameLine>,
    indexes: HashMap<FrameLine, u32>,
    /// Indexed by `FrameId`: the frame's index in `lines`.
    of_profile: Vec<Option<u32>>,
}

impl FrameTable {
    pub(crate) fn of(profile: &Profile) -> FrameTable {
        let mut table = FrameTable::default();
        table.add_all(profile);
        table
    }

    /// Adds the frames of all entries.
    pub(crate) fn add_all(&mut self, profile: &Profile) {
        profile.entries().for_each(|(entry, _)| self.add(profile, entry.stack));
    }

    pub(crate) fn add(&mut self, profile: &Profile, stack: StackId) {
        for id in whole(profile, stack).0 {
            let at = id.number();
            if at >= self.of_profile.len() {
                self.of_profile.resize(at + 1, None);
            }
            if self.of_profile[at].is_none() {
                self.of_profile[at] = Some(self.index_of(line(profile, *id)));
            }
        }
    }

    /// The index of a frame of any origin.
    pub(crate) fn index_of(&mut self, frame: FrameLine) -> u32 {
        let next = self.lines.len() as u32;
        *self.indexes.entry(frame).or_insert_with_key(|frame| {
            self.lines.push(frame.clone());
            next
        })
    }

    /// The indices of a stack that was added; the flag is set if its walk ended early, so that outer callers are
    /// missing.
    pub(crate) fn stack(&self, profile: &Profile, stack: StackId) -> (Vec<u32>, bool) {
        let (frames, truncated) = whole(profile, stack);
        let index_of = |id: &FrameId| self.of_profile.get(id.number()).copied().flatten();
        (frames.iter().filter_map(index_of).collect(), truncated)
    }

    pub(crate) fn lines(&self) -> &[FrameLine] {
        &self.lines
    }

    /// Each frame as the JSON text that a document has.
    pub(crate) fn texts(&self) -> serde_json::Result<Vec<Box<RawValue>>> {
        self.lines.iter().map(serde_json::value::to_raw_value).collect()
    }

    pub(crate) fn into_lines(self) -> Vec<FrameLine> {
        self.lines
    }
}

/// The frames without the mark of a walk that ended early, and whether there was such a mark.
fn whole(profile: &Profile, stack: StackId) -> (&[FrameId], bool) {
    match profile.frames_of(stack) {
        [rest @ .., last] if profile.function_at(profile.function_of(*last)).is_truncation() => (rest, true),
        frames => (frames, false),
    }
}

fn line(profile: &Profile, id: FrameId) -> FrameLine {
    let frame = profile.frame_at(id);
    FrameLine {
        function: frame.function.clone(),
        function_offset: 0,
        module: frame.module.map(|m| profile.module_at(m).path.clone()),
        offset: frame.offset,
        address: frame.address.0,
        file: frame.file.clone(),
        line: frame.line,
        kind: frame.kind.name().into(),
        inlined: frame.inlined,
    }
}
