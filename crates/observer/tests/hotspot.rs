//! Queries real VMs. The expected answers follow from Quiet.java's arguments and flags.

mod processes;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_facts::gap::Gap;
use plimsoll_facts::snapshot::{HotSpot, NmtMode, VmTag};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::collect::{MappingDetail, Regions, SeriesState};
use plimsoll_observer::source::hotspot::{locate, read};
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::{self, Target};
use processes::{Jdk, Subject, jdks, vmas};

fn query(pid: u32) -> (HotSpot, Vec<Gap>) {
    let target = Target::open(pid, Deadline::after(LOOK)).expect("runs");
    let (hotspot, gaps) = read(&target, &vmas(pid), None);
    (hotspot.expect("a HotSpot VM").0, gaps)
}

const FLAGS: [&str; 5] = ["-Xmx96m", "-Xms96m", "-XX:+UseG1GC", "-XX:ReservedCodeCacheSize=64m", "-Xlog:disable"];

fn quiet(jdk: &Jdk, more: &[&str]) -> Subject {
    Subject::start(&mut jdk.program("Quiet", &[&FLAGS, more].concat(), &["32", "1048576", "7"]))
}

fn check_what_every_vm_says(jdk: &Jdk, hotspot: &HotSpot) {
    assert!(hotspot.version.starts_with(&jdk.major.to_string()), "{}", hotspot.version);
    assert_eq!(hotspot.collector.as_deref(), Some("G1"));
    let heap = hotspot.java_heap.as_ref().expect("a heap");
    assert_eq!((heap.reserved, heap.committed, heap.max), (Bytes::mib(96), Bytes::mib(96), Some(Bytes::mib(96))));
    assert!(heap.occupied > Bytes(0) && heap.occupied < Bytes::mib(96));
    let reserved = |tag: VmTag| -> Bytes {
        hotspot.regions.iter().filter(|region| region.tag == tag).map(|region| region.range.length()).sum()
    };
    assert_eq!(reserved(VmTag::JavaHeap), Bytes::mib(96));
    // NMT also counts the segment maps: 1 byte per 128 bytes of the segments.
    let code = reserved(VmTag::Code);
    assert!(code >= Bytes::mib(64) && code <= Bytes::mib(65), "{code}");
    assert!(reserved(VmTag::Class) >= Bytes::mib(8));
    assert!(reserved(VmTag::Gc) >= Bytes::kib(96 * 2), "a card table has a byte for each 512");
    assert_eq!(hotspot.code_cache.iter().map(|segment| segment.range.length()).sum::<Bytes>(), Bytes::mib(64));
    let direct = hotspot.direct_buffers.as_ref().expect("java.nio's own count");
    assert_eq!((direct.count, direct.capacity, direct.max), (Some(32), Bytes::mib(32), Some(Bytes::mib(96))));
    for pair in hotspot.regions.windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start, "{pair:?} overlap");
    }
    let workers =
        hotspot.threads.iter().filter(|thread| thread.name.starts_with("quiet-\"quoted\"-worker-with-a-long-name-"));
    assert_eq!(workers.filter(|thread| thread.tid > 0).count(), 7);
    assert!(hotspot.flags.contains(&("MaxHeapSize".into(), Bytes::mib(96).0.to_string())));
}

#[test]
fn with_nmt_off_the_regions_are_still_found() {
    for jdk in jdks() {
        let subject = quiet(&jdk, &["-XX:NativeMemoryTracking=off"]);
        let (hotspot, gaps) = query(subject.pid());
        assert_eq!(gaps, []);
        assert_eq!(hotspot.nmt, NmtMode::Off);
        assert_eq!(hotspot.categories, []);
        check_what_every_vm_says(&jdk, &hotspot);
    }
}

