//! Thread slots: where each slot's state lies, and the part of the state that not only its owner touches.
//!
//! ```text
//! slot ──directory──▶ Shared │ the owner's private state ([`crate::account::thread`])
//! ```
//! Here also is the generation of the code map: when it changes, every slot's memo is put out of force.

use super::Segment;
use crate::sys::{clock, cpu, os};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::Section;

/// The part of a state that other threads, and signal handlers that interrupt the owner's hook, read or write too.
/// Atomics only. It lies directly in front of the private state, outside of what the owner's `&mut` covers.
#[repr(C)]
pub struct Shared {
    /// Requests below this get a trailer, by requesting 8 bytes more; 0 on allocators other than glibc's.
    pub trailer_below: AtomicUsize,
    /// The memo in force: this thread's own, or the empty one after the code map has changed.
    pub memo: AtomicPtr<u8>,
    /// High end of the stack, exclusive.
    pub stack_high: AtomicUsize,
    /// `stack_high` − low end.
    pub stack_bytes: AtomicUsize,
    /// Block whose VM header may be read at the next entry (native images): address, and a bit while it is read.
    pub pending: AtomicUsize,
    /// Row that this slot's next caller gets; 0 none.
    pub spare_row: AtomicU32,
    /// In a fork child: a number that makes its samples differ from its parent's, until the next draw uses it; 0 none.
    pub reseed: AtomicU32,
}

/// How far in front of a state its shared part begins.
pub const SHARED_BYTES: usize = size_of::<Shared>();

/// The shared part of the state at an address of [`Slot`], [`cpu::OWN`] or [`cpu::CURRENT`].
///
/// # Safety
/// There is a state.
#[inline(always)]
pub unsafe fn shared_of(state: usize) -> &'static Shared {
    // SAFETY: a state and its shared part are made as one block, which is never freed; all fields are atomic, and no
    // `&mut` covers them.
    unsafe { &*((state - SHARED_BYTES) as *const Shared) }
}

/// Generation of the code map: dlopen and dlclose start a new one.
pub static GENERATION: AtomicU32 = AtomicU32::new(1);

/// Slots whose threads have ended, newest first: a stack through `next_free`, with a tag against ABA.
static FREE: AtomicU64 = AtomicU64::new(0);
/// A [`Slot`] for each thread, private to this process; reserved once, touched where used.
static DIRECTORY: AtomicUsize = AtomicUsize::new(0);

/// State and link of a slot.
#[repr(C)]
pub struct Slot {
    /// Address of its state; 0 before its first thread.
    pub state: AtomicUsize,
    next_free: AtomicU64,
}

/// All slots. Slot 0 is that of the shared rows.
pub type Slots = [Slot; Section::Threads.capacity()];

/// All slots. `None`: before [`init`].
pub fn directory() -> Option<&'static Slots> {
    let p = DIRECTORY.load(Acquire);
    // SAFETY: `init` reserved this many zeroed entries, atomics, never unmapped.
    (p != 0).then(|| unsafe { &*(p as *const Slots) })
}

/// A memo of the largest size that nobody writes: every thread's memo in force after a change of the code map.
static EMPTY: AtomicUsize = AtomicUsize::new(0);

/// The memo that remembers nothing.
pub fn empty() -> *mut u8 {
    EMPTY.load(Relaxed) as *mut u8
}

/// A second empty memo, if remembered stacks are to be checked. It is in force instead of a thread's own, so every call
/// takes the slow path, which walks and compares.
static CHECKING: AtomicUsize = AtomicUsize::new(0);

/// Whether remembered results are also computed again, and compared.
pub fn is_checking() -> bool {
    checking().is_some()
}

/// The memo in force instead of a thread's own, if remembered stacks are checked.
pub fn checking() -> Option<*mut u8> {
    let p = CHECKING.load(Relaxed);
    (p != 0).then_some(p as *mut u8)
}

/// From now on every remembered stack is walked too. `memo_bytes`: the largest memo. Called at boot.
pub fn check_memos(memo_bytes: usize) {
    if let Some(p) = os::private(memo_bytes) {
        CHECKING.store(p as usize, Relaxed);
    }
}

/// The code map changes: from now on no thread recalls what it remembered before. Each notices at its next miss and
/// empties its own memo.
pub fn forget_stacks(segment: Segment) {
    GENERATION.fetch_add(1, AcqRel);
    for shared in states(segment) {
        shared.memo.store(empty(), Release);
    }
}

/// Reserves the directory, and the empty memo of `memo_bytes` bytes. False: no address space.
pub fn init(memo_bytes: usize) -> bool {
    if DIRECTORY.load(Acquire) != 0 {
        return true;
    }
    match os::private(memo_bytes) {
        Some(p) => EMPTY.store(p as usize, Release),
        None => return false,
    }
    match os::private(size_of::<Slots>()) {
        Some(p) => {
            DIRECTORY.store(p as usize, Release);
            true
        }
        None => false,
    }
}

/// Claims since the last [`sweep`].
static CLAIMS: AtomicU32 = AtomicU32::new(0);
/// Fewest claims between two sweeps.
const SWEEP_FROM: usize = 32;

/// Claims a slot for the calling thread: a dead thread's, or a new one. `None`: all are taken.
pub fn claim(segment: Segment, directory: &Slots) -> Option<u32> {
    let claims = CLAIMS.fetch_add(1, Relaxed) as usize;
    loop {
        let head = FREE.load(Acquire);
        let top = (head & 0xffff_ffff) as u32;
        if top == 0 {
            // A sweep makes a system call for each slot. With this bound, that is two calls for each thread that
            // starts.
            if claims >= SWEEP_FROM.max(segment.used(Section::Threads) / 2) && sweep(segment, directory) {
                continue;
            }
            return segment.append(Section::Threads);
        }
        let next = directory[top as usize].next_free.load(Acquire);
        let tag = (head >> 32).wrapping_add(1) << 32;
        if FREE.compare_exchange(head, tag | next, AcqRel, Relaxed).is_ok() {
            return Some(top);
        }
    }
}

