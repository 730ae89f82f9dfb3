//! The lock of the books of mappings. It knows its holder, and has a queue: a thread that can't get the lock leaves its
//! operation there, and the holder books it ("flat combining").
//!
//! ```text
//! word    count of acquisitions << 32 | id of the holder, 0 free     no two acquisitions have the same word
//! queue   ring of N slots; ticket t lies in slot t % N
//! slot    round (t / N) << 32 | 0 free · id reserved · WRITING | id · FILLED
//! ```
//!
//! The holder alone moves `head`: it takes filled slots in the order of their tickets and stops at the first unfilled
//! one. A thread that fills a slot tries the lock afterwards; a thread that releases the lock reads the queue
//! afterwards. One of the two sees the other (both have a full fence between their store and their load), so no filled
//! slot is left behind.
//!
//! This file doesn't depend on mappings, threads or time, and takes its atomics from `super::sync`:
//! `tests/combining_lock.rs` runs it under loom.

use super::sync::Ordering::*;
use super::sync::{AtomicU64, AtomicUsize, Cell, fence};

/// A slot of the queue.
pub(super) struct QueueSlot<T> {
    pub(super) state: AtomicU64,
    /// Stack pointer and return address of the call that reserved it; 0 = unknown. Only the reserving thread reads
    /// them.
    pub(super) frame: [AtomicUsize; 2],
    pub(super) value: Cell<T>,
}

/// The lock and its queue.
pub(super) struct CombiningLock<T, const N: usize> {
    pub(super) word: AtomicU64,
    pub(super) head: AtomicU64,
    pub(super) tail: AtomicU64,
    pub(super) slots: [QueueSlot<T>; N],
}

/// In a slot's state, beside the id: its value is being written.
const WRITING: u32 = 1 << 31;
const FILLED: u32 = u32::MAX;
const ID: u64 = u32::MAX as u64;

/// The head of the queue, as the holder finds it.
pub(super) enum Head<T> {
    /// The queue is empty.
    Empty,
    /// The thread with this id hasn't filled its slot yet.
    Blocked(u32),
    /// The slot's value, taken out.
    Value(T),
}

impl<T: Copy, const N: usize> CombiningLock<T, N> {
    fn slot(&self, ticket: u64) -> (&QueueSlot<T>, u64) {
        (&self.slots[(ticket % N as u64) as usize], (ticket / N as u64) & ID)
    }

    /// The lock's word.
    #[inline(always)]
    pub(super) fn word(&self) -> u64 {
        self.word.load(Relaxed)
    }

    /// The word with which `me` would hold the lock, if the lock's word is now `seen`.
    #[inline(always)]
    pub(super) fn next_word(seen: u64, me: u32) -> u64 {
        (seen & !ID).wrapping_add(ID + 1) | me as u64
    }

    /// Takes the lock if its word is still `seen`: free, or of a holder that doesn't exist any more.
    #[inline(always)]
    pub(super) fn acquire(&self, seen: u64, held: u64) -> bool {
        self.word.compare_exchange(seen, held, Acquire, Relaxed).is_ok()
    }

    /// Releases the lock. True: a filled slot waits, so take the lock again if it is free.
    ///
    /// # Safety
    /// The caller holds the lock with this word.
    #[inline(always)]
    pub(super) unsafe fn release(&self, held: u64) -> bool {
        self.word.store(held & !ID, Release);
        fence(SeqCst);
        // For an empty queue, one comparison. A slot that was reserved and isn't yet counted in `tail` isn't filled
        // either, and the thread that fills it tries the lock.
        !self.is_empty() && self.is_first_filled()
    }

