//! The mapped segment as the writer sees it: where the records lie, and growth.
//!
//! Its address lies in [`WIPED`], a page that the kernel zeroes in every child of fork, whatever call made the child
//! (MADV_WIPEONFORK). So a child finds no segment, instead of writing into its parent's file. A child of fork() makes
//! its own when a hook first needs one ([`Segment::current`], `hook::fork`); a child of a raw clone books nothing.

use crate::sys::os;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{
    Caller, Category, Counter, FrameNode, Header, Method, Module, OwnMapping, Record, Row, Sample, Section,
    SectionEntry, SiteSamples, Thread,
};
use windows::Growing;

pub mod books;
pub mod categories;
pub mod index;
pub mod slots;
pub mod windows;

#[repr(C, align(4096))]
pub struct WipedOnFork {
    base: AtomicUsize,
    /// As `base`, but kept after a detach.
    mapped: AtomicUsize,
    /// What the trailers of blocks are xored with (`account::blocks`): odd, so that no trailer passes where this word
    /// was wiped.
    pub secret: AtomicU64,
    /// Requests below this get a trailer and take the fast path; 0 in a process that books nothing.
    below: AtomicUsize,
    /// As `below`, over an allocator other than glibc's.
    other_below: AtomicUsize,
    /// [`PAGE_DIRECTORY`].
    pub pages: AtomicUsize,
    /// In a child of fork() that has no segment yet: what its books begin with, an `inherited::Inherited`.
    pub inherited: AtomicUsize,
    /// The process id of that child. A child of vfork has the same memory and another id.
    pub child: AtomicUsize,
    /// CLOCK_BOOTTIME and CLOCK_REALTIME of its fork, ns.
    pub forked: [AtomicU64; 2],
    _page: [u8; 4096 - 80],
}

/// A page that the kernel zeroes in a child of fork.
pub static WIPED: WipedOnFork = WipedOnFork {
    base: AtomicUsize::new(0),
    mapped: AtomicUsize::new(0),
    secret: AtomicU64::new(0),
    below: AtomicUsize::new(0),
    other_below: AtomicUsize::new(0),
    pages: AtomicUsize::new(0),
    inherited: AtomicUsize::new(0),
    child: AtomicUsize::new(0),
    forked: [const { AtomicU64::new(0) }; 2],
    _page: [0; 4096 - 80],
};
/// Offset in [`WIPED`] of the bound of the fast path.
pub const BELOW_AT: usize = core::mem::offset_of!(WipedOnFork, below);
/// Offset in [`WIPED`] of the bound of the fast path over an allocator other than glibc's.
pub const OTHER_BELOW_AT: usize = core::mem::offset_of!(WipedOnFork, other_below);
/// Offset in [`WIPED`] of the directory of the keys by page.
pub const PAGES_AT: usize = core::mem::offset_of!(WipedOnFork, pages);
/// Offset in [`WIPED`] of the secret.
pub const SECRET_AT: usize = core::mem::offset_of!(WipedOnFork, secret);

/// Address of the segment. Not wiped, and mapped as long as the process lives. The reason: free reads a row there
/// before it knows which thread booked the block, and malloc writes a row after the real call.
pub static LASTING: AtomicUsize = AtomicUsize::new(0);

/// Directory of the keys by page (`account::side_table::page_keys`), kept for a prepared fork child, which has its
/// parent's blocks. 0 over other allocators.
pub static PAGE_DIRECTORY: AtomicUsize = AtomicUsize::new(0);

/// `fn()`, called when a hook finds no segment, since a child of fork() may make one then; 0 = none.
static BEGIN: AtomicUsize = AtomicUsize::new(0);

/// Requests below this take the fast path over an allocator other than glibc's; 0 if nothing is booked.
#[inline(always)]
pub fn small_requests_below() -> usize {
    WIPED.other_below.load(Relaxed)
}

/// From now on `begin` is called when a hook finds no segment.
pub fn on_missing(begin: fn()) {
    BEGIN.store(begin as usize, Release);
}

