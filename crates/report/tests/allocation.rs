//! Allocation analysis as text (goldens) and JSON, of a native image's recording that is made by hand.

mod text_of;

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_facts::units::Bytes;
use plimsoll_profiles::allocation::{Allocations, Chunks, IN_NEW_TLAB, OUTSIDE_TLAB, ThreadSlowPaths, Vm};
use plimsoll_profiles::profile::{Column, Frame, FrameId, FrameOrigin, GroupBy, Labels, Profile, Value, Weight};
use plimsoll_report::allocation;
use plimsoll_report::profile::View;
use text_of::text_of;

const MIB: u64 = 1 << 20;

/// The start of a Quarkus program: six slow paths of main below ApplicationImpl.doStart, one of them for a large array,
/// and one of another thread.
fn quarkus() -> Allocations {
    let mut profile = Profile::new(vec![Column::bytes("slow_path"), Column::count("slow_path", "slow path")]);
    let slow = ["ThreadLocalAllocation.slowPathNewInstance", "ThreadLocalAllocation.slowPathNewArray"];
    let paths: [(&[&str], &str, &str, u64, u64); 4] = [
        (
            &["io.smallrye.config.ConfigMappings.map", "io.quarkus.runner.ApplicationImpl.doStart"],
            slow[0],
            "main",
            3,
            3 * MIB,
        ),
        (&["java.util.HashMap.resize", "io.quarkus.runner.ApplicationImpl.doStart"], slow[1], "main", 2, 2 * MIB),
        (&["io.netty.Pool.<init>", "io.quarkus.runner.ApplicationImpl.doStart"], slow[1], "main", 1, 4 * MIB + 64),
        (&["org.acme.Job.run"], slow[0], "executor-thread-1", 1, MIB),
    ];
    let mut threads: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (outer, innermost, thread, times, bytes) in paths {
        let names = [format!("com.oracle.svm.core.genscavenge.{innermost}")]
            .into_iter()
            .chain(outer.iter().map(|s| s.to_string()));
        let frames: Vec<FrameId> = names
            .map(|name| profile.frame(Frame { function: Some(name), kind: FrameOrigin::Java, ..Frame::default() }))
            .collect();
        let stack = profile.stack(&frames);
        let labels = Labels { thread: Some(profile.name(thread)), ..Labels::default() };
        profile.add(stack, labels, &[Value::exact(bytes), Value::exact(times)]);
        let sum = threads.entry(thread).or_default();
        *sum = (sum.0 + times, sum.1 + bytes);
    }
    let why =
        "Substrate VM 17.0.8+7: a thread's buffer is a whole heap chunk of 1.00 MiB; buffers taken are of 1.00 MiB";
    let chunks = |aligned, own, own_bytes| Chunks {
        aligned,
        aligned_size: Bytes::mib(1),
        slices: Bytes::ZERO,
        own,
        own_bytes: Bytes(own_bytes),
        why: why.into(),
    };
    let thread = |name: &str, chunks| {
        let (slow_paths, bytes) = threads[name];
        ThreadSlowPaths { thread: name.into(), slow_paths, bytes, chunks: Some(chunks) }
    };
    Allocations {
        vm: Vm { name: "Substrate VM".into(), version: "17.0.8+7".into(), pid: Some(4711) },
        events: BTreeMap::from([(IN_NEW_TLAB, 6), (OUTSIDE_TLAB, 1)]),
        threads: vec![thread("main", chunks(5, 1, 4 * MIB + 64)), thread("executor-thread-1", chunks(1, 0, 0))],
        chunks: Some(chunks(6, 1, 4 * MIB + 64)),
        profile,
        left_out: vec![],
    }
}

fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).expect("written");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}; BLESS=1 makes it"));
    assert!(want == text, "{name} differs; BLESS=1 takes the new one:\n{text}");
}

