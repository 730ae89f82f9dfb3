//! fork(), by libc's own handlers: they run around every fork() of libc, those inside daemon and forkpty too, and not
//! around vfork, posix_spawn and system, whose children only exec.
//!
//! The child's segment is made in the parent, before: a child under seccomp may not open a file. It gets all that is in the
//! parent's, rows numbered as they were, since the keys in its blocks name them; so its sums begin as its parent's. Where the
//! parent has one thread, it copies the books itself, between the last thing it did before the fork and the fork: after it
//! both go on at once. Other threads would add rows in between, which blocks of the child name; so there the child copies
//! the books, in a reader's order, and operations of other threads during the fork may be in one and not in the other.
//! The map is copied before in either case, under its lock. Then the child renames its file to its own id.
//! A child that nothing was prepared for (no space, a raw clone) finds no segment: see `account::segment`.

use crate::account::segment::Segment;
use crate::account::thread;
use crate::account::{blocks, categories, own, peaks, samples};
use crate::boot;
use crate::options::Path;
use crate::sys::cpu::{CURRENT, GONE, OWN, PARENT, PREPARED, SLOT_MARK, tls_get, tls_set};
use crate::sys::os;
use core::mem::offset_of;
use core::sync::atomic::Ordering::*;
use plimsoll_segment::{
    ALL_SECTIONS, Allocator, Counter, FILE_BYTES, Header, Row, SECTIONS, SUFFIX, Section, SiteSamples, State,
};

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
    let wanted = wanted(parent);
    let made = os::open_dir(boot::directory().as_c()).and_then(|fd| {
        boot::prune(fd);
        let child = boot::create_beside(fd, &wanted);
        os::close(fd);
        child
    });
    let Some(child) = made else {
        parent.count(Counter::forks_untracked, 1);
        return;
    };
    child.header().state.store(State::Prepared as u32, Release);
    copy_map(parent, child, &wanted);
    // Late, handlers of others run after ours and may book before the fork.
    if !boot::is_late() && os::is_only_thread() {
        copy_books(parent, child, &wanted);
    }
    tls_set::<PREPARED>(child.base());
}

/// What a child has of its own from the start: all that is in use, and no more. The schema and the command come from boot.
pub type Wanted = [usize; SECTIONS];

/// Bytes of each section that the child will write at once.
pub fn wanted(parent: Segment) -> Wanted {
    ALL_SECTIONS.map(|s| room(s, parent.used(s)))
}

fn room(s: Section, used: usize) -> usize {
    // A section that was never used needs no room either; text has its page.
    if used == 0 || matches!(s, Section::Schema | Section::Command) {
        return 0;
    }
    (used * s.entry_bytes() + SPARE).min(s.capacity() * s.entry_bytes()).next_multiple_of(plimsoll_segment::PAGE)
}

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
    // SAFETY: the parent's mapping is still here: `leave` replaces it below.
    let parent = unsafe { Segment::at(old) };
    // SAFETY: the mapping that `prepare_child` made, or 0, which nothing below touches.
    let child = unsafe { Segment::at(base) };
    if base == 0 || (!has_books(child) && !copy_books(parent, child, &[0; SECTIONS])) {
        if base != 0 {
            child.header().magic.store(0, Release);
        }
        super::mapping::abandon_after_fork();
        leave(old, true);
        return;
    }
    seed(child);
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

