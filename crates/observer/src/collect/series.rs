//! Takes the next snapshot of a series: the kernel's current figures, joined with the owners that earlier readings
//! found. Querying a VM and walking malloc's arenas cost a hundred times as much as the kernel's figures. Their results
//! (the addresses of the Java heap, the ranges of an arena) rarely change.
//!
//! ```text
//! MappingDetail::Pages   one scan of the page tables, and maps if it has changed: Rss and resident pages by mapping
//! MappingDetail::Whole   smaps: also huge, locked, swapped and shared bytes; takes 4 to 8 times as long
//! ```
//! A query of the owners also reads only pages if an earlier instant has read smaps and nothing is swapped.
//!
//! Both give each mapping the same Rss, to the byte (a test in `proc::read` checks it). A kernel without such a scan
//! needs smaps.
//!
//! Σ lines + remainder = Rss still holds, because it is a sum over the new mappings. New memory goes to its owner at
//! once if the memory itself identifies it (`new_memory`). The rest is unknown until the owners are read again
//! (`snapshot`), and is in `other-anonymous` or `glibc-unknown`.

use super::drift::Drift;
use super::new_memory;
use super::snapshot::{Kept, Refusal, Regions, residency, take};
use crate::ledger::is_unnamed_memory;
use crate::source::hotspot::{self, KnownVm};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{DirectBuffers, Process, Reading, Rss, Snapshot, Vma};
use plimsoll_facts::units::merged;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::memory::Live;
use plimsoll_process::proc::{self, KnownMappings, Mappings, Target};
use std::io;
use std::time::{Duration, Instant};

/// How much is read about the mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingDetail {
    Pages,
    Whole,
}

/// A search for classes that took `t` is repeated after `SEARCH × t`: 0.4 % of a core.
const SEARCH: u32 = 250;

/// State that a series keeps from one snapshot to the next.
#[derive(Default)]
pub struct SeriesState {
    mapped: KnownMappings,
    /// The last instant has no figures of mappings, because there were too many pages.
    too_much: bool,
    /// Results that later instants reuse, and when to search again for the classes of a VM's direct buffers: the VM may
    /// load them later.
    kept: Kept,
    direct_at: Option<Instant>,
    /// How fast the figures change that only a query of the owners updates.
    drift: Option<Drift>,
}

impl SeriesState {
    /// Queries the owners. The next snapshots of the series are updates of this one, from `begin` on. `earlier` is the
    /// previous snapshot, if there is one. Then only the pages of its mappings are read, as by `MappingDetail::Pages`.
    pub fn take(&mut self, pid: u32, earlier: Option<&Snapshot>, deadline: Deadline) -> Result<Snapshot, Refusal> {
        // If this series has no query yet, `earlier` belongs to another program.
        let earlier = earlier.filter(|earlier| !earlier.smaps_refused && self.drift.is_some());
        self.kept.vmas = earlier.map(|earlier| earlier.vmas.clone()).unwrap_or_default();
        // The kernel's own sum would need another walk of all pages. The kernel would hold the target's mmap lock
        // during all of it.
        let snapshot = take(pid, Regions::AsNeeded, false, &mut self.kept, deadline);
        self.kept.vmas = Vec::new();
        snapshot
    }

    /// Starts again with a new snapshot, because the owners were queried again. `earlier` has the figures of the
    /// previous query.
    pub fn begin(&mut self, earlier: Option<&Snapshot>, now: &Snapshot) {
        self.mapped = KnownMappings::default();
        self.drift = Some(Drift::between(self.drift.as_ref().zip(earlier), now));
    }

    /// Updates the VM's count of direct buffers.
    fn direct_buffers(&mut self, target: &Target, snapshot: &mut Snapshot, memory: &Live) {
        let Some(vm) = &mut snapshot.hotspot else { return };
        let began = Instant::now();
        let known = &mut self.kept.vm;
        if !known.as_ref().is_some_and(KnownVm::is_found) {
            if self.direct_at.is_some_and(|at| began < at) {
                return;
            }
            let counted = hotspot::class_counts(target, &snapshot.vmas);
            let whole = known.take().filter(KnownVm::has_buffer_fields);
            *known = whole.or_else(|| KnownVm::of(target, &snapshot.vmas, memory));
            known.iter_mut().for_each(|known| known.search(memory, counted));
            self.direct_at = Some(began + began.elapsed() * SEARCH);
        }
        if let Some(now) = known.as_ref().and_then(|known| known.direct_buffers(memory)) {
            let known = vm.direct_buffers.take().unwrap_or_default();
            vm.direct_buffers = Some(DirectBuffers { at_walk: known.at_walk, max: known.max, ..now });
        }
    }

