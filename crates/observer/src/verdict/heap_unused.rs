//! A Java heap that is resident but unused: it grew for a peak, or was committed and touched at start.
//!
//! What was live after the last collection is an upper bound of that moment. What was allocated since may be live, too.

use super::case::{Case, ago};
use super::heap_options::{AIMS, LargeHeap, Z_DELAY};
use super::remedies::remedy;
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::snapshot::{HotSpot, JavaHeap};
use plimsoll_facts::units::Bytes;

const FLOOR: Bytes = Bytes::mib(64);
const PERCENT: f64 = 25.0;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let heap = vm.java_heap.as_ref()?;
    // JDK 17's ZGC maps the heap three times: RSS counts it three times, but the memory exists once.
    let resident = case.distinct(LineId::JavaHeap);
    let needed = heap.live_after_gc.unwrap_or(heap.occupied);
    let unused = resident - needed;
    if !case.matters(unused, PERCENT, FLOOR) || unused < needed {
        return None;
    }
    let mut evidence = vec![format!(
        "{resident} of the Java heap is resident, {} committed, {} occupied by objects",
        heap.committed, heap.occupied
    )];
    if let Some(live) = heap.live_after_gc {
        evidence.push(format!("at most {live} was live after the last collection"));
    }
    let since = allocated_since(heap);
    let is_mentioned = since.percent_of(unused) >= MIN_PERCENT_TO_MENTION;
    if is_mentioned {
        evidence.push(format!("{since} of it was allocated since, and may be live"));
    }
    if case.flag("AlwaysPreTouch") == Some("true") {
        evidence.push("AlwaysPreTouch is on: the whole committed heap was touched at start, by request".to_owned());
    }
    let mut remedies = shrinking(case, vm, needed, resident);
    if case.flag("AlwaysPreTouch") == Some("true") {
        let untouched = remedy(
            Effort::Restart,
            "start without touching the whole heap",
            "-XX:-AlwaysPreTouch",
            "first use of each page then takes a page fault",
        );
        remedies.push(untouched.may_save_nothing());
    }
    Some(Verdict {
        id: VerdictId::HeapCommittedUnused,
        severity: Severity::Note,
        bytes: unused,
        summary: format!(
            "{unused} of the Java heap is resident {}: {:.0} % of RSS",
            if is_mentioned { "beyond what the last collection left" } else { "and holds no live object" },
            unused.percent_of(case.distinct_rss())
        ),
        evidence,
        remedies,
    })
}

/// What was allocated after the last collection: garbage, or live.
pub(super) fn allocated_since(heap: &JavaHeap) -> Bytes {
    heap.live_after_gc.map_or(Bytes(0), |live| heap.occupied - live)
}

/// Ways to make the heap smaller: commands on the running VM, then options of a new start.
fn shrinking(case: Case<'_>, vm: &HotSpot, needed: Bytes, resident: Bytes) -> Vec<Remedy> {
    let pid = case.pid();
    let size = |flag: &str| case.flag(flag).and_then(|value| value.parse().ok()).map(Bytes);
    let heap = LargeHeap {
        collector: vm.collector.as_deref(),
        jdk: vm.jdk().unwrap_or(0),
        needed,
        // Up to JDK 11 no flag has the minimum. With -Xms, the minimum is the initial size; otherwise it is no larger.
        min: size("MinHeapSize").or_else(|| size("InitialHeapSize")).unwrap_or_default(),
        initial: size("InitialHeapSize"),
        max: vm.java_heap.as_ref().and_then(|heap| heap.max),
        flags: &vm.flags,
    };
    let mut remedies = Vec::new();
    match heap.collector {
        // An explicit collection gives back at once what is unused, down to -Xms.
        Some("Shenandoah")
            if heap.jdk >= AIMS && case.collects_on_demand() && !heap.is_kept() && heap.smaller_start().is_none() =>
        {
            remedies.push(remedy(
                Effort::Now,
                "collect, which gives back all that is unused",
                format!("jcmd {pid} GC.run"),
                "a concurrent collection; the heap grows again with the next peak, which then takes page faults",
            ));
        }
        Some("Z") if heap.jdk >= AIMS => {
            if let Some(target) = heap.soft_target().filter(|_| !heap.is_kept() && heap.smaller_start().is_none()) {
                let set = |bytes: Bytes| format!("jcmd {pid} VM.set_flag SoftMaxHeapSize {}", bytes.0);
                let before = size("SoftMaxHeapSize").or(heap.max);
                let undo = before.map(|before| format!("; undo: {}", set(before))).unwrap_or_default();
                remedies.push(remedy(
                    Effort::Now,
                    format!(
                        "collect sooner, so that the heap stays smaller under load. An idle program gives back without this, in steps, what is \
                         unused for {}",
                        ago(heap.number("ZUncommitDelay").unwrap_or(Z_DELAY) as f64)
                    ),
                    set(Bytes::mib(target)),
                    format!("more frequent collections; -Xmx stays the limit{undo}"),
                ));
            }
        }
        Some("G1") => {
            // A full collection leaves at most MaxHeapFreeRatio percent of the heap free. The heap shrinks by whole
            // regions, rounded down (g1CollectedHeap.cpp, shrink_helper), and the command's answer takes a region.
            let left =
                |live: Bytes| live.scaled(100, 100 - heap.left_free()).max(heap.min) + region(case) + region(case);
            if left(needed) < resident && heap.jdk >= SETS_FLAGS {
                let set = |(name, value)| format!("jcmd {pid} VM.set_flag {name} {value}");
                let flags: Vec<String> = heap.smaller_ratios().map(set).collect();
                let what = match flags.is_empty() {
                    true => "collect, which gives back what the collector need not keep free",
                    false => "let the collector keep less of the heap free, and collect",
                };
                let is_concurrent = case.flag("ExplicitGCInvokesConcurrent") == Some("true");
                let pause = match is_concurrent {
                    true => "with -XX:+ExplicitGCInvokesConcurrent the collection is concurrent and may leave more",
                    false => "a full collection pauses the program",
                };
                let now = remedy(
                    Effort::Now,
                    what,
                    flags.into_iter().chain([format!("jcmd {pid} GC.run")]).collect::<Vec<_>>().join(" && "),
                    format!("{pause}; the heap grows again with the next peak"),
                );
                // The live bytes are at most the occupied bytes.
                let occupied = vm.java_heap.as_ref().map(|heap| heap.occupied).unwrap_or_default();
                remedies.push(match is_concurrent {
                    true => now,
                    false => now.saves(resident - left(needed.max(occupied)), resident),
                });
            }
        }
        _ => {}
    }
    remedies.extend(heap.by_restart());
    remedies
}

/// From this JDK on jcmd has VM.set_flag.
const SETS_FLAGS: u32 = 9;

/// Size of a G1 region; 32 MiB is the largest default.
fn region(case: Case<'_>) -> Bytes {
    case.flag("G1HeapRegionSize").and_then(|value| value.parse().ok()).map_or(Bytes::mib(32), Bytes)
}
