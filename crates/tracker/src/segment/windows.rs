//! How much of each section of the segment is mapped.
//!
//! Where nothing counts address space, all of the file is mapped, and its pages come as they are needed. A limit on
//! address space (RLIMIT_AS) counts a mapping whole, touched or not, and a reservation too; mlockall(2) makes all of a
//! mapping resident. Where [`os::is_tight`], each section is therefore mapped as a window, which begins small and grows
//! in place:
//!
//! ```text
//! base      + Section::offset() …                                         base + FILE_BYTES
//! ├─start──┤├Modules┄┄┄┄┄┄┄┤├Threads┄┄┄┄┄┄┤├Callers━━┄┄┄┄┤ …              ━ mapped   ┄ not mapped, and not reserved
//! ```
//!
//! The base lies far from where the kernel puts mappings of its own choice, so nobody takes the gaps, and a record
//! has one address in both forms. Nothing may be read beyond a window: code that has a record's number calls [`mapped`]
//! first.

use super::Segment;
use crate::sys::cpu;
use crate::sys::os::{self, Fd};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use plimsoll_segment::{ALL_SECTIONS, FILE_BYTES, PAGE, SECTIONS, Section};

/// Bytes of each section that are mapped.
pub type Windows = [usize; SECTIONS];

/// Sections before this one are one window, which never changes.
const FIRST: usize = Section::Categories as usize;
/// Maximum number of addresses that [`map`] tries.
const TRIES: usize = 3;
/// The least by which a window grows.
const STEP: usize = 64 << 10;

const _: () = {
    let mut i = 0;
    while i < SECTIONS {
        assert!(PAGE.is_multiple_of(ALL_SECTIONS[i].entry_bytes()), "a page has whole records");
        i += 1;
    }
};

/// Every section is mapped whole.
pub const WHOLE: Windows = {
    let (mut all, mut i) = ([0; SECTIONS], 0);
    while i < SECTIONS {
        all[i] = length(ALL_SECTIONS[i]);
        i += 1;
    }
    all
};

/// What is mapped of each section of this process's segment.
pub static MAPPED: [AtomicUsize; SECTIONS] = whole();

/// The length that a window is about to get, or has until it is cut: [`MAPPED`] where no thread changes it. The mapped
/// length is always one of the two, so a fork child can find out which.
static CHANGING: [AtomicUsize; SECTIONS] = whole();

/// [`WHOLE`], to be changed later.
const fn whole() -> [AtomicUsize; SECTIONS] {
    let mut all = [const { AtomicUsize::new(0) }; SECTIONS];
    let mut i = 0;
    while i < SECTIONS {
        all[i] = AtomicUsize::new(WHOLE[i]);
        i += 1;
    }
    all
}

/// Threads that make a section larger; [`CUTTING`]: a thread makes them smaller. The bits of [`FORKED_MASK`] count the
/// forks at which there was such a thread.
static GATE: AtomicU32 = AtomicU32::new(0);
const CUTTING: u32 = 1 << 31;
const FORKED: u32 = 1 << 22;
const FORKED_MASK: u32 = CUTTING - FORKED;
/// Thread pointer of the thread that makes a window larger; 0: no thread does.
static WIDENING: AtomicUsize = AtomicUsize::new(0);
/// Turns of a loop that waits for [`GATE`] or [`WIDENING`]: it spins, and then sleeps for a millisecond at each turn,
/// because the kernel may have preempted the other thread. After the last turn it gives up: a signal handler may be
/// waiting for its own thread.
const SPINS: usize = 1 << 10;
const SLEEPS: usize = 500;

/// Repeats an attempt until it succeeds. False: no attempt did.
fn waits_for(attempt: impl Fn() -> bool) -> bool {
    (0..SPINS + SLEEPS).any(|turn| {
        let is_done = attempt();
        match turn {
            _ if is_done => {}
            ..SPINS => core::hint::spin_loop(),
            _ => os::sleep_ms(1),
        }
        is_done
    })
}

/// Bytes of a section, in whole pages.
const fn length(s: Section) -> usize {
    s.bytes().next_multiple_of(PAGE)
}

/// How much of a section is mapped.
#[inline(always)]
pub fn mapped(s: Section) -> usize {
    MAPPED[s as usize].load(Relaxed)
}

/// The windows of this process's segment.
fn current() -> Windows {
    core::array::from_fn(|i| MAPPED[i].load(Relaxed))
}

