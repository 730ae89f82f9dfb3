//! fork(), by libc's own handlers: they run around every fork() of libc, those inside daemon and forkpty too, and not
//! around vfork, posix_spawn and system, whose children only exec.
//!
//! The child's segment is made in the parent, before: a child under seccomp may not open a file. The child copies what
//! the parent knew (it is exact if the parent has one thread; otherwise operations of other threads during the fork may be
//! in one and not the other), turns all rows into shared rows that hold what was live, and renames its file to its own id.
//! A child that nothing was prepared for (no space, a raw clone) finds no segment: see `account::segment`.

use crate::account::segment::Segment;
use crate::account::thread::{self, ThreadState};
use crate::account::{categories, peaks, rows};
use crate::boot;
use crate::options::Path;
use crate::sys::cpu::{CURRENT, GONE, OWN, PARENT, PREPARED, tls_get, tls_set};
use crate::sys::os;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::{Counter, FILE_BYTES, Header, SLOT_SHARED, SUFFIX, Section, State};

/// Room beyond what the parent uses, bytes, so that the child's first steps need no growth.
const SPARE: usize = 4096;

/// Before the fork, in the parent.
pub extern "C" fn prepare() {
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    let Some(parent) = Segment::current() else { return };
    parent.count(Counter::forks, 1);
    super::mapping::lock_for_fork();
    tls_set::<PARENT>(parent.base());
    let made = os::open_dir(boot::directory().as_c()).and_then(|fd| {
        boot::prune(fd, usize::MAX / 2);
        let child = boot::create_beside(fd, parent);
        os::close(fd);
        child
    });
    let Some(child) = made else {
        parent.count(Counter::forks_untracked, 1);
        return;
    };
    child.header().state.store(State::Prepared as u32, Release);
    tls_set::<PREPARED>(child.base());
}

/// Sections that a child inherits whole, and how much of each.
fn inherited(parent: Segment) -> [(Section, usize); 5] {
    [Section::Command, Section::Categories, Section::Modules, Section::Callers, Section::Threads]
        .map(|s| (s, parent.used(s) * s.entry_bytes()))
}

/// Bytes of each section that the child will write at once.
pub fn wanted(parent: Segment) -> [(Section, usize); 7] {
    let i = inherited(parent);
    let rows = (parent.used(Section::Callers) + 8) * Section::Rows.entry_bytes();
    let map = parent.used(Section::Vmap);
    [i[0], i[1], i[2], i[3], i[4], (Section::Rows, rows + SPARE), (Section::Vmap, map + SPARE)]
}

/// After the fork, in the parent.
pub extern "C" fn parent() {
    if tls_get::<PARENT>() != 0 {
        super::mapping::unlock_after_fork();
    }
    let child = tls_get::<PREPARED>();
    if child != 0 {
        // SAFETY: this thread's prepared mapping; the child has its own.
        unsafe { os::unmap(child as *mut u8, FILE_BYTES) };
    }
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
}

/// After the fork, in the child: one thread.
pub extern "C" fn child() {
    let (base, old) = (tls_get::<PREPARED>(), tls_get::<PARENT>());
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    if old == 0 {
        return;
    }
    super::mapping::reset_after_fork();
    // SAFETY: the parent's mapping is still here, the prepared one too.
    let parent = unsafe { Segment::at(old) };
    if base == 0 {
        // SAFETY: nobody books there any more: the base was wiped.
        unsafe { os::unmap(old as *mut u8, FILE_BYTES) };
        return;
    }
    // SAFETY: as above.
    let child = unsafe { Segment::at(base) };
    let own = match tls_get::<OWN>() {
        0 | GONE => None,
        // SAFETY: this thread's state.
        p => Some(unsafe { &mut *(p as *mut ThreadState) }),
    };
    seed(parent, child, own);
    rename(child.header());
    // SAFETY: as above.
    unsafe { os::unmap(old as *mut u8, FILE_BYTES) };
    child.header().state.store(State::Running as u32, Release);
    if child.publish()
        && let p @ 2.. = tls_get::<OWN>()
    {
        tls_set::<CURRENT>(p);
    }
}

