//! A part of an arena's heap and its walk, and the parts of a thread arena.

use super::finds::{Finds, MOST_CANDIDATES, resident};
use crate::source::glibc::heaps::{self, Heap};
use crate::source::glibc::layout::{CHUNK_HEADER, Layout};
use crate::source::glibc::sizes::Sizes;
use crate::source::glibc::walk::{ArenaEnd, ChunkSums, walk};
use plimsoll_facts::snapshot::{Backing, Vma};
use plimsoll_facts::units::{AddressRange, Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, PageStates};

/// Limit of the bytes of all attempts to walk an arena whose chain is broken.
pub(super) const BYTES_OF_ATTEMPTS: Bytes = Bytes::mib(512);

/// A part of an arena's heap, with the walk's result.
pub(super) struct Piece {
    pub(super) range: AddressRange,
    pub(super) sums: ChunkSums,
    pub(super) whole: bool,
}

/// One attempt to walk an arena.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) pieces: Vec<Piece>,
    pub(super) sizes: Sizes,
    /// Nothing of the arena is missing.
    pub(super) whole: bool,
    /// The pieces, and what lies between them, are all that the arena has.
    pub(super) adds_up: bool,
    /// Bytes that failed walks passed.
    pub(super) failed_bytes: Bytes,
    /// Address space of a thread arena's heaps. The pieces cover only the accessible part.
    pub(super) reserved: Bytes,
}

pub(super) fn thread_pieces<M: Memory>(
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
    let reserved: Bytes = heaps.iter().map(|heap| heap.reserved).sum();
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
    Walked { pieces, sizes, whole, adds_up: whole, failed_bytes: Bytes(0), reserved }
}

/// Whether no file is mapped there. malloc maps none for a heap. But a hostile process can map one file of a few MiB at
/// 65,000 addresses, and a walk of all of them would read terabytes.
fn has_own_memory(vmas: &[Vma], heap: AddressRange) -> bool {
    let first = vmas.partition_point(|vma| vma.range.end <= heap.start);
    let mut within = vmas[first..].iter().take_while(|vma| vma.range.start < heap.end);
    within.all(|vma| !vma.shared && matches!(vma.backing, Backing::Anonymous | Backing::Hugetlbfs))
}

pub(super) fn walk_piece<M: Memory>(
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
