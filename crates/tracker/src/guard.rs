//! Re-entry: who may touch the books of a thread.
//!
//! A hook takes the thread's state by taking `current` out of the thread-local word and puts it back when it has
//! booked. The real malloc, mmap, … run outside of that. So a signal handler that allocates while its thread is in the
//! books finds the word empty, and books in the shared rows. It never sees a half-made row, memo or index, and never
//! waits.
//!
//! [`TakenState`] is the state while a hook has it. [`Inside`] and [`Nested`] give [`Books`], without which no row is
//! written.

use crate::account::thread::{self, StackBounds, ThreadState};
use crate::segment::Segment;
use crate::segment::books::Books;
use crate::stack_bounds;
use crate::sys::cpu::{CURRENT, DEPTH, GONE, OWN, tls_get, tls_get_half, tls_set, tls_set_half};
use core::ops::{Deref, DerefMut};
use plimsoll_segment::Counter;

/// This thread's state, taken: ours until this is dropped, which gives it back.
pub struct TakenState(*mut ThreadState);

impl TakenState {
    /// The state that a fast path has taken already.
    ///
    /// # Safety
    /// `state` is what `current` held, and `current` was set to 0.
    #[inline(always)]
    pub unsafe fn of(state: *mut ThreadState) -> TakenState {
        TakenState(state)
    }

    /// Takes the state that a fast path has found.
    ///
    /// # Safety
    /// `state` is what `current` holds, and not 0.
    #[inline(always)]
    pub unsafe fn now(state: *mut ThreadState) -> TakenState {
        tls_set::<CURRENT>(0);
        TakenState(state)
    }
}

impl Deref for TakenState {
    type Target = ThreadState;
    #[inline(always)]
    fn deref(&self) -> &ThreadState {
        // SAFETY: whoever makes a `TakenState` has set `current` to 0, so a signal handler of this thread finds no
        // state to take; other threads touch only what lies in front of the state (`slots::Shared`).
        unsafe { &*self.0 }
    }
}

impl DerefMut for TakenState {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut ThreadState {
        // SAFETY: as above.
        unsafe { &mut *self.0 }
    }
}

impl Drop for TakenState {
    #[inline(always)]
    fn drop(&mut self) {
        tls_set::<CURRENT>(self.0 as usize);
    }
}

/// The thread is inside the tracker, with its state.
pub struct Inside {
    state: TakenState,
    segment: Segment,
}

/// The thread is inside the tracker, without a state.
pub struct Nested(Segment);

impl Nested {
    /// The books.
    #[inline(always)]
    pub fn books(&self) -> Books<'_> {
        // SAFETY: `enter` found the state taken by a frame below this one, or that there is none.
        unsafe { Books::of(self.0) }
    }
}

/// What [`enter`] gives a hook.
pub enum Entered {
    /// With a state of its own.
    Thread(Inside),
    /// Nested in a signal, past the thread's end, or without a slot: shared rows.
    Shared(Nested),
    /// There are no books (before boot, in an unprepared fork child, or none could be made).
    Outside,
}

/// Enters the tracker from a hook. (The assembly of malloc and free takes the state itself.)
#[inline(always)]
pub fn enter() -> Entered {
    let Some(segment) = Segment::current() else { return Entered::Outside };
    let current = tls_get::<CURRENT>();
    if current != 0 {
        // SAFETY: just found.
        let state = unsafe { TakenState::now(current as *mut ThreadState) };
        return Entered::Thread(Inside { state, segment });
    }
    enter_without(segment)
}

/// [`enter`] in a thread whose word `current` is 0.
#[cold]
#[inline(never)]
fn enter_without(segment: Segment) -> Entered {
    match tls_get::<OWN>() {
        0 if tls_get_half::<DEPTH>() == 0 => {
            // A thread that we did not see start: made inside libc, by clone, or before boot.
            tls_set_half::<DEPTH>(1);
            let t = thread::attach(segment, stack_bounds::unseen());
            if let Some(t) = &t {
                thread::watch_end(&raw const **t);
            }
            tls_set_half::<DEPTH>(0);
            match t {
                // SAFETY: a new state, which `current` does not name yet.
                Some(t) => Entered::Thread(Inside { state: unsafe { TakenState::of(t) }, segment }),
                None => Entered::Shared(Nested(segment)),
            }
        }
        own => {
            if own != GONE {
                segment.count(Counter::nested_entries, 1);
            }
            Entered::Shared(Nested(segment))
        }
    }
}

/// Gives the calling thread a state at its start, on a stack that is known; returns its slot. A signal handler that
/// allocated earlier has done so: then only the stack is noted.
pub fn begin(segment: Segment, stack: StackBounds) -> Option<u32> {
    // From here on, a handler makes no state.
    tls_set_half::<DEPTH>(1);
    let slot = match tls_get::<OWN>() {
        0 => thread::attach(segment, Some(stack)).map(|t| {
            thread::watch_end(t);
            let slot = t.slot;
            tls_set::<CURRENT>(t as *mut ThreadState as usize);
            slot
        }),
        _ => thread::correct_stack(segment, stack),
    };
    tls_set_half::<DEPTH>(0);
    slot
}

impl Inside {
    /// The segment that the state books in.
    #[inline(always)]
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// The state.
    #[inline(always)]
    pub fn state(&mut self) -> &mut ThreadState {
        &mut self.state
    }

    /// The books, and the state.
    #[inline(always)]
    pub fn parts(&mut self) -> (Books<'_>, &mut ThreadState) {
        // SAFETY: the state is taken.
        (unsafe { Books::of(self.segment) }, &mut self.state)
    }
}
