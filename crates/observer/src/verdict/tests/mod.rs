//! Rules on invented facts that no test machine has. Situations that fixtures can produce are tested on real processes
//! (crates/cli/tests/explain). Over 800 lines: the cases of all rules share the functions that make their snapshots.

use super::*;
use crate::ledger::{Baseline, LineId};
use plimsoll_facts::snapshot::{
    AllocatorKind, Arena, ArenaKind, ArrayBuffers, Backing, BlockCache, Cgroup, CodeCacheSegment, DirectBuffers,
    EqualBlocks, Glibc, HeapPart, HotSpot, JavaHeap, Listeners, LoadedAllocator, NmtCategory, ObjectClass, OtherHeap,
    Pressure, Process, Root, Snapshot, Start, Thread, Throttle, VmRegion, VmTag, Vma,
};
use plimsoll_facts::units::{AddressRange, Avma};

mod production;

/// Consecutive mappings with so many resident bytes each, of a kind that needs no judgement.
fn with_mappings(sizes: &[Bytes]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut at = Avma(1 << 20);
    for size in sizes {
        let range = AddressRange::sized(at, *size);
        let vma = Vma { range, readable: true, writable: true, rss: *size, backing: Backing::Shmem, ..Vma::default() };
        snapshot.vmas.push(vma);
        at = Avma(range.end.0 + (1 << 20));
    }
    snapshot
}

fn ids(snapshot: &Snapshot) -> Vec<&'static str> {
    judge(snapshot, &Ledger::of(snapshot)).iter().map(|verdict| verdict.id.id()).collect()
}

/// A glibc with one arena per mapping, each with so many free resident bytes. The first is the main arena.
fn with_arenas(free: &[Bytes], live: Bytes) -> Snapshot {
    let sizes: Vec<Bytes> = free.iter().map(|free| *free + live).collect();
    let mut snapshot = with_mappings(&sizes);
    let arenas = free.iter().zip(&snapshot.vmas).enumerate().map(|(index, (free, vma))| Arena {
        kind: if index == 0 { ArenaKind::Main } else { ArenaKind::Thread },
        heaps: vec![vma.range],
        live,
        live_resident: live,
        bins: *free,
        free_resident: *free,
        trimmable: *free,
        ..Arena::default()
    });
    snapshot.glibc = Some(Glibc { arenas: arenas.collect(), arena_cap: Some(16), ..Glibc::default() });
    snapshot
}

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

fn with_limit(limit: Bytes, charged: Bytes, inactive_file: Bytes) -> Snapshot {
    let mut snapshot = with_mappings(&[Bytes::mib(100)]);
    let mut cgroup = Cgroup { limit: Some(limit), charged, ..Cgroup::default() };
    cgroup.stat.inactive_file = inactive_file;
    snapshot.cgroup = Some(cgroup);
    snapshot
}

#[test]
fn reclaimable_page_cache_does_not_count_against_the_limit() {
    let mib = Bytes::mib;
    assert_eq!(ids(&with_limit(mib(200), mib(198), mib(90))), ["healthy"]);
    assert_eq!(ids(&with_limit(mib(200), mib(198), mib(10))), ["limit-near"]);
    let verdicts = |snapshot: &Snapshot| judge(snapshot, &Ledger::of(snapshot));
    assert_eq!(verdicts(&with_limit(mib(200), mib(198), mib(0)))[0].severity, Severity::Critical);
}

#[test]
fn a_heap_that_may_outgrow_the_limit_is_reported_in_advance() {
    let mib = Bytes::mib;
    let mut snapshot = with_limit(mib(1000), mib(400), mib(0));
    let heap = JavaHeap { max: Some(mib(950)), occupied: mib(1), ..JavaHeap::default() };
    snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    let near = verdicts.iter().find(|verdict| verdict.id == VerdictId::LimitNear).expect("950 + 100 > 1000");
    assert!(near.summary.contains("too low for the flags"), "{}", near.summary);
    // 95 % of the limit, minus 100 MiB of native memory.
    assert!(
        near.remedies.iter().any(|remedy| remedy.how == "-Xmx849m" || remedy.how == "-Xmx850m"),
        "{:?}",
        near.remedies
    );
    // Pages of hugetlbfs are not charged, unless memory.stat has them.
    let range = AddressRange::sized(Avma(1 << 40), mib(950));
    let vm = snapshot.hotspot.as_mut().expect("set");
    vm.regions = vec![VmRegion { range, tag: VmTag::JavaHeap, committed: vec![range] }];
    let mut vma = Vma { range, readable: true, writable: true, hugetlb: mib(100), ..Vma::default() };
    vma.flags.hugetlb = true;
    snapshot.vmas.push(vma);
    assert!(!ids(&snapshot).contains(&"limit-near"), "{:?}", ids(&snapshot));
    snapshot.cgroup.as_mut().expect("set").stat.unknown = vec![("hugetlb".into(), 100 << 20)];
    assert!(ids(&snapshot).contains(&"limit-near"), "{:?}", ids(&snapshot));
}

/// Each level has its own headroom. A limit further up that is near is judged, even if another is reached first.
#[test]
fn every_level_is_judged() {
    let mib = Bytes::mib;
    let level = |path: &str, limit: u64, charged: u64| Cgroup {
        limit: Some(mib(limit)),
        path: "/a/b".into(),
        limit_path: path.into(),
        charged: mib(charged),
        ..Cgroup::default()
    };
    let of = |own: Cgroup, above: Cgroup| {
        let mut snapshot = with_mappings(&[mib(100)]);
        snapshot.cgroup = Some(Cgroup { further: vec![above], ..own });
        snapshot
    };
    // 15 MiB and 500 MiB are left.
    let above = verdict_of(&of(level("/a/b", 150, 135 - 1), level("/a", 10_000, 9500)), VerdictId::LimitNear);
    assert!(above.summary.starts_with("95 % of the limit of /a, a group above"), "{above:?}");
    let both = verdict_of(&of(level("/a/b", 150, 140), level("/a", 10_000, 9500)), VerdictId::LimitNear);
    assert!(both.summary.starts_with("95 % of the limit of /a, a group above"), "{both:?}");
    assert!(both.evidence.iter().any(|row| row.starts_with("the limit of /a/b is near, too: ")), "{both:?}");
    assert_eq!(ids(&of(level("/a/b", 300, 135), level("/a", 10_000, 5000))), ["healthy"]);
    // A heap that fits into what is above may still be too large for the lower limit.
    let mut heap = of(level("/a", 1000, 850), level("/a/b", 400, 110));
    let java_heap = JavaHeap { max: Some(mib(350)), occupied: mib(1), ..JavaHeap::default() };
    heap.hotspot = Some(HotSpot { java_heap: Some(java_heap), ..HotSpot::default() });
    let heap = verdict_of(&heap, VerdictId::LimitNear);
    assert!(heap.summary.ends_with("needs 450 MiB; the limit is 400 MiB"), "{heap:?}");
}

/// Whatever the order in which the limits are reached.
#[test]
fn of_several_limits_that_are_near_the_most_severe_and_fullest_is_judged() {
    let mib = Bytes::mib;
    let level = |path: &str, limit: u64, charged: u64| Cgroup {
        limit: Some(mib(limit)),
        path: "/a/b/c".into(),
        limit_path: path.into(),
        charged: mib(charged),
        ..Cgroup::default()
    };
    let summary = |[first, second, third]: [Cgroup; 3]| {
        let mut snapshot = with_mappings(&[mib(100)]);
        snapshot.cgroup = Some(Cgroup { further: vec![second, third], ..first });
        verdict_of(&snapshot, VerdictId::LimitNear).summary
    };
    let own = |charged| level("/a/b/c", 1000, charged);
    let (middle, root) = (|charged| level("/a/b", 10_000, charged), |charged| level("/a", 20_000, charged));
    let above = summary([own(910), middle(9900), root(19_000)]);
    assert!(above.starts_with("99 % of the limit of /a/b, a group above"), "{above}");
    // The head shows the limit of /a.
    let below = summary([root(19_000), own(970), middle(9600)]);
    assert!(below.starts_with("97 % of the limit of /a/b/c, this process's own group, is in use: 30.0"), "{below}");
    // As full as each other: 95.4, 95.2 and 94.9 %.
    let innermost = summary([root(19_080), middle(9520), own(949)]);
    assert!(innermost.starts_with("95 % of the limit of /a/b/c, this process's own group,"), "{innermost}");
    // The fullest is so by page cache, which the kernel takes back.
    let mut cached = middle(9900);
    cached.stat.active_file = mib(3000);
    let severe = summary([cached, own(970), root(100)]);
    assert!(severe.starts_with("97 % of the limit of /a/b/c, this process's own group, is in use: 30.0"), "{severe}");
    let only = summary([own(950), middle(100), root(100)]);
    assert!(only.starts_with("95 % of the limit is in use: 50.0 MiB are left"), "{only}");
}

/// A level above counts the kills of all groups below it, whichever limit was reached. Only its own OOMs make it warn.
#[test]
fn kills_by_other_limits_do_not_raise_the_verdict_on_a_level_above() {
    let mib = Bytes::mib;
    let of = |path: &str, oom: u64| {
        let mut snapshot = with_limit(mib(200), mib(190), mib(0));
        let cgroup = snapshot.cgroup.as_mut().expect("set");
        (cgroup.path, cgroup.limit_path, cgroup.stat.active_file) = (path.into(), "/a".into(), mib(100));
        (cgroup.oom.oom, cgroup.oom.oom_kill, cgroup.others) = (oom, 3, vec![(7, mib(20))]);
        let near = verdict_of(&snapshot, VerdictId::LimitNear);
        (near.severity, near.evidence.join("\n"))
    };
    let (severity, evidence) = of("/a/b", 0);
    assert_eq!(severity, Severity::Note, "{evidence}");
    assert!(evidence.contains("\nthis process's own group has had 3 OOM kills"), "{evidence}");
    assert!(evidence.contains("\n1 other process of this process's own group holds 20.0 MiB"), "{evidence}");
    let (severity, evidence) = of("/a/b", 2);
    assert_eq!(severity, Severity::Warning, "{evidence}");
    assert!(evidence.contains("\nthat limit itself was reached 2 times with nothing left to take back"), "{evidence}");
    let (severity, evidence) = of("/a", 0);
    assert_eq!(severity, Severity::Warning, "{evidence}");
    assert!(evidence.contains("\nthe group has had 3 OOM kills"), "{evidence}");
}

/// A cap that counts on memory which other groups hold would not prevent the kill.
#[test]
fn a_cap_on_the_heap_leaves_what_others_hold() {
    let mib = Bytes::mib;
    let caps = |charged: u64| {
        let mut snapshot = with_limit(mib(1000), mib(charged), mib(0));
        let cgroup = snapshot.cgroup.as_mut().expect("set");
        (cgroup.path, cgroup.limit_path) = ("/a/b".into(), "/a".into());
        let heap = JavaHeap { max: Some(mib(950)), occupied: mib(1), ..JavaHeap::default() };
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
        let remedies = verdict_of(&snapshot, VerdictId::LimitNear).remedies;
        remedies.into_iter().map(|remedy| remedy.how).filter(|how| how.starts_with("-Xmx")).collect::<Vec<_>>()
    };
    // 950 MiB, of which native memory takes 100, and others 300.
    assert_eq!(caps(400), ["-Xmx550m"]);
    assert!(caps(950).is_empty());
}

