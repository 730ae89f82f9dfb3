//! Turns the state of a process into events of a recording. `plimsoll_jfr::writer` makes a file of them.
//!
//! `events` is the table from which metadata, encoding, docs/jfr-events.md and the tests come.

pub mod events;
mod process_state;
mod sites;

pub use events::TABLE;
pub use process_state::{ChunkContents, Cost, DescribedTarget, Instant, MOST_SITES, Site, TargetEnd, TargetEndKind};
pub use sites::unnamed;
