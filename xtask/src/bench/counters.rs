//! The counters in the segments of a tracked run.

use super::setup::segments;
use super::time_limit::must_within_limit;
use crate::stage::{Result, plimsoll};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sums over all processes of a run.
#[derive(Default)]
pub struct RunCounters {
    pub blocks: f64,
    /// Deep walks and their frames.
    pub walks: f64,
    pub frames: f64,
    /// Remembered stacks that were also walked (PLIMSOLL_CHECK=1), and those that disagreed.
    pub checks: f64,
    pub disagreements: f64,
}

impl RunCounters {
    /// Runs a program to its end with this value of `--sites`.
    pub fn of(program: &Path, arguments: &[String], sites: &str, check: bool) -> Result<RunCounters> {
        let mut counters = RunCounters::default();
        for segment in run(program, arguments, sites, check)? {
            let text = must_within_limit(Command::new(plimsoll()?).args(["report", "--format", "json"]).arg(&segment))?;
            let report: Value = serde_json::from_str(&text)?;
            let counter = |name: &str| -> Result<f64> {
                let mut counters = report["counters"].as_array().into_iter().flatten();
                let own =
                    counters.find(|counter| counter["name"] == name).ok_or_else(|| format!("no counter {name}"))?;
                Ok(own["value"].as_f64().ok_or("a counter without a value")?)
            };
            counters.blocks += report["total"]["cumulative_count"].as_f64().ok_or("no cumulative_count")?;
            counters.walks += counter("deep_walks")?;
            counters.frames += counter("deep_frames")?;
            counters.checks += counter("memo_checks")?;
            counters.disagreements += counter("memo_disagreements")?;
            fs::remove_file(segment)?;
        }
        Ok(counters)
    }
}

/// The segments that a run left, in a directory of its own.
pub fn run(program: &Path, arguments: &[String], sites: &str, check: bool) -> Result<Vec<PathBuf>> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let folder = segments()?.join(format!("counters-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    let mut command = Command::new(plimsoll()?);
    command.args(["run", "--follow", "--report", "none", "--sites", sites, "--dir"]).arg(&folder);
    command.arg("--").arg(program).args(arguments).stdin(Stdio::null());
    must_within_limit(command.env("PLIMSOLL_CHECK", if check { "1" } else { "0" }))?;
    Ok(fs::read_dir(&folder)?.collect::<std::io::Result<Vec<_>>>()?.iter().map(fs::DirEntry::path).collect())
}
