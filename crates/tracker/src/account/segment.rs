//! The mapped segment as the writer sees it: where the records lie, and growth.
//!
//! `BASE` lies in a page of its own that the kernel hands zeroed to every child of fork, whatever call made it
//! (MADV_WIPEONFORK): a child that nobody prepared finds no segment and books nothing, instead of writing into its
//! parent's file.

use crate::sys::os;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::*};
use plimsoll_segment::{
    Caller, Category, Counter, FrameNode, Header, Method, Module, OwnMapping, Row, Sample, Section, SectionEntry,
    SiteSamples, Thread,
};

#[repr(C, align(4096))]
pub struct WipedOnFork {
    base: AtomicUsize,
    /// The same, detached too.
    mapped: AtomicUsize,
    /// What the trailers of blocks are xored with ([`super::blocks`]): odd, so that none passes where this was wiped.
    pub secret: AtomicU64,
    /// Requests below this get a trailer and the short way; 0 in a process that books nothing.
    below: AtomicUsize,
    _page: [u8; 4096 - 32],
}

/// What the kernel hands zeroed to a child of fork.
pub static WIPED: WipedOnFork = WipedOnFork {
    base: AtomicUsize::new(0),
    mapped: AtomicUsize::new(0),
    secret: AtomicU64::new(0),
    below: AtomicUsize::new(0),
    _page: [0; 4096 - 32],
};
/// Offset in [`WIPED`] of the bound of the short way.
pub const BELOW_AT: usize = core::mem::offset_of!(WipedOnFork, below);
/// Offset in [`WIPED`] of the secret.
pub const SECRET_AT: usize = core::mem::offset_of!(WipedOnFork, secret);

/// Address of the segment. Not wiped, and mapped as long as the process lives: free looks there before it knows whose a
/// block is, malloc after the real one.
pub static LASTING: AtomicUsize = AtomicUsize::new(0);

/// The least by which a section grows: a page, and by a quarter of what is there.
const GROWTH: usize = 4 << 10;

/// How far each section has been populated, bytes.
static POPULATED: [AtomicUsize; plimsoll_segment::SECTIONS] =
    [const { AtomicUsize::new(0) }; plimsoll_segment::SECTIONS];

/// A mapped segment. Copy of one address; valid for the life of the process once published.
#[derive(Clone, Copy)]
pub struct Segment(usize);

impl Segment {
    /// The segment of this process; `None` before boot, in an unprepared child of fork, or when none could be made.
    #[inline(always)]
    pub fn current() -> Option<Segment> {
        let base = WIPED.base.load(Relaxed);
        if base == 0 { None } else { Some(Segment(base)) }
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
    /// `base` is such a mapping, writable, never unmapped while published.
    pub unsafe fn at(base: usize) -> Segment {
        Segment(base)
    }

    /// Makes this the segment of the process. False: the kernel can't wipe the page on fork; then nothing is published.
    pub fn publish(self) -> bool {
        if !os::wipe_on_fork(&raw const WIPED as usize, 4096) {
            return false;
        }
        LASTING.store(self.0, Release);
        super::blocks::restore_secret();
        WIPED.mapped.store(self.0, Release);
        WIPED.base.store(self.0, Release);
        WIPED.below.store(if super::image::is_image() { 0 } else { super::blocks::trailer_below() }, Release);
        true
    }

    /// Nothing is booked any more from now on (detach), or by a fork child that goes on untracked.
    pub fn withdraw() {
        WIPED.below.store(0, Release);
        WIPED.base.store(0, Release);
    }

    fn record<T>(self, section: Section, i: usize) -> &'static T {
        debug_assert!(i < section.capacity() && size_of::<T>() == section.entry_bytes());
        // An index out of range, from a block's damaged key say, names the first record: wrong, but ours.
        let i = if i < section.capacity() { i } else { 0 };
        // SAFETY: sections lie inside the mapping by construction (layout asserts), i is below the capacity, and the
        // records consist of atomics only, so shared references to memory that others write are sound.
        unsafe { &*((self.0 + section.offset() + i * section.entry_bytes()) as *const T) }
    }

