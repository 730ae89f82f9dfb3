//! Re-entry: who may touch the books of a thread.
//!
//! A hook takes the thread's state by taking `current` out of the thread-local word and puts it back when it has booked.
//! The real malloc, mmap, … run outside of that. So a signal handler that allocates while its thread is in the books
//! finds the word empty and books in the shared rows; it never sees a half-made row, memo or index, and never waits.

use crate::account::thread::{self, ThreadState};
use crate::segment::Segment;
use crate::stacks;
use crate::sys::cpu::{CURRENT, DEPTH, GONE, OWN, tls_get, tls_get_half, tls_set, tls_set_half};
use plimsoll_segment::Counter;

/// Proof that this thread's state is ours until it is dropped.
pub struct Inside {
    state: *mut ThreadState,
    /// The segment the state books in.
    pub segment: Segment,
}

/// Who a hook is.
pub enum Entered {
    /// With a state of its own.
    Thread(Inside),
    /// Nested in a signal, past the thread's end, or without a slot: shared rows.
    Shared(Segment),
    /// There are no books (before boot, in an unprepared fork child, or none could be made).
    Outside,
}

/// Enters from a hook that is not written by hand.
#[inline(always)]
pub fn enter() -> Entered {
    let Some(segment) = Segment::current() else { return Entered::Outside };
    let current = tls_get::<CURRENT>();
    if current != 0 {
        tls_set::<CURRENT>(0);
        return Entered::Thread(Inside { state: current as *mut ThreadState, segment });
    }
    enter_without(segment)
}

/// [`enter`] of a thread whose state is not there.
#[cold]
#[inline(never)]
fn enter_without(segment: Segment) -> Entered {
    match tls_get::<OWN>() {
        0 if tls_get_half::<DEPTH>() == 0 => {
            // A thread that we did not see start: made inside libc, by clone, or before boot.
            tls_set_half::<DEPTH>(1);
            let t = thread::attach(segment, stacks::unseen());
            if let Some(t) = &t {
                thread::watch_end(&raw const **t);
            }
            tls_set_half::<DEPTH>(0);
            match t {
                Some(t) => Entered::Thread(Inside { state: t, segment }),
                None => Entered::Shared(segment),
            }
        }
        own => {
            if own != GONE {
                segment.count(Counter::nested_entries, 1);
            }
            Entered::Shared(segment)
        }
    }
}

impl Inside {
    /// Takes the state that the fast path has already found.
    ///
    /// # Safety
    /// `state` is what `current` held, and `current` was set to 0.
    #[inline(always)]
    pub unsafe fn taken(state: *mut ThreadState, segment: Segment) -> Inside {
        Inside { state, segment }
    }

    /// The state.
    #[inline(always)]
    pub fn state(&mut self) -> &mut ThreadState {
        // SAFETY: an `Inside` is made by whoever takes a `current` other than 0 and sets it to 0, so a handler on top finds
        // none to take; other threads touch what lies in front of the state only (`slots::Shared`).
        unsafe { &mut *self.state }
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        tls_set::<CURRENT>(self.state as usize);
    }
}
