//! mmap, munmap, mremap, mprotect, pkey_mprotect, madvise, brk, sbrk, shmat, shmdt.
//!
//! | call | order |
//! | --- | --- |
//! | mmap where the kernel chooses | real call, then booked under the lock: nobody else knows the range yet |
//! | mmap MAP_FIXED, mprotect, mremap, munmap, brk, shmat, shmdt | lock, real call, booked if it succeeded, unlock |
//!
//! So a range that munmap gave back and another thread's mmap got at once is booked in the order in which the kernel did
//! it: the second booking waits for the lock. A call that failed is never booked.
//!
//! The lock is one word with its owner's thread pointer. A signal handler that maps memory on top of its own thread's
//! lock is noted in a short list and booked when the lock is let go. A fork child starts with the lock free. A holder that
//! never comes back (a handler that jumped out of the call) loses the lock after a second; the map is valid at every
//! instant (segment/vmap.rs). Over 800 lines, since all calls book under this one lock, whose rules must be read together.
// Registers that a call doesn't use are named by their number.
#![allow(clippy::just_underscores_and_digits)]

use super::malloc::site_of_call;
use crate::account::segment::Segment;
use crate::account::thread::ThreadState;
use crate::account::vmas::{Delta, Diff, Placement, Remap, VmaBook};
use crate::account::{callers, image};
use crate::boot;
use crate::guard::{Entered, enter};
use crate::stack::{code, java};
use crate::sys::libc::{self, calls};
use crate::sys::{cpu, os};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::vmap::{Attributes, Kind};
use plimsoll_segment::{Counter, Section};

pub mod before;

const MAP_FAILED: usize = usize::MAX;
const MAP_TYPE: c_int = 0xf;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;
const MREMAP_FIXED: c_int = 2;
const MREMAP_DONTUNMAP: c_int = 4;
const PROT_READ: c_int = 1;
const PROT_EXEC: c_int = 4;
const MADV_DONTNEED: c_int = 4;
const MADV_FREE: c_int = 8;

type Book = VmaBook<fn(usize) -> bool>;

struct Guarded(UnsafeCell<Option<Book>>);
// SAFETY: only touched by the thread that holds LOCK, or at boot and in a fork child, when there is one thread.
unsafe impl Sync for Guarded {}

static BOOK: Guarded = Guarded(UnsafeCell::new(None));
static BASE: AtomicUsize = AtomicUsize::new(0);
static LOCK: AtomicUsize = AtomicUsize::new(0);
/// Stack pointer and return address of the call that has the lock.
static HOLDER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

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
    // SAFETY: the section of a fresh mapping; grow makes it safe to store to; one thread.
    let book = unsafe { Book::create(region(segment), Section::Vmap.capacity(), grow) };
    let made = book.is_some();
    // SAFETY: one thread.
    unsafe { *BOOK.0.get() = book };
    settle(segment);
    made
}

#[inline(always)]
fn settle(segment: Segment) {
    // SAFETY: called by the holder of the lock, or at boot.
    if let Some(b) = unsafe { &*BOOK.0.get() } {
        segment.section(Section::Vmap).used.store(b.used(), Release);
    }
}

/// An operation that came while its own thread held the lock.
#[derive(Clone, Copy)]
enum Operation {
    Map { start: usize, bytes: usize, attributes: Attributes, placement: Placement },
    Unmap { start: usize, bytes: usize },
    Protect { start: usize, bytes: usize, prot: u16, caller: u32, failed: bool },
    Remap { remap: Remap },
}

const DEFERRED: usize = 64;
struct Later(UnsafeCell<[Option<Operation>; DEFERRED]>);
// SAFETY: written by signal handlers of the lock's holder, each at an index of its own, read by the holder.
unsafe impl Sync for Later {}
static LATER: Later = Later(UnsafeCell::new([None; DEFERRED]));
static LATER_USED: AtomicUsize = AtomicUsize::new(0);

/// Whether the lock was taken (false: this thread is nested in a call of its own that has it). `sp` is the stack pointer at
/// the hook's entry: the return address lies there.
#[inline(always)]
fn lock(segment: Segment, sp: usize) -> bool {
    if LOCK.compare_exchange(0, cpu::thread_pointer(), Acquire, Relaxed).is_ok() {
        hold(sp);
        return true;
    }
    wait(segment, sp)
}

