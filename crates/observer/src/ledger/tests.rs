//! Conservation on random and contradictory facts: whatever the sources say, the sum equals the kernel's.

use super::*;
use crate::random::Random;
use plimsoll_facts::snapshot::Residency;
use plimsoll_facts::snapshot::{
    Arena, ArenaKind, Backing, Booked, BookedSince, Cgroup, DirectBuffers, Glibc, HotSpot, ImageHeapRange, MemoryStat,
    MmappedChunk, NativeImage, NmtCategory, Rollup, Rss, Thread, VmRegion, VmTag, Vma,
};
use plimsoll_facts::units::Avma;

impl Random {
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// A range of whole pages inside `[0, end)`, rarely empty.
    fn range(&mut self, end: u64) -> AddressRange {
        let start = self.below(end);
        let length = 1 + self.below((end - start).clamp(1, 64));
        AddressRange::new(Avma(start * 4096), Avma((start + length).min(end) * 4096))
    }
    fn bytes_below(&mut self, below: u64) -> Bytes {
        Bytes(self.below(below))
    }
}

const SPACE: u64 = 2000;

fn random_snapshot(random: &mut Random) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut at = 0;
    while at < SPACE {
        at += random.below(4);
        let pages = 1 + random.below(60);
        let range = AddressRange::sized(Avma(at * 4096), Bytes(pages * 4096));
        let kinds =
            [Backing::Anonymous, Backing::Anonymous, Backing::File, Backing::Shmem, Backing::Brk, Backing::Kernel];
        let backing = kinds[random.below(6) as usize].clone();
        let touched = random.chance(70);
        snapshot.vmas.push(Vma {
            range,
            readable: touched || random.chance(50),
            writable: random.chance(60),
            executable: random.chance(10),
            shared: random.chance(10),
            inode: if backing == Backing::File { 1 + random.below(5) } else { 0 },
            name: if backing == Backing::File { format!("/f{}", random.below(5)) } else { String::new() },
            backing,
            rss: if touched { Bytes(random.below(pages + 1) * 4096) } else { Bytes(0) },
            ..Vma::default()
        });
        at += pages;
    }
    if random.chance(70) {
        let runs = (0..random.below(80)).map(|_| random.range(SPACE)).collect();
        let seen = if random.chance(80) { vec![AddressRange::new(Avma(0), Avma(SPACE * 8192))] } else { vec![] };
        snapshot.residency = Some(Residency::new(seen, runs, Bytes(0)));
    }
    if random.chance(70) {
        let arenas = (0..random.below(5)).map(|index| Arena {
            kind: if index == 0 { ArenaKind::Main } else { ArenaKind::Thread },
            heaps: (0..random.below(4)).map(|_| random.range(SPACE)).collect(),
            reserved: random.bytes_below(1 << 24),
            live: random.bytes_below(1 << 20),
            top: random.bytes_below(1 << 18),
            live_resident: random.bytes_below(1 << 19),
            free_resident: random.bytes_below(1 << 19),
            unknown_resident: random.bytes_below(1 << 12),
            ..Arena::default()
        });
        let arenas = arenas.collect();
        let mmapped = (0..random.below(4)).map(|_| MmappedChunk { range: random.range(SPACE) }).collect();
        snapshot.glibc = Some(Glibc { arenas, mmapped, ..Glibc::default() });
    }
    if random.chance(60) {
        let tags = [VmTag::JavaHeap, VmTag::Class, VmTag::Gc, VmTag::ThreadStack, VmTag::Other("Internal".into())];
        let regions = (0..random.below(12)).map(|_| VmRegion {
            range: random.range(SPACE),
            tag: tags[random.below(5) as usize].clone(),
            committed: Vec::new(),
        });
        let regions = regions.collect();
        let names = ["GC", "Compiler", "Other", "Symbol", "Internal", "Class", "Java Heap"];
        let categories = names.map(|name| NmtCategory {
            name: name.to_owned(),
            malloc: random.bytes_below(1 << 19),
            arena: random.bytes_below(1 << 12),
            ..NmtCategory::default()
        });
        let categories = if random.chance(70) { categories.to_vec() } else { Vec::new() };
        snapshot.hotspot = Some(HotSpot { regions, categories, ..HotSpot::default() });
    }
    if let Some(vm) = snapshot.hotspot.as_mut().filter(|_| random.chance(50)) {
        let (capacity, at_walk) = (random.bytes_below(1 << 20), random.bytes_below(1 << 20));
        vm.direct_buffers = Some(DirectBuffers { capacity, at_walk, ..DirectBuffers::default() });
    }
    if random.chance(40) {
        let mut booked = || Booked {
            live: random.bytes_below(1 << 20),
            cumulative: random.bytes_below(1 << 22),
            ..Booked::default()
        };
        let (walk, now) = (booked(), booked());
        snapshot.booked = Some(BookedSince { walk, now, mmapped: random.bytes_below(1 << 18) });
    }
    if random.chance(20) {
        let image_heap =
            (0..3).map(|_| ImageHeapRange { range: random.range(SPACE), view: random.chance(50) }).collect();
        snapshot.native_image = Some(NativeImage { image_heap, ..NativeImage::default() });
    }
    for tid in 0..random.below(6) as u32 {
        let stack = random.chance(50).then(|| random.range(SPACE));
        let stack_pointer = random.chance(50).then(|| Avma(random.below(SPACE) * 4096));
        snapshot.threads.push(Thread { tid, namespaced_tid: tid, name: format!("t-{tid}"), stack_pointer, stack });
    }
    snapshot
}

