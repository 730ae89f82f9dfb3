//! Figures counted by the tracker.

use crate::units::Bytes;

/// Contents of the books at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    pub live: Bytes,
    pub live_count: u64,
    pub cumulative: Bytes,
    /// Live blocks with a trailer.
    pub trailers: u64,
}

/// Live blocks of one category.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookedCategory {
    /// HotSpot's names are those of its NMT.
    pub name: String,
    pub live: Bytes,
    pub live_count: u64,
}

impl BookedCategory {
    /// Upper bound of the bytes of their chunks: with the tracker's trailer, or else with one more word of malloc's
    /// header.
    pub fn chunks(&self) -> Bytes {
        const BESIDE: u64 = 16;
        self.live + Bytes(self.live_count.saturating_mul(BESIDE))
    }
}

/// The books of a tracked process at two moments of a series: when its arenas were walked, and now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookedSince {
    pub walk: Booked,
    /// Blocks with a mapping of their own, at the time of the walk.
    pub mmapped: Bytes,
    pub now: Booked,
}