/// [`lock`] while somebody has it.
#[cold]
#[inline(never)]
fn wait(segment: Segment, sp: usize) -> bool {
    let me = cpu::thread_pointer();
    let mut waited = 0u32;
    loop {
        match LOCK.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => {
                hold(sp);
                return true;
            }
            Err(owner) if owner == me => {
                if !left(sp) {
                    return false;
                }
                take_over(segment, sp);
                return true;
            }
            Err(owner) => {
                waited += 1;
                if waited < 100 {
                    core::hint::spin_loop();
                } else if waited < 100 + 1000 {
                    os::sleep_ms(1);
                } else if LOCK.compare_exchange(owner, me, AcqRel, Relaxed).is_ok() {
                    // Its holder has jumped out and maps no more, or its real call takes long: then it takes it again.
                    take_over(segment, sp);
                    return true;
                } else {
                    waited = 0;
                }
            }
        }
    }
}

/// The lock is this thread's, but whoever had it has left the map as after a kill: valid, one operation perhaps half
/// booked. What the tree's owner knew besides is read again from it.
fn take_over(segment: Segment, sp: usize) {
    segment.count(Counter::faults, 1);
    // SAFETY: the lock is held, and no frame is in the map any more.
    unsafe {
        let populated = segment.populated_of(Section::Vmap);
        *BOOK.0.get() = Book::resume(region(segment), Section::Vmap.capacity(), populated, grow);
    }
    hold(sp);
}

#[inline(always)]
fn hold(sp: usize) {
    HOLDER[0].store(sp, Relaxed);
    if sp == 0 {
        // Around a fork: no frame stands for the hold.
        return;
    }
    // SAFETY: the return address of a call that is under way.
    HOLDER[1].store(unsafe { *(sp as *const usize) }, Relaxed);
}

/// Whether this thread, which has the lock, has left the call that took it, by a jump out of a signal handler: on one
/// stack, a frame that is still there lies above the current one, and its return address is what it was.
fn left(sp: usize) -> bool {
    let held = HOLDER[0].load(Relaxed);
    let own = cpu::tls_get::<{ cpu::OWN }>();
    if own <= cpu::GONE {
        return false;
    }
    // SAFETY: other than 0 and GONE the word is this thread's state.
    let t = unsafe { &*(own as *const ThreadState) };
    let on_stack = |p: usize| t.stack_high.wrapping_sub(p) <= t.stack_bytes;
    // SAFETY: `held` is above `sp` on this thread's own stack.
    on_stack(sp) && on_stack(held) && (sp >= held || unsafe { *(held as *const usize) } != HOLDER[1].load(Relaxed))
}

#[inline(always)]
fn unlock(segment: Segment) {
    // Handlers append only while the lock is ours; one that comes between the last look and the release is seen by
    // the second look.
    if LATER_USED.load(Acquire) != 0 {
        book_deferred(segment);
    }
    settle(segment);
    let sp = HOLDER[0].load(Relaxed);
    // Who was thought lost has nothing to give back: it may be another thread's by now.
    let _ = LOCK.compare_exchange(cpu::thread_pointer(), 0, Release, Relaxed);
    if LATER_USED.load(Acquire) != 0 {
        unlock_again(segment, sp);
    }
}

/// An operation was deferred while the lock was given back: it is taken again for that. If another thread has it, that one
/// books it.
#[cold]
#[inline(never)]
fn unlock_again(segment: Segment, sp: usize) {
    while LATER_USED.load(Acquire) != 0 && LOCK.compare_exchange(0, cpu::thread_pointer(), Acquire, Relaxed).is_ok() {
        hold(sp);
        book_deferred(segment);
        settle(segment);
        let _ = LOCK.compare_exchange(cpu::thread_pointer(), 0, Release, Relaxed);
    }
}

