//! Callers: up to eight return addresses with a category, numbered when first seen, never removed.

use super::categories;
use super::segment::Segment;
use crate::stack::module::{self, Module};
use crate::sys::os;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::rules::{Decision, ModuleRules};
use plimsoll_segment::{CALLER_OVERFLOW, Counter, Section};

/// Frames kept at most.
pub const FRAMES: usize = 8;
/// Flag: the walk ended early.
pub const TRUNCATED: u32 = 1;
/// Flag: ended at code of no module.
pub const JIT: u32 = 2;
/// Flag: stands for callers that had no room.
pub const OVERFLOW: u32 = 4;

/// Hash → caller. Small first: a table is touched all over, and a small program shouldn't pay for a large one.
static SMALL: AtomicUsize = AtomicUsize::new(0);
static LARGE: AtomicUsize = AtomicUsize::new(0);
const SMALL_ENTRIES: usize = 8 << 10;
const LARGE_ENTRIES: usize = 2 * Section::Callers.capacity();

/// Reserves the tables, makes the fixed callers of a fresh segment.
pub fn init(segment: Segment) -> bool {
    if SMALL.load(Relaxed) == 0 {
        let (Some(small), Some(large)) = (os::private(SMALL_ENTRIES * 4), os::private(LARGE_ENTRIES * 4)) else {
            return false;
        };
        SMALL.store(small as usize, Release);
        LARGE.store(large as usize, Release);
    }
    for (i, category, flags) in [(0, categories::OTHER, 0), (1, categories::EARLY, 0), (2, categories::OTHER, OVERFLOW)]
    {
        if segment.append(Section::Callers) != Some(i) {
            return false;
        }
        let c = segment.caller(i);
        c.category.store(category, Relaxed);
        c.flags.store(flags, Relaxed);
        c.hash.store(if i == 0 { 0 } else { i as u64 }, Release);
    }
    true
}

fn hash(frames: &[u64], pushed: u32, flags: u32) -> u64 {
    let seed = 0x9e37_79b9_7f4a_7c15u64 ^ (pushed as u64) << 32 ^ flags as u64;
    frames.iter().fold(seed, |h, &f| (h.rotate_left(23) ^ f).wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1 << 63
}

/// The caller with these frames (innermost first) under this pushed category (+ 1; 0 = none).
pub fn number(segment: Segment, frames: &[u64], flags: u32, pushed: u32) -> u32 {
    let frames = &frames[..frames.len().min(FRAMES)];
    let h = hash(frames, pushed, flags);
    let used = segment.used(Section::Callers);
    for (table, entries) in [(&SMALL, SMALL_ENTRIES), (&LARGE, LARGE_ENTRIES)] {
        let base = table.load(Acquire);
        if base == 0 {
            break;
        }
        let mut at = (h >> 17) as usize & (entries - 1);
        let full = entries == SMALL_ENTRIES && used > SMALL_ENTRIES / 2;
        for _ in 0..entries {
            // SAFETY: `at` is below the table's size; atomics in private zeroed memory.
            let cell = unsafe { &*((base + at * 4) as *const AtomicU32) };
            let i = cell.load(Acquire);
            if i == 0 {
                if full {
                    break;
                }
                return insert(segment, cell, h, frames, flags, pushed);
            }
            let c = segment.caller(i);
            if c.hash.load(Acquire) == h
                && c.depth.load(Relaxed) as usize == frames.len()
                && frames.iter().enumerate().all(|(k, f)| c.frames[k].load(Relaxed) == *f)
            {
                return i;
            }
            at = (at + 1) & (entries - 1);
        }
    }
    segment.count(Counter::callers_merged, 1);
    CALLER_OVERFLOW
}

fn insert(segment: Segment, cell: &AtomicU32, h: u64, frames: &[u64], flags: u32, pushed: u32) -> u32 {
    let category = if pushed != 0 { pushed as u16 - 1 } else { classify(segment, frames).0 };
    let Some(i) = segment.append(Section::Callers) else {
        segment.count(Counter::callers_merged, 1);
        return CALLER_OVERFLOW;
    };
    let c = segment.caller(i);
    for (k, f) in frames.iter().enumerate() {
        c.frames[k].store(*f, Relaxed);
    }
    c.depth.store(frames.len() as u16, Relaxed);
    c.category.store(category, Relaxed);
    c.flags.store(flags, Relaxed);
    c.first_ns.store(crate::boot::ordered_ns(), Relaxed);
    c.hash.store(h, Release);
    match cell.compare_exchange(0, i, AcqRel, Acquire) {
        Ok(_) => i,
        // Another thread took the place, perhaps for the same frames: look again; ours stays an empty entry.
        Err(_) => {
            c.hash.store(0, Release);
            number(segment, frames, flags, pushed)
        }
    }
}

/// Hash of callers whose code is gone: a later stack with the same addresses is another caller.
const RETIRED: u64 = 1;

/// The code in this range has been replaced.
pub fn retire(segment: Segment, range: core::ops::Range<u64>) {
    for cell in &DECIDED {
        cell.store(0, Relaxed);
    }
    for i in 3..segment.used(Section::Callers) as u32 {
        let c = segment.caller(i);
        let depth = (c.depth.load(Relaxed) as usize).min(FRAMES);
        if c.hash.load(Acquire) > RETIRED && c.frames[..depth].iter().any(|f| range.contains(&(f.load(Relaxed) - 1))) {
            c.hash.store(RETIRED, Release);
        }
    }
}

/// Frames (hashed) whose category is known to be decided, or known not to be: bit 0. Racy on purpose: a cell is one word.
static DECIDED: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Whether these frames decide the category, whatever lies further out.
pub fn is_decided(segment: Segment, frames: &[u64]) -> bool {
    let h = hash(frames, 0, 0) & !1;
    let cell = &DECIDED[(h >> 20) as usize & (DECIDED.len() - 1)];
    let known = cell.load(Relaxed);
    if known & !1 == h {
        return known & 1 != 0;
    }
    let decided = classify(segment, frames).1;
    cell.store(h | decided as u64, Relaxed);
    decided
}

/// The category of frames, and whether frames further out could not change it.
fn classify(segment: Segment, frames: &[u64]) -> (u16, bool) {
    let Some(rules) = module::rules() else { return (categories::OTHER, true) };
    let mut modules: [Option<Module>; FRAMES] = [None; FRAMES];
    for (m, f) in modules.iter_mut().zip(frames) {
        *m = module::find(segment, *f as usize - 1);
    }
    let with = |i: usize| -> (ModuleRules<'static>, u64) {
        match modules[i] {
            Some(m) => (m.rules, frames[i] - 1 - m.bias as u64),
            None => (rules.module(b"", b""), 0),
        }
    };
    let known = modules.iter().take(frames.len()).take_while(|m| m.is_some()).count();
    let exhausted = Cell::new(false);
    // A rule that decides stops asking for frames: who asks behind the last one is not decided yet.
    let all = (0..known).map(with).chain(core::iter::from_fn(|| {
        exhausted.set(true);
        None
    }));
    let category = match rules.classify(all) {
        Decision::Category(i) => categories::of_rule(segment, i),
        Decision::Object(i) => match modules[i] {
            Some(m) => segment.module(m.id).category.load(Relaxed),
            None => categories::NO_FILE,
        },
        Decision::Unknown => categories::NO_FILE,
    };
    (category, !exhausted.get())
}
