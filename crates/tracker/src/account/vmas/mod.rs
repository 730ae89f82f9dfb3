//! The virtual memory map's writer: mmap, munmap, mprotect and mremap, booked range by range.
//!
//! The usual operation changes one entry ([`single_entry`]). Any other goes through its range from left to right. A
//! step takes the longest run that lies in one leaf and ends up with the same attributes. It replaces the run by one
//! entry, joined with a neighbour that is alike, and posts the change: O(log n) to find, one leaf to rewrite. The posts
//! always match the map, also without space: a lost step changes neither.

mod order;
mod region;
mod single_entry;
#[cfg(test)]
mod tests;
mod tree;

use plimsoll_segment::vmap::{ADDRESS_END, Attributes, LEAF_ENTRIES, MappingKind, Operation, PAGE_BITS, Vma, header};
use tree::{Leaf, Tree};

/// How the address was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The kernel chose a free range: an entry that the map still has there is stale, and replaced.
    Chosen,
    /// MAP_FIXED: commits, re-commits or uncommits where there is a reservation ([`Attributes::overlay`]).
    Fixed,
    /// As `Fixed`, but a range that has this category keeps it.
    FixedKeeping(u16),
}

/// A change of one caller's books in one category, in bytes of address space. Reserved includes committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    pub category: u16,
    pub caller: u32,
    pub kind: MappingKind,
    pub reserved: i64,
    pub committed: i64,
}

/// The total change of an operation. Equal to the sum of its deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub reserved: i64,
    pub committed: i64,
    /// Bytes of the range whose state could not be booked; the header's `lost_bytes` includes them.
    pub lost: u64,
}

/// The range and destination of an mremap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    pub old: u64,
    pub old_bytes: u64,
    pub new: u64,
    pub new_bytes: u64,
    /// MREMAP_DONTUNMAP
    pub keeps_old: bool,
}

/// The map in the region it was made in. Calls must not overlap: a lock outside is held across each.
pub struct VmaBook<G> {
    tree: Tree<G>,
}

const PAGE: u64 = 1 << PAGE_BITS;

/// Whether a page begins at `start`.
#[inline(always)]
const fn is_page(start: u64) -> bool {
    start & (PAGE - 1) == 0
}

/// Whole pages, inside the user half. An empty range stays empty.
#[inline(always)]
fn pages(start: u64, bytes: u64) -> (u64, u64) {
    let first = start.min(ADDRESS_END) & !(PAGE - 1);
    let end = (start.saturating_add(bytes).min(ADDRESS_END) + (PAGE - 1)) & !(PAGE - 1);
    (first, if bytes == 0 { first } else { end })
}

impl<G: FnMut(usize) -> bool> VmaBook<G> {
    /// An empty map. `grow(upto)` makes the first `upto` bytes safe to store to, or returns false; it is called with
    /// ascending values, before the first store to the new part. `None` if the region is too small or can't be grown at
    /// all.
    ///
    /// # Safety
    /// `base` is aligned to 8 bytes, addressable for `capacity` bytes as long as the book lives, safe to store to as
    /// far as `grow` returned true, and no one else in this process stores there.
    pub unsafe fn create(base: *mut u8, capacity: usize, grow: G) -> Option<Self> {
        // SAFETY: the same promise.
        unsafe { Tree::create(base, capacity, grow) }.map(|tree| Self { tree })
    }

    /// The map that is in the region already, e.g. copied from a fork's parent (up to its `used` bytes), of which
    /// `populated` bytes are safe to store to. `None` if there is none.
    ///
    /// # Safety
    /// As for [`VmaBook::create`].
    pub unsafe fn resume(base: *mut u8, capacity: usize, populated: usize, grow: G) -> Option<Self> {
        // SAFETY: the same promise.
        unsafe { Tree::resume(base, capacity, populated, grow) }.map(|tree| Self { tree })
    }

    /// Bytes of the region in use from its beginning: what a fork's child must copy, and the map's own cost.
    pub fn used(&self) -> u64 {
        self.tree.region.header().get(header::USED)
    }

    pub fn lost_ops(&self) -> u64 {
        self.tree.region.header().get(header::LOST_OPS)
    }

    pub fn lost_bytes(&self) -> u64 {
        self.tree.region.header().get(header::LOST_BYTES)
    }

    /// Begins new books: clears the losses of the old ones.
    pub fn forget_losses(&mut self) {
        let head = self.tree.region.header();
        self.tree.region.put(head, header::LOST_OPS, 0);
        self.tree.region.put(head, header::LOST_BYTES, 0);
    }

    /// The entry that holds `address`. A mapping can be several entries.
    pub fn lookup(&self, address: u64) -> Option<Vma> {
        let leaf = self.tree.peek(address);
        let vma = leaf.entry(leaf.at.checked_sub(1)?);
        (vma.end > address).then_some(vma)
    }

