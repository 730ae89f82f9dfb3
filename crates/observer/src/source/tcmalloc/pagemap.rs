//! The table from pages to spans (pagemap.h, TCMalloc_PageMap2), and the counters after its root (page_heap.h). A span
//! (span.h):
//!
//! ```text
//! 0 first page   8 pages   16 next   24 previous   32 free blocks   40 blocks in use (16 bits), size class (8), state (2), …
//! ```
//!
//! A span of small blocks is entered at each of its pages, any other span at its first and last page. Words between
//! them may refer to freed spans, so a word counts only if its span begins at that page.

use std::collections::BTreeMap;

use crate::source::heap_data::{Anonymous, Data, records, words};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, half_at, word_at};

const ADDRESS_BITS: u32 = 48;
pub(crate) const SPAN: usize = 44;
/// The build chooses the page size; 8 KiB is the default (TCMALLOC_PAGE_SIZE).
const SHIFTS: [u32; 7] = [13, 15, 16, 12, 14, 17, 18];
/// Number of words of a leaf that are checked to find its position. In a heap that was mostly freed, most words may be
/// stale.
const TESTED: usize = 256;
const AGREE_AT_LEAST: usize = 2;
const OLD_PER_NEW: usize = 8;
/// Maximum number of pages of possible leaves read in the search for a table of one page size: 64 MiB.
const SEARCH_BUDGET: usize = 1 << 14;
/// After the root: the sets of large spans, and lists for spans of each length (at most 256 × 2 dummies of 48 bytes).
const COUNTERS_WITHIN: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TableLayout {
    shift: u32,
    leaf_bits: u32,
    root_bits: u32,
}

impl TableLayout {
    fn of(shift: u32) -> TableLayout {
        let leaf_bits = (ADDRESS_BITS - shift).div_ceil(2);
        TableLayout { shift, leaf_bits, root_bits: ADDRESS_BITS - shift - leaf_bits }
    }

    fn leaf_bytes(self) -> u64 {
        8 << self.leaf_bits
    }
}

pub(crate) struct Pagemap {
    shape: TableLayout,
    /// Leaves by their index in the root.
    pub leaves: BTreeMap<u64, u64>,
    /// The data after the root.
    behind: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanState {
    InUse,
    Free,
    Returned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub range: AddressRange,
    /// Address of its record.
    pub record: u64,
    pub state: SpanState,
    /// 0: one large block.
    pub class: u8,
    pub blocks: u64,
}

/// Bytes of all spans, of the free ones and of the released ones, as the walk finds them or as tcmalloc counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub all: u64,
    pub free: u64,
    pub returned: u64,
}

impl Totals {
    /// Not exactly equal, because the target runs during the walk.
    fn is_near(self, stated: Totals) -> bool {
        let near = |one: u64, other: u64, part: u64| one.abs_diff(other) <= self.all / part;
        self.all > 0
            && near(self.all, stated.all, 32)
            && near(self.free, stated.free, 16)
            && near(self.returned, stated.returned, 16)
    }
}

/// Passes each table that the data may hold, most likely first, until `is_it` returns true: only the sums identify the
/// right one.
pub(crate) fn search<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    data: &[Data],
    anonymous: &Anonymous,
    mut is_it: impl FnMut(Pagemap) -> bool,
) {
    for Data { bytes, .. } in data {
        // The root is nearly empty. So pointers with few other words around them come first.
        let mut pointers: Vec<(usize, usize, u64)> = Vec::new();
        for (number, piece) in bytes.chunks(PAGE as usize).enumerate() {
            let first = number * (PAGE / 8) as usize;
            let neighbours = words(piece).filter(|word| *word != 0).count();
            let found = (first..).zip(words(piece)).filter(|(_, word)| *word != 0 && anonymous.holds(*word, 8));
            pointers.extend(found.map(|(position, word)| (neighbours, position, word)));
        }
        pointers.sort_unstable();
        for shape in SHIFTS.map(TableLayout::of) {
            let mut budget = SEARCH_BUDGET;
            let mut known: Vec<usize> = Vec::new();
            let is_leaf = |word: u64| word.is_multiple_of(8) && anonymous.holds(word, shape.leaf_bytes());
            for (_, position, word) in pointers.iter().filter(|(_, _, word)| is_leaf(*word)) {
                let Some(index) = covered(memory, pages, shape, *word, anonymous, &mut budget) else { continue };
                let Some(root) = position.checked_sub(index as usize) else { continue };
                let (start, end) = (root * 8, root * 8 + (8 << shape.root_bits));
                let Some(root) = bytes.get(start..end) else { continue };
                let leaves: BTreeMap<u64, u64> = (0..).zip(words(root)).filter(|(_, word)| *word != 0).collect();
                if !known.contains(&start) && leaves.values().all(|leaf| is_leaf(*leaf)) {
                    known.push(start);
                    let behind = bytes[end..].iter().copied().take(COUNTERS_WITHIN).collect();
                    if is_it(Pagemap { shape, leaves, behind }) {
                        return;
                    }
                }
            }
        }
    }
}

