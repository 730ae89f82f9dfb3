//! Puts one VM's facts together from its answers.
//!
//! `read` sends the cheap commands, which leave nothing behind in the VM. `locate` queries more regions. This costs the
//! VM as much as all other commands together, or ten times as much, or memory that stays allocated. `collect` calls
//! `locate` only if `read` left too much unexplained, or if every mapping must be named.

use std::collections::HashSet;

use super::direct_buffers::MOST_CLASSES;
use super::nmt::parse_nmt;
use super::perfdata::PerfData;
use super::printed::{parse_flags, parse_loaders, parse_printed, parse_version};
use super::read::{self, Mute, Patience, Vm};
use super::structs::{self, KnownVm, VmFacts};
use super::system_map::parse_system_map;
use super::threads::parse_threads;
use crate::source::glibc::overlapping;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{
    DirectBuffers, HotSpot, JavaHeap, Metaspace, NmtCategory, NmtMode, Sourced, VmRegion, VmTag, Vma,
};
use plimsoll_facts::units::{Bytes, merged};
use plimsoll_process::proc::{Target, as_user, file_remedy, permission_remedy};
use plimsoll_process::processes::{JvmLibrary, jvm_library};

/// Flags with the files of class archives whose names don't end in .jsa: paths, or `base:top` if there are two.
const ARCHIVES: [&str; 2] = ["AOTCache", "SharedArchiveFile"];

/// Flags that the verdicts use, and `ARCHIVES`. Only flags that were set or chosen by ergonomics are queried: JDK 25
/// prints the full list line by line, which took 26 ms.
const FLAGS: [&str; 31] = [
    "AOTCache",
    "AlwaysPreTouch",
    "DisableExplicitGC",
    "EnableDynamicAgentLoading",
    "ExplicitGCInvokesConcurrent",
    "G1HeapRegionSize",
    "G1PeriodicGCInterval",
    "InitialHeapSize",
    "MaxDirectMemorySize",
    "MaxHeapFreeRatio",
    "MaxHeapSize",
    "MaxMetaspaceSize",
    "MinHeapFreeRatio",
    "MinHeapSize",
    "NativeMemoryTracking",
    "SharedArchiveFile",
    "ShenandoahGuaranteedGCInterval",
    "ShenandoahUncommit",
    "ShenandoahUncommitDelay",
    "ShrinkHeapInSteps",
    "SoftMaxHeapSize",
    "ThreadStackSize",
    "TrimNativeHeapInterval",
    "UseG1GC",
    "UseParallelGC",
    "UseSerialGC",
    "UseShenandoahGC",
    "UseTransparentHugePages",
    "UseZGC",
    "ZUncommit",
    "ZUncommitDelay",
];

/// JDK 8 knows no scale finer than KB.
fn nmt_summary(jdk: Option<u32>) -> &'static str {
    match jdk {
        Some(8) => "VM.native_memory summary scale=KB",
        _ => "VM.native_memory summary scale=1",
    }
}

/// Thread.print walks each thread's stack while all threads are stopped: 0.15 ms for 60 frames.
const MOST_PRINTED: usize = 200;

/// Eclipse OpenJ9 answers none of HotSpot's commands, and SIGQUIT makes it write a dump into its directory.
pub fn is_hotspot(vmas: &[Vma]) -> bool {
    library(vmas) == Some(JvmLibrary::HotSpot)
}

fn library(vmas: &[Vma]) -> Option<JvmLibrary> {
    jvm_library(vmas.iter().map(|vma| (vma.name.as_bytes(), vma.range.length().0)))
}

