//! Takes one snapshot. Sources that are joined by address are read close together in time. Sources that change fast are
//! read a second time (`skew`).

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use super::skew;
use crate::ledger::{self, Ledger, LineId};
use crate::source::glibc;
use crate::source::hotspot;
use crate::source::known_files::KnownFiles;
use crate::source::native_image;
use crate::source::native_objects;
use crate::source::other_heaps;
use crate::source::pymalloc;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{
    AllocatorKind, Backing, Glibc, LoadedAllocator, OwnMapping, Process, Reading, Residency, Snapshot, VmTag, Vma,
};
use plimsoll_facts::units::{AddressRange, Bytes};
use plimsoll_process::cgroup;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::memory::Live;
use plimsoll_process::proc::{self, KnownMappings, Mappings, Target, timed};
use plimsoll_process::processes::ProcView;
use plimsoll_tracked::books::{Booked, Books};
use plimsoll_tracked::segment;

/// Why there is no result: one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// How much a VM is queried about its regions.
#[derive(Clone, Copy)]
pub enum Regions<'n> {
    /// Only cheap queries; all regions only if more than 2 % of RSS stays unexplained.
    AsNeeded,
    /// The addresses of all regions. The function is called before a command that makes the VM keep memory permanently.
    All(&'n dyn Fn(&str)),
}

/// Percentage of RSS that the lines may leave unexplained before the VM is queried further.
const UNEXPLAINED_AT_MOST: f64 = 2.0;

/// `deadline` is the command's limit for all sources together.
pub fn take_snapshot(pid: u32, regions: Regions<'_>, deadline: Deadline) -> Result<Snapshot, Refusal> {
    take(pid, regions, true, &mut Kept::default(), deadline)
}

/// What a later reading of the same process needn't find again.
#[derive(Default)]
pub(super) struct Kept {
    pub vm: Option<hotspot::KnownVm>,
    files: KnownFiles,
    /// The mappings of the last instant, of which only the pages are read. Empty: smaps is read.
    pub vmas: Vec<Vma>,
}

/// Does the same. `has_sum`: with the kernel's own sum of the mappings. `kept` is of an earlier reading.
pub(super) fn take(
    pid: u32,
    regions: Regions<'_>,
    has_sum: bool,
    kept: &mut Kept,
    deadline: Deadline,
) -> Result<Snapshot, Refusal> {
    let target = Target::open(pid, deadline).map_err(|absent| match absent {
        proc::Absent::NoSuchProcess => Refusal(ProcView::now().absent(pid)),
        proc::Absent::NoProc => Refusal("/proc is not mounted here: nothing can be read".to_owned()),
    })?;
    if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
        return Err(Refusal(format!("{pid} is a thread of process {leader}: plimsoll explain {leader}")));
    }
    let vanished = || Refusal(format!("process {pid} ended while it was being read"));
    let mut reader = Reader { target: &target, since: Instant::now(), readings: Vec::new(), kept, has_sum };
    let mut snapshot = Snapshot { host: proc::read_host(), ..Snapshot::default() };
    let (process, rss_by_kind) = proc::read_process(&target).map_err(|_| Refusal(ProcView::now().absent(pid)))?;
    if let Some(reason) = proc::refusal(process.state, pid) {
        return Err(Refusal(reason));
    }
    let start = proc::read_start(&target, &process);
    snapshot.process = Process { start, ..process };
    snapshot.rss_by_kind = rss_by_kind;

    let maps = target.read("maps").map(|text| proc::parse_maps(&text, &[]).vmas).unwrap_or_default();
    reader.kept.files.retain(&maps);
    snapshot.gaps = reader.around(&mut snapshot, &maps);
    let may_know_more = |snapshot: &Snapshot| snapshot.hotspot.as_ref().is_some_and(hotspot::can_locate);
    if let Regions::All(announce) = regions {
        while may_know_more(&snapshot) {
            snapshot.hotspot.as_ref().and_then(hotspot::next_with_symbols).into_iter().for_each(announce);
            reader.locate(&mut snapshot, &maps);
        }
    }
    let mut gaps = reader.memory(&mut snapshot);
    while may_know_more(&snapshot) && is_short(&snapshot) {
        reader.locate(&mut snapshot, &maps);
        gaps = reader.memory(&mut snapshot);
    }
    if snapshot.vmas.is_empty() && !snapshot.smaps_refused {
        // A process without any mapping is just being torn down.
        return Err(vanished());
    }
    snapshot.gaps.extend(gaps);
    if let Some(vm) = &mut snapshot.hotspot {
        let once = skew::of_vm(&target, &maps, vm, reader.kept.vm.as_ref());
        snapshot.gaps.extend(once);
    }
    snapshot.readings = reader.readings;
    Ok(snapshot)
}

