//! What grew since the baseline, and whose it is.

use super::*;

/// Objects are not malloc's: the tracker's books would not name them.
#[test]
fn growth_of_the_v8_heap_leads_to_a_heap_snapshot() {
    let mib = Bytes::mib;
    let range = AddressRange::sized(Avma(1 << 30), mib(200));
    let mut heap = OtherHeap::new(AllocatorKind::V8);
    heap.ranges.push(range);
    heap.add(HeapPart::Old, mib(180), mib(180));
    heap.add(HeapPart::FreeOld, mib(20), mib(20));
    let vma = Vma { range, readable: true, writable: true, rss: mib(200), ..Vma::default() };
    let mut snapshot = Snapshot { vmas: vec![vma], v8: Some(heap), ..Snapshot::default() };
    snapshot.process.pid = 4711;
    snapshot.process.executable = Some("/usr/bin/node".into());
    let snapshot = with_baseline(snapshot, 600.0, mib(100), &[(LineId::OtherAllocator, mib(100))]);
    let verdict = verdict_of(&snapshot, VerdictId::Growth);
    assert_eq!((verdict.bytes, verdict.severity), (mib(100), Severity::Warning));
    assert!(verdict.remedies[0].how.starts_with("node inspect -p 4711 "), "{:?}", verdict.remedies);
    assert!(
        verdict.evidence.iter().any(|line| line.starts_with("V8: 180 MiB of old and large objects")),
        "{verdict:?}"
    );
    // If the line also has other memory, the owner of the growth is unknown.
    let mut other = snapshot.clone();
    other.allocators.push(LoadedAllocator { kind: AllocatorKind::V8, path: "node".into(), serves_malloc: false });
    let beside = AddressRange::sized(Avma(1 << 40), mib(300));
    other.vmas.push(Vma { range: beside, readable: true, writable: true, rss: mib(300), ..Vma::default() });
    assert!(!verdict_of(&other, VerdictId::Growth).remedies[0].how.contains("inspect"));
}

/// Buffers are malloc's blocks, but their owners are objects.
#[test]
fn growth_of_array_buffers_leads_to_a_heap_snapshot() {
    let mib = Bytes::mib;
    let remedy = |bytes: Bytes| {
        let mut snapshot = with_arenas(&[mib(0)], mib(200));
        let buffers = Some(ArrayBuffers { count: 150, bytes });
        snapshot.v8 = Some(OtherHeap { buffers, ..OtherHeap::new(AllocatorKind::V8) });
        snapshot.process.executable = Some("/usr/bin/node".into());
        let snapshot = with_baseline(snapshot, 600.0, mib(100), &[(LineId::GlibcLive, mib(100))]);
        let verdict = verdict_of(&snapshot, VerdictId::Growth);
        let expected = format!("V8: 150 array buffers (Node's Buffer) take {bytes} of malloc's memory now");
        assert!(verdict.evidence.contains(&expected), "{verdict:?}");
        verdict.remedies.iter().map(|remedy| remedy.how.clone()).collect::<Vec<_>>().join("; ")
    };
    let (most, few) = (remedy(mib(150)), remedy(mib(50)));
    assert!(most.starts_with("node inspect") && !most.contains("plimsoll run"), "{most}");
    assert!(!few.contains("node inspect") && few.contains("plimsoll run"), "{few}");
}

#[test]
fn growth_of_the_go_heap_leads_to_its_own_profile() {
    let mib = Bytes::mib;
    let range = AddressRange::sized(Avma(1 << 30), mib(200));
    let mut heap = OtherHeap::new(AllocatorKind::Go);
    heap.ranges.push(range);
    heap.add(HeapPart::Live, mib(200), mib(200));
    let vma = Vma { range, readable: true, writable: true, rss: mib(200), ..Vma::default() };
    let allocators = vec![LoadedAllocator { kind: AllocatorKind::Go, path: "server".into(), serves_malloc: false }];
    let listeners = Some(Listeners { tcp: vec![([127, 0, 0, 1], 6060).into()], ..Listeners::default() });
    let snapshot = Snapshot { vmas: vec![vma], go: Some(heap), allocators, listeners, ..Snapshot::default() };
    let snapshot = with_baseline(snapshot, 600.0, mib(100), &[(LineId::OtherAllocator, mib(100))]);
    let verdict = verdict_of(&snapshot, VerdictId::Growth);
    assert_eq!((verdict.bytes, verdict.severity), (mib(100), Severity::Warning));
    let how = &verdict.remedies[0].how;
    assert_eq!(how, "go tool pprof http://localhost:6060/debug/pprof/heap", "{:?}", verdict.remedies);
}