/// None without a gap: the process isn't a HotSpot VM. `known` is what an earlier reading returned beside its facts, so
/// that this reading needn't search for it.
pub fn read(target: &Target, vmas: &[Vma], known: Option<KnownVm>) -> Sourced<(HotSpot, Option<KnownVm>)> {
    let library = library(vmas);
    if library != Some(JvmLibrary::HotSpot) {
        let reason = "the VM is Eclipse OpenJ9, not HotSpot, and was not queried";
        let effect = "its Java heap, classes and compiled code are in other-anonymous";
        let gap = library.map(|_| Gap::new(Source::HotSpot, reason.to_owned(), effect));
        return (None, gap.into_iter().collect());
    }
    let mut hotspot = HotSpot::default();
    let mut gaps = Vec::new();
    let perfdata = read::perfdata(target, vmas).unwrap_or_else(|reason| {
        let effect = "the sizes of Java heap and metaspace come from the VM's answers only";
        gaps.push(Gap::new(Source::HotSpot, reason, effect).remedy(file_remedy(target.pid())));
        None
    });
    if let Some(perfdata) = &perfdata {
        from_perfdata(&mut hotspot, perfdata);
    }
    let counted = perfdata.as_ref().and_then(PerfData::class_counts);
    let kept = structs::read(target, vmas, known, counted);
    gaps.extend(gap_of_facts(&kept).map(|gap| match &kept {
        Err(_) => gap.remedy(file_remedy(target.pid())),
        Ok(_) => gap,
    }));
    let VmFacts { direct_buffers, known, regions, threads } = kept.ok().flatten().unwrap_or_default();
    match Vm::open(target, perfdata.as_ref(), Patience::default()) {
        Ok(mut vm) => {
            let unnamed = threads.is_none().then(|| count_threads(target));
            let has_code = regions.iter().any(|region| region.tag == VmTag::Code);
            query(&mut hotspot, &mut vm, Unknown { unnamed, code: !has_code }, &mut gaps);
        }
        Err(mute) => gaps.push(gap_of(mute, target)),
    }
    if let Some(threads) = threads {
        hotspot.threads = threads;
    }
    hotspot.direct_buffers = direct_buffers.map(|direct| {
        // Bits.MAX_MEMORY (jdk.internal.misc.VM.maxDirectMemory): the flag, or the heap's maximum.
        let flag = |wanted: &str| {
            hotspot.flags.iter().find(|(name, _)| name == wanted).and_then(|(_, value)| value.parse().ok())
        };
        let max = flag("MaxDirectMemorySize").filter(|max| *max > 0).or_else(|| flag("MaxHeapSize")).map(Bytes);
        DirectBuffers { max, ..direct }
    });
    if let Some(heap) = &mut hotspot.java_heap
        && heap.reserved == Bytes(0)
    {
        heap.reserved = regions.iter().filter(|r| r.tag == VmTag::JavaHeap).map(|r| r.range.length()).sum();
    }
    join_regions(&mut hotspot.regions, regions);
    join_named(&mut hotspot, vmas);
    if let Some(regions) = known.as_ref().and_then(|known| known.info.clone())
        && witnesses(&hotspot).first() == Some(&Witness::Info)
    {
        join_regions(&mut hotspot.regions, regions);
        hotspot.located = 1;
    }
    hotspot.regions.sort_by_key(|region| region.range.start);
    (Some((hotspot, known)), gaps)
}

/// What the VM's own table didn't give, if it should have.
fn gap_of_facts(kept: &Result<Option<VmFacts>, String>) -> Option<Gap> {
    const BOTH: &str = "direct buffers and the whole names of threads are unknown";
    let too_many = format!("the VM has more than {MOST_CLASSES} classes, and only so many were searched");
    let (reason, effect) = match kept {
        Err(reason) => (reason.as_str(), BOTH),
        Ok(None) => ("the VM's table of its fields (gHotSpotVMStructs) was not found or can't be read", BOTH),
        Ok(Some(facts)) if !facts.known.as_ref().is_some_and(KnownVm::has_buffer_fields) => {
            ("the VM's table has no fields that lead to java.nio's counters", "direct buffers are unknown")
        }
        Ok(Some(facts)) if facts.known.as_ref().is_some_and(KnownVm::is_cut) => {
            let effect = match &facts.direct_buffers {
                None => "direct buffers are unknown",
                Some(_) => "memory that Netty allocates without java.nio may be missing in direct buffers",
            };
            (too_many.as_str(), effect)
        }
        Ok(Some(_)) => return None,
    };
    Some(Gap::new(Source::HotSpot, reason, effect))
}

