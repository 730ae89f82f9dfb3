//! Re-entry: who may touch the books of a thread.
//!
//! A hook takes the thread's state by taking `current` out of the thread-local word and puts it back when it has
//! booked. The real malloc, mmap, … run outside of that. So a signal handler that allocates while its thread is in the
//! books finds the word empty, and books in the shared rows. It never sees a half-made row, memo or index, and never
//! waits.
//!
//! [`TakenState`] is the state while a hook has it. [`Inside`] and [`Nested`] give [`MayBook`], without which no row is
//! written.

use crate::account::thread::{self, StackBounds, ThreadState};
use crate::segment::Segment;
use crate::segment::books::MayBook;
use crate::segment::slots;
use crate::stack_bounds;
use crate::sys::cpu::{CURRENT, DEPTH, GONE, OWN, tls_get, tls_get_half, tls_set, tls_set_half};
use crate::sys::os;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::Relaxed;
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
        tls_set_half::<DEPTH>(0);
        tls_set::<CURRENT>(0);
        TakenState(state)
    }

    /// As [`TakenState::now`], for a mapping call at whose entry the stack pointer was `sp`. A [`CallFrame`] outlives
    /// the result.
    ///
    /// # Safety
    /// As `now`.
    #[inline(always)]
    pub unsafe fn in_call(state: *mut ThreadState, sp: usize) -> TakenState {
        // SAFETY: this thread's state, to which nobody has a reference.
        unsafe { (*state).marked = (*state).countdown as u32 };
        tls_set_half::<DEPTH>(sp as u32 | MARKED);
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

/// In [`DEPTH`]: a state is being made. Any other nonzero number is the mark of a mapping call that has the state. A
/// jump out of a signal handler may leave such a call. (Out of malloc no program may jump.)
const MAKING: u32 = 1;
const MARKED: u32 = 2;

/// Removes the mark of a mapping call at its end, after the state is given back.
///
/// The mark is set as long as the call has the state, and stays longer if the call is left in between. So the mark
/// alone doesn't prove that a mapping call has the state: malloc's fast path may have taken it. That path counts its
/// block first, so [`ThreadState::marked`] then differs from the countdown.
pub struct CallFrame;

impl Drop for CallFrame {
    #[inline(always)]
    fn drop(&mut self) {
        tls_set_half::<DEPTH>(0);
    }
}

/// Whether the frame that has the state was left: on one stack, a live frame lies above the current one.
#[cold]
fn is_taker_left(state: *const ThreadState, sp: usize) -> bool {
    let mark = tls_get_half::<DEPTH>();
    let Some(own) = slots::own().filter(|_| mark > MAKING) else { return false };
    let high = own.stack_high.load(Relaxed);
    let frame = high.wrapping_sub((high as u32).wrapping_sub(mark & !7) as usize);
    let is_on_stack = slots::is_on_own_stack;
    // A program may have made its alternate stack in a frame of the thread's stack.
    let is_alternate = || os::alternate_stack().is_some_and(|(low, bytes)| sp.wrapping_sub(low) < bytes);
    // SAFETY: this thread's own, in memory that is never freed; only this thread writes these words.
    let is_marked = unsafe { (&raw const (*state).marked).read() == (&raw const (*state).countdown).read() as u32 };
    is_marked && sp >= frame && is_on_stack(sp) && is_on_stack(frame) && !is_alternate()
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
    pub fn books(&self) -> MayBook<'_> {
        // SAFETY: `enter` found the state taken by a frame below this one, or that there is none.
        unsafe { MayBook::of(self.0) }
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
    let here = 0u8;
    enter_at(&raw const here as usize)
}

/// [`enter`] in a call at whose entry the stack pointer was `sp`.
#[inline(always)]
pub fn enter_at(sp: usize) -> Entered {
    let Some(segment) = Segment::current() else { return Entered::Outside };
    let current = tls_get::<CURRENT>();
    if current != 0 {
        // SAFETY: just found.
        let state = unsafe { TakenState::now(current as *mut ThreadState) };
        return Entered::Thread(Inside { state, segment });
    }
    enter_without(segment, sp)
}

/// [`enter_at`] in a mapping call. A [`CallFrame`] outlives the result.
pub fn enter_call(sp: usize) -> Entered {
    match enter_at(sp) {
        Entered::Thread(inside) => {
            let segment = inside.segment;
            drop(inside);
            // SAFETY: just given back.
            let state = unsafe { TakenState::in_call(tls_get::<CURRENT>() as *mut ThreadState, sp) };
            Entered::Thread(Inside { state, segment })
        }
        other => other,
    }
}

/// [`enter_at`] in a thread whose word `current` is 0.
#[cold]
#[inline(never)]
fn enter_without(segment: Segment, sp: usize) -> Entered {
    match tls_get::<OWN>() {
        0 if tls_get_half::<DEPTH>() == 0 => {
            // A thread that we did not see start: made inside libc, by clone, or before boot.
            tls_set_half::<DEPTH>(MAKING);
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
        own if own > GONE && is_taker_left(own as *const ThreadState, sp) => {
            tls_set_half::<DEPTH>(0);
            // SAFETY: this thread's state, and the frame that had taken it is gone.
            let mut state = unsafe { TakenState::of(own as *mut ThreadState) };
            state.was_left();
            Entered::Thread(Inside { state, segment })
        }
        own => {
            if own != GONE {
                segment.count(Counter::nested_entries, 1);
            }
            Entered::Shared(Nested(segment))
        }
    }
}

/// Gives the calling thread a state at its start, on a stack that is known; returns its slot. If a signal handler has
/// allocated earlier, the thread has a state already: then only the stack is noted.
pub fn begin(segment: Segment, stack: StackBounds) -> Option<u32> {
    // From here on, a handler makes no state.
    tls_set_half::<DEPTH>(MAKING);
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
    pub fn parts(&mut self) -> (MayBook<'_>, &mut ThreadState) {
        // SAFETY: the state is taken.
        (unsafe { MayBook::of(self.segment) }, &mut self.state)
    }
}
