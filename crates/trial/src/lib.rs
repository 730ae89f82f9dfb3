//! What `plimsoll try` measures, in which order, and what the figures show. Pure: no file, no process, no clock.
//!
//! ```text
//! remedy ─▶ plan ─▶ (the program runs the commands) ─▶ Run ─▶ comparison ─▶ best
//!                         latency: bytes of a load generator ─▲     ▲ statistics
//! ```

#![warn(unreachable_pub)]

pub mod comparison;
pub mod latency;
pub mod launcher;
pub mod metric;
pub mod plan;
pub mod remedy;
pub mod statistics;

pub use comparison::{Best, Difference, End, Row, Run, Trial};
pub use metric::{Better, Metric, Unit};
pub use remedy::{Action, Change, Remedy};
