//! The B+tree under the map: blocks, shares, splits and merges. Format and the rule of the one store: `segment::vmap`.

use super::region::Region;
use plimsoll_segment::vmap::{
    ADDRESS_END, BLOCK, LEAF_ENTRIES, LEAF_FIRST, MAGIC, MAX_CAPACITY, MAX_HEIGHT, NODE_SLOTS, PAGE_BITS,
    SLOT_BLOCK_BITS, Vma, header,
};

/// A leaf that falls below this is joined with a sibling if both fit into `LEAF_JOINED`.
const LEAF_LOW: usize = 4;
const LEAF_JOINED: usize = 10;
const NODE_LOW: usize = 16;
const NODE_JOINED: usize = 48;

/// Blocks that only replacing and joining may use (one for each level, given back in the same update); a split leaves them.
const SPARE: usize = MAX_HEIGHT + 2;
/// Bytes that are asked for at a time.
const GROW_STEP: usize = 16 << 10;

/// The way from the root to a leaf.
#[derive(Clone, Copy)]
pub(super) struct Path {
    node: [u32; MAX_HEIGHT],
    slot: [u32; MAX_HEIGHT],
    height: usize,
    pub(super) leaf: u32,
    pub(super) count: usize,
    /// Where the leaf's share of the addresses ends.
    pub(super) high: u64,
}

/// What a run of slots or entries becomes, at most a split in two.
type Slots = ([u64; 2], usize);

pub(super) struct Tree<G> {
    pub(super) region: Region,
    grow: G,
    /// Start of the entry that was inserted last: tells ascending and descending mappings at a split.
    last_start: u64,
}

#[inline(always)]
fn slot(start: u64, block: u32) -> u64 {
    start >> PAGE_BITS << SLOT_BLOCK_BITS | block as u64
}

#[inline(always)]
fn slot_block(slot: u64) -> u32 {
    slot as u32 & ((1 << SLOT_BLOCK_BITS) - 1)
}

#[inline(always)]
fn slot_start(slot: u64) -> u64 {
    slot >> SLOT_BLOCK_BITS << PAGE_BITS
}

impl<G: FnMut(usize) -> bool> Tree<G> {
    /// # Safety
    /// As for [`Region::new`], with `capacity` for the bytes that `grow` may be asked to make safe.
    pub(super) unsafe fn create(base: *mut u8, capacity: usize, mut grow: G) -> Option<Self> {
        let capacity = capacity.min(MAX_CAPACITY) / BLOCK * BLOCK;
        let populated = GROW_STEP.min(capacity);
        if capacity < (2 + SPARE) * BLOCK || !grow(populated) {
            return None;
        }
        // SAFETY: the caller's promise; `capacity` is not above what was promised.
        let mut region = unsafe { Region::new(base, capacity) };
        for at in 0..=header::OP_NEW_BYTES {
            region.put(0, at, 0);
        }
        region.put(1, 0, 0);
        region.put(0, header::CAPACITY, capacity as u64);
        region.put(0, header::ROOT, 1);
        region.put(0, header::USED, 2 * BLOCK as u64);
        region.put(0, header::POPULATED, populated as u64);
        region.publish(0, header::MAGIC, MAGIC);
        Some(Self { region, grow, last_start: 0 })
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
        let used = region.get(0, header::USED) as usize;
        if region.get(0, header::MAGIC) != MAGIC || used > populated.min(capacity) {
            return None;
        }
        region.put(0, header::CAPACITY, capacity as u64);
        region.put(0, header::POPULATED, populated.min(capacity) as u64);
        let seq = region.get(0, header::SEQ);
        region.put(0, header::SEQ, (seq + 1) & !1);
        Some(Self { region, grow, last_start: 0 })
    }

    #[inline(always)]
    pub(super) fn descend(&self, address: u64) -> Path {
        let root = self.region.get(0, header::ROOT);
        let height = ((root >> 32) as usize).min(MAX_HEIGHT);
        let mut path =
            Path { node: [0; MAX_HEIGHT], slot: [0; MAX_HEIGHT], height, leaf: 0, count: 0, high: ADDRESS_END };
        let mut block = root as u32;
        let key = slot(address, 0) | ((1 << SLOT_BLOCK_BITS) - 1);
        for level in 0..height {
            let count = self.region.node_count(block);
            let at = self.region.search_node(block, count, key);
            if at + 1 < count {
                path.high = slot_start(self.region.get(block, at + 2));
            }
            path.node[level] = block;
            path.slot[level] = at as u32;
            block = slot_block(self.region.get(block, at + 1));
        }
        path.leaf = block;
        path.count = self.region.leaf_count(block);
        path
    }

