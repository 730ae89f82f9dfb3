//! Stacks and pools of threads.

use super::*;

#[test]
fn an_executor_for_each_task_is_one_pool_of_many_instances() {
    let name = |index: u32| match index {
        0 | 1 => format!("GC Thread#{index}"),
        _ => format!("pool-{}-thread-1", index - 1),
    };
    let snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..with_threads(602, Bytes::kib(87), name) };
    let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
    let evidence = verdict.evidence.join("\n");
    assert!(
        evidence.contains("the largest pool is pool-N-thread-N: 600 threads in 600 instances, 51.0 MiB"),
        "{evidence}"
    );
    assert!(verdict.remedies.iter().any(|remedy| remedy.what.contains("share one pool")), "{:?}", verdict.remedies);
    assert!(
        verdict.remedies.iter().any(|remedy| remedy.how.contains("'pool-[0-9]*-thread-[0-9]*'")),
        "{:?}",
        verdict.remedies
    );
}

/// A small program with many idle threads: a third of RSS, and hardly any memory.
#[test]
fn stacks_of_a_few_mib_are_no_warning() {
    let severity = |threads: u32, stack: Bytes| {
        let snapshot = with_threads(threads, stack, |index| format!("worker-{index}"));
        let verdicts = judge(&snapshot, &Ledger::of(&snapshot));
        verdicts.into_iter().find(|found| found.id == VerdictId::ThreadStacks).map(|found| found.severity)
    };
    assert_eq!(severity(130, Bytes::kib(12)), None);
    assert_eq!(severity(130, Bytes::kib(64)), Some(Severity::Note));
    assert_eq!(severity(130, Bytes::kib(160)), Some(Severity::Warning));
    // The kernel's stacks of these alone are 16 MiB.
    assert_eq!(severity(1024, Bytes::kib(12)), Some(Severity::Warning));
}

#[test]
fn sharing_client_resources_is_not_proposed_for_one_instance() {
    let lettuce = |instances: u32| {
        move |index: u32| format!("lettuce-nioEventLoop-{}-{}", 4 + index % instances, 1 + index / instances)
    };
    let shared = |instances| {
        let threads = with_threads(96, Bytes::mib(1), lettuce(instances));
        let snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..threads };
        let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
        verdict.remedies.iter().any(|remedy| remedy.what.contains("share one ClientResources"))
    };
    assert!(shared(12));
    assert!(!shared(1));
}

/// 64 threads of one pool: too many for 8 CPUs, as many as Netty makes for 32.
#[test]
fn a_pool_is_made_as_large_as_the_cpus_need() {
    let how = |cpus: u64, is_java: bool| {
        let mut snapshot = with_threads(64, Bytes::mib(1), |index| format!("nioEventLoopGroup-2-{}", 1 + index));
        snapshot.host.cpus_online = cpus;
        snapshot.hotspot = is_java.then(HotSpot::default);
        let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
        verdict.remedies.into_iter().map(|remedy| remedy.how).find(|how| how.starts_with("-Dio.netty."))
    };
    let sixteen =
        "-Dio.netty.eventLoopThreads=16 -Dio.netty.allocator.numDirectArenas=16 -Dio.netty.allocator.numHeapArenas=16";
    assert_eq!(how(8, true).as_deref(), Some(sixteen));
    assert_eq!(how(32, true), None);
    // A program in another language, whose threads have such names.
    assert_eq!(how(8, false), None);
}

/// Replacing them with a pool isn't a remedy: the JDK makes these threads itself, one for each child or client.
#[test]
fn threads_of_the_jdk_go_with_what_they_are_for() {
    let hows = |name: fn(u32) -> String| {
        let threads = with_threads(150, Bytes::mib(1), name);
        let snapshot = Snapshot { hotspot: Some(HotSpot::default()), ..threads };
        let verdict = verdict_of(&snapshot, VerdictId::ThreadStacks);
        verdict.remedies.into_iter().map(|remedy| remedy.how).collect::<Vec<_>>().join("\n")
    };
    let children = hows(|index| format!("process reaper (pid {})", 1000 + index));
    assert!(children.contains("process.waitFor") && !children.contains("newFixedThreadPool"), "{children}");
    let clients = hows(|index| format!("HttpClient-{}-Worker-{}", 1 + index / 2, index % 2));
    assert!(clients.contains("HttpClient.newHttpClient()") && !clients.contains("newFixedThreadPool"), "{clients}");
}
