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

/// The default cap on arenas: 8 × CPUs (malloc/arena.c, `arena_get2`). glibc 2.34 to 2.38 counts the CPUs that the
/// process may run on (`__get_nprocs_sched`); other versions count all online CPUs.
pub(super) fn with_arena_cap(mut glibc: Glibc, snapshot: &Snapshot) -> Glibc {
    if glibc.arena_cap.is_none() {
        let minor = glibc.version.strip_prefix("2.").and_then(|minor| minor.parse::<u32>().ok());
        let by_affinity = minor.is_some_and(|minor| (34..=38).contains(&minor));
        let online = snapshot.host.cpus_online;
        let cpus = snapshot.process.cpus_allowed.filter(|_| by_affinity).map_or(online, |allowed| allowed.min(online));
        glibc.arena_cap = (cpus > 0).then_some(8 * cpus);
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
}
