//! Finds the owners of memory that came after the owners were read, if the memory itself identifies them:
//!
//! ```text
//! an arena's heap whose accessible part grew     up to the end of its reservation (64 MiB for a thread's, brk for the main one)
//! a new heap of a known arena                    heap_info.ar_ptr at its start (malloc/arena.c)
//! a block in a mapping of its own                its header at the start: IS_MMAPPED alone (malloc/malloc.c, sysmalloc_mmap)
//! a new thread's stack                           the thread library's record at its top (`proc::find_stacks`)
//! a VM's archive of classes, ZGC's heap          the name of its file: a VM that was queried while it started had none
//! ```
//! The owners' own walk follows the same rules. The result stays until the next walk. Only present pages are read.

use std::collections::{HashMap, HashSet};

use crate::ledger::vma_at;
use crate::source::glibc::{overlapping, reach, stretches};
use crate::source::hotspot;
use plimsoll_facts::gap::Gap;
use plimsoll_facts::snapshot::{ArenaKind, Backing, MmappedChunk, Snapshot, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes, merged};
use plimsoll_process::proc::memory::{Memory, PAGE, PageState, PageStates, word_at};
use plimsoll_process::proc::{self, Target};

/// HEAP_MAX_SIZE of 64-bit systems without huge pages for malloc.
const HEAP: u64 = 64 << 20;
const IS_MMAPPED: u64 = 2;

/// `threads` is the current number of threads. `before` are the earlier mappings, if they were read again. Adds to
/// `gaps` what could not be read of new threads.
pub(super) fn update_owners(
    target: &Target,
    memory: &impl Memory,
    snapshot: &mut Snapshot,
    before: Option<&[Vma]>,
    threads: u64,
    gaps: &mut Vec<Gap>,
) {
    let has_moved = |before: &&[Vma]| {
        let mut pairs = before.iter().zip(&snapshot.vmas);
        before.len() != snapshot.vmas.len()
            || pairs.any(|(old, new)| old.range != new.range || old.writable != new.writable)
    };
    let moved = before.filter(has_moved);
    if threads != snapshot.threads.len() as u64 {
        new_threads(target, memory, snapshot, gaps);
    }
    if let Some(before) = moved {
        new_mappings(memory, snapshot, before);
    }
}

fn new_mappings(memory: &impl Memory, snapshot: &mut Snapshot, before: &[Vma]) {
    malloc(memory, snapshot, before);
    if let Some(vm) = &mut snapshot.hotspot {
        hotspot::join_named(vm, &snapshot.vmas);
    }
}

fn new_threads(target: &Target, memory: &impl Memory, snapshot: &mut Snapshot, gaps: &mut Vec<Gap>) {
    let Ok(tids) = target.numbers("task") else { return };
    let now: HashSet<u32> = tids.iter().copied().collect();
    snapshot.threads.retain(|thread| now.contains(&thread.tid));
    let known: HashSet<u32> = snapshot.threads.iter().map(|thread| thread.tid).collect();
    let new = tids.into_iter().filter(|tid| !known.contains(tid));
    snapshot.threads.extend(proc::read_these_threads(target, new, snapshot.process.contained, gaps));
    let deadline = target.deadline();
    snapshot.idle_stacks = proc::find_stacks(memory, &snapshot.vmas, &mut snapshot.threads, deadline, gaps);
}

