//! Schema `plimsoll.trial/1`, documented in docs/json.md. Fields are only ever added.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_trial::rows::TOLERATED_PERCENT;
use plimsoll_trial::{Best, Trial};
use serde::Serialize;

use crate::trial_text;

pub const SCHEMA: &str = "plimsoll.trial/1";

#[derive(Serialize)]
struct Document<'t> {
    schema: &'static str,
    command: &'t str,
    ready: Option<&'t str>,
    load: Option<&'t str>,
    limit_bytes: Option<u64>,
    rounds: usize,
    interrupted: bool,
    rows: Vec<Row<'t>>,
    runs: Vec<Run<'t>>,
    best: Advice<'t>,
    notes: &'t [String],
}

#[derive(Serialize)]
struct Row<'t> {
    name: &'t str,
    changes: &'t [String],
    /// Why the row was not run.
    missing: Option<&'t str>,
    runs: usize,
    failed: usize,
    figures: BTreeMap<&'static str, Figure>,
    predicted_saving: Option<Predicted>,
}

#[derive(Serialize)]
struct Figure {
    median: f64,
    least: f64,
    most: f64,
    /// Against the plain row; absent there, and with fewer than two pairs.
    difference: Option<Difference>,
}

#[derive(Serialize)]
struct Difference {
    mean: f64,
    low: f64,
    high: f64,
    percent: Option<f64>,
    pairs: usize,
    significant: bool,
}

/// What the verdicts expect a remedy to save.
#[derive(Serialize)]
pub(crate) struct Predicted {
    least_bytes: u64,
    most_bytes: u64,
}

impl From<(u64, u64)> for Predicted {
    fn from((least_bytes, most_bytes): (u64, u64)) -> Predicted {
        Predicted { least_bytes, most_bytes }
    }
}

#[derive(Serialize)]
struct Run<'t> {
    round: usize,
    row: &'t str,
    end: &'static str,
    detail: Option<&'t str>,
    processes: usize,
    load_errors: Option<u64>,
    figures: BTreeMap<&'static str, f64>,
    /// Memory as PSS; null where it can't be read.
    pss: BTreeMap<&'static str, Option<f64>>,
}

#[derive(Serialize)]
struct Advice<'t> {
    row: Option<&'t str>,
    /// `saves`, `survives`, `nothing`, `too-few`.
    kind: &'static str,
    metric: Option<&'static str>,
    tolerated_percent: f64,
    text: String,
}

pub fn write(out: &mut dyn Write, trial: &Trial) -> io::Result<()> {
    crate::json_lines::write_indented(out, &document(trial))
}

fn document(trial: &Trial) -> Document<'_> {
    let (row, kind, metric) = match trial.best() {
        Best::Saves { row, metric, .. } => (Some(row), "saves", Some(metric.id())),
        Best::Survives { row, metric, .. } => (Some(row), "survives", Some(metric.id())),
        Best::Nothing => (None, "nothing", None),
        Best::TooFew => (None, "too-few", None),
    };
    Document {
        schema: SCHEMA,
        command: &trial.command,
        ready: trial.ready.as_deref(),
        load: trial.load.as_deref(),
        limit_bytes: trial.limit,
        rounds: trial.rounds,
        interrupted: trial.interrupted,
        rows: (0..trial.rows.len()).map(|at| self::row(trial, at)).collect(),
        runs: trial
            .runs
            .iter()
            .map(|run| Run {
                round: run.round + 1,
                row: &trial.rows[run.row].label,
                end: run.end.id(),
                detail: run.detail.as_deref(),
                processes: run.processes,
                load_errors: run.load_errors,
                figures: run.figures.iter().map(|(metric, value)| (metric.id(), *value)).collect(),
                pss: run.pss.iter().map(|(metric, pss)| (metric.id(), pss.bytes)).collect(),
            })
            .collect(),
        best: Advice {
            row: row.map(|row| trial.rows[row].label.as_str()),
            kind,
            metric,
            tolerated_percent: TOLERATED_PERCENT,
            text: trial_text::best(trial),
        },
        notes: &trial.notes,
    }
}

fn row(trial: &Trial, at: usize) -> Row<'_> {
    let named = &trial.rows[at];
    let figure = |metric| {
        let (least, most) = trial.range(at, metric)?;
        let difference = trial.difference(at, metric).filter(|_| at > 0).map(|difference| Difference {
            mean: difference.interval.mean,
            low: difference.interval.low,
            high: difference.interval.high,
            percent: difference.percent(),
            pairs: difference.interval.pairs,
            significant: !difference.interval.contains_zero(),
        });
        Some((metric.id(), Figure { median: trial.median(at, metric)?, least, most, difference }))
    };
    Row {
        name: &named.label,
        changes: &named.changes,
        missing: named.missing.as_deref(),
        runs: trial.runs.iter().filter(|run| run.row == at).count(),
        failed: trial.failed(at).count(),
        figures: trial.metrics().into_iter().filter_map(figure).collect(),
        predicted_saving: named.predicted.map(Predicted::from),
    }
}