#[test]
fn a_program_is_throttled_if_its_charge_stays_at_memory_high() {
    let mib = Bytes::mib;
    let of = |charged: u64, active: u64, times: u64, waits: Option<f32>| {
        let mut throttle =
            Throttle { path: "/a".into(), high: mib(200), charged: mib(charged), times, ..Throttle::default() };
        throttle.stat.active_file = mib(active);
        throttle.pressure = waits.map(|some| Pressure { some, ..Pressure::default() });
        let mut snapshot = with_mappings(&[mib(100)]);
        snapshot.cgroup = Some(Cgroup { path: "/a".into(), throttles: vec![throttle], ..Cgroup::default() });
        snapshot
    };
    let near = |snapshot: &Snapshot| verdict_of(snapshot, VerdictId::LimitNear);
    let now = near(&of(199, 0, 7, Some(0.3)));
    assert_eq!(
        (now.severity, now.summary.as_str()),
        (Severity::Warning, "memory.high throttles the program: 199 MiB of 200 MiB are charged")
    );
    assert!(now.evidence[0].ends_with("threads waited for memory 30 % of the time"), "{now:?}");
    // The count is of all time, and threads wait for other reasons as well.
    let past = "memory.high is near: 199 MiB of 200 MiB are charged; the kernel has throttled that group 7 times since it was made";
    for waits in [None, Some(0.0)] {
        let near = near(&of(199, 0, 7, waits));
        assert_eq!((near.severity, near.summary.as_str()), (Severity::Note, past));
    }
    assert_eq!(near(&of(190, 0, 7, Some(0.3))).severity, Severity::Note);
    // Beside a limit that is near.
    let beside = |waits| {
        let mut snapshot = of(199, 0, 7, Some(waits));
        let cgroup = snapshot.cgroup.as_mut().expect("set");
        (cgroup.limit, cgroup.limit_path, cgroup.charged) = (Some(mib(210)), "/a".into(), mib(199));
        near(&snapshot).evidence.join("\n")
    };
    assert!(beside(0.3).contains("\nthe kernel also slows the program down: 199 MiB"), "{}", beside(0.3));
    assert!(beside(0.0).contains("\nmemory.high is near, too: 199 MiB"), "{}", beside(0.0));
    // Page cache at the level is normal, unless threads wait for it.
    assert_eq!(ids(&of(199, 100, 7, Some(0.0))), ["healthy"]);
    assert_eq!(near(&of(199, 100, 7, Some(0.2))).severity, Severity::Warning);
    let mut slab = of(199, 0, 7, Some(0.0));
    slab.cgroup.as_mut().expect("set").throttles[0].stat.slab_reclaimable = mib(100);
    assert_eq!(ids(&slab), ["healthy"]);
    // Never throttled, or long ago.
    assert_eq!(ids(&of(199, 0, 0, Some(0.3))), ["healthy"]);
    assert_eq!(ids(&of(120, 0, 7, Some(0.3))), ["healthy"]);
}

/// What a higher limit gains: the first part of its trade-off. The second names whose setting it is.
fn gain(verdict: &Verdict) -> &str {
    let trade_off = verdict.remedies.last().expect("a higher limit").trade_off.as_str();
    trade_off
        .strip_suffix("the first line for Kubernetes, the second for docker run")
        .expect("for both")
        .trim_end_matches("; ")
}

/// 45 MiB that became 95 within an hour, below a limit of 100 MiB.
#[test]
fn a_higher_limit_only_delays_the_kill_of_what_grows() {
    let mib = Bytes::mib;
    let near = |then: u64, seconds: f64| {
        let lines = [(LineId::SharedMemory, mib(then))];
        let mut snapshot = with_baseline(with_mappings(&[mib(95)]), seconds, mib(then), &lines);
        snapshot.limit_requested = Some(mib(100));
        verdict_of(&snapshot, VerdictId::LimitNear)
    };
    let grows = near(45, 3600.0);
    assert_eq!(
        grows.evidence[1],
        "growth: shared memory grew by 50.0 MiB in 60 min, 50.0 MiB an hour; if that goes on, the limit of 100 MiB is \
         reached in 6 min. While that grows, a higher limit only delays the kill"
    );
    assert!(grows.remedies.len() == 2 && grows.remedies[0].how.starts_with("plimsoll run --"), "{grows:?}");
    assert_eq!(gain(&grows), "it only gains time: at 50.0 MiB an hour the 10.0 MiB more last 12 min");
    // Two readings that are too close have no rate.
    assert_eq!(gain(&near(45, 30.0)), "it only gains time if what growth names goes on growing");
    // No growth.
    let stays = near(95, 3600.0);
    assert_eq!((stays.remedies.len(), stays.evidence.len(), gain(&stays)), (1, 1, ""));
}

#[test]
fn beside_a_leak_the_first_remedy_for_a_limit_finds_the_leak() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(0)], mib(190));
    let heap = JavaHeap { max: Some(mib(64)), occupied: mib(1), ..JavaHeap::default() };
    snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
    snapshot.limit_requested = Some(mib(200));
    let verdict = verdict_of(&snapshot, VerdictId::LimitNear);
    assert!(verdict.remedies[0].how.starts_with("plimsoll attach"), "{verdict:?}");
    let evidence = verdict.evidence.join("\n");
    assert!(evidence.contains("\nnative-leak: at least ") && evidence.contains("254 MiB: 54.0 MiB more"), "{evidence}");
    assert!(!evidence.contains("without any leak"), "{evidence}");
    assert_eq!(gain(&verdict), "it only gains time if what native-leak names goes on growing");
}

/// No verdict is named that doesn't stand.
#[test]
fn memory_that_an_allocator_keeps_comes_before_the_limit() {
    let mib = Bytes::mib;
    let evidence = |snapshot: Snapshot| {
        let near = Snapshot { limit_requested: Some(snapshot.rss()), ..snapshot };
        verdict_of(&near, VerdictId::LimitNear).evidence.join("\n")
    };
    let kept = evidence(with_arenas(&[mib(100)], mib(50)));
    let first = "\n100 MiB of it is free inside an allocator and kept: that comes first, see allocator-retention";
    assert!(kept.contains(first), "{kept}");
    // 10 MiB of 20 have no verdict.
    assert!(!evidence(with_arenas(&[mib(10)], mib(10))).contains("comes first"));
}

/// 180 of 200 MiB: a tenth more than what is in use would be less than the limit in force.
#[test]
fn a_limit_is_never_raised_to_less() {
    let mib = Bytes::mib;
    let of = |snapshot: &Snapshot| verdict_of(snapshot, VerdictId::LimitNear);
    let alone = of(&with_limit(mib(200), mib(180), mib(0)));
    let raise = &alone.remedies[0];
    assert!(raise.how.contains("{memory: 220Mi}") && raise.what == "raise the limit by a tenth", "{raise:?}");
    assert_eq!(gain(&alone), "enough only if memory doesn't grow, which one reading can't show");
    // Other processes of the group need their memory, too.
    let mut beside = with_limit(mib(200), mib(190), mib(0));
    beside.cgroup.as_mut().expect("set").others = vec![(7, mib(90))];
    let heap = JavaHeap { max: Some(mib(110)), occupied: mib(100), committed: mib(110), ..JavaHeap::default() };
    beside.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
    assert!(of(&beside).remedies[0].how.contains("{memory: 330Mi}"), "{beside:?}");
}

#[test]
fn huge_pages_are_a_warning_in_stacks_and_a_note_elsewhere() {
    let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
    for vma in &mut snapshot.vmas {
        vma.anon_huge = Bytes::mib(2);
    }
    assert_eq!(ids(&snapshot), ["healthy", "huge-pages"]);
    for (tid, vma) in (1..).zip(&snapshot.vmas) {
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, stack: Some(vma.range), ..Thread::default() });
    }
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    assert_eq!((verdicts[0].id, verdicts[0].severity), (VerdictId::HugePages, Severity::Warning));
    // The same stacks in a process of 8 GiB.
    let range = AddressRange::sized(Avma(1 << 40), Bytes::mib(8192));
    let rss = range.length();
    snapshot.vmas.push(Vma { range, readable: true, writable: true, rss, backing: Backing::Shmem, ..Vma::default() });
    assert_eq!(verdict_of(&snapshot, VerdictId::HugePages).severity, Severity::Note);
}

#[test]
fn a_full_code_cache_is_named_and_a_large_one_is_not_full() {
    let mut snapshot = with_mappings(&[Bytes::mib(300)]);
    let segment = |occupied| CodeCacheSegment {
        name: "profiled nmethods".to_owned(),
        range: AddressRange::default(),
        committed: occupied,
        occupied,
        reserved: Bytes::mib(100),
    };
    snapshot.hotspot = Some(HotSpot { code_cache: vec![segment(Bytes::mib(95))], ..HotSpot::default() });
    assert_eq!(ids(&snapshot), ["code-cache-growth"]);
    snapshot.hotspot = Some(HotSpot { code_cache: vec![segment(Bytes::mib(50))], ..HotSpot::default() });
    assert_eq!(ids(&snapshot), ["healthy"]);
}

#[test]
fn a_compilation_spike_is_reported_as_a_spike() {
    let mut snapshot = with_mappings(&[Bytes::mib(300), Bytes::mib(200)]);
    let range = snapshot.vmas[1].range;
    let region = VmRegion { range, tag: VmTag::Compiler, committed: vec![range] };
    snapshot.hotspot = Some(HotSpot { regions: vec![region], ..HotSpot::default() });
    assert_eq!(ids(&snapshot), ["compiler-arena"]);
}

/// A private mapping of a file: written pages are copies, not page cache.
#[test]
fn written_pages_of_a_private_mapping_are_not_reclaimable() {
    let mib = Bytes::mib;
    let of = |copied: Bytes| {
        let mut snapshot = with_mappings(&[mib(100), mib(100)]);
        let vma = &mut snapshot.vmas[0];
        (vma.backing, vma.inode, vma.anonymous, vma.private_dirty) = (Backing::File, 7, copied, copied + mib(5));
        judge(&snapshot, &Ledger::of(&snapshot)).into_iter().find(|verdict| verdict.id == VerdictId::MappedFileGrowth)
    };
    let some = of(mib(20)).expect("80 MiB of page cache");
    assert_eq!(some.bytes, mib(80));
    assert_eq!(
        some.evidence[0],
        "75.0 MiB of it is clean and can be taken back at once; 5.00 MiB must be written out first"
    );
    assert!(some.evidence[1].contains("has written 20.0 MiB in private mappings"), "{some:?}");
    assert_eq!(of(mib(95)), None);
}

