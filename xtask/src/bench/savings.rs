//! Predicted and measured savings of remedies. The cases of crates/cli/tests/incidents write a row for each remedy that
//! they type. A saving outside its bounds fails the case.

use super::Bench;
use super::results::Results;
use crate::stage::{Result, folder, must, repository};
use std::fs;
use std::process::Command;

pub fn savings(bench: &Bench, results: &mut Results) -> Result<()> {
    let file = folder("bench")?.join("savings.tsv");
    if file.exists() {
        fs::remove_file(&file)?;
    }
    let mut tests = Command::new("cargo");
    tests.args(["test", "-q", "-p", "plimsoll", "--test", "incidents", "--", "--test-threads", "1"]);
    if !bench.quick {
        tests.arg("--include-ignored");
    }
    must(tests.env("PLIMSOLL_SAVINGS", &file).current_dir(repository()))?;
    results.group(
        "Savings of remedies, predicted and measured",
        "crates/cli/tests/incidents: resident MiB before and after the remedy, typed as `explain` prints it. Where it is a flag or a change of the program, \
         after a new start with it. No prediction: `explain` prints no figure, as for each interval wider than ± 30 %.",
    );
    results.head(&["case", "remedy", "RSS before", "predicted", "measured"]);
    for row in fs::read_to_string(&file)?.lines() {
        results.row(&cells(row).ok_or_else(|| format!("{}: {row}", file.display()))?);
    }
    Ok(())
}

/// `case, remedy, least, most, before, measured`, with tabs between them; bounds that don't exist are `-`.
fn cells(row: &str) -> Option<Vec<String>> {
    let [case, remedy, least, most, before, measured] = row.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let mib = |bytes: &str| Some(format!("{:.1}", bytes.parse::<i64>().ok()? as f64 / f64::from(1 << 20)));
    let predicted = match (mib(least), mib(most)) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "none".to_owned(),
    };
    // A PID means nothing on another day.
    let words = |from: usize| remedy.split(' ').skip(from).collect::<Vec<_>>().join(" ");
    let remedy = match remedy {
        jcmd if jcmd.starts_with("jcmd ") => words(2),
        step if step.starts_with("plimsoll try --pid ") => format!("plimsoll try --pid PID {}", words(4)),
        other => other.to_owned(),
    };
    Some(vec![case.to_owned(), format!("`{}`", remedy.replace('|', "\\|")), mib(before)?, predicted, mib(measured)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_bounds_has_no_prediction() {
        let row =
            cells("a burst\tjcmd 77 System.trim_native_heap\t1048576\t2097152\t104857600\t1572864").expect("six cells");
        assert_eq!(row, ["a burst", "`System.trim_native_heap`", "100.0", "1.0 to 2.0", "1.5"]);
        assert_eq!(cells("a\tb\t-\t-\t1048576\t-1048576").expect("six cells")[3..], ["none", "-1.0"]);
        let step = cells("a\tplimsoll try --pid 77 --with trim\t-\t-\t0\t0").expect("six cells");
        assert_eq!(step[1], "`plimsoll try --pid PID --with trim`");
        assert_eq!(cells("a\tb"), None);
    }
}
