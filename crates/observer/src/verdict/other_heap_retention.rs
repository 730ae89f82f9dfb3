//! Free memory kept by an allocator other than glibc's. A purge releases whole free pages. Only the program's own frees
//! can release free blocks on pages with live ones.

use super::arena_retention::burst;
use super::case::Case;
use super::other_heap_remedies::{is_kept_for_ever, remedies};
use super::remedy::{FLOOR, MIN_PERCENT_TO_MENTION};
use super::{Severity, Verdict, VerdictId};
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};

const PERCENT: f64 = 10.0;
/// Name of jemalloc's threads, as the kernel cuts it (src/background_thread.c).
const BACKGROUND_THREAD: &str = "jemalloc_bg_thd";

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let heap = case.snapshot.malloc_heap.as_ref()?;
    let (pages, beside) = (heap.purgeable(), heap.resident(HeapPart::Beside));
    let cached = heap.resident(HeapPart::Cached);
    let kept = pages + beside + cached;
    if !case.matters(kept, PERCENT, FLOOR) {
        return None;
    }
    let (kind, live) = (heap.kind, heap.resident(HeapPart::Live));
    let mut evidence = vec![format!("{live} live; {pages} in whole free pages, {beside} free beside live blocks")];
    let muzzy = heap.resident(HeapPart::Muzzy);
    if muzzy.percent_of(kept) >= MIN_PERCENT_TO_MENTION {
        evidence.push(format!("{muzzy} of it was given back by MADV_FREE: the kernel takes it when it needs memory"));
    }
    if cached.percent_of(kept) >= MIN_PERCENT_TO_MENTION {
        evidence.push(format!("{cached} in caches of threads and between them: a purge leaves that"));
    }
    let returns = heap.kind == AllocatorKind::Jemalloc && has_background_thread(case) && !is_kept_for_ever(case);
    if pages.percent_of(kept) >= MIN_PERCENT_TO_MENTION {
        evidence.extend(when_pages_go_back(heap, returns, is_kept_for_ever(case)).map(str::to_owned));
    }
    if beside.percent_of(kept) >= MIN_PERCENT_TO_MENTION {
        let runs = heap.part(HeapPart::Live).resident + cached + beside;
        evidence.push(format!(
            "of pages with live blocks {:.0} % is free (fragmentation): a purge leaves that",
            beside.percent_of(runs)
        ));
    }
    // Pages that will be released soon don't count.
    let stays = if returns { kept - pages } else { kept };
    let severity = if case.matters(stays, PERCENT, FLOOR) { case.weight(stays) } else { Severity::Note };
    if let Some(burst) = burst(kept, live) {
        evidence.push(burst.replace("these arenas", "its pages"));
        evidence.extend((severity > Severity::Note).then(|| case.callers_of_a_burst()).into_iter().flatten());
    }
    Some(Verdict {
        id: VerdictId::AllocatorRetention,
        severity,
        bytes: kept,
        summary: format!(
            "{kept} is free inside {kind} but still resident: {:.0} % of RSS",
            kept.percent_of(case.rss())
        ),
        evidence,
        remedies: remedies(case, heap, returns),
    })
}

fn when_pages_go_back(heap: &OtherHeap, returns: bool, is_kept: bool) -> Option<&'static str> {
    match heap.kind {
        AllocatorKind::Jemalloc if returns => Some(
            "its background thread runs: free pages go back when they have been free for dirty_decay_ms (10 s by default)",
        ),
        AllocatorKind::Jemalloc if is_kept => Some("its settings have a decay time of -1: free pages never go back"),
        AllocatorKind::Jemalloc => {
            Some("no background thread of its runs: free pages go back only while the program calls malloc or free")
        }
        AllocatorKind::Tcmalloc => Some(
            "tcmalloc gives free pages back only while the program frees more: by default one for every 1,000 that it frees",
        ),
        AllocatorKind::Mimalloc => Some(
            "mimalloc gives free pages back after a delay, and only while the thread that freed them calls malloc or free",
        ),
        _ => None,
    }
}

