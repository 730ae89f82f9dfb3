//! pthread_create, and the end of a thread.
//!
//! The new thread starts in a trampoline that gets its slot and then jumps to the program's routine, so that no frame
//! of ours is on its stack. The destructor of a thread-specific key notices the thread's end. It does so in the last of
//! the rounds that POSIX grants (PTHREAD_DESTRUCTOR_ITERATIONS, 4), since other keys' destructors free too. What comes
//! even later (libc's own clean-up) is booked in shared rows.
#![allow(
    clippy::just_underscores_and_digits,
    clippy::too_many_arguments,
    reason = "an entry stub passes all registers of arguments; those that a call doesn't use are named by their number"
)]

use crate::account::early;
use crate::account::mapping::books;
use crate::account::memo;
use crate::account::thread::{self, ThreadState};
use crate::guard::{self, Entered, enter};
use crate::hook::resolve::resolve;
use crate::phase::resolved;
use crate::segment::Segment;
use crate::stack_bounds;
use crate::sys::cpu::{CURRENT, tls_get, tls_set};
use crate::sys::libc::{self, Call, Other, calls};
use crate::sys::{cpu, errno, os};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

/// What a new thread needs to know. pthread_create takes a record from the pool, the new thread returns it.
#[repr(C)]
struct Start {
    next: AtomicU64,
    routine: usize,
    argument: usize,
    own_low: usize,
    bytes: usize,
    guard: usize,
    creator: u32,
}

const POOL: usize = 32_768;
static RECORDS: AtomicUsize = AtomicUsize::new(0);
static FREE: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicUsize = AtomicUsize::new(0);

/// Reserves the pool.
pub fn init() -> bool {
    if RECORDS.load(Relaxed) == 0 {
        match os::private(POOL * size_of::<Start>()) {
            Some(p) => RECORDS.store(p as usize, Release),
            None => return false,
        }
    }
    true
}

fn record(i: u64) -> *mut Start {
    (RECORDS.load(Acquire) + i as usize * size_of::<Start>()) as *mut Start
}

fn take() -> Option<(u64, *mut Start)> {
    loop {
        let head = FREE.load(Acquire);
        let top = head & 0xffff_ffff;
        if top == 0 {
            let i = MADE.fetch_add(1, AcqRel) + 1;
            if i >= POOL || RECORDS.load(Acquire) == 0 {
                MADE.fetch_sub(1, AcqRel);
                return None;
            }
            return Some((i as u64, record(i as u64)));
        }
        // SAFETY: records below MADE are reserved memory; `next` is atomic, a stale value fails the exchange by its
        // tag.
        let next = unsafe { (*record(top)).next.load(Acquire) };
        let tag = (head >> 32).wrapping_add(1) << 32;
        if FREE.compare_exchange(head, tag | next, AcqRel, Relaxed).is_ok() {
            return Some((top, record(top)));
        }
    }
}

fn give_back(i: u64) {
    loop {
        let head = FREE.load(Acquire);
        // SAFETY: the record is this thread's until the exchange.
        unsafe { (*record(i)).next.store(head & 0xffff_ffff, Release) };
        let tag = (head >> 32).wrapping_add(1) << 32;
        if FREE.compare_exchange(head, tag | i, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// pthread_create(3).
///
/// # Safety
/// Called by the entry stub.
pub unsafe extern "C" fn pthread_create(
    out: *mut c_void,
    attr: *const c_void,
    routine: *const c_void,
    argument: *mut c_void,
    _4: usize,
    _5: usize,
    sp: usize,
    fp: usize,
) -> c_int {
    if !resolved() {
        resolve();
    }
    if libc::real(Call::pthread_create) == 0 && !find_libpthread() {
        return errno::EAGAIN;
    }
    // SAFETY: the arguments are the program's.
    unsafe {
        if !early::booking() {
            return calls::pthread_create(out, attr, routine, argument);
        }
        let creator = match enter() {
            Entered::Thread(mut inside) => memo::mapping(inside.segment(), inside.state(), sp, fp),
            _ => 0,
        };
        let Some((i, start)) = take() else { return calls::pthread_create(out, attr, routine, argument) };
        let (own_low, bytes, guard) =
            if attr.is_null() { (None, 0, 4096) } else { libc::attr_stack(attr).unwrap_or((None, 0, 4096)) };
        (*start).routine = routine as usize;
        (*start).argument = argument as usize;
        (*start).own_low = own_low.unwrap_or(0);
        (*start).bytes = bytes;
        (*start).guard = guard;
        (*start).creator = creator;
        let r = calls::pthread_create(out, attr, trampoline as *const c_void, i as *mut c_void);
        if r != 0 {
            give_back(i);
        }
        r
    }
}

/// Before glibc 2.34, an object that is loaded later may bring libpthread. Then this is the process's first thread.
/// libpthread is never unloaded. False: there is no pthread_create.
#[cold]
fn find_libpthread() -> bool {
    if libc::real_or_later(Call::pthread_create) == 0 {
        return false;
    }
    let had_keys = libc::other(Other::KeyCreate) != 0;
    libc::find_others_again();
    if !had_keys && let Some(key) = libc::key_create(end) {
        thread::watch_ends_by(key);
    }
    true
}

/// What the trampoline jumps to, in two registers (rax, rdx; x0, x1).
#[repr(C)]
pub struct Routine {
    routine: usize,
    argument: usize,
}

crate::thread_trampoline!(trampoline, begin);

/// Runs first in a new thread.
///
/// # Safety
/// Called by the trampoline with what `pthread_create` above gave.
pub unsafe extern "C" fn begin(i: u64) -> Routine {
    // SAFETY: the record is ours since pthread_create handed it over.
    let (go, low, bytes, guard_bytes, creator) = unsafe {
        let s = &*record(i);
        (Routine { routine: s.routine, argument: s.argument }, s.own_low, s.bytes, s.guard, s.creator)
    };
    give_back(i);
    if let Some(segment) = Segment::current()
        && let Some(slot) = guard::begin(segment, stack_bounds::of_new(low, bytes, guard_bytes))
    {
        segment.thread(slot).creator.store(creator as u64, Relaxed);
    }
    go
}

/// The destructor of the key: books the thread's end in the last round.
pub extern "C" fn end(value: *mut c_void) {
    // After a detach too: the slot is then free for the next thread.
    let Some(segment) = Segment::mapped() else { return };
    let own = tls_get::<{ cpu::OWN }>();
    if value.is_null() || own != value as usize {
        return;
    }
    // Taken, so that a signal handler books in the shared rows meanwhile.
    let current = tls_get::<CURRENT>();
    tls_set::<CURRENT>(0);
    // SAFETY: the value is this thread's state. Destructors run at the thread's end: no frame below continues.
    let t = unsafe { &mut *(value as *mut ThreadState) };
    if t.end_rounds == 0 {
        books::thread_ends(segment);
        return thread::detach(segment, t.slot);
    }
    t.end_rounds -= 1;
    // Put back, since libc may allocate for the key. It stays 0 if pthread_exit has left a hook that had taken it.
    tls_set::<CURRENT>(current);
    thread::watch_end(value as *const ThreadState);
}
