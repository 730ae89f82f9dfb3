//! Offsets of the fields in a segment's header and in a page's record, by build (mimalloc/types.h).
//!
//! The header up to the records. The walk reads the fields in capitals, and from 2.1 on the memory id:
//!
//! ```text
//! memory id, masks, …  USED  COOKIE  [two links]  SLICES  FIRST SLICES  KIND  ENTRIES, owner (or reversed)  records …
//!                      ▲ 8 bytes before the cookie                                                          ▲ here
//! ```

use plimsoll_process::proc::memory::{half_at, word_at};

pub(crate) const SLICE: u64 = 64 << 10;
/// Before the records: 264 bytes in 2.0.9, at most 392 elsewhere.
pub(crate) const HEADER: usize = 512;
/// Maximum number of slices that is plausible for a segment: the field has 32 bits, but no process has larger segments.
const MOST_SLICES: u64 = (1 << 47) / SLICE;
/// From 2.1 on, a memory id has the arena's number and the segment's place in it (mi_memid_t).
const MEMORY_KIND: usize = 20;
const KIND_ARENA: u32 = 6;

/// Offsets of the fields in a page's record. Each record begins with slices (4 bytes), offset (4), flags (2),
/// capacity (2), reserved (2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    pub bytes: usize,
    /// 32 bits up to 2.1.6, then 16.
    pub used: usize,
    pub used_is_half: bool,
    /// Offset of the block size. It has the width of `used`, or is a word.
    pub block: usize,
    pub local_free: usize,
    pub thread_free: usize,
    /// In secure and debug builds: the keys with which links of free blocks are encoded.
    pub keys: Option<usize>,
}

pub(crate) const FREE: usize = 16;

const fn until_2_1_6(keys: Option<usize>, lists: usize) -> Record {
    let (used, more) = if lists == 0 { (24, 16) } else { (40, 0) };
    let (bytes, thread_free) = match keys {
        None => (80, 40),
        Some(_) => (96, 40 + more + lists),
    };
    Record { bytes, used, used_is_half: true, block: used + 4, local_free: used + 8, thread_free, keys }
}

const fn since_2_1_7(keys: Option<usize>) -> Record {
    let more = if keys.is_some() { 16 } else { 0 };
    Record { bytes: 96 + more, used: 32, used_is_half: false, block: 40, local_free: 24, thread_free: 56 + more, keys }
}

/// Without keys; with keys after the lists; with keys between the lists (before 2.0.9).
pub(crate) const RECORDS: [Record; 5] = [
    until_2_1_6(None, 0),
    since_2_1_7(None),
    until_2_1_6(Some(40), 0),
    until_2_1_6(Some(24), 16),
    since_2_1_7(Some(56)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub record: Record,
    /// Where the records begin.
    pub records: usize,
    pub cookie: usize,
    pub entries: usize,
    /// Slices of a normal segment.
    pub slices: u64,
}

/// A header's fields that are the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub used: u64,
    /// Address XOR cookie.
    pub secret: u64,
    pub slices: u64,
    pub first_slices: u64,
    pub is_huge: bool,
    pub entries: u64,
}

impl Shape {
    /// All shapes under which the header at `base` doesn't contradict itself.
    pub(crate) fn of(base: u64, header: &[u8]) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for records in (128..=HEADER).step_by(8) {
            for (links, slices) in [(0, 512), (16, 512), (0, 1024)] {
                for entries in [records - 16, records - 8] {
                    let Some(cookie) = records.checked_sub(48 + links) else { continue };
                    let shape = Shape { record: RECORDS[0], records, cookie, entries, slices };
                    if shape.header(base, header).is_some() {
                        shapes.extend(RECORDS.map(|record| Shape { record, ..shape }));
                    }
                }
            }
        }
        shapes
    }

    /// None if the fields contradict each other.
    pub(crate) fn header(&self, base: u64, bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| word_at(bytes, at);
        let behind = self.records - 40;
        let kind = half_at(bytes, behind + 16)?;
        let header = Header {
            used: word(self.cookie - 8)?,
            secret: word(self.cookie)? ^ base,
            slices: word(behind)?,
            first_slices: word(behind + 8)?,
            is_huge: kind == 1,
            entries: word(self.entries)?,
        };
        let alignment = self.slices * SLICE;
        let most = header.slices.min(self.slices);
        // A secure build keeps the last slice as a guard.
        let is_whole = header.entries <= most && most - header.entries <= 1;
        let is_kind = match header.is_huge {
            true => header.used <= 1 && header.slices <= MOST_SLICES,
            false => header.slices == self.slices && header.used < header.slices,
        };
        let is_first =
            header.first_slices > 0 && header.first_slices < header.slices && header.first_slices <= self.slices;
        let fits = base.is_multiple_of(alignment) && kind <= 1 && is_whole && is_kind && is_first;
        (fits && word(self.cookie)? != 0).then_some(header)
    }

    /// Start of the arena that the segment was cut from. Before 2.1, other fields are at these offsets, so the caller
    /// must find the arena's own record too.
    pub(crate) fn arena(&self, base: u64, header: &[u8]) -> Option<u64> {
        let is_arena = half_at(header, MEMORY_KIND)? == KIND_ARENA;
        let slice = word_at(header, 0).filter(|slice| is_arena && *slice < MOST_SLICES / self.slices)?;
        base.checked_sub(slice * self.slices * SLICE)
    }
}