/// Whether too much is unexplained.
fn is_short(snapshot: &Snapshot) -> bool {
    let ledger = Ledger::of(snapshot);
    let unexplained = ledger.remainder + ledger.resident(LineId::OtherAnonymous);
    unexplained.percent_of(ledger.rss) > UNEXPLAINED_AT_MOST
}

struct Reader<'t> {
    target: &'t Target,
    since: Instant,
    readings: Vec<Reading>,
    kept: &'t mut Kept,
    has_sum: bool,
}

impl Reader<'_> {
    /// Reads the sources that change slowly: the VM, and while it answers, the cgroup and the allocators. A query makes
    /// the VM allocate memory, so it answers first and its pages are counted afterwards.
    fn around(&mut self, snapshot: &mut Snapshot, maps: &[Vma]) -> Vec<Gap> {
        let (target, since, memory) = (self.target, self.since, snapshot.host.memory);
        let mut refused = Vec::new();
        let known = self.kept.vm.clone();
        let ((vm, vm_reading), (group, group_reading)) = thread::scope(|scope| {
            let vm = scope.spawn(move || {
                let mut readings = Vec::new();
                (timed(since, Source::HotSpot, &mut readings, || hotspot::read(target, maps, known)), readings)
            });
            let mut readings = Vec::new();
            let group = timed(since, Source::Cgroup, &mut readings, || cgroup::read_cgroup(target, memory));
            snapshot.allocators = proc::read_allocators(target, maps, &mut refused);
            if hotspot::is_hotspot(maps) {
                snapshot.jars = proc::open_jars(target);
            }
            // Remedies that name an address are for these.
            let is_go = snapshot.allocators.iter().any(|known| known.kind == AllocatorKind::Go);
            if is_go || snapshot.process.redis_client().is_some() {
                snapshot.listeners = proc::listeners(target);
            }
            (vm.join().unwrap_or_default(), (group, readings))
        });
        let (vm, mut gaps) = vm;
        if vm.is_some() {
            self.readings.extend(vm_reading);
        }
        self.readings.extend(group_reading);
        let (vm, known) = vm.unzip();
        snapshot.hotspot = vm;
        // None if the VM's memory could not be read now.
        if let Some(known) = known.flatten() {
            self.kept.vm = Some(known);
        }
        let (group, group_gaps) = group;
        snapshot.cgroup = group;
        gaps.extend(group_gaps);
        gaps.extend(refused);
        gaps
    }

    /// The mappings, and their pages if a scan has found them (see `series`). Its mappings have no new figures of swap.
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

    fn locate(&mut self, snapshot: &mut Snapshot, maps: &[Vma]) {
        if let Some(vm) = snapshot.hotspot.as_mut().filter(|vm| hotspot::can_locate(vm)) {
            let began = self.since.elapsed();
            snapshot.gaps.extend(hotspot::locate(self.target, maps, vm, self.kept.vm.as_mut()));
            let took = self.since.elapsed() - began;
            if let Some(hotspot) = self.readings.iter_mut().find(|reading| reading.source == Source::HotSpot) {
                hotspot.took += took;
            }
        }
    }

    /// Reads what is joined by address, close together in time: threads, mappings, arenas, stacks, pages. Replaces the
    /// results of earlier readings.
    fn memory(&mut self, snapshot: &mut Snapshot) -> Vec<Gap> {
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
        let tagged = snapshot.hotspot.as_ref().is_some_and(|vm| !vm.categories.is_empty());
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
        if let Ok((_, rss)) = proc::read_process(target) {
            snapshot.rss_by_kind = rss;
        }
        let began = since.elapsed();
        let vm = snapshot.hotspot.is_some().then_some(elsewhere.as_slice());
        let (image, image_gaps) = native_image::read(target, &snapshot.vmas, vm, files);
        if image.is_some() {
            readings.push(Reading { source: Source::NativeImage, began, took: since.elapsed() - began });
        }
        snapshot.native_image = image;
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
        let (heap, closed) = timed(since, Source::Allocator, &mut readings, || {
            let program = snapshot.process.executable.as_deref();
            other_heaps::read(target, &snapshot.allocators, program, &snapshot.vmas)
        });
        if heap.is_none() {
            readings.retain(|reading| reading.source != Source::Allocator);
        }
        snapshot.malloc_heap = heap;
        gaps.extend(closed);
        let (v8, closed) = other_heaps::read_v8(target, &snapshot.allocators, &snapshot.vmas);
        snapshot.v8 = v8;
        gaps.extend(closed);
        let (go, closed) = other_heaps::read_go(target, &snapshot.allocators, &snapshot.vmas);
        snapshot.go = go;
        gaps.extend(closed);
        gaps.extend(unrecognised_glibc(snapshot, &gaps));
        gaps.extend(walks.compare(target, snapshot));
        match Live::open(target) {
            Ok(memory) => {
                let deadline = target.deadline();
                snapshot.idle_stacks =
                    proc::find_stacks(&memory, &snapshot.vmas, &mut snapshot.threads, deadline, &mut gaps);
                let (python, unsearched) = pymalloc::find(&memory, &snapshot.vmas);
                snapshot.pymalloc = python;
                gaps.extend(unsearched);
                snapshot.unpacked = proc::find_unpacked(&memory, &snapshot.vmas);
            }
            // If an allocator's reader already reported the error, don't repeat it. Without mappings, there is nothing
            // to read either.
            Err(error)
                if !snapshot.smaps_refused && !gaps.iter().any(|gap| gap.reason.contains("/mem can't be opened")) =>
            {
                let pid = target.pid();
                let reason = format!("/proc/{pid}/mem can't be opened: {}", proc::why_refused(pid, &error));
                let effect =
                    "idle stacks, the heaps of Python, V8 and Go, and unpacked programs are in other-anonymous";
                gaps.push(Gap::new(Source::Proc, reason, effect).remedy(proc::file_remedy(target.pid())));
            }
            Err(_) => {}
        }
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

/// The gap if glibc serves malloc, and no arena was found in its data: a newer glibc may lay them out in another way. A
/// program that hasn't called malloc has no [heap], and a preloaded allocator serves malloc itself.
fn unrecognised_glibc(snapshot: &Snapshot, gaps: &[Gap]) -> Option<Gap> {
    let serves = |known: &LoadedAllocator| known.serves_malloc && known.kind == AllocatorKind::Glibc;
    let is_used = |vma: &Vma| vma.backing == Backing::Brk && vma.rss > Bytes(0);
    let is_unknown = snapshot.glibc.is_none()
        && snapshot.malloc_heap.is_none()
        && snapshot.allocators.iter().any(serves)
        && snapshot.vmas.iter().any(is_used)
        && gaps.iter().all(|gap| gap.source != Source::Glibc);
    is_unknown.then(|| {
        let reason = "no arena of glibc's malloc was found in libc's data";
        Gap::new(Source::Glibc, reason, "glibc's live and free blocks are in glibc-unknown and other-anonymous")
    })
}

/// The segment of a tracked or detached process, which has it mapped.
fn tracked(target: &Target, vmas: &[Vma]) -> Option<(PathBuf, segment::Life)> {
    has_segment(vmas)
        .then(|| segment::find_by_pid(target.pid(), target.deadline()))
        .flatten()
        .map(|(path, _, life)| (path, life))
}

fn has_segment(vmas: &[Vma]) -> bool {
    vmas.iter().any(|vma| vma.name.ends_with(".seg"))
}

/// The tracker's own mappings, and whether it was detached. `found` is its segment.
fn own_mappings(
    target: &Target,
    vmas: &[Vma],
    found: Option<(PathBuf, segment::Life)>,
    gaps: &mut Vec<Gap>,
) -> (Vec<OwnMapping>, bool) {
    let read = match &found {
        Some((path, _)) => segment::own_mappings(path, target.deadline()),
        None if has_segment(vmas) => segment::refused(target.pid(), target.deadline()).map_or(Ok(Vec::new()), Err),
        None => Ok(Vec::new()),
    };
    let own = read.unwrap_or_else(|error| {
        gaps.push(unread_segment(
            target,
            &error,
            "the tracker's memory is in other-anonymous, and its books are unknown",
        ));
        Vec::new()
    });
    (own, found.is_some_and(|(_, life)| life == segment::Life::Detached))
}

fn unread_segment(target: &Target, error: &segment::ReadError, effect: &str) -> Gap {
    let gap = Gap::new(Source::Segment, error.to_string(), effect);
    if error.is_of_contents() { gap } else { gap.remedy(proc::file_remedy(target.pid())) }
}

/// The books, if the tracker was attached to a running process. A segment that isn't found is reported by
/// `own_mappings`.
fn attached_books(
    target: &Target,
    tracked: Option<&(PathBuf, segment::Life)>,
) -> Result<Option<Booked>, segment::ReadError> {
    let Some((path, life)) = tracked.filter(|(_, life)| *life == segment::Life::Live) else { return Ok(None) };
    let deadline = target.deadline();
    if !segment::was_attached(path, deadline)? {
        return Ok(None);
    }
    let segment = segment::read_books(path, deadline)?;
    Ok(Some(Books::without_frames(&segment, *life, segment.last_sign_ns()).booked()))
}

/// The default cap on arenas: 8 × CPUs (malloc/arena.c, `arena_get2`). glibc 2.34 to 2.38 counts the CPUs that the
/// process may run on (`__get_nprocs_sched`); other versions count all online CPUs.
fn with_arena_cap(mut glibc: Glibc, snapshot: &Snapshot) -> Glibc {
    if glibc.arena_cap.is_none() {
        let minor = glibc.version.strip_prefix("2.").and_then(|minor| minor.parse::<u32>().ok());
        let by_affinity = minor.is_some_and(|minor| (34..=38).contains(&minor));
        let online = snapshot.host.cpus_online;
        let cpus = snapshot.process.cpus_allowed.filter(|_| by_affinity).map_or(online, |allowed| allowed.min(online));
        glibc.arena_cap = (cpus > 0).then_some(8 * cpus);
    }
    glibc
}

/// Regions that the VM mapped itself. Stacks are left out: if the VM reports them, their ends are those in the thread
/// library's record.
fn regions_without_malloc(snapshot: &Snapshot) -> Vec<AddressRange> {
    let regions = snapshot.hotspot.as_ref().map(|vm| vm.regions.as_slice()).unwrap_or_default();
    let own = regions.iter().filter(|region| region.tag != VmTag::ThreadStack);
    own.map(|region| region.range).collect()
}

/// Reads the page map, but only of mappings that several owners claim or that the process maps more than once.
pub(super) fn residency(target: &Target, snapshot: &mut Snapshot, gaps: &mut Vec<Gap>) {
    let cut: Vec<AddressRange> = ledger::mappings_with_several_owners(snapshot).map(|vma: &Vma| vma.range).collect();
    let again: Vec<AddressRange> = ledger::mapped_again(snapshot).map(|vma| vma.range).collect();
    if cut.is_empty() && again.is_empty() {
        return;
    }
    let all = [cut.as_slice(), again.as_slice()].concat();
    let read = target
        .file("pagemap")
        .and_then(|file| proc::read_residency(&file, &all, snapshot.host.page, target.deadline()));
    match read {
        Ok(residency) => snapshot.residency = Some(residency),
        Err(error) => {
            let gap = Gap::new(
                Source::Pagemap,
                format!("/proc/{}/pagemap can't be read: {error}", target.pid()),
                [
                    (cut.len(), "mappings with several owners are divided by length"),
                    (again.len(), "mappings of the same memory are each counted in full"),
                ]
                .iter()
                .filter(|(number, _)| *number > 0)
                .map(|(number, effect)| format!("{number} {effect}"))
                .collect::<Vec<_>>()
                .join("; "),
            );
            // No right helps where the process has too much to read.
            gaps.push(if proc::is_too_much(&error) { gap } else { gap.remedy(proc::file_remedy(target.pid())) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glibc_whose_arenas_are_not_found_is_a_gap() {
        let heap = Vma { backing: Backing::Brk, rss: Bytes(4096), ..Vma::default() };
        let allocator =
            |kind| LoadedAllocator { kind, path: "/lib/libc.so.6".into(), serves_malloc: kind == AllocatorKind::Glibc };
        let snapshot =
            |kind| Snapshot { vmas: vec![heap.clone()], allocators: vec![allocator(kind)], ..Snapshot::default() };
        let of_glibc = snapshot(AllocatorKind::Glibc);
        assert!(unrecognised_glibc(&of_glibc, &[]).is_some());
        assert_eq!(unrecognised_glibc(&of_glibc, &[Gap::new(Source::Glibc, "refused", "")]), None);
        assert_eq!(unrecognised_glibc(&snapshot(AllocatorKind::Go), &[]), None);
        let found = Snapshot { glibc: Some(Glibc::default()), ..snapshot(AllocatorKind::Glibc) };
        assert_eq!(unrecognised_glibc(&found, &[]), None);
        let unused = Snapshot { vmas: Vec::new(), ..snapshot(AllocatorKind::Glibc) };
        assert_eq!(unrecognised_glibc(&unused, &[]), None);
    }
}
