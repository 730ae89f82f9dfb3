//! The start of a fork child's books: a copy of the used parts of its parent's segment, in private memory.
//!
//! ```text
//! layout │ header │ used part of each section, one after the other │ space for later entries of the parent │
//! work space of `retained::prune`
//! ```
//! It is packed, because a fork touches each of its pages.
//!
//! The parent takes it before fork() ([`Inherited::take`]), so that the child has it by copy on write whatever the
//! parent does next. The child writes it into a file of its own when it first books ([`Inherited::write`]).
//!
//! # Other threads
//!
//! Other threads continue during the copy. Figures are copied in a reader's order (segment/src/lib.rs), so the freed
//! figures never exceed the allocated ones. What another thread books between the copy and fork() is in the child's
//! memory but not in its books. What it books during the copy may be in one sum and not in another. So the child's
//! books differ from the state at fork() by at most the operations that other threads made between the handler and
//! fork(). For the thread that forks, they don't differ.
//!
//! But every number in the child's memory needs an entry in the child's segment. Keys of blocks name rows, and the
//! tables that find callers, frames, methods and categories are private memory. So before the child unmaps the parent's
//! segment, it reads once which entries were added since ([`Inherited::follow`]). Entries of these sections never
//! change once they are complete. A row added since has no caller in the child: its blocks are unknown there.

use super::retained::PruneBuffer;
use crate::segment::Segment;
use crate::segment::windows;
use crate::sys::os;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::{
    ALL_SECTIONS, Caller, Category, HEADER_BYTES, Header, PAGE, Row, SECTIONS, Section, SiteSamples, State, Thread,
};

/// The child's identity, for its header.
#[derive(Clone, Copy, Default)]
pub struct Child {
    /// The child's process id.
    pub pid: u32,
    /// Its parent.
    pub ppid: u32,
    /// CLOCK_BOOTTIME just after fork(), ns: by it an observer distinguishes processes with this id.
    pub start_boottime_ns: u64,
    /// CLOCK_REALTIME at that moment, ns.
    pub start_realtime_ns: u64,
}

/// Where the parts of the copy lie.
#[repr(C)]
struct CopyLayout {
    /// Bytes of the mapping; the end of the copy so far, and its largest end.
    bytes: usize,
    end: usize,
    most: usize,
    sections: [CopiedSection; SECTIONS],
    /// The parent's rows when the child read them; rows beyond the copied part have no caller here.
    rows: usize,
}

/// The copy of a section: the part in use before the fork, and the entries that were added until the child read it.
#[derive(Clone, Copy)]
struct CopiedSection {
    at: usize,
    used: usize,
    added_at: usize,
    added: usize,
}

const HEADER_AT: usize = size_of::<CopyLayout>();
const _: () = assert!(HEADER_AT.is_multiple_of(8));
/// Zeroed bytes behind each section, so that the child's first steps need no growth.
const SPARE: usize = 1024;
/// How many of the last entries are read again. They may have been claimed but incomplete when they were copied: one
/// entry for each other thread that was adding one.
const RECENT: usize = 64;
/// The same for the frames of stacks, which a thread claims as one chain (`stack::frames`).
const RECENT_FRAMES: usize = RECENT * 64;
/// Space for entries that are added during the copy, and for rows that are added between the two reads of them.
const ADDED_BYTES: usize = 64 << 10;
const ADDED_ROWS: usize = 128;

/// The copy. One address; private to the process that took it, and to each fork child.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inherited(usize);

impl Inherited {
    /// Takes the copy. The caller holds the map's lock if possible. `None`: no memory.
    pub fn take(parent: Segment) -> Option<Inherited> {
        // Another thread may claim entries meanwhile. If they don't fit, the copy is repeated with more space.
        (0..4).find_map(|tries| {
            let own = Inherited::reserve(parent, (ADDED_BYTES + ADDED_ROWS * Row::BYTES) << (4 * tries))?;
            if own.fill(parent, ADDED_ROWS << (4 * tries)) {
                return Some(own);
            }
            own.give_back();
            None
        })
    }

    /// # Safety
    /// `base` is the address of a copy that is still mapped.
    pub unsafe fn at(base: usize) -> Inherited {
        Inherited(base)
    }

    /// The address of the copy.
    pub fn base(self) -> usize {
        self.0
    }

