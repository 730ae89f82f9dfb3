//! Remedies for allocators other than glibc's that keep free memory: each kind has its own settings.

use super::case::Case;
use super::redis::Redis;
use super::remedy::{FLOOR, call, remedy};
use super::{Effort, Remedy};
use plimsoll_facts::shell::quoted;
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap};
use plimsoll_facts::units::Bytes;

/// `returns`: the allocator's own thread releases free pages. A function is called only in libraries: a program that the
/// allocator is linked into may have renamed it, or lost its name.
pub(crate) fn remedies(case: Case<'_>, heap: &OtherHeap, returns: bool) -> Vec<Remedy> {
    let known = case.snapshot.allocators.iter().find(|known| known.kind == heap.kind && known.serves_malloc);
    let is_library = known.is_some_and(|known| Some(&known.path) != case.snapshot.process.executable.as_ref());
    let redis = Redis::of(case);
    let mut remedies = match heap.kind {
        AllocatorKind::Jemalloc => jemalloc(case, heap, redis.as_ref(), returns, is_library),
        AllocatorKind::Tcmalloc => tcmalloc(case, heap, is_library),
        AllocatorKind::Mimalloc => mimalloc(case, heap),
        _ => Vec::new(),
    };
    let (live, beside) = (heap.resident(HeapPart::Live), heap.resident(HeapPart::Beside));
    if let Some(redis) = redis.filter(|_| beside >= FLOOR) {
        let kept = beside + heap.purgeable();
        // Only the jemalloc in Redis's own sources tells Redis which values to move.
        remedies.push(match heap.kind == AllocatorKind::Jemalloc && !is_library {
            true => redis.defragment(live, beside, kept),
            false => redis.reload(live, kept),
        });
    }
    remedies
}

fn tcmalloc(case: Case<'_>, heap: &OtherHeap, is_library: bool) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let pages = heap.purgeable();
    if pages >= FLOOR {
        let function = "(void)MallocExtension_ReleaseFreeMemory()";
        let purge = is_library.then(|| call(case.snapshot, "purge", function)).flatten();
        remedies.extend(purge.map(|purge| purge.saves(pages, pages)));
        if case.variable("TCMALLOC_AGGRESSIVE_DECOMMIT").is_none() {
            let decommit = remedy(
                Effort::Restart,
                "have tcmalloc give pages back as soon as they are free",
                "TCMALLOC_AGGRESSIVE_DECOMMIT=t",
                "a system call for each run of pages that becomes free, and faults when they are used again",
            );
            remedies.push(decommit.may_save_nothing().saves(Bytes(0), pages));
        }
        if case.variable("TCMALLOC_RELEASE_RATE").is_none() {
            let faster = remedy(
                Effort::Restart,
                "have tcmalloc give pages back faster while the program frees memory",
                "TCMALLOC_RELEASE_RATE=10",
                "one page for every 100 that are freed instead of 1,000: little after a burst without further load",
            );
            remedies.push(faster.may_save_nothing());
        }
    }
    remedies.extend(smaller_caches(case, heap));
    remedies
}

/// Free blocks in caches, which no purge reaches, where they are most of what is kept. With smaller caches they move into
/// free pages, and stay resident unless tcmalloc gives these back at once (measured: docs/decisions/verdicts.md). Caches
/// between threads have no setting, so there is no figure.
fn smaller_caches(case: Case<'_>, heap: &OtherHeap) -> Option<Remedy> {
    const SMALL: u64 = 1 << 20;
    let cached = heap.resident(HeapPart::Cached);
    let others = heap.purgeable() + heap.resident(HeapPart::Beside);
    let in_force = case.variable("TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES").and_then(|value| value.trim().parse().ok());
    if cached < FLOOR || cached < others || in_force.is_some_and(|bytes: u64| bytes <= SMALL) {
        return None;
    }
    let decommit = match case.variable("TCMALLOC_AGGRESSIVE_DECOMMIT") {
        None => "TCMALLOC_AGGRESSIVE_DECOMMIT=t ",
        Some(_) => "",
    };
    let smaller = remedy(
        Effort::Restart,
        "let threads keep fewer free blocks, and give their pages back",
        format!("{decommit}TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES={SMALL}"),
        "threads go to the shared lists more often, and wait for each other there: measure the throughput. A system call for \
         each run of pages that becomes free, and faults when they are used again",
    );
    Some(smaller.may_save_nothing())
}

