//! Limits of cgroups: how near they are, what they count, and what a higher one gains.

use super::*;
use plimsoll_facts::snapshot::{CgroupVersion, MemoryStat, Residency};

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
    let mut snapshot = with_limit(mib(1000), mib(100), mib(0));
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
    // 900 MiB of the heap are charged. They are part of the maximum, and not charged beside it: 950 + 100 MiB.
    snapshot.vmas[1].hugetlb = mib(900);
    let cgroup = snapshot.cgroup.as_mut().expect("set");
    (cgroup.limit, cgroup.charged) = (Some(mib(1500)), mib(1000));
    cgroup.stat.unknown = vec![("hugetlb".into(), 900 << 20)];
    assert!(!ids(&snapshot).contains(&"limit-near"), "{:?}", ids(&snapshot));
}

/// A VM that doesn't answer, whose memory can't be read: only hsperfdata shows its heap. 1,200 MiB are resident, 900 of
/// them the heap's.
#[test]
fn a_heap_without_addresses_counts_once() {
    let mib = Bytes::mib;
    let of = |limit: u64| {
        let mut snapshot = with_mappings(&[mib(1200)]);
        let heap = JavaHeap { max: Some(mib(1000)), committed: mib(900), occupied: mib(500), ..JavaHeap::default() };
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
        snapshot.cgroup = Some(Cgroup { limit: Some(mib(limit)), charged: mib(1210), ..Cgroup::default() });
        snapshot
    };
    // 1,000 + 300 + 10 MiB.
    assert!(!ids(&of(2000)).contains(&"limit-near"), "{:?}", ids(&of(2000)));
    let near = verdict_of(&of(1309), VerdictId::LimitNear);
    let of_heap =
        "maximum Java heap 0.98 GiB + native memory 300 MiB + 10.0 MiB charged beside this process's = 1.28 GiB";
    let at = near.evidence.iter().position(|row| row.starts_with(of_heap)).unwrap_or_else(|| panic!("{near:?}"));
    assert_eq!(
        near.evidence[at + 1],
        "the VM doesn't show where its Java heap is: its committed 900 MiB count as resident, so native memory may be \
         more"
    );
    // hugetlbfs has the heap, or other memory of the VM: then nothing shows whether its maximum would be charged.
    let mut huge = of(1309);
    let (range, hugetlb) = (AddressRange::sized(Avma(1 << 40), mib(900)), mib(900));
    huge.vmas.push(Vma { range, readable: true, writable: true, hugetlb, ..Vma::default() });
    huge.vmas[1].flags.hugetlb = true;
    assert!(!verdict_of(&huge, VerdictId::LimitNear).evidence.concat().contains("maximum Java heap"));
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
    // 350, the 100 of native memory, and 10 that are charged besides.
    assert!(
        heap.summary.ends_with(" 10.0 MiB charged beside this process's need 460 MiB; the limit is 400 MiB"),
        "{heap:?}"
    );
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
    // The fullest level is full of page cache, which the kernel takes back.
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
    assert!(evidence.contains("\n1 other process of this process's own group holds 20.0 MiB: PID 7"), "{evidence}");
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

/// The VM exits at its start if SoftMaxHeapSize or InitialHeapSize is above -Xmx.
#[test]
fn a_cap_on_the_heap_fits_the_other_sizes_of_the_heap() {
    let mib = Bytes::mib;
    let cap = |options: &[&str], in_force: Option<u64>| {
        let mut snapshot = with_limit(mib(1000), mib(400), mib(0));
        snapshot.process.command = options.iter().copied().map(String::from).collect();
        let heap = JavaHeap { max: Some(mib(950)), occupied: mib(1), ..JavaHeap::default() };
        let flags = in_force.map(|size| ("SoftMaxHeapSize".to_owned(), (size << 20).to_string())).into_iter().collect();
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), flags, ..HotSpot::default() });
        let remedies = verdict_of(&snapshot, VerdictId::LimitNear).remedies;
        remedies.into_iter().map(|remedy| remedy.how).find(|how| how.starts_with("-Xmx"))
    };
    let (alone, both) = (Some("-Xmx550m".to_owned()), Some("-Xmx550m -XX:SoftMaxHeapSize=550m".to_owned()));
    assert_eq!(cap(&["java", "-XX:SoftMaxHeapSize=900m"], None), both);
    // By an option in a file; and lowered by jcmd since the start, or raised.
    assert_eq!(cap(&["java", "@options"], Some(900)), both);
    assert_eq!(cap(&["java", "-XX:SoftMaxHeapSize=900m"], Some(400)), both);
    assert_eq!(cap(&["java", "-XX:SoftMaxHeapSize=400m"], Some(900)), both);
    // These are low enough, or the VM chose them itself: -Xmx alone suffices.
    assert_eq!(cap(&["java", "-XX:SoftMaxHeapSize=550m"], Some(550)), alone);
    assert_eq!(cap(&["java"], Some(950)), alone);
    assert_eq!(cap(&["java", "-XX:InitialHeapSize=550m"], None), alone);
    assert_eq!(cap(&["java", "-XX:InitialHeapSize=551m"], None), None);
}