#[test]
fn lines_and_remainder_sum_to_rss_and_children_to_their_line() {
    let mut random = Random(4);
    let (mut shared, mut arenas, mut moved, mut estimated) = (0, 0, 0, 0);
    for _ in 0..3000 {
        let mut snapshot = random_snapshot(&mut random);
        // Two other processes have each page, too.
        snapshot.vmas.iter_mut().for_each(|vma| vma.pss = Bytes(vma.rss.0 / 3));
        let ledger = Ledger::of(&snapshot);
        // Each piece, and each arena's part of a line, is rounded by less than a byte.
        let arenas_parts = 3 * snapshot.glibc.as_ref().map_or(0, |glibc| glibc.arenas.len());
        let of_lines: Bytes = ledger.lines.iter().map(|line| line.pss).sum();
        assert!(of_lines.abs_diff(ledger.pss) <= Bytes((ledger.pieces.len() + arenas_parts) as u64), "{of_lines}");
        let sum: Bytes = ledger.lines.iter().map(|line| line.resident).sum();
        assert_eq!(sum + ledger.remainder, snapshot.rss());
        assert_eq!(ledger.remainder, Bytes(0), "smaps was read: every byte has at least a kind");
        let pieces: Bytes = ledger.pieces.iter().map(|piece| piece.resident).sum();
        assert_eq!(pieces, snapshot.rss());
        for line in &ledger.lines {
            if !line.children.is_empty() {
                assert_eq!(line.children.iter().map(|child| child.resident).sum::<Bytes>(), line.resident);
                assert_eq!(line.children.iter().map(|child| child.reserved).sum::<Bytes>(), line.reserved);
            }
            estimated += usize::from(line.grade == Grade::Estimated);
            moved += usize::from(line.children.iter().any(|child| child.name == "malloc'ed"));
        }
        for (index, vma) in snapshot.vmas.iter().enumerate() {
            let own: Vec<&Piece> = ledger.pieces.iter().filter(|piece| piece.vma == index).collect();
            assert_eq!(own.iter().map(|piece| piece.resident).sum::<Bytes>(), vma.rss);
            assert_eq!(own.iter().map(|piece| piece.range.length()).sum::<Bytes>(), vma.range.length());
            shared += usize::from(own.len() > 1);
        }
        arenas += ledger.pieces.iter().filter(|piece| matches!(piece.owner, Owner::Arena(_))).count();
        assert_eq!(Group::ALL.map(|group| ledger.group(group)).into_iter().sum::<Bytes>(), snapshot.rss());
    }
    assert!(shared > 1000 && arenas > 1000 && moved > 300 && estimated > 300, "{shared} {arenas} {moved} {estimated}");
}

