//! Remedies as they are typed in production: on old VMs, beside options in force, at programs that handle signals, and with
//! hostile names.

use super::*;
use crate::source::hotspot::Mute;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::CgroupVersion;

fn how(verdict: &Verdict) -> Vec<&str> {
    verdict.remedies.iter().map(|remedy| remedy.how.as_str()).collect()
}

/// A VM without the command answers that it doesn't know it.
#[test]
fn an_old_vm_is_trimmed_by_gdb() {
    let mib = Bytes::mib;
    for (version, has_command) in [
        ("25.402-b06", false),
        ("11.0.17+8", false),
        ("11.0.18+10", true),
        ("14.0.2+12", false),
        ("17+35", false),
        ("17.0.2+8", true),
        ("18+36", true),
        ("25.0.3+9-LTS", true),
        ("", true),
    ] {
        let mut snapshot = with_arenas(&[mib(57)], mib(70));
        snapshot.hotspot = Some(HotSpot { version: version.into(), ..HotSpot::default() });
        let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
        assert_eq!(how(&verdict)[0] == "jcmd 0 System.trim_native_heap", has_command, "{version}: {verdict:?}");
        assert_eq!(how(&verdict)[0].starts_with("gdb -p 0 "), !has_command, "{version}: {verdict:?}");
        enterable(&mut snapshot);
        let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
        assert_eq!(how(&verdict)[0] == "plimsoll try --pid 0 --with trim", !has_command, "{version}: {verdict:?}");
    }
}

/// A signal in any thread would end gdb's wait for the call, and the thread would return into nothing. JVMs send
/// themselves SIGSEGV.
#[test]
fn gdb_passes_signals_on_during_a_call() {
    let snapshot = with_arenas(&[Bytes::mib(57)], Bytes::mib(70));
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    let call = "gdb -p 0 -batch -ex 'handle all nostop noprint pass' -ex 'call (int)malloc_trim(0)'";
    assert_eq!(how(&verdict)[0], call);
    // It stops the program: nobody types it from the headline, unread.
    let headline = verdict.remedies[0].headline(verdict.id).expect("a row");
    assert_eq!(headline, "remedy 1 of allocator-retention: it stops or restarts the program");
}

/// On x86-64, with glibc as a library.
fn enterable(snapshot: &mut Snapshot) {
    snapshot.host.can_enter = true;
    let path = "/lib/libc.so.6".into();
    snapshot.allocators.push(LoadedAllocator { kind: AllocatorKind::Glibc, path, serves_malloc: true });
}

/// A static program's malloc is in its program file, where each thread has a return address.
#[test]
fn a_static_program_is_not_entered() {
    let mut snapshot = with_arenas(&[Bytes::mib(57)], Bytes::mib(70));
    enterable(&mut snapshot);
    snapshot.process.executable = Some(snapshot.allocators[0].path.clone());
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    let last = verdict.remedies.last().expect("remedies");
    assert_eq!((last.form, last.how.as_str()), (Form::Code, "malloc_trim(0);   // <malloc.h>"), "{verdict:?}");
    assert!(!how(&verdict).concat().contains("gdb"), "{verdict:?}");
    // With a loader beside it, another allocator may be preloaded.
    let code = |name: &str, inode| {
        let name = name.to_owned();
        Vma {
            range: AddressRange::sized(Avma(inode << 12), Bytes(4096)),
            executable: true,
            inode,
            name,
            ..Vma::default()
        }
    };
    let offers = |snapshot: &Snapshot| {
        let settled = Case { snapshot, ledger: &Ledger::of(snapshot) }.name_the_callers().how;
        let verdict = verdict_of(snapshot, VerdictId::AllocatorRetention);
        (how(&verdict).concat().contains("LD_PRELOAD"), settled.contains("linked dynamically"))
    };
    snapshot.vmas.push(code("/lib/libc.so.6", 1));
    assert_eq!(offers(&snapshot), (false, true));
    snapshot.vmas.push(code("/lib64/ld-linux-x86-64.so.2", 2));
    assert_eq!(offers(&snapshot), (true, false));
}

