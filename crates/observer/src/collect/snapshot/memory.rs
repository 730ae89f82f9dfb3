//! Reads the sources that are joined by address, close together in time: threads, mappings, arenas, stacks, pages.

use super::Reader;
use super::allocators::{read_other_heaps, unrecognised_glibc, with_arena_cap};
use super::page_map::residency;
use super::tracker::{attached_books, booked_categories, own_mappings, tracked, unread_segment};
use crate::collect::skew;
use crate::ledger;
use crate::source::glibc;
use crate::source::hotspot;
use crate::source::native_image;
use crate::source::native_objects;
use crate::source::pymalloc;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{NativeImage, Reading, Residency, Snapshot, VmTag};
use plimsoll_facts::units::{AddressRange, Bytes};
use plimsoll_process::proc::memory::{Live, stays_swapped};
use plimsoll_process::proc::{self, KnownMappings, Mappings, Target, timed};

impl Reader<'_> {
    /// The mappings, and their pages if a scan could read both (see `series`). A scan leaves the mappings' swap figures
    /// as they were.
    fn mappings(&self, swap: Bytes, gaps: &mut Vec<Gap>) -> (Mappings, Option<Residency>) {
        let mut vmas = self.kept.vmas.clone();
        if !vmas.is_empty()
            && swap == Bytes(0)
            && let Ok(pages) = proc::read_pages(self.target, &mut KnownMappings::default(), &mut vmas)
        {
            return (Mappings { vmas, took: pages.took, ..Mappings::default() }, Some(pages.residency));
        }
        let read = if self.has_sum { proc::read_mappings } else { proc::read_smaps };
        (read(self.target, gaps), None)
    }

    /// Reads what is joined by address, close together in time: threads, mappings, arenas, stacks, pages. Replaces the
    /// results of earlier readings.
    pub(super) fn memory(&mut self, snapshot: &mut Snapshot) -> Vec<Gap> {
        let (target, since) = (self.target, self.since);
        let mut readings = Vec::new();
        let mut gaps = Vec::new();
        snapshot.threads = proc::read_threads(target, snapshot.process.contained, &mut gaps);
        // The first query starts the VM's attach listener thread, so count the threads again: the number must be the
        // same everywhere.
        if !snapshot.threads.is_empty() {
            snapshot.process.thread_count = snapshot.threads.len() as u64;
        }
        let elsewhere = regions_without_malloc(snapshot);
        let vm = snapshot.hotspot.as_ref().filter(|vm| !vm.categories.is_empty());
        let tagged = vm.map(glibc::NmtHeaders::of);
        let files = &self.kept.files;
        let wanted = glibc::WalkOptions { tagged, elsewhere: &elsewhere, pointing_at: &[], files: Some(files) };
        let walks = skew::Walks::before(target, snapshot, wanted);
        let began = since.elapsed();
        let (mappings, pages) = self.mappings(snapshot.process.swap, &mut gaps);
        readings.push(Reading { source: Source::Proc, began, took: mappings.took });
        snapshot.time = proc::seconds_since_epoch();
        snapshot.vmas = mappings.vmas;
        snapshot.rollup = mappings.rollup;
        snapshot.smaps_refused = mappings.refused;
        if let Ok((process, rss)) = proc::read_process(target) {
            snapshot.rss_by_kind = rss;
            snapshot.process.swap = process.swap;
        }
        gaps.extend(unread_swap(snapshot.process.swap));
        let began = since.elapsed();
        let vm = snapshot.hotspot.is_some().then_some(elsewhere.as_slice());
        let (image, image_gaps) = native_image::read(target, &snapshot.vmas, vm, files);
        if image.is_some() {
            readings.push(Reading { source: Source::NativeImage, began, took: since.elapsed() - began });
        }
        // `around` queried it.
        let nmt = snapshot.native_image.take().map(|image| image.nmt).unwrap_or_default();
        snapshot.native_image = image.map(|image| NativeImage { nmt, ..image });
        gaps.extend(image_gaps);
        let tracked = tracked(target, &snapshot.vmas);
        let earlier = attached_books(target, tracked.as_ref());
        let data = if vm.is_some() { native_objects::data_of_libraries(&snapshot.vmas) } else { Vec::new() };
        let wanted = glibc::WalkOptions { pointing_at: &data, ..wanted };
        let (mut glibc, glibc_gaps) = timed(since, Source::Glibc, &mut readings, || {
            let (mut glibc, gaps) = glibc::read(target, &snapshot.vmas, wanted);
            let blocks = glibc.as_mut().map(|glibc| std::mem::take(&mut glibc.objects)).unwrap_or_default();
            snapshot.native_objects = native_objects::read(target, &snapshot.vmas, &blocks);
            (glibc, gaps)
        });
        snapshot.booked_categories = match vm {
            Some(_) => booked_categories(target, tracked.as_ref()),
            None => Vec::new(),
        };
        if let Some(glibc) = &mut glibc {
            walks.compare_glibc(glibc, &snapshot.vmas);
        }
        let attached = earlier.and_then(|earlier| match earlier {
            Some(earlier) => attached_books(target, tracked.as_ref()).map(|later| Some([earlier, later?])),
            None => Ok(None),
        });
        snapshot.attached = attached.unwrap_or_else(|error| {
            gaps.push(unread_segment(target, &error, "blocks from before the attach are part of glibc-live"));
            None
        });
        if let (Some(vm), Some(glibc)) = (&mut snapshot.hotspot, &glibc) {
            hotspot::match_tags(&mut vm.categories, &glibc.tagged);
        }
        snapshot.glibc = glibc.map(|glibc| with_arena_cap(glibc, snapshot));
        gaps.extend(glibc_gaps);
        read_other_heaps(target, since, snapshot, &mut readings, &mut gaps);
        gaps.extend(unrecognised_glibc(snapshot, &gaps));
        gaps.extend(walks.compare(target, snapshot));
        search_memory(target, snapshot, &mut gaps);
        (snapshot.own_mappings, snapshot.is_detached) = own_mappings(target, &snapshot.vmas, tracked, &mut gaps);
        gaps.extend(ledger::own_mappings(snapshot).gap());
        snapshot.residency = pages;
        if snapshot.residency.is_none() {
            timed(since, Source::Pagemap, &mut readings, || residency(target, snapshot, &mut gaps));
        }
        self.readings.retain(|known| readings.iter().all(|new| new.source != known.source));
        self.readings.extend(readings);
        gaps
    }
}

