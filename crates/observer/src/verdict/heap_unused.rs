//! A Java heap that is resident and empty: it grew for a peak, or was committed and touched at start.

use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use crate::units::Bytes;

const FLOOR: Bytes = Bytes::mib(64);
const PERCENT: f64 = 25.0;

pub fn rule(case: Case<'_>) -> Option<Verdict> {
    let vm = case.vm()?;
    let heap = vm.java_heap.as_ref()?;
    // ZGC of JDK 17 maps the heap three times: RSS has it three times, the machine once.
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
    let uncommits_by_itself = matches!(vm.collector.as_deref(), Some("Z" | "Shenandoah"));
    let mut remedies = Vec::new();
    if uncommits_by_itself {
        let target = target(needed, heap.max);
        remedies.extend(target.map(|target| {
            remedy(
                Effort::Now,
                "aim at a smaller heap from now on; what is unused is given back after the collector's delay, 5 min by default",
                format!("jcmd {} VM.set_flag SoftMaxHeapSize {}", case.pid(), Bytes::mib(target).0),
                "more frequent collections; -Xmx stays the limit",
            )
        }));
        remedies.push(remedy(
            Effort::Restart,
            "let the collector give memory back sooner",
            uncommit_flags(vm.collector.as_deref(), target),
            "the heap grows again with the next peak, which then takes page faults; -Xmx stays the limit",
        ));
    } else {
        remedies.push(remedy(
            Effort::Now,
            "collect, and let the collector shrink the heap",
            format!("jcmd {} GC.run", case.pid()),
            "a full collection pauses the program; the heap grows again with the next peak",
        ));
    }
    if vm.collector.as_deref() == Some("G1") {
        remedies.push(remedy(
            Effort::Restart,
            "let G1 give memory back when idle",
            "-XX:G1PeriodicGCInterval=60000 -XX:MaxHeapFreeRatio=30 -XX:MinHeapFreeRatio=10",
            "a concurrent cycle each minute of idleness",
        ));
    }
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

/// A heap that such a collector may aim at: half as much again as it needs. None where -Xmx is no higher: the VM refuses a
/// SoftMaxHeapSize above it.
fn target(needed: Bytes, max: Option<Bytes>) -> Option<u64> {
    let target = Bytes(needed.0 / 2 * 3).max(Bytes::mib(64)).0.div_ceil(1 << 20);
    max.is_none_or(|max| Bytes::mib(target) < max).then_some(target)
}

/// ZUncommitDelay and ShenandoahUncommitDelay are in seconds and in milliseconds (300 s and 5 min by default).
fn uncommit_flags(collector: Option<&str>, target: Option<u64>) -> String {
    let delay = match collector {
        Some("Z") => "-XX:ZUncommitDelay=60",
        _ => {
            "-XX:+UnlockExperimentalVMOptions -XX:ShenandoahUncommitDelay=60000 -XX:ShenandoahGuaranteedGCInterval=60000"
        }
    };
    target.map_or_else(|| delay.to_owned(), |target| format!("{delay} -XX:SoftMaxHeapSize={target}m"))
}