/// Books what handlers have left; the lock is held.
#[cold]
#[inline(never)]
fn book_deferred(segment: Segment) {
    let mut booked = 0;
    loop {
        let seen = LATER_USED.load(Acquire);
        for i in booked..seen.min(DEFERRED) {
            // SAFETY: entries below `seen` are complete: their handlers have returned to this thread.
            if let Some(op) = unsafe { (*LATER.0.get())[i].take() } {
                book(segment, op);
            }
        }
        booked = seen.min(DEFERRED);
        // A handler that comes while we book appends behind `seen`; the list is emptied only if none did, or its
        // entry would be written over one that still waits.
        if LATER_USED.compare_exchange(seen, 0, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

#[cold]
#[inline(never)]
fn defer(segment: Segment, op: Operation) {
    let i = LATER_USED.fetch_add(1, AcqRel);
    if i < DEFERRED {
        segment.count(Counter::vmap_deferred, 1);
        // SAFETY: index i is this handler's alone.
        unsafe { (*LATER.0.get())[i] = Some(op) };
    } else {
        segment.count(Counter::vmap_lost, 1);
    }
}

fn raise(cell: &AtomicU64, peak: &AtomicU64, by: i64) {
    let v = cell.load(Relaxed).wrapping_add_signed(by);
    cell.store(v, Relaxed);
    if v as i64 > peak.load(Relaxed) as i64 {
        peak.store(v, Relaxed);
    }
}

/// Books an operation; the lock is held. Who knows which it is calls straight what does it.
#[inline(always)]
fn book(segment: Segment, op: Operation) {
    match op {
        Operation::Map { start, bytes, attributes, placement: Placement::Chosen } => {
            book_map(segment, start, bytes, attributes)
        }
        Operation::Map { start, bytes, attributes, placement: Placement::Fixed } => {
            book_fixed(segment, start, bytes, attributes)
        }
        Operation::Unmap { start, bytes } => book_unmap(segment, start, bytes),
        Operation::Protect { start, bytes, prot, caller, failed } => {
            book_protect(segment, start, bytes, prot, caller, failed)
        }
        Operation::Remap { remap } => book_remap(segment, remap),
    }
}

#[inline(never)]
#[unsafe(link_section = ".text.hot")]
fn book_map(segment: Segment, start: usize, bytes: usize, attributes: Attributes) {
    in_book(segment, |b| b.map(start as u64, bytes as u64, attributes, Placement::Chosen, move |d| post(segment, d)));
}

#[inline(never)]
fn book_fixed(segment: Segment, start: usize, bytes: usize, attributes: Attributes) {
    in_book(segment, |b| b.map(start as u64, bytes as u64, attributes, Placement::Fixed, move |d| post(segment, d)));
}

#[inline(never)]
#[unsafe(link_section = ".text.hot")]
fn book_unmap(segment: Segment, start: usize, bytes: usize) {
    in_book(segment, |b| b.unmap(start as u64, bytes as u64, move |d| post(segment, d), |_| ()));
}

#[inline(never)]
#[unsafe(link_section = ".text.hot")]
fn book_protect(segment: Segment, start: usize, bytes: usize, prot: u16, caller: u32, failed: bool) {
    let bytes = if failed { bytes.min(upto_hole(start) - start) } else { bytes };
    if bytes == 0 {
        return;
    }
    in_book(segment, |b| b.protect(start as u64, bytes as u64, prot, caller, time(segment), move |d| post(segment, d)));
}

/// mprotect that meets a hole fails, but what lies before the hole has changed (mprotect(2), ENOMEM). The lock is held.
#[cold]
#[inline(never)]
fn upto_hole(start: usize) -> usize {
    let mut at = start as u64;
    // SAFETY: the lock is held.
    while let Some(v) = unsafe { &*BOOK.0.get() }.as_ref().and_then(|b| b.lookup(at)) {
        at = v.end;
    }
    at as usize
}

#[cold]
#[inline(never)]
fn book_remap(segment: Segment, remap: Remap) {
    in_book(segment, |b| b.remap(remap, move |d| post(segment, d)));
}

/// What a change of the map means for a category.
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

/// Changes the map, and the sums of all with it; the lock is held.
#[inline(always)]
fn in_book(segment: Segment, change: impl FnOnce(&mut Book) -> Diff) {
    // SAFETY: the lock is held.
    let Some(b) = (unsafe { &mut *BOOK.0.get() }) else {
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
}

/// Milliseconds since the start, as entries have them.
fn time(segment: Segment) -> u32 {
    (boot::now_ns().wrapping_sub(segment.header().start_boottime_ns.load(Relaxed)) / 1_000_000) as u32
}

/// Who maps: segment, caller and its category. `None`: not booked.
#[inline(always)]
unsafe fn who(sp: usize, fp: usize) -> Option<(Segment, u32, u16)> {
    if !boot::resolved() {
        boot::resolve();
    }
    // SAFETY: the entry's stack and frame pointer.
    let (segment, caller) = match enter() {
        // SAFETY: as above.
        Entered::Thread(mut inside) => (inside.segment, unsafe { site_of_call(&mut inside, sp, fp) }),
        Entered::Shared(segment) => {
            // SAFETY: the return address lies at the stack pointer.
            let ra = unsafe { *(sp as *const u64) };
            (segment, callers::number(segment, &[ra], callers::TRUNCATED, 0))
        }
        Entered::Outside => return None,
    };
    Some((segment, caller, segment.caller(caller).category.load(Relaxed)))
}

/// The real call under the lock, then the booking of what it did.
#[inline(always)]
fn locked<R>(segment: Segment, sp: usize, real: impl FnOnce() -> R, done: impl FnOnce(&R) -> Option<Operation>) -> R {
    let mut held = lock(segment, sp);
    let r = real();
    if held && LOCK.load(Relaxed) != cpu::thread_pointer() {
        // The call took so long that a waiter thought its thread lost.
        held = lock(segment, sp);
    }
    if let Some(op) = done(&r) {
        if held {
            book(segment, op);
        } else {
            defer(segment, op);
        }
    }
    if held {
        unlock(segment);
    }
    r
}

/// A mapping was made executable by the call whose entry's stack pointer this is; `offset`: of a file.
#[cold]
#[inline(never)]
fn executable(sp: usize, start: usize, bytes: usize, offset: Option<i64>) {
    code::note(start, bytes);
    // SAFETY: the return address lies at the stack pointer.
    let ra = unsafe { *(sp as *const u64) };
    // Its module may not be known yet, and is learnt of: only where nobody is in the books.
    if let (Some(offset), Entered::Thread(inside)) = (offset, enter()) {
        code::mapped_file(inside.segment, ra, start, bytes, offset as u64);
    }
}

/// mmap(2).
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
#[unsafe(link_section = ".text.hot")]
pub unsafe extern "C" fn mmap(
    a: usize,
    n: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: i64,
    sp: usize,
    fp: usize,
) -> usize {
    // SAFETY: the program's arguments.
    let map = move || unsafe { calls::mmap(a, n, prot, flags, fd, off) };
    let hides = flags & MAP_FIXED != 0 && prot & 1 == 0;
    let made = move |r: usize| {
        if prot & PROT_EXEC != 0 && r != MAP_FAILED {
            let is_readable_file = flags & MAP_ANONYMOUS == 0 && prot & PROT_READ != 0;
            executable(sp, r, n, is_readable_file.then_some(off));
        }
        r
    };
    let real = move || {
        if flags & MAP_FIXED != 0 {
            code::unmapped(a, n);
        }
        made(java::unmapping_if(hides, a, n, map))
    };
    // SAFETY: the entry's pointers.
    let Some((segment, caller, category)) = (unsafe { who(sp, fp) }) else { return real() };
    let kind = match flags {
        _ if flags & MAP_TYPE != 2 => Kind::Shared,
        _ if flags & MAP_ANONYMOUS != 0 => Kind::Anonymous,
        _ => Kind::File,
    };
    let innermost = callers::innermost(segment, caller);
    let of_image = image::mapping_category(segment, innermost, kind, flags & MAP_FIXED != 0);
    let category = of_image.unwrap_or(category);
    let attributes = Attributes::new(caller, category, kind, prot as u16, time(segment));
    let done = |placement| {
        move |r: &usize| {
            (*r != MAP_FAILED).then(|| {
                callers::count_mapping(segment, caller, n as u64);
                Operation::Map { start: *r, bytes: n, attributes, placement }
            })
        }
    };
    if flags & MAP_FIXED != 0 {
        // The image heap replaces its part of the reservation; it is no commit of it.
        let replaces = of_image.is_some() && kind != Kind::Anonymous;
        locked(segment, sp, real, done(if replaces { Placement::Chosen } else { Placement::Fixed }))
    } else {
        let r = made(map());
        locked(segment, sp, || r, done(Placement::Chosen))
    }
}

/// munmap(2).
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
#[unsafe(link_section = ".text.hot")]
pub unsafe extern "C" fn munmap(
    a: usize,
    n: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    _fp: usize,
) -> c_int {
    code::unmapped(a, n);
    // SAFETY: the program's arguments.
    let real = move || java::unmapping(a, n, || unsafe { calls::munmap(a, n) });
    let Some(segment) = booked() else { return real() };
    locked(segment, sp, real, |r| (*r == 0).then_some(Operation::Unmap { start: a, bytes: n }))
}

fn booked() -> Option<Segment> {
    if !boot::resolved() {
        boot::resolve();
    }
    Segment::current()
}

/// mremap(2).
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn mremap(
    a: usize,
    old: usize,
    new: usize,
    flags: c_int,
    to: usize,
    _5: usize,
    sp: usize,
    _fp: usize,
) -> usize {
    let real = move || {
        code::unmapped(a, old);
        if flags & MREMAP_FIXED != 0 {
            code::unmapped(to, new);
        }
        // SAFETY: the program's arguments; without MREMAP_FIXED the kernel doesn't look at the fifth.
        let r = java::unmapping(a, old, || unsafe { calls::mremap(a, old, new, flags, to) });
        if r != MAP_FAILED && code::holds(a as u64) {
            code::note(r, new);
        }
        r
    };
    let Some(segment) = booked() else { return real() };
    locked(segment, sp, real, |r| {
        (*r != MAP_FAILED).then_some(Operation::Remap {
            remap: Remap {
                old: a as u64,
                old_bytes: old as u64,
                new: *r as u64,
                new_bytes: new as u64,
                keeps_old: flags & MREMAP_DONTUNMAP != 0,
            },
        })
    })
}

/// mprotect(2).
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
#[unsafe(link_section = ".text.hot")]
pub unsafe extern "C" fn mprotect(
    a: usize,
    n: usize,
    prot: c_int,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe { protected(a, n, prot, sp, fp, move || calls::mprotect(a, n, prot)) }
}

/// pkey_mprotect(2): how V8 makes its code's pages executable where the processor has protection keys.
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn pkey_mprotect(
    a: usize,
    n: usize,
    prot: c_int,
    key: c_int,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    if !boot::resolved() {
        boot::resolve();
    }
    if libc::real(libc::Call::pkey_mprotect) == 0 {
        // Newer than this libc (glibc 2.27, none of musl's): as a kernel without it answers.
        libc::set_errno(os::errno::ENOSYS);
        return -1;
    }
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe { protected(a, n, prot, sp, fp, move || calls::pkey_mprotect(a, n, prot, key)) }
}

/// A change of protection by `protect`.
///
/// # Safety
/// `sp` and `fp` are the entry's.
#[inline(always)]
unsafe fn protected(
    a: usize,
    n: usize,
    prot: c_int,
    sp: usize,
    fp: usize,
    protect: impl FnOnce() -> c_int + Copy,
) -> c_int {
    let real = move || {
        let r = java::unmapping_if(prot & 1 == 0, a, n, protect);
        if prot & PROT_EXEC != 0 && r == 0 {
            executable(sp, a, n, None);
        }
        r
    };
    // SAFETY: the entry's pointers.
    let Some((segment, caller, _)) = (unsafe { who(sp, fp) }) else { return real() };
    locked(segment, sp, real, |r| {
        let failed = *r != 0;
        let change = Operation::Protect { start: a, bytes: n, prot: prot as u16, caller, failed };
        // A range beyond the end of the address space fails likewise, and changes nothing.
        let wraps = a.checked_add(n).and_then(|end| end.checked_add(4095)).is_none();
        (!failed || (libc::errno() == os::errno::ENOMEM && !wraps)).then_some(change)
    })
}

/// madvise(2): changes what is resident, not what is mapped; counted.
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn madvise(
    a: usize,
    n: usize,
    advice: c_int,
    _3: usize,
    _4: usize,
    _5: usize,
    _sp: usize,
    _fp: usize,
) -> c_int {
    let segment = booked();
    // SAFETY: the program's arguments.
    let r = unsafe { calls::madvise(a, n, advice) };
    if let (0, MADV_DONTNEED | MADV_FREE, Some(s)) = (r, advice, segment) {
        s.count(Counter::advised_bytes, n as u64);
    }
    r
}

/// brk(2). What lies below the first break that the program sets is not in the books: it is libc's or the kernel's.
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn brk(
    to: usize,
    _1: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    // SAFETY: the entry's pointers; the program's argument.
    unsafe {
        let Some((segment, caller, category)) = who(sp, fp) else { return calls::brk(to) };
        locked(
            segment,
            sp,
            || (calls::sbrk(0), calls::brk(to)),
            |&(before, r)| (r == 0).then(|| moved_break(segment, before, to, caller, category)).flatten(),
        )
        .1
    }
}

/// sbrk(2).
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn sbrk(
    by: isize,
    _1: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> usize {
    // SAFETY: the entry's pointers; the program's argument.
    unsafe {
        if by == 0 {
            booked();
            return calls::sbrk(0);
        }
        let Some((segment, caller, category)) = who(sp, fp) else { return calls::sbrk(by) };
        locked(
            segment,
            sp,
            || calls::sbrk(by),
            |r| {
                let before = *r;
                (before != MAP_FAILED)
                    .then(|| moved_break(segment, before, before.wrapping_add_signed(by), caller, category))
                    .flatten()
            },
        )
    }
}

/// A break is a byte address; mappings are pages: the page that a break lies in belongs to what is below it.
fn moved_break(segment: Segment, before: usize, after: usize, caller: u32, category: u16) -> Option<Operation> {
    let (from, to) = (before.next_multiple_of(4096), after.next_multiple_of(4096));
    let attributes = Attributes::new(caller, category, Kind::Anonymous, 3, time(segment));
    match to.cmp(&from) {
        core::cmp::Ordering::Greater => {
            Some(Operation::Map { start: from, bytes: to - from, attributes, placement: Placement::Chosen })
        }
        core::cmp::Ordering::Less => Some(Operation::Unmap { start: to, bytes: from - to }),
        core::cmp::Ordering::Equal => None,
    }
}

/// shmat(2).
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn shmat(
    id: c_int,
    a: usize,
    flags: c_int,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> usize {
    const SHM_RDONLY: c_int = 0o10000;
    // SAFETY: the entry's pointers; the program's arguments.
    unsafe {
        let Some((segment, caller, category)) = who(sp, fp) else { return calls::shmat(id, a, flags) };
        let prot = if flags & SHM_RDONLY != 0 { 1 } else { 3 };
        let attributes = Attributes::new(caller, category, Kind::Shared, prot, time(segment));
        locked(
            segment,
            sp,
            || calls::shmat(id, a, flags),
            |r| {
                let bytes = (*r != MAP_FAILED).then(|| os::shared_memory_bytes(id)).flatten()?;
                attached(*r, bytes);
                Some(Operation::Map { start: *r, bytes, attributes, placement: Placement::Chosen })
            },
        )
    }
}

/// Where shared memory is attached, and how much: neighbours that are alike are one entry in the map.
static ATTACHED: [[AtomicUsize; 2]; 256] = [const { [const { AtomicUsize::new(0) }; 2] }; 256];

fn attached(at: usize, bytes: usize) {
    let known = ATTACHED.iter().find(|e| e[0].load(Relaxed) == at);
    let free = || ATTACHED.iter().find(|e| e[0].compare_exchange(0, at, AcqRel, Relaxed).is_ok());
    if let Some(e) = known.or_else(free) {
        e[1].store(bytes, Relaxed);
    }
}

fn detached(at: usize) -> Option<usize> {
    let e = ATTACHED.iter().find(|e| e[0].load(Relaxed) == at)?;
    let bytes = e[1].load(Relaxed);
    e[0].store(0, Release);
    Some(bytes)
}

/// shmdt(2): the mapping that begins there.
///
/// # Safety
/// Called by the entry stub.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn shmdt(
    a: usize,
    _1: usize,
    _2: usize,
    _3: usize,
    _4: usize,
    _5: usize,
    sp: usize,
    _fp: usize,
) -> c_int {
    // SAFETY: the program's argument.
    let real = move || unsafe { calls::shmdt(a) };
    let Some(segment) = booked() else { return real() };
    locked(segment, sp, real, |r| {
        if *r != 0 {
            return None;
        }
        let bytes = detached(a).or_else(|| {
            // SAFETY: `locked` holds the lock, or this thread does.
            let vma = unsafe { (*BOOK.0.get()).as_ref() }?.lookup(a as u64)?;
            Some((vma.end - a as u64) as usize)
        })?;
        Some(Operation::Unmap { start: a, bytes })
    })
}

/// Around a fork: the child's copy is taken while nobody writes.
pub fn lock_for_fork(segment: Segment) {
    let here = cpu::thread_pointer();
    if lock(segment, &raw const here as usize) {
        // No frame stands for this hold: the handlers do.
        HOLDER[0].store(0, Relaxed);
    }
}

/// In the parent.
pub fn unlock_after_fork(segment: Segment) {
    // A signal handler that forks on top of its own thread's hold leaves that to the call below.
    if HOLDER[0].load(Relaxed) == 0 && LOCK.load(Relaxed) == cpu::thread_pointer() {
        unlock(segment);
    }
}

/// In the child: the map goes on in the child's segment, `populated` bytes of which are there.
pub fn resume_after_fork(child: Segment, populated: usize) {
    LATER_USED.store(0, Relaxed);
    // SAFETY: one thread; the copy of a whole map.
    unsafe { *BOOK.0.get() = Book::resume(region(child), Section::Vmap.capacity(), populated, grow) };
    LOCK.store(0, Release);
}

/// In a child that goes on untracked.
pub fn abandon_after_fork() {
    // SAFETY: one thread.
    unsafe { *BOOK.0.get() = None };
    LOCK.store(0, Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::categories;
    use plimsoll_segment::FILE_BYTES;

    const ROOM: usize = 64 << 10;

    /// Whatever the reason, each operation that is in no map is counted once.
    #[test]
    fn losses_of_the_map_and_of_the_handlers_add_up() {
        let base = os::private(FILE_BYTES).expect("address space");
        // SAFETY: a zeroed writable mapping of that size, never unmapped.
        let segment = unsafe { Segment::at(base as usize) };
        segment.header().composition.store(2, Relaxed);
        assert!(segment.populate_start() && categories::init(segment) && segment.grow(Section::Vmap, ROOM));
        // SAFETY: a zeroed region; no other unit test has a map.
        unsafe { *BOOK.0.get() = Book::create(region(segment), ROOM, grow) };
        let mut next = 1 << 32;
        let mut map = || {
            next += 2 << 12;
            let attributes = Attributes::new(0, categories::EARLY, Kind::Anonymous, 3, 0);
            Operation::Map { start: next, bytes: 1 << 12, attributes, placement: Placement::Chosen }
        };
        let counted = |c: Counter| segment.header().values[c as usize].load(Relaxed);
        // SAFETY: this thread has the lock, or nobody else has.
        let in_map = || unsafe { (*BOOK.0.get()).as_ref() }.expect("the map").lost_ops();

        assert!(lock(segment, 0));
        (0..DEFERRED + 6).for_each(|_| defer(segment, map()));
        unlock(segment);
        assert_eq!((counted(Counter::vmap_deferred), counted(Counter::vmap_lost)), (DEFERRED as u64, 6 + in_map()));

        assert!(lock(segment, 0));
        (0..ROOM / 8).for_each(|_| book(segment, map()));
        unlock(segment);
        assert!(in_map() > 0, "so many mappings have no room");
        assert_eq!(counted(Counter::vmap_lost), 6 + in_map());

        before::forget(segment);
        assert_eq!(in_map(), 0);
    }
}
