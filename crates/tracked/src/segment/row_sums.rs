//! Rows after both readings; and blocks that the tracker booked twice. A native image with NMT writes its category into
//! a block after malloc has returned, and the tracker then books the block again, under that category (the tracker's
//! `account/pending.rs`).
//!
//! ```text
//!                      alloc   free                          alloc   free
//! entry of its code      100    100   of them 70 were moved     30     30
//! entry of the VM's       70     50                             70     50
//! ```
//! Live figures are right either way. The sum of both `alloc` counts a moved block twice. So what came into an entry
//! with the mark [`CALLER_MOVED`] is taken from both sides of the entry with the same frames.

use std::collections::HashMap;
use std::hash::Hash;

use plimsoll_segment::{CALLER_MOVED, CallerFacts, SiteSamplesFacts, sites};

/// A row after both readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSums {
    pub caller: u32,
    /// Index of the thread slot.
    pub slot: u32,
    pub alloc_count: u64,
    pub alloc_bytes: u64,
    pub alloc_requested: u64,
    pub free_count: u64,
    pub free_bytes: u64,
    pub free_requested: u64,
}

impl RowSums {
    /// The allocated and the freed side of a column: count, bytes or requested bytes.
    fn sides(&mut self, column: usize) -> (&mut u64, &mut u64) {
        match column {
            0 => (&mut self.alloc_count, &mut self.free_count),
            1 => (&mut self.alloc_bytes, &mut self.free_bytes),
            _ => (&mut self.alloc_requested, &mut self.free_requested),
        }
    }
}

/// What a caller or a site is, apart from its category.
type Origin = ([u64; 8], u32);

pub(super) fn count_moved_blocks_once(
    rows: &mut [RowSums],
    site_samples: &mut [SiteSamplesFacts],
    callers: &[CallerFacts],
) {
    let is_moved =
        |index: usize| callers.get(sites::caller_of(callers, index)).is_some_and(|of| of.flags & CALLER_MOVED != 0);
    if !rows.iter().any(|row| is_moved(row.caller as usize)) {
        return;
    }
    let origin = |index: usize| -> Option<Origin> {
        let entry = callers.get(index)?;
        let stack = if entry.is_site() { entry.stack } else { 0 };
        Some((callers.get(sites::caller_of(callers, index))?.frames, stack))
    };
    let key = |row: &RowSums| Some((row.slot, origin(row.caller as usize)?));
    take_moved(rows, |row| is_moved(row.caller as usize), key);
    let (mut samples, mut moved) = (HashMap::new(), Vec::new());
    for (index, entry) in callers.iter().enumerate() {
        if let (Some(of_site), Some(origin)) = (entry.samples(), origin(index)) {
            match is_moved(index) {
                true => moved.push((of_site, origin)),
                false => drop(samples.entry(origin).or_insert(of_site)),
            }
        }
    }
    for (index, origin) in moved {
        let (Some(came), Some(from)) = (site_samples.get(index).cloned(), samples.get(&origin)) else { continue };
        if let Some(from) = site_samples.get_mut(*from) {
            take_samples(from, &came);
        }
    }
}

/// Takes the figures of moved rows from the other rows with the same key. Returns how often a row was visited for a
/// column. Only a segment from elsewhere has several rows with one key, but it may have a million of them.
fn take_moved<K: Hash + Eq>(
    rows: &mut [RowSums],
    is_moved: impl Fn(&RowSums) -> bool,
    key: impl Fn(&RowSums) -> Option<K>,
) -> usize {
    let moved: Vec<RowSums> = rows.iter().filter(|row| is_moved(row)).cloned().collect();
    let mut givers: HashMap<K, Givers> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        if let (false, Some(key)) = (is_moved(row), key(row)) {
            givers.entry(key).or_default().rows.push(index);
        }
    }
    let mut visits = 0;
    for row in &moved {
        if let Some(givers) = key(row).and_then(|key| givers.get_mut(&key)) {
            visits += givers.give(rows, row);
        }
    }
    visits
}

/// Rows with one key that aren't moved ones.
#[derive(Default)]
struct Givers {
    rows: Vec<usize>,
    /// For each column, how many of the rows can't give any more.
    exhausted: [usize; 3],
}

impl Givers {
    /// Takes as much from both sides of each row as both have, until `came` is taken: so live stays as it is. Returns
    /// the number of visits.
    fn give(&mut self, rows: &mut [RowSums], came: &RowSums) -> usize {
        let mut visits = 0;
        let left = [came.alloc_count, came.alloc_bytes, came.alloc_requested];
        for (column, (mut left, exhausted)) in left.into_iter().zip(&mut self.exhausted).enumerate() {
            while let Some(index) = self.rows.get(*exhausted).filter(|_| left > 0) {
                let (alloc, free) = rows[*index].sides(column);
                let taken = left.min(*alloc).min(*free);
                (*alloc, *free, left) = (*alloc - taken, *free - taken, left - taken);
                *exhausted += usize::from((*alloc).min(*free) == 0);
                visits += 1;
            }
        }
        visits
    }
}

