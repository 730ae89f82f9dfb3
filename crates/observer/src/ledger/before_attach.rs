//! After a late attach: divides glibc's live blocks into those from before the attach and those since. A part of each
//! child that holds live blocks moves to a child of its own, so that the children still add up:
//!
//!   before (resident) = before (usable) × resident live / live
//!   |error|           = the program's allocations and frees during the walk + the part of live that isn't resident
//!
//! The error is that of the division: the children have it, and their line, which was counted, does not.

use super::vm_blocks::take;
use super::{Grade, LineSums};
use plimsoll_facts::gap::Source;
use plimsoll_facts::lines::LineId;
use plimsoll_facts::snapshot::Snapshot;
use plimsoll_facts::units::Bytes;
use plimsoll_tracked::books::before;

const BEFORE: &str = "from before the attach";
const SINCE: &str = ", since the attach";

pub(crate) fn split(snapshot: &Snapshot, books: &mut LineSums) {
    let (Some(glibc), Some([earlier, later])) = (&snapshot.glibc, snapshot.attached) else { return };
    let before = before(glibc, earlier, later);
    let resident = books.resident(LineId::GlibcLive);
    let arenas: Bytes = glibc.arenas.iter().map(|arena| arena.live).sum();
    let live = arenas + glibc.mmapped.iter().map(|chunk| chunk.range.length()).sum::<Bytes>();
    let moved = before.live.scaled(resident.0.min(live.0), live.0).min(resident);
    let of_others = take(books, LineId::GlibcLive, |_| true, moved, Source::Segment);
    let parts = books.entries.remove(&LineId::GlibcLive).unwrap_or_default();
    books.entries.insert(LineId::GlibcLive, parts.into_iter().map(|(part, entry)| (part + SINCE, entry)).collect());
    let entry = books.entry(LineId::GlibcLive, BEFORE);
    entry.add(moved, Bytes(0), Bytes(0), Grade::Derived, Bytes(0), Source::Segment);
    entry.of_others += of_others;
    for part in books.of_mut(LineId::GlibcLive, |_| true) {
        part.divided = before.error + (live - resident);
    }
}