/// The kernel takes no page back that is locked.
#[test]
fn locked_pages_of_files_are_not_reclaimable() {
    let mib = Bytes::mib;
    let mut snapshot = with_mappings(&[mib(40), mib(60), mib(20)]);
    for vma in snapshot.vmas.iter_mut().take(2) {
        (vma.backing, vma.inode) = (Backing::File, 7);
    }
    assert_eq!(verdict_of(&snapshot, VerdictId::MappedFileGrowth).bytes, mib(100));
    snapshot.vmas[1].flags.locked = true;
    let some = verdict_of(&snapshot, VerdictId::MappedFileGrowth);
    assert_eq!(some.bytes, mib(40));
    assert!(some.evidence[1].contains("60.0 MiB of mapped files is locked"), "{some:?}");
    for name in ["socket:[4711]", "anon_inode:[io_uring]", "/[aio]", "/dmabuf:heap"] {
        (snapshot.vmas[1].flags.locked, snapshot.vmas[1].name) = (false, name.to_owned());
        let some = verdict_of(&snapshot, VerdictId::MappedFileGrowth);
        assert_eq!(some.bytes, mib(40), "{name}");
        assert!(some.evidence[1].contains("60.0 MiB is buffers of the kernel"), "{some:?}");
    }
}

/// Where a segment is full, the VM takes space of the others, before it stops compiling.
#[test]
fn a_full_segment_of_several_stops_no_compilation() {
    let summary = |number: usize| {
        let segment = CodeCacheSegment {
            name: "profiled nmethods".to_owned(),
            range: AddressRange::default(),
            committed: Bytes::mib(95),
            occupied: Bytes::mib(95),
            reserved: Bytes::mib(100),
        };
        let mut snapshot = with_mappings(&[Bytes::mib(300)]);
        snapshot.hotspot = Some(HotSpot { code_cache: vec![segment; number], ..HotSpot::default() });
        verdict_of(&snapshot, VerdictId::CodeCacheGrowth).summary
    };
    assert!(summary(1).ends_with("at its limit compilation stops"), "{}", summary(1));
    assert!(summary(3).contains("into other segments"), "{}", summary(3));
}

#[test]
fn mappings_near_the_kernels_limit_count_deleted_files() {
    let mut snapshot = with_mappings(&vec![Bytes(4096); 800]);
    snapshot.host.max_map_count = Some(1000);
    for vma in snapshot.vmas.iter_mut().take(500) {
        (vma.backing, vma.inode, vma.deleted) = (Backing::File, 7, true);
    }
    let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
    assert_eq!(verdicts[0].id, VerdictId::MapCount);
    assert!(verdicts[0].evidence.iter().any(|line| line.starts_with("of deleted files: 500;")), "{verdicts:?}");
    // A memory file, which the kernel calls deleted too, has never had another name.
    snapshot.vmas[0].backing = Backing::Shmem;
    let verdict = verdict_of(&snapshot, VerdictId::MapCount);
    assert!(verdict.evidence.iter().any(|line| line.starts_with("of deleted files: 499;")), "{verdict:?}");
    assert_eq!(verdict.remedies[1].what, "unmap what is no longer read");
    let mut shared = with_mappings(&vec![Bytes(4096); 800]);
    shared.host.max_map_count = Some(1000);
    assert_eq!(verdict_of(&shared, VerdictId::MapCount).remedies[1].what, "make fewer, larger mappings");
    snapshot.host.max_map_count = Some(1200);
    assert!(!ids(&snapshot).contains(&"map-count"), "800 of 1,200 mappings");
}

#[test]
fn a_process_that_could_not_be_read_is_unclear() {
    let mut snapshot = Snapshot { smaps_refused: true, ..with_mappings(&[Bytes::mib(100)]) };
    snapshot.rss_by_kind.anonymous = Bytes::mib(100);
    snapshot.gaps.push(
        plimsoll_facts::gap::Gap::new(plimsoll_facts::gap::Source::Proc, "refused", "")
            .remedy("sudo plimsoll explain 7"),
    );
    let verdict = verdict_of(&snapshot, VerdictId::Unclear);
    assert_eq!((verdict.bytes, verdict.remedies[0].how.as_str()), (Bytes::mib(100), "sudo plimsoll explain 7"));
    assert_eq!(ids(&snapshot), ["unclear"]);
    // A security module forbids it even to root: another reading would find the same.
    snapshot.gaps[0].remedy.clear();
    let smaps = "/proc/7/smaps can't be read";
    snapshot.gaps.push(plimsoll_facts::gap::Gap::new(plimsoll_facts::gap::Source::Proc, smaps, ""));
    let verdict = verdict_of(&snapshot, VerdictId::Unclear);
    let why = format!("{smaps}; plimsoll knows no command that settles it");
    assert_eq!(verdict.evidence.last(), Some(&why));
    assert!(verdict.remedies.is_empty(), "{verdict:?}");
}

/// Its mappings can be read, its memory can't.
#[test]
fn a_heap_whose_memory_is_closed_is_never_read_again_in_vain() {
    let mut snapshot = with_mappings(&[Bytes::mib(100), Bytes::mib(50)]);
    snapshot.vmas[1].backing = Backing::Brk;
    snapshot.process.pid = 7;
    let unclear = |snapshot: &Snapshot, remedy: &str| {
        let gap = plimsoll_facts::gap::Gap::new(plimsoll_facts::gap::Source::Glibc, "/proc/7/mem is closed", "");
        let snapshot = Snapshot { gaps: vec![gap.remedy(remedy)], ..snapshot.clone() };
        let verdict = verdict_of(&snapshot, VerdictId::Unclear);
        (verdict.evidence.last().cloned(), verdict.remedies.first().map(|remedy| remedy.how.clone()))
    };
    let closed = Some("/proc/7/mem is closed".to_owned());
    let (evidence, how) = unclear(&snapshot, "");
    assert!(evidence == closed && how.as_ref().is_some_and(|how| how.starts_with("plimsoll run --")), "{how:?}");
    // A VM lets the tracker in by its own socket.
    let vm = Snapshot { hotspot: Some(HotSpot::default()), ..snapshot.clone() };
    assert!(unclear(&vm, "").1.is_some_and(|how| how.starts_with("plimsoll attach 7 ")));
    // Process 1 is started by the kernel, or with its container.
    snapshot.process.pid = 1;
    let (evidence, how) = unclear(&snapshot, "");
    assert_eq!((evidence, how), (closed.map(|why| why + "; plimsoll knows no command that settles it"), None));
    let sudo = "sudo plimsoll explain 7";
    assert_eq!(unclear(&snapshot, sudo).1.as_deref(), Some(sudo));
    let how = unclear(&snapshot, "plimsoll run --   # and then the command that starts it: its books can be read").1;
    assert!(how.is_some_and(|how| how.contains("then: plimsoll report")));
}

/// The program's own mmap, a heap that could not be walked, another allocator: each is named, with the command that
/// settles it.
#[test]
fn memory_that_cannot_be_judged_is_unclear_and_named() {
    let mib = Bytes::mib;
    let own = |size: Bytes| {
        let mut snapshot = with_mappings(&[mib(100), size]);
        snapshot.vmas[1].backing = Backing::Anonymous;
        snapshot
    };
    assert_eq!(ids(&own(mib(11))), ["healthy"]);
    let verdict = verdict_of(&own(mib(12)), VerdictId::Unclear);
    assert_eq!(verdict.bytes, mib(12));
    assert!(verdict.summary.ends_with("the largest part, 12.0 MiB, is other anonymous"), "{}", verdict.summary);
    assert!(verdict.remedies[0].how.starts_with("plimsoll run"), "{:?}", verdict.remedies);

    let mut heap = own(mib(50));
    heap.vmas[1].backing = Backing::Brk;
    heap.allocators.push(LoadedAllocator { kind: AllocatorKind::Jemalloc, path: "j.so".into(), serves_malloc: true });
    let verdict = verdict_of(&heap, VerdictId::Unclear);
    assert!(verdict.summary.contains("50.0 MiB, is jemalloc"), "{}", verdict.summary);
    // A VM can be attached to, so the callers can be named without a restart.
    heap.hotspot = Some(HotSpot::default());
    let verdict = verdict_of(&heap, VerdictId::Unclear);
    assert!(verdict.remedies[0].how.starts_with("plimsoll attach"), "{:?}", verdict.remedies);

    // CPython's pools can be read, so their live part is known. Much of it may be a leak, as with malloc.
    let python = |live: Bytes| {
        let mut python = own(mib(60));
        let pools = vec![python.vmas[1].range];
        python.pymalloc = Some(plimsoll_facts::snapshot::Pymalloc { pools, count: 1, live, frames: Vec::new() });
        python
    };
    assert_eq!(ids(&python(mib(47))), ["healthy"]);
    let verdict = verdict_of(&python(mib(50)), VerdictId::Unclear);
    assert!(verdict.summary.ends_with("50.0 MiB, is live objects of CPython"), "{}", verdict.summary);
    assert!(verdict.remedies[0].how.contains("--baseline baseline.json"), "{:?}", verdict.remedies);
    let lines = [(LineId::OtherAllocator, mib(60)), (LineId::SharedMemory, mib(100))];
    assert_eq!(ids(&with_baseline(python(mib(50)), 600.0, mib(160), &lines)), ["healthy"]);
}

/// A program's live blocks may be its data or a leak. A second reading tells.
#[test]
fn many_live_blocks_are_unclear_until_a_second_reading() {
    let mib = Bytes::mib;
    let live = |live: Bytes, others: Bytes| {
        let mut snapshot = with_arenas(&[mib(0)], live);
        let range = AddressRange::sized(Avma(1 << 40), others);
        let backing = Backing::Shmem;
        snapshot.vmas.push(Vma { range, readable: true, writable: true, rss: others, backing, ..Vma::default() });
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6".to_owned();
        snapshot.allocators.push(LoadedAllocator { kind: AllocatorKind::Glibc, path, serves_malloc: true });
        snapshot.process.pid = 4711;
        snapshot
    };
    assert_eq!(ids(&live(mib(47), mib(1))), ["healthy"]);
    assert_eq!(ids(&live(mib(100), mib(401))), ["healthy"]);
    let large = live(mib(100), mib(399));
    let verdict = verdict_of(&large, VerdictId::Unclear);
    assert_eq!((verdict.bytes, verdict.severity), (mib(100), Severity::Note));
    assert!(verdict.summary.ends_with("100 MiB, is live blocks of glibc's malloc"), "{}", verdict.summary);
    let how = &verdict.remedies[0].how;
    assert_eq!(how.starts_with("plimsoll attach 4711 && plimsoll report 4711"), cfg!(target_arch = "x86_64"), "{how}");
    // A small program fills a small container.
    let mut small = live(mib(20), mib(4));
    assert_eq!(ids(&small), ["healthy"]);
    small.limit_requested = Some(mib(64));
    assert_eq!(ids(&small), ["unclear"]);

    let lines = [(LineId::GlibcLive, mib(100)), (LineId::SharedMemory, mib(399))];
    let then = |seconds: f64| with_baseline(large.clone(), seconds, mib(499), &lines);
    assert_eq!(ids(&then(59.0)), ["unclear"]);
    assert_eq!(ids(&then(60.0)), ["healthy"]);
    // The tracker's library can't be loaded into a static program.
    let mut fixed = large.clone();
    fixed.process.executable = Some("/app".to_owned());
    fixed.allocators[0].path = "/app".to_owned();
    assert!(verdict_of(&fixed, VerdictId::Unclear).remedies[0].how.starts_with("plimsoll explain 4711"));
    // V8 has the owners of its buffers.
    let mut node = large;
    let buffers = Some(ArrayBuffers { count: 90, bytes: mib(90) });
    node.v8 = Some(OtherHeap { buffers, ..OtherHeap::new(AllocatorKind::V8) });
    assert_eq!(ids(&node), ["healthy"]);
}