#[test]
fn nmt_summary_and_detail_give_sizes_and_regions() {
    for jdk in jdks() {
        for level in ["summary", "detail"] {
            let subject = quiet(&jdk, &[&format!("-XX:NativeMemoryTracking={level}")]);
            let (hotspot, gaps) = query(subject.pid());
            assert_eq!(gaps, [], "{jdk:?} {level}");
            assert!(matches!(hotspot.nmt, NmtMode::Summary | NmtMode::Detail));
            check_what_every_vm_says(&jdk, &hotspot);
            let other = hotspot.categories.iter().find(|category| category.name == "Other").expect("direct buffers");
            assert!(other.malloc >= Bytes::mib(32) && other.malloc < Bytes::mib(33), "{other:?}");
            // Equals the VM's own sum, except for rounding and for what the VM counts separately (its total omits
            // blocks of some tags).
            let total = hotspot.nmt_total.as_ref().expect("a total");
            let sum: Bytes = hotspot.categories.iter().map(|category| category.committed).sum();
            assert!(sum.abs_diff(total.committed) <= Bytes::kib(4), "{jdk:?} {level}: {sum:?} {:?}", total.committed);
            for category in &hotspot.categories {
                let parts = category.malloc + category.arena + category.mmap_committed;
                let exact = !matches!(&*category.name, "Native Memory Tracking");
                assert!(!exact || parts == category.committed, "{jdk:?} {category:?}");
            }
        }
    }
}

/// A VM that resolves names of its own functions (VM.info, NMT's stacks) reads libjvm's symbols and keeps them: 4 to 5
/// MB in Internal. (Memory that its compilers take and release meanwhile is in their category.)
#[test]
fn a_query_leaves_nothing_behind_in_the_vm() {
    for jdk in jdks() {
        let subject = quiet(&jdk, &["-XX:NativeMemoryTracking=summary"]);
        let malloc = || {
            let categories = query(subject.pid()).0.categories;
            categories.iter().find(|category| category.name == "Internal").expect("it counts them").malloc
        };
        let first = malloc();
        let second = malloc();
        assert!(second.abs_diff(first) < Bytes::mib(1), "{jdk:?}: {first} before, {second} after it was queried");
    }
}

/// A VM reserves its mark bits once, so a later query has them without VM.info.
#[test]
fn what_only_vm_info_prints_is_kept() {
    for jdk in jdks() {
        let subject = quiet(&jdk, &["-XX:NativeMemoryTracking=off"]);
        let target = Target::open(subject.pid(), Deadline::after(Duration::from_secs(60))).expect("runs");
        let maps = vmas(subject.pid());
        let regions = |hotspot: &HotSpot| {
            let own = hotspot.regions.iter().filter(|region| region.tag == VmTag::Gc);
            own.map(|region| region.range).collect::<Vec<_>>()
        };
        let (first, mut known) = read(&target, &maps, None).0.expect("a HotSpot VM");
        let mut located = first.clone();
        assert_eq!(locate(&target, &maps, &mut located, known.as_mut()), [], "{jdk:?}");
        assert!(regions(&located).len() > regions(&first).len(), "{jdk:?}: {:?}", regions(&located));
        let (second, _) = read(&target, &maps, known).0.expect("a HotSpot VM");
        assert_eq!((second.located, regions(&second)), (located.located, regions(&located)), "{jdk:?}");
        assert_eq!(second.symbols_for, [""; 0], "{jdk:?}: it was not sent again");
    }
}

/// Read calls of this thread so far. None if this kernel doesn't count them.
fn reads() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
}

