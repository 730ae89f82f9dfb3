//! Explains a process from outside: sources → snapshot → ledger → verdict. `collect` decides which source is read when.

#![warn(unreachable_pub)]

pub mod collect;
pub mod ledger;
#[cfg(test)]
#[path = "../../../fixtures/mutated.rs"]
mod mutated;
#[doc(hidden)]
pub mod parsers;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod recording;
pub mod source;
pub mod verdict;
