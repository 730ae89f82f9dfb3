//! Predicted and measured savings of remedies. The cases of crates/cli/tests/incidents write a row for each remedy that
//! they type; a saving outside its bounds, which fails the case in the tests, is counted here.

use super::Bench;
use super::results::{Results, barred, verdict};
use super::time_limit::{MANY_RUNS, output_within};
use crate::stage::{Result, folder, repository};
use std::fs;
use std::process::Command;

/// Bytes that the VM's other threads may take or give back between the two readings of RSS: `OTHERS` of the tests.
const OTHERS: i64 = 1 << 20;
/// The least share of predictions that hold, in percent.
const INSIDE: f64 = 90.0;
/// The most that a bound may lie from the middle of its prediction, in percent.
const WIDTH: f64 = 30.0;

/// One remedy, bytes.
struct Saving {
    case: String,
    remedy: String,
    before: i64,
    predicted: Option<(i64, i64)>,
    measured: i64,
}

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
    let output = output_within(MANY_RUNS, tests.env("PLIMSOLL_SAVINGS", &file).current_dir(repository()))?;
    let rows = fs::read_to_string(&file).unwrap_or_default();
    if rows.is_empty() {
        return Err(format!("no case typed a remedy: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    results.group(
        "Savings of remedies, predicted and measured",
        "crates/cli/tests/incidents: resident MiB before and after the remedy, typed as `explain` prints it. Where it is a flag or a change of the program, \
         after a new start with it. No prediction: `explain` prints no figure, as for each interval wider than ± 30 %. A saving is inside if it \
         misses its interval by 1 MiB at most, which the VM's other threads may take or give back meanwhile.",
    );
    results.head(&["case", "remedy", "RSS before", "predicted", "measured", "inside"]);
    let mut all = Vec::new();
    for row in rows.lines() {
        let saving = Saving::parse(row).ok_or_else(|| format!("{}: {row}", file.display()))?;
        results.row(&saving.cells());
        all.push(saving);
    }
    if let Some([inside, widest]) = judged(&all) {
        results.add("\n");
        results.head(&["all predictions", "figure", "bar", ""]);
        results.row(&inside);
        results.row(&widest);
    }
    // Figures of some cases must not replace those of all.
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("cases failed: {}", failed(&String::from_utf8_lossy(&output.stdout))).into()),
    }
}

impl Saving {
    /// `case, remedy, least, most, before, measured`, with tabs between them; bounds that don't exist are `-`.
    fn parse(row: &str) -> Option<Saving> {
        let [case, remedy, least, most, before, measured] = row.split('\t').collect::<Vec<_>>().try_into().ok()?;
        // A PID means nothing on another day.
        let words = |from: usize| remedy.split(' ').skip(from).collect::<Vec<_>>().join(" ");
        let remedy = match remedy {
            jcmd if jcmd.starts_with("jcmd ") => words(2),
            step if step.starts_with("plimsoll try --pid ") => format!("plimsoll try --pid PID {}", words(4)),
            other => other.to_owned(),
        };
        Some(Saving {
            case: case.to_owned(),
            remedy,
            before: before.parse().ok()?,
            predicted: least.parse().ok().zip(most.parse().ok()),
            measured: measured.parse().ok()?,
        })
    }

    fn is_inside(&self) -> Option<bool> {
        let (least, most) = self.predicted?;
        Some(self.measured >= least - OTHERS && self.measured <= most + OTHERS)
    }

    fn cells(&self) -> [String; 6] {
        let mib = |bytes: i64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        let predicted = self.predicted.map(|(least, most)| format!("{} to {}", mib(least), mib(most)));
        let inside = self.is_inside().map_or("", |inside| if inside { "yes" } else { "no" });
        [
            self.case.clone(),
            format!("`{}`", self.remedy.replace('|', "\\|")),
            mib(self.before),
            predicted.unwrap_or("none".to_owned()),
            mib(self.measured),
            inside.to_owned(),
        ]
    }
}

/// How many predictions hold, and how wide the widest is: the rows with their bars.
fn judged(all: &[Saving]) -> Option<[[String; 4]; 2]> {
    let judged: Vec<bool> = all.iter().filter_map(Saving::is_inside).collect();
    let inside = judged.iter().filter(|inside| **inside).count();
    let widths = all.iter().filter_map(|saving| {
        let (least, most) = saving.predicted?;
        Some((most - least) as f64 / (most + least).max(1) as f64)
    });
    let widest = 100.0 * widths.fold(0.0, f64::max);
    let share = 100.0 * inside as f64 / judged.len() as f64;
    (!judged.is_empty()).then(|| {
        let inside = format!("{inside} of {}", judged.len());
        let [bar, is_narrow] = barred(widest, WIDTH);
        [
            ["inside".into(), inside, format!("≥ {INSIDE} %"), verdict(-share, -INSIDE)],
            ["the widest".into(), format!("± {widest:.0} %"), format!("{bar} %"), is_narrow],
        ]
    })
}

/// The names that `cargo test` lists at its end.
fn failed(printed: &str) -> String {
    let list = printed.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    let names: Vec<&str> = list.lines().map_while(|line| line.strip_prefix("    ")).collect();
    if names.is_empty() { "unknown".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_bounds_has_no_prediction() {
        let cells = |row: &str| Saving::parse(row).expect("six cells").cells();
        let row = cells("a burst\tjcmd 77 System.trim_native_heap\t1048576\t2097152\t104857600\t1572864");
        assert_eq!(row, ["a burst", "`System.trim_native_heap`", "100.0", "1.0 to 2.0", "1.5", "yes"]);
        assert_eq!(cells("a\tb\t-\t-\t1048576\t-1048576")[3..], ["none", "-1.0", ""]);
        let step = cells("a\tplimsoll try --pid 77 --with trim\t-\t-\t0\t0");
        assert_eq!(step[1], "`plimsoll try --pid PID --with trim`");
        assert!(Saving::parse("a\tb").is_none());
    }

    #[test]
    fn a_saving_outside_its_bounds_is_counted() {
        let of = |measured: i64| Saving::parse(&format!("a\tb\t{}\t{}\t0\t{}", 29 << 20, 31 << 20, measured << 20));
        // 28 MiB miss the interval by what other threads may take.
        let all: Vec<Saving> = [28, 30, 31, 22].into_iter().filter_map(of).collect();
        assert_eq!(all[3].cells()[5], "no");
        let [inside, widest] = judged(&all).expect("four");
        assert_eq!(inside, ["inside", "3 of 4", "≥ 90 %", "fails"]);
        assert_eq!(widest, ["the widest", "± 3 %", "≤ 30 %", "holds"]);
        assert_eq!(judged(&all[..3]).expect("three")[0][3], "holds");
        assert_eq!(judged(&[]), None);
    }

    #[test]
    fn a_prediction_that_is_too_wide_fails() {
        let of = |most: i64| Saving::parse(&format!("a\tb\t1000\t{most}\t0\t1500")).expect("six cells");
        assert_eq!(judged(&[of(1857)]).expect("one")[1][1..], ["± 30 %", "≤ 30 %", "holds"]);
        assert_eq!(judged(&[of(1857), of(3000)]).expect("two")[1][1..], ["± 50 %", "≤ 30 %", "fails"]);
    }

    #[test]
    fn failed_cases_are_named() {
        let printed = "failures:\n\n---- a::b stdout ----\nx\n\nfailures:\n    a::b\n    c\n\ntest result: FAILED.\n";
        assert_eq!(failed(printed), "a::b, c");
        assert_eq!(failed("error: could not compile"), "unknown");
    }
}