    /// Whether entries `from..to` of the path's leaf can become `n`: always, unless that takes a split for which there is
    /// no room. To be asked before [`Tree::splice`].
    #[inline(always)]
    pub(super) fn has_room(&mut self, path: &Path, from: usize, to: usize, n: usize) -> bool {
        path.count + n <= LEAF_ENTRIES + (to - from) || self.has_room_to_split(path.height)
    }

    #[cold]
    fn has_room_to_split(&mut self, height: usize) -> bool {
        let need = SPARE + 2 * (height + 1) + 1;
        let free = self.region.get(0, header::FREE_COUNT) as usize;
        let used = self.region.get(0, header::USED) as usize;
        let populated = self.region.get(0, header::POPULATED) as usize;
        let wanted = used + need.saturating_sub(free) * BLOCK;
        if wanted <= populated {
            return height < MAX_HEIGHT;
        }
        let capacity = self.region.blocks() * BLOCK;
        let upto = wanted.next_multiple_of(GROW_STEP).min(capacity);
        if wanted > capacity || height >= MAX_HEIGHT || !(self.grow)(upto) {
            return false;
        }
        self.region.put(0, header::POPULATED, upto as u64);
        true
    }

    /// A block that nothing links to. There is always one (`SPARE`), unless the tracked program scribbled over the header.
    #[inline(always)]
    fn take(&mut self) -> u32 {
        let free = self.region.get(0, header::FREE_COUNT);
        if free != 0 {
            let block = self.region.get(0, header::FREE_HEAD) as u32;
            let next = self.region.get(block, 1);
            self.region.put(0, header::FREE_HEAD, next);
            self.region.put(0, header::FREE_COUNT, free - 1);
            return block;
        }
        let used = self.region.get(0, header::USED);
        if used + BLOCK as u64 > self.region.get(0, header::POPULATED) {
            return 0;
        }
        self.region.put(0, header::USED, used + BLOCK as u64);
        (used / BLOCK as u64) as u32
    }

    #[inline(always)]
    fn give_back(&mut self, block: u32) {
        let (head, free) = (self.region.get(0, header::FREE_HEAD), self.region.get(0, header::FREE_COUNT));
        self.region.put(block, 1, head);
        self.region.put(0, header::FREE_HEAD, block as u64);
        self.region.put(0, header::FREE_COUNT, free + 1);
    }

    /// Entries `from..to` of the path's leaf become `new`. Goes by one store whatever it takes.
    #[inline(always)]
    pub(super) fn splice(&mut self, path: &Path, from: usize, to: usize, new: &[Vma]) {
        let (leaf, count) = (path.leaf, path.count);
        let left = count + new.len() - (to - from);
        if from == count && left <= LEAF_ENTRIES {
            for (n, vma) in new.iter().enumerate() {
                self.region.put_entry(leaf, count + n, vma);
            }
            self.region.publish(leaf, 0, left as u64);
        } else if left > LEAF_ENTRIES {
            self.split_leaf(path, from, to, new);
        } else if left < LEAF_LOW && left < count && path.height > 0 && self.join_leaf(path, from, to, new) {
        } else if to == count && new.is_empty() {
            self.region.publish(leaf, 0, left as u64);
        } else {
            let fresh = self.take();
            self.region.copy(leaf, LEAF_FIRST, fresh, LEAF_FIRST, from * 4);
            for (n, vma) in new.iter().enumerate() {
                self.region.put_entry(fresh, from + n, vma);
            }
            let rest = LEAF_FIRST + (from + new.len()) * 4;
            self.region.copy(leaf, LEAF_FIRST + to * 4, fresh, rest, (count - to) * 4);
            self.region.put(fresh, 0, left as u64);
            if path.height == 0 {
                self.set_root(0, fresh);
            } else {
                self.relink(path, path.height - 1, fresh);
            }
            self.give_back(leaf);
        }
        if let [.., vma] = new {
            self.last_start = vma.start;
        }
    }

    /// The block under the path at `level` is replaced by another of the same share.
    #[inline(always)]
    fn relink(&mut self, path: &Path, level: usize, block: u32) {
        let (node, at) = (path.node[level], 1 + path.slot[level] as usize);
        let old = self.region.get(node, at);
        self.region.publish(node, at, old >> SLOT_BLOCK_BITS << SLOT_BLOCK_BITS | block as u64);
    }

    /// Where the share of a node's slot begins, as the upper bits of a slot.
    fn key(&self, node: u32, at: usize) -> u64 {
        slot_key(self.region.get(node, 1 + at))
    }

