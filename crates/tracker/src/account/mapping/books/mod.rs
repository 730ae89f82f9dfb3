//! The books of mappings, and who may write them: [`Held`] is the only way to the map.
//!
//! # The rules
//!
//! - One thread writes at a time. The lock is never taken from a holder that exists, whether it runs, is stopped or
//!   sleeps.
//! - A thread that can't get the lock soon (the holder is stopped, or is this thread's own interrupted call) makes the
//!   real call without the lock and puts the operation into a queue ([`QUEUE_SLOTS`], [`super::combining_lock`]). The
//!   next holder books the queue in the order of its tickets. So no call of the program waits longer than [`SLEEPS`] ms
//!   for another thread. After the first such wait for a holder, no call waits for that holder again.
//! - Late books are preferred to a program that hangs. `vmap_deferred` counts the operations that went through the
//!   queue. An operation that finds the queue full is in no books; `vmap_lost` counts it.
//!
//! # Order
//!
//! The kernel may reuse an address range as soon as it is free. So an operation that frees addresses (munmap, shmdt,
//! mremap, a lowered break) takes the lock or its ticket before the real call. An operation that gets addresses takes
//! it after the real call. mremap does both: in the queue it is two operations, [`Operation::MoveFrom`] and
//! [`Operation::MoveTo`]. While a ticket is out, a holder that got its addresses under the lock queues up too.
//!
//! # Who holds
//!
//! The lock's word has the holder's thread id and the number of the acquisition. A thread knows its own hold by
//! comparing the word with its thread-local copy ([`cpu::HOLDS`]). So a thread that got the id or the descriptor of a
//! dead thread isn't taken for the holder. The copy is written before the word: a signal handler between the two finds
//! both unequal.
//!
//! | the holder | what happens |
//! | --- | --- |
//! | is stopped, descheduled, or in a long real call | others queue |
//! | is interrupted by a signal handler that maps | the handler queues; the holder books that before it releases the lock |
//! | has left its call by longjmp | its own next mapping call notices that the frame is gone, and takes the map over |
//! | ends by pthread_exit or cancellation | the key's destructor releases the lock ([`thread_ends`]) |
//! | ended by a raw exit | after one wait, tgkill(2) and kill(2) fail with ESRCH: the waiter takes the map over |
//! | is a thread of a fork's parent | the child frees the lock ([`resume_after_fork`]) |
//!
//! If a filter of system calls refuses these, the holder counts as alive. So does the first thread of the process,
//! which the kernel keeps as a zombie after a raw exit, and one whose id another process has got. Then the queue fills, and later operations are counted as lost.
//! The map is valid after every store (crates/segment/src/vmap.rs), so a thread that takes it over loses at most one
//! operation.
//!
//! # Where
//!
//! `holder` takes and releases the lock, `queue` is for the calls that don't get it, `change` writes the map. `at_once`
//! does all three for the usual call. `fork` takes the books into the child.

use super::combining_lock::{CombiningLock, QueueSlot};
use super::sync::Cell;
use crate::account::vmas::{Placement, Remap, VmaBook};
use crate::segment::Segment;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::Section;
use plimsoll_segment::vmap::Attributes;

pub(crate) use change::time;
pub use fork::{AfterFork, is_held_below, leave_after_fork, lock_for_fork, resume_after_fork, unlock_after_fork};
pub(super) use holder::{Held, take};
pub use holder::{id_of_thread, thread_ends};
pub(crate) use queue::locked;

pub(super) type Book = VmaBook<fn(usize) -> bool>;

/// Operations that can wait for the holder. Pages of the queue are touched as far as it is used.
pub(super) const QUEUE_SLOTS: usize = 4096;

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
    /// shmdt of an unknown attachment: unmaps the detached part of the map's entry.
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

pub(crate) mod at_once;
mod change;
mod failed_protection;
mod fork;
mod holder;
mod queue;
#[cfg(test)]
mod tests;
