//! JDK Flight Recorder files: of Plimsoll, of HotSpot and of native images, finished or not.
//!
//! A recording is one or more chunks, each complete in itself:
//!
//! ```text
//! chunk    header (68 B, chunk.rs) | events …
//! event    size | type id | fields as the chunk's metadata declares them
//!            type 0: metadata     types, fields, annotations (schema.rs)
//!            type 1: checkpoint   constant pools: (type, key) → value (pools.rs); a chain that leads backwards
//! integer  LEB128, low 7 bits first, at most 9 bytes, the ninth with all 8 bits; uncompressed chunks have them
//!          big-endian at full width. Header fields, float and double are big-endian in both.
//! string   0 null | 1 empty | 2 key in the String pool | 3 UTF-8 | 4 UTF-16 units | 5 Latin-1, each with its length
//! ```
//!
//! Sources: the JDK's jdk.jfr.internal.consumer and HotSpot's share/jfr/recorder for what each JDK writes.
//!
//! Nothing is decoded before somebody asks: an event of a type that isn't wanted is stepped over by its size, constants are
//! kept as the bytes they came in, and an [`Event`] is a view of the bytes with a table of where its fields begin.
//!
//! Memory is bounded by [`Limits`], whatever the file says; what is beyond them is a [`Flaw`].

mod chunk;
mod cursor;
mod door;
mod event;
mod flaw;
mod pools;
mod schema;
mod shape;
mod stack;
mod text;
mod value;
mod walk;
mod window;

pub use chunk::{HEADER_BYTES, Header, MAGIC};
pub use door::{Input, Reader, chunks, read};
pub use event::Event;
pub use flaw::Flaw;
pub use schema::{Annotation, Field, Schema, Type, Unit};
pub use stack::{Frame, Stack, Thread};
pub use value::{Array, Object, Value};
pub use walk::{ChunkSummary, Summary, Wanted};
pub use window::ReadAt;

/// What a file may make us keep. Real files stay far below: JDK 25's metadata is 150 KiB, its constants some MiB a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One event of a wanted type, or one constant.
    pub event: usize,
    /// The metadata event.
    pub metadata: usize,
    /// Bytes of constants of one chunk.
    pub constants: usize,
    /// Constants of one chunk, at 16 bytes each for the index.
    pub constant_count: usize,
    /// Checkpoint events of one chunk.
    pub checkpoints: usize,
    /// Flaws that are listed; more are counted.
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
            flaws: 64,
        }
    }
}
