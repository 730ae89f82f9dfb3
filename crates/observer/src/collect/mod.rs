//! Takes snapshots. Decides which source is read when, so that sources joined by address are read close together in
//! time.
//!
//! | file | what it does |
//! | --- | --- |
//! | `snapshot` | one snapshot: the sources, in the order that keeps them close together |
//! | `skew` | a second reading of sources that change fast: how much each figure may be wrong by |
//! | `series` | the next snapshot of a series: current figures of the kernel, joined with the owners that the first snapshot found |
//! | `drift` | how wrong the figures of the last query may be by now |
//! | `new_memory` | owners of memory that came after the first snapshot, if the memory itself identifies them |
//!
//! This stage is above the ledger, because the ledger decides what else must be read. That is the page map of mappings
//! with several owners, and expensive queries of a VM if too much is unexplained.

mod drift;
mod new_memory;
mod series;
mod skew;
mod snapshot;

pub use series::{MappingDetail, SeriesState};
pub use snapshot::{Refusal, Regions, take_snapshot};
