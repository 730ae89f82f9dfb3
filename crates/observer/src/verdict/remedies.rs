//! Remedies that several rules offer. Each `how` can be pasted unchanged.

use super::case::{Case, ThreadPool};
pub(crate) use super::remedy::remedy;
use super::remedy::{GIVE_BACK, call};
use super::{Effort, Remedy};
use crate::ledger::{LineId, is_tracker};
use plimsoll_facts::shell::quoted;
use plimsoll_facts::snapshot::{Arena, HotSpot, Start, are_public};
use plimsoll_facts::units::{Bytes, count};

/// Upper bound of the memory that a VM takes for one diagnostic command: its attach listener, the command, the answer
/// (docs/decisions/verdicts.md).
const DIAGNOSTIC_COMMAND_BYTES: Bytes = Bytes::kib(1536);

/// The least and the most that malloc_trim returns: the whole pages among free chunks (malloc/malloc.c, mtrim). The end
/// of a thread arena shrinks only when a free reaches it (malloc/arena.c, heap_trim), so it counts only in the upper
/// bound. The walk and smaps are two readings: no more can be returned than smaps counts.
pub fn returned_by_trim(case: Case<'_>) -> (Bytes, Bytes) {
    let sum = |of: fn(&Arena) -> Bytes| case.glibc().into_iter().flat_map(|glibc| &glibc.arenas).map(of).sum();
    let (pages, ends): (Bytes, Bytes) = (sum(|arena| arena.trimmable), sum(|arena| arena.at_end));
    let line = case.resident(LineId::GlibcRetained);
    (pages.min(line), (pages + ends).min(line))
}

/// Releases free memory of all arenas, once.
pub(crate) fn trim(case: Case<'_>) -> Remedy {
    let pid = case.pid();
    let has_command = case.vm().is_some_and(HotSpot::has_trim_command) && case.takes_commands();
    let trim = if has_command {
        remedy(
            Effort::Now,
            GIVE_BACK,
            format!("jcmd {pid} System.trim_native_heap"),
            "holds each arena's lock while it is trimmed; the memory comes back with the next burst",
        )
    } else {
        call(case.snapshot, "trim", "(int)malloc_trim(0)").unwrap_or_else(|| {
            remedy(
                Effort::Code,
                "have the program call malloc_trim(0) after a burst",
                "malloc_trim(0);   // <malloc.h>",
                "holds each arena's lock while it is trimmed; the memory comes back with the next burst",
            )
        })
    };
    // A VM allocates memory for its answer.
    let taken = if has_command { DIAGNOSTIC_COMMAND_BYTES } else { Bytes(0) };
    let (least, most) = returned_by_trim(case);
    trim.saves(least - taken, most)
}

/// None if this VM can't trim by itself (it wouldn't start with the option), or if it trims as often already.
pub(crate) fn periodic_trim(case: Case<'_>) -> Option<Remedy> {
    const COST: &str = "one short trim a minute (JDK 17.0.9, 21.0.1, 22 or later; no unlocking needed from 22 on)";
    const TRIMS: &str = "-XX:+UnlockExperimentalVMOptions -XX:TrimNativeHeapInterval=60000";
    let (how, keep) = java_tool_options(case, TRIMS);
    let trim = remedy(Effort::Restart, "let the VM trim by itself", how, format!("{COST}{keep}"));
    let interval = case.flag("TrimNativeHeapInterval").and_then(|value| value.parse::<u64>().ok());
    let is_as_often = interval.is_some_and(|interval| (1..=60_000).contains(&interval));
    case.vm().filter(|vm| vm.can_trim() && !is_as_often).map(|_| trim)
}

/// JAVA_TOOL_OPTIONS with these options after those that it has already, and the note to print if the existing ones
/// can't be printed.
fn java_tool_options(case: Case<'_>, options: &str) -> (String, &'static str) {
    // The variable may load an agent, which must not be lost.
    let all = match case.variable("JAVA_TOOL_OPTIONS").unwrap_or_default().trim() {
        "" => Some(options.to_owned()),
        set => Some(format!("{set} {options}")).filter(|_| are_public(set)),
    };
    let (all, keep) = match all.as_deref().and_then(quoted) {
        Some(all) => (all, ""),
        None => (
            quoted(options).unwrap_or_default(),
            ". JAVA_TOOL_OPTIONS is set already: put its present options in front",
        ),
    };
    (format!("JAVA_TOOL_OPTIONS={all}"), keep)
}

