//! Recognises innermost frames that only allocate for their callers: `operator new`, `os::malloc`, `strdup`,
//! `PyMem_RawMalloc`. They have *through* rules; users want to see their callers.

use std::collections::HashMap;

use crate::rules::{RuleSet, names};
use plimsoll_profiles::profile::{FrameId, FrameOrigin, Profile};

pub struct Wrappers<'a> {
    rules: &'a RuleSet,
    known: HashMap<FrameId, bool>,
}

impl<'a> Wrappers<'a> {
    pub fn new(rules: &'a RuleSet) -> Wrappers<'a> {
        Wrappers { rules, known: HashMap::new() }
    }

    /// Number of innermost frames that are wrappers.
    pub fn leading(&mut self, profile: &Profile, frames: &[FrameId]) -> usize {
        frames.iter().take_while(|f| self.is_wrapper(profile, **f)).count()
    }

    fn is_wrapper(&mut self, profile: &Profile, id: FrameId) -> bool {
        let rules = self.rules;
        *self.known.entry(id).or_insert_with(|| {
            let frame = profile.frame_at(id);
            let Some(module) = frame.module.filter(|_| frame.kind == FrameOrigin::Native) else { return false };
            let object = profile.module_at(module).name();
            match frame.function.as_deref() {
                Some(function) => rules.is_through(object, Some(&names::qualified(function))),
                None => rules.is_through(object, None),
            }
        })
    }
}