/// An arena that grew by 1,000 pages after it was walked.
#[test]
fn memory_since_the_walk_is_classified_by_the_books_and_by_java_nio() {
    let pages = |n: u64| Bytes(n * 4096);
    let heap = AddressRange::sized(Avma(0x10_0000), pages(1100));
    let arena = Arena {
        heaps: vec![heap],
        live: pages(80),
        live_resident: pages(80),
        free_resident: pages(20),
        ..Arena::default()
    };
    let rss = pages(1100);
    let brk = Vma { range: heap, readable: true, writable: true, rss, backing: Backing::Brk, ..Vma::default() };
    let glibc = Glibc { arenas: vec![arena], ..Glibc::default() };
    let mut snapshot = Snapshot { vmas: vec![brk], glibc: Some(glibc), ..Snapshot::default() };
    let lines = |snapshot: &Snapshot| {
        let ledger = Ledger::of(snapshot);
        let ids = [LineId::GlibcLive, LineId::GlibcRetained, LineId::GlibcUnknown, LineId::DirectBuffers];
        ids.map(|id| ledger.resident(id).0 / 4096)
    };
    assert_eq!(lines(&snapshot), [80, 20, 1000, 0]);
    // No books, but Java reports that its buffers grew from 30 pages to 930.
    let direct = |capacity, at_walk| DirectBuffers { capacity, at_walk, ..DirectBuffers::default() };
    let vm = |direct| Some(HotSpot { direct_buffers: Some(direct), ..HotSpot::default() });
    snapshot.hotspot = vm(direct(pages(930), pages(30)));
    assert_eq!(lines(&snapshot), [50, 20, 100, 930]);
    // A VM that is queried again counts these buffers in NMT's figure for java.nio.
    let other = NmtCategory { name: "Other".into(), malloc: pages(40), ..NmtCategory::default() };
    snapshot.hotspot.as_mut().expect("a VM").categories = vec![other];
    assert_eq!(lines(&snapshot), [40, 20, 100, 940]);
    // The tracker's books have 990 pages more than at the walk, all in the arena.
    let walk = Booked { live: pages(70), cumulative: pages(100), ..Booked::default() };
    let now = Booked { live: pages(1060), cumulative: pages(1095), ..Booked::default() };
    snapshot.booked = Some(BookedSince { walk, now, mmapped: Bytes(0) });
    snapshot.hotspot = None;
    assert_eq!(lines(&snapshot), [1070, 20, 10, 0]);
    let ledger = Ledger::of(&snapshot);
    // 5 pages were freed meanwhile, and new blocks may have reused them; 10 are unknown.
    assert_eq!(ledger.line(LineId::GlibcLive).map(|line| line.error), Some(pages(15)));
    snapshot.hotspot = vm(direct(pages(930), pages(30)));
    assert_eq!(lines(&snapshot), [150, 20, 0, 930]);
    assert_eq!(Ledger::of(&snapshot).overclaimed, Bytes(0));
}

