//! The records of spans (mheap.go, `mspan`), from Go 1.21 on, and the list of them after the page allocator:
//!
//! ```text
//! 0 next   8 previous   16 list   24 start   32 pages   …   allocated bits   marked bits   pinned bits
//! generation u32   u32   objects u16   class u8   state u8   …   object size   end of objects   …
//! ```
//!
//! From the allocated bits on, the offsets depend on the version. The end of the objects is found by search, and gives
//! the other offsets. In a span of small objects, that end is the start plus a whole number of objects of the size in
//! the word before it. In the span of a large object, it lies inside the span.

use super::pages::{PAGE_OF_GO, Pages};
use crate::source::heap_data::{Anonymous, Data, records, words};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates, half_at, word_at};

pub(crate) const RECORD: usize = 144;
const START: usize = 24;
const COUNT: usize = 32;
/// Possible offsets of the end of the objects: 112 from Go 1.22 on, 120 before.
const ENDS: [usize; 4] = [112, 120, 104, 128];
const AGREE_AT_LEAST: usize = 95;
/// Number of words after the page allocator in which the list is searched for.
const LIST_WITHIN: usize = 64;
/// Limit of records, which include those of past spans: at least 32 GiB of heap.
const MOST_SPANS: u64 = 1 << 22;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// One large object, or small ones of one size.
    Objects,
    /// Stacks have a block size; the collector's work buffers, the other spans without objects, have none.
    Stacks,
    WorkBuffers,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub start: u64,
    pub pages: u64,
    pub state: State,
    /// Bytes of live objects, and of dead ones that weren't swept yet.
    pub live: u64,
}

impl Span {
    pub(crate) fn range(&self) -> AddressRange {
        AddressRange::sized(Avma(self.start), Bytes(self.pages * PAGE_OF_GO))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// By address.
    pub all: Vec<Span>,
    /// Addresses of the records, sorted.
    pub records: Vec<u64>,
    /// Pages that hold bits of objects, sorted.
    pub bits: Vec<u64>,
    /// The list itself.
    pub list: AddressRange,
}

/// All spans of the list after the page allocator in the data.
pub(crate) fn find<M: Memory>(memory: &M, data: &Data, pages: &Pages, anonymous: &Anonymous) -> Option<Spans> {
    (pages.end..pages.end + LIST_WITHIN).find_map(|at| {
        // Read again: the list moves and grows with the heap.
        let mut fresh = [0; 24];
        memory.read(Avma(data.base.0 + 8 * at as u64), &mut fresh).then_some(())?;
        let word = |number: usize| word_at(&fresh, 8 * number);
        let (address, length, capacity) = (word(0)?, word(1)?, word(2)?);
        let could_be = (1..=capacity).contains(&length)
            && length <= MOST_SPANS
            && capacity <= 4 * MOST_SPANS
            && address.is_multiple_of(8)
            && anonymous.holds(address, capacity * 8);
        could_be.then_some(())?;
        let bytes = PageStates::new(memory).read(AddressRange::sized(Avma(address), Bytes(length * 8)))?;
        let list = AddressRange::sized(Avma(address), Bytes((capacity * 8).next_multiple_of(PAGE)));
        read(memory, &bytes, list, pages, anonymous)
    })
}

fn read<M: Memory>(memory: &M, list: &[u8], at: AddressRange, pages: &Pages, anonymous: &Anonymous) -> Option<Spans> {
    let entries: Vec<(u64, ())> = words(list).map(|record| (record, ())).collect();
    let is_record = |(record, ()): &(u64, ())| record.is_multiple_of(8) && anonymous.holds(*record, RECORD as u64);
    entries.iter().all(is_record).then_some(())?;
    let end = end_of_objects(memory, &entries, pages)?;
    let mut found = Spans { list: at, ..Spans::default() };
    records(memory, entries, RECORD, |record, (), bytes| {
        found.records.push(record);
        let Some(span) = decoded(bytes, end, pages) else { return };
        if span.state == State::Objects {
            let bits = [end - 48, end - 40].into_iter().filter_map(|at| word_at(bytes, at));
            found.bits.extend(bits.map(|bits| bits / PAGE));
        }
        found.all.push(span);
    });
    found.all.sort_unstable_by_key(|span| span.start);
    found.bits.sort_unstable();
    found.bits.dedup();
    Some(found)
}

/// Start and number of pages, if these lie in the heap.
fn start_and_count(bytes: &[u8], pages: &Pages) -> Option<(u64, u64)> {
    let (start, count) = (word_at(bytes, START)?, word_at(bytes, COUNT)?);
    let length = count.checked_mul(PAGE_OF_GO).filter(|length| *length > 0)?;
    let after = pages.in_use.partition_point(|range| range.start.0 <= start);
    let within = pages.in_use[..after].last()?;
    let fits = start.is_multiple_of(PAGE_OF_GO) && length <= within.end.0.checked_sub(start)?;
    fits.then_some((start, count))
}

/// The offset at which nearly all records of spans with objects have the end of the objects.
fn end_of_objects<M: Memory>(memory: &M, entries: &[(u64, ())], pages: &Pages) -> Option<usize> {
    let mut agreeing = ENDS.map(|_| (0, 0));
    records(memory, entries.to_vec(), RECORD, |_, (), bytes| {
        let Some((start, count)) = start_and_count(bytes, pages) else { return };
        for (sums, end) in agreeing.iter_mut().zip(ENDS) {
            let (Some(state), Some(size), Some(end)) =
                (bytes.get(end - 13), word_at(bytes, end - 8), word_at(bytes, end))
            else {
                continue;
            };
            if *state == 1 {
                sums.0 += 1;
                let objects = end.wrapping_sub(start);
                let length = count * PAGE_OF_GO;
                // A large object may be shorter than its span.
                let is_whole = size > 0 && objects.is_multiple_of(size) || size == length;
                let is_end = objects > 0 && objects <= length && is_whole;
                sums.1 += usize::from(is_end);
            }
        }
    });
    let best = agreeing.into_iter().zip(ENDS).max_by_key(|((_, agreeing), _)| *agreeing);
    best.filter(|((all, agreeing), _)| *agreeing > 0 && agreeing * 100 >= all * AGREE_AT_LEAST).map(|(_, end)| end)
}

fn decoded(bytes: &[u8], end: usize, pages: &Pages) -> Option<Span> {
    let (start, count) = start_and_count(bytes, pages)?;
    let (size, counts) = (word_at(bytes, end - 8)?, half_at(bytes, end - 16)?);
    let length = count * PAGE_OF_GO;
    let objects = u64::from(counts & 0xffff);
    let (state, live) = match counts >> 24 {
        1 => (State::Objects, objects.saturating_mul(size).min(length)),
        2 if size == 0 => (State::WorkBuffers, 0),
        2 => (State::Stacks, 0),
        _ => return None,
    };
    Some(Span { start, pages: count, state, live })
}
