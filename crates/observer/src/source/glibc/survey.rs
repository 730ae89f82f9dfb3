//! Walks all arenas of a process, given its memory and its mappings. Pure except for `Memory`.

use super::arena_ends;
use super::heaps::{self, Heap};
use super::layout::{ALIGN, CHUNK_HEADER, Layout, MallocParameters, find_arenas, find_parameters};
use super::lists::{Heaps, Left, ListedChunk, fastbin_chunks, tcache_chunks};
use super::mmapped;
use super::native_objects::Objects;
use super::nmt_headers::Tagged;
use super::sizes::Sizes;
use super::walk::{ArenaEnd, ChunkSums, walk};
use crate::source::known_files::KnownFiles;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Arena, ArenaKind, Backing, Glibc, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Limited, Memory, PAGE, PageStates, Paged, Untouched, word_at};

/// Number of attempts to walk an arena that changed during the walk; and number of attempts, and total bytes of them,
/// if a chain was broken.
const QUIET_ATTEMPTS: usize = 3;
const ATTEMPTS: usize = 25;
const BYTES_OF_ATTEMPTS: Bytes = Bytes::mib(512);
/// Limit of candidates for thread caches: a program may have many other chunks of the same size, full of zeros and
/// addresses.
const MOST_CANDIDATES: usize = 200_000;
/// Limit of reads in the search for arenas, which takes a few for each arena. But all of a hostile program's data may
/// look like arenas that are linked through all of it.
const MOST_READS: u32 = 1 << 20;
/// How far to search for the continuation of the brk heap after another user of sbrk.
const FOREIGN_BRK_AT_MOST: u64 = 4 << 20;

/// Limit of addresses that are tried as the start of such a piece, and of such pieces. A hostile program's brk may have
/// a start at every address and a fencepost behind every chunk.
const MOST_STARTS: usize = 1 << 16;
const MOST_PIECES: usize = 1 << 12;

/// The writable data of one libc in the target. There may be several with dlmopen, or if a static program loads one.
pub struct LibcData {
    pub base: Avma,
    pub bytes: Vec<u8>,
}

/// What a VM in the process tells the walk.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalkOptions<'w> {
    /// Classify blocks with NMT's headers.
    pub tagged: bool,
    /// Ranges without malloc's blocks.
    pub elsewhere: &'w [AddressRange],
    /// Count blocks that begin with an address in these ranges (sorted, disjoint).
    pub pointing_at: &'w [AddressRange],
    /// Files of an earlier reading.
    pub files: Option<&'w KnownFiles>,
}

/// What the walk collects about chunks in use.
#[derive(Default)]
struct Finds {
    /// Chunks with the size of a thread's cache.
    caches: Vec<(Avma, u64)>,
    /// Sums of blocks with NMT's headers, if they are wanted.
    tagged: Option<Tagged>,
    /// Blocks by their first word, if some are wanted.
    objects: Option<Objects>,
}

/// The state of `Finds` before a walk.
struct Mark {
    caches: usize,
    tagged: Option<Tagged>,
    objects: Option<Objects>,
}

impl Finds {
    fn mark(&self) -> Mark {
        Mark { caches: self.caches.len(), tagged: self.tagged.clone(), objects: self.objects.clone() }
    }

    /// Discards the results of a walk that must be repeated.
    fn reset(&mut self, mark: Mark) {
        self.caches.truncate(mark.caches);
        self.tagged = mark.tagged;
        self.objects = mark.objects;
    }

    fn wants_first_bytes(&self) -> bool {
        self.tagged.is_some() || self.objects.is_some()
    }

    fn add<M: Memory>(
        &mut self,
        first_bytes: &[u8; 16],
        chunk: AddressRange,
        mmapped: bool,
        pages: &mut PageStates<'_, M>,
    ) {
        if let Some(tagged) = &mut self.tagged {
            tagged.add(first_bytes, chunk.start, chunk.length().0, mmapped, pages);
        }
        if let Some(objects) = &mut self.objects {
            let first_word = word_at(first_bytes, 0).unwrap_or_default();
            objects.add(first_word, AddressRange::new(chunk.start.offset(Bytes(CHUNK_HEADER)), chunk.end), || {
                resident(pages, chunk)
            });
        }
    }
}

