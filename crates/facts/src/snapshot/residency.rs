//! Resident pages of the ranges that were read.

use crate::units::{AddressRange, Avma, Bytes, merged};

/// Runs of resident pages inside the ranges that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Sorted, disjoint, never touching.
    looked_at: Vec<AddressRange>,
    /// Sorted, disjoint.
    runs: Vec<AddressRange>,
    /// `before[i]` = Σ length of `runs[..i]`
    before: Vec<Bytes>,
    swapped: Bytes,
}

impl Residency {
    /// Takes page-aligned runs in any order.
    pub fn new(mut looked_at: Vec<AddressRange>, mut runs: Vec<AddressRange>, swapped: Bytes) -> Residency {
        looked_at = merged(looked_at);
        runs = merged(runs);
        let mut sum = Bytes(0);
        let before = runs
            .iter()
            .map(|run| {
                let here = sum;
                sum += run.length();
                here
            })
            .collect();
        Residency { looked_at, runs, before, swapped }
    }

    /// Bytes of `range` on resident pages. Pages that were not read count as 0.
    pub fn resident(&self, range: AddressRange) -> Bytes {
        self.resident_below(range.end) - self.resident_below(range.start)
    }

    /// Whether the whole of `range` was read.
    pub fn covers(&self, range: AddressRange) -> bool {
        let after = self.looked_at.partition_point(|seen| seen.start <= range.start);
        range.is_empty() || (after > 0 && self.looked_at[after - 1].covers(range))
    }

    /// Resident runs that overlap `range`, cut to it.
    pub fn runs_in(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> + '_ {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        self.runs[first..].iter().take_while(move |run| run.start < range.end).map(move |run| run.intersection(range))
    }

    pub fn swapped(&self) -> Bytes {
        self.swapped
    }

    fn resident_below(&self, address: Avma) -> Bytes {
        let after = self.runs.partition_point(|run| run.start < address);
        match after.checked_sub(1) {
            None => Bytes(0),
            Some(last) => {
                let run = self.runs[last];
                self.before[last] + AddressRange::new(run.start, run.end.min(address)).length()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Avma(start), Avma(end))
    }

    #[test]
    fn resident_equals_a_bitmap_on_random_runs() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut next = |below| random.below(below);
        let (mut cut, mut empty, mut whole) = (0, 0, 0);
        for _ in 0..200 {
            let mut twin = [false; 256];
            let mut runs = Vec::new();
            for _ in 0..next(20) {
                let start = next(250);
                let end = start + 1 + next(5);
                runs.push(range(start, end));
                twin[start as usize..end as usize].fill(true);
            }
            let residency = Residency::new(vec![range(0, 256)], runs, Bytes(0));
            for _ in 0..100 {
                let start = next(256);
                let end = start + next(257 - start);
                let expected = twin[start as usize..end as usize].iter().filter(|page| **page).count() as u64;
                match expected {
                    0 => empty += 1,
                    n if n == end - start => whole += 1,
                    _ => cut += 1,
                }
                assert_eq!(residency.resident(range(start, end)), Bytes(expected));
                let by_runs: Bytes = residency.runs_in(range(start, end)).map(AddressRange::length).sum();
                assert_eq!(by_runs, Bytes(expected));
            }
        }
        assert!(cut > 0 && empty > 0 && whole > 0, "{cut} {empty} {whole}");
    }

    #[test]
    fn ranges_that_were_not_read_are_not_covered() {
        let residency = Residency::new(vec![range(0, 10), range(10, 20), range(30, 40)], vec![], Bytes(0));
        assert!(residency.covers(range(5, 20)));
        assert!(!residency.covers(range(15, 31)));
        assert!(!residency.covers(range(25, 28)));
    }
}
