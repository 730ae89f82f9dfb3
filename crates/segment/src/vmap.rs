//! The virtual memory map: which caller requested which address range. The target maintains it, and the observer reads
//! it.
//!
//! A B+tree of 512-byte blocks in one region of the segment. All words are little-endian u64.
//!
//! ```text
//! region   ┌ block 0: header ┬ block 1 ┬ block 2 ┬ … ┬ `used` … never touched … ┬ capacity ┐
//!
//! header   word 0 magic        1 capacity, bytes   2 seq (odd: an update is under way)   3 root: height << 32 | block
//!               4 used, bytes  5 populated, bytes  6 free list: block                    7 free list: length
//!               8 lost_ops     9 lost_bytes       10 operation in flight: kind          11 start   12 bytes
//!              13 new start   14 new bytes (of a remap)
//!
//! node     word 0 tag: level << 32 | count    1..=62 slots, ascending: first page number << 19 | block; unused: all ones
//! leaf     word 0 order: 16 × 4 bits, lowest first: the count, then a permutation of 1..=15: the numbers of the entries
//!               in ascending order of address, followed by the free ones
//!               1 all ones (as no node has it)   2, 3 free   4n… entry n; a free one starts at 2⁶⁴ − 1
//!
//! entry    ┌ start (bytes) ┬ end (bytes) ┬ commit caller << 32 | reserve caller ┬ time << 32 | category << 16 | flags ┐
//! flags    bits 0–2 prot r w x (all clear: reserved, else committed)   3 was reserved first   4–5 kind
//! ```
//!
//! A slot's page number is the start of its block's share of the addresses; the share ends at the next slot. The number
//! in a node's first slot is meaningless: that share starts where the node's own share starts. No entry crosses the end
//! of a share, so a mapping may consist of several entries. The reader joins adjacent entries with equal attributes.
//!
//! Torn updates: a new entry is written into an unused place. The store of the leaf's order word then makes it valid,
//! and the replaced entries invalid (the permutation is Masstree's: Mao, Kohler, Morris, EuroSys 2012). In the same
//! way, the store of a slot replaces a block, and the store of the root replaces the tree. New blocks are complete
//! before anything links to them. Other stores only change an entry's start or end. If the common bound of two entries
//! moves, the entry that grows is stored first; if two entries overlap, the reader uses the lower one. So a process
//! killed between any two instructions leaves a valid tree, in which each page has its old or its new state. The record
//! of the operation in flight gives the range concerned. A live map is read again while `seq` changes.

/// Bytes of a block, the unit of the region.
pub const BLOCK: usize = 512;
/// Words of a block.
pub const BLOCK_WORDS: usize = BLOCK / 8;
/// Entries of a full leaf.
pub const LEAF_ENTRIES: usize = 15;
/// Slots of a full node; one further word stays unused, so that a search needs no bounds check.
pub const NODE_SLOTS: usize = 62;
/// An unused slot.
pub const NO_SLOT: u64 = u64::MAX;
/// Word 1 of a leaf.
pub const LEAF_TAG: u64 = u64::MAX;
/// The order word of a leaf without entries.
pub const EMPTY_ORDER: u64 = 0xFEDC_BA98_7654_3210;
/// Start of a free entry.
pub const NOWHERE: u64 = u64::MAX;
/// Number of a slot's low bits, which hold the block number; the page number is above them.
pub const SLOT_BLOCK_BITS: u32 = 19;
/// Maximum number of node levels above the leaves.
pub const MAX_HEIGHT: usize = 7;
/// Addresses are counted in 4 KiB steps, whatever the machine's page size.
pub const PAGE_BITS: u32 = 12;
/// No mapping ends above it: with five-level page tables, user addresses end at half of it. (Its page number is
/// [`NO_SLOT`]'s.)
pub const ADDRESS_END: u64 = (1 << 57) - (1 << PAGE_BITS);
/// The largest region that slots can number.
pub const MAX_CAPACITY: usize = BLOCK << SLOT_BLOCK_BITS;