fn take_samples(from: &mut SiteSamplesFacts, came: &SiteSamplesFacts) {
    for (alloc, free, came) in [
        (&mut from.alloc_samples, &mut from.free_samples, came.alloc_samples),
        (&mut from.alloc_bytes, &mut from.free_bytes, came.alloc_bytes),
        (&mut from.alloc_requested, &mut from.free_requested, came.alloc_requested),
        (&mut from.alloc_count_256, &mut from.free_count_256, came.alloc_count_256),
    ] {
        let taken = came.min(*alloc).min(*free);
        (*alloc, *free) = (*alloc - taken, *free - taken);
    }
    for (size, came) in from.sizes_256.iter_mut().zip(&came.sizes_256) {
        *size = size.saturating_sub(*came);
    }
    for (alloc, free, came) in [
        (&mut from.alloc_bytes_variance, &mut from.free_bytes_variance, came.alloc_bytes_variance),
        (&mut from.alloc_count_variance, &mut from.free_count_variance, came.alloc_count_variance),
    ] {
        let taken = f64::from_bits(came).min(f64::from_bits(*alloc)).min(f64::from_bits(*free)).max(0.0);
        for side in [alloc, free] {
            *side = (f64::from_bits(*side) - taken).to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_segment::{CALLER_SITE, Caller, SiteSamples};

    fn entry(flags: u32, frame: u64) -> CallerFacts {
        let facts = CallerFacts::decode(&[0; size_of::<Caller>()]).expect("zeros decode");
        CallerFacts { flags, frames: [frame, 0, 0, 0, 0, 0, 0, 0], ..facts }
    }

    fn site(parent: u32, stack: u32, samples: u64) -> CallerFacts {
        CallerFacts { parent, stack, flags: CALLER_SITE, ..entry(0, samples) }
    }

    fn row(caller: u32, slot: u32, alloc: u64, free: u64) -> RowSums {
        RowSums {
            caller,
            slot,
            alloc_count: alloc,
            alloc_bytes: alloc * 64,
            alloc_requested: alloc * 60,
            free_count: free,
            free_bytes: free * 64,
            free_requested: free * 60,
        }
    }

    fn samples(site: u32, alloc: u64, free: u64) -> SiteSamplesFacts {
        let facts = SiteSamplesFacts::decode(&[0; size_of::<SiteSamples>()]).expect("zeros decode");
        SiteSamplesFacts {
            site,
            alloc_samples: alloc,
            free_samples: free,
            alloc_bytes: alloc * 64,
            free_bytes: free * 64,
            alloc_bytes_variance: (alloc as f64).to_bits(),
            free_bytes_variance: (free as f64).to_bits(),
            sizes_256: [alloc; 16],
            ..facts
        }
    }

    fn live(rows: &[RowSums]) -> u64 {
        rows.iter().map(|row| row.alloc_bytes - row.free_bytes).sum()
    }

    #[test]
    fn a_block_that_moved_to_the_vms_category_was_allocated_once() {
        // 0: of code; 1: the VM's, with its frames; 2: of other code; sites 3 of 0 and 4 of 1, with one stack.
        let callers = [entry(0, 7), entry(CALLER_MOVED, 7), entry(0, 8), site(0, 5, 1), site(1, 5, 2)];
        let mut rows = [
            row(0, 0, 100, 100),
            row(1, 0, 70, 50),
            row(2, 0, 9, 9),
            row(0, 1, 40, 3),
            row(3, 0, 20, 20),
            row(4, 0, 20, 1),
        ];
        let mut of_sites = [samples(0, 0, 0), samples(3, 20, 20), samples(4, 15, 1)];
        let before = live(&rows);
        count_moved_blocks_once(&mut rows, &mut of_sites, &callers);
        let expected = [
            row(0, 0, 30, 30),
            row(1, 0, 70, 50),
            row(2, 0, 9, 9),
            row(0, 1, 40, 3),
            row(3, 0, 0, 0),
            row(4, 0, 20, 1),
        ];
        assert_eq!((rows, live(&rows)), (expected, before));
        assert_eq!(of_sites, [samples(0, 0, 0), samples(3, 5, 5), samples(4, 15, 1)]);
    }

    #[test]
    fn no_figure_falls_below_zero_where_readings_are_of_two_moments() {
        let mut rows = [row(0, 0, 10, 8), row(1, 0, 9, 0)];
        count_moved_blocks_once(&mut rows, &mut [], &[entry(0, 7), entry(CALLER_MOVED, 7)]);
        assert_eq!(rows, [row(0, 0, 2, 0), row(1, 0, 9, 0)]);
    }

    /// Rows of a hostile segment: all have one key. A visit of each for each moved row would take minutes.
    #[test]
    fn rows_with_one_key_are_visited_once_or_once_for_each_moved_row() {
        const NUMBER: usize = 300;
        let plain = |alloc, free| RowSums { free_requested: free * 7, ..row(0, 1, alloc, free) };
        let mut rows: Vec<RowSums> = (0..NUMBER as u64).map(|n| plain(2 * n % 5, n % 3)).collect();
        rows.extend((0..NUMBER as u64).map(|n| row(1, 1, n % 4, n % 2)));
        // Each moved row takes from each other row, in their order.
        let mut twin = rows.clone();
        let (to, moved) = twin.split_at_mut(NUMBER);
        for came in moved {
            for (column, mut left) in [came.alloc_count, came.alloc_bytes, came.alloc_requested].into_iter().enumerate()
            {
                for from in &mut *to {
                    let (alloc, free) = from.sides(column);
                    let taken = left.min(*alloc).min(*free);
                    (*alloc, *free, left) = (*alloc - taken, *free - taken, left - taken);
                }
            }
        }
        let visits = take_moved(&mut rows, |row| row.caller == 1, |row| Some(row.slot));
        assert_eq!(rows, twin);
        assert!(visits > 2 * NUMBER && visits <= 3 * 2 * NUMBER, "{visits}");
    }
}
