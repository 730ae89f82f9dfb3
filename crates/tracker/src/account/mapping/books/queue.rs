//! The queue of operations whose calls didn't get the lock, and [`locked`], which makes a call with the lock or through
//! the queue.

use super::holder::{Held, NOBODY, SLEEPS, has_left, holds_lock, id_of_thread, is_gone, returns_to, take, try_take};
use super::{BLOCKED, FULL_AT, LOCK, Operation};
use crate::account::mapping::combining_lock::Head;
use crate::segment::Segment;
use crate::sys::os;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::Counter;

/// Gives up the tickets of calls of this thread that were left by a jump. The ticket `own`, of the call at `sp`, is
/// kept.
fn give_up_left(me: u32, sp: usize, own: Option<u64>) {
    for (ticket, frame) in LOCK.reserved_by(me) {
        if own != Some(ticket) && has_left(sp, frame) {
            // SAFETY: this thread's ticket, whose frame is gone.
            unsafe { LOCK.fill(ticket, me, Operation::Nothing) };
        }
    }
}

/// This thread's id in tickets.
fn own_id() -> u32 {
    match id_of_thread() {
        0 => NOBODY,
        me => me,
    }
}

/// A ticket for an operation, before or after its real call. The call may already have the ticket `own`. `None`: the
/// queue is full.
#[cold]
#[inline(never)]
fn reserve(segment: Segment, sp: usize, own: Option<u64>) -> Option<u64> {
    segment.count(Counter::vmap_deferred, 1);
    let me = own_id();
    give_up_left(me, sp, own);
    let ticket = LOCK.reserve(me).or_else(|| wait_for_slot(segment, sp, me))?;
    LOCK.note_frame(ticket, [sp, returns_to(sp)]);
    Some(ticket)
}

/// Waits for a free slot: the queue is full, but its holder may be working on it.
fn wait_for_slot(segment: Segment, sp: usize, me: u32) -> Option<u64> {
    if me == NOBODY || holds_lock() {
        return None;
    }
    let first = LOCK.head();
    for _ in 0..SLEEPS {
        if LOCK.head() + 1 == FULL_AT.load(Relaxed) {
            return None;
        }
        os::sleep_ms(1);
        if let Some(held) = try_take(segment, sp, me) {
            held.release();
        }
        if let Some(ticket) = LOCK.reserve(me) {
            return Some(ticket);
        }
    }
    if LOCK.head() == first {
        match try_take(segment, sp, me) {
            // A thread that is stopped in its real call blocks all later tickets, so its operation may be given up.
            Some(mut held) => {
                held.book_queue(true);
                held.release();
            }
            None => FULL_AT.store(first + 1, Relaxed),
        }
    }
    LOCK.reserve(me)
}

/// Puts an operation into the queue, under its ticket, and books the queue if the lock is free.
#[cold]
#[inline(never)]
fn enqueue(segment: Segment, sp: usize, ticket: Option<u64>, op: Operation) {
    let me = own_id();
    // SAFETY: the ticket is this call's, which fills it here only.
    if !ticket.is_some_and(|ticket| unsafe { LOCK.fill(ticket, me, op) }) && !matches!(op, Operation::Nothing) {
        segment.count(Counter::vmap_lost, 1);
    }
    if me != NOBODY
        && let Some(held) = try_take(segment, sp, me)
    {
        held.release();
    }
}

/// The real call without the lock, and its operation in the queue. `frees`: the call may free addresses.
#[cold]
#[inline(never)]
fn queued<R>(
    segment: Segment,
    sp: usize,
    frees: bool,
    real: impl FnOnce() -> R,
    done: impl FnOnce(&R) -> Option<Operation>,
) -> R {
    let first = if frees { reserve(segment, sp, None) } else { None };
    let r = real();
    let op = done(&r).unwrap_or(Operation::Nothing);
    // A signal handler forked during the real call, and this is the child; or the tracker was detached.
    let Some(segment) = Segment::current() else {
        if let Some(ticket) = first {
            // An unfilled ticket would block the queue after the next attach.
            // SAFETY: the ticket is this call's, which fills it here only.
            unsafe { LOCK.fill(ticket, own_id(), Operation::Nothing) };
        }
        return r;
    };
    if !frees {
        if !matches!(op, Operation::Nothing) {
            enqueue(segment, sp, reserve(segment, sp, None), op);
        }
        return r;
    }
    if let (_, Operation::Nothing) = op.parts(None) {
        enqueue(segment, sp, first, op);
        return r;
    }
    let last = reserve(segment, sp, first);
    let (before, after) = op.parts(last);
    enqueue(segment, sp, first, before);
    enqueue(segment, sp, last, after);
    r
}

