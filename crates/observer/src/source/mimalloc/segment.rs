//! One segment: its slices, and the blocks of its pages. A page's `used` includes blocks that other threads have freed.
//! These blocks are in a list of the page, which the owner takes back when it next needs blocks. The first of them is
//! in a list of the owner instead, and a flag in the page's list says so.

use super::shape::{FREE, HEADER, Header, Record, SLICE, Shape};
use crate::source::heap_data::KnownPages;
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PAGE, PageStates, half_at, word_at};

/// The lowest two bits of a page's list of blocks that other threads freed (mi_delayed_t).
const FLAGS: u64 = 3;
/// One block is in the owner's list.
const NO_DELAYED_FREE: u64 = 2;
/// From this value on, a block size of 32 bits means the whole page.
const HUGE_BLOCK: u64 = 2 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub base: u64,
    pub header: Header,
    pub pages: Vec<Page>,
    pub free: Vec<AddressRange>,
    /// Number of pages whose fields don't contradict each other.
    pub sound: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub range: AddressRange,
    pub block: u64,
    /// Number of blocks that were ever handed out, or are in a list.
    pub capacity: u64,
    pub used: u64,
    record: u64,
    thread_free: u64,
    keys: Option<[u64; 2]>,
}

impl Segment {
    pub(crate) fn range(&self) -> AddressRange {
        AddressRange::sized(Avma(self.base), Bytes(self.header.slices * SLICE))
    }

    /// None if the sums over the slices differ from the header's.
    pub(crate) fn read<M: Memory>(pages: &mut PageStates<'_, M>, base: u64, shape: &Shape) -> Option<Segment> {
        let read = |pages: &mut PageStates<'_, M>, length: usize| {
            pages.read(AddressRange::sized(Avma(base), Bytes(length as u64)))
        };
        let header = shape.header(base, &read(pages, HEADER)?)?;
        let records = if header.is_huge { header.first_slices } else { header.entries };
        let bytes = read(pages, shape.records + (records as usize + 1) * shape.record.bytes)?;
        let header = shape.header(base, &bytes)?;
        let mut segment = Segment { base, header, pages: Vec::new(), free: Vec::new(), sound: 0 };
        let mut slice = 0;
        // A huge segment has only the first slices, and one page after them.
        let end = if header.is_huge { header.slices } else { header.entries };
        while slice < end {
            let at = shape.records + slice as usize * shape.record.bytes;
            let record = bytes.get(at..at + shape.record.bytes)?;
            let (length, offset) = (u64::from(half_at(record, 0)?), half_at(record, 4)?);
            // The last slice of a huge segment may be a guard.
            let is_page = length > 0 && length <= header.slices - slice && offset == 0;
            let is_first = slice > 0 || length == header.first_slices;
            (is_page && is_first).then_some(())?;
            let range = AddressRange::sized(Avma(base + slice * SLICE), Bytes(length * SLICE));
            match block_size(record, &shape.record, range)? {
                0 => segment.free.push(range),
                _ if slice == 0 => {}
                block => {
                    let page = page(base + at as u64, record, &shape.record, range, block)?;
                    segment.sound += usize::from(is_sound(record, &shape.record, &page));
                    segment.pages.push(page);
                }
            }
            slice += length;
            if header.is_huge && slice > header.first_slices {
                break;
            }
        }
        let is_whole = header.is_huge || slice == header.entries;
        // A segment that was given back has one page with the whole rest, which the header doesn't count.
        let free = segment.header.used == 0;
        let is_counted = free || segment.pages.len() as u64 == header.used;
        (is_whole && is_counted).then(|| if free { segment.emptied() } else { segment })
    }

    /// For a segment that was given back: only its header is still valid.
    fn emptied(mut self) -> Segment {
        self.free = vec![self.range()];
        self.pages.clear();
        self
    }
}

fn block_size(record: &[u8], fields: &Record, range: AddressRange) -> Option<u64> {
    let size = match fields.used_is_half {
        true => u64::from(half_at(record, fields.block)?),
        false => word_at(record, fields.block)?,
    };
    Some(if fields.used_is_half && size >= HUGE_BLOCK { range.length().0 } else { size })
}

fn quarter_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from(half_at(bytes, offset)? & 0xffff))
}

fn page(at: u64, record: &[u8], fields: &Record, range: AddressRange, block: u64) -> Option<Page> {
    let used = match fields.used_is_half {
        true => u64::from(half_at(record, fields.used)?),
        false => quarter_at(record, fields.used)?,
    };
    let keys = match fields.keys {
        Some(keys) => Some([word_at(record, keys)?, word_at(record, keys + 8)?]),
        None => None,
    };
    let capacity = quarter_at(record, 10)?;
    let thread_free = word_at(record, fields.thread_free)?;
    Some(Page { range, block, capacity, used, record: at, thread_free, keys })
}

/// Whether the blocks fit into the page, and the page's lists begin inside it.
fn is_sound(record: &[u8], fields: &Record, page: &Page) -> bool {
    let Some(reserved) = quarter_at(record, 12) else { return false };
    let begins = |word: u64| word == 0 || page.range.contains(Avma(word));
    let lists = [FREE, fields.local_free].map(|at| word_at(record, at));
    page.capacity <= reserved
        && page.used <= page.capacity
        && reserved.checked_mul(page.block).is_some_and(|bytes| bytes <= page.range.length().0)
        && lists.iter().all(|list| list.is_some_and(begins))
        && begins(page.thread_free & !FLAGS)
}

impl Page {
    /// Bytes of blocks that are in use; at most the page.
    pub(crate) fn live<M: Memory>(&self, memory: &M, budget: &mut u64) -> Bytes {
        let delayed = u64::from(self.thread_free & FLAGS == NO_DELAYED_FREE);
        let blocks = self.used.saturating_sub(delayed);
        let freed = self.freed_elsewhere(memory, blocks, budget);
        Bytes(self.block.saturating_mul(blocks - freed)).min(self.range.length())
    }

    /// The part of the page, from its start on, that was ever handed out.
    pub(crate) fn extended(&self) -> AddressRange {
        let bytes = self.block.saturating_mul(self.capacity).min(self.range.length().0);
        AddressRange::sized(self.range.start, Bytes(bytes.next_multiple_of(PAGE)))
    }

    /// Number of blocks in the list of those that other threads freed, at most `most`.
    fn freed_elsewhere<M: Memory>(&self, memory: &M, most: u64, budget: &mut u64) -> u64 {
        let mut known = KnownPages::default();
        let mut at = self.thread_free & !FLAGS;
        let mut count = 0;
        while count < most && at != 0 && *budget > 0 {
            *budget -= 1;
            let Some(link) = self.link(memory, &mut known, at) else { break };
            count += 1;
            at = self.next(link);
        }
        count
    }

    /// The first word of a block.
    fn link<M: Memory>(&self, memory: &M, known: &mut KnownPages, at: u64) -> Option<u64> {
        self.range.contains(Avma(at)).then_some(())?;
        word_at(known.page(memory, at / PAGE)?, (at % PAGE) as usize)
    }

    /// The address that a link stands for (mi_ptr_decode). A build that has keys only for padding doesn't encode links.
    /// Null is encoded as the address of the page's record.
    fn next(&self, link: u64) -> u64 {
        match self.keys {
            Some([first, second]) if link != 0 && !self.range.contains(Avma(link)) => {
                let decoded = link.wrapping_sub(first).rotate_right((first % 64) as u32) ^ second;
                if decoded == self.record { 0 } else { decoded }
            }
            _ => link,
        }
    }
}
