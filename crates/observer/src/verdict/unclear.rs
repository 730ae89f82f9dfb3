//! The state of a process with too much memory that can't be judged. No line claims it, it could not be read, or its
//! holder is known but not its purpose. Names the largest such part, and the command that settles it, if there is one.
//!
//! Live blocks of malloc and of CPython in a program without a VM are such memory, until a second reading shows that they
//! don't grow. So is what RSS doesn't count and no line has: memory that was swapped out, and shared memory that is
//! charged and that nobody maps.

use super::case::{Case, LivePart};
use super::classes::by_loader;
use super::remedies::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId, inspector, listening, string_table, suspects};
use crate::ledger::{GO_HEAP, Line, LineId, PYTHON_POOLS, is_classified};
use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{Backing, Cgroup, HeapPart};
use plimsoll_facts::units::{Bytes, counted};

/// Percentage of RSS that may remain unjudged for `healthy`.
const AT_MOST: f64 = 10.0;
/// Maximum number of parts named as evidence.
const NAMED: usize = 4;
/// Live blocks are large from `PERCENT` of RSS and `LARGE` bytes on. `SMALL` bytes suffice if they fill `FILLS` percent
/// of the limit.
const PERCENT: f64 = 20.0;
const LARGE: Bytes = Bytes::mib(48);
const SMALL: Bytes = Bytes::mib(16);
const FILLS: f64 = 10.0;
/// The tracker's own memory is unusual beyond this.
const OWN_PERCENT: f64 = 25.0;
const OWN: Bytes = Bytes::mib(16);

/// Percentage of the group's charge from which shared memory that nobody maps counts.
const UNMAPPED: f64 = 25.0;

struct Unjudged {
    what: String,
    why: &'static str,
    bytes: Bytes,
    /// Further evidence: who may hold it, or what forbids to read it.
    details: Vec<String>,
    /// Empty if no command that we know settles it.
    settle: Vec<Remedy>,
}

/// `others` are the rules' verdicts. Memory that native-leak blames needs no second verdict.
pub(crate) fn verdict(case: Case<'_>, others: &[Verdict]) -> Option<Verdict> {
    let is_blamed = others.iter().any(|other| other.id == VerdictId::NativeLeak);
    let parts = parts(case, is_blamed);
    let bytes: Bytes = parts.iter().map(|part| part.bytes).sum();
    let largest = parts.first()?;
    let (swapped, unmapped) = (swapped_out(case), unmapped(case));
    let whole = case.rss() + swapped + unmapped;
    let name = match (swapped > Bytes(0), unmapped > Bytes(0)) {
        (false, false) => "RSS",
        (true, false) => "RSS and swap",
        (false, true) => "RSS and unmapped shared memory",
        (true, true) => "RSS, swap and unmapped shared memory",
    };
    if bytes.percent_of(whole) <= AT_MOST {
        return None;
    }
    let of_rss = |bytes: Bytes| format!("{bytes}, {:.0} % of {name}", bytes.percent_of(whole));
    let evidence = |part: &Unjudged| format!("{}: {} ({})", part.what, of_rss(part.bytes), part.why);
    Some(Verdict {
        id: VerdictId::Unclear,
        severity: Severity::Note,
        bytes,
        summary: format!(
            "{:.0} % of {name} can't be judged; the largest part, {}, is {}",
            bytes.percent_of(whole),
            largest.bytes,
            largest.what
        ),
        evidence: parts.iter().take(NAMED).map(evidence).chain(largest.details.iter().cloned()).collect(),
        remedies: largest.settle.clone(),
    })
}

