//! Generated snapshots: what must hold of the verdicts on any of them.

use super::*;
use crate::ledger::{Baseline, LineId};
use crate::snapshot::{
    AllocatorKind, Arena, ArenaKind, Backing, Cgroup, CodeCacheSegment, DirectBuffers, Glibc, HotSpot, JavaHeap,
    LoadedAllocator, Metaspace, MmappedChunk, NmtCategory, Thp, Thread, VmRegion, VmTag, Vma,
};
use crate::units::{AddressRange, Avma};

struct Dice(u64);

impl Dice {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }

    /// From some KiB to some GiB, each order of magnitude as likely as the next.
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

fn snapshot(dice: &mut Dice) -> Snapshot {
    let mut snapshot = Snapshot { time: 1e9, ..Snapshot::default() };
    let mut at = Avma(1 << 20);
    // Now and then mappings of one size, all of them resident: arenas that share what is free.
    let alike = dice.one_in(4).then(|| dice.bytes() + Bytes(4096));
    for _ in 0..1 + dice.below(12) {
        let length = alike.unwrap_or_else(|| dice.bytes() + Bytes(4096));
        let range = AddressRange::sized(at, length);
        let rss = if alike.is_some() { length } else { dice.part(length) };
        let backing = match dice.below(6) {
            0 => Backing::File,
            1 => Backing::Shmem,
            2 => Backing::Brk,
            _ => Backing::Anonymous,
        };
        let inode = u64::from(backing == Backing::File);
        let anon_huge = if dice.one_in(4) { rss } else { Bytes(0) };
        let [readable, writable] = [true, true];
        snapshot.vmas.push(Vma { range, readable, writable, rss, backing, inode, anon_huge, ..Vma::default() });
        at = Avma(range.end.0 + dice.below(3) * (1 << 20));
    }
    snapshot.host.thp = if dice.one_in(2) { Thp::Always } else { Thp::Madvise };
    if dice.one_in(2) {
        glibc(dice, &mut snapshot);
    }
    if dice.one_in(3) {
        let kinds = [AllocatorKind::Jemalloc, AllocatorKind::Go, AllocatorKind::Glibc, AllocatorKind::Tcmalloc];
        let kind = kinds[dice.below(4) as usize];
        snapshot.allocators.push(LoadedAllocator { kind, path: "x".into(), serves_malloc: !kind.is_runtime() });
    }
    if dice.one_in(2) {
        hotspot(dice, &mut snapshot);
    }
    let threads = if dice.one_in(8) { 300 } else { 20 };
    for tid in 0..dice.below(threads) as u32 {
        let name = ["pool-1-thread-", "GC Thread#", "lettuce-nioEventLoop-4-", "x"][dice.below(4) as usize];
        let stack = (tid == 0).then(|| snapshot.vmas[0].range);
        let name = format!("{name}{tid}");
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, name, stack, ..Thread::default() });
    }
    let rss = snapshot.rss();
    if dice.one_in(3) {
        snapshot.limit_asked = Some(rss.scaled(1, 2) + dice.part(rss.scaled(2, 1)) + Bytes(1));
    } else if dice.one_in(2) {
        let charged = rss + dice.part(rss);
        snapshot.cgroup = Some(Cgroup { limit: Some(charged + dice.part(rss)), charged, ..Cgroup::default() });
    }
    if dice.one_in(3) {
        let mut lines = Vec::new();
        for line in LineId::ALL {
            lines.push((*line, dice.bytes()));
        }
        let time = snapshot.time - dice.below(10_000) as f64;
        snapshot.baseline = Some(Baseline { time, rss: dice.part(rss.scaled(2, 1)), errors: Vec::new(), lines });
    }
    snapshot
}

/// Arenas over some of the mappings. What the walk says need not be what smaps says.
fn glibc(dice: &mut Dice, snapshot: &mut Snapshot) {
    let mut glibc = Glibc { arena_cap: Some(16), arena_cap_set: dice.one_in(3), ..Glibc::default() };
    for vma in snapshot.vmas.iter().filter(|vma| vma.backing == Backing::Anonymous) {
        match dice.below(4) {
            0 => glibc.mmapped.push(MmappedChunk { range: vma.range }),
            1 => {}
            _ => {
                let even = vma.rss == vma.range.length();
                let free = if even { vma.rss.scaled(3, 4) } else { dice.part(vma.range.length()) };
                let live = dice.part(vma.range.length());
                glibc.arenas.push(Arena {
                    kind: if glibc.arenas.is_empty() { ArenaKind::Main } else { ArenaKind::Thread },
                    heaps: vec![vma.range],
                    live,
                    live_resident: live,
                    bins: free,
                    free_resident: free,
                    trimmable: dice.part(free),
                    unknown_resident: if dice.one_in(4) { dice.bytes() } else { Bytes(0) },
                    ..Arena::default()
                });
            }
        }
    }
    snapshot.glibc = Some(glibc);
}

