//! Turns the state of a process into events of a recording. `plimsoll_jfr::writer` makes a file of them.
//!
//! `events` is the table from which metadata, encoding, docs/jfr-events.md and the tests come.

pub mod events;
mod instant;
mod sites;

pub use events::TABLE;
pub use instant::{Cost, End, How, Instant, MOST_SITES, Site, Target, Told};
pub use sites::unnamed;