/// AT_SECURE: `setcap cap_net_bind_service=+ep node`. The loader drops LD_PRELOAD and malloc's variables.
#[test]
fn a_program_with_file_capabilities_gets_no_variable_that_its_loader_drops() {
    let mib = Bytes::mib;
    let mut few = with_arenas(&[mib(57)], mib(70));
    few.glibc.as_mut().expect("set").mmap_threshold = Some(mib(32));
    let many = with_arenas(&[mib(1), mib(20), mib(20), mib(20), mib(20), mib(20)], mib(1));
    let drops = ["MALLOC_", "LD_PRELOAD", "--with jemalloc"];
    for (mut snapshot, id) in [(few, VerdictId::AllocatorRetention), (many, VerdictId::ArenaRetention)] {
        enterable(&mut snapshot);
        let plain = verdict_of(&snapshot, id);
        assert!(drops.iter().any(|word| how(&plain).concat().contains(*word)), "{plain:?}");
        assert!(!plain.evidence.concat().contains("secure-execution"), "{plain:?}");
        snapshot.process.is_secure = true;
        let secure = verdict_of(&snapshot, id);
        assert!(!drops.iter().any(|word| how(&secure).concat().contains(*word)), "{secure:?}");
        assert!(secure.evidence.concat().contains("started in secure-execution mode"), "{secure:?}");
        assert_eq!(how(&secure)[0], how(&plain)[0], "a trim needs no variable");
    }
}

/// systemd's AmbientCapabilities=, or the capabilities of a file: `attach` refuses both, and `run` the latter.
#[test]
fn a_program_with_more_rights_than_its_user_is_not_attached_to() {
    let steps = |exceeds_user: bool, is_secure: bool| {
        let mut snapshot = with_arenas(&[Bytes::mib(57)], Bytes::mib(70));
        enterable(&mut snapshot);
        (snapshot.process.exceeds_user, snapshot.process.is_secure) = (exceeds_user, is_secure);
        let ledger = Ledger::of(&snapshot);
        let case = Case { snapshot: &snapshot, ledger: &ledger };
        let burst = case.callers_of_a_burst().concat();
        format!("{}\n{}\n{burst}", case.name_the_callers().how, case.name_what_grows().how)
    };
    let plain = steps(false, false);
    assert_eq!(plain.contains("plimsoll attach"), cfg!(target_arch = "x86_64"), "{plain}");
    let ambient = steps(true, false);
    assert!(!ambient.contains("plimsoll attach") && ambient.starts_with("plimsoll run --"), "{ambient}");
    let of_file = steps(true, true);
    assert!(!of_file.contains("plimsoll attach") && !of_file.contains("plimsoll run"), "{of_file}");
    assert!(of_file.starts_with("plimsoll explain 0 --format json > baseline.json"), "{of_file}");
    // The set-group-ID bit alone: `attach` works.
    let of_group = steps(false, true);
    assert_eq!(of_group.contains("plimsoll attach"), cfg!(target_arch = "x86_64"), "{of_group}");
}

/// This command can be typed from the headline: only one thread stands still.
#[test]
fn where_plimsoll_can_make_the_call_gdb_is_not_offered() {
    let mut snapshot = with_arenas(&[Bytes::mib(57)], Bytes::mib(70));
    let expected = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    enterable(&mut snapshot);
    let verdict = verdict_of(&snapshot, VerdictId::AllocatorRetention);
    assert_eq!(how(&verdict)[0], "plimsoll try --pid 0 --with trim");
    assert_eq!(verdict.remedies[0].headline(verdict.id).as_deref(), Some(how(&verdict)[0]));
    assert!(!how(&verdict).concat().contains("gdb"), "{verdict:?}");
    assert_eq!(verdict.remedies[0].effect, expected.remedies[0].effect);
}

