//! The time by which a whole command must be done with its target. Each wait and each read takes from the time that is
//! left, so many short waits can't add up. What isn't reached in time is a gap.
//!
//! Each verb makes one deadline (`record` makes one per instant) and passes it down; nothing below a verb makes
//! another. A file in /proc that the kernel itself writes is read to its end, even after the deadline: half of smaps
//! would give a wrong sum. A limit of the file's length bounds that (`target`).

use std::time::{Duration, Instant};

/// For `explain`, `doctor`, and one instant of `record`.
pub const LOOK: Duration = Duration::from_secs(15);
/// For `report` and `diff`, and for what `run` reads about a program: debug information of a large program takes
/// seconds.
pub const NAMES: Duration = Duration::from_secs(60);
/// For `attach` and `detach`: a handshake and a few answers of a VM on an overloaded machine.
pub const ATTACH: Duration = Duration::from_secs(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    pub fn after(budget: Duration) -> Deadline {
        Deadline(Instant::now() + budget)
    }

    /// Zero after the deadline.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// The shorter of `own` and the time that is left.
    pub fn at_most(self, own: Duration) -> Duration {
        self.left().min(own)
    }

    /// The deadline, moved by `by`.
    pub fn later(self, by: Duration) -> Deadline {
        Deadline(self.0 + by)
    }

    /// The earlier of the deadline and a step's own limit.
    pub fn sooner(self, own: Duration) -> Deadline {
        Deadline(self.0.min(Instant::now() + own))
    }
}
