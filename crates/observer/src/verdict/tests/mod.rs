//! Rules on invented facts that no test machine has. Situations that fixtures can produce are tested on real processes
//! (crates/cli/tests/explain). Here are the functions that make snapshots for more than one module.

use super::*;
use crate::ledger::{Baseline, LineId};
use plimsoll_facts::snapshot::{
    AllocatorKind, Arena, ArenaKind, ArrayBuffers, Backing, BlockCache, Booked, BookedCategory, Cgroup,
    CodeCacheSegment, DirectBuffers, EqualBlocks, Glibc, HeapPart, HotSpot, JavaHeap, Listeners, LoadedAllocator,
    NmtCategory, ObjectClass, OtherHeap, Pressure, Process, Root, Snapshot, Start, Thread, Throttle, VmRegion, VmTag,
    Vma, ZlibStates,
};
use plimsoll_facts::units::{AddressRange, Avma};

mod arenas;
mod growth;
mod kernel;
mod leaks;
mod limits;
mod production;
mod steps;
mod threads;
mod unclear;
mod vm;

/// Consecutive mappings with these numbers of resident bytes, of a kind that needs no judgement.
fn with_mappings(sizes: &[Bytes]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut at = Avma(1 << 20);
    for size in sizes {
        let range = AddressRange::sized(at, *size);
        let vma = Vma { range, readable: true, writable: true, rss: *size, backing: Backing::Shmem, ..Vma::default() };
        snapshot.vmas.push(vma);
        at = Avma(range.end.0 + (1 << 20));
    }
    snapshot
}

fn ids(snapshot: &Snapshot) -> Vec<&'static str> {
    judge(snapshot, &Ledger::of(snapshot)).iter().map(|verdict| verdict.id.id()).collect()
}

/// A glibc with one arena per mapping, each with its number of free resident bytes. The first is the main arena.
fn with_arenas(free: &[Bytes], live: Bytes) -> Snapshot {
    let sizes: Vec<Bytes> = free.iter().map(|free| *free + live).collect();
    let mut snapshot = with_mappings(&sizes);
    let arenas = free.iter().zip(&snapshot.vmas).enumerate().map(|(index, (free, vma))| Arena {
        kind: if index == 0 { ArenaKind::Main } else { ArenaKind::Thread },
        heaps: vec![vma.range],
        live,
        live_resident: live,
        bins: *free,
        free_resident: *free,
        trimmable: *free,
        ..Arena::default()
    });
    snapshot.glibc = Some(Glibc { arenas: arenas.collect(), arena_cap: Some(16), ..Glibc::default() });
    snapshot
}

fn with_limit(limit: Bytes, charged: Bytes, inactive_file: Bytes) -> Snapshot {
    let mut snapshot = with_mappings(&[Bytes::mib(100)]);
    let mut cgroup = Cgroup { limit: Some(limit), charged, ..Cgroup::default() };
    cgroup.stat.inactive_file = inactive_file;
    snapshot.cgroup = Some(cgroup);
    snapshot
}

fn verdict_of(snapshot: &Snapshot, id: VerdictId) -> Verdict {
    let found = judge(snapshot, &Ledger::of(snapshot)).into_iter().find(|verdict| verdict.id == id);
    found.unwrap_or_else(|| panic!("no {}: {:?}", id.id(), ids(snapshot)))
}

/// A JVM with this many bytes in the line of direct buffers, of which java.nio counts `counted`.
fn with_direct(resident: Bytes, counted: Bytes, max: Bytes) -> Snapshot {
    let mut snapshot = with_mappings(&[Bytes::mib(64), resident]);
    let range = snapshot.vmas[1].range;
    let region = VmRegion { range, tag: VmTag::Other("Other".into()), committed: vec![range] };
    let direct = DirectBuffers {
        count: Some(9),
        capacity: counted,
        at_walk: counted,
        max: Some(max),
        ..DirectBuffers::default()
    };
    snapshot.hotspot = Some(HotSpot { regions: vec![region], direct_buffers: Some(direct), ..HotSpot::default() });
    snapshot
}

/// A library that brings jemalloc, in a program whose malloc is glibc's.
fn with_two_mallocs(of_glibc: Bytes, of_jemalloc: Bytes, others: Bytes) -> Snapshot {
    let mut snapshot = with_mappings(&[of_glibc, of_jemalloc, others]);
    let mut heap = OtherHeap::new(AllocatorKind::Jemalloc);
    heap.ranges.push(snapshot.vmas[1].range);
    heap.add(HeapPart::Live, of_jemalloc, of_jemalloc);
    snapshot.malloc_heap = Some(heap);
    let (heaps, live) = (vec![snapshot.vmas[0].range], of_glibc);
    let arena = Arena { heaps, live, live_resident: live, ..Arena::default() };
    snapshot.glibc = Some(Glibc { arenas: vec![arena], ..Glibc::default() });
    for vma in &mut snapshot.vmas[..2] {
        vma.backing = Backing::Anonymous;
    }
    snapshot
}

fn with_baseline(mut snapshot: Snapshot, seconds: f64, rss: Bytes, lines: &[(LineId, Bytes)]) -> Snapshot {
    snapshot.time = 1000.0;
    snapshot.baseline = Some(Baseline { time: 1000.0 - seconds, rss, lines: lines.to_vec(), ..Baseline::default() });
    snapshot
}

/// Threads with so much stack each; `name` gives their names.
fn with_threads(number: u32, stack: Bytes, name: impl Fn(u32) -> String) -> Snapshot {
    let mut snapshot = with_mappings(&vec![stack; number as usize]);
    for (index, vma) in (0..).zip(&snapshot.vmas) {
        let (tid, name) = (index + 1, name(index));
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, name, stack: Some(vma.range), ..Thread::default() });
    }
    snapshot
}
