//! Writes chunks that are valid at every moment: if the recorder is killed at any time, every reader can open the file.
//!
//! ```text
//! events!  ──► Table ──► Recording ──► Store        what is declared, once; where the bytes go
//!                           ▲
//! EventStruct.write(batch) ─┘                       the events of one instant
//! ```
//! Repeated stacks and names are constants; integers are compressed. JDK Mission Control stops at the first metadata
//! event among the events; `recording` keeps metadata out of its way.

mod batch;
mod constants;
mod event;
mod integers;
pub mod kinds;
mod metadata;
mod recording;
mod types;

pub use batch::{Batch, Body};
pub use constants::{Frame, FrameType, Stack};
pub use event::{Event, Field, FieldKind, Table, Value};
pub use recording::{Recording, Series, Store};
pub use types::Type;
