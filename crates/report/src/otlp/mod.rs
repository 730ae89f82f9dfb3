//! Samples and call stacks as OpenTelemetry's protocol has them (OTLP): the bodies of requests to `/v1/metrics` and
//! `/v1development/profiles`.
//!
//! ```text
//! resource  service.name = target, service.instance.id and host.name = machine, process.pid, process.runtime.*
//! metric    the names, labels and values of `prometheus`; only the resource has the PID
//! profile   `profile`
//! ```

use prost::Message;

use crate::metrics::{Facts, Family, MetricKind, Sample, Samples, Value};
use messages::{
    Any, AnyValue, Data, ExportMetrics, ExportResponse, Gauge, KeyValue, Metric, Number, Point, Resource,
    ResourceMetrics, Scope, ScopeMetrics, Sum,
};
pub use profile::profiles;

mod messages;
mod profile;

/// `AggregationTemporality`: sums since the start.
const CUMULATIVE: i32 = 2;
const OWN: &str = "plimsoll";

/// A reading of a target, or of the server, at a moment (ns since 1970).
pub struct Reading<'s> {
    pub samples: &'s Samples,
    pub time_ns: u64,
}

/// The request for the metrics of several targets.
pub fn metrics(readings: &[Reading<'_>], host: &str, version: &str) -> Vec<u8> {
    let of = |reading: &Reading<'_>| ResourceMetrics {
        resource: Some(resource(reading.samples, host)),
        scope_metrics: vec![ScopeMetrics { scope: Some(scope(version)), metrics: families(reading) }],
    };
    ExportMetrics { resource_metrics: readings.iter().map(of).collect() }.encode_to_vec()
}

/// Number of data points or profiles that a receiver rejected from a request that it accepted. None if the bytes are
/// not an answer.
pub fn rejected(answer: &[u8]) -> Option<u64> {
    let answer = ExportResponse::decode(answer).ok()?;
    Some(answer.partial_success.map_or(0, |partial| u64::try_from(partial.rejected).unwrap_or(0)))
}

fn families(reading: &Reading<'_>) -> Vec<Metric> {
    let of = |(family, facts): (Family, &Facts)| {
        let samples = reading.samples.all.iter().filter(|sample| sample.family == family);
        let points: Vec<Point> = samples.map(|sample| point(reading, sample, facts.kind)).collect();
        let data = match facts.kind {
            _ if points.is_empty() => return None,
            // The resource has these labels.
            MetricKind::Info if family == Family::Target => return None,
            MetricKind::Gauge | MetricKind::Info => Data::Gauge(Gauge { data_points: points }),
            MetricKind::Counter => {
                Data::Sum(Sum { data_points: points, aggregation_temporality: CUMULATIVE, is_monotonic: true })
            }
        };
        let (name, description, unit) = (facts.name.into(), facts.help.into(), facts.unit.into());
        Some(Metric { name, description, unit, data: Some(data) })
    };
    Family::all().filter_map(of).collect()
}

fn point(reading: &Reading<'_>, sample: &Sample, kind: MetricKind) -> Point {
    let target = (!reading.samples.target.is_empty()).then(|| text("target", &reading.samples.target));
    let labels = sample.labels.iter().map(|(name, value)| text(name, value));
    Point {
        attributes: target.into_iter().chain(labels).collect(),
        start_time_unix_nano: if kind == MetricKind::Counter { reading.samples.since_ns } else { 0 },
        time_unix_nano: reading.time_ns,
        value: Some(match sample.value {
            Value::Whole(value) => Number::AsInt(i64::try_from(value).unwrap_or(i64::MAX)),
            Value::Real(value) => Number::AsDouble(value),
        }),
    }
}

fn resource(samples: &Samples, host: &str) -> Resource {
    let name = if samples.target.is_empty() { OWN } else { &samples.target };
    let mut attributes = vec![text("service.name", name), text("service.instance.id", host), text("host.name", host)];
    let identity = samples.all.iter().find(|sample| sample.family == Family::Target);
    for (label, value) in identity.map(|sample| sample.labels.as_slice()).unwrap_or_default() {
        attributes.extend(match *label {
            "pid" => value.parse().ok().map(|pid| attribute("process.pid", Any::IntValue(pid))),
            "runtime" => Some(text("process.runtime.name", value)),
            "version" if !value.is_empty() => Some(text("process.runtime.version", value)),
            _ => None,
        });
    }
    Resource { attributes }
}

fn scope(version: &str) -> Scope {
    Scope { name: OWN.into(), version: version.into() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Any::StringValue(value.into()))
}

fn attribute(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }) }
}