/// 600 of 1,000 live pages were never touched, so it is unknown how many resident ones are from before the attach. But
/// the resident live pages were counted, and so were the VM's, which leave the line.
#[test]
fn the_division_at_an_attach_is_no_error_of_the_line() {
    let pages = |n: u64| Bytes(n * 4096);
    let heap = AddressRange::sized(Avma(0x10_0000), pages(1000));
    let arena = Arena { heaps: vec![heap], live: pages(1000), live_resident: pages(400), ..Arena::default() };
    // Three other processes have the pages, too.
    let (rss, pss) = (pages(400), pages(100));
    let brk = Vma { range: heap, readable: true, writable: true, rss, pss, backing: Backing::Brk, ..Vma::default() };
    let glibc = Glibc { arenas: vec![arena], ..Glibc::default() };
    let mut snapshot = Snapshot { vmas: vec![brk], glibc: Some(glibc), ..Snapshot::default() };
    let counted = Ledger::of(&snapshot).line(LineId::GlibcLive).map(|line| (line.resident, line.grade, line.error));
    let books = Booked { live: pages(500), cumulative: pages(500), ..Booked::default() };
    snapshot.attached = Some([books; 2]);
    let ledger = Ledger::of(&snapshot);
    let live = ledger.line(LineId::GlibcLive).expect("a line");
    assert_eq!(Some((live.resident, live.error)), counted.map(|(resident, _, error)| (resident, error)));
    let children: Vec<_> = live.children.iter().map(|child| (child.resident, child.grade, child.error)).collect();
    assert_eq!(children, [(pages(200), Grade::Estimated, pages(200)); 2]);
    assert_eq!(live.children.iter().map(|child| child.pss).collect::<Vec<_>>(), [pages(50); 2]);
    // Blocks of the VM, found by their headers, are most of the line.
    let internal = NmtCategory {
        name: "Internal".into(),
        malloc: pages(300),
        malloc_resident: Some(pages(300)),
        ..NmtCategory::default()
    };
    snapshot.hotspot = Some(HotSpot { categories: vec![internal], ..HotSpot::default() });
    let ledger = Ledger::of(&snapshot);
    let live = ledger.line(LineId::GlibcLive).expect("a line");
    assert_eq!((live.resident, live.error, live.pss), (pages(100), Bytes(0), pages(25)));
    assert_eq!(ledger.line(LineId::VmInternal).map(|line| line.pss), Some(pages(75)));
    let children: Vec<_> = live.children.iter().map(|child| (child.resident, child.error)).collect();
    assert_eq!(children, [(pages(50), pages(50)); 2]);
}

/// 2,000,000 blocks of 24 bytes with NMT. NMT's header and malloc's rounding take the same amount again, and belong to
/// the VM.
#[test]
fn what_nmt_and_malloc_add_to_the_vms_blocks_is_no_other_blocks() {
    let pages = |n: u64| Bytes(n * 4096);
    let heap = AddressRange::sized(Avma(0x10_0000), pages(1000));
    let arena = Arena { heaps: vec![heap], live: pages(1000), live_resident: pages(1000), ..Arena::default() };
    let brk =
        Vma { range: heap, readable: true, writable: true, rss: pages(1000), backing: Backing::Brk, ..Vma::default() };
    let count = pages(1000).0 / 64;
    let category = |name: &str, malloc, malloc_count, malloc_resident| NmtCategory {
        name: name.into(),
        malloc,
        malloc_count,
        malloc_resident,
        ..NmtCategory::default()
    };
    let of = |found: Option<Bytes>, around: Option<Bytes>| {
        let symbol = category("Symbol", Bytes(24 * count), count, found);
        let nmt = category("Native Memory Tracking", Bytes(0), 0, Some(Bytes(0)));
        let nmt = NmtCategory { headers: Bytes(16 * count), around, ..nmt };
        let snapshot = Snapshot {
            vmas: vec![brk.clone()],
            glibc: Some(Glibc { arenas: vec![arena.clone()], ..Glibc::default() }),
            hotspot: Some(HotSpot { categories: vec![symbol, nmt], ..HotSpot::default() }),
            ..Snapshot::default()
        };
        let ledger = Ledger::of(&snapshot);
        assert_eq!(ledger.overclaimed, Bytes(0));
        let line = |id| ledger.line(id).map_or((Bytes(0), Bytes(0)), |line| (line.resident, line.error));
        [LineId::Symbols, LineId::VmInternal, LineId::GlibcLive].map(line)
    };
    let exact = |bytes: u64| (Bytes(bytes), Bytes(0));
    // Found by their headers: the whole chunks.
    let found = of(Some(Bytes(24 * count)), Some(Bytes(40 * count)));
    assert_eq!(found, [exact(24 * count), exact(40 * count), exact(0)]);
    // Only counted: the headers, and the rest of the chunks is within the error.
    let [symbols, internal, live] = of(None, None);
    assert_eq!((symbols.0, internal.0, live.0), (Bytes(24 * count), Bytes(16 * count), Bytes(24 * count)));
    assert!(internal.1 > Bytes(0) && live.1 >= live.0, "{internal:?} {live:?}");
}

