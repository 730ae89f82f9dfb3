//! The report names memory that could not be judged, and the owners of memory that is healthy.

use super::*;

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

/// The process's mappings can be read, but not its memory.
#[test]
fn a_heap_whose_memory_is_closed_is_not_read_again() {
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

/// Each of malloc's large blocks is a mapping of its own. If glibc's memory can't be read, they look like the program's
/// own mappings.
#[test]
fn unclaimed_memory_beside_a_closed_malloc_is_not_the_programs_own_mmap() {
    let mut snapshot = with_mappings(&[Bytes::mib(10), Bytes::mib(100)]);
    snapshot.vmas[1].backing = Backing::Anonymous;
    snapshot.process.pid = 7;
    let unclear = |snapshot: &Snapshot| {
        let verdict = verdict_of(snapshot, VerdictId::Unclear);
        (verdict.evidence.join("\n"), verdict.remedies[0].how.clone())
    };
    let (open, _) = unclear(&snapshot);
    assert!(open.contains("no source claims it; the program mapped it itself"), "{open}");
    let gap = plimsoll_facts::gap::Gap::new(plimsoll_facts::gap::Source::Glibc, "/proc/7/mem is closed", "");
    snapshot.gaps = vec![gap.remedy("sudo plimsoll explain 7")];
    let (closed, how) = unclear(&snapshot);
    assert!(closed.contains("no source claims it") && !closed.contains("mapped it itself"), "{closed}");
    assert_eq!(how, "sudo plimsoll explain 7");
}

/// JDK 8 doesn't print where its metaspace is, so a leak of class loaders looks like memory of the program's own.
#[test]
fn the_metaspace_of_jdk_8_is_looked_for_in_what_nobody_claims() {
    let mut snapshot = with_mappings(&[Bytes::mib(10), Bytes::mib(200)]);
    snapshot.vmas[1].backing = Backing::Anonymous;
    let metaspace = plimsoll_facts::snapshot::Metaspace { committed: Bytes::mib(180), ..Default::default() };
    snapshot.hotspot = Some(HotSpot { version: "25.402-b06".into(), metaspace: Some(metaspace), ..HotSpot::default() });
    let verdict = verdict_of(&snapshot, VerdictId::Unclear);
    let evidence = verdict.evidence.join("\n");
    assert!(evidence.contains("this memory contains the metaspace: 180 MiB committed"), "{evidence}");
    assert!(!evidence.contains("mapped it itself"), "{evidence}");
    assert!(verdict.remedies[0].how.contains("GC.class_histogram | grep ClassLoader"), "{:?}", verdict.remedies);
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

/// A native image with NMT counts the memory of Unsafe, which nothing bounds.
#[test]
fn memory_of_unsafe_in_a_native_image_is_unclear_until_a_second_reading() {
    let mib = Bytes::mib;
    let image = |nmt: Vec<NmtCategory>| {
        let image = plimsoll_facts::snapshot::NativeImage { nmt, ..Default::default() };
        Snapshot { native_image: Some(image), ..with_arenas(&[mib(0)], mib(1050)) }
    };
    let unsafe_memory = NmtCategory { name: "Unsafe".into(), malloc: mib(1024), ..NmtCategory::default() };
    let counted = image(vec![unsafe_memory]);
    let verdict = verdict_of(&counted, VerdictId::Unclear);
    assert_eq!(verdict.bytes, mib(1050));
    assert!(verdict.summary.ends_with("is memory of Unsafe and direct buffers"), "{}", verdict.summary);
    let uncounted = verdict_of(&image(Vec::new()), VerdictId::Unclear);
    assert_eq!((uncounted.bytes, uncounted.remedies.len()), (mib(1050), verdict.remedies.len()));
    let lines = [(LineId::DirectBuffers, mib(1024)), (LineId::GlibcLive, mib(26))];
    assert_eq!(ids(&with_baseline(counted, 600.0, mib(1050), &lines)), ["healthy"]);
}

/// A program's live blocks may be its data or a leak. A second reading shows which.
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
    // A clock set an hour forward or back between the readings changes nothing: the process became 59 or 60 s older.
    for (by_the_clock, lived, state) in [(3659.0, 59.0, "unclear"), (-3540.0, 60.0, "healthy")] {
        let mut set = then(by_the_clock);
        set.process.uptime = Some(100.0 + lived);
        set.baseline.as_mut().expect("a baseline").uptime = Some(100.0);
        assert_eq!(ids(&set), [state], "{by_the_clock}");
    }
    // The tracker's library can't be loaded into a static program.
    let mut fixed = large.clone();
    fixed.process.executable = Some("/app".to_owned());
    fixed.allocators[0].path = "/app".to_owned();
    assert!(verdict_of(&fixed, VerdictId::Unclear).remedies[0].how.starts_with("plimsoll explain 4711"));
    // What `plimsoll attach` refuses: the program's own malloc, strict mode, a sanitizer, a second C library.
    let first = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = large.clone();
        change(&mut snapshot);
        verdict_of(&snapshot, VerdictId::Unclear).remedies[0].how.clone()
    };
    let code = |name: &str, offset: u64| Vma {
        name: name.into(),
        range: AddressRange::sized(Avma(1 << 41 | offset), Bytes(4096)),
        executable: true,
        inode: 5,
        offset,
        ..Vma::default()
    };
    const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    let with_code = |names: &[(&str, u64)]| {
        let names = names.to_vec();
        first(&|snapshot| snapshot.vmas.extend(names.iter().map(|(name, offset)| code(name, *offset))))
    };
    for how in [
        first(&|snapshot| snapshot.exports_malloc = true),
        first(&|snapshot| snapshot.process.is_strict = true),
        with_code(&[(LIBC, 0), ("/usr/lib/x86_64-linux-gnu/libasan.so.8.0.0", 0)]),
        with_code(&[(LIBC, 0), (LIBC, 0)]),
    ] {
        assert!(how.starts_with("plimsoll explain 4711"), "{how}");
    }
    // mprotect has divided the code of one copy.
    let divided = with_code(&[(LIBC, 0), (LIBC, 8192), ("/usr/lib/libubsan.so.1", 0)]);
    assert_eq!(divided.starts_with("plimsoll attach 4711 && "), cfg!(target_arch = "x86_64"), "{divided}");
    // V8 has the owners of its buffers.
    let mut node = large;
    let buffers = Some(ArrayBuffers { count: 90, bytes: mib(90) });
    node.v8 = Some(OtherHeap { buffers, ..OtherHeap::new(AllocatorKind::V8) });
    assert_eq!(ids(&node), ["healthy"]);
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
    assert!(
        even.evidence.iter().any(|text| text.starts_with("largest: ") && text.ends_with(", 100 MiB, 25 % of RSS")),
        "{even:?}"
    );
    let shared = healthy([140, 90, 90, 80]);
    assert_eq!(shared.summary, "nothing stands out; largest: shared memory, 140 MiB, 35 % of RSS");
    assert!(shared.evidence.iter().all(|text| !text.contains("largest: ")), "{shared:?}");
    let go = healthy([90, 90, 60, 160]);
    assert_eq!(go.summary, "nothing stands out; largest: Go's heap: live, 155 MiB, 39 % of RSS");
}