/// Maps the file of this process's segment, which has its length: whole, or as windows of a page each.
pub fn map(fd: Fd) -> Option<Segment> {
    adopt(&WHOLE);
    if !os::is_tight() {
        // SAFETY: a fresh mapping of FILE_BYTES.
        return os::map_file(fd, 0, FILE_BYTES, os::choose_segment_address(), false)
            .map(|p| unsafe { Segment::at(p as usize) });
    }
    // The program may have a mapping there.
    (0..TRIES).find_map(|_| map_windows(fd, os::choose_segment_address()))
}

fn map_windows(fd: Fd, base: usize) -> Option<Segment> {
    // SAFETY: what lies behind the start is used as far as the windows say.
    let segment = unsafe { Segment::at(base) };
    let mut windows = WHOLE;
    windows[FIRST..].fill(PAGE);
    let (mut made, mut all) = (0, true);
    for (start, bytes) in ranges(segment, &windows) {
        all = all && os::map_file(fd, start - base, bytes, start, true).is_some();
        made += usize::from(all);
    }
    if all {
        adopt(&windows);
        return Some(segment);
    }
    // SAFETY: just mapped, and nobody knows of it.
    ranges(segment, &windows).take(made).for_each(|(start, bytes)| unsafe { os::unmap(start as *mut u8, bytes) });
    None
}

/// Maps another file in the place of this process's segment, or of what [`replace_with_zeros`] has put there: at least
/// `written` bytes of each section. False: the kernel refuses; part of the file may be mapped.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn map_again(fd: Fd, segment: Segment, written: &Windows) -> bool {
    let windows = current();
    // SAFETY: the caller's contract.
    let again = |(start, bytes)| unsafe { os::map_shared_at(fd, start, bytes, start - segment.base()) };
    let growing = Growing::begin();
    let widen = |s: Section| growing.as_ref().is_some_and(|g| g.widen(segment, s, written[s as usize], 0));
    let is_mapped = ranges(segment, &windows).all(again) && ALL_SECTIONS[FIRST..].iter().all(|s| widen(*s));
    expect_random(segment);
    is_mapped
}

/// See [`os::expect_random`]. A window keeps this advice as it grows.
pub fn expect_random(segment: Segment) {
    ranges(segment, &current()).for_each(|(start, bytes)| os::expect_random(start as *mut u8, bytes));
}

/// See [`os::no_huge_pages`]. A window keeps this advice as it grows.
pub fn no_huge_pages(segment: Segment) {
    ranges(segment, &current()).for_each(|(start, bytes)| os::no_huge_pages(start as *mut u8, bytes));
}

/// Notes what is mapped of the process's segment.
fn adopt(windows: &Windows) {
    for (i, bytes) in windows.iter().enumerate() {
        MAPPED[i].store(*bytes, Relaxed);
        CHANGING[i].store(*bytes, Relaxed);
    }
}

/// Called in a child of fork, before it uses a window. Threads that grew or cut a section don't exist here, so
/// [`MAPPED`] may be shorter than what the kernel has copied. The kernel write-protects one page after the other, and a
/// thread that stores to a protected page waits for the end of fork(). So the child has a thread's stores up to some
/// point, and none after it: if a mapping has changed, [`CHANGING`] has its length.
pub fn reset_after_fork(segment: Segment) {
    // A store would copy the page.
    let gate = GATE.load(Relaxed);
    if gate & !FORKED_MASK != 0 {
        // A signal handler may have forked inside `grow`, which continues here: its proof is void, and its drop changes
        // nothing.
        GATE.store(gate.wrapping_add(FORKED) & FORKED_MASK, Relaxed);
    }
    if WIDENING.load(Relaxed) != 0 {
        WIDENING.store(0, Relaxed);
    }
    for s in &ALL_SECTIONS[FIRST..] {
        let (have, other) = (mapped(*s), CHANGING[*s as usize].load(Relaxed));
        if other == have {
            continue;
        }
        if other > have && os::is_one_mapping(segment.base() + s.offset(), other) {
            MAPPED[*s as usize].store(other, Relaxed);
        }
        CHANGING[*s as usize].store(mapped(*s), Relaxed);
    }
}

/// The ranges of a segment that are mapped.
fn ranges(segment: Segment, windows: &Windows) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (base, windows) = (segment.base(), *windows);
    let whole = windows == WHOLE;
    let first = (base, if whole { FILE_BYTES } else { Section::Categories.offset() });
    let rest = if whole { SECTIONS } else { FIRST }..SECTIONS;
    let rest = rest.map(move |i| (base + ALL_SECTIONS[i].offset(), windows[i]));
    core::iter::once(first).chain(rest)
}

