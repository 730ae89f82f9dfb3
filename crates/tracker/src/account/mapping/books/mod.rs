//! The books of mappings, and who may write them: [`Held`] is the only way to the map.
//!
//! # The rules
//!
//! - One thread writes at a time. The lock is never taken from a holder that exists, whether it runs, is stopped or
//!   sleeps.
//! - A thread that can't get the lock soon (the holder is stopped, or is this thread's own interrupted call) makes the
//!   real call without the lock and puts the operation into a queue ([`QUEUE_SLOTS`], [`super::combining_lock`]).
//!   The next holder books the queue in the order of its tickets. So no call of the program waits longer than
//!   [`SLEEPS`] ms for another thread, and after the first such wait for a holder, no call waits for that holder again.
//! - Late books are preferred to a program that hangs. `vmap_deferred` counts the operations that went through the
//!   queue. An operation that finds the queue full is in no books; `vmap_lost` counts it.
//!
//! # Order
//!
//! The kernel may reuse an address range as soon as it is free. So an operation that frees addresses (munmap, shmdt,
//! mremap, a lowered break) takes the lock or its ticket before the real call, and one that gets addresses takes it
//! afterwards. mremap does both: in the queue it is two operations, [`Operation::MoveFrom`] and [`Operation::MoveTo`].
//! While a ticket is out, a holder that got its addresses under the lock queues up too.
//!
//! # Who holds
//!
//! The lock's word has the holder's thread id and the number of the acquisition. A thread knows its own hold by
//! comparing the word with its thread-local copy ([`cpu::HOLDS`]), so a thread that got the id or the descriptor of a
//! dead one isn't taken for the holder. The copy is written before the word: a signal handler between the two finds
//! both unequal.
//!
//! | the holder | what happens |
//! | --- | --- |
//! | is stopped, descheduled, or in a long real call | others queue |
//! | is interrupted by a signal handler that maps | the handler queues; the holder books that before it releases the lock |
//! | has left its call by longjmp | its own next mapping call notices that the frame is gone, and takes the map over |
//! | ends by pthread_exit or cancellation | the key's destructor releases the lock ([`thread_ends`]) |
//! | ended by a raw exit | after one wait, tgkill(2) with signal 0 fails with ESRCH: the waiter takes the map over |
//! | is a thread of a fork's parent | the child frees the lock ([`resume_after_fork`]) |
//!
//! If a filter of system calls refuses tgkill, the holder counts as alive. So does the first thread of the process,
//! which the kernel keeps as a zombie after a raw exit. Then the queue fills, and later operations are counted as lost.
//! The map is valid after every store (crates/segment/src/vmap.rs), so a thread that takes it over loses at most one
//! operation.
//!
//! Over 800 lines, since taking the lock, the queue and every write to the map prove one another's contracts.

use super::attachments;
use super::combining_lock::{CombiningLock, Head, QueueSlot};
use super::sync::Cell;
use crate::account::vmas::{Change, Delta, Placement, Remap, VmaBook};
use crate::segment::{SectionBytes, Segment, slots};
use crate::stack::read::return_address;
use crate::sys::{cpu, os};
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::vmap::Attributes;
use plimsoll_segment::{Counter, Section};

pub(super) type Book = VmaBook<fn(usize) -> bool>;

/// Operations that can wait for the holder. Pages of the queue are touched as far as it is used.
pub(super) const QUEUE_SLOTS: usize = 4096;
/// Spins, then sleeps of 1 ms, before a thread queues up.
const SPINS: u32 = 100;
const SLEEPS: u32 = 100;

struct BookCell(UnsafeCell<Option<Book>>);
// SAFETY: reached through `Held` only, which one thread has at a time, and by that thread in a fork child.
unsafe impl Sync for BookCell {}

