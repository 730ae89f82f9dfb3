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
    let resident = case.resident(LineId::JavaHeap);
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
    let pid = case.pid();
    let twice = (needed.0 >> 19).max(64);
    Some(Verdict {
        id: VerdictId::HeapCommittedUnused,
        severity: Severity::Note,
        bytes: unused,
        summary: format!(
            "{unused} of the Java heap is resident and holds no live object: {:.0} % of RSS",
            unused.percent_of(case.rss())
        ),
        evidence,
        saving: Some((Bytes(0), unused)),
        remedies: vec![
            remedy(
                Effort::Now,
                "collect, and let the collector shrink the heap",
                format!("jcmd {pid} GC.run"),
                "a full collection pauses the program; the heap grows again with the next peak",
            ),
            remedy(
                Effort::Restart,
                "let G1 give memory back when idle",
                "-XX:G1PeriodicGCInterval=60000 -XX:MaxHeapFreeRatio=30 -XX:MinHeapFreeRatio=10",
                "a concurrent cycle each minute of idleness",
            ),
            remedy(
                Effort::Restart,
                "start small and grow: no large -Xms, no AlwaysPreTouch; then cap",
                format!("-Xms{}m -Xmx{}m", (twice / 2).max(32), twice),
                "a cap below what peaks need ends in OutOfMemoryError: take it from the peak, not from now",
            ),
        ],
    })
}