/// The parts, largest first.
fn parts(case: Case<'_>, is_blamed: bool) -> Vec<Unjudged> {
    let mut parts: Vec<Unjudged> = case.ledger.lines.iter().flat_map(|line| of_line(case, line)).collect();
    parts.extend(beside_the_vms_books(case).filter(|_| !is_blamed));
    parts.extend(live_blocks(case));
    parts.extend(go_without_collections(case));
    if case.ledger.remainder > Bytes(0) {
        parts.push(Unjudged {
            what: "the remainder".to_owned(),
            why: "no line has it",
            bytes: case.ledger.remainder,
            details: Vec::new(),
            settle: vec![maps(case, "see every mapping with its owner")],
        });
    }
    parts.push(Unjudged {
        what: "swapped out".to_owned(),
        why: "RSS doesn't count it, and its owners aren't summed up",
        bytes: swapped_out(case),
        details: Vec::new(),
        settle: vec![maps(case, "see which mappings were swapped out, in the column swap-KiB")],
    });
    parts.push(Unjudged {
        what: "shared memory that is charged and not mapped here".to_owned(),
        why: "open memfds, SysV segments, files of a tmpfs",
        bytes: unmapped(case),
        details: Vec::new(),
        settle: vec![remedy(
            Effort::Now,
            "see which descriptors of this process hold it",
            format!("sudo ls -l /proc/{}/fd | grep -e memfd: -e /dev/shm/ -e /SYSV", case.pid()),
            "SysV segments without a process have none: ipcs -m. Nor have files of a tmpfs: df -t tmpfs. Type both in its container",
        )],
    });
    parts.retain(|part| part.bytes > Bytes(0));
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// Memory that was swapped out, if it is large. The kernel first swaps out memory that nobody uses, such as the pages
/// of a leak.
fn swapped_out(case: Case<'_>) -> Bytes {
    let swap = case.snapshot.process.swap;
    if swap >= LARGE { swap } else { Bytes(0) }
}

/// Shared memory of the process's own group that no process of the group maps, if it is large and the group has a limit.
/// A group above has programs of other groups, too.
fn unmapped(case: Case<'_>) -> Bytes {
    let own = |cgroup: &&Cgroup| cgroup.limit.is_some() && !cgroup.is_above();
    let Some(cgroup) = case.snapshot.cgroup.as_ref().filter(own) else { return Bytes(0) };
    let is_shared = |vma: usize| case.snapshot.vmas[vma].backing == Backing::Shmem;
    let pieces = case.ledger.pieces.iter().filter(|piece| is_shared(piece.vma));
    let here: Bytes = match case.snapshot.smaps_refused {
        true => case.snapshot.rss_by_kind.shmem,
        false => pieces.map(|piece| piece.resident - piece.repeated).sum(),
    };
    // Any of their RSS may be shared memory.
    let elsewhere: Bytes = cgroup.others.iter().map(|(_, rss)| *rss).sum();
    let unmapped = cgroup.stat.shmem - here - elsewhere;
    if unmapped.percent_of(cgroup.charged) > UNMAPPED { unmapped } else { Bytes(0) }
}

fn of_line(case: Case<'_>, line: &Line) -> Vec<Unjudged> {
    let part = |why: &'static str, details: Vec<String>, settle: Vec<Remedy>| {
        vec![Unjudged { what: line.name.clone(), why, bytes: line.resident, details, settle }]
    };
    let whole = |why: &'static str, settle: Remedy| part(why, Vec::new(), vec![settle]);
    if case.snapshot.smaps_refused {
        let (details, settle) = unread(case, Source::Proc);
        return part("the mappings could not be read", details, settle.into_iter().collect());
    }
    let metaspace = unplaced_metaspace(case);
    match line.id {
        LineId::OtherAnonymous if metaspace > Bytes(0) => {
            let details = vec![format!(
                "this memory contains the metaspace: {metaspace} committed; the VM doesn't report its addresses"
            )];
            let loaders = by_loader(case, "see whether class loaders leak");
            part("no source claims it", details, vec![loaders, case.name_the_callers()])
        }
        LineId::Tracker if line.resident > OWN && line.resident.percent_of(case.rss()) > OWN_PERCENT => {
            let how = format!("plimsoll report {}", case.pid());
            vec![Unjudged {
                what: line.label(),
                why: "more than the tracker's books need, unless the program has very many blocks or has locked its memory",
                bytes: line.resident,
                details: Vec::new(),
                settle: vec![remedy(
                    Effort::Now,
                    "see what Plimsoll's own cost consists of, at the report's end",
                    how,
                    "",
                )],
            }]
        }
        LineId::OtherAnonymous if case.is_jvm() && !case.has_vm_books() && !case.is_tracked() => {
            whole("no source claims it", case.name_the_callers())
        }
        LineId::OtherAnonymous if case.may_hide_blocks() => {
            let (details, settle) = unread(case, Source::Glibc);
            part("no source claims it", details, settle.into_iter().collect())
        }
        LineId::OtherAnonymous => whole("no source claims it; the program mapped it itself", case.name_the_mapper()),
        LineId::GlibcUnknown => {
            let (details, settle) = unread(case, Source::Glibc);
            part("glibc's heaps that could not be walked", details, settle.into_iter().collect())
        }
        LineId::OtherAllocator => {
            let children = if line.children.is_empty() { std::slice::from_ref(line) } else { &line.children };
            let opaque = children.iter().filter(|child| !is_classified(case.snapshot, &child.name));
            let part = |child: &Line| Unjudged {
                what: child.name.clone(),
                why: "how much of it is live can't be read from outside",
                bytes: child.resident,
                details: Vec::new(),
                settle: vec![settle_allocator(case, &child.name)],
            };
            opaque.map(part).collect()
        }
        _ => Vec::new(),
    }
}

