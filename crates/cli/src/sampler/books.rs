//! The tracker's books and sites, if the target is tracked: where its segment is, and what of it is read when.

use std::time::{Duration, Instant};

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::Snapshot;
use plimsoll_report::jfr::Site;
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment::{self, Life};
use plimsoll_tracked::symbols;

use super::Sampler;
use super::cost::{SITES, processor_time};
use crate::{Failure, target};

/// A program that was just started may still load its tracker: in so many first instants, while it is younger than
/// [`YOUNG`].
const BEGINNING: u64 = 5;
const YOUNG: Duration = Duration::from_secs(10);
/// This many readings in a row must find the segment unreadable before a gap reports it: the segment has another name
/// while it is being made, and an exec replaces it.
pub(super) const UNREAD: u32 = 2;
const NO_BOOKS: &str = "categories and call sites are missing, although the process is tracked";

impl Sampler {
    /// The tracker's books, if the target is tracked. An exec leaves one segment and may make another.
    pub(super) fn books(&mut self, full: bool, last: bool) -> Option<(Books, Vec<Site>)> {
        let deadline = self.target.deadline();
        if self.may_have_segment(full, last) {
            self.segment = match segment::find_by_pid_in(self.pid, self.directory.as_deref(), deadline) {
                Some((path, _, Life::Live)) => Some(path),
                _ => None,
            };
        }
        let Some(path) = self.segment.as_deref() else {
            self.unread_times = 0;
            return None;
        };
        if !full {
            let read = target::sums(path, deadline);
            return Some((self.noted(read)?, Vec::new()));
        }
        let read = target::of_segment(path, Life::Live, Some(self.pid), deadline);
        let read = self.noted(read)?;
        let sites = self.sites(&read, last);
        Some((read.books, sites))
    }

    /// What was read, if it could be. Counts the readings in a row that couldn't.
    fn noted<T>(&mut self, read: Result<T, Failure>) -> Option<T> {
        match read {
            Ok(read) => {
                self.unread_times = 0;
                Some(read)
            }
            Err(Failure(reason)) => {
                self.unread_books = Some(reason);
                self.unread_times += 1;
                None
            }
        }
    }

    /// Whether to search for the segment. A search reads all mappings and costs as much as the rest of an instant.
    fn may_have_segment(&self, full: bool, last: bool) -> bool {
        let is_young = self.samples < BEGINNING && self.began.is_none_or(|began| began.elapsed() < YOUNG);
        let vmas = self.snapshot.as_ref().map(|snapshot| snapshot.vmas.as_slice());
        match &self.segment {
            // A name below /proc vanishes with the process. The segment has such a name while it is being made.
            Some(path) => full || path.starts_with("/proc") && is_young,
            // A tracker that is attached later maps its segment. Without mappings it can be found in its directory.
            None if full && vmas.is_some_and(<[_]>::is_empty) => true,
            None => last || is_young || vmas.is_none_or(|vmas| vmas.iter().any(|vma| vma.name.ends_with(".seg"))),
        }
    }

    /// `must`: no later instant could have more sites or better names.
    pub(super) fn sites(&mut self, read: &target::TrackedTarget, must: bool) -> Vec<Site> {
        let now = Instant::now();
        if !must && now < self.sites_at {
            return Vec::new();
        }
        let before = processor_time();
        let nameless = symbols::SymbolOptions { without: true, ..symbols::SymbolOptions::default() };
        let sites = read.sites(&nameless, false);
        self.sites_at = now + processor_time().saturating_sub(before) * SITES * self.share;
        let wait = if must { read.deadline.left() } else { self.interval / 4 };
        self.names.sites(&sites, &read.books, read.symbols(&[]), wait, must)
    }
}

/// The gap about books that can't be read, or none.
pub(super) fn set_unread_books(snapshot: &mut Snapshot, reason: Option<&str>) {
    snapshot.gaps.retain(|gap| gap.effect != NO_BOOKS);
    snapshot.gaps.extend(reason.map(|reason| Gap::new(Source::Segment, reason, NO_BOOKS)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_that_cannot_be_read_are_a_gap_until_they_can() {
        let mut snapshot = Snapshot::default();
        for reason in ["one", "two"] {
            set_unread_books(&mut snapshot, Some(reason));
            assert_eq!(snapshot.gaps, [Gap::new(Source::Segment, reason, NO_BOOKS)]);
        }
        set_unread_books(&mut snapshot, None);
        assert!(snapshot.gaps.is_empty());
    }
}
