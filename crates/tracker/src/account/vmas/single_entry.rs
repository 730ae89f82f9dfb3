//! The usual operation: its range lies in one leaf, in a hole or inside one entry. One search finds the place and one
//! entry changes; anything else is `None`, before the first store, and goes step by step ([`super`]). A range begins
//! with a page, as every range does for which the kernel's call succeeded.
//!
//! ```text
//! map      hole ─────────────▶ a new entry │ a neighbour that is alike grows
//! unmap    [────gone────]      free        │ [──gone──┊──] or [──┊──gone──]: a bound moves
//! change   [───changed──]      in place    │ [changed─┊──]: a new entry before it, then its start moves
//!                                          │ [──┊─changed]: likewise with the old attributes, then in place
//! ```
//! A new entry lies before the entry that it was cut from. While both overlap, a reader believes the lower one
//! (crates/segment/src/vmap.rs), so each page has its old or its new attributes after every store.

use super::tree::{Event, Leaf, happened};
use super::{PAGE, VmaBook, is_page};
use plimsoll_segment::vmap::{Attributes, LEAF_ENTRIES, Operation, Vma, header};

/// How a range fits at a position of a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The range is free, and gets an entry of its own.
    Free,
    /// The range is free, and a neighbour is alike: it may grow instead.
    Beside,
    /// An entry lies there, or the range belongs at another position, or the leaf is full.
    Other,
}

impl<G: FnMut(usize) -> bool> VmaBook<G> {
    /// The end of the range's last page. `None`: there is no page.
    #[inline(always)]
    fn end_of(start: u64, bytes: u64) -> Option<u64> {
        debug_assert!(is_page(start));
        // An overflow ends at or below the start.
        let end = start.wrapping_add(bytes).wrapping_add(PAGE - 1) & !(PAGE - 1);
        (start < end).then_some(end)
    }

    /// The leaf whose share holds the whole range and the entry that holds it. The range isn't empty.
    #[inline(always)]
    fn entry_of(&mut self, start: u64, end: u64) -> Option<(Leaf, [u64; 2])> {
        if let Some(found) = self.tree.entry_at_finger(start, end) {
            return Some(found);
        }
        let mut leaf = self.tree.find(start, end)?;
        leaf.at = leaf.at.checked_sub(1)?;
        let [from, to] = [leaf.start(leaf.at), leaf.end(leaf.at)];
        (end <= to).then_some((leaf, [from, to]))
    }

    /// How a range fits at this position of a leaf whose share holds it.
    #[inline(always)]
    fn fit(leaf: &Leaf, start: u64, end: u64, new: Attributes) -> Fit {
        let at = leaf.at;
        // Behind the last entry is a free one, whose start is NOWHERE.
        let next = leaf.start(at);
        if leaf.count == LEAF_ENTRIES || next < end {
            return Fit::Other;
        }
        if next == end && leaf.attributes(at).alike(new) {
            return Fit::Beside;
        }
        if at == 0 {
            return Fit::Free;
        }
        let before = leaf.end(at - 1);
        if before > start {
            return Fit::Other;
        }
        if before == start && leaf.attributes(at - 1).alike(new) {
            return Fit::Beside;
        }
        Fit::Free
    }

    /// Maps a hole. Returns the bytes.
    #[inline(always)]
    pub(crate) fn map_one(&mut self, start: u64, bytes: u64, new: Attributes) -> Option<u64> {
        let end = Self::end_of(start, bytes)?;
        let mut found = self.tree.at_finger(start, end);
        let mut fit = match &found {
            Some(leaf) => Self::fit(leaf, start, end, new),
            None => Fit::Other,
        };
        if fit == Fit::Other {
            found = self.tree.find(start, end);
            fit = match &found {
                Some(leaf) => Self::fit(leaf, start, end, new),
                None => return None,
            };
        }
        let leaf = found?;
        if fit != Fit::Free || new.is_hole() {
            return if fit == Fit::Beside { self.join(start, end, new) } else { None };
        }
        happened(Event::OneMapped);
        self.begin(Operation::Map, start, bytes);
        self.tree.insert(&leaf, leaf.at, &Vma::new(start, end, new));
        self.done(leaf.at);
        Some(end - start)
    }