/// A Java heap of which 900 MiB are resident, 60 were live after the last collection, and `occupied` are taken now.
fn after_a_collection(collector: &str, occupied: Bytes, flags: &[(&str, &str)]) -> Snapshot {
    let mib = Bytes::mib;
    let mut snapshot = with_mappings(&[mib(900)]);
    let range = snapshot.vmas[0].range;
    let heap = JavaHeap {
        max: Some(mib(1000)),
        occupied,
        live_after_gc: Some(mib(60)),
        committed: mib(900),
        ..JavaHeap::default()
    };
    snapshot.hotspot = Some(HotSpot {
        version: "25.0.3+9-LTS".to_owned(),
        regions: vec![VmRegion { range, tag: VmTag::JavaHeap, committed: vec![range] }],
        java_heap: Some(heap),
        flags: flags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        collector: Some(collector.to_owned()),
        ..HotSpot::default()
    });
    snapshot
}

/// A server between two collections: what it has allocated since the last one may be live, so a collection may leave
/// it.
#[test]
fn what_was_allocated_since_a_collection_may_be_live() {
    let mib = Bytes::mib;
    let of = |occupied: Bytes| {
        let snapshot = after_a_collection("G1", occupied, &[("G1HeapRegionSize", "1048576")]);
        let verdict = verdict_of(&snapshot, VerdictId::HeapCommittedUnused);
        let basis = certainty(&snapshot, &Ledger::of(&snapshot), &verdict);
        let Effect::Modelled(least, most) = verdict.remedies[0].effect else { panic!("{verdict:?}") };
        (verdict.summary, basis, least, most)
    };
    let (summary, basis, least, most) = of(mib(61));
    assert!(summary.starts_with("840 MiB of the Java heap is resident and holds no live object"), "{summary}");
    assert!(basis.starts_with("at least: "), "{basis}");
    assert_eq!((least, most), (mib(900) - mib(61).scaled(100, 70) - mib(2), mib(900)));
    let (summary, basis, least, _) = of(mib(500));
    assert!(summary.contains(" is resident beyond what the last collection left: "), "{summary}");
    assert!(basis.starts_with("at most: 440 MiB of it was allocated since"), "{basis}");
    assert_eq!(least, mib(900) - mib(500).scaled(100, 70) - mib(2));
    // More than the resident heap: the command is offered, but it may give nothing back.
    assert_eq!(of(mib(800)).2, Bytes(0));
}

#[test]
fn a_collection_that_runs_beside_the_program_promises_nothing() {
    let snapshot = after_a_collection("G1", Bytes::mib(60), &[("ExplicitGCInvokesConcurrent", "true")]);
    let remedy = &verdict_of(&snapshot, VerdictId::HeapCommittedUnused).remedies[0];
    assert!(remedy.how.ends_with("GC.run") && remedy.effect == Effect::Unknown, "{remedy:?}");
    assert!(remedy.trade_off.starts_with("with -XX:+ExplicitGCInvokesConcurrent"), "{remedy:?}");
}

/// Idle, ZGC gives back the same without the command.
#[test]
fn a_soft_limit_of_zgc_says_what_it_changes_and_how_to_undo_it() {
    let of = |flags: &[(&str, &str)]| {
        verdict_of(&after_a_collection("Z", Bytes::mib(60), flags), VerdictId::HeapCommittedUnused).remedies[0].clone()
    };
    let remedy = of(&[]);
    assert_eq!(remedy.how, "jcmd 0 VM.set_flag SoftMaxHeapSize 94371840");
    assert!(
        remedy.what.contains("An idle program gives back without this, in steps, what is unused for 5 min"),
        "{remedy:?}"
    );
    assert!(remedy.trade_off.ends_with("; undo: jcmd 0 VM.set_flag SoftMaxHeapSize 1048576000"), "{remedy:?}");
    let was_set = of(&[("SoftMaxHeapSize", "524288000")]).trade_off;
    assert!(was_set.ends_with("; undo: jcmd 0 VM.set_flag SoftMaxHeapSize 524288000"), "{was_set}");
    assert!(of(&[("ZUncommitDelay", "15")]).what.ends_with(" for 15 s"), "{:?}", of(&[]));
}

