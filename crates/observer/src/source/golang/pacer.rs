//! The collector's controller (mgcpacer.go, `gcController`), from Go 1.21 on:
//!
//! ```text
//! 0 GOGC i32   8 GOMEMLIMIT   16 smallest goal = 4 MiB × GOGC / 100   …   72 goal   …   152 live bytes at the last collection
//! …   272 bytes in spans of objects   280 bytes of pages given back   288 bytes of pages that are free
//! ```
//!
//! The controller contains the totals that prove the walk, and is found by them.

use super::pages::PAGE_OF_GO;
use crate::source::heap_data::{Data, words};
use plimsoll_facts::snapshot::GoPace;
use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_process::proc::memory::{Memory, word_at};

/// Bytes of pages, as the walk finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub in_spans: u64,
    pub given_back: u64,
    pub free: u64,
    /// In page caches of processors. The runtime counts each of these pages as free or as given back.
    pub cached: u64,
}

/// Least deviation that is accepted, for small heaps: spans come and go while the heap is read.
const LEAST_SLACK: u64 = 128 << 10;
const LEAST_GOAL: u64 = 4 << 20;
/// Words from the beginning to the totals.
const WORDS_BEFORE: usize = 34;
const GOAL: usize = 9;
const MARKED: usize = 19;

/// How the runtime paces its collections, from the fields before these totals; None if the runtime doesn't state the
/// totals. The target keeps running during the walk. So a figure may have any value between the runtime's figures
/// before the walk and after it.
pub(crate) fn states<M: Memory>(memory: &M, data: &[Data], walked: Totals) -> Option<GoPace> {
    let all = walked.in_spans + walked.given_back + walked.free + walked.cached;
    let slack = (all / 64).max(LEAST_SLACK);
    let holds = |before: [u64; 3], after: [u64; 3]| {
        let near = |of: fn([u64; 3]) -> u64, least: u64, most: u64| {
            let (lower, upper) = (of(before).min(of(after)), of(before).max(of(after)));
            lower.saturating_sub(slack) <= most && least <= upper.saturating_add(slack)
        };
        let unused = walked.given_back + walked.free + walked.cached;
        near(|stated| stated[0], walked.in_spans, walked.in_spans)
            && near(|stated| stated[1] + stated[2], unused, unused)
            && near(|stated| stated[1], walked.given_back, walked.given_back + walked.cached)
            && near(|stated| stated[2], walked.free, walked.free + walked.cached)
    };
    let is_total = |word: &u64| word.is_multiple_of(PAGE_OF_GO) && *word <= 1 << 47;
    data.iter().find_map(|part| {
        let data: Vec<u64> = words(&part.bytes).collect();
        data.windows(3).enumerate().find_map(|(number, before)| {
            // The counters from before the walk may differ only by the program's allocations since: at most half of
            // all bytes.
            let is_far = before[0].abs_diff(walked.in_spans) > all / 2 + slack;
            (before[0] > 0 && before.iter().all(is_total) && !is_far).then_some(())?;
            let mut after = [0; 24];
            memory.read(Avma(part.base.0 + 8 * number as u64), &mut after).then_some(())?;
            let after = [word_at(&after, 0)?, word_at(&after, 8)?, word_at(&after, 16)?];
            (after.iter().all(is_total) && holds([before[0], before[1], before[2]], after))
                .then(|| pace(&data[..number]))
        })
    })
}

/// From the words before the totals. The smallest goal follows from GOGC, so it proves that these words are the
/// controller's.
fn pace(before: &[u64]) -> GoPace {
    let begin = before.len().checked_sub(WORDS_BEFORE).map(|at| &before[at..]);
    let Some(&[percent, limit, least, ref rest @ ..]) = begin else { return GoPace::default() };
    let percent = percent as u32 as i32;
    let states_least = least == LEAST_GOAL.wrapping_mul(i64::from(percent) as u64) / 100;
    if percent < -1 || !states_least || limit > i64::MAX as u64 {
        return GoPace::default();
    }
    let word = |number: usize| rest.get(number - 3).copied();
    let goal = word(GOAL).filter(|goal| *goal < 1 << 47);
    GoPace {
        is_known: true,
        percent: u32::try_from(percent).ok(),
        memory_limit: (limit != i64::MAX as u64).then_some(Bytes(limit)),
        goal: goal.map(Bytes),
        marked: word(MARKED).map(Bytes).filter(|marked| goal.is_none_or(|goal| marked.0 <= goal)),
    }
}