fn hotspot(dice: &mut Dice, snapshot: &mut Snapshot) {
    let mut vm = HotSpot::default();
    let tags = [VmTag::JavaHeap, VmTag::Class, VmTag::Code, VmTag::Compiler, VmTag::Other("Other".into())];
    for vma in &snapshot.vmas {
        if let Some(tag) = tags.get(dice.below(8) as usize) {
            vm.regions.push(VmRegion { range: vma.range, tag: tag.clone(), committed: vec![vma.range] });
        }
    }
    let committed = dice.bytes();
    vm.java_heap = Some(JavaHeap {
        reserved: committed.scaled(2, 1),
        committed,
        occupied: dice.part(committed),
        live_after_gc: dice.one_in(2).then(|| dice.part(committed)),
        max: Some(committed + dice.part(committed)),
    });
    vm.metaspace = Some(Metaspace { committed: dice.bytes(), loaders: Some(dice.below(3000)), ..Metaspace::default() });
    let reserved = dice.bytes();
    let (committed, occupied) = (reserved, dice.part(reserved));
    let name = "profiled".to_owned();
    vm.code_cache.push(CodeCacheSegment { name, range: AddressRange::default(), committed, occupied, reserved });
    let capacity = dice.bytes();
    vm.direct_buffers =
        Some(DirectBuffers { count: Some(1), capacity, at_walk: capacity, max: Some(capacity + dice.bytes()) });
    if dice.one_in(2) {
        vm.categories = vec![NmtCategory { name: "Other".into(), malloc: dice.bytes(), ..NmtCategory::default() }];
    }
    if dice.one_in(2) {
        let flags = [("MaxMetaspaceSize", dice.bytes()), ("MaxHeapSize", committed)];
        vm.flags = flags.map(|(name, value)| (name.to_owned(), value.0.to_string())).into();
    }
    vm.collector = Some(["G1", "Z", "Shenandoah", "Serial"][dice.below(4) as usize].into());
    snapshot.hotspot = Some(vm);
}

/// What the verdict is about: no more than that can be blamed.
fn owner(case: Case<'_>, id: VerdictId) -> Bytes {
    match (id.line(), id) {
        (Some(line), _) => case.resident(line),
        (None, VerdictId::LimitNear) => case.limit().expect("a limit").1,
        _ => case.rss(),
    }
}

/// What the snapshot's own figures say was in use of what an option limits: (option, least value in bytes, in force).
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
fn any_snapshot_s_verdicts_keep_to_their_bytes_their_caps_and_their_word() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut seen = std::collections::BTreeMap::<&str, u64>::new();
    let mut capped = std::collections::BTreeMap::<&str, u64>::new();
    for round in 0..4000 {
        let snapshot = snapshot(&mut dice);
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
                }
                for (option, in_use, in_force) in caps(case) {
                    let Some(value) = value_of(&remedy.how, option) else { continue };
                    *capped.entry(option).or_default() += 1;
                    assert!(value >= in_use, "{round}: {} where {in_use} are in use", remedy.how);
                    assert!(in_force.is_none_or(|force| value < force), "{round}: {} of {in_force:?}", remedy.how);
                }
                if let Some(value) = value_of(&remedy.how, "docker run --memory ") {
                    let (_, counted) = case.limit().expect("a limit");
                    assert!(value >= counted, "{round}: {} where {counted} count", remedy.how);
                }
            }
        }
        // By the lines, not by what the rule itself says.
        let unread = [LineId::OtherAnonymous, LineId::GlibcUnknown, LineId::OtherAllocator];
        let unread = unread.iter().map(|line| ledger.resident(*line)).sum::<Bytes>() + ledger.remainder;
        let has = |id: VerdictId| verdicts.iter().any(|verdict| verdict.id == id);
        if unread.percent_of(ledger.rss) > 10.0 {
            assert!(!has(VerdictId::Healthy) && has(VerdictId::Unclear), "{round}: {unread} of {}", ledger.rss);
        }
        let warns = verdicts.iter().any(|verdict| verdict.severity > Severity::Note);
        assert!(ledger.rss == Bytes(0) || warns || has(VerdictId::Healthy) != has(VerdictId::Unclear), "{round}");
        assert!(!(has(VerdictId::Healthy) && (warns || has(VerdictId::Unclear))), "{round}");
    }
    // Every rule was exercised, and every option.
    let silent: Vec<&str> =
        VerdictId::ALL.iter().map(|id| id.id()).filter(|id| *id != "map-count" && !seen.contains_key(id)).collect();
    assert!(silent.is_empty(), "never spoke: {silent:?}");
    assert!(seen["healthy"] > 20 && seen["unclear"] > 200, "{seen:?}");
    assert!(capped.len() == 5 && capped.values().all(|number| *number >= 5), "{capped:?}");
}
