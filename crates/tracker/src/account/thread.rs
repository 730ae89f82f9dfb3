//! The private state of a thread, which makes the path from a block to its row short. It is anonymous memory of the
//! tracker, and passes to the next thread that adopts the slot.
//!
//! ```text
//! Shared, ThreadState 320 B │ memo 16 … 4096 entries of 192 B │ index 128 … 64 Ki entries of 8 B
//!                   │ work space of a walk, 296 KiB, kept in mode exact once the thread has walked often
//!                   │ tails of the memo, up to 1 KiB an entry and at least 64 KiB, in modes exact and sampled
//! ```
//!
//! `index` is an open-addressed table from caller to row, keyed by the caller's number itself (numbers are dense).
//! It is complete: a caller not in it has no row of this slot. It doubles at half full.

use super::control;
use super::memo::entry::{Memo, keep_entries};
use super::sampling::{PACE, Random};
use crate::segment::Segment;
use crate::segment::books::{MayBook, OwnRow};
use crate::segment::slots::{self, SHARED_BYTES, Shared, shared_of};
use crate::stack::deep::Scratch;
use crate::sys::{CachePadded, clock, cpu, libc, os};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*, compiler_fence};
use plimsoll_segment::{Counter, Section};

/// Depth of the program's category stack.
pub const CATEGORY_DEPTH: usize = 14;

/// See the module comment. Only its own thread accesses it, through [`crate::guard::Inside`] or with `current` taken.
#[repr(C)]
pub struct ThreadState {
    /// Bytes to the next sample; below 0: the current block is sampled.
    pub countdown: i64,
    /// Entries of the memo − 1, times 64.
    pub memo_mask_64: usize,
    /// Entries of the memo − 1.
    pub memo_mask: usize,
    /// The thread's own memo.
    pub own_memo: *mut Memo,
    /// Caller → row.
    pub index: *mut IndexEntry,
    /// Entries of the index − 1.
    pub index_mask: u32,
    /// Entries in use in the index.
    pub index_used: u32,
    /// The category that the program pushed last + 1, shifted by 48; 0 = none.
    pub category_tag: u64,
    /// Slot in the segment + 1, as rows store it.
    pub slot_mark: u32,
    /// Slot in the segment.
    pub slot: u32,
    /// Misses of the memo since it last grew.
    pub misses: u32,
    /// Rounds of key destructors left before the end is booked.
    pub end_rounds: u32,
    /// Twice the drift bound of this thread's rows.
    pub room_span: i64,
    /// Mapping calls whose stacks were not in the memo.
    pub mappings: u32,
    /// Sites of the latest samples.
    pub sampled: [u32; 8],
    /// Pushed categories.
    pub pushed: u32,
    /// The categories below the top.
    pub categories: [u32; CATEGORY_DEPTH],
    /// Mean that the countdown was drawn with.
    pub mean: u64,
    /// The random source of the countdown.
    pub random: Random,
    /// Work space for deep walks; null until the first walk.
    scratch: *mut Scratch,
    keeps_scratch: bool,
    /// Deep walks so far, counted up to [`WALKS_OFTEN`].
    deep_walks: u8,
    /// Low half of the countdown when a mapping call last took the state.
    pub marked: u32,
    /// The work space that this thread returned last.
    returned_scratch: usize,
    /// Threads that had this state.
    lives: u32,
    /// The memo's tails: address, bytes reserved, bytes in use.
    tails: *mut u8,
    tails_bytes: usize,
    tails_used: usize,
    tails_touched: usize,
    /// This thread's allocations when its memo was last found too small.
    blocks_then: u64,
}

/// An entry of a thread's index.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct IndexEntry {
    /// Row; 0 = empty.
    pub(super) row: u32,
    /// Low 32 bits of (allocated − freed) blocks when the drift was last flushed.
    pub(super) flushed: u32,
}

impl IndexEntry {
    /// Its row.
    #[inline(always)]
    pub fn row(&self, books: MayBook<'_>) -> OwnRow {
        // SAFETY: entries exist only in a thread's index, with rows of its slot.
        unsafe { OwnRow::indexed(*books, self.row) }
    }
}

/// How the shared and the private part lie in memory.
#[repr(C, align(64))]
struct SlotMemory {
    shared: Shared,
    state: ThreadState,
}

