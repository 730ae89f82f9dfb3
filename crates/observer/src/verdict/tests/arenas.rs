//! What malloc keeps free: arenas, their caps, trims and thresholds.

use super::*;

/// A trim leaves free memory that isn't resident. The next burst needs the same remedy, though it returns nothing now.
#[test]
fn after_a_trim_the_periodic_one_is_still_proposed() {
    let mib = Bytes::mib;
    let proposed = |given_back: Bytes| {
        let mut snapshot = with_arenas(&[mib(1), mib(20), mib(20), mib(20), mib(20), mib(20)], mib(1));
        for arena in &mut snapshot.glibc.as_mut().expect("arenas").arenas {
            (arena.trimmable, arena.at_end) = (Bytes(0), arena.free_resident);
            arena.bins += given_back;
        }
        snapshot.hotspot = Some(HotSpot { version: "25.0.3+9-LTS".into(), ..HotSpot::default() });
        let remedies = verdict_of(&snapshot, VerdictId::ArenaRetention).remedies;
        remedies[0].how.contains("TrimNativeHeapInterval")
    };
    assert!(proposed(mib(30)));
    assert!(!proposed(mib(2)), "these arenas were never trimmed");
}

#[test]
fn an_arena_cap_is_proposed_only_for_many_arenas() {
    let mib = Bytes::mib;
    assert_eq!(ids(&with_arenas(&[mib(1), mib(20), mib(20), mib(20), mib(20), mib(20)], mib(1))), ["arena-retention"]);
    assert_eq!(ids(&with_arenas(&[mib(100), mib(1), mib(1), mib(1), mib(1), mib(1)], mib(1))), ["allocator-retention"]);
    // One thread arena has nearly all of it: fragmentation of one heap, whatever the number of arenas.
    assert_eq!(ids(&with_arenas(&[mib(1), mib(100), mib(2), mib(2), mib(2), mib(2)], mib(1))), ["allocator-retention"]);
    assert_eq!(ids(&with_arenas(&[mib(2), mib(2), mib(2), mib(2), mib(2), mib(2)], mib(100))), ["unclear"]);
}

#[test]
fn both_kinds_of_retention_may_apply_each_to_its_own_bytes() {
    let mib = Bytes::mib;
    let snapshot = with_arenas(&[mib(100), mib(20), mib(20), mib(20), mib(20), mib(20)], mib(1));
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    let bytes: Vec<(&str, Bytes)> = verdicts.iter().map(|verdict| (verdict.id.id(), verdict.bytes)).collect();
    assert!(bytes.contains(&("arena-retention", mib(100))) && bytes.contains(&("allocator-retention", mib(100))));
}

#[test]
fn an_existing_arena_cap_is_not_proposed_again() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(1), mib(20), mib(20), mib(20), mib(20)], mib(1));
    if let Some(glibc) = &mut snapshot.glibc {
        (glibc.arena_cap, glibc.arena_cap_set) = (Some(4), true);
    }
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    assert_eq!(verdicts[0].id, VerdictId::ArenaRetention);
    assert!(!verdicts[0].remedies.iter().any(|remedy| remedy.how.contains("MALLOC_ARENA_MAX")));
}

/// A service after a burst under a cap of 4, as observed: 86, 77, 72 and 69 MiB in the main arena and three others.
#[test]
fn retention_under_a_low_cap_names_all_arenas_and_the_cap() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(86), mib(77), mib(72), mib(69)], mib(3));
    if let Some(glibc) = &mut snapshot.glibc {
        (glibc.arena_cap, glibc.arena_cap_set) = (Some(4), true);
    }
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    assert_eq!(verdict.bytes, mib(304));
    assert!(verdict.summary.contains("in the main arena and 3 thread arenas"), "{}", verdict.summary);
    let evidence = verdict.evidence.join("\n");
    assert!(evidence.contains("the arena cap in force is 4 (set)"), "{evidence}");
    assert!(evidence.contains("one burst, or several in turn, left the rest"), "{evidence}");
    // Nothing shows that the tracker could be loaded.
    assert!(!evidence.contains("plimsoll attach"), "{evidence}");
    snapshot.hotspot = Some(HotSpot::default());
    let evidence = verdict_of(&snapshot, VerdictId::AllocatorRetention).evidence;
    let [.., attach, report] = evidence.as_slice() else { panic!("{evidence:?}") };
    assert_eq!((&**attach, &**report), ("plimsoll attach 0", "plimsoll report 0 --by site --measure peak"));
}

/// A healthy server keeps about 10 % of its RSS free inside malloc.
#[test]
fn a_little_retention_is_a_note() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(31), mib(0), mib(0)], mib(15));
    snapshot.vmas.push(Vma { range: AddressRange::sized(Avma(1 << 40), mib(165)), ..snapshot.vmas[0].clone() });
    snapshot.vmas[3].rss = mib(165);
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    assert_eq!(verdict.severity, Severity::Note);
    assert!(ids(&snapshot).contains(&"healthy"));
    // The same bytes are a warning if a limit is near.
    let tight = Snapshot { limit_requested: Some(mib(280)), ..snapshot };
    assert_eq!(verdict_of(&tight, VerdictId::AllocatorRetention).severity, Severity::Warning);
}