/// Queries NMT a second time. Sets how much each category changed since the first report, unless the walk of malloc's
/// arenas found its blocks: then the walk has the figure.
pub(crate) fn read_again(target: &Target, vmas: &[Vma], hotspot: &mut HotSpot) -> Result<(), String> {
    if hotspot.categories.iter().all(|category| category.malloc_resident.is_some()) {
        return Ok(());
    }
    // `read` already reported what refused it.
    let perfdata = read::perfdata(target, vmas).unwrap_or_default();
    let mut vm = Vm::open(target, perfdata.as_ref(), Patience::default()).map_err(|mute| mute.to_string())?;
    let later = parse_nmt(&vm.query(nmt_summary(hotspot.jdk()))?).categories;
    compare(&mut hotspot.categories, &later);
    Ok(())
}

/// Sets how much each category changed until a later report.
pub(crate) fn compare(categories: &mut [NmtCategory], later: &[NmtCategory]) {
    for category in categories.iter_mut().filter(|category| category.malloc_resident.is_none()) {
        let then = category.malloc + category.arena;
        let now = later.iter().find(|later| later.name == category.name);
        category.moved = now.map_or(then, |now| (now.malloc + now.arena).abs_diff(then));
    }
}

/// Commands that report more regions than `read`, cheapest first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Witness {
    /// Also reports mark bits. The VM resolves its signal handlers' names for it, and so keeps libjvm's symbols: 4 to 5
    /// MB.
    Info,
    /// Reports each of NMT's regions; needs JDK 24 and NMT's summary level.
    SystemMap,
    /// Reports the same with stacks, and so keeps libjvm's symbols.
    Detail,
}

fn witnesses(hotspot: &HotSpot) -> &'static [Witness] {
    match (hotspot.nmt, hotspot.jdk().unwrap_or(0)) {
        (NmtMode::Unknown, _) => &[],
        (NmtMode::Summary | NmtMode::Detail, 24..) => &[Witness::SystemMap],
        // JDK 8 has no VM.info.
        (NmtMode::Detail, 8) => &[Witness::Detail],
        (NmtMode::Off | NmtMode::Summary, 8) => &[],
        (NmtMode::Detail, _) => &[Witness::Info, Witness::Detail],
        (NmtMode::Off | NmtMode::Summary, _) => &[Witness::Info],
    }
}

impl Witness {
    fn command(self, jdk: Option<u32>) -> &'static str {
        match self {
            Witness::Info => "VM.info",
            Witness::SystemMap => "System.map",
            Witness::Detail if jdk == Some(8) => "VM.native_memory detail scale=KB",
            Witness::Detail => "VM.native_memory detail scale=1",
        }
    }
}

/// The command that [`locate`] would send next, if the VM would keep libjvm's symbols because of it.
pub(crate) fn next_with_symbols(hotspot: &HotSpot) -> Option<&'static str> {
    let next = witnesses(hotspot).get(hotspot.located)?;
    matches!(next, Witness::Info | Witness::Detail).then_some(next.command(hotspot.jdk()))
}

/// Whether the VM could report more regions than it has been queried for.
pub(crate) fn can_locate(hotspot: &HotSpot) -> bool {
    hotspot.located < witnesses(hotspot).len()
}

/// Queries more regions. If NMT contradicts what the VM printed, NMT is used. What VM.info prints and no other command
/// is kept in `known`.
pub fn locate(target: &Target, vmas: &[Vma], hotspot: &mut HotSpot, known: Option<&mut KnownVm>) -> Vec<Gap> {
    const EFFECT: &str = "regions that the VM's other answers don't name are in other-anonymous";
    let Some(witness) = witnesses(hotspot).get(hotspot.located).copied() else { return Vec::new() };
    let with_symbols = next_with_symbols(hotspot);
    hotspot.located += 1;
    // `read` already reported what refused it.
    let perfdata = read::perfdata(target, vmas).unwrap_or_default();
    let mut vm = match Vm::open(target, perfdata.as_ref(), Patience::default()) {
        Ok(vm) => vm,
        Err(mute) => return vec![gap_of(mute, target)],
    };
    let regions_in: fn(&str) -> Vec<VmRegion> = match witness {
        Witness::Info => |text| parse_printed(text).regions,
        Witness::SystemMap => parse_system_map,
        Witness::Detail => |text| parse_nmt(text).regions,
    };
    hotspot.symbols_for.extend(with_symbols);
    match vm.query(witness.command(hotspot.jdk())) {
        Ok(text) => {
            let mut regions = regions_in(&text);
            match known.filter(|_| witness == Witness::Info) {
                Some(known) => known.info = Some(reserved_once(&hotspot.regions, &regions)),
                None if witness == Witness::Info => {}
                None => std::mem::swap(&mut hotspot.regions, &mut regions),
            }
            join_regions(&mut hotspot.regions, regions);
            hotspot.regions.sort_by_key(|region| region.range.start);
            Vec::new()
        }
        Err(reason) => vec![Gap::new(Source::HotSpot, reason, EFFECT)],
    }
}

