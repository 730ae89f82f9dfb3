//! Free pages kept by the main arena or by a few thread arenas: fragmentation, or a burst in the past. If many thread
//! arenas share the free pages, `arena_retention` applies instead.

use super::arena_retention::{after_a_burst, at_ends, cap_in_force, spread};
use super::case::Case;
use super::redis::Redis;
use super::remedies::{has_tunable, other_allocator, periodic_trim, remedy, trim};
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Effort, Remedy, Verdict, VerdictId};
use plimsoll_facts::snapshot::{Arena, ArenaKind};
use plimsoll_facts::units::{Bytes, count};

const FLOOR: Bytes = Bytes::mib(16);
const PERCENT: f64 = 10.0;
/// DEFAULT_MMAP_THRESHOLD_MIN (malloc/malloc.c).
const DEFAULT_THRESHOLD: Bytes = Bytes::kib(128);
/// An arena that keeps less isn't counted among those that hold the free pages.
const WORTH_AN_ARENA: Bytes = Bytes::mib(1);

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    // If thread arenas share the free pages, they belong to arena_retention.
    let concerned = |arena: &&Arena| arena.kind == ArenaKind::Main || !spread(case);
    let arenas: Vec<&Arena> = case.glibc()?.arenas.iter().filter(concerned).collect();
    let threads = if spread(case) { Bytes(0) } else { case.retained(ArenaKind::Thread) };
    let retained = case.retained(ArenaKind::Main) + threads;
    if !case.matters(retained, PERCENT, FLOOR) {
        return None;
    }
    let holding: Vec<&Arena> = arenas.iter().copied().filter(|arena| arena.free_resident >= WORTH_AN_ARENA).collect();
    let where_it_is = where_it_is(&holding);
    let live: Bytes = holding.iter().map(|arena| arena.live_resident).sum();
    let top: Bytes = holding.iter().map(|arena| arena.top_resident.min(arena.free_resident)).sum();
    let mut evidence = vec![format!("{where_it_is}: {retained} free and resident, {live} live")];
    evidence.push(format!(
        "{} of it lies between live blocks (fragmentation), {top} at the ends of heaps",
        retained - top.min(retained)
    ));
    evidence.extend(cap_in_force(case));
    evidence.push(about_a_cap(&holding));
    let mut remedies = Vec::new();
    let returned: Bytes = arenas.iter().map(|arena| arena.trimmable).sum();
    let at_end: Bytes = arenas.iter().map(|arena| arena.at_end).sum();
    evidence.extend(at_ends(&arenas, retained));
    if returned.percent_of(retained) >= MIN_PERCENT_TO_MENTION {
        remedies.push(trim(case));
        remedies.extend(periodic_trim(case));
    } else {
        evidence.push(format!("a trim would return {returned}: no more of it is in whole pages between blocks"));
    }
    // An allocator returns whole pages. Large blocks that were freed leave such pages, too.
    if (returned + at_end).percent_of(retained) >= MIN_PERCENT_TO_MENTION {
        remedies.extend(large_blocks_apart(case));
        remedies.extend(other_allocator(case));
    } else {
        remedies.extend(Redis::of(case).map(|redis| redis.reload(live, retained)));
        remedies.extend((!case.is_static()).then(|| measured_allocators(case)));
    }
    evidence.extend(after_a_burst(case, retained, live));
    Some(Verdict {
        id: VerdictId::AllocatorRetention,
        severity: case.weight_of_kept(retained),
        bytes: retained,
        summary: format!(
            "{retained} is free inside glibc's malloc but still resident, in {where_it_is}: {:.0} % of RSS",
            retained.percent_of(case.rss())
        ),
        evidence,
        remedies,
    })
}

/// glibc raises the threshold to the size of each block that had a mapping of its own and was freed. If the threshold
/// in force isn't above the default, the remedy changes nothing.
fn large_blocks_apart(case: Case<'_>) -> Option<Remedy> {
    let in_force = case.glibc()?.mmap_threshold;
    if in_force.is_some_and(|in_force| in_force <= DEFAULT_THRESHOLD) {
        return None;
    }
    let now = in_force.map(|in_force| format!(" (now only blocks of {in_force} and more)")).unwrap_or_default();
    let elsewhere = match has_tunable(case, "mmap_threshold") {
        true => "; GLIBC_TUNABLES has glibc.malloc.mmap_threshold already: change it there",
        false => "",
    };
    let apart = remedy(
        Effort::Restart,
        format!("keep blocks of 128 KiB and more out of the heap, so that freeing them unmaps them{now}"),
        format!("MALLOC_MMAP_THRESHOLD_={}", DEFAULT_THRESHOLD.0),
        format!(
            "fixes the threshold instead of letting it grow; each block above it then costs an mmap and an munmap. It helps \
             where large blocks fragment, not where small ones do{elsewhere}"
        ),
    );
    Some(apart.may_save_nothing())
}

/// For free blocks between live ones of the same sizes. Whether another allocator needs less depends on the program; it
/// may also need more.
fn measured_allocators(case: Case<'_>) -> Remedy {
    case.start_below(
        "plimsoll try --with jemalloc --with tcmalloc --with mimalloc --",
        "measure whether another allocator packs these blocks closer: it may also need more",
        "",
        "runs the program several times under each allocator that is installed; --load or --url gives it a load",
    )
}

/// A text like `the main arena and 3 thread arenas`.
fn where_it_is(holding: &[&Arena]) -> String {
    let threads = holding.iter().filter(|arena| arena.kind == ArenaKind::Thread).count();
    let main = holding.len() > threads;
    let threads = match threads {
        0 => None,
        1 => Some("one thread arena".to_owned()),
        many => Some(format!("{} thread arenas", count(many as u64))),
    };
    match (main, threads) {
        (true, Some(threads)) => format!("the main arena and {threads}"),
        (false, Some(threads)) => threads,
        (_, None) => "the main arena".to_owned(),
    }
}

/// MALLOC_ARENA_MAX limits the number of arenas, not what one arena keeps.
fn about_a_cap(holding: &[&Arena]) -> String {
    match holding {
        [] | [_] => {
            "a lower MALLOC_ARENA_MAX would change nothing: it limits the number of arenas, and this is one".to_owned()
        }
        few => format!(
            "a lower MALLOC_ARENA_MAX would change little: it limits the number of arenas, and {} hold this",
            count(few.len() as u64)
        ),
    }
}