    fn set_root(&mut self, height: usize, block: u32) {
        self.region.publish(0, header::ROOT, (height as u64) << 32 | block as u64);
    }

    /// Entries of `leaf` with `from..to` replaced, into `all` from `n` on.
    fn gather(&self, leaf: u32, (from, to, count): (usize, usize, usize), new: &[Vma], all: &mut [Vma], n: &mut usize) {
        let kept = |at| self.region.entry(leaf, at);
        for vma in (0..from).map(kept).chain(new.iter().copied()).chain((to..count).map(kept)) {
            if let Some(place) = all.get_mut(*n) {
                *place = vma;
                *n += 1;
            }
        }
    }

    fn fill_leaf(&mut self, entries: &[Vma]) -> u32 {
        let leaf = self.take();
        for (at, vma) in entries.iter().enumerate() {
            self.region.put_entry(leaf, at, vma);
        }
        self.region.put(leaf, 0, entries.len() as u64);
        leaf
    }

    /// Where to cut `all`: in the middle, but beside the new entry where mappings come in sequence, so that the leaf that
    /// gets no more is left full. (mmap goes downwards: descending is the usual sequence.)
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

    #[cold]
    fn split_leaf(&mut self, path: &Path, from: usize, to: usize, new: &[Vma]) {
        happened(Event::LeafSplit);
        let mut all = [EMPTY; LEAF_ENTRIES + 3];
        let mut n = 0;
        self.gather(path.leaf, (from, to, path.count), new, &mut all, &mut n);
        let (low, high) = all[..n].split_at(self.cut(&all[..n], from));
        let (low_leaf, high_leaf) = (self.fill_leaf(low), self.fill_leaf(high));
        let share = match path.height {
            0 => 0,
            height => self.key(path.node[height - 1], path.slot[height - 1] as usize),
        };
        let slots = [share | low_leaf as u64, slot(high[0].start, high_leaf)];
        self.link(path, path.height, 1, (slots, 2));
        self.give_back(path.leaf);
    }

    /// A leaf that became small goes into a sibling's, or away if it is empty. False if no sibling has room.
    #[cold]
    fn join_leaf(&mut self, path: &Path, from: usize, to: usize, new: &[Vma]) -> bool {
        let left = path.count + new.len() - (to - from);
        if left == 0 {
            happened(Event::LeafRemoved);
            self.link(path, path.height, 1, ([0; 2], 0));
            self.give_back(path.leaf);
            return true;
        }
        let (parent, at) = (path.node[path.height - 1], path.slot[path.height - 1] as usize);
        let sibling = |at| slot_block(self.region.get(parent, 1 + at));
        let fits = |at| left + self.region.leaf_count(sibling(at)) <= LEAF_JOINED;
        let below = if at + 1 < self.region.node_count(parent) && fits(at + 1) {
            false
        } else if at > 0 && fits(at - 1) {
            true
        } else {
            return false;
        };
        let other = sibling(if below { at - 1 } else { at + 1 });
        let whole = (0, 0, self.region.leaf_count(other));
        let (mut all, mut n) = ([EMPTY; LEAF_JOINED], 0);
        if below {
            self.gather(other, whole, &[], &mut all, &mut n);
        }
        let mut seam = n;
        self.gather(path.leaf, (from, to, path.count), new, &mut all, &mut n);
        if !below {
            seam = n;
            self.gather(other, whole, &[], &mut all, &mut n);
        }
        // The share's end had cut one mapping in two.
        if let Some([a, b]) = all[..n].get(seam.wrapping_sub(1)..seam + 1)
            && a.end == b.start
            && a.attributes().alike(b.attributes())
        {
            happened(Event::SeamJoined);
            all[seam - 1] = Vma::new(a.start, b.end, a.attributes().oldest(b.attributes()));
            all.copy_within(seam + 1..n, seam);
            n -= 1;
        }
        happened(Event::LeafJoined);
        let joined = self.fill_leaf(&all[..n]);
        let first = at - below as usize;
        let mut path = *path;
        path.slot[path.height - 1] = first as u32;
        self.link(&path, path.height, 2, ([self.key(parent, first) | joined as u64, 0], 1));
        self.give_back(path.leaf);
        self.give_back(other);
        true
    }

