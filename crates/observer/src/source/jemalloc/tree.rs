//! The radix tree from pages to extents (rtree.h). The build chooses its shape by the width of the CPU's addresses:
//!
//! ```text
//! 48 bits     root: 2^18 words ──▶ leaf: 2^18 elements of a word
//! 57 bits     root: 2^15 words ──▶ node: 2^15 words ──▶ leaf: 2^15 elements of two words (5.3 on)
//!
//! a word      63…48 size class     47…6 record of the extent, aligned to 64     4…2 state (5.3 on)   1 head (5.3 on)   0 run of small blocks
//! two words   63…0 record of the extent
//!             12…5 size class     4…2 state     1 head     0 run of small blocks
//! ```
//!
//! An extent is entered at its first and last page, a run of small blocks at each page. An element with a null record
//! was cleared.

use std::collections::BTreeMap;

use crate::source::heap_data::{Anonymous, Data, words};
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, Untouched, word_at};

const RECORD: u64 = ((1 << 48) - 1) & !63;
/// The record's bits, address and size.
pub(crate) const RECORD_HEAD: u64 = 24;
/// Number of words of a leaf, and of leaves of a node, that are checked to find its position, and how many words must
/// agree.
const TESTED: usize = 64;
const AGREE_AT_LEAST: usize = 2;
/// Limits of the search for a shape: reads of 128 MiB, and looks at 4 GiB of untouched pages.
const SEARCH: Budget = Budget { reads: 1 << 15, looks: 1 << 20 };
/// Maximum number of leaves below nodes: 8 TiB of heap.
const MOST_LEAVES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// log2 of the number of elements of the root, of a node and of a leaf.
    bits: u32,
    has_nodes: bool,
    /// Bytes of an element of a leaf.
    element: u64,
}

const SHAPES: [Shape; 2] =
    [Shape { bits: 18, has_nodes: false, element: 8 }, Shape { bits: 15, has_nodes: true, element: 16 }];

impl Shape {
    /// log2 of the bytes that a leaf covers.
    pub(crate) const fn covers(self) -> u32 {
        self.bits + PAGE.trailing_zeros()
    }

    const fn slots(self) -> u64 {
        1 << self.bits
    }

    /// Bytes of the root, and of a node.
    const fn node(self) -> u64 {
        self.slots() * 8
    }

    const fn leaf(self) -> u64 {
        self.slots() * self.element
    }

    /// Bytes of what a word of the root points to.
    const fn child(self) -> u64 {
        if self.has_nodes { self.node() } else { self.leaf() }
    }

    fn entry(self, page: u64, element: &[u8]) -> Option<LeafEntry> {
        let word = word_at(element, 0)?;
        let (record, class, flags) = match word_at(element, 8) {
            None => (word & RECORD, word >> 48, word),
            Some(second) => (word, second >> 5, second),
        };
        (record != 0).then_some(LeafEntry { page, record, class: class as u8, small: flags & 1 != 0 })
    }
}

/// How many pages of leaves and nodes may still be read, and how many untouched ones be passed over. Data can name any
/// number of untouched addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub reads: usize,
    pub looks: usize,
}

/// An element of a leaf that refers to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafEntry {
    pub page: u64,
    pub record: u64,
    pub class: u8,
    pub small: bool,
}

/// The leaves; the key is the number of the range that a leaf covers.
pub(crate) struct Tree {
    pub shape: Shape,
    pub leaves: BTreeMap<u64, u64>,
}

pub(crate) fn find<'m, M: Memory>(
    memory: &'m M,
    pages: &mut PageStates<'m, M>,
    data: &[Data],
    anonymous: &Anonymous,
) -> Option<Tree> {
    SHAPES.into_iter().find_map(|shape| {
        let mut search = Search { shape, memory, pages, anonymous, budget: SEARCH };
        let leaves = data.iter().find_map(|data| search.leaves(&data.bytes))?;
        Some(Tree { shape, leaves })
    })
}

struct Search<'s, 'm, M: Memory> {
    shape: Shape,
    memory: &'m M,
    pages: &'s mut PageStates<'m, M>,
    anonymous: &'s Anonymous,
    budget: Budget,
}

impl<M: Memory> Search<'_, '_, M> {
    fn leaves(&mut self, data: &[u8]) -> Option<BTreeMap<u64, u64>> {
        // The root is nearly empty, while a program's data may be full of pointers. So pointers with few neighbours are
        // tried first.
        let mut candidates = Vec::new();
        for (number, piece) in data.chunks(PAGE as usize).enumerate() {
            let first = number * (PAGE / 8) as usize;
            let neighbours = words(piece).filter(|word| *word != 0).count();
            let children =
                (first..).zip(words(piece)).filter(|(_, word)| is_at(self.anonymous, *word, self.shape.child()));
            candidates.extend(children.map(|(position, word)| (neighbours, position, word)));
        }
        candidates.sort_unstable();
        for (_, position, word) in candidates {
            let Some(index) = self.index(word) else { continue };
            let Some(root) = position.checked_sub(index as usize) else { continue };
            let root = data.get(root * 8..).and_then(|from| from.get(..self.shape.node() as usize));
            let leaves = root.and_then(|root| self.below(root));
            if leaves.is_some() {
                return leaves;
            }
        }
        None
    }