static BOOK: BookCell = BookCell(UnsafeCell::new(None));
static BASE: AtomicUsize = AtomicUsize::new(0);
static LOCK: CombiningLock<Operation, QUEUE_SLOTS> = CombiningLock {
    word: AtomicU64::new(0),
    head: AtomicU64::new(0),
    tail: AtomicU64::new(0),
    slots: [const {
        QueueSlot {
            state: AtomicU64::new(0),
            frame: [const { AtomicUsize::new(0) }; 2],
            value: Cell::new(Operation::Nothing),
        }
    }; QUEUE_SLOTS],
};
/// Stack pointer and return address of the call that has the lock; [`NO_FRAME`] where they aren't known, [`FORK`]
/// between the handlers around fork().
static HOLDER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
pub(super) const NO_FRAME: usize = 0;
const FORK: usize = 1;
/// A frame of the holder is writing the map.
static WRITING: AtomicBool = AtomicBool::new(false);
/// In a fork child: the frame that is writing the map began in the parent. When it ends, its thread continues with the
/// child's map.
static FORKED: AtomicBool = AtomicBool::new(false);
/// The lock's word of a holder for which a thread has waited without success.
static STUCK: AtomicU64 = AtomicU64::new(0);
/// The head at which a thread has waited without success for a free slot, + 1.
static FULL_AT: AtomicU64 = AtomicU64::new(0);
/// How often the holder met the same unfilled slot: its ticket + 1, and the number. Written by the holder.
static BLOCKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Attributes of the range that an mremap moved away, by the slot of the ticket for its new range; accessed by the
/// holder.
static MOVED_ATTRIBUTES: [AtomicU64; 2 * QUEUE_SLOTS] = [const { AtomicU64::new(0) }; 2 * QUEUE_SLOTS];

/// An operation on the map.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    /// Nothing to book: the ticket was not needed.
    Nothing,
    /// mmap and similar calls.
    Map { start: usize, bytes: usize, attributes: Attributes, placement: Placement },
    /// munmap and similar calls.
    Unmap { start: usize, bytes: usize },
    /// shmdt of an unknown attachment: what is gone of the map's entry.
    UnmapEntry { start: usize },
    /// mprotect; `failed`: only as far as the kernel got.
    Protect { start: usize, bytes: usize, prot: u16, caller: u32, failed: bool },
    /// mremap.
    Remap { remap: Remap },
    /// The first half of an mremap that moved; the second has the ticket `to`.
    MoveFrom { start: usize, bytes: usize, to: u64 },
    /// The second half.
    MoveTo { start: usize, bytes: usize },
}

impl Operation {
    /// The part that frees addresses, and the part that got addresses from the kernel, with its ticket `to` if there is
    /// one.
    fn parts(self, to: Option<u64>) -> (Operation, Operation) {
        match self {
            Operation::Map { placement: Placement::Chosen, .. } => (Operation::Nothing, self),
            Operation::Remap { remap: r } if r.new == r.old && r.new_bytes <= r.old_bytes => (self, Operation::Nothing),
            Operation::Remap { remap: r } if r.new == r.old || r.keeps_old || r.old_bytes == 0 => {
                (Operation::Nothing, self)
            }
            Operation::Remap { remap: r } => (
                match to {
                    Some(to) => Operation::MoveFrom { start: r.old as usize, bytes: r.old_bytes as usize, to },
                    None => Operation::Unmap { start: r.old as usize, bytes: r.old_bytes as usize },
                },
                Operation::MoveTo { start: r.new as usize, bytes: r.new_bytes as usize },
            ),
            _ => (self, Operation::Nothing),
        }
    }
}

#[unsafe(link_section = ".text.hot")]
fn grow(upto: usize) -> bool {
    // SAFETY: BASE is the mapping of this process's segment.
    unsafe { Segment::at(BASE.load(Relaxed)) }.grow(Section::Vmap, upto)
}

fn region(segment: Segment) -> *mut u8 {
    BASE.store(segment.base(), Relaxed);
    (segment.base() + Section::Vmap.offset()) as *mut u8
}

