//! Callers: up to eight return addresses with a category, numbered when first seen, never removed; and sites, the deep
//! stacks under them, numbered in the same section.

use super::frames;
use crate::segment::index::{Free, Index};
use crate::segment::{Segment, categories};
use core::sync::atomic::{AtomicU32, Ordering::*};
use plimsoll_segment::{CALLER_OVERFLOW, CALLER_SITE, Caller, Counter, Purpose, Section};

/// Maximum number of frames that are kept.
pub const FRAMES: usize = 8;
/// Flag: the walk ended early.
pub const TRUNCATED: u32 = 1;
/// Flag: ended at code of no module.
pub const JIT: u32 = 2;
/// Flag: stands for callers that had no space.
pub const OVERFLOW: u32 = 4;

/// Hash → caller.
static INDEX: Index = Index::new(Section::Callers.capacity(), &[12, 15, 17, 14], Purpose::Pool);

/// Reserves the index, makes the fixed callers of a fresh segment.
pub fn init(segment: Segment) -> bool {
    if !INDEX.init() {
        return false;
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

/// Reserves all of the index, for a program that is about to forbid system calls.
pub fn reserve() {
    INDEX.reserve();
}

/// Entries at the section's end that only callers may take, so that sites can't fill it.
const CALLERS_ONLY: usize = Section::Callers.capacity() / 8;

/// The hash of frames under a pushed category; its top bit is set.
pub fn hash(frames: &[u64], pushed: u32, flags: u32) -> u64 {
    let seed = 0x9e37_79b9_7f4a_7c15u64 ^ (pushed as u64) << 32 ^ flags as u64;
    frames.iter().fold(seed, |h, &f| (h.rotate_left(23) ^ f).wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1 << 63
}

/// The caller with these frames (innermost first) under this pushed category (+ 1; 0 = none). A new one has the
/// category that `category` gives its frames.
#[inline(always)]
pub fn number(segment: Segment, frames: &[u64], flags: u32, pushed: u32, category: impl Fn(&[u64]) -> u16) -> u32 {
    let frames = &frames[..frames.len().min(FRAMES)];
    let is = |c: &Caller| {
        c.depth.load(Relaxed) as usize == frames.len()
            && frames.iter().enumerate().all(|(k, f)| c.frames[k].load(Relaxed) == *f)
    };
    let make = |c: &Caller| {
        let category = if pushed != 0 { pushed as u16 - 1 } else { category(frames) };
        for (k, f) in frames.iter().enumerate() {
            c.frames[k].store(*f, Relaxed);
        }
        c.depth.store(frames.len() as u16, Relaxed);
        c.category.store(category, Relaxed);
        c.flags.store(flags, Relaxed);
    };
    find_or_make(segment, hash(frames, pushed, flags), is, make).unwrap_or_else(|| {
        segment.count(Counter::callers_merged, 1);
        CALLER_OVERFLOW
    })
}

/// The site with this stack (its innermost node) under a caller; the caller itself if there is no space.
pub fn site(segment: Segment, caller: u32, stack: u32, flags: u32) -> u32 {
    let has_space = segment.used(Section::Callers) < Section::Callers.capacity() - CALLERS_ONLY;
    let parent = segment.caller(caller);
    let is = |c: &Caller| {
        c.flags.load(Relaxed) & CALLER_SITE != 0 && c.parent.load(Relaxed) == caller && c.stack.load(Relaxed) == stack
    };
    let make = |c: &Caller| {
        c.parent.store(caller, Relaxed);
        c.stack.store(stack, Relaxed);
        c.depth.store(segment.frame(stack).depth.load(Relaxed), Relaxed);
        c.category.store(parent.category.load(Relaxed), Relaxed);
        c.flags.store(flags | CALLER_SITE, Relaxed);
    };
    let h = hash(&[caller as u64, stack as u64], 0, CALLER_SITE);
    let found = if has_space { find_or_make(segment, h, is, make) } else { find(segment, h, is).ok() };
    found.unwrap_or_else(|| {
        segment.count(Counter::sites_merged, 1);
        caller
    })
}

/// The caller that a site lies under; for a caller, the caller itself.
pub fn parent(segment: Segment, caller: u32) -> u32 {
    match segment.caller(caller).parent.load(Relaxed) {
        0 => caller,
        parent => parent,
    }
}

/// The entry with this hash. `Err`: the free cell where it belongs.
fn find(segment: Segment, h: u64, is: impl Fn(&Caller) -> bool) -> Result<u32, Option<Free>> {
    INDEX.find(h, segment.used(Section::Callers), |i| {
        let c = segment.caller(i);
        c.hash.load(Acquire) == h && is(c)
    })
}

fn find_or_make(segment: Segment, h: u64, is: impl Fn(&Caller) -> bool, make: impl Fn(&Caller)) -> Option<u32> {
    loop {
        let free = match find(segment, h, &is) {
            Ok(i) => return Some(i),
            Err(free) => free?,
        };
        let i = segment.append(Section::Callers)?;
        let c = segment.caller(i);
        make(c);
        c.first_ns.store(crate::sys::clock::ordered_ns(), Relaxed);
        c.hash.store(h, Release);
        if free.put(i) {
            return Some(i);
        }
        // Another thread took the place, perhaps for the same frames: look again; ours stays an empty entry.
        c.hash.store(0, Release);
    }
}

/// The innermost return address of a caller, or of a site's caller.
pub fn innermost(segment: Segment, index: u32) -> u64 {
    let c = segment.caller(index);
    let c = if c.flags.load(Relaxed) & CALLER_SITE != 0 { segment.caller(c.parent.load(Relaxed)) } else { c };
    c.frames[0].load(Relaxed)
}

/// Hash of callers whose code is gone: a later stack with the same addresses is another caller.
const RETIRED: u64 = 1;

static RETIREMENTS: AtomicU32 = AtomicU32::new(0);

/// How often code was replaced. What is known about addresses is valid as long as this is unchanged.
pub fn retirements() -> u32 {
    RETIREMENTS.load(Acquire)
}

/// Retires each caller with a frame in this range, because other code has taken its place.
pub fn retire(segment: Segment, range: core::ops::Range<u64>) {
    RETIREMENTS.fetch_add(1, AcqRel);
    frames::retire(segment, range.clone());
    for i in 3..segment.used(Section::Callers) as u32 {
        let c = segment.caller(i);
        let depth = (c.depth.load(Relaxed) as usize).min(FRAMES);
        let gone = if c.flags.load(Relaxed) & CALLER_SITE != 0 {
            frames::is_retired(segment, c.stack.load(Relaxed))
        } else {
            c.frames[..depth].iter().any(|f| range.contains(&f.load(Relaxed).wrapping_sub(1)))
        };
        if c.hash.load(Acquire) > RETIRED && gone {
            c.hash.store(RETIRED, Release);
        }
    }
}
