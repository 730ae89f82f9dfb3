//! A writer of chunks that are whole at every moment: whoever kills it leaves a file that every reader opens.
//!
//! ```text
//! events!  ──► Table ──► Recording ──► Store        what is declared, once; where the bytes go
//!                           ▲
//! EventStruct.write(batch) ─┘                       the events of one instant
//! ```
//! Stacks and words that come again are constants; integers are compressed. JDK Mission Control stops at the first metadata event
//! that it meets among the events: `recording` keeps it from meeting one.

mod batch;
mod constants;
mod event;
mod integers;
pub mod kinds;
mod metadata;
mod recording;
mod types;

pub use batch::{Batch, Body};
pub use constants::{Frame, FrameKind, Stack};
pub use event::{Event, Field, Kind, Table, Value};
pub use recording::{Recording, Store};
pub use types::Type;