/// A library that brings jemalloc, in a program whose malloc is glibc's.
fn with_two_mallocs(of_glibc: Bytes, of_jemalloc: Bytes, others: Bytes) -> Snapshot {
    let mut snapshot = with_mappings(&[of_glibc, of_jemalloc, others]);
    let mut heap = OtherHeap::new(AllocatorKind::Jemalloc);
    heap.ranges.push(snapshot.vmas[1].range);
    heap.add(HeapPart::Live, of_jemalloc, of_jemalloc);
    snapshot.malloc_heap = Some(heap);
    let (heaps, live) = (vec![snapshot.vmas[0].range], of_glibc);
    let arena = Arena { heaps, live, live_resident: live, ..Arena::default() };
    snapshot.glibc = Some(Glibc { arenas: vec![arena], ..Glibc::default() });
    for vma in &mut snapshot.vmas[..2] {
        vma.backing = Backing::Anonymous;
    }
    snapshot
}

#[test]
fn live_blocks_of_both_mallocs_are_unclear() {
    let mib = Bytes::mib;
    for [of_glibc, of_jemalloc] in [[192, 19], [19, 192]] {
        let snapshot = with_two_mallocs(mib(of_glibc), mib(of_jemalloc), mib(4));
        assert_eq!(ids(&snapshot), ["unclear"]);
        let verdict = verdict_of(&snapshot, VerdictId::Unclear);
        assert_eq!(verdict.bytes, mib(211));
        let [most, rest] = if of_glibc > of_jemalloc { ["glibc", "jemalloc"] } else { ["jemalloc", "glibc"] };
        let named = format!("192 MiB, is live blocks of {most}'s malloc");
        assert!(verdict.summary.ends_with(&named), "{}", verdict.summary);
        let rest = format!("live blocks of {rest}'s malloc: 19.0 MiB, 9 % of RSS (");
        assert!(verdict.evidence[1].starts_with(&rest), "{:?}", verdict.evidence);
    }
    // Neither part alone is large.
    assert_eq!(ids(&with_two_mallocs(mib(30), mib(30), mib(100))), ["unclear"]);
    assert_eq!(ids(&with_two_mallocs(mib(23), mib(24), mib(100))), ["healthy"]);
}

#[test]
fn a_native_leak_may_be_in_both_mallocs() {
    let mib = Bytes::mib;
    let of_vm = NmtCategory { name: "GC".into(), ..NmtCategory::default() };
    let jvm = |of_glibc: u64, of_jemalloc: u64| {
        let hotspot = Some(HotSpot { categories: vec![of_vm.clone()], ..HotSpot::default() });
        Snapshot { hotspot, ..with_two_mallocs(mib(of_glibc), mib(of_jemalloc), mib(100)) }
    };
    for [of_glibc, of_jemalloc] in [[60, 4], [4, 60], [32, 32]] {
        let verdict = verdict_of(&jvm(of_glibc, of_jemalloc), VerdictId::NativeLeak);
        assert_eq!(verdict.bytes, mib(64));
    }
    assert!(!ids(&jvm(23, 24)).contains(&"native-leak"));
}

/// 2,000 Inflaters with 107 MiB, as observed. A VM's own blocks would take as much, but none has these sizes.
#[test]
fn open_inflaters_are_not_healthy() {
    let blocks = |size, count| EqualBlocks { size: Bytes(size), count, resident: Bytes(size * count) };
    let with = |peaks: Vec<EqualBlocks>, books: bool| {
        let mut snapshot = with_mappings(&[Bytes::mib(91), Bytes::mib(16)]);
        let heap = &mut snapshot.vmas[1];
        (heap.backing, heap.writable) = (Backing::Brk, true);
        let live = heap.rss;
        let arena = Arena { heaps: vec![heap.range], live, live_resident: live, ..Arena::default() };
        snapshot.glibc = Some(Glibc { arenas: vec![arena], peaks, ..Glibc::default() });
        let own = NmtCategory { name: "GC".into(), malloc: Bytes::mib(1), ..NmtCategory::default() };
        let categories = if books { vec![own] } else { Vec::new() };
        snapshot.hotspot = Some(HotSpot { categories, ..HotSpot::default() });
        snapshot
    };
    assert_eq!(ids(&with(vec![blocks(7200, 2000)], false)), ["healthy"]);
    let open = with(vec![blocks(7168, 2000)], false);
    let verdict = verdict_of(&open, VerdictId::Unclear);
    assert_eq!((verdict.bytes, verdict.severity), (Bytes(7168 * 2000), Severity::Note));
    assert!(verdict.summary.contains("2,000 blocks of zlib's"), "{}", verdict.summary);
    // Blocks with the tracker's trailer are of the same kind.
    let both = verdict_of(&with(vec![blocks(7168, 900), blocks(7184, 1000)], false), VerdictId::Unclear);
    let lines = both.evidence.iter().filter(|line| line.contains("an Inflater's state"));
    let [line] = lines.collect::<Vec<_>>()[..] else { panic!("{both:?}") };
    assert!(line.starts_with("1,900 blocks of one size (7,160 or 7,176 bytes) hold "), "{line}");
    // With NMT, memory outside its books belongs to somebody else.
    let verdict = verdict_of(&with(vec![blocks(7168, 2000)], true), VerdictId::Unclear);
    assert_eq!(verdict.bytes, Bytes::mib(15));
    assert!(verdict.summary.contains("most of them 2,000 blocks of zlib's"), "{}", verdict.summary);
}

/// A buffer of 64 KiB has the size of a Deflater's tables, one of 32 KiB that of an Inflater's window.
#[test]
fn direct_buffers_are_not_open_deflaters() {
    let blocks = |size, count| EqualBlocks { size: Bytes(size), count, resident: Bytes(size * count) };
    let with = |peaks: Vec<EqualBlocks>, count: u64, capacity: Bytes, by_netty: Bytes| {
        let mut snapshot = with_mappings(&[Bytes::mib(60), Bytes::mib(40)]);
        let heap = &mut snapshot.vmas[1];
        (heap.backing, heap.writable) = (Backing::Brk, true);
        let arena = Arena { heaps: vec![heap.range], live: heap.rss, live_resident: heap.rss, ..Arena::default() };
        snapshot.glibc = Some(Glibc { arenas: vec![arena], peaks, ..Glibc::default() });
        let at_walk = capacity;
        let direct = DirectBuffers { count: Some(count), capacity, at_walk, by_netty, ..DirectBuffers::default() };
        snapshot.hotspot = Some(HotSpot { direct_buffers: Some(direct), ..HotSpot::default() });
        let ledger = Ledger::of(&snapshot);
        let case = Case { snapshot: &snapshot, ledger: &ledger };
        let evidence = crate::verdict::suspects::evidence(case, Bytes::mib(40)).join("\n");
        (crate::verdict::suspects::zlib(case), evidence)
    };
    let none = (0, Bytes(0));
    for size in [32 << 10, 64 << 10] {
        let (zlib, evidence) = with(vec![blocks(size + 16, 400)], 400, Bytes(size * 400), Bytes(0));
        assert_eq!(zlib, none);
        assert!(!evidence.contains("Deflater's") && !evidence.contains("Inflater's"), "{evidence}");
        assert_eq!(with(vec![blocks(size + 16, 400)], 0, Bytes(0), Bytes(size * 400)).0, none);
    }
    // Of 400 blocks, 100 may be buffers: 100 of this size, or more smaller ones, or 100 of different sizes.
    let left = |size: u64, number: u64| (number, Bytes(size * number));
    for (count, capacity) in [(100, Bytes::kib(6400)), (1000, Bytes::kib(6400)), (100, Bytes::mib(500))] {
        let (zlib, evidence) = with(vec![blocks(65_552, 400)], count, capacity, Bytes(0));
        assert_eq!(zlib, left(65_552, 300));
        assert!(evidence.contains("300 blocks of one size (65,544 bytes) hold 18.8 MiB"), "{evidence}");
    }
    // Blocks that are counted for one size aren't counted for the other. No buffer has the size of an Inflater's state.
    let three = vec![blocks(65_552, 100), blocks(32_784, 400), blocks(7168, 400)];
    let expected = (500, Bytes(32_784 * 100 + 7168 * 400));
    assert_eq!(with(three, 400, Bytes::kib(100 * 64 + 300 * 32), Bytes(0)).0, expected);
}

fn with_baseline(mut snapshot: Snapshot, seconds: f64, rss: Bytes, lines: &[(LineId, Bytes)]) -> Snapshot {
    snapshot.time = 1000.0;
    snapshot.baseline = Some(Baseline { time: 1000.0 - seconds, rss, lines: lines.to_vec(), ..Baseline::default() });
    snapshot
}

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
    // The program's memory has the shape of an arena of Go's, and so has what came behind it.
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
    // Each command stands by itself, so that a screen needn't break it.
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

/// 96, 136 and 168 MiB that were 50 to 68 % of RSS, with NMT off, as observed.
#[test]
fn a_leak_is_found_without_nmt_at_any_size() {
    let mib = Bytes::mib;
    for (leak, rest) in [(96, 90), (136, 80), (168, 79)] {
        let mut snapshot = with_arenas(&[mib(0)], mib(leak + 10));
        let end = snapshot.vmas.last().expect("one").range.end;
        let range = AddressRange::sized(Avma(end.0 + (1 << 20)), mib(rest));
        snapshot.vmas.push(Vma { range, rss: mib(rest), backing: Backing::Shmem, ..Vma::default() });
        snapshot.hotspot = Some(HotSpot::default());
        let verdict = verdict_of(&snapshot, VerdictId::NativeLeak);
        assert_eq!(verdict.severity, Severity::Warning);
        // The VM's own part has a bound: the verdict blames no more than what leaked, and little less.
        assert!(verdict.bytes <= mib(leak) && verdict.bytes >= mib(leak - 16), "{}", verdict.bytes);
        assert!(verdict.remedies[0].how.starts_with("plimsoll attach"), "{:?}", verdict.remedies);
        // Blocks that are known by their sizes count whole: the headline isn't smaller than its evidence.
        let windows = EqualBlocks { size: Bytes(32_784), count: 1, resident: mib(leak + 8) };
        snapshot.glibc.as_mut().expect("arenas").peaks.push(windows);
        let basis = |of: &Verdict| certainty(&snapshot, &Ledger::of(&snapshot), of);
        let whole = verdict_of(&snapshot, VerdictId::NativeLeak);
        assert_eq!(whole.bytes, mib(leak + 8));
        assert!(basis(&whole).contains("by their sizes") && basis(&verdict).contains("may be the VM's own"));
    }
}