/// The regions that the VM reserves when it starts and never moves, without those that `known` has.
fn reserved_once(known: &[VmRegion], regions: &[VmRegion]) -> Vec<VmRegion> {
    let known = merged(known.iter().map(|region| region.range).collect());
    let is_its = |region: &&VmRegion| {
        let lasts = matches!(region.tag, VmTag::JavaHeap | VmTag::Gc | VmTag::SharedClassSpace);
        lasts && overlapping(&known, region.range).is_empty()
    };
    regions.iter().filter(is_its).cloned().collect()
}

fn from_perfdata(hotspot: &mut HotSpot, perfdata: &PerfData) {
    hotspot.version = perfdata.text("java.property.java.vm.version").unwrap_or_default().to_string();
    if let Some(committed) = perfdata.heap_sum("capacity") {
        let occupied = perfdata.heap_sum("used").unwrap_or_default();
        hotspot.java_heap = Some(JavaHeap { committed, occupied, max: perfdata.heap_max(), ..JavaHeap::default() });
    }
    if let Some(committed) = perfdata.bytes("sun.gc.metaspace.capacity") {
        hotspot.metaspace = Some(Metaspace {
            committed,
            occupied: perfdata.bytes("sun.gc.metaspace.used").unwrap_or_default(),
            reserved: perfdata.bytes("sun.gc.metaspace.maxCapacity").unwrap_or_default(),
            class_space_committed: perfdata.bytes("sun.gc.compressedclassspace.capacity").unwrap_or_default(),
            classes: perfdata
                .number("java.cls.loadedClasses")
                .map(|loaded| loaded.saturating_sub(perfdata.number("java.cls.unloadedClasses").unwrap_or(0))),
            ..Metaspace::default()
        });
    }
}

fn count_threads(target: &Target) -> usize {
    target.numbers("task").map_or(0, |tasks| tasks.len())
}

/// Facts that the VM's memory didn't show, so that commands must query them.
struct Unknown {
    /// Number of threads, if their names are unknown.
    unnamed: Option<usize>,
    /// Whether the address of the code cache is unknown.
    code: bool,
}