/// A part of an arena's heap, with the walk's result.
struct Piece {
    range: AddressRange,
    sums: ChunkSums,
    whole: bool,
}

/// One attempt to walk an arena.
#[derive(Default)]
struct Walked {
    pieces: Vec<Piece>,
    sizes: Sizes,
    /// Nothing of the arena is missing.
    whole: bool,
    /// Bytes of walks that led nowhere.
    in_vain: Bytes,
}

/// None if `libcs` has no malloc. `wanted` says what to search for, and which ranges to leave out.
pub fn survey<M: Memory>(
    memory: &M,
    libcs: &[LibcData],
    vmas: &[Vma],
    wanted: WalkOptions<'_>,
) -> (Option<Glibc>, Vec<Gap>) {
    let brk = brk_range(vmas);
    let mut pages = PageStates::new(memory);
    let untouched = Untouched::new(memory);
    let by_page = Paged::new(&untouched);
    let search = Limited::new(&by_page, MOST_READS);
    let mut glibc = Glibc::default();
    let mut gaps = Vec::new();
    let mut finds = Finds {
        tagged: wanted.tagged.then(Tagged::default),
        objects: (!wanted.pointing_at.is_empty()).then(|| Objects::new(wanted.pointing_at)),
        ..Finds::default()
    };
    let mut layouts = Vec::new();
    let mut sizes = Sizes::default();
    let mut known = false;
    for libc in libcs {
        let Some(arenas) = find_arenas(&search, libc.base, &libc.bytes) else { continue };
        known = true;
        let parameters = find_parameters(libc.base, &libc.bytes, brk.map(|range| (range.start, range.end)));
        if parameters.is_none() {
            gaps.push(Gap::new(
                Source::Glibc,
                "mp_ was not recognised in libc's data",
                "blocks above the mmap threshold may be missing from glibc-live",
            ));
        }
        let parameters = parameters.unwrap_or_default();
        glibc.mmapped_count += parameters.mmapped_count;
        glibc.mmapped_bytes += parameters.mmapped;
        if parameters.arena_max > 0 {
            glibc.arena_cap = Some(parameters.arena_max);
            glibc.arena_cap_set = true;
        }
        if parameters.mmap_threshold > Bytes(0) {
            glibc.mmap_threshold = glibc.mmap_threshold.max(Some(parameters.mmap_threshold));
        }
        for (index, address) in arenas.addresses.iter().enumerate() {
            let main = index == 0;
            let (arena, found) =
                survey_arena(memory, &mut pages, *address, arenas.layout, main, vmas, brk, parameters, &mut finds);
            sizes.merge(&found);
            if !arena.whole {
                gaps.push(Gap::new(
                    Source::Glibc,
                    format!("the arena at {:#x} could only be read in part", address.0),
                    format!(
                        "{} of it is unclassified (glibc-unknown); glibc-live and glibc-retained lack their parts of that",
                        arena.unknown_resident
                    ),
                ));
            }
            glibc.arenas.push(arena);
            layouts.push(arenas.layout);
        }
    }
    if !known {
        return (None, gaps);
    }
    take_out_listed(memory, &mut pages, &mut glibc.arenas, &mut sizes, &layouts, &finds.caches);
    glibc.peaks = sizes.peaks();

    let mut heaps: Vec<AddressRange> = glibc.arenas.iter().flat_map(|arena| arena.heaps.iter().copied()).collect();
    heaps.extend_from_slice(wanted.elsewhere);
    glibc.mmapped = mmapped::find(memory, &mut pages, vmas, &heaps, glibc.mmapped_bytes);
    let found: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum();
    if finds.wants_first_bytes() {
        for range in glibc.mmapped.iter().map(|chunk| chunk.range) {
            let mut bytes = [0; 16];
            if memory.read(range.start.offset(Bytes(CHUNK_HEADER)), &mut bytes) {
                finds.add(&bytes, range, true, &mut pages);
            }
        }
        glibc.tagged = finds.tagged.map(Tagged::into_sums).unwrap_or_default();
        glibc.objects = finds.objects.map(Objects::into_blocks).unwrap_or_default();
    }
    if found != glibc.mmapped_bytes {
        gaps.push(Gap::new(
            Source::Glibc,
            format!("{} of mmapped blocks were found, libc counts {}", found, glibc.mmapped_bytes),
            "the difference is in other-anonymous",
        ));
    }
    if !pages.readable {
        gaps.push(Gap::new(
            Source::Pagemap,
            "the page map (pagemap) can't be read",
            "free bytes of arenas count as resident, so glibc-retained is an upper bound",
        ));
    }
    (Some(glibc), gaps)
}