/// What is in force may give back more than what would be proposed.
#[test]
fn options_of_the_heap_are_neither_repeated_nor_weakened() {
    let with = |collector: &str, flags: &[(&str, &str)]| {
        let flags = [&[("InitialHeapSize", "8388608")][..], flags].concat();
        how(&verdict_of(&after_a_collection(collector, Bytes::mib(60), &flags), VerdictId::HeapCommittedUnused))
            .join("; ")
    };
    let ratios = [("MinHeapFreeRatio", "10"), ("MaxHeapFreeRatio", "30")];
    let idle = [&ratios[..], &[("G1PeriodicGCInterval", "30000")][..]].concat();
    assert_eq!(with("G1", &idle), "jcmd 0 GC.run");
    assert_eq!(
        with("G1", &[("MinHeapFreeRatio", "5"), ("MaxHeapFreeRatio", "20")]),
        "jcmd 0 GC.run; -XX:G1PeriodicGCInterval=60000"
    );
    // 0: never.
    assert_eq!(
        with("G1", &[("MinHeapFreeRatio", "5"), ("MaxHeapFreeRatio", "50"), ("G1PeriodicGCInterval", "0")]),
        "jcmd 0 VM.set_flag MaxHeapFreeRatio 30 && jcmd 0 GC.run; -XX:G1PeriodicGCInterval=60000 -XX:MaxHeapFreeRatio=30"
    );
    assert_eq!(with("Parallel", &idle), "-XX:-UseParallelGC -XX:+UseG1GC");
    assert_eq!(with("Serial", &ratios), "-XX:-ShrinkHeapInSteps");
    assert_eq!(with("Serial", &[&ratios[..], &[("ShrinkHeapInSteps", "false")][..]].concat()), "");
    assert!(with("Z", &[("ZUncommitDelay", "15")]).ends_with("; -XX:SoftMaxHeapSize=90m"));
    assert_eq!(with("Z", &[("SoftMaxHeapSize", "83886080")]), "-XX:ZUncommitDelay=60");
    assert_eq!(with("Z", &[("SoftMaxHeapSize", "83886080"), ("ZUncommitDelay", "15")]), "");
    let sooner = [("ShenandoahUncommitDelay", "1000"), ("ShenandoahGuaranteedGCInterval", "10000")];
    assert_eq!(with("Shenandoah", &sooner), "jcmd 0 GC.run; -XX:SoftMaxHeapSize=90m");
    assert!(with("Shenandoah", &sooner[..1]).ends_with(
        "; -XX:+UnlockExperimentalVMOptions -XX:ShenandoahGuaranteedGCInterval=60000 -XX:SoftMaxHeapSize=90m"
    ));
}

/// "Multiple garbage collectors selected": the VM doesn't start.
#[test]
fn another_collector_takes_the_place_of_the_one_in_force() {
    let verdict = verdict_of(&after_a_collection("Parallel", Bytes::mib(60), &[]), VerdictId::HeapCommittedUnused);
    assert!(how(&verdict)[0].starts_with("-XX:-UseParallelGC -XX:+UseG1GC "), "{verdict:?}");
}

/// The kernel takes the cache back before it kills: a server that reads many files fills its limit with it.
#[test]
fn page_cache_in_use_does_not_bring_the_limit_near() {
    let mib = Bytes::mib;
    let near = |active: u64, kills: u64| {
        let mut snapshot = with_limit(mib(200), mib(198), mib(0));
        if let Some(cgroup) = &mut snapshot.cgroup {
            (cgroup.stat.active_file, cgroup.oom.oom_kill) = (mib(active), kills);
        }
        verdict_of(&snapshot, VerdictId::LimitNear)
    };
    let cached = near(90, 0);
    assert_eq!(cached.severity, Severity::Note);
    assert!(cached.summary.contains("90.0 MiB of it by page cache"), "{}", cached.summary);
    assert!(cached.evidence[1].ends_with("which the kernel takes back before it kills: 54 % without it"), "{cached:?}");
    assert_eq!(near(2, 0).severity, Severity::Critical);
    assert_eq!(near(10, 0).severity, Severity::Warning);
    assert!(near(2, 0).summary.starts_with("99 % of the limit is in use: "), "{:?}", near(2, 0));
    // It has killed before.
    assert_eq!(near(90, 1).severity, Severity::Warning);
}