/// Word 0 of the header, written last: "PLVMAP" and the version of the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PLVMAP\x00\x01");

/// Words of the header.
pub mod header {
    pub const MAGIC: usize = 0;
    pub const CAPACITY: usize = 1;
    pub const SEQ: usize = 2;
    pub const ROOT: usize = 3;
    pub const USED: usize = 4;
    pub const POPULATED: usize = 5;
    pub const FREE_HEAD: usize = 6;
    pub const FREE_COUNT: usize = 7;
    pub const LOST_OPS: usize = 8;
    pub const LOST_BYTES: usize = 9;
    pub const OP_KIND: usize = 10;
    pub const OP_START: usize = 11;
    pub const OP_BYTES: usize = 12;
    pub const OP_NEW_START: usize = 13;
    pub const OP_NEW_BYTES: usize = 14;
}

const _: () = {
    assert!(cfg!(target_endian = "little"));
    assert!(size_of::<Vma>() == 32 && align_of::<Vma>() == 8);
    // Entry numbers begin with 1, because the leaf's own words take the space of entry 0.
    assert!((1 + LEAF_ENTRIES) * size_of::<Vma>() == BLOCK && LEAF_ENTRIES == 15);
    assert!((1 + NODE_SLOTS + 1) * 8 == BLOCK);
    // A slot holds every page number up to ADDRESS_END.
    assert!(ADDRESS_END >> PAGE_BITS == NO_SLOT >> SLOT_BLOCK_BITS);
    assert!(header::OP_NEW_BYTES < BLOCK_WORDS);
};

/// The number of the entry at position `at` of a leaf.
#[inline(always)]
pub const fn entry_number(order: u64, at: usize) -> usize {
    (order.wrapping_shr(4 * at as u32 + 4) & 15) as usize
}

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MappingKind {
    Anonymous = 1,
    /// Private mapping of a file.
    File = 2,
    /// MAP_SHARED, of a file or not, and System V shared memory.
    Shared = 3,
}

/// PROT_READ, PROT_WRITE, PROT_EXEC as in `mman.h`.
pub(crate) const PROT_MASK: u16 = 7;

/// Callers, category, protection, kind and time of a range: an entry without its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// commit caller << 32 | reserve caller
    pub callers: u64,
    /// time << 32 | category << 16 | flags
    pub rest: u64,
}

const RESERVED_FIRST: u64 = 1 << 3;
const KIND_SHIFT: u32 = 4;
const KIND_MASK: u64 = 3 << KIND_SHIFT;
const CATEGORY_MASK: u64 = 0xFFFF << 16;

impl Attributes {
    /// No mapping. In a mapping, the kind is never 0.
    pub const HOLE: Self = Self { callers: 0, rest: 0 };

    /// A new mapping of one caller.
    pub const fn new(caller: u32, category: u16, kind: MappingKind, prot: u16, time: u32) -> Self {
        let prot = (prot & PROT_MASK) as u64;
        let (commit, first) = if prot == 0 { (0, RESERVED_FIRST) } else { (caller as u64, 0) };
        Self {
            callers: commit << 32 | caller as u64,
            rest: (time as u64) << 32 | (category as u64) << 16 | (kind as u64) << KIND_SHIFT | first | prot,
        }
    }

    pub const fn is_hole(self) -> bool {
        self.rest & KIND_MASK == 0
    }

    pub const fn prot(self) -> u16 {
        self.rest as u16 & PROT_MASK
    }

    /// Whether it is accessible in some way; otherwise it is only reserved.
    pub const fn committed(self) -> bool {
        self.prot() != 0
    }

    /// Whether the range was once PROT_NONE: mapping over it commits memory and doesn't replace it.
    pub const fn reserved_first(self) -> bool {
        self.rest & RESERVED_FIRST != 0
    }