fn brk_range(vmas: &[Vma]) -> Option<AddressRange> {
    let mut parts = vmas.iter().filter(|vma| vma.backing == Backing::Brk).map(|vma| vma.range);
    let first = parts.next()?;
    Some(parts.fold(first, |all, part| AddressRange::new(all.start.min(part.start), all.end.max(part.end))))
}

#[allow(clippy::too_many_arguments)]
fn survey_arena<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    address: Avma,
    layout: Layout,
    main: bool,
    vmas: &[Vma],
    brk: Option<AddressRange>,
    parameters: MallocParameters,
    finds: &mut Finds,
) -> (Arena, Sizes) {
    let field = |offset: u64| memory.word(Avma(address.0 + offset)).unwrap_or(0);
    let mut arena = Arena {
        address,
        kind: if main { ArenaKind::Main } else { ArenaKind::Thread },
        attached_threads: field(layout.attached_threads()),
        whole: true,
        ..Arena::default()
    };
    let mut sizes = Sizes::default();
    let mut walked = Bytes(0);
    for attempt in 1..=ATTEMPTS {
        let before = finds.mark();
        let top = Avma(field(layout.top()));
        let system = Bytes(field(layout.system_mem()));
        let Walked { pieces, sizes: of_pieces, whole: found_all, in_vain } = if main {
            main_pieces(memory, pages, top, system, vmas, brk, parameters, finds)
        } else {
            thread_pieces(memory, pages, address, top, layout, vmas, finds)
        };
        let whole = found_all && pieces.iter().all(|piece| piece.whole);
        let quiet = field(layout.top()) == top.0 && field(layout.system_mem()) == system.0;
        walked += pieces.iter().map(|piece| piece.range.length()).sum::<Bytes>() + in_vain;
        let again =
            if whole { !quiet && attempt < QUIET_ATTEMPTS } else { attempt < ATTEMPTS && walked < BYTES_OF_ATTEMPTS };
        if again {
            finds.reset(before);
            continue;
        }
        arena.whole = whole;
        book(&mut arena, pages, &pieces, main);
        sizes = of_pieces;
        break;
    }
    (arena, sizes)
}

/// Adds up the pieces. `unknown` is the part of the heaps that could not be walked.
fn book<M: Memory>(arena: &mut Arena, pages: &mut PageStates<'_, M>, pieces: &[Piece], main: bool) {
    let mut sums = ChunkSums::default();
    for piece in pieces {
        sums.add(piece.sums);
        arena.heaps.push(piece.range);
        let resident = pages.resident(piece.range);
        let walked = piece.sums.inuse + piece.sums.binned + piece.sums.top + piece.sums.overhead;
        let unknown = AddressRange::new(piece.range.start.offset(walked), piece.range.end);
        let unknown_resident = if piece.whole { Bytes(0) } else { pages.resident(unknown) };
        arena.unknown_resident += unknown_resident;
        arena.live_resident += resident - piece.sums.free_resident - unknown_resident;
        if main {
            arena.reserved += piece.range.length();
        }
    }
    if !main && let Some(first) = arena.heaps.first() {
        // All heaps of an arena have the same alignment; the pieces cover only the accessible part.
        arena.reserved = Bytes(heap_alignment(first.start) * arena.heaps.len() as u64);
    }
    arena.heaps.sort_unstable();
    arena.live = sums.inuse;
    arena.live_count = sums.inuse_count;
    arena.bins = sums.binned;
    arena.bins_count = sums.binned_count;
    arena.top = sums.top;
    arena.overhead = sums.overhead;
    arena.free_resident = sums.free_resident;
    (arena.trimmable, arena.at_end) = match arena.kind {
        ArenaKind::Main => (sums.whole_binned + sums.whole_top, Bytes(0)),
        ArenaKind::Thread => (sums.whole_binned, sums.whole_top),
    };
}