    /// Maps a hole beside an entry that is alike.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn join(&mut self, start: u64, end: u64, new: Attributes) -> Option<u64> {
        let leaf = self.tree.find(start, end)?;
        let at = leaf.at;
        if leaf.start(at) < end || (at > 0 && leaf.end(at - 1) > start) {
            return None;
        }
        let before = at > 0 && leaf.ends_alike(at - 1, start, new);
        let after = leaf.start(at) == end && leaf.attributes(at).alike(new);
        let older = |at: usize| leaf.attributes(at).time() <= new.time();
        match (before, after) {
            (true, false) if older(at - 1) => {
                self.begin(Operation::Map, start, end - start);
                self.tree.set_end(&leaf, at - 1, end);
            }
            (false, true) if older(at) => {
                self.begin(Operation::Map, start, end - start);
                self.tree.set_start(&leaf, at, start);
            }
            _ => return None,
        }
        happened(Event::OneJoined);
        self.done(at);
        Some(end - start)
    }

    /// Unmaps an entry, or one end of it. Returns what was there, and the bytes.
    #[inline(always)]
    pub(crate) fn unmap_one(&mut self, start: u64, bytes: u64) -> Option<(Attributes, u64)> {
        let end = Self::end_of(start, bytes)?;
        let (leaf, [from, to]) = self.entry_of(start, end)?;
        let at = leaf.at;
        let old = leaf.attributes(at);
        let (low, high) = (from < start, end < to);
        if (low && high) || (!low && !high && !leaf.can_lose_one()) {
            return None;
        }
        self.begin(Operation::Unmap, start, bytes);
        if low {
            happened(Event::OneCut);
            self.tree.set_end(&leaf, at, start);
        } else if high {
            happened(Event::OneCut);
            self.tree.set_start(&leaf, at, end);
        } else {
            happened(Event::OneUnmapped);
            self.tree.remove(&leaf, at);
        }
        self.done(at);
        Some((old, end - start))
    }

    /// Gives an entry, or one end of it, the attributes that `change` computes from the old ones. Returns the old and
    /// the new attributes, and the bytes. Applies only if the reservation keeps its owner; [`Attributes::protect`]
    /// never changes the owner.
    #[inline(always)]
    pub(crate) fn change_one(
        &mut self,
        operation: Operation,
        start: u64,
        bytes: u64,
        change: impl FnOnce(Attributes) -> Attributes,
    ) -> Option<(Attributes, Attributes, u64)> {
        let end = Self::end_of(start, bytes)?;
        let (leaf, [from, to]) = self.entry_of(start, end)?;
        let at = leaf.at;
        let old = leaf.attributes(at);
        let new = change(old);
        if new == old {
            self.begin(operation, start, bytes);
            self.done(at);
            return Some((old, new, end - start));
        }
        // With equal flags, only the time differs: entries join by rules of their own.
        let is_other = new.alike(old) || !old.same_reserve(new);
        let in_place = Leaf::changes_in_place(old, new);
        // Where `operation` is a constant `Protect`, these are constants too, and the attributes needn't be compared.
        debug_assert!(operation != Operation::Protect || (!is_other && in_place));
        let (is_other, in_place) = match operation {
            Operation::Protect => (false, true),
            _ => (is_other, in_place),
        };
        if is_other {
            return None;
        }
        let is_full = leaf.count == LEAF_ENTRIES;
        let older = |at: usize| leaf.attributes(at).time() <= new.time();
        // Where a neighbour grows, its bound is stored first: entries may overlap for a moment, but never leave a hole.
        if from == start {
            if at > 0 && leaf.ends_alike(at - 1, start, new) {
                if end == to || !older(at - 1) {
                    return None;
                }
                happened(Event::OneGrew);
                self.begin(operation, start, bytes);
                self.tree.set_end(&leaf, at - 1, end);
                self.tree.set_start(&leaf, at, end);
            } else if end == to {
                if !in_place || leaf.starts_alike(at + 1, end, new) {
                    return None;
                }
                happened(Event::OneChanged);
                self.begin(operation, start, bytes);
                self.tree.set_attributes(&leaf, at, old, new);
            } else {
                if is_full {
                    return None;
                }
                happened(Event::OneChangedLow);
                self.begin(operation, start, bytes);
                self.tree.insert(&leaf, at, &Vma::new(start, end, new));
                self.tree.set_start(&leaf, at, end);
            }
        } else if end == to {
            if leaf.starts_alike(at + 1, end, new) {
                if !older(at + 1) {
                    return None;
                }
                happened(Event::OneGrew);
                self.begin(operation, start, bytes);
                self.tree.set_start(&leaf, at + 1, start);
                self.tree.set_end(&leaf, at, start);
            } else {
                if is_full || !in_place {
                    return None;
                }
                happened(Event::OneChangedHigh);
                self.begin(operation, start, bytes);
                self.tree.insert(&leaf, at, &Vma::new(from, start, old));
                self.tree.set_start(&leaf, at, start);
                self.tree.set_attributes(&leaf, at, old, new);
            }
        } else {
            return None;
        }
        self.done(at);
        Some((old, new, end - start))
    }

    /// Ends an operation that lost nothing, at this position of the leaf.
    #[inline(always)]
    fn done(&mut self, at: usize) {
        self.tree.put_finger(at);
        let head = self.tree.region.header();
        self.tree.region.count(head, header::SEQ);
    }
}