    fn reserve(parent: Segment, more: usize) -> Option<Inherited> {
        let used = ALL_SECTIONS.iter().map(|s| (parent.used(*s) * s.entry_bytes()).next_multiple_of(8)).sum::<usize>();
        let end = HEADER_AT + size_of::<Header>().next_multiple_of(8);
        let most = end + used + used / 8 + more;
        let bytes = most + size_of::<PruneBuffer>();
        // A fault for each page would cost more than the copy.
        let base = os::map_private(bytes, end + used + ADDED_ROWS * Row::BYTES)? as usize;
        let layout = CopyLayout {
            bytes,
            end,
            most,
            sections: [CopiedSection { at: end, used: 0, added_at: end, added: 0 }; SECTIONS],
            rows: 0,
        };
        // SAFETY: a fresh mapping, aligned to a page, larger than the layout.
        unsafe { (base as *mut CopyLayout).write(layout) };
        Some(Inherited(base))
    }

    fn layout(&self) -> &CopyLayout {
        // SAFETY: `reserve` wrote the layout. It is changed through `layout_mut` alone, in functions of this file that
        // keep no reference.
        unsafe { &*(self.0 as *const CopyLayout) }
    }

    fn layout_mut(&mut self) -> &mut CopyLayout {
        // SAFETY: as in `layout`. One thread has the copy at a time: the forking thread, then the thread that takes the
        // word of the wiped page.
        unsafe { &mut *(self.0 as *mut CopyLayout) }
    }

    fn section(&self, s: Section) -> &CopiedSection {
        &self.layout().sections[s as usize]
    }

    /// Work space of [`retained::prune`](super::retained::prune).
    pub fn prune_buffer(&mut self) -> &mut PruneBuffer {
        let at = self.0 + (self.layout().most & !7);
        // SAFETY: inside the mapping, behind everything that `claim` returns, 8-byte aligned, used for nothing else.
        // Any bytes are a valid value of the type.
        unsafe { &mut *(at as *mut PruneBuffer) }
    }

    /// Unmaps the copy.
    pub fn give_back(self) {
        let bytes = self.layout().bytes;
        // SAFETY: our own mapping; the caller has its only handle, and no handle is used afterwards.
        unsafe { os::unmap(self.0 as *mut u8, bytes) };
    }

    fn header(&self) -> &Header {
        // SAFETY: bytes of the mapping for the header, which consists of atomics only.
        unsafe { &*((self.0 + HEADER_AT) as *const Header) }
    }

    /// Words of the copy.
    fn words(&self, at: usize, bytes: usize) -> &[AtomicU64] {
        debug_assert!(at.is_multiple_of(8) && at + bytes <= self.layout().bytes);
        // SAFETY: inside the mapping, and aligned.
        unsafe { core::slice::from_raw_parts((self.0 + at) as *const AtomicU64, bytes.div_ceil(8)) }
    }

    /// Claims `bytes` bytes. `None`: no space is left.
    fn claim(&mut self, bytes: usize) -> Option<usize> {
        let f = self.layout_mut();
        let at = f.end;
        let end = at.checked_add(bytes.next_multiple_of(8)).filter(|end| *end <= f.most)?;
        f.end = end;
        Some(at)
    }

    /// Copies a section's bytes `from..to` to `at`. Copies only those words of each entry that the mask `of` selects.
    fn copy(&self, parent: Segment, s: Section, at: usize, range: (usize, usize), of: u64) {
        self.copy_by(parent, s, at, range, of, |ours, word| ours.store(word, Relaxed));
    }

    /// As [`Inherited::copy`], in the child: a page of the copy that has no other word already stays shared with the
    /// parent.
    fn renew(&self, parent: Segment, s: Section, at: usize, range: (usize, usize), of: u64) {
        self.copy_by(parent, s, at, range, of, |ours, word| {
            if ours.load(Relaxed) != word {
                ours.store(word, Relaxed);
            }
        });
    }

