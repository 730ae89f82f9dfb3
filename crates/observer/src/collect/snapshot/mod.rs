//! Takes one snapshot. Sources that are joined by address are read close together in time (`memory`). Sources that
//! change fast are read a second time (`skew`).

use std::thread;
use std::time::Instant;

use super::skew;
use crate::ledger::{Ledger, LineId};
use crate::source::hotspot;
use crate::source::known_files::KnownFiles;
use crate::source::native_image;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{AllocatorKind, NativeImage, Process, Reading, Snapshot, Vma};
use plimsoll_facts::units::Avma;
use plimsoll_process::cgroup;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{self, Target, timed};
use plimsoll_process::processes::ProcView;
use plimsoll_tracked::segment;

mod allocators;
mod memory;
mod page_map;
mod tracker;

pub(super) use page_map::residency;

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
    let now = || {
        let target = Target::open(pid, deadline).ok()?;
        proc::read_process(&target).ok().map(|(process, _)| Program::of(&process))
    };
    of_one_program(|| take(pid, regions, true, &mut Kept::default(), deadline), now)
}

/// The data that an exec changes. If a program execs itself, only the stack's address changes. The kernel refuses the
/// stack's address to other users, but not the command line.
#[derive(PartialEq, Eq)]
struct Program {
    executable: Option<String>,
    start_stack: Option<Avma>,
    command: Vec<String>,
}

impl Program {
    fn of(process: &Process) -> Program {
        // A program may rewrite its command line (setproctitle), so it counts only where nothing else is known.
        let is_hidden = process.start_stack.is_none() && process.executable.is_none();
        let command = if is_hidden { process.command.clone() } else { Vec::new() };
        Program { executable: process.executable.clone(), start_stack: process.start_stack, command }
    }
}

/// A snapshot during an exec mixes sources of the old program with sources of the new one. For example, it has the
/// command of `plimsoll run` and the memory of the program that `run` starts. Such a snapshot is taken again, once.
fn of_one_program(
    mut take: impl FnMut() -> Result<Snapshot, Refusal>,
    now: impl Fn() -> Option<Program>,
) -> Result<Snapshot, Refusal> {
    let is_same = |snapshot: &Snapshot| {
        let then = Program::of(&snapshot.process);
        // A process that has ended since hasn't changed. Its entry in /proc stays for a while, without an executable.
        now().is_none_or(|now| now == then || now.executable.is_none() && then.executable.is_some())
    };
    let first = take()?;
    if is_same(&first) {
        return Ok(first);
    }
    let mut again = take()?;
    if !is_same(&again) {
        let reason = "another program took the process's place by exec while it was read, twice";
        let gap = Gap::new(Source::Proc, reason, "the lines may be of two programs");
        again.gaps.push(gap.remedy(format!("plimsoll explain {}", again.process.pid)));
    }
    Ok(again)
}

/// Results that later readings of the same process reuse.
#[derive(Default)]
pub(super) struct Kept {
    pub vm: Option<hotspot::KnownVm>,
    files: KnownFiles,
    /// The mappings of the last instant, of which only the pages are read. Empty: smaps is read.
    pub vmas: Vec<Vma>,
}

/// Like `take_snapshot`. `has_sum`: with the kernel's own sum of the mappings. `kept` is of an earlier reading.
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
        proc::Absent::Unread(why) => Refusal(format!("cannot open /proc/{pid}: {why}")),
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
    let is_secure = proc::is_secure(&target) == Some(true);
    snapshot.process = Process { start, is_secure, ..process };
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
    // A VM that is just starting may have mapped its archive of classes since `maps` was read.
    if let Some(vm) = &mut snapshot.hotspot {
        hotspot::join_named(vm, &snapshot.vmas);
    }
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
    } else if let Some(image) = &mut snapshot.native_image {
        snapshot.gaps.extend(skew::of_image(&target, image));
    }
    snapshot.readings = reader.readings;
    Ok(snapshot)
}

