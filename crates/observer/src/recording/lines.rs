//! A ledger line that is zero at some moment is missing in the file. This sets its curve to zero there, instead of
//! continuing the last value.
//!
//! It also keeps the readings of those instants at which the owners (the VM, malloc's arenas) were queried. Between two
//! queries, new memory may be in another line than its owner's: what the VM gets from malloc is part of glibc-live.

use std::collections::BTreeMap;

use super::growth::growth;
use super::{Measure, Series};
use crate::ledger::LineId;

/// Limit of lines. A ledger has about twenty; further names in a file keep their readings unchanged.
const MOST: usize = 64;

/// The address of a page suffices to attribute all of these, or nearly all, without another query.
const BY_ADDRESS: [LineId; 7] = [
    LineId::JavaHeap,
    LineId::CodeCache,
    LineId::ThreadStacks,
    LineId::Libraries,
    LineId::MappedFiles,
    LineId::SharedMemory,
    LineId::Tracker,
];

#[derive(Default)]
pub(super) struct Lines {
    /// Time of the ledger whose lines are being read, and whether the owners were queried then.
    time_ns: Option<i64>,
    is_query: bool,
    known: Vec<KnownLine>,
    /// Zeros: one for each query.
    queries: Series,
}

struct KnownLine {
    name: String,
    /// Whether the current ledger has the line.
    is_there: bool,
    at_queries: Series,
}

impl Lines {
    pub(crate) fn has(&mut self, line: &str, resident: u64) {
        let index = self.known.iter().position(|known| known.name == line).unwrap_or(self.known.len());
        if index == self.known.len() && index < MOST {
            self.known.push(KnownLine { name: line.to_owned(), is_there: false, at_queries: Series::default() });
        }
        let Some(known) = self.known.get_mut(index) else { return };
        known.is_there = true;
        if let Some(time) = self.time_ns.filter(|_| self.is_query) {
            known.at_queries.push(time, resident);
        }
    }

    /// Ends the previous ledger: its lines are complete. `age`: the owners' age at the next ledger, if the recording
    /// has it.
    pub(crate) fn next(
        &mut self,
        series: &mut BTreeMap<(Measure, String), Series>,
        time_ns: Option<i64>,
        age: Option<u64>,
    ) {
        let before = std::mem::replace(&mut self.time_ns, time_ns);
        let was_query = std::mem::replace(&mut self.is_query, age == Some(0));
        for KnownLine { name, is_there, at_queries } in &mut self.known {
            if let (Some(before), false) = (before, *is_there) {
                for measure in [Measure::Line, Measure::LineCommitted] {
                    let curve = series.get_mut(&(measure, name.clone()));
                    curve.into_iter().for_each(|curve| curve.push(before, 0));
                }
                if was_query {
                    at_queries.push(before, 0);
                }
            }
            *is_there = false;
        }
        if let Some(time) = time_ns.filter(|_| self.is_query) {
            self.queries.push(time, 0);
        }
    }

    pub(crate) fn finish(self) -> QueriedLines {
        let Lines { known, mut queries, .. } = self;
        queries.settle();
        let line = |known: KnownLine| {
            let mut at_queries = known.at_queries;
            at_queries.settle();
            at_queries.nothing_before(queries.points());
            (known.name, at_queries)
        };
        let lines = known.into_iter().map(line).collect();
        QueriedLines { queries, lines }
    }
}

/// The lines at those instants at which the owners were queried.
#[derive(Clone, Debug, Default)]
pub(super) struct QueriedLines {
    queries: Series,
    lines: BTreeMap<String, Series>,
}

impl QueriedLines {
    pub(crate) fn of(&self, line: &str) -> Option<&Series> {
        self.lines.get(line)
    }

    /// Whether there were enough queries to find growth in this time, and whether they cover most of it. The time
    /// between two queries may be long, and so may the time after the last.
    pub(crate) fn are_enough(&self, whole_ns: i64) -> bool {
        growth(self.queries.points()).is_some() && self.span_ns() >= whole_ns / 4 * 3
    }

    pub(crate) fn count(&self) -> u64 {
        self.queries.points().iter().map(|point| point.count).sum()
    }

    /// Time from the first query to the last.
    pub(crate) fn span_ns(&self) -> i64 {
        let points = self.queries.points();
        points.first().zip(points.last()).map_or(0, |(first, last)| last.end_ns.saturating_sub(first.begin_ns))
    }
}

/// Whether only a query shows how large a line is. `has_books`: the tracker counts the blocks of a program without a VM
/// at each instant.
pub(super) fn needs_query(line: &str, has_books: bool) -> bool {
    let is_booked = has_books && line == LineId::GlibcLive.id();
    !(is_booked || BY_ADDRESS.iter().any(|known| known.id() == line))
}
