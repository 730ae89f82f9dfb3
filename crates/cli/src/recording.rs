//! `report` and `diff` of flight recordings: which range, and in which form.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValue;
use plimsoll_observer::recording::{Bound, History, Range};
use plimsoll_profiles::jfr::{RecordingFiles, is_recording};
use plimsoll_report::recording_chart::{self as charts, Chart};
use plimsoll_report::{recording_diff, recording_json, recording_text, words};

use crate::Failure;
use crate::output::{Format, shown, to_output};

#[derive(Default, clap::Args)]
pub struct Options {
    /// Start a recording's range here: 2026-11-20T21:40:03Z, 21:40 (UTC), +10m (from the beginning), -5m (from the end)
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    from: Option<Bound>,
    /// End a recording's range here
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    to: Option<Bound>,
}

#[derive(clap::Args)]
pub struct ChartOption {
    /// Write a chart of a recording as SVG
    #[arg(long, value_enum, value_name = "NAME")]
    chart: Option<ChartName>,
}

#[derive(Clone, Copy)]
struct ChartName(Chart);

impl clap::ValueEnum for ChartName {
    fn value_variants<'a>() -> &'a [ChartName] {
        const NAMES: [ChartName; Chart::ALL.len()] = {
            let mut names = [ChartName(Chart::RssGap); Chart::ALL.len()];
            let mut i = 0;
            while i < names.len() {
                names[i] = ChartName(Chart::ALL[i]);
                i += 1;
            }
            names
        };
        &NAMES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.help()))
    }
}

impl Options {
    pub fn are_given(&self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// The bounds that were given, in nanoseconds since the epoch.
    pub fn bounds(&self, recording: &RecordingFiles, target: &Path) -> Result<(Option<i64>, Option<i64>), Failure> {
        let chunks = recording.chunks();
        let begin = chunks.iter().map(|chunk| chunk.begin_ns).min();
        let (Some(begin), Some(end)) = (begin, chunks.iter().map(|chunk| chunk.end_ns).max()) else {
            return Err(format!("'{}' holds no chunk of a flight recording", shown(target)).into());
        };
        let (from, to) = Range { from: self.from, to: self.to }.resolve(begin, end)?;
        Ok((self.from.map(|_| from), self.to.map(|_| to)))
    }

    pub fn read(&self, target: &Path) -> Result<History, Failure> {
        let recording = RecordingFiles::open(target).map_err(|gap| words::printable(&gap.reason))?;
        let range = Range { from: self.from, to: self.to };
        let history = History::read(&recording, range);
        history.map_err(|e| format!("'{}': {e}", shown(target)).into())
    }
}

impl ChartOption {
    pub fn is_given(&self) -> bool {
        self.chart.is_some()
    }
}

/// Whether the target is a flight recording, by the first bytes of the file; for a directory, of the files in it. A
/// number is a PID, even if a file has that name: in /tmp, any user may make one.
pub fn is_one(target: &Path) -> bool {
    let is_pid = target.to_str().is_some_and(|word| word.parse::<u32>().is_ok());
    !is_pid && is_recording(target)
}

/// Refuses a recording that its JVM has not written yet.
pub fn refuse_empty(target: &Path) -> Result<(), Failure> {
    let is_recording = target.extension().is_some_and(|extension| extension == "jfr");
    if !is_recording || !target.metadata().is_ok_and(|of| of.is_file() && of.len() == 0) {
        return Ok(());
    }
    let shown = shown(target);
    Err(format!(
        "'{shown}' is empty: a running JVM writes it at its end; jcmd PID JFR.dump filename={shown} writes it now"
    )
    .into())
}

/// The error for options that need a recording and a target that is not one. `options`: with their verb.
pub fn refuse(options: &str, target: &Path) -> Failure {
    format!("{options} a flight recording, and '{}' isn't one", shown(target)).into()
}

/// Refuses options that a chart would ignore.
pub fn refuse_beside_chart(format: Format, is_of_stacks: bool) -> Result<(), Failure> {
    if matches!(format, Format::Json | Format::Html) {
        return Err("--chart writes SVG: leave --format out".into());
    }
    if is_of_stacks {
        return Err("--chart draws curves of lines: leave --by, --focus, --measure and --weight out".into());
    }
    Ok(())
}

pub fn report(
    target: &Path,
    options: &Options,
    chart: &ChartOption,
    all: bool,
    (format, output): (Format, Option<&Path>),
) -> Result<ExitCode, Failure> {
    let history = options.read(target)?;
    let chart = match (chart.chart, format) {
        (Some(ChartName(chart)), Format::Text) => Some(chart),
        (None, Format::Text | Format::Json) => None,
        (chart, Format::Svg) => Some(chart.map_or_else(|| charts::default_chart(&history), |ChartName(chart)| chart)),
        _ => return Err("curves have --format text, json and svg; for stacks add --by site".into()),
    };
    if let Some(chart) = chart {
        let mut svg = vec![];
        charts::write(&mut svg, &history, chart).map_err(|e| e.to_string())??;
        to_output(output, |out| out.write_all(&svg))?;
        return Ok(ExitCode::SUCCESS);
    }
    to_output(output, |out| match format {
        Format::Json => recording_json::write(out, &history),
        _ => recording_text::write(out, &history, all, &shown(target)),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn diff(
    before: &Path,
    after: &Path,
    options: &Options,
    format: Format,
    output: Option<&Path>,
) -> Result<ExitCode, Failure> {
    for target in [before, after] {
        if !is_one(target) {
            let shown = shown(target);
            return Err(format!("'{shown}' isn't a flight recording: compare two recordings or two reports").into());
        }
    }
    let is_json = match format {
        Format::Text => false,
        Format::Json => true,
        _ => return Err("a diff of curves has --format text, json and svg; for stacks add --by site".into()),
    };
    let (before, after) = (options.read(before)?, options.read(after)?);
    to_output(output, |out: &mut dyn Write| match is_json {
        true => recording_json::write_diff(out, &before, &after, None),
        false => recording_diff::text(out, ["before", "after"], &before, &after),
    })?;
    Ok(ExitCode::SUCCESS)
}