/// A series of readings keeps what can't have changed, and sees what has. After a line of input, the program loads a
/// class that counts memory as Netty's does. It also makes a direct buffer: its first one, or its second.
#[test]
fn a_later_query_reads_little_again_and_sees_each_class_that_came() {
    const NETTY: &str = "package io.netty.util.internal;\npublic class PlatformDependent {\n    \
        static final java.util.concurrent.atomic.AtomicLong COUNTER = new java.util.concurrent.atomic.AtomicLong(7 << 20);\n}\n";
    const LATER: &str = "public class Later {\n    static Object kept;\n    \
        public static void main(String[] args) throws Exception {\n        \
        if (args.length > 0) kept = java.nio.ByteBuffer.allocateDirect(1 << 20);\n        \
        System.out.println(\"READY\");\n        System.in.read();\n        \
        Class.forName(\"io.netty.util.internal.PlatformDependent\");\n        \
        kept = new Object[] {kept, java.nio.ByteBuffer.allocateDirect(5 << 20)};\n        \
        System.out.println(\"READY\");\n        Thread.sleep(Long.MAX_VALUE);\n    }\n}\n";
    for jdk in jdks() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("later-{}-{}", jdk.major, std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let sources = [("PlatformDependent.java", NETTY), ("Later.java", LATER)].map(|(name, text)| {
            std::fs::write(folder.join(name), text).expect("a source");
            folder.join(name)
        });
        assert!(jdk.tool("javac").arg("-d").arg(&folder).args(sources).status().expect("javac").success());
        for first in [Some("first"), None] {
            let mut java = jdk.tool("java");
            java.arg("-Xmx64m").arg("-cp").arg(&folder).arg("Later").args(first).stdin(Stdio::piped());
            let mut subject = Subject::start(&mut java);
            let pid = subject.pid();
            let target = Target::open(pid, Deadline::after(Duration::from_secs(60))).expect("runs");
            let direct = |hotspot: &HotSpot| {
                hotspot.direct_buffers.as_ref().map(|direct| (direct.capacity.0 >> 20, direct.by_netty.0 >> 20))
            };
            let mut series = SeriesState::default();
            let mut snapshot = series.take(pid, None, Deadline::after(LOOK)).expect("runs");
            let mut known = None;
            let mut query = || {
                let maps = vmas(pid);
                let before = reads();
                let (hotspot, _) = read(&target, &maps, known.take());
                let (hotspot, kept) = hotspot.expect("a HotSpot VM");
                known = kept;
                (hotspot, reads().zip(before).map(|(now, before)| now - before))
            };
            let (one, of_first) = query();
            let (two, of_second) = query();
            if let Some((first, second)) = of_first.zip(of_second) {
                assert!(second * 4 < first, "{jdk:?}: {second} of {first}");
            }
            let threads = |hotspot: &HotSpot| {
                let own = ["main", "Finalizer", "Reference Handler", "Signal Dispatcher"];
                own.map(|name| hotspot.threads.iter().filter(|thread| thread.name == name).count())
            };
            assert_eq!((threads(&two), direct(&two)), (threads(&one), direct(&one)), "{jdk:?}");
            assert_eq!(threads(&one), [1; 4], "{jdk:?}");
            let regions = |hotspot: &HotSpot| {
                let own = hotspot.regions.iter().filter(|region| region.tag != VmTag::Class);
                own.map(|region| (region.range, region.tag.clone())).collect::<Vec<_>>()
            };
            assert_eq!(regions(&two), regions(&one), "{jdk:?}");
            let before = u64::from(first.is_some());
            assert!(direct(&two).is_none_or(|direct| direct == (before, 0)), "{jdk:?}: {:?}", direct(&two));

            subject.child.stdin.take().expect("piped").write_all(b"\n").expect("it runs");
            let mut lines = BufReader::new(subject.child.stdout.take().expect("piped"));
            lines.read_line(&mut String::new()).expect("a line");
            assert_eq!(direct(&query().0), Some((before + 5, 7)), "{jdk:?}: the next query");
            let now = proc::read_process(&target).expect("runs");
            series.begin(None, &snapshot);
            series.update(&target, &mut snapshot, now, MappingDetail::Pages).expect("runs");
            let capacity = direct(snapshot.hotspot.as_ref().expect("a VM")).map(|direct| direct.0);
            assert_eq!(capacity, Some(before + 5), "{jdk:?}: the next instant");
            let snapshot = series.take(pid, Some(&snapshot), Deadline::after(LOOK)).expect("runs");
            assert_eq!(direct(snapshot.hotspot.as_ref().expect("a VM")), Some((before + 5, 7)), "{jdk:?}: its query");
        }
    }
}