    /// The position in the root that a child has by its contents.
    fn index(&mut self, child: u64) -> Option<u64> {
        let shape = self.shape;
        let index = if shape.has_nodes {
            let mut leaves = self.node(child)?.into_iter().take(TESTED);
            let (position, number) = leaves.find_map(|(position, leaf)| Some((position, self.covered(leaf)?)))?;
            (number % shape.slots() == position).then_some(number >> shape.bits)?
        } else {
            self.covered(child)?
        };
        (index < shape.slots()).then_some(index)
    }

    /// The leaves below a node, by position. None if the node also has a word that isn't the address of a leaf.
    fn node(&mut self, node: u64) -> Option<Vec<(u64, u64)>> {
        let (mut leaves, mut fits) = (Vec::new(), true);
        let (anonymous, length) = (self.anonymous, self.shape.leaf());
        let whole =
            for_each_page(self.memory, self.pages, node, self.shape.node(), &mut self.budget, |offset, piece| {
                leaves.extend((offset / 8..).zip(words(piece)).filter(|(_, word)| *word != 0));
                fits = words(piece).all(|word| word == 0 || is_at(anonymous, word, length));
                fits
            });
        (whole && fits).then_some(leaves)
    }

    /// All leaves below the root. None unless each leaf with entries covers the range of its position.
    fn below(&mut self, root: &[u8]) -> Option<BTreeMap<u64, u64>> {
        let mut leaves = BTreeMap::new();
        for (index, child) in (0..).zip(words(root)).filter(|(_, word)| *word != 0) {
            is_at(self.anonymous, child, self.shape.child()).then_some(())?;
            if !self.shape.has_nodes {
                leaves.insert(index, child);
                continue;
            }
            let below = self.node(child)?;
            leaves.extend(below.into_iter().map(|(position, leaf)| (index << self.shape.bits | position, leaf)));
            (leaves.len() <= MOST_LEAVES).then_some(())?;
        }
        let holds = |(number, leaf): (&u64, &u64)| self.covered(*leaf).is_none_or(|found| found == *number);
        leaves.iter().all(holds).then_some(leaves)
    }

    /// The number of the range that the leaf at `leaf` covers, if it is a leaf with entries.
    fn covered(&mut self, leaf: u64) -> Option<u64> {
        self.budget.reads = self.budget.reads.checked_sub(1)?;
        let mut found: BTreeMap<u64, usize> = BTreeMap::new();
        let mut tested = 0;
        let records = Untouched::new(self.memory);
        for_each(self.memory, self.pages, self.shape, leaf, 0, &mut self.budget, |entry| {
            let mut head = [0; RECORD_HEAD as usize];
            let is_read =
                self.anonymous.holds(entry.record, RECORD_HEAD) && records.read(Avma(entry.record), &mut head);
            if let Some(number) = is_read.then(|| states(&head, entry.page, self.shape.covers())).flatten() {
                *found.entry(number).or_default() += 1;
            }
            tested += 1;
            tested < TESTED && (tested < TESTED / 4 || !found.is_empty())
        });
        let (number, agreeing) = found.into_iter().max_by_key(|(_, count)| *count)?;
        (agreeing >= AGREE_AT_LEAST && agreeing * 2 > tested).then_some(number)
    }
}

fn is_at(anonymous: &Anonymous, word: u64, length: u64) -> bool {
    word.is_multiple_of(64) && anonymous.holds(word, length)
}

/// The range of the extent with this record, if page `offset` of that range belongs to the extent.
fn states(head: &[u8], offset: u64, covers: u32) -> Option<u64> {
    let (start, length) = (word_at(head, 8)? / PAGE * PAGE, word_at(head, 16)? / PAGE * PAGE);
    let number = start >> covers;
    let page = (number << covers) + offset;
    (start <= page && page < start.checked_add(length)?).then_some(number)
}

/// Passes the entries of a leaf whose pages begin at `start`, in address order, until `seen` returns false. Returns
/// false if the leaf can't be read.
pub(crate) fn for_each<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    shape: Shape,
    leaf: u64,
    start: u64,
    budget: &mut Budget,
    mut seen: impl FnMut(LeafEntry) -> bool,
) -> bool {
    for_each_page(memory, pages, leaf, shape.leaf(), budget, |offset, piece| {
        let slots = (offset / shape.element..).zip(piece.chunks_exact(shape.element as usize));
        slots.filter_map(|(slot, element)| shape.entry(start + slot * PAGE, element)).all(&mut seen)
    })
}

/// Passes each touched page of `length` bytes, with its offset, until `seen` returns false. Returns false if a page
/// can't be read.
fn for_each_page<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    from: u64,
    length: u64,
    budget: &mut Budget,
    mut seen: impl FnMut(u64, &[u8]) -> bool,
) -> bool {
    let mut at = from;
    let mut piece = [0; PAGE as usize];
    while at < from + length {
        let end = ((at / PAGE + 1) * PAGE).min(from + length);
        // An untouched page has no entry, and reading it would make the kernel map it.
        if pages.of(at / PAGE) != PageState::Absent {
            let Some(left) = budget.reads.checked_sub(1) else { return false };
            budget.reads = left;
            let piece = &mut piece[..(end - at) as usize];
            if !memory.read(Avma(at), piece) {
                return false;
            }
            if !seen(at - from, piece) {
                return true;
            }
        } else {
            let Some(left) = budget.looks.checked_sub(1) else { return false };
            budget.looks = left;
        }
        at = end;
    }
    true
}
