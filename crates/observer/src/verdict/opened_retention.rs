//! Free memory that an allocator in glibc's place keeps: whole free pages, which a purge gives back, and free blocks that share
//! their pages with live ones, which nothing gives back but the program's own frees.

use super::arena_retention::burst;
use super::case::Case;
use super::remedies::remedy;
use super::{Effort, Remedy, Severity, Verdict, VerdictId};
use crate::snapshot::{AllocatorKind, HeapPart, OpenedHeap};
use crate::units::Bytes;

const FLOOR: Bytes = Bytes::mib(16);
const PERCENT: f64 = 10.0;
/// Percent of what is kept: below it a part gets no remedy of its own.
const WORTH_SAYING: f64 = 10.0;
/// As the kernel keeps the name that jemalloc gives its threads (src/background_thread.c).
const BACKGROUND_THREAD: &str = "jemalloc_bg_thd";

pub fn rule(case: Case<'_>) -> Option<Verdict> {
    let heap = case.snapshot.opened.as_ref()?;
    let (pages, beside) = (heap.purgeable(), heap.resident(HeapPart::Beside));
    let kept = pages + beside;
    if !case.matters(kept, PERCENT, FLOOR) {
        return None;
    }
    let (kind, live) = (heap.kind, heap.resident(HeapPart::Live));
    let mut evidence = vec![format!("{live} live; {pages} in whole free pages, {beside} free beside live blocks")];
    let muzzy = heap.resident(HeapPart::Muzzy);
    if muzzy.percent_of(kept) >= WORTH_SAYING {
        evidence.push(format!("{muzzy} of it was given back by MADV_FREE: the kernel takes it when it needs memory"));
    }
    let returns = has_background_thread(case);
    if pages.percent_of(kept) >= WORTH_SAYING {
        evidence.push(match returns {
            true => "its background thread runs: free pages go back when they have been free for dirty_decay_ms (10 s by default)".to_owned(),
            false => "no background thread of its runs: free pages go back only while the program calls malloc or free".to_owned(),
        });
    }
    if beside.percent_of(kept) >= WORTH_SAYING {
        let runs = heap.part(HeapPart::Live).resident + beside;
        evidence.push(format!(
            "of pages with live blocks {:.0} % is free (fragmentation): a purge leaves that",
            beside.percent_of(runs)
        ));
    }
    evidence.extend(burst(kept, live).map(|burst| burst.replace("these arenas", "its pages")));
    // Pages on their way back are no news.
    let stays = if returns { beside } else { kept };
    Some(Verdict {
        id: VerdictId::AllocatorRetention,
        severity: if case.matters(stays, PERCENT, FLOOR) { case.weight(stays) } else { Severity::Note },
        bytes: kept,
        summary: format!(
            "{kept} is free inside {kind} but still resident: {:.0} % of RSS",
            kept.percent_of(case.rss())
        ),
        evidence,
        remedies: remedies(case, heap, returns),
    })
}

fn has_background_thread(case: Case<'_>) -> bool {
    case.snapshot.threads.iter().any(|thread| thread.name == BACKGROUND_THREAD)
}

fn remedies(case: Case<'_>, heap: &OpenedHeap, returns: bool) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let process = &case.snapshot.process;
    let known = case.snapshot.allocators.iter().find(|known| known.kind == heap.kind && known.serves_malloc);
    let is_library = known.is_some_and(|known| Some(&known.path) != process.executable.as_ref());
    let is_redis = ["redis-server", "valkey-server"].iter().any(|name| process.name.starts_with(name));
    let pages = heap.purgeable();
    if heap.kind != AllocatorKind::Jemalloc {
        return remedies;
    }
    if pages >= FLOOR {
        remedies.extend(purge(case, is_redis, is_library).map(|purge| purge.saves(pages, pages)));
        if !returns {
            remedies.push(background_thread(case, is_redis).saves(Bytes(0), pages));
        }
    }
    if heap.resident(HeapPart::Beside) >= FLOOR && is_redis && !is_library {
        remedies.push(remedy(
            Effort::Now,
            "have Redis move its values together",
            "redis-cli CONFIG SET activedefrag yes",
            "takes CPU time in the main thread (active-defrag-cycle-max, 25 % of a CPU by default)",
        ));
    }
    remedies
}

fn purge(case: Case<'_>, is_redis: bool, is_library: bool) -> Option<Remedy> {
    const WHAT: &str = "give the free pages back now";
    const COST: &str = "pages that are needed again cost a fault each";
    if is_redis {
        return Some(remedy(Effort::Now, WHAT, "redis-cli MEMORY PURGE", COST));
    }
    // A program that jemalloc is linked into may have renamed mallctl, or lost its name. 4096: all arenas.
    let how = format!("gdb -p {} -batch -ex 'call (int)mallctl(\"arena.4096.purge\", 0, 0, 0, 0)'", case.pid());
    let cost = "stops the process while gdb is attached, and deadlocks if a thread was stopped inside malloc: try it on a replica";
    is_library.then(|| remedy(Effort::Now, WHAT, how, cost))
}