    /// Books a new mapping.
    pub fn map(
        &mut self,
        start: u64,
        bytes: u64,
        new: Attributes,
        placement: Placement,
        mut post: impl FnMut(Delta),
    ) -> Change {
        let mut diff = Change::default();
        let kept = |category| Attributes::new(new.reserve_caller(), category, new.kind(), new.prot(), new.time());
        let over = move |old: Attributes| match placement {
            Placement::Chosen => new,
            Placement::FixedKeeping(category) if old.category() == category => old.overlay(kept(category)),
            _ => old.overlay(new),
        };
        if placement != Placement::Chosen
            && is_page(start)
            && let Some((old, new, bytes)) = self.change_one(Operation::Map, start, bytes, over)
        {
            exchange(old, new, bytes, &mut post, &mut diff);
            return diff;
        }
        if is_page(start)
            && let Some(bytes) = self.map_one(start, bytes, over(Attributes::HOLE))
        {
            book(over(Attributes::HOLE), bytes as i64, &mut post, &mut diff);
            return diff;
        }
        self.begin(Operation::Map, start, bytes);
        let diff = self.apply(start, bytes, over, &mut post, &mut |_| ());
        self.end(diff)
    }

    /// Books an unmap before it happens. `removed` gets the pieces, so that [`VmaBook::restore`] can book a failed
    /// munmap back.
    pub fn unmap(
        &mut self,
        start: u64,
        bytes: u64,
        mut post: impl FnMut(Delta),
        mut removed: impl FnMut(Vma),
    ) -> Change {
        if is_page(start)
            && let Some((old, bytes)) = self.unmap_one(start, bytes)
        {
            let mut diff = Change::default();
            removed(Vma::new(start, start + bytes, old));
            book(old, -(bytes as i64), &mut post, &mut diff);
            return diff;
        }
        self.begin(Operation::Unmap, start, bytes);
        let diff = self.apply(start, bytes, |_| Attributes::HOLE, &mut post, &mut removed);
        self.end(diff)
    }

    /// Books back a piece that [`VmaBook::unmap`] removed, because it still exists.
    pub fn restore(&mut self, piece: &Vma, mut post: impl FnMut(Delta)) -> Change {
        let bytes = piece.end.saturating_sub(piece.start);
        self.begin(Operation::Restore, piece.start, bytes);
        let kept = piece.attributes();
        let diff = self.apply(piece.start, bytes, move |_| kept, &mut post, &mut |_| ());
        self.end(diff)
    }

    /// Books a change of protection: from none to some commits to `caller`'s account, from some to none uncommits.
    pub fn protect(
        &mut self,
        start: u64,
        bytes: u64,
        prot: u16,
        caller: u32,
        time: u32,
        mut post: impl FnMut(Delta),
    ) -> Change {
        let change = move |old: Attributes| if old.is_hole() { old } else { old.protect(prot, caller, time) };
        if is_page(start)
            && let Some((old, new, bytes)) = self.change_one(Operation::Protect, start, bytes, change)
        {
            let mut diff = Change::default();
            exchange(old, new, bytes, &mut post, &mut diff);
            return diff;
        }
        self.begin(Operation::Protect, start, bytes);
        let diff = self.apply(start, bytes, change, &mut post, &mut |_| ());
        self.end(diff)
    }

    /// Books a range that was enlarged or shrunk in place, moved, or (shared mappings, `old_bytes` 0) mapped once more.
    /// It keeps its attributes; added pages get the attributes of its last page. If the old range isn't in the map,
    /// neither is the new one.
    pub fn remap(&mut self, remap: Remap, mut post: impl FnMut(Delta)) -> Change {
        let Remap { old, old_bytes, new, new_bytes, keeps_old } = remap;
        let head = self.tree.region.header();
        self.tree.region.put(head, header::OP_NEW_START, new);
        self.tree.region.put(head, header::OP_NEW_BYTES, new_bytes);
        self.begin(Operation::Remap, old, old_bytes);
        let ((old, old_end), (new, new_end)) = (pages(old, old_bytes), pages(new, new_bytes));
        if old != new && old < new_end && new < old_end {
            // The kernel refuses ranges that overlap.
            return self.end(Change { lost: new_end - new, ..Change::default() });
        }
        let diff = self.carry(remap, &mut post);
        // A change in place and a move differ only in where the rest of the old range begins.
        let (rest, rest_end) = if old == new { (new_end.min(old_end), old_end) } else { (old, old_end) };
        let gone = if keeps_old || rest == rest_end {
            Change::default()
        } else {
            self.apply(rest, rest_end - rest, |_| Attributes::HOLE, &mut post, &mut |_| ())
        };
        self.end(diff + gone)
    }

