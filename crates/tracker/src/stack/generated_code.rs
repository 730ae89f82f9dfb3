//! Code that lies in no object: what JITs make, and copies of an object's code.
//!
//! In code without rules the frame pointer may be anything, so it is believed only if it leads into code. Objects say
//! which part of them is code. For other memory, the hooks of mmap, mprotect, pkey_mprotect and mremap note what was
//! made executable, and an attach notes the executable memory that it finds.
//!
//! ```text
//! RANGES   (low, high) …     grow, never shrink: memory that was executable once
//! COPIES   (low, high, distance to the object's own code)
//! ```
//! It is enough that memory was executable once: W^X JITs (V8 without protection keys, .NET, LuaJIT) remove the right
//! to execute from pages that live frames return to, while they write there. So an address that was once believed stays
//! believed as long as the process lives. A remembered walk can only be too short: a new walk might lead further.
//! Therefore a walk that ended at an address outside of known code has a [`Guard`](super::java::Guard) with the number
//! of changes at that time.
//!
//! V8 maps the text of its builtins a second time, near the code that it makes (calls of 32 bits reach it). That is the
//! same code at another place: frames in a copy are reported as frames of the object, so that its names and rules
//! apply.

use super::module;
use crate::segment::Segment;
use crate::segment::slots::forget_stacks;
use crate::sys::elf;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

const MOST: usize = 256;
static RANGES: [[AtomicU64; 2]; MOST] = [const { [const { AtomicU64::new(0) }; 2] }; MOST];
static USED: AtomicUsize = AtomicUsize::new(0);
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Pieces of one JIT's code lie side by side but for a header and guard pages (V8: 16 KiB).
const NEAR: u64 = 64 << 10;

/// This memory was made executable.
pub fn note(start: usize, bytes: usize) {
    let (low, high) = (start as u64, (start as u64).saturating_add(bytes as u64));
    if low == 0 || low >= high {
        return;
    }
    let used = USED.load(Acquire).min(MOST);
    for [l, h] in &RANGES[..used] {
        let (known_low, known_high) = (l.load(Relaxed), h.load(Relaxed));
        // A place that was taken but isn't filled yet is left to its thread.
        if known_high == 0 || low > known_high.saturating_add(NEAR) || high.saturating_add(NEAR) < known_low {
            continue;
        }
        // Each bound moves outwards only, so that a reader between the two stores sees a part of the range.
        let grew = [l.fetch_min(low, AcqRel) > low, h.fetch_max(high, AcqRel) < high];
        if grew.contains(&true) {
            CHANGES.fetch_add(1, AcqRel);
        }
        return;
    }
    let i = USED.fetch_add(1, AcqRel);
    if i >= MOST {
        // The table is full: stacks end at this code, with the mark of a cut.
        USED.store(MOST, Release);
        return;
    }
    RANGES[i][0].store(low, Relaxed);
    RANGES[i][1].store(high, Release);
    CHANGES.fetch_add(1, AcqRel);
}

/// How often the executable memory has grown.
pub fn changes() -> u64 {
    CHANGES.load(Acquire)
}

/// Whether the address lies in memory that has been made executable.
pub fn holds(pc: u64) -> bool {
    let used = USED.load(Acquire).min(MOST);
    // The upper bound first: while it is 0, the lower one may not be there.
    RANGES[..used].iter().any(|[low, high]| pc < high.load(Acquire) && low.load(Relaxed) <= pc)
}

const MOST_COPIES: usize = 16;
/// First address, one past the last, how much further the object's own code lies (wrapping). 0 as the second: none.
static COPIES: [[AtomicU64; 3]; MOST_COPIES] = [const { [const { AtomicU64::new(0) }; 3] }; MOST_COPIES];
static COPIES_USED: AtomicUsize = AtomicUsize::new(0);

/// Called when code that returns to `ra` has mapped a file executable: notes a copy if the mapped range is the text of
/// the object that holds `ra`.
pub fn mapped_file(segment: Segment, ra: u64, start: usize, bytes: usize, offset: u64) {
    let from = module::find(segment, (ra as usize).wrapping_sub(1))
        .and_then(|m| elf::text_at(m.start, m.bias, offset as usize, bytes));
    let Some(from) = from else { return };
    if !elf::is_copy(start, from, bytes) {
        return;
    }
    let free = COPIES.iter().position(|[_, high, _]| high.compare_exchange(0, 1, AcqRel, Relaxed).is_ok());
    let Some(i) = free else { return };
    COPIES[i][0].store(start as u64, Relaxed);
    COPIES[i][2].store((from as u64).wrapping_sub(start as u64), Relaxed);
    COPIES[i][1].store((start + bytes) as u64, Release);
    COPIES_USED.fetch_max(i + 1, AcqRel);
    // Stacks that went through the copy were remembered under other frames.
    forget_stacks(segment);
}

/// Translates an address that may lie in a copy into the address in the object itself.
#[inline]
pub fn original(pc: u64) -> u64 {
    let used = COPIES_USED.load(Acquire);
    if used == 0 {
        return pc;
    }
    let of = |[low, high, further]: &[AtomicU64; 3]| {
        // A return address may be one past the last address.
        let is = pc <= high.load(Acquire) && low.load(Relaxed) < pc;
        is.then(|| pc.wrapping_add(further.load(Relaxed)))
    };
    COPIES[..used].iter().find_map(of).unwrap_or(pc)
}

/// This memory is unmapped or mapped over: copies in it are gone.
#[inline]
pub fn unmapped(start: usize, bytes: usize) {
    if COPIES_USED.load(Relaxed) != 0 {
        drop_copies(start as u64, (start as u64).saturating_add(bytes as u64));
    }
}

#[cold]
fn drop_copies(start: u64, end: u64) {
    let mut gone = false;
    for [low, high, _] in &COPIES {
        let to = high.load(Acquire);
        if to > 1 && start < to && low.load(Relaxed) < end {
            high.store(0, Release);
            gone = true;
        }
    }
    if gone && let Some(segment) = Segment::current() {
        forget_stacks(segment);
    }
}
