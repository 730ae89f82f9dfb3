//! Constants of the format that the reader and the writer share.

/// The first bytes of each chunk.
pub const MAGIC: [u8; 4] = *b"FLR\0";
/// Size of each chunk's header.
pub const HEADER_BYTES: usize = 68;
/// The format's major version.
pub(crate) const MAJOR: u16 = 2;
/// Bit of the header's flags: integers are compressed.
pub(crate) const COMPRESSED: u8 = 1;
/// Bit of the header's flags: the recorder intended this chunk to be the last.
pub(crate) const LAST_CHUNK: u8 = 2;

/// Ids of the event types that every chunk has.
pub(crate) const METADATA: i64 = 0;
pub(crate) const CHECKPOINT: i64 = 1;

/// Encodings of a string.
pub(crate) mod text {
    pub(crate) const NULL: u8 = 0;
    pub(crate) const EMPTY: u8 = 1;
    pub(crate) const POOLED: u8 = 2;
    pub(crate) const UTF8: u8 = 3;
    pub(crate) const UTF16: u8 = 4;
    pub(crate) const LATIN1: u8 = 5;
}