fn query(hotspot: &mut HotSpot, vm: &mut Vm, Unknown { unnamed, code }: Unknown, gaps: &mut Vec<Gap>) {
    const HEAP_EFFECT: &str = "how much of the Java heap is committed and occupied is unknown";
    const HEAP_OF_FILE: &str = "the Java heap's figures are those of hsperfdata, which the VM renews at collections";
    const NAMES: &str = "threads have the kernel's names, cut at 15 bytes";
    if let Some(threads) = unnamed.filter(|threads| *threads > MOST_PRINTED) {
        let why = format!(
            "the names of {threads} threads can't be read; the VM could print them, but would stop all threads for that"
        );
        gaps.push(Gap::new(Source::HotSpot, why, NAMES).remedy(format!("jcmd {} Thread.print", vm.pid())));
    }
    let mut answer = |command: &str, effect: &str| match vm.query(command) {
        Ok(text) => text,
        Err(reason) => {
            gaps.push(Gap::new(Source::HotSpot, reason, effect));
            String::new()
        }
    };
    if let Some(version) = parse_version(&answer("VM.version", "the VM's version is unknown")) {
        hotspot.version = version;
    }
    hotspot.flags = parse_flags(&answer("VM.flags", "the VM's flags are unknown"), &FLAGS);
    if unnamed.is_some_and(|threads| threads <= MOST_PRINTED) {
        hotspot.threads = parse_threads(&answer("Thread.print", NAMES));
    }

    let nmt_effect = "the VM's categories are unknown: its malloc is part of glibc-live";
    let nmt = parse_nmt(&answer(nmt_summary(hotspot.jdk()), nmt_effect));
    if nmt.mode != NmtMode::Unknown {
        let option = hotspot.flags.iter().find(|(flag, _)| flag == "NativeMemoryTracking");
        let detail = nmt.mode == NmtMode::Summary && option.is_some_and(|(_, level)| level == "detail");
        hotspot.nmt = if detail { NmtMode::Detail } else { nmt.mode };
    }
    let metaspace = answer("VM.metaspace vslist by-spacetype", "metaspace is in other-anonymous");
    let loaders = parse_loaders(&metaspace);
    // VM.info has all of this in one answer, but leaves 4 to 5 MB of libjvm's symbols in the VM.
    let heap = answer("GC.heap_info", if hotspot.java_heap.is_some() { HEAP_OF_FILE } else { HEAP_EFFECT });
    let code = match code {
        true => answer("Compiler.codecache", "the code cache is in other-anonymous"),
        false => String::new(),
    };
    let (newer, older) = ("VM.events log=heap", "VM.events log=gc");
    let known_as = if hotspot.jdk() >= Some(25) { [newer, older] } else { [older, newer] };
    let mut history = String::new();
    for command in known_as {
        history = answer(command, "how much of the heap the last collection left is unknown");
        if !history.contains("did not match any known event log") {
            break;
        }
    }
    let was_answered = !heap.is_empty();
    let printed = parse_printed(&[heap, code, metaspace, history].join("\n"));
    // hsperfdata may have both figures.
    if was_answered && printed.heap.is_none() && hotspot.java_heap.is_none() {
        let reason = "the answer to GC.heap_info was not understood";
        gaps.push(Gap::new(Source::HotSpot, reason, HEAP_EFFECT));
    }
    join_regions(&mut hotspot.regions, printed.regions);
    hotspot.categories = nmt.categories;
    hotspot.nmt_total = nmt.total;
    hotspot.code_cache = printed.code_cache;
    hotspot.has_stopped_compiling = printed.has_stopped_compiling;
    hotspot.collector = printed.collector.or_else(|| collector_by_flags(&hotspot.flags));
    take_sizes(hotspot, printed.heap, printed.metaspace, loaders);
}

/// Adds the mappings whose file identifies them, if they are new.
pub(crate) fn join_named(hotspot: &mut HotSpot, vmas: &[Vma]) {
    let named = by_name(vmas, &hotspot.flags);
    join_regions(&mut hotspot.regions, named);
    hotspot.regions.sort_by_key(|region| region.range.start);
}

/// Mappings identified by their file: ZGC's heap, however often it is mapped, and class archives.
fn by_name(vmas: &[Vma], flags: &[(String, String)]) -> Vec<VmRegion> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
    let stated = flags.iter().filter(|(flag, _)| ARCHIVES.contains(&&**flag)).flat_map(|(_, paths)| paths.split(':'));
    let archives: HashSet<String> = stated.map(file_name).collect();
    let tag = |name: &str| match name {
        name if name.starts_with("/memfd:java_heap") => Some(VmTag::JavaHeap),
        name if name.ends_with(".jsa") || archives.contains(&file_name(name)) => Some(VmTag::SharedClassSpace),
        _ => None,
    };
    vmas.iter()
        .filter_map(|vma| {
            let tag = tag(&vma.name)?;
            Some(VmRegion { range: vma.range, tag, committed: vec![vma.range] })
        })
        .collect()
}

/// Adds regions of a second command where the first reported none. They stay disjoint.
fn join_regions(regions: &mut Vec<VmRegion>, more: Vec<VmRegion>) {
    let known = merged(regions.iter().map(|region| region.range).collect());
    regions.extend(more.into_iter().filter(|region| overlapping(&known, region.range).is_empty()));
}

