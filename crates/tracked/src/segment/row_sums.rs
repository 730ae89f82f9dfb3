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

/// What a caller or a site is, apart from its category.
type Origin = ([u64; 8], u32);

pub(super) fn count_moved_blocks_once(
    rows: &mut [RowSums],
    site_samples: &mut [SiteSamplesFacts],
    callers: &[CallerFacts],
) {
    let is_moved =
        |index: usize| callers.get(sites::caller_of(callers, index)).is_some_and(|of| of.flags & CALLER_MOVED != 0);
    let moved: Vec<RowSums> = rows.iter().filter(|row| is_moved(row.caller as usize)).cloned().collect();
    if moved.is_empty() {
        return;
    }
    let origin = |index: usize| -> Option<Origin> {
        let entry = callers.get(index)?;
        let stack = if entry.is_site() { entry.stack } else { 0 };
        Some((callers.get(sites::caller_of(callers, index))?.frames, stack))
    };
    let mut by_origin: HashMap<(u32, Origin), Vec<usize>> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        if let (false, Some(origin)) = (is_moved(row.caller as usize), origin(row.caller as usize)) {
            by_origin.entry((row.slot, origin)).or_default().push(index);
        }
    }
    for mut left in moved {
        let Some(origin) = origin(left.caller as usize) else { continue };
        for index in by_origin.get(&(left.slot, origin)).into_iter().flatten() {
            take_row(&mut rows[*index], &mut left);
        }
    }
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

/// Takes as much from both sides of a row as both have, so live stays as it is.
fn take_row(from: &mut RowSums, left: &mut RowSums) {
    for (alloc, free, left) in [
        (&mut from.alloc_count, &mut from.free_count, &mut left.alloc_count),
        (&mut from.alloc_bytes, &mut from.free_bytes, &mut left.alloc_bytes),
        (&mut from.alloc_requested, &mut from.free_requested, &mut left.alloc_requested),
    ] {
        let taken = (*left).min(*alloc).min(*free);
        (*alloc, *free, *left) = (*alloc - taken, *free - taken, *left - taken);
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
}
