//! What `plimsoll try` and `plimsoll compare` measure, in which order, and what the figures show. Pure: no file, no
//! process, no clock.
//!
//! ```text
//! remedy ─▶ plan ─▶ (the program runs the commands) ─▶ Run ─▶ rows ─▶ best
//!                         latency: bytes of a load generator ─▲  └──▶ comparison ─▶ budget
//!                                                                statistics
//! live: the steps that are tried on a program that runs
//! ```

#![warn(unreachable_pub)]

pub mod budget;
pub mod comparison;
pub mod latency;
pub mod launcher;
pub mod live;
pub mod metric;
pub mod plan;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
pub mod rate;
pub mod remedy;
pub mod rows;
pub mod statistics;

pub use metric::{Better, Metric, Unit};
pub use remedy::{Action, Remedy, RemedyChange};
pub use rows::{Best, PairedDifference, Pss, Row, Run, RunEnd, Trial};
