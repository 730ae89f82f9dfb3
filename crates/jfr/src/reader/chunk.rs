//! ```text
//! chunk header, big-endian
//!  0  "FLR\0"           16  offset of the last checkpoint     48  ticks at the start
//!  4  major, minor u16  24  offset of the metadata            56  ticks a second
//!  8  size              32  start, ns since the epoch         64  state: 0 finished, 255 being written, else a flush's number
//!                       40  duration, ns                      66  flags u16: 1 compressed integers, 2 last chunk
//! ```
//! Offsets count from the chunk's start. While a chunk is written, size, checkpoint and metadata are those of its last flush,
//! or zero before the first.

pub const MAGIC: [u8; 4] = *b"FLR\0";
pub const HEADER_BYTES: usize = 68;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub major: u16,
    pub minor: u16,
    pub size: u64,
    pub checkpoint: u64,
    pub metadata: u64,
    /// Since the epoch, never negative. Every moment of a recording lies in 0..=i64::MAX, so no difference of two overflows.
    pub start_ns: i64,
    pub duration_ns: i64,
    pub start_ticks: i64,
    pub ticks_per_second: i64,
    pub state: u8,
    pub compressed: bool,
    pub last: bool,
}

impl Header {
    pub fn parse(bytes: &[u8]) -> Result<Header, String> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(format!("a chunk header of {} bytes is cut off after {}", HEADER_BYTES, bytes.len()));
        };
        if bytes[..4] != MAGIC {
            return Err("no chunk begins here".into());
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
            compressed: bytes[67] & 1 != 0,
            last: bytes[67] & 2 != 0,
        };
        // 0.x and 1.x (JDK 7 and 8 of Oracle) have another layout; 3.x doesn't exist.
        if header.major != 2 {
            return Err(format!("format version {}.{} is not known (2.x is)", header.major, header.minor));
        }
        Ok(header)
    }

    fn ticks_per_ns(&self) -> f64 {
        if self.ticks_per_second > 0 { self.ticks_per_second as f64 / 1e9 } else { 1.0 }
    }

    /// Nanoseconds since the epoch. In floating point, truncated, as the JDK converts: the same figure to the nanosecond.
    pub fn time(&self, ticks: i64) -> i64 {
        let since_start = (ticks.wrapping_sub(self.start_ticks) as f64 / self.ticks_per_ns()) as i64;
        self.start_ns.saturating_add(since_start).max(0)
    }

    pub fn span(&self, ticks: i64) -> i64 {
        (ticks as f64 / self.ticks_per_ns()) as i64
    }

    pub fn end_ns(&self) -> i64 {
        self.start_ns.saturating_add(self.duration_ns.max(0))
    }
}