    /// Updates the mappings and the process of `snapshot`; its cgroup is a separate reading. On an error, the process
    /// is gone and the snapshot isn't valid for any moment.
    pub fn update(
        &mut self,
        target: &Target,
        snapshot: &mut Snapshot,
        (process, rss_by_kind): (Process, Rss),
        figures: MappingDetail,
    ) -> io::Result<()> {
        let since = Instant::now();
        let mut gaps = Vec::new();
        let began = since.elapsed();
        let could_scan = figures == MappingDetail::Pages && (!snapshot.smaps_refused || self.too_much);
        let pages = could_scan.then(|| proc::read_pages(target, &mut self.mapped, &mut snapshot.vmas));
        self.too_much = false;
        let threads = process.thread_count;
        snapshot.process = Process { is_secure: snapshot.process.is_secure, ..process };
        snapshot.rss_by_kind = rss_by_kind;
        snapshot.time = proc::seconds_since_epoch();
        snapshot.rollup = None;
        let (before, took) = match pages {
            Some(Ok(pages)) => {
                snapshot.smaps_refused = false;
                snapshot.residency = Some(pages.residency);
                (pages.before, pages.took)
            }
            Some(Err(error)) if proc::is_too_much(&error) => {
                self.too_much = true;
                let mappings = proc::read_maps(target, &error, &mut gaps);
                let (before, took) = self.exchange(snapshot, mappings)?;
                (Some(before), took)
            }
            _ => {
                let mappings = proc::read_smaps(target, &mut gaps);
                let (before, took) = self.exchange(snapshot, mappings)?;
                (Some(before), took)
            }
        };
        if let Ok(memory) = Live::open(target) {
            new_memory::update_owners(target, &memory, snapshot, before.as_deref(), threads, &mut gaps);
            self.direct_buffers(target, snapshot, &memory);
        }
        if snapshot.residency.is_none() && !self.too_much {
            residency(target, snapshot, &mut gaps);
        }
        for heap in snapshot.malloc_heap.iter_mut().chain(&mut snapshot.go) {
            let then = || before.as_deref().unwrap_or(&snapshot.vmas).iter().filter(|vma| is_unnamed_memory(vma));
            heap.mapped_then.get_or_insert_with(|| merged(then().map(|vma| vma.range).collect()));
        }
        if let Some(drift) = &self.drift {
            drift.apply(snapshot);
        }
        replace_gaps(&mut snapshot.gaps, gaps);
        snapshot.readings = vec![Reading { source: Source::Proc, began, took }];
        Ok(())
    }

    /// Replaces the mappings. Returns the previous ones and the time that the reading took.
    fn exchange(&mut self, snapshot: &mut Snapshot, mappings: Mappings) -> io::Result<(Vec<Vma>, Duration)> {
        let process = &snapshot.process;
        // Without mappings and without a refusal, the address space has just been torn down.
        if mappings.vmas.is_empty() && (!mappings.refused || proc::refusal(process.state, process.pid).is_some()) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        self.mapped = KnownMappings::default();
        snapshot.smaps_refused = mappings.refused;
        snapshot.residency = None;
        Ok((std::mem::replace(&mut snapshot.vmas, mappings.vmas), mappings.took))
    }
}

