//! Sums over all extents in address order, with each extent's resident pages. The blocks of jemalloc's own records
//! (base.c) are found through the records inside them:
//!
//! ```text
//! block: at a multiple of 2 MiB     0 size, a multiple of 2 MiB     8 next block, or 0
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::extent::{ExtentLayout, ExtentRecord, ExtentState};
use super::tree::{self, Budget, LeafEntry, RECORD_HEAD, Shape, Tree};
use crate::source::heap_data::{Anonymous, Data, joined};
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};

const BLOCK: u64 = 2 << 20;
/// Maximum length of a block of records.
const LONGEST_BLOCK: u64 = 1 << 30;
/// How many records of runs decide on the layout, and how many others; at least `LEAST_OF_LEAF` of each leaf.
const SAMPLE: usize = 1 << 14;
const LEAST_OF_LEAF: usize = 64;
/// Limits of the walk: reads of the leaves of 2 TiB of heap (1 TiB with elements of two words). Untouched pages may be
/// those of as many leaves as a tree may have.
const LEAVES: Budget = Budget { reads: 1 << 20, looks: 1 << 25 };
/// Percentage of records that may contradict themselves, because the target runs while they are read.
const CONTRADICTIONS: u64 = 5;

/// Why the heap can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    NoTree,
    UnknownRecords,
    Contradictions,
    Unreadable,
}

impl WalkError {
    pub const fn reason(self) -> &'static str {
        match self {
            WalkError::NoTree => "no radix tree of extents was found in its data",
            WalkError::UnknownRecords => "the records of its extents have an unknown layout",
            WalkError::Contradictions => "the records of its extents contradict each other",
            WalkError::Unreadable => "its records can't be read",
        }
    }
}

pub fn walk<M: Memory>(memory: &M, data: &[Data], anonymous: &Anonymous) -> Result<OtherHeap, WalkError> {
    let mut pages = PageStates::new(memory);
    let Tree { shape, leaves } = tree::find(memory, &mut pages, data, anonymous).ok_or(WalkError::NoTree)?;
    let sample = sample(memory, &mut pages, shape, &leaves, anonymous)?;
    let layout = ExtentLayout::of(&sample).ok_or(WalkError::UnknownRecords)?;
    drop(sample);

    let mut sums = HeapSums { heap: OtherHeap::new(AllocatorKind::Jemalloc), read: 0, contradictions: 0 };
    let mut blocks = RecordBlocks::default();
    let mut budget = LEAVES;
    for (number, leaf) in leaves {
        blocks.candidates.insert(leaf / BLOCK);
        for record in records(memory, &mut pages, shape, (number, leaf), &mut budget, &mut blocks)? {
            sums.add(record, layout, anonymous, &mut pages);
        }
    }
    if sums.contradictions * 100 > sums.read * CONTRADICTIONS {
        return Err(WalkError::Contradictions);
    }
    let mut heap = sums.heap;
    for block in blocks.found(memory, &mut pages, anonymous, &heap.ranges) {
        heap.add(HeapPart::Records, block.length(), pages.resident(block));
        heap.ranges.push(block);
    }
    heap.ranges.sort_unstable();
    heap.ranges = joined(heap.ranges);
    if pages.readable { Ok(heap) } else { Err(WalkError::Unreadable) }
}

/// Samples records of all leaves: those of one part of the heap may all fit several layouts, as runs of one class do.
/// Runs outnumber the records that decide best, so runs are thinned out separately.
fn sample<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    shape: Shape,
    leaves: &BTreeMap<u64, u64>,
    anonymous: &Anonymous,
) -> Result<Vec<ExtentRecord>, WalkError> {
    let of_leaf = (SAMPLE / leaves.len().max(1)).max(LEAST_OF_LEAF);
    let mut sample = Vec::new();
    let mut budget = LEAVES;
    for (number, leaf) in leaves {
        let mut blocks = RecordBlocks::default();
        let mut records = records(memory, pages, shape, (*number, *leaf), &mut budget, &mut blocks)?;
        records.retain(|record| anonymous.holds(record.start, record.length));
        let (runs, others): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| record.small);
        for part in [runs, others] {
            let step = part.len().div_ceil(of_leaf).max(1);
            sample.extend(part.into_iter().step_by(step));
        }
    }
    Ok(sample)
}