/// HEAP_MAX_SIZE, or less with huge pages.
fn heap_alignment(start: Avma) -> u64 {
    if start.0.is_multiple_of(64 << 20) { 64 << 20 } else { 8 << 20 }
}

fn thread_pieces<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    address: Avma,
    top: Avma,
    layout: Layout,
    vmas: &[Vma],
    finds: &mut Finds,
) -> Walked {
    let (mut heaps, mut whole) = heaps::of_thread_arena(memory, address, top, layout);
    let all = heaps.len();
    heaps.retain(|heap| has_own_memory(vmas, heap.accessible));
    whole &= heaps.len() == all;
    let mut sizes = Sizes::default();
    let pieces = heaps
        .iter()
        .map(|Heap { accessible, first_chunk, .. }| {
            let mut piece = walk_piece(memory, pages, *accessible, *first_chunk, top, finds, &mut sizes);
            // heap_info, malloc_state, and the padding before the first chunk.
            piece.sums.overhead += Bytes(first_chunk.0 - accessible.start.0);
            piece
        })
        .collect();
    Walked { pieces, sizes, whole, in_vain: Bytes(0) }
}

/// Whether no file is mapped there. malloc maps none for a heap, but a hostile process can map one file of a few MiB at
/// 65,000 places, and its walk would cost terabytes.
fn has_own_memory(vmas: &[Vma], heap: AddressRange) -> bool {
    let first = vmas.partition_point(|vma| vma.range.end <= heap.start);
    let mut within = vmas[first..].iter().take_while(|vma| vma.range.start < heap.end);
    within.all(|vma| !vma.shared && matches!(vma.backing, Backing::Anonymous | Backing::Hugetlbfs))
}

/// The brk heap, its continuations after other users of sbrk, and the mmapped piece with top if brk can't grow.
#[allow(clippy::too_many_arguments)]
fn main_pieces<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    top: Avma,
    system: Bytes,
    vmas: &[Vma],
    brk: Option<AddressRange>,
    parameters: MallocParameters,
    finds: &mut Finds,
) -> Walked {
    let Walked { mut pieces, mut sizes, mut in_vain, .. } = Walked::default();
    if system.0 == 0 {
        return Walked { whole: true, ..Walked::default() };
    }
    if let Some(brk) = brk {
        let start = if brk.contains(parameters.sbrk_base) { parameters.sbrk_base } else { brk.start };
        let (mut at, mut searched_from, mut starts) = (start, start, 0);
        // After a piece that ends at a fencepost, the heap may continue after memory that another user took from brk.
        while starts < MOST_STARTS
            && pieces.len() < MOST_PIECES
            && in_vain <= BYTES_OF_ATTEMPTS
            && let Some(first) = continuation(memory, at, searched_from, brk.end, pieces.is_empty())
        {
            if !pieces.is_empty()
                && let Err(passed) = probe(memory, pages, first, brk.end, top)
            {
                starts += 1;
                in_vain += passed;
                at = first.offset(Bytes(ALIGN));
                continue;
            }
            let within = AddressRange::new(first, brk.end);
            let mut piece = walk_piece(memory, pages, within, first, top, finds, &mut sizes);
            if pieces.is_empty() {
                piece.sums.overhead += Bytes(first.0 - start.0);
                piece.range.start = start;
            }
            at = piece.range.end;
            searched_from = at;
            let last = piece.range.contains(top) || !piece.whole;
            pieces.push(piece);
            if last {
                break;
            }
        }
    }
    if !pieces.iter().any(|piece| piece.range.contains(top)) {
        let holder = vmas.iter().find(|vma| vma.range.contains(top) && vma.writable && !vma.shared);
        if let Some(vma) = holder {
            let begin = pieces.last().filter(|piece| vma.range.contains(piece.range.end)).map(|piece| piece.range.end);
            let mut start = begin.unwrap_or(vma.range.start).0.next_multiple_of(PAGE);
            for _ in 0..MOST_STARTS {
                if start > top.0 || in_vain > BYTES_OF_ATTEMPTS {
                    break;
                }
                // Most pages aren't a start, and a walk from each of them would read much. So the first header decides.
                if could_begin(memory, start, vma.range.end) {
                    match probe(memory, pages, Avma(start), vma.range.end, top) {
                        Ok(()) => {
                            let range = AddressRange::new(Avma(start), vma.range.end);
                            pieces.push(walk_piece(memory, pages, range, range.start, top, finds, &mut sizes));
                            break;
                        }
                        Err(passed) => in_vain += passed,
                    }
                }
                start += PAGE;
            }
        }
    }
    let covered: Bytes = pieces.iter().map(|piece| piece.range.length()).sum();
    let whole = covered == system && pieces.iter().any(|piece| piece.range.contains(top));
    Walked { pieces, sizes, whole, in_vain }
}