/// 180 large blocks of one size; half of their pages were never touched.
#[test]
fn large_blocks_of_one_size_count_by_their_resident_pages() {
    let mib = Bytes::mib;
    let mut snapshot = with_mappings(&[mib(100); 1]);
    let mut at = Avma(1 << 40);
    let mut chunks = Vec::new();
    for _ in 0..180 {
        let range = AddressRange::sized(at, mib(4));
        let vma = Vma { range, readable: true, writable: true, rss: mib(2), ..Vma::default() };
        snapshot.vmas.push(vma);
        chunks.push(plimsoll_facts::snapshot::MmappedChunk { range });
        at = Avma(range.end.0 + (1 << 20));
    }
    snapshot.glibc = Some(Glibc { mmapped: chunks, ..Glibc::default() });
    snapshot.hotspot = Some(HotSpot::default());
    let evidence = verdict_of(&snapshot, VerdictId::NativeLeak).evidence.join("\n");
    assert!(evidence.contains("180 blocks of 4.00 MiB have 360 MiB of it"), "{evidence}");
    // java.nio counts these blocks, so they aren't evidence against anybody.
    let counted = Bytes(170 * (4 * 1024 - 4) * 1024);
    snapshot.host.page = Bytes(4096);
    let direct = DirectBuffers { count: Some(170), capacity: counted, at_walk: counted, ..DirectBuffers::default() };
    snapshot.hotspot = Some(HotSpot { direct_buffers: Some(direct), ..HotSpot::default() });
    let expected = format!("{:?}", judge(&snapshot, &Ledger::of(&snapshot)));
    assert!(!expected.contains("blocks of 4.00 MiB"), "{expected}");
}

/// 20 buffers of 4 MiB, a small one, and an arena that is larger than all of them.
#[test]
fn a_small_buffer_does_not_make_large_ones_evidence_of_a_leak() {
    let mib = Bytes::mib;
    let mut snapshot = with_mappings(&[mib(100); 1]);
    let heaps = vec![snapshot.vmas[0].range];
    let arena =
        plimsoll_facts::snapshot::Arena { heaps, live: mib(100), live_resident: mib(100), ..Default::default() };
    let mut mmapped = Vec::new();
    for n in 0..20 {
        let range = AddressRange::sized(Avma((1 << 40) + (n << 24)), mib(4));
        snapshot.vmas.push(Vma { range, readable: true, writable: true, rss: mib(4), ..Vma::default() });
        mmapped.push(plimsoll_facts::snapshot::MmappedChunk { range });
    }
    snapshot.glibc = Some(Glibc { arenas: vec![arena], mmapped, ..Glibc::default() });
    snapshot.host.page = Bytes(4096);
    for (count, small, others) in [(20, Bytes(0), 0), (21, Bytes::kib(20), 0), (11, Bytes::kib(20), 10)] {
        let counted = Bytes((20 - others) * (4 * 1024 - 4) * 1024) + small;
        let direct =
            DirectBuffers { count: Some(count), capacity: counted, at_walk: counted, ..DirectBuffers::default() };
        snapshot.hotspot = Some(HotSpot { direct_buffers: Some(direct), ..HotSpot::default() });
        let found = format!("{:?}", judge(&snapshot, &Ledger::of(&snapshot)));
        // The program's own ten blocks have the same size, so the evidence remains.
        assert_eq!(found.contains("blocks of 4.00 MiB"), others > 0, "{count}: {found}");
    }
}

/// From a collection that doesn't take place, "it stays" would follow, as in a leak.
#[test]
fn a_collection_is_proposed_only_where_the_vm_obeys() {
    for (version, collector, is_disabled, obeys) in [
        ("25.0.3+9-LTS", "G1", "true", true),
        ("25.0.3+9-LTS", "Shenandoah", "true", false),
        ("25.0.3+9-LTS", "Shenandoah", "false", true),
        ("25.402-b06", "G1", "true", false),
        ("25.402-b06", "G1", "false", true),
        ("", "G1", "true", false),
    ] {
        let mut snapshot = with_direct(Bytes::mib(160), Bytes::mib(160), Bytes::mib(512));
        if let Some(vm) = &mut snapshot.hotspot {
            (vm.version, vm.collector) = (version.into(), Some(collector.into()));
            vm.flags = vec![("DisableExplicitGC".into(), is_disabled.into())];
        }
        let ledger = Ledger::of(&snapshot);
        let blocks = Case { snapshot: &snapshot, ledger: &ledger }.settle_blocks();
        let buffers = verdict_of(&snapshot, VerdictId::DirectBufferGrowth).remedies;
        for remedies in [blocks, buffers] {
            let is_proposed = remedies.iter().any(|remedy| remedy.how.contains("GC.run"));
            assert_eq!(is_proposed, obeys, "{version} {collector} {is_disabled}: {remedies:?}");
        }
    }
}

/// A remedy that refuses, and one that was just typed, aren't the next step.
#[test]
fn the_next_step_fits_what_the_tracker_does() {
    let how = |snapshot: &Snapshot| {
        let ledger = Ledger::of(snapshot);
        let of = Case { snapshot, ledger: &ledger }.settle_blocks();
        of.into_iter().map(|remedy| (remedy.how, remedy.trade_off)).collect::<Vec<_>>()
    };
    let hotspot = Some(HotSpot { version: "25.0.3+9-LTS".into(), ..HotSpot::default() });
    let mut snapshot = Snapshot { hotspot, ..with_mappings(&[Bytes::mib(100)]) };
    let plain = how(&snapshot);
    assert!(plain[0].0.starts_with("plimsoll attach 0 && ") && plain[0].1.contains("prints a warning"), "{plain:?}");
    assert!(plain[1].0.contains("--baseline baseline.json"), "{plain:?}");
    assert!(
        plain[2].0.starts_with("jcmd 0 GC.run && sleep 10 && plimsoll explain ") && plain[2].1.contains("if it stays"),
        "{plain:?}"
    );
    snapshot.vmas.push(Vma {
        name: "/dev/shm/plimsoll-0/1-1.seg".into(),
        readable: true,
        writable: true,
        range: AddressRange::sized(Avma(1 << 44), Bytes::mib(1)),
        rss: Bytes::mib(1),
        ..Vma::default()
    });
    let tracked = how(&snapshot);
    assert!(tracked[0].0.contains(" && plimsoll diff before.json 0 --by site"), "{tracked:?}");
    assert!(tracked[1].0 == "plimsoll report 0 --by site" && tracked.len() == 3, "{tracked:?}");
    snapshot.is_detached = true;
    let detached = how(&snapshot);
    assert_eq!(detached[0].0, plain[0].0);
    assert!(!detached[0].1.contains("warning"), "its library is loaded already: {detached:?}");
}

/// 120 MiB that a library holds, beside 10 MiB of others. The VM has books, so none of them are its own.
fn held_by(library: &str) -> Snapshot {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(0)], mib(121));
    let end = snapshot.vmas.last().expect("one").range.end;
    let code = |at: u64, name: &str| Vma {
        range: AddressRange::sized(Avma(end.0 + at), mib(10)),
        rss: mib(10),
        executable: true,
        inode: 1,
        name: name.to_owned(),
        backing: Backing::File,
        ..Vma::default()
    };
    snapshot.vmas.extend([code(1 << 30, "/jdk/lib/server/libjvm.so"), code(2 << 30, library)]);
    let own = NmtCategory { name: "GC".into(), malloc: mib(1), ..NmtCategory::default() };
    snapshot.hotspot = Some(HotSpot { categories: vec![own], ..HotSpot::default() });
    snapshot
}

#[test]
fn a_library_that_caches_is_accused_only_with_a_reason() {
    let mib = Bytes::mib;
    const ROCKSDB: &str = "/tmp/librocksdbjni123.so";
    assert!(ids(&held_by("/opt/libother.so")).contains(&"native-leak"));
    let unknown = held_by(ROCKSDB);
    assert_eq!(ids(&unknown), ["unclear"]);
    let verdict = verdict_of(&unknown, VerdictId::Unclear);
    assert_eq!(verdict.bytes, mib(120));
    assert!(verdict.evidence[0].contains("one reading can't tell a cache in use from a leak"), "{verdict:?}");
    assert!(verdict.remedies[0].how.contains("--baseline baseline.json"), "{verdict:?}");
    // A preloaded allocator holds everybody's blocks: it isn't a suspect.
    let mut preloaded = unknown.clone();
    let (path, kind) = ("/usr/lib/libjemalloc.so.2".to_owned(), AllocatorKind::Jemalloc);
    let range = AddressRange::sized(Avma(1 << 45), mib(1));
    preloaded.vmas.push(Vma { range, name: path.clone(), ..unknown.vmas.last().expect("the library").clone() });
    preloaded.allocators.push(LoadedAllocator { kind, path, serves_malloc: false });
    assert_eq!(ids(&preloaded), ["unclear"]);
    let evidence = verdict_of(&preloaded, VerdictId::Unclear).evidence.join("\n");
    assert!(evidence.contains(ROCKSDB) && !evidence.contains("libjemalloc"), "{evidence}");
    // It grew.
    let grown = with_baseline(unknown.clone(), 600.0, mib(100), &[(LineId::GlibcLive, mib(80))]);
    assert!(ids(&grown).contains(&"native-leak"), "{:?}", ids(&grown));
    let still = with_baseline(unknown.clone(), 600.0, mib(139), &[(LineId::GlibcLive, mib(119))]);
    assert_eq!(ids(&still), ["unclear"]);
    // Objects that the program must close have a large part of it.
    let mut objects = unknown.clone();
    let symbol = "_ZTVN7rocksdb18ArenaWrappedDBIterE".to_owned();
    let class = ObjectClass { library: ROCKSDB.to_owned(), symbol, count: 2000, resident: mib(60) };
    objects.native_objects.classes.push(class);
    let evidence = verdict_of(&objects, VerdictId::NativeLeak).evidence.join("\n");
    assert!(evidence.contains("2,000 of rocksdb::ArenaWrappedDBIter (60.0 MiB)"), "{evidence}");
}

#[test]
fn a_block_cache_is_no_leak_up_to_its_capacity() {
    let mib = Bytes::mib;
    let with_cache = |capacity, used| {
        let mut snapshot = held_by("/tmp/librocksdbjni123.so");
        let cache = BlockCache { library: "/tmp/librocksdbjni123.so".to_owned(), capacity, used: Some(used) };
        snapshot.native_objects.caches.push(cache);
        snapshot
    };
    let healthy = with_cache(mib(128), mib(112));
    assert_eq!(ids(&healthy), ["healthy"]);
    let verdict = verdict_of(&healthy, VerdictId::Healthy);
    assert!(
        verdict.summary.contains("RocksDB's block cache holds 112 MiB of its 128 MiB, 79 %"),
        "{}",
        verdict.summary
    );
    let evidence = verdict.evidence.join("\n");
    assert!(evidence.contains("block cache holds 112 MiB of a capacity of 128 MiB"), "{evidence}");
    // Iterators pin what exceeds it.
    let pinned = with_cache(mib(40), mib(112));
    let verdict = verdict_of(&pinned, VerdictId::Unclear);
    assert_eq!(verdict.bytes, mib(80));
    assert!(verdict.evidence.iter().any(|line| line.starts_with("72.0 MiB above the capacity")), "{verdict:?}");
}

