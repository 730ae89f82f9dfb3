//! The figures of ledgers as samples with labels. `prometheus` writes them as text, `otlp` as protocol buffers.
//!
//! The PID is in `plimsoll_target_info` only, and the path of the cgroup with the limit in `plimsoll_limit_info` only.
//! So a restart continues the same series, also where the path has the id of a container. There is a series for each
//! line, group of figures and verdict, but none for a file, a thread or a call site. A target has about 50 series.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_facts::units::Bytes;
use plimsoll_observer::verdict::VerdictId;
use plimsoll_tracked::books::Books;

use crate::ledger_json::{Ledger, REQUESTED};
use crate::words::printable;

/// Maximum number of series by category. If there are more categories, the smallest share the series
/// `other categories`.
const CATEGORIES: usize = 15;
const REST: &str = "other categories";
/// Maximum length of a label, in characters.
const LONGEST: usize = 100;
/// Maximum length of a cgroup's path. The path of a Kubernetes container has about 200 characters.
const LONGEST_PATH: usize = 300;
const LIMIT_PATH: &str = "limit_path";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Gauge,
    Counter,
    Info,
}

/// A family of samples.
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    /// In the Unified Code for Units of Measure: `By`, `s`; empty for a number without a unit.
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! families {
    ($($family:ident $name:literal $kind:ident $unit:literal $help:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Family { $($family),* }
        /// In the order of the output.
        const FAMILIES: &[(Family, Facts)] =
            &[$((Family::$family, Facts { name: $name, kind: MetricKind::$kind, unit: $unit, help: $help })),*];
    };
}

families! {
    Resident "plimsoll_resident_bytes" Gauge "By" "Resident bytes by line of the ledger; they sum to RSS."
    Unexplained "plimsoll_unexplained_bytes" Gauge "By" "Resident bytes whose owner is unknown."
    Limit "plimsoll_limit_bytes" Gauge "By" "Memory limit in force."
    WorkingSet "plimsoll_working_set_bytes" Gauge "By" "Charged bytes without the page cache that the kernel takes back first."
    LimitGroup "plimsoll_limit_info" Info "" "Control group whose memory limit is in force."
    Live "plimsoll_native_live_bytes" Gauge "By" "Live blocks by category."
    Allocated "plimsoll_native_allocated_bytes_total" Counter "By" "Bytes allocated since the books began, by category."
    Verdict "plimsoll_verdict" Gauge "" "1 while the verdict applies."
    Target "plimsoll_target_info" Info "" "Identity of the target."
    Gaps "plimsoll_gaps" Gauge "" "Facts that could not be read, by source; no series without any."
    Reading "plimsoll_reading_seconds" Gauge "s" "Time that plimsoll took to read the target."
    Age "plimsoll_reading_age_seconds" Gauge "s" "Time since the ledger of the target was read."
    Targets "plimsoll_targets" Gauge "" "Targets that are served."
    LeftOut "plimsoll_targets_left_out" Gauge "" "Processes that match, beyond the limit of targets."
    OwnCpu "plimsoll_serve_cpu_seconds_total" Counter "s" "Processor time of plimsoll serve, all its processes."
    OwnResident "plimsoll_serve_resident_bytes" Gauge "By" "RSS of plimsoll serve, all its processes."
    Round "plimsoll_serve_round_seconds" Gauge "s" "Time that the last reading of all targets took."
    Failed "plimsoll_serve_failed_exports_total" Counter "" "Exports that did not arrive."
}

impl Family {
    pub(crate) fn all() -> impl Iterator<Item = (Family, &'static Facts)> {
        FAMILIES.iter().map(|(family, facts)| (*family, facts))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Whole(u64),
    /// Seconds.
    Real(f64),
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) family: Family,
    /// Without the label `target`.
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: Value,
}

/// The samples of one reading of a target, or those of a server about itself.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Empty: a server about itself.
    pub(crate) target: String,
    pub(crate) all: Vec<Sample>,
    /// Since when the counters count, ns since 1970; 0: unknown.
    pub(crate) since_ns: u64,
}