/// The image's NMT counts blocks by category, and also what it maps: that isn't malloc's.
#[test]
fn blocks_that_a_native_image_counts_move_to_its_lines() {
    let pages = |n: u64| Bytes(n * 4096);
    let heap = AddressRange::sized(Avma(0x10_0000), pages(120));
    let arena = Arena { heaps: vec![heap], live: pages(100), live_resident: pages(100), ..Arena::default() };
    let brk =
        Vma { range: heap, readable: true, writable: true, rss: pages(120), backing: Backing::Brk, ..Vma::default() };
    let nmt = |name: &str, malloc, mapped| NmtCategory {
        name: name.into(),
        malloc: pages(malloc),
        mmap_reserved: pages(mapped),
        mmap_committed: pages(mapped),
        reserved: pages(malloc + mapped),
        committed: pages(malloc + mapped),
        ..NmtCategory::default()
    };
    let nmt = vec![nmt("Unsafe", 64, 0), nmt("Threading", 2, 0), nmt("GC", 3, 7), nmt("Java Heap", 0, 50)];
    let snapshot = Snapshot {
        vmas: vec![brk],
        glibc: Some(Glibc { arenas: vec![arena], ..Glibc::default() }),
        native_image: Some(NativeImage { nmt, ..NativeImage::default() }),
        ..Snapshot::default()
    };
    let ledger = Ledger::of(&snapshot);
    let moved = [(LineId::DirectBuffers, 64), (LineId::VmInternal, 2), (LineId::Gc, 3)];
    for (id, expected) in moved {
        let line = ledger.line(id).expect("a line");
        assert_eq!(
            (line.resident, line.error, line.sources.as_slice()),
            (pages(expected), Bytes(0), &[Source::NativeImage][..])
        );
    }
    assert_eq!(ledger.resident(LineId::GlibcLive), pages(31));
    assert_eq!(ledger.resident(LineId::JavaHeap), Bytes(0));
}

/// 40 buffers of a megabyte are large blocks, and so is one block of the program's. The arena's blocks are not buffers.
#[test]
fn direct_buffers_of_one_size_come_out_of_the_large_blocks() {
    let pages = |n: u64| Bytes(n * 4096);
    let arena_range = AddressRange::sized(Avma(1 << 30), pages(2000));
    let arena = Arena { heaps: vec![arena_range], live: pages(2000), live_resident: pages(2000), ..Arena::default() };
    let mut snapshot = Snapshot::default();
    let mapped =
        |range: AddressRange| Vma { range, readable: true, writable: true, rss: range.length(), ..Vma::default() };
    snapshot.vmas.push(mapped(arena_range));
    let mut glibc = Glibc { arenas: vec![arena], ..Glibc::default() };
    for n in 0..41 {
        let length = if n == 40 { pages(300) } else { pages(257) };
        let range = AddressRange::sized(Avma((2 << 30) + (n << 24)), length);
        snapshot.vmas.push(mapped(range));
        glibc.mmapped.push(MmappedChunk { range });
    }
    snapshot.glibc = Some(glibc);
    snapshot.host.page = pages(1);
    let children = |snapshot: &Snapshot| -> Vec<Bytes> {
        let ledger = Ledger::of(snapshot);
        let line = ledger.line(LineId::GlibcLive).expect("live blocks");
        let mut found: Vec<_> = line.children.iter().map(|child| (child.name.clone(), child.resident)).collect();
        found.sort();
        found.into_iter().map(|(_, resident)| resident).collect()
    };
    let direct = |count, capacity| {
        Some(DirectBuffers { count: Some(count), capacity, at_walk: capacity, ..DirectBuffers::default() })
    };
    snapshot.hotspot = Some(HotSpot { direct_buffers: direct(40, pages(40 * 256)), ..HotSpot::default() });
    // 40 headers and the program's block stay.
    assert_eq!(children(&snapshot), [pages(40 + 300), pages(2000)]);
    // Another buffer is small: a read of a file needed it.
    snapshot.hotspot = Some(HotSpot { direct_buffers: direct(41, pages(40 * 256 + 5)), ..HotSpot::default() });
    let [large, arena] = children(&snapshot)[..] else { panic!("two parts") };
    assert!(large + arena == pages(40 + 300 + 2000 - 5) && arena >= pages(2000 - 5), "{large}, {arena}");
    // At least 20 of the 60 buffers lie elsewhere, and it is unknown where.
    snapshot.hotspot = Some(HotSpot { direct_buffers: direct(60, pages(60 * 100)), ..HotSpot::default() });
    let shares = children(&snapshot);
    assert!(
        shares[1] < pages(2000) && shares.iter().copied().sum::<Bytes>() == pages(2000 + 300 + 40 * 257 - 6000),
        "{shares:?}"
    );
}