    /// The header.
    #[inline(always)]
    pub fn header(self) -> &'static Header {
        // SAFETY: the mapping begins with the header, which consists of atomics only.
        unsafe { &*(self.0 as *const Header) }
    }

    /// A row.
    #[inline(always)]
    pub fn row(self, i: u32) -> &'static Row {
        let i = if (i as usize) < Section::Rows.capacity() { i } else { 0 };
        // SAFETY: as in `record`.
        unsafe { &*((self.0 + Section::Rows.offset() + i as usize * Row::BYTES) as *const Row) }
    }

    /// A row by its offset in the segment.
    ///
    /// # Safety
    /// `offset` comes from [`crate::stack::memo::row_offset`] of a row in use.
    #[inline(always)]
    pub unsafe fn row_at(self, offset: u32) -> &'static Row {
        // SAFETY: the caller's contract.
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

    /// Line of the section table.
    pub fn section(self, s: Section) -> &'static SectionEntry {
        &self.header().sections[s as usize]
    }

    /// Entries in use.
    pub fn used(self, s: Section) -> usize {
        (self.section(s).used.load(Acquire) as usize).min(s.capacity())
    }

    /// Claims one more entry, populated and zero. `None`: the section or the file system is full.
    pub fn append(self, s: Section) -> Option<u32> {
        self.append_some(s, 1)
    }

    /// Claims as many more entries: the first of them.
    pub fn append_some(self, s: Section, n: usize) -> Option<u32> {
        let used = &self.section(s).used;
        let i = used.fetch_add(n as u64, AcqRel) as usize;
        if i + n > s.capacity() {
            used.store(s.capacity() as u64, Relaxed);
            return None;
        }
        if !self.grow(s, (i + n) * s.entry_bytes()) {
            // The entries stay zero: they hold nothing. Give the indexes back if nobody came after.
            let _ = used.compare_exchange((i + n) as u64, i as u64, AcqRel, Relaxed);
            return None;
        }
        Some(i as u32)
    }

    /// Claims `bytes` more of a section of raw bytes. `None`: it or the file system is full.
    pub fn append_bytes(self, s: Section, bytes: usize) -> Option<u32> {
        let used = &self.section(s).used;
        let claim = |used: u64| {
            let end = usize::try_from(used).ok()?.checked_add(bytes)?;
            (end <= s.capacity() && self.grow(s, end)).then_some(end as u64)
        };
        used.fetch_update(AcqRel, Acquire, claim).ok().map(|at| at as u32)
    }

    /// Writes text into the names section.
    pub fn set_names(self, at: u32, text: &[u8]) {
        debug_assert!(at as usize + text.len() <= self.populated_of(Section::Names));
        let first = self.0 + Section::Names.offset() + at as usize;
        for (i, b) in text.iter().enumerate() {
            // SAFETY: the caller claimed this range of the section by `append_bytes`, which made it writable.
            unsafe { &*((first + i) as *const AtomicU8) }.store(*b, Relaxed);
        }
    }

    /// So many bytes of the names section; `None` if it has fewer.
    #[inline]
    pub fn names(self, at: usize, bytes: usize) -> Option<*const u8> {
        let is_there = at + bytes <= self.populated_of(Section::Names);
        is_there.then_some((self.0 + Section::Names.offset() + at) as *const u8)
    }

    /// Makes the first `bytes` of a section safe to write. False: it can't be had; counted.
    pub fn grow(self, s: Section, bytes: usize) -> bool {
        let done = &POPULATED[s as usize];
        let have = done.load(Acquire);
        if bytes <= have {
            return true;
        }
        let limit = (s.capacity() * s.entry_bytes()).next_multiple_of(plimsoll_segment::PAGE);
        // Small programs pay for what they use, large books don't grow in small steps.
        let upto = (bytes + have / 4).next_multiple_of(GROWTH).min(limit);
        if !os::back(self.0 + s.offset() + have, upto - have) {
            // Perhaps a page is still there to be had.
            let upto = bytes.next_multiple_of(plimsoll_segment::PAGE).min(limit);
            if !os::back(self.0 + s.offset() + have, upto - have) {
                self.count(Counter::grow_failures, 1);
                return false;
            }
            done.fetch_max(upto, AcqRel);
        } else {
            done.fetch_max(upto, AcqRel);
        }
        self.set(Counter::own_segment_bytes, Self::populated_bytes() as u64);
        true
    }

    /// Room ahead in each section that may grow, for a program that is about to forbid it: as much again as is in use, and
    /// at least 64 KiB. Java's sections have none where there is no Java.
    pub fn grow_ahead(self) {
        const LEAST: usize = 64 << 10;
        for s in plimsoll_segment::ALL_SECTIONS {
            let (used, limit) = (self.used(s) * s.entry_bytes(), s.capacity() * s.entry_bytes());
            let unused = used == 0 && matches!(s, Section::Methods | Section::Names);
            if s.offset() >= Section::Categories.offset() && !unused {
                self.grow(s, (used + used.max(LEAST)).min(limit));
            }
        }
    }

    /// Populates the pages that exist from the start; false if the file system has no room for them.
    pub fn populate_start(self) -> bool {
        os::back(self.0, Section::Categories.offset())
    }

    /// This much of each section is populated: nothing of a new one, in a fork child what its parent made ready.
    pub fn populated(self, sections: &[usize; plimsoll_segment::SECTIONS]) {
        for (p, bytes) in POPULATED.iter().zip(sections) {
            p.store(*bytes, Relaxed);
        }
    }

    /// A section as words, the last of which may reach into what lies behind it on its page.
    pub fn words(self, s: Section) -> &'static [AtomicU64] {
        let bytes = (s.capacity() * s.entry_bytes()).next_multiple_of(plimsoll_segment::PAGE);
        // SAFETY: as in `record`; sections begin on pages and have whole ones.
        unsafe { core::slice::from_raw_parts((self.0 + s.offset()) as *const AtomicU64, bytes / 8) }
    }

    /// How much of a section is safe to write.
    pub fn populated_of(self, s: Section) -> usize {
        POPULATED[s as usize].load(Relaxed).max(if s.offset() < Section::Categories.offset() {
            s.capacity()
        } else {
            0
        })
    }

    /// Bytes of the file that were populated.
    pub fn populated_bytes() -> usize {
        Section::Categories.offset() + POPULATED.iter().map(|p| p.load(Relaxed)).sum::<usize>()
    }

    /// Adds to a counter.
    pub fn count(self, c: Counter, n: u64) {
        self.header().values[c as usize].fetch_add(n, Relaxed);
    }

    /// Sets a counter.
    pub fn set(self, c: Counter, n: u64) {
        self.header().values[c as usize].store(n, Relaxed);
    }
}

/// Copies text into a NUL-padded field, cut at its end.
pub fn set_text(field: &[core::sync::atomic::AtomicU8], text: &[u8]) {
    for (i, cell) in field.iter().enumerate() {
        cell.store(if i + 1 < field.len() { text.get(i).copied().unwrap_or(0) } else { 0 }, Relaxed);
    }
}