/// Copies what is in use of a section; `of`: which words of an entry.
fn copy(parent: Segment, child: Segment, s: Section, used: usize, of: u64) {
    let entry = s.entry_bytes() / 8;
    let words = (used * s.entry_bytes()).div_ceil(8);
    for (i, (to, from)) in child.words(s).iter().zip(parent.words(s)).take(words).enumerate() {
        if of == EACH || of >> (i % entry) & 1 != 0 {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
    child.section(s).used.store(used as u64, Relaxed);
}

const EACH: u64 = u64::MAX;

const fn words<const N: usize>(offsets: [usize; N]) -> u64 {
    let (mut mask, mut i) = (0, 0);
    while i < N {
        mask |= 1 << (offsets[i] / 8);
        i += 1;
    }
    mask
}

/// Words of what is gone.
const ROW_FREED: u64 =
    words([offset_of!(Row, free_count), offset_of!(Row, free_bytes), offset_of!(Row, free_requested)]);
const SITE_FREED: u64 = words([
    offset_of!(SiteSamples, free_samples),
    offset_of!(SiteSamples, free_bytes),
    offset_of!(SiteSamples, free_requested),
    offset_of!(SiteSamples, free_count_256),
    offset_of!(SiteSamples, temporary_bytes),
    offset_of!(SiteSamples, temporary_count_256),
    offset_of!(SiteSamples, free_bytes_variance),
    offset_of!(SiteSamples, free_count_variance),
]);

/// The map, while nobody writes it.
fn copy_map(parent: Segment, child: Segment, ready: &Wanted) {
    let used = parent.used(Section::Vmap).min(ready[Section::Vmap as usize]);
    copy(parent, child, Section::Vmap, used, EACH);
    let (h, p) = (child.header(), parent.header());
    for (to, from) in [
        (&h.reserved_bytes, &p.reserved_bytes),
        (&h.committed_bytes, &p.committed_bytes),
        (&h.peak_reserved_bytes, &p.reserved_bytes),
        (&h.peak_committed_bytes, &p.committed_bytes),
    ] {
        to.store(from.load(Relaxed), Relaxed);
    }
}

/// All else. What is freed comes before what is allocated, what refers before what is referred to, as a reader has it
/// (segment/src/lib.rs): other threads go on meanwhile. `ready`: bytes of each section that are populated. False: there
/// is no room; the child has no books then.
pub fn copy_books(parent: Segment, child: Segment, ready: &Wanted) -> bool {
    let steps = [
        (Section::Rows, ROW_FREED),
        (Section::SiteSamples, SITE_FREED),
        (Section::Rows, !ROW_FREED),
        (Section::Samples, EACH),
        (Section::Callers, EACH),
        (Section::SiteSamples, !SITE_FREED),
        (Section::Frames, EACH),
        (Section::Methods, EACH),
        (Section::Names, EACH),
        (Section::Threads, EACH),
        (Section::Modules, EACH),
        (Section::Categories, EACH),
        (Section::Own, EACH),
        (Section::Command, EACH),
    ];
    for (s, of) in steps {
        let used = parent.used(s);
        let wanted = room(s, used);
        if wanted > ready[s as usize] && !os::back(child.base() + s.offset(), wanted) {
            child.section(Section::Rows).used.store(0, Relaxed);
            return false;
        }
        copy(parent, child, s, used, of);
    }
    let (h, p) = (child.header(), parent.header());
    h.live_bytes.store(p.live_bytes.load(Relaxed), Relaxed);
    h.live_count.store(p.live_count.load(Relaxed), Relaxed);
    h.mode.store(p.mode.load(Relaxed), Relaxed);
    for (to, from) in [(&h.control, &p.control), (&h.in_force, &p.in_force), (&h.in_force_ns, &p.in_force_ns)] {
        to.store(from.load(Relaxed), Relaxed);
    }
    for (to, from) in h.values.iter().zip(&p.values) {
        to.store(from.load(Relaxed), Relaxed);
    }
    true
}

/// No segment is without rows.
fn has_books(child: Segment) -> bool {
    child.used(Section::Rows) != 0
}

fn seed(child: Segment) {
    child.populated(&wanted(child));
    super::mapping::resume_after_fork(child, child.populated_of(Section::Vmap));
    child.header().ppid.store(os::getppid(), Relaxed);
    categories::reset_after_fork(child);
    crate::summary::reset_after_fork();
    own::reset_after_fork(child);
    samples::reset_after_fork(child);
    peaks::reset_after_fork(child);
    thread::reset_after_fork(child, (tls_get::<SLOT_MARK>() as u32).saturating_sub(1));
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
