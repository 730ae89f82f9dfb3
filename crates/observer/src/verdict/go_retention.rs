//! Free memory that Go's runtime keeps: free pages, which `debug.FreeOSMemory` releases, and free blocks beside live
//! ones, which the next objects take.
//!
//!   kept = free pages + free blocks,   wanted = goal − live,   too much = kept − wanted
//!
//! The heap may grow to the goal before the next collection begins. So free memory up to the goal will be used and
//! isn't retention. With GOMEMLIMIT, the heap grows at most until all of the runtime's memory reaches the limit. Where
//! GOGC is off, this is the only goal:
//!
//!   wanted = limit − live − stacks − records

use super::case::Case;
use super::remedy::{FLOOR, MIN_PERCENT_TO_MENTION, remedy};
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use plimsoll_facts::snapshot::{GoPace, HeapPart, OtherHeap};
use plimsoll_facts::units::Bytes;

const PERCENT: f64 = 10.0;

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let heap = case.snapshot.go.as_ref()?;
    let pace = heap.pace?;
    let part = |part: HeapPart| heap.resident(part);
    let (pages, beside) = (part(HeapPart::Dirty), part(HeapPart::Beside) + part(HeapPart::Cached));
    let kept = pages + beside;
    let wanted = wanted(heap, pace);
    let too_much = kept - wanted;
    if !case.matters(too_much, PERCENT, FLOOR) {
        return None;
    }
    let live = part(HeapPart::Live);
    let mut evidence =
        vec![format!("{live} live or not yet collected; {pages} in free pages, {beside} free beside live blocks")];
    evidence.extend(when_it_collects(pace));
    if beside.percent_of(kept) >= MIN_PERCENT_TO_MENTION {
        evidence.push(format!("{beside} lies between live blocks: only new objects of the same sizes use it"));
    }
    // Go's scavenger releases free pages above the goal plus a tenth (runtime/mgcscavenge.go, retainExtraPercent), and
    // those that bring its memory above 95 % of the limit (reduceExtraPercent). If neither applies, it releases no
    // page.
    let returns = pace.goal.is_some() || pace.memory_limit.is_some();
    if pages.percent_of(kept) >= MIN_PERCENT_TO_MENTION {
        evidence.push(match (pace.goal, pace.memory_limit) {
            (Some(_), _) => {
                "the runtime's scavenger gives free pages beyond the goal back, in the background".to_owned()
            }
            (None, Some(limit)) => {
                format!("free pages go back while the runtime holds more than 95 % of GOMEMLIMIT, {limit}")
            }
            (None, None) => {
                "GOGC is off and there is no GOMEMLIMIT: the runtime's scavenger gives nothing back".to_owned()
            }
        });
    }
    let stays = if returns { too_much - pages } else { too_much };
    Some(Verdict {
        id: VerdictId::AllocatorRetention,
        severity: if case.matters(stays, PERCENT, FLOOR) { case.weight(stays) } else { Severity::Note },
        bytes: too_much,
        summary: format!(
            "{too_much} is free inside Go's heap but still resident: {:.0} % of RSS",
            too_much.percent_of(case.rss())
        ),
        evidence,
        remedies: remedies(case, heap, pace),
    })
}

/// The free memory that the program takes before the next collection.
fn wanted(heap: &OtherHeap, pace: GoPace) -> Bytes {
    let live = heap.part(HeapPart::Live).length;
    let beside = heap.resident(HeapPart::Stacks) + heap.resident(HeapPart::Records);
    let by_goal = pace.goal.map(|goal| goal - live);
    let by_limit = pace.memory_limit.map(|limit| limit - live - beside);
    by_goal.into_iter().chain(by_limit).min().unwrap_or_default()
}

fn when_it_collects(pace: GoPace) -> Option<String> {
    let marked = pace
        .marked
        .map(|marked| format!("objects of {marked} were live at the last collection"))
        .filter(|_| pace.is_known)?;
    let next = match (pace.goal, pace.percent) {
        (Some(goal), Some(percent)) => format!("the next one comes before {goal} (GOGC={percent})"),
        (None, Some(percent)) => format!("GOGC={percent}"),
        (_, None) => "GOGC is off".to_owned(),
    };
    let limit = pace.memory_limit.map(|limit| format!(", GOMEMLIMIT is {limit}")).unwrap_or_default();
    Some(format!("{marked}; {next}{limit}"))
}

