//! One snapshot: every source asked once, in the order that keeps the ones joined by address close together.

use std::time::Instant;

use super::memory::Live;
use super::proc::{self, Target, timed};
use super::{cgroup, glibc, hotspot, native_image, segment};
use crate::gap::{Gap, Source};
use crate::ledger;
use crate::snapshot::{Reading, Snapshot, VmTag, Vma};
use crate::units::AddressRange;

/// Why there is nothing to explain: one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

pub fn take(pid: u32) -> Result<Snapshot, Refusal> {
    let target = Target::open(pid).map_err(|absent| match absent {
        proc::Absent::NoSuchProcess => Refusal(format!("no process {pid}")),
        proc::Absent::NoProc => Refusal("/proc is not mounted here: nothing can be read".to_owned()),
    })?;
    if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
        return Err(Refusal(format!("{pid} is a thread of process {leader}: plimsoll explain {leader}")));
    }
    let vanished = || Refusal(format!("process {pid} went away while it was being read"));
    let since = Instant::now();
    let mut snapshot = Snapshot { host: proc::read_host(), ..Snapshot::default() };
    let (process, rss_by_kind) = proc::read_process(&target).map_err(|_| vanished())?;
    if let Some(reason) = proc::refusal(process.state, pid) {
        return Err(Refusal(reason));
    }
    snapshot.process = process;
    let mut gaps = Vec::new();
    let mut readings = Vec::new();

    // A VM that is asked allocates: first it answers, then its pages are counted.
    let (vm, vm_gaps) = timed(since, Source::HotSpot, &mut readings, || {
        let maps = target.read("maps").map(|text| proc::parse_maps(&text, &[]).vmas).unwrap_or_default();
        hotspot::read(&target, &maps)
    });
    snapshot.hotspot = vm;
    gaps.extend(vm_gaps);
    snapshot.threads = proc::read_threads(&target, snapshot.process.contained, &mut gaps);
    let began = since.elapsed();
    let mappings = proc::read_mappings(&target, &mut gaps);
    readings.push(Reading { source: Source::Proc, began, took: mappings.took });
    snapshot.time = proc::seconds_since_epoch();
    snapshot.vmas = mappings.vmas;
    snapshot.rollup = mappings.rollup;
    snapshot.smaps_refused = mappings.refused;
    snapshot.rss_by_kind = rss_by_kind;
    if let Ok((_, rss)) = proc::read_process(&target) {
        snapshot.rss_by_kind = rss;
    }
    if snapshot.vmas.is_empty() && !snapshot.smaps_refused {
        // An address space with no mapping is one that has just been torn down.
        return Err(vanished());
    }
    snapshot.allocators = proc::read_allocators(&target, &snapshot.vmas);
    if snapshot.hotspot.is_none() {
        let (image, image_gaps) =
            timed(since, Source::NativeImage, &mut readings, || native_image::read(&target, &snapshot.vmas));
        snapshot.native_image = image;
        gaps.extend(image_gaps);
    }
    // The Java heap holds no block of malloc: the walk need not look for one there.
    let searched = outside_the_java_heap(&snapshot);
    let (glibc, glibc_gaps) = timed(since, Source::Glibc, &mut readings, || {
        let tagged = snapshot.hotspot.as_ref().is_some_and(|vm| !vm.categories.is_empty());
        glibc::read(&target, &searched, tagged)
    });
    if let (Some(vm), Some(glibc)) = (&mut snapshot.hotspot, &glibc) {
        hotspot::match_tags(&mut vm.categories, &glibc.tagged);
    }
    snapshot.glibc = glibc;
    gaps.extend(glibc_gaps);
    if let Ok(memory) = Live::open(&target) {
        snapshot.idle_stacks = proc::find_stacks(&memory, &snapshot.vmas, &mut snapshot.threads);
    }
    timed(since, Source::Pagemap, &mut readings, || residency(&target, &mut snapshot, &mut gaps));
    let (group, cgroup_gaps) =
        timed(since, Source::Cgroup, &mut readings, || cgroup::read_cgroup(&target, snapshot.host.memory));
    snapshot.cgroup = group;
    gaps.extend(cgroup_gaps);
    snapshot.gaps = gaps;
    snapshot.readings = readings;
    Ok(snapshot)
}

fn outside_the_java_heap(snapshot: &Snapshot) -> Vec<Vma> {
    let regions = snapshot.hotspot.as_ref().map(|vm| vm.regions.as_slice()).unwrap_or_default();
    let heaps: Vec<AddressRange> =
        regions.iter().filter(|region| region.tag == VmTag::JavaHeap).map(|region| region.range).collect();
    let in_a_heap = |vma: &Vma| heaps.iter().any(|heap| heap.covers(vma.range));
    snapshot.vmas.iter().filter(|vma| vma.inode != 0 || !in_a_heap(vma)).cloned().collect()
}

/// The page map of those mappings only that more than one owner claims a part of.
fn residency(target: &Target, snapshot: &mut Snapshot, gaps: &mut Vec<Gap>) {
    let cut: Vec<AddressRange> = ledger::mappings_with_several_owners(snapshot).map(|vma: &Vma| vma.range).collect();
    if cut.is_empty() {
        return;
    }
    let read = target.file("pagemap").and_then(|file| proc::read_residency(&file, &cut, snapshot.host.page));
    match read {
        Ok(residency) => snapshot.residency = Some(residency),
        Err(error) => gaps.push(
            Gap::new(
                Source::Pagemap,
                format!("/proc/{}/pagemap can't be read: {error}", target.pid()),
                format!("{} mappings with several owners are shared out by length", cut.len()),
            )
            .remedy(proc::PERMISSION_REMEDY),
        ),
    }
}
