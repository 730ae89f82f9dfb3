//! A writer of chunks that are whole at every moment.
//!
//! ```text
//! file  = chunk*                       each chunk explains itself: a reader needs no other
//! chunk = header  event*
//!
//!   0 "FLR\0"   4 major 2   6 minor 1          header, 68 bytes, big-endian
//!   8 size of the chunk                        ┐
//!  16 offset of the newest checkpoint          │ moved forward as the chunk grows
//!  24 offset of the metadata                   │ (`recording` has the order)
//!  32 start, ns since 1970   40 duration, ns   ┘
//!  48 start, ticks           56 ticks a second
//!  64 state (0 = finished)   67 flags (1 = integers are compressed)
//!
//! event      = size  type  start  field*                    size counts itself; every integer is compressed (`integers`)
//! metadata   = size  0  start duration id  strings  tree    what types there are (`metadata`)
//! checkpoint = size  1  start duration delta mask  pools    constants that events refer to by number (`constants`);
//!                                                           delta leads to the one before it, 0 ends the chain
//! ```
//! Source of the format: jdk.jfr of JDK 17 and 25 (jdk/jfr/internal/consumer/ChunkHeader, ChunkParser, MetadataReader)
//! and org.openjdk.jmc.flightrecorder's parser, which stops at the first metadata event that it meets among the events.

mod constants;
pub mod event;
mod integers;
pub mod kinds;
mod metadata;
mod recording;
mod types;

pub use constants::{Frame, FrameKind, Stack};
pub use event::{Event, Field, Kind, Table, Value};
pub use recording::{Batch, Body, Recording, Store};
pub use types::{Member, Type, TypeKind};
