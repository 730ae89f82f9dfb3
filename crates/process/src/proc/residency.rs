//! Which pages are resident, from `/proc/PID/pagemap`: 8 bytes for each page of address space, bit 63 present, bit 62
//! swapped, bit 61 a page of a file or of shared memory (Documentation/admin-guide/mm/pagemap.rst). Frame numbers need
//! CAP_SYS_ADMIN; these bits don't.
//!
//! One difference from smaps: a page that was only read is the shared zero page, which is present here but doesn't
//! count in Rss. Where the kernel can scan for those pages (`scan.rs`), they are left out.

use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Without it, a present page is anonymous memory: in a private mapping of a file, a copy that the program has written.
const FILE: u64 = 1 << 61;
/// A guard page also has the bit of a swapped one (`memory`).
const GUARD: u64 = 1 << 58;
pub(super) const ENTRY: usize = 8;

/// Runs of pages from entries of the page map, in address order.
#[derive(Default)]
pub(super) struct Found {
    pub runs: Vec<AddressRange>,
    /// The parts of `runs` that are anonymous.
    pub anonymous: Vec<AddressRange>,
    pub swapped_pages: u64,
}

impl Found {
    /// The runs and `holes` may be in any order, and may contain duplicates.
    pub(crate) fn leave_out(&mut self, holes: Vec<AddressRange>) {
        let holes = merged(holes);
        for runs in [&mut self.runs, &mut self.anonymous] {
            *runs = without(std::mem::take(runs), &holes);
        }
    }

    pub(crate) fn entries(&mut self, first_page: u64, page: u64, bytes: &[u8]) {
        for (index, entry) in bytes.chunks_exact(ENTRY).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
            if entry & (SWAPPED | GUARD) == SWAPPED {
                self.swapped_pages += 1;
            }
            if entry & PRESENT == 0 {
                continue;
            }
            let start = Avma((first_page + index as u64).saturating_mul(page));
            let end = start.offset(Bytes(page));
            let mut runs = [Some(&mut self.runs), (entry & FILE == 0).then_some(&mut self.anonymous)];
            for runs in runs.iter_mut().flatten() {
                match runs.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => runs.push(AddressRange { start, end }),
                }
            }
        }
    }
}

/// `holes` are sorted and disjoint.
fn without(runs: Vec<AddressRange>, holes: &[AddressRange]) -> Vec<AddressRange> {
    if holes.is_empty() {
        return runs;
    }
    let mut left = Vec::with_capacity(runs.len());
    for run in runs {
        let mut start = run.start;
        let first = holes.partition_point(|hole| hole.end <= run.start);
        for hole in holes[first..].iter().take_while(|hole| hole.start < run.end) {
            if start < hole.start {
                left.push(AddressRange { start, end: hole.start });
            }
            start = hole.end;
        }
        if start < run.end {
            left.push(AddressRange { start, end: run.end });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn holes_leave_what_an_array_without_them_has() {
        let range = |start: u64, end: u64| AddressRange { start: Avma(start), end: Avma(end) };
        let mut random = Random(1);
        let mut below = |most: u64| random.below(most);
        for _ in 0..2000 {
            let mut ranges = |number: u64| -> Vec<AddressRange> {
                (0..below(number))
                    .map(|_| {
                        let start = below(40);
                        range(start, start + 1 + below(8))
                    })
                    .collect()
            };
            let (runs, holes) = (merged(ranges(6)), ranges(6));
            let has = |list: &[AddressRange], at: u64| list.iter().any(|one| one.start.0 <= at && at < one.end.0);
            let mut found = Found { runs: runs.clone(), ..Found::default() };
            found.leave_out(holes.clone());
            for at in 0..50 {
                assert_eq!(has(&found.runs, at), has(&runs, at) && !has(&holes, at), "{at}: {runs:?} {holes:?}");
            }
        }
    }
}
