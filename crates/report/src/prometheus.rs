//! The figures of ledgers in the text formats of Prometheus: for its scrapes, and for the textfile collector of
//! node_exporter.
//!
//! The PID is in `plimsoll_target_info` only, so a restart continues the same series. There is a series for each line,
//! group of figures and verdict, never for a file, a thread or a call site: about 50 for a target.

use std::io::{self, Write};
use std::time::Duration;

use plimsoll_facts::units::Bytes;
use plimsoll_observer::verdict::VerdictId;
use plimsoll_tracked::books::Books;

use crate::ledger_json::Ledger;
use crate::words::printable;

/// Categories with a series of their own: the biggest. The others are `other categories`.
const CATEGORIES: usize = 15;
const REST: &str = "other categories";
/// Characters of a label.
const LONGEST: usize = 100;

/// The two text formats that Prometheus reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Prometheus 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Style {
    pub fn content_type(self) -> &'static str {
        match self {
            Style::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Style::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Info,
}

/// Name, kind and help of each family, in the order of the output.
macro_rules! families {
    ($($family:ident $name:literal $kind:ident $help:literal)*) => {
        #[derive(Clone, Copy)]
        enum Family { $($family),* }
        const FAMILIES: &[(&str, Kind, &str)] = &[$(($name, Kind::$kind, $help)),*];
    };
}

families! {
    Resident "plimsoll_resident_bytes" Gauge "Resident bytes by line of the ledger; they sum to RSS."
    Unexplained "plimsoll_unexplained_bytes" Gauge "Resident bytes whose owner is unknown."
    Limit "plimsoll_limit_bytes" Gauge "Memory limit in force."
    WorkingSet "plimsoll_working_set_bytes" Gauge "Charged bytes without the page cache that the kernel takes back first."
    Live "plimsoll_native_live_bytes" Gauge "Live blocks by category."
    Allocated "plimsoll_native_allocated_bytes_total" Counter "Bytes allocated since the books began, by category."
    Verdict "plimsoll_verdict" Gauge "1 while the verdict stands."
    Target "plimsoll_target_info" Info "Identity of the target."
    Reading "plimsoll_reading_seconds" Gauge "Time that plimsoll took to read the target."
    Age "plimsoll_reading_age_seconds" Gauge "Time since the ledger of the target was read."
    Targets "plimsoll_targets" Gauge "Targets that are served."
    LeftOut "plimsoll_targets_left_out" Gauge "Processes that match, beyond the limit of targets."
    OwnCpu "plimsoll_serve_cpu_seconds_total" Counter "Processor time of plimsoll serve, both processes."
    OwnResident "plimsoll_serve_resident_bytes" Gauge "RSS of plimsoll serve, both processes."
    Round "plimsoll_serve_round_seconds" Gauge "Time that the last reading of all targets took."
}

/// The samples of one target: their text is made once for each reading, however many scrapes follow.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<(usize, String)>);

impl Samples {
    /// `books`: of a tracked process.
    pub fn of(target: &str, ledger: &Ledger, books: Option<&Books>) -> Samples {
        let mut samples = Samples::default();
        let target = label("target", target);
        let mut add = |family, label: String, value: String| samples.add(family, &join(&target, &label), &value);
        for line in &ledger.lines {
            add(Family::Resident, label("line", &line.id), line.resident_bytes.to_string());
        }
        add(Family::Resident, label("line", "remainder"), ledger.remainder_bytes.to_string());
        add(Family::Unexplained, String::new(), ledger.unexplained_bytes.to_string());
        if let Some(limit) = &ledger.limit {
            add(Family::Limit, label("source", &limit.source), limit.bytes.to_string());
            add(Family::WorkingSet, String::new(), limit.working_set_bytes.to_string());
        }
        for (name, live, allocated) in books.map(categories).unwrap_or_default() {
            add(Family::Live, label("category", &name), live.0.to_string());
            add(Family::Allocated, label("category", &name), allocated.0.to_string());
        }
        for (labels, value) in verdicts(ledger) {
            add(Family::Verdict, labels, value.into());
        }
        let process = &ledger.process;
        let version = process.runtime_version.as_deref().unwrap_or_default();
        let known =
            [label("pid", &process.pid.to_string()), label("runtime", &process.runtime), label("version", version)];
        add(Family::Target, known.join(","), "1".into());
        let took: f64 = ledger.readings.iter().map(|reading| reading.took_ms.max(0.0)).sum::<f64>() / 1e3;
        add(Family::Reading, String::new(), took.to_string());
        samples
    }

