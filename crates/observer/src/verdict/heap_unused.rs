//! A Java heap that is resident but unused: it grew for a peak, or was committed and touched at start.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use crate::snapshot::HotSpot;
use crate::units::Bytes;

const FLOOR: Bytes = Bytes::mib(64);
const PERCENT: f64 = 25.0;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let heap = vm.java_heap.as_ref()?;
    // JDK 17's ZGC maps the heap three times: RSS counts it three times, but the memory exists once.
    let resident = case.distinct(LineId::JavaHeap);
    let needed =
        heap.live_after_gc.unwrap_or(heap.occupied).min(heap.occupied.max(heap.live_after_gc.unwrap_or_default()));
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
    if case.flag("AlwaysPreTouch") == Some("true") {
        evidence.push("AlwaysPreTouch is on: the whole committed heap was touched at start, by request".to_owned());
    }
    let mut remedies = shrinking(case, vm, needed, resident);
    if case.flag("AlwaysPreTouch") == Some("true") {
        remedies.push(remedy(
            Effort::Restart,
            "start without touching the whole heap",
            "-XX:-AlwaysPreTouch",
            "first use of each page then takes a page fault",
        ));
    }
    Some(Verdict {
        id: VerdictId::HeapCommittedUnused,
        severity: Severity::Note,
        bytes: unused,
        summary: format!(
            "{unused} of the Java heap is resident and holds no live object: {:.0} % of RSS",
            unused.percent_of(case.distinct_rss())
        ),
        evidence,
        remedies,
    })
}

/// Ways to make the heap smaller. They depend on the collector and on the version: a VM doesn't start with an option
/// that it doesn't know. No collector goes below -Xms (docs/decisions/verdicts.md).
fn shrinking(case: Case<'_>, vm: &HotSpot, needed: Bytes, resident: Bytes) -> Vec<Remedy> {
    let pid = case.pid();
    let max = vm.java_heap.as_ref().and_then(|heap| heap.max);
    let min = case.flag("MinHeapSize").and_then(|value| value.parse().ok()).map(Bytes).unwrap_or_default();
    let target = target(needed, max);
    // If -Xms is larger than the heap needs, it must be lowered first.
    let start = target.filter(|target| min > Bytes::mib(*target)).map(|target| format!("-Xms{target}m"));
    let with_start = |flags: &str| start.iter().map(String::as_str).chain([flags]).collect::<Vec<_>>().join(" ");
    let jdk = vm.jdk().unwrap_or(0);
    let smaller_start = || {
        let what = "let the heap start smaller: it is never made smaller than its first size";
        let start = start.clone()?;
        Some(remedy(Effort::Restart, what, start, "the heap grows with the load, which takes collections"))
    };
    let mut remedies = Vec::new();
    match vm.collector.as_deref() {
        Some(collector @ ("Z" | "Shenandoah")) if jdk >= AIMS => {
            if let Some(target) = target.filter(|_| start.is_none()) {
                remedies.push(remedy(
                    Effort::Now,
                    "aim at a smaller heap from now on; what is unused for the collector's delay (5 min) is given back, in steps",
                    format!("jcmd {pid} VM.set_flag SoftMaxHeapSize {}", Bytes::mib(target).0),
                    "more frequent collections; -Xmx stays the limit",
                ));
            }
            remedies.push(remedy(
                Effort::Restart,
                "let the collector give memory back sooner",
                with_start(&uncommit_flags(collector, target)),
                "the heap grows again with the next peak, which then takes page faults; -Xmx stays the limit",
            ));
        }
        Some("G1") => {
            // A full collection leaves at most MaxHeapFreeRatio percent of the heap free. `needed` is an upper bound of
            // the live bytes. The heap shrinks by whole regions, rounded down (g1CollectedHeap.cpp, shrink_helper), and
            // the command's answer takes a region.
            let left = needed.scaled(100, 100 - G1_FREE).max(min) + region(case) + region(case);
            if left < resident && jdk >= SETS_FLAGS {
                let flags = format!(
                    "jcmd {pid} VM.set_flag MinHeapFreeRatio 10 && jcmd {pid} VM.set_flag MaxHeapFreeRatio {G1_FREE}"
                );
                let now = remedy(
                    Effort::Now,
                    "let the collector keep less of the heap free, and collect",
                    format!("{flags} && jcmd {pid} GC.run"),
                    "a full collection pauses the program; the heap grows again with the next peak",
                );
                remedies.push(now.saves(resident - left, resident));
            }
            if jdk >= IDLE_CYCLES {
                remedies.push(remedy(
                    Effort::Restart,
                    "let G1 give memory back when idle",
                    with_start(&g1_flags()),
                    "a concurrent cycle each minute of idleness",
                ));
            } else {
                remedies.extend(smaller_start());
            }
        }
        Some("Serial") if jdk >= STEPS => remedies.push(remedy(
            Effort::Restart,
            "let each full collection shrink the heap at once (by itself Serial takes four, and stops at the heap's first size)",
            format!(
                "{}-XX:-ShrinkHeapInSteps -XX:MaxHeapFreeRatio=30 -XX:MinHeapFreeRatio=10",
                target.map(|target| format!("-Xms{target}m ")).unwrap_or_default()
            ),
            "the heap grows again with the next peak, which then takes more collections",
        )),
        // Parallel keeps its committed heap after any collection.
        Some("Parallel") if jdk >= IDLE_CYCLES => remedies.push(remedy(
            Effort::Restart,
            "take a collector that gives memory back: this one keeps what it has committed",
            with_start(&format!("-XX:+UseG1GC {}", g1_flags())),
            "G1 has shorter pauses and less throughput; measure with your load",
        )),
        // Of other collectors and versions only this is known: none goes below -Xms.
        _ => remedies.extend(smaller_start()),
    }
    remedies
}