/// A memfd whose descriptor is open, and that nobody maps: only the group's charge has it.
#[test]
fn shared_memory_that_nobody_maps_is_not_healthy() {
    let mib = Bytes::mib;
    let of = |shmem: Bytes| {
        let mut snapshot = with_limit(mib(250), mib(200), mib(0));
        snapshot.process.pid = 7;
        snapshot.cgroup.as_mut().expect("set").stat.shmem = shmem;
        snapshot
    };
    // 100 MiB are mapped.
    assert_eq!(ids(&of(mib(150))), ["healthy"]);
    let unclear = verdict_of(&of(mib(180)), VerdictId::Unclear);
    let expected = "44 % of RSS and unmapped shared memory can't be judged; the largest part, 80.0 MiB, is shared memory that \
                    is charged and not mapped here";
    assert_eq!((unclear.bytes, unclear.summary.as_str()), (mib(80), expected));
    assert_eq!(unclear.remedies[0].how, "sudo ls -l /proc/7/fd | grep -e memfd: -e /dev/shm/ -e /SYSV");
    // What the group's other processes may have mapped, or another group, isn't blamed on this one.
    let mut shared = of(mib(180));
    shared.cgroup.as_mut().expect("set").others = vec![(8, mib(50))];
    assert_eq!(ids(&shared), ["healthy"]);
    let mut above = of(mib(180));
    above.cgroup.as_mut().expect("set").limit_path = "/above".into();
    assert_eq!(ids(&above), ["healthy"]);
    let mut refused = of(mib(180));
    (refused.smaps_refused, refused.rss_by_kind.shmem) = (true, mib(100));
    assert!(verdict_of(&refused, VerdictId::Unclear).summary.contains("RSS and unmapped"), "{refused:?}");
}

/// The ring of perf is mapped in full, and no page of it counts in RSS.
#[test]
fn addresses_of_devices_are_no_reserved_memory() {
    let mut snapshot = with_mappings(&[Bytes::mib(10), Bytes(0)]);
    let start = snapshot.vmas[1].range.start;
    snapshot.vmas[1].range = AddressRange::sized(start, Bytes::mib(100));
    let says = |snapshot: &Snapshot| {
        let healthy = verdict_of(snapshot, VerdictId::Healthy);
        healthy.evidence.iter().any(|line| line.contains("never touched costs nothing"))
    };
    assert!(says(&snapshot));
    (snapshot.vmas[1].backing, snapshot.vmas[1].name) = (Backing::Device, "anon_inode:[perf_event]".into());
    assert!(!says(&snapshot));
}