/// Counted by the VM's own safepoint statistics: there is none for Thread.print, which walks all stacks.
#[test]
fn full_thread_names_cost_no_safepoint_with_any_collector() {
    const WORKER: &str = "quiet-\"quoted\"-worker-with-a-long-name-";
    for jdk in jdks() {
        let collectors = ["UseG1GC", "UseSerialGC", "UseParallelGC", "UseZGC", "UseShenandoahGC"];
        let flags = collectors.map(|gc| vec![format!("-XX:+{gc}")]).into_iter();
        let compact = jdk.has_compact_headers().then(|| vec!["-XX:+UseCompactObjectHeaders".to_owned()]);
        for flags in flags.chain([vec!["-XX:-UseCompressedOops".to_owned()]]).chain(compact) {
            let log = format!("{}/safepoints-{}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id(), jdk.major);
            let logged = format!("-Xlog:safepoint:file={log}");
            let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-Xmx96m", &logged]).collect();
            let subject = Subject::start(&mut jdk.program("Quiet", &flags, &["32", "1048576", "7"]));
            let (hotspot, gaps) = query(subject.pid());
            assert_eq!(gaps, [], "{jdk:?} {flags:?}");
            let names = hotspot.threads.iter().filter(|thread| thread.name.starts_with(WORKER));
            let kernel = |tid: u32| std::fs::read_to_string(format!("/proc/{}/task/{tid}/comm", subject.pid()));
            let workers = names.inspect(|thread| assert!(kernel(thread.tid).expect("a thread").starts_with("quiet-")));
            assert_eq!(workers.count(), 7, "{jdk:?} {flags:?}");
            assert!(hotspot.threads.iter().any(|thread| thread.name == "main" && thread.tid > 0));
            let direct = hotspot.direct_buffers.expect("java.nio's own count");
            assert_eq!((direct.count, direct.capacity), (Some(32), Bytes::mib(32)), "{jdk:?} {flags:?}");
            let log = std::fs::read_to_string(&log).expect("the VM's log");
            assert!(log.contains("PrintMetadata") && !log.contains("PrintThreads"), "{log}");
        }
    }
}

#[test]
fn a_stopped_vm_is_a_gap_and_gets_no_signal() {
    let jdk = &jdks()[0];
    let subject = quiet(jdk, &[]);
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &subject.pid().to_string()]).status().expect("kill").success());
    };
    signal("-STOP");
    let status = || std::fs::read_to_string(format!("/proc/{}/status", subject.pid())).expect("status");
    while !status().contains("State:\tT") {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A wait for the VM lasts until the deadline.
    let target = Target::open(subject.pid(), Deadline::after(Duration::from_secs(600))).expect("it runs");
    let began = Instant::now();
    let (hotspot, gaps) = read(&target, &vmas(subject.pid()), None);
    assert!(began.elapsed() < Duration::from_secs(60), "a hang, not a speed");
    let hotspot = hotspot.expect("a HotSpot VM").0;
    assert!(gaps.len() == 1 && gaps[0].reason.contains("stopped"), "{gaps:?}");
    assert!(
        hotspot.java_heap.is_some_and(|heap| heap.committed.abs_diff(Bytes::mib(96)) < Bytes(64)),
        "hsperfdata is read all the same"
    );
    let pending = status();
    assert!(pending.lines().any(|line| line.replace('\t', "") == "ShdPnd:0000000000000000"), "{pending}");
    signal("-CONT");
}

fn has_pending_signals(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let pending = |line: &&str| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:");
    status.lines().filter(pending).any(|line| !line.ends_with("\t0000000000000000"))
}