/// Between two walks: what was there at the walk is the program's, what came later may be Go's.
#[test]
fn growth_beside_the_go_heap_leads_to_the_stacks_of_its_mappings() {
    let mib = Bytes::mib;
    let [heap, own, later] = [1 << 30, 2 << 30, 3 << 30].map(|start| AddressRange::sized(Avma(start), mib(200)));
    let mut go = OtherHeap::new(AllocatorKind::Go);
    go.ranges.push(heap);
    go.add(HeapPart::Live, mib(200), mib(200));
    let vma = |range| Vma { range, readable: true, writable: true, rss: mib(200), ..Vma::default() };
    let allocators = vec![LoadedAllocator { kind: AllocatorKind::Go, path: "server".into(), serves_malloc: false }];
    let of = |go: &OtherHeap, ranges: &[AddressRange]| Snapshot {
        vmas: ranges.iter().copied().map(vma).collect(),
        go: Some(go.clone()),
        allocators: allocators.clone(),
        ..Snapshot::default()
    };
    let lines = |snapshot: &Snapshot| {
        let ledger = Ledger::of(snapshot);
        [LineId::OtherAllocator, LineId::OtherAnonymous].map(|line| ledger.resident(line))
    };
    let walked = of(&go, &[heap, own]);
    assert_eq!(lines(&walked), [mib(200), mib(200)]);
    let then = [(LineId::OtherAnonymous, mib(100)), (LineId::OtherAllocator, mib(200))];
    let snapshot = with_baseline(walked, 600.0, mib(300), &then);
    // The first remedy needs no restart.
    let how = &verdict_of(&snapshot, VerdictId::Growth).remedies[1].how;
    assert!(how.contains("strace -f -k"), "{how}");
    let then = OtherHeap { mapped_then: Some(vec![heap, own]), ..go.clone() };
    assert_eq!(lines(&of(&then, &[heap, own, later])), [mib(400), mib(200)]);
    // The program's memory has the shape of an arena of Go's, and so has the memory that came after it.
    let [own, behind] = [(4 << 30, 64), ((4 << 30) + (64 << 20), 128)]
        .map(|(start, length)| AddressRange::sized(Avma(start), mib(length)));
    let then = OtherHeap { mapped_then: Some(vec![heap, own]), ..go.clone() };
    assert_eq!(lines(&of(&then, &[heap, own, behind])), [mib(400), mib(200)]);
    // Records that weren't found lie in mappings that look like the program's.
    let incomplete = OtherHeap { has_records: false, ..go };
    assert_eq!(lines(&of(&incomplete, &[heap, own])), [mib(400), mib(0)]);
}

#[test]
fn a_healthy_state_says_how_rss_changed_since_the_baseline() {
    let mib = Bytes::mib;
    let words = |snapshot: &Snapshot| {
        let verdict = verdict_of(snapshot, VerdictId::Healthy);
        (certainty(snapshot, &Ledger::of(snapshot), &verdict), verdict.evidence)
    };
    let alone = with_mappings(&[mib(100)]);
    let (sure, over_time) = words(&alone);
    assert_eq!(sure, "100 % of RSS is explained; one reading can't show growth");
    // Each command is a sentence of its own, so that a screen needn't break it.
    let commands = ["explain 0 --format json > baseline.json", "explain 0 --baseline baseline.json"];
    assert!(commands.iter().all(|command| over_time.contains(&format!("plimsoll {command}"))), "{over_time:?}");
    for (earlier, change) in [(100, "is unchanged"), (99, "grew by 1.00 MiB"), (102, "shrank by 2.00 MiB")] {
        let lines = [(LineId::SharedMemory, mib(earlier))];
        let (sure, over_time) = words(&with_baseline(alone.clone(), 600.0, mib(earlier), &lines));
        assert_eq!(sure, "100 % of RSS is explained; compared with the baseline, 10 min ago");
        assert_eq!(over_time.last(), Some(&format!("RSS {change} since the baseline, 10 min ago")));
    }
}