#[test]
fn slow_paths_are_reported_by_thread_and_in_heap_chunks() {
    let of = quarkus();
    let by_calls = View::new(&of.profile, Some("slow_path"), Weight::Calls).expect("calls");
    golden("allocations.txt", &text_of(|out| allocation::write(out, &of, &by_calls, GroupBy::Site, false)));
    golden(
        "allocations-by-package.txt",
        &text_of(|out| allocation::write(out, &of, &by_calls, GroupBy::Package, false)),
    );
}

#[test]
fn hotspot_has_no_heap_chunks() {
    let mut of = quarkus();
    of.vm.name = "OpenJDK 64-Bit Server VM".into();
    of.vm.version = "OpenJDK 64-Bit Server VM (25.0.3+9-LTS) for linux-amd64 JRE (25.0.3+9-LTS), built on …".into();
    of.chunks = None;
    of.threads.iter_mut().for_each(|t| t.chunks = None);
    let view = View::new(&of.profile, None, Weight::Bytes).expect("bytes");
    let text = text_of(|out| allocation::write(out, &of, &view, GroupBy::Thread, false));
    assert!(
        text.starts_with(
            "allocations of OpenJDK 64-Bit Server VM (25.0.3+9-LTS) for linux-amd64 JRE (25.0.3+9-LTS), pid 4711\n"
        ),
        "{text}"
    );
    assert!(!text.contains("chunk") && text.contains("         7      10.0 MiB  all\n"), "{text}");
}

/// A recording with samples only. Classes whose names differ at their ends, in a table with and without --all.
#[test]
fn a_table_has_only_recorded_columns_and_no_two_equal_names() {
    let mut profile = Profile::new(vec![
        Column { is_recorded: false, ..Column::bytes("slow_path") },
        Column { is_recorded: false, ..Column::bytes("object") },
        Column::bytes("sampled"),
        Column::count("sampled", "sample"),
    ]);
    let classes = [
        "com.example.orders.storage.internal.caches.ConcurrentHashMap$CollectionView$Node[]",
        "com.example.orders.storage.internal.caches.ConcurrentHashMap$CollectionView$TreeBin",
        "com.example.orders.storage.internal.caches.ConcurrentHashMap$CollectionView$TreeNode",
        "byte[]",
    ];
    for class in classes {
        let class = Some(profile.name(class));
        let stack = profile.stack(&[]);
        let zero = Value::default();
        profile.add(stack, Labels { class, ..Labels::default() }, &[zero, zero, Value::exact(512), Value::exact(1)]);
    }
    let view = View::new(&profile, Some("sampled"), Weight::Bytes).expect("bytes");
    for all in [false, true] {
        let text = text_of(|out| plimsoll_report::profile::text::write(out, &view, GroupBy::Class, all));
        assert!(!text.contains("slow path") && !text.contains("object"), "{text}");
        for ending in ["$Node[]", "$TreeBin", "$TreeNode"] {
            let name = format!("  c.e.o.s.i.c.ConcurrentHashMap$CollectionView{ending}\n");
            assert!(text.contains(&name), "{ending}: {text}");
        }
    }
}

#[test]
fn json_has_threads_chunks_and_sites() {
    let of = quarkus();
    let view = View::new(&of.profile, None, Weight::Bytes).expect("bytes");
    let json: serde_json::Value =
        serde_json::from_str(&text_of(|out| allocation::write_json(out, &of, &view))).expect("JSON");
    assert_eq!(json["schema"], "plimsoll.allocations/2");
    assert_eq!(json["events"][IN_NEW_TLAB], 6);
    assert_eq!(json["threads"][0]["thread"], "main");
    assert_eq!(json["threads"][0]["chunks"]["bytes"], 5 * MIB + 4 * MIB + 64);
    assert_eq!(json["chunks"]["aligned"], 6);
    assert_eq!(json["profile"]["schema"], "plimsoll.profile/2");
    assert_eq!(json["profile"]["total"]["slow_path_count"], 7);
}