/// The records of the extents that begin in a leaf's range, by address. Extents whose end another leaf enters belong to
/// that leaf.
fn records<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    shape: Shape,
    (number, leaf): (u64, u64),
    budget: &mut Budget,
    blocks: &mut RecordBlocks,
) -> Result<Vec<ExtentRecord>, WalkError> {
    let mut entries: Vec<LeafEntry> = Vec::new();
    let whole = tree::for_each(memory, pages, shape, leaf, number << shape.covers(), budget, |entry| {
        // The first page of an extent comes first.
        if entries.last().is_none_or(|last| last.record != entry.record) {
            entries.push(entry);
        }
        true
    });
    if !whole {
        return Err(WalkError::Unreadable);
    }
    // Records lie side by side in blocks: one read per page.
    entries.sort_unstable_by_key(|entry| entry.record);
    let mut records = Vec::with_capacity(entries.len());
    let mut page = [0; PAGE as usize];
    let mut at = None;
    for entry in entries {
        let base = entry.record / PAGE * PAGE;
        if at != Some(base) {
            if !memory.read(Avma(base), &mut page) {
                at = None;
                continue;
            }
            at = Some(base);
        }
        let from = (entry.record - base) as usize;
        let Some(head) = page.get(from..from + RECORD_HEAD as usize) else { continue };
        let word = |offset| word_at(head, offset).unwrap_or_default();
        let (start, length) = (word(8) / PAGE * PAGE, word(16) / PAGE * PAGE);
        if start == entry.page && length > 0 {
            blocks.candidates.insert(entry.record / BLOCK);
            records.push(ExtentRecord { bits: word(0), start, length, class: entry.class, small: entry.small });
        }
    }
    records.sort_unstable_by_key(|record| record.start);
    Ok(records)
}

struct HeapSums {
    heap: OtherHeap,
    read: u64,
    contradictions: u64,
}

impl HeapSums {
    fn add<M: Memory>(
        &mut self,
        record: ExtentRecord,
        layout: ExtentLayout,
        anonymous: &Anonymous,
        pages: &mut PageStates<'_, M>,
    ) {
        self.read += 1;
        let range = AddressRange::sized(Avma(record.start), Bytes(record.length));
        let overlaps = self.heap.ranges.last().is_some_and(|last| last.end > range.start);
        if overlaps || !anonymous.holds(record.start, record.length) {
            self.contradictions += 1;
            return;
        }
        match self.heap.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.heap.ranges.push(range),
        }
        let (length, resident) = (range.length(), pages.resident(range));
        let part = match layout.state(&record) {
            Some(ExtentState::Live(live)) => {
                let live = Bytes(live).min(length);
                let touched = if record.small { resident.scaled(live.0, length.0) } else { live.min(resident) };
                self.heap.add(HeapPart::Live, live, touched);
                self.heap.add(HeapPart::Beside, length - live, resident - touched);
                return;
            }
            Some(ExtentState::Dirty) => HeapPart::Dirty,
            Some(ExtentState::Muzzy) => HeapPart::Muzzy,
            Some(ExtentState::Retained) => HeapPart::Released,
            Some(ExtentState::Moving) => HeapPart::Unknown,
            None => {
                self.contradictions += 1;
                HeapPart::Unknown
            }
        };
        self.heap.add(part, length, resident);
    }
}

/// Blocks of records, by the number of their 2 MiB unit.
#[derive(Default)]
struct RecordBlocks {
    candidates: BTreeSet<u64>,
}

impl RecordBlocks {
    /// Returns those with a valid header, in address order. `extents` never share pages with them.
    fn found<M: Memory>(
        self,
        memory: &M,
        pages: &mut PageStates<'_, M>,
        anonymous: &Anonymous,
        extents: &[AddressRange],
    ) -> Vec<AddressRange> {
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        let mut open: Vec<u64> = self.candidates.into_iter().map(|unit| unit * BLOCK).collect();
        let mut known = BTreeSet::new();
        while let Some(unit) = open.pop() {
            if !known.insert(unit) || found.range(..=unit).next_back().is_some_and(|(_, end)| *end > unit) {
                continue;
            }
            let starts = (0..LONGEST_BLOCK / BLOCK).map_while(|back| unit.checked_sub(back * BLOCK));
            let headers = starts.take_while(|start| anonymous.holds(*start, 16));
            let block =
                headers.filter_map(|start| header(memory, pages, anonymous, start)).find(|block| block.1 > unit);
            let Some((start, end, next)) = block else { continue };
            let range = AddressRange::new(Avma(start), Avma(end));
            let after = extents.partition_point(|extent| extent.end <= range.start);
            let is_separate = extents.get(after).is_none_or(|extent| extent.start >= range.end);
            let new = found.range(..end).next_back().is_none_or(|(_, before)| *before <= start);
            if is_separate && new {
                found.insert(start, end);
                open.extend((next != 0).then_some(next));
            }
        }
        found.into_iter().map(|(start, end)| AddressRange::new(Avma(start), Avma(end))).collect()
    }
}

/// Start, end and successor of the block at `start`, if it is one.
fn header<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    anonymous: &Anonymous,
    start: u64,
) -> Option<(u64, u64, u64)> {
    let mut head = [0; 16];
    let touched = pages.of(start / PAGE) != PageState::Absent;
    (touched && memory.read(Avma(start), &mut head)).then_some(())?;
    let (size, next) = (word_at(&head, 0)?, word_at(&head, 8)?);
    let holds = size > 0
        && size <= LONGEST_BLOCK
        && size.is_multiple_of(BLOCK)
        && next.is_multiple_of(BLOCK)
        && anonymous.holds(start, size);
    holds.then(|| (start, start + size, next))
}