fn verdict_of(snapshot: &Snapshot, id: VerdictId) -> Verdict {
    let found = judge(snapshot, &Ledger::of(snapshot)).into_iter().find(|verdict| verdict.id == id);
    found.unwrap_or_else(|| panic!("no {}: {:?}", id.id(), ids(snapshot)))
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
    let since = |then: Bytes| with_baseline(snapshot.clone(), 60.0, mib(127), &[(LineId::GlibcRetained, then)]);
    assert_eq!(verdict_of(&since(mib(10)), VerdictId::AllocatorRetention).severity, Severity::Note);
    assert_eq!(verdict_of(&since(mib(55)), VerdictId::AllocatorRetention).severity, Severity::Warning);
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

/// Threads with so much stack each; `name` gives their names.
fn with_threads(number: u32, stack: Bytes, name: impl Fn(u32) -> String) -> Snapshot {
    let mut snapshot = with_mappings(&vec![stack; number as usize]);
    for (index, vma) in (0..).zip(&snapshot.vmas) {
        let (tid, name) = (index + 1, name(index));
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, name, stack: Some(vma.range), ..Thread::default() });
    }
    snapshot
}

#[test]
fn an_executor_for_each_task_is_one_pool_of_many_instances() {
    let name = |index: u32| match index {
        0 | 1 => format!("GC Thread#{index}"),
        _ => format!("pool-{}-thread-1", index - 1),
    };
    let snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..with_threads(602, Bytes::kib(87), name) };
    let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
    let evidence = verdict.evidence.join("\n");
    assert!(
        evidence.contains("the largest pool is pool-N-thread-N: 600 threads in 600 instances, 51.0 MiB"),
        "{evidence}"
    );
    assert!(verdict.remedies.iter().any(|remedy| remedy.what.contains("share one pool")), "{:?}", verdict.remedies);
    assert!(
        verdict.remedies.iter().any(|remedy| remedy.how.contains("'pool-[0-9]*-thread-[0-9]*'")),
        "{:?}",
        verdict.remedies
    );
}

/// A small program with many idle threads: a third of RSS, and hardly any memory.
#[test]
fn stacks_of_a_few_mib_are_no_warning() {
    let severity = |threads: u32, stack: Bytes| {
        let snapshot = with_threads(threads, stack, |index| format!("worker-{index}"));
        let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
        verdicts.into_iter().find(|found| found.id == VerdictId::ThreadStacks).map(|found| found.severity)
    };
    assert_eq!(severity(130, Bytes::kib(12)), None);
    assert_eq!(severity(130, Bytes::kib(64)), Some(Severity::Note));
    assert_eq!(severity(130, Bytes::kib(160)), Some(Severity::Warning));
    // The kernel's stacks of these alone are 16 MiB.
    assert_eq!(severity(1024, Bytes::kib(12)), Some(Severity::Warning));
}

#[test]
fn sharing_client_resources_is_not_proposed_for_one_instance() {
    let lettuce = |instances: u32| {
        move |index: u32| format!("lettuce-nioEventLoop-{}-{}", 4 + index % instances, 1 + index / instances)
    };
    let shared = |instances| {
        let threads = with_threads(96, Bytes::mib(1), lettuce(instances));
        let snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..threads };
        let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
        verdict.remedies.iter().any(|remedy| remedy.what.contains("share one ClientResources"))
    };
    assert!(shared(12));
    assert!(!shared(1));
}

/// 64 threads of one pool: too many for 8 CPUs, as many as Netty makes for 32.
#[test]
fn a_pool_is_made_as_large_as_the_cpus_need() {
    let how = |cpus: u64, is_java: bool| {
        let mut snapshot = with_threads(64, Bytes::mib(1), |index| format!("nioEventLoopGroup-2-{}", 1 + index));
        snapshot.host.cpus_online = cpus;
        snapshot.hotspot = is_java.then(HotSpot::default);
        let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
        verdict.remedies.into_iter().map(|remedy| remedy.how).find(|how| how.starts_with("-Dio.netty."))
    };
    let sixteen =
        "-Dio.netty.eventLoopThreads=16 -Dio.netty.allocator.numDirectArenas=16 -Dio.netty.allocator.numHeapArenas=16";
    assert_eq!(how(8, true).as_deref(), Some(sixteen));
    assert_eq!(how(32, true), None);
    // A program in another language, whose threads have such names.
    assert_eq!(how(8, false), None);
}

/// A JVM with this many bytes in the line of direct buffers, of which java.nio counts `counted`.
fn with_direct(resident: Bytes, counted: Bytes, max: Bytes) -> Snapshot {
    let mut snapshot = with_mappings(&[Bytes::mib(64), resident]);
    let range = snapshot.vmas[1].range;
    let region = VmRegion { range, tag: VmTag::Other("Other".into()), committed: vec![range] };
    let direct = DirectBuffers {
        count: Some(9),
        capacity: counted,
        at_walk: counted,
        max: Some(max),
        ..DirectBuffers::default()
    };
    snapshot.hotspot = Some(HotSpot { regions: vec![region], direct_buffers: Some(direct), ..HotSpot::default() });
    snapshot
}

/// java.nio keeps about one large buffer for each thread, and counts those up to JDK 24.
#[test]
fn buffers_of_nio_are_limited_only_where_there_may_be_some() {
    let mib = Bytes::mib;
    let offered = |version: &str, counted: Bytes, count: u64| {
        let mut snapshot = with_direct(mib(160), counted, mib(512));
        snapshot.threads = (0..20).map(|tid| Thread { tid, ..Thread::default() }).collect();
        if let Some(vm) = &mut snapshot.hotspot {
            vm.version = version.to_owned();
            vm.direct_buffers.as_mut().expect("set above").count = Some(count);
        }
        let verdict = verdict_of(&snapshot, VerdictId::DirectBufferGrowth);
        verdict.remedies.iter().any(|remedy| remedy.how.contains("maxCachedBufferSize"))
    };
    assert!(offered("17.0.15+6", mib(160), 16) && offered("25.0.3+9-LTS", mib(8), 1));
    assert!(!offered("17.0.15+6", mib(160), 160) && !offered("25.0.3+9-LTS", mib(160), 16));
}

/// 32 buffers at their limit, and a leak by Unsafe.allocateMemory beside them: NMT counts both in Other, as observed.
#[test]
fn memory_of_unsafe_that_no_buffer_holds_is_named_by_its_calls() {
    let mib = Bytes::mib;
    let of = |resident: u64, counted: u64, max: u64, by_netty: u64| {
        let mut snapshot = with_direct(mib(resident), mib(counted), mib(max));
        let vm = snapshot.hotspot.as_mut().expect("set");
        vm.version = "25.0.3+9-LTS".into();
        vm.direct_buffers.as_mut().expect("set").by_netty = mib(by_netty);
        verdict_of(&snapshot, VerdictId::DirectBufferGrowth)
    };
    const CALLS: &str = "plimsoll attach 0 && sleep 60 && plimsoll report 0 --by site";
    let leak = of(303, 128, 128, 0);
    assert_eq!(
        leak.summary,
        "direct buffers take 100 % of their limit of 128 MiB, above which an allocation fails; 175 MiB of other memory of \
         Unsafe is in no buffer that java.nio counts"
    );
    assert_eq!((leak.remedies[0].how.as_str(), leak.remedies[1].how.as_str()), (CALLS, "jcmd 0 GC.run"));
    let evidence = leak.evidence.join("\n");
    assert!(evidence.contains("\n175 MiB belong to no buffer that is counted: memory that the program"), "{evidence}");
    // Far from the limit.
    let leak = of(303, 128, 4096, 0);
    assert!(leak.summary.ends_with("; 175 MiB of it is in no buffer that java.nio counts"), "{leak:?}");
    assert_eq!(leak.remedies[0].how, CALLS);
    // Netty counts the rest, or the rest is small: a few MiB of 128 aren't resident in buffers.
    for buffers in [of(303, 128, 128, 175), of(150, 128, 128, 0)] {
        assert!(buffers.summary.ends_with("; up to 128 MiB of that is resident"), "{buffers:?}");
        assert_eq!(buffers.remedies[0].how, "jcmd 0 GC.run");
    }
}

/// By the option alone, glibc keeps in its arenas what NIO frees.
#[test]
fn buffers_of_nio_are_not_left_to_the_arenas() {
    let mut snapshot = with_arenas(&[Bytes::mib(1)], Bytes::mib(1));
    let how = |snapshot: &Snapshot| {
        let ledger = Ledger::of(snapshot);
        super::remedies::without_copies_of_nio(Case { snapshot, ledger: &ledger }).how
    };
    const NONE: &str = "-Djdk.nio.maxCachedBufferSize=262144";
    assert_eq!(how(&snapshot), format!("MALLOC_MMAP_THRESHOLD_=131072 JAVA_TOOL_OPTIONS={NONE}"));
    snapshot.process.environment = vec![("JAVA_TOOL_OPTIONS".into(), "-Xmx1g".into())];
    assert_eq!(how(&snapshot), format!("MALLOC_MMAP_THRESHOLD_=131072 JAVA_TOOL_OPTIONS='-Xmx1g {NONE}'"));
    snapshot.process.environment = vec![("MALLOC_MMAP_THRESHOLD_".into(), "65536".into())];
    assert_eq!(how(&snapshot), NONE);
    let tunables = |value: &str| vec![("GLIBC_TUNABLES".to_owned(), value.to_owned())];
    snapshot.process.environment = tunables("glibc.malloc.arena_max=2:glibc.malloc.mmap_threshold=65536");
    assert_eq!(how(&snapshot), NONE);
    snapshot.process.environment = tunables("glibc.malloc.mmap_threshold_max=65536");
    assert_ne!(how(&snapshot), NONE);
    assert_eq!(how(&Snapshot::default()), NONE);
}

#[test]
fn a_limit_of_direct_memory_is_never_below_twice_its_use() {
    let mib = Bytes::mib;
    let limit = |snapshot: &Snapshot| {
        let verdict = verdict_of(snapshot, VerdictId::DirectBufferGrowth);
        let how = verdict.remedies.iter().find_map(|remedy| remedy.how.strip_prefix("-XX:MaxDirectMemorySize="));
        how.map(|text| text.trim_end_matches('m').parse::<u64>().expect("MiB"))
    };
    assert_eq!(limit(&with_direct(mib(65), mib(65), mib(4096))), Some(192));
    let mut proposed = 0;
    for held in [33, 65, 100, 128, 300, 777] {
        for in_force in [64, 256, 768, 1024, 8192] {
            let Some(most) = limit(&with_direct(mib(held), mib(held), mib(in_force))) else { continue };
            assert!(most >= 2 * held && most < in_force, "{held} held, {in_force} in force: {most}");
            proposed += 1;
        }
    }
    assert!(proposed >= 6, "{proposed}");
    // Netty's memory: java.nio doesn't count it, and the limit doesn't apply to it.
    assert_eq!(limit(&with_direct(mib(300), mib(1), mib(4096))), None);
}