    /// Whether no ticket is out. The holder's booking comes after those of all tickets that are out.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.tail.load(Acquire) == self.head.load(Relaxed)
    }

    /// Whether the holder could take a value.
    pub(super) fn is_first_filled(&self) -> bool {
        let (slot, round) = self.slot(self.head.load(Acquire));
        slot.state.load(Acquire) == round << 32 | FILLED as u64
    }

    /// The first ticket that isn't booked.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// A ticket for the thread `me`. `None`: all slots are taken.
    pub(super) fn reserve(&self, me: u32) -> Option<u64> {
        loop {
            let ticket = self.tail.load(Acquire);
            let (slot, round) = self.slot(ticket);
            let state = slot.state.load(Acquire);
            let free = round << 32;
            if state == free {
                let taken = slot.state.compare_exchange(free, free | me as u64, AcqRel, Relaxed).is_ok();
                // This ticket is out, whichever thread took it.
                let _ = self.tail.compare_exchange(ticket, ticket + 1, AcqRel, Relaxed);
                if taken {
                    return Some(ticket);
                }
            } else if state >> 32 == round {
                let _ = self.tail.compare_exchange(ticket, ticket + 1, AcqRel, Relaxed);
            } else if self.tail.load(Acquire) == ticket {
                return None;
            }
        }
    }

    /// Fills a reserved slot; then the caller tries the lock. False: the ticket was given up meanwhile.
    ///
    /// # Safety
    /// `ticket` was reserved by this thread, under `me`, and is filled once.
    pub(super) unsafe fn fill(&self, ticket: u64, me: u32, value: T) -> bool {
        let (slot, round) = self.slot(ticket);
        let (reserved, writing) = (round << 32 | me as u64, round << 32 | (WRITING | me) as u64);
        if slot.state.compare_exchange(reserved, writing, AcqRel, Relaxed).is_err() {
            return false;
        }
        // SAFETY: only this thread accesses the value of a slot that it has marked as WRITING.
        unsafe { slot.value.put(value) };
        slot.state.store(round << 32 | FILLED as u64, Release);
        fence(SeqCst);
        true
    }

    /// What is at the head of the queue; a value is taken out.
    ///
    /// # Safety
    /// The caller holds the lock.
    pub(super) unsafe fn take_first(&self) -> Head<T> {
        let head = self.head.load(Relaxed);
        let (slot, round) = self.slot(head);
        let state = slot.state.load(Acquire);
        if state >> 32 != round {
            return Head::Empty;
        }
        match state as u32 {
            0 => Head::Empty,
            FILLED => {
                // SAFETY: the slot is filled, and only the holder takes values.
                let value = unsafe { slot.value.get() };
                self.pass(head);
                Head::Value(value)
            }
            id => Head::Blocked(id & !WRITING),
        }
    }

    /// Frees the first slot for the next round.
    fn pass(&self, head: u64) {
        let (slot, round) = self.slot(head);
        slot.frame[0].store(0, Relaxed);
        slot.state.store(((round + 1) & ID) << 32, Release);
        // `tail` may lag behind a reserved slot whose thread hasn't moved it yet; it never lags behind `head`.
        let _ = self.tail.compare_exchange(head, head + 1, AcqRel, Relaxed);
        self.head.store(head + 1, Release);
    }

    /// Gives up the ticket at the head, which `id` reserved. False: its value was written or is being written.
    ///
    /// # Safety
    /// The caller holds the lock; `is_gone` says that the thread doesn't exist any more.
    pub(super) unsafe fn give_up_first(&self, id: u32, is_gone: bool) -> bool {
        let head = self.head.load(Relaxed);
        let (slot, round) = self.slot(head);
        // Marked as FILLED for a moment, so that no fill can begin. Only the holder reads filled slots.
        let exchange = |from: u32| {
            let from = round << 32 | from as u64;
            slot.state.compare_exchange(from, round << 32 | FILLED as u64, AcqRel, Relaxed).is_ok()
        };
        let given_up = exchange(id) || (is_gone && exchange(WRITING | id));
        if given_up {
            self.pass(head);
        }
        given_up
    }

    /// Notes the frame that a reserved ticket belongs to.
    pub(super) fn note_frame(&self, ticket: u64, frame: [usize; 2]) {
        let (slot, _) = self.slot(ticket);
        slot.frame[1].store(frame[1], Relaxed);
        slot.frame[0].store(frame[0], Relaxed);
    }

    /// The tickets that `me` has reserved and not filled, oldest first, with their frames.
    pub(super) fn reserved_by(&self, me: u32) -> impl Iterator<Item = (u64, [usize; 2])> {
        (self.head.load(Acquire)..self.tail.load(Acquire)).filter_map(move |ticket| {
            let (slot, round) = self.slot(ticket);
            (slot.state.load(Acquire) == round << 32 | me as u64)
                .then(|| (ticket, [slot.frame[0].load(Relaxed), slot.frame[1].load(Relaxed)]))
        })
    }

    /// A word with another holder; 0 = none.
    pub(super) fn held_by(word: u64, id: u32) -> u64 {
        (word & !ID) | id as u64
    }

    /// In a fork child: its one thread has a new id, and the lock gets this word. Gives up the tickets of the parent's
    /// other threads; returns their number.
    ///
    /// # Safety
    /// The process has one thread.
    pub(super) unsafe fn after_fork(&self, old: u32, new: u32, word: u64, none: T) -> u64 {
        let mut lost = 0;
        self.word.store(word, Relaxed);
        for ticket in self.head.load(Relaxed)..self.tail.load(Relaxed) {
            let (slot, round) = self.slot(ticket);
            let state = slot.state.load(Relaxed);
            match state as u32 {
                FILLED | 0 => {}
                id if id & !WRITING == old => {
                    slot.state.store(round << 32 | ((id & WRITING) | new) as u64, Relaxed);
                }
                _ => {
                    // SAFETY: the thread that reserved it doesn't exist in this process.
                    unsafe { slot.value.put(none) };
                    slot.state.store(round << 32 | FILLED as u64, Relaxed);
                    lost += 1;
                }
            }
        }
        lost
    }
}