const _: () = assert!(size_of::<SlotMemory>() == 320 && core::mem::offset_of!(SlotMemory, state) == SHARED_BYTES);
// What malloc's fast path reads (`hook/malloc/x86_64/glibc.rs`) is on the first two cache lines.
const _: () = assert!(
    core::mem::offset_of!(Shared, memo) < 64
        && SHARED_BYTES + core::mem::offset_of!(ThreadState, memo_mask_64) < 64
        && SHARED_BYTES + core::mem::offset_of!(ThreadState, category_tag) < 128
);

const FIRST_MEMO: usize = 16;
const LAST_MEMO: usize = 4096;
/// If fewer than one block in this many misses, the memo doesn't grow: a walk takes some 2,000 instructions.
const FEW: u64 = 64;
/// Bytes for tails: for each entry of the memo, and the least in total. A stack with 60 Java frames takes 2.5 KiB.
const TAIL_BYTES: usize = 1024;
const LEAST_TAILS: usize = 64 << 10;
const FIRST_INDEX: usize = 128;
const LAST_INDEX: usize = 1 << 17;

/// In mode exact, a thread that has made this many deep walks keeps its work space. Most threads make fewer.
const WALKS_OFTEN: u8 = 64;

/// Work spaces for deep walks that no thread is using. A walk touches pages all over its work space, so threads that
/// only sample, or walk seldom, share a few.
static SPARE_SCRATCH: CachePadded<[AtomicUsize; 8]> = CachePadded([const { AtomicUsize::new(0) }; 8]);

/// Reserves the slots. False: no address space.
pub fn init() -> bool {
    slots::init(LAST_MEMO * size_of::<Memo>())
}

/// Switches the self-check on: every remembered stack is also walked. Called at boot.
pub fn check_memos() {
    slots::check_memos(LAST_MEMO * size_of::<Memo>());
}

fn private(bytes: usize, segment: Segment) -> Option<*mut u8> {
    let p = os::private(bytes)?;
    segment.count(Counter::own_private_bytes, bytes.next_multiple_of(64) as u64);
    segment.set(Counter::own_reserved_bytes, os::reserved_bytes() as u64);
    Some(p)
}

/// Gives the calling thread a state: a dead thread's slot, or a new one. `None`: no slot or no memory; the thread books
/// in the shared slot.
pub fn attach(segment: Segment, stack: Option<StackBounds>) -> Option<&'static mut ThreadState> {
    let directory = slots::directory()?;
    segment.count(Counter::threads_started, 1);
    let Some(slot) = slots::claim(segment, directory) else {
        segment.count(Counter::threads_shared, 1);
        return None;
    };
    let d = &directory[slot as usize];
    let known = d.state.load(Acquire);
    let t = if known != 0 {
        known as *mut ThreadState
    } else {
        let Some((t, memo, index)) = new_state(segment) else {
            slots::give_back(directory, slot);
            segment.count(Counter::threads_shared, 1);
            return None;
        };
        // SAFETY: fresh zeroed memory of the right size and alignment; zero is a valid value of every field.
        unsafe {
            (*t).own_memo = memo;
            (*t).memo_mask = FIRST_MEMO - 1;
            (*t).memo_mask_64 = (FIRST_MEMO - 1) * 64;
            (*t).index = index;
            (*t).index_mask = FIRST_INDEX as u32 - 1;
            (*t).slot = slot;
            (*t).slot_mark = slot + 1;
        }
        d.state.store(t as usize, Release);
        t
    };
    // SAFETY: this thread alone claimed the slot. The thread that had it before let go of the state in `detach`, or
    // doesn't exist in this process (a fork).
    let t = unsafe { &mut *t };
    let shared = t.shared();
    shared.trailer_below.store(super::blocks::fast_path_below(), Relaxed);
    t.random = Random::new(super::blocks::seed() ^ (slot as u64) << 32 ^ segment.thread(slot).generation.load(Relaxed));
    t.next_distance(segment, false);
    t.lives = t.lives.wrapping_add(1);
    t.category_tag = 0;
    t.pushed = 0;
    t.end_rounds = 3;
    t.keeps_scratch = false;
    t.deep_walks = 0;
    // A new stack: nothing that was remembered of the last thread's stack is valid.
    shared.memo.store(slots::empty(), Relaxed);
    // SAFETY: `current` is 0 until the caller puts the state there, so no hook of this thread takes one.
    t.set_room_span(unsafe { MayBook::of(segment) }, super::peaks::room_span(segment));
    note_stack(segment, shared, slot, stack.unwrap_or(StackBounds { low: 0, high: 0, guard: 0, kind: 0 }));
    let r = segment.thread(slot);
    r.start_ns.store(clock::now_ns(), Relaxed);
    r.end_ns.store(0, Relaxed);
    r.generation.fetch_add(1, Relaxed);
    r.own_bytes.store(own_bytes(t), Relaxed);
    let tid = os::gettid();
    r.tid.store(tid, Relaxed);
    r.state.store(1, Release);
    // The books of mappings need the id too (`mapping::books::id_of_thread`). Storing it here saves a second call for
    // each thread.
    if cpu::tls_get::<{ cpu::HOLDS }>() == 0 {
        cpu::tls_set::<{ cpu::HOLDS }>(tid as usize);
    }
    cpu::tls_set::<{ cpu::ROOM_SPAN }>(t.room_span as usize);
    cpu::tls_set::<{ cpu::SLOT_MARK }>(t.slot_mark as usize);
    cpu::tls_set::<{ cpu::OWN }>(t as *mut ThreadState as usize);
    Some(t)
}

