//! The next steps: commands, settings, and the figures beside them.

use super::*;

/// A command that would refuse, or that was just typed, isn't the next step.
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
    // The last option counts, and the VM reads its variables first.
    let options = |variable: &str, words: &[&str]| {
        let mut snapshot = Snapshot { hotspot: snapshot.hotspot.clone(), ..with_mappings(&[Bytes::mib(100)]) };
        snapshot.process.command = words.iter().copied().map(String::from).collect();
        snapshot.process.environment = vec![("JAVA_TOOL_OPTIONS".into(), variable.into())];
        snapshot
    };
    const REFUSES: &str = "-XX:-EnableDynamicAgentLoading";
    const ALLOWS: &str = "-XX:+EnableDynamicAgentLoading";
    for refusing in [
        options("", &["java", REFUSES, "Shop"]),
        options(REFUSES, &["java", "Shop"]),
        options(&format!("{ALLOWS} -Xmx1g {REFUSES} -Xss1m"), &["java", "Shop"]),
        options(ALLOWS, &["java", REFUSES, "Shop"]),
    ] {
        let steps = how(&refusing);
        assert!(steps[0].0.starts_with("plimsoll run --"), "{steps:?}");
        assert!(!steps.iter().any(|(how, _)| how.contains("plimsoll attach")), "{steps:?}");
        let ledger = Ledger::of(&refusing);
        assert!(Case { snapshot: &refusing, ledger: &ledger }.callers_of_a_burst().is_empty());
    }
    let allowing = how(&options(REFUSES, &["java", ALLOWS, "Shop"]));
    assert!(allowing[0].0 == plain[0].0 && !allowing[0].1.contains("warning"), "{allowing:?}");
    // What the VM answers counts first: its options may come from a file.
    let mut answered = options("", &["java", "@options", "Shop"]);
    answered.hotspot.as_mut().expect("a VM").flags = vec![("EnableDynamicAgentLoading".into(), "false".into())];
    assert!(how(&answered)[0].0.starts_with("plimsoll run --"), "{:?}", how(&answered));
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

/// A minute is the longest interval that would be no weaker. 0 switches the trims off.
#[test]
fn a_vm_that_trims_as_often_gets_no_longer_interval() {
    use super::remedies::periodic_trim;
    for (interval, is_proposed) in [("5000", false), ("60000", false), ("300000", true), ("0", true)] {
        let flags = vec![("TrimNativeHeapInterval".to_owned(), interval.to_owned())];
        let version = "25.0.3+9-LTS".to_owned();
        let snapshot =
            Snapshot { hotspot: Some(HotSpot { version, flags, ..HotSpot::default() }), ..Snapshot::default() };
        let ledger = Ledger::of(&snapshot);
        assert_eq!(periodic_trim(Case { snapshot: &snapshot, ledger: &ledger }).is_some(), is_proposed, "{interval}");
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
