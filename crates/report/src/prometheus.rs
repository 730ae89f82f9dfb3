//! Samples in the text formats of Prometheus: for its scrapes, and for the textfile collector of node_exporter.

use std::io::{self, Write};

use crate::metrics::{Family, MetricKind, Sample, Samples, Value};

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

/// Writes the samples of several targets. Both formats demand that the samples of a family follow one another.
pub fn write(out: &mut dyn Write, all: &[&Samples], style: Style) -> io::Result<()> {
    let mut families: Vec<Vec<(&str, &Sample)>> = Family::all().map(|_| Vec::new()).collect();
    for samples in all {
        samples.all.iter().for_each(|sample| families[sample.family as usize].push((&samples.target, sample)));
    }
    for ((_, facts), samples) in Family::all().zip(families).filter(|(_, samples)| !samples.is_empty()) {
        // OpenMetrics names the family without the suffix of its samples.
        let (name, kind) = match (style, facts.kind) {
            (_, MetricKind::Gauge) => (facts.name, "gauge"),
            (Style::Prometheus, MetricKind::Counter) => (facts.name, "counter"),
            (Style::Prometheus, MetricKind::Info) => (facts.name, "gauge"),
            (Style::OpenMetrics, MetricKind::Counter) => (facts.name.trim_end_matches("_total"), "counter"),
            (Style::OpenMetrics, MetricKind::Info) => (facts.name.trim_end_matches("_info"), "info"),
        };
        write!(out, "# HELP {name} {}\n# TYPE {name} {kind}\n", facts.help)?;
        samples.into_iter().try_for_each(|(target, sample)| one(out, facts.name, target, sample))?;
    }
    if style == Style::OpenMetrics { out.write_all(b"# EOF\n") } else { Ok(()) }
}

/// `name{target="…",label="…"} value`.
fn one(out: &mut dyn Write, name: &str, target: &str, sample: &Sample) -> io::Result<()> {
    out.write_all(name.as_bytes())?;
    let target = (!target.is_empty()).then_some(("target", target));
    let labels = target.into_iter().chain(sample.labels.iter().map(|(name, value)| (*name, value.as_str())));
    let mut before = "{";
    for (name, value) in labels {
        write!(out, "{before}{name}=\"{}\"", escaped(value))?;
        before = ",";
    }
    let end = if before == "{" { "" } else { "}" };
    match sample.value {
        Value::Whole(value) => writeln!(out, "{end} {value}"),
        Value::Real(value) => writeln!(out, "{end} {}", (value * 1e6).round() / 1e6),
    }
}

/// A backslash, a quote and a newline are escaped, as the formats demand.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