/// Unmaps this process's segment.
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn unmap(segment: Segment) {
    // SAFETY: the caller's contract.
    ranges(segment, &current()).for_each(|(start, bytes)| unsafe { os::unmap(start as *mut u8, bytes) });
}

/// Unlocks what is mapped of this process's segment. munlock(2) unlocks the mapping at the start of a section before it
/// finds that nothing is mapped behind it. So a window that another thread makes larger at this moment is unlocked
/// whole. In two parts, one of them locked, it couldn't grow any more (mremap(2), EFAULT).
pub fn unlock(segment: Segment) {
    os::unlock(segment.base(), Section::Categories.offset());
    for s in &ALL_SECTIONS[FIRST..] {
        os::unlock(segment.base() + s.offset(), length(*s));
    }
}

/// Puts private zeroed memory in the place of this process's segment. False: the kernel refuses.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn replace_with_zeros(segment: Segment) -> bool {
    // SAFETY: the caller's contract.
    ranges(segment, &current()).all(|(start, bytes)| unsafe { os::replace_with_zeros(start as *mut u8, bytes) })
}

/// Proof that no window is cut, while [`GATE`] has this count of forks.
pub struct Growing(u32);

impl Growing {
    /// `None`: another thread has been cutting windows for longer than this one waits.
    pub fn begin() -> Option<Growing> {
        let forks = core::cell::Cell::new(0);
        let enters = || {
            let n = GATE.load(Relaxed);
            forks.set(n & FORKED_MASK);
            n & CUTTING == 0 && GATE.compare_exchange_weak(n, n + 1, Acquire, Relaxed).is_ok()
        };
        waits_for(enters).then(|| Growing(forks.get()))
    }

    /// Makes the window of a section reach at least to `least`, and to `most` if possible. False: not even to `least`.
    pub fn widen(&self, segment: Segment, s: Section, least: usize, most: usize) -> bool {
        least <= mapped(s) || self.widen_now(segment, s, least, most)
    }

    #[cold]
    fn widen_now(&self, segment: Segment, s: Section, least: usize, most: usize) -> bool {
        let start = segment.base() + s.offset();
        let me = cpu::thread_pointer();
        // This is a signal handler, which has interrupted the call that it would wait for.
        if WIDENING.load(Relaxed) == me || !waits_for(|| WIDENING.compare_exchange(0, me, Acquire, Relaxed).is_ok()) {
            return false;
        }
        let have = mapped(s);
        let roomy = most.max(have + STEP).min(length(s));
        let sizes = [roomy, least.next_multiple_of(PAGE).min(length(s))];
        for bytes in sizes.into_iter().filter(|bytes| *bytes > have) {
            CHANGING[s as usize].store(bytes, Release);
            if os::widen(start, have, bytes) {
                MAPPED[s as usize].fetch_max(bytes, Release);
                break;
            }
            CHANGING[s as usize].store(mapped(s), Release);
        }
        WIDENING.store(0, Release);
        // The window may be long enough for another reason: a signal handler may have forked inside this call, and then
        // the child's window is longer than `have`.
        least <= mapped(s)
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let leave = |n: u32| (n & FORKED_MASK == self.0).then(|| n - 1);
        let _ = GATE.fetch_update(Release, Relaxed, leave);
    }
}

/// Cuts each window down to its populated part (`hook::limits::unmap_unused`).
pub fn cut(segment: Segment, populated: impl Fn(Section) -> usize) {
    let is_mine = || {
        let n = GATE.load(Relaxed);
        n & !FORKED_MASK == 0 && GATE.compare_exchange_weak(n, n | CUTTING, Acquire, Relaxed).is_ok()
    };
    if !waits_for(is_mine) {
        return;
    }
    // If a signal handler forked here, this thread would continue in the child and cut windows that have records.
    let before = os::block_signals();
    for s in &ALL_SECTIONS[FIRST..] {
        let (have, keep) = (mapped(*s), populated(*s).next_multiple_of(PAGE).clamp(PAGE, length(*s)));
        if keep < have {
            MAPPED[*s as usize].store(keep, Relaxed);
            // SAFETY: not populated, so no record lies there. Code with an index from outside calls `mapped` first.
            // Code that called it before the store above and reads after this call would fault: only a damaged key of a
            // block leads there.
            unsafe { os::unmap((segment.base() + s.offset() + keep) as *mut u8, have - keep) };
            CHANGING[*s as usize].store(keep, Release);
        }
    }
    GATE.fetch_and(!CUTTING, Release);
    if let Some(before) = before {
        os::unblock_signals(before);
    }
}
