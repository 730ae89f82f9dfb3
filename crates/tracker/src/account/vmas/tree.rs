//! The B+tree under the map: blocks, shares, splits and joins. Format and the order of stores: `segment::vmap`.

use super::order::{places, with_one_less, with_one_more};
use super::region::{Block, Region, entry_word};
use plimsoll_segment::vmap::{
    ADDRESS_END, Attributes, BLOCK, EMPTY_ORDER, LEAF_ENTRIES, LEAF_TAG, MAGIC, MAX_CAPACITY, MAX_HEIGHT, NO_SLOT,
    NODE_SLOTS, NOWHERE, PAGE_BITS, SLOT_BLOCK_BITS, Vma, entry_number, header,
};

/// A leaf that falls below this is joined with a sibling if both fit into `LEAF_JOINED`.
const LEAF_LOW: usize = 4;
const LEAF_JOINED: usize = 10;
const NODE_LOW: usize = 16;
const NODE_JOINED: usize = 48;

/// Blocks reserved for replacing and joining (one for each level, returned in the same update); a split never takes
/// them.
const SPARE: usize = MAX_HEIGHT + 2;
/// Bytes requested at first: most programs have few mappings.
const FIRST: usize = 8 << 10;
/// Bytes requested at a time.
const GROW_STEP: usize = 16 << 10;
const _: () = assert!((2 + SPARE) * BLOCK <= FIRST && GROW_STEP.is_multiple_of(FIRST));

/// The leaf whose share holds an address.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) block: Block,
    order: u64,
    pub(super) count: usize,
    /// How many of its entries start at the address or below.
    pub(super) at: usize,
    /// The end of its share.
    pub(super) high: u64,
}

impl Leaf {
    #[inline(always)]
    pub(super) fn entry(&self, at: usize) -> Vma {
        self.block.entry(self.order, at)
    }

    #[inline(always)]
    pub(super) fn start(&self, at: usize) -> u64 {
        self.block.get(entry_word(self.order, at))
    }

    #[inline(always)]
    pub(super) fn end(&self, at: usize) -> u64 {
        self.block.get(entry_word(self.order, at) + 1)
    }

    #[inline(always)]
    pub(super) fn attributes(&self, at: usize) -> Attributes {
        let word = entry_word(self.order, at);
        Attributes { callers: self.block.get(word + 2), rest: self.block.get(word + 3) }
    }

    /// Whether the entry at `at` ends at `end`, with attributes that are alike.
    #[inline(always)]
    pub(super) fn ends_alike(&self, at: usize, end: u64, attributes: Attributes) -> bool {
        self.end(at) == end && self.attributes(at).alike(attributes)
    }

    /// Whether there is an entry at `at` that starts at `start`, with attributes that are alike.
    #[inline(always)]
    pub(super) fn starts_alike(&self, at: usize, start: u64, attributes: Attributes) -> bool {
        at < self.count && self.start(at) == start && self.attributes(at).alike(attributes)
    }

    /// Whether single-word stores suffice to change an entry's attributes ([`Tree::set_attributes`]).
    #[inline(always)]
    pub(super) fn changes_in_place(old: Attributes, new: Attributes) -> bool {
        let one = old.callers == new.callers || old.rest == new.rest;
        one || (old.reserve_caller() == new.reserve_caller() && !(old.committed() && new.committed()))
    }

    /// Whether the leaf keeps enough entries if it loses one.
    #[inline(always)]
    pub(super) fn can_lose_one(&self) -> bool {
        self.count > LEAF_LOW
    }
}

/// The way from the root to a leaf: the nodes' numbers, the slot in each, and the leaf's number.
#[derive(Clone, Copy)]
struct TreePath {
    node: [u64; MAX_HEIGHT],
    slot: [usize; MAX_HEIGHT],
    height: usize,
    leaf: u64,
}

/// The slots that replace a run of slots, and their number: two after a split.
type Slots = ([u64; 2], usize);

pub(super) struct Tree<G> {
    pub(super) region: Region,
    grow: G,
    /// Start of the entry that was inserted last: shows whether mappings ascend or descend at a split.
    last_start: u64,
    /// The leaf that was found last, and addresses that are in its share: operations come in clusters.
    hint: Hint,
}