    pub const fn kind(self) -> MappingKind {
        match self.rest >> KIND_SHIFT & 3 {
            2 => MappingKind::File,
            3 => MappingKind::Shared,
            _ => MappingKind::Anonymous,
        }
    }

    pub const fn category(self) -> u16 {
        (self.rest >> 16) as u16
    }

    /// In the unit of the writer's clock: milliseconds, which wrap after 49.7 days. No reader uses it.
    pub const fn time(self) -> u32 {
        (self.rest >> 32) as u32
    }

    /// The caller that mapped the addresses first.
    pub const fn reserve_caller(self) -> u32 {
        self.callers as u32
    }

    /// The caller that made them accessible; 0 while they are only reserved.
    pub const fn commit_caller(self) -> u32 {
        if self.committed() { (self.callers >> 32) as u32 } else { 0 }
    }

    /// Equal in everything except the time: adjacent ranges can share an entry.
    pub const fn alike(self, other: Self) -> bool {
        self.callers == other.callers && self.rest as u32 == other.rest as u32
    }

    /// Equal reserve caller, category and kind: the reserved bytes are booked in the same place.
    pub const fn same_reserve(self, other: Self) -> bool {
        self.callers as u32 == other.callers as u32 && (self.rest ^ other.rest) & (KIND_MASK | CATEGORY_MASK) == 0
    }

    /// These attributes with the earlier of both times, unless the clock wrapped in between.
    pub const fn oldest(self, other: Self) -> Self {
        let time = if other.time() < self.time() { other.rest } else { self.rest } >> 32;
        Self { callers: self.callers, rest: time << 32 | self.rest as u32 as u64 }
    }

    /// Sets `prot`, as mprotect does. If the range was inaccessible, `caller` commits it, at `time`.
    pub const fn protect(self, prot: u16, caller: u32, time: u32) -> Self {
        let prot = prot & PROT_MASK;
        let was = self.committed();
        let rest = self.rest & !(PROT_MASK as u64) | prot as u64;
        let reserve = self.reserve_caller() as u64;
        if prot == 0 {
            let rest = if was { rest as u32 as u64 | (time as u64) << 32 } else { rest };
            Self { callers: reserve, rest: rest | RESERVED_FIRST }
        } else if was {
            Self { callers: self.callers, rest }
        } else {
            Self { callers: (caller as u64) << 32 | reserve, rest: rest as u32 as u64 | (time as u64) << 32 }
        }
    }

    /// `over` mapped with MAP_FIXED on top of these attributes. Over a reservation it commits, re-commits or uncommits;
    /// the reserve caller and the category stay (as with NMT's reserve and commit stacks). Otherwise it replaces them.
    pub const fn overlay(self, over: Self) -> Self {
        if self.is_hole() || (over.committed() && self.committed() && !self.reserved_first()) {
            return over;
        }
        let kept = Self { callers: self.callers, rest: self.rest & !KIND_MASK | over.rest & KIND_MASK };
        let mut new = kept.protect(over.prot(), over.reserve_caller(), over.time());
        if self.committed() && over.committed() {
            new.callers = (over.reserve_caller() as u64) << 32 | self.reserve_caller() as u64;
            new.rest = new.rest as u32 as u64 | (over.time() as u64) << 32;
        }
        new
    }
}

/// A range of addresses and its attributes: an entry of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Vma {
    pub start: u64,
    pub end: u64,
    callers: u64,
    rest: u64,
}

impl Vma {
    pub const fn new(start: u64, end: u64, attributes: Attributes) -> Self {
        Self { start, end, callers: attributes.callers, rest: attributes.rest }
    }

    pub const fn attributes(&self) -> Attributes {
        Attributes { callers: self.callers, rest: self.rest }
    }

    pub const fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    pub const fn words(&self) -> [u64; 4] {
        [self.start, self.end, self.callers, self.rest]
    }

    pub const fn from_words([start, end, callers, rest]: [u64; 4]) -> Self {
        Self { start, end, callers, rest }
    }
}

