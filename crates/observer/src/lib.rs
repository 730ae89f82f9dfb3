//! Everything outside the target: sources → snapshot → ledger → verdict; segment → books. `collect` decides which
//! source is read when.

#![warn(unreachable_pub)]

pub mod allocation;
pub mod books;
pub mod collect;
pub mod diff;
pub mod ending;
pub mod foreign;
pub mod gap;
pub mod ledger;
mod lines;
#[doc(hidden)]
pub mod parsers;
pub mod profile;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod recording;
pub mod rules;
pub mod sites;
pub mod snapshot;
pub mod source;
pub mod symbols;
pub mod units;
pub mod verdict;
