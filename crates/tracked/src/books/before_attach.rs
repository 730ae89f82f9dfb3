//! Memory that a process had before a late attach and still has. It is computed as glibc's live chunks, found by a walk
//! of the arenas, minus the blocks in the books.
//!
//! ```text
//! before = Σ usable of live chunks − (live of the books + 8 B for each trailer)
//! error  = what was allocated and freed between two readings of the books, one before the walk and one after it
//!        + resident bytes that the walk could not parse
//!        ≤ the distance from `before` to 0, or to all that the arenas can hold, whichever is longer
//! ```
//! The walk takes milliseconds, and the program keeps running. So the error is the program's allocations and frees in
//! that time. A loop of malloc and free may make gigabytes of them in one block; the last line bounds that.

use super::Books;
use plimsoll_facts::snapshot::{Arena, Booked, Glibc};
use plimsoll_facts::units::{Bytes, merged};

/// glibc's size field before each chunk; a chunk with a mapping of its own has two words.
const HEADER: Bytes = Bytes(8);
const MMAPPED_HEADER: Bytes = Bytes(16);
const TRAILER: u64 = 8;

/// A derived figure with its error bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    pub live: Bytes,
    pub live_count: u64,
    pub error: Bytes,
}

impl Books {
    /// The figures of these books at the moment of their reading.
    pub fn booked(&self) -> Booked {
        let total = &self.total;
        let trailers = self.own.trailers;
        Booked { live: total.live, live_count: total.live_count, cumulative: total.cumulative, trailers }
    }

    /// Notes where glibc's blocks lie. After an attach, the map has arenas from before it, as mappings. The blocks in
    /// them count by themselves, and their free memory belongs to malloc, as in the main arena and in newer arenas. So
    /// these pages must not count once more. To be called before [`Books::read_resident`].
    pub fn note_arenas(&mut self, glibc: &Glibc) {
        let heaps = glibc.arenas.iter().flat_map(|arena| arena.heaps.iter().copied());
        self.arenas = merged(heaps.chain(glibc.mmapped.iter().map(|chunk| chunk.range)).collect());
    }
}

/// `earlier` and `later` are books of the same process, read before and after the walk.
pub fn before(glibc: &Glibc, earlier: Booked, later: Booked) -> Before {
    let arenas = glibc.arenas.iter();
    let chunks: u64 = arenas.clone().map(|a| a.live_count).sum();
    let walked = |a: &Arena| a.live - Bytes(HEADER.0.saturating_mul(a.live_count));
    let usable: Bytes = arenas.clone().map(walked).sum();
    let mapped: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length() - MMAPPED_HEADER).sum();
    let booked = later.live + Bytes(later.trailers.saturating_mul(TRAILER));
    let freed = |books: Booked| books.cumulative - books.live;
    let traffic = (later.cumulative - earlier.cumulative) + (freed(later) - freed(earlier));
    let unknown: Bytes = arenas.clone().map(|a| a.unknown_resident).sum();
    // A chunk from before the attach that is live after the walk was live during it. So the walk has passed it, or
    // stopped before it.
    let extent = |a: &Arena| a.heaps.iter().map(|heap| heap.length()).sum::<Bytes>().max(walked(a));
    let most = arenas.map(|a| if a.whole { walked(a) } else { extent(a) }).sum::<Bytes>() + mapped;
    let live = (usable + mapped) - booked;
    Before {
        live,
        live_count: (chunks + glibc.mmapped.len() as u64).saturating_sub(later.live_count),
        error: (traffic + unknown).min(live.max(most - live)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::MmappedChunk;
    use plimsoll_facts::units::{AddressRange, Avma};

    fn books(live: u64, count: u64, cumulative: u64, trailers: u64) -> Booked {
        Booked { live: Bytes(live), live_count: count, cumulative: Bytes(cumulative), trailers }
    }

    #[test]
    fn blocks_missing_in_the_books_are_from_before_the_attach() {
        let arena = |live, live_count| Arena { live: Bytes(live), live_count, ..Arena::default() };
        let range = AddressRange { start: Avma(0x7000), end: Avma(0x7000 + 0x21000) };
        let glibc = Glibc {
            arenas: vec![arena(1000 * 48, 1000), arena(100 * 112, 100)],
            mmapped: vec![MmappedChunk { range }],
            ..Glibc::default()
        };
        // 300 of the 48-byte chunks are in the books: 40 usable bytes, 8 of them the trailer.
        let then = books(300 * 32, 300, 5000 * 32, 300);
        let now = before(&glibc, then, then);
        assert_eq!(now, Before { live: Bytes(700 * 40 + 100 * 104 + 0x21000 - 16), live_count: 801, error: Bytes(0) });
        // Meanwhile, 10 blocks were allocated and 4 freed.
        let later = books(306 * 32, 306, 5010 * 32, 306);
        assert_eq!(before(&glibc, then, later).error, Bytes(14 * 32));
    }

    /// `for (;;) free(malloc(1000))`: the memory that the program allocates during the walk fits into an arena of 200
    /// KiB.
    #[test]
    fn the_error_stays_within_the_arenas() {
        let heap = AddressRange { start: Avma(0x10000), end: Avma(0x10000 + 200 * 1024) };
        let arena = Arena { live: Bytes(7 * 1008), live_count: 7, heaps: vec![heap], whole: true, ..Arena::default() };
        let glibc = |arena: &Arena| Glibc { arenas: vec![arena.clone()], ..Glibc::default() };
        let (earlier, later) = (books(1000, 1, 1 << 40, 1), books(992, 1, 1 << 41, 1));
        let found = before(&glibc(&arena), earlier, later);
        assert_eq!(found, Before { live: Bytes(6000), live_count: 6, error: Bytes(6000) });
        // Where the walk stopped early, there may be blocks in the rest.
        let part = Arena { whole: false, unknown_resident: Bytes(4096), ..arena };
        assert_eq!(before(&glibc(&part), earlier, later).error, Bytes(200 * 1024 - 6000));
        assert_eq!(before(&glibc(&part), earlier, earlier).error, Bytes(4096));
    }

    #[test]
    fn more_in_the_books_than_in_the_arenas_means_nothing_from_before() {
        let many = books(1 << 40, 1 << 30, 1 << 41, 1 << 30);
        assert_eq!(before(&Glibc::default(), many, many), Before::default());
    }
}