    fn copy_by(
        &self,
        parent: Segment,
        s: Section,
        at: usize,
        (from, to): (usize, usize),
        of: u64,
        put: impl Fn(&AtomicU64, u64),
    ) {
        let ours = self.words(at, to - from);
        let Some(theirs) = parent.words(s).get(from / 8..to.div_ceil(8)) else { return };
        if of == ALL_WORDS {
            ours.iter().zip(theirs).for_each(|(ours, theirs)| put(ours, theirs.load(Relaxed)));
            return;
        }
        let entry = s.entry_bytes() / 8;
        for (ours, theirs) in ours.chunks(entry).zip(theirs.chunks(entry)) {
            let mut left = of;
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                left &= left - 1;
                if let (Some(ours), Some(theirs)) = (ours.get(i), theirs.get(i)) {
                    put(ours, theirs.load(Relaxed));
                }
            }
        }
    }

    /// Order: the map first, while no thread writes it; freed before allocated; referring entries before the entries
    /// that they name. False: other threads claimed more entries than there is space for.
    fn fill(mut self, parent: Segment, added_rows: usize) -> bool {
        let steps = [
            (Section::Vmap, ALL_WORDS),
            (Section::Rows, ROW_FREED),
            (Section::SiteSamples, SITE_FREED),
            (Section::Rows, !ROW_FREED),
            (Section::Samples, ALL_WORDS),
            (Section::Callers, ALL_WORDS),
            (Section::SiteSamples, !SITE_FREED),
            (Section::Frames, ALL_WORDS),
            (Section::Methods, ALL_WORDS),
            (Section::Names, ALL_WORDS),
            (Section::Threads, ALL_WORDS),
            (Section::Modules, ALL_WORDS),
            (Section::Categories, ALL_WORDS),
            (Section::Schema, ALL_WORDS),
            (Section::Command, ALL_WORDS),
        ];
        for (s, of) in steps {
            let more = if s == Section::Rows { added_rows } else { 0 };
            if self.section(s).used == 0 {
                let used = parent.used(s);
                let Some(at) = self.claim((used + more) * s.entry_bytes()) else { return false };
                self.layout_mut().sections[s as usize] = CopiedSection { at, used, added_at: at, added: 0 };
            } else if s == Section::Rows {
                // A block of a row added since may have been freed through an old row. Nothing was freed through the
                // new row yet.
                let used = parent.used(s);
                if used > self.section(s).used + more {
                    return false;
                }
                self.layout_mut().sections[s as usize].used = used;
            }
            let CopiedSection { at, used, .. } = *self.section(s);
            self.copy(parent, s, at, (0, used * s.entry_bytes()), of);
        }
        self.layout_mut().rows = self.section(Section::Rows).used;
        // SAFETY: the parent's segment begins with a header, which consists of atomics. Some of these atomics are
        // halves of a word. Rust doesn't define loads of one size beside stores of another. But on x86-64 and aarch64
        // an aligned load sees each half as it was before or after a store.
        let theirs = unsafe { core::slice::from_raw_parts(parent.base() as *const AtomicU64, size_of::<Header>() / 8) };
        for (ours, theirs) in self.words(HEADER_AT, size_of::<Header>()).iter().zip(theirs) {
            ours.store(theirs.load(Relaxed), Relaxed);
        }
        true
    }

    /// In the child, while the parent's segment is still mapped: reads the entries added since and the numbers in use.
    /// `slot`: the slot of the forking thread. If nothing was added, nothing is written, so the page stays shared with
    /// the parent.
    pub fn follow(&mut self, parent: Segment, slot: u32) {
        let CopiedSection { at, used: known, .. } = *self.section(Section::Threads);
        let is_other = |(i, t): (usize, &[AtomicU64])| i != slot as usize && t[0].load(Relaxed) >> 32 == IN_USE;
        let mut threads = self.words(at, known * Thread::BYTES).chunks(Thread::BYTES / 8).enumerate().skip(1);
        let is_alone = !threads.any(is_other) && parent.used(Section::Threads) == known;
        let (recent, recent_frames) = if is_alone { (0, 0) } else { (RECENT, RECENT_FRAMES) };
        let rows = parent.used(Section::Rows);
        if rows > self.layout().rows {
            self.layout_mut().rows = rows;
        }
        // Referring entries before the entries that they name.
        let steps = [
            (Section::Samples, 0, 0),
            (Section::Callers, recent, CALLER_IDENTITY),
            (Section::SiteSamples, 0, SITE_IDENTITY),
            (Section::Frames, recent_frames, ALL_WORDS),
            (Section::Methods, recent, ALL_WORDS),
            (Section::Names, recent * 64, ALL_WORDS),
            (Section::Threads, 0, THREAD_IDENTITY),
            (Section::Modules, recent, ALL_WORDS),
            (Section::Categories, recent, CATEGORY_IDENTITY),
        ];
        for (s, recent, of) in steps {
            let (CopiedSection { at, used, .. }, now, entry) = (*self.section(s), parent.used(s), s.entry_bytes());
            // Sections of bytes: copied from a word boundary on.
            let from = (used - recent.min(used)) * entry / 8 * 8;
            if recent > 0 {
                self.renew(parent, s, at + from, (from, used * entry), of);
            }
            if now > used {
                let first = used * entry / 8 * 8;
                // The parent may have enlarged its window since; the child's mapping still has the old end.
                let is_mapped = now * entry <= windows::mapped(s);
                let added_at = if is_mapped { self.claim(now * entry - first) } else { None };
                if let Some(added_at) = added_at {
                    self.copy(parent, s, added_at, (first, now * entry), of);
                }
                let section = &mut self.layout_mut().sections[s as usize];
                section.added = now - used;
                // Without space, their numbers stay in use and the entries are empty.
                section.added_at = added_at.unwrap_or(0);
            }
        }
    }

    /// Writes the child's file, still without its magic: `write(offset, bytes, zeros)` writes bytes, then that many
    /// zeros.
    pub fn write(self, child: Child, mut write: impl FnMut(usize, &[u8], usize) -> bool) -> bool {
        self.finish_header(child);
        let of = |at: usize, bytes: usize| {
            // SAFETY: inside the mapping, which nobody changes after `finish_header`.
            unsafe { core::slice::from_raw_parts((self.0 + at) as *const u8, bytes) }
        };
        let header = write(0, of(HEADER_AT, size_of::<Header>()), HEADER_BYTES - size_of::<Header>());
        header
            && ALL_SECTIONS.into_iter().all(|s| {
                let (CopiedSection { at, used, added_at, added }, entry) = (*self.section(s), s.entry_bytes());
                let (end, written) = (used * entry, self.written_of(s));
                if added == 0 || added_at == 0 {
                    return written == 0 || write(s.offset(), of(at, end), written - end);
                }
                let (first, bytes) = (end / 8 * 8, (used + added) * entry);
                write(s.offset(), of(at, end), 0)
                    && write(s.offset() + first, of(added_at, bytes - first), written - bytes)
            })
    }

    fn used_of(&self, s: Section) -> usize {
        let section = self.section(s);
        match s {
            Section::Rows => self.layout().rows,
            // The child lists its own mappings.
            Section::Own => 0,
            _ => section.used + section.added,
        }
    }

    /// Id and start of the process whose segment was copied: its file's name.
    pub fn of(&self) -> (u32, u64) {
        let h = self.header();
        (h.pid.load(Relaxed), h.start_boottime_ns.load(Relaxed))
    }

    /// Rows that have no caller in the child.
    pub fn unknown_rows(&self) -> core::ops::Range<u32> {
        self.section(Section::Rows).used as u32..self.layout().rows as u32
    }

    /// Bytes of each section that are written: the used part only.
    pub fn written(&self) -> [usize; SECTIONS] {
        ALL_SECTIONS.map(|s| if s.offset() < Section::Categories.offset() { 0 } else { self.written_of(s) })
    }

    fn written_of(&self, s: Section) -> usize {
        let bytes = self.used_of(s) * s.entry_bytes();
        let most = (s.capacity() * s.entry_bytes()).next_multiple_of(PAGE);
        match s {
            Section::Own => PAGE,
            // These sections are written whole at every start.
            Section::Schema | Section::Command => most,
            _ if bytes == 0 => 0,
            _ => (bytes + SPARE).next_multiple_of(PAGE).min(most),
        }
    }

    fn finish_header(&self, child: Child) {
        let h = self.header();
        h.magic.store(0, Relaxed);
        h.state.store(State::Booting as u32, Relaxed);
        h.pid.store(child.pid, Relaxed);
        h.ppid.store(child.ppid, Relaxed);
        h.start_boottime_ns.store(child.start_boottime_ns, Relaxed);
        h.start_realtime_ns.store(child.start_realtime_ns, Relaxed);
        h.end_boottime_ns.store(0, Relaxed);
        h.composition.store(2, Relaxed);
        h.peak_reserved_bytes.store(h.reserved_bytes.load(Relaxed), Relaxed);
        h.peak_committed_bytes.store(h.committed_bytes.load(Relaxed), Relaxed);
        for s in ALL_SECTIONS {
            h.sections[s as usize].used.store(self.used_of(s) as u64, Relaxed);
        }
    }
}