/// A node server between two collections: 57 MiB of 127 were free, 10 MiB a moment before.
#[test]
fn memory_freed_by_v8_warns_only_if_it_stays_free() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(57)], mib(70));
    assert_eq!(verdict_of(&snapshot, VerdictId::AllocatorRetention).severity, Severity::Warning);
    snapshot.allocators.push(LoadedAllocator { kind: AllocatorKind::V8, path: "node".into(), serves_malloc: false });
    assert_eq!(verdict_of(&snapshot, VerdictId::AllocatorRetention).severity, Severity::Note);
    let since = |seconds: f64, then: Bytes| {
        let lines = [(LineId::GlibcRetained, then)];
        verdict_of(&with_baseline(snapshot.clone(), seconds, mib(127), &lines), VerdictId::AllocatorRetention).severity
    };
    assert_eq!(since(60.0, mib(10)), Severity::Note);
    assert_eq!(since(60.0, mib(55)), Severity::Warning);
    assert_eq!(since(59.0, mib(55)), Severity::Note, "perhaps no collection ran in between");
}

/// MALLOC_TOP_PAD_: 64 MiB at the end of the heap, of which the program has touched 3.
#[test]
fn what_nobody_touched_at_the_end_of_a_heap_is_not_kept() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(40)], mib(70));
    let arena = &mut snapshot.glibc.as_mut().expect("set").arenas[0];
    (arena.bins, arena.top, arena.top_resident) = (mib(37), mib(64), mib(3));
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    let row = "37.0 MiB of it lies between live blocks (fragmentation), 3.00 MiB at the ends of heaps";
    assert!(verdict.evidence.iter().any(|found| found == row), "{verdict:?}");
}

#[test]
fn a_trim_releases_pages_of_every_arena() {
    let mib = Bytes::mib;
    let snapshot = with_arenas(&[mib(10), mib(20), mib(20), mib(20), mib(20)], mib(1));
    let verdict = verdict_of(&snapshot, VerdictId::ArenaRetention);
    assert_eq!(verdict.bytes, mib(80));
    assert_eq!(verdict.remedies[0].effect, Effect::Modelled(mib(90), mib(90)));
    let known = verdict.remedies.iter().filter(|remedy| remedy.effect != Effect::Unknown).count();
    assert_eq!(known, 1, "no figure for a cap or another allocator: {:?}", verdict.remedies);
}

/// Free chunks that share each of their pages with live blocks: no page is free as a whole.
#[test]
fn no_trim_is_proposed_where_it_returns_nothing() {
    let mut snapshot = with_arenas(&[Bytes::mib(57)], Bytes::mib(70));
    assert!(verdict_of(&snapshot, VerdictId::AllocatorRetention).remedies[0].how.contains("malloc_trim"));
    if let Some(glibc) = &mut snapshot.glibc {
        glibc.arenas[0].trimmable = Bytes::kib(12);
    }
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    assert!(verdict.remedies.iter().all(|remedy| !remedy.how.contains("malloc_trim")), "{:?}", verdict.remedies);
    assert!(
        verdict.evidence.iter().any(|text| text.starts_with("a trim would return 12.0 KiB")),
        "{:?}",
        verdict.evidence
    );
}

/// One thread arena whose free pages lie at its end: a trim cuts only the end of the main arena.
#[test]
fn no_trim_is_proposed_for_the_end_of_a_thread_arena() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(0), mib(57)], mib(10));
    if let Some(glibc) = &mut snapshot.glibc {
        (glibc.arenas[1].trimmable, glibc.arenas[1].at_end) = (mib(1), mib(56));
    }
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    assert!(verdict.remedies.iter().all(|remedy| !remedy.how.contains("malloc_trim")), "{:?}", verdict.remedies);
    let evidence = verdict.evidence.join("; ");
    assert!(evidence.contains("56.0 MiB of it lies at the ends of arenas: a trim leaves it"), "{evidence}");
    assert!(evidence.contains("a trim would return 1.00 MiB"), "{evidence}");
}

/// glibc's threshold grows with the blocks that are freed. While the default is in force, setting it changes nothing.
#[test]
fn a_mmap_threshold_is_proposed_only_where_it_has_grown() {
    let proposed = |in_force: Option<Bytes>| {
        let mut snapshot = with_arenas(&[Bytes::mib(57)], Bytes::mib(70));
        if let Some(glibc) = &mut snapshot.glibc {
            glibc.mmap_threshold = in_force;
        }
        let remedies = verdict_of(&snapshot, VerdictId::AllocatorRetention).remedies;
        remedies.into_iter().find(|remedy| remedy.how.contains("MALLOC_MMAP_THRESHOLD_=131072")).map(|found| found.what)
    };
    assert_eq!(proposed(Some(Bytes::kib(128))), None);
    assert_eq!(proposed(Some(Bytes::kib(64))), None);
    let grown = proposed(Some(Bytes::mib(32)));
    assert!(grown.is_some_and(|what| what.ends_with("(now only blocks of 32.0 MiB and more)")));
    assert!(proposed(None).is_some());
}
