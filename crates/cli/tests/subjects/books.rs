//! What `plimsoll report --format json` says, and the identities that must hold in every report.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The figures of the total or of one category, as named in schema `plimsoll.report/1`.
#[derive(Clone, Debug)]
pub struct Figures(BTreeMap<String, i128>);

/// Figures whose total is the sum of the categories. Peaks are not among them: categories peak at different moments.
const ADDITIVE: [&str; 7] = [
    "live_bytes",
    "live_count",
    "requested_bytes",
    "cumulative_bytes",
    "cumulative_count",
    "reserved_bytes",
    "committed_bytes",
];
const OTHER: [&str; 2] = ["peak_bytes", "count_at_peak"];

impl Figures {
    fn of(value: &Value, whose: &str) -> Figures {
        let figure = |name: &&str| {
            // Not as_u64: a negative figure is to be reported as such below, not as a missing one.
            let number = value[*name].as_number().unwrap_or_else(|| panic!("{whose}: no figure {name} in {value}"));
            (name.to_string(), number.as_i128().unwrap_or_else(|| panic!("{whose}: {name} isn't an integer: {number}")))
        };
        Figures(ADDITIVE.iter().chain(&OTHER).map(figure).collect())
    }

    pub fn get(&self, name: &str) -> i128 {
        self.0[name]
    }
}

/// One process's books at one moment.
#[derive(Clone, Debug)]
pub struct BooksReport {
    pub command: String,
    pub state: String,
    pub total: Figures,
    pub categories: BTreeMap<String, Figures>,
    whole: Value,
}

impl BooksReport {
    /// Runs `plimsoll report`; `target` is a PID or a segment file.
    pub fn read(plimsoll: &Path, target: &str) -> BooksReport {
        let mut command = Command::new(plimsoll);
        command.args(["report", "--format", "json", target]);
        let output = command.output().expect("plimsoll starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "report {target}: {}\n{errors}", output.status);
        let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
        BooksReport::parse(&text, target)
    }

    pub fn parse(text: &str, target: &str) -> BooksReport {
        let whole: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("report {target}: {e}\n{text}"));
        assert_eq!(whole["schema"], "plimsoll.report/1", "{target}");
        let mut categories = BTreeMap::new();
        for category in whole["categories"].as_array().expect("an array of categories") {
            let name = category["name"].as_str().expect("a category has a name").to_string();
            let figures = Figures::of(category, &name);
            assert!(categories.insert(name.clone(), figures).is_none(), "{target}: category {name} is there twice");
        }
        BooksReport {
            command: whole["process"]["command"].to_string(),
            state: whole["state"].as_str().expect("a state").to_string(),
            total: Figures::of(&whole["total"], "total"),
            categories,
            whole,
        }
    }

    /// What holds in all books: Σ categories = total, nothing is negative, and live ≤ peak ≤ cumulative.
    pub fn assert_balanced(&self, whose: &str) {
        for name in ADDITIVE {
            let sum: i128 = self.categories.values().map(|figures| figures.get(name)).sum();
            assert_eq!(sum, self.total.get(name), "{whose}: sum of the categories against the total, {name}\n{self}");
        }
        let total = std::iter::once(("total", &self.total));
        for (name, figures) in total.chain(self.categories.iter().map(|(name, figures)| (name.as_str(), figures))) {
            for (figure, value) in &figures.0 {
                assert!(*value >= 0, "{whose}: {name}: {figure} = {value}\n{self}");
            }
            let at_most = |lower: &str, upper: &str| {
                let (low, high) = (figures.get(lower), figures.get(upper));
                assert!(low <= high, "{whose}: {name}: {lower} = {low} above {upper} = {high}\n{self}");
            };
            at_most("live_bytes", "peak_bytes");
            at_most("peak_bytes", "cumulative_bytes");
            at_most("requested_bytes", "live_bytes");
            at_most("live_count", "cumulative_count");
            at_most("committed_bytes", "reserved_bytes");
        }
        let peaks: i128 = self.categories.values().map(|figures| figures.get("peak_bytes")).sum();
        assert!(
            self.total.get("peak_bytes") <= peaks,
            "{whose}: the peak of the total above the sum of all peaks\n{self}"
        );
    }

    /// A counter of the segment's header.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.whole["counters"].as_array().expect("the report has the segment's counters");
        let own = counters.iter().find(|counter| counter["name"] == name);
        own.and_then(|counter| counter["value"].as_u64()).unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// The books miss nothing: each counter of what could not be booked is zero.
    pub fn assert_complete(&self, whose: &str) {
        let lost = ["unbooked_blocks", "vmap_lost", "modules_lost", "categories_lost", "grow_failures", "faults"];
        for name in lost {
            assert_eq!(self.counter(name), 0, "{whose}: {name}\n{self}");
        }
    }
}

impl std::fmt::Display for BooksReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} ({})", self.command, self.state)?;
        writeln!(f, "  {:24} {:?}", "total", self.total.0)?;
        for (name, figures) in &self.categories {
            writeln!(f, "  {name:24} {:?}", figures.0)?;
        }
        Ok(())
    }
}

/// Test of the checker itself: it must refuse books that are wrong in one figure.
#[test]
fn wrong_books_are_refused() {
    let figures = |live: i64, peak: i64| {
        serde_json::json!({"live_bytes": live, "live_count": 1, "requested_bytes": 7, "peak_bytes": peak, "count_at_peak": 1,
            "cumulative_bytes": 100, "cumulative_count": 2, "reserved_bytes": 8192, "committed_bytes": 4096})
    };
    let report = |total_live: i64, peak: i64| {
        let mut one = figures(24, peak);
        one["name"] = "zlib".into();
        let text = serde_json::json!({"schema": "plimsoll.report/1", "state": "dead", "process": {"command": "x"},
            "total": figures(total_live, peak), "categories": [one]});
        BooksReport::parse(&text.to_string(), "test")
    };
    let refused = |books: BooksReport| std::panic::catch_unwind(|| books.assert_balanced("test")).is_err();
    assert!(!refused(report(24, 30)));
    assert!(refused(report(25, 30)), "a total that is not the sum");
    assert!(refused(report(24, 20)), "a peak below the live bytes");
    assert!(refused(report(24, 101)), "a peak above all that was ever allocated");
}