/// A program that looks up many files that don't exist fills its limit with dentries.
#[test]
fn reclaimable_slab_does_not_bring_the_limit_near() {
    let mib = Bytes::mib;
    let near = |active: u64, slab: u64| {
        let mut snapshot = with_limit(mib(200), mib(198), mib(0));
        let stat = &mut snapshot.cgroup.as_mut().expect("set").stat;
        (stat.active_file, stat.slab_reclaimable, stat.kernel) = (mib(active), mib(slab), mib(150));
        verdict_of(&snapshot, VerdictId::LimitNear)
    };
    let dentries = near(1, 140);
    let summary = "99 % of the limit is in use, 141 MiB of it by slab (dentries and inodes), which the kernel takes back \
                   before it kills";
    assert_eq!((dentries.severity, dentries.summary.as_str()), (Severity::Note, summary));
    let evidence = "141 MiB of it is slab (dentries and inodes) in use, which the kernel takes back before it kills: 28 % \
                    without it";
    assert_eq!(dentries.evidence[1], evidence);
    assert!(near(60, 80).summary.contains("140 MiB of it by page cache and slab (dentries"), "{:?}", near(60, 80));
    // Of 150 MiB of kernel memory, the kernel can take back 2.
    assert_eq!(near(0, 2).severity, Severity::Critical);
    assert_eq!(near(0, 10).severity, Severity::Warning);
}

/// Version 1 doesn't report slab, so kernel memory may be dentries.
#[test]
fn kernel_memory_of_version_1_is_no_proof_of_a_kill() {
    let mib = Bytes::mib;
    let near = |version: CgroupVersion, kernel: u64| {
        let mut snapshot = with_limit(mib(200), mib(198), mib(0));
        let cgroup = snapshot.cgroup.as_mut().expect("set");
        (cgroup.version, cgroup.stat.kernel) = (version, mib(kernel));
        verdict_of(&snapshot, VerdictId::LimitNear)
    };
    let most = near(CgroupVersion::V1, 100);
    assert_eq!(most.severity, Severity::Warning);
    assert!(
        most.evidence[1]
            .starts_with("100 MiB of it is kernel memory. Version 1 of cgroups doesn't report how much of that"),
        "{most:?}"
    );
    for proven in [near(CgroupVersion::V1, 98), near(CgroupVersion::V2, 100)] {
        assert_eq!(proven.severity, Severity::Critical);
        assert!(!proven.evidence.join("\n").contains("kernel memory"), "{proven:?}");
    }
}

/// 300 MiB of a leak that the kernel has swapped out: RSS is small, and no line has them.
#[test]
fn a_process_that_was_swapped_out_is_not_healthy() {
    let mib = Bytes::mib;
    let mut snapshot = with_mappings(&[mib(100)]);
    snapshot.process.swap = mib(300);
    assert_eq!(ids(&snapshot), ["unclear"]);
    let verdict = verdict_of(&snapshot, VerdictId::Unclear);
    assert_eq!(verdict.summary, "75 % of RSS and swap can't be judged; the largest part, 300 MiB, is swapped out");
    assert_eq!(how(&verdict), ["plimsoll explain 0 --maps"]);
    for little in [mib(47), mib(0)] {
        snapshot.process.swap = little;
        assert_eq!(ids(&snapshot), ["healthy"]);
    }
    let mut large = with_mappings(&[mib(1000)]);
    large.process.swap = mib(100);
    assert_eq!(ids(&large), ["healthy"]);
}