/// Committed metaspace whose addresses no source has. JDK 8 prints them only with NMT's detail; the amount is in
/// hsperfdata and in NMT's summary.
fn unplaced_metaspace(case: Case<'_>) -> Bytes {
    let Some(vm) = case.vm().filter(|_| case.resident(LineId::Class) == Bytes(0) && !case.is_tracked()) else {
        return Bytes(0);
    };
    let of_nmt = vm.categories.iter().find(|category| category.name == "Class").map(|class| class.mmap_committed);
    of_nmt.or(vm.metaspace.as_ref().map(|metaspace| metaspace.committed)).unwrap_or_default()
}

/// Live blocks of a program without a HotSpot VM, except V8's array buffers: of malloc, and of CPython, which has pools
/// of its own. In a native image with NMT, the blocks of Unsafe have a line of their own. None once a second reading
/// exists: then blocks that grew belong to the verdict `growth`.
fn live_blocks(case: Case<'_>) -> Vec<Unjudged> {
    if case.is_jvm() || case.settled_baseline().is_some() {
        return Vec::new();
    }
    let mut buffers = case.snapshot.array_buffers().map(|buffers| buffers.bytes).unwrap_or_default();
    let mut of_malloc: Vec<LivePart> = case.live_blocks().parts().collect();
    // The buffers are blocks of the malloc that the program uses most.
    for part in &mut of_malloc {
        (part.bytes, buffers) = (part.bytes - buffers, buffers - part.bytes);
    }
    let of_python = live_objects_of_python(case);
    let of_unsafe = case.resident(LineId::DirectBuffers);
    let bytes = of_malloc.iter().map(|part| part.bytes).sum::<Bytes>() + of_unsafe + of_python;
    let fills_the_limit = case.limit().is_some_and(|(limit, _)| bytes.percent_of(limit) >= FILLS);
    let floor = if fills_the_limit { SMALL } else { LARGE };
    if !case.matters(bytes, PERCENT, floor) {
        return Vec::new();
    }
    const WHY: &str = "one reading can't tell data in use from a leak";
    let knows_the_callers = case.is_tracked() || case.lacks_books();
    let settle = [case.name_what_grows()].into_iter().chain(knows_the_callers.then(|| case.name_the_callers()));
    let settle: Vec<Remedy> = settle.collect();
    let unjudged = |part: &LivePart| Unjudged {
        what: format!("live blocks of {}'s malloc", part.kind),
        why: WHY,
        bytes: part.bytes,
        details: Vec::new(),
        settle: settle.clone(),
    };
    // The tracker sees the pools, not the objects in them.
    let objects = Unjudged {
        what: "live objects of CPython".to_owned(),
        why: WHY,
        bytes: of_python,
        details: Vec::new(),
        settle: vec![case.compare_readings()],
    };
    // No limit bounds them, and only some have an owner that a collection frees.
    let buffers = Unjudged {
        what: "memory of Unsafe and direct buffers".to_owned(),
        why: WHY,
        bytes: of_unsafe,
        details: Vec::new(),
        settle: settle.clone(),
    };
    of_malloc.iter().map(unjudged).chain([buffers, objects]).collect()
}

/// Blocks that CPython's own allocator has handed out: never more than its pools have resident.
fn live_objects_of_python(case: Case<'_>) -> Bytes {
    let Some(python) = &case.snapshot.pymalloc else { return Bytes(0) };
    let children = case.ledger.line(LineId::OtherAllocator).into_iter().flat_map(|line| &line.children);
    let pools: Bytes = children.filter(|child| child.name == PYTHON_POOLS).map(|child| child.resident).sum();
    python.live.min(pools)
}

/// The heap of a Go program that never collects: nobody can tell objects from garbage, and the heap has no bound.
fn go_without_collections(case: Case<'_>) -> Option<Unjudged> {
    let heap = case.snapshot.go.as_ref()?;
    let pace = heap.pace.filter(|pace| pace.is_known && pace.percent.is_none() && pace.memory_limit.is_none())?;
    let in_use = pace.marked.unwrap_or_default();
    Some(Unjudged {
        what: "Go's heap".to_owned(),
        why: "GOGC is off and there is no GOMEMLIMIT: garbage looks like objects, and nothing bounds it",
        bytes: heap.resident(HeapPart::Live) - in_use,
        details: vec![],
        settle: vec![listening::heap_profile(
            case,
            "see what is left after a collection, in Go's own heap profile",
            "?gc=1",
            "one full collection. Without net/http/pprof: start it with GOGC=100",
        )],
    })
}