/// 7 MiB that became 29, and 153 MiB that became 600, as observed.
#[test]
fn growth_since_the_baseline_is_a_verdict_with_rate_and_time() {
    let mib = Bytes::mib;
    let grown = |now: Bytes, then: Bytes, seconds: f64| {
        with_baseline(with_mappings(&[now]), seconds, then, &[(LineId::SharedMemory, then)])
    };
    for (then, now) in [(7, 29), (447, 600)] {
        let mut snapshot = grown(mib(now), mib(then), 3600.0);
        snapshot.limit_requested = Some(mib(now * 2));
        let verdict = verdict_of(&snapshot, VerdictId::Growth);
        assert_eq!((verdict.bytes, verdict.severity), (mib(now - then), Severity::Warning));
        let rate = format!("{} an hour", mib(now - then));
        assert!(verdict.summary.contains("shared memory") && verdict.summary.contains(&rate), "{}", verdict.summary);
        let hours = now as f64 / (now - then) as f64;
        let time = case::ago(hours * 3600.0);
        let limit = format!("; if that goes on, the limit of {} is reached in {time}", mib(now * 2));
        assert!(verdict.summary.ends_with(&limit), "{}", verdict.summary);
        assert!(!ids(&snapshot).contains(&"healthy"));
    }
    // Too little time gives no rate, and too few bytes aren't growth.
    assert!(!verdict_of(&grown(mib(29), mib(7), 2.0), VerdictId::Growth).summary.contains("an hour"));
    assert_eq!(ids(&grown(mib(105), mib(100), 3600.0)), ["healthy"]);
    assert_eq!(ids(&grown(mib(12), mib(6), 3600.0)), ["healthy"]);
}

#[test]
fn a_lines_error_bounds_its_growth() {
    let mib = Bytes::mib;
    let mut snapshot = with_baseline(with_mappings(&[mib(140)]), 60.0, mib(100), &[(LineId::SharedMemory, mib(100))]);
    let errors = |error| vec![(LineId::SharedMemory, error)];
    let of = |snapshot: &Snapshot| {
        judge(snapshot, &Ledger::of(snapshot)).into_iter().find(|verdict| verdict.id == VerdictId::Growth)
    };
    snapshot.baseline.as_mut().expect("set").errors = errors(mib(20));
    let verdict = of(&snapshot).expect("20 to 60");
    assert_eq!(verdict.bytes, mib(20));
    // The change, not the change and the new size.
    assert!(verdict.summary.starts_with("shared memory grew by 20.0 to 60.0 MiB in "), "{}", verdict.summary);
    snapshot.baseline.as_mut().expect("set").errors = errors(mib(35));
    assert_eq!(of(&snapshot), None);
    let lines = [(LineId::SharedMemory, mib(1000))];
    let mut big = with_baseline(with_mappings(&[mib(2075)]), 60.0, mib(1000), &lines);
    big.baseline.as_mut().expect("set").errors = errors(mib(150));
    let verdict = of(&big).expect("925 to 1225");
    assert!(verdict.summary.contains(" grew by between 925 MiB and 1.20 GiB in "), "{}", verdict.summary);
}

/// Blocks that were freed since and are kept: malloc holds as much as before.
#[test]
fn blocks_that_move_between_lines_of_malloc_are_no_growth() {
    let mib = Bytes::mib;
    let snapshot = with_arenas(&[mib(90)], mib(10));
    let lines = [(LineId::GlibcLive, mib(95)), (LineId::GlibcRetained, mib(5))];
    assert!(!ids(&with_baseline(snapshot.clone(), 600.0, mib(100), &lines)).contains(&"growth"));
    let lines = [(LineId::GlibcLive, mib(40)), (LineId::GlibcRetained, mib(5))];
    let verdict = verdict_of(&with_baseline(snapshot, 600.0, mib(45), &lines), VerdictId::Growth);
    assert_eq!(verdict.bytes, mib(55));
}

/// 20 MiB of live blocks, before a burst and after it: no call holds what the burst has left.
#[test]
fn growth_of_free_memory_is_given_back_and_has_no_caller() {
    let mib = Bytes::mib;
    let lines = [(LineId::GlibcLive, mib(20)), (LineId::GlibcRetained, mib(5))];
    let mut snapshot = with_baseline(with_arenas(&[mib(205)], mib(20)), 600.0, mib(25), &lines);
    snapshot.hotspot = Some(HotSpot { version: "25.0.3+9-LTS".into(), ..HotSpot::default() });
    let verdict = verdict_of(&snapshot, VerdictId::Growth);
    assert!(verdict.summary.starts_with("glibc, free but kept grew by 200 MiB in 10 min"), "{verdict:?}");
    assert_eq!(verdict.remedies[0].how, "jcmd 0 System.trim_native_heap");
    assert!(verdict.remedies.iter().all(|remedy| !remedy.how.contains("--by site")), "{verdict:?}");
    // The calls of the next burst can be named.
    let burst = ["plimsoll attach 0", "plimsoll report 0 --by site --measure peak"].map(str::to_owned);
    assert!(verdict.evidence.ends_with(&burst), "{verdict:?}");
    // With a limit, the trim comes first, too.
    snapshot.limit_requested = Some(mib(230));
    assert_eq!(verdict_of(&snapshot, VerdictId::LimitNear).remedies[0].how, "jcmd 0 System.trim_native_heap");
    // A trim returns nothing where the free blocks share their pages with live ones.
    snapshot.glibc.as_mut().expect("one").arenas[0].trimmable = Bytes::kib(12);
    let fragmented: Vec<String> =
        verdict_of(&snapshot, VerdictId::Growth).remedies.into_iter().map(|remedy| remedy.how).collect();
    assert!(matches!(&fragmented[..], [only] if only.starts_with("plimsoll record 0 ")), "{fragmented:?}");
}

