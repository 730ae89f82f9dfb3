//! The figures that the reading thread publishes for the answering threads, and their wish for newer ones.
//!
//! ```text
//! rounds ── publish ──▶ Board ◀── look ── answers      figures of every target, as old as the last round
//!        ◀── wait ────        ◀── fresh ─              a scrape wants a round, unless one is recent
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_observer::ledger::Baseline;
use plimsoll_process::processes::Identity;
use plimsoll_report::metrics::Samples;
use plimsoll_report::serve_list::Row;

use super::recent::Recent;

/// A scrape waits this long for a round; then it gets the last figures. Prometheus gives up after 10 s.
const SCRAPE: Duration = Duration::from_secs(4);
/// A round that took `t` of processor time is repeated after `t × 60` at the earliest, however many scrapers there are.
const ROUNDS: u32 = 60;
/// Scrapers that come together share a round.
const LEAST: Duration = Duration::from_secs(1);

/// A target after its last reading.
#[derive(Clone)]
pub struct Published {
    pub identity: Identity,
    pub row: Row,
    pub samples: Arc<Samples>,
    pub read_at: Instant,
    /// What the verdicts compare with.
    pub baseline: Option<Baseline>,
    pub recent: Arc<Mutex<Recent>>,
}

#[derive(Clone, Default)]
pub struct Posted {
    pub targets: Vec<Published>,
    pub left_out: usize,
    /// Rounds so far, and when the last one ended.
    pub rounds: u64,
    pub ended: Option<Instant>,
    pub took: Duration,
    /// Processor time of the last round.
    pub cpu: Duration,
    is_wanted: bool,
    is_stopped: bool,
}

impl Posted {
    fn is_fresh(&self, now: Instant, interval: Duration) -> bool {
        let spacing = (self.cpu * ROUNDS).clamp(LEAST, interval.max(LEAST));
        self.ended.is_some_and(|ended| now.saturating_duration_since(ended) < spacing)
    }
}

pub struct Board {
    posted: Mutex<Posted>,
    changed: Condvar,
    pub interval: Duration,
    began: Instant,
}

impl Board {
    pub fn new(interval: Duration) -> Board {
        Board { posted: Mutex::default(), changed: Condvar::new(), interval, began: Instant::now() }
    }

    pub fn look(&self) -> MutexGuard<'_, Posted> {
        // This program aborts on a panic, so nobody sees a poisoned lock.
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the last round ended or, before the first has ended, since the start.
    pub fn silence(&self) -> Duration {
        self.look().ended.unwrap_or(self.began).elapsed()
    }

    /// The figures after a recent round: waits for one if the last is too old.
    pub fn fresh(&self) -> Posted {
        let mut posted = self.look();
        let until = Instant::now() + SCRAPE;
        if !posted.is_fresh(Instant::now(), self.interval) {
            let before = posted.rounds;
            posted.is_wanted = true;
            self.changed.notify_all();
            while posted.rounds == before && !posted.is_stopped {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                posted = self.changed.wait_timeout(posted, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        posted.clone()
    }

    pub fn publish(&self, targets: Vec<Published>, left_out: usize, took: Duration, cpu: Duration) {
        let mut posted = self.look();
        let (rounds, is_stopped) = (posted.rounds + 1, posted.is_stopped);
        let ended = Some(Instant::now());
        *posted = Posted { targets, left_out, rounds, ended, took, cpu, is_wanted: false, is_stopped };
        self.changed.notify_all();
    }

    /// Waits until the next round is due or wanted. False: the rounds have been stopped.
    pub fn wait(&self, until: Instant) -> bool {
        let mut posted = self.look();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if posted.is_stopped {
                return false;
            }
            if posted.is_wanted || left.is_zero() {
                return true;
            }
            posted = self.changed.wait_timeout(posted, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the rounds.
    pub fn stop(&self) {
        self.look().is_stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_scrapers_share_a_round_and_an_expensive_one_lasts_longer() {
        let now = Instant::now();
        let ago = |ms| now.checked_sub(Duration::from_millis(ms));
        let of = |ended, cpu| Posted { ended, cpu: Duration::from_millis(cpu), ..Posted::default() };
        let interval = Duration::from_secs(15);
        let fresh = |ended, cpu| of(ended, cpu).is_fresh(now, interval);
        assert!(fresh(ago(900), 0) && !fresh(ago(1100), 0));
        assert!(fresh(ago(11_000), 200) && !fresh(ago(13_000), 200));
        assert!(!fresh(ago(16_000), 9000), "an interval is always enough");
        assert!(!fresh(None, 0));
    }

    /// A first round that hangs is silence too.
    #[test]
    fn silence_begins_with_the_start() {
        let board = Board::new(Duration::ZERO);
        let Some(began) = Instant::now().checked_sub(Duration::from_secs(1)) else { return };
        let board = Board { began, ..board };
        assert!(board.silence() >= Duration::from_secs(1));
        let before = Instant::now();
        board.publish(vec![], 0, Duration::ZERO, Duration::ZERO);
        assert!(board.silence() <= before.elapsed());
    }

    #[test]
    fn a_scrape_gets_the_round_that_it_wants() {
        let board = Arc::new(Board::new(Duration::from_secs(600)));
        let reader = board.clone();
        let rounds = std::thread::spawn(move || {
            while reader.wait(Instant::now() + Duration::from_secs(600)) {
                reader.publish(vec![], 7, Duration::ZERO, Duration::ZERO);
            }
        });
        let began = Instant::now();
        while board.fresh().left_out != 7 {
            // A scrape waits a few seconds only, in which a busy machine may not run the other thread.
            assert!(began.elapsed() < Duration::from_secs(120), "no round");
        }
        // Fresh still: no second round.
        let before = board.look().rounds;
        board.look().ended = Some(Instant::now() + Duration::from_secs(60));
        assert_eq!(board.fresh().rounds, before);
        board.stop();
        rounds.join().expect("it ends");
    }
}
