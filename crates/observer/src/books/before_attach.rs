//! What an attached process held before the attach, and still holds: glibc's live chunks, as the walk of its arenas finds
//! them, less those of the books.
//!
//! ```text
//! before = Σ usable of live chunks − (live of the books + 8 B for each trailer)
//! error  = what was allocated and freed between two readings of the books, one before the walk and one after it
//!        + resident bytes that the walk could not parse
//! ```
//! The walk takes milliseconds and the program goes on meanwhile: so the error is the program's traffic in that time.

use super::Books;
use crate::snapshot::{Booked, Glibc};
use crate::units::Bytes;

/// glibc's size field in front of each chunk; a chunk that was mapped by itself has two words.
const HEADER: Bytes = Bytes(8);
const MMAPPED_HEADER: Bytes = Bytes(16);
const TRAILER: u64 = 8;

/// Derived, with a bound of its error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    pub live: Bytes,
    pub live_count: u64,
    pub error: Bytes,
}

impl Booked {
    pub fn of(books: &Books) -> Booked {
        let total = &books.total;
        let trailers = books.own.trailers;
        Booked { live: total.live, live_count: total.live_count, cumulative: total.cumulative, trailers }
    }
}

/// `earlier` and `later` are of one process, read before and after the walk.
pub fn before(glibc: &Glibc, earlier: Booked, later: Booked) -> Before {
    let arenas = glibc.arenas.iter();
    let chunks: u64 = arenas.clone().map(|a| a.live_count).sum();
    let usable: Bytes = arenas.clone().map(|a| a.live - Bytes(HEADER.0.saturating_mul(a.live_count))).sum();
    let mapped: Bytes = glibc.mmapped.iter().map(|chunk| chunk.range.length() - MMAPPED_HEADER).sum();
    let booked = later.live + Bytes(later.trailers.saturating_mul(TRAILER));
    let freed = |books: Booked| books.cumulative - books.live;
    let traffic = (later.cumulative - earlier.cumulative) + (freed(later) - freed(earlier));
    let unknown: Bytes = arenas.map(|a| a.unknown_resident).sum();
    Before {
        live: (usable + mapped) - booked,
        live_count: (chunks + glibc.mmapped.len() as u64).saturating_sub(later.live_count),
        error: traffic + unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Arena, MmappedChunk};
    use crate::units::{AddressRange, Avma};

    fn books(live: u64, count: u64, cumulative: u64, trailers: u64) -> Booked {
        Booked { live: Bytes(live), live_count: count, cumulative: Bytes(cumulative), trailers }
    }

    #[test]
    fn what_the_books_do_not_have_is_from_before() {
        let arena = |live, live_count| Arena { live: Bytes(live), live_count, ..Arena::default() };
        let range = AddressRange { start: Avma(0x7000), end: Avma(0x7000 + 0x21000) };
        let glibc = Glibc {
            arenas: vec![arena(1000 * 48, 1000), arena(100 * 112, 100)],
            mmapped: vec![MmappedChunk { range }],
            ..Glibc::default()
        };
        // 300 of the chunks of 48 bytes are the books': 40 usable, 8 of them the trailer.
        let then = books(300 * 32, 300, 5000 * 32, 300);
        let now = before(&glibc, then, then);
        assert_eq!(now, Before { live: Bytes(700 * 40 + 100 * 104 + 0x21000 - 16), live_count: 801, error: Bytes(0) });
        // Meanwhile 10 blocks came and 4 went.
        let later = books(306 * 32, 306, 5010 * 32, 306);
        assert_eq!(before(&glibc, then, later).error, Bytes(14 * 32));
    }

    #[test]
    fn more_in_the_books_than_in_the_arenas_is_nothing_from_before() {
        let many = books(1 << 40, 1 << 30, 1 << 41, 1 << 30);
        assert_eq!(before(&Glibc::default(), many, many), Before::default());
    }
}