/// Without copies, NIO frees each buffer. glibc then keeps the buffer in the thread's arena (measured:
/// docs/decisions/verdicts.md). The reason is that freeing the first buffer has raised the size from which blocks get a
/// mapping of their own. A fixed size is never raised.
pub(crate) fn without_copies_of_nio(case: Case<'_>) -> Remedy {
    const NONE: &str = "-Djdk.nio.maxCachedBufferSize=262144";
    const COST: &str = "larger reads and writes of heap buffers allocate a new buffer each time";
    let what = "stop NIO from keeping a direct copy of every large heap buffer for each thread";
    if case.glibc().is_none()
        || case.snapshot.process.is_secure
        || has_tunable(case, "mmap_threshold")
        || case.variable("MALLOC_MMAP_THRESHOLD_").is_some()
    {
        return remedy(Effort::Restart, what, NONE, COST).may_save_nothing();
    }
    let (options, keep) = java_tool_options(case, NONE);
    let how = format!("MALLOC_MMAP_THRESHOLD_=131072 {options}");
    let trade_off = format!(
        "{COST}. Each block of 128 KiB or more of the whole process gets a mapping of its own (system calls and page \
         faults): without the first variable, malloc keeps what NIO frees{keep}"
    );
    remedy(Effort::Restart, what, how, trade_off).may_save_nothing()
}

pub(crate) fn arena_cap(case: Case<'_>, cap: u64) -> Remedy {
    const COST: &str = "threads that allocate at once wait for each other; measure the tail latency at 2 and at 4";
    let is_set = case.glibc().is_some_and(|glibc| glibc.arena_cap_set);
    let elsewhere = if has_tunable(case, "arena_max") {
        "; GLIBC_TUNABLES has glibc.malloc.arena_max already: change it there"
    } else if is_set && case.variable("MALLOC_ARENA_MAX").is_none() {
        "; the cap in force isn't from this variable: if the program calls mallopt(M_ARENA_MAX), that wins"
    } else {
        ""
    };
    remedy(
        Effort::Restart,
        format!("cap the arenas at {cap}"),
        format!(
            "MALLOC_ARENA_MAX={cap}\nENV MALLOC_ARENA_MAX={cap}\nenv: [{{name: MALLOC_ARENA_MAX, value: \"{cap}\"}}]"
        ),
        format!("{COST}{elsewhere}"),
    )
    .may_save_nothing()
}

/// Whether GLIBC_TUNABLES sets `name`. Then, depending on glibc's version, the variable of the same meaning has no
/// effect.
pub(crate) fn has_tunable(case: Case<'_>, name: &str) -> bool {
    let tunable = format!("glibc.malloc.{name}=");
    case.variable("GLIBC_TUNABLES").is_some_and(|all| all.split(':').any(|one| one.starts_with(&tunable)))
}

/// Without `background_thread`, an idle jemalloc releases nothing: it purges only while the program calls it.
/// None: the program is static, so no loader preloads one.
pub(crate) fn other_allocator(case: Case<'_>) -> Option<Remedy> {
    if case.is_static() {
        return None;
    }
    const COST: &str = "its footprint at peak may be higher: measure with your load";
    // Debian's images have no package lists. Debian's library folders are named after the architecture.
    let folder = if cfg!(target_arch = "aarch64") { "/usr/lib/aarch64-linux-gnu" } else { "/usr/lib/x86_64-linux-gnu" };
    let (others, cost) = match preloaded(case) {
        Ok(others) => (others, COST.to_owned()),
        Err(why) => (String::new(), format!("{COST}. {why}: add what LD_PRELOAD has already, after a colon")),
    };
    let other = remedy(
        Effort::Deploy,
        "take an allocator that returns memory",
        format!(
            "RUN apt-get update && apt-get install -y libjemalloc2\nENV LD_PRELOAD={folder}/libjemalloc.so.2{others}\n\
             ENV MALLOC_CONF=background_thread:true"
        ),
        cost,
    );
    Some(other.may_save_nothing())
}

