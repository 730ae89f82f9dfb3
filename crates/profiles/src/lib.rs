//! How much memory each stack holds or requested, whatever the source: `profile` is the common form, `allocation` reads
//! it from a recording's allocation events.

#![warn(unreachable_pub)]

pub mod allocation;
pub mod jfr;
pub mod profile;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
