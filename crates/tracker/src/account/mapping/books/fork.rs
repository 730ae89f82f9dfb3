//! The lock, the queue and the map across fork(): taken before, given back in the parent, continued in the child.

use super::holder::{Held, holds_lock, id_of_thread, take};
use super::{BOOK, Book, FORK, FORKED, FULL_AT, HOLDER, LOCK, Operation, QUEUE_SLOTS, STUCK, WRITING, grow, region};
use crate::account::mapping::combining_lock::CombiningLock;
use crate::segment::{SectionBytes, Segment};
use crate::sys::cpu;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::{Counter, Section};

/// Before a fork: takes the lock, so that no thread writes the map while the child's copy is taken. If the holder makes
/// no progress, no other thread writes either, and the copy is as after a kill: valid.
pub fn lock_for_fork(segment: Segment) {
    let here = cpu::thread_pointer();
    if take(segment, &raw const here as usize).is_some() {
        // `unlock_after_fork` gives it back, in this process.
        HOLDER[0].store(FORK, Relaxed);
    }
}

/// In the parent.
pub fn unlock_after_fork(segment: Segment) {
    // If a signal handler forked while its own thread held the lock, the interrupted call releases it.
    if holds_lock() && HOLDER[0].load(Relaxed) == FORK {
        Held::of(segment).release();
    }
}

/// In a fork child: whether a frame of this thread has the lock. Writes nothing.
pub fn is_held_below() -> bool {
    holds_lock() && HOLDER[0].load(Relaxed) != FORK
}

/// The state of the lock and the queue in a fork child.
#[derive(Clone, Copy)]
pub struct AfterFork {
    /// Operations of the parent's other threads.
    pub lost: u64,
    /// A frame of the thread that forked is in the map.
    pub in_map: bool,
}

/// In the child, before it has a map. A frame that was writing the map continues with memory at the same address.
pub fn leave_after_fork() -> AfterFork {
    let after = adopt_new_id();
    if !after.in_map {
        // SAFETY: one thread, none of whose frames is in the map.
        unsafe { *BOOK.0.get() = None };
    }
    after
}

/// In the child: continues the map in the child's segment, of which `populated` bytes are safe to write.
pub fn resume_after_fork(child: Segment, in_map: bool, populated: SectionBytes) {
    let region = region(child);
    if !in_map {
        // SAFETY: one thread, none of whose frames is in the map; the copy of a whole map.
        unsafe { *BOOK.0.get() = Book::resume(region, Section::Vmap.bytes(), populated.0, grow) };
    }
}

/// In a fork child, whose one thread has a new id. Its own interrupted frames keep what they hold; locks and tickets of
/// the parent's other threads are released.
fn adopt_new_id() -> AfterFork {
    let (word, mine) = (LOCK.word(), holds_lock());
    let old = cpu::tls_get::<{ cpu::HOLDS }>() as u32;
    cpu::tls_set::<{ cpu::HOLDS }>(0);
    let new = id_of_thread();
    let frame_holds = mine && HOLDER[0].load(Relaxed) != FORK;
    let word = CombiningLock::<Operation, QUEUE_SLOTS>::held_by(word, if frame_holds { new } else { 0 });
    cpu::tls_set::<{ cpu::HOLDS }>(if frame_holds { word as usize } else { new as usize });
    // SAFETY: there is one thread.
    let lost = unsafe { LOCK.after_fork(old, new, word, Operation::Nothing) };
    STUCK.store(0, Relaxed);
    FULL_AT.store(0, Relaxed);
    let in_map = frame_holds && WRITING.load(Relaxed);
    WRITING.store(in_map, Relaxed);
    FORKED.store(in_map, Relaxed);
    AfterFork { lost, in_map }
}

impl Held {
    /// In a fork child: the frame that was writing the parent's map when a handler forked has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn continue_in_child(&mut self) {
        FORKED.store(false, Relaxed);
        match Segment::current() {
            Some(segment) => {
                self.segment = segment;
                segment.count(Counter::vmap_lost, 1);
                self.reread();
            }
            // SAFETY: the lock is held, and the frame in the map is done with it.
            None => unsafe { *BOOK.0.get() = None },
        }
    }
}
