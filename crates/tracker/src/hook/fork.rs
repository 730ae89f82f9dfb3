//! fork(), by handlers that libc calls. They run around every fork() of libc, also inside daemon and forkpty. They
//! don't run around vfork, posix_spawn and system, whose children only exec.
//!
//! ```text
//! parent   prepare: the map locked, what is in use copied │ fork() │ unlocked, the copy given back
//! child                                                   │        │ the parent's segment unmapped │ first hook that books:
//!                                                                    file made from the copy, which is given back
//! ```
//!
//! A child that execs or ends before it allocates, frees or maps anything costs no file. Any other child gets a copy of
//! all that was in use. Its rows keep their numbers, since the keys in its blocks name them, so its sums begin as its
//! parent's. [`crate::account::inherited`] says what the parent's other threads mean for the copy. In a process that
//! was attached to, handlers of other libraries run between ours and fork(): the blocks that they allocate and free
//! there aren't in the child's books.
//!
//! The child's file is mapped where the parent's was. So if a signal handler interrupts a hook and forks, the hook
//! continues in the child with the child's own books. In that case the child makes its books at once.
//!
//! The child must still be able to make its file when it first books. Some calls could prevent that: a filter
//! ([`super::seccomp`]), a change of root or user ([`super::rights`]), a limit on files ([`super::limits`]). So the
//! hooks of these calls make the file before the call. One case remains: a child enters seccomp's strict mode without
//! libc, and allocates for the first time afterwards. The kernel then kills the child for our openat(2). It also kills
//! it if a table must grow.
//!
//! A child books nothing if it has no copy (no memory, or the parent can't reach the directory), or if it can't make a
//! file. The parent counts it; or the child counts itself in the parent's file, if it can open that.

use crate::account::inherited::{Child, Inherited, NO_CALLER};
use crate::account::mapping::books::{self, AfterFork};
use crate::account::{blocks, own_mappings, peaks, retained, samples, sampling, segment_file};
use crate::phase::{self};
use crate::segment::books::MayBook;
use crate::segment::{self, LASTING, Segment, WIPED, categories, slots, windows};
use crate::sys::cpu::{CURRENT, GONE, OWN, PARENT, PREPARED, SLOT_MARK, tls_get, tls_set};
use crate::sys::libc;
use crate::sys::os::{self, Clock};
use core::sync::atomic::{AtomicUsize, Ordering::*};
use plimsoll_segment::{Allocator, Counter, MAGIC, Section, State};

crate::any_alignment! {
    /// Before the fork, in the parent. libc calls this on the stack that the program called fork() with.
    pub fn prepare() = prepare_child;
    /// After the fork, in the parent.
    pub fn parent() = after_in_parent;
    /// After the fork, in the child: one thread.
    pub fn child() = after_in_child;
}

/// From now on children of fork() have books.
pub fn init() {
    segment::on_missing(begin);
    libc::at_fork(prepare, parent, child);
}

/// See [`on_unknown_rows`].
static FREE_SLOWLY: AtomicUsize = AtomicUsize::new(0);

/// Sets the function that a child calls if it has rows which it doesn't know. These have the mark of a thread without a
/// slot, and only the slow path of free looks whether the thread has one.
pub fn on_unknown_rows(free_slowly: fn()) {
    FREE_SLOWLY.store(free_slowly as usize, Release);
}

extern "C" fn prepare_child() {
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    let Some(parent) = Segment::published() else {
        // This process is a fork child that hasn't booked yet: its own child begins with the same copy.
        let inherited = WIPED.inherited.load(Acquire);
        if inherited != 0 {
            tls_set::<PARENT>(LASTING.load(Relaxed));
            tls_set::<PREPARED>(inherited);
        }
        return;
    };
    parent.count(Counter::forks, 1);
    // After an attach, our handler runs before the allocator's, which was registered first. glibc's malloc needs none.
    // Another allocator may map memory under its own lock: it would wait for the map's lock, and the fork for the
    // allocator's. So the map isn't locked, and the child's copy of it is as after a kill: valid. The order is the same
    // over musl: registering our handler allocates there, so the allocator starts and registers its own handler first.
    let is_libc = [Allocator::Glibc, Allocator::Musl].map(|libc| libc as u32).contains(&blocks::allocator());
    if is_libc || !(phase::is_late() || libc::is_musl()) {
        books::lock_for_fork(parent);
    }
    tls_set::<PARENT>(parent.base());
    let inherited = if segment_file::reaches_directory() { Inherited::take(parent) } else { None };
    match inherited {
        Some(inherited) => tls_set::<PREPARED>(inherited.base()),
        None => parent.count(Counter::forks_untracked, 1),
    }
}

extern "C" fn after_in_parent() {
    let (parent, inherited) = (tls_get::<PARENT>(), tls_get::<PREPARED>());
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    // Not only the published one: the tracker may have been detached since `prepare`.
    if parent != 0
        && let Some(segment) = Segment::mapped()
    {
        books::unlock_after_fork(segment);
    }
    if inherited != 0 && inherited != WIPED.inherited.load(Relaxed) {
        // SAFETY: this thread's copy, which nobody else knows of; the child has its own.
        unsafe { Inherited::at(inherited) }.give_back();
    }
}

extern "C" fn after_in_child() {
    crate::patch::reset_after_fork();
    crate::summary::reset_after_fork();
    become_child();
}

