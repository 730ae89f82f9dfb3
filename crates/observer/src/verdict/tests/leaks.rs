//! Live blocks that nobody frees, and what looks like them.

use super::*;

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
        let zlib = ZlibStates { inflaters: 400, deflaters: 100 };
        snapshot.glibc = Some(Glibc { arenas: vec![arena], peaks, zlib, ..Glibc::default() });
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

/// 78 MiB in 2,500 blocks of Unsafe, of 32 KiB each, and 75 MiB of Arena.global(), of 64 KiB each. A Deflater has four
/// such blocks, and each stream a state.
#[test]
fn sizes_of_usual_buffers_are_zlibs_only_up_to_its_open_streams() {
    let of = |size: u64, count: u64, zlib: ZlibStates, booked: Option<u64>| {
        let mut snapshot = with_arenas(&[Bytes::mib(0)], Bytes::mib(90));
        let peak = EqualBlocks { size: Bytes(size), count, resident: Bytes(size * count) };
        let glibc = snapshot.glibc.as_mut().expect("arenas");
        (glibc.peaks, glibc.zlib) = (vec![peak], zlib);
        snapshot.hotspot = Some(HotSpot::default());
        if let Some(live_count) = booked {
            snapshot = tracked(snapshot, &[("zlib", Bytes(size * live_count), live_count), ("Other", Bytes(1), 1)]);
        }
        let ledger = Ledger::of(&snapshot);
        let number = crate::verdict::suspects::zlib(Case { snapshot: &snapshot, ledger: &ledger }).0;
        (number, format!("{:?}", judge(&snapshot, &ledger)))
    };
    let streams = |inflaters, deflaters| ZlibStates { inflaters, deflaters };
    for (size, count) in [(32_784, 2500), (65_552, 1200)] {
        let (number, found) = of(size, count, ZlibStates::default(), None);
        assert_eq!(number, 0);
        assert!(found.contains(&format!("({} bytes) hold", plimsoll_facts::units::count(size - 8))), "{found}");
        assert!(!found.contains("Inflater's") && !found.contains("Deflater's"), "{found}");
        assert!(!found.contains("GZIPInputStream"), "{found}");
    }
    assert_eq!(of(32_784, 2500, streams(300, 700), None).0, 300);
    assert_eq!(of(65_552, 1200, streams(300, 70), None).0, 280);
    assert_eq!(of(65_552, 1200, streams(0, 400), None).0, 1200);
    let (_, all) = of(65_552, 1200, streams(0, 300), None);
    assert!(all.contains("a Deflater's window") && all.contains("GZIPInputStream"), "{all}");
    // The tracker saw each call.
    assert_eq!(of(65_552, 1200, streams(0, 300), Some(0)).0, 0);
    assert_eq!(of(65_552, 1200, streams(0, 300), Some(400)).0, 400);
}

/// With the tracker since the program's start, and these categories in its books.
fn tracked(mut snapshot: Snapshot, books: &[(&str, Bytes, u64)]) -> Snapshot {
    let end = snapshot.vmas.last().expect("one").range.end;
    let range = AddressRange::sized(Avma(end.0 + (1 << 46)), Bytes::mib(1));
    snapshot.vmas.push(Vma { range, name: "/dev/shm/plimsoll-0/1-2.seg".into(), ..Vma::default() });
    let category = |(name, live, live_count): &(&str, Bytes, u64)| {
        let (name, live, live_count) = ((*name).to_owned(), *live, *live_count);
        BookedCategory { name, live, live_count }
    };
    snapshot.booked_categories = books.iter().map(category).collect();
    snapshot
}

