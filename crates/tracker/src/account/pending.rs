//! Blocks of a native image whose header the VM hasn't written yet ([`super::image`]).
//!
//! Until the thread's next call of a hook the block is *pending* in its thread's word, and booked under the image. A
//! thread that frees the block first takes it out of that word, so that no thread reads a freed block. The block's key
//! names the thread:
//!
//! ```text
//! 0 ── malloc ──▶ address ── next hook: claims ──▶ address | 1 ── re-booked ──▶ 0
//!                    └── free by another thread ──▶ 0           (it waits while the block is claimed, up to a second)
//! ```
//!
//! A claimer that doesn't give the block back has left its call by a jump. Or a signal handler has interrupted it and
//! waits for the thread that frees. So after a second the claim is void. A claimer that comes back later finds the word
//! changed, and leaves the block alone.
//!
//! An image without NMT never writes a header. Once enough of its blocks had none, no more blocks are noted, and the
//! noted ones are dropped. When none is left, no call looks at them any more. Nothing can be claimed then, so `free`
//! needn't wait for anybody. A thread's word is emptied when its slot is given back, and in a fork child where the
//! thread isn't.
//!
//! ```text
//! UNKNOWN ── a header ──▶ WRITTEN
//!    └── 256 blocks of Java code without ──▶ ENDING ── all words are 0 ──▶ NONE
//! ```

use super::blocks::Key;
use super::keys::{key_of, set_key, take_key};
use super::rows::{self, Amount};
use super::thread::ThreadState;
use super::{classify, image, samples};
use crate::phase;
use crate::segment::Segment;
use crate::segment::books::MayBook;
use crate::segment::slots::{self, Shared};
use crate::stack::{callers, rule_table};
use crate::sys::os;
use core::sync::atomic::{AtomicUsize, Ordering::*, fence};
use plimsoll_segment::{CALLER_MOVED, Counter};

/// Set in a word whose block is being re-booked.
const CLAIMED: usize = 1;
/// Blocks of Java code without a header.
static WITHOUT: AtomicUsize = AtomicUsize::new(0);
/// This many show that the image has no NMT. With NMT, the first block of Java code has a header (25).
const ENOUGH: usize = 256;
/// Smallest block in which a header proves NMT. The first such block of VM 25 has 56 bytes. The first word of a smaller
/// block may be any small number.
const PROVES: u64 = 48;
/// Turns of a thread that waits for a claimer, before it sleeps. A claim takes some thousand instructions.
const SPINS: u32 = 1000;
/// Sleeps of 1 ms, before the claim is void.
const SLEEPS: u32 = 1000;

/// Notes a block of this thread whose header the VM is about to write.
pub fn note(t: &ThreadState, p: *mut u8) {
    let word = &t.shared().pending;
    word.store(p as usize, Release);
    // `end` reads the words after it has seen ENDING. Of two fences one comes first: either `end` finds this word, or
    // this thread sees the state and takes the note back. The program hasn't got the block yet, so nobody frees it.
    fence(SeqCst);
    if matches!(image::headers(), image::ENDING | image::NONE) {
        word.store(0, Relaxed);
    }
}

/// At the entry of a hook: the thread's last block has its header now, if it gets one. Returns true once: from then on
/// no block gets a header.
pub fn settle(books: MayBook<'_>, t: &mut ThreadState) -> bool {
    let word = &t.shared().pending;
    let p = word.load(Relaxed);
    if p != 0 && word.compare_exchange(p, p | CLAIMED, AcqRel, Relaxed).is_ok() {
        let is_claimed = || word.load(Acquire) == p | CLAIMED;
        // SAFETY: claimed: a thread that frees the block waits in `forget` for this thread, except a signal handler of
        // this thread. After a long wait that thread takes the claim away. `rebook` notices it, unless the claim is
        // taken away between the last check of `rebook` and its access.
        unsafe { rebook(books, t, p as *mut u8, is_claimed) };
        word.store(0, Release);
    }
    image::headers() == image::ENDING && end(*books)
}

/// Drops what is noted. True: nothing is left, and nothing will be noted any more.
#[cold]
fn end(segment: Segment) -> bool {
    // See `note`.
    fence(SeqCst);
    let is_left = |shared: &Shared| {
        let p = shared.pending.load(Acquire);
        p != 0 && (p & CLAIMED != 0 || shared.pending.compare_exchange(p, 0, AcqRel, Relaxed).is_err())
    };
    !slots::states(segment).any(is_left) && image::change_headers(image::ENDING, image::NONE)
}

/// Counts a block of the executable without a header, if it is Java code's: a library's C code in the image never
/// writes one. After a late attach that means nothing: Java code has made its first blocks before.
fn has_no_header(segment: Segment, innermost: u64) {
    if image::headers() == image::UNKNOWN
        && !phase::is_late()
        && rule_table::in_java_of_image(segment, innermost)
        && WITHOUT.fetch_add(1, Relaxed) + 1 == ENOUGH
    {
        image::change_headers(image::UNKNOWN, image::ENDING);
    }
}