/// Walks from an address that may be the start of a piece, and keeps nothing. An error has the bytes that were passed
/// before the walk led nowhere.
fn probe<M: Memory>(memory: &M, pages: &mut PageStates<'_, M>, first: Avma, end: Avma, top: Avma) -> Result<(), Bytes> {
    match walk(memory, pages, first, end, top, |_, _| {}) {
        // The first header costs a page.
        (sums, ArenaEnd::Broken(_)) => Err((sums.inuse + sums.binned).max(Bytes(PAGE))),
        _ => Ok(()),
    }
}

/// The first address from `at` on where a chunk without predecessor could begin. At the heap's start, it is the first
/// aligned address; after a foreign piece, which begins at `from`, this searches for it.
fn continuation(memory: &impl Memory, at: Avma, from: Avma, end: Avma, at_start: bool) -> Option<Avma> {
    let mut at = at.0.next_multiple_of(ALIGN);
    if at_start {
        return (at < end.0).then_some(Avma(at));
    }
    let stop = end.0.min(from.0.saturating_add(FOREIGN_BRK_AT_MOST));
    while at + 32 <= stop {
        if could_begin(memory, at, end) {
            return Some(Avma(at));
        }
        at += ALIGN;
    }
    None
}

/// Whether the first chunk of a piece could start at `at`: no free chunk precedes it, and it fits.
fn could_begin(memory: &impl Memory, at: u64, end: Avma) -> bool {
    let Some(field) = memory.word(Avma(at.saturating_add(8))) else { return false };
    let size = field & !7;
    field & 7 == 1 && size >= 32 && size.is_multiple_of(ALIGN) && at.saturating_add(size) <= end.0
}

/// Resident bytes of a chunk in use. Its header was read, so a chunk of less than a page counts as resident.
fn resident<M: Memory>(pages: &mut PageStates<'_, M>, chunk: AddressRange) -> Bytes {
    if chunk.length() < Bytes(PAGE) { chunk.length() } else { pages.resident(chunk) }
}

fn walk_piece<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    accessible: AddressRange,
    first: Avma,
    top: Avma,
    finds: &mut Finds,
    sizes: &mut Sizes,
) -> Piece {
    let (sums, end) = walk(memory, pages, first, accessible.end, top, |chunk, pages| {
        let range = AddressRange::sized(chunk.at, Bytes(chunk.size));
        sizes.add(chunk.size, resident(pages, range));
        if chunk.could_be_tcache && finds.caches.len() < MOST_CANDIDATES {
            finds.caches.push((chunk.at, chunk.size));
        }
        if finds.wants_first_bytes() {
            let mut bytes = [0; 16];
            let read = match chunk.first_bytes {
                Some(first) => {
                    bytes = *first;
                    true
                }
                None => memory.read(chunk.at.offset(Bytes(CHUNK_HEADER)), &mut bytes),
            };
            if read {
                finds.add(&bytes, range, false, pages);
            }
        }
    });
    match end {
        ArenaEnd::Top(end) | ArenaEnd::Fence(end) => {
            Piece { range: AddressRange::new(accessible.start, end), sums, whole: true }
        }
        ArenaEnd::Broken(_) => Piece { range: accessible, sums, whole: false },
    }
}

