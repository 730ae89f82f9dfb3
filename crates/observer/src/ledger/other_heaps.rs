//! Divides the resident bytes of a readable allocator's heap into its parts, as the walk found them. The walk and smaps
//! are two readings. If smaps has more, the surplus is unclassified; if it has less, the shares are scaled down. A
//! part's change until a second walk is added to its error.

use super::attribute::apportion;
use super::distinct::proportional;
use super::ownership::GO_HEAP;
use super::{Grade, LineSums, Owner, Piece};
use plimsoll_facts::gap::Source;
use plimsoll_facts::lines::LineId;
use plimsoll_facts::snapshot::{AllocatorKind, HeapPart, OtherHeap, Snapshot};
use plimsoll_facts::units::Bytes;

pub(crate) fn split(snapshot: &Snapshot, pieces: &[Piece], errors: &[Bytes], books: &mut LineSums) {
    for heap in snapshot.other_heaps() {
        split_one(snapshot, heap, pieces, errors, books);
    }
}

fn split_one(snapshot: &Snapshot, heap: &OtherHeap, pieces: &[Piece], errors: &[Bytes], books: &mut LineSums) {
    let own = || pieces.iter().zip(errors).filter(|(piece, _)| piece.owner == Owner::OtherHeap(heap.kind));
    let resident: Bytes = own().map(|(piece, _)| piece.resident).sum();
    let mut error: Bytes = own().map(|(_, error)| *error).sum();
    let of_others: Bytes =
        own().map(|(piece, _)| piece.resident - proportional(&snapshot.vmas[piece.vma], piece)).sum();
    let mut parts = HeapPart::ALL.map(|part| heap.part(part));
    let walked: Bytes = parts.iter().map(|part| part.resident).sum();
    error += walked.abs_diff(resident);
    if walked > resident {
        let shares = apportion(resident.0, &parts.map(|part| part.resident.0), walked.0);
        for (part, share) in parts.iter_mut().zip(shares) {
            part.resident = Bytes(share);
        }
    } else if let Some(unknown) = parts.last_mut() {
        unknown.resident += resident - walked;
    }
    for (part, bytes) in HeapPart::ALL.into_iter().zip(parts) {
        let grade = if error + bytes.moved == Bytes(0) { Grade::Exact } else { Grade::Derived };
        let moved = error + bytes.moved;
        let bound = moved.min(bytes.resident.max(resident - bytes.resident));
        if bytes.length + bytes.resident > Bytes(0) {
            let entry = books.entry(LineId::OtherAllocator, &child(heap.kind, part));
            entry.add(bytes.resident, bytes.length, bytes.length, grade, bound, Source::Allocator);
            entry.of_others += of_others.scaled(bytes.resident.0, resident.0);
        }
    }
}

/// Name of the child for a part of the heap.
pub fn child(kind: AllocatorKind, part: HeapPart) -> String {
    match kind {
        AllocatorKind::Go => format!("{GO_HEAP}: {}", part.name()),
        _ => format!("{kind}: {}", part.name()),
    }
}
