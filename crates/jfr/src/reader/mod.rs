//! Reads recordings, finished or not: those of HotSpot, of native images and of this crate's writer.
//!
//! ```text
//! Input ──► Reader ──► Event (a view of the bytes) ──► Value, Stack, Thread
//!             └──► Summary: chunks, counts, flaws
//! ```
//! The reader decodes on demand. It skips events of unwanted types by their size and keeps constants as the bytes of
//! the file. An [`Event`] is a view of the bytes with a table of its fields' offsets.
//!
//! [`Limits`] bounds the memory, whatever the file says; data beyond a limit is a [`Flaw`]. No input makes the reader
//! panic or read without end.

mod chunk;
mod cursor;
mod entry_points;
mod event;
mod flaw;
mod pools;
mod schema;
mod shape;
mod stack;
mod text;
mod types;
mod value;
mod walk;
mod window;

pub use crate::format::{HEADER_BYTES, MAGIC};
pub use chunk::{Header, NoHeader};
pub use entry_points::{Input, Reader, chunks, read};
pub use event::Event;
pub use flaw::Flaw;
pub use stack::{Frame, Stack, Thread};
pub use types::{Annotation, Field, FieldType, Type, Unit};
pub use value::{Array, Object, Value};
pub use walk::{ChunkSummary, EventFilter, Summary};
pub use window::ReadAt;

/// How much the reader may keep in memory. Real files stay far below: JDK 25's metadata takes 150 KiB, its constants
/// some MiB per chunk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one selected event, or of one constant.
    pub event: usize,
    /// Bytes of the metadata event.
    pub metadata: usize,
    /// Bytes of constants of one chunk.
    pub constants: usize,
    /// Constants of one chunk, at 16 bytes each for the index.
    pub constant_count: usize,
    /// Number of checkpoint events of one chunk.
    pub checkpoints: usize,
    /// What decoding may cost, beyond 64 for each byte of the chunks. A byte of text costs 1, a look-up of a constant
    /// 8. The limit exists because a few bytes of an event may refer to megabytes of text. Fields of events have a
    /// second budget of this size: each field beyond one for each byte of its event costs 4.
    pub decoding: u64,
    /// Number of flaws that are listed; further ones are only counted.
    pub flaws: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            event: 16 << 20,
            metadata: 16 << 20,
            constants: 96 << 20,
            constant_count: 4 << 20,
            checkpoints: 1 << 20,
            decoding: 256 << 20,
            flaws: 64,
        }
    }
}
