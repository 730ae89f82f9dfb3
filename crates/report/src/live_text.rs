//! `plimsoll try --pid` for a person: a table of RSS before and after each step, and what a step showed.

use std::io::{self, Write};

use plimsoll_facts::units::Bytes;
use plimsoll_trial::Metric;
use plimsoll_trial::live::{LiveTrial, Most, Tried};

use crate::trial_text::{figure, signed};
use crate::words::{cut, cut_apart, printable};

/// Columns of a step's name.
const NAME: usize = 36;

pub fn write(out: &mut dyn Write, trial: &LiveTrial) -> io::Result<()> {
    writeln!(out, "{}\n{}", cut(&trial.command, 120), facts(trial).join("   "))?;
    let heads = ["RSS before", "at once", "after idling", "difference", "expected"];
    write!(out, "\n{:<NAME$}", "step")?;
    for head in &heads[..4] {
        write!(out, " {head:>12}")?;
    }
    writeln!(out, "  {}", heads[4])?;
    let names = cut_apart(trial.steps.iter().map(|step| step.label.as_str()), NAME);
    for (step, name) in trial.steps.iter().zip(&names) {
        row(out, step, name)?;
    }
    for note in &trial.notes {
        writeln!(out, "note: {}", printable(note))?;
    }
    writeln!(out, "\n{}", most(trial))
}

fn row(out: &mut dyn Write, step: &Tried, name: &str) -> io::Result<()> {
    let figures = match step.missing {
        None => cells(step).map(|cell| format!(" {cell:>12}")).concat(),
        Some(_) => format!("{:52}", ""),
    };
    let line = format!("{name:<NAME$}{figures}  {}", expected(step));
    writeln!(out, "{}", line.trim_end())?;
    details(step).iter().try_for_each(|detail| writeln!(out, "  {}", printable(detail)))
}

/// Before, at once, after idling, difference.
pub(crate) fn cells(step: &Tried) -> [String; 4] {
    let bytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
    let difference = step.difference().map_or("-".to_owned(), |difference| signed(Metric::Idle, difference as f64));
    [bytes(step.before), bytes(step.after), bytes(step.idle), difference]
}

/// The saving that a verdict expected before the first step.
pub(crate) fn expected(step: &Tried) -> String {
    let Some((least, most)) = step.predicted else { return String::new() };
    let minus = |bytes: u64| signed(Metric::Idle, -(bytes as f64));
    if least == most { minus(least) } else { format!("{} to {}", minus(least), minus(most)) }
}

/// Sentences below a step: why it was not done, which memory changed, what was set back.
pub(crate) fn details(step: &Tried) -> Vec<String> {
    let mut all: Vec<String> = step.missing.iter().map(|reason| format!("not done: {reason}")).collect();
    let lines = step.lines.iter().map(|(_, name, change)| format!("{name} {}", signed(Metric::Idle, *change as f64)));
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        all.push(lines.join(", "));
    }
    let back: Vec<String> = step.set_back.iter().map(|one| format!("{}={}", one.name, one.value)).collect();
    if !back.is_empty() {
        all.push(format!("set back: {}", back.join(" ")));
    }
    all
}

/// The facts below the title.
pub(crate) fn facts(trial: &LiveTrial) -> Vec<String> {
    let idle = format!("RSS {} s after each step", trial.idle_seconds);
    let mut all = vec![format!("process {}", trial.pid), idle];
    if trial.interrupted {
        all.push("interrupted".into());
    }
    all
}

/// The step that saved most, and how long that lasts.
pub fn most(trial: &LiveTrial) -> String {
    let drift = trial.drift().map_or(String::new(), |drift| {
        format!(" While nothing was done, RSS moved by {}.", signed(Metric::Idle, drift as f64))
    });
    match trial.most() {
        Most::Saves(at, saved) => {
            let step = &trial.steps[at];
            let percent = saved as f64 / step.before.unwrap_or(1).max(1) as f64 * 100.0;
            format!(
                "most: {}: {} ({percent:.0} % of RSS).{drift} RSS may grow again, because the step was done once. A lasting saving needs a restart: {}",
                printable(&step.label),
                figure(Metric::Idle, saved as f64),
                printable(&trial.restart)
            )
        }
        Most::Nothing => format!("no step saved more than 1 % of RSS and more than RSS moved by itself.{drift}"),
        Most::NoStep => "no step was done".into(),
    }
}