/// From this JDK on SoftMaxHeapSize (JDK-8222181) and ZUncommitDelay (JEP 351) exist.
const AIMS: u32 = 13;
/// From this JDK on G1 gives memory back when idle: G1PeriodicGCInterval (JEP 346).
const IDLE_CYCLES: u32 = 12;
/// From this JDK on jcmd has VM.set_flag.
const SETS_FLAGS: u32 = 9;
/// From this JDK on ShrinkHeapInSteps exists.
const STEPS: u32 = 9;

/// Size of a G1 region; 32 MiB is the largest default.
fn region(case: Case<'_>) -> Bytes {
    case.flag("G1HeapRegionSize").and_then(|value| value.parse().ok()).map_or(Bytes::mib(32), Bytes)
}

/// Percentage of the heap that G1 may keep free.
const G1_FREE: u64 = 30;

fn g1_flags() -> String {
    format!("-XX:G1PeriodicGCInterval=60000 -XX:MaxHeapFreeRatio={G1_FREE} -XX:MinHeapFreeRatio=10")
}

/// A heap size that such a collector can aim at: 1.5 times what is needed. None if -Xmx isn't higher: the VM refuses a
/// SoftMaxHeapSize above -Xmx.
fn target(needed: Bytes, max: Option<Bytes>) -> Option<u64> {
    let target = Bytes(needed.0 / 2 * 3).max(Bytes::mib(64)).0.div_ceil(1 << 20);
    max.is_none_or(|max| Bytes::mib(target) < max).then_some(target)
}

/// ZUncommitDelay is in seconds, ShenandoahUncommitDelay in milliseconds (300 s and 5 min by default).
fn uncommit_flags(collector: &str, target: Option<u64>) -> String {
    let delay = match collector {
        "Z" => "-XX:ZUncommitDelay=60",
        _ => {
            "-XX:+UnlockExperimentalVMOptions -XX:ShenandoahUncommitDelay=60000 -XX:ShenandoahGuaranteedGCInterval=60000"
        }
    };
    target.map_or_else(|| delay.to_owned(), |target| format!("{delay} -XX:SoftMaxHeapSize={target}m"))
}