    /// The first part of a remap: the attributes of the new range.
    fn carry(&mut self, remap: Remap, post: &mut impl FnMut(Delta)) -> Change {
        let (old, old_end) = pages(remap.old, remap.old_bytes);
        let (new, new_end) = pages(remap.new, remap.new_bytes);
        let moves = (old_end - old).min(new_end - new);
        let last = if old_end > old { old_end - PAGE } else { old };
        let added = self.lookup(last).map_or(Attributes::HOLE, |vma| vma.attributes());
        let mut diff = Change::default();
        if old != new {
            let (mut at, mut known) = (0, false);
            while at < moves {
                let (attributes, run) = self.run_at(old + at, old + moves);
                // Linux 6.17 moves several VMAs at once. It keeps mappings at the destination of a gap between them,
                // and refuses a gap at the beginning. So if there is a gap at the beginning, the map lacks a mapping,
                // and nothing else is known about that mapping.
                known |= !attributes.is_hole();
                if !known || !attributes.is_hole() {
                    diff = diff + self.apply(new + at, run, move |_| attributes, post, &mut |_| ());
                }
                at += run;
            }
        }
        if new_end - new > moves {
            diff = diff + self.apply(new + moves, new_end - new - moves, move |_| added, post, &mut |_| ());
        }
        diff
    }

    /// The entry or hole at `from`, and its bytes from there (not past `end`, nor past a leaf's share).
    fn run_at(&self, from: u64, end: u64) -> (Attributes, u64) {
        let leaf = self.tree.peek(from);
        let (attributes, upto) = match leaf.at.checked_sub(1).map(|at| leaf.entry(at)) {
            Some(vma) if vma.end > from => (vma.attributes(), vma.end),
            _ if leaf.at < leaf.count => (Attributes::HOLE, leaf.start(leaf.at)),
            _ => (Attributes::HOLE, leaf.high),
        };
        (attributes, upto.min(end).saturating_sub(from).max(PAGE))
    }

    #[inline(always)]
    fn begin(&mut self, operation: Operation, start: u64, bytes: u64) {
        let head = self.tree.region.header();
        self.tree.region.put(head, header::OP_KIND, operation as u64);
        self.tree.region.put(head, header::OP_START, start);
        self.tree.region.put(head, header::OP_BYTES, bytes);
        self.tree.region.count(head, header::SEQ);
    }

    #[inline(always)]
    fn end(&mut self, diff: Change) -> Change {
        let head = self.tree.region.header();
        if diff.lost != 0 {
            let (ops, bytes) = (head.get(header::LOST_OPS), head.get(header::LOST_BYTES));
            self.tree.region.put(head, header::LOST_OPS, ops.wrapping_add(1));
            self.tree.region.put(head, header::LOST_BYTES, bytes.wrapping_add(diff.lost));
        }
        self.tree.region.count(head, header::SEQ);
        diff
    }

    /// Gives each piece of the range the attributes that `change` computes from the present attributes.
    #[inline(never)]
    fn apply(
        &mut self,
        start: u64,
        bytes: u64,
        change: impl Fn(Attributes) -> Attributes + Copy,
        post: &mut impl FnMut(Delta),
        removed: &mut impl FnMut(Vma),
    ) -> Change {
        let (mut from, end) = pages(start, bytes);
        let mut diff = Change::default();
        while from < end {
            let (upto, more) = self.step(from, end, change, post, removed);
            diff = diff + more;
            from = upto;
        }
        diff
    }