/// The least by which a section grows: a page. Larger sections grow by a quarter, at most by [`MOST_AHEAD`].
const GROWTH: usize = 4 << 10;
/// Bytes that a section has at most beyond what was needed when it last grew. They are resident, used or not.
const MOST_AHEAD: usize = 64 << 10;

/// Whether this process is a HotSpot VM, whose sections may grow by the advice of [`os::populate_at_once`].
static IS_VM: AtomicBool = AtomicBool::new(false);

/// How far each section has been populated, bytes.
static POPULATED: [AtomicUsize; plimsoll_segment::SECTIONS] =
    [const { AtomicUsize::new(0) }; plimsoll_segment::SECTIONS];

/// A mapped segment: the token for its records. Code that has a token may load and store any of the records, from any
/// thread, since they consist of atomics. That a row has one writer is a rule of the books, not of memory safety:
/// breaking it makes sums wrong. So a row is reached through a token of [`books`] only.
#[derive(Clone, Copy)]
pub struct Segment(usize);

impl Segment {
    /// The segment of this process. A child of fork() that has no segment yet makes it now. `None` before boot, in a
    /// child of a raw clone, or when no segment could be made.
    #[inline(always)]
    pub fn current() -> Option<Segment> {
        let base = WIPED.base.load(Relaxed);
        if base == 0 { Segment::missing() } else { Some(Segment(base)) }
    }

    #[cold]
    #[inline(never)]
    fn missing() -> Option<Segment> {
        let begin = BEGIN.load(Acquire);
        if begin != 0 {
            // SAFETY: the word is 0 or a function of this type: only `on_missing` writes it.
            unsafe { core::mem::transmute::<usize, fn()>(begin)() };
        }
        Segment::published()
    }

    /// The segment of this process, if there is one already.
    #[inline(always)]
    pub fn published() -> Option<Segment> {
        let base = WIPED.base.load(Relaxed);
        (base != 0).then_some(Segment(base))
    }

    /// Whether this is still the segment of this process: not in a child of fork(), nor after a detach.
    #[inline(always)]
    pub fn is_published(self) -> bool {
        WIPED.base.load(Relaxed) == self.0
    }

    /// The segment of this process, also while nothing is booked in it because the tracker was detached.
    pub fn mapped() -> Option<Segment> {
        let base = WIPED.mapped.load(Relaxed);
        if base == 0 { None } else { Some(Segment(base)) }
    }

    /// Address of the mapping.
    #[inline(always)]
    pub fn base(self) -> usize {
        self.0
    }

    /// A segment over a fresh mapping of at least [`plimsoll_segment::FILE_BYTES`].
    ///
    /// # Safety
    /// `base` is such a mapping, writable and aligned to a page. It isn't unmapped while a copy of this, or a reference
    /// from it, is used.
    pub unsafe fn at(base: usize) -> Segment {
        Segment(base)
    }

    /// Makes this segment the process's own, with the secret of its trailers and the bounds of the fast paths. False:
    /// the kernel can't wipe the page on fork; then nothing is published.
    pub fn publish(self, secret: u64, below: usize, other_below: usize) -> bool {
        // SAFETY: a page that is WIPED alone; zeroes say that there is no segment.
        if !unsafe { os::wipe_on_fork(&raw const WIPED as usize, 4096) } {
            return false;
        }
        LASTING.store(self.0, Release);
        WIPED.secret.store(secret, Relaxed);
        WIPED.pages.store(PAGE_DIRECTORY.load(Acquire), Relaxed);
        WIPED.mapped.store(self.0, Release);
        WIPED.base.store(self.0, Release);
        Segment::set_fast_paths(below, other_below);
        true
    }

    /// Sets the bounds of the fast paths.
    pub fn set_fast_paths(below: usize, other_below: usize) {
        WIPED.below.store(below, Release);
        WIPED.other_below.store(other_below, Release);
    }

    /// From now on nothing is booked: after a detach, or in a fork child that continues untracked.
    pub fn withdraw() {
        WIPED.below.store(0, Release);
        WIPED.other_below.store(0, Release);
        WIPED.base.store(0, Release);
    }