/// 3,000,000 interned strings take 120 MiB, and 2,000,000 blocks of Unsafe without handles 61 MiB; as observed.
#[test]
fn interned_strings_are_probably_the_vms() {
    let mib = Bytes::mib;
    let with = |nodes: u64, handles: u64, of_handles: u64, others: Bytes| {
        let blocks = |size, count| EqualBlocks { size: Bytes(size), count, resident: Bytes(size * count) };
        let live = Bytes(32 * nodes + of_handles * handles) + others;
        let mut snapshot = with_arenas(&[mib(0)], live);
        let peaks = vec![blocks(32, nodes), blocks(of_handles, handles)];
        snapshot.glibc.as_mut().expect("arenas").peaks = peaks;
        snapshot.hotspot = Some(HotSpot { version: "17.0.15+6".into(), ..HotSpot::default() });
        snapshot
    };
    let strings = with(3_001_732, 46_883, 640, mib(6));
    let verdict = verdict_of(&strings, VerdictId::NativeLeak);
    let expected = " of live malloc blocks are probably the VM's table of interned strings: ";
    assert!(verdict.summary.contains(expected), "{}", verdict.summary);
    assert_eq!(verdict.bytes, Bytes(32 * 46_883 * 64 + 640 * 46_883));
    assert_eq!(verdict.remedies[0].how, "jcmd 0 VM.stringtable");
    let text = format!("{verdict:?}");
    assert!(!text.contains("at least") && !text.contains("GZIPInputStream"), "{text}");
    let basis = |snapshot: &Snapshot, verdict: &Verdict| certainty(snapshot, &Ledger::of(snapshot), verdict);
    assert!(basis(&strings, &verdict).starts_with("probably: "), "{}", basis(&strings, &verdict));
    // Other blocks beside the table: at least those beyond the table's upper bound count.
    let both = verdict_of(&with(3_001_732, 46_883, 640, mib(150)), VerdictId::NativeLeak);
    assert!(both.bytes <= mib(150) && both.bytes >= mib(100), "{both:?}");
    assert!(both.remedies.iter().any(|remedy| remedy.how == "jcmd 0 VM.stringtable"), "{both:?}");
    // Blocks of only one of the two sizes belong to other code.
    for others in [with(2_000_000, 64, 640, mib(20)), with(64, 150_000, 640, mib(20))] {
        let verdict = verdict_of(&others, VerdictId::NativeLeak);
        assert!(verdict.summary.starts_with("at least "), "{verdict:?}");
        assert!(!format!("{verdict:?}").contains("interned"), "{verdict:?}");
    }
}

/// The tracker's books name the VM's blocks, whatever their sizes.
#[test]
fn what_the_tracker_books_for_the_vm_is_no_leak() {
    let mib = Bytes::mib;
    let of = |symbols: u64, other: u64| {
        let mut snapshot = with_arenas(&[mib(0)], mib(160));
        snapshot.hotspot = Some(HotSpot::default());
        tracked(snapshot, &[("Symbol", mib(symbols), 1000), ("Other", mib(other), 1000), ("GC", mib(5), 10)])
    };
    assert!(!ids(&of(150, 5)).contains(&"native-leak"));
    let verdict = verdict_of(&of(5, 150), VerdictId::NativeLeak);
    assert!(verdict.bytes > mib(149) && verdict.bytes <= mib(150), "{}", verdict.bytes);
    // Blocks from before an attach have the bound of a VM of that size.
    let mut attached = of(5, 20);
    attached.attached = Some([Booked { live: mib(30), live_count: 2010, ..Booked::default() }; 2]);
    let verdict = verdict_of(&attached, VerdictId::NativeLeak);
    assert!(verdict.bytes > mib(133) && verdict.bytes <= mib(134), "{}", verdict.bytes);
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
        // Nothing points to java.util.zip.
        assert!(!format!("{:?}", verdict.remedies).contains("GZIPInputStream"), "{:?}", verdict.remedies);
        // Blocks that are known by their sizes count whole: the headline isn't smaller than its evidence.
        let windows = EqualBlocks { size: Bytes(32_784), count: 1, resident: mib(leak + 8) };
        let glibc = snapshot.glibc.as_mut().expect("arenas");
        glibc.peaks.push(windows);
        glibc.zlib.inflaters = 1;
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
    // If there are as many threads as blocks, the blocks may be NIO's copies, unless NIO keeps none.
    let remedies = |snapshot: &Snapshot| format!("{:?}", verdict_of(snapshot, VerdictId::NativeLeak).remedies);
    const SETTING: &str = "-Djdk.nio.maxCachedBufferSize=262144";
    assert!(!remedies(&snapshot).contains(SETTING));
    let mut with_threads = snapshot.clone();
    with_threads.threads = (0..180).map(|tid| Thread { tid, ..Thread::default() }).collect();
    assert!(remedies(&with_threads).contains(SETTING));
    with_threads.process.command = vec!["java".into(), SETTING.into()];
    assert!(!remedies(&with_threads).contains(SETTING));
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

/// libjava, libnio and libzip of JDK 8 lie above libjvm's folder, without `lib` between them.
#[test]
fn the_libraries_of_jdk_8_are_the_jdks() {
    const JRE: &str = "/usr/lib/jvm/java-8-openjdk-amd64/jre/lib/amd64";
    let evidence = |library: &str| {
        let mut snapshot = held_by(library);
        snapshot.vmas.iter_mut().filter(|vma| vma.name.ends_with("libjvm.so")).for_each(|vma| {
            vma.name = format!("{JRE}/server/libjvm.so");
        });
        verdict_of(&snapshot, VerdictId::NativeLeak).evidence.join("\n")
    };
    let of_jdk = evidence(&format!("{JRE}/libjava.so"));
    assert!(of_jdk.contains("no library is loaded besides the JDK's"), "{of_jdk}");
    let other = evidence("/opt/libother.so");
    assert!(other.contains("may hold them: /opt/libother.so"), "{other}");
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
    // Growth since the baseline shows a leak; without growth, it stays unclear.
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
