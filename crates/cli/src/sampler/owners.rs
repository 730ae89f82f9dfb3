//! Who owns the memory: when that is queried, and the figures of this moment for the known owners.

use std::time::{Duration, Instant};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{Process, Rss, Snapshot};
use plimsoll_observer::collect::MappingDetail;
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::source::hotspot;
use plimsoll_tracked::books::{Booked, BookedSince};

use super::cost::{LINES, OWNERS, processor_time};
use super::growth::needs_no_query;
use super::{FULL, Sampler};

/// A VM stops while it answers, so it is queried at most this often, however cheap the answer is.
const QUERIED: Duration = Duration::from_secs(10);
/// While memory grows (see `growth`), a VM may be stopped more often, and the queries may take 1 % of a core.
const GROWING_QUERIED: Duration = Duration::from_secs(1);
const GROWING_OWNERS: u32 = 100;
/// Time for the query at the end of a recording: a signal to stop may have come, after which it gets 8 s.
const LAST_QUERY: Duration = Duration::from_secs(4);
/// Cheap readings save time for an expensive one: at most this much.
const SAVED: Duration = FULL;

impl Sampler {
    /// The time until work of this cost is repeated.
    fn budget(&self, spent: Duration, factor: u32) -> Duration {
        spent * factor * self.share
    }

    /// Whether memory has grown so much since the last query that the owners should be queried again, by the last
    /// ledger.
    pub(super) fn has_grown(&self, now: Instant, rss: Rss) -> bool {
        now >= self.growing_at && self.growth.is_much(rss.total())
    }

    /// Reads the figures of this moment, which may show that a query isn't needed, unless the query is due anyway.
    /// True: they were read.
    pub(super) fn look_closer(
        &mut self,
        now: Instant,
        process: (&Process, Rss),
        booked: Option<Booked>,
        full: bool,
    ) -> bool {
        let is_read = now < self.owners_at && self.may_query && self.lines(now, process, booked, full);
        if let Some(snapshot) = self.snapshot.as_ref().filter(|_| is_read) {
            self.growth.count(needs_no_query(snapshot, &Ledger::of(snapshot)), false);
        }
        is_read
    }

    /// Queries who owns what if that is due. True: the snapshot is of this moment. `last`: no reading follows, so no
    /// later query would find the owners of the newest memory.
    pub(super) fn owners(
        &mut self,
        now: Instant,
        rss: Rss,
        booked: Option<Booked>,
        (full, last): (bool, bool),
    ) -> bool {
        let is_due = now >= self.owners_at || self.has_grown(now, rss);
        let is_extra = !is_due && last && now.saturating_duration_since(self.queried_at) >= GROWING_QUERIED;
        if !(is_due || is_extra) || self.snapshot.is_some() && !self.may_query {
            return false;
        }
        let before = processor_time();
        let earlier = self.snapshot.as_ref().filter(|_| !full);
        let deadline = self.target.deadline();
        let deadline = if is_extra { deadline.sooner(LAST_QUERY) } else { deadline };
        let taken = self.series.take(self.pid, earlier, deadline);
        let lacks = |new: &Snapshot| self.snapshot.as_ref().is_some_and(|old| lacks_a_source(new, old));
        if is_extra && taken.as_ref().is_ok_and(lacks) {
            // The older answer is better than none.
            return false;
        }
        let spent = processor_time().saturating_sub(before);
        self.growth.begin(rss.total());
        self.growing_at = now + self.budget(spent, GROWING_OWNERS).max(GROWING_QUERIED);
        let Ok(mut snapshot) = taken else {
            self.owners_at = now + self.budget(spent, OWNERS);
            return false;
        };
        self.owners_at = now
            + patience(
                &snapshot,
                self.began.map_or(Duration::MAX, |began| began.elapsed() * if self.share > 1 { 3 } else { 1 }),
                self.budget(spent, OWNERS),
            );
        self.memory = snapshot.host.memory;
        self.queried_at = now;
        let mmapped = snapshot.glibc.iter().flat_map(|glibc| &glibc.mmapped).map(|chunk| chunk.range.length()).sum();
        snapshot.booked = booked.map(|walk| BookedSince { walk, mmapped, now: walk });
        self.series.begin(self.snapshot.as_ref(), &snapshot);
        self.snapshot = Some(snapshot);
        true
    }

