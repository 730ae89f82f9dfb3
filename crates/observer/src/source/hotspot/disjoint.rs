//! A set of ranges that don't overlap. A hostile VM may answer with half a million lines, so a range is compared with
//! its neighbours only, not with all others.

use std::collections::BTreeMap;

use plimsoll_facts::units::{AddressRange, Avma};

/// Ends of the ranges, by start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Disjoint(BTreeMap<Avma, Avma>);

impl Disjoint {
    /// Adds a range, unless it is empty or overlaps an existing one.
    pub(super) fn add(&mut self, range: AddressRange) -> bool {
        // Of the ranges that begin before its end, the last one ends last.
        let before = self.0.range(..range.end).next_back();
        let fits = !range.is_empty() && before.is_none_or(|(_, end)| *end <= range.start);
        if fits {
            self.0.insert(range.start, range.end);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Comparing each range with every other would take minutes.
    #[test]
    fn hundreds_of_thousands_of_ranges_are_added_at_once() {
        // Processor time: a busy machine lends it slowly.
        let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let before = spent();
        let mut disjoint = Disjoint::default();
        // In descending order, so that no range is added after all others.
        for at in (0..1u64 << 18).rev() {
            assert!(disjoint.add(AddressRange::new(Avma(2 * at), Avma(2 * at + 1))));
        }
        assert!(spent() - before < 30, "{} s", spent() - before);
    }

    #[test]
    fn ranges_are_added_as_by_comparing_each_with_each() {
        let mut random = Random(5);
        let mut added = 0;
        for _ in 0..200 {
            let (mut disjoint, mut twin) = (Disjoint::default(), Vec::<AddressRange>::new());
            for _ in 0..20 {
                let start = random.below(100);
                let range = AddressRange::new(Avma(start), Avma(start + random.below(12)));
                let fits = !range.is_empty() && !twin.iter().any(|other| other.overlaps(range));
                assert_eq!(disjoint.add(range), fits, "{range:?} to {twin:?}");
                twin.extend(fits.then_some(range));
            }
            added += twin.len();
        }
        assert!((1000..3900).contains(&added), "{added}");
    }
}