#[derive(Clone, Copy)]
struct Hint {
    low: u64,
    high: u64,
    block: Block,
    /// Where an entry of the leaf changed last: at most the number of its entries, and below 15.
    at: usize,
}

#[inline(always)]
fn slot(start: u64, block: u64) -> u64 {
    start >> PAGE_BITS << SLOT_BLOCK_BITS | block
}

const SLOT_BLOCK: u64 = (1 << SLOT_BLOCK_BITS) - 1;

impl<G: FnMut(usize) -> bool> Tree<G> {
    /// # Safety
    /// As for [`Region::new`], with `capacity` for the most bytes that `grow` has to make safe.
    pub(super) unsafe fn create(base: *mut u8, capacity: usize, mut grow: G) -> Option<Self> {
        let capacity = capacity.min(MAX_CAPACITY) / BLOCK * BLOCK;
        let populated = FIRST.min(capacity);
        if capacity < (2 + SPARE) * BLOCK || !grow(populated) {
            return None;
        }
        // SAFETY: the caller's promise; `capacity` is not above what was promised.
        let mut region = unsafe { Region::new(base, capacity) };
        let head = region.header();
        for at in 0..=header::OP_NEW_BYTES {
            region.put(head, at, 0);
        }
        region.put(head, header::CAPACITY, capacity as u64);
        region.put(head, header::USED, BLOCK as u64);
        region.put(head, header::POPULATED, populated as u64);
        let hint = Hint { low: 0, high: 0, block: head, at: 0 };
        let mut tree = Self { region, grow, last_start: 0, hint };
        let leaf = tree.fill_leaf(&[]);
        tree.set_root(0, leaf);
        tree.region.publish(head, header::MAGIC, MAGIC);
        Some(tree)
    }

    /// # Safety
    /// As for [`Tree::create`].
    pub(super) unsafe fn resume(base: *mut u8, capacity: usize, populated: usize, grow: G) -> Option<Self> {
        let capacity = capacity.min(MAX_CAPACITY) / BLOCK * BLOCK;
        if capacity < (2 + SPARE) * BLOCK || populated < BLOCK {
            return None;
        }
        // SAFETY: the caller's promise.
        let mut region = unsafe { Region::new(base, capacity) };
        let head = region.header();
        let used = head.get(header::USED) as usize;
        if head.get(header::MAGIC) != MAGIC || used > populated.min(capacity) {
            return None;
        }
        region.put(head, header::CAPACITY, capacity as u64);
        region.put(head, header::POPULATED, populated.min(capacity) as u64);
        region.put(head, header::SEQ, head.get(header::SEQ).wrapping_add(1) & !1);
        let hint = Hint { low: 0, high: 0, block: head, at: 0 };
        let mut tree = Self { region, grow, last_start: 0, hint };
        tree.repair();
        Some(tree)
    }

    /// Repairs leaves whose update was interrupted: a free entry may have a start, and two entries may overlap. A
    /// reader can interpret such entries (crates/segment/src/vmap.rs), but [`Block::entries_from`] relies on their
    /// absence. Nodes are never updated in place.
    fn repair(&mut self) {
        let mut at = 0;
        while at < ADDRESS_END {
            let Hint { high, block, .. } = self.search(at);
            let order = block.get(0);
            let count = (order & 15) as usize;
            let mut before = 0;
            for place in 0..count {
                let vma = block.entry(order, place);
                if vma.start < before && before < vma.end {
                    self.region.put(block, 4 * entry_number(order, place), before);
                }
                before = vma.end;
            }
            for place in count..LEAF_ENTRIES {
                self.region.put(block, 4 * entry_number(order, place), NOWHERE);
            }
            if high <= at {
                // The program has overwritten the header.
                return;
            }
            at = high;
        }
    }

    /// As [`Tree::find`], without a search: the leaf that was found last, at the place where an entry changed last. The
    /// range may belong at another place. `None`: the range isn't in the leaf's share.
    #[inline(always)]
    pub(super) fn at_finger(&self, start: u64, end: u64) -> Option<Leaf> {
        let Hint { low, high, block, at } = self.hint;
        let order = block.get(0);
        let count = (order & 15) as usize;
        (start >= low && end <= high).then_some(Leaf { block, order, count, at, high })
    }