#[test]
fn a_heap_cap_is_never_below_what_the_heap_needed() {
    let mib = Bytes::mib;
    let cap = |committed: Bytes, occupied: Bytes, native: Bytes| {
        let mut snapshot = with_mappings(&[native]);
        snapshot.limit_requested = Some(mib(400));
        let heap = JavaHeap { max: Some(mib(395)), occupied, committed, ..JavaHeap::default() };
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
        let verdict = verdict_of(&snapshot, VerdictId::LimitNear);
        verdict.remedies.iter().any(|remedy| remedy.how.starts_with("-Xmx"))
    };
    assert!(cap(mib(100), mib(60), mib(100)));
    assert!(!cap(mib(300), mib(60), mib(100)), "300 MiB are committed, 280 would be left");
    assert!(!cap(mib(100), mib(250), mib(100)), "objects take 250");
    assert!(!cap(mib(80), mib(60), mib(240)), "native memory has most of the limit");
}

/// Pasted as it is, the variable would replace the agent that it loads.
#[test]
fn options_that_a_variable_has_already_are_not_lost() {
    use super::remedies::periodic_trim;
    let mut snapshot = Snapshot {
        hotspot: Some(HotSpot { version: "25.0.3+9-LTS".into(), ..HotSpot::default() }),
        ..Snapshot::default()
    };
    let trim = |snapshot: &Snapshot| {
        let ledger = Ledger::of(snapshot);
        let trim = periodic_trim(Case { snapshot, ledger: &ledger }).expect("it can trim");
        (trim.how, trim.trade_off.ends_with("put its present options in front"))
    };
    const TRIMS: &str = "-XX:+UnlockExperimentalVMOptions -XX:TrimNativeHeapInterval=60000";
    let alone = (format!("JAVA_TOOL_OPTIONS='{TRIMS}'"), false);
    assert_eq!(trim(&snapshot), alone);
    for (value, wanted) in [
        (" ", alone.clone()),
        ("-javaagent:/a.jar", (format!("JAVA_TOOL_OPTIONS='-javaagent:/a.jar {TRIMS}'"), false)),
        ("-Xss1m -XX:ErrorFile='/a'", (format!(r"JAVA_TOOL_OPTIONS='-Xss1m -XX:ErrorFile='\''/a'\'' {TRIMS}'"), false)),
        // Only the process's user may read its variables; a report may go to others.
        ("-Djavax.net.ssl.keyStorePassword=x", (alone.0.clone(), true)),
        ("-Xmx1g -Dnewrelic.config.license_key=x", (alone.0.clone(), true)),
        ("-Dspring.datasource.url=jdbc:postgresql://shop:x@db/shop", (alone.0.clone(), true)),
        ("-javaagent:/a.jar=InstrumentationKey=x", (alone.0.clone(), true)),
        ("-Xrunagent:key=x", (alone.0.clone(), true)),
        ("-XX:OnError=/send?key=x", (alone.0.clone(), true)),
        ("-XX:ErrorFile='/a b'", (alone.0.clone(), true)),
        ("@/etc/shop.options", (alone.0.clone(), true)),
    ] {
        snapshot.process.environment = vec![("JAVA_TOOL_OPTIONS".into(), value.into())];
        assert_eq!(trim(&snapshot), wanted, "{value}");
    }
}

/// Containers seldom have sudo, and root needs none.
#[test]
fn commands_for_root_begin_with_sudo_only_where_it_is_needed_and_there() {
    let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
    snapshot.host.thp = plimsoll_facts::snapshot::Thp::Always;
    snapshot.vmas.iter_mut().for_each(|vma| vma.anon_huge = Bytes::mib(2));
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    for (root, how, is_for_root) in [
        (Root::Sudo, format!("echo madvise | sudo tee {file}"), false),
        (Root::Already, format!("echo madvise | tee {file}"), false),
        (Root::Elsewhere, format!("echo madvise | tee {file}"), true),
    ] {
        snapshot.host.root = root;
        let verdict = verdict_of(&snapshot, VerdictId::HugePages);
        let remedy = verdict.remedies.iter().find(|remedy| remedy.how == how).expect("the remedy");
        assert_eq!(remedy.trade_off.ends_with("type it as root"), is_for_root, "{remedy:?}");
    }
    // A word of the target stays.
    let mut own = with_mappings(&[Bytes::mib(100)]);
    own.vmas[0].backing = Backing::Anonymous;
    own.host.root = Root::Already;
    let (words, variables) = (["/srv/a", "sudo ls"].map(String::from).to_vec(), Some(Vec::new()));
    own.process.start = Start::Command { words, folder: None, variables };
    let how = &verdict_of(&own, VerdictId::Unclear).remedies[0].how;
    assert!(how.starts_with("plimsoll run -- ") && how.contains("'sudo ls'"), "{how}");
}

/// 95 MiB of live blocks below a limit of 100 MiB: in use, or a leak.
#[test]
fn where_most_of_the_memory_cannot_be_judged_a_higher_limit_is_not_the_first_remedy() {
    let mib = Bytes::mib;
    let near = |live: u64, others: u64| {
        let mut snapshot = with_arenas(&[mib(0)], mib(live));
        let range = AddressRange::sized(Avma(1 << 40), mib(others));
        let backing = Backing::Shmem;
        snapshot.vmas.push(Vma { range, readable: true, writable: true, rss: mib(others), backing, ..Vma::default() });
        snapshot.limit_requested = Some(mib(100));
        verdict_of(&snapshot, VerdictId::LimitNear)
    };
    let unclear = near(60, 35);
    assert!(unclear.remedies.len() == 2 && unclear.remedies[0].how.starts_with("plimsoll "), "{unclear:?}");
    assert!(
        unclear.evidence[1].starts_with("unclear: ") && unclear.evidence[1].contains(". If that grows,"),
        "{unclear:?}"
    );
    assert_eq!(gain(&unclear), "it only gains time if what unclear names grows");
    // Less than half.
    let known = near(40, 55);
    assert_eq!((known.remedies.len(), known.evidence.len()), (1, 1), "{known:?}");
}

/// What a setting saves depends on the program: a figure, or the sentence that there may be none.
#[test]
fn a_setting_without_a_figure_may_save_nothing() {
    const MAY: &str = "may save nothing (plimsoll try measures it); ";
    let mib = Bytes::mib;
    let arenas = with_arenas(&[mib(1), mib(20), mib(20), mib(20), mib(20), mib(20)], mib(1));
    let mut grown = with_arenas(&[mib(57)], mib(70));
    if let Some(glibc) = &mut grown.glibc {
        glibc.mmap_threshold = Some(mib(32));
    }
    let cases = [
        (&arenas, VerdictId::ArenaRetention, "MALLOC_ARENA_MAX=4"),
        (&arenas, VerdictId::ArenaRetention, "RUN apt-get update"),
        (&grown, VerdictId::AllocatorRetention, "MALLOC_MMAP_THRESHOLD_=131072"),
    ];
    for (snapshot, id, how) in cases {
        let remedies = verdict_of(snapshot, id).remedies;
        let found = remedies.iter().find(|remedy| remedy.how.starts_with(how)).expect(how);
        assert!(found.effect == Effect::Unknown && found.trade_off.starts_with(MAY), "{found:?}");
    }
    let trim = verdict_of(&arenas, VerdictId::ArenaRetention).remedies.swap_remove(0);
    assert!(trim.effect.figure().is_some() && !trim.trade_off.contains(MAY), "{trim:?}");
}

#[test]
fn libraries_that_are_preloaded_already_stay_so() {
    let mut snapshot = Snapshot::default();
    let of = |snapshot: &Snapshot| {
        let ledger = Ledger::of(snapshot);
        let remedy =
            super::remedies::other_allocator(Case { snapshot, ledger: &ledger }).expect("not a static program");
        let line = remedy.how.lines().nth(1).expect("the second line").to_owned();
        (line.split_once("libjemalloc.so.2").expect("the library").1.to_owned(), remedy.trade_off)
    };
    const COST: &str =
        "may save nothing (plimsoll try measures it); its footprint at peak may be higher: measure with your load";
    let tracker = "/root/.cache/plimsoll/libplimsoll.so";
    for (value, others) in [
        ("", ""),
        (tracker, ""),
        ("/opt/a.so", ":/opt/a.so"),
        (&format!("{tracker}:/opt/a.so  /opt/$LIB/b.so:"), ":/opt/a.so:/opt/\\$LIB/b.so"),
    ] {
        snapshot.process.environment = vec![("LD_PRELOAD".into(), value.into())];
        assert_eq!(of(&snapshot), (others.to_owned(), COST.to_owned()), "{value}");
    }
    snapshot.process.environment[0].1 = "/opt/a\"b.so".into();
    assert!(of(&snapshot).1.contains("special characters: add what LD_PRELOAD has already"), "{:?}", of(&snapshot));
    snapshot.process = Process { start: Start::Title, ..Process::default() };
    assert!(of(&snapshot).1.contains("overwritten by its title: add what"), "{:?}", of(&snapshot));
}

#[test]
fn only_a_vm_that_can_trim_gets_the_command() {
    for (version, can) in [
        ("25.504-b01", false),
        ("11.0.33+8-ea", false),
        ("17.0.8+7-LTS", false),
        ("17.0.9+9", true),
        ("17.0.15+6-Debian-1deb12u1", true),
        ("21+35-2513", false),
        ("21.0.1+12-29", true),
        ("22+36", true),
        ("27.0.1.0.3+1-1-Debian", true),
        ("", true),
    ] {
        assert_eq!(HotSpot { version: version.to_owned(), ..HotSpot::default() }.can_trim(), can, "{version}");
    }
}