/// Whether the lines leave more of RSS unexplained than `UNEXPLAINED_AT_MOST`.
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
    /// Reads the sources that change slowly: the VM or the native image, and while it answers, the cgroup and the
    /// allocators. A query makes the VM allocate memory, so it answers first and its pages are counted afterwards.
    fn around(&mut self, snapshot: &mut Snapshot, maps: &[Vma]) -> Vec<Gap> {
        let (target, since, memory) = (self.target, self.since, snapshot.host.memory);
        let mut refused = Vec::new();
        let known = self.kept.vm.clone();
        let files = &self.kept.files;
        let is_hotspot = hotspot::is_hotspot(maps);
        let mut of_image = Vec::new();
        let ((vm, vm_reading), (group, group_reading)) = thread::scope(|scope| {
            let vm = scope.spawn(move || {
                let mut readings = Vec::new();
                (timed(since, Source::HotSpot, &mut readings, || hotspot::read(target, maps, known)), readings)
            });
            let mut readings = Vec::new();
            let group = timed(since, Source::Cgroup, &mut readings, || cgroup::read_cgroup(target, memory));
            (snapshot.allocators, snapshot.exports_malloc) = proc::read_allocators(target, maps, &mut refused);
            if is_hotspot {
                snapshot.jars = proc::open_jars(target);
            } else {
                let (nmt, gaps) = native_image::report(target, maps, files);
                // `memory` finds the image itself.
                snapshot.native_image = (!nmt.is_empty()).then(|| NativeImage { nmt, ..NativeImage::default() });
                of_image = gaps;
            }
            // Only the remedies for Go and Redis name an address at which the process listens.
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
        gaps.extend(of_image);
        gaps.extend(refused);
        gaps
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn process(executable: &str, stack: u64) -> Process {
        Process { executable: Some(executable.into()), start_stack: Some(Avma(stack)), ..Process::default() }
    }

    /// The programs at the beginning and at the end of each reading.
    fn read(programs: &[(&str, u64)]) -> (String, usize, usize) {
        let at = Cell::new(0);
        let next = || {
            let (executable, stack) = programs[at.replace(at.get() + 1)];
            process(executable, stack)
        };
        let taken = Cell::new(0);
        let take = || {
            taken.set(taken.get() + 1);
            Ok(Snapshot { process: next(), ..Snapshot::default() })
        };
        let snapshot = of_one_program(take, || Some(Program::of(&next()))).expect("a snapshot");
        (snapshot.process.executable.unwrap_or_default(), taken.get(), snapshot.gaps.len())
    }

    #[test]
    fn a_snapshot_during_an_exec_is_taken_again_once() {
        assert_eq!(read(&[("java", 1), ("java", 1)]), ("java".into(), 1, 0));
        assert_eq!(read(&[("plimsoll", 1), ("java", 2), ("java", 2), ("java", 2)]), ("java".into(), 2, 0));
        // An exec of the same file.
        assert_eq!(read(&[("sh", 1), ("sh", 2), ("sh", 2), ("sh", 2)]), ("sh".into(), 2, 0));
        assert_eq!(read(&[("a", 1), ("b", 2), ("b", 2), ("c", 3)]), ("b".into(), 2, 1));
    }

    #[test]
    fn a_process_that_ended_or_renamed_itself_is_not_read_again() {
        let count = Cell::new(0);
        let take = || {
            count.set(count.get() + 1);
            Ok(Snapshot { process: process("postgres", 1), ..Snapshot::default() })
        };
        let renamed = Process { command: vec!["postgres: idle".into()], ..process("postgres", 1) };
        assert!(of_one_program(take, || Some(Program::of(&renamed))).is_ok_and(|snapshot| snapshot.gaps.is_empty()));
        assert!(of_one_program(take, || None).is_ok_and(|snapshot| snapshot.gaps.is_empty()));
        let zombie = || Some(Program::of(&Process::default()));
        assert!(of_one_program(take, zombie).is_ok_and(|snapshot| snapshot.gaps.is_empty()));
        assert_eq!(count.get(), 3);
    }
}
