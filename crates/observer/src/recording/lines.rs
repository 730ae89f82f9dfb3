//! Lines of a ledger that are nothing at a moment are not in the file: their curves go to zero then, not on as before.

use std::collections::BTreeMap;

use super::{Measure, Series};

/// A ledger has some twenty; what a file invents beyond that keeps the readings it has.
const MOST: usize = 64;

#[derive(Default)]
pub(super) struct Lines {
    /// Of the ledger whose lines are coming by.
    time_ns: Option<i64>,
    /// Name, and whether this ledger has it.
    known: Vec<(String, bool)>,
}

impl Lines {
    pub fn has(&mut self, line: &str) {
        if let Some((_, is_there)) = self.known.iter_mut().find(|(name, _)| name == line) {
            *is_there = true;
        } else if self.known.len() < MOST {
            self.known.push((line.to_owned(), true));
        }
    }

    /// The ledger before is complete, with its lines.
    pub fn next(&mut self, series: &mut BTreeMap<(Measure, String), Series>, time_ns: Option<i64>) {
        let before = std::mem::replace(&mut self.time_ns, time_ns);
        for (name, is_there) in &mut self.known {
            if let (Some(before), false) = (before, *is_there) {
                for measure in [Measure::Line, Measure::LineCommitted] {
                    let curve = series.get_mut(&(measure, name.clone()));
                    curve.into_iter().for_each(|curve| curve.push(before, 0));
                }
            }
            *is_there = false;
        }
    }
}