fn note_stack(segment: Segment, shared: &Shared, slot: u32, stack: StackBounds) {
    shared.stack_high.store(stack.high, Relaxed);
    shared.stack_bytes.store(stack.high - stack.low, Relaxed);
    let r = segment.thread(slot);
    r.stack_low.store(stack.low as u64, Relaxed);
    r.stack_high.store(stack.high as u64, Relaxed);
    r.guard_bytes.store(stack.guard as u64, Relaxed);
    r.stack_kind.store(stack.kind, Relaxed);
}

/// Notes the stack of the calling thread, which has a state already; returns its slot. `None`: it has none.
pub fn correct_stack(segment: Segment, stack: StackBounds) -> Option<u32> {
    let (shared, slot) = (slots::own()?, cpu::tls_get_half::<{ cpu::SLOT_MARK }>().checked_sub(1)?);
    note_stack(segment, shared, slot, stack);
    Some(slot)
}

fn new_state(segment: Segment) -> Option<(*mut ThreadState, *mut Memo, *mut IndexEntry)> {
    let t = private(size_of::<SlotMemory>(), segment)?;
    let memo = private(FIRST_MEMO * size_of::<Memo>(), segment)?;
    let index = private(FIRST_INDEX * size_of::<IndexEntry>(), segment)?;
    let t = (t as usize + SHARED_BYTES) as *mut ThreadState;
    Some((t, memo as *mut Memo, index as *mut IndexEntry))
}

fn own_bytes(t: &ThreadState) -> u64 {
    (size_of::<SlotMemory>()
        + (t.memo_mask + 1) * size_of::<Memo>()
        + (t.index_mask as usize + 1) * size_of::<IndexEntry>()) as u64
}

/// The thread-specific key whose destructor notices the end of a thread; `u32::MAX` none.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Arranges that the end of this thread is noticed.
pub fn watch_end(t: *const ThreadState) {
    let key = KEY.load(Relaxed);
    if key != u32::MAX {
        libc::set_specific(key, t as usize);
    }
}

/// Sets the key whose destructor notices the ends of threads.
pub fn watch_ends_by(key: u32) {
    KEY.store(key, Relaxed);
}

/// Books the end of this thread; its slot and rows are free for the next thread. No reference to the state may be used
/// afterwards.
pub fn detach(segment: Segment, slot: u32) {
    let r = segment.thread(slot);
    r.end_ns.store(clock::now_ns(), Relaxed);
    r.state.store(2, Release);
    cpu::tls_set::<{ cpu::CURRENT }>(0);
    cpu::tls_set::<{ cpu::SLOT_MARK }>(0);
    cpu::tls_set::<{ cpu::OWN }>(cpu::GONE);
    if let Some(directory) = slots::directory() {
        slots::give_back(directory, slot);
    }
}