/// Over musl the tracker can only be loaded at the start; by a static program not at all.
#[test]
fn nobody_attaches_to_a_vm_over_musl() {
    let mut snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..with_mappings(&[Bytes::mib(100)]) };
    let path = "/lib/ld-musl-x86_64.so.1".to_owned();
    snapshot.allocators.push(LoadedAllocator { kind: AllocatorKind::Musl, path, serves_malloc: true });
    let ledger = Ledger::of(&snapshot);
    let remedies = Case { snapshot: &snapshot, ledger: &ledger }.settle_blocks();
    assert!(remedies[0].how.starts_with("plimsoll run -- "), "{remedies:?}");
    assert!(!remedies[0].how.contains("linked dynamically"), "{remedies:?}");
    assert!(remedies.iter().all(|remedy| !remedy.how.contains("plimsoll attach")), "{remedies:?}");
    snapshot.allocators.clear();
    snapshot.malloc_heap = Some(OtherHeap::new(AllocatorKind::Musl));
    let ledger = Ledger::of(&snapshot);
    let remedies = Case { snapshot: &snapshot, ledger: &ledger }.settle_blocks();
    assert!(remedies[0].how.contains("linked dynamically"), "{remedies:?}");
    assert!(Case { snapshot: &snapshot, ledger: &ledger }.callers_of_a_burst().is_empty());
    // A sanitizer's runtime must come first, so the tracker neither attaches nor comes with the start.
    let name = "/usr/lib/x86_64-linux-gnu/libasan.so.8.0.0".to_owned();
    let mut sanitized = Snapshot { hotspot: Some(HotSpot::default()), ..with_mappings(&[Bytes::mib(100)]) };
    sanitized.vmas.push(Vma { name, executable: true, inode: 1, ..Vma::default() });
    let ledger = Ledger::of(&sanitized);
    let case = Case { snapshot: &sanitized, ledger: &ledger };
    let remedies = case.settle_blocks();
    assert!(remedies[0].how.contains("built without the sanitizer"), "{remedies:?}");
    assert!(remedies.iter().all(|remedy| !remedy.how.contains("plimsoll attach")), "{remedies:?}");
    assert!(case.callers_of_a_burst().is_empty());
}

/// A name is a pattern for grep, between quotes, in one line.
#[test]
fn names_of_threads_find_themselves_and_do_nothing_else() {
    let pattern = |name: &'static str| {
        let snapshot = with_threads(64, Bytes::mib(1), move |index| name.replace('1', &(index + 1).to_string()));
        let snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..snapshot };
        let how = verdict_of(&snapshot, VerdictId::ThreadStacks).remedies[0].how.clone();
        let (_, rest) = how.split_once("grep -A 8 ").expect("a search");
        rest.strip_suffix(" | head -n 60").expect("the end").to_owned()
    };
    assert_eq!(pattern("elasticsearch[n][write][T#1]"), "'elasticsearch.n..write..T#[0-9]*.'");
    assert_eq!(pattern("worker (1)"), "'worker .[0-9]*.'");
    assert_eq!(pattern("pool-1-thread-1"), "'pool-[0-9]*-thread-[0-9]*'");
    assert_eq!(pattern("-e x*-1"), "'.e x.-[0-9]*'");
    assert_eq!(pattern("a\nreboot; '$(b)-1"), "'a.reboot; ...b.-[0-9]*'");
}

#[test]
fn a_cap_that_another_setting_has_is_changed_there() {
    let mib = Bytes::mib;
    let trade_off = |variable: Option<(&str, &str)>, is_set: bool| {
        let mut snapshot = with_arenas(&[mib(1), mib(20), mib(20), mib(20), mib(20), mib(20)], mib(1));
        snapshot.process.environment = variable.map(|(name, value)| (name.into(), value.into())).into_iter().collect();
        snapshot.glibc.as_mut().expect("arenas").arena_cap_set = is_set;
        let remedies = verdict_of(&snapshot, VerdictId::ArenaRetention).remedies;
        let cap = remedies.iter().find(|remedy| remedy.how.starts_with("MALLOC_ARENA_MAX=4"));
        cap.expect("a cap").trade_off.clone()
    };
    let plain = trade_off(None, false);
    assert!(plain.ends_with("at 2 and at 4"), "{plain}");
    assert_eq!(trade_off(Some(("MALLOC_ARENA_MAX", "16")), true), plain);
    assert!(trade_off(None, true).contains("mallopt(M_ARENA_MAX), that wins"));
    let tunables = Some(("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1:glibc.malloc.arena_max=16"));
    assert!(trade_off(tunables, true).ends_with("GLIBC_TUNABLES has glibc.malloc.arena_max already: change it there"));
    // The same for the threshold of large blocks.
    let mut snapshot = with_arenas(&[mib(57)], mib(70));
    snapshot.process.environment = vec![("GLIBC_TUNABLES".into(), "glibc.malloc.mmap_threshold=9999999".into())];
    let remedies = verdict_of(&snapshot, VerdictId::AllocatorRetention).remedies;
    let threshold = remedies.iter().find(|remedy| remedy.how.starts_with("MALLOC_MMAP_THRESHOLD_=")).expect("it");
    assert!(threshold.trade_off.ends_with("mmap_threshold already: change it there"), "{threshold:?}");
}