/// A VM doesn't start with an option that it doesn't know.
#[test]
fn a_heap_gets_only_options_that_its_version_has() {
    let mib = Bytes::mib;
    let proposed_with = |collector: Option<&str>, version: &str, flags: &[(&str, &str)]| {
        let mut snapshot = with_mappings(&[mib(900)]);
        let region =
            VmRegion { range: snapshot.vmas[0].range, tag: VmTag::JavaHeap, committed: vec![snapshot.vmas[0].range] };
        let heap = JavaHeap { max: Some(mib(1000)), occupied: mib(60), committed: mib(900), ..JavaHeap::default() };
        snapshot.hotspot = Some(HotSpot {
            version: version.to_owned(),
            regions: vec![region],
            java_heap: Some(heap),
            flags: flags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            collector: collector.map(str::to_owned),
            ..HotSpot::default()
        });
        let verdict = verdict_of(&snapshot, VerdictId::HeapCommittedUnused);
        verdict.remedies.iter().map(|remedy| remedy.how.clone()).collect::<Vec<_>>().join("; ")
    };
    let proposed = |collector: Option<&str>, version: &str, min: Bytes| {
        let min = min.0.to_string();
        // VMs up to JDK 11 have no flag MinHeapSize.
        let has_minimum = !["25.402", "9.", "11."].iter().any(|old| version.starts_with(old));
        let flags = [("InitialHeapSize", min.as_str()), ("MinHeapSize", min.as_str())];
        proposed_with(collector, version, &flags[..if has_minimum { 2 } else { 1 }])
    };
    let none = Bytes::default();
    for (collector, new, old, option) in [
        ("G1", "12.0.2+10", "11.0.22+7-post-Debian", "G1PeriodicGCInterval"),
        ("Parallel", "17.0.15+6-Debian-1deb12u1", "25.402-b06", "UseG1GC"),
        ("Serial", "9.0.4+11", "25.402-b06", "ShrinkHeapInSteps"),
        ("Z", "25.0.3+9-LTS", "11.0.22+7", "ZUncommitDelay"),
        ("Shenandoah", "21.0.2+13", "11.0.22+7", "SoftMaxHeapSize"),
    ] {
        let (new, old) = (proposed(Some(collector), new, none), proposed(Some(collector), old, none));
        assert!(new.contains(option), "{collector}: {new}");
        assert!(!old.contains(option), "{collector}: {old}");
    }
    // -Xms is printed only if it is smaller than the initial size in force.
    assert!(!proposed(Some("Serial"), "25.0.3+9-LTS", mib(64)).contains("-Xms"));
    assert!(proposed(Some("Serial"), "25.0.3+9-LTS", mib(800)).starts_with("-Xms90m "));
    // A VM that may not give memory back needs the permission, which no command gives.
    assert!(proposed(Some("Z"), "25.0.3+9-LTS", none).starts_with("jcmd 0 VM.set_flag SoftMaxHeapSize "));
    assert!(proposed(Some("Shenandoah"), "25.0.3+9-LTS", none).starts_with("jcmd 0 GC.run; "));
    let ignores =
        proposed_with(Some("Shenandoah"), "25.0.3+9-LTS", &[("MinHeapSize", "0"), ("DisableExplicitGC", "true")]);
    assert!(ignores.starts_with("-XX:"), "{ignores}");
    for (collector, forbids, option) in
        [("Z", "ZUncommit", "-XX:+ZUncommit "), ("Shenandoah", "ShenandoahUncommit", "-XX:+ShenandoahUncommit ")]
    {
        let proposed = proposed_with(Some(collector), "25.0.3+9-LTS", &[("MinHeapSize", "0"), (forbids, "false")]);
        assert!(proposed.starts_with(option) && proposed.contains("SoftMaxHeapSize"), "{proposed}");
    }
    // JDK 8's jcmd has no VM.set_flag.
    assert!(proposed(Some("G1"), "11.0.22+7", none).contains("VM.set_flag MaxHeapFreeRatio"));
    assert_eq!(proposed(Some("G1"), "25.402-b06", none), "");
    // A collection saves nothing where -Xms is as large as the heap. By far smaller, it leaves a region or two above it.
    assert_eq!(proposed(Some("G1"), "11.0.22+7", mib(900)), "-Xms90m");
    assert!(proposed(Some("G1"), "11.0.22+7", mib(300)).contains("VM.set_flag MaxHeapFreeRatio"));
    assert_eq!(proposed(Some("G1"), "25.402-b06", mib(800)), "-Xms90m");
    // A collector that isn't known to keep its heap isn't replaced. An initial size above the need keeps any heap
    // large.
    for collector in [None, Some("Epsilon")] {
        assert_eq!(proposed(collector, "25.0.3+9-LTS", none), "");
        assert_eq!(proposed(collector, "25.0.3+9-LTS", mib(800)), "-Xms90m");
    }
}

/// Each setting of the host has a next step: a command, or the sentence that a new start suffices.
#[test]
fn a_note_on_huge_pages_says_what_to_do() {
    use plimsoll_facts::snapshot::Thp;
    for (thp, number, is_measured, says) in [
        (Thp::Always, 2, true, "any program gets them"),
        (Thp::Madvise, 1, true, "only mappings for which a program requests them"),
        (Thp::Never, 0, false, "a new start of the program gets none"),
        (Thp::Unknown, 1, true, "unknown"),
    ] {
        let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
        snapshot.host.thp = thp;
        snapshot.vmas.iter_mut().for_each(|vma| vma.anon_huge = Bytes::mib(2));
        let verdict = verdict_of(&snapshot, VerdictId::HugePages);
        let has = verdict.remedies.iter().any(|remedy| remedy.how.starts_with("plimsoll try --with thp=never -- "));
        assert_eq!((verdict.remedies.len(), has), (number, is_measured), "{verdict:?}");
        assert!(verdict.evidence[0].contains(says), "{verdict:?}");
        let is_from_before = verdict.evidence.iter().any(|text| text.starts_with("no mapping has requested them"));
        assert_eq!(is_from_before, thp == Thp::Madvise, "{verdict:?}");
        snapshot.vmas[0].flags.huge_advised = true;
        let requested = verdict_of(&snapshot, VerdictId::HugePages);
        let says_where = requested.remedies.iter().any(|remedy| remedy.trade_off.contains("only there can they be"));
        assert_eq!(says_where, thp == Thp::Madvise, "{requested:?}");
    }
}

#[test]
fn madvise_is_not_proposed_if_the_host_uses_it() {
    for (thp, is_proposed) in
        [(plimsoll_facts::snapshot::Thp::Always, true), (plimsoll_facts::snapshot::Thp::Madvise, false)]
    {
        let mut snapshot = with_mappings(&[Bytes::mib(2); 40]);
        snapshot.host.thp = thp;
        for vma in &mut snapshot.vmas {
            vma.anon_huge = Bytes::mib(2);
        }
        let verdict = verdict_of(&snapshot, VerdictId::HugePages);
        assert_eq!(verdict.remedies.iter().any(|remedy| remedy.how.contains("echo madvise")), is_proposed);
    }
}

/// Shared memory, a library, a stack, and Go's heap, of which all but 5 MiB are live.
#[test]
fn a_healthy_sentence_names_who_has_more_than_a_quarter_of_rss() {
    let mib = Bytes::mib;
    let healthy = |sizes: [u64; 4]| {
        let mut snapshot = with_mappings(&sizes.map(mib));
        let [_, file, stack, heap] = snapshot.vmas.as_mut_slice() else { unreachable!() };
        (file.backing, file.inode, file.executable) = (Backing::File, 1, true);
        heap.backing = Backing::Anonymous;
        let range = heap.range;
        let thread = Thread { tid: 1, namespaced_tid: 1, stack: Some(stack.range), ..Thread::default() };
        snapshot.threads.push(thread);
        let mut go = OtherHeap { ranges: vec![range], ..OtherHeap::new(AllocatorKind::Go) };
        go.add(HeapPart::Live, range.length() - mib(5), range.length() - mib(5));
        go.add(HeapPart::Stacks, mib(5), mib(5));
        snapshot.go = Some(go);
        let allocator = LoadedAllocator { kind: AllocatorKind::Go, path: "server".into(), serves_malloc: false };
        snapshot.allocators.push(allocator);
        verdict_of(&snapshot, VerdictId::Healthy)
    };
    let even = healthy([100, 100, 100, 100]);
    assert_eq!(even.summary, "nothing stands out");
    assert!(even.evidence.iter().any(|text| text.ends_with(" is the largest: 100 MiB, 25 % of RSS")), "{even:?}");
    let shared = healthy([140, 90, 90, 80]);
    assert_eq!(shared.summary, "nothing stands out; shared memory is the largest: 140 MiB, 35 % of RSS");
    assert!(shared.evidence.iter().all(|text| !text.contains("the largest")), "{shared:?}");
    let go = healthy([90, 90, 60, 160]);
    assert_eq!(go.summary, "nothing stands out; Go's heap: live is the largest: 155 MiB, 39 % of RSS");
}

#[test]
fn the_headline_separates_commands_from_settings() {
    use super::remedy::remedy;
    let verb = |effort, how: &str| remedy(effort, "", how, "").verb().0;
    assert_eq!(verb(Effort::Now, "jcmd 7 GC.run"), "run ");
    assert_eq!(verb(Effort::Restart, "MALLOC_ARENA_MAX=2\nENV MALLOC_ARENA_MAX=2"), "set ");
    assert_eq!(verb(Effort::Restart, "-Xmx512m"), "set ");
    assert_eq!(verb(Effort::Code, "-Dio.netty.eventLoopThreads=4"), "set ");
    assert_eq!(verb(Effort::Deploy, "RUN apt-get update && apt-get install -y libjemalloc2"), "add ");
    assert_eq!(verb(Effort::Deploy, "docker run --memory 512m"), "run ");
    assert_eq!(verb(Effort::Deploy, "resources: {limits: {memory: 512Mi}}"), "set ");
    assert_eq!(verb(Effort::Code, "debug.FreeOSMemory()   // import"), "code");
}

/// `java -jar shop.jar -Xmx512m` would give the option to the program.
#[test]
fn a_label_says_where_a_setting_goes() {
    use super::remedy::remedy;
    let label = |effort, how: &str| remedy(effort, "", how, "").label(how);
    const OF_JAVA: &str = "before -jar or the main class, then restart the JVM:";
    assert_eq!(label(Effort::Restart, "-Xmx512m"), OF_JAVA);
    assert_eq!(label(Effort::Code, "-Dio.netty.eventLoopThreads=4"), OF_JAVA);
    assert_eq!(label(Effort::Deploy, "--memory 512m"), "docker run:");
    assert_eq!(label(Effort::Restart, "GOGC=100"), "in the environment of the program, then restart it:");
    assert_eq!(label(Effort::Now, "jcmd 7 GC.run"), "");
}

/// JDK 8 can't list its classes.
#[test]
fn instrumentations_of_opentelemetry_are_listed_before_any_is_switched_off() {
    use super::remedies::fewer_instrumentations;
    let of = |version: &str, agent: &str| {
        let mut snapshot = Snapshot {
            hotspot: Some(HotSpot { version: version.into(), ..HotSpot::default() }),
            ..Snapshot::default()
        };
        snapshot.process.pid = 7;
        snapshot.process.command = vec!["java".into(), format!("-javaagent:/opt/{agent}.jar")];
        let ledger = Ledger::of(&snapshot);
        fewer_instrumentations(Case { snapshot: &snapshot, ledger: &ledger })
    };
    let remedy = of("17.0.15+6", "opentelemetry-javaagent").expect("a remedy");
    assert!(remedy.how.starts_with("jcmd 7 VM.class_hierarchy | grep -oE '"), "{remedy:?}");
    assert_eq!((remedy.verb().0, remedy.effect), ("run ", Effect::Unknown));
    assert_eq!(of("25.402-b06", "opentelemetry-javaagent"), None);
    assert_eq!(of("17.0.15+6", "other"), None);
}

/// 7 to 13 is 10 ± 30 %.
#[test]
fn an_interval_wider_than_thirty_percent_is_no_figure() {
    let figure = |least, most| Effect::Modelled(Bytes(least), Bytes(most)).figure();
    assert_eq!(figure(7000, 13_000), Some((Bytes(7000), Bytes(13_000))));
    assert_eq!(figure(u64::MAX, u64::MAX), Some((Bytes(u64::MAX), Bytes(u64::MAX))));
    for (least, most) in [(7000, 13_001), (6999, 13_000), (0, 1), (1, u64::MAX)] {
        assert_eq!(figure(least, most), None, "{least} to {most}");
    }
    let confidence = [7000, 6999].map(|least| Effect::Modelled(Bytes(least), Bytes(13_000)).confidence());
    assert_eq!((confidence, Effect::Unknown.confidence()), (["modelled", "unknown"], "unknown"));
}