/// Moves the chunks of fastbins and thread caches from live to free.
fn take_out_listed<M: Memory>(
    memory: &M,
    pages: &mut PageStates<'_, M>,
    arenas: &mut [Arena],
    sizes: &mut Sizes,
    layouts: &[Layout],
    caches: &[(Avma, u64)],
) {
    let mut owners: Vec<(AddressRange, usize)> = arenas
        .iter()
        .enumerate()
        .flat_map(|(index, arena)| arena.heaps.iter().map(move |heap| (*heap, index)))
        .collect();
    owners.sort_unstable();
    let ranges: Vec<AddressRange> = owners.iter().map(|(heap, _)| *heap).collect();
    let heaps = Heaps(&ranges);
    let owner = |at: Avma| {
        let after = ranges.partition_point(|heap| heap.start <= at);
        (after > 0 && ranges[after - 1].contains(at)).then(|| owners[after - 1].1)
    };

    let untouched = Untouched::new(memory);
    let by_page = Paged::new(&untouched);
    // Twice as many as there are: a block that only looks like a cache may lead to some of them too.
    let mut left = Left(2 * arenas.iter().map(|arena| arena.live_count).sum::<u64>());
    let mut cached: Vec<ListedChunk> = Vec::new();
    for (chunk, size) in caches {
        // A thread goes on using its cache, so its pages are read close to each other in time.
        by_page.forget();
        cached.extend(tcache_chunks(&by_page, *chunk, *size, &heaps, &mut left).into_iter().flatten());
    }
    // Two threads can't hold the same chunk, but a list that changes during the walk may show it twice.
    cached.sort_unstable();
    cached.dedup_by_key(|chunk| chunk.at);
    for (index, layout) in layouts.iter().enumerate() {
        let (fast, _) = fastbin_chunks(memory, arenas[index].address, *layout, &heaps, &mut left);
        if arenas[index].kind == ArenaKind::Thread
            && let Some(top) = memory.word(arenas[index].address.offset(Bytes(layout.top())))
            && let Some(heap) = arenas[index].heaps.iter().find(|heap| heap.contains(Avma(top)))
        {
            let moved = arena_ends::joins_top(memory, pages, *heap, top, &fast).min(arenas[index].trimmable);
            arenas[index].trimmable -= moved;
            arenas[index].at_end += moved;
        }
        for chunk in fast {
            if cached.binary_search_by_key(&chunk.at, |cached| cached.at).is_err() {
                let moved = release(&mut arenas[index], pages, chunk);
                sizes.remove(chunk.size.0, resident(pages, AddressRange::sized(chunk.at, chunk.size)));
                arenas[index].fast += moved;
                arenas[index].fast_count += 1;
            }
        }
    }
    for chunk in cached {
        if let Some(index) = owner(chunk.at) {
            let moved = release(&mut arenas[index], pages, chunk);
            sizes.remove(chunk.size.0, resident(pages, AddressRange::sized(chunk.at, chunk.size)));
            arenas[index].tcache += moved;
        }
    }
}

