//! The radix tree from pages to extents (rtree.h, 48-bit addresses, compact leaves). A word of a leaf:
//!
//! ```text
//! 63…48 size class     47…6 record of the extent, aligned to 64     4…2 state (5.3 on)   1 head (5.3 on)   0 run of small blocks
//! ```
//!
//! An extent is entered at its first and last page, a run of small blocks at each page. A word with a null record was
//! cleared.

use std::collections::BTreeMap;

use crate::source::heap_data::{Anonymous, Data, words};
use plimsoll_facts::units::Avma;
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, Untouched, word_at};

/// log2 of the bytes that a leaf covers.
pub(crate) const LEAF_COVERS: u32 = 30;
const SLOTS: u64 = 1 << 18;
const NODE: u64 = SLOTS * 8;
const RECORD: u64 = ((1 << 48) - 1) & !63;
/// The record's bits, address and size.
pub(crate) const RECORD_HEAD: u64 = 24;
/// Number of words of a leaf that are checked to find its position, and how many must agree.
const TESTED: usize = 64;
const AGREE_AT_LEAST: usize = 2;
/// Maximum number of pages of possible leaves read in the search: 256 MiB.
const SEARCH_BUDGET: usize = 1 << 16;

/// A word of a leaf that refers to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafEntry {
    pub page: u64,
    pub record: u64,
    pub class: u8,
    pub small: bool,
}

/// Finds the leaves; the key is the number of the GiB that a leaf covers.
pub(crate) fn find<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    data: &[Data],
    anonymous: &Anonymous,
) -> Option<BTreeMap<u64, u64>> {
    let mut budget = SEARCH_BUDGET;
    let is_node = |word: u64| word != 0 && word.is_multiple_of(64) && anonymous.holds(word, NODE);
    for Data { bytes, .. } in data {
        // The root is nearly empty, while a program's data may be full of pointers. So pointers with few neighbours are
        // tried first.
        let mut candidates = Vec::new();
        for (number, piece) in bytes.chunks(PAGE as usize).enumerate() {
            let first = number * (PAGE / 8) as usize;
            let neighbours = words(piece).filter(|word| *word != 0).count();
            let nodes = (first..).zip(words(piece)).filter(|(_, word)| is_node(*word));
            candidates.extend(nodes.map(|(position, word)| (neighbours, position, word)));
        }
        candidates.sort_unstable();
        for (_, position, word) in candidates {
            let Some(index) = covered(memory, pages, word, anonymous, &mut budget) else { continue };
            let Some(root) = position.checked_sub(index as usize) else { continue };
            let Some(root) = bytes.get(root * 8..).and_then(|from| from.get(..NODE as usize)) else { continue };
            let leaves: BTreeMap<u64, u64> = (0..).zip(words(root)).filter(|(_, word)| *word != 0).collect();
            let holds = |(index, leaf): (&u64, &u64)| {
                is_node(*leaf)
                    && covered(memory, pages, *leaf, anonymous, &mut budget).is_none_or(|found| found == *index)
            };
            if leaves.iter().all(holds) {
                return Some(leaves);
            }
        }
    }
    None
}

/// The number of the GiB that the leaf at `leaf` covers, if it is a leaf with entries.
fn covered<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    leaf: u64,
    anonymous: &Anonymous,
    budget: &mut usize,
) -> Option<u64> {
    let mut found: BTreeMap<u64, usize> = BTreeMap::new();
    let mut tested = 0;
    let records = Untouched::new(memory);
    for_each(memory, pages, leaf, 0, budget, |entry| {
        let mut head = [0; RECORD_HEAD as usize];
        let gib = (anonymous.holds(entry.record, RECORD_HEAD) && records.read(Avma(entry.record), &mut head))
            .then(|| states(&head, entry.page))
            .flatten();
        if let Some(gib) = gib {
            *found.entry(gib).or_default() += 1;
        }
        tested += 1;
        tested < TESTED && (tested < TESTED / 4 || !found.is_empty())
    });
    let (gib, agreeing) = found.into_iter().max_by_key(|(_, count)| *count)?;
    (agreeing >= AGREE_AT_LEAST && agreeing * 2 > tested && gib < SLOTS).then_some(gib)
}

/// The GiB of the extent with this record, if page `offset` of that GiB belongs to the extent.
fn states(head: &[u8], offset: u64) -> Option<u64> {
    let (start, length) = (word_at(head, 8)? / PAGE * PAGE, word_at(head, 16)? / PAGE * PAGE);
    let gib = start >> LEAF_COVERS;
    let page = (gib << LEAF_COVERS) + offset;
    (start <= page && page < start.checked_add(length)?).then_some(gib)
}

/// Passes the entries of a leaf whose pages begin at `start`, in address order, until `seen` returns false. Returns
/// false if the leaf can't be read.
pub(crate) fn for_each<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    leaf: u64,
    start: u64,
    budget: &mut usize,
    mut seen: impl FnMut(LeafEntry) -> bool,
) -> bool {
    let mut at = leaf;
    let mut piece = [0; PAGE as usize];
    while at < leaf + NODE {
        let end = ((at / PAGE + 1) * PAGE).min(leaf + NODE);
        // An untouched page has no entry, and reading it would make the kernel map it.
        if pages.of(at / PAGE) != PageState::Absent {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let piece = &mut piece[..(end - at) as usize];
            if !memory.read(Avma(at), piece) {
                return false;
            }
            for (slot, word) in ((at - leaf) / 8..).zip(words(piece)).filter(|(_, word)| word & RECORD != 0) {
                let (class, small) = ((word >> 48) as u8, word & 1 != 0);
                if !seen(LeafEntry { page: start + slot * PAGE, record: word & RECORD, class, small }) {
                    return true;
                }
            }
        }
        at = end;
    }
    true
}
