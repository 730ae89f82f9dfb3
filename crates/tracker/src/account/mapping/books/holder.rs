//! Taking the lock of the map, waiting for it, taking it over, and releasing it.

use super::{BOOK, FORK, HOLDER, LOCK, NO_FRAME, Operation, QUEUE_SLOTS, STUCK};
use crate::account::mapping::combining_lock::CombiningLock;
use crate::segment::{Segment, slots};
use crate::stack::read::return_address;
use crate::sys::{cpu, os};
use core::marker::PhantomData;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::Section;

/// Spins, then sleeps of 1 ms, before a thread queues up.
const SPINS: u32 = 100;

pub(super) const SLEEPS: u32 = 100;

/// Proof that this thread holds the lock, and that no interrupted frame of it is writing the map.
pub(in crate::account::mapping) struct Held {
    pub(super) segment: Segment,
    /// A thread holds the lock, so the proof must not move to another thread.
    not_send: PhantomData<*mut ()>,
}

/// Ids that aren't the kernel's begin here: PID_MAX_LIMIT is 2^22.
const OWN_IDS: u32 = 1 << 30;

/// For tickets of a thread without an id. Such a thread never takes the lock.
pub(super) const NOBODY: u32 = (1 << 31) - 2;

/// This thread's id in words and tickets. 0: a filter refuses gettid(2), and the thread has no slot.
#[cold]
#[inline(never)]
pub fn id_of_thread() -> u32 {
    let known = cpu::tls_get::<{ cpu::HOLDS }>() as u32;
    if known != 0 {
        return known;
    }
    let id = match (os::gettid(), cpu::tls_get::<{ cpu::SLOT_MARK }>() as u32) {
        (0, 0) => return 0,
        (0, slot) => OWN_IDS | slot,
        (tid, _) => tid,
    };
    cpu::tls_set::<{ cpu::HOLDS }>(id as usize);
    id
}

/// Whether the thread that a word or a ticket names doesn't exist any more. False in doubt.
#[cold]
pub(super) fn is_gone(segment: Segment, id: u32) -> bool {
    // A child of vfork, or of clone(2) with CLONE_VM, has this memory and another process id, so its query proves
    // nothing.
    id < OWN_IDS && segment.header().pid.load(Relaxed) == os::getpid() && os::is_thread_gone(id)
}

/// Whether this thread holds the lock.
#[inline(always)]
pub(super) fn holds_lock() -> bool {
    LOCK.word() == cpu::tls_get::<{ cpu::HOLDS }>() as u64
}

/// Takes the lock. `None`: queue up. `sp` is the stack pointer at the hook's entry, where the return address lies.
#[inline(always)]
pub(in crate::account::mapping) fn take(segment: Segment, sp: usize) -> Option<Held> {
    let me = cpu::tls_get::<{ cpu::HOLDS }>() as u32;
    if me != 0
        && let Some(held) = try_take(segment, sp, me)
    {
        return if LOCK.is_empty() { Some(held) } else { held.drain_or_release() };
    }
    wait(segment, sp)
}

/// Takes the lock if it is free.
#[inline(always)]
pub(super) fn try_take(segment: Segment, sp: usize, me: u32) -> Option<Held> {
    let seen = LOCK.word();
    if seen as u32 != 0 {
        return None;
    }
    take_from(segment, sp, me, seen)
}

#[inline(always)]
fn take_from(segment: Segment, sp: usize, me: u32, seen: u64) -> Option<Held> {
    let held = CombiningLock::<Operation, QUEUE_SLOTS>::next_word(seen, me);
    // Before the word, so that a handler in between recognises its own thread's hold. If a handler takes the lock in
    // between, the count has changed and the exchange fails.
    cpu::tls_set::<{ cpu::HOLDS }>(held as usize);
    LOCK.acquire(seen, held).then(|| hold(segment, sp))
}

#[inline(always)]
fn hold(segment: Segment, sp: usize) -> Held {
    HOLDER[0].store(sp, Relaxed);
    HOLDER[1].store(returns_to(sp), Relaxed);
    Held::of(segment)
}

/// The return address of the call whose entry's stack pointer this is.
#[inline(always)]
pub(super) fn returns_to(sp: usize) -> usize {
    // SAFETY: unless it is NO_FRAME, `sp` is an address in a frame of this thread that still exists.
    if sp == NO_FRAME { 0 } else { unsafe { return_address(sp) as usize } }
}

