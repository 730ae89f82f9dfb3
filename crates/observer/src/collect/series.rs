//! The next snapshot of a series: the kernel's figures of this moment, joined with what earlier readings found of whose
//! the memory is. A virtual machine and a walk of malloc's arenas cost a hundred times what the kernel's figures do, and what they
//! say (where the Java heap lies, which ranges are an arena's) changes seldom.
//!
//! ```text
//! Figures::Pages   one scan of the page tables, and maps where it has changed: Rss by mapping, which pages     2 to 4 ms of CPU
//! Figures::Whole   smaps: also what is huge, locked, swapped, shared                                           15 ms: 2,600 mappings
//! ```
//! Both give a mapping the same Rss, to the byte (a test in `proc::read`); where the kernel has no such scan, smaps is read.
//!
//! Σ lines + remainder = Rss holds all the same: it is a sum over the new mappings. What grew since the owners were asked stands
//! with its owner at once where the memory itself says whose it is (`new_memory`); the rest is unknown until they are asked again
//! (`first`), and says so: `other-anonymous`, `glibc-unknown`.

use super::first::residency;
use super::new_memory;
use crate::gap::Source;
use crate::snapshot::{DirectBuffers, Process, Reading, Rss, Snapshot, Vma};
use crate::source::hotspot::Direct;
use crate::source::memory::Live;
use crate::source::proc::{self, Mapped, Target};
use std::io;
use std::time::{Duration, Instant};

/// How much of the mappings is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    Pages,
    Whole,
}

/// A search for classes that took `t` is done again after `SEARCH × t`: 0.4 % of a core.
const SEARCH: u32 = 250;

/// What a series keeps from one snapshot to the next.
#[derive(Default)]
pub struct Series {
    mapped: Mapped,
    /// Of a HotSpot VM, and when its classes are looked for again: they may be loaded later.
    direct: Option<Direct>,
    direct_at: Option<Instant>,
}

impl Series {
    /// The owners were asked: the snapshot is a new one.
    pub fn begin(&mut self) {
        self.mapped = Mapped::default();
    }

    /// The VM's count of direct buffers, of this moment.
    fn direct_buffers(&mut self, target: &Target, snapshot: &mut Snapshot, memory: &Live) {
        let Some(vm) = &mut snapshot.hotspot else { return };
        let began = Instant::now();
        let is_found = self.direct.is_some_and(|direct| direct.is_found());
        if !is_found && self.direct_at.is_some_and(|at| began < at) {
            return;
        }
        self.direct = self.direct.or_else(|| Direct::of(target, &snapshot.vmas, memory));
        if let Some(now) = self.direct.as_mut().and_then(|direct| direct.read(memory)) {
            let known = vm.direct_buffers.take().unwrap_or_default();
            vm.direct_buffers = Some(DirectBuffers { at_walk: known.at_walk, max: known.max, ..now });
        }
        self.direct_at = Some(began + began.elapsed() * SEARCH);
    }

    /// Brings mappings and process of `snapshot` to this moment; its cgroup is a reading of its own. An error: the process is
    /// gone, and the snapshot is of no moment.
    pub fn again(
        &mut self,
        target: &Target,
        snapshot: &mut Snapshot,
        (process, rss_by_kind): (Process, Rss),
        figures: Figures,
    ) -> io::Result<()> {
        let since = Instant::now();
        let mut gaps = Vec::new();
        let began = since.elapsed();
        let could_scan = figures == Figures::Pages && !snapshot.smaps_refused;
        let pages = could_scan.then(|| proc::read_pages(target, &mut self.mapped, &snapshot.vmas)).flatten();
        let threads = process.thread_count;
        snapshot.process = process;
        snapshot.rss_by_kind = rss_by_kind;
        snapshot.time = proc::seconds_since_epoch();
        // The kernel's own sum would walk all pages once more, to say how much moved meanwhile.
        snapshot.rollup = None;
        let (before, took) = match pages {
            Some(pages) => {
                snapshot.residency = Some(pages.residency);
                (std::mem::replace(&mut snapshot.vmas, pages.vmas), pages.took)
            }
            None => self.whole(target, snapshot, &mut gaps)?,
        };
        if let Ok(memory) = Live::open(target) {
            new_memory::follow(target, &memory, snapshot, &before, threads);
            self.direct_buffers(target, snapshot, &memory);
        }
        if snapshot.residency.is_none() {
            residency(target, snapshot, &mut gaps);
        }
        if let Some(heap) = &mut snapshot.opened {
            heap.is_fresh = false;
        }
        snapshot.gaps.retain(|gap| !matches!(gap.source, Source::Proc | Source::Pagemap));
        snapshot.gaps.extend(gaps);
        snapshot.readings = vec![Reading { source: Source::Proc, began, took }];
        Ok(())
    }

    /// By smaps: the mappings that were there before, and how long it took.
    fn whole(
        &mut self,
        target: &Target,
        snapshot: &mut Snapshot,
        gaps: &mut Vec<crate::gap::Gap>,
    ) -> io::Result<(Vec<Vma>, Duration)> {
        let mappings = proc::read_smaps(target, gaps);
        let process = &snapshot.process;
        // Without mappings and without a refusal it is an address space that has just been torn down.
        if mappings.vmas.is_empty() && (!mappings.refused || proc::refusal(process.state, process.pid).is_some()) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        self.mapped = Mapped::default();
        snapshot.smaps_refused = mappings.refused;
        snapshot.residency = None;
        Ok((std::mem::replace(&mut snapshot.vmas, mappings.vmas), mappings.took))
    }
}