/// Moves a free chunk from live to free. It never moves more than the live bytes, whatever an overwritten list claims.
fn release<M: Memory>(arena: &mut Arena, pages: &mut PageStates<'_, M>, chunk: ListedChunk) -> Bytes {
    let moved = chunk.size.min(arena.live);
    let resident = pages.resident(AddressRange::sized(chunk.at, chunk.size)).min(arena.live_resident);
    arena.live -= moved;
    arena.live_count = arena.live_count.saturating_sub(1);
    arena.live_resident -= resident;
    arena.free_resident += resident;
    moved
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BASE: u64 = 0x5000_0000_0000;
    const LENGTH: u64 = 4 << 20;

    /// Data in which each pair of words looks like an empty bin, and each word like the address of the next arena.
    #[derive(Default)]
    struct Bins(Cell<u32>);

    impl Bins {
        fn word(at: u64) -> u64 {
            at / 16 * 16 - 16
        }
    }

    impl Memory for Bins {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.0.set(self.0.get() + 1);
            let is_inside = at.0 >= BASE && at.0 + into.len() as u64 <= BASE + LENGTH;
            for (at, word) in (at.0..).step_by(8).zip(into.as_chunks_mut().0) {
                *word = Bins::word(at).to_le_bytes();
            }
            is_inside
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    #[test]
    fn a_search_in_data_full_of_arenas_ends() {
        let bytes = (BASE..BASE + LENGTH).step_by(8).flat_map(|at| Bins::word(at).to_le_bytes()).collect();
        let memory = Bins::default();
        let (glibc, gaps) = survey(&memory, &[LibcData { base: Avma(BASE), bytes }], &[], WalkOptions::default());
        assert!(glibc.is_none() && gaps.is_empty());
        assert!((MOST_READS / 2..=MOST_READS).contains(&memory.0.get()), "{} reads", memory.0.get());
    }

    /// A brk heap of these bytes, all of it present; counts the bytes that are read.
    struct Brk(Vec<u8>, Cell<u64>);

    impl Brk {
        /// Its first chunk has 32 bytes, and a fencepost behind it. `words` gives the others, by their offset.
        fn new(words: impl Fn(u64) -> u64) -> Brk {
            let word = |at: u64| match at {
                8 => 0x21,
                40 => 0x11,
                _ => words(at),
            };
            Brk((0..1 << 20).step_by(8).flat_map(|at| word(at).to_le_bytes()).collect(), Cell::new(0))
        }

        fn walk(&self) -> Walked {
            let range = AddressRange::sized(Avma(BASE), Bytes(self.0.len() as u64));
            let parameters = MallocParameters { sbrk_base: range.start, ..MallocParameters::default() };
            let mut pages = PageStates::new(self);
            let (top, system) = (range.end, range.length());
            main_pieces(self, &mut pages, top, system, &[], Some(range), parameters, &mut Finds::default())
        }
    }

    impl Memory for Brk {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            self.1.set(self.1.get() + into.len() as u64);
            let from = at.0.wrapping_sub(BASE) as usize;
            let found = from.checked_add(into.len()).and_then(|end| self.0.get(from..end));
            found.map(|found| into.copy_from_slice(found)).is_some()
        }

        fn pagemap(&self, _: u64, into: &mut [u64]) -> bool {
            into.fill(1 << 63);
            true
        }
    }

    /// Each piece with its own counters of sizes would cost 128 KiB.
    #[test]
    fn a_brk_heap_of_nothing_but_short_pieces_is_walked_in_part() {
        let memory = Brk::new(|at| match at % 64 {
            8 => 0x21,
            40 => 0x11,
            _ => 0,
        });
        let walked = memory.walk();
        assert_eq!((walked.pieces.len(), walked.whole), (MOST_PIECES, false));
        assert!(walked.pieces.iter().all(|piece| piece.whole && piece.range.length() == Bytes(64)));
    }

    /// A walk from each of them leads to the end of the heap, and nowhere.
    #[test]
    fn a_brk_heap_with_a_start_at_every_address_is_given_up() {
        let memory = Brk::new(|_| 0x401);
        let walked = memory.walk();
        assert_eq!((walked.pieces.len(), walked.whole), (1, false));
        assert!(walked.in_vain > BYTES_OF_ATTEMPTS);
        assert!(memory.1.get() < 2 * BYTES_OF_ATTEMPTS.0, "{} bytes", memory.1.get());
    }

    /// As after a library that takes memory from brk itself.
    #[test]
    fn a_brk_heap_continues_behind_the_memory_of_another_user() {
        let at = 200 << 10;
        let memory = Brk::new(|offset| match offset {
            // A start that leads nowhere, and then the second piece.
            200 => 0x31,
            _ if offset == at + 8 => 0x101,
            _ if offset == at + 0x108 => 0x11,
            _ => 0,
        });
        let walked = memory.walk();
        let pieces: Vec<AddressRange> = walked.pieces.iter().map(|piece| piece.range).collect();
        let second = AddressRange::sized(Avma(BASE + at), Bytes(0x120));
        assert_eq!(pieces, [AddressRange::sized(Avma(BASE), Bytes(64)), second]);
        assert_eq!(walked.in_vain, Bytes(PAGE));
    }
}
