//! Bounds the skew of a snapshot: reads the sources that change fast a second time. These are the walks of the
//! allocators, NMT's categories, and the count of direct buffers. The two readings of each lie on both sides of the
//! reading of the mappings:
//!
//! ```text
//!  NMT, direct buffers      walk      threads, smaps      walk      NMT, direct buffers
//! ────────────┴───────────────┴──────────────┴──────────────┴───────────────┴──────────────▶ time
//! ```
//! A figure that changed between its two readings may be wrong by that change at the moment of smaps. For a figure that
//! only rises or only falls, the bound is strict. A figure that swings faster than the readings follow one another may
//! exceed it.

use std::collections::HashMap;

use crate::source::glibc;
use crate::source::hotspot;
use crate::source::native_image;
use crate::source::other_heaps;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Arena, Glibc, HotSpot, MmappedChunk, NativeImage, OtherHeap, Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::Live;
use plimsoll_process::proc::{self, Target};

/// With more anonymous memory, one walk takes seconds, so there is no second walk.
const WALKED_TWICE: Bytes = Bytes::mib(8 << 10);

/// The walks before the mappings are read.
#[derive(Default)]
pub(super) struct Walks {
    glibc: Option<Glibc>,
    malloc_heap: Option<OtherHeap>,
    go: Option<OtherHeap>,
}

impl Walks {
    /// What can't be walked now is reported by the walk after the mappings are read.
    pub(crate) fn before(target: &Target, snapshot: &Snapshot, wanted: glibc::WalkOptions<'_>) -> Walks {
        let mut vmas = target.read("maps").map(|text| proc::parse_maps(&text, &[]).vmas).unwrap_or_default();
        if vmas.is_empty() || is_large(snapshot) {
            return Walks::default();
        }
        // It isn't known yet which mappings have resident pages, so assume that all have.
        vmas.iter_mut().for_each(|vma| vma.rss = vma.range.length());
        let (allocators, program) = (&snapshot.allocators, snapshot.process.executable.as_deref());
        Walks {
            glibc: glibc::read(target, &vmas, wanted).0,
            malloc_heap: other_heaps::read(target, allocators, program, &vmas).0,
            go: other_heaps::read_go(target, allocators, &vmas).0,
        }
    }

    /// Sets `moved` of each figure of the walk after the mappings were read, and adds the large blocks that it missed.
    pub(crate) fn compare_glibc(&self, glibc: &mut Glibc, vmas: &[Vma]) {
        let Some(before) = &self.glibc else { return };
        arenas(glibc, before);
        large_blocks(glibc, before, vmas);
        for blocks in &mut glibc.tagged {
            let then = before.tagged.iter().find(|then| then.tag == blocks.tag);
            blocks.moved = blocks.resident.abs_diff(then.map(|then| then.resident).unwrap_or_default());
        }
    }

    /// Whether only the walk after the mappings were read found a heap.
    fn lack_one(&self, snapshot: &Snapshot) -> bool {
        let of = |before: &Option<OtherHeap>, now: &Option<OtherHeap>| before.is_none() && now.is_some();
        self.glibc.is_none() && snapshot.glibc.is_some()
            || of(&self.malloc_heap, &snapshot.malloc_heap)
            || of(&self.go, &snapshot.go)
    }

    /// Like `compare_glibc`, for the other allocators. Returns a gap if only one walk exists.
    pub(crate) fn compare(&self, target: &Target, snapshot: &mut Snapshot) -> Option<Gap> {
        let once = |why: String| {
            let effect = "bytes that moved between live and free during the walk are unknown; the lines' error doesn't include them";
            Gap::new(Source::Glibc, why, effect)
        };
        if is_large(snapshot) && (snapshot.glibc.is_some() || snapshot.other_heaps().next().is_some()) {
            return Some(once(format!("memory of more than {WALKED_TWICE} is walked only once")));
        }
        let mut is_missing = self.lack_one(snapshot);
        let heaps = [(&mut snapshot.malloc_heap, &self.malloc_heap), (&mut snapshot.go, &self.go)];
        for (heap, before) in heaps.into_iter().filter_map(|(heap, before)| heap.as_mut().zip(before.as_ref())) {
            parts(heap, before);
        }
        // V8's pages are recognised among resident mappings only, so both of its walks come after smaps.
        if let Some(heap) = &mut snapshot.v8 {
            match other_heaps::read_v8(target, &snapshot.allocators, &snapshot.vmas).0 {
                Some(after) => parts(heap, &after),
                None => is_missing = true,
            }
        }
        is_missing.then(|| once("one of the two walks through a heap led nowhere".to_owned()))
    }
}

fn is_large(snapshot: &Snapshot) -> bool {
    snapshot.rss_by_kind.anonymous > WALKED_TWICE
}

/// Queries the VM again, and sets `moved` of what it counts.
pub(super) fn of_vm(target: &Target, maps: &[Vma], vm: &mut HotSpot, known: Option<&hotspot::KnownVm>) -> Option<Gap> {
    if let Some(first) = &mut vm.direct_buffers
        && let Some(now) = known.zip(Live::open(target).ok()).and_then(|(known, memory)| known.direct_buffers(&memory))
    {
        first.moved = now.capacity.abs_diff(first.capacity);
    }
    let reason = hotspot::read_again(target, maps, vm).err()?;
    Some(once(Source::HotSpot, &reason))
}

