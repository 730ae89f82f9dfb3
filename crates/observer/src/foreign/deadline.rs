//! One moment by which a whole command is done with its target. Each wait and each read takes what is left of it, so
//! that many short waits can't add up. What is not reached in time is a gap.
//!
//! Each verb makes one (`record`: one for each instant) and hands it down; nobody below a verb makes another. A file in /proc
//! that the kernel itself writes is read to its end: its length is bounded, and half of smaps would be a wrong sum.

use std::time::{Duration, Instant};

/// For `explain`, `doctor`, and one instant of `record`.
pub const LOOK: Duration = Duration::from_secs(15);
/// For `report` and `diff`, and for what `run` reads of a program: debug information of a large one takes seconds.
pub const NAMES: Duration = Duration::from_secs(60);
/// For `attach` and `detach`: a handshake and a few answers of a VM on an overloaded machine.
pub const ATTACH: Duration = Duration::from_secs(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    pub fn after(budget: Duration) -> Deadline {
        Deadline(Instant::now() + budget)
    }

    /// Zero once it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// The part of a wait of one's own that the command still has.
    pub fn at_most(self, own: Duration) -> Duration {
        self.left().min(own)
    }

    /// Put off by so much.
    pub fn later(self, by: Duration) -> Deadline {
        Deadline(self.0 + by)
    }

    /// The earlier of both: a step with a limit of its own.
    pub fn sooner(self, own: Duration) -> Deadline {
        Deadline(self.0.min(Instant::now() + own))
    }
}