/// Adds the heaps and large blocks that glibc's malloc got since the last walk.
pub(super) fn malloc(memory: &impl Memory, snapshot: &mut Snapshot, before: &[Vma]) {
    let Snapshot { vmas, glibc: Some(glibc), hotspot, .. } = snapshot else { return };
    for arena in &mut glibc.arenas {
        for heap in &mut arena.heaps {
            *heap = longer(*heap, arena.kind, vmas);
        }
    }
    // Forget chunks that were unmapped since the walk: other memory may be mapped at that address.
    let gone = std::mem::take(&mut glibc.gone);
    let is_mapped = |chunk: &MmappedChunk| vma_at(vmas, chunk.range.start).is_some_and(belongs_to_malloc);
    glibc.mmapped.retain(|chunk| is_mapped(chunk) && gone.binary_search(&chunk.range).is_err());
    let regions = hotspot.as_ref().map(|vm| vm.regions.as_slice()).unwrap_or_default();
    // A process may have 65,000 mappings, and a hostile VM names as many regions and arenas.
    let regions = merged(regions.iter().map(|region| region.range).collect());
    let mut arena_at: HashMap<Avma, usize> = HashMap::new();
    for (index, arena) in glibc.arenas.iter().enumerate() {
        arena_at.entry(arena.address).or_insert(index);
    }
    let mut pages = PageStates::new(memory);
    let stretches = stretches(vmas);
    let mut taken = Avma(0);
    for fresh in fresh(vmas, before).filter(|fresh| overlapping(&regions, *fresh).is_empty()) {
        if fresh.start.0.is_multiple_of(HEAP) {
            let of = present(&mut pages, memory, fresh.start).and_then(|head| word_at(&head, 0));
            if let Some(arena) = of.and_then(|address| arena_at.get(&Avma(address))) {
                let end = fresh.end.min(fresh.start.offset(Bytes(HEAP)));
                glibc.arenas[*arena].heaps.push(AddressRange::new(fresh.start, end));
                continue;
            }
        }
        taken = taken.max(fresh.start);
        let end = reach(&stretches, fresh.start);
        while let Some(chunk) = block(&mut pages, memory, taken, end) {
            glibc.mmapped.push(MmappedChunk { range: chunk });
            taken = chunk.end;
        }
    }
    glibc.arenas.iter_mut().for_each(|arena| arena.heaps.sort_unstable());
    glibc.mmapped.sort_unstable_by_key(|chunk| chunk.range);
    glibc.mmapped.dedup();
}

/// Extends the heap to the end of the accessible part of its reservation: all of that is the arena's (malloc/arena.c,
/// `grow_heap`). The walk and the mappings were read at two moments, so the heap may have grown in between; the earlier
/// mapping is therefore not consulted. Pieces that the main arena got by mmap have no reservation.
fn longer(heap: AddressRange, kind: ArenaKind, vmas: &[Vma]) -> AddressRange {
    let Some(new) = vma_at(vmas, heap.start).filter(|new| belongs_to_malloc(new)) else { return heap };
    let end = match (&new.backing, kind) {
        (Backing::Brk, _) => new.range.end,
        (_, ArenaKind::Thread) => new.range.end.min(Avma((heap.start.0 / HEAP * HEAP).saturating_add(HEAP))),
        (_, ArenaKind::Main) => heap.end,
    };
    AddressRange::new(heap.start, end.max(heap.end))
}

fn belongs_to_malloc(vma: &Vma) -> bool {
    let is_unnamed = || vma.name.is_empty() || vma.name.starts_with("[anon: glibc: malloc");
    vma.backing == Backing::Brk || vma.backing == Backing::Anonymous && vma.writable && !vma.shared && is_unnamed()
}

/// Parts of writable anonymous mappings where nothing was mapped before.
fn fresh<'v>(vmas: &'v [Vma], before: &'v [Vma]) -> impl Iterator<Item = AddressRange> + 'v {
    let own =
        vmas.iter().filter(|vma| vma.backing == Backing::Anonymous && belongs_to_malloc(vma) && vma.rss > Bytes(0));
    own.flat_map(move |vma| {
        let first = before.partition_point(|old| old.range.end <= vma.range.start);
        let mut parts = Vec::new();
        let mut at = vma.range.start;
        for old in before[first..].iter().take_while(|old| old.range.start < vma.range.end) {
            parts.push(AddressRange::new(at, old.range.start));
            at = at.max(old.range.end);
        }
        parts.push(AddressRange::new(at, vma.range.end));
        parts.into_iter().filter(|part| !part.is_empty())
    })
}

/// The first bytes of a page, if it is present.
fn present<M: Memory>(pages: &mut PageStates<'_, M>, memory: &M, at: Avma) -> Option<[u8; 16]> {
    let mut head = [0; 16];
    (pages.of(at.0 / PAGE) == PageState::Present && memory.read(at, &mut head)).then_some(head)
}

