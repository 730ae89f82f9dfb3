//! The lock-free protocols under loom: every interleaving of a few threads, with the orderings that the code uses. Each
//! model has a twin with one step weakened, which loom must catch: a model that can't fail proves nothing.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering, Ordering::*, fence};
use loom::thread;

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More than three preemptions add hours; the ABA problem needs one.
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// account/rows.rs and the READER ALGORITHM of crates/segment/src/lib.rs: one thread allocates and passes the block to
/// another, which frees it. A reader that sums all freed before all allocated finds no negative figure. On x86-64 a
/// plain add is a release.
fn counters(publish: Ordering, freed_first: bool) {
    explore(move || {
        let [allocated, freed] = [0, 0].map(|_| Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let pointer = Arc::new(AtomicUsize::new(0));
        let maker = thread::spawn({
            let (allocated, pointer) = (allocated.clone(), pointer.clone());
            move || {
                // Booked before the program learns the address …
                allocated[0].fetch_add(1, publish);
                allocated[1].fetch_add(48, publish);
                // … which it hands over in a way that orders its own data.
                pointer.store(1, Release);
            }
        });
        let freer = thread::spawn({
            let (freed, pointer) = (freed.clone(), pointer.clone());
            move || {
                if pointer.load(Acquire) == 1 {
                    freed[0].fetch_add(1, publish);
                    freed[1].fetch_add(48, publish);
                }
            }
        });
        let read = |cells: &[AtomicU64; 2]| [cells[0].load(Acquire), cells[1].load(Acquire)];
        let (f, a) = if freed_first {
            let f = read(&freed);
            (f, read(&allocated))
        } else {
            let a = read(&allocated);
            (read(&freed), a)
        };
        assert!(a[0] >= f[0] && a[1] >= f[1], "negative: {a:?} allocated, {f:?} freed");
        maker.join().expect("maker");
        freer.join().expect("freer");
    });
}

#[test]
fn live_is_never_negative() {
    counters(Release, true);
}

#[test]
#[should_panic(expected = "negative")]
fn live_can_be_negative_if_freed_is_not_published() {
    counters(Relaxed, true);
}

#[test]
#[should_panic(expected = "negative")]
fn live_can_be_negative_if_allocated_is_read_first() {
    counters(Release, false);
}

/// account/side_table/: an entry of two words is claimed by compare-and-swap, filled, and freed by a store after its
/// key was read.
struct Entry {
    address: AtomicU64,
    key: AtomicU64,
}

impl Entry {
    fn insert(&self, address: u64, key: u64) -> bool {
        let claimed =
            self.address.load(Relaxed) == 0 && self.address.compare_exchange(0, address, AcqRel, Relaxed).is_ok();
        if claimed {
            self.key.store(key, Release);
        }
        claimed
    }
    fn remove(&self, address: u64, key_first: bool) -> Option<u64> {
        if self.address.load(Relaxed) != address {
            return None;
        }
        let before = self.key.load(Acquire);
        self.address.store(0, Release);
        Some(if key_first { before } else { self.key.load(Acquire) })
    }
}

fn side_table(key_first: bool) {
    explore(move || {
        let bucket = Arc::new([0, 0].map(|_| Entry { address: AtomicU64::new(0), key: AtomicU64::new(0) }));
        let handed = Arc::new(AtomicUsize::new(0));
        let insert = |b: &[Entry; 2], address, key| b.iter().any(|e| e.insert(address, key));
        let remove = move |b: &[Entry; 2], address| b.iter().find_map(|e| e.remove(address, key_first));
        let maker = thread::spawn({
            let (bucket, handed) = (bucket.clone(), handed.clone());
            move || {
                assert!(insert(&bucket, 0x10, 1));
                handed.store(1, Release);
            }
        });
        let other = thread::spawn({
            let bucket = bucket.clone();
            move || {
                // Takes any free entry, twice; the entry may be one that is being freed at this moment.
                for key in [7, 8] {
                    if insert(&bucket, 0x20, key) {
                        assert_eq!(remove(&bucket, 0x20), Some(key), "another block's key");
                    }
                }
            }
        });
        if handed.load(Acquire) == 1 {
            assert_eq!(remove(&bucket, 0x10), Some(1), "another block's key");
            assert_eq!(remove(&bucket, 0x10), None);
        }
        maker.join().expect("maker");
        other.join().expect("other");
    });
}

#[test]
fn a_block_gets_its_own_key_back() {
    side_table(true);
}

#[test]
#[should_panic(expected = "another block's key")]
fn a_key_read_after_the_entry_was_given_up_may_be_another_blocks() {
    side_table(false);
}

/// account/thread.rs (and hook/thread.rs): the stack of free slots, a tag in the upper half of its head.
struct FreeSlots {
    head: AtomicU64,
    next: [AtomicU64; 3],
    taken: [AtomicBool; 3],
    tagged: bool,
}

impl FreeSlots {
    fn tag(&self, head: u64) -> u64 {
        if self.tagged { (head >> 32).wrapping_add(1) << 32 } else { 0 }
    }
    fn take(&self) -> Option<u64> {
        loop {
            let head = self.head.load(Acquire);
            let top = head & 0xffff_ffff;
            if top == 0 {
                return None;
            }
            let next = self.next[top as usize].load(Acquire);
            if self.head.compare_exchange(head, self.tag(head) | next, AcqRel, Relaxed).is_ok() {
                assert!(!self.taken[top as usize].swap(true, AcqRel), "slot given twice");
                return Some(top);
            }
        }
    }
    fn give_back(&self, slot: u64) {
        self.taken[slot as usize].store(false, Release);
        loop {
            let head = self.head.load(Acquire);
            self.next[slot as usize].store(head & 0xffff_ffff, Release);
            if self.head.compare_exchange(head, self.tag(head) | slot, AcqRel, Relaxed).is_ok() {
                return;
            }
        }
    }
}

fn slots(tagged: bool) {
    explore(move || {
        let free = Arc::new(FreeSlots {
            head: AtomicU64::new(0),
            next: [0, 0, 0].map(AtomicU64::new),
            taken: [true, true, true].map(AtomicBool::new),
            tagged,
        });
        free.give_back(2);
        free.give_back(1);
        let other = thread::spawn({
            let free = free.clone();
            move || {
                let (first, _second) = (free.take(), free.take());
                if let Some(slot) = first {
                    free.give_back(slot);
                }
            }
        });
        let _ = (free.take(), free.take());
        other.join().expect("other");
    });
}

#[test]
fn no_slot_is_given_twice() {
    slots(true);
}

#[test]
#[should_panic(expected = "slot given twice")]
fn without_its_tag_a_slot_is_given_twice() {
    slots(false);
}

/// segment/slots.rs `forget_stacks` against account/memo `recall` and `walk`. One entry of the memo; `from` is the code
/// that its stack came from: 0 none, 1 the library that is closed, 2 the library that is loaded at its address later.
struct Memory {
    own_in_force: AtomicBool,
    /// Only its thread accesses it.
    from: AtomicUsize,
    wipes: bool,
}

impl Memory {
    fn forget(&self) {
        self.own_in_force.store(false, Release);
    }
    fn recall(&self) -> Option<usize> {
        let from = self.from.load(Relaxed);
        (self.own_in_force.load(Relaxed) && from != 0).then_some(from)
    }
    fn walk(&self, from: Option<usize>) {
        if !self.own_in_force.load(Acquire) {
            self.own_in_force.store(true, Release);
            if self.wipes {
                self.from.store(0, Relaxed);
            }
        }
        if let Some(from) = from {
            self.from.store(from, Relaxed);
        }
    }
}

fn reloaded(wipes: bool) {
    explore(move || {
        let memory = Arc::new(Memory { own_in_force: AtomicBool::new(true), from: AtomicUsize::new(0), wipes });
        let left = Arc::new(AtomicBool::new(false));
        let code = Arc::new(AtomicUsize::new(1));
        let loader = thread::spawn({
            let (memory, left, code) = (memory.clone(), left.clone(), code.clone());
            move || {
                // A program never closes a library while a thread runs in it.
                if !left.load(Acquire) {
                    return;
                }
                memory.forget(); // before dlclose
                memory.forget(); // before dlopen
                code.store(2, Release);
            }
        });
        // A call from the library, remembered; then the thread leaves it.
        memory.walk(Some(1));
        left.store(true, Release);
        // A call from other code: another entry, but it may put the memo in force again.
        memory.walk(None);
        // A call from the library that is loaded now, if this thread already has its address.
        if code.load(Acquire) == 2 {
            let seen = memory.recall();
            assert!(seen != Some(1), "credited to a library that is gone");
            memory.walk(Some(2));
        }
        loader.join().expect("loader");
    });
}

#[test]
fn a_library_that_is_gone_is_not_recalled() {
    reloaded(true);
}

#[test]
#[should_panic(expected = "credited to a library that is gone")]
fn a_memo_put_in_force_again_as_it_was_recalls_it() {
    reloaded(false);
}

/// account/peaks/ `flush_shared`: a thread that finds the lock taken, and the queue full, leaves its drift in the row; no
/// byte is lost or reported twice.
fn shared_row(exchanges: bool) {
    explore(move || {
        struct Shared {
            busy: AtomicBool,
            room: AtomicI64,
            central: AtomicI64,
        }
        let s = Arc::new(Shared { busy: AtomicBool::new(false), room: AtomicI64::new(0), central: AtomicI64::new(0) });
        let book = move |s: &Shared, bytes: i64| {
            s.room.fetch_sub(bytes, Relaxed);
            if s.busy.swap(true, Acquire) {
                return;
            }
            let reported = if exchanges {
                -s.room.swap(0, Relaxed)
            } else {
                let reported = -s.room.load(Relaxed);
                s.room.store(0, Relaxed);
                reported
            };
            s.central.store(s.central.load(Relaxed) + reported, Relaxed);
            s.busy.store(false, Release);
        };
        let other = thread::spawn({
            let s = s.clone();
            move || {
                book(&s, 40);
                book(&s, -8);
            }
        });
        book(&s, 100);
        other.join().expect("other");
        assert_eq!(s.central.load(Relaxed) - s.room.load(Relaxed), 132, "drift lost");
    });
}

#[test]
fn no_drift_of_a_shared_row_is_lost() {
    shared_row(true);
}

#[test]
#[should_panic(expected = "drift lost")]
fn drift_is_lost_between_a_load_and_a_store() {
    shared_row(false);
}

/// account/peaks/: a report that finds the lock taken waits in a list for its holder, and none waits when all threads
/// are done.
fn waiting_reports(looks_again: bool) {
    struct Shared {
        busy: AtomicBool,
        newest: AtomicUsize,
        next: [AtomicUsize; 2],
        bytes: [AtomicI64; 2],
        central: AtomicI64,
    }
    impl Shared {
        fn lock(&self) -> bool {
            self.busy.compare_exchange(false, true, AcqRel, Acquire).is_ok()
        }
        fn add(&self, bytes: i64) {
            self.central.store(self.central.load(Relaxed) + bytes, Relaxed);
        }
        fn release(&self, looks_again: bool) {
            loop {
                let mut at = self.newest.swap(0, AcqRel);
                while at != 0 {
                    self.add(self.bytes[at - 1].load(Relaxed));
                    at = self.next[at - 1].load(Relaxed);
                }
                self.busy.store(false, Release);
                if !looks_again || self.newest.fetch_or(0, AcqRel) == 0 || !self.lock() {
                    return;
                }
            }
        }
        fn report(&self, place: usize, bytes: i64, looks_again: bool) {
            if self.lock() {
                self.add(bytes);
                return self.release(looks_again);
            }
            self.bytes[place].store(bytes, Relaxed);
            let mut newest = self.newest.load(Relaxed);
            loop {
                self.next[place].store(newest, Relaxed);
                match self.newest.compare_exchange(newest, place + 1, AcqRel, Relaxed) {
                    Ok(_) => break,
                    Err(other) => newest = other,
                }
            }
            if self.lock() {
                self.release(looks_again);
            }
        }
    }
    explore(move || {
        let s = Arc::new(Shared {
            busy: AtomicBool::new(false),
            newest: AtomicUsize::new(0),
            next: [0, 0].map(AtomicUsize::new),
            bytes: [0, 0].map(AtomicI64::new),
            central: AtomicI64::new(0),
        });
        let other = thread::spawn({
            let s = s.clone();
            move || s.report(0, 40, looks_again)
        });
        s.report(1, 100, looks_again);
        other.join().expect("other");
        let waits = s.newest.load(Relaxed);
        assert_eq!((s.central.load(Relaxed), waits), (140, 0), "a report waits for ever");
    });
}

#[test]
fn no_report_waits_for_ever() {
    waiting_reports(true);
}

#[test]
#[should_panic(expected = "a report waits for ever")]
fn a_holder_that_does_not_look_again_leaves_a_report() {
    waiting_reports(false);
}

/// stack/callers.rs `find_or_make`: an entry is completed, then its cell is claimed; the thread that comes second
/// searches again.
struct Callers {
    used: AtomicUsize,
    frames: [AtomicU64; 4],
    hash: [AtomicU64; 4],
    cells: [AtomicUsize; 2],
    complete_first: bool,
}

impl Callers {
    fn number(&self, frame: u64) -> usize {
        let mut at = 0;
        loop {
            let i = self.cells[at].load(Acquire);
            if i == 0 {
                match self.insert(at, frame) {
                    Some(i) => return i,
                    None => continue,
                }
            }
            if self.hash[i].load(Acquire) == frame << 1 && self.frames[i].load(Relaxed) == frame {
                return i;
            }
            at += 1;
            assert!(at < self.cells.len(), "one stack, two numbers");
        }
    }
    fn insert(&self, at: usize, frame: u64) -> Option<usize> {
        let i = self.used.fetch_add(1, AcqRel);
        let complete = || {
            self.frames[i].store(frame, Relaxed);
            self.hash[i].store(frame << 1, Release);
        };
        if self.complete_first {
            complete();
        }
        let claimed = self.cells[at].compare_exchange(0, i, AcqRel, Acquire).is_ok();
        if !self.complete_first {
            complete();
        }
        if !claimed {
            self.hash[i].store(0, Release);
        }
        claimed.then_some(i)
    }
}

fn same_stack(complete_first: bool) {
    explore(move || {
        let callers = Arc::new(Callers {
            used: AtomicUsize::new(1),
            frames: [0, 0, 0, 0].map(AtomicU64::new),
            hash: [0, 0, 0, 0].map(AtomicU64::new),
            cells: [0, 0].map(AtomicUsize::new),
            complete_first,
        });
        let other = thread::spawn({
            let callers = callers.clone();
            move || callers.number(0x77)
        });
        let own = callers.number(0x77);
        assert_eq!(own, other.join().expect("other"), "one stack, two numbers");
    });
}

#[test]
fn one_stack_has_one_number() {
    same_stack(true);
}

#[test]
#[should_panic(expected = "one stack, two numbers")]
fn an_entry_found_before_it_is_complete_is_taken_for_another() {
    same_stack(false);
}

/// account/pending.rs: a thread notes a block, hands it over, and reads it at its next call. The state changes
/// meanwhile, and after the change a free looks at no note.
fn headers(fenced: bool) {
    const NONE: usize = 0;
    const UNKNOWN: usize = 1;
    const ENDING: usize = 2;
    const CLAIMED: usize = 2;
    explore(move || {
        let state = Arc::new(AtomicUsize::new(UNKNOWN));
        let [word, handed] = [0, 0].map(|n| Arc::new(AtomicUsize::new(n)));
        let block = Arc::new(UnsafeCell::new(0));
        let fence_if = move || {
            if fenced {
                fence(SeqCst);
            }
        };
        let maker = thread::spawn({
            let (state, word, handed, block) = (state.clone(), word.clone(), handed.clone(), block.clone());
            move || {
                word.store(1, Release);
                fence_if();
                if state.load(SeqCst) != UNKNOWN {
                    word.store(0, Relaxed);
                }
                handed.store(1, Release);
                if word.load(Relaxed) == 1 && word.compare_exchange(1, CLAIMED, AcqRel, Relaxed).is_ok() {
                    // SAFETY: loom checks that no other thread writes it.
                    block.with(|block| unsafe { block.read() });
                    word.store(0, Release);
                }
            }
        });
        let freer = thread::spawn({
            let (state, word, block) = (state.clone(), word.clone(), block.clone());
            move || {
                if handed.load(Acquire) == 0 {
                    return;
                }
                let is_forgotten = || word.load(Relaxed) == 1 && word.compare_exchange(1, 0, AcqRel, Relaxed).is_ok();
                // Where the code would wait for the claimer, the model ends.
                if state.load(Acquire) == NONE || is_forgotten() || word.load(Acquire) == 0 {
                    // SAFETY: loom checks that no other thread reads it.
                    block.with_mut(|block| unsafe { block.write(1) });
                }
            }
        });
        let _ = state.compare_exchange(UNKNOWN, ENDING, SeqCst, Relaxed);
        fence_if();
        let p = word.load(Acquire);
        if p == 0 || (p == 1 && word.compare_exchange(1, 0, AcqRel, Relaxed).is_ok()) {
            let _ = state.compare_exchange(ENDING, NONE, SeqCst, Relaxed);
        }
        maker.join().expect("maker");
        freer.join().expect("freer");
    });
}

#[test]
fn a_freed_block_is_read_by_no_other_thread() {
    headers(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_fences_a_block_is_noted_after_the_last_look() {
    headers(false);
}