/// What a full heap and the memory beside it need, by hand: 280 + 30 of native memory + what is charged beside them.
#[test]
fn what_the_group_holds_beside_the_vm_counts_for_its_flags() {
    let mib = Bytes::mib;
    // 40 MiB resident, of which 10 are the heap's.
    let of = |max: u64, charged: u64, stat: MemoryStat, others: Vec<(u32, Bytes)>| {
        let mut snapshot = with_mappings(&[mib(30), mib(10)]);
        let range = snapshot.vmas[1].range;
        let heap = JavaHeap { max: Some(mib(max)), occupied: mib(8), committed: mib(10), ..JavaHeap::default() };
        let regions = vec![VmRegion { range, tag: VmTag::JavaHeap, committed: vec![range] }];
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), regions, ..HotSpot::default() });
        snapshot.cgroup =
            Some(Cgroup { limit: Some(mib(300)), charged: mib(charged), stat, others, ..Cgroup::default() });
        snapshot
    };
    // An emptyDir in memory, of which no page is mapped.
    let tmpfs = MemoryStat { shmem: mib(120), file: mib(120), ..MemoryStat::default() };
    let near = verdict_of(&of(280, 160, tmpfs.clone(), Vec::new()), VerdictId::LimitNear);
    assert!(
        near.summary.contains(
            "a full heap, today's native memory and 120 MiB charged beside this process's need 430 MiB; the limit is 300 MiB"
        ),
        "{near:?}"
    );
    let evidence = near.evidence.join("\n");
    assert!(evidence.contains("\n120 MiB of it is in tmpfs files (shared memory)\n"), "{evidence}");
    assert!(
        evidence.contains(
            "280 MiB + native memory 30.0 MiB + 120 MiB charged beside this process's = 430 MiB: 130 MiB more"
        ),
        "{evidence}"
    );
    // 285 − 30 − 120 MiB, and 430 MiB with a tenth.
    assert_eq!(near.remedies[0].how, "-Xmx135m");
    assert!(near.remedies[1].how.contains("{memory: 473Mi}"), "{near:?}");
    // The flags fit as long as the tmpfs is empty.
    assert_eq!(ids(&of(220, 40, MemoryStat::default(), Vec::new())), ["healthy"]);
    assert!(ids(&of(220, 160, tmpfs, Vec::new())).contains(&"limit-near"));
    // Another VM of the same group, with its kernel memory.
    let second = MemoryStat { kernel: mib(5), ..MemoryStat::default() };
    let near = verdict_of(&of(220, 105, second, vec![(8, mib(2)), (9, mib(60))]), VerdictId::LimitNear);
    assert!(near.summary.contains("65.0 MiB charged beside this process's need 315 MiB"), "{near:?}");
    let evidence = near.evidence.join("\n");
    assert!(
        evidence.contains("\n2 other processes of the group hold 62.0 MiB, the largest 60.0 MiB: PID 9"),
        "{evidence}"
    );
    // The kernel takes page cache back before it kills.
    let cache = MemoryStat { active_file: mib(120), file: mib(120), ..MemoryStat::default() };
    assert_eq!(ids(&of(220, 160, cache, Vec::new())), ["healthy"]);
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
    // The kernel counts from the group's beginning, and threads wait for other reasons as well.
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

