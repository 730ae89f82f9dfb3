//! Block sizes by size class (common.h, SizeMap): 32-bit numbers from 0 for class 0, increasing, then zeros. An array
//! of the same length before it has the number of blocks of each class that move between caches at once.

use super::pagemap::{Span, SpanState};
use crate::source::heap_data::Data;

/// A build has 86 to 127 classes.
const CLASSES: std::ops::RangeInclusive<usize> = 24..=256;
const LARGEST_AT_LEAST: u32 = 8 << 10;
const LARGEST: u32 = 1 << 20;
/// Percentage of spans that must hold whole blocks of their class.
const AGREE_AT_LEAST: usize = 95;
/// Number of spans that a table is compared with, spread evenly over all of them; and limit of tables that are
/// compared. In a process, one or two are; in hostile data, 700,000.
pub(crate) const COMPARED: usize = 1 << 12;
pub(crate) const MOST_TABLES: usize = 1 << 12;
/// Bytes that move at once, at least 2 blocks (SizeMap::NumMoveSize).
const MOVED: u32 = 64 << 10;

pub(crate) struct BlockSizes {
    /// Block size by class; class 0 has none.
    pub bytes: Vec<u64>,
    /// Blocks per batch of the transfer cache, if the array was found.
    pub batch: Option<Vec<u64>>,
}

/// The table that agrees with the spans of small blocks.
pub(crate) fn find(data: &[Data], spans: &[Span]) -> Option<BlockSizes> {
    let is_small = |span: &&Span| span.state == SpanState::InUse && span.class != 0;
    let small: Vec<&Span> = spans.iter().filter(is_small).collect();
    let compared: Vec<&Span> = small.iter().copied().step_by(small.len().div_ceil(COMPARED).max(1)).collect();
    let agreeing = |sizes: &[u32]| compared.iter().filter(|span| fits(span, sizes)).count();
    let mut tables = 0;
    let mut best: Option<(usize, BlockSizes)> = None;
    for Data { bytes, .. } in data {
        let numbers: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number)).collect();
        let mut at = 0;
        while let Some(found) = numbers[at..].windows(3).position(is_begin) {
            at += found;
            let length = 1 + numbers[at..].windows(2).take_while(|pair| pair[0] < pair[1]).count();
            let sizes = &numbers[at..at + length];
            let last = sizes.last().copied().unwrap_or_default();
            if CLASSES.contains(&length) && (LARGEST_AT_LEAST..=LARGEST).contains(&last) && tables < MOST_TABLES {
                tables += 1;
                let count = agreeing(sizes);
                if count * 100 >= compared.len() * AGREE_AT_LEAST && best.as_ref().is_none_or(|(most, _)| count > *most)
                {
                    let batch = batches(&numbers[..at], sizes);
                    let bytes = sizes.iter().map(|size| u64::from(*size)).collect();
                    best = Some((count, BlockSizes { bytes, batch }));
                }
            }
            at += 1;
        }
    }
    best.map(|(_, sizes)| sizes)
}

/// Class 0, then the two smallest: 8 or 16 bytes, and a multiple of 8.
fn is_begin(numbers: &[u32]) -> bool {
    matches!(*numbers, [0, smallest, next] if (smallest == 8 || smallest == 16) && next > smallest && next.is_multiple_of(8))
}

/// tcmalloc chooses a span's length so that at most an eighth is left over.
fn fits(span: &Span, sizes: &[u32]) -> bool {
    let length = span.range.length().0;
    let size = sizes.get(usize::from(span.class)).copied().map(u64::from);
    size.is_some_and(|size| span.blocks <= length / size && length % size * 8 <= length)
}

fn batches(before: &[u32], sizes: &[u32]) -> Option<Vec<u64>> {
    CLASSES.filter(|length| *length >= sizes.len()).find_map(|length| {
        let from = before.len().checked_sub(length)?;
        let batch = &before[from..from + sizes.len()];
        let most = batch[1];
        let holds = |(size, batch): (&u32, &u32)| *batch == (MOVED / size).max(2).min(most);
        let is_table = most >= 2 && sizes.iter().zip(batch).skip(1).all(holds);
        is_table.then(|| batch.iter().map(|blocks| u64::from(*blocks)).collect())
    })
}
