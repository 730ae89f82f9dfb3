//! Many arenas, each of which keeps what its threads freed. Only here does an arena cap help: if one arena (or the main
//! one) holds the free pages, the verdict is `allocator-retention`.

use super::case::Case;
use super::remedies::{arena_cap, fewer_instrumentations, fewer_threads, other_allocator, periodic_trim, trim};
use super::remedy::MIN_PERCENT_TO_MENTION;
use super::{Severity, Verdict, VerdictId};
use crate::ledger::LineId;
use plimsoll_facts::snapshot::{Arena, ArenaKind};
use plimsoll_facts::units::Bytes;

const FLOOR: Bytes = Bytes::mib(16);
const PERCENT: f64 = 10.0;
/// With fewer arenas than this, a cap on their number changes little.
const MANY: usize = 4;
const WORTH_AN_ARENA: Bytes = Bytes::mib(1);

pub(crate) fn rule(case: Case<'_>) -> Option<Verdict> {
    let retained = case.retained(ArenaKind::Thread);
    if !case.matters(retained, PERCENT, FLOOR) || !spread(case) {
        return None;
    }
    let glibc = case.glibc()?;
    let arenas: Vec<&Arena> = case.arenas(ArenaKind::Thread).collect();
    let live: Bytes = arenas.iter().map(|arena| arena.live).sum();
    let holding = arenas.iter().filter(|arena| arena.free_resident >= WORTH_AN_ARENA).count();
    let idle: Bytes = arenas.iter().filter(|arena| arena.attached_threads == 0).map(|arena| arena.free_resident).sum();
    let mut evidence = vec![format!(
        "{} thread arenas: {retained} resident and free, {live} live, in {holding} arenas that keep more than {WORTH_AN_ARENA}",
        arenas.len()
    )];
    evidence.extend(cap_in_force(case));
    if idle > Bytes(0) {
        evidence.push(format!("{idle} of it in arenas that no thread is attached to"));
    }
    let trimmable: Bytes = arenas.iter().map(|arena| arena.trimmable).sum();
    evidence.extend(at_ends(&arenas, retained));
    evidence.extend(after_a_burst(case, retained, live));
    let mut remedies = Vec::new();
    if trimmable.percent_of(retained) >= MIN_PERCENT_TO_MENTION {
        remedies.push(trim(case));
    }
    // After a trim, the rest of what the arenas keep isn't resident: the next burst needs the same remedy.
    let given_back: Bytes = arenas.iter().map(|arena| arena.free() - arena.free_resident).sum();
    if trimmable.percent_of(retained) >= MIN_PERCENT_TO_MENTION || given_back >= retained {
        remedies.extend(periodic_trim(case));
    }
    let cap_already = glibc.arena_cap_set && glibc.arena_cap.is_some_and(|cap| cap <= 4);
    if !cap_already {
        let cap = if glibc.arena_cap.is_some_and(|cap| cap > 4) { 4 } else { 2 };
        remedies.push(arena_cap(case, cap));
    }
    remedies.extend(fewer_instrumentations(case));
    remedies.extend(other_allocator(case));
    remedies.extend(fewer_threads(case));
    Some(Verdict {
        id: VerdictId::ArenaRetention,
        severity: case.weight_of_kept(retained),
        bytes: retained,
        summary: format!(
            "{retained} is free inside glibc's thread arenas but still resident: {:.0} % of RSS",
            retained.percent_of(case.rss())
        ),
        evidence,
        remedies,
    })
}

/// Whether many arenas share the free pages, so that no single one has most of them.
pub(crate) fn spread(case: Case<'_>) -> bool {
    let free: Vec<Bytes> = case.arenas(ArenaKind::Thread).map(|arena| arena.free_resident).collect();
    let holding = free.iter().filter(|free| **free >= WORTH_AN_ARENA).count();
    let largest = free.iter().copied().max().unwrap_or_default();
    holding >= MANY && largest.percent_of(free.iter().copied().sum()) < 60.0
}

/// The end of a thread arena shrinks only when a free reaches it (malloc/malloc.c mtrim, malloc/arena.c heap_trim).
pub(crate) fn at_ends(arenas: &[&Arena], retained: Bytes) -> Option<String> {
    let at_end: Bytes = arenas.iter().map(|arena| arena.at_end).sum();
    (at_end.percent_of(retained) >= MIN_PERCENT_TO_MENTION).then(|| {
        format!(
            "{at_end} of it lies at the ends of arenas: a trim leaves it; glibc returns it when the block next to it is freed"
        )
    })
}

/// The cap on the number of arenas, and its origin.
pub(crate) fn cap_in_force(case: Case<'_>) -> Option<String> {
    let cap = case.glibc()?.arena_cap_text()?;
    let quota = case.snapshot.cgroup.as_ref().and_then(|cgroup| cgroup.cpu_quota);
    let quota = quota.map(|quota| format!(", while the cgroup's quota is {quota:.1} CPUs")).unwrap_or_default();
    Some(format!("the arena cap in force is {cap}{quota}"))
}

/// Where the free memory comes from: a burst or, if the runtime frees in batches, perhaps the last collection.
pub(crate) fn after_a_burst(case: Case<'_>, retained: Bytes, live: Bytes) -> Vec<String> {
    if !case.frees_in_batches() {
        let burst = burst(retained, live);
        let warns = burst.is_some() && case.weight_of_kept(retained) > Severity::Note;
        let callers = if warns { case.callers_of_a_burst() } else { Vec::new() };
        return burst.into_iter().chain(callers).collect();
    }
    const BATCHES: &str = "V8 frees buffers in batches: after a collection much is free that the next ones take again";
    [BATCHES.to_owned()].into_iter().chain(case.growth(LineId::GlibcRetained)).collect()
}

/// If the free memory is a multiple of the live memory beside it, it was needed in the past and isn't now. Whether all
/// of it was needed at one moment is unknown: each arena may have had its own burst.
pub(crate) fn burst(retained: Bytes, live: Bytes) -> Option<String> {
    let once = retained + live;
    (retained.0 >= live.0.saturating_mul(2))
        .then(|| format!("of {once} in these arenas {live} are live now: one burst, or several in turn, left the rest"))
}