/// Books a block again, under the category in its header.
///
/// # Safety
/// `p` is a live block that nobody frees as long as `is_claimed`.
unsafe fn rebook(books: MayBook<'_>, t: &mut ThreadState, p: *mut u8, is_claimed: impl Fn() -> bool) {
    let segment = *books;
    // SAFETY: the caller's contract.
    unsafe {
        let Some(Key { row, requested, .. }) = key_of(p) else { return };
        let old = segment.seen(row).caller();
        // Only Java code's blocks get headers: blocks of other code may begin with their capacity and a small length.
        // The frame that made the block is gone. Its object may be unloaded too, unless it is the executable. An image
        // that was loaded as a library may be built without NMT beside one with NMT.
        let innermost = callers::innermost(segment, old);
        if !image::holds(innermost) {
            return;
        }
        let Some(c) = image::category(segment, p, requested) else {
            return has_no_header(segment, innermost);
        };
        if image::headers() != image::WRITTEN {
            if !rule_table::in_java_of_image(segment, innermost) {
                return;
            }
            if requested >= PROVES {
                let _ = image::change_headers(image::UNKNOWN, image::WRITTEN)
                    || image::change_headers(image::ENDING, image::WRITTEN);
            }
        }
        let of = segment.caller(callers::parent(segment, old));
        let mut frames = [0u64; callers::FRAMES];
        let n = (of.depth.load(Relaxed) as usize).min(frames.len());
        for (f, from) in frames.iter_mut().zip(&of.frames).take(n) {
            *f = from.load(Relaxed);
        }
        let mut new = classify::caller(segment, &frames[..n], of.flags.load(Relaxed) | CALLER_MOVED, c as u32 + 1);
        let site = segment.caller(old);
        if site.parent.load(Relaxed) != 0 {
            new = callers::site(segment, new, site.stack.load(Relaxed), site.flags.load(Relaxed));
        }
        if new == old {
            return;
        }
        let row = rows::row_for(books, Some(&mut *t), new);
        if !is_claimed() {
            return;
        }
        let Some((key, amount)) = take_key(p) else { return };
        let sampled = key.sampled && samples::reassign(segment, p, new);
        if !is_claimed() {
            // The block is freed without its key: nobody else books the release.
            if sampled && let Some(taken) = samples::take(segment, p) {
                samples::end(segment, taken);
            }
            return rows::free(books, Some(t), old, amount);
        }
        let Some(Amount { .. }) = set_key(p, Key { row, sampled, ..key }) else { return };
        rows::free(books, Some(&mut *t), old, amount);
        rows::alloc(books, Some(t), new, amount);
        segment.count(Counter::native_image_headers, 1);
    }
}

/// Called before a block is freed or moved; afterwards no thread reads it.
///
/// # Safety
/// `p` is a live block.
pub unsafe fn forget(segment: Segment, p: *mut u8) {
    // SAFETY: the caller's contract.
    match unsafe { maker(segment, p) } {
        Some(maker) => {
            forget_in(segment, maker, p);
        }
        None => {
            slots::states(segment).any(|shared| forget_in(segment, shared, p));
        }
    }
}

/// The thread that a block's key names: no other one has noted the block. `None`: the block has a shared row, or no key
/// (also for a moment while it is re-booked).
///
/// # Safety
/// `p` is a live block.
unsafe fn maker(segment: Segment, p: *mut u8) -> Option<&'static Shared> {
    // SAFETY: the caller's contract.
    let key = unsafe { key_of(p)? };
    // The shared rows' slot has no state.
    slots::state(segment.seen(key.row).slot_mark().checked_sub(1)?)
}

/// Empties the word of a thread if it notes this block; true if it did.
fn forget_in(segment: Segment, shared: &Shared, p: *mut u8) -> bool {
    let word: &AtomicUsize = &shared.pending;
    let claimed = p as usize | CLAIMED;
    if word.load(Relaxed) == p as usize && word.compare_exchange(p as usize, 0, AcqRel, Relaxed).is_ok() {
        return true;
    }
    let mut turns = 0;
    // Not for the own thread: a signal handler that interrupted the claim would wait for ever.
    while word.load(Acquire) == claimed && !slots::is_own(shared) {
        turns += 1;
        // Sleeps, since a thread of a higher real-time priority may keep the claimer from this CPU by spinning.
        if turns < SPINS {
            core::hint::spin_loop();
        } else if turns < SPINS + SLEEPS {
            os::sleep_ms(1);
        } else if word.compare_exchange(claimed, 0, AcqRel, Relaxed).is_ok() {
            segment.count(Counter::faults, 1);
        }
    }
    turns > 0
}
