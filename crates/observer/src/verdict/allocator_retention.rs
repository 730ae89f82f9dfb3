//! Free pages kept by one arena: fragmentation, or a burst that is over. The cap on arenas does nothing about it.

use super::arena_retention::spread;
use super::case::Case;
use super::remedies::{other_allocator, periodic_trim, remedy, trim};
use super::{Effort, Severity, Verdict, VerdictId};
use crate::snapshot::{Arena, ArenaKind};
use crate::units::Bytes;

const FLOOR: Bytes = Bytes::mib(16);
const PERCENT: f64 = 10.0;

pub fn rule(case: Case<'_>) -> Option<Verdict> {
    let main = case.retained(ArenaKind::Main);
    let threads = if spread(case) { Bytes(0) } else { case.retained(ArenaKind::Thread) };
    let retained = main + threads;
    if !case.matters(retained, PERCENT, FLOOR) {
        return None;
    }
    let (where_it_is, live, top) = match main >= threads {
        true => ("the main arena", live_of(case, ArenaKind::Main), top_of(case, ArenaKind::Main)),
        false => ("one thread arena", live_of(case, ArenaKind::Thread), top_of(case, ArenaKind::Thread)),
    };
    let concerned = |arena: &&Arena| arena.kind == ArenaKind::Main || threads > Bytes(0);
    let concerned: Vec<&Arena> = case.glibc()?.arenas.iter().filter(concerned).collect();
    let trimmable: Bytes = concerned.iter().map(|arena| arena.trimmable).sum();
    let at_end: Bytes = concerned.iter().map(|arena| arena.at_end).sum();
    let scattered = retained - top.min(retained);
    let mut evidence = vec![format!("{where_it_is} holds {live} live among {retained} free and resident")];
    evidence.push(format!(
        "{scattered} of it lies between live blocks (fragmentation), {} at the end of the heap",
        retained - scattered
    ));
    evidence.push(format!("{trimmable} of it is whole pages, which a trim gives back"));
    evidence
        .push("MALLOC_ARENA_MAX would change nothing here: it limits the number of arenas, and this is one".to_owned());
    let mut remedies = vec![trim(case)];
    if case.is_jvm() {
        remedies.push(periodic_trim());
    }
    remedies.push(remedy(
        Effort::Restart,
        "keep large blocks out of the heap, so that freeing them unmaps them",
        "MALLOC_MMAP_THRESHOLD_=131072",
        "fixes the threshold instead of letting it grow; each block above it then costs an mmap and an munmap. It helps \
         where large blocks fragment, not where small ones do",
    ));
    remedies.push(other_allocator(""));
    Some(Verdict {
        id: VerdictId::AllocatorRetention,
        severity: Severity::Warning,
        bytes: retained,
        summary: format!(
            "{retained} is free inside glibc's malloc but still resident, nearly all of it in {where_it_is}: {:.0} % of RSS",
            retained.percent_of(case.rss())
        ),
        evidence,
        saving: Some((trimmable, trimmable + at_end)),
        remedies,
    })
}

fn live_of(case: Case<'_>, kind: ArenaKind) -> Bytes {
    case.arenas(kind).map(|arena| arena.live).sum()
}

fn top_of(case: Case<'_>, kind: ArenaKind) -> Bytes {
    case.arenas(kind).map(|arena| arena.top.min(arena.free_resident)).sum()
}
