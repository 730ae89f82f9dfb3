//! Divides the resident bytes of glibc's heaps into live, retained and unknown, as the walk of each arena found them.
//! The walk and smaps are two readings. If smaps has more, the surplus is unknown; if it has less, the shares are
//! scaled down. Bytes that moved between live and free until a second walk are added to the error.
//!
//! In a series of snapshots, the walk may be seconds old. If the process is tracked, its books show how much its live
//! blocks grew since:
//!
//!   live part of new memory = growth of the books − growth of blocks with a mapping of their own
//!   |error|                 = bytes freed since, because new blocks may reuse the space of old ones

use super::attribute::apportion;
use super::distinct::proportional;
use super::{Grade, LineSums, Owner, Piece};
use plimsoll_facts::gap::Source;
use plimsoll_facts::lines::LineId;
use plimsoll_facts::snapshot::{Arena, ArenaKind, Booked, Snapshot};
use plimsoll_facts::units::Bytes;

#[derive(Clone, Copy, Default)]
struct Heaps {
    resident: Bytes,
    committed: Bytes,
    error: Bytes,
    of_others: Bytes,
}

/// Name of the child that holds arenas of this kind; it is the same in each of glibc's lines.
pub const fn child_of(kind: ArenaKind) -> &'static str {
    match kind {
        ArenaKind::Main => "main arena",
        ArenaKind::Thread => "thread arenas",
    }
}

pub(crate) fn split(snapshot: &Snapshot, pieces: &[Piece], errors: &[Bytes], books: &mut LineSums) {
    let Some(glibc) = &snapshot.glibc else { return };
    let mut heaps = vec![Heaps::default(); glibc.arenas.len()];
    for (piece, error) in pieces.iter().zip(errors) {
        if let Owner::Arena(index) = piece.owner
            && let Some(sum) = heaps.get_mut(index)
        {
            sum.resident += piece.resident;
            sum.committed += piece.range.length();
            sum.error += *error;
            sum.of_others += piece.resident - proportional(&snapshot.vmas[piece.vma], piece);
        }
    }
    let walked = |arena: &Arena| arena.live_resident + arena.free_resident + arena.unknown_resident;
    let new: Vec<u64> =
        glibc.arenas.iter().zip(&heaps).map(|(arena, heap)| (heap.resident - walked(arena)).0).collect();
    let all_new: u64 = new.iter().sum();
    let grown = grown(snapshot);
    let live_of_new = apportion(grown.live.0.min(all_new), &new, all_new);
    for ((arena, heaps), live_of_new) in glibc.arenas.iter().zip(heaps).zip(live_of_new) {
        let detail = child_of(arena.kind);
        let walked = walked(arena);
        let [live, retained, unknown] = if walked > heaps.resident {
            let weights = [arena.live_resident.0, arena.free_resident.0, arena.unknown_resident.0];
            let shares = apportion(heaps.resident.0, &weights, walked.0);
            [Bytes(shares[0]), Bytes(shares[1]), Bytes(shares[2])]
        } else {
            let unknown = arena.unknown_resident + (heaps.resident - walked - Bytes(live_of_new));
            [arena.live_resident + Bytes(live_of_new), arena.free_resident, unknown]
        };
        books.overclaimed += walked - heaps.resident;
        let difference = walked.abs_diff(heaps.resident) - Bytes(live_of_new) + grown.freed.min(Bytes(live_of_new));
        let grade = if difference + heaps.error + arena.moved == Bytes(0) { Grade::Exact } else { Grade::Derived };
        // Address space follows the blocks: live and free bytes share the committed part. (The untouched tails of the
        // reservations are claims of their own, and count as free.)
        let live_space = (arena.live + Bytes(live_of_new)).min(heaps.committed);
        let error = difference + heaps.error + arena.moved;
        let mut book = |line, resident: Bytes, reserved: Bytes, committed: Bytes| {
            let bound = error.min(resident.max(heaps.resident - resident));
            let entry = books.entry(line, detail);
            entry.add(resident, reserved, committed, grade, bound, Source::Glibc);
            entry.of_others += heaps.of_others.scaled(resident.0, heaps.resident.0);
        };
        book(LineId::GlibcLive, live, live_space, live_space);
        book(LineId::GlibcRetained, retained, heaps.committed - live_space, heaps.committed - live_space);
        if unknown > Bytes(0) {
            book(LineId::GlibcUnknown, unknown, Bytes(0), Bytes(0));
        }
    }
}

#[derive(Clone, Copy, Default)]
struct GrowthSinceWalk {
    /// Live bytes in the arenas' heaps.
    live: Bytes,
    freed: Bytes,
}

/// Growth of the arenas since they were walked, by the tracker's books.
fn grown(snapshot: &Snapshot) -> GrowthSinceWalk {
    /// glibc's size field before each chunk.
    const HEADER: u64 = 8;
    let (Some(since), Some(glibc)) = (snapshot.booked, &snapshot.glibc) else { return GrowthSinceWalk::default() };
    let chunks = |books: Booked| books.live + Bytes(books.live_count.saturating_mul(HEADER));
    let mmapped: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum();
    let freed = |books: Booked| books.cumulative - books.live;
    // If a block with a mapping of its own was freed meanwhile, the result is too small, never too large.
    let live = chunks(since.now) - chunks(since.walk);
    GrowthSinceWalk { live: live - (mmapped - since.mmapped), freed: freed(since.now) - freed(since.walk) }
}