/// Replaces the gaps about the mappings by those of a new reading. Gaps about the owners stay until the owners are
/// queried again.
fn replace_gaps(known: &mut Vec<Gap>, new: Vec<Gap>) {
    let is_of_pages = |gap: &Gap| gap.source == Source::Pagemap && gap.reason.contains("/pagemap can't be read: ");
    known.retain(|gap| !proc::is_of_mappings(gap) && !is_of_pages(gap));
    for gap in new {
        known.retain(|known| known.source != gap.source || known.effect != gap.effect);
        known.push(gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use plimsoll_process::foreign::LOOK;

    #[test]
    fn gaps_about_the_owners_last_until_the_owners_are_queried_again() {
        let gap = |source, reason: &str, effect: &str| Gap::new(source, reason, effect);
        let mapped = gap(
            Source::Proc,
            "/proc/7/smaps can't be read: refused",
            "only the kernel's totals by kind are known, and no lines",
        );
        let pages = gap(
            Source::Pagemap,
            "/proc/7/pagemap can't be read: refused",
            "1 mappings of the same memory are each counted in full",
        );
        let walk = gap(Source::Pagemap, "the page map (pagemap) can't be read", "glibc-retained is an upper bound");
        let threads = gap(Source::Proc, "the threads' stack pointers can't be read: refused", "by their shape");
        let mut known = vec![mapped, walk.clone(), pages, threads.clone()];
        replace_gaps(&mut known, Vec::new());
        assert_eq!(known, [walk.clone(), threads]);
        let again = gap(Source::Proc, "the threads' stack pointers can't be read: refused again", "by their shape");
        replace_gaps(&mut known, vec![again.clone()]);
        assert_eq!(known, [walk, again]);
    }

    /// A sleeping child process.
    struct Child(std::process::Child);
    impl Child {
        /// Returns once the child has started completely and maps nothing more.
        fn asleep() -> Child {
            let child = Child(std::process::Command::new("sleep").arg("600").spawn().expect("a child"));
            let call = || std::fs::read_to_string(format!("/proc/{}/syscall", child.0.id())).expect("our child");
            let began = std::time::Instant::now();
            while !call().starts_with(&format!("{} ", libc::SYS_clock_nanosleep)) {
                assert!(began.elapsed() < Duration::from_secs(120), "the child doesn't sleep: {}", call());
                std::thread::sleep(Duration::from_millis(1));
            }
            child
        }
    }
    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_later_query_has_the_lines_of_one_that_reads_smaps() {
        let child = Child::asleep();
        let pid = child.0.id();
        let mut series = SeriesState::default();
        let first = series.take(pid, None, Deadline::after(LOOK)).expect("it runs");
        series.begin(None, &first);
        let target = Target::open(pid, Deadline::after(LOOK)).expect("it runs");
        let can_scan = target.file("pagemap").is_ok_and(|pagemap| proc::can_scan(&pagemap, target.deadline()));
        let scanned = series.take(pid, Some(&first), Deadline::after(LOOK)).expect("it runs");
        let whole = series.take(pid, None, Deadline::after(LOOK)).expect("it runs");
        assert_eq!(scanned.residency.is_some(), can_scan, "the pages of all mappings");
        // Other programs also map libc, so its Pss changes.
        let mapped =
            |of: &Snapshot| of.vmas.iter().map(|vma| (vma.range, vma.name.clone(), vma.rss)).collect::<Vec<_>>();
        assert_eq!(mapped(&scanned), mapped(&whole));
        let lines = |of: &Snapshot| {
            let lines = Ledger::of(of).lines;
            lines.into_iter().map(|line| (line.id, line.resident, line.reserved, line.grade)).collect::<Vec<_>>()
        };
        assert_eq!(lines(&scanned), lines(&whole));
        let refused = Snapshot { smaps_refused: true, vmas: Vec::new(), ..first };
        assert!(!series.take(pid, Some(&refused), Deadline::after(LOOK)).expect("it runs").vmas.is_empty());
    }

    #[test]
    fn a_later_instant_knows_that_the_exec_was_secure() {
        let child = Child::asleep();
        let mut series = SeriesState::default();
        let mut snapshot = series.take(child.0.id(), None, Deadline::after(LOOK)).expect("it runs");
        series.begin(None, &snapshot);
        assert!(!snapshot.process.is_secure);
        snapshot.process.is_secure = true;
        let target = Target::open(child.0.id(), Deadline::after(LOOK)).expect("it runs");
        let process = proc::read_process(&target).expect("it runs");
        series.update(&target, &mut snapshot, process, MappingDetail::Pages).expect("it runs");
        assert!(snapshot.process.is_secure);
    }

    #[test]
    fn too_many_pages_are_a_gap_until_they_can_be_read() {
        let child = Child::asleep();
        let pid = child.0.id();
        let mut series = SeriesState::default();
        let Ok(mut snapshot) = series.take(pid, None, Deadline::after(LOOK)) else { panic!("it runs") };
        series.begin(None, &snapshot);
        let mut target = Target::open(pid, Deadline::after(LOOK)).expect("it runs");
        if !target.file("pagemap").is_ok_and(|pagemap| proc::can_scan(&pagemap, target.deadline())) {
            return;
        }
        let mut instant = |deadline: Deadline, snapshot: &mut Snapshot| {
            target.allow(deadline);
            let process = proc::read_process(&target).expect("it runs");
            series.update(&target, snapshot, process, MappingDetail::Pages).expect("it runs");
            let reasons: Vec<String> = snapshot.gaps.iter().map(|gap| gap.reason.to_string()).collect();
            reasons.iter().any(|reason| reason.ends_with("/pagemap can't be read: it took too long"))
        };
        assert!(!instant(Deadline::after(LOOK), &mut snapshot) && !snapshot.smaps_refused);
        let mappings = snapshot.vmas.len();
        for _ in 0..2 {
            assert!(instant(Deadline::after(Duration::ZERO), &mut snapshot), "{:?}", snapshot.gaps);
            assert!(snapshot.smaps_refused && snapshot.residency.is_none(), "smaps would read as many pages");
            assert_eq!(snapshot.vmas.len(), mappings);
            assert!(snapshot.rss_by_kind.total().0 > 0);
        }
        assert!(!instant(Deadline::after(LOOK), &mut snapshot) && !snapshot.smaps_refused);
        assert!(snapshot.residency.is_some() && snapshot.vmas.iter().any(|vma| vma.rss.0 > 0));
    }
}