fn block<M: Memory>(pages: &mut PageStates<'_, M>, memory: &M, at: Avma, end: Avma) -> Option<AddressRange> {
    let length = end.0.checked_sub(at.0).filter(|length| *length >= PAGE)?;
    let head = present(pages, memory, at)?;
    let (before, field) = (word_at(&head, 0)?, word_at(&head, 8)?);
    let size = field & !7;
    let fits = before == 0 && field & 7 == IS_MMAPPED && size >= PAGE && size.is_multiple_of(PAGE) && size <= length;
    fits.then(|| AddressRange::sized(at, Bytes(size)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use plimsoll_facts::snapshot::{Arena, Glibc, HotSpot, VmRegion, VmTag};

    /// Words by address; every page is present.
    struct Image(HashMap<u64, u64>);

    impl Memory for Image {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            for (index, piece) in into.chunks_mut(8).enumerate() {
                let word = self.0.get(&(at.0 + 8 * index as u64)).copied().unwrap_or(0x1111);
                piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
            }
            true
        }
        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    fn vma(start: u64, end: u64, backing: Backing) -> Vma {
        let range = AddressRange::new(Avma(start), Avma(end));
        Vma { range, readable: true, writable: true, rss: range.length(), backing, ..Vma::default() }
    }

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Avma(start), Avma(end))
    }

    const BRK: u64 = 0x5555_0000_0000;
    const FIRST: u64 = 0x7000_0000_0000;
    const SECOND: u64 = FIRST + HEAP;
    const FOREIGN: u64 = FIRST + 4 * HEAP;
    const BLOCKS: u64 = 0x7100_0000_0000;
    const SPLIT: u64 = 0x7180_0000_0000;
    const OTHER: u64 = 0x7200_0000_0000;

    #[test]
    fn new_memory_goes_to_its_owner_only() {
        use Backing::{Anonymous, Brk};
        let (main, thread) = (0x7300_0000_0000, FIRST + 0x30);
        let arena = |address, kind, heap| Arena { address: Avma(address), kind, heaps: vec![heap], ..Arena::default() };
        let arenas = vec![
            arena(main, ArenaKind::Main, range(BRK, BRK + 0x21000)),
            // This arena was walked a moment before the mappings were read.
            arena(thread, ArenaKind::Thread, range(FIRST, FIRST + 0x20000)),
        ];
        let gone = MmappedChunk { range: range(OTHER + 0x100_0000, OTHER + 0x110_0000) };
        let before = vec![
            vma(BRK, BRK + 0x21000, Brk),
            vma(FIRST, FIRST + 0x21000, Anonymous),
            vma(OTHER, OTHER + 0x4000, Anonymous),
        ];
        let now = vec![
            vma(BRK, BRK + 0x42000, Brk),
            // Merged with a mapping after its reservation.
            vma(FIRST, FIRST + HEAP, Anonymous),
            vma(SECOND, SECOND + 0x50000, Anonymous),
            vma(FOREIGN, FOREIGN + 0x50000, Anonymous),
            // Two blocks and another range, one mapping to the kernel.
            vma(BLOCKS, BLOCKS + 0x45000, Anonymous),
            // One block; only its first page was not covered by madvise, so the kernel split the mapping.
            vma(SPLIT, SPLIT + 0x1000, Anonymous),
            vma(SPLIT + 0x1000, SPLIT + 0x31000, Anonymous),
            // Grew by memory that doesn't identify its owner.
            vma(OTHER, OTHER + 0x8000, Anonymous),
        ];
        let words = [
            (SECOND, thread),
            (FOREIGN, 0xdead_beef),
            (BLOCKS, 0),
            (BLOCKS + 8, 0x21000 | IS_MMAPPED),
            (BLOCKS + 0x21000, 0),
            (BLOCKS + 0x21008, 0x22000 | IS_MMAPPED),
            (SPLIT, 0),
            (SPLIT + 8, 0x31000 | IS_MMAPPED),
        ];
        let glibc = Glibc { arenas, mmapped: vec![gone], ..Glibc::default() };
        let mut snapshot = Snapshot { vmas: now, glibc: Some(glibc), ..Snapshot::default() };
        malloc(&Image(words.into_iter().collect()), &mut snapshot, &before);
        let glibc = snapshot.glibc.as_ref().expect("as before");
        assert_eq!(glibc.arenas[0].heaps, [range(BRK, BRK + 0x42000)]);
        assert_eq!(glibc.arenas[1].heaps, [range(FIRST, FIRST + HEAP), range(SECOND, SECOND + 0x50000)]);
        let blocks: Vec<_> = glibc.mmapped.iter().map(|chunk| chunk.range).collect();
        let expected = [(BLOCKS, 0x21000), (BLOCKS + 0x21000, 0x22000), (SPLIT, 0x31000)];
        assert_eq!(blocks, expected.map(|(start, length)| range(start, start + length)));

        // The ledger agrees, and its sum holds.
        let ledger = crate::ledger::Ledger::of(&snapshot);
        use crate::ledger::LineId;
        let sum: Bytes = ledger.lines.iter().map(|line| line.resident).sum();
        assert_eq!(sum + ledger.remainder, snapshot.rss());
        assert_eq!(ledger.resident(LineId::OtherAnonymous), Bytes(0x50000 + 0x2000 + 0x8000));
        // Not walked yet, so it is unknown which part is live.
        assert_eq!(ledger.resident(LineId::GlibcUnknown), Bytes(0x42000 + HEAP + 0x50000));
        assert_eq!(ledger.resident(LineId::GlibcLive), Bytes(0x43000 + 0x31000));
    }

    #[test]
    fn an_archive_that_was_mapped_after_the_query_is_class_memory() {
        use crate::ledger::LineId;
        let file = |name: &str, start| {
            let vma = vma(start, start + 0x4000, Backing::File);
            Vma { name: name.to_owned(), ..vma }
        };
        let (archive, other) = (file("/jdk/lib/server/classes.jsa", OTHER), file("/data/index", BLOCKS));
        let vmas = vec![archive, other];
        let hotspot = Some(HotSpot::default());
        let mut snapshot = Snapshot { vmas, hotspot, ..Snapshot::default() };
        for _ in 0..2 {
            new_mappings(&Image(HashMap::new()), &mut snapshot, &[]);
            let ledger = crate::ledger::Ledger::of(&snapshot);
            assert_eq!(ledger.resident(LineId::Class), Bytes(0x4000));
            assert_eq!(ledger.resident(LineId::MappedFiles), Bytes(0x4000));
        }
    }

    /// The regions of a VM may overlap one another, and come in any order.
    #[test]
    fn new_blocks_equal_those_of_a_search_through_all_regions() {
        let mut random = Random(11);
        let (mut found, mut refused, mut heaps) = (0, 0, 0);
        for _ in 0..500 {
            let thread = |n: u64| Arena { address: Avma(FIRST + n * HEAP + 0x30), ..Arena::default() };
            let mut words = HashMap::new();
            let (mut now, mut blocks, mut own) = (Vec::new(), Vec::new(), vec![Vec::new(); 4]);
            let regions: Vec<VmRegion> = (0..random.below(6))
                .map(|_| VmRegion {
                    range: AddressRange::sized(Avma(BLOCKS + PAGE * random.below(64)), Bytes(PAGE * random.below(9))),
                    tag: VmTag::ThreadStack,
                    committed: Vec::new(),
                })
                .collect();
            for index in 0..32 {
                // A page without access lies between the mappings.
                let start = BLOCKS + 2 * PAGE * index;
                now.push(vma(start, start + PAGE, Backing::Anonymous));
                words.extend([(start, 0), (start + 8, PAGE | IS_MMAPPED)]);
                match regions.iter().any(|region| region.range.overlaps(range(start, start + PAGE))) {
                    true => refused += 1,
                    false => blocks.push(range(start, start + PAGE)),
                }
            }
            for index in 0..8 {
                let (start, owner) = (OTHER + HEAP * index, random.below(5));
                now.push(vma(start, start + PAGE, Backing::Anonymous));
                words.insert(start, FIRST + owner * HEAP + 0x30);
                if let Some(own) = own.get_mut(owner as usize) {
                    own.push(range(start, start + PAGE));
                    heaps += 1;
                }
            }
            found += blocks.len();
            let glibc = Glibc { arenas: (0..4).map(thread).collect(), ..Glibc::default() };
            let hotspot = Some(HotSpot { regions, ..HotSpot::default() });
            let mut snapshot = Snapshot { vmas: now, glibc: Some(glibc), hotspot, ..Snapshot::default() };
            malloc(&Image(words), &mut snapshot, &[]);
            let glibc = snapshot.glibc.expect("as before");
            assert_eq!(glibc.mmapped.iter().map(|chunk| chunk.range).collect::<Vec<_>>(), blocks);
            assert_eq!(glibc.arenas.into_iter().map(|arena| arena.heaps).collect::<Vec<_>>(), own);
        }
        assert!(found > 1000 && refused > 1000 && heaps > 1000, "{found} {refused} {heaps}");
    }
}
