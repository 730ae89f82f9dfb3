//! Does `plimsoll compare` find a growth of 3 % at the start of a JVM server, and never one where there is none?

use super::published::measured;
use super::results::Results;
use super::{Bench, java, words};
use crate::stage::{Result, any_jdk, folder};
use serde_json::Value;
use std::fs;

/// The additional KiB of direct memory that `Thumbnails.preload` of the grown program holds: 3 % of 51 MiB.
const GROWTH: &str = "1536";
const OWNER: &str = "Thumbnails.preload";
const LINE: &str = "direct-buffers";

/// Whether the result of a comparison is as expected.
type Test = fn(&Value) -> bool;

pub fn found(bench: &Bench, results: &mut Results) -> Result<()> {
    let comparisons = if bench.quick { 1 } else { 20 };
    results.group(
        "Compare: a growth of 3 % at the start of a JVM server",
        "`plimsoll compare --ready 'log:ready on port'` of fixtures/java/compare/Catalog.java (`java -Xmx64m`), 10 pairs of runs each; the \
         budget is 1 % of RSS and 512 KiB of each line. In the grown program, `Thumbnails.preload` holds 1.5 MiB more of direct buffers. \
         All intervals of one comparison hold together with 99 %, so chance alone gives an alarm in up to 18 % of sessions of 20 equal \
         pairs, and two alarms in 1.7 %: one is `open`, two fail.",
    );
    results.head(&["programs", "comparisons", "result", "how often", "bar", ""]);
    let classes = bench.classes_of(&["fixtures/java/compare/Catalog.java"])?.display().to_string();
    let program = format!("{} -Xmx64m -cp {classes} Catalog", java(&any_jdk()?).display());
    let grown = format!("{program} {GROWTH}");
    let budget = folder("bench/out")?.join("memory.budget");
    fs::write(&budget, "rss 1%\n* 512k\n")?;
    let compared = |b: &str, tracked: &str| -> Result<Vec<Value>> {
        let budget = budget.display().to_string();
        let arguments = words(&[
            "compare",
            "--ready",
            "log:ready on port",
            "--budget",
            &budget,
            "--tracked",
            tracked,
            "--a",
            &program,
            "--b",
            b,
        ]);
        (0..comparisons).map(|_| measured(&arguments).map(|(document, _)| document)).collect()
    };
    let different = compared(&grown, "3")?;
    let count = |documents: &[Value], is_so: Test| documents.iter().filter(|one| is_so(one)).count();
    let all = comparisons.to_string();
    let expected: [(&str, Test); 3] = [
        ("RSS grew", |one| one["rss"]["verdict"] == "grew"),
        ("the line `direct-buffers` changed, and no other", |one| changed_lines(one) == [LINE]),
        ("over budget, and the site named has `Thumbnails.preload`", names_the_owner),
    ];
    for (result, is_so) in expected {
        let often = count(&different, is_so);
        let verdict = if often == comparisons { "holds" } else { "fails" };
        results.row(&words(&["one grown by 1.5 MiB", &all, result, &often.to_string(), &format!("≥ {all}"), verdict]));
    }
    // A site doesn't matter if nothing may be over the budget.
    let alarms = count(&compared(&program, "0")?, is_alarm);
    let verdict = verdict_of_alarms(alarms);
    results.row(&words(&["equal", &all, "anything changed, or is over budget", &alarms.to_string(), "≤ 0", verdict]));
    results.add(&format!("\nThe mean growth of RSS was between {} MiB.\n", range(&different)));
    Ok(())
}

/// The bar for 20 equal pairs: one alarm is within chance.
fn verdict_of_alarms(alarms: usize) -> &'static str {
    match alarms {
        0 => "holds",
        1 => "open",
        _ => "fails",
    }
}

/// The least and the most of the mean growths.
fn range(documents: &[Value]) -> String {
    let means = documents.iter().filter_map(|one| one["rss"]["mean"].as_f64()).map(|bytes| bytes / f64::from(1 << 20));
    let mut means: Vec<f64> = means.collect();
    means.sort_by(f64::total_cmp);
    means.first().zip(means.last()).map_or("none".to_owned(), |(least, most)| format!("{least:.2} and {most:.2}"))
}

fn changed_lines(document: &Value) -> Vec<&str> {
    let lines = document["lines"].as_array().into_iter().flatten();
    lines.filter(|line| line["verdict"] != "same").filter_map(|line| line["id"].as_str()).collect()
}

fn names_the_owner(document: &Value) -> bool {
    document["over_budget"].to_string().contains(OWNER)
}

/// An alarm is false if the programs are equal. A comparison without figures counts as one, too.
fn is_alarm(document: &Value) -> bool {
    let is_over = match &document["over_budget"] {
        Value::Null => false,
        Value::Array(lines) => !lines.is_empty(),
        _ => true,
    };
    let figures = document["figures"].as_object().into_iter().flat_map(|figures| figures.values());
    let has_changed = figures.filter(|figure| !figure.is_null()).any(|figure| figure["verdict"] != "same");
    is_over || has_changed || document["rss"]["verdict"] != "same" || !changed_lines(document).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(rss: &str, line: &str, over: Value) -> Value {
        let lines = json!([{"id": "java-heap", "verdict": "same"}, {"id": LINE, "verdict": line}]);
        let figures = json!({"cpu_seconds": {"verdict": "same"}});
        json!({"rss": {"verdict": rss, "mean": 1572864.0}, "lines": lines, "figures": figures, "over_budget": over})
    }

    #[test]
    fn a_growth_is_found_with_its_line_and_its_site() {
        let site = json!([{"line": LINE, "site": [{"function": "Catalog$Thumbnails.preload"}]}]);
        let grown = document("grew", "grew", site);
        assert_eq!(changed_lines(&grown), [LINE]);
        assert!(names_the_owner(&grown));
        assert!(!names_the_owner(&document("grew", "grew", json!([{"line": LINE, "site": null}]))));
        assert_eq!(range(&[grown]), "1.50 and 1.50");
    }

    #[test]
    fn one_alarm_is_within_chance_and_two_are_not() {
        assert_eq!([0, 1, 2, 20].map(verdict_of_alarms), ["holds", "open", "fails", "fails"]);
        let none = 0.99f64.powi(20);
        let one = 20.0 * 0.01 * 0.99f64.powi(19);
        assert!(1.0 - none > 0.025 && 1.0 - none - one < 0.025, "{none} {one}");
    }

    #[test]
    fn any_change_of_equal_programs_is_an_alarm() {
        assert!(!is_alarm(&document("same", "same", json!([]))));
        assert!(!is_alarm(&document("same", "same", Value::Null)));
        assert!(is_alarm(&document("grew", "same", json!([]))));
        assert!(is_alarm(&document("same", "shrank", json!([]))));
        assert!(is_alarm(&document("same", "same", json!([{"line": "rss"}]))));
        assert!(is_alarm(&json!({"rss": null})));
        let mut slower = document("same", "same", json!([]));
        slower["figures"]["cpu_seconds"]["verdict"] = "grew".into();
        assert!(is_alarm(&slower));
    }
}