/// LD_PRELOAD=libjemalloc.so, and a library opened with RTLD_DEEPBIND whose one page is in glibc's arena.
#[test]
fn the_vms_blocks_are_in_the_allocator_that_serves_it() {
    let mib = Bytes::mib;
    let [small, large] = [(1 << 30, Bytes::kib(4)), (2 << 30, mib(300))]
        .map(|(at, length): (u64, Bytes)| AddressRange::sized(Avma(at), length));
    let mapped =
        |range: AddressRange| Vma { range, readable: true, writable: true, rss: range.length(), ..Vma::default() };
    let (live, live_resident) = (small.length(), small.length());
    let arena = Arena { heaps: vec![small], live, live_resident, ..Arena::default() };
    let mut heap = OtherHeap::new(AllocatorKind::Jemalloc);
    heap.ranges = vec![large];
    heap.add(HeapPart::Live, mib(300), mib(300));
    let category = NmtCategory { name: "Compiler".into(), malloc: mib(190), ..NmtCategory::default() };
    let snapshot = Snapshot {
        vmas: vec![mapped(small), mapped(large)],
        glibc: Some(Glibc { arenas: vec![arena], ..Glibc::default() }),
        malloc_heap: Some(heap),
        hotspot: Some(HotSpot { categories: vec![category], ..HotSpot::default() }),
        ..Snapshot::default()
    };
    let ledger = Ledger::of(&snapshot);
    let lines = [LineId::Compiler, LineId::OtherAllocator, LineId::GlibcLive].map(|line| ledger.resident(line));
    assert_eq!(lines, [mib(190), mib(110), Bytes::kib(4)]);
    assert_eq!(ledger.overclaimed, Bytes(0));
}

/// Smaps has both blocks; the second was freed before the walk afterwards.
#[test]
fn a_large_block_that_was_freed_while_it_was_read_is_live_with_an_error() {
    let pages = |n: u64| Bytes(n * 4096);
    let blocks = [(1 << 30, 300), (2 << 30, 257)].map(|(at, length)| AddressRange::sized(Avma(at), pages(length)));
    let mapped = |range: AddressRange| Vma { range, readable: true, writable: true, rss: pages(200), ..Vma::default() };
    let mmapped = blocks.iter().map(|range| MmappedChunk { range: *range }).collect();
    let glibc = Glibc { mmapped, gone: vec![blocks[1]], ..Glibc::default() };
    let snapshot = Snapshot { vmas: blocks.map(mapped).to_vec(), glibc: Some(glibc), ..Snapshot::default() };
    let ledger = Ledger::of(&snapshot);
    let live = ledger.line(LineId::GlibcLive).expect("live blocks");
    assert_eq!((live.resident, live.error, live.grade), (pages(400), pages(200), Grade::Estimated));
    assert_eq!(live.children.len(), 2);
}

