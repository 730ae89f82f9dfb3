//! The figures of a ledger in the text format of Prometheus, for the textfile collector of node_exporter.
//!
//! The PID is in `plimsoll_target_info` only, so a restart continues the same series. There is a series for each line,
//! group of figures and verdict, never for a file, a thread or a call site: about 50 for a target.

use std::fmt::Write as _;
use std::io::{self, Write};

use plimsoll_observer::books::Books;
use plimsoll_observer::units::Bytes;
use plimsoll_observer::verdict::VerdictId;

use crate::ledger_json::Ledger;
use crate::words::printable;

/// Categories with a series of their own: the biggest. The others are `other categories`.
const CATEGORIES: usize = 15;
const REST: &str = "other categories";
/// Characters of a label.
const LONGEST: usize = 100;

/// Writes one target. `books`: of a tracked process.
pub fn write(out: &mut dyn Write, target: &str, ledger: &Ledger, books: Option<&Books>) -> io::Result<()> {
    let target = &label("target", target);
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, String)>| {
        if samples.is_empty() {
            return;
        }
        // Writing to a String never fails.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{{{target}{}{labels}}} {value}", if labels.is_empty() { "" } else { "," });
        }
    };
    let one = |value: u64| vec![(String::new(), value.to_string())];
    let mut lines: Vec<_> =
        ledger.lines.iter().map(|line| (label("line", &line.id), line.resident_bytes.to_string())).collect();
    lines.push((label("line", "remainder"), ledger.remainder_bytes.to_string()));
    family("plimsoll_resident_bytes", "gauge", "Resident bytes by line of the ledger; they sum to RSS.", lines);
    family(
        "plimsoll_unexplained_bytes",
        "gauge",
        "Resident bytes whose owner is unknown.",
        one(ledger.unexplained_bytes),
    );
    if let Some(limit) = &ledger.limit {
        let of = |bytes: u64| vec![(label("source", &limit.source), bytes.to_string())];
        family("plimsoll_limit_bytes", "gauge", "Memory limit in force.", of(limit.bytes));
        let help = "Charged bytes without the page cache that the kernel takes back first.";
        family("plimsoll_working_set_bytes", "gauge", help, one(limit.working_set_bytes));
    }
    if let Some(books) = books {
        let (live, allocated) = categories(books);
        family("plimsoll_native_live_bytes", "gauge", "Live blocks by category.", live);
        let help = "Bytes allocated since the books began, by category.";
        family("plimsoll_native_allocated_bytes_total", "counter", help, allocated);
    }
    family("plimsoll_verdict", "gauge", "1 while the verdict stands.", verdicts(ledger));
    let process = &ledger.process;
    let version = process.runtime_version.as_deref().unwrap_or_default();
    let known = [label("pid", &process.pid.to_string()), label("runtime", &process.runtime), label("version", version)];
    family("plimsoll_target_info", "gauge", "Identity of the target.", vec![(known.join(","), "1".into())]);
    let took: f64 = ledger.readings.iter().map(|reading| reading.took_ms.max(0.0)).sum::<f64>() / 1e3;
    let help = "Time that plimsoll took to read the target.";
    family("plimsoll_reading_seconds", "gauge", help, vec![(String::new(), format!("{took}"))]);
    out.write_all(text.as_bytes())
}

type Samples = Vec<(String, String)>;

/// Live and allocated bytes by category.
fn categories(books: &Books) -> (Samples, Samples) {
    let mut all: Vec<_> = books
        .categories
        .iter()
        .filter(|category| category.figures.cumulative > Bytes(0))
        .map(|category| (printable(&category.name), category.figures.live, category.figures.cumulative))
        .collect();
    all.sort_by_key(|(_, live, cumulative)| std::cmp::Reverse((*live, *cumulative)));
    if all.len() > CATEGORIES {
        let rest = all.split_off(CATEGORIES - 1);
        let sum = |of: fn(&(String, Bytes, Bytes)) -> Bytes| rest.iter().map(of).sum::<Bytes>();
        all.push((REST.into(), sum(|of| of.1), sum(|of| of.2)));
    }
    let of = |bytes: fn(&(String, Bytes, Bytes)) -> Bytes| {
        all.iter().map(|one| (label("category", &one.0), bytes(one).0.to_string())).collect()
    };
    (of(|of| of.1), of(|of| of.2))
}

/// One series for each verdict that Plimsoll knows: 0 with the severity `none` while it does not stand.
fn verdicts(ledger: &Ledger) -> Samples {
    let severity = |id: &VerdictId| ledger.verdicts.iter().find(|verdict| verdict.id == id.id()).map(|of| &of.severity);
    let sample = |id: &VerdictId| {
        let (known, value) = severity(id).map_or(("none", "0"), |severity| (severity.as_str(), "1"));
        (format!("{},{}", label("id", id.id()), label("severity", known)), value.to_owned())
    };
    VerdictId::ALL.iter().map(sample).collect()
}

/// `name="value"`: a backslash, a quote and a newline are escaped, as the format demands.
fn label(name: &str, value: &str) -> String {
    let value: String = printable(value).chars().take(LONGEST).collect();
    format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