/// The evidence names only verdicts that apply.
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
    let heap = JavaHeap { max: Some(mib(210)), occupied: mib(100), committed: mib(100), ..JavaHeap::default() };
    beside.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
    assert!(of(&beside).remedies[0].how.contains("{memory: 330Mi}"), "{beside:?}");
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

/// 300 files of 256 KiB.
#[test]
fn many_small_files_are_named_by_their_directory() {
    let mut snapshot = with_mappings(&[Bytes::kib(256); 300]);
    for (index, vma) in snapshot.vmas.iter_mut().enumerate() {
        (vma.backing, vma.inode, vma.name) = (Backing::File, 7 + index as u64, format!("/data/parts/{index}.idx"));
        vma.deleted = index % 2 == 0;
    }
    let verdict = verdict_of(&snapshot, VerdictId::MappedFileGrowth);
    let named = |text: &str| verdict.evidence.iter().any(|line| line.contains(text));
    assert!(named("300 files in /data/parts/: 75.0 MiB") && named("150 mappings of deleted files"), "{verdict:?}");
    assert!(!verdict.summary.contains("not a leak"), "{}", verdict.summary);
    snapshot.vmas.iter_mut().for_each(|vma| vma.deleted = false);
    assert!(verdict_of(&snapshot, VerdictId::MappedFileGrowth).summary.ends_with("not a leak"));
}

/// The limit counts copies of files' pages like any other memory of the program; only page cache makes way for the heap.
#[test]
fn copies_of_files_leave_no_space_for_the_heap() {
    let mib = Bytes::mib;
    let of = |copied: Bytes, locked: bool| {
        let mut snapshot = with_mappings(&[mib(100), mib(40)]);
        let vma = &mut snapshot.vmas[0];
        (vma.backing, vma.inode, vma.anonymous, vma.private_dirty) = (Backing::File, 7, copied, copied);
        vma.flags.locked = locked;
        let heap = JavaHeap { max: Some(mib(80)), ..JavaHeap::default() };
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), ..HotSpot::default() });
        snapshot.limit_requested = Some(mib(190));
        snapshot
    };
    assert!(!ids(&of(mib(0), false)).contains(&"limit-near"));
    let near = verdict_of(&of(mib(100), false), VerdictId::LimitNear);
    assert!(near.evidence[1].contains("native memory 140 MiB = 220 MiB: 30.0 MiB more"), "{near:?}");
    assert!(ids(&of(mib(0), true)).contains(&"limit-near"), "locked pages stay, too");
    // In a cgroup, the copies count as this process's memory, not as memory charged beside it.
    let mut charged = of(mib(100), false);
    charged.limit_requested = None;
    let stat = MemoryStat { anon: mib(140), ..MemoryStat::default() };
    charged.cgroup = Some(Cgroup { limit: Some(mib(190)), charged: mib(141), stat, ..Cgroup::default() });
    let near = verdict_of(&charged, VerdictId::LimitNear);
    assert!(near.evidence.iter().any(|line| line.contains("memory 140 MiB + 1.00 MiB charged beside")), "{near:?}");
}

/// Three mappings of one file have its pages three times in RSS, and once in memory.
#[test]
fn page_cache_counts_once_however_often_it_is_mapped() {
    let mib = Bytes::mib;
    let mut snapshot = with_mappings(&[mib(60), mib(60), mib(60), mib(20)]);
    for vma in snapshot.vmas.iter_mut().take(3) {
        (vma.backing, vma.inode, vma.shared, vma.shared_dirty) = (Backing::File, 7, true, mib(15));
    }
    let ranges: Vec<AddressRange> = snapshot.vmas.iter().map(|vma| vma.range).collect();
    snapshot.residency = Some(Residency::new(ranges.clone(), ranges, Bytes(0)));
    let note = verdict_of(&snapshot, VerdictId::MappedFileGrowth);
    assert_eq!(note.bytes, mib(60));
    assert!(note.summary.starts_with("60.0 MiB of RSS (30 %)"), "{note:?}");
    assert!(
        note.evidence[0].starts_with("45.0 MiB of it is clean and can be taken back at once; 15.0 MiB"),
        "{note:?}"
    );
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
    // Less than half of the memory is unclear.
    let known = near(40, 55);
    assert_eq!((known.remedies.len(), known.evidence.len()), (1, 1), "{known:?}");
}