/// [`take`] while another call has the lock.
#[cold]
#[inline(never)]
fn wait(segment: Segment, sp: usize) -> Option<Held> {
    let me = id_of_thread();
    if me == 0 {
        return None;
    }
    let first = LOCK.word();
    let mut rounds = 0;
    let word = loop {
        let word = LOCK.word();
        if word as u32 == 0 {
            if let Some(held) = take_from(segment, sp, me, word) {
                return held.drain_or_release();
            }
            continue;
        }
        if word as u32 == me {
            let is_own = word == cpu::tls_get::<{ cpu::HOLDS }>() as u64;
            // Not this thread's hold: an ended thread had the same id.
            return (!is_own || has_left(sp, frame_of_holder())).then(|| take_over(segment, sp, me, word)).flatten();
        }
        if word == STUCK.load(Relaxed) {
            break word;
        }
        rounds += 1;
        if rounds < SPINS {
            core::hint::spin_loop();
        } else if rounds < SPINS + SLEEPS {
            os::sleep_ms(1);
        } else {
            if word == first {
                STUCK.store(word, Relaxed);
            }
            break word;
        }
    };
    is_gone(segment, word as u32).then(|| take_over(segment, sp, me, word)).flatten()
}

/// Takes the lock from a holder that ended, or whose frame was left. It left the map as after a kill: valid, with at
/// most one operation half booked. The writer's state beside the map is read from the map again.
fn take_over(segment: Segment, sp: usize, me: u32, word: u64) -> Option<Held> {
    let mut held = take_from(segment, sp, me, word)?;
    held.reread();
    held.drain_or_release()
}

fn frame_of_holder() -> [usize; 2] {
    [HOLDER[0].load(Relaxed), HOLDER[1].load(Relaxed)]
}

/// Whether this thread, at `sp`, has left the frame, by a jump out of a signal handler. On one stack, a live frame lies
/// above the current one, and its return address is unchanged.
pub(super) fn has_left(sp: usize, [frame, returned]: [usize; 2]) -> bool {
    let on_stack = slots::is_on_own_stack;
    // SAFETY: `frame` is above `sp` on this thread's own stack: what lies there is mapped, the frame itself or a later
    // one.
    on_stack(sp) && on_stack(frame) && (sp >= frame || unsafe { return_address(frame) } as usize != returned)
}

impl Held {
    /// The proof, for a caller that has just got the lock or still has it.
    #[inline(always)]
    pub(super) fn of(segment: Segment) -> Held {
        Held { segment, not_send: PhantomData }
    }

    /// Whether nothing happened in between during the real call. Otherwise other threads have tickets, or a handler
    /// forked and this is the child, or a handler concluded that this call was left.
    #[inline(always)]
    pub(super) fn is_undisturbed(&self) -> bool {
        holds_lock() && LOCK.is_empty() && self.segment.is_published()
    }

    /// Releases the lock. Operations that are queued meanwhile are booked by this thread, unless another has the lock.
    #[inline(always)]
    pub(in crate::account::mapping) fn release(self) {
        if !LOCK.is_empty() {
            return self.release_last();
        }
        self.settle();
        let sp = HOLDER[0].load(Relaxed);
        // SAFETY: `self` is the proof.
        if unsafe { LOCK.release(cpu::tls_get::<{ cpu::HOLDS }>() as u64) } {
            release_again(sp);
        }
    }

    #[cold]
    #[inline(never)]
    fn release_last(mut self) {
        loop {
            self.book_queue(false);
            self.settle();
            let sp = without_fork(HOLDER[0].load(Relaxed));
            // SAFETY: `self` is the proof.
            if !unsafe { LOCK.release(cpu::tls_get::<{ cpu::HOLDS }>() as u64) } {
                return;
            }
            match try_take(self.segment, sp, id_of_thread()) {
                Some(held) => self = held,
                None => return,
            }
        }
    }

    #[inline(always)]
    fn settle(&self) {
        // SAFETY: the lock is held.
        if let Some(b) = unsafe { &*BOOK.0.get() } {
            self.segment.section(Section::Vmap).used.store(b.used(), Release);
        }
    }
}

/// Books a value that was queued between the last read of the queue and the release.
#[cold]
#[inline(never)]
pub(super) fn release_again(sp: usize) {
    if let Some(segment) = Segment::current()
        && let Some(held) = try_take(segment, without_fork(sp), id_of_thread())
    {
        held.release_last();
    }
}

/// A hold that continues after the handlers around fork() doesn't belong to them any more.
fn without_fork(sp: usize) -> usize {
    if sp == FORK { NO_FRAME } else { sp }
}

/// At the end of a thread: gives up the tickets and the lock that its calls still hold because a jump left them.
pub fn thread_ends(segment: Segment) {
    let me = cpu::tls_get::<{ cpu::HOLDS }>() as u32;
    if me == 0 {
        return;
    }
    for (ticket, _) in LOCK.reserved_by(me) {
        // SAFETY: this thread's ticket; no frame of a hook is left on its stack.
        unsafe { LOCK.fill(ticket, me, Operation::Nothing) };
    }
    let word = LOCK.word();
    if word as u32 == me
        && let Some(held) = take_over(segment, NO_FRAME, me, word)
    {
        held.release();
    }
}