/// What the program preloads already, each behind a colon, for a Dockerfile; without the tracker, which `run` adds.
fn preloaded(case: Case<'_>) -> Result<String, &'static str> {
    // A title is written over the arguments, and often over the variables behind them.
    if case.snapshot.process.start == Start::Title {
        return Err("the process's variables may be overwritten by its title");
    }
    // ld.so(8): separated by blanks or colons.
    let paths = case
        .variable("LD_PRELOAD")
        .unwrap_or_default()
        .split([' ', ':'])
        .filter(|path| !path.is_empty() && !is_tracker(path));
    let others: String = paths.map(|path| format!(":{path}")).collect();
    // Docker replaces variables; ld.so has some of its own ($ORIGIN).
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-:$".contains(c);
    if others.chars().all(is_plain) {
        Ok(others.replace('$', "\\$"))
    } else {
        Err("its LD_PRELOAD has special characters")
    }
}

/// Lettuce's pools belong to its ClientResources, which all clients may share.
const LETTUCE: &str = "lettuce-";

/// Pools of threads that exist several times, or that are larger than the CPUs that the process may use. Only of a JVM:
/// another program may have threads of the same names.
pub(crate) fn fewer_threads(case: Case<'_>) -> Option<Remedy> {
    /// How many threads or instances of a pool are right.
    enum Needed {
        /// One instance.
        Once,
        /// Twice as many threads as CPUs.
        ForEachCpu,
        /// As many as the program has made of something else.
        ForEachChild,
    }
    /// A known pool: the start of its threads' names (the kernel keeps 15 bytes), what to do, and how.
    struct KnownPool {
        mark: &'static str,
        needed: Needed,
        what: &'static str,
        /// `N` stands for the number of threads.
        how: &'static str,
    }
    // ForkJoinPool-1 isn't the common pool: it is one of the program's, or carries virtual threads.
    const POOLS: [KnownPool; 6] = [
        KnownPool {
            mark: LETTUCE,
            needed: Needed::Once,
            what: "share one ClientResources among all Redis clients",
            how: "ClientResources shared = DefaultClientResources.create(); RedisClient.create(shared, uri); // one for all clients",
        },
        KnownPool {
            mark: "HttpClient-",
            needed: Needed::Once,
            // jdk.internal.net.http.HttpClientImpl
            what: "share one HttpClient: each has a selector thread and a pool",
            how: "static final HttpClient CLIENT = HttpClient.newHttpClient();   // one for all requests",
        },
        // java.lang.ProcessHandleImpl: one for each child that is alive.
        KnownPool {
            mark: "process reaper",
            needed: Needed::ForEachChild,
            what: "end the child processes: the JDK has one thread for each that is alive",
            how: "if (!process.waitFor(30, TimeUnit.SECONDS)) process.destroy();   // for each Process that is started",
        },
        KnownPool {
            mark: "EventLoop",
            needed: Needed::ForEachCpu,
            what: "size Netty's event loops by the quota, not by the host",
            how: "-Dio.netty.eventLoopThreads=N -Dio.netty.allocator.numDirectArenas=N -Dio.netty.allocator.numHeapArenas=N",
        },
        KnownPool {
            mark: "reactor-",
            needed: Needed::ForEachCpu,
            what: "size Reactor's loops by the quota, not by the host",
            how: "-Dreactor.netty.ioWorkerCount=N -Dio.netty.allocator.numDirectArenas=N",
        },
        KnownPool {
            mark: "ForkJoinPool.c",
            needed: Needed::ForEachCpu,
            what: "size the common pool by the quota",
            how: "-Djava.util.concurrent.ForkJoinPool.common.parallelism=N",
        },
    ];
    if !case.is_jvm() {
        return None;
    }
    // Netty makes 2 × CPUs by default, so that many per instance are normal; the others make fewer.
    let fit = case.cpus().unwrap_or(u64::MAX).saturating_mul(2);
    case.thread_pools().iter().filter(|pool| pool.threads >= 8).find_map(|pool| {
        let known = POOLS.iter().find(|known| {
            let too_many = match known.needed {
                Needed::Once => pool.instances > 1,
                Needed::ForEachCpu => (pool.threads / pool.instances.max(1)) as u64 > fit,
                Needed::ForEachChild => true,
            };
            pool.name.contains(known.mark) && too_many
        })?;
        let (what, threads) = (known.what, count(pool.threads as u64));
        let found = match pool.instances {
            0 | 1 => format!("{threads} × {}", pool.name),
            many => format!("{threads} × {} in {} instances", pool.name, count(many as u64)),
        };
        let how = known.how.replace("=N", &format!("={fit}"));
        let remedy = remedy(Effort::Code, format!("{what} ({found})"), how, "");
        // The others are options of the VM.
        Some(match known.needed {
            Needed::Once => shared(case, known.mark, remedy),
            Needed::ForEachCpu | Needed::ForEachChild => remedy.may_save_nothing(),
        })
    })
}

/// What a VM mallocs for a thread besides its stack, at most. Measured: docs/decisions/verdicts.md.
const VM_OF_A_THREAD: Bytes = Bytes::kib(64);

/// Adds the saving of having `threads` threads fewer, which held `stack` bytes of stack. A thread that does the work of
/// several uses a deeper stack at times, so only nine tenths are certain.
pub(crate) fn without_threads(remedy: Remedy, threads: u64, stack: Bytes) -> Remedy {
    remedy.saves(stack.scaled(9, 10), stack + VM_OF_A_THREAD.scaled(threads, 1))
}

/// Adds the saving of having each pool with that mark once. Netty also keeps direct buffers for each thread, so these
/// count in the upper bound.
fn shared(case: Case<'_>, mark: &str, remedy: Remedy) -> Remedy {
    let pools = case.thread_pools();
    let several = || pools.iter().filter(|pool| pool.name.contains(mark) && pool.instances > 1);
    let gone = |all: u64, pool: &ThreadPool| Bytes(all).scaled(pool.instances as u64 - 1, pool.instances as u64);
    let stack: Bytes = several().map(|pool| gone(pool.stack.0, pool)).sum();
    let threads: Bytes = several().map(|pool| gone(pool.threads as u64, pool)).sum();
    let remedy = without_threads(remedy, threads.0, stack);
    match remedy.effect.bounds() {
        Some((least, most)) => remedy.saves(least, most + case.resident(LineId::DirectBuffers)),
        None => remedy,
    }
}

/// Several instances of a pool that is needed once. (Two of HttpClient may differ in their configuration.)
pub(crate) fn has_repeated_pools(case: Case<'_>) -> bool {
    case.thread_pools().iter().any(|pool| pool.instances > 1 && pool.name.contains(LETTUCE))
}

/// There is no remedy that switches off instrumentations by name. From outside, it is unknown which ones the program
/// needs, and their options aren't named after their packages (`java-http-client` is in `httpclient`). But those that
/// make spans have a class `…Singletons`, which is loaded at the first use. JDK 8 has no such command.
pub(crate) fn fewer_instrumentations(case: Case<'_>) -> Option<Remedy> {
    case.vm()?.jdk().filter(|jdk| *jdk > 8)?;
    let classes = r"io\.opentelemetry\.javaagent\.instrumentation\.[A-Za-z0-9_.]+Singletons";
    case.started_with("opentelemetry").then(|| {
        remedy(
            Effort::Restart,
            "see which instrumentations of the OpenTelemetry agent make spans, and switch off those that nobody reads",
            format!("jcmd {} VM.class_hierarchy | grep -oE '{classes}' | sort -u", case.pid()),
            "-Dotel.instrumentation.lettuce.enabled=false switches off that of Lettuce, for example, and its spans are lost. \
             Names: opentelemetry.io, 'suppressing specific agent instrumentation'",
        )
    })
}