    /// In the node above the blocks of `depth`, `old` slots from the path's on become `new`; on upwards as far as it takes,
    /// and the topmost change is the one store.
    fn link(&mut self, path: &Path, depth: usize, old: usize, (new, n): Slots) {
        let Some(level) = depth.checked_sub(1) else {
            return self.link_root(path, (new, n));
        };
        let (node, at) = (path.node[level], path.slot[level] as usize);
        let count = self.region.node_count(node);
        let (mut all, mut total) = ([0; 2 * NODE_SLOTS], 0);
        let kept = |at| self.region.get(node, 1 + at);
        let changed = (0..at).map(kept).chain(new.into_iter().take(n)).chain((at + old..count).map(kept));
        for slot in changed {
            all[total] = slot;
            total += 1;
        }
        let tag = ((path.height - level) as u64) << 32;
        let share = if level == 0 { 0 } else { self.key(path.node[level - 1], path.slot[level - 1] as usize) };
        if total == 0 {
            happened(Event::NodeRemoved);
            self.link(path, level, 1, ([0; 2], 0));
        } else if total == 1 && level == 0 {
            happened(Event::RootLowered);
            // The root of one slot gives way to what is under it.
            self.set_root(path.height - 1, slot_block(all[0]));
        } else if total > NODE_SLOTS {
            happened(Event::NodeSplit);
            let (low, high) = all[..total].split_at(if at + 1 >= count { NODE_SLOTS - 7 } else { total / 2 });
            let slots = [share | self.fill_node(tag, low) as u64, slot_key(high[0]) | self.fill_node(tag, high) as u64];
            self.link(path, level, 1, (slots, 2));
        } else if total < NODE_LOW && total < count && level > 0 && self.join_node(path, level, &mut all, total) {
        } else {
            let fresh = self.fill_node(tag, &all[..total]);
            if level == 0 {
                self.set_root(path.height, fresh);
            } else {
                self.relink(path, level - 1, fresh);
            }
        }
        self.give_back(node);
    }

    fn link_root(&mut self, path: &Path, (new, n): Slots) {
        match n {
            2 => {
                happened(Event::RootRaised);
                let tag = (path.height as u64 + 1) << 32;
                let root = self.fill_node(tag, &new);
                self.set_root(path.height + 1, root);
            }
            1 => self.set_root(path.height, slot_block(new[0])),
            _ => {
                let leaf = self.fill_leaf(&[]);
                self.set_root(0, leaf);
            }
        }
    }

    fn fill_node(&mut self, tag: u64, slots: &[u64]) -> u32 {
        let node = self.take();
        for (at, &slot) in slots.iter().enumerate() {
            self.region.put(node, 1 + at, slot);
        }
        self.region.put(node, 0, tag | slots.len() as u64);
        node
    }

    /// `all[..n]`, the slots that remain of the path's node at `level`, go into one node with a sibling's, if they fit.
    fn join_node(&mut self, path: &Path, level: usize, all: &mut [u64; 2 * NODE_SLOTS], n: usize) -> bool {
        let (parent, at) = (path.node[level - 1], path.slot[level - 1] as usize);
        let sibling = |at| slot_block(self.region.get(parent, 1 + at));
        let fits = |at| n + self.region.node_count(sibling(at)) <= NODE_JOINED;
        let below = if at + 1 < self.region.node_count(parent) && fits(at + 1) {
            false
        } else if at > 0 && fits(at - 1) {
            true
        } else {
            return false;
        };
        let other = sibling(if below { at - 1 } else { at + 1 });
        let count = self.region.node_count(other);
        let place = if below {
            all.copy_within(0..n, count);
            0
        } else {
            n
        };
        for at in 0..count {
            all[place + at] = self.region.get(other, 1 + at);
        }
        // The first slot's number means nothing in its own node; in the middle of one it is where the node's share began.
        let (seam, begins) = if below { (count, at) } else { (n, at + 1) };
        all[seam] = self.key(parent, begins) | slot_block(all[seam]) as u64;
        let tag = ((path.height - level) as u64) << 32;
        happened(Event::NodeJoined);
        let joined = self.fill_node(tag, &all[..n + count]);
        let first = at - below as usize;
        let mut path = *path;
        path.slot[level - 1] = first as u32;
        let slot = self.key(parent, first) | joined as u64;
        self.link(&path, level, 2, ([slot, 0], 1));
        self.give_back(other);
        true
    }
}

/// What the tests must have met.
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
}

#[inline(always)]
fn happened(_event: Event) {
    #[cfg(test)]
    super::tests::happened(_event);
}

/// A slot without its block.
fn slot_key(slot: u64) -> u64 {
    slot >> SLOT_BLOCK_BITS << SLOT_BLOCK_BITS
}

const EMPTY: Vma = Vma::new(0, 0, plimsoll_segment::vmap::Attributes::HOLE);