/// Swapped memory is not read: reading would bring it back into memory, and could fill the target's cgroup.
fn unread_swap(swap: Bytes) -> Option<Gap> {
    stays_swapped(swap).then(|| {
        Gap::new(
            Source::Proc,
            format!("{swap} are swapped out, and are not read: that would bring them back into memory"),
            "parts of allocators' heaps are missing there, and glibc's arenas are glibc-unknown from such a page on",
        )
    })
}

/// Searches the process's memory for idle stacks, the heap of Python, and unpacked programs.
fn search_memory(target: &Target, snapshot: &mut Snapshot, gaps: &mut Vec<Gap>) {
    match Live::open(target) {
        Ok(memory) => {
            let deadline = target.deadline();
            snapshot.idle_stacks = proc::find_stacks(&memory, &snapshot.vmas, &mut snapshot.threads, deadline, gaps);
            let (python, unsearched) = pymalloc::find(&memory, &snapshot.vmas);
            snapshot.pymalloc = python;
            gaps.extend(unsearched);
            snapshot.unpacked = proc::find_unpacked(&memory, &snapshot.vmas);
            snapshot.bss = proc::find_bss(&memory, &snapshot.vmas);
        }
        // If an allocator's reader already reported the error, don't repeat it. Without mappings, there is nothing to
        // read either.
        Err(error)
            if !snapshot.smaps_refused && !gaps.iter().any(|gap| gap.reason.contains("/mem can't be opened")) =>
        {
            let pid = target.pid();
            let reason = format!("/proc/{pid}/mem can't be opened: {}", proc::why_refused(pid, &error));
            let effect = "idle stacks, the heaps of Python, V8 and Go, and unpacked programs are in other-anonymous";
            gaps.push(Gap::new(Source::Proc, reason, effect).remedy(proc::file_remedy(target.pid())));
        }
        Err(_) => {}
    }
}

/// Regions that the VM mapped itself. Stacks are left out: if the VM reports them, their ends are those in the thread
/// library's record.
fn regions_without_malloc(snapshot: &Snapshot) -> Vec<AddressRange> {
    let regions = snapshot.hotspot.as_ref().map(|vm| vm.regions.as_slice()).unwrap_or_default();
    let own = regions.iter().filter(|region| region.tag != VmTag::ThreadStack);
    own.map(|region| region.range).collect()
}
