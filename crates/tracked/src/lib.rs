//! What the tracker wrote, read from outside: segment → books → sites, with the rules that give categories and the
//! symbols that give names.

#![warn(unreachable_pub)]

pub mod books;
pub mod diff;
#[doc(hidden)]
pub mod parsers;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod rules;
pub mod segment;
pub mod sites;
pub mod symbols;
