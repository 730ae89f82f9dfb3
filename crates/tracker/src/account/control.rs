//! Mode and mean of the sampling. The header has the requested values, which an observer may write too; this file puts
//! them into force.
//!
//! An observer writes one word into the file; no thread is signalled or stopped. A thread notices it at its next sample
//! (the countdown runs in every mode), at its next walk, or when it starts. The first thread that notices it puts it
//! into force for all, in the same way as a change of the code map. Every thread then finds an empty memo, walks again,
//! and books by the new mode.

use crate::options::{Options, number};
use crate::segment::{Segment, slots};
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use plimsoll_segment::{SAMPLE_MEAN, control, of_control};

/// Modes, as the header has them.
pub const OFF: u32 = 0;
/// See [`OFF`].
pub const SAMPLED: u32 = 1;
/// See [`OFF`].
pub const EXACT: u32 = 2;

const USUAL_DEPTH: usize = 256;
static DEPTH: AtomicUsize = AtomicUsize::new(USUAL_DEPTH);

/// Maximum frames of a deep stack.
pub fn depth() -> usize {
    DEPTH.load(Relaxed)
}

/// Writes the options' mode and mean into a fresh segment.
pub fn start(segment: Segment, options: &Options) {
    let mode = match options.sites.map(CStr::to_bytes) {
        Some(b"off") => OFF,
        Some(b"exact") => EXACT,
        _ => SAMPLED,
    };
    let word = control(mode, number(options.sample).map_or(SAMPLE_MEAN, |n| n as u64));
    DEPTH.store(number(options.depth).unwrap_or(USUAL_DEPTH).clamp(16, crate::stack::deep::MOST_FRAMES), Relaxed);
    let h = segment.header();
    h.control.store(word, Relaxed);
    h.in_force.store(word, Relaxed);
    h.in_force_ns.store(h.start_boottime_ns.load(Relaxed), Relaxed);
    h.mode.store(mode, Relaxed);
}

/// Puts a new request into force, if there is one; returns mode and mean.
#[inline]
pub fn now(segment: Segment) -> (u32, u64) {
    let h = segment.header();
    let (requested, known) = (h.control.load(Relaxed), h.in_force.load(Relaxed));
    if requested != known {
        change(segment, requested, known);
    }
    of_control(requested)
}

#[cold]
fn change(segment: Segment, requested: u64, known: u64) {
    let h = segment.header();
    if h.in_force.compare_exchange(known, requested, AcqRel, Relaxed).is_err() {
        return;
    }
    // If a second request arrives meanwhile, another thread may be here too. The last word wins, whichever thread
    // writes it.
    h.in_force_ns.fetch_max(crate::sys::clock::now_ns(), Relaxed);
    let mut word = requested;
    loop {
        let (mode, _) = of_control(word);
        if h.mode.swap(mode, AcqRel) != mode {
            slots::forget_stacks(segment);
        }
        let now = h.in_force.load(Acquire);
        if now == word {
            return;
        }
        word = now;
    }
}
