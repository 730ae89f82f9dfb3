//! Schemas `plimsoll.recording/1` and `plimsoll.recording-diff/1`, documented in docs/json.md.

use std::io::{self, Write};

use plimsoll_observer::recording::{CurveFigures, History, Measure};
use plimsoll_profiles::profile::ProfileDiff;
use serde::Serialize;

use crate::frame_table::FrameTable;
use crate::json::EndedLine;
use crate::profile::json::{DifferenceDocument, difference};
use crate::recording::sections;
use crate::recording_diff::{CurveChange, changes};
use crate::words::moment;

pub const SCHEMA: &str = "plimsoll.recording/1";
pub(crate) const DIFF_SCHEMA: &str = "plimsoll.recording-diff/1";

#[derive(Serialize)]
struct RecordingDocument<'h> {
    schema: &'static str,
    process: Process<'h>,
    /// How the process ended; null if the recording doesn't have its end.
    ended: Option<EndedLine>,
    begin: String,
    end: String,
    from: String,
    to: String,
    chunks: Vec<Chunk>,
    events: u64,
    /// Largest age that an answer of the VM or the allocators had at a reading.
    provenance_age_ms: u64,
    series: Vec<SeriesJson<'h>>,
    limit_groups: Vec<LimitGroup<'h>>,
    verdicts: Vec<Verdict<'h>>,
    gaps: Vec<Gap<'h>>,
    more_gaps: u64,
}

#[derive(Serialize)]
struct Process<'h> {
    pid: Option<u64>,
    command: &'h str,
    runtime: &'h str,
    runtime_version: &'h str,
}

#[derive(Serialize)]
struct Chunk {
    file: Option<String>,
    offset: u64,
    bytes: u64,
    begin: String,
    end: String,
    finished: bool,
}

#[derive(Serialize)]
struct SeriesJson<'h> {
    section: &'static str,
    measure: &'static str,
    name: String,
    unit: &'static str,
    #[serde(flatten)]
    figures: Numbers,
    /// The largest error of a line; null for other curves.
    error_bytes: Option<u64>,
    points: Vec<PointJson>,
    #[serde(skip)]
    _history: std::marker::PhantomData<&'h ()>,
}

#[derive(Serialize)]
struct Numbers {
    readings: u64,
    first: u64,
    last: u64,
    min: u64,
    max: u64,
    mean: f64,
    peak: u64,
    growth_per_hour: Option<f64>,
    growth_least: Option<f64>,
    growth_most: Option<f64>,
}

/// Milliseconds since 1970 and value. Where one point stands for many readings: their mean and their bounds.
#[derive(Serialize)]
struct PointJson {
    time_ms: i64,
    value: f64,
    min: u64,
    max: u64,
}

/// A cgroup that had the memory limit. `limit_bytes` is that of its last reading.
#[derive(Serialize)]
struct LimitGroup<'h> {
    limit_path: &'h str,
    limit_bytes: u64,
    first: String,
    last: String,
    readings: u64,
}

#[derive(Serialize)]
struct Verdict<'h> {
    id: &'h str,
    severity: &'h str,
    first: String,
    last: String,
    held_ms: i64,
    first_bytes: u64,
    last_bytes: u64,
    most_bytes: u64,
    summary: &'h str,
    remedy: &'h str,
    origin: &'static str,
}

#[derive(Serialize)]
struct Gap<'h> {
    source: &'static str,
    reason: &'h str,
    effect: &'h str,
    remedy: &'h str,
}

fn time(ns: i64) -> String {
    moment(ns.max(0) as u64)
}

fn numbers(figures: &CurveFigures) -> Numbers {
    Numbers {
        readings: figures.readings,
        first: figures.first,
        last: figures.last,
        min: figures.min,
        max: figures.max,
        mean: figures.mean,
        peak: figures.peak,
        growth_per_hour: figures.growth.map(|growth| growth.per_hour),
        growth_least: figures.growth.map(|growth| growth.least),
        growth_most: figures.growth.map(|growth| growth.most),
    }
}

fn process(history: &History) -> Process<'_> {
    let of = &history.process;
    Process { pid: of.pid, command: &of.command, runtime: &of.runtime, runtime_version: &of.runtime_version }
}

fn gaps(history: &History) -> Vec<Gap<'_>> {
    let gaps = history.gaps.iter();
    gaps.map(|gap| Gap { source: gap.source.name(), reason: &gap.reason, effect: &gap.effect, remedy: &gap.remedy })
        .collect()
}

fn limit_group(group: &plimsoll_observer::recording::LimitGroup) -> LimitGroup<'_> {
    LimitGroup {
        limit_path: &group.path,
        limit_bytes: group.limit,
        first: time(group.first_ns),
        last: time(group.last_ns),
        readings: group.readings,
    }
}