fn take_sizes(
    hotspot: &mut HotSpot,
    heap: Option<JavaHeap>,
    metaspace: Option<Metaspace>,
    loaders: Option<(u64, u64)>,
) {
    let max =
        hotspot.flags.iter().find(|(name, _)| name == "MaxHeapSize").and_then(|(_, size)| size.parse().ok()).map(Bytes);
    if let Some(heap) = heap {
        let of_file = hotspot.java_heap.as_ref().and_then(|known| known.max);
        hotspot.java_heap = Some(JavaHeap { max: heap.max.or(of_file), ..heap });
    }
    if let (Some(heap), Some(max)) = (&mut hotspot.java_heap, max) {
        heap.max = Some(max);
    }
    if let Some(metaspace) = metaspace {
        let known = hotspot.metaspace.take().unwrap_or_default();
        hotspot.metaspace = Some(Metaspace { classes: known.classes, loaders: known.loaders, ..metaspace });
    }
    if let (Some(metaspace), Some((loaders, classes))) = (&mut hotspot.metaspace, loaders) {
        metaspace.loaders = Some(loaders);
        metaspace.classes = Some(classes);
    }
}

fn collector_by_flags(flags: &[(String, String)]) -> Option<String> {
    const COLLECTORS: [(&str, &str); 6] = [
        ("UseG1GC", "G1"),
        ("UseParallelGC", "Parallel"),
        ("UseSerialGC", "Serial"),
        ("UseConcMarkSweepGC", "CMS"),
        ("UseZGC", "Z"),
        ("UseShenandoahGC", "Shenandoah"),
    ];
    let on = |flag: &str| flags.iter().any(|(name, value)| name == flag && value == "true");
    COLLECTORS.iter().find(|(flag, _)| on(flag)).map(|(_, name)| (*name).to_string())
}

fn gap_of(mute: Mute, target: &Target) -> Gap {
    const EFFECT: &str = "metaspace and code cache are in other-anonymous, the VM's malloc is part of glibc-live";
    let reason = match &mute {
        Mute::Stopped => "the VM is stopped and can't answer".to_owned(),
        Mute::Disabled => "the VM was started with -XX:+DisableAttachMechanism".to_owned(),
        Mute::SignalNotCaught => {
            "the VM doesn't catch SIGQUIT (-Xrs, or it is still starting), so it can't be queried".to_owned()
        }
        Mute::Late => format!("no command was sent to the VM: {mute}"),
        Mute::Silent(waited) => {
            format!("the VM did not open its attach socket within {} ms: it hangs or is busy", waited.as_millis())
        }
        _ => format!("the VM can't be queried: {mute}"),
    };
    Gap::new(Source::HotSpot, reason, EFFECT).remedy(remedy_of(&mute, target))
}