/// Makes the map of a fresh segment.
pub fn init(segment: Segment) -> bool {
    // SAFETY: the section of a fresh mapping; grow makes it safe to store to.
    let book = unsafe { Book::create(region(segment), Section::Vmap.capacity(), grow) };
    let made = book.is_some();
    // SAFETY: no segment is published, so no hook takes the lock; one thread at a time comes here (the constructor, or
    // the agent).
    unsafe { *BOOK.0.get() = book };
    if let Some(held) = take(segment, NO_FRAME) {
        held.release();
    }
    made
}

/// Proof that this thread holds the lock, and that no interrupted frame of it is writing the map.
pub(super) struct Held {
    segment: Segment,
    /// The lock is a thread's.
    not_send: PhantomData<*mut ()>,
}

/// Ids that aren't the kernel's begin here: PID_MAX_LIMIT is 2^22.
const OWN_IDS: u32 = 1 << 30;
/// For tickets of a thread without an id. It never takes the lock.
const NOBODY: u32 = (1 << 31) - 2;

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
fn is_gone(segment: Segment, id: u32) -> bool {
    // A child of vfork, or of clone(2) with CLONE_VM, has this memory and another process id, so its query proves
    // nothing.
    id < OWN_IDS && segment.header().pid.load(Relaxed) == os::getpid() && os::is_thread_gone(id)
}

/// Whether this thread holds the lock.
#[inline(always)]
fn holds_lock() -> bool {
    LOCK.word() == cpu::tls_get::<{ cpu::HOLDS }>() as u64
}

