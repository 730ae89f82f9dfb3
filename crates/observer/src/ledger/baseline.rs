//! Changes since an earlier reading.

use super::{Ledger, LineId};
use plimsoll_facts::snapshot::{Baseline, Snapshot, lacking};
use plimsoll_facts::units::Bytes;

/// A move below either bound doesn't make a baseline incomparable: such a change makes no verdict either
/// (`verdict::growth`).
const MOVED: Bytes = Bytes::mib(8);
const MOVED_PERCENT: f64 = 10.0;

impl Ledger {
    /// Takes the baseline out of the snapshot of this ledger if its lines can't be compared with these, and returns it.
    pub fn take_incomparable(&self, snapshot: &mut Snapshot) -> Option<Baseline> {
        let can_compare = snapshot.baseline.as_ref().is_none_or(|baseline| self.can_compare(snapshot, baseline));
        if can_compare { None } else { snapshot.baseline.take() }
    }

    /// Whether the lines of `baseline` can be compared with these, which are of `snapshot`. They can't if the two
    /// readings lack different sources, and memory is on other lines for that reason. For example, memory in
    /// `other-anonymous` is in `glibc-live` once malloc's records can be read, and looks like growth.
    ///
    ///   moved ≤ min(Σ of what lines gained, Σ of what lines lost)
    fn can_compare(&self, snapshot: &Snapshot, baseline: &Baseline) -> bool {
        let changes = || LineId::ALL.iter().map(|line| self.change_since(baseline, *line));
        let gained: i64 = changes().filter(|change| *change > 0).sum();
        let lost: i64 = changes().filter(|change| *change < 0).sum();
        let moved = Bytes(gained.unsigned_abs().min(lost.unsigned_abs()));
        let is_little = moved < MOVED || moved.percent_of(baseline.rss) < MOVED_PERCENT;
        is_little || baseline.lacking == lacking(&snapshot.gaps)
    }

    /// How much the line grew since `baseline`; negative if it shrank.
    pub fn change_since(&self, baseline: &Baseline, id: LineId) -> i64 {
        difference(self.resident(id), baseline.resident(id))
    }

    pub fn rss_change_since(&self, baseline: &Baseline) -> i64 {
        difference(self.rss, baseline.rss)
    }
}

fn difference(now: Bytes, then: Bytes) -> i64 {
    let bytes = i64::try_from(now.abs_diff(then).0).unwrap_or(i64::MAX);
    if now < then { -bytes } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::gap::{Gap, Source};
    use plimsoll_facts::snapshot::Vma;
    use plimsoll_facts::units::{AddressRange, Avma};

    #[test]
    fn readings_that_lack_different_sources_are_not_compared_if_memory_moved() {
        let mib = Bytes::mib;
        let range = AddressRange::sized(Avma(1 << 30), mib(100));
        let vma = Vma { range, readable: true, writable: true, rss: mib(100), ..Vma::default() };
        let gaps = |sources: &[Source]| sources.iter().map(|source| Gap::new(*source, "", "")).collect::<Vec<_>>();
        let can_compare = |then: &[Source], now: &[Source], live: Bytes| {
            let snapshot = Snapshot { vmas: vec![vma.clone()], gaps: gaps(now), ..Snapshot::default() };
            let lines = vec![(LineId::OtherAnonymous, mib(100) - live), (LineId::GlibcLive, live)];
            let baseline = Baseline { rss: mib(100), lines, lacking: lacking(&gaps(then)), ..Baseline::default() };
            Ledger::of(&snapshot).can_compare(&snapshot, &baseline)
        };
        use Source::{Cgroup, Glibc, HotSpot, Proc, Symbols};
        for moved in [0, 50] {
            assert!(
                can_compare(&[], &[], mib(moved)) && can_compare(&[Proc, Proc, Cgroup], &[Proc, Symbols], mib(moved))
            );
        }
        for (then, now) in [(&[Proc][..], &[][..]), (&[], &[Glibc]), (&[Glibc], &[HotSpot])] {
            assert!(can_compare(then, now, mib(7)) && !can_compare(then, now, mib(50)), "{then:?} {now:?}");
        }
    }
}