    /// Changes one run, from `from` on, and returns its end.
    fn step(
        &mut self,
        from: u64,
        end: u64,
        change: impl Fn(Attributes) -> Attributes + Copy,
        post: &mut impl FnMut(Delta),
        removed: &mut impl FnMut(Vma),
    ) -> (u64, Change) {
        let mut diff = Change::default();
        let leaf = &self.tree.peek(from);
        let (count, limit) = (leaf.count, end.min(leaf.high));
        let first = leaf.at - (leaf.at > 0 && leaf.end(leaf.at - 1) > from) as usize;
        let run = Run::new(leaf, first, from, limit, change);
        let Run { new, upto, next, changed } = run;
        if upto <= from {
            // Happens only in a map that the tracked program has overwritten.
            diff.lost += end - from;
            return (end, diff);
        }
        if !changed {
            return (upto, diff);
        }

        // Neighbours that are alike join; the parts of other entries outside the run stay.
        let (mut begin, mut to) = (first, next);
        let mut whole = Vma::new(from, upto, new);
        let mut parts = [whole; 3];
        let mut n = 0;
        if first < count && leaf.start(first) < from {
            let cut = leaf.entry(first);
            if cut.attributes().alike(new) {
                whole = Vma::new(cut.start, upto, new.oldest(cut.attributes()));
            } else {
                parts[0] = Vma::new(cut.start, from, cut.attributes());
                n = 1;
            }
        } else if first > 0 {
            let before = leaf.entry(first - 1);
            if before.end == from && before.attributes().alike(new) {
                whole = Vma::new(before.start, upto, new.oldest(before.attributes()));
                begin = first - 1;
            }
        }
        let mut after = None;
        if next < count {
            let vma = leaf.entry(next);
            if vma.start <= upto {
                if vma.attributes().alike(new) {
                    whole = Vma::new(whole.start, vma.end, whole.attributes().oldest(vma.attributes()));
                    to = next + 1;
                } else if vma.start < upto {
                    after = Some(Vma::new(upto, vma.end, vma.attributes()));
                    to = next + 1;
                }
            }
        }
        if !new.is_hole() {
            parts[n] = whole;
            n += 1;
        }
        if let Some(vma) = after {
            parts[n] = vma;
            n += 1;
        }

        if !self.tree.has_room(leaf, n) {
            diff.lost += upto - from;
            return (upto, diff);
        }
        let mut at = from;
        for old in first..count {
            let vma = leaf.entry(old);
            if vma.start >= upto {
                break;
            }
            if vma.start > at {
                exchange(Attributes::HOLE, change(Attributes::HOLE), vma.start - at, post, &mut diff);
            }
            let piece = Vma::new(vma.start.max(from), vma.end.min(upto), vma.attributes());
            removed(piece);
            exchange(vma.attributes(), change(vma.attributes()), piece.bytes(), post, &mut diff);
            at = piece.end;
        }
        if at < upto {
            exchange(Attributes::HOLE, change(Attributes::HOLE), upto - at, post, &mut diff);
        }
        self.tree.splice(from, leaf, begin, to, &parts[..n]);
        (upto, diff)
    }
}

struct Run {
    new: Attributes,
    upto: u64,
    /// The first entry that the run doesn't cover to its end.
    next: usize,
    changed: bool,
}

impl Run {
    /// The longest run from `from` on, not past `limit`, whose new attributes are alike.
    fn new(leaf: &Leaf, first: usize, from: u64, limit: u64, change: impl Fn(Attributes) -> Attributes) -> Self {
        let mut run = Self { new: Attributes::HOLE, upto: from, next: first, changed: false };
        // A leaf has at most a hole before each entry and one behind the last.
        for _ in 0..=2 * LEAF_ENTRIES {
            if run.upto >= limit {
                break;
            }
            let vma = leaf.entry(run.next);
            let (old, upto, passes) = match run.next < leaf.count {
                true if vma.start <= run.upto => (vma.attributes(), vma.end, vma.end <= limit),
                true => (Attributes::HOLE, vma.start, false),
                false => (Attributes::HOLE, limit, false),
            };
            let new = change(old);
            if run.upto == from {
                run.new = new;
            } else if new.alike(run.new) {
                run.new = run.new.oldest(new);
            } else {
                break;
            }
            run.changed |= new != old;
            run.upto = upto.min(limit);
            run.next += passes as usize;
        }
        run
    }
}

/// Posts `bytes`, which can be negative, of these attributes.
#[inline(always)]
fn book(of: Attributes, bytes: i64, post: &mut impl FnMut(Delta), diff: &mut Change) {
    let (category, kind, caller) = (of.category(), of.kind(), of.reserve_caller());
    let committed = if of.committed() { bytes } else { 0 };
    let both = of.commit_caller() == caller;
    post(Delta { category, caller, kind, reserved: bytes, committed: if both { committed } else { 0 } });
    if !both && of.committed() {
        post(Delta { category, caller: of.commit_caller(), kind, reserved: 0, committed });
    }
    diff.reserved += bytes;
    diff.committed += committed;
}

/// Posts the change when `bytes` go from `old` to `new`.
#[inline(always)]
fn exchange(old: Attributes, new: Attributes, bytes: u64, post: &mut impl FnMut(Delta), diff: &mut Change) {
    let bytes = bytes as i64;
    if old.is_hole() || new.is_hole() || !old.same_reserve(new) {
        if !old.is_hole() {
            book(old, -bytes, post, diff);
        }
        if !new.is_hole() {
            book(new, bytes, post, diff);
        }
        return;
    }
    // The reservation stays where it is.
    if old.committed() && new.committed() && old.commit_caller() == new.commit_caller() {
        return;
    }
    for (of, committed) in [(old, -bytes), (new, bytes)] {
        if of.committed() {
            let (category, kind, caller) = (of.category(), of.kind(), of.commit_caller());
            post(Delta { category, caller, kind, reserved: 0, committed });
            diff.committed += committed;
        }
    }
}

impl core::ops::Add for Change {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            reserved: self.reserved + other.reserved,
            committed: self.committed + other.committed,
            lost: self.lost.saturating_add(other.lost),
        }
    }
}