/// The slot waits for its next thread. A block that its thread has noted or claimed is given up: the thread may have
/// left a claim by a jump out of a signal handler.
pub fn give_back(directory: &Slots, slot: u32) {
    let state = directory[slot as usize].state.load(Relaxed);
    if state != 0 {
        // SAFETY: the directory names states only.
        unsafe { shared_of(state) }.pending.store(0, Release);
    }
    loop {
        let head = FREE.load(Acquire);
        directory[slot as usize].next_free.store(head & 0xffff_ffff, Release);
        let tag = (head >> 32).wrapping_add(1) << 32;
        if FREE.compare_exchange(head, tag | slot as u64, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// A thread is looking for slots of threads that are gone.
static SWEEPING: AtomicBool = AtomicBool::new(false);

/// Gives back the slots of threads that ended by a raw exit(2): no destructor has run for them. True: there were some.
#[cold]
#[inline(never)]
fn sweep(segment: Segment, directory: &Slots) -> bool {
    // A child of vfork, or of clone(2) with CLONE_VM, has this memory and other threads.
    if segment.header().pid.load(Relaxed) != os::getpid() || SWEEPING.swap(true, Acquire) {
        return false;
    }
    CLAIMS.store(0, Relaxed);
    let mut found = false;
    for i in 1..segment.used(Section::Threads) as u32 {
        let r = segment.thread(i);
        let now = || (r.state.load(Acquire), r.generation.load(Relaxed), r.tid.load(Relaxed));
        let before = now();
        let (1, _, tid) = before else { continue };
        // The second look finds the slot's next thread, if this one has ended in the usual way meanwhile. The slot of a
        // thread that is gone is changed only here, by one thread at a time.
        if tid != 0 && os::is_thread_gone(tid) && now() == before {
            r.end_ns.store(clock::now_ns(), Relaxed);
            r.state.store(2, Release);
            give_back(directory, i);
            found = true;
        }
    }
    SWEEPING.store(false, Release);
    found
}

/// In a fork child: makes its sequence of samples unlike its parent's. The current distance may stay: it has no memory
/// (`account/sampling.rs`).
pub fn reseed_after_fork(pid: u32) {
    if let Some(own) = own() {
        own.reseed.store(pid, Relaxed);
    }
}

/// In a fork child: all slots but the caller's wait for new threads, and what their threads had noted or claimed is
/// given up. Rows, memos and indexes stay as they are: the child's segment numbers its rows as the parent's does.
pub fn reset_after_fork(segment: Segment, keep: u32) {
    FREE.store(0, Relaxed);
    SWEEPING.store(false, Relaxed);
    let Some(directory) = directory() else { return };
    for i in 1..segment.used(Section::Threads) as u32 {
        let r = segment.thread(i);
        let t = directory[i as usize].state.load(Relaxed);
        if t != 0 {
            // The parent may have begun the spare row before it was copied.
            // SAFETY: the directory names states only.
            let shared = unsafe { shared_of(t) };
            shared.spare_row.store(0, Relaxed);
            if i != keep {
                shared.pending.store(0, Relaxed);
            }
        }
        if i == keep {
            r.tid.store(os::gettid(), Relaxed);
        } else {
            if r.state.load(Relaxed) == 1 {
                r.state.store(2, Relaxed);
            }
            let head = FREE.load(Relaxed);
            directory[i as usize].next_free.store(head & 0xffff_ffff, Relaxed);
            FREE.store(i as u64, Relaxed);
        }
    }
}

/// Sets the bound of the fast path for every thread. With 0 all take the slow path, where they find that nothing is
/// booked.
pub fn set_trailer_bound(segment: Segment, below: usize) {
    for t in states(segment) {
        t.trailer_below.store(below, Relaxed);
    }
}

/// The shared part of a slot's state. `None`: the slot has had no thread, or it is the slot of the shared rows.
pub fn state(slot: u32) -> Option<&'static Shared> {
    let t = directory()?.get(slot as usize)?.state.load(Acquire);
    // SAFETY: the directory names states only.
    (t != 0).then(|| unsafe { shared_of(t) })
}

/// The shared parts of all slots' states.
pub fn states(segment: Segment) -> impl Iterator<Item = &'static Shared> {
    let slots = directory().map_or(&[][..], |d| &d[1..segment.used(Section::Threads).max(1)]);
    slots.iter().filter_map(|d| {
        let t = d.state.load(Acquire);
        // SAFETY: the directory names states only.
        (t != 0).then(|| unsafe { shared_of(t) })
    })
}

/// The shared part of the calling thread's state, whoever has taken the rest.
pub fn own() -> Option<&'static Shared> {
    let own = cpu::tls_get::<{ cpu::OWN }>();
    // SAFETY: other than 0 and GONE the word is this thread's state.
    (own > cpu::GONE).then(|| unsafe { shared_of(own) })
}

/// Whether a state is the calling thread's.
pub fn is_own(shared: &Shared) -> bool {
    own().is_some_and(|own| core::ptr::eq(own, shared))
}

/// Whether an address lies on the calling thread's stack, as far as that is known.
pub fn is_on_own_stack(address: usize) -> bool {
    own().is_some_and(|own| own.stack_high.load(Relaxed).wrapping_sub(address) <= own.stack_bytes.load(Relaxed))
}