fn seed(parent: Segment, child: Segment, own: Option<&mut ThreadState>) {
    child.populated(&wanted(parent));
    for (s, bytes) in inherited(parent) {
        // SAFETY: both mappings hold the section; the child's part was populated in `prepare` for at least this much:
        // sections only grow, and what grew since is not copied.
        unsafe {
            let bytes = bytes.min(child.populated_of(s));
            core::ptr::copy_nonoverlapping(
                (parent.base() + s.offset()) as *const u8,
                (child.base() + s.offset()) as *mut u8,
                bytes,
            );
            child.section(s).used.store((bytes / s.entry_bytes()) as u64, Relaxed);
        }
    }
    super::mapping::inherit(parent, child);
    let h = child.header();
    h.mode.store(parent.header().mode.load(Relaxed), Relaxed);
    h.ppid.store(os::getppid(), Relaxed);
    h.start_realtime_ns.store(os::clock_ns(os::Clock::Realtime), Relaxed);
    categories::reset_after_fork();
    rows::reset_after_fork();
    peaks::reset_after_fork();
    for i in 0..child.used(Section::Callers) as u32 {
        let c = child.caller(i);
        for cell in [&c.live_bytes, &c.live_count] {
            cell.store(0, Relaxed);
        }
        for cell in [&c.peak_bytes, &c.count_at_peak] {
            cell.store(0, Relaxed);
        }
    }
    for i in 0..child.used(Section::Categories) as u16 {
        let k = child.category(i);
        k.live_bytes.store(0, Relaxed);
        k.live_count.store(0, Relaxed);
        k.peak_bytes.store(0, Relaxed);
        k.count_at_peak.store(0, Relaxed);
    }
    let keep = own.as_ref().map(|t| t.slot);
    for i in 1..child.used(Section::Threads) as u32 {
        let t = child.thread(i);
        if Some(i) != keep {
            t.state.store(0, Relaxed);
        } else {
            t.tid.store(os::gettid(), Relaxed);
        }
    }
    rows::init(child);
    for i in 1..parent.used(Section::Rows) as u32 {
        let from = parent.row(i);
        let caller = from.caller.load(Relaxed);
        if from.slot.load(Acquire) == 0 || caller as usize >= child.used(Section::Callers) {
            continue;
        }
        let to = child.row(rows::shared_row(child, caller));
        for (to, alloc, free) in [
            (&to.alloc_count, &from.alloc_count, &from.free_count),
            (&to.alloc_bytes, &from.alloc_bytes, &from.free_bytes),
            (&to.alloc_requested, &from.alloc_requested, &from.free_requested),
        ] {
            // A row may have freed more than it allocated; only the sum over a caller's rows is a number of blocks.
            let net = alloc.load(Relaxed).wrapping_sub(free.load(Relaxed));
            to.store(to.alloc_value().wrapping_add(net), Relaxed);
        }
    }
    thread::reset_after_fork(child, own);
    for i in 1..child.used(Section::Rows) as u32 {
        let r = child.row(i);
        if r.slot.load(Relaxed) == SLOT_SHARED + 1 && r.alloc_count.load(Relaxed) != 0 {
            let caller = r.caller.load(Relaxed);
            peaks::seed(child, caller, r.alloc_bytes.load(Relaxed) as i64, r.alloc_count.load(Relaxed) as i64);
        }
    }
}

trait Value {
    fn alloc_value(&self) -> u64;
}
impl Value for core::sync::atomic::AtomicU64 {
    fn alloc_value(&self) -> u64 {
        self.load(Relaxed)
    }
}

/// The file was named after the parent; the child puts its own id into the header and the name.
fn rename(h: &Header) {
    let pid = os::getpid();
    let name = |pid: u32| {
        let mut p = Path::<320>::new();
        p.push(boot::directory().bytes()).push(b"/").push_number(pid as u64).push(b"-");
        p.push_number(h.start_boottime_ns.load(Relaxed)).push(SUFFIX.as_bytes());
        p
    };
    let old = name(h.pid.load(Relaxed));
    h.pid.store(pid, Release);
    os::rename(old.as_c(), name(pid).as_c());
}