fn has_background_thread(case: Case<'_>) -> bool {
    case.snapshot.threads.iter().any(|thread| thread.name == BACKGROUND_THREAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Grade, Ledger, LineId};
    use crate::verdict::{Effect, certainty, judge};
    use plimsoll_facts::snapshot::{LoadedAllocator, Snapshot, Thread, Vma};
    use plimsoll_facts::units::{AddressRange, Avma, Bytes};

    /// A process with only jemalloc's heap.
    fn with_heap(live: Bytes, beside: Bytes, dirty: Bytes) -> Snapshot {
        heap_of(AllocatorKind::Jemalloc, [(HeapPart::Live, live), (HeapPart::Beside, beside), (HeapPart::Dirty, dirty)])
    }

    fn heap_of<const N: usize>(kind: AllocatorKind, parts: [(HeapPart, Bytes); N]) -> Snapshot {
        let all = parts.iter().map(|(_, bytes)| *bytes).sum();
        let range = AddressRange::sized(Avma(1 << 30), all);
        let mut heap = OtherHeap::new(kind);
        heap.ranges.push(range);
        for (part, bytes) in parts {
            heap.add(part, bytes, bytes);
        }
        let path = format!("/usr/lib/lib{kind}.so.2");
        Snapshot {
            vmas: vec![Vma { range, readable: true, writable: true, rss: all, ..Vma::default() }],
            allocators: vec![LoadedAllocator { kind, path, serves_malloc: true }],
            malloc_heap: Some(heap),
            ..Snapshot::default()
        }
    }

    fn retention(snapshot: &Snapshot) -> Option<Verdict> {
        let verdicts = judge(snapshot, &Ledger::of(snapshot));
        verdicts.into_iter().find(|verdict| verdict.id == VerdictId::AllocatorRetention)
    }

    #[test]
    fn pages_that_a_background_thread_releases_are_a_note() {
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

    /// The allocator's bytes are in the line of other allocators, so the error of that line counts.
    #[test]
    fn the_basis_is_that_of_the_allocators_own_line() {
        let mib = Bytes::mib;
        let snapshot = with_heap(mib(10), mib(1), mib(300));
        let found = retention(&snapshot).expect("300 MiB are free");
        let mut ledger = Ledger::of(&snapshot);
        let line = ledger.lines.iter_mut().find(|line| line.id == LineId::OtherAllocator).expect("jemalloc's line");
        (line.grade, line.error) = (Grade::Estimated, mib(50));
        assert_eq!(certainty(&snapshot, &ledger, &found), "correct within 50.0 MiB");
    }

    #[test]
    fn a_purge_is_not_offered_for_fragmentation() {
        let mib = Bytes::mib;
        let mut snapshot = with_heap(mib(14), mib(110), mib(1));
        assert!(retention(&snapshot).expect("14 of 124 MiB are live").remedies.is_empty());
        // Redis can move its values only with the jemalloc in its own sources. With another one, it can only load them
        // again.
        snapshot.process.name = "redis-server".to_owned();
        snapshot.process.command = vec!["redis-server 127.0.0.1:7391".to_owned()];
        let found = retention(&snapshot).expect("14 of 124 MiB are live");
        assert!(found.remedies[0].how.starts_with("redis-cli -p 7391 SHUTDOWN SAVE "), "{found:?}");
        assert_eq!(found.remedies[0].effect, Effect::Modelled(mib(111) - Bytes(mib(14).0 / 4), mib(111)));
        snapshot.process.executable = Some("/opt/redis-server".to_owned());
        snapshot.allocators[0].path = "/opt/redis-server".to_owned();
        let found = retention(&snapshot).expect("14 of 124 MiB are live");
        assert_eq!(found.severity, Severity::Warning);
        let client = "redis-cli -p 7391 CONFIG SET";
        let how = format!("{client} active-defrag-ignore-bytes 16mb && {client} activedefrag yes");
        assert_eq!((&found.remedies[0].how, found.remedies[0].effect), (&how, Effect::Modelled(mib(94), mib(111))));
        // Over a preloaded allocator, Redis has no command of its own.
        let parts = [(HeapPart::Live, mib(14)), (HeapPart::Beside, mib(110)), (HeapPart::Dirty, mib(1))];
        for kind in [AllocatorKind::Tcmalloc, AllocatorKind::Mimalloc] {
            let over = Snapshot { process: snapshot.process.clone(), ..heap_of(kind, parts) };
            let found = retention(&over).expect("14 of 124 MiB are live");
            let how: Vec<&str> = found.remedies.iter().map(|remedy| remedy.how.as_str()).collect();
            assert!(how.len() == 1 && how[0].starts_with("redis-cli -p 7391 SHUTDOWN SAVE "), "{how:?}");
        }
    }

    #[test]
    fn little_free_memory_gives_no_verdict() {
        let mib = Bytes::mib;
        assert!(retention(&with_heap(mib(300), mib(9), mib(6))).is_none());
        assert!(retention(&with_heap(mib(900), mib(30), mib(30))).is_none());
    }

    #[test]
    fn jemallocs_existing_settings_are_kept() {
        let mib = Bytes::mib;
        let mut snapshot = with_heap(mib(10), mib(0), mib(300));
        let settings = "narenas:2,background_thread:false,dirty_decay_ms:-1";
        snapshot.process.environment.push(("MALLOC_CONF".to_owned(), settings.to_owned()));
        let found = retention(&snapshot).expect("300 MiB are free");
        let wanted = "MALLOC_CONF=narenas:2,background_thread:true";
        assert!(found.remedies.iter().any(|remedy| remedy.how == wanted), "{:?}", found.remedies);
        // The thread that runs gives nothing back after a decay time of -1.
        snapshot.threads.push(Thread { tid: 7, name: BACKGROUND_THREAD.to_owned(), ..Thread::default() });
        let found = retention(&snapshot).expect("300 MiB are free");
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.evidence.iter().any(|text| text.ends_with("free pages never go back")), "{found:?}");
        assert!(found.remedies.iter().any(|remedy| remedy.how == wanted), "{:?}", found.remedies);
        snapshot.threads.clear();
        // A list of sizes, and a value that a shell would run.
        for (value, quoted) in [
            ("slab_sizes:1-4096:17|100-200:1", "'slab_sizes:1-4096:17|100-200:1,background_thread:true'"),
            ("a;reboot", "'a;reboot,background_thread:true'"),
        ] {
            snapshot.process.environment[0].1 = value.to_owned();
            let (found, wanted) = (retention(&snapshot).expect("300 MiB"), format!("MALLOC_CONF={quoted}"));
            assert!(found.remedies.iter().any(|remedy| remedy.how == wanted), "{:?}", found.remedies);
        }
        // Linked into the program, it reads the variable of its prefix.
        snapshot.process.executable = Some(snapshot.allocators[0].path.clone());
        snapshot.process.environment = vec![("_RJEM_MALLOC_CONF".to_owned(), "narenas:2".to_owned())];
        let thread = "background_thread:true";
        let wanted = format!("MALLOC_CONF={thread} _RJEM_MALLOC_CONF=narenas:2,{thread} JE_MALLOC_CONF={thread}");
        let found = retention(&snapshot).expect("300 MiB are free");
        assert!(found.remedies.iter().any(|remedy| remedy.how == wanted), "{:?}", found.remedies);
    }

    #[test]
    fn a_delay_of_mimalloc_is_proposed_unless_it_is_zero() {
        let mib = Bytes::mib;
        let mut snapshot = heap_of(AllocatorKind::Mimalloc, [(HeapPart::Live, mib(10)), (HeapPart::Dirty, mib(300))]);
        let how = |snapshot: &Snapshot| -> Vec<(String, Effect)> {
            let found = retention(snapshot).expect("300 MiB are free");
            found.remedies.into_iter().map(|remedy| (remedy.how, remedy.effect)).collect()
        };
        let effect = Effect::Modelled(mib(0), mib(300));
        let delay = ("MIMALLOC_PURGE_DELAY=0 MIMALLOC_DECOMMIT_DELAY=0".to_owned(), effect);
        let collect = ("mi_collect(true)".to_owned(), effect);
        assert_eq!(how(&snapshot), [delay.clone(), collect.clone()]);
        // -1: never. 0: at once, in the versions that read this variable.
        snapshot.process.environment.push(("MIMALLOC_PURGE_DELAY".to_owned(), "-1".to_owned()));
        assert_eq!(how(&snapshot), [delay, collect.clone()]);
        snapshot.process.environment[0].1 = "0".to_owned();
        assert_eq!(how(&snapshot), [collect]);
        // The program's own frees alone release free blocks beside live ones.
        let parts = [(HeapPart::Live, mib(14)), (HeapPart::Beside, mib(110)), (HeapPart::Dirty, mib(1))];
        assert!(how(&heap_of(AllocatorKind::Mimalloc, parts)).is_empty());
    }

    #[test]
    fn tcmallocs_existing_settings_are_not_proposed_again() {
        let mib = Bytes::mib;
        let parts = [(HeapPart::Live, mib(10)), (HeapPart::Cached, mib(20)), (HeapPart::Dirty, mib(300))];
        let mut snapshot = heap_of(AllocatorKind::Tcmalloc, parts);
        let found = retention(&snapshot).expect("300 MiB are free");
        assert_eq!((found.severity, found.bytes), (Severity::Warning, mib(320)));
        let how = |found: &Verdict| -> Vec<String> { found.remedies.iter().map(|remedy| remedy.how.clone()).collect() };
        assert!(how(&found)[0].contains("MallocExtension_ReleaseFreeMemory"), "{found:?}");
        assert_eq!(how(&found)[1..], ["TCMALLOC_AGGRESSIVE_DECOMMIT=t", "TCMALLOC_RELEASE_RATE=10"]);
        let savings: Vec<&Effect> = found.remedies.iter().map(|remedy| &remedy.effect).collect();
        assert_eq!(savings[0], &Effect::Modelled(mib(300), mib(300)));
        // It is unknown how much the program will free later.
        assert_eq!(savings[2], &Effect::Unknown);
        for name in ["TCMALLOC_RELEASE_RATE", "TCMALLOC_AGGRESSIVE_DECOMMIT"] {
            snapshot.process.environment.push((name.to_owned(), "1".to_owned()));
        }
        assert_eq!(how(&retention(&snapshot).expect("300 MiB are free")).len(), 1);
    }

    /// What a purge left of 160 MiB, as observed: 25 MiB in the caches of 16 threads.
    #[test]
    fn smaller_caches_of_tcmalloc_are_proposed_where_caches_keep_most() {
        const DECOMMIT: &str = "TCMALLOC_AGGRESSIVE_DECOMMIT";
        const CACHES: &str = "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES";
        let mib = Bytes::mib;
        let of = |cached: u64, dirty: u64, set: &[(&str, &str)]| {
            let parts = [(HeapPart::Live, mib(1)), (HeapPart::Cached, mib(cached)), (HeapPart::Dirty, mib(dirty))];
            let mut snapshot = heap_of(AllocatorKind::Tcmalloc, parts);
            let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            snapshot.process.environment = set.collect();
            let mut remedies = retention(&snapshot).expect("most is free").remedies.into_iter();
            remedies.find(|remedy| remedy.how.contains(CACHES)).map(|remedy| (remedy.how, remedy.effect))
        };
        let small = format!("{CACHES}=1048576");
        let both = Some((format!("{DECOMMIT}=t {small}"), Effect::Unknown));
        assert_eq!(of(25, 1, &[]), both);
        assert_eq!(of(25, 1, &[(CACHES, "33554432")]), both);
        assert_eq!(of(25, 1, &[(DECOMMIT, "t")]), Some((small, Effect::Unknown)));
        for none in [of(25, 1, &[(CACHES, "1048576")]), of(25, 1, &[(CACHES, "0")]), of(25, 30, &[]), of(12, 10, &[])] {
            assert_eq!(none, None);
        }
    }
}
