//! Free chunks that look in use, those of fastbins and thread caches: moved from live to free.

use super::finds::resident;
use crate::source::glibc::arena_ends;
use crate::source::glibc::layout::Layout;
use crate::source::glibc::lists::{Heaps, Left, ListedChunk, fastbin_chunks, tcache_chunks};
use crate::source::glibc::sizes::Sizes;
use plimsoll_facts::snapshot::{Arena, ArenaKind};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PageStates, Paged, Untouched};

/// Moves the chunks of fastbins and thread caches from live to free.
pub(super) fn take_out_listed<M: Memory>(
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
    // Twice the number of live chunks: a block that only looks like a cache may also lead to some of them.
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