pub fn write(out: &mut dyn Write, history: &History) -> io::Result<()> {
    let mut series = vec![];
    for section in sections(history) {
        for row in section.rows {
            let name = if section.id == "process" { "" } else { row.name.as_str() };
            let curve = history.of(row.measure).find(|(of, _)| *of == name).map(|(_, series)| series.points());
            let point = |point: &plimsoll_observer::recording::Point| PointJson {
                time_ms: point.begin_ns.div_euclid(1_000_000),
                value: point.mean(),
                min: point.min,
                max: point.max,
            };
            series.push(SeriesJson {
                section: section.id,
                measure: row.measure.id(),
                unit: if row.measure == Measure::LiveCount { "blocks" } else { "bytes" },
                figures: numbers(&row.figures),
                error_bytes: row.error,
                points: curve.unwrap_or_default().iter().map(point).collect(),
                name: row.name,
                _history: std::marker::PhantomData,
            });
        }
    }
    let chunk = |chunk: &plimsoll_jfr::reader::ChunkSummary| Chunk {
        file: chunk.file.as_ref().map(|file| file.display().to_string()),
        offset: chunk.offset,
        bytes: chunk.bytes,
        begin: time(chunk.begin_ns),
        end: time(chunk.end_ns),
        finished: chunk.is_finished,
    };
    let verdicts = history.verdicts.iter().map(|span| Verdict {
        id: &span.id,
        severity: &span.severity,
        first: time(span.first_ns),
        last: time(span.last_ns),
        held_ms: span.held_ns / 1_000_000,
        first_bytes: span.first_bytes.0,
        last_bytes: span.last_bytes.0,
        most_bytes: span.most_bytes.0,
        summary: &span.summary,
        remedy: &span.remedy,
        origin: if span.is_derived { "derived" } else { "recorded" },
    });
    let report = RecordingDocument {
        schema: SCHEMA,
        process: process(history),
        ended: history.ending.as_ref().map(|(ending, time)| EndedLine::of(ending, *time)),
        begin: time(history.begin_ns),
        end: time(history.end_ns),
        from: time(history.from_ns),
        to: time(history.to_ns),
        chunks: history.chunks.iter().map(chunk).collect(),
        events: history.counts.values().sum(),
        provenance_age_ms: history
            .of(Measure::Age)
            .find_map(|(_, series)| Some(series.figures()?.max / 1_000_000))
            .unwrap_or(0),
        series,
        limit_groups: history.limit_groups.iter().map(limit_group).collect(),
        verdicts: verdicts.collect(),
        gaps: gaps(history),
        more_gaps: history.more_gaps,
    };
    crate::json_lines::write_indented(out, &report)
}

#[derive(Serialize)]
struct Diff<'h> {
    schema: &'static str,
    before: Side<'h>,
    after: Side<'h>,
    changes: Vec<ChangeLine>,
    /// Only in `compare`: null without stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    sites: Option<Option<DifferenceDocument<'h>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_sites: Option<&'h str>,
}

#[derive(Serialize)]
struct Side<'h> {
    process: Process<'h>,
    from: String,
    to: String,
    gaps: Vec<Gap<'h>>,
}

#[derive(Serialize)]
struct ChangeLine {
    section: &'static str,
    measure: &'static str,
    name: String,
    before: Option<Numbers>,
    after: Option<Numbers>,
    last_change: Option<i64>,
    max_change: Option<i64>,
    mean_change: Option<f64>,
}

/// `sites`: what changed in the stacks, or why there are none.
pub fn write_diff(
    out: &mut dyn Write,
    before: &History,
    after: &History,
    sites: Option<Result<&ProfileDiff, &str>>,
) -> io::Result<()> {
    let mut frames = FrameTable::default();
    let no_sites = sites.and_then(Result::err);
    let sites = sites.map(|of| of.ok().map(|diff| difference(diff, &mut frames)));
    let side = |history| -> Side<'_> {
        let history: &History = history;
        Side { process: process(history), from: time(history.from_ns), to: time(history.to_ns), gaps: gaps(history) }
    };
    let line = |(section, change): (&'static str, CurveChange)| ChangeLine {
        section,
        measure: change.measure.id(),
        last_change: change.of(|figures| figures.last),
        max_change: change.of(|figures| figures.max),
        mean_change: change.of_means(),
        before: change.before.as_ref().map(numbers),
        after: change.after.as_ref().map(numbers),
        name: change.name,
    };
    let all = changes(before, after).into_iter().flat_map(|(id, _, rows)| rows.into_iter().map(move |row| (id, row)));
    let diff = Diff {
        schema: DIFF_SCHEMA,
        before: side(before),
        after: side(after),
        changes: all.map(line).collect(),
        sites,
        no_sites,
    };
    crate::json_lines::write_indented(out, &diff)
}