#[test]
fn class_loaders_are_listed_by_a_command_that_the_vm_has() {
    let how = |version: &str| {
        let hotspot = Some(HotSpot { version: version.into(), ..HotSpot::default() });
        let snapshot = Snapshot { hotspot, ..Snapshot::default() };
        let ledger = Ledger::of(&snapshot);
        super::super::classes::by_loader(Case { snapshot: &snapshot, ledger: &ledger }, "").how
    };
    assert_eq!(how("25.402-b06"), "jcmd 0 GC.class_histogram | grep ClassLoader");
    assert_eq!(how("10.0.2+13"), "jcmd 0 VM.classloader_stats");
    for version in ["11.0.22+7", "25.0.3+9-LTS", ""] {
        assert!(how(version).starts_with("jcmd 0 VM.classloaders "), "{version}");
    }
}

/// At 80 % of the limit, the share of RSS is beside the point.
#[test]
fn a_full_limit_of_direct_memory_is_the_first_thing_said() {
    let mib = Bytes::mib;
    let summary = |counted: u64| {
        verdict_of(&with_direct(mib(100), mib(counted), mib(512)), VerdictId::DirectBufferGrowth).summary
    };
    assert_eq!(
        summary(461),
        "direct buffers take 90 % of their limit of 512 MiB, above which an allocation fails; up to 100 MiB of that is resident"
    );
    assert!(summary(100).starts_with("direct buffers hold 100 MiB: "), "{}", summary(100));
    assert!(summary(80).starts_with("direct buffers hold 100 MiB: "), "{}", summary(80));
    let most = summary(75);
    assert!(most.starts_with("direct buffers and other memory of Unsafe hold 100 MiB: "), "{most}");
    assert!(most.ends_with("; java.nio counts 75.0 MiB"), "{most}");
}

/// The VM doesn't start with a code cache of more than 2 GiB.
#[test]
fn a_code_cache_has_a_largest_size() {
    let how = |reserved: Bytes| {
        let name = "CodeCache".to_owned();
        let range = AddressRange::default();
        let segment = CodeCacheSegment { name, range, committed: reserved, occupied: reserved, reserved };
        let mut snapshot = with_mappings(&[Bytes::mib(300)]);
        snapshot.hotspot = Some(HotSpot { code_cache: vec![segment], ..HotSpot::default() });
        let remedies = verdict_of(&snapshot, VerdictId::CodeCacheGrowth).remedies;
        remedies.into_iter().next().map(|remedy| remedy.how)
    };
    assert_eq!(how(Bytes::mib(240)).as_deref(), Some("-XX:ReservedCodeCacheSize=480m"));
    assert_eq!(how(Bytes::mib(1500)).as_deref(), Some("-XX:ReservedCodeCacheSize=2048m"));
    assert_eq!(how(Bytes::mib(2048)), None);
}

/// Less than -Xss would end deep recursion in a StackOverflowError.
#[test]
fn stacks_stay_about_as_large_as_they_are() {
    let how = |version: &str, set: Option<&str>| {
        let mut snapshot = with_threads(40, Bytes::mib(2), |index| format!("worker-{index}"));
        snapshot.vmas.iter_mut().for_each(|vma| vma.anon_huge = vma.rss);
        let flags = set.map(|kib| ("ThreadStackSize".to_owned(), kib.to_owned())).into_iter().collect();
        snapshot.hotspot = Some(HotSpot { version: version.into(), flags, ..HotSpot::default() });
        let remedies = verdict_of(&snapshot, VerdictId::HugePages).remedies;
        remedies.into_iter().map(|remedy| remedy.how).find(|how| how.contains("ThreadStackSize"))
    };
    let default = cfg!(target_arch = "x86_64").then_some("-XX:ThreadStackSize=1020");
    assert_eq!(how("17.0.15+6", None).as_deref(), default);
    assert_eq!(how("17.0.15+6", Some("4096")).as_deref(), Some("-XX:ThreadStackSize=4092"));
    assert_eq!(how("17.0.15+6", Some("512")).as_deref(), Some("-XX:ThreadStackSize=508"));
    assert_eq!(how("17.0.15+6", Some("0")).as_deref(), default);
    assert_eq!(how("21.0.2+13", Some("4096")), None);
}

