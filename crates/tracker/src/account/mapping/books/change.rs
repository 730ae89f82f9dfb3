//! What the holder does to the map and its totals, one function for each kind of operation.

use super::holder::Held;
use super::{BOOK, Book, FORKED, MOVED_ATTRIBUTES, Operation, QUEUE_SLOTS, WRITING, grow, region};
use crate::account::mapping::attachments;
use crate::account::vmas::{Change, Delta, Placement, Remap};
use crate::segment::{SectionBytes, Segment};
use core::sync::atomic::{AtomicU64, Ordering::*};
use plimsoll_segment::vmap::{Attributes, Vma};
use plimsoll_segment::{Counter, Section};

impl Held {
    /// The map.
    pub(in crate::account::mapping) fn map(&mut self) -> Option<&mut Book> {
        // SAFETY: the lock is held, and the borrow ends with `self`'s.
        unsafe { &mut *BOOK.0.get() }.as_mut()
    }

    /// Reads the writer's state beside the map from the map.
    pub(super) fn reread(&mut self) {
        self.segment.count(Counter::faults, 1);
        WRITING.store(false, Relaxed);
        let SectionBytes(populated) = self.segment.populated_of(Section::Vmap);
        // SAFETY: the lock is held, no frame is in the map, and the region is the segment's.
        unsafe { *BOOK.0.get() = Book::resume(region(self.segment), Section::Vmap.bytes(), populated, grow) };
    }

    /// Books an operation of any kind. Code that knows the kind calls its function directly.
    #[inline(always)]
    pub(in crate::account::mapping) fn book(&mut self, op: Operation) {
        match op {
            Operation::Nothing => {}
            Operation::Map { start, bytes, attributes, placement: Placement::Chosen } => {
                self.book_map(start, bytes, attributes)
            }
            Operation::Map { start, bytes, attributes, placement } => {
                self.book_fixed(start, bytes, attributes, placement)
            }
            Operation::Unmap { start, bytes } => self.book_unmap(start, bytes),
            Operation::UnmapEntry { start } => {
                if let Some(vma) = self.map().and_then(|b| b.lookup(start as u64)) {
                    let end = vma.end as usize;
                    let is_readable = vma.attributes().prot() & 1 != 0;
                    let end = if is_readable { attachments::end_of_detached(start..end) } else { end };
                    self.book_unmap(start, end - start);
                }
            }
            Operation::Protect { start, bytes, prot, caller, failed } => {
                self.book_protect(start, bytes, prot, caller, failed)
            }
            Operation::Remap { remap } => self.book_remap(remap),
            Operation::MoveFrom { start, bytes, to } => self.book_move_from(start, bytes, to),
            // Booked from the queue only, where its ticket is known.
            Operation::MoveTo { .. } => self.segment.count(Counter::vmap_lost, 1),
        }
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    pub(super) fn book_map(&mut self, start: usize, bytes: usize, attributes: Attributes) {
        let segment = self.segment;
        self.change(|b| b.map(start as u64, bytes as u64, attributes, Placement::Chosen, move |d| post(segment, d)));
    }

    #[inline(never)]
    pub(super) fn book_fixed(&mut self, start: usize, bytes: usize, attributes: Attributes, placement: Placement) {
        let segment = self.segment;
        self.change(|b| b.map(start as u64, bytes as u64, attributes, placement, move |d| post(segment, d)));
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    pub(super) fn book_unmap(&mut self, start: usize, bytes: usize) {
        let segment = self.segment;
        self.change(|b| b.unmap(start as u64, bytes as u64, move |d| post(segment, d), |_| ()));
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    pub(super) fn book_protect(&mut self, start: usize, bytes: usize, prot: u16, caller: u32, failed: bool) {
        let segment = self.segment;
        let bytes = if failed { self.protected_bytes(start, bytes, prot) } else { bytes };
        if bytes == 0 {
            return;
        }
        self.change(|b| b.protect(start as u64, bytes as u64, prot, caller, time(segment), move |d| post(segment, d)));
    }

    #[cold]
    #[inline(never)]
    fn book_remap(&mut self, remap: Remap) {
        let segment = self.segment;
        self.change(|b| b.remap(remap, move |d| post(segment, d)));
    }

    /// Books the first half of a move. The second half gets the attributes of the range's last page, as growth by
    /// mremap does.
    #[cold]
    #[inline(never)]
    fn book_move_from(&mut self, start: usize, bytes: usize, to: u64) {
        let last = (start + bytes.saturating_sub(1)) as u64;
        let vma = self.map().and_then(|b| b.lookup(last));
        let [.., a, b] = vma.map_or([0; 4], |vma| vma.words());
        let at = to as usize % QUEUE_SLOTS * 2;
        MOVED_ATTRIBUTES[at].store(a, Relaxed);
        MOVED_ATTRIBUTES[at + 1].store(b, Relaxed);
        self.book_unmap(start, bytes);
    }

    pub(super) fn book_move_to(&mut self, ticket: u64, start: usize, bytes: usize) {
        let at = ticket as usize % QUEUE_SLOTS * 2;
        let words = [0, 0, MOVED_ATTRIBUTES[at].swap(0, Relaxed), MOVED_ATTRIBUTES[at + 1].swap(0, Relaxed)];
        let attributes = Vma::from_words(words).attributes();
        // Where the old range isn't in the map, the new one isn't either.
        if !attributes.is_hole() {
            self.book_map(start, bytes, attributes);
        }
    }

    /// Changes the map, and the header's totals with it.
    #[inline(always)]
    fn change(&mut self, change: impl FnOnce(&mut Book) -> Change) {
        let segment = self.segment;
        debug_assert!(!WRITING.load(Relaxed), "two writers of the books of mappings");
        WRITING.store(true, Relaxed);
        let Some(b) = self.map() else {
            WRITING.store(false, Relaxed);
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
        self.end_write();
    }

    /// Ends a change of the map.
    #[inline(always)]
    pub(super) fn end_write(&mut self) {
        WRITING.store(false, Relaxed);
        if FORKED.load(Relaxed) {
            self.continue_in_child();
        }
    }
}

#[inline(always)]
pub(super) fn raise(cell: &AtomicU64, peak: &AtomicU64, by: i64) {
    let v = cell.load(Relaxed).wrapping_add_signed(by);
    cell.store(v, Relaxed);
    if v as i64 > peak.load(Relaxed) as i64 {
        peak.store(v, Relaxed);
    }
}

/// Applies a change of the map to a category's figures.
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

/// Milliseconds since the start, as entries have them.
pub(crate) fn time(segment: Segment) -> u32 {
    (crate::sys::clock::now_ns().wrapping_sub(segment.header().start_boottime_ns.load(Relaxed)) / 1_000_000) as u32
}