/// Then + more + what malloc had = now.
#[test]
fn the_figures_of_a_line_of_malloc_add_up() {
    let mib = Bytes::mib;
    let evidence = |kept: Bytes| {
        let lines = [(LineId::GlibcLive, mib(18)), (LineId::GlibcRetained, mib(1) + kept)];
        let snapshot = with_baseline(with_arenas(&[mib(1)], mib(45)), 600.0, mib(19) + kept, &lines);
        verdict_of(&snapshot, VerdictId::Growth).evidence[0].clone()
    };
    let live = "glibc, live: 18.0 MiB then, 45.0 MiB now";
    assert_eq!(evidence(Bytes(0)), format!("{live}: 27.0 MiB more"));
    assert_eq!(evidence(Bytes::kib(4)), format!("{live}: 27.0 MiB more"));
    assert_eq!(evidence(mib(1)), format!("{live}: 26.0 MiB more, and 1.00 MiB that malloc had before"));
}

/// 60 MiB more in jemalloc, and 58 MiB of what glibc's malloc had kept free.
#[test]
fn malloc_grew_by_no_more_than_its_lines_together() {
    let mib = Bytes::mib;
    let mut snapshot = with_two_mallocs(mib(98), mib(94), mib(4));
    let arena = &mut snapshot.glibc.as_mut().expect("one").arenas[0];
    (arena.live, arena.live_resident, arena.bins, arena.free_resident) = (mib(58), mib(58), mib(40), mib(40));
    let lines = [(LineId::GlibcRetained, mib(98)), (LineId::OtherAllocator, mib(34)), (LineId::SharedMemory, mib(4))];
    let mut snapshot = with_baseline(snapshot, 60.0, mib(136), &lines);
    snapshot.limit_requested = Some(mib(256));
    let verdict = verdict_of(&snapshot, VerdictId::Growth);
    assert_eq!(verdict.bytes, mib(60));
    let line =
        "jemalloc grew by 60.0 MiB in 60 s, 3.52 GiB an hour; if that goes on, the limit of 256 MiB is reached in ";
    assert_eq!(verdict.summary, format!("{line}60 s"));
    let evidence = "glibc, live: 0 B then, 58.0 MiB now: 58.0 MiB more";
    assert!(verdict.evidence.iter().any(|found| found == evidence), "{:?}", verdict.evidence);
    // The errors of both lines remain.
    let errors = vec![(LineId::OtherAllocator, mib(10)), (LineId::GlibcLive, mib(10))];
    snapshot.baseline.as_mut().expect("set").errors = errors;
    let verdict = verdict_of(&snapshot, VerdictId::Growth);
    assert_eq!(verdict.bytes, mib(40));
    assert!(verdict.summary.ends_with(" is reached in 45 s to 90 s"), "{}", verdict.summary);
}

/// The clock was set an hour back: the readings are 30 minutes apart all the same.
#[test]
fn a_rate_is_of_the_time_that_the_process_lived() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(200)], mib(200));
    let lines = [(LineId::GlibcLive, mib(100))];
    snapshot = with_baseline(snapshot, -1800.0, mib(100), &lines);
    let baseline = snapshot.baseline.as_mut().expect("a baseline");
    (baseline.uptime, snapshot.process.uptime) = (Some(5000.0), Some(6800.0));
    let growth = verdict_of(&snapshot, VerdictId::Growth);
    assert!(growth.summary.contains("grew by 200 MiB in 30 min, 400 MiB an hour"), "{}", growth.summary);
}

/// A line that grew from nothing has no percentage.
#[test]
fn growth_from_nothing_is_growth() {
    let mib = Bytes::mib;
    let snapshot = with_baseline(with_arenas(&[mib(200)], mib(200)), 600.0, mib(100), &[]);
    let ledger = Ledger::of(&snapshot);
    let sentence = Case { snapshot: &snapshot, ledger: &ledger }.growth(LineId::GlibcLive);
    assert_eq!(sentence, ["Grew by 200 MiB since the baseline, 10 min ago (it was 0 B)."]);
}
