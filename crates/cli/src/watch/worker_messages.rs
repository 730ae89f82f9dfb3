//! Carries the worker's reports to the thread of the terminal, in order. That thread may be blocked for hours (a pipe
//! that nobody reads, a terminal whose connection stalls) while the worker goes on, so only the newest readings wait.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_process::processes::Listed;

use super::facts::Facts;

/// Limit of readings that wait.
const MOST: usize = 32;

/// A report from the worker to the screen.
pub enum Report {
    Facts(Box<Facts>),
    Listing(u64, Vec<Listed>),
    /// How the process ended.
    End(String),
    Recording(bool, String),
    /// The process can't be watched.
    Refused(String),
    /// The worker is done: nothing follows.
    Done,
}

impl Report {
    fn is_reading(&self) -> bool {
        matches!(self, Report::Facts(_) | Report::Listing(..))
    }
}

#[derive(Default)]
pub struct Reports {
    waiting: Mutex<VecDeque<Report>>,
    added: Condvar,
}

impl Reports {
    /// Beyond [`MOST`], a reading replaces the oldest one.
    pub fn add(&self, report: Report) {
        let mut waiting = self.waiting();
        let readings = waiting.iter().filter(|report| report.is_reading()).count();
        if report.is_reading()
            && readings >= MOST
            && let Some(oldest) = waiting.iter().position(Report::is_reading)
        {
            waiting.remove(oldest);
        }
        waiting.push_back(report);
        self.added.notify_one();
    }

    pub fn next(&self) -> Option<Report> {
        self.waiting().pop_front()
    }

    /// The next report, if it comes within `limit`.
    pub fn next_within(&self, limit: Duration) -> Option<Report> {
        let waited = self.added.wait_timeout_while(self.waiting(), limit, |waiting| waiting.is_empty());
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Report>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_terminal_costs_the_memory_of_a_few_readings() {
        let reports = Reports::default();
        reports.add(Report::Recording(true, "first".into()));
        for time_ns in 0..1000 {
            reports.add(Report::Facts(Box::new(Facts { time_ns, ..Facts::default() })));
        }
        reports.add(Report::End("last".into()));
        let all: Vec<Report> = std::iter::from_fn(|| reports.next()).collect();
        let time = |report: &Report| match report {
            Report::Facts(facts) => Some(facts.time_ns),
            _ => None,
        };
        let times: Vec<u64> = all.iter().filter_map(time).collect();
        let newest = 1000 - MOST as u64;
        assert_eq!(times, (newest..1000).collect::<Vec<_>>());
        assert!(matches!(all.first(), Some(Report::Recording(true, _))) && matches!(all.last(), Some(Report::End(_))));
        assert!(reports.next_within(Duration::ZERO).is_none());
    }
}