/// What the child does at once. If a handler of another library or a signal handler books before our handler runs,
/// [`begin`] calls this.
fn become_child() {
    let (parent, inherited) = (tls_get::<PARENT>(), tls_get::<PREPARED>());
    tls_set::<PREPARED>(0);
    tls_set::<PARENT>(0);
    if parent == 0 {
        return;
    }
    // SAFETY: the parent's mapping is still here, or what was put in its place if the parent hadn't booked.
    windows::reset_after_fork(unsafe { Segment::at(parent) });
    if inherited == 0 {
        books::leave_after_fork();
        // SAFETY: nobody books there any more: the base was wiped. free and malloc still read rows there.
        unsafe { windows::replace_with_zeros(Segment::at(parent)) };
        return;
    }
    // SAFETY: the copy that `prepare_child` took.
    let mut inherited = unsafe { Inherited::at(inherited) };
    // SAFETY: the parent's mapping is still here, or what was put in its place if the parent hadn't booked.
    let of_parent = unsafe { Segment::at(parent) };
    // A parent that hadn't booked has zeros there, and passes on a copy that it has completed itself.
    if of_parent.header().magic.load(Relaxed) == MAGIC {
        inherited.follow(of_parent, slot());
    }
    // This drops the mapping's lock on the parent's file too. Otherwise the file would count as in use after the
    // parent's end.
    // SAFETY: as above.
    if !unsafe { windows::replace_with_zeros(Segment::at(parent)) } {
        books::leave_after_fork();
        return inherited.give_back();
    }
    // The rest waits: the child may exec at once, and the kernel copies each page that it writes.
    WIPED.child.store(os::getpid() as usize, Relaxed);
    WIPED.forked[0].store(os::clock_ns(Clock::Boottime), Relaxed);
    WIPED.forked[1].store(os::clock_ns(Clock::Realtime), Relaxed);
    // A signal handler interrupted a hook and forked: the hook continues here with the rows that it has found.
    let is_nested = books::is_held_below() || (tls_get::<CURRENT>() == 0 && tls_get::<OWN>() > GONE);
    if is_nested {
        make(inherited);
    } else {
        WIPED.inherited.store(inherited.base(), Release);
    }
}

/// Slot of the thread that forked, the only one here.
fn slot() -> u32 {
    (tls_get::<SLOT_MARK>() as u32).saturating_sub(1)
}

/// Called when a hook finds no segment: makes the segment of a fork child.
fn begin() {
    if tls_get::<PREPARED>() != 0 && WIPED.inherited.load(Relaxed) == 0 {
        // The page was wiped since `prepare`: this is the child, and our handler hasn't run yet.
        become_child();
    }
    let base = WIPED.inherited.load(Acquire);
    if base == 0 {
        return;
    }
    if WIPED.child.load(Relaxed) != os::getpid() as usize {
        return;
    }
    // A signal handler would find no books meanwhile.
    let before = os::block_signals();
    if WIPED.inherited.swap(0, AcqRel) == base {
        if tls_get::<PREPARED>() == base {
            tls_set::<PREPARED>(0);
        }
        // SAFETY: `become_child` wrote the word, and only this thread took it.
        make(unsafe { Inherited::at(base) });
    }
    if let Some(before) = before {
        os::unblock_signals(before);
    }
}

/// Id of the process whose memory this is: a child of vfork has another id. `None`: it books nothing.
pub fn process_id() -> Option<u32> {
    match WIPED.inherited.load(Acquire) {
        0 => Segment::published().map(|segment| segment.header().pid.load(Relaxed)),
        _ => Some(WIPED.child.load(Relaxed) as u32),
    }
}

/// Makes the child's segment.
fn make(mut inherited: Inherited) {
    let after = books::leave_after_fork();
    let base = LASTING.load(Relaxed);
    let [start_boottime_ns, start_realtime_ns] = WIPED.forked.each_ref().map(|time| time.load(Relaxed));
    let pid = WIPED.child.load(Relaxed) as u32;
    let who = Child { pid, ppid: os::getppid(), start_boottime_ns, start_realtime_ns };
    let parent = inherited.of();
    let made = segment_file::open_directory().and_then(|fd| {
        retained::prune(fd, inherited.prune_buffer());
        let child = segment_file::create_in_child(fd, inherited, who, base);
        if child.is_none() {
            segment_file::count_in(fd, parent, Counter::forks_untracked);
        }
        os::close(fd);
        child
    });
    match made {
        Some(child) => {
            seed(child, inherited, after);
            child.header().state.store(State::Running as u32, Relaxed);
            child.header().magic.store(MAGIC, Release);
            blocks::publish(child);
        }
        // SAFETY: nobody books there. The mapping that failed may have left a hole.
        None => unsafe {
            windows::replace_with_zeros(Segment::at(base));
        },
    }
    inherited.give_back();
}

fn seed(child: Segment, inherited: Inherited, after: AfterFork) {
    // SAFETY: fork wiped the page that names the published segment, and `make` publishes the child's later. A hook that
    // the fork interrupted has found its rows already.
    let books_of_child = unsafe { MayBook::unpublished(child) };
    for row in inherited.unknown_rows() {
        books_of_child.row(row).caller.store(NO_CALLER, Relaxed);
    }
    let free_slowly = FREE_SLOWLY.load(Acquire);
    if !inherited.unknown_rows().is_empty() && free_slowly != 0 {
        // SAFETY: the word is 0 or a function of this type: only `on_unknown_rows` writes it.
        unsafe { core::mem::transmute::<usize, fn()>(free_slowly)() };
    }
    child.populated(&inherited.written());
    child.set(Counter::own_segment_bytes, Segment::populated_bytes() as u64);
    child.count(Counter::vmap_lost, after.lost);
    books::resume_after_fork(child, after.in_map, child.populated_of(Section::Vmap));
    categories::reset_after_fork(child);
    own_mappings::reset_after_fork(child);
    samples::reset_after_fork(child);
    peaks::reset_after_fork(child);
    slots::reset_after_fork(child, slot());
    slots::reseed_after_fork(WIPED.child.load(Relaxed) as u32);
    sampling::PACE.0.reset();
}