/// The real call under the lock, then the booking of what it did. `frees`: the call may free addresses.
#[inline(always)]
pub(crate) fn locked<R>(
    segment: Segment,
    sp: usize,
    frees: bool,
    real: impl FnOnce() -> R,
    done: impl FnOnce(&R) -> Option<Operation>,
) -> R {
    let Some(mut held) = take(segment, sp) else { return queued(segment, sp, frees, real, done) };
    let r = real();
    // Each branch makes the operation itself, so that the usual branch never stores it in memory.
    if held.is_undisturbed() {
        if let Some(op) = done(&r) {
            held.book(op);
        }
        held.release();
    } else {
        let op = done(&r);
        held.finish_late(sp, op);
    }
    r
}

impl Held {
    /// Books the result of the real call, and releases the lock.
    #[cold]
    #[inline(never)]
    pub(in crate::account::mapping) fn finish_late(mut self, sp: usize, op: Option<Operation>) {
        let Some(segment) = Segment::current() else {
            return if holds_lock() {
                self.release()
            };
        };
        if !holds_lock() {
            // The lock isn't this call's any more: nothing to release.
            if let Some(op) = op {
                enqueue(segment, sp, reserve(segment, sp, None), op);
            }
            return;
        }
        self.segment = segment;
        let Some(op) = op else { return self.release() };
        // Other threads have tickets: this call may have got addresses that they freed. So it queues behind them.
        let last = if let (_, Operation::Nothing) = op.parts(None) { None } else { reserve(segment, sp, None) };
        let (before, after) = op.parts(last);
        self.book(before);
        if !matches!(after, Operation::Nothing) {
            enqueue(segment, sp, last, after);
        }
        self.release();
    }

    /// Books the queue. `None`: an earlier ticket isn't filled yet, so this call has released the lock and queues.
    #[cold]
    #[inline(never)]
    pub(super) fn drain_or_release(mut self) -> Option<Held> {
        self.book_queue(false);
        if LOCK.is_empty() {
            return Some(self);
        }
        self.release();
        None
    }

    /// Books the filled slots at the head of the queue; with `gives_up`, past one unfilled slot.
    #[cold]
    #[inline(never)]
    pub(super) fn book_queue(&mut self, mut gives_up: bool) {
        loop {
            let ticket = LOCK.head();
            // SAFETY: the lock is held.
            match unsafe { LOCK.take_first() } {
                Head::Value(Operation::MoveTo { start, bytes }) => self.book_move_to(ticket, start, bytes),
                Head::Value(op) => self.book(op),
                Head::Empty => return,
                // SAFETY: the lock is held.
                Head::Blocked(id) if gives_up && unsafe { LOCK.give_up_first(id, false) } => gives_up = false,
                Head::Blocked(id) => {
                    const PATIENCE: u64 = 64;
                    let met =
                        if BLOCKED[0].swap(ticket + 1, Relaxed) == ticket + 1 { BLOCKED[1].load(Relaxed) } else { 0 };
                    BLOCKED[1].store(met + 1, Relaxed);
                    if met % PATIENCE != PATIENCE - 1 || !is_gone(self.segment, id) {
                        return;
                    }
                    // SAFETY: the lock is held, and the kernel reports that no such thread exists.
                    if unsafe { LOCK.give_up_first(id, true) } {
                        self.segment.count(Counter::vmap_lost, 1);
                    }
                }
            }
        }
    }
}
