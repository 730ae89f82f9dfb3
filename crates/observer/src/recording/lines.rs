//! A ledger line that is zero at some moment is missing in the file. This sets its curve to zero there, instead of
//! continuing the last value.

use std::collections::BTreeMap;

use super::{Measure, Series};

/// Limit of lines. A ledger has about twenty; further names in a file keep their readings unchanged.
const MOST: usize = 64;

#[derive(Default)]
pub(super) struct Lines {
    /// Time of the ledger whose lines are being read.
    time_ns: Option<i64>,
    /// Name, and whether the current ledger has the line.
    known: Vec<(String, bool)>,
}

impl Lines {
    pub(crate) fn has(&mut self, line: &str) {
        if let Some((_, is_there)) = self.known.iter_mut().find(|(name, _)| name == line) {
            *is_there = true;
        } else if self.known.len() < MOST {
            self.known.push((line.to_owned(), true));
        }
    }

    /// Ends the previous ledger: its lines are complete.
    pub(crate) fn next(&mut self, series: &mut BTreeMap<(Measure, String), Series>, time_ns: Option<i64>) {
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
