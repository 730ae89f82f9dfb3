//! The heaps of allocators besides glibc's, and what may be missing of glibc's.

use std::time::Instant;

use crate::source::other_heaps;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{AllocatorKind, Backing, Glibc, LoadedAllocator, Reading, Snapshot, Vma};
use plimsoll_facts::units::Bytes;
use plimsoll_process::proc::{Target, timed};

/// Reads the heap of the allocator that serves malloc, and those of V8 and Go.
pub(super) fn read_other_heaps(
    target: &Target,
    since: Instant,
    snapshot: &mut Snapshot,
    readings: &mut Vec<Reading>,
    gaps: &mut Vec<Gap>,
) {
    let (heap, closed) = timed(since, Source::Allocator, readings, || {
        let program = snapshot.process.executable.as_deref();
        other_heaps::read(target, &snapshot.allocators, program, &snapshot.vmas)
    });
    if heap.is_none() {
        readings.retain(|reading| reading.source != Source::Allocator);
    }
    snapshot.malloc_heap = heap;
    gaps.extend(closed);
    let (v8, closed) = other_heaps::read_v8(target, &snapshot.allocators, &snapshot.vmas);
    snapshot.v8 = v8;
    gaps.extend(closed);
    let (go, closed) = other_heaps::read_go(target, &snapshot.allocators, &snapshot.vmas);
    snapshot.go = go;
    gaps.extend(closed);
}

/// The gap if glibc serves malloc, and no arena was found in its data: a newer glibc may lay them out in another way. A
/// program that hasn't called malloc has no [heap], and a preloaded allocator serves malloc itself.
pub(super) fn unrecognised_glibc(snapshot: &Snapshot, gaps: &[Gap]) -> Option<Gap> {
    let serves = |known: &LoadedAllocator| known.serves_malloc && known.kind == AllocatorKind::Glibc;
    let is_used = |vma: &Vma| vma.backing == Backing::Brk && vma.rss > Bytes(0);
    let is_unknown = snapshot.glibc.is_none()
        && snapshot.malloc_heap.is_none()
        && snapshot.allocators.iter().any(serves)
        && snapshot.vmas.iter().any(is_used)
        && gaps.iter().all(|gap| gap.source != Source::Glibc);
    is_unknown.then(|| {
        let reason = "no arena of glibc's malloc was found in libc's data";
        Gap::new(Source::Glibc, reason, "glibc's live and free blocks are in glibc-unknown and other-anonymous")
    })
}

/// The default cap on arenas: 8 × CPUs (malloc/arena.c, `arena_get2`). glibc 2.34 to 2.38 counted the CPUs that the
/// process may run on; other versions count all online CPUs. The stable branches and most distributions reverted that
/// without a new version (glibc bug 30945). So only a process with more arenas than the lower cap shows which cap
/// holds.
pub(super) fn with_arena_cap(mut glibc: Glibc, snapshot: &Snapshot) -> Glibc {
    let online = 8 * snapshot.host.cpus_online;
    // `mp_` has the threshold and any cap that was set. If `mp_` was not recognised, any cap may have been set.
    if glibc.arena_cap.is_some() || glibc.mmap_threshold.is_none() || online == 0 {
        return glibc;
    }
    let minor = glibc.version.strip_prefix("2.").and_then(|minor| minor.parse::<u32>().ok());
    let may_count_allowed = minor.is_some_and(|minor| (34..=38).contains(&minor));
    let allowed = snapshot.process.cpus_allowed.map(|allowed| 8 * allowed);
    let arenas = glibc.arenas.len() as u64;
    match allowed.filter(|allowed| may_count_allowed && *allowed < online && arenas <= *allowed) {
        Some(allowed) => (glibc.arena_cap, glibc.arena_cap_online) = (Some(allowed), Some(online)),
        None => glibc.arena_cap = Some(online),
    }
    glibc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glibc_whose_arenas_are_not_found_is_a_gap() {
        let heap = Vma { backing: Backing::Brk, rss: Bytes(4096), ..Vma::default() };
        let allocator =
            |kind| LoadedAllocator { kind, path: "/lib/libc.so.6".into(), serves_malloc: kind == AllocatorKind::Glibc };
        let snapshot =
            |kind| Snapshot { vmas: vec![heap.clone()], allocators: vec![allocator(kind)], ..Snapshot::default() };
        let of_glibc = snapshot(AllocatorKind::Glibc);
        assert!(unrecognised_glibc(&of_glibc, &[]).is_some());
        assert_eq!(unrecognised_glibc(&of_glibc, &[Gap::new(Source::Glibc, "refused", "")]), None);
        assert_eq!(unrecognised_glibc(&snapshot(AllocatorKind::Go), &[]), None);
        let found = Snapshot { glibc: Some(Glibc::default()), ..snapshot(AllocatorKind::Glibc) };
        assert_eq!(unrecognised_glibc(&found, &[]), None);
        let unused = Snapshot { vmas: Vec::new(), ..snapshot(AllocatorKind::Glibc) };
        assert_eq!(unrecognised_glibc(&unused, &[]), None);
    }

    /// Debian 12's 2.36 made 16 arenas on 2 CPUs in a process that may run on one.
    #[test]
    fn an_old_glibc_may_count_the_cpus_that_are_allowed_or_all() {
        let cap = |version: &str, arenas: usize, allowed: Option<u64>| {
            let glibc = Glibc {
                version: version.into(),
                arenas: vec![plimsoll_facts::snapshot::Arena::default(); arenas],
                mmap_threshold: Some(Bytes::kib(128)),
                ..Glibc::default()
            };
            let mut snapshot = Snapshot::default();
            (snapshot.host.cpus_online, snapshot.process.cpus_allowed) = (2, allowed);
            let glibc = with_arena_cap(glibc, &snapshot);
            (glibc.arena_cap_text().expect("a cap"), glibc.most_arenas())
        };
        let all = ("16 (8 × 2 CPUs)".to_owned(), Some(16));
        assert_eq!(cap("2.36", 16, Some(1)), all);
        assert_eq!(cap("2.36", 9, Some(1)), all);
        assert_eq!(cap("2.36", 4, Some(2)), all);
        assert_eq!(cap("2.39", 4, Some(1)), all);
        assert_eq!(cap("2.31", 4, None), all);
        let either =
            "8 or 16 (8 × 1 CPU, which the process may run on, or 2 online: that depends on the patches of this glibc)";
        assert_eq!(cap("2.36", 8, Some(1)), (either.to_owned(), Some(16)));
        let mut snapshot = Snapshot::default();
        snapshot.host.cpus_online = 2;
        assert_eq!(with_arena_cap(Glibc::default(), &snapshot).arena_cap_text(), None, "mp_ was not recognised");
    }
}