    /// Reads the figures of this moment for the known owners. A full instant reads smaps, which has more than Rss.
    pub(super) fn lines(
        &mut self,
        now: Instant,
        (process, rss): (&Process, Rss),
        booked: Option<Booked>,
        full: bool,
    ) -> bool {
        let Some(snapshot) = &mut self.snapshot else { return false };
        snapshot.booked = snapshot.booked.zip(booked).map(|(since, now)| BookedSince { now, ..since });
        let before = processor_time();
        let figures = if full { MappingDetail::Whole } else { MappingDetail::Pages };
        let read = self.series.update(&self.target, snapshot, (process.clone(), rss), figures).is_ok();
        let spent = processor_time().saturating_sub(before);
        let saved = now.checked_sub(SAVED).map_or(now, |oldest| self.lines_at.max(oldest));
        self.lines_at = saved + spent * LINES * self.share;
        if snapshot.hotspot.is_none() && hotspot::is_hotspot(&snapshot.vmas) {
            // A VM has started since the last query, so the known owners are outdated: query them now.
            self.owners_at = now;
        }
        read
    }
}

/// Whether a VM left a query unanswered, at least in part.
fn is_mute(snapshot: &Snapshot) -> bool {
    has_gap_of(snapshot, Source::HotSpot)
}

/// Whether a query lacks what the one before had: the VM's answers, or a heap that couldn't be walked in time.
fn lacks_a_source(new: &Snapshot, old: &Snapshot) -> bool {
    let sources = [Source::HotSpot, Source::Allocator, Source::Glibc];
    sources.into_iter().any(|source| has_gap_of(new, source) && !has_gap_of(old, source))
}

fn has_gap_of(snapshot: &Snapshot, source: Source) -> bool {
    snapshot.gaps.iter().any(|gap| gap.source == source)
}

/// Time until the owners are queried again. A program that has just begun may have no VM, heap or arenas yet. So it is
/// queried again when its age has doubled: `log2(t)` times by age `t`.
fn patience(snapshot: &Snapshot, age: Duration, rest: Duration) -> Duration {
    let mute = is_mute(snapshot);
    let least = match (&snapshot.hotspot, &snapshot.native_image) {
        // The VM answered, so its part is complete.
        (Some(_), None) if !mute => return rest.max(QUERIED),
        (_, Some(_)) => QUERIED,
        _ if mute => QUERIED,
        _ => Duration::ZERO,
    };
    rest.max(least).min(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::{HotSpot, NativeImage};

    /// The first mapping already shows a native image, but its heap is mapped later.
    #[test]
    fn a_process_that_has_just_begun_is_queried_again() {
        let image = Snapshot { native_image: Some(NativeImage::default()), ..Snapshot::default() };
        let vm = Snapshot { hotspot: Some(HotSpot::default()), ..Snapshot::default() };
        let [ms, s] = [Duration::from_millis, Duration::from_secs];
        let after = |of: &Snapshot, age: Duration| patience(of, age, ms(20) * OWNERS);
        assert_eq!([ms(300), s(4), s(3600)].map(|age| after(&image, age)), [ms(300), s(4), s(20)]);
        assert_eq!([ms(300), s(3600)].map(|age| after(&vm, age)), [s(20), s(20)]);
        assert_eq!([s(4), s(3600)].map(|age| after(&Snapshot::default(), age)), [s(4), s(20)]);
        assert_eq!(patience(&image, s(3600), ms(1) * OWNERS), QUERIED);
    }
}
