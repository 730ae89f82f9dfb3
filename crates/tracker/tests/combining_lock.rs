//! The lock of the books of mappings (`account/mapping/combining_lock.rs`, the file itself) under loom: every
//! interleaving of a few threads. Each property has a twin with one step left out, which loom must catch.
//!
//! The contracts of `Cell` and of `CombiningLock` are what loom checks here, and the twins break them. That is sound:
//! loom runs one thread at a time, and stops the test at the first access that isn't exclusive. The notes below cite
//! this as "loom".

mod sync {
    pub use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

    pub struct Cell<T>(loom::cell::UnsafeCell<T>);

    // SAFETY: loom: it reports every access that isn't exclusive.
    unsafe impl<T: Send> Sync for Cell<T> {}

    impl<T: Copy> Cell<T> {
        pub fn new(value: T) -> Self {
            Self(loom::cell::UnsafeCell::new(value))
        }
        /// # Safety
        /// No other thread accesses the cell meanwhile; loom checks it.
        pub unsafe fn put(&self, value: T) {
            // SAFETY: loom; the pointer is to the cell's own value.
            self.0.with_mut(|p| unsafe { *p = value });
        }
        /// # Safety
        /// As for `put`.
        pub unsafe fn get(&self) -> T {
            // SAFETY: loom; the pointer is to the cell's own value.
            self.0.with(|p| unsafe { *p })
        }
    }
}

#[allow(dead_code, missing_docs, reason = "the tracker's own file, of which the model uses a part")]
#[path = "../src/account/mapping/combining_lock.rs"]
mod combining_lock;

use combining_lock::{CombiningLock, Head, QueueSlot};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize as Atomic, Ordering::*};
use loom::thread;
use sync::{AtomicU64, AtomicUsize, Cell};

const SLOTS: usize = 2;

/// The lock and the queue around a map of one page, which is mapped (1) or not (0).
struct Model {
    lock: CombiningLock<usize, SLOTS>,
    page: Cell<usize>,
    /// The kernel's state of the page.
    kernel: Atomic,
    /// How often it was booked in the wrong order.
    wrong: Atomic,
    lost: Atomic,
    /// A holder reads the queue once more after it has released the lock.
    checks_after_release: bool,
    /// A thread that finds tickets out queues behind them.
    respects_tickets: bool,
}

const MAP: usize = 1;
const UNMAP: usize = 0;

impl Model {
    fn new(checks_after_release: bool, respects_tickets: bool) -> Self {
        let slot = || QueueSlot {
            state: AtomicU64::new(0),
            frame: [AtomicUsize::new(0), AtomicUsize::new(0)],
            value: Cell::new(0),
        };
        let [word, head, tail] = [0; 3].map(AtomicU64::new);
        let lock = CombiningLock { word, head, tail, slots: [slot(), slot()] };
        let [kernel, wrong, lost] = [0; 3].map(Atomic::new);
        Self { lock, page: Cell::new(0), kernel, wrong, lost, checks_after_release, respects_tickets }
    }

    /// The word, if the lock was taken.
    fn try_take(&self, me: u32) -> Option<u64> {
        let seen = self.lock.word();
        let held = CombiningLock::<usize, SLOTS>::next_word(seen, me);
        (seen as u32 == 0 && self.lock.acquire(seen, held)).then_some(held)
    }

    /// Books an operation; the caller holds the lock.
    fn book(&self, op: usize) {
        // SAFETY: the caller holds the lock; loom reports two writers.
        let was = unsafe { self.page.get() };
        if was == op {
            self.wrong.fetch_add(1, Relaxed);
        }
        // SAFETY: as above.
        unsafe { self.page.put(op) };
    }

    fn drain(&self) {
        // SAFETY: the caller holds the lock.
        while let Head::Value(op) = unsafe { self.lock.take_first() } {
            self.book(op);
        }
    }

    fn release(&self, held: u64) {
        let mut held = held;
        loop {
            self.drain();
            // SAFETY: the caller, or `try_take` below, took the lock with this word.
            if !(unsafe { self.lock.release(held) } && self.checks_after_release) {
                return;
            }
            match self.try_take((held & 0xffff_ffff) as u32) {
                Some(again) => held = again,
                None => return,
            }
        }
    }

