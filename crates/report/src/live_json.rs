//! Schema `plimsoll.live-trial/1`, documented in docs/json.md. Fields are only ever added.

use std::io::{self, Write};

use plimsoll_trial::live::{LiveTrial, Most, Tried};
use serde::Serialize;

use crate::live_text;
use crate::trial_json::Predicted;

pub const SCHEMA: &str = "plimsoll.live-trial/1";

#[derive(Serialize)]
struct Document<'t> {
    schema: &'static str,
    pid: u32,
    command: &'t str,
    idle_seconds: f64,
    interrupted: bool,
    steps: Vec<Step<'t>>,
    most: Advice<'t>,
    notes: &'t [String],
}

#[derive(Serialize)]
struct Step<'t> {
    name: &'t str,
    commands: &'t [String],
    /// Why the step was not done.
    missing: Option<&'t str>,
    before_bytes: Option<u64>,
    after_bytes: Option<u64>,
    idle_bytes: Option<u64>,
    difference_bytes: Option<i64>,
    predicted_saving: Option<Predicted>,
    lines: Vec<Line<'t>>,
    set_back: Vec<Flag<'t>>,
}

#[derive(Serialize)]
struct Line<'t> {
    id: &'t str,
    name: &'t str,
    change_bytes: i64,
}

#[derive(Serialize)]
struct Flag<'t> {
    flag: &'t str,
    value: &'t str,
}

#[derive(Serialize)]
struct Advice<'t> {
    step: Option<&'t str>,
    /// `saves`, `nothing`, `no-step`.
    kind: &'static str,
    saved_bytes: Option<u64>,
    text: String,
}

pub fn write(out: &mut dyn Write, trial: &LiveTrial) -> io::Result<()> {
    let (step, kind, saved_bytes) = match trial.most() {
        Most::Saves(at, saved) => (Some(trial.steps[at].label.as_str()), "saves", Some(saved)),
        Most::Nothing => (None, "nothing", None),
        Most::NoStep => (None, "no-step", None),
    };
    let document = Document {
        schema: SCHEMA,
        pid: trial.pid,
        command: &trial.command,
        idle_seconds: trial.idle_seconds,
        interrupted: trial.interrupted,
        steps: trial.steps.iter().map(self::step).collect(),
        most: Advice { step, kind, saved_bytes, text: live_text::most(trial) },
        notes: &trial.notes,
    };
    crate::json_lines::write_indented(out, &document)
}

fn step(step: &Tried) -> Step<'_> {
    Step {
        name: &step.label,
        commands: &step.commands,
        missing: step.missing.as_deref(),
        before_bytes: step.before,
        after_bytes: step.after,
        idle_bytes: step.idle,
        difference_bytes: step.difference(),
        predicted_saving: step.predicted.map(Predicted::from),
        lines: step.lines.iter().map(|(id, name, change)| Line { id, name, change_bytes: *change }).collect(),
        set_back: step.set_back.iter().map(|one| Flag { flag: &one.name, value: &one.value }).collect(),
    }
}
