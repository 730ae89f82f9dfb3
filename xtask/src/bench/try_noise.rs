//! Measures the noise of `plimsoll try` itself with rows that change nothing. In 19 of 20 rows, an interval of 95 %
//! must contain 0.

use super::published::measured;
use super::results::Results;
use super::time_limit::must_within_limit;
use super::{Bench, words};
use crate::stage::{Result, folder, repository};
use serde_json::Value;
use std::process::Command;

/// Trials of one row each. The rows of one trial share its plain runs, so they would miss together.
const TRIALS: usize = 20;
const FIGURES: [(&str, &str); 4] = [
    ("RSS", "steady_bytes"),
    ("RSS peak", "peak_bytes"),
    ("time until ready", "ready_seconds"),
    ("processor time", "cpu_seconds"),
];

pub fn intervals(bench: &Bench, results: &mut Results) -> Result<()> {
    let program = folder("bench")?.join("arena_burst");
    let source = repository().join("fixtures/c/arena_burst.c");
    must_within_limit(Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source))?;
    let trials = if bench.quick { 2 } else { TRIALS };
    results.group(
        "The noise of try",
        &format!(
            "`plimsoll try` of fixtures/c/arena_burst.c with one row that sets a variable which nothing reads, {trials} trials of 5 rounds, \
             each with plain runs of its own: the rows whose interval contains 0. Fewer than 19 of 20 are `open` if chance alone gives as \
             few in more than one session of forty, otherwise they fail."
        ),
    );
    results.head(&["figure", "rows", "contain 0", "bar", ""]);
    let mut arguments = words(&["try", "--rounds", "5", "--ready", "log:burst done", "--for", "0.3", "--idle", "0.1"]);
    arguments.extend(words(&["--with", "env:NOBODY_READS_THIS=1", "--"]));
    arguments.extend([program.display().to_string(), "8".into(), "8".into()]);
    let trial = |_| measured(&arguments).map(|(document, _)| document);
    let documents = (0..trials).map(trial).collect::<Result<Vec<Value>>>()?;
    for (name, id) in FIGURES {
        let differences: Vec<bool> = documents.iter().flat_map(|document| significant(document, id)).collect();
        if differences.len() != trials {
            return Err(format!("{name}: {} rows of {trials}", differences.len()).into());
        }
        let contain = differences.iter().filter(|is_significant| !**is_significant).count();
        let rows = differences.len();
        results.row(&[
            name.into(),
            rows.to_string(),
            contain.to_string(),
            format!("≥ {}", (19 * rows).div_ceil(20)),
            verdict(contain, rows).into(),
        ]);
    }
    Ok(())
}

/// Of each row that changes nothing: whether its interval excludes 0.
fn significant(document: &Value, figure: &str) -> Vec<bool> {
    let rows = document["rows"].as_array().into_iter().flatten();
    rows.filter_map(|row| row["figures"][figure]["difference"]["significant"].as_bool()).collect()
}

fn verdict(contain: usize, rows: usize) -> &'static str {
    if 20 * contain >= 19 * rows {
        return "holds";
    }
    // The chance of as many misses or more, if one in twenty misses.
    let mut chance = 1.0;
    let mut exactly = 0.95f64.powi(rows as i32);
    for misses in 0..rows - contain {
        chance -= exactly;
        exactly *= (rows - misses) as f64 / (misses + 1) as f64 * 0.05 / 0.95;
    }
    if chance < 0.025 { "fails" } else { "open" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_nineteen_of_twenty_fail_if_chance_does_not_explain_it() {
        let verdicts = [20, 19, 18, 17, 16].map(|contain| verdict(contain, 20));
        // Two misses or more have a chance of 26 %, three of 7.5 %, four of 1.6 %.
        assert_eq!(verdicts, ["holds", "holds", "open", "open", "fails"]);
        assert_eq!([57, 56, 50].map(|contain| verdict(contain, 60)), ["holds", "open", "fails"]);
    }

    #[test]
    fn the_plain_row_has_no_difference() {
        let row = |difference: Value| serde_json::json!({"figures": {"steady_bytes": {"difference": difference}}});
        let of = |significant: bool| row(serde_json::json!({"significant": significant}));
        let document = serde_json::json!({"rows": [row(Value::Null), of(true), of(false)]});
        assert_eq!(significant(&document, "steady_bytes"), [true, false]);
        assert!(significant(&document, "peak_bytes").is_empty());
    }
}
