//! The category of a caller's blocks: from its frames, by the rules and by the calling object.

use crate::segment::{Segment, categories};
use crate::stack::callers::{self, FRAMES};
use crate::stack::module::{self, Module};
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::rules::{CALLED_BY_GENERATED, Decision, ModuleRules, RuleTarget};

/// The caller with these frames (innermost first) under this pushed category (+ 1; 0 = none), numbered and classified.
pub fn caller(segment: Segment, frames: &[u64], flags: u32, pushed: u32) -> u32 {
    callers::number(segment, frames, flags, pushed, |frames| classify(segment, frames).0)
}

/// Cache: hash of frames, and in bit 0 whether they decide the category. Races are harmless, since a cell is one word.
static DECIDED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Whether these frames decide the category, whatever the outer frames are; and their category, if the answer required
/// it.
pub fn is_decided(segment: Segment, frames: &[u64]) -> (bool, Option<u16>) {
    let h = callers::hash(frames, callers::retirements(), 0) & !1;
    let cell = &DECIDED[(h >> 20) as usize & (DECIDED.len() - 1)];
    let known = cell.load(Relaxed);
    if known & !1 == h {
        return (known & 1 != 0, None);
    }
    let (category, decided) = classify(segment, frames);
    cell.store(h | decided as u64, Relaxed);
    (decided, Some(category))
}

/// The category of frames, and whether outer frames can't change it.
fn classify(segment: Segment, frames: &[u64]) -> (u16, bool) {
    let Some(rules) = crate::rules::rules() else { return (categories::OTHER, true) };
    let mut modules: [Option<&Module>; FRAMES] = [None; FRAMES];
    let mut last: Option<&Module> = None;
    for (m, f) in modules.iter_mut().zip(frames) {
        let pc = *f as usize - 1;
        // Neighbouring frames mostly lie in one object, and a query to the loader costs more than the rest.
        let is_last = last.is_some_and(|last| last.is_contiguous && (last.start..last.end).contains(&pc));
        if !is_last {
            last = module::keeping_frame_pointers_at(pc).or_else(|| module::find(segment, pc));
        }
        *m = last;
    }
    let with = |i: usize| -> (ModuleRules<'static>, u64) {
        match modules[i] {
            Some(m) => (m.rules, frames[i] - 1 - m.bias as u64),
            None => (rules.module(b"", b""), 0),
        }
    };
    let known = modules.iter().take(frames.len()).take_while(|m| m.is_some()).count();
    let exhausted = Cell::new(false);
    // A rule that decides reads no more frames. So if the rules tried to read a frame after the last one, the category
    // isn't decided yet.
    let all = (0..known).map(with).chain(core::iter::from_fn(|| {
        exhausted.set(true);
        None
    }));
    // All frames up to the first one without a file (JIT code) are wrappers: the function that they serve left no
    // frame.
    let generated = || -> Option<u16> {
        let (inner, last) = (modules[0]?, modules[known.checked_sub(1)?]?);
        let through = matches!(inner.rules.lookup(frames[0] - 1 - inner.bias as u64), RuleTarget::Through);
        match last.rules.lookup(CALLED_BY_GENERATED.into()) {
            RuleTarget::Category(i) if through && known < frames.len() => Some(i),
            _ => None,
        }
    };
    let category = match rules.classify(all) {
        Decision::Category(i) => categories::of_rule(segment, i),
        Decision::Object(0) if generated().is_some() => {
            generated().map_or(categories::OTHER, |i| categories::of_rule(segment, i))
        }
        Decision::Object(i) => match modules[i] {
            Some(m) => segment.module(m.id).category.load(Relaxed),
            None => categories::NO_FILE,
        },
        Decision::Unknown => categories::NO_FILE,
    };
    (category, !exhausted.get())
}