/// It purges what has been free for dirty_decay_ms, whether the program calls jemalloc or not.
fn background_thread(case: Case<'_>, is_redis: bool) -> Remedy {
    const WHAT: &str = "have a thread of jemalloc's give free pages back";
    if is_redis {
        return remedy(
            Effort::Now,
            WHAT,
            "redis-cli CONFIG SET jemalloc-bg-thread yes",
            "a thread that wakes up while pages decay",
        );
    }
    let settings = case.snapshot.process.environment.iter().find(|(name, _)| name == "MALLOC_CONF");
    let others = settings.map(|(_, value)| value.as_str()).unwrap_or_default().split(',');
    // -1: never. The thread would have nothing to do.
    let is_kept = |setting: &&str| {
        !setting.is_empty() && !setting.starts_with("background_thread:") && !setting.ends_with("decay_ms:-1")
    };
    let kept = others.filter(is_kept);
    let all: Vec<&str> = kept.chain(["background_thread:true"]).collect();
    remedy(
        Effort::Restart,
        WHAT,
        format!("MALLOC_CONF={}", all.join(",")),
        "a few threads that wake up while pages decay; dirty_decay_ms:1000 gives back after 1 s instead of 10. A jemalloc that \
         was built with a prefix reads a variable with that prefix (_RJEM_MALLOC_CONF)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::snapshot::{LoadedAllocator, Snapshot, Thread, Vma};
    use crate::units::{AddressRange, Avma};
    use crate::verdict::{Effect, judge};

    /// A process with nothing but jemalloc's heap.
    fn with_heap(live: Bytes, beside: Bytes, dirty: Bytes) -> Snapshot {
        let all = live + beside + dirty;
        let range = AddressRange::sized(Avma(1 << 30), all);
        let mut heap = OpenedHeap::new(AllocatorKind::Jemalloc);
        heap.ranges.push(range);
        for (part, bytes) in [(HeapPart::Live, live), (HeapPart::Beside, beside), (HeapPart::Dirty, dirty)] {
            heap.add(part, bytes, bytes);
        }
        let jemalloc =
            |path: &str| LoadedAllocator { kind: AllocatorKind::Jemalloc, path: path.to_owned(), serves_malloc: true };
        Snapshot {
            vmas: vec![Vma { range, readable: true, writable: true, rss: all, ..Vma::default() }],
            allocators: vec![jemalloc("/usr/lib/libjemalloc.so.2")],
            opened: Some(heap),
            ..Snapshot::default()
        }
    }

    fn retention(snapshot: &Snapshot) -> Option<Verdict> {
        let verdicts = judge(snapshot, &Ledger::of(snapshot));
        verdicts.into_iter().find(|verdict| verdict.id == VerdictId::AllocatorRetention)
    }

    #[test]
    fn pages_that_a_background_thread_gives_back_are_a_note() {
        let mib = Bytes::mib;
        let mut snapshot = with_heap(mib(10), mib(1), mib(300));
        let found = retention(&snapshot).expect("300 MiB are free");
        assert_eq!((found.severity, found.bytes), (Severity::Warning, mib(301)));
        assert_eq!(found.remedies[0].effect, Effect::Modelled(mib(300), mib(300)));
        assert!(found.remedies.iter().any(|remedy| remedy.how == "MALLOC_CONF=background_thread:true"));
        snapshot.threads.push(Thread { tid: 7, name: BACKGROUND_THREAD.to_owned(), ..Thread::default() });
        let found = retention(&snapshot).expect("they are still resident");
        assert_eq!(found.severity, Severity::Note);
        assert!(!found.remedies.iter().any(|remedy| remedy.how.contains("background_thread")), "{found:?}");
    }

    #[test]
    fn fragmentation_is_not_said_to_go_with_a_purge() {
        let mib = Bytes::mib;
        let mut snapshot = with_heap(mib(14), mib(110), mib(1));
        assert!(retention(&snapshot).expect("14 of 124 MiB are live").remedies.is_empty());
        // Redis moves its values, but only over the jemalloc that it was built with.
        snapshot.process.name = "redis-server".to_owned();
        assert!(retention(&snapshot).is_some_and(|found| found.remedies.is_empty()));
        snapshot.process.executable = Some("/opt/redis-server".to_owned());
        snapshot.allocators[0].path = "/opt/redis-server".to_owned();
        let found = retention(&snapshot).expect("14 of 124 MiB are live");
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.remedies[0].how, "redis-cli CONFIG SET activedefrag yes");
    }

    #[test]
    fn little_is_kept_in_silence() {
        let mib = Bytes::mib;
        assert!(retention(&with_heap(mib(300), mib(9), mib(6))).is_none());
        assert!(retention(&with_heap(mib(900), mib(30), mib(30))).is_none());
    }

    #[test]
    fn settings_in_force_are_kept() {
        let mib = Bytes::mib;
        let mut snapshot = with_heap(mib(10), mib(0), mib(300));
        let settings = "narenas:2,background_thread:false,dirty_decay_ms:-1";
        snapshot.process.environment.push(("MALLOC_CONF".to_owned(), settings.to_owned()));
        let found = retention(&snapshot).expect("300 MiB are free");
        let wanted = "MALLOC_CONF=narenas:2,background_thread:true";
        assert!(found.remedies.iter().any(|remedy| remedy.how == wanted), "{:?}", found.remedies);
    }
}