#[test]
fn a_vm_that_must_not_be_signalled_lives_on() {
    for jdk in jdks() {
        for (flag, reason) in [("-XX:+DisableAttachMechanism", "DisableAttachMechanism"), ("-Xrs", "")] {
            for perfdata in ["-XX:+UsePerfData", "-XX:-UsePerfData"] {
                let mut subject = quiet(&jdk, &[flag, perfdata]);
                // A signal that the first query sent has ended the VM before the second one.
                for _ in 0..2 {
                    let (_, gaps) = query(subject.pid());
                    // With -Xrs the listener runs from the start, so the VM can be queried without a signal.
                    assert!(gaps.iter().all(|gap| !reason.is_empty() && gap.reason.contains(reason)), "{gaps:?}");
                    assert_eq!(gaps.is_empty(), reason.is_empty(), "{jdk:?} {flag}");
                    let began = Instant::now();
                    while has_pending_signals(subject.pid()) {
                        assert!(began.elapsed() < Duration::from_secs(60), "{flag} {perfdata}: it has no time to die");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                assert!(subject.child.try_wait().expect("a child").is_none(), "{flag} {perfdata}: it died");
            }
        }
    }
}

#[test]
fn a_vm_in_other_pid_and_mount_namespaces_is_queried_through_proc() {
    for jdk in jdks() {
        let program = jdk.program(
            "Quiet",
            &[&FLAGS[..], &["-XX:NativeMemoryTracking=summary"]].concat(),
            &["32", "1048576", "7"],
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "sh", "-c"]);
        unshare
            // The checkout may lie under /tmp, so it is mounted again at its path. What a test has mounted below it
            // comes along, or the kernel refuses (mount_namespaces(7), "locked").
            .arg(
                "root=$1; shift; mount --rbind \"$root\" /mnt && mount -t tmpfs none /tmp && mkdir -p \"$root\" && \
                 mount --rbind /mnt \"$root\" && cd / && \"$@\"",
            )
            .arg("sh")
            .arg(std::fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).expect("the checkout"))
            .arg(program.get_program())
            .args(program.get_args());
        let subject = Subject::start(&mut unshare);
        let java = descendant_named(subject.pid(), "java");
        let (hotspot, gaps) = query(java);
        assert_eq!(gaps, []);
        check_what_every_vm_says(&jdk, &hotspot);
        assert!(hotspot.threads.iter().all(|thread| thread.tid < 1000), "of its own namespace");
    }
}

fn descendant_named(pid: u32, name: &str) -> u32 {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if comm.trim() == name {
        return pid;
    }
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .map(|child| descendant_named(child.parse().expect("a pid"), name))
        .find(|pid| *pid != 0)
        .unwrap_or(0)
}

#[test]
fn other_processes_are_not_queried() {
    let mut subject = Subject::start(Command::new("sh").args(["-c", "echo READY; exec sleep 1000"]));
    let target = Target::open(subject.pid(), Deadline::after(LOOK)).expect("runs");
    let (hotspot, gaps) = read(&target, &vmas(subject.pid()), None);
    assert!(hotspot.is_none() && gaps.is_empty());
    assert!(subject.child.try_wait().expect("a child").is_none());
}

#[test]
fn direct_buffers_are_found_by_their_own_headers() {
    for jdk in jdks() {
        for level in ["summary", "detail"] {
            let subject = quiet(&jdk, &[&format!("-XX:NativeMemoryTracking={level}")]);
            let snapshot =
                plimsoll_observer::collect::take_snapshot(subject.pid(), Regions::AsNeeded, Deadline::after(LOOK))
                    .expect("runs");
            let vm = snapshot.hotspot.expect("a VM");
            let other = vm.categories.iter().find(|category| category.name == "Other").expect("direct buffers");
            // 32 buffers of 1 MiB. Java zeroes them, so they are resident. Page-aligned ends and the cleaner's rest
            // take one page each.
            let resident = other.malloc_resident.expect("found");
            assert!(resident >= Bytes::mib(32) && resident <= Bytes::mib(32) + Bytes::kib(33 * 4), "{resident}");
            let malloc = |found: bool| -> Bytes {
                let categories = vm.categories.iter().filter(|category| !found || category.malloc_resident.is_some());
                categories.map(|category| category.malloc + category.arena).sum()
            };
            assert!(
                malloc(true) >= malloc(false).scaled(95, 100),
                "{jdk:?} {level}: {} of {}",
                malloc(true),
                malloc(false)
            );
        }
    }
}