    /// As `locked` and `queued` in account/mapping/books/mod.rs.
    fn call(&self, me: u32, op: usize, real: impl FnOnce() -> bool) -> bool {
        let frees = op == UNMAP;
        let mut is_done = None;
        let mut real = Some(real);
        if !frees {
            is_done = Some(real.take().expect("once")());
        }
        if let Some(held) = self.try_take(me) {
            self.drain();
            if self.lock.is_empty() || !self.respects_tickets {
                let done = is_done.unwrap_or_else(|| real.take().expect("once")());
                if done {
                    self.book(op);
                }
                self.release(held);
                return done;
            }
            self.release(held);
        }
        let early = if frees { self.lock.reserve(me) } else { None };
        let done = is_done.unwrap_or_else(|| real.take().expect("once")());
        let ticket = if frees {
            early
        } else if done {
            self.lock.reserve(me)
        } else {
            return false;
        };
        // Without `done`, the ticket has nothing to book.
        match ticket {
            // SAFETY: this thread reserved the ticket above, under `me`, and fills it here only.
            Some(ticket) if done => assert!(unsafe { self.lock.fill(ticket, me, op) }),
            _ => {
                self.lost.fetch_add(1, Relaxed);
            }
        }
        if let Some(held) = self.try_take(me) {
            self.release(held);
        }
        done
    }

    /// mmap of the page, if it is free.
    fn map(&self, me: u32) -> bool {
        self.call(me, MAP, || self.kernel.compare_exchange(0, 1, AcqRel, Acquire).is_ok())
    }

    fn unmap(&self, me: u32) {
        self.call(me, UNMAP, || {
            self.kernel.store(0, Release);
            true
        });
    }
}

/// With more than two preemptions, the models with three threads take minutes.
fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

/// One thread unmaps the page; two others map it as soon as it is free.
fn hand_over(checks_after_release: bool, respects_tickets: bool) {
    explore(move || {
        let books = Arc::new(Model::new(checks_after_release, respects_tickets));
        assert!(books.map(1));
        let others: Vec<_> = (2..4)
            .map(|me| {
                let books = books.clone();
                thread::spawn(move || {
                    if books.map(me) && me == 2 {
                        books.unmap(me);
                    }
                })
            })
            .collect();
        books.unmap(1);
        for other in others {
            other.join().expect("another");
        }
        assert!(books.lock.is_empty(), "left in the queue");
        assert_eq!(books.lock.word() as u32, 0, "the lock was left");
        if books.lost.load(Relaxed) == 0 {
            assert_eq!(books.wrong.load(Relaxed), 0, "booked in the wrong order");
            // SAFETY: the other threads have ended.
            assert_eq!(unsafe { books.page.get() }, books.kernel.load(Relaxed), "books differ from the kernel");
        }
    });
}

#[test]
fn books_are_written_by_one_in_the_kernels_order_and_none_stays_behind() {
    hand_over(true, true);
}

#[test]
#[should_panic(expected = "left in the queue")]
fn without_a_check_after_the_release_something_stays_behind() {
    hand_over(false, true);
}

#[test]
#[should_panic(expected = "booked in the wrong order")]
fn a_holder_that_passes_the_queue_books_in_the_wrong_order() {
    hand_over(true, false);
}

/// One of the threads that find the lock of an ended thread takes it over.
fn inherited(counts: bool) {
    explore(move || {
        let books = Arc::new(Model::new(true, true));
        let dead = books.try_take(1).expect("the lock");
        let heirs: Vec<_> = (2..4)
            .map(|me| {
                let books = books.clone();
                thread::spawn(move || {
                    // tgkill has shown that thread 1 doesn't exist; the first thread that gets here takes the lock.
                    let next = if counts { CombiningLock::<usize, SLOTS>::next_word(dead, me) } else { me as u64 };
                    if !books.lock.acquire(dead, next) {
                        return;
                    }
                    books.book(MAP);
                    // SAFETY: this thread took the lock with this word.
                    unsafe { books.lock.release(next) };
                    // A new thread gets the ended thread's id.
                    if let Some(held) =
                        if counts { books.try_take(1) } else { books.lock.acquire(0, dead).then_some(dead) }
                    {
                        books.book(UNMAP);
                        thread::yield_now();
                        books.book(MAP);
                        // SAFETY: this thread took the lock with this word.
                        unsafe { books.lock.release(held) };
                    }
                })
            })
            .collect();
        for heir in heirs {
            heir.join().expect("heir");
        }
    });
}

#[test]
fn one_thread_inherits_the_lock_of_one_that_is_gone() {
    inherited(true);
}

/// Without the count, a later hold of a thread with the same id has the same word, and the lock would be taken from
/// that thread.
#[test]
#[should_panic]
fn without_the_count_of_acquisitions_a_later_holder_is_robbed() {
    inherited(false);
}
