//! Outside the target: sources → snapshot → ledger → verdict.

pub mod gap;
pub mod snapshot;
pub mod source;
pub mod units;