/// Offers no call: mi_collect purges for the calling thread only, and a thread that gdb stopped inside malloc would find
/// its heap changed.
fn mimalloc(case: Case<'_>, heap: &OtherHeap) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let pages = heap.purgeable();
    if pages < FLOOR {
        return remedies;
    }
    let is_at_once = |name: &&str| case.variable(name).is_some_and(|value| value.trim() == "0");
    if !["MIMALLOC_PURGE_DELAY", "MIMALLOC_DECOMMIT_DELAY"].iter().any(is_at_once) {
        let at_once = remedy(
            Effort::Restart,
            "have mimalloc give pages back as soon as they are free",
            "MIMALLOC_PURGE_DELAY=0 MIMALLOC_DECOMMIT_DELAY=0",
            "a system call for each run of pages that becomes free, and faults when they are used again. Version 2.0 reads the \
             second variable, later versions the first",
        );
        remedies.push(at_once.may_save_nothing().saves(Bytes(0), pages));
    }
    let collect = remedy(
        Effort::Code,
        "give free pages back after a burst, in each thread that freed memory",
        "mi_collect(true)",
        "a thread purges only its own pages; version 2.0 keeps free pages of segments that still have live blocks",
    );
    remedies.push(collect.saves(Bytes(0), pages));
    remedies
}

fn jemalloc(case: Case<'_>, heap: &OtherHeap, redis: Option<&Redis>, returns: bool, is_library: bool) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    let pages = heap.purgeable();
    if pages >= FLOOR {
        remedies.extend(purge(case, redis, is_library).map(|purge| purge.saves(pages, pages)));
        if !returns {
            remedies.push(background_thread(case, redis, is_library).saves(Bytes(0), pages));
        }
    }
    remedies
}

fn purge(case: Case<'_>, redis: Option<&Redis>, is_library: bool) -> Option<Remedy> {
    // 4096 means all arenas.
    let function = r#"(int)mallctl("arena.4096.purge", 0, 0, 0, 0)"#;
    let by_call = || is_library.then(|| call(case.snapshot, "purge", function)).flatten();
    redis.map_or_else(by_call, |redis| Some(redis.purge()))
}

/// The thread purges what has been free for dirty_decay_ms, whether the program calls jemalloc or not.
fn background_thread(case: Case<'_>, redis: Option<&Redis>, is_library: bool) -> Remedy {
    const WHAT: &str = "let a thread of jemalloc's release free pages";
    if let Some(redis) = redis {
        return redis.background_thread(WHAT);
    }
    const THREAD: &str = "background_thread:true";
    const COST: &str =
        "a few threads that wake up while pages decay; dirty_decay_ms:1000 gives back after 1 s instead of 10";
    let assignment = |name: &&str| {
        let others = case.variable(name).unwrap_or_default().split(',');
        let is_kept = |setting: &&str| {
            !setting.is_empty() && !setting.starts_with("background_thread:") && !keeps_for_ever(setting)
        };
        let all: Vec<&str> = others.filter(is_kept).chain([THREAD]).collect();
        // A list of sizes has the shell's `|`.
        Some(format!("{name}={}", quoted(&all.join(","))?))
    };
    let names = if is_library { &CONF[..1] } else { &CONF[..] };
    let all: Option<Vec<String>> = names.iter().map(assignment).collect();
    let (how, cost) = match all {
        Some(all) => (all.join(" "), COST.to_owned()),
        None => (
            format!("{}={THREAD}", CONF[0]),
            format!("{COST}. {} is set already: put its present settings in front", CONF[0]),
        ),
    };
    remedy(Effort::Restart, WHAT, how, cost).may_save_nothing()
}

/// Variables that jemalloc reads. The library reads the first. A jemalloc that is linked into a program reads one whose
/// prefix the build has chosen: that of the crate tikv-jemalloc-sys, or `--with-jemalloc-prefix=je_`.
const CONF: [&str; 3] = ["MALLOC_CONF", "_RJEM_MALLOC_CONF", "JE_MALLOC_CONF"];

/// -1 means never, so the thread would have nothing to do.
fn keeps_for_ever(setting: &str) -> bool {
    setting.ends_with("decay_ms:-1")
}

/// Whether a variable keeps jemalloc from giving dirty pages back. Muzzy pages may stay: the kernel takes them when it
/// needs them.
pub(crate) fn is_kept_for_ever(case: Case<'_>) -> bool {
    let mut all = CONF.iter().filter_map(|name| case.variable(name)).flat_map(|all| all.split(','));
    all.any(|setting| setting == "dirty_decay_ms:-1")
}
