//! The header of a chunk. The crate's documentation (lib.rs) has its layout.
//!
//! While a chunk is being written, its size, checkpoint and metadata fields are those of the last flush, or zero before
//! the first one.

use std::fmt;

use crate::format::{COMPRESSED, HEADER_BYTES, LAST_CHUNK, MAGIC, MAJOR};

/// The header of a chunk. Every field except `start_ns` is as the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Always 2.
    pub major: u16,
    /// 0 for JDK 11, 1 since JDK 14.
    pub minor: u16,
    /// Size of the chunk in bytes, header included.
    pub size: u64,
    /// Offset of the last checkpoint, in bytes from the chunk's start.
    pub checkpoint: u64,
    /// Offset of the metadata event, in bytes from the chunk's start.
    pub metadata: u64,
    /// Start of the chunk, ns since 1970 UTC, never negative. Every time in a recording lies in 0..=i64::MAX, so no
    /// difference of two overflows.
    pub start_ns: i64,
    /// Time from `start_ns` to the end of the chunk.
    pub duration_ns: i64,
    /// Value of the event clock when the chunk began.
    pub start_ticks: i64,
    /// Frequency of the event clock. A value of 0 or less means one tick per nanosecond.
    pub ticks_per_second: i64,
    /// 0: finished; 255: being written; any other value: the number of a flush.
    pub state: u8,
    /// Integers are compressed.
    pub compressed: bool,
    /// The recorder intended this chunk to be the last.
    pub last: bool,
}

/// Why the bytes are not a chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHeader {
    /// The input ends after this many bytes.
    Short(usize),
    /// They don't begin with [`MAGIC`].
    NoMagic,
    /// Major and minor version. 0.x and 1.x (Oracle's JDK 7 and 8) have another layout; 3.x doesn't exist.
    Version(u16, u16),
}

impl fmt::Display for NoHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoHeader::Short(bytes) => write!(f, "a chunk header of {HEADER_BYTES} bytes is cut off after {bytes}"),
            NoHeader::NoMagic => f.write_str("no chunk begins here"),
            NoHeader::Version(major, minor) => write!(f, "format version {major}.{minor} is not known ({MAJOR}.x is)"),
        }
    }
}

impl std::error::Error for NoHeader {}

impl Header {
    /// Parses the first 68 of `bytes`.
    ///
    /// # Errors
    /// There are fewer than 68 bytes, or they are not a header of format 2.x.
    pub fn parse(bytes: &[u8]) -> Result<Header, NoHeader> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return Err(NoHeader::Short(bytes.len())) };
        if bytes[..4] != MAGIC {
            return Err(NoHeader::NoMagic);
        }
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u64_at = |at: usize| bytes[at..at + 8].iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let header = Header {
            major: u16_at(4),
            minor: u16_at(6),
            size: u64_at(8),
            checkpoint: u64_at(16),
            metadata: u64_at(24),
            start_ns: (u64_at(32) as i64).max(0),
            duration_ns: u64_at(40) as i64,
            start_ticks: u64_at(48) as i64,
            ticks_per_second: u64_at(56) as i64,
            state: bytes[64],
            compressed: bytes[67] & COMPRESSED != 0,
            last: bytes[67] & LAST_CHUNK != 0,
        };
        if header.major != MAJOR {
            return Err(NoHeader::Version(header.major, header.minor));
        }
        Ok(header)
    }

    fn ticks_per_ns(&self) -> f64 {
        if self.ticks_per_second > 0 { self.ticks_per_second as f64 / 1e9 } else { 1.0 }
    }

    /// Converts ticks to nanoseconds since 1970 UTC. Truncates a floating-point value as the JDK does, so the result
    /// equals the JDK's.
    pub fn time(&self, ticks: i64) -> i64 {
        let since_start = (ticks.wrapping_sub(self.start_ticks) as f64 / self.ticks_per_ns()) as i64;
        self.start_ns.saturating_add(since_start).max(0)
    }

    /// Converts a length of time in ticks to nanoseconds.
    pub fn span(&self, ticks: i64) -> i64 {
        (ticks as f64 / self.ticks_per_ns()) as i64
    }

    /// The end of the chunk, ns since 1970 UTC.
    pub fn end_ns(&self) -> i64 {
        self.start_ns.saturating_add(self.duration_ns.max(0))
    }
}
