//! What the tracker counted, of a process that it was attached to.

use crate::units::Bytes;

/// What the books of an attached process had at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    pub live: Bytes,
    pub live_count: u64,
    pub cumulative: Bytes,
    /// Live blocks with a trailer.
    pub trailers: u64,
}
