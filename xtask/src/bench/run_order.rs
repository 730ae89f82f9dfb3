//! Computes the order of the runs of a round: each way right beside its own base, with as few runs of the base as
//! possible.
//!
//! ```text
//! even round:  P A b P C d P      a letter is a run and P is plain; a small letter stands before its base
//! odd round:   P B a P D c P
//! a way over another allocator J stands beside J:    P J j A P
//! ```
//! So n ways take about 1.5 n runs, where a plain run for each of them would take 2 n.

use super::setup::Setup;

/// One run of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// An index into the list of setups.
    pub setup: usize,
    /// The index of the neighbour in the round that it is compared with. `None`: this is a plain run.
    pub base: Option<usize>,
}

const PLAIN: Run = Run { setup: 0, base: None };

/// A peer runs in every third of many rounds, but never in fewer than fifteen. Its ratio has no bar, and is so far from
/// 1 that fifteen show it.
pub fn spacing_of_peers(rounds: usize) -> usize {
    if rounds >= 45 { 3 } else { 1 }
}

/// The first setup must be the plain one.
pub fn of_round(setups: &[Setup], round: usize, spacing: usize) -> Vec<Run> {
    let [mut after, before] = arms(setups, round, spacing);
    // Two rounds later each way has another neighbour on the side where its base isn't.
    let turned = (round / 2).checked_rem(after.len()).unwrap_or(0);
    after.rotate_left(turned);
    let mut runs = Vec::new();
    for place in 0..after.len().max(before.len()) {
        if let Some(arm) = after.get(place) {
            let mut base = last_plain(&mut runs);
            for &setup in arm {
                runs.push(Run { setup, base: Some(base) });
                base = runs.len() - 1;
            }
        }
        if let Some(arm) = before.get(place) {
            for &setup in arm.iter().rev() {
                let base = Some(runs.len() + 1);
                runs.push(Run { setup, base });
            }
            runs.push(PLAIN);
        }
    }
    runs
}

/// The index of a plain run at the end of the runs.
fn last_plain(runs: &mut Vec<Run>) -> usize {
    if runs.last() != Some(&PLAIN) {
        runs.push(PLAIN);
    }
    runs.len() - 1
}

/// The ways that run right after a plain run in this round, and those that run right before one. An arm is such a way
/// and, behind it, a way that has the first one as its base.
fn arms(setups: &[Setup], round: usize, spacing: usize) -> [Vec<Vec<usize>>; 2] {
    let mut arms: [Vec<Vec<usize>>; 2] = Default::default();
    let heads = (1..setups.len()).filter(|&setup| setups[setup].base(setups) == 0);
    for head in heads {
        let is_due = |setup: usize| !setups[setup].is_peer() || (round + head).is_multiple_of(spacing);
        let over: Vec<usize> = (1..setups.len()).filter(|&way| setups[way].base(setups) == head).collect();
        let is_judged = [head].iter().chain(&over).any(|&way| !setups[way].is_peer());
        // The number of the rounds before this one in which the head ran.
        let earlier = (round + head) / if is_judged { 1 } else { spacing };
        let ways = over.into_iter().filter(|&way| is_due(way)).map(|way| vec![head, way]);
        let mut own: Vec<Vec<usize>> = ways.collect();
        if own.is_empty() && is_due(head) {
            own.push(vec![head]);
        }
        for (number, arm) in own.into_iter().enumerate() {
            arms[(earlier + number) % 2].push(arm);
        }
    }
    arms
}