    /// The leaf that was found last and the bounds of the entry that changed last, if that entry holds the whole range.
    /// The range isn't empty, so the entry isn't a free one, whose start is above all addresses. The leaf is in the
    /// tree, since `high` is 0 while no leaf is known.
    #[inline(always)]
    pub(super) fn entry_at_finger(&self, start: u64, end: u64) -> Option<(Leaf, [u64; 2])> {
        let Hint { high, block, at, .. } = self.hint;
        let order = block.get(0);
        let leaf = Leaf { block, order, count: (order & 15) as usize, at, high };
        let [from, to] = [leaf.start(at), leaf.end(at)];
        (from <= start && end <= to && end <= high).then_some((leaf, [from, to]))
    }

    #[inline(always)]
    pub(super) fn put_finger(&mut self, at: usize) {
        self.hint.at = at;
    }

    /// The leaf whose share holds all of a range that isn't empty.
    #[inline(always)]
    pub(super) fn find(&mut self, start: u64, end: u64) -> Option<Leaf> {
        if start < self.hint.low || end > self.hint.high {
            self.hint = self.search(start);
            if end > self.hint.high {
                return None;
            }
        }
        Some(self.leaf(self.hint, start))
    }

    #[inline(always)]
    fn leaf(&self, Hint { block, high, .. }: Hint, address: u64) -> Leaf {
        let order = block.get(0);
        let count = (order & 15) as usize;
        let at = block.entries_from(order, address).min(count);
        Leaf { block, order, count, at, high }
    }

