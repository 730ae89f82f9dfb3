//! Properties that verdicts must have on any snapshot; snapshots are generated.

use super::*;
use crate::ledger::{Baseline, LineId};
use crate::random::Random;
use plimsoll_facts::snapshot::{
    AllocatorKind, Arena, ArenaKind, Backing, Cgroup, CodeCacheSegment, DirectBuffers, Glibc, HeapPart, HotSpot,
    JavaHeap, LoadedAllocator, Metaspace, MmappedChunk, NmtCategory, OtherHeap, Start, Thp, Thread, Throttle, VmRegion,
    VmTag, Vma,
};
use plimsoll_facts::units::{AddressRange, Avma};

impl Random {
    /// From some KiB to some GiB; each order of magnitude is equally likely.
    fn bytes(&mut self) -> Bytes {
        let order = 12 + self.below(19);
        Bytes((1 << order) + self.below(1 << order)).pages()
    }

    fn part(&mut self, of: Bytes) -> Bytes {
        match self.below(4) {
            0 => Bytes(0),
            1 => of,
            _ => Bytes(self.below(of.0 + 1)).pages(),
        }
    }
}

trait WholePages {
    fn pages(self) -> Bytes;
}

impl WholePages for Bytes {
    fn pages(self) -> Bytes {
        Bytes(self.0 / 4096 * 4096)
    }
}

fn snapshot(random: &mut Random) -> Snapshot {
    let mut snapshot = Snapshot { time: 1e9, ..Snapshot::default() };
    let mut at = Avma(1 << 20);
    // Sometimes mappings of one size, all of them resident: arenas that share the free pages.
    let alike = random.one_in(4).then(|| random.bytes() + Bytes(4096));
    for _ in 0..1 + random.below(12) {
        let length = alike.unwrap_or_else(|| random.bytes() + Bytes(4096));
        let range = AddressRange::sized(at, length);
        let rss = if alike.is_some() { length } else { random.part(length) };
        let backing = match random.below(6) {
            0 => Backing::File,
            1 => Backing::Shmem,
            2 => Backing::Brk,
            _ => Backing::Anonymous,
        };
        let inode = u64::from(backing == Backing::File);
        let anon_huge = if random.one_in(4) { rss } else { Bytes(0) };
        let [readable, writable] = [true, true];
        snapshot.vmas.push(Vma { range, readable, writable, rss, backing, inode, anon_huge, ..Vma::default() });
        at = Avma(range.end.0 + random.below(3) * (1 << 20));
    }
    snapshot.host.max_map_count = random.one_in(4).then(|| 1 + random.below(40));
    snapshot.host.thp = if random.one_in(2) { Thp::Always } else { Thp::Madvise };
    if random.one_in(2) {
        glibc(random, &mut snapshot);
    }
    if random.one_in(3) {
        const KINDS: [AllocatorKind; 5] = [
            AllocatorKind::Jemalloc,
            AllocatorKind::Go,
            AllocatorKind::Glibc,
            AllocatorKind::Tcmalloc,
            AllocatorKind::Mimalloc,
        ];
        let kind = KINDS[random.below(5) as usize];
        snapshot.allocators.push(LoadedAllocator { kind, path: "x".into(), serves_malloc: !kind.is_runtime() });
    }
    if random.one_in(4) {
        malloc_heap(random, &mut snapshot);
    }
    if random.one_in(2) {
        hotspot(random, &mut snapshot);
    }
    let threads = if random.one_in(8) { 300 } else { 20 };
    for tid in 0..random.below(threads) as u32 {
        let name = ["pool-1-thread-", "GC Thread#", "lettuce-nioEventLoop-4-", "x"][random.below(4) as usize];
        let stack = (tid == 0).then(|| snapshot.vmas[0].range);
        let name = format!("{name}{tid}");
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, name, stack, ..Thread::default() });
    }
    let rss = snapshot.rss();
    if random.one_in(8) {
        snapshot.process.swap = random.bytes();
    }
    if random.one_in(3) {
        snapshot.limit_requested = Some(rss.scaled(1, 2) + random.part(rss.scaled(2, 1)) + Bytes(1));
    } else if random.one_in(2) {
        let charged = rss + random.part(rss);
        let of_docker = format!("/docker/{}", "4f1e".repeat(16));
        let paths = ["", of_docker.as_str(), "/kubepods/pod7", "/system.slice/a.service", "/b"];
        let limit_path = paths[random.below(5) as usize].to_owned();
        let limit_directory = format!("/sys/fs/cgroup{limit_path}").into();
        let limit = Some(charged + random.part(rss));
        let mut cgroup = Cgroup { limit, limit_path, limit_directory, charged, ..Cgroup::default() };
        if random.one_in(3) {
            let charged = charged + random.part(rss);
            let limit = Some(charged + random.part(rss));
            cgroup.further.push(Cgroup { limit, limit_path: "/above".into(), charged, ..Cgroup::default() });
        }
        if random.one_in(3) {
            let high = charged + random.part(rss);
            cgroup.throttles.push(Throttle { high, charged, times: random.below(3), ..Throttle::default() });
        }
        snapshot.cgroup = Some(cgroup);
        snapshot.process.start = Start::Unit { name: "a.service".into(), of_user: false };
    }
    if random.one_in(3) {
        let mut lines = Vec::new();
        for line in LineId::ALL {
            lines.push((*line, random.bytes()));
        }
        let time = snapshot.time - random.below(10_000) as f64;
        snapshot.baseline = Some(Baseline { time, rss: random.part(rss.scaled(2, 1)), lines, ..Baseline::default() });
    }
    snapshot
}