/// Queries a native image's NMT again, and sets `moved` of its categories.
pub(super) fn of_image(target: &Target, image: &mut NativeImage) -> Option<Gap> {
    if image.nmt.is_empty() {
        return None;
    }
    let reason = native_image::read_again(target, &mut image.nmt).err()?;
    Some(once(Source::NativeImage, &reason))
}

fn once(source: Source, reason: &str) -> Gap {
    let effect = "how much the VM's categories changed meanwhile is not known, and not in the lines' error";
    Gap::new(source, format!("NMT was read only once: {reason}"), effect)
}

/// An arena that is missing in `before` was empty then.
fn arenas(glibc: &mut Glibc, before: &Glibc) {
    let none = Arena::default();
    let before: HashMap<Avma, &Arena> = before.arenas.iter().map(|then| (then.address, then)).collect();
    for arena in &mut glibc.arenas {
        let then = before.get(&arena.address).copied().unwrap_or(&none);
        let [live, free] = [(arena.live_resident, then.live_resident), (arena.free_resident, then.free_resident)]
            .map(|(now, then)| now.abs_diff(then));
        arena.moved = live.max(free);
    }
}

/// Freeing a large block unmaps it. So a block that only the walk before smaps found, and whose range smaps still has,
/// was most likely freed after smaps.
fn large_blocks(glibc: &mut Glibc, before: &Glibc, vmas: &[Vma]) {
    let mut taken: Vec<AddressRange> = glibc.mmapped.iter().map(|chunk| chunk.range).collect();
    taken.extend(glibc.arenas.iter().flat_map(|arena| arena.heaps.iter().copied()));
    taken.sort_unstable();
    let is_free = |range: AddressRange| {
        let next = taken.partition_point(|other| other.end <= range.start);
        taken.get(next).is_none_or(|next| !next.overlaps(range))
    };
    let stretches = glibc::stretches(vmas);
    let was_mapped = |range: AddressRange| glibc::reach(&stretches, range.start) >= range.end;
    let then = before.mmapped.iter().map(|chunk| chunk.range);
    glibc.gone = then.filter(|range| is_free(*range) && was_mapped(*range)).collect();
    glibc.gone.sort_unstable();
    glibc.mmapped.extend(glibc.gone.iter().map(|range| MmappedChunk { range: *range }));
    glibc.mmapped.sort_unstable_by_key(|chunk| chunk.range);
}

fn parts(heap: &mut OtherHeap, other: &OtherHeap) {
    for (part, bytes) in heap.parts.iter_mut().filter(|_| heap.kind == other.kind) {
        bytes.moved = other.resident(*part).abs_diff(bytes.resident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_process::foreign::{Deadline, LOOK};

    const PAGE: u64 = 4096;

    fn range(page: u64, pages: u64) -> AddressRange {
        AddressRange::sized(Avma(page * PAGE), Bytes(pages * PAGE))
    }

    /// If only one walk found the heap, no error is known. The report must not show that as an error of 0.
    #[test]
    fn a_heap_that_only_one_walk_found_is_a_gap() {
        let target = Target::open(std::process::id(), Deadline::after(LOOK)).expect("ourselves");
        let reason = |walks: &Walks, glibc| {
            let mut snapshot = Snapshot { glibc, ..Snapshot::default() };
            walks.compare(&target, &mut snapshot).map(|gap| gap.reason)
        };
        let found = || Some(Glibc::default());
        let once = Some("one of the two walks through a heap led nowhere".to_owned());
        assert_eq!(reason(&Walks::default(), found()), once);
        assert_eq!(reason(&Walks { glibc: found(), ..Walks::default() }, found()), None);
        assert_eq!(reason(&Walks::default(), None), None);
    }

    #[test]
    fn a_large_block_that_was_freed_after_smaps_is_kept() {
        let blocks = |ranges: &[AddressRange]| Glibc {
            mmapped: ranges.iter().map(|range| MmappedChunk { range: *range }).collect(),
            ..Glibc::default()
        };
        // Block 100 stays. Block 200 is freed after smaps, and 500 before it. Address 300 now has an arena, and 400
        // another block. Block 600 is mapped only in part.
        let before =
            blocks(&[range(600, 10), range(100, 10), range(200, 10), range(300, 10), range(400, 10), range(500, 10)]);
        let mut after = blocks(&[range(100, 10), range(405, 20)]);
        after.arenas.push(Arena { heaps: vec![range(290, 50)], ..Arena::default() });
        let mapped = |range| Vma { range, readable: true, writable: true, ..Vma::default() };
        // The kernel cut the mapping of the freed block in two.
        let vmas = [range(100, 10), range(200, 4), range(204, 30), range(290, 50), range(400, 30), range(600, 9)];
        large_blocks(&mut after, &before, &vmas.map(mapped));
        assert_eq!(after.gone, [range(200, 10)]);
        let found: Vec<AddressRange> = after.mmapped.iter().map(|chunk| chunk.range).collect();
        assert_eq!(found, [range(100, 10), range(200, 10), range(405, 20)]);
    }
}
