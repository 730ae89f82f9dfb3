//! Constants of the format that the reader and the writer share.

/// The first bytes of each chunk.
pub const MAGIC: [u8; 4] = *b"FLR\0";
/// Size of each chunk's header.
pub const HEADER_BYTES: usize = 68;
/// The format's major version.
pub const MAJOR: u16 = 2;
/// Bit of the header's flags: integers are compressed.
pub const COMPRESSED: u8 = 1;
pub const LAST_CHUNK: u8 = 2;

/// Ids of the event types that every chunk has.
pub const METADATA: i64 = 0;
pub const CHECKPOINT: i64 = 1;

/// Encodings of a string.
pub mod text {
    pub const NULL: u8 = 0;
    pub const EMPTY: u8 = 1;
    pub const POOLED: u8 = 2;
    pub const UTF8: u8 = 3;
    pub const UTF16: u8 = 4;
    pub const LATIN1: u8 = 5;
}