/// Takes the lock. `None`: queue up. `sp` is the stack pointer at the hook's entry, where the return address lies.
#[inline(always)]
pub(super) fn take(segment: Segment, sp: usize) -> Option<Held> {
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
fn try_take(segment: Segment, sp: usize, me: u32) -> Option<Held> {
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
    Held { segment, not_send: PhantomData }
}

/// The return address of the call whose entry's stack pointer this is.
#[inline(always)]
fn returns_to(sp: usize) -> usize {
    // SAFETY: other than NO_FRAME it is an address in a frame of this thread that is still there.
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

/// Whether this thread, at `sp`, has left the frame, by a jump out of a signal handler: on one stack, a frame that is
/// still there lies above the current one, and its return address is unchanged.
fn has_left(sp: usize, [frame, returned]: [usize; 2]) -> bool {
    let on_stack = slots::is_on_own_stack;
    // SAFETY: `frame` is above `sp` on this thread's own stack: what lies there is mapped, the frame itself or a later
    // one.
    on_stack(sp) && on_stack(frame) && (sp >= frame || unsafe { return_address(frame) } as usize != returned)
}

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

/// A ticket for an operation, before or after its real call. The call may already have the ticket `own`. `None`: the
/// queue is full.
#[cold]
#[inline(never)]
fn reserve(segment: Segment, sp: usize, own: Option<u64>) -> Option<u64> {
    segment.count(Counter::vmap_deferred, 1);
    let me = match id_of_thread() {
        0 => NOBODY,
        me => me,
    };
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
    let me = match id_of_thread() {
        0 => NOBODY,
        me => me,
    };
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
    // A signal handler forked during the real call, and this is the child.
    let Some(segment) = Segment::current() else { return r };
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
    // The operation is made in each branch by itself, so that the usual one never has it in memory.
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
    /// Whether nothing happened in between during the real call. Otherwise other threads have tickets, or a handler
    /// forked and this is the child, or a handler concluded that this call was left.
    #[inline(always)]
    fn is_undisturbed(&self) -> bool {
        holds_lock() && LOCK.is_empty() && self.segment.is_published()
    }

    /// Books the result of the real call, and releases the lock.
    #[cold]
    #[inline(never)]
    pub(super) fn finish_late(mut self, sp: usize, op: Option<Operation>) {
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
    fn drain_or_release(mut self) -> Option<Held> {
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
    fn book_queue(&mut self, mut gives_up: bool) {
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
                    // SAFETY: the lock is held, and the kernel knows no such thread.
                    if unsafe { LOCK.give_up_first(id, true) } {
                        self.segment.count(Counter::vmap_lost, 1);
                    }
                }
            }
        }
    }

    /// Releases the lock. Operations that are queued meanwhile are booked by this thread, unless another has the lock.
    #[inline(always)]
    pub(super) fn release(self) {
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

    /// The map.
    pub(super) fn map(&mut self) -> Option<&mut Book> {
        // SAFETY: the lock is held, and the borrow ends with `self`'s.
        unsafe { &mut *BOOK.0.get() }.as_mut()
    }

    /// Reads the writer's state beside the map from the map.
    fn reread(&mut self) {
        self.segment.count(Counter::faults, 1);
        WRITING.store(false, Relaxed);
        let SectionBytes(populated) = self.segment.populated_of(Section::Vmap);
        // SAFETY: the lock is held, no frame is in the map, and the region is the segment's.
        unsafe { *BOOK.0.get() = Book::resume(region(self.segment), Section::Vmap.bytes(), populated, grow) };
    }

    /// Books an operation of any kind. Code that knows the kind calls its function directly.
    #[inline(always)]
    pub(super) fn book(&mut self, op: Operation) {
        match op {
            Operation::Nothing => {}
            Operation::Map { start, bytes, attributes, placement: Placement::Chosen } => {
                self.book_map(start, bytes, attributes)
            }
            Operation::Map { start, bytes, attributes, placement } => {
                self.book_fixed(start, bytes, attributes, placement)
            }
            Operation::Unmap { start, bytes } => self.book_unmap(start, bytes),
            Operation::UnmapEntry { start } => {
                if let Some(vma) = self.map().and_then(|b| b.lookup(start as u64)) {
                    let end = vma.end as usize;
                    let is_readable = vma.attributes().prot() & 1 != 0;
                    let end = if is_readable { attachments::end_of_detached(start..end) } else { end };
                    self.book_unmap(start, end - start);
                }
            }
            Operation::Protect { start, bytes, prot, caller, failed } => {
                self.book_protect(start, bytes, prot, caller, failed)
            }
            Operation::Remap { remap } => self.book_remap(remap),
            Operation::MoveFrom { start, bytes, to } => self.book_move_from(start, bytes, to),
            // In the queue only, where its ticket is known.
            Operation::MoveTo { .. } => self.segment.count(Counter::vmap_lost, 1),
        }
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn book_map(&mut self, start: usize, bytes: usize, attributes: Attributes) {
        let segment = self.segment;
        self.change(|b| b.map(start as u64, bytes as u64, attributes, Placement::Chosen, move |d| post(segment, d)));
    }

    #[inline(never)]
    fn book_fixed(&mut self, start: usize, bytes: usize, attributes: Attributes, placement: Placement) {
        let segment = self.segment;
        self.change(|b| b.map(start as u64, bytes as u64, attributes, placement, move |d| post(segment, d)));
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn book_unmap(&mut self, start: usize, bytes: usize) {
        let segment = self.segment;
        self.change(|b| b.unmap(start as u64, bytes as u64, move |d| post(segment, d), |_| ()));
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn book_protect(&mut self, start: usize, bytes: usize, prot: u16, caller: u32, failed: bool) {
        let segment = self.segment;
        let bytes = if failed { self.protected_bytes(start, bytes, prot) } else { bytes };
        if bytes == 0 {
            return;
        }
        self.change(|b| b.protect(start as u64, bytes as u64, prot, caller, time(segment), move |d| post(segment, d)));
    }

    #[cold]
    #[inline(never)]
    fn book_remap(&mut self, remap: Remap) {
        let segment = self.segment;
        self.change(|b| b.remap(remap, move |d| post(segment, d)));
    }

    /// Books the first half of a move. The second half gets the attributes of the range's last page, as growth by
    /// mremap does.
    #[cold]
    #[inline(never)]
    fn book_move_from(&mut self, start: usize, bytes: usize, to: u64) {
        let last = (start + bytes.saturating_sub(1)) as u64;
        let vma = self.map().and_then(|b| b.lookup(last));
        let [.., a, b] = vma.map_or([0; 4], |vma| vma.words());
        let at = to as usize % QUEUE_SLOTS * 2;
        MOVED_ATTRIBUTES[at].store(a, Relaxed);
        MOVED_ATTRIBUTES[at + 1].store(b, Relaxed);
        self.book_unmap(start, bytes);
    }

    fn book_move_to(&mut self, ticket: u64, start: usize, bytes: usize) {
        let at = ticket as usize % QUEUE_SLOTS * 2;
        let words = [0, 0, MOVED_ATTRIBUTES[at].swap(0, Relaxed), MOVED_ATTRIBUTES[at + 1].swap(0, Relaxed)];
        let attributes = plimsoll_segment::vmap::Vma::from_words(words).attributes();
        // Where the old range isn't in the map, the new one isn't either.
        if !attributes.is_hole() {
            self.book_map(start, bytes, attributes);
        }
    }

    /// Changes the map, and the header's totals with it.
    #[inline(always)]
    fn change(&mut self, change: impl FnOnce(&mut Book) -> Change) {
        let segment = self.segment;
        debug_assert!(!WRITING.load(Relaxed), "two writers of the books of mappings");
        WRITING.store(true, Relaxed);
        let Some(b) = self.map() else {
            WRITING.store(false, Relaxed);
            return segment.count(Counter::vmap_lost, 1);
        };
        let diff = change(b);
        if diff.lost != 0 {
            segment.count(Counter::vmap_lost, 1);
        }
        let h = segment.header();
        if diff.reserved != 0 {
            raise(&h.reserved_bytes, &h.peak_reserved_bytes, diff.reserved);
        }
        if diff.committed != 0 {
            raise(&h.committed_bytes, &h.peak_committed_bytes, diff.committed);
        }
        let n = &h.values[Counter::vmap_operations as usize];
        n.store(n.load(Relaxed) + 1, Relaxed);
        self.end_write();
    }

    /// Ends a change of the map.
    #[inline(always)]
    fn end_write(&mut self) {
        WRITING.store(false, Relaxed);
        if FORKED.load(Relaxed) {
            self.continue_in_child();
        }
    }

    /// In a fork child: the frame that was writing the parent's map when a handler forked has ended.
    #[cold]
    #[inline(never)]
    fn continue_in_child(&mut self) {
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

/// Books a value that was queued between the last read of the queue and the release.
#[cold]
#[inline(never)]
fn release_again(sp: usize) {
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

#[inline(always)]
fn raise(cell: &AtomicU64, peak: &AtomicU64, by: i64) {
    let v = cell.load(Relaxed).wrapping_add_signed(by);
    cell.store(v, Relaxed);
    if v as i64 > peak.load(Relaxed) as i64 {
        peak.store(v, Relaxed);
    }
}

/// Applies a change of the map to a category's figures.
#[inline(always)]
fn post(segment: Segment, d: Delta) {
    let k = segment.category(d.category);
    if d.reserved != 0 {
        raise(&k.reserved_bytes, &k.peak_reserved_bytes, d.reserved);
    }
    if d.committed != 0 {
        raise(&k.committed_bytes, &k.peak_committed_bytes, d.committed);
    }
}

/// Milliseconds since the start, as entries have them.
pub(crate) fn time(segment: Segment) -> u32 {
    (crate::sys::clock::now_ns().wrapping_sub(segment.header().start_boottime_ns.load(Relaxed)) / 1_000_000) as u32
}

/// At the end of a thread: releases whatever calls that it left by a jump still hold.
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
        Held { segment, not_send: PhantomData }.release();
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

pub(crate) mod at_once;
mod failed_protection;
#[cfg(test)]
mod tests;