/// What the user can do so that the VM, or a native image, answers. Empty if nothing is known.
pub(crate) fn remedy_of(mute: &Mute, target: &Target) -> String {
    const TMP: &str = "give the VM a /tmp that its user can write to (Kubernetes: an emptyDir at /tmp of its \
                       container; docker run --tmpfs /tmp)";
    let pid = target.pid();
    match mute {
        Mute::Stopped => format!("kill -CONT {pid} && plimsoll explain {pid}"),
        Mute::Disabled => "start it without that flag".to_owned(),
        Mute::SignalNotCaught | Mute::Late | Mute::Silent(_) => String::new(),
        Mute::Elsewhere(_) => {
            "give each container a /tmp of its own (a VM's socket is named by the PID that it has inside)".to_owned()
        }
        // Root must not remove it through /proc/PID/root: the target's links would decide what is removed.
        Mute::Occupied(path, uid) => match target.shares_our_root() {
            true => format!("{}   # unless a VM that lives made it", as_user(*uid, None, &format!("rm {path}"))),
            false => format!("inside its container, as user {uid}: rm {path}   # unless a VM that lives made it"),
        },
        Mute::NoTmp(_) => TMP.to_owned(),
        Mute::NotAllowed(_) | Mute::Failed(_) => match read::owner(target) {
            // The VM compares its own user and group with the client's (attachListener_linux.cpp).
            Some((uid, gid)) => as_user(uid.into(), Some(gid), &format!("plimsoll explain {pid}")),
            None => permission_remedy(pid),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_process::foreign::Deadline;
    use rustix::io::Errno;
    use std::io;
    use std::time::Duration;

    /// The same command would find the same /tmp.
    #[test]
    fn a_vm_without_a_writable_tmp_needs_one() {
        let target = Target::open(std::process::id(), Deadline::after(Duration::from_secs(60))).expect("this process");
        for (errno, needs_tmp) in [
            (Errno::ROFS, true),
            (Errno::NOSPC, true),
            (Errno::ACCESS, true),
            (Errno::DQUOT, true),
            (Errno::NOENT, true),
            (Errno::IO, false),
        ] {
            let mute = Mute::of_tmp("the attach request file can't be made", &io::Error::from(errno));
            let gap = gap_of(mute, &target);
            assert_eq!(gap.remedy.contains("an emptyDir at /tmp"), needs_tmp, "{gap:?}");
            assert_eq!(gap.remedy.contains("plimsoll explain"), !needs_tmp, "{gap:?}");
            assert!(gap.reason.contains("the attach request file can't be made: "), "{gap:?}");
        }
    }

    #[test]
    fn classes_that_were_not_searched_are_a_gap() {
        let gap = |is_boot, direct_buffers| {
            let known = Some(structs::tests::of_endless(is_boot));
            gap_of_facts(&Ok(Some(VmFacts { known, direct_buffers, ..VmFacts::default() })))
        };
        let unknown = gap(true, None).expect("a gap");
        assert!(unknown.reason.contains("more than 100000 classes"), "{}", unknown.reason);
        assert_eq!(unknown.effect, "direct buffers are unknown");
        let known = gap(false, Some(DirectBuffers::default())).expect("a gap");
        assert!(known.effect.contains("Netty"), "{}", known.effect);
    }

    #[test]
    fn what_changed_between_two_reports_is_an_error() {
        let category = |name: &str, malloc: Bytes| NmtCategory { name: name.into(), malloc, ..NmtCategory::default() };
        let mut first = [
            category("Unsafe", Bytes::mib(10)),
            category("JNI", Bytes::mib(1)),
            category("JFR", Bytes::mib(2)),
            NmtCategory { malloc_resident: Some(Bytes(7)), ..category("GC", Bytes::mib(3)) },
        ];
        let later = [category("JFR", Bytes::mib(2)), category("Unsafe", Bytes::mib(74)), category("GC", Bytes::mib(9))];
        compare(&mut first, &later);
        let moved: Vec<Bytes> = first.iter().map(|category| category.moved).collect();
        assert_eq!(moved, [Bytes::mib(64), Bytes::mib(1), Bytes(0), Bytes(0)]);
    }

    #[test]
    fn the_flag_has_the_maximum_of_the_heap_whatever_else_answered() {
        let of_file = Some(JavaHeap { max: Some(Bytes::mib(901)), ..JavaHeap::default() });
        let flag = vec![("MaxHeapSize".to_owned(), (900 << 20).to_string())];
        let printed = JavaHeap { occupied: Bytes(7), ..JavaHeap::default() };
        let taken = |flags: &[(String, String)], printed: Option<JavaHeap>| {
            let mut vm = HotSpot { java_heap: of_file.clone(), flags: flags.to_vec(), ..HotSpot::default() };
            take_sizes(&mut vm, printed, None, None);
            vm.java_heap.map(|heap| (heap.max, heap.occupied))
        };
        assert_eq!(taken(&flag, None), Some((Some(Bytes::mib(900)), Bytes(0))));
        assert_eq!(taken(&flag, Some(printed.clone())), Some((Some(Bytes::mib(900)), Bytes(7))));
        assert_eq!(taken(&[], Some(printed)), Some((Some(Bytes::mib(901)), Bytes(7))));
    }

    #[test]
    fn a_table_that_is_missing_is_a_gap() {
        let reason = |kept| gap_of_facts(&kept).map(|gap| gap.reason);
        assert_eq!(reason(Err("libjvm.so was replaced".into())).as_deref(), Some("libjvm.so was replaced"));
        assert!(reason(Ok(None)).is_some_and(|reason| reason.contains("gHotSpotVMStructs")));
        assert!(reason(Ok(Some(VmFacts::default()))).is_some_and(|reason| reason.contains("java.nio")));
    }
}