    /// The leaf whose share holds an address. Leaves the hint alone.
    pub(super) fn peek(&self, address: u64) -> Leaf {
        self.leaf(self.search(address), address)
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn search(&self, address: u64) -> Hint {
        let root = self.region.header().get(header::ROOT);
        let key = slot(address, SLOT_BLOCK);
        let mut block = self.region.block(root as u32 as u64);
        let (mut low, mut high) = (0, NO_SLOT);
        for _ in 0..(root >> 32).min(MAX_HEIGHT as u64) {
            let word = block.slot_word(key);
            // The first slot's key is meaningless; the address itself is a valid bound.
            low = if word > 1 { block.get(word) } else { key };
            high = high.min(block.get(word + 1));
            block = self.region.block(block.get(word) & SLOT_BLOCK);
        }
        let start = |slot: u64| slot >> SLOT_BLOCK_BITS << PAGE_BITS;
        Hint { low: start(low), high: start(high), block, at: 0 }
    }

    fn path(&self, address: u64) -> TreePath {
        let root = self.region.header().get(header::ROOT);
        let height = ((root >> 32) as usize).min(MAX_HEIGHT);
        let mut path = TreePath { node: [0; MAX_HEIGHT], slot: [0; MAX_HEIGHT], height, leaf: root as u32 as u64 };
        for level in 0..height {
            let node = self.region.block(path.leaf);
            let word = node.slot_word(slot(address, SLOT_BLOCK)).min(node.slots());
            path.node[level] = path.leaf;
            path.slot[level] = word - 1;
            path.leaf = node.get(word) & SLOT_BLOCK;
        }
        path
    }

    /// Whether the leaf can take `added` entries: yes, unless that needs another block and none is left. Called before
    /// [`Tree::splice`].
    #[inline(always)]
    pub(super) fn has_room(&mut self, leaf: &Leaf, added: usize) -> bool {
        leaf.count + added <= LEAF_ENTRIES || self.has_room_to_split()
    }

    #[cold]
    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn has_room_to_split(&mut self) -> bool {
        let head = self.region.header();
        let height = (head.get(header::ROOT) >> 32) as usize;
        let need = SPARE + 2 * (height + 1) + 1;
        let (free, used) = (head.get(header::FREE_COUNT) as usize, head.get(header::USED) as usize);
        let populated = head.get(header::POPULATED) as usize;
        let capacity = self.region.capacity();
        let wanted = used.saturating_add(need.saturating_sub(free) * BLOCK);
        if height >= MAX_HEIGHT || wanted > capacity {
            return false;
        }
        if wanted > populated {
            let upto = wanted.next_multiple_of(GROW_STEP).min(capacity);
            if !(self.grow)(upto) {
                return false;
            }
            self.region.put(head, header::POPULATED, upto as u64);
        }
        true
    }

    /// An unlinked block. There is always one (`SPARE`), unless the tracked program has overwritten the header: then
    /// the result is the header's block, and the map is lost.
    fn take(&mut self) -> u64 {
        let head = self.region.header();
        let free = head.get(header::FREE_COUNT);
        if free != 0 {
            // The count first: an interruption in between leaves a block that isn't counted, not a count without a
            // block.
            let number = head.get(header::FREE_HEAD);
            self.region.put(head, header::FREE_COUNT, free - 1);
            self.region.publish(head, header::FREE_HEAD, self.region.block(number).get(2));
            return number;
        }
        let used = head.get(header::USED);
        if used.saturating_add(BLOCK as u64) > head.get(header::POPULATED) {
            return 0;
        }
        self.region.put(head, header::USED, used + BLOCK as u64);
        used / BLOCK as u64
    }

    fn give_back(&mut self, number: u64) {
        let head = self.region.header();
        let (first, free) = (head.get(header::FREE_HEAD), head.get(header::FREE_COUNT));
        self.region.put(self.region.block(number), 2, first);
        self.region.publish(head, header::FREE_HEAD, number);
        self.region.put(head, header::FREE_COUNT, free.wrapping_add(1));
    }

    /// Moves the start of one entry, by one store.
    #[inline(always)]
    pub(super) fn set_start(&mut self, leaf: &Leaf, at: usize, start: u64) {
        self.region.publish(leaf.block, entry_word(leaf.order, at), start);
    }

    #[inline(always)]
    pub(super) fn set_end(&mut self, leaf: &Leaf, at: usize, end: u64) {
        self.region.publish(leaf.block, entry_word(leaf.order, at) + 1, end);
    }

    /// Changes an entry's attributes in place, which [`Leaf::changes_in_place`] permits. The committer is meaningless
    /// while the range is only reserved, so that word is stored before a commit and after an uncommit.
    #[inline(always)]
    pub(super) fn set_attributes(&mut self, leaf: &Leaf, at: usize, old: Attributes, new: Attributes) {
        let word = entry_word(leaf.order, at);
        if old.committed() {
            self.region.publish(leaf.block, word + 3, new.rest);
            self.region.publish(leaf.block, word + 2, new.callers);
        } else {
            self.region.publish(leaf.block, word + 2, new.callers);
            self.region.publish(leaf.block, word + 3, new.rest);
        }
    }

    /// A free entry becomes `vma`, in the order's place `at`. The leaf isn't full.
    #[inline(always)]
    pub(super) fn insert(&mut self, leaf: &Leaf, at: usize, vma: &Vma) {
        let (number, order) = with_one_more(leaf.order, at, leaf.count);
        self.region.put_entry(leaf.block, number as usize, vma);
        self.region.publish(leaf.block, 0, order);
        self.last_start = vma.start;
    }

    /// The entry at `at` becomes a free one: the reverse of [`Tree::insert`].
    #[inline(always)]
    pub(super) fn remove(&mut self, leaf: &Leaf, at: usize) {
        let (number, order) = with_one_less(leaf.order, at, leaf.count);
        self.region.publish(leaf.block, 0, order);
        self.region.put(leaf.block, 4 * number as usize, NOWHERE);
    }

    /// Entries `from..to` of the leaf that holds `address` become `new`. One store makes the change valid.
    #[inline(always)]
    pub(super) fn splice(&mut self, address: u64, leaf: &Leaf, from: usize, to: usize, new: &[Vma]) {
        let Leaf { block, order, count, .. } = *leaf;
        let left = (count + new.len()).saturating_sub(to - from);
        self.hint.at = 0;
        if count + new.len() > LEAF_ENTRIES || (left < LEAF_LOW && left < count) {
            return self.rebuild(address, *leaf, from, to, new);
        }
        let order = order >> 4;
        let fresh = order >> (4 * count) & places(new.len());
        let removed = order >> (4 * from) & places(to - from);
        let tail = order >> (4 * to) & places(count - to);
        let behind = order & !places(count + new.len());
        let order = order & places(from)
            | fresh << (4 * from)
            | tail << (4 * (from + new.len()))
            | removed << (4 * left)
            | behind;
        for (n, vma) in new.iter().enumerate() {
            self.region.put_entry(block, (fresh >> (4 * n) & 15) as usize, vma);
        }
        self.region.publish(block, 0, order << 4 | left as u64);
        for n in 0..to.saturating_sub(from) {
            self.region.put(block, 4 * (removed >> (4 * n) & 15) as usize, NOWHERE);
        }
        if let Some(vma) = new.last() {
            self.last_start = vma.start;
        }
    }

    /// [`Tree::splice`] where the leaf has no free entries for the new ones, or hardly any entries.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = ".text.hot")]
    fn rebuild(&mut self, address: u64, leaf: Leaf, from: usize, to: usize, new: &[Vma]) {
        self.hint.high = 0;
        let path = self.path(address);
        let (mut all, mut n) = ([EMPTY; LEAF_ENTRIES + 3], 0);
        gather((0..from).map(|at| leaf.entry(at)), &mut all, &mut n);
        let cut_at = n;
        gather(new.iter().copied(), &mut all, &mut n);
        gather((to..leaf.count).map(|at| leaf.entry(at)), &mut all, &mut n);
        if n > LEAF_ENTRIES {
            self.split_leaf(&path, &all[..n], cut_at);
        } else if n >= LEAF_LOW || path.height == 0 || !self.join_leaf(&path, &all[..n]) {
            let fresh = self.fill_leaf(&all[..n]);
            self.relink(&path, path.height, fresh);
        }
        self.give_back(path.leaf);
        if let Some(vma) = new.last() {
            self.last_start = vma.start;
        }
    }

    /// The block under the path at `depth` is replaced by another of the same share.
    fn relink(&mut self, path: &TreePath, depth: usize, block: u64) {
        match depth.checked_sub(1) {
            None => self.set_root(path.height, block),
            Some(level) => {
                let node = self.region.block(path.node[level]);
                let share = self.key(path.node[level], path.slot[level]);
                self.region.publish(node, 1 + path.slot[level], share | block);
            }
        }
    }

    /// Where the share of a node's slot begins, as the upper bits of a slot.
    fn key(&self, node: u64, at: usize) -> u64 {
        self.region.block(node).get(1 + at) & !SLOT_BLOCK
    }

    fn set_root(&mut self, height: usize, block: u64) {
        self.region.publish(self.region.header(), header::ROOT, (height as u64) << 32 | block);
    }

    fn fill_leaf(&mut self, entries: &[Vma]) -> u64 {
        let number = self.take();
        let leaf = self.region.block(number);
        self.region.put(leaf, 1, LEAF_TAG);
        for at in 0..LEAF_ENTRIES {
            match entries.get(at) {
                Some(vma) => self.region.put_entry(leaf, 1 + at, vma),
                None => self.region.put(leaf, 4 * (1 + at), NOWHERE),
            }
        }
        self.region.put(leaf, 0, EMPTY_ORDER | entries.len() as u64);
        number
    }

    /// Where to cut `all`: in the middle, or, where mappings come in sequence, beside the new entry. Then the leaf that
    /// gets no more entries is left full. (mmap goes downwards: descending is the usual sequence.)
    fn cut(&self, all: &[Vma], from: usize) -> usize {
        let half = all.len() / 2;
        let start = |at: usize| all.get(at).map_or(0, |vma| vma.start);
        let at = if from + 1 < all.len() && start(from + 1) == self.last_start && from < half {
            from + 1
        } else if from > 0 && start(from - 1) == self.last_start && from >= half {
            from
        } else {
            half
        };
        at.clamp(all.len() - LEAF_ENTRIES, LEAF_ENTRIES)
    }

    fn split_leaf(&mut self, path: &TreePath, all: &[Vma], new_at: usize) {
        happened(Event::LeafSplit);
        let (low, high) = all.split_at(self.cut(all, new_at));
        let share = match path.height.checked_sub(1) {
            None => 0,
            Some(level) => self.key(path.node[level], path.slot[level]),
        };
        let slots = [share | self.fill_leaf(low), slot(high[0].start, self.fill_leaf(high))];
        self.link(path, path.height, 1, (slots, 2));
    }

    /// Moves `left`, the entries that remain of the path's leaf, into a sibling; removes the leaf if there are none.
    /// False if no sibling has space.
    fn join_leaf(&mut self, path: &TreePath, left: &[Vma]) -> bool {
        if left.is_empty() {
            happened(Event::LeafRemoved);
            self.link(path, path.height, 1, ([0; 2], 0));
            return true;
        }
        let level = path.height - 1;
        let fits = |block: Block| left.len() + (block.get(0) & 15) as usize <= LEAF_JOINED;
        let Some((first, other)) = self.sibling(path, level, fits) else {
            return false;
        };
        let block = self.region.block(other);
        let order = block.get(0);
        let others = (0..(order & 15) as usize).map(|at| block.entry(order, at));
        let (mut all, mut n) = ([EMPTY; LEAF_JOINED], 0);
        let seam = if first < path.slot[level] {
            gather(others, &mut all, &mut n);
            gather(left.iter().copied(), &mut all, &mut n);
            n - left.len()
        } else {
            gather(left.iter().copied(), &mut all, &mut n);
            gather(others, &mut all, &mut n);
            left.len()
        };
        // The share's end had cut one mapping in two.
        if let Some(&[a, b]) = all[..n].get(seam.wrapping_sub(1)..seam + 1)
            && a.end == b.start
            && a.attributes().alike(b.attributes())
        {
            happened(Event::SeamJoined);
            all[seam - 1] = Vma::new(a.start, b.end, a.attributes().oldest(b.attributes()));
            all.copy_within(seam + 1..n, seam);
            n -= 1;
        }
        happened(Event::LeafJoined);
        let joined = self.key(path.node[level], first) | self.fill_leaf(&all[..n]);
        let mut path = *path;
        path.slot[level] = first;
        self.link(&path, path.height, 2, ([joined, 0], 1));
        self.give_back(other);
        true
    }

    /// A block beside the path's in the node at `level` that `fits`: the lower slot of the two, and the block's number.
    fn sibling(&self, path: &TreePath, level: usize, fits: impl Fn(Block) -> bool) -> Option<(usize, u64)> {
        let (parent, at) = (self.region.block(path.node[level]), path.slot[level]);
        let number = |at: usize| parent.get(1 + at) & SLOT_BLOCK;
        let fits = |at| fits(self.region.block(number(at)));
        if at + 1 < parent.slots() && fits(at + 1) {
            Some((at, number(at + 1)))
        } else if at > 0 && fits(at - 1) {
            Some((at - 1, number(at - 1)))
        } else {
            None
        }
    }

    /// In the node above the blocks of `depth`, `old` slots from the path's on become `new`. The change continues
    /// upwards as far as needed; the topmost change is the one store that makes it valid.
    #[unsafe(link_section = ".text.hot")]
    fn link(&mut self, path: &TreePath, depth: usize, old: usize, (new, n): Slots) {
        let Some(level) = depth.checked_sub(1) else {
            return self.link_root(path, (new, n));
        };
        let (number, at) = (path.node[level], path.slot[level]);
        let node = self.region.block(number);
        let count = node.slots();
        let total = at + n + count.saturating_sub(at + old);
        let tag = ((path.height - level) as u64) << 32;
        let share = match level.checked_sub(1) {
            None => 0,
            Some(above) => self.key(path.node[above], path.slot[above]),
        };
        if total == 0 {
            happened(Event::NodeRemoved);
            self.link(path, level, 1, ([0; 2], 0));
        } else if total == 1 && level == 0 {
            happened(Event::RootLowered);
            // The block under a root with one slot becomes the root.
            let only = if n == 1 { new[0] } else { node.get(if at == 0 { 1 + old } else { 1 }) };
            self.set_root(path.height - 1, only & SLOT_BLOCK);
        } else if total > NODE_SLOTS {
            happened(Event::NodeSplit);
            let all = changed(node, count, at, old, (new, n));
            let (low, high) = all[..total].split_at(if at + 1 >= count { NODE_SLOTS - 7 } else { total / 2 });
            let slots = [share | self.fill_node(tag, low), high[0] & !SLOT_BLOCK | self.fill_node(tag, high)];
            self.link(path, level, 1, (slots, 2));
        } else if total < NODE_LOW
            && total < count
            && level > 0
            && self.join_node(path, level, &mut changed(node, count, at, old, (new, n)), total)
        {
        } else {
            let fresh = self.copy_node(tag, node, (at, old, count), (new, n));
            self.relink(path, level, fresh);
        }
        self.give_back(number);
    }

    fn link_root(&mut self, path: &TreePath, (new, n): Slots) {
        match n {
            2 => {
                happened(Event::RootRaised);
                let tag = (path.height as u64 + 1) << 32;
                let root = self.fill_node(tag, &new);
                self.set_root(path.height + 1, root);
            }
            1 => self.set_root(path.height, new[0] & SLOT_BLOCK),
            _ => {
                let leaf = self.fill_leaf(&[]);
                self.set_root(0, leaf);
            }
        }
    }

    /// A new node like `node`, which has `count` slots, but for `old` slots from `at` on: they are `new`. All slots
    /// fit.
    fn copy_node(&mut self, tag: u64, node: Block, (at, old, count): (usize, usize, usize), (new, n): Slots) -> u64 {
        let number = self.take();
        let to = self.region.block(number);
        for slot in 0..at {
            self.region.put(to, 1 + slot, node.get(1 + slot));
        }
        for (slot, new) in new.into_iter().take(n).enumerate() {
            self.region.put(to, 1 + at + slot, new);
        }
        let mut total = at + n;
        for slot in at + old..count {
            self.region.put(to, 1 + total, node.get(1 + slot));
            total += 1;
        }
        for slot in total..=NODE_SLOTS {
            self.region.put(to, 1 + slot, NO_SLOT);
        }
        self.region.put(to, 0, tag | total as u64);
        number
    }

    fn fill_node(&mut self, tag: u64, slots: &[u64]) -> u64 {
        let number = self.take();
        let node = self.region.block(number);
        for at in 0..=NODE_SLOTS {
            self.region.put(node, 1 + at, slots.get(at).copied().unwrap_or(NO_SLOT));
        }
        self.region.put(node, 0, tag | slots.len() as u64);
        number
    }

    /// Joins `all[..n]`, the slots that remain of the path's node at `level`, with a sibling's in one node, if they
    /// fit.
    fn join_node(&mut self, path: &TreePath, level: usize, all: &mut [u64; 2 * NODE_SLOTS], n: usize) -> bool {
        let fits = |block: Block| n + block.slots() <= NODE_JOINED;
        let Some((first, other)) = self.sibling(path, level - 1, fits) else {
            return false;
        };
        let parent = path.node[level - 1];
        let block = self.region.block(other);
        let count = block.slots();
        let below = first < path.slot[level - 1];
        if below {
            all.copy_within(0..n, count);
        }
        let place = if below { 0 } else { n };
        for at in 0..count {
            all[place + at] = block.get(1 + at);
        }
        // The first slot's key is meaningless in its own node; when it moves into the middle, it becomes the start of
        // the old node's share.
        let seam = if below { count } else { n };
        all[seam] = self.key(parent, first + 1) | all[seam] & SLOT_BLOCK;
        happened(Event::NodeJoined);
        let tag = ((path.height - level) as u64) << 32;
        let joined = self.key(parent, first) | self.fill_node(tag, &all[..n + count]);
        let mut path = *path;
        path.slot[level - 1] = first;
        self.link(&path, level, 2, ([joined, 0], 1));
        self.give_back(other);
        true
    }
}

/// The slots of a node of `count`, of which `old` from `at` on become `new`.
fn changed(node: Block, count: usize, at: usize, old: usize, (new, n): Slots) -> [u64; 2 * NODE_SLOTS] {
    let mut all = [0; 2 * NODE_SLOTS];
    let kept = |slot| node.get(1 + slot);
    let slots = (0..at).map(kept).chain(new.into_iter().take(n)).chain((at + old..count).map(kept));
    for (place, slot) in all.iter_mut().zip(slots) {
        *place = slot;
    }
    all
}

/// Appends as many as fit.
fn gather(entries: impl Iterator<Item = Vma>, all: &mut [Vma], n: &mut usize) {
    for (place, vma) in all.iter_mut().skip(*n).zip(entries) {
        *place = vma;
        *n += 1;
    }
}

/// The cases that the tests must meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    LeafSplit,
    LeafJoined,
    LeafRemoved,
    SeamJoined,
    NodeSplit,
    NodeJoined,
    NodeRemoved,
    RootRaised,
    RootLowered,
    OneMapped,
    OneJoined,
    OneUnmapped,
    OneCut,
    OneChanged,
    OneChangedLow,
    OneChangedHigh,
    OneGrew,
}

#[inline(always)]
pub(super) fn happened(_event: Event) {
    #[cfg(test)]
    super::tests::happened(_event);
}

const EMPTY: Vma = Vma::new(0, 0, Attributes::HOLE);
