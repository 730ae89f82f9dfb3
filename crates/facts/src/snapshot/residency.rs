//! Resident pages of the ranges that were read.

use crate::units::{AddressRange, Avma, Bytes, merged};

/// Runs of resident pages inside the ranges that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Sorted, disjoint, never touching.
    looked_at: Vec<AddressRange>,
    pages: Runs,
    /// The resident runs that are anonymous memory: neither page cache nor shared memory.
    anonymous: Runs,
    swapped: Bytes,
}

/// Sorted, disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Runs {
    runs: Vec<AddressRange>,
    /// `before[i]` = Σ length of `runs[..i]`
    before: Vec<Bytes>,
}

impl Residency {
    /// Takes page-aligned runs in any order.
    pub fn new(looked_at: Vec<AddressRange>, runs: Vec<AddressRange>, swapped: Bytes) -> Residency {
        Residency { looked_at: merged(looked_at), pages: Runs::of(runs), anonymous: Runs::default(), swapped }
    }

    /// `runs` are parts of the resident ones.
    pub fn with_anonymous(self, runs: Vec<AddressRange>) -> Residency {
        Residency { anonymous: Runs::of(runs), ..self }
    }

    /// Bytes of `range` on resident pages. Pages that were not read count as 0.
    pub fn resident(&self, range: AddressRange) -> Bytes {
        self.pages.within(range)
    }

    /// The bytes of `resident` that are anonymous: in a private mapping of a file, the pages that the program has
    /// written.
    pub fn anonymous(&self, range: AddressRange) -> Bytes {
        self.anonymous.within(range)
    }

    /// Whether the whole of `range` was read.
    pub fn covers(&self, range: AddressRange) -> bool {
        let after = self.looked_at.partition_point(|seen| seen.start <= range.start);
        range.is_empty() || (after > 0 && self.looked_at[after - 1].covers(range))
    }

    /// Runs of resident pages that aren't anonymous, cut to `range`.
    pub fn shared_runs_in(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> + '_ {
        self.pages.cut_to(range).flat_map(|run| {
            // Between the anonymous runs, and before and after them.
            let starts = std::iter::once(run.start).chain(self.anonymous.cut_to(run).map(|own| own.end));
            let ends = self.anonymous.cut_to(run).map(|own| own.start).chain([run.end]);
            starts.zip(ends).map(|(start, end)| AddressRange::new(start, end)).filter(|range| !range.is_empty())
        })
    }

    pub fn swapped(&self) -> Bytes {
        self.swapped
    }
}

impl Runs {
    fn of(runs: Vec<AddressRange>) -> Runs {
        let runs = merged(runs);
        let mut sum = Bytes(0);
        let before = runs
            .iter()
            .map(|run| {
                let here = sum;
                sum += run.length();
                here
            })
            .collect();
        Runs { runs, before }
    }

    fn within(&self, range: AddressRange) -> Bytes {
        self.below(range.end) - self.below(range.start)
    }

    fn cut_to(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> + '_ {
        let first = self.runs.partition_point(|run| run.end <= range.start);
        self.runs[first..].iter().take_while(move |run| run.start < range.end).map(move |run| run.intersection(range))
    }

    fn below(&self, address: Avma) -> Bytes {
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
                let by_runs: Bytes = residency.shared_runs_in(range(start, end)).map(AddressRange::length).sum();
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

    #[test]
    fn what_is_not_anonymous_equals_a_bitmap_on_random_runs() {
        let mut random = Random(3);
        let (mut both, mut pieces) = (0, 0);
        for _ in 0..500 {
            let mut states = [0u8; 64];
            let (mut runs, mut anonymous) = (Vec::new(), Vec::new());
            for (at, state) in states.iter_mut().enumerate() {
                *state = random.below(3) as u8;
                let page = range(at as u64, at as u64 + 1);
                if *state > 0 {
                    runs.push(page);
                }
                if *state == 2 {
                    anonymous.push(page);
                }
            }
            let residency = Residency::new(vec![range(0, 64)], runs, Bytes(0)).with_anonymous(anonymous);
            let start = random.below(60);
            let within = range(start, start + 1 + random.below(64 - start));
            let twin = |kind: u8| {
                let pages = within.start.0..within.end.0;
                pages.filter(|page| states[*page as usize] == kind).collect::<Vec<u64>>()
            };
            let shared: Vec<u64> = residency.shared_runs_in(within).flat_map(|run| run.start.0..run.end.0).collect();
            assert_eq!(shared, twin(1));
            assert_eq!(residency.anonymous(within), Bytes(twin(2).len() as u64));
            both += usize::from(!twin(1).is_empty() && !twin(2).is_empty());
            pieces += residency.shared_runs_in(within).count();
        }
        assert!(both > 300 && pieces > 1000, "{both} {pieces}");
    }
}