impl Samples {
    /// `books`: of a tracked process.
    pub fn of(target: &str, ledger: &Ledger, books: Option<&Books>) -> Samples {
        let mut samples = Samples { target: label(target), ..Samples::default() };
        samples.since_ns = books.map_or(0, |books| books.process.since_ns);
        let mut bytes =
            |family, labels: &[(&'static str, &str)], bytes| samples.add(family, labels, Value::Whole(bytes));
        for line in &ledger.lines {
            bytes(Family::Resident, &[("line", &line.id)], line.resident_bytes);
        }
        bytes(Family::Resident, &[("line", "remainder")], ledger.remainder_bytes);
        bytes(Family::Unexplained, &[], ledger.unexplained_bytes);
        if let Some(limit) = &ledger.limit {
            bytes(Family::Limit, &[("source", &limit.source)], limit.bytes);
            bytes(Family::WorkingSet, &[], limit.working_set_bytes);
        }
        for (name, live, allocated) in books.map(categories).unwrap_or_default() {
            bytes(Family::Live, &[("category", &name)], live.0);
            // A counter may not fall. The sum of the rest does fall when a category grows out of it.
            if name != REST {
                bytes(Family::Allocated, &[("category", &name)], allocated.0);
            }
        }
        // One series for each verdict that Plimsoll knows: 0 with the severity `none` while it doesn't apply.
        for id in VerdictId::ALL.iter().map(|id| id.id()) {
            let severity = ledger.verdicts.iter().find(|verdict| verdict.id == id).map(|of| of.severity.as_str());
            let known = [("id", id), ("severity", severity.unwrap_or("none"))];
            samples.add(Family::Verdict, &known, Value::Whole(u64::from(severity.is_some())));
        }
        // A limit from the command line replaces the group's.
        let of_group = ledger.limit.as_ref().filter(|limit| limit.source != REQUESTED);
        if let Some(path) = of_group.and(ledger.cgroup.as_ref()).and_then(|cgroup| cgroup.limit_path.as_deref()) {
            samples.add(Family::LimitGroup, &[(LIMIT_PATH, path)], Value::Whole(1));
        }
        let mut gaps: BTreeMap<&str, u64> = BTreeMap::new();
        for gap in &ledger.gaps {
            *gaps.entry(&gap.source).or_default() += 1;
        }
        for (source, number) in gaps {
            samples.add(Family::Gaps, &[("source", source)], Value::Whole(number));
        }
        let process = &ledger.process;
        let (pid, version) = (process.pid.to_string(), process.runtime_version.as_deref().unwrap_or_default());
        let known = [("pid", pid.as_str()), ("runtime", &process.runtime), ("version", version)];
        samples.add(Family::Target, &known, Value::Whole(1));
        let took: f64 = ledger.readings.iter().map(|reading| reading.took_ms.max(0.0)).sum::<f64>() / 1e3;
        samples.add(Family::Reading, &[], Value::Real(took));
        samples
    }

    /// Time since the ledger was read. For a server, which may repeat an earlier reading.
    pub fn age(target: &str, age: Duration) -> Samples {
        let mut samples = Samples { target: label(target), ..Samples::default() };
        samples.add(Family::Age, &[], Value::Real(age.as_secs_f64()));
        samples
    }

    fn add(&mut self, family: Family, labels: &[(&'static str, &str)], value: Value) {
        let text = |name: &str, value: &str| if name == LIMIT_PATH { path_label(value) } else { label(value) };
        let labels = labels.iter().map(|(name, value)| (*name, text(name, value))).collect();
        self.all.push(Sample { family, labels, value });
    }
}

/// What a server reports about itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    pub targets: usize,
    pub left_out: usize,
    pub cpu: Duration,
    pub resident: Bytes,
    pub round: Duration,
    /// Exports that did not arrive; None: the server exports nothing.
    pub failed_exports: Option<u64>,
    /// Its start, ns since 1970.
    pub since_ns: u64,
}

impl Own {
    pub fn samples(&self) -> Samples {
        let mut samples = Samples { since_ns: self.since_ns, ..Samples::default() };
        samples.add(Family::Targets, &[], Value::Whole(self.targets as u64));
        samples.add(Family::LeftOut, &[], Value::Whole(self.left_out as u64));
        samples.add(Family::OwnCpu, &[], Value::Real(self.cpu.as_secs_f64()));
        samples.add(Family::OwnResident, &[], Value::Whole(self.resident.0));
        samples.add(Family::Round, &[], Value::Real(self.round.as_secs_f64()));
        if let Some(failed) = self.failed_exports {
            samples.add(Family::Failed, &[], Value::Whole(failed));
        }
        samples
    }
}

/// Label, live and allocated bytes of each category. Two names that the target has chosen may have the same label, or
/// the label `REST`. They become one category, because node_exporter refuses all metrics if a series occurs twice.
fn categories(books: &Books) -> Vec<(String, Bytes, Bytes)> {
    let mut by_label: BTreeMap<String, (Bytes, Bytes)> = BTreeMap::new();
    for category in books.categories.iter().filter(|category| category.figures.cumulative > Bytes(0)) {
        let sum = by_label.entry(label(&category.name)).or_default();
        sum.0 += category.figures.live;
        sum.1 += category.figures.cumulative;
    }
    let mut all: Vec<(String, Bytes, Bytes)> =
        by_label.into_iter().map(|(name, (live, allocated))| (name, live, allocated)).collect();
    all.sort_by_key(|(_, live, allocated)| std::cmp::Reverse((*live, *allocated)));
    if all.len() > CATEGORIES {
        let rest = all.split_off(CATEGORIES - 1);
        let sum = |of: fn(&(String, Bytes, Bytes)) -> Bytes| rest.iter().map(of).sum::<Bytes>();
        let (live, allocated) = (sum(|of| of.1), sum(|of| of.2));
        match all.iter_mut().find(|(name, ..)| name == REST) {
            Some(known) => (known.1, known.2) = (known.1 + live, known.2 + allocated),
            None => all.push((REST.into(), live, allocated)),
        }
    }
    all
}

/// The target chooses names, so a label has no control character and a limited length.
fn label(value: &str) -> String {
    printable(value).chars().take(LONGEST).collect()
}

/// The end of a path, which distinguishes a container from its pod.
fn path_label(path: &str) -> String {
    let text = printable(path);
    let surplus = text.chars().count().saturating_sub(LONGEST_PATH);
    text.chars().skip(surplus).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_tracked::books::{Category, Figures};

    use super::*;

    /// Of 20 categories the smallest becomes the biggest: no counter falls.
    #[test]
    fn no_counter_falls_when_a_category_grows_out_of_the_rest() {
        let golden = include_bytes!("../../../goldens/explain.json");
        let ledger = crate::ledger_json::parse(golden).expect("a ledger");
        let counters = |last: u64| {
            let category = |n: u64| {
                let bytes = Bytes(if n == 0 { last } else { n << 20 });
                let figures = Figures { live: bytes, cumulative: bytes, ..Figures::default() };
                Category { name: format!("category {n}"), figures, ..Category::default() }
            };
            let books = Books { categories: (0..20).map(category).collect(), ..Books::default() };
            let samples = Samples::of("shop", &ledger, Some(&books));
            let of = |family| samples.all.iter().filter(move |sample| sample.family == family);
            assert_eq!(of(Family::Live).count(), CATEGORIES);
            let live: u64 = of(Family::Live).map(|sample| whole(sample.value)).sum();
            assert_eq!(live, (1..20u64).map(|n| n << 20).sum::<u64>() + last, "each byte is in one category");
            of(Family::Allocated).map(|of| (of.labels[0].1.clone(), whole(of.value))).collect::<Vec<_>>()
        };
        let (before, after) = (counters(1 << 19), counters(1 << 30));
        assert_eq!((before.len(), after.len()), (CATEGORIES - 1, CATEGORIES - 1));
        for (name, value) in after {
            assert!(
                before.iter().all(|(known, earlier)| *known != name || *earlier <= value),
                "{name} fell to {value}"
            );
        }
    }

    /// Names of a hostile target: with a control character and with its escape, beyond the length, and that of the
    /// rest.
    #[test]
    fn no_series_occurs_twice() {
        let golden = include_bytes!("../../../goldens/explain.json");
        let ledger = crate::ledger_json::parse(golden).expect("a ledger");
        let long = "x".repeat(LONGEST);
        let hostile = [String::from("a\u{1}"), "a\\u{1}".into(), format!("{long}1"), format!("{long}2"), REST.into()];
        let names = hostile.into_iter().chain((0..20).map(|n| format!("category {n}")));
        let figures = Figures { live: Bytes(1 << 20), cumulative: Bytes(1 << 20), ..Figures::default() };
        let categories: Vec<Category> = names.map(|name| Category { name, figures, ..Category::default() }).collect();
        let number = categories.len() as u64;
        let books = Books { categories, ..Books::default() };
        let samples = Samples::of("shop", &ledger, Some(&books));
        let of = |family| samples.all.iter().filter(move |sample| sample.family == family);
        for family in [Family::Live, Family::Allocated] {
            let mut labels: Vec<_> = of(family).map(|sample| &sample.labels).collect();
            let all = labels.len();
            labels.sort();
            labels.dedup();
            assert_eq!(labels.len(), all, "{labels:?}");
        }
        assert_eq!(of(Family::Live).map(|sample| whole(sample.value)).sum::<u64>(), number << 20);
    }

    /// The group of a limit is in one series of its own, so that another group doesn't end those of the figures.
    #[test]
    fn the_group_of_a_limit_is_one_label() {
        let golden = include_bytes!("../../../goldens/explain.json");
        let mut ledger = crate::ledger_json::parse(golden).expect("a ledger");
        let labels = |ledger: &Ledger| -> Vec<(&'static str, String)> {
            let samples = Samples::of("shop", ledger, None);
            let all = samples.all.iter().filter(|sample| sample.labels.iter().any(|(name, _)| *name == LIMIT_PATH));
            all.flat_map(|sample| {
                assert_eq!((sample.family, sample.value), (Family::LimitGroup, Value::Whole(1)));
                sample.labels.clone()
            })
            .collect()
        };
        assert_eq!(labels(&ledger), [(LIMIT_PATH, "/kubepods/pod7".to_owned())]);
        let path =
            |ledger: &mut Ledger, path: &str| ledger.cgroup.as_mut().expect("a group").limit_path = Some(path.into());
        path(&mut ledger, "/a\"b\\c\n\u{1b}[2J");
        assert_eq!(labels(&ledger)[0].1, "/a\"b\\c\\n\\u{1b}[2J");
        let container = |end: char| format!("{}/{end}", "/x".repeat(LONGEST_PATH));
        for end in ['1', '2'] {
            path(&mut ledger, &container(end));
            let label = &labels(&ledger)[0].1;
            assert!(label.ends_with(end) && label.chars().count() == LONGEST_PATH, "{label}");
        }
        ledger.limit.as_mut().expect("a limit").source = REQUESTED.into();
        assert!(labels(&ledger).is_empty(), "the limit of the command line isn't the group's");
    }

    #[test]
    fn gaps_are_counted_by_source() {
        let golden = include_bytes!("../../../goldens/explain.json");
        let mut ledger = crate::ledger_json::parse(golden).expect("a ledger");
        let gap = |source: &str| crate::ledger_json::Gap { source: source.into(), ..Default::default() };
        ledger.gaps = ["cgroup", "proc", "cgroup"].map(gap).into();
        let samples = Samples::of("shop", &ledger, None);
        let gaps = samples.all.iter().filter(|sample| sample.family == Family::Gaps);
        let gaps: Vec<(&str, u64)> = gaps.map(|gap| (gap.labels[0].1.as_str(), whole(gap.value))).collect();
        assert_eq!(gaps, [("cgroup", 2), ("proc", 1)]);
    }

    fn whole(value: Value) -> u64 {
        match value {
            Value::Whole(value) => value,
            Value::Real(value) => panic!("{value}"),
        }
    }
}
