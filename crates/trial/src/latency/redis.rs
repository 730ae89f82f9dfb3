//! redis-benchmark's summary, in its three forms: full, `-q` and `--csv`. Of several commands (SET, GET, …) the slowest
//! counts: the highest latency and the lowest throughput.

use super::{Load, Tool, number};

pub(super) fn read(lines: &mut dyn Iterator<Item = &str>) -> Option<Load> {
    let mut load = Load::of(Tool::RedisBenchmark);
    // The headings of the last table: `avg min p50 p95 p99 max`, or those of --csv.
    let mut headings: Vec<&str> = Vec::new();
    for line in lines {
        if let Some(summary) = line.strip_prefix("throughput summary: ") {
            lowest(&mut load.throughput, summary.strip_suffix(" requests per second").and_then(number));
        } else if line.starts_with("avg ") && line.ends_with(" max") {
            headings = line.split_whitespace().collect();
        } else if line.starts_with("\"test\",\"rps\"") {
            headings = line.split(',').map(|word| word.trim_matches('"')).collect();
        } else if line.starts_with('"') && headings.contains(&"rps") {
            let values = line.split("\",\"").map(|word| number(word.trim_matches('"')));
            row(&mut load, &headings, values);
        } else if let Some((_, rest)) =
            line.split_once(": ").filter(|(_, rest)| rest.contains(" requests per second, p50="))
        {
            let (rate, median) = rest.split_once(" requests per second, p50=").unwrap_or_default();
            lowest(&mut load.throughput, number(rate));
            highest(&mut load.p50, median.split_whitespace().next().and_then(number));
        } else if headings.contains(&"avg") {
            row(&mut load, &headings, line.split_whitespace().map(number));
            headings.clear();
        }
    }
    // No other tool prints these words, so any figure identifies redis-benchmark.
    load.has_figures().then_some(load)
}

fn row(load: &mut Load, headings: &[&str], values: impl Iterator<Item = Option<f64>>) {
    for (heading, value) in headings.iter().zip(values) {
        match *heading {
            "rps" => lowest(&mut load.throughput, value),
            "p50" | "p50_latency_ms" => highest(&mut load.p50, value),
            "p99" | "p99_latency_ms" => highest(&mut load.p99, value),
            _ => {}
        }
    }
}

fn lowest(field: &mut Option<f64>, value: Option<f64>) {
    *field = field.iter().copied().chain(value).reduce(f64::min);
}

fn highest(field: &mut Option<f64>, value: Option<f64>) {
    *field = field.iter().copied().chain(value).reduce(f64::max);
}