/// The position of the leaf at `leaf`, if it is a leaf with spans.
fn covered<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    shape: TableLayout,
    leaf: u64,
    anonymous: &Anonymous,
    budget: &mut usize,
) -> Option<u64> {
    let mut entries = Vec::new();
    let mut is_leaf = true;
    for_each(memory, pages, leaf, shape.leaf_bytes(), budget, |slot, word| {
        is_leaf = word.is_multiple_of(8) && anonymous.holds(word, SPAN as u64);
        entries.push((word, slot));
        is_leaf && entries.len() < TESTED
    });
    let tested = entries.len();
    let mut found: BTreeMap<u64, usize> = BTreeMap::new();
    if is_leaf {
        records(memory, entries, SPAN, |_, slot, bytes| {
            let [Some(first), Some(length)] = [0, 8].map(|at| word_at(bytes, at)) else { return };
            let (index, at) = (first >> shape.leaf_bits, first & ((1 << shape.leaf_bits) - 1));
            let covers = at <= *slot && at.checked_add(length).is_some_and(|end| *slot < end);
            if covers && index < 1 << shape.root_bits && range_of(first, length, shape, anonymous).is_some() {
                *found.entry(index).or_default() += 1;
            }
        });
    }
    let (index, agreeing) = found.into_iter().max_by_key(|(_, count)| *count)?;
    (agreeing >= AGREE_AT_LEAST && agreeing * OLD_PER_NEW >= tested).then_some(index)
}

fn range_of(first: u64, length: u64, shape: TableLayout, anonymous: &Anonymous) -> Option<AddressRange> {
    let most = 1 << (ADDRESS_BITS - shape.shift);
    (length > 0 && first < most && length < most).then_some(())?;
    let (start, length) = (first << shape.shift, length << shape.shift);
    anonymous.holds(start, length).then(|| AddressRange::sized(Avma(start), Bytes(length)))
}

/// Passes the words of a leaf that aren't null, in order, until `seen` returns false. Returns false if the leaf can't
/// be read.
fn for_each<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    leaf: u64,
    length: u64,
    budget: &mut usize,
    mut seen: impl FnMut(u64, u64) -> bool,
) -> bool {
    let mut piece = [0; PAGE as usize];
    let mut at = leaf;
    while at < leaf + length {
        let end = ((at / PAGE + 1) * PAGE).min(leaf + length);
        // An untouched page refers to no span, and reading it would make the kernel map it.
        if pages.of(at / PAGE) != PageState::Absent {
            let piece = &mut piece[..(end - at) as usize];
            if *budget == 0 || !memory.read(Avma(at), piece) {
                return false;
            }
            *budget -= 1;
            for (slot, word) in ((at - leaf) / 8..).zip(words(piece)).filter(|(_, word)| *word != 0) {
                if !seen(slot, word) {
                    return true;
                }
            }
        }
        at = end;
    }
    true
}

impl Pagemap {
    pub(crate) fn leaf_bytes(&self) -> u64 {
        self.shape.leaf_bytes()
    }

    /// All spans in address order, without overlaps. None if a leaf can't be read.
    pub(crate) fn spans<M: Memory>(
        &self,
        memory: &M,
        pages: &mut PageStates<'_, M>,
        anonymous: &Anonymous,
        budget: &mut usize,
    ) -> Option<Vec<Span>> {
        let mut spans: Vec<Span> = Vec::new();
        let mut end = Avma(0);
        for (index, leaf) in &self.leaves {
            let mut entries: Vec<(u64, u64)> = Vec::new();
            let first = index << self.shape.leaf_bits;
            for_each(memory, pages, *leaf, self.leaf_bytes(), budget, |slot, word| {
                // The first page of a span comes first.
                if entries.last().is_none_or(|(last, _)| *last != word) {
                    entries.push((word, first + slot));
                }
                true
            })
            .then_some(())?;
            entries.retain(|(record, _)| anonymous.holds(*record, SPAN as u64));
            let mut found = Vec::new();
            records(memory, entries, SPAN, |record, page, bytes| {
                found.extend(self.span(record, *page, bytes, anonymous));
            });
            found.sort_unstable_by_key(|span| span.range.start);
            for span in found {
                if span.range.start >= end {
                    end = span.range.end;
                    spans.push(span);
                }
            }
        }
        Some(spans)
    }

    fn span(&self, record: u64, page: u64, bytes: &[u8], anonymous: &Anonymous) -> Option<Span> {
        let (first, length, bits) = (word_at(bytes, 0)?, word_at(bytes, 8)?, half_at(bytes, 40)?);
        let state = match bits >> 24 & 3 {
            0 => SpanState::InUse,
            1 => SpanState::Free,
            2 => SpanState::Returned,
            _ => return None,
        };
        let range = range_of(first, length, self.shape, anonymous).filter(|_| first == page)?;
        Some(Span { range, record, state, class: (bits >> 16) as u8, blocks: u64::from(bits & 0xffff) })
    }

    /// Whether the counters after the root have these totals (PageHeap::Stats: three consecutive words).
    pub(crate) fn states(&self, totals: Totals) -> bool {
        let behind: Vec<u64> = words(&self.behind).collect();
        let stated = behind.windows(3).map(|stats| Totals { all: stats[0], free: stats[1], returned: stats[2] });
        stated.into_iter().any(|stated| stated.all.is_multiple_of(1 << self.shape.shift) && totals.is_near(stated))
    }
}
