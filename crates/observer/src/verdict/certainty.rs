//! States in a few words how certain a verdict's bytes are: from the grade and the error of its line, and from the
//! rule's assumptions.

use super::case::{Case, ago};
use super::heap_unused::allocated_since;
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::string_table;
use super::{Verdict, VerdictId};
use crate::ledger::{Grade, Ledger, LineId};
use plimsoll_facts::snapshot::{Baseline, Snapshot};
use plimsoll_facts::units::Bytes;

pub fn certainty(snapshot: &Snapshot, ledger: &Ledger, verdict: &Verdict) -> String {
    let case = Case { snapshot, ledger };
    let since = |baseline: &Baseline| baseline.seconds_until(snapshot.time, snapshot.process.uptime);
    match verdict.id {
        VerdictId::Growth => {
            let seconds = snapshot.baseline.as_ref().map_or(0.0, since);
            format!("two readings, {} apart: the growth is counted; whether it goes on is unknown", ago(seconds))
        }
        VerdictId::NativeLeak if string_table::find(case).is_some_and(|strings| strings.bytes == verdict.bytes) => {
            "probably: by the sizes of these blocks. Not known: whether the program still needs the strings".to_owned()
        }
        VerdictId::NativeLeak
            if !case.has_vm_books()
                && verdict.bytes > case.live_blocks().bytes() - string_table::vm_malloc_at_most(case) =>
        {
            "at least: these blocks are not the VM's by their sizes. Whether the program still needs them isn't known"
                .to_owned()
        }
        VerdictId::NativeLeak if !case.has_vm_books() => {
            let by = if case.has_tracker_books() { "by the tracker's books" } else { "without NMT" };
            format!(
                "at least: {by}, up to {} of live blocks may be the VM's own and aren't counted. Whether the program still \
                 needs the others isn't known",
                string_table::vm_malloc_at_most(case)
            )
        }
        VerdictId::NativeLeak => {
            let counted = match string_table::vm_malloc_at_most(case) {
                rounding if rounding.percent_of(verdict.bytes) < 1.0 => "counted".to_owned(),
                rounding => {
                    format!("at least: up to {rounding} of malloc's rounding of the VM's blocks aren't counted")
                }
            };
            format!("{counted}. Not known: whether the program still needs them")
        }
        VerdictId::HeapCommittedUnused => {
            let heap = case.vm().and_then(|vm| vm.java_heap.as_ref());
            match heap.map(allocated_since).unwrap_or_default() {
                since if since.percent_of(verdict.bytes) >= MIN_PERCENT_TO_MENTION => {
                    format!("at most: {since} of it was allocated since the last collection, and may be live")
                }
                _ => "at least: what was live after the last collection is an upper bound".to_owned(),
            }
        }
        VerdictId::Healthy => {
            let unexplained = ledger.unexplained(snapshot).iter().map(|(_, bytes)| *bytes).sum::<Bytes>();
            let growth = match &snapshot.baseline {
                Some(baseline) => format!("compared with the baseline, {} ago", ago(since(baseline))),
                None => "one reading can't show growth".to_owned(),
            };
            format!("{:.0} % of RSS is explained; {growth}", 100.0 - unexplained.percent_of(ledger.rss))
        }
        VerdictId::Unclear => "counted; its holder or its purpose is unknown".to_owned(),
        id => match line_of(case, id).and_then(|line| ledger.line(line)) {
            Some(line) if line.grade == Grade::Exact || line.error.percent_of(line.resident) < 1.0 => {
                "counted, not estimated".to_owned()
            }
            Some(line) => format!("correct within {}", line.error),
            None => "counted, not estimated".to_owned(),
        },
    }
}

/// The line whose bytes a verdict is about. Memory that an allocator other than glibc's keeps is in that allocator's
/// line.
fn line_of(case: Case<'_>, id: VerdictId) -> Option<LineId> {
    let is_go_alone = case.snapshot.go.is_some() && case.resident(LineId::GlibcRetained) == Bytes(0);
    match id {
        VerdictId::AllocatorRetention if case.snapshot.malloc_heap.is_some() || is_go_alone => {
            Some(LineId::OtherAllocator)
        }
        id => id.line(),
    }
}