/// Arenas over some of the mappings. The walk may contradict smaps.
fn glibc(random: &mut Random, snapshot: &mut Snapshot) {
    let mut glibc = Glibc { arena_cap: Some(16), arena_cap_set: random.one_in(3), ..Glibc::default() };
    glibc.mmap_threshold = random.one_in(2).then(|| Bytes::kib(128 << random.below(4)));
    for vma in snapshot.vmas.iter().filter(|vma| vma.backing == Backing::Anonymous) {
        match random.below(4) {
            0 => glibc.mmapped.push(MmappedChunk { range: vma.range }),
            1 => {}
            _ => {
                let even = vma.rss == vma.range.length();
                let free = if even { vma.rss.scaled(3, 4) } else { random.part(vma.range.length()) };
                let live = random.part(vma.range.length());
                let kind = if glibc.arenas.is_empty() { ArenaKind::Main } else { ArenaKind::Thread };
                let trimmable = random.part(free);
                let at_end = if kind == ArenaKind::Thread { random.part(free - trimmable) } else { Bytes(0) };
                glibc.arenas.push(Arena {
                    kind,
                    heaps: vec![vma.range],
                    live,
                    live_resident: live,
                    bins: free,
                    free_resident: free,
                    trimmable,
                    at_end,
                    unknown_resident: if random.one_in(4) { random.bytes() } else { Bytes(0) },
                    ..Arena::default()
                });
            }
        }
    }
    snapshot.glibc = Some(glibc);
}

/// Another malloc's heap over some of the mappings that glibc doesn't claim.
fn malloc_heap(random: &mut Random, snapshot: &mut Snapshot) {
    let mut heap = OtherHeap::new(AllocatorKind::Jemalloc);
    let glibc = snapshot.glibc.iter();
    let of_arenas = glibc.clone().flat_map(|glibc| glibc.arenas.iter().flat_map(|arena| arena.heaps.iter().copied()));
    let claimed: Vec<AddressRange> =
        of_arenas.chain(glibc.flat_map(|glibc| glibc.mmapped.iter().map(|chunk| chunk.range))).collect();
    for vma in snapshot.vmas.iter().filter(|vma| vma.backing == Backing::Anonymous && !claimed.contains(&vma.range)) {
        if random.one_in(2) {
            let live = random.part(vma.rss);
            heap.ranges.push(vma.range);
            heap.add(HeapPart::Live, live, live);
            heap.add(HeapPart::Dirty, vma.range.length() - live, vma.rss - live);
        }
    }
    snapshot.malloc_heap = Some(heap);
}

fn hotspot(random: &mut Random, snapshot: &mut Snapshot) {
    let mut vm = HotSpot::default();
    let tags = [VmTag::JavaHeap, VmTag::Class, VmTag::Code, VmTag::Compiler, VmTag::Other("Other".into())];
    for vma in &snapshot.vmas {
        if let Some(tag) = tags.get(random.below(8) as usize) {
            vm.regions.push(VmRegion { range: vma.range, tag: tag.clone(), committed: vec![vma.range] });
        }
    }
    let committed = random.bytes();
    vm.java_heap = Some(JavaHeap {
        reserved: committed.scaled(2, 1),
        committed,
        occupied: random.part(committed),
        live_after_gc: random.one_in(2).then(|| random.part(committed)),
        max: Some(committed + random.part(committed)),
    });
    vm.metaspace =
        Some(Metaspace { committed: random.bytes(), loaders: Some(random.below(3000)), ..Metaspace::default() });
    let reserved = random.bytes();
    let (committed, occupied) = (reserved, random.part(reserved));
    let name = "profiled".to_owned();
    vm.code_cache.push(CodeCacheSegment { name, range: AddressRange::default(), committed, occupied, reserved });
    let capacity = random.bytes();
    vm.direct_buffers = Some(DirectBuffers {
        count: Some(1),
        capacity,
        at_walk: capacity,
        max: Some(capacity + random.bytes()),
        ..plimsoll_facts::snapshot::DirectBuffers::default()
    });
    if random.one_in(2) {
        vm.categories = vec![NmtCategory { name: "Other".into(), malloc: random.bytes(), ..NmtCategory::default() }];
    }
    if random.one_in(2) {
        let flags = [("MaxMetaspaceSize", random.bytes()), ("MaxHeapSize", committed)];
        vm.flags = flags.map(|(name, value)| (name.to_owned(), value.0.to_string())).into();
    }
    vm.collector = Some(["G1", "Z", "Shenandoah", "Serial", "Parallel", "Epsilon"][random.below(6) as usize].into());
    let versions = ["", "25.402-b06", "11.0.22+7", "17.0.15+6"];
    vm.version = versions.get(random.below(12) as usize).copied().unwrap_or("25.0.3+9-LTS").into();
    snapshot.hotspot = Some(vm);
}

