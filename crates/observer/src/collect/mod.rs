//! Snapshots: which source is read when, so that what is joined by address is read close together in time.
//!
//! | file | what it does |
//! | --- | --- |
//! | `first` | one snapshot: every source is read once |
//! | `series` | the next snapshot of a series: the kernel's figures anew, joined with what the first snapshot found |
//! | `new_memory` | owners of memory that came since the first snapshot, as far as the memory itself names them |
//!
//! This stage is above the ledger, because the ledger decides what else is worth reading: the page map of mappings with several
//! owners, and the expensive answers of a VM where too much is unexplained.

mod first;
mod new_memory;
mod series;

pub use first::{Refusal, Regions, take};
pub use series::{Figures, Series};
