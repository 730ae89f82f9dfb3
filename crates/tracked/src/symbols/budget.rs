//! What a walk through debug information may cost. The bytes may be hostile: a file of 1 MiB can describe days of work,
//! and more memory than there is.

/// Limit of steps, of some 10 to 200 ns each: Chromium's debug information has some 10⁸ entries.
const STEPS: u64 = 1 << 29;
/// Steps after which the time is looked at.
const LOOK: u64 = 1 << 16;
/// Limit of memory for results, bytes. 100,000 calls of ten functions each, with names of 100 bytes and paths of 60,
/// take 250 MB.
const KEPT: usize = 512 << 20;

/// What was spent so far.
pub(super) struct Budget<'t> {
    steps: u64,
    kept: usize,
    in_time: &'t dyn Fn() -> bool,
}

impl Budget<'_> {
    /// `in_time` says whether the work may go on.
    pub(super) fn new(in_time: &dyn Fn() -> bool) -> Budget<'_> {
        Budget { steps: 0, kept: 0, in_time }
    }

    /// Counts `n` steps before they are taken.
    pub(super) fn step(&mut self, n: u64) -> Result<(), String> {
        let before = self.steps;
        self.steps = self.steps.saturating_add(n);
        if self.steps > STEPS {
            return Err("its debug information is too large, or cyclic".into());
        }
        if before / LOOK != self.steps / LOOK && !(self.in_time)() {
            return Err("its debug information was not read in time".into());
        }
        Ok(())
    }

    /// Counts bytes that stay in memory until the walk has ended.
    pub(super) fn keep(&mut self, bytes: usize) -> Result<(), String> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > KEPT { Err("the names in its debug information take too much memory".into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_ends_when_it_takes_too_many_steps_or_too_long() {
        let mut steps = Budget::new(&|| true);
        assert_eq!((steps.step(STEPS - 1), steps.step(1)), (Ok(()), Ok(())));
        assert!(steps.step(1).is_err_and(|why| why.contains("too large")));
        assert!(steps.step(u64::MAX).is_err());
        let mut late = Budget::new(&|| false);
        assert_eq!(late.step(LOOK - 1), Ok(()));
        assert!(late.step(1).is_err_and(|why| why.contains("in time")));
        assert!(Budget::new(&|| false).step(10 * LOOK).is_err(), "a look is passed over by a large step");
    }

    #[test]
    fn a_walk_ends_when_it_keeps_too_much() {
        let mut budget = Budget::new(&|| true);
        assert_eq!(budget.keep(KEPT), Ok(()));
        assert!(budget.keep(1).is_err());
        assert!(budget.keep(usize::MAX).is_err());
    }
}