/// A mask has one bit for each word of an entry. This mask selects all words.
const ALL_WORDS: u64 = u64::MAX;
/// Words that identify an entry, in sections whose entries also have figures: the program's memory refers to such
/// entries.
const CALLER_IDENTITY: u64 = !words([
    offset_of!(Caller, live_bytes),
    offset_of!(Caller, live_count),
    offset_of!(Caller, peak_bytes),
    offset_of!(Caller, count_at_peak),
]);
const SITE_IDENTITY: u64 = words([offset_of!(SiteSamples, site)]);
const THREAD_IDENTITY: u64 = !words([offset_of!(Thread, table_inserts), offset_of!(Thread, table_removes)]);
const CATEGORY_IDENTITY: u64 = (1 << (offset_of!(Category, live_bytes) / 8)) - 1;
/// The upper half of a thread slot's first word.
const IN_USE: u64 = 1;
const _: () = assert!(offset_of!(Thread, tid) == 0 && offset_of!(Thread, state) == 4);

/// `caller` of a row without one; its `slot` is 0.
pub const NO_CALLER: u32 = u32::MAX;

const fn words<const N: usize>(offsets: [usize; N]) -> u64 {
    let (mut mask, mut i) = (0, 0);
    while i < N {
        mask |= 1 << (offsets[i] / 8);
        i += 1;
    }
    mask
}

/// Words that count what was freed: they are copied before those that count what was allocated.
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