/// The writer's operation when the map was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    Map = 1,
    Unmap = 2,
    Protect = 3,
    Remap = 4,
    Restore = 5,
}

/// An operation that began and didn't end: pages in these ranges may have their old or their new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub operation: Operation,
    pub start: u64,
    pub bytes: u64,
    /// Where a remap moves the range to, and its length there; both are 0 for other operations.
    pub new_start: u64,
    pub new_bytes: u64,
}

/// Why these bytes contain no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Shorter than a header.
    Short,
    /// Not a map, not of this version, or not yet initialised.
    Magic,
}

/// A map in untrusted bytes.
#[derive(Clone, Copy)]
pub struct VmaMap<'a> {
    bytes: &'a [u8],
}

impl<'a> VmaMap<'a> {
    /// `bytes` begin at the region's first byte. The first [`VmaMap::used`] bytes are enough; missing bytes count as
    /// damage.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Unreadable> {
        if bytes.len() < BLOCK {
            return Err(Unreadable::Short);
        }
        let map = Self { bytes };
        if map.word(0, header::MAGIC) == MAGIC { Ok(map) } else { Err(Unreadable::Magic) }
    }

    /// Odd during an update. A copy is consistent if this was even, and equal before and after copying.
    pub fn seq(&self) -> u64 {
        self.word(0, header::SEQ)
    }

    /// Bytes from the region's start that were ever written, according to the header, limited to the capacity.
    pub fn used(&self) -> u64 {
        self.word(0, header::USED).clamp(BLOCK as u64, self.capacity().max(BLOCK as u64))
    }

    pub fn capacity(&self) -> u64 {
        self.word(0, header::CAPACITY).min(MAX_CAPACITY as u64)
    }

    /// Number of operations that could not be booked completely because there was no space.
    pub fn lost_ops(&self) -> u64 {
        self.word(0, header::LOST_OPS)
    }

    /// Bytes of address space whose state was not booked in lost operations.
    pub fn lost_bytes(&self) -> u64 {
        self.word(0, header::LOST_BYTES)
    }

    /// `None` between operations; also for a dead process, unless it died during an operation.
    pub fn in_flight(&self) -> Option<InFlight> {
        if self.seq() & 1 == 0 {
            return None;
        }
        let operation = match self.word(0, header::OP_KIND) {
            1 => Operation::Map,
            2 => Operation::Unmap,
            3 => Operation::Protect,
            4 => Operation::Remap,
            5 => Operation::Restore,
            _ => return None,
        };
        // Only a remap writes these two words; later they still have the last remap's values.
        let of_remap = |i| if operation == Operation::Remap { self.word(0, i) } else { 0 };
        Some(InFlight {
            operation,
            start: self.word(0, header::OP_START),
            bytes: self.word(0, header::OP_BYTES),
            new_start: of_remap(header::OP_NEW_START),
            new_bytes: of_remap(header::OP_NEW_BYTES),
        })
    }

    /// The mappings in ascending order, disjoint.
    pub fn entries(&self) -> Entries<'a> {
        Entries::new(*self)
    }

    /// 0 past the end: that means a hole, a leaf without entries, or no operation.
    fn word(&self, block: u64, at: usize) -> u64 {
        let from = block as usize * BLOCK + at * 8;
        match self.bytes.get(from..from + 8) {
            Some(word) => word.try_into().map_or(0, u64::from_le_bytes),
            None => 0,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Frame {
    block: u64,
    at: usize,
    count: usize,
    /// Address range of the block's share.
    low: u64,
    high: u64,
}

/// Walks the entries in order. It ends after the maximum possible number of blocks, whatever the bytes say.
pub struct Entries<'a> {
    map: VmaMap<'a>,
    stack: [Frame; MAX_HEIGHT + 1],
    height: usize,
    depth: usize,
    blocks_left: usize,
    /// End of the last accepted entry.
    reached: u64,
    pending: Option<Vma>,
    damaged: u64,
    done: bool,
}

impl<'a> Entries<'a> {
    fn new(map: VmaMap<'a>) -> Self {
        let root = map.word(0, header::ROOT);
        let mut walk = Self {
            map,
            stack: [Frame::default(); MAX_HEIGHT + 1],
            height: (root >> 32) as usize,
            depth: 0,
            blocks_left: map.bytes.len() / BLOCK,
            reached: 0,
            pending: None,
            damaged: 0,
            done: false,
        };
        if walk.height > MAX_HEIGHT {
            walk.height = 0;
            walk.damaged = 1;
            walk.done = true;
        } else {
            walk.done = !walk.enter(0, root as u32 as u64, 0, ADDRESS_END);
        }
        walk
    }

    /// Number of entries and whole blocks left out so far because they contradict the format. It is above 0 for a map
    /// that is corrupt, truncated, or was copied while it changed.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    fn enter(&mut self, depth: usize, block: u64, low: u64, high: u64) -> bool {
        let tag = self.map.word(block, 0);
        let level = self.height - depth;
        let (right, count) = if level == 0 {
            (self.map.word(block, 1) == LEAF_TAG, (tag & 15) as usize)
        } else {
            ((tag >> 32) as usize == level, tag as u32 as usize)
        };
        let inside = block != 0 && (block as usize) < self.map.bytes.len() / BLOCK;
        if !inside || !right || count > NODE_SLOTS || self.blocks_left == 0 {
            self.damaged += 1;
            return false;
        }
        self.blocks_left -= 1;
        self.depth = depth;
        self.stack[depth] = Frame { block, at: 0, count, low, high };
        true
    }

    fn slot_start(&self, block: u64, at: usize) -> u64 {
        self.map.word(block, 1 + at) >> SLOT_BLOCK_BITS << PAGE_BITS
    }

    fn next_entry(&mut self) -> Option<Vma> {
        while !self.done {
            let depth = self.depth;
            let frame = self.stack[depth];
            if frame.at >= frame.count {
                self.done = depth == 0;
                self.depth = depth.saturating_sub(1);
                continue;
            }
            self.stack[depth].at += 1;
            if depth < self.height {
                let block = self.map.word(frame.block, 1 + frame.at) & ((1 << SLOT_BLOCK_BITS) - 1);
                let low = if frame.at == 0 { frame.low } else { self.slot_start(frame.block, frame.at) };
                let last = frame.at + 1 == frame.count;
                let high = if last { frame.high } else { self.slot_start(frame.block, frame.at + 1) };
                if low < frame.low || high > frame.high || low >= high {
                    self.damaged += 1;
                } else {
                    self.enter(depth + 1, block, low, high);
                }
                continue;
            }
            let at = 4 * entry_number(self.map.word(frame.block, 0), frame.at);
            let word = |n| self.map.word(frame.block, at + n);
            let vma = Vma::from_words([word(0), word(1), word(2), word(3)]);
            let page_mask = (1 << PAGE_BITS) - 1;
            let sound = at != 0
                && vma.start >= frame.low
                && vma.end > vma.start.max(self.reached)
                && vma.end <= frame.high
                && (vma.start | vma.end) & page_mask == 0
                && !vma.attributes().is_hole();
            if sound {
                let start = vma.start.max(self.reached);
                self.reached = vma.end;
                return Some(Vma { start, ..vma });
            }
            self.damaged += 1;
        }
        None
    }
}

impl Iterator for Entries<'_> {
    type Item = Vma;

    fn next(&mut self) -> Option<Vma> {
        let mut whole = match self.pending.take() {
            Some(vma) => vma,
            None => self.next_entry()?,
        };
        while let Some(next) = self.next_entry() {
            if next.start != whole.end || !next.attributes().alike(whole.attributes()) {
                self.pending = Some(next);
                break;
            }
            whole = Vma::new(whole.start, next.end, whole.attributes().oldest(next.attributes()));
        }
        Some(whole)
    }
}