/// Threads that carry virtual threads have such names, too.
#[test]
fn only_the_common_pool_has_the_common_pools_option() {
    let proposed = |name: &'static str| {
        let mut snapshot = with_threads(64, Bytes::mib(1), move |index| format!("{name}-worker-{}", index + 1));
        snapshot.host.cpus_online = 8;
        snapshot.hotspot = Some(HotSpot::default());
        let remedies = verdict_of(&snapshot, VerdictId::ThreadStacks).remedies;
        remedies.iter().any(|remedy| remedy.how.contains("common.parallelism=16"))
    };
    assert!(proposed("ForkJoinPool.commonPool"));
    assert!(!proposed("ForkJoinPool-1"));
}

#[test]
fn a_command_of_the_jdk_says_where_it_works() {
    let trade_off = |contained: bool, uid: u32, version: &str, root: Root| {
        let mut snapshot = with_direct(Bytes::mib(160), Bytes::mib(160), Bytes::mib(512));
        let process = &mut snapshot.process;
        (process.pid, process.namespaced_pid, process.contained, process.uid) = (4711, Some(7), contained, uid);
        snapshot.host.root = root;
        snapshot.hotspot.as_mut().expect("a VM").version = version.to_owned();
        let remedies = verdict_of(&snapshot, VerdictId::DirectBufferGrowth).remedies;
        assert_eq!(remedies[0].how, "jcmd 4711 GC.run");
        remedies[0].trade_off.clone()
    };
    let plain = "a full collection pauses the program";
    assert_eq!(trade_off(false, 1000, "25.0.3+9-LTS", Root::Already), plain);
    let inside = format!("{plain}; without a jcmd here, type it in the container, where the PID is 7");
    assert_eq!(trade_off(true, 1000, "25.0.3+9-LTS", Root::Already), inside);
    let user = format!("{plain}; type it as the user of the VM (uid 1000): this VM refuses root");
    assert_eq!(trade_off(false, 1000, "25.402-b06", Root::Already), user);
    assert_eq!(trade_off(false, 1000, "25.402-b06", Root::Sudo), plain);
    assert_eq!(trade_off(false, 0, "25.402-b06", Root::Already), plain);
}

/// -XX:+DisableAttachMechanism, -Xrs, and a socket through which another VM would take them.
#[test]
fn a_vm_that_takes_no_commands_gets_none() {
    let mib = Bytes::mib;
    let mut snapshot = with_arenas(&[mib(57)], mib(70));
    snapshot.hotspot = Some(HotSpot { version: "25.0.3+9-LTS".into(), ..HotSpot::default() });
    for reason in [
        "the VM was started with -XX:+DisableAttachMechanism",
        "the VM doesn't catch SIGQUIT (-Xrs, or it is still starting), so it can't be queried",
        &format!("the VM can't be queried: {}", Mute::Elsewhere(4711)),
    ] {
        snapshot.gaps = vec![Gap::new(Source::HotSpot, reason, "")];
        let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
        assert!(verdicts.iter().any(|verdict| verdict.id == VerdictId::NativeLeak), "{verdicts:?}");
        assert!(verdicts.iter().flat_map(how).all(|how| !how.contains("jcmd ")), "{verdicts:?}");
        let trim = &verdict_of(&snapshot, VerdictId::AllocatorRetention);
        assert!(how(trim)[0].starts_with("gdb -p 0 "), "{trim:?}");
    }
    snapshot.gaps.clear();
    assert!(how(&verdict_of(&snapshot, VerdictId::AllocatorRetention))[0].starts_with("jcmd 0 "));
}
