//! Remedies that several rules offer. Each `how` can be pasted as it stands.

use super::case::Case;
use super::{Effort, Remedy};
use crate::units::count;

pub fn remedy(effort: Effort, what: impl Into<String>, how: impl Into<String>, trade_off: impl Into<String>) -> Remedy {
    Remedy { what: what.into(), how: how.into(), effort, trade_off: trade_off.into() }
}

/// Frees what is free, once.
pub fn trim(case: Case<'_>) -> Remedy {
    let pid = case.pid();
    if case.is_jvm() {
        return remedy(
            Effort::Now,
            "give the free pages back now",
            format!("jcmd {pid} System.trim_native_heap"),
            "holds each arena's lock while it is trimmed; the memory comes back with the next burst",
        );
    }
    remedy(
        Effort::Now,
        "give the free pages back now",
        format!("gdb -p {pid} -batch -ex 'call (int)malloc_trim(0)'"),
        "stops the process while gdb is attached, and deadlocks if a thread was stopped inside malloc: try it on a replica",
    )
}

/// HotSpot trims by itself from 17.0.9, 21.0.1 and 22 on.
pub fn periodic_trim() -> Remedy {
    remedy(
        Effort::Restart,
        "let the VM trim by itself",
        "JAVA_TOOL_OPTIONS='-XX:+UnlockExperimentalVMOptions -XX:TrimNativeHeapInterval=60000'",
        "one short trim a minute (JDK 17.0.9, 21.0.1, 22 or later; no unlocking needed from 22 on)",
    )
}

pub fn arena_cap(cap: u64) -> Remedy {
    remedy(
        Effort::Restart,
        format!("cap the arenas at {cap}"),
        format!(
            "MALLOC_ARENA_MAX={cap}\nENV MALLOC_ARENA_MAX={cap}\nenv: [{{name: MALLOC_ARENA_MAX, value: \"{cap}\"}}]"
        ),
        "threads that allocate at once wait for each other; measure the tail latency at 2 and at 4",
    )
}

pub fn other_allocator(saves: &str) -> Remedy {
    remedy(
        Effort::Deploy,
        "take an allocator that returns memory",
        "RUN apt-get install -y libjemalloc2\nENV LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        format!("another allocator's footprint at peak may be higher; measure with your load{saves}"),
    )
}

/// Pools of threads that exist several times over.
pub fn fewer_threads(case: Case<'_>) -> Option<Remedy> {
    const POOLS: [(&str, &str, &str); 4] = [
        (
            "lettuce",
            "share one ClientResources among all Redis clients",
            "ClientResources shared = DefaultClientResources.create(); RedisClient.create(shared, uri); // one for all clients",
        ),
        (
            "EventLoop",
            "size Netty's event loops by the quota, not by the host",
            "-Dio.netty.eventLoopThreads=4 -Dio.netty.allocator.numDirectArenas=4 -Dio.netty.allocator.numHeapArenas=4",
        ),
        (
            "reactor-",
            "size Reactor's loops by the quota, not by the host",
            "-Dreactor.netty.ioWorkerCount=4 -Dio.netty.allocator.numDirectArenas=4",
        ),
        (
            "ForkJoinPool",
            "size the common pool by the quota",
            "-Djava.util.concurrent.ForkJoinPool.common.parallelism=4",
        ),
    ];
    let groups = case.thread_groups();
    let (name, number, what, how) = groups.iter().filter(|(_, number)| *number >= 8).find_map(|(name, number)| {
        // Thread names of the kernel end after 15 bytes.
        let known = POOLS.iter().find(|(mark, _, _)| name.contains(&mark[..mark.len().min(8)]))?;
        Some((name, number, known.1, known.2))
    })?;
    Some(remedy(Effort::Code, format!("{what} ({} × {name})", count(*number as u64)), how, ""))
}

pub fn fewer_instrumentations(case: Case<'_>) -> Option<Remedy> {
    case.started_with("opentelemetry").then(|| {
        remedy(
            Effort::Restart,
            "switch off what the OpenTelemetry agent need not instrument",
            "-Dotel.instrumentation.common.default-enabled=false -Dotel.instrumentation.servlet.enabled=true",
            "spans of the instrumentations that are switched off are lost",
        )
    })
}