/// 100 blocks of 10 pages in one mapping. Of 1,000 pages in smaps, the page map read afterwards has 990.
#[test]
fn blocks_of_one_mapping_share_its_difference() {
    let pages = |n: u64| Bytes(n * 4096);
    let whole = AddressRange::sized(Avma(1 << 30), pages(1000));
    let blocks: Vec<AddressRange> =
        (0..100).map(|at| AddressRange::sized(whole.start.offset(pages(10 * at)), pages(10))).collect();
    let vma = Vma { range: whole, readable: true, writable: true, rss: pages(1000), ..Vma::default() };
    let mmapped = blocks.iter().map(|range| MmappedChunk { range: *range }).collect();
    let resident = AddressRange::sized(whole.start, pages(990));
    let mut snapshot = Snapshot {
        vmas: vec![vma],
        glibc: Some(Glibc { mmapped, ..Glibc::default() }),
        residency: Some(Residency::new(vec![whole], vec![resident], Bytes(0))),
        ..Snapshot::default()
    };
    let line = |snapshot: &Snapshot, line| Ledger::of(snapshot).line(line).map(|line| (line.resident, line.error));
    assert_eq!(line(&snapshot, LineId::GlibcLive), Some((pages(1000), pages(10))));
    // The ranges of another allocator's heap likewise.
    let mut heap = OtherHeap::new(AllocatorKind::Jemalloc);
    heap.ranges = blocks;
    heap.add(HeapPart::Live, pages(1000), pages(1000));
    (snapshot.glibc, snapshot.malloc_heap) = (None, Some(heap));
    assert_eq!(line(&snapshot, LineId::OtherAllocator), Some((pages(1000), pages(10))));
}

#[test]
fn without_smaps_the_kernels_kinds_are_the_sum() {
    let snapshot = Snapshot {
        smaps_refused: true,
        rss_by_kind: Rss { anonymous: Bytes(100), file: Bytes(20), shmem: Bytes(3) },
        cgroup: Some(Cgroup {
            stat: MemoryStat { anon: Bytes(150), ..MemoryStat::default() },
            others: vec![(2, Bytes(90))],
            ..Cgroup::default()
        }),
        ..Snapshot::default()
    };
    let ledger = Ledger::of(&snapshot);
    assert_eq!((ledger.rss, ledger.remainder), (Bytes(123), Bytes(0)));
    assert_eq!(ledger.resident(LineId::OtherAnonymous), Bytes(100));
    // The other process has 50 of the group's 150: the 40 more of its RSS are pages of files.
    let lines = ledger.cgroup.expect("a sum").lines;
    assert!(lines.iter().any(|(id, _, bytes)| (*id, *bytes) == ("other-processes", Bytes(50))), "{lines:?}");
}

#[test]
fn where_the_page_map_agrees_a_shared_mapping_is_split_exactly() {
    let page = |n: u64| Avma(n * 4096);
    let mut snapshot = Snapshot::default();
    snapshot.vmas.push(Vma {
        range: AddressRange::new(page(0), page(10)),
        readable: true,
        writable: true,
        rss: Bytes(5 * 4096),
        ..Vma::default()
    });
    snapshot.hotspot = Some(HotSpot {
        regions: vec![VmRegion {
            range: AddressRange::new(page(2), page(6)),
            tag: VmTag::JavaHeap,
            committed: Vec::new(),
        }],
        ..HotSpot::default()
    });
    let runs = vec![AddressRange::new(page(1), page(5)), AddressRange::new(page(9), page(10))];
    snapshot.residency = Some(Residency::new(vec![AddressRange::new(page(0), page(10))], runs, Bytes(0)));
    let ledger = Ledger::of(&snapshot);
    let heap = ledger.line(LineId::JavaHeap).expect("a Java heap");
    assert_eq!((heap.resident, heap.grade, heap.error), (Bytes(3 * 4096), Grade::Exact, Bytes(0)));
    assert_eq!(ledger.resident(LineId::OtherAnonymous), Bytes(2 * 4096));
    // Without a page map, the error bound still contains the true value.
    snapshot.residency = None;
    let ledger = Ledger::of(&snapshot);
    let heap = ledger.line(LineId::JavaHeap).expect("a Java heap");
    assert_eq!(heap.grade, Grade::Estimated);
    assert!(heap.resident.abs_diff(Bytes(3 * 4096)) <= heap.error);
}

