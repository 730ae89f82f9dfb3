//! What only a Java VM has: its heap, compilers, code cache and direct buffers.

use super::*;

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

/// A VM up to JDK 19 frees code when it has stopped, so the segment may look as if it had space.
#[test]
fn a_vm_that_has_stopped_compiling_is_not_healthy() {
    let segment = CodeCacheSegment {
        name: "CodeCache".to_owned(),
        range: AddressRange::default(),
        committed: Bytes::mib(8),
        occupied: Bytes::mib(7),
        reserved: Bytes::mib(10),
    };
    let mut snapshot = with_mappings(&[Bytes::mib(300)]);
    snapshot.hotspot = Some(HotSpot { code_cache: vec![segment], has_stopped_compiling: true, ..HotSpot::default() });
    let verdict = verdict_of(&snapshot, VerdictId::CodeCacheGrowth);
    assert_eq!(verdict.severity, Severity::Warning);
    assert!(verdict.summary.starts_with("the VM has stopped compiling"), "{}", verdict.summary);
    assert!(verdict.remedies[0].how.contains("ReservedCodeCacheSize=96m"), "{:?}", verdict.remedies);
}

/// CodeCache::initialize_heaps ends the VM if the three sizes don't sum to ReservedCodeCacheSize.
#[test]
fn segments_with_sizes_of_their_own_grow_with_the_code_cache() {
    let how = |argument: &str, factor: u64| {
        let segment = |(name, kib): (&str, u64)| CodeCacheSegment {
            name: name.to_owned(),
            range: AddressRange::default(),
            committed: Bytes::kib(kib),
            occupied: Bytes::kib(kib * factor),
            reserved: Bytes::kib(kib * factor),
        };
        let segments =
            [("non-nmethods", 8_192), ("profiled nmethods", 60_004), ("non-profiled nmethods", 40_000)].map(segment);
        let mut snapshot = with_mappings(&[Bytes::mib(300)]);
        snapshot.process.command = vec!["java".into(), argument.into()];
        snapshot.hotspot = Some(HotSpot { code_cache: segments.to_vec(), ..HotSpot::default() });
        let remedies = verdict_of(&snapshot, VerdictId::CodeCacheGrowth).remedies;
        remedies.first().map(|remedy| remedy.how.clone())
    };
    assert_eq!(how("-jar", 1).as_deref(), Some("-XX:ReservedCodeCacheSize=210m"));
    let expected = "-XX:ReservedCodeCacheSize=216392k -XX:NonNMethodCodeHeapSize=16384k -XX:ProfiledCodeHeapSize=120008k \
                    -XX:NonProfiledCodeHeapSize=80000k";
    assert_eq!(how("-XX:ProfiledCodeHeapSize=60004k", 1).as_deref(), Some(expected));
    assert_eq!(how("-XX:ProfiledCodeHeapSize=60004k", 15), None, "twice as much is more than a VM takes");
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

/// If the VM ignores the command, the memory stays, which looks like a leak.
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
    // Up to JDK 24, java.nio would count them.
    assert!(!offered("17.0.15+6", Bytes(0), 0) && offered("25.0.3+9-LTS", Bytes(0), 0));
}

/// 1,200 blocks of Arena.global(), and 20,000 of Unsafe, in programs without a buffer: java.nio counts none.
#[test]
fn memory_of_unsafe_in_a_program_without_buffers_is_named_by_its_calls() {
    let mib = Bytes::mib;
    let of = |version: &str, size: u64, count: Option<u64>| {
        let mut snapshot = with_direct(mib(80), Bytes(0), mib(512));
        snapshot.threads = (0..20).map(|tid| Thread { tid, ..Thread::default() }).collect();
        let number = (80 << 20) / size;
        let peak = EqualBlocks { size: Bytes(size), count: number, resident: mib(80) };
        let arena = Arena { live: mib(84), live_count: number, ..Arena::default() };
        snapshot.glibc = Some(Glibc { arenas: vec![arena], peaks: vec![peak], ..Glibc::default() });
        let vm = snapshot.hotspot.as_mut().expect("set");
        vm.version = version.to_owned();
        match count {
            Some(_) => vm.direct_buffers.as_mut().expect("set").count = count,
            None => vm.direct_buffers = None,
        }
        verdict_of(&snapshot, VerdictId::DirectBufferGrowth)
    };
    const CALLS: &str = "plimsoll attach 0 && sleep 60 && plimsoll report 0 --by site";
    for (version, size) in [("17.0.15+6", 4128), ("25.0.3+9-LTS", 65_568)] {
        let verdict = of(version, size, Some(0));
        let how: Vec<&str> = verdict.remedies.iter().map(|remedy| remedy.how.as_str()).collect();
        assert_eq!(how, [CALLS, "jcmd 0 GC.run"]);
        assert!(verdict.evidence[1] == "java.nio counts no buffer", "{:?}", verdict.evidence);
        assert!(!verdict.evidence.join(" ").contains("copies that NIO"), "{:?}", verdict.evidence);
        assert!(!verdict.remedies[1].what.contains("collections are just too rare"), "{verdict:?}");
        // Without the count, they may be anything.
        assert_eq!(of(version, size, None).remedies[0].how, CALLS);
    }
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
fn a_limit_of_nios_copies_that_is_set_is_not_proposed_again() {
    let mut snapshot = with_direct(Bytes::mib(300), Bytes::mib(100), Bytes::mib(4096));
    let verdict = |snapshot: &Snapshot| format!("{:?}", verdict_of(snapshot, VerdictId::DirectBufferGrowth));
    let proposed = verdict(&snapshot);
    assert!(proposed.contains("-Djdk.nio.maxCachedBufferSize=262144") && proposed.contains("copies that NIO keeps"));
    snapshot.process.command = vec!["java".into(), "-Djdk.nio.maxCachedBufferSize=65536".into()];
    let set = verdict(&snapshot);
    assert!(!set.contains("maxCachedBufferSize") && !set.contains("copies that NIO keeps"), "{set}");
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
        let mut snapshot = with_mappings(&[native, committed]);
        let range = snapshot.vmas[1].range;
        snapshot.limit_requested = Some(mib(400));
        let heap = JavaHeap { max: Some(mib(395)), occupied, committed, ..JavaHeap::default() };
        let regions = vec![VmRegion { range, tag: VmTag::JavaHeap, committed: vec![range] }];
        snapshot.hotspot = Some(HotSpot { java_heap: Some(heap), regions, ..HotSpot::default() });
        let verdict = verdict_of(&snapshot, VerdictId::LimitNear);
        verdict.remedies.iter().any(|remedy| remedy.how.starts_with("-Xmx"))
    };
    assert!(cap(mib(100), mib(60), mib(100)));
    assert!(!cap(mib(300), mib(60), mib(100)), "300 MiB are committed, 280 would be left");
    assert!(!cap(mib(100), mib(250), mib(100)), "objects take 250");
    assert!(!cap(mib(80), mib(60), mib(240)), "native memory has most of the limit");
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
    // A collection saves nothing where -Xms is as large as the heap. Where -Xms is far smaller, a collection leaves a
    // region or two above it.
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
