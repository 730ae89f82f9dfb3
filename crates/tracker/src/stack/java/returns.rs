//! Return addresses into compiled code that were met before: the rule by which their frame is walked, and the Java
//! frames that they stand for.
//!
//! What an nmethod's code stands for is decided when it is installed, and its compile id is never given out again. So
//! an answer holds for a frame on a stack as long as the word with the id is unchanged. The guard of a remembered stack
//! checks the same word ([`super::Guard`]). Methods of an nmethod that has a frame are alive, and with them their
//! names. Nothing is kept for a deoptimised frame: it returns to a handler, and keeps its own return address in the
//! frame.

use super::cells::{Cells, WORDS};
use super::{Guard, memory};
use crate::stack::frames::Frame;
use crate::stack::rule::Rule;
use plimsoll_segment::FrameKind;

/// 256 KiB, touched one after the other.
static KNOWN: Cells<2048, { 8 << 10 }> = Cells::empty();
/// Frames inlined into each other; a return address with more is worked out each time.
pub const FRAMES: usize = WORDS - 5;

/// A return address, and what is known about it.
pub struct KnownReturn {
    pub guard: Guard,
    pub rule: Rule,
    frames: [u64; FRAMES],
    used: usize,
}

/// What is known about this return address.
#[inline]
pub fn recall(ra: u64) -> Option<KnownReturn> {
    let [_, at, value, rule, used, frames @ ..] = KNOWN.kept(ra)?;
    let still = memory::load(at) == Some(value);
    still.then(|| KnownReturn { guard: Guard { at, value }, rule: Rule::from_bits(rule), frames, used: used as usize })
}

pub fn keep(ra: u64, guard: Guard, rule: Rule, list: &List) {
    if (1..=FRAMES).contains(&list.used) {
        let mut words = [ra, guard.at, guard.value, rule.to_bits(), list.used as u64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        words[5..].copy_from_slice(&list.frames);
        KNOWN.put(words);
    }
}

impl KnownReturn {
    pub fn frames(&self) -> impl Iterator<Item = Frame> {
        self.frames.iter().take(self.used).map(|word| unpacked(*word))
    }

    /// Whether it equals a new result.
    pub fn is(&self, guard: Guard, rule: Rule, list: &List) -> bool {
        self.guard == guard && self.rule == rule && self.used == list.used && self.frames == list.frames
    }
}

/// Frames as they are kept: a value of 48 bits, the kind, the flags.
#[derive(Default)]
pub struct List {
    frames: [u64; FRAMES],
    used: usize,
}

impl List {
    pub fn push(&mut self, f: Frame) {
        if let Some(to) = self.frames.get_mut(self.used) {
            *to = f.value | (f.kind as u64) << 48 | (f.flags as u64) << 56;
        }
        // A list with a value that doesn't fit isn't kept.
        self.used += if f.value >> 48 == 0 { 1 } else { FRAMES + 1 };
    }
}

fn unpacked(word: u64) -> Frame {
    Frame { value: word & ((1 << 48) - 1), kind: FrameKind::of((word >> 48) as u8), flags: (word >> 56) as u8 }
}