/// Live blocks that aren't the VM's own: those outside its books or, if these are off, those beyond the VM's upper
/// bound. Open Inflaters aren't the VM's either, however few there are.
fn beside_the_vms_books(case: Case<'_>) -> Option<Unjudged> {
    if !case.is_jvm() {
        return None;
    }
    let blocks = case.live_blocks();
    let live = blocks.bytes() - suspects::bounded(case);
    let (what, why) = match case.has_vm_books() {
        true => ("live malloc blocks that are not the VM's", "the VM's books (NMT) don't have them"),
        false => ("live malloc blocks beyond what the VM itself needs", "the VM's books (NMT) are off"),
    };
    let bytes = live - string_table::vm_malloc_at_most(case);
    let (open, of_zlib) = suspects::zlib(case);
    let of_zlib = of_zlib.min(live);
    let zlib_s = format!("{} of zlib's (open Inflaters and Deflaters)", counted(open, "block"));
    let (what, why, bytes) = match of_zlib {
        of_zlib if of_zlib > bytes => {
            (zlib_s, "whether the program still uses them can't be read from outside", of_zlib)
        }
        of_zlib if of_zlib.0 > bytes.0 / 2 => (format!("{what}, most of them {zlib_s}"), why, bytes),
        _ => (what.to_owned(), why, bytes),
    };
    let mut details = suspects::evidence(case, bytes);
    if suspects::may_be_a_cache(case, bytes) {
        details.extend(case.growth(blocks.most.line));
        let why = "one reading can't tell a cache in use from a leak";
        return Some(Unjudged { what, why, bytes, details, settle: vec![case.compare_readings()] });
    }
    Some(Unjudged { what, why, bytes, details, settle: case.settle_blocks() })
}

fn settle_allocator(case: Case<'_>, child: &str) -> Remedy {
    match child {
        GO_HEAP => case.start_with(
            "have Go's runtime say after each collection how much is live",
            "GODEBUG=gctrace=1",
            "one line on stderr for each collection",
        ),
        child if child.starts_with("V8") => inspector::memory_usage(case).unwrap_or_else(|| case.name_the_callers()),
        _ => case.name_the_callers(),
    }
}

/// What settles a part that the source could not read: the remedy of its gap, or another reading. Another reading helps
/// if the target may have changed during this one. If something forbids any reading (a security module), another one
/// would find the same. Then the reason is evidence.
fn unread(case: Case<'_>, source: Source) -> (Vec<String>, Option<Remedy>) {
    let pid = case.pid();
    let gaps = || case.snapshot.gaps.iter().filter(|gap| gap.source == source);
    let again = |how: String| remedy(Effort::Now, "read it again with what was missing", how, "");
    let has_part = source == Source::Glibc && case.glibc().is_some();
    // Without the right to read smaps, there are also gaps about threads. The one about smaps gives the reason.
    let reason = gaps().find(|gap| gap.reason.contains("/smaps")).or(gaps().next());
    match (gaps().find(|gap| !gap.remedy.is_empty()), reason) {
        (Some(gap), _) if gap.remedy.contains("plimsoll run --") => {
            (vec![], Some(case.start_tracked("start it with the tracker: no reading can get what was missing")))
        }
        (Some(gap), _) => (vec![], Some(again(gap.remedy.clone()))),
        (None, _) if has_part => (vec![], Some(again(format!("plimsoll explain {pid}")))),
        // Nobody starts process 1 again.
        (None, Some(gap)) if source == Source::Glibc && pid != 1 => {
            let has_door = case.is_jvm() || case.is_tracked();
            let settle = match has_door {
                true => case.name_the_callers(),
                false => {
                    case.start_tracked("start it with the tracker: its books can be read without access to the memory")
                }
            };
            (vec![gap.reason.clone()], Some(settle))
        }
        (None, Some(gap)) => (vec![format!("{}; plimsoll knows no command that settles it", gap.reason)], None),
        (None, None) => (vec![], Some(case.name_the_callers())),
    }
}

fn maps(case: Case<'_>, what: &str) -> Remedy {
    remedy(Effort::Now, what, format!("plimsoll explain {} --maps", case.pid()), "")
}