/// The memory that the verdict is about: an upper bound of what it may blame.
fn owner(case: Case<'_>, id: VerdictId) -> Bytes {
    let of_other = case.resident(LineId::OtherAllocator);
    match (id.line(), id) {
        (Some(line), VerdictId::NativeLeak) => case.resident(line) + of_other,
        (Some(line), VerdictId::AllocatorRetention) => case.resident(line).max(of_other),
        (Some(line), _) => case.resident(line),
        (None, VerdictId::LimitNear) => {
            let cgroup = case.snapshot.cgroup.iter();
            let levels = cgroup.clone().flat_map(Cgroup::levels).map(Cgroup::working_set);
            let throttles = cgroup.flat_map(|cgroup| &cgroup.throttles).map(Throttle::working_set);
            let of_limit = case.limit().map(|(_, counted)| counted);
            of_limit.into_iter().chain(levels).chain(throttles).max().expect("a limit")
        }
        (None, VerdictId::Unclear) => case.rss() + case.snapshot.process.swap,
        _ => case.rss(),
    }
}

/// What an option must not go below, from the snapshot's own figures: (option, least value in bytes, value in force).
fn caps(case: Case<'_>) -> Vec<(&'static str, Bytes, Option<Bytes>)> {
    let Some(vm) = case.vm() else { return Vec::new() };
    let heap = vm.java_heap.clone().unwrap_or_default();
    let needed = heap.occupied.max(heap.live_after_gc.unwrap_or_default()).min(heap.committed);
    let direct = vm.direct_buffers.clone().unwrap_or_default();
    let metaspace = vm.metaspace.clone().unwrap_or_default();
    let in_force = |name| case.flag(name).and_then(|value| value.parse().ok()).map(Bytes);
    vec![
        ("-Xmx", heap.committed, heap.max),
        ("-XX:SoftMaxHeapSize=", Bytes(0).max(heap.live_after_gc.unwrap_or(needed).min(needed)), heap.max),
        ("-XX:MaxDirectMemorySize=", direct.capacity, direct.max),
        ("-XX:MaxMetaspaceSize=", metaspace.committed, in_force("MaxMetaspaceSize")),
        ("-XX:ReservedCodeCacheSize=", vm.code_cache.iter().map(|segment| segment.reserved).sum(), None),
    ]
}

fn value_of(how: &str, option: &str) -> Option<Bytes> {
    let rest = how.split_once(option)?.1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(Bytes(digits.parse::<u64>().expect("a number") << 20))
}