/// The setups in the order of one round of A, B, C, …: over as many rounds as there are setups, each has had each
/// place. Then the same backwards, so that a setup doesn't always follow the same other one.
pub fn of_turns(setups: usize, round: usize) -> Vec<usize> {
    let order = (0..setups).map(|place| (place + round) % setups);
    if (round / setups).is_multiple_of(2) { order.collect() } else { order.rev().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn setups() -> Vec<Setup> {
        let library = PathBuf::new;
        vec![
            Setup::Plain("plain"),
            Setup::Plain("plain again"),
            Setup::Tracked("off"),
            Setup::Tracked("sampled"),
            Setup::Heaptrack,
            Setup::AsyncProfiler(""),
            Setup::Allocator("jemalloc", library()),
            Setup::TrackedOver("jemalloc", library()),
            Setup::Allocator("mimalloc", library()),
            Setup::TrackedOver("mimalloc", library()),
            Setup::JemallocProfiler(library()),
        ]
    }

    #[test]
    fn each_way_runs_beside_its_base_equally_often_on_both_sides() {
        let (setups, rounds) = (setups(), 60);
        // By setup: the runs before the base, and those after it.
        let mut sides = vec![[0usize; 2]; setups.len()];
        let mut all = 0;
        for round in 0..rounds {
            let runs = of_round(&setups, round, 3);
            all += runs.len();
            for (place, run) in runs.iter().enumerate() {
                let Some(base) = run.base else {
                    assert_eq!(run.setup, 0);
                    continue;
                };
                assert_eq!(place.abs_diff(base), 1, "{runs:?}");
                assert_eq!(runs[base].setup, setups[run.setup].base(&setups), "{runs:?}");
                sides[run.setup][usize::from(place > base)] += 1;
            }
        }
        for (setup, [before, after]) in setups.iter().zip(&sides).skip(1) {
            // The profiler over jemalloc needs a run of jemalloc alone, in addition to the run that the tracker needs.
            let expected = match setup {
                Setup::Heaptrack | Setup::AsyncProfiler(_) | Setup::JemallocProfiler(_) => rounds / 3,
                Setup::Allocator("jemalloc", _) => rounds + rounds / 3,
                _ => rounds,
            };
            assert_eq!(before + after, expected, "{setup:?}");
            assert!(before.abs_diff(*after) <= 2, "{setup:?}: {before} before, {after} after");
        }
        let ways: usize = sides.iter().flatten().sum();
        assert!(all * 10 < ways * 16, "{all} runs for {ways} ways");
    }

    #[test]
    fn a_peer_runs_in_fifteen_rounds_at_least() {
        assert_eq!([3, 12, 15, 44, 45, 60].map(spacing_of_peers), [1, 1, 1, 1, 3, 3]);
    }

    #[test]
    fn a_way_meets_more_than_one_other_way() {
        let setups = setups();
        let other = |round: usize| {
            let runs = of_round(&setups, round, 1);
            let own = runs.iter().position(|run| run.setup == 3).expect("it runs");
            let beside = [own.checked_sub(1), Some(own + 1)].into_iter().flatten().filter_map(|at| runs.get(at));
            beside.map(|run| run.setup).find(|setup| *setup != 0)
        };
        let mut met: Vec<Option<usize>> = (0..20).map(other).collect();
        met.sort_unstable();
        met.dedup();
        assert!(met.len() > 3, "{met:?}");
    }

    #[test]
    fn two_ways_take_a_run_each_and_a_plain_run_each_side() {
        let setups = &setups()[..3];
        let run = |setup, base| Run { setup, base: Some(base) };
        assert_eq!(of_round(setups, 0, 1), [PLAIN, run(2, 0), run(1, 3), PLAIN]);
        assert_eq!(of_round(setups, 1, 1), [PLAIN, run(1, 0), run(2, 3), PLAIN]);
        assert!(of_round(&setups[..1], 0, 1).is_empty());
    }

    #[test]
    fn in_turns_each_setup_has_each_place() {
        for setups in 1..6 {
            for place in 0..setups {
                let mut had: Vec<usize> = (0..setups).map(|round| of_turns(setups, round)[place]).collect();
                had.sort_unstable();
                assert_eq!(had, (0..setups).collect::<Vec<_>>());
            }
        }
        assert_eq!(of_turns(3, 1), [1, 2, 0]);
        assert_eq!(of_turns(3, 4), [0, 2, 1]);
    }
}