    /// Path of the executable, from the command section.
    pub fn executable(self) -> &'static [u8] {
        let used = self.used(Section::Command);
        // SAFETY: written at boot or copied in a fork child, before the segment is published.
        let text = unsafe { core::slice::from_raw_parts((self.base() + Section::Command.offset()) as *const u8, used) };
        plimsoll_segment::text(text)
    }

    fn record<T: Record>(self, section: Section, i: usize) -> &'static T {
        debug_assert!(i < section.capacity() && size_of::<T>() == section.entry_bytes());
        // An index out of range, or beyond the window, names the first record: the wrong one, but inside the segment.
        let at = i * section.entry_bytes();
        let at = if at < windows::mapped(section) { at } else { 0 };
        // SAFETY: what is mapped of a section is whole pages, pages are whole records (`windows`), and a `Record` is
        // atomics only, so shared references to memory that others write are sound.
        unsafe { &*((self.0 + section.offset() + at) as *const T) }
    }

    /// The header.
    #[inline(always)]
    pub fn header(self) -> &'static Header {
        // SAFETY: the mapping begins with the header, which consists of atomics only (layout.rs).
        unsafe { &*(self.0 as *const Header) }
    }

    /// A row, for the tokens of [`books`] only. Every number names a row: a damaged key names a wrong row, but one
    /// inside the segment.
    #[inline(always)]
    fn row(self, i: u32) -> &'static Row {
        let at = i as usize * Row::BYTES;
        let at = if at < windows::mapped(Section::Rows) { at } else { 0 };
        // SAFETY: as in `record`.
        unsafe { &*((self.0 + Section::Rows.offset() + at) as *const Row) }
    }

    /// A row by its offset in the segment.
    ///
    /// # Safety
    /// `offset` comes from [`row_offset`] of a row below the capacity.
    #[inline(always)]
    unsafe fn row_at(self, offset: u32) -> &'static Row {
        // SAFETY: the caller's contract; as in `record`.
        unsafe { &*((self.0 + offset as usize) as *const Row) }
    }

    /// A caller.
    pub fn caller(self, i: u32) -> &'static Caller {
        self.record(Section::Callers, i as usize)
    }

    /// A category.
    pub fn category(self, i: u16) -> &'static Category {
        self.record(Section::Categories, i as usize)
    }

    /// A thread slot.
    pub fn thread(self, i: u32) -> &'static Thread {
        self.record(Section::Threads, i as usize)
    }

    /// A module.
    pub fn module(self, i: u32) -> &'static Module {
        self.record(Section::Modules, i as usize)
    }

    /// A frame of sites' stacks.
    pub fn frame(self, i: u32) -> &'static FrameNode {
        self.record(Section::Frames, (i as usize).min(Section::Frames.capacity() - 1))
    }

    /// A Java method.
    pub fn method(self, i: u32) -> &'static Method {
        self.record(Section::Methods, i as usize)
    }

    /// A live sample.
    pub fn sample(self, i: u32) -> &'static Sample {
        self.record(Section::Samples, i as usize)
    }

    /// A site's estimates.
    pub fn site_samples(self, i: u32) -> &'static SiteSamples {
        self.record(Section::SiteSamples, i as usize)
    }

    /// A private mapping of the tracker.
    pub fn own_mapping(self, i: u32) -> &'static OwnMapping {
        self.record(Section::Own, i as usize)
    }

    /// An entry of the section table.
    pub fn section(self, s: Section) -> &'static SectionEntry {
        &self.header().sections[s as usize]
    }

    /// Entries in use.
    pub fn used(self, s: Section) -> usize {
        (self.section(s).used.load(Acquire) as usize).min(s.capacity()).min(windows::mapped(s) / s.entry_bytes())
    }

    /// Claims one more entry, populated and zero. `None`: the section or the file system is full.
    pub fn append(self, s: Section) -> Option<u32> {
        self.append_some(s, 1)
    }

    /// Claims `n` more entries; returns the first of them.
    pub fn append_some(self, s: Section, n: usize) -> Option<u32> {
        let used = &self.section(s).used;
        // Grown first: other threads read what is in use, and on a full file system reading a page that isn't
        // populated would be a SIGBUS.
        let claim = |used: u64| {
            let end = usize::try_from(used).ok()?.checked_add(n)?;
            (end <= s.capacity() && self.grow(s, end * s.entry_bytes())).then_some(end as u64)
        };
        used.fetch_update(AcqRel, Acquire, claim).ok().map(|first| first as u32)
    }

    /// Claims `bytes` more of a section of raw bytes. `None`: the section or the file system is full.
    pub fn append_bytes(self, s: Section, bytes: usize) -> Option<u32> {
        let used = &self.section(s).used;
        let claim = |used: u64| {
            let end = usize::try_from(used).ok()?.checked_add(bytes)?;
            (end <= s.bytes() && self.grow(s, end)).then_some(end as u64)
        };
        used.fetch_update(AcqRel, Acquire, claim).ok().map(|at| at as u32)
    }

    /// Writes text into the names section.
    pub fn set_names(self, at: u32, text: &[u8]) {
        debug_assert!(at as usize + text.len() <= self.populated_of(Section::Names).0);
        // SAFETY: what is populated is mapped, and bytes of it are only ever touched as atomics or read as words.
        let names = unsafe {
            let first = (self.0 + Section::Names.offset()) as *const AtomicU8;
            core::slice::from_raw_parts(first, self.populated_of(Section::Names).0)
        };
        for (to, b) in names.iter().skip(at as usize).zip(text) {
            to.store(*b, Relaxed);
        }
    }

    /// Address of `bytes` bytes of the names section; `None` if the section doesn't have them.
    #[inline]
    pub fn names(self, at: usize, bytes: usize) -> Option<*const u8> {
        let is_there = at + bytes <= self.populated_of(Section::Names).0;
        is_there.then_some((self.0 + Section::Names.offset() + at) as *const u8)
    }

    /// Makes the first `bytes` of a section safe to write. False: that is impossible; the failure is counted.
    pub fn grow(self, s: Section, bytes: usize) -> bool {
        let done = &POPULATED[s as usize];
        let have = done.load(Acquire);
        if bytes <= have {
            return true;
        }
        let limit = s.bytes().next_multiple_of(plimsoll_segment::PAGE);
        let Some(growing) = Growing::begin() else {
            self.count(Counter::grow_failures, 1);
            return false;
        };
        // A quarter at a time: small programs pay little, and large books grow seldom. If that much is refused, one
        // page may be granted.
        let ahead = (have / 4).min(MOST_AHEAD);
        let steps = [(bytes + ahead).next_multiple_of(GROWTH), bytes.next_multiple_of(plimsoll_segment::PAGE)];
        let at_once = IS_VM.load(Relaxed);
        let make = |upto: usize| {
            let (from, more) = (self.0 + s.offset() + have, upto - have);
            growing.widen(self, s, upto, upto)
                && (at_once && os::populate_at_once(from, more) || os::make_writable(from, more))
        };
        let Some(upto) = steps.into_iter().map(|upto| upto.min(limit)).find(|upto| make(*upto)) else {
            self.count(Counter::grow_failures, 1);
            return false;
        };
        done.fetch_max(upto, AcqRel);
        drop(growing);
        self.set(Counter::own_segment_bytes, Self::populated_bytes() as u64);
        true
    }

    /// Populates what the books of every HotSpot VM need as it starts, by one call for each section. From here on,
    /// [`Segment::grow`] makes one call as well; otherwise it needs one call for every two pages.
    pub fn grow_for_vm(self) {
        IS_VM.store(true, Relaxed);
        self.grow_at_once(Section::Callers, 176 << 10);
        self.grow_at_once(Section::Rows, 88 << 10);
    }

    /// Grows a section by one call. Where that is impossible, nothing changes: [`Segment::grow`] does it in steps.
    fn grow_at_once(self, s: Section, bytes: usize) {
        let done = &POPULATED[s as usize];
        let have = done.load(Acquire);
        let Some(growing) = Growing::begin().filter(|_| bytes > have) else { return };
        if growing.widen(self, s, bytes, bytes) && os::populate_at_once(self.0 + s.offset() + have, bytes - have) {
            done.fetch_max(bytes, AcqRel);
            drop(growing);
            self.set(Counter::own_segment_bytes, Self::populated_bytes() as u64);
        }
    }

    /// Grows each section ahead of need, for a program that is about to forbid the calls: by as much again as is in
    /// use, and by at least 64 KiB. Java's sections don't grow in a process without Java.
    pub fn grow_ahead(self) {
        const LEAST: usize = 64 << 10;
        for s in plimsoll_segment::ALL_SECTIONS {
            let (used, limit) = (self.used(s) * s.entry_bytes(), s.bytes());
            let unused = used == 0 && matches!(s, Section::Methods | Section::Names);
            if s.offset() >= Section::Categories.offset() && !unused {
                self.grow(s, (used + used.max(LEAST)).min(limit));
            }
        }
    }

    /// Populates the pages that exist from the start; false if the file system is full.
    pub fn populate_start(self) -> bool {
        os::make_writable(self.0, Section::Categories.offset())
    }

    /// Notes how much of each section is populated: nothing in a new segment; in a fork child, the bytes that were
    /// written. A fork child of a VM isn't a VM, and may enter a sandbox that kills it for a call of madvise(2).
    pub fn populated(self, sections: &[usize; plimsoll_segment::SECTIONS]) {
        IS_VM.store(false, Relaxed);
        for (p, bytes) in POPULATED.iter().zip(sections) {
            p.store(*bytes, Relaxed);
        }
    }

    /// Unmaps the part of each section that isn't populated.
    pub fn cut(self) {
        windows::cut(self, |s| self.populated_of(s).0);
    }

    /// The mapped part of a section, as words. The last word may reach into what lies behind the section on its page.
    pub fn words(self, s: Section) -> &'static [AtomicU64] {
        // SAFETY: as in `record`; sections begin on pages and have whole ones. For records with halves of a word, see
        // the header in `inherited::fill`.
        unsafe { core::slice::from_raw_parts((self.0 + s.offset()) as *const AtomicU64, windows::mapped(s) / 8) }
    }

    /// How much of a section is safe to write. The sections before the categories exist whole from the start.
    pub fn populated_of(self, s: Section) -> SectionBytes {
        let is_whole = s.offset() < Section::Categories.offset();
        SectionBytes(POPULATED[s as usize].load(Relaxed).max(if is_whole { s.bytes() } else { 0 }))
    }

    /// Bytes of the file that were populated.
    pub fn populated_bytes() -> usize {
        Section::Categories.offset() + POPULATED.iter().map(|p| p.load(Relaxed)).sum::<usize>()
    }

    /// Adds to a counter.
    pub fn count(self, c: Counter, n: u64) {
        self.header().values[c as usize].fetch_add(n, Relaxed);
    }

    /// Raises a counter to `n`, if it is lower.
    pub fn raise(self, c: Counter, n: u64) {
        let cell = &self.header().values[c as usize];
        // All threads read this line; few write it.
        if cell.load(Relaxed) < n {
            cell.fetch_max(n, Relaxed);
        }
    }

    /// Sets a counter.
    pub fn set(self, c: Counter, n: u64) {
        self.header().values[c as usize].store(n, Relaxed);
    }
}

/// A length from a section's beginning, in bytes. (A section's capacity is in entries.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionBytes(pub usize);

/// Offset in the segment of a row.
pub const fn row_offset(row: u32) -> u32 {
    (Section::Rows.offset() + row as usize * Row::BYTES) as u32
}
const _: () = assert!(Section::Rows.offset() + Section::Rows.bytes() < u32::MAX as usize);

/// Copies text into a NUL-padded field, cut at its end.
pub fn set_text(field: &[core::sync::atomic::AtomicU8], text: &[u8]) {
    for (i, cell) in field.iter().enumerate() {
        cell.store(if i + 1 < field.len() { text.get(i).copied().unwrap_or(0) } else { 0 }, Relaxed);
    }
}
