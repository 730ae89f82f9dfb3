//! fork(), by libc's own handlers: they run around every fork() of libc, those inside daemon and forkpty too, and not
//! around vfork, posix_spawn and system, whose children only exec.
//!
//! The child's segment is made in the parent, before: a child under seccomp may not open a file. The child copies all that
//! is in the parent's, rows numbered as they were, since the keys in its blocks name them; so its sums begin as its
//! parent's. (Exact if the parent has one thread; otherwise operations of other threads during the fork may be in one and
//! not in the other.) Then it renames its file to its own id.
//! A child that nothing was prepared for (no space, a raw clone) finds no segment: see `account::segment`.

use crate::account::segment::Segment;
use crate::account::thread::{self, ThreadState};
use crate::account::{blocks, categories, peaks, samples};
use crate::boot;
use crate::options::Path;
use crate::sys::cpu::{CURRENT, GONE, OWN, PARENT, PREPARED, tls_get, tls_set};
use crate::sys::os;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::{ALL_SECTIONS, Allocator, Counter, FILE_BYTES, Header, SECTIONS, SUFFIX, Section, State};

/// Room beyond what the parent uses, bytes, so that the child's first steps need no growth.
const SPARE: usize = 4096;

crate::any_alignment! {
    /// Before the fork, in the parent. libc calls this on the stack that the program called fork() with.
    pub fn prepare() = prepare_child;
    /// After the fork, in the parent.
    pub fn parent() = after_in_parent;
    /// After the fork, in the child: one thread.
    pub fn child() = after_in_child;
}

extern "C" fn prepare_child() {
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    let Some(parent) = Segment::current() else { return };
    parent.count(Counter::forks, 1);
    // Late, our handler runs before the allocator's own, which was registered first. glibc's malloc needs none; but one that
    // maps memory under its own lock would wait for the map, and the fork for it. The child's copy of the map is then as
    // after a kill: valid.
    if !boot::is_late() || blocks::allocator() == Allocator::Glibc as u32 {
        super::mapping::lock_for_fork(parent);
    }
    tls_set::<PARENT>(parent.base());
    let made = os::open_dir(boot::directory().as_c()).and_then(|fd| {
        boot::prune(fd);
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

/// What a child has of its own from the start: all that is in use, and no more. The schema and the command come from boot.
pub type Wanted = [(Section, usize); SECTIONS - 2];

/// Bytes of each section that the child will write at once.
pub fn wanted(parent: Segment) -> Wanted {
    core::array::from_fn(|i| {
        let s = ALL_SECTIONS[i + 2];
        let bytes = parent.used(s) * s.entry_bytes();
        // A section that was never used needs no room either.
        (s, if bytes == 0 { 0 } else { (bytes + SPARE).min(s.capacity() * s.entry_bytes()) })
    })
}
const _: () = assert!(matches!(ALL_SECTIONS, [Section::Schema, Section::Command, Section::Categories, ..]));

extern "C" fn after_in_parent() {
    if let (true, Some(segment)) = (tls_get::<PARENT>() != 0, Segment::current()) {
        super::mapping::unlock_after_fork(segment);
    }
    let child = tls_get::<PREPARED>();
    if child != 0 {
        // SAFETY: this thread's prepared mapping; the child has its own.
        unsafe { os::unmap(child as *mut u8, FILE_BYTES) };
    }
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
}

extern "C" fn after_in_child() {
    let (base, old) = (tls_get::<PREPARED>(), tls_get::<PARENT>());
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    crate::patch::reset_after_fork();
    if old == 0 {
        return;
    }
    // SAFETY: the parent's mapping is still here, the prepared one too.
    let parent = unsafe { Segment::at(old) };
    // SAFETY: as above.
    let child = unsafe { Segment::at(base) };
    // Other threads may have added more since `prepare` than it left room for.
    let wanted = wanted(parent);
    let there =
        |&(s, bytes): &(Section, usize)| bytes == 0 || os::populate(base + s.offset(), bytes.next_multiple_of(4096));
    if base == 0 || !wanted.iter().all(there) {
        if base != 0 {
            child.header().magic.store(0, Release);
        }
        super::mapping::abandon_after_fork();
        leave(old, true);
        return;
    }
    seed(parent, child, wanted);
    rename(child.header());
    leave(old, false);
    child.header().state.store(State::Running as u32, Release);
    child.publish();
}

/// The parent's segment is none of the child's business. If the fork came from a signal handler on top of a hook, that
/// hook goes on in the child with what it had in hand: then there is memory in the segment's place that nobody reads. So
/// there is if the child has no segment of its own: free looks for rows there.
fn leave(parent: usize, untracked: bool) {
    let nested = tls_get::<CURRENT>() == 0 && tls_get::<OWN>() > GONE;
    // SAFETY: nobody books there any more: the base was wiped.
    unsafe {
        if nested || untracked {
            os::blank(parent as *mut u8, FILE_BYTES);
        } else {
            os::unmap(parent as *mut u8, FILE_BYTES);
        }
    }
}

fn seed(parent: Segment, child: Segment, wanted: Wanted) {
    child.populated(&wanted);
    for (s, bytes) in [(Section::Command, parent.used(Section::Command))].into_iter().chain(wanted) {
        let used = parent.used(s) * s.entry_bytes();
        let bytes = if s as u32 == Section::Command as u32 { used } else { used.min(bytes) };
        // SAFETY: both mappings hold the section; the child's part was populated for at least this much.
        unsafe {
            let (from, to) = (parent.base() + s.offset(), child.base() + s.offset());
            core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
        }
        child.section(s).used.store((bytes / s.entry_bytes()) as u64, Relaxed);
    }
    super::mapping::resume_after_fork(child, child.populated_of(Section::Vmap));
    let (h, p) = (child.header(), parent.header());
    for (to, from) in [
        (&h.reserved_bytes, &p.reserved_bytes),
        (&h.committed_bytes, &p.committed_bytes),
        (&h.peak_reserved_bytes, &p.reserved_bytes),
        (&h.peak_committed_bytes, &p.committed_bytes),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
    h.mode.store(p.mode.load(Relaxed), Relaxed);
    for (to, from) in [(&h.control, &p.control), (&h.in_force, &p.in_force), (&h.in_force_ns, &p.in_force_ns)] {
        to.store(from.load(Relaxed), Relaxed);
    }
    h.ppid.store(os::getppid(), Relaxed);
    for (to, from) in h.values.iter().zip(&p.values) {
        to.store(from.load(Relaxed), Relaxed);
    }
    categories::reset_after_fork();
    crate::summary::reset_after_fork();
    samples::reset_after_fork(child);
    peaks::reset_after_fork(parent, child);
    let own = tls_get::<OWN>();
    // SAFETY: other than 0 and GONE the word is this thread's state.
    let slot = if own > GONE { unsafe { (*(own as *const ThreadState)).slot } } else { 0 };
    thread::reset_after_fork(child, slot);
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
