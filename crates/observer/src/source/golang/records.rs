//! Finds the memory of the runtime's own records by the runtime's lists. These lists have chunks of 256 KiB for records
//! that are never freed, and blocks of 64 KiB for the bits of objects.
//!
//! ```text
//! persistentChunks ──▶ next, … ──▶ next, …                                                    (malloc.go)
//! gcBitsArenas: free, next, current, previous ──▶ bytes used, next, … ──▶ …                   (mheap.go)
//! mheap_.arenas ──▶ 2^22 addresses, one for each 64 MiB ──▶ the span of each of its pages, …  (mheap.go, `heapArena`)
//! ```

use std::cell::Cell;
use std::collections::BTreeSet;

use super::pages::{PAGE_OF_GO, Pages};
use super::spans::{Span, Spans};
use crate::source::heap_data::{Anonymous, Data, words};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, Untouched};

const CHUNK: u64 = 256 << 10;
const BITS: u64 = 64 << 10;
const ARENA: u64 = 64 << 20;
const ARENAS: u64 = 1 << 22;
/// Spans of the pages of an arena, then bits of them.
const ARENA_RECORD: u64 = ARENA / PAGE_OF_GO * 8 + (4 << 10);
/// Offset of the spans in an arena's record: in Go 1.21, two bitmaps precede them.
const SPANS_AT: [u64; 2] = [0, (1 << 20) + (16 << 10)];
/// Limit of blocks that are read: 256 GiB of records.
const MOST_READS: usize = 1 << 20;
/// Percentage of the span records that must lie in the chunks: the target adds chunks while it is read.
const AGREE_AT_LEAST: usize = 90;

pub(crate) struct Records {
    /// May overlap, and may be only partly accessible.
    pub ranges: Vec<AddressRange>,
    /// Whether each of the runtime's lists was found.
    pub is_whole: bool,
}

pub(crate) fn find<M: Memory>(
    memory: &M,
    data: &[Data],
    pages: &Pages,
    spans: &Spans,
    anonymous: &Anonymous,
) -> Records {
    let lists = Lists {
        memory: Untouched::new(memory),
        heap: &pages.in_use,
        base: pages.base,
        anonymous,
        reads: Cell::new(MOST_READS),
    };
    let mut found = pages.records.clone();
    found.push(spans.list);
    let all = || data.iter().flat_map(|part| words(&part.bytes));
    let chunks = all().filter_map(|word| lists.follow(word, CHUNK, 0)).find(|chunks| {
        let holds = |record: &&u64| chunks.range(..=**record).next_back().is_some_and(|at| **record < at + CHUNK);
        spans.records.iter().filter(holds).count() * 100 >= spans.records.len() * AGREE_AT_LEAST
    });
    let bits = lists.bits(data, spans);
    let arenas = spans.all.first().map(|span| lists.arenas(all(), spans, span)).unwrap_or_default();
    let is_whole = chunks.is_some() && !bits.is_empty() && !arenas.is_empty();
    found.extend(chunks.into_iter().flatten().map(|at| AddressRange::sized(Avma(at), Bytes(CHUNK))));
    found.extend(bits.into_iter().map(|at| AddressRange::sized(Avma(at), Bytes(BITS))));
    found.extend(arenas);
    Records { ranges: found, is_whole }
}

struct Lists<'r, M: Memory> {
    memory: Untouched<'r, M>,
    /// The heap's ranges, which contain no record.
    heap: &'r [AddressRange],
    base: u64,
    anonymous: &'r Anonymous,
    reads: Cell<usize>,
}

impl<M: Memory> Lists<'_, M> {
    /// All blocks of a list; each has the address of the next at offset `link`. None if the list is empty, or if an
    /// address can't be a block's.
    fn follow(&self, first: u64, length: u64, link: u64) -> Option<BTreeSet<u64>> {
        let mut blocks = BTreeSet::new();
        let mut at = first;
        while at != 0 {
            let in_heap = self.heap[..self.heap.partition_point(|range| range.start.0 <= at)].last();
            let is_block = at.is_multiple_of(PAGE)
                && self.anonymous.holds(at, length)
                && in_heap.is_none_or(|range| range.end.0 <= at);
            (is_block && self.reads.get() > 0 && blocks.insert(at)).then_some(())?;
            self.reads.set(self.reads.get() - 1);
            at = self.memory.word(Avma(at + link))?;
        }
        (!blocks.is_empty()).then_some(blocks)
    }

    /// The blocks of four consecutive lists, at least one of which holds bits of a span. Among several candidates:
    /// those with the most such blocks.
    fn bits(&self, data: &[Data], spans: &Spans) -> BTreeSet<u64> {
        let holds_bits = |at: &&u64| {
            let first = spans.bits.partition_point(|page| *page < **at / PAGE);
            spans.bits.get(first).is_some_and(|page| *page < (**at + BITS) / PAGE)
        };
        let mut best = (0, BTreeSet::new());
        for part in data {
            let lists: Vec<Option<BTreeSet<u64>>> = words(&part.bytes)
                .map(|head| if head == 0 { Some(BTreeSet::new()) } else { self.follow(head, BITS, 8) })
                .collect();
            let has_blocks = |list: &Option<BTreeSet<u64>>| list.as_ref().is_some_and(|list| !list.is_empty());
            for four in lists.windows(4).filter(|four| four.iter().any(has_blocks)) {
                let blocks: Option<Vec<&BTreeSet<u64>>> = four.iter().map(Option::as_ref).collect();
                let blocks: BTreeSet<u64> = blocks.into_iter().flatten().flatten().copied().collect();
                let known = blocks.iter().filter(holds_bits).count();
                if (known, blocks.len()) > (best.0, best.1.len()) && known > 0 {
                    best = (known, blocks);
                }
            }
        }
        best.1
    }

    /// The index of arenas and their records: those that name `span` at its page.
    fn arenas(&self, all: impl Iterator<Item = u64>, spans: &Spans, span: &Span) -> Vec<AddressRange> {
        let arenas_of = |range: &AddressRange| {
            let first = range.start.0 / ARENA * ARENA;
            (first..range.end.0).step_by(ARENA as usize)
        };
        let known: BTreeSet<u64> = spans.records.iter().copied().collect();
        let could_be = |at: u64, length: u64| at != 0 && at.is_multiple_of(PAGE) && self.anonymous.holds(at, length);
        for index in all.filter(|word| could_be(*word, ARENAS * 8)) {
            for spans_at in SPANS_AT {
                let length = (spans_at + ARENA_RECORD).next_multiple_of(PAGE);
                let record = |at: u64| {
                    let number = at.wrapping_sub(self.base) / ARENA % ARENAS;
                    let record = self.memory.word(Avma(index + 8 * number))?;
                    could_be(record, length).then_some(record)
                };
                let slot = spans_at + span.start % ARENA / PAGE_OF_GO * 8;
                let named = record(span.start).and_then(|record| self.memory.word(Avma(record + slot)));
                if named.is_some_and(|named| known.contains(&named)) {
                    let arenas: BTreeSet<u64> = self.heap.iter().flat_map(arenas_of).collect();
                    let records = arenas.into_iter().filter_map(record).map(|at| (at, length));
                    let ranges = records.chain([(index, ARENAS * 8)]);
                    return ranges.map(|(at, length)| AddressRange::sized(Avma(at), Bytes(length))).collect();
                }
            }
        }
        Vec::new()
    }
}