fn remedies(case: Case<'_>, heap: &OtherHeap, pace: GoPace) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let pages = heap.resident(HeapPart::Dirty);
    if pages >= FLOOR {
        let whole = pages + heap.resident(HeapPart::Beside) + heap.resident(HeapPart::Cached);
        let garbage = pace.marked.map(|marked| heap.part(HeapPart::Live).length - marked).unwrap_or_default();
        let call = remedy(
            Effort::Code,
            "collect, and give all free pages back, after the work that took them",
            "debug.FreeOSMemory()   // import \"runtime/debug\"",
            "a full collection each time; pages that are needed again cost a fault each",
        );
        remedies.push(call.saves(pages, whole + garbage));
    }
    if pace.is_known && pace.percent.is_none() && pace.memory_limit.is_none() {
        let is_off = |(name, value): &(String, String)| name == "GOGC" && value == "off";
        let what = "let the runtime collect by itself: it gives free pages back then";
        let cost = "CPU time for the collections";
        remedies.push(match case.snapshot.process.environment.iter().any(is_off) {
            true => case.start_with(what, "GOGC=100", cost),
            false => remedy(Effort::Code, what, "debug.SetGCPercent(100)   // in place of a negative one", cost),
        });
    }
    remedies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::verdict::{Effect, judge};
    use plimsoll_facts::snapshot::{AllocatorKind, LoadedAllocator, Snapshot, Vma};
    use plimsoll_facts::units::{AddressRange, Avma};

    /// A process with only Go's heap, all of which is resident.
    fn with_heap(live: Bytes, beside: Bytes, free: Bytes, pace: GoPace) -> Snapshot {
        let parts = [(HeapPart::Live, live), (HeapPart::Beside, beside), (HeapPart::Dirty, free)];
        let all = parts.iter().map(|(_, bytes)| *bytes).sum();
        let range = AddressRange::sized(Avma(0xc0_0000_0000), all);
        let mut heap = OtherHeap::new(AllocatorKind::Go);
        heap.ranges.push(range);
        heap.pace = Some(pace);
        for (part, bytes) in parts {
            heap.add(part, bytes, bytes);
        }
        Snapshot {
            vmas: vec![Vma { range, readable: true, writable: true, rss: all, ..Vma::default() }],
            allocators: vec![LoadedAllocator {
                kind: AllocatorKind::Go,
                path: "/app".to_owned(),
                serves_malloc: false,
            }],
            go: Some(heap),
            ..Snapshot::default()
        }
    }

    fn pace(percent: Option<u32>, marked: Bytes) -> GoPace {
        let goal = percent.map(|percent| marked + marked.scaled(u64::from(percent), 100));
        GoPace { is_known: true, percent, memory_limit: None, goal, marked: Some(marked) }
    }

    fn verdicts(snapshot: &Snapshot) -> Vec<Verdict> {
        judge(snapshot, &Ledger::of(snapshot))
    }

    #[test]
    fn what_a_server_takes_before_the_next_collection_is_not_too_much() {
        let mib = Bytes::mib;
        // Right after a collection: 100 MiB live, and the heap may grow to 200.
        let found = verdicts(&with_heap(mib(100), mib(60), mib(50), pace(Some(100), mib(100))));
        assert_eq!(found.iter().map(|verdict| verdict.id).collect::<Vec<_>>(), [VerdictId::Healthy], "{found:?}");
    }

    #[test]
    fn a_goal_that_is_not_known_is_no_gogc_off() {
        let of = |of: GoPace| when_it_collects(of).expect("known");
        let known = pace(Some(100), Bytes::mib(18));
        assert!(of(known).ends_with("(GOGC=100)"), "{}", of(known));
        assert!(of(GoPace { goal: None, ..known }).ends_with("; GOGC=100"), "{}", of(GoPace { goal: None, ..known }));
        assert!(of(pace(None, Bytes::mib(18))).ends_with("; GOGC is off"));
    }

    #[test]
    fn a_heap_that_nobody_collects_is_unclear() {
        let mib = Bytes::mib;
        let found = |pace: GoPace| -> Vec<VerdictId> {
            verdicts(&with_heap(mib(200), mib(1), mib(1), pace)).iter().map(|verdict| verdict.id).collect()
        };
        assert_eq!(found(pace(None, mib(18))), [VerdictId::Unclear]);
        assert_eq!(found(pace(Some(100), mib(150))), [VerdictId::Healthy]);
        assert_eq!(found(GoPace { memory_limit: Some(mib(300)), ..pace(None, mib(18)) }), [VerdictId::Healthy]);
    }

    #[test]
    fn pages_that_the_scavenger_gives_back_are_a_note() {
        let mib = Bytes::mib;
        let found = verdicts(&with_heap(mib(20), mib(5), mib(300), pace(Some(100), mib(18))));
        let verdict =
            &found.iter().find(|verdict| verdict.id == VerdictId::AllocatorRetention).expect("300 MiB are free");
        assert_eq!(verdict.severity, Severity::Note, "{verdict:?}");
        assert!(found.iter().any(|verdict| verdict.id == VerdictId::Healthy), "{found:?}");
    }

    #[test]
    fn without_a_goal_nothing_goes_back_and_the_verdict_warns() {
        let mib = Bytes::mib;
        let mut snapshot = with_heap(mib(20), mib(5), mib(300), pace(None, mib(18)));
        let warning = |snapshot: &Snapshot| {
            let found = verdicts(snapshot).into_iter().find(|verdict| verdict.id == VerdictId::AllocatorRetention);
            found.filter(|verdict| verdict.severity == Severity::Warning).expect("300 MiB are free")
        };
        let found = warning(&snapshot);
        assert_eq!(found.bytes, mib(305));
        // Free pages at least; free blocks and what was allocated since the collection at most.
        assert_eq!(found.remedies[0].effect, Effect::Modelled(mib(300), mib(307)));
        assert!(found.remedies[1].how.starts_with("debug.SetGCPercent"), "{found:?}");
        snapshot.process.environment.push(("GOGC".to_owned(), "off".to_owned()));
        assert!(warning(&snapshot).remedies.iter().any(|remedy| remedy.how == "GOGC=100"));
    }

    /// GOGC=off with GOMEMLIMIT: the heap may grow to the limit before the next collection. 325 MiB are mapped.
    #[test]
    fn free_memory_below_the_limit_will_be_used() {
        let mib = Bytes::mib;
        let of = |limit: u64, percent: Option<u32>| {
            let pace = GoPace { memory_limit: Some(mib(limit)), ..pace(percent, mib(18)) };
            let found = verdicts(&with_heap(mib(20), mib(5), mib(300), pace));
            assert!(found.iter().all(|verdict| verdict.severity == Severity::Note), "{found:?}");
            found.into_iter().find(|verdict| verdict.id == VerdictId::AllocatorRetention)
        };
        assert_eq!(of(500, None), None);
        assert_eq!(of(325, None), None);
        // The limit was lowered while the program ran (debug.SetMemoryLimit): the scavenger follows it.
        let lowered = of(200, None).expect("125 MiB above the limit");
        assert_eq!(lowered.bytes, mib(125));
        assert!(lowered.evidence.concat().contains("more than 95 % of GOMEMLIMIT, 200 MiB"), "{lowered:?}");
        // The goal of GOGC=100 is 36 MiB: far below the limit. Of 305 MiB, 16 are taken before the next collection.
        assert_eq!(of(500, Some(100)).expect("free beyond the goal").bytes, mib(289));
    }

    /// Stacks and the runtime's records count against the limit, too.
    #[test]
    fn stacks_and_records_take_their_part_of_the_limit() {
        let mib = Bytes::mib;
        let mut heap = OtherHeap::new(AllocatorKind::Go);
        for (part, bytes) in [(HeapPart::Live, 20), (HeapPart::Stacks, 30), (HeapPart::Records, 10)] {
            heap.add(part, mib(bytes), mib(bytes));
        }
        let limited = GoPace { memory_limit: Some(mib(100)), ..pace(None, mib(18)) };
        assert_eq!(wanted(&heap, limited), mib(40));
        assert_eq!(wanted(&heap, pace(None, mib(18))), Bytes(0));
    }
}