/// New books: forgets what the threads reported to the central figures; their rows and slots begin at 0.
///
/// # Safety
/// No thread is in a hook, and none enters one meanwhile.
pub unsafe fn reset_books(books: MayBook<'_>) {
    let Some(directory) = slots::directory() else { return };
    for (slot, d) in directory[..books.used(Section::Threads)].iter().enumerate().skip(1) {
        let r = books.thread(slot as u32);
        r.table_inserts.store(0, Relaxed);
        r.table_removes.store(0, Relaxed);
        let t = d.state.load(Acquire) as *mut ThreadState;
        if t.is_null() {
            continue;
        }
        // SAFETY: states are never freed, and by the caller's contract no owner has a reference to its state or index
        // now. The index has as many entries as its mask says.
        unsafe {
            // The bound is kept, because the thread has a copy of it.
            let span = (*t).room_span;
            for i in 0..=(*t).index_mask as usize {
                let e = &mut *(*t).index.add(i);
                e.flushed = 0;
                if e.row != 0 {
                    e.row(books).room.store(span / 2, Relaxed);
                }
            }
        }
    }
}

/// Where a thread's stack lies; all 0 if that isn't known.
#[derive(Clone, Copy)]
pub struct StackBounds {
    /// Low end.
    pub low: usize,
    /// High end.
    pub high: usize,
    /// Bytes of the guard.
    pub guard: usize,
    /// `stack_kind` of the segment's thread record.
    pub kind: u64,
}

