//! One arena: its fields, and the sums of its parts, walked again if they changed meanwhile.

use super::brk_heap::main_pieces;
use super::finds::Finds;
use super::pieces::{BYTES_OF_ATTEMPTS, Piece, Walked, thread_pieces};
use crate::source::glibc::layout::Layout;
use crate::source::glibc::parameters::MallocParameters;
use crate::source::glibc::sizes::Sizes;
use crate::source::glibc::walk::ChunkSums;
use plimsoll_facts::snapshot::{Arena, ArenaKind, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PageStates};

/// Limits of attempts: for an arena that changed during the walk or has no heap, and for one with a broken chain.
const QUIET_ATTEMPTS: usize = 3;
const ATTEMPTS: usize = 25;

#[allow(clippy::too_many_arguments, reason = "a step of one function, with all that it has at hand")]
pub(super) fn survey_arena<M: Memory>(
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
    let mut previous = None;
    for attempt in 1..=ATTEMPTS {
        let mut found = finds.empty();
        let top = Avma(field(layout.top()));
        let system = Bytes(field(layout.system_mem()));
        let Walked { pieces, sizes: of_pieces, whole: found_all, adds_up, failed_bytes, reserved } = if main {
            main_pieces(memory, pages, top, system, vmas, brk, parameters, &mut found)
        } else {
            thread_pieces(memory, pages, address, top, layout, vmas, &mut found)
        };
        let whole = found_all && pieces.iter().all(|piece| piece.whole);
        let quiet = field(layout.top()) == top.0 && field(layout.system_mem()) == system.0;
        walked += pieces.iter().map(|piece| piece.range.length()).sum::<Bytes>() + failed_bytes;
        // Here only the memory between the pieces is in doubt. If two attempts found the same pieces, a further attempt
        // settles nothing.
        let ranges = (adds_up && pieces.iter().all(|piece| piece.whole))
            .then(|| pieces.iter().map(|piece| piece.range).collect::<Vec<_>>());
        let is_settled = ranges.is_some() && ranges == previous;
        previous = ranges;
        // A hostile program may have tens of thousands of arenas without a heap.
        let most = if whole || !main && pieces.is_empty() { QUIET_ATTEMPTS } else { ATTEMPTS };
        let again = match whole {
            true => !quiet,
            false => !is_settled && walked < BYTES_OF_ATTEMPTS,
        };
        if again && attempt < most {
            continue;
        }
        finds.merge(found);
        arena.whole = whole;
        arena.reserved = reserved;
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
    arena.heaps.sort_unstable();
    arena.live = sums.inuse;
    arena.live_count = sums.inuse_count;
    arena.bins = sums.binned;
    arena.bins_count = sums.binned_count;
    (arena.top, arena.top_resident) = (sums.top, sums.top_resident);
    arena.overhead = sums.overhead;
    arena.free_resident = sums.free_resident;
    (arena.trimmable, arena.at_end) = match arena.kind {
        ArenaKind::Main => (sums.whole_binned + sums.whole_top, Bytes(0)),
        ArenaKind::Thread => (sums.whole_binned, sums.whole_top),
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const ARENA: Avma = Avma(0x7f00_0000_0030);
    const LAYOUT: Layout = Layout { bins: 112 };

    /// Fields of an arena, and no heap. Counts how often `top` is read.
    #[derive(Default)]
    struct Fields(Cell<usize>);

    impl Memory for Fields {
        fn read(&self, at: Avma, into: &mut [u8]) -> bool {
            let is_top = at.0 == ARENA.0 + LAYOUT.top();
            self.0.set(self.0.get() + usize::from(is_top));
            into.fill(0x10);
            into.len() == 8
        }

        fn pagemap(&self, _: u64, _: &mut [u64]) -> bool {
            false
        }
    }

    #[test]
    fn an_arena_without_a_heap_is_not_tried_often() {
        let memory = Fields::default();
        let mut pages = PageStates::new(&memory);
        let (mut finds, parameters) = (Finds::default(), MallocParameters::default());
        let (arena, _) = survey_arena(&memory, &mut pages, ARENA, LAYOUT, false, &[], None, parameters, &mut finds);
        assert!(!arena.whole && arena.heaps.is_empty());
        // Before each attempt, and after it.
        assert_eq!(memory.0.get(), 2 * QUIET_ATTEMPTS);
    }
}
