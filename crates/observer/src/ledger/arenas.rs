//! Resident bytes of glibc's heaps, shared among live, retained and unknown as the walk of each arena found them. Where the
//! walk and smaps disagree (they are two readings), what smaps has more is unknown, and what it has less is scaled away.

use super::attribute::apportion;
use super::distinct::proportional;
use super::{Books, Grade, Owner, Piece};
use crate::gap::Source;
use crate::lines::LineId;
use crate::snapshot::{ArenaKind, Snapshot};
use crate::units::Bytes;

#[derive(Clone, Copy, Default)]
struct Heaps {
    resident: Bytes,
    committed: Bytes,
    error: Bytes,
    of_others: Bytes,
}

/// The name of the child that has the arenas of that kind, in each line of malloc's.
pub const fn child_of(kind: ArenaKind) -> &'static str {
    match kind {
        ArenaKind::Main => "main arena",
        ArenaKind::Thread => "thread arenas",
    }
}

pub fn split(snapshot: &Snapshot, pieces: &[Piece], books: &mut Books) {
    let Some(glibc) = &snapshot.glibc else { return };
    let mut heaps = vec![Heaps::default(); glibc.arenas.len()];
    for piece in pieces {
        if let Owner::Arena(index) = piece.owner
            && let Some(sum) = heaps.get_mut(index)
        {
            sum.resident += piece.resident;
            sum.committed += piece.range.length();
            sum.error += piece.error;
            sum.of_others += piece.resident - proportional(&snapshot.vmas[piece.vma], piece);
        }
    }
    for (arena, heaps) in glibc.arenas.iter().zip(heaps) {
        let detail = child_of(arena.kind);
        let walked = arena.live_resident + arena.free_resident + arena.unknown_resident;
        let [live, retained, unknown] = if walked > heaps.resident {
            let weights = [arena.live_resident.0, arena.free_resident.0, arena.unknown_resident.0];
            let shares = apportion(heaps.resident.0, &weights, walked.0);
            [Bytes(shares[0]), Bytes(shares[1]), Bytes(shares[2])]
        } else {
            let unknown = arena.unknown_resident + (heaps.resident - walked);
            [arena.live_resident, arena.free_resident, unknown]
        };
        books.overclaimed += walked - heaps.resident;
        let difference = walked.abs_diff(heaps.resident);
        let grade = if difference + heaps.error == Bytes(0) { Grade::Exact } else { Grade::Derived };
        // Address space follows the blocks: what is live and free splits the committed part. (The untouched tails of the
        // reservations are claimed by themselves, for the free.)
        let live_space = arena.live.min(heaps.committed);
        let error = difference + heaps.error;
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
