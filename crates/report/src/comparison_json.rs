//! Schema `plimsoll.comparison/1`, documented in docs/json.md. Fields are only ever added.

use std::collections::BTreeMap;
use std::io::{self, Write};

use plimsoll_trial::budget::Excess;
use plimsoll_trial::comparison::{A, B, Comparison, METRICS, MedianChange, SIDES, Site};
use serde::Serialize;

use crate::comparison_text::{exceeded, name, result};

pub const SCHEMA: &str = "plimsoll.comparison/1";

#[derive(Serialize)]
struct Document<'c> {
    schema: &'static str,
    a: &'c str,
    b: &'c str,
    ready: Option<&'c str>,
    pairs: usize,
    interrupted: bool,
    rss: Option<ChangeDocument>,
    figures: BTreeMap<&'static str, ChangeDocument>,
    lines: Vec<LineDocument>,
    tracked: Option<TrackedDocument<'c>>,
    /// Absent without --budget.
    over_budget: Option<Vec<ExcessDocument>>,
    runs: Vec<RunDocument<'c>>,
    result: String,
    notes: &'c [String],
}

#[derive(Serialize)]
struct ChangeDocument {
    a: f64,
    b: f64,
    mean: f64,
    low: f64,
    high: f64,
    percent: Option<f64>,
    pairs: usize,
    verdict: &'static str,
}

#[derive(Serialize)]
struct LineDocument {
    id: String,
    name: String,
    #[serde(flatten)]
    change: ChangeDocument,
    parts: Vec<PartDocument>,
}

#[derive(Serialize)]
struct PartDocument {
    name: String,
    #[serde(flatten)]
    change: ChangeDocument,
}

#[derive(Serialize)]
struct TrackedDocument<'c> {
    runs_a: usize,
    runs_b: usize,
    measure: &'static str,
    categories: Vec<CategoryDocument<'c>>,
    sites: Vec<SiteDocument<'c>>,
    mapping_calls_a: f64,
    mapping_calls_b: f64,
    mapping_sites: Vec<SiteDocument<'c>>,
    slow_paths_a: Option<f64>,
    slow_paths_b: Option<f64>,
}

#[derive(Serialize)]
struct CategoryDocument<'c> {
    name: &'c str,
    a: f64,
    b: f64,
    differs: bool,
}

#[derive(Serialize)]
struct SiteDocument<'c> {
    category: &'c str,
    line: Option<&'c str>,
    a: i64,
    b: i64,
    change: i64,
    least: i64,
    frames: &'c [String],
}

#[derive(Serialize)]
struct ExcessDocument {
    line: String,
    allowed_bytes: f64,
    mean: f64,
    low: f64,
    site: Option<Vec<String>>,
    text: String,
}

#[derive(Serialize)]
struct RunDocument<'c> {
    pair: usize,
    side: &'static str,
    end: &'static str,
    detail: Option<&'c str>,
    figures: BTreeMap<&'static str, f64>,
    /// Memory as PSS; null where it can't be read.
    pss: BTreeMap<&'static str, Option<f64>>,
}

/// `excesses`: the lines beyond their budget; `None` without a budget.
pub fn write(out: &mut dyn Write, of: &Comparison, excesses: Option<&[Excess]>) -> io::Result<()> {
    crate::json_lines::write_indented(out, &document(of, excesses))
}

fn document<'c>(of: &'c Comparison, excesses: Option<&[Excess]>) -> Document<'c> {
    Document {
        schema: SCHEMA,
        a: &of.commands[A],
        b: &of.commands[B],
        ready: of.ready.as_deref(),
        pairs: of.pairs,
        interrupted: of.interrupted,
        rss: of.rss().map(|change| self::change(&change)),
        figures: METRICS.into_iter().filter_map(|metric| Some((metric.id(), change(&of.metric(metric)?)))).collect(),
        lines: of.line_changes().into_iter().map(|(part, change)| line(of, &part.line, &change)).collect(),
        tracked: of.tracked.as_ref().map(|tracked| TrackedDocument {
            runs_a: tracked.runs[A],
            runs_b: tracked.runs[B],
            measure: tracked.measure.id(),
            categories: tracked
                .categories
                .iter()
                .map(|category| {
                    let [a, b] = category.means();
                    CategoryDocument { name: &category.name, a, b, differs: category.differs() }
                })
                .collect(),
            sites: tracked.sites.iter().map(site).collect(),
            mapping_calls_a: tracked.mapping_calls[A],
            mapping_calls_b: tracked.mapping_calls[B],
            mapping_sites: tracked.callers_of_mmap.iter().map(site).collect(),
            slow_paths_a: tracked.slow_paths.map(|sides| sides[A]),
            slow_paths_b: tracked.slow_paths.map(|sides| sides[B]),
        }),
        over_budget: excesses.map(|all| all.iter().map(|excess| over(of, excess)).collect()),
        runs: of
            .runs
            .iter()
            .map(|run| RunDocument {
                pair: run.round + 1,
                side: SIDES.get(run.row).copied().unwrap_or_default(),
                end: run.end.id(),
                detail: run.detail.as_deref(),
                figures: run.figures.iter().map(|(metric, value)| (metric.id(), *value)).collect(),
                pss: run.pss.iter().map(|(metric, pss)| (metric.id(), pss.bytes)).collect(),
            })
            .collect(),
        result: result(of),
        notes: &of.notes,
    }
}

fn change(of: &MedianChange) -> ChangeDocument {
    let interval = of.interval;
    ChangeDocument {
        a: of.medians[A],
        b: of.medians[B],
        mean: interval.mean,
        low: interval.low,
        high: interval.high,
        percent: of.percent(),
        pairs: interval.pairs,
        verdict: of.direction().id(),
    }
}

fn line(of: &Comparison, id: &str, change: &MedianChange) -> LineDocument {
    let parts = of.part_changes(id);
    LineDocument {
        id: id.to_owned(),
        name: name(of, id),
        change: self::change(change),
        parts: parts
            .into_iter()
            .map(|(part, of)| PartDocument { name: part.name, change: self::change(&of) })
            .collect(),
    }
}

fn site(of: &Site) -> SiteDocument<'_> {
    SiteDocument {
        category: &of.category,
        line: of.line.as_deref(),
        a: of.held[A],
        b: of.held[B],
        change: of.held[B].saturating_sub(of.held[A]),
        least: of.least,
        frames: &of.frames,
    }
}

fn over(of: &Comparison, excess: &Excess) -> ExcessDocument {
    ExcessDocument {
        line: excess.line.clone(),
        allowed_bytes: excess.allowed,
        mean: excess.change.interval.mean,
        low: excess.change.interval.low,
        site: of.owner_of(&excess.line).map(|site| site.frames.clone()),
        text: exceeded(of, excess),
    }
}