    /// Time since the ledger was read. For a server, which may repeat an earlier reading.
    pub fn age(target: &str, age: Duration) -> Samples {
        let mut samples = Samples::default();
        samples.add(Family::Age, &label("target", target), &format!("{:.3}", age.as_secs_f64()));
        samples
    }

    fn add(&mut self, family: Family, labels: &str, value: &str) {
        let (name, ..) = FAMILIES[family as usize];
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        self.0.push((family as usize, format!("{name}{labels} {value}\n")));
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
}

impl Own {
    pub fn samples(&self) -> Samples {
        let mut samples = Samples::default();
        samples.add(Family::Targets, "", &self.targets.to_string());
        samples.add(Family::LeftOut, "", &self.left_out.to_string());
        samples.add(Family::OwnCpu, "", &format!("{:.3}", self.cpu.as_secs_f64()));
        samples.add(Family::OwnResident, "", &self.resident.0.to_string());
        samples.add(Family::Round, "", &format!("{:.6}", self.round.as_secs_f64()));
        samples
    }
}

/// Writes the samples of several targets. Both formats demand that the samples of a family stand together.
pub fn write(out: &mut dyn Write, all: &[&Samples], style: Style) -> io::Result<()> {
    let mut texts = vec![String::new(); FAMILIES.len()];
    for (family, sample) in all.iter().flat_map(|samples| &samples.0) {
        texts[*family].push_str(sample);
    }
    for ((name, kind, help), text) in FAMILIES.iter().zip(texts).filter(|(_, text)| !text.is_empty()) {
        // OpenMetrics names the family without the suffix of its samples.
        let (name, kind) = match (style, kind) {
            (_, Kind::Gauge) => (*name, "gauge"),
            (Style::Prometheus, Kind::Counter) => (*name, "counter"),
            (Style::Prometheus, Kind::Info) => (*name, "gauge"),
            (Style::OpenMetrics, Kind::Counter) => (name.trim_end_matches("_total"), "counter"),
            (Style::OpenMetrics, Kind::Info) => (name.trim_end_matches("_info"), "info"),
        };
        write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{text}")?;
    }
    if style == Style::OpenMetrics { out.write_all(b"# EOF\n") } else { Ok(()) }
}

fn join(one: &str, other: &str) -> String {
    if other.is_empty() { one.to_owned() } else { format!("{one},{other}") }
}

/// Name, live and allocated bytes of each category.
fn categories(books: &Books) -> Vec<(String, Bytes, Bytes)> {
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
    all
}

/// One series for each verdict that Plimsoll knows: 0 with the severity `none` while it does not stand.
fn verdicts(ledger: &Ledger) -> Vec<(String, &'static str)> {
    let severity = |id: &VerdictId| ledger.verdicts.iter().find(|verdict| verdict.id == id.id()).map(|of| &of.severity);
    let sample = |id: &VerdictId| {
        let (known, value) = severity(id).map_or(("none", "0"), |severity| (severity.as_str(), "1"));
        (format!("{},{}", label("id", id.id()), label("severity", known)), value)
    };
    VerdictId::ALL.iter().map(sample).collect()
}

/// `name="value"`: a backslash, a quote and a newline are escaped, as the format demands.
fn label(name: &str, value: &str) -> String {
    let value: String = printable(value).chars().take(LONGEST).collect();
    format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