/// 198 of 200 MiB, of which 190 are anonymous: the kernel kills, or swaps first.
#[test]
fn a_group_that_may_swap_is_not_about_to_be_killed() {
    let mib = Bytes::mib;
    let near = |left: Option<u64>, locked: u64| {
        let mut snapshot = with_limit(mib(200), mib(198), mib(0));
        let cgroup = snapshot.cgroup.as_mut().expect("a group");
        cgroup.swap_left = left.map(mib);
        cgroup.stat.anon = mib(190);
        cgroup.stat.unknown = vec![("unevictable".into(), locked << 20)];
        let near = verdict_of(&snapshot, VerdictId::LimitNear);
        (near.severity, near.evidence.join("\n"))
    };
    let (severity, evidence) = near(Some(150), 0);
    assert_eq!(severity, Severity::Warning, "{evidence}");
    assert!(evidence.contains("150 MiB of it may be swapped out before the kernel kills"), "{evidence}");
    assert!(near(Some(4000), 0).1.contains("190 MiB of it may be swapped out"), "{evidence}");
    // No swap, or a swap.max of 0; unknown; all pages locked.
    for (left, locked) in [(Some(0), 0), (None, 0), (Some(150), 190)] {
        let (severity, evidence) = near(left, locked);
        assert_eq!((severity, evidence.contains("swap")), (Severity::Critical, false), "{evidence}");
    }
    // 198 MiB less 5 are 96.5 %: the little swap that is left changes nothing.
    let (severity, evidence) = near(Some(5), 0);
    assert_eq!((severity, evidence.contains("5.00 MiB of it may be swapped out")), (Severity::Critical, true));
}

/// Version 1 has two limits. Swap makes room below that of memory, so the other one may be the first that kills.
#[test]
fn the_limit_of_memory_and_swap_of_version_1_is_judged() {
    let mib = Bytes::mib;
    let with_swap = |version: CgroupVersion, charged: u64, path: &str| {
        let mut snapshot = with_limit(mib(1000), mib(500), mib(20));
        let cgroup = snapshot.cgroup.as_mut().expect("a group");
        (cgroup.version, cgroup.swap_limit) = (version, Some(mib(1200)));
        cgroup.swap_charged = Some(mib(charged));
        cgroup.path = path.to_owned();
        cgroup.limit_path.clone_from(&cgroup.path);
        cgroup.limit_directory = format!("/sys/fs/cgroup/memory{path}").into();
        snapshot
    };
    let (v1, v2) = (CgroupVersion::V1, CgroupVersion::V2);
    let verdict = verdict_of(&with_swap(v1, 1190, "/shop"), VerdictId::LimitNear);
    assert_eq!(verdict.severity, Severity::Critical);
    assert_eq!(verdict.summary, "98 % of the limit of memory and swap is in use: 30.0 MiB are left");
    assert_eq!(verdict.evidence[0], "1.14 GiB of 1.17 GiB of memory and swap counted (98 %)");
    let remedy = verdict.remedies.last().expect("a remedy");
    assert_eq!(remedy.what, "raise the limit of memory and swap by a tenth");
    assert_eq!(remedy.how, "echo 1320M | sudo tee /sys/fs/cgroup/memory/shop/memory.memsw.limit_in_bytes");
    // A container of Docker.
    let id = "4f1e0c8a9b7d".repeat(6)[..64].to_owned();
    let docker = verdict_of(&with_swap(v1, 1190, &format!("/docker/{id}")), VerdictId::LimitNear);
    assert_eq!(
        docker.remedies.last().expect("a remedy").how,
        format!("docker update --memory-swap 1320m {}", &id[..12])
    );
    // Nothing is swapped out, or the limit is one of swap alone.
    for snapshot in [with_swap(v1, 500, "/shop"), with_swap(v2, 1190, "/shop")] {
        assert!(!ids(&snapshot).contains(&"limit-near"), "{:?}", ids(&snapshot));
    }
}