impl ThreadState {
    /// The part that other code may access meanwhile.
    #[inline(always)]
    pub fn shared(&self) -> &'static Shared {
        // SAFETY: every ThreadState was made by `new_state`, which exposed the address of its memory. The reference
        // isn't derived from `self`'s.
        unsafe { shared_of(self as *const Self as usize) }
    }

    /// The books, and the state again. `None`: no books exist, after a detach or in a fork child without a segment yet.
    #[inline(always)]
    pub fn with_books(&mut self) -> Option<(MayBook<'_>, &mut ThreadState)> {
        // SAFETY: hooks reach the state through `TakenState`, so `current` is 0 as long as `self` is borrowed, and the
        // token has that lifetime. The other functions with a reference, `attach` and `hook::thread::end`, don't call
        // this.
        Segment::current().map(|segment| (unsafe { MayBook::of(segment) }, self))
    }

    /// The memo in force.
    #[inline(always)]
    pub fn memo(&self) -> *mut Memo {
        self.shared().memo.load(Relaxed).cast()
    }

    /// A jump left the frame that had the state, at an unknown point. So no remembered stack stays valid.
    #[cold]
    pub fn was_left(&mut self) {
        self.shared().memo.store(slots::empty(), Relaxed);
        self.lives = self.lives.wrapping_add(1);
        if !self.scratch.is_null() {
            // SAFETY: this thread's own, and the walk that used it is gone.
            unsafe { (*self.scratch).hand_to((self.slot as u64) << 32 | self.lives as u64) };
        }
    }

    /// The stack's ends, low and high, exclusive; both 0 if they aren't known.
    #[inline(always)]
    pub fn stack(&self) -> (usize, usize) {
        let shared = self.shared();
        let high = shared.stack_high.load(Relaxed);
        (high - shared.stack_bytes.load(Relaxed), high)
    }

    /// Whether an address lies on the stack, or is its high end.
    #[inline(always)]
    pub fn is_on_stack(&self, address: usize) -> bool {
        let shared = self.shared();
        shared.stack_high.load(Relaxed).wrapping_sub(address) <= shared.stack_bytes.load(Relaxed)
    }

    /// The category that the program pushed last + 1; 0 = none.
    pub fn category(&self) -> u32 {
        (self.category_tag >> 48) as u32
    }

    /// Sets a new drift bound. The unreported bytes of an adopted slot's rows are kept.
    fn set_room_span(&mut self, books: MayBook<'_>, span: i64) {
        let more = (span - self.room_span) / 2;
        self.room_span = span;
        for i in 0..=self.index_mask as usize {
            // SAFETY: the index has that many entries, and is reached through this borrowed state only.
            let e = unsafe { &*self.index.add(i) };
            if e.row != 0 {
                let room = &e.row(books).room;
                room.store(room.load(Relaxed).wrapping_add(more), Relaxed);
            }
        }
    }

    /// The memo to put in force after a change of the code map. True: it isn't this thread's own, because the
    /// self-check is on.
    pub fn usual_memo(&self) -> (*mut Memo, bool) {
        match slots::checking() {
            None => (self.own_memo, false),
            Some(p) => (p.cast(), true),
        }
    }

    /// Counts a block of n requested bytes. True: a mark lies in it, and the next distance has to be drawn.
    #[inline(always)]
    pub fn passes_mark(&mut self, n: usize) -> bool {
        self.countdown = self.countdown.wrapping_sub((n + super::sampling::EXTRA) as i64);
        self.countdown < 0
    }

    /// At a sample: draws the distance to the next one; returns the mode in force.
    pub fn draw(&mut self, segment: Segment) -> u32 {
        self.next_distance(segment, true)
    }

    fn next_distance(&mut self, segment: Segment, is_sample: bool) -> u32 {
        let (mode, mean) = control::now(segment);
        let reseed = self.shared().reseed.swap(0, Relaxed);
        if reseed != 0 {
            self.random = Random::new(self.random.0 ^ (reseed as u64) << 32);
        }
        self.mean = match mode {
            // In mode off, nobody looks at the samples.
            control::OFF => mean,
            _ => PACE.0.mean(mean, is_sample, || (clock::now_ns() / 1_000_000) as u32),
        };
        if self.mean > mean {
            segment.raise(Counter::sample_mean_highest, self.mean);
        }
        self.countdown = self.random.countdown(self.mean).min(i64::MAX as u64) as i64;
        mode
    }

    /// Work space for a deep walk, with what the last walk in it has cached. [`ThreadState::return_scratch`] passes it
    /// on, unless this thread walks often and is to `keep` it then. `None`: no memory.
    pub fn scratch(&mut self, keep: bool) -> Option<*mut Scratch> {
        if self.scratch.is_null() {
            // The work space that this thread returned last, because of its cache; else any.
            let last = self.returned_scratch;
            let same = |p: &AtomicUsize| last != 0 && p.compare_exchange(last, 0, AcqRel, Relaxed).is_ok();
            let left = if SPARE_SCRATCH.0.iter().any(same) {
                Some(last)
            } else {
                SPARE_SCRATCH.0.iter().map(|p| p.swap(0, AcqRel)).find(|p| *p != 0)
            };
            self.scratch = match left {
                Some(p) => p as *mut Scratch,
                None => os::private(size_of::<Scratch>())? as *mut Scratch,
            };
            // SAFETY: zeroed memory is an empty work space. The thread that takes one out of SPARE_SCRATCH owns it, and
            // the thread that put it there no longer uses it.
            unsafe { (*self.scratch).hand_to((self.slot as u64) << 32 | self.lives as u64) };
            self.keeps_scratch = false;
        }
        self.deep_walks = (self.deep_walks + 1).min(WALKS_OFTEN);
        self.keeps_scratch |= keep && self.deep_walks == WALKS_OFTEN;
        Some(self.scratch)
    }

    /// Ends a walk: the next thread that walks may take the work space, unless this thread keeps it.
    pub fn return_scratch(&mut self, segment: Segment) {
        let own = self.scratch;
        if own.is_null() {
            return;
        }
        // SAFETY: this thread's, until it is passed on below; the walk that borrowed it is over.
        segment.count(Counter::own_private_bytes, unsafe { (*own).grown() } as u64);
        if self.keeps_scratch {
            return;
        }
        // The thread gives the work space up before it offers it. If a handler jumps out of a mapping call in between,
        // no thread has the work space; in the other order, this thread and the next one would both have it.
        self.scratch = core::ptr::null_mut();
        self.returned_scratch = own as usize;
        let is_empty = |p: &AtomicUsize| p.compare_exchange(0, own as usize, AcqRel, Relaxed).is_ok();
        if !SPARE_SCRATCH.0.iter().any(is_empty) {
            self.scratch = own;
        }
    }

    /// Space for a tail of the memo. `None`: no space is left, and all tails were given up; the caller must clear all
    /// entries that name one.
    pub fn tail(&mut self, segment: Segment, bytes: usize) -> Option<*mut u8> {
        let most = ((self.memo_mask + 1) * TAIL_BYTES).max(LEAST_TAILS);
        if self.tails_bytes < most {
            let larger = os::private(most)?;
            let (smaller, bytes) = (core::mem::replace(&mut self.tails, larger), self.tails_touched);
            if !smaller.is_null() {
                // SAFETY: space of this thread's. The memo has grown since, and a grown memo has no entry from before
                // with a tail: no entry names it.
                unsafe { os::empty(smaller, bytes) };
                segment.count(Counter::own_private_bytes, (bytes as u64).wrapping_neg());
            }
            self.tails_bytes = most;
            self.tails_used = 0;
            self.tails_touched = 0;
        }
        if self.tails_used + bytes > self.tails_bytes {
            self.tails_used = 0;
            return None;
        }
        self.tails_used += bytes;
        let more = self.tails_used.saturating_sub(self.tails_touched);
        self.tails_touched += more;
        segment.count(Counter::own_private_bytes, more as u64);
        // SAFETY: `tails_used`, which counts these bytes, is no more than the space has.
        Some(unsafe { self.tails.add(self.tails_used - bytes) })
    }

    /// Bytes of tails in use.
    pub fn tails_used(&self) -> usize {
        self.tails_used
    }

    /// Notes that no entry of the memo names a tail any more.
    pub fn give_up_tails(&mut self) {
        self.tails_used = 0;
    }

    /// Enlarges the memo if its rate of misses is high, however many misses it has had. A thread with many callers
    /// needs the memory, an idle thread doesn't. The entries of the smaller memo are kept, unless they have tails.
    pub fn grow_memo(&mut self, segment: Segment) {
        let misses = core::mem::take(&mut self.misses) as u64;
        let entries = (self.memo_mask + 1) * 4;
        let blocks = self.blocks(segment);
        let since = blocks.wrapping_sub(core::mem::replace(&mut self.blocks_then, blocks));
        if entries > LAST_MEMO || misses * FEW < since {
            return;
        }
        if let Some(p) = private(entries * size_of::<Memo>(), segment) {
            let (smaller, bytes) = (self.own_memo, (self.memo_mask + 1) * size_of::<Memo>());
            let before = self.usual_memo().0.cast();
            // SAFETY: this thread's own, of these sizes; no entry is borrowed, and the larger one is fresh.
            unsafe { keep_entries(smaller, self.memo_mask, p as *mut Memo, entries - 1) };
            self.own_memo = p as *mut Memo;
            // If another thread has changed the code map since this miss was counted, the empty memo stays in force.
            // The next miss then finds that, and clears the entries.
            let _ = self.shared().memo.compare_exchange(before, self.usual_memo().0.cast(), AcqRel, Relaxed);
            // The larger table before the mask: a fork in between leaves the child a mask that fits both.
            compiler_fence(SeqCst);
            self.memo_mask = entries - 1;
            self.memo_mask_64 = (entries - 1) * 64;
            // SAFETY: this thread's own, which names the larger one now; no entry of the smaller one is borrowed.
            unsafe { os::empty(smaller as *mut u8, bytes) };
            segment.count(Counter::own_private_bytes, (bytes as u64).wrapping_neg());
            segment.thread(self.slot).own_bytes.store(own_bytes(self), Relaxed);
        }
    }

    /// Blocks that this slot's rows have booked.
    fn blocks(&self, segment: Segment) -> u64 {
        (0..=self.index_mask as usize).fold(0u64, |sum, i| {
            // SAFETY: as in `set_room_span`.
            let row = unsafe { (*self.index.add(i)).row };
            sum.wrapping_add(if row != 0 { segment.seen(row).blocks() } else { 0 })
        })
    }

    /// Doubles the index. False: no memory.
    pub fn grow_index(&mut self, segment: Segment) -> bool {
        let old = self.index_mask as usize + 1;
        if old * 2 > LAST_INDEX {
            return false;
        }
        let Some(p) = private(old * 2 * size_of::<IndexEntry>(), segment) else { return false };
        let new = p as *mut IndexEntry;
        let mask = old * 2 - 1;
        for i in 0..old {
            // SAFETY: both tables have the sizes their masks say; nobody else has the new one yet; the old one as
            // above.
            unsafe {
                let e = *self.index.add(i);
                if e.row != 0 {
                    let mut at = segment.seen(e.row).caller() as usize & mask;
                    while (*new.add(at)).row != 0 {
                        at = (at + 1) & mask;
                    }
                    *new.add(at) = e;
                }
            }
        }
        let smaller = core::mem::replace(&mut self.index, new);
        // As in `grow_memo`.
        compiler_fence(SeqCst);
        self.index_mask = mask as u32;
        let bytes = old * size_of::<IndexEntry>();
        // SAFETY: this thread's own, which names the larger one now; no entry of the smaller one is borrowed.
        unsafe { os::empty(smaller as *mut u8, bytes) };
        segment.count(Counter::own_private_bytes, (bytes as u64).wrapping_neg());
        segment.thread(self.slot).own_bytes.store(own_bytes(self), Relaxed);
        true
    }
}
