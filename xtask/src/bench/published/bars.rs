//! Judges the ways of table 1 by their bars: each against its base and against the VM's own NMT, round by round.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Table;
use crate::bench::stats::{Ratio, paired};

/// A way that has a bar. The rows are named as in the document of `try`.
pub struct Bar {
    /// As the table names it.
    pub name: String,
    pub way: String,
    /// The same server without Plimsoll, and with the VM's own NMT.
    pub base: String,
    pub nmt: String,
    pub most: f64,
}

const FIGURES: [(&str, &str); 2] = [("mean", "mean_milliseconds"), ("p99", "p99_milliseconds")];

/// `again`: the row of plain against plain.
pub fn table(table: &mut Table, document: &Value, again: &str, bars: &[Bar]) {
    table.line(
        "\nBars: the ratio is to plain; of a row with JFR, to the same server with JFR and without Plimsoll. Against NMT, than which each \
         must be faster: to the VM's own NMT; of a row with JFR, to NMT and JFR. Rows with a recording (JFR or `record`) have its bar. A \
         ratio is the median of the rounds' ratios, with a bootstrap's 95 %. `open` also where plain against plain shows that the rounds \
         could not tell more.",
    );
    table.head(&["way", "figure", "ratio", "95 % bound", "bar", "", "against NMT", "95 % bound", "bar", ""]);
    for bar in bars {
        for (name, id) in FIGURES {
            let against = |base: &str| compared(document, base, &bar.way, id);
            let noise = compared(document, "plain", again, id);
            let own = cells(against(&bar.base), noise, bar.most);
            let nmt = cells(against(&bar.nmt), noise, 1.0);
            table.row(&[&[bar.name.clone(), name.to_owned()], own.as_slice(), nmt.as_slice()].concat());
        }
    }
}

/// Ratio, bound, bar, verdict.
fn cells(ratio: Option<Ratio>, noise: Option<Ratio>, most: f64) -> [String; 4] {
    let bar = format!("≤ {most:.2}");
    let (Some(ratio), Some(noise)) = (ratio, noise) else {
        return ["-".into(), "-".into(), bar, "open: not run".into()];
    };
    // "Faster than NMT" must not rest on noise: the whole bound must lie below 1.
    let verdict = if most > 1.0 { ratio.verdict_beside(most, &noise) } else { ratio.verdict(most).into() };
    [format!("{:.3}", ratio.value), format!("{:.3} to {:.3}", ratio.low, ratio.high), bar, verdict]
}

/// A figure of a row against that of another, in the rounds in which both succeeded.
fn compared(document: &Value, base: &str, own: &str, id: &str) -> Option<Ratio> {
    let (base, own) = (by_round(document, base, id), by_round(document, own, id));
    let both = own.iter().filter_map(|(round, own)| Some((*base.get(round)?, *own)));
    let (base, own): (Vec<f64>, Vec<f64>) = both.unzip();
    (!own.is_empty()).then(|| paired(&base, &own))
}

/// Only runs that completed their measurement count.
fn by_round(document: &Value, row: &str, id: &str) -> BTreeMap<u64, f64> {
    let runs = document["runs"].as_array().into_iter().flatten();
    let succeeded = |run: &&Value| run["row"] == row && (run["end"] == "stopped" || run["end"] == "completed");
    runs.filter(succeeded).filter_map(|run| Some((run["round"].as_u64()?, run["figures"][id].as_f64()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(rows: &[(&str, [f64; 4])]) -> Value {
        let run = |row: &str, round: usize, figure: f64| {
            let figures = json!({"mean_milliseconds": figure, "p99_milliseconds": 2.0 * figure});
            json!({"row": row, "round": round, "end": "stopped", "figures": figures})
        };
        let of = |(row, figures): &(&str, [f64; 4])| {
            figures.iter().enumerate().map(|(round, figure)| run(row, round + 1, *figure)).collect::<Vec<_>>()
        };
        json!({"runs": rows.iter().flat_map(of).collect::<Vec<_>>()})
    }

    fn judged(again: [f64; 4]) -> String {
        // Each round is slower than the last by more than the ways differ.
        let rows = [
            ("plain", [1.0, 2.0, 3.0, 4.0]),
            ("again", again),
            ("run off", [1.01, 2.01, 3.02, 4.03]),
            ("run exact", [1.4, 2.7, 4.2, 5.6]),
            ("nmt", [1.1, 2.2, 3.3, 4.4]),
        ];
        let bar = |way: &str, most| {
            let [name, way, base, nmt] = [way, way, "plain", "nmt"].map(str::to_owned);
            Bar { name, way, base, nmt, most }
        };
        let mut made = Table::default();
        let bars = [bar("run off", 1.02), bar("run exact", 1.05), bar("absent", 1.05)];
        table(&mut made, &document(&rows), "again", &bars);
        made.text
    }

    #[test]
    fn a_way_is_judged_round_by_round() {
        let text = judged([1.0, 2.0, 3.0, 4.0]);
        let lines: Vec<&str> = text.lines().collect();
        let find = |from: &str| *lines.iter().find(|line| line.starts_with(from)).expect(from);
        assert!(find("| run off | mean |").contains("| ≤ 1.02 | holds |"), "{text}");
        assert!(find("| run off | p99 |").ends_with("| ≤ 1.00 | holds |"), "{text}");
        assert!(find("| run exact | mean | 1.400 |").ends_with("| ≤ 1.00 | fails |"), "{text}");
        assert!(find("| run exact | p99 |").contains("| ≤ 1.05 | fails |"), "{text}");
        let absent = "| absent | mean | - | - | ≤ 1.05 | open: not run | - | - | ≤ 1.00 | open: not run |";
        assert_eq!(find("| absent | mean |"), absent);
    }

    #[test]
    fn noise_leaves_a_bar_open() {
        let text = judged([1.3, 2.6, 3.9, 5.2]);
        assert!(text.contains("| ≤ 1.02 | open: A/A ± 30 % |"), "{text}");
        // The row is slower than noise makes it.
        assert!(text.contains("| ≤ 1.05 | fails |"), "{text}");
    }

    #[test]
    fn a_round_that_failed_has_no_ratio() {
        let mut document = document(&[("plain", [1.0, 1.0, 1.0, 1.0]), ("own", [1.1, 1.1, 1.1, 9.0])]);
        document["runs"][7]["end"] = "load-failed".into();
        let ratio = compared(&document, "plain", "own", "mean_milliseconds").expect("three rounds");
        assert_eq!((ratio.low, ratio.high), (1.1, 1.1));
        assert_eq!(compared(&document, "plain", "none", "mean_milliseconds"), None);
    }
}