#[test]
fn verdicts_on_any_snapshot_stay_within_their_bounds() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut seen = std::collections::BTreeMap::<&str, u64>::new();
    let mut capped = std::collections::BTreeMap::<&str, u64>::new();
    let mut kept = std::collections::BTreeMap::<&str, u64>::new();
    let (mut narrow, mut wide) = (0, 0);
    for round in 0..8000 {
        let snapshot = snapshot(&mut random);
        let ledger = Ledger::of(&snapshot);
        let case = Case { snapshot: &snapshot, ledger: &ledger };
        let verdicts = judge(&snapshot, &ledger);
        let sum: Bytes = ledger.lines.iter().map(|line| line.resident).sum();
        assert_eq!(sum + ledger.remainder, ledger.rss);
        for verdict in &verdicts {
            *seen.entry(verdict.id.id()).or_default() += 1;
            let most = owner(case, verdict.id);
            assert!(verdict.bytes <= most, "{round}: {} blames {}, there are {most}", verdict.id.id(), verdict.bytes);
            for remedy in &verdict.remedies {
                if let Some((least, most)) = remedy.effect.bounds() {
                    assert!(least <= most && most <= ledger.rss, "{round}: {remedy:?} of {}", ledger.rss);
                    assert!(
                        most.percent_of(verdict.bytes) >= 1.0,
                        "{round}: {remedy:?} gives nothing of {}",
                        verdict.bytes
                    );
                    let (middle, half) = ((most.0 + least.0) as f64 / 2.0, (most.0 - least.0) as f64 / 2.0);
                    match remedy.effect.figure() {
                        Some(figure) => {
                            assert!(figure == (least, most) && half <= middle * 0.300_001, "{round}: {remedy:?}");
                            narrow += 1;
                        }
                        None => {
                            assert!(half >= middle * 0.299_999, "{round}: {remedy:?}");
                            wide += 1;
                        }
                    }
                }
                for (option, in_use, in_force) in caps(case) {
                    let Some(value) = value_of(&remedy.how, option) else { continue };
                    *capped.entry(option).or_default() += 1;
                    assert!(value >= in_use, "{round}: {} where {in_use} are in use", remedy.how);
                    assert!(in_force.is_none_or(|force| value < force), "{round}: {} of {in_force:?}", remedy.how);
                }
            }
            if verdict.id == VerdictId::LimitNear {
                // Without --limit, each level of the cgroup has its own limit.
                let cgroup = snapshot.cgroup.iter().filter(|_| snapshot.limit_requested.is_none());
                let levels = cgroup.clone().flat_map(Cgroup::levels);
                let levels = levels.filter_map(|level| Some((level.limit?, level.working_set())));
                let throttles = cgroup.flat_map(|cgroup| &cgroup.throttles);
                let throttles = throttles.map(|throttle| (throttle.high, throttle.working_set()));
                let throttles = throttles.filter(|_| verdict.summary.contains("memory.high"));
                let mut judged = throttles.chain(case.limit()).chain(levels);
                let keepers = ["limits: {memory: ", "--memory ", "MemoryMax=", "MemoryHigh=", "echo "];
                let how = verdict.remedies.last().map(|remedy| remedy.how.as_str()).unwrap_or_default();
                let Some(keeper) = keepers.iter().find(|keeper| how.contains(**keeper)).copied() else {
                    assert!(verdict.summary.contains("memory.high"), "{round}: who keeps the limit? {verdict:?}");
                    continue;
                };
                *kept.entry(keeper).or_default() += 1;
                let value = value_of(how, keeper).expect("a number");
                let is_raised = |(limit, counted)| counted == verdict.bytes && value >= counted && value > limit;
                assert!(judged.any(is_raised), "{round}: {how} where {} count", verdict.bytes);
            }
        }
        // Computed from the lines, not from the rule's own result.
        let unread = [LineId::OtherAnonymous, LineId::GlibcUnknown, LineId::OtherAllocator];
        let unread = unread.iter().map(|line| ledger.resident(*line)).sum::<Bytes>() + ledger.remainder;
        let named = |prefix: &str| {
            let lines = ledger.lines.iter().flat_map(|line| line.children.iter().chain([line]));
            lines.filter(|line| line.name.starts_with(prefix)).map(|line| line.resident).sum::<Bytes>()
        };
        let unread = unread - named("jemalloc: ");
        let has = |id: VerdictId| verdicts.iter().any(|verdict| verdict.id == id);
        if unread.percent_of(ledger.rss) > 10.0 {
            assert!(!has(VerdictId::Healthy) && has(VerdictId::Unclear), "{round}: {unread} of {}", ledger.rss);
        }
        let live = ledger.resident(LineId::GlibcLive) + named("jemalloc: live");
        let has_one_reading = snapshot.hotspot.is_none() && snapshot.baseline.is_none();
        if has_one_reading && live >= Bytes::mib(48) && live.percent_of(ledger.rss) >= 20.0 {
            assert!(!has(VerdictId::Healthy), "{round}: {live} of {}", ledger.rss);
        }
        let swap = snapshot.process.swap;
        if swap >= Bytes::mib(48) && swap.percent_of(ledger.rss + swap) > 10.0 {
            assert!(!has(VerdictId::Healthy) && has(VerdictId::Unclear), "{round}: {swap} beside {}", ledger.rss);
        }
        let warns = verdicts.iter().any(|verdict| verdict.severity > Severity::Note);
        assert!(ledger.rss == Bytes(0) || warns || has(VerdictId::Healthy) != has(VerdictId::Unclear), "{round}");
        assert!(!(has(VerdictId::Healthy) && (warns || has(VerdictId::Unclear))), "{round}");
    }
    // Every rule and every option occurred.
    let silent: Vec<&str> = VerdictId::ALL.iter().map(|id| id.id()).filter(|id| !seen.contains_key(id)).collect();
    assert!(silent.is_empty(), "no snapshot gave: {silent:?}");
    assert!(kept.len() == 4, "{kept:?}");
    assert!(narrow > 100 && wide > 30, "{narrow} figures, {wide} without");
    assert!(seen["healthy"] > 20 && seen["unclear"] > 200, "{seen:?}");
    assert!(capped.len() == 5 && capped.values().all(|number| *number >= 5), "{capped:?}");
}