#[test]
fn the_parts_of_a_cgroup_sum_to_its_charge() {
    let (mut random, mut split) = (Random(9), 0);
    for _ in 0..200 {
        let mut cgroup = Cgroup { charged: random.bytes_below(1 << 32), ..Cgroup::default() };
        cgroup.stat.anon = random.bytes_below(1 << 31);
        cgroup.stat.file = random.bytes_below(1 << 31);
        cgroup.stat.shmem = random.bytes_below(1 << 31);
        cgroup.stat.kernel = random.bytes_below(1 << 28);
        let own = random.bytes_below(1 << 30);
        cgroup.others = (0..random.below(3) as u32).map(|pid| (pid, random.bytes_below(1 << 30))).collect();
        let sum = cgroup::sum(&cgroup, own);
        let lines: Bytes = sum.lines.iter().map(|(_, _, bytes)| *bytes).sum();
        let of = |id: &str| sum.lines.iter().find(|line| line.0 == id).expect("each line").2;
        assert_eq!(of("processes") + of("other-processes"), cgroup.stat.anon);
        // The other processes have at most their RSS, and at most the group's anonymous memory without the target's.
        assert!(of("other-processes") <= sum.other_processes && of("other-processes") <= cgroup.stat.anon - own);
        split += u32::from(of("other-processes") > Bytes(0));
        assert_eq!(i128::from(lines.0) + i128::from(sum.rest), i128::from(sum.charged.0));
    }
    assert!(split > 50, "only {split} had a share");
}

/// The kernel's figure of 500 MiB contains 400 of zswap. Pages of hugetlbfs are in none of the other figures.
#[test]
fn zswap_and_hugetlbfs_have_lines_of_their_own() {
    let mib = Bytes::mib;
    let of = |unknown: &[(&str, u64)]| {
        let mut cgroup = Cgroup { charged: mib(1500), ..Cgroup::default() };
        (cgroup.stat.anon, cgroup.stat.kernel) = (mib(300), mib(500));
        cgroup.stat.unknown = unknown.iter().map(|(key, mib)| ((*key).to_owned(), mib << 20)).collect();
        let sum = cgroup::sum(&cgroup, mib(300));
        let lines = sum.lines.iter().filter(|(_, _, bytes)| *bytes > Bytes(0));
        (lines.map(|(id, _, bytes)| (*id, *bytes)).collect::<Vec<_>>(), sum.rest >> 20)
    };
    let (lines, rest) = of(&[("zswap", 400), ("zswapped", 1200), ("hugetlb", 700)]);
    assert_eq!(lines, [("hugetlb", mib(700)), ("zswap", mib(400)), ("processes", mib(300)), ("kernel", mib(100))]);
    assert_eq!(rest, 0);
    assert_eq!(of(&[("zswap", 0)]), (vec![("kernel", mib(500)), ("processes", mib(300))], 700));
}

/// 1,000 pages, each in a mapping of its own that three processes share: 1.33 KiB each, of which smaps has 1.
#[test]
fn the_kernels_sum_has_the_fractions_of_pss() {
    let vma = |index: u64| Vma {
        range: AddressRange::sized(Avma(index << 20), Bytes::kib(4)),
        rss: Bytes::kib(4),
        pss: Bytes::kib(1),
        ..Vma::default()
    };
    let mut snapshot = Snapshot { vmas: (1..=1000).map(vma).collect(), ..Snapshot::default() };
    assert_eq!(Ledger::of(&snapshot).pss, Bytes::kib(1000));
    let sum = Rollup { rss: Bytes::kib(4000), pss: Bytes::kib(1333), ..Rollup::default() };
    snapshot.rollup = Some(sum);
    assert_eq!(Ledger::of(&snapshot).pss, Bytes::kib(1333));
    snapshot.rollup = Some(Rollup { rss: Bytes::kib(4004), ..sum });
    assert_eq!(Ledger::of(&snapshot).pss, Bytes::kib(1000), "something was mapped between the two readings");
}
