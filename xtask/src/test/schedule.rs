//! Starts the test programs in the order of the table, the next one as soon as the tests that still run leave a CPU
//! idle.
//!
//! libtest starts no test of another program. So if the programs ran one after the other, the last test of each would
//! have the machine to itself, and a quarter of the CPUs' time would be idle.

use super::run::Outcome;
use crate::stage::Result;
use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread;

/// Runs a piece. Meanwhile it may pass its argument the number of tests that have a result.
pub type Work<'a> = Box<dyn FnOnce(&mut dyn FnMut(usize)) -> Result<Outcome> + Send + 'a>;

/// A test program with the tests of one group, or a group's command.
pub struct Piece<'a> {
    pub group: usize,
    /// `GROUP:PROGRAM`, or the group.
    pub what: String,
    /// How many tests it has. None: a command, which has work for every CPU until it ends.
    pub tests: Option<usize>,
    pub work: Work<'a>,
}

pub enum Event {
    Began,
    /// This many tests of the piece have a result.
    Ended(usize),
    Done(Outcome),
}

/// Runs all pieces. The next one starts when fewer than `busy` tests are left of those that have started; with 0, when
/// they have all ended. Calls `seen` on this thread with each event of a piece and the piece's index in `pieces`.
pub fn run(pieces: Vec<Piece>, busy: usize, seen: &mut dyn FnMut(usize, Event) -> Result<()>) -> Result<()> {
    let (to, events) = channel();
    let mut pieces = pieces.into_iter().enumerate();
    let mut running = Running(BTreeMap::new());
    thread::scope(|scope| {
        loop {
            while running.leaves_room(busy)
                && let Some((at, piece)) = pieces.next()
            {
                running.0.insert(at, Tests { of: piece.tests, ended: 0 });
                seen(at, Event::Began)?;
                let to = to.clone();
                scope.spawn(move || {
                    let outcome = (piece.work)(&mut |ended| {
                        let _ = to.send((at, Ok(Event::Ended(ended))));
                    });
                    let _ = to.send((at, outcome.map(Event::Done).map_err(|e| e.to_string())));
                });
            }
            if running.0.is_empty() {
                return Ok(());
            }
            let (at, event) = events.recv()?;
            let event = event?;
            match (&event, running.0.get_mut(&at)) {
                (Event::Ended(ended), Some(tests)) => tests.ended = *ended,
                (Event::Done(_), _) => drop(running.0.remove(&at)),
                _ => {}
            }
            seen(at, event)?;
        }
    })
}

struct Tests {
    /// None: a command.
    of: Option<usize>,
    ended: usize,
}

/// The pieces that run.
struct Running(BTreeMap<usize, Tests>);

impl Running {
    fn leaves_room(&self, busy: usize) -> bool {
        let left = self.0.values().try_fold(0, |sum, tests| Some(sum + tests.of?.saturating_sub(tests.ended)));
        self.0.is_empty() || left.is_some_and(|left| left < busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each piece ends its tests one after the other. Returns what was seen, in order: `0+` began, `0:3` three tests
    /// have ended, `0-` done.
    fn play(tests: &[Option<usize>], busy: usize) -> Vec<String> {
        let pieces = tests.iter().map(|&tests| {
            let work: Work = Box::new(move |ended: &mut dyn FnMut(usize)| {
                (1..=tests.unwrap_or(0)).for_each(ended);
                Ok(Outcome { passed: tests.unwrap_or(1), ..Outcome::default() })
            });
            Piece { group: 0, what: String::new(), tests, work }
        });
        let mut seen = Vec::new();
        run(pieces.collect(), busy, &mut |at, event| {
            seen.push(match event {
                Event::Began => format!("{at}+"),
                Event::Ended(ended) => format!("{at}:{ended}"),
                Event::Done(_) => format!("{at}-"),
            });
            Ok(())
        })
        .expect("no piece fails");
        seen
    }

    fn position(seen: &[String], what: &str) -> usize {
        seen.iter().position(|line| line == what).unwrap_or_else(|| panic!("no {what} in {seen:?}"))
    }

    #[test]
    fn the_next_piece_starts_in_the_tail_of_the_one_before() {
        let seen = play(&[Some(5), Some(4), None, Some(1)], 2);
        assert_eq!(position(&seen, "1+"), position(&seen, "0:4") + 1, "{seen:?}");
        assert!(position(&seen, "2+") > position(&seen, "1:3"), "{seen:?}");
        assert!(position(&seen, "3+") > position(&seen, "2-"), "a command has the machine to itself: {seen:?}");
    }

    #[test]
    fn with_0_each_piece_waits_for_the_end_of_the_one_before() {
        let seen = play(&[Some(3), Some(2)], 0);
        assert_eq!(seen, ["0+", "0:1", "0:2", "0:3", "0-", "1+", "1:1", "1:2", "1-"]);
    }

    #[test]
    fn a_piece_that_cannot_run_ends_the_run_with_its_error() {
        let work: Work = Box::new(|_: &mut dyn FnMut(usize)| Err("no such program".into()));
        let error = run(vec![Piece { group: 0, what: String::new(), tests: Some(1), work }], 2, &mut |_, _| Ok(()))
            .expect_err("it fails");
        assert_eq!(error.to_string(), "no such program");
    }
}
