//! `--format html`: one page of a process, a segment, a saved JSON or a recording.

use std::path::Path;
use std::process::ExitCode;

use plimsoll_observer::recording::{History, sites_over_time};
use plimsoll_process::foreign::Deadline;
use plimsoll_profiles::jfr::RecordingFiles;
use plimsoll_report::ledger_json;
use plimsoll_report::ledger_text::Explanation;
use plimsoll_report::page::{self, Page};
use plimsoll_tracked::symbols;

use crate::Failure;
use crate::output::{shown, to_output};
use crate::stack_options::{Stacks, without_wrappers};
use crate::target::{self, TrackedTarget};

/// Moments of a recording whose call sites the page has.
const MOMENTS: usize = 48;

/// The page of a ledger. If the process is tracked, it has its call stacks too.
pub fn of_explanation(
    explanation: &Explanation,
    output: Option<&Path>,
    deadline: Deadline,
) -> Result<ExitCode, Failure> {
    written(&explained(explanation, deadline)?, output)
}

pub fn explained(explanation: &Explanation, deadline: Deadline) -> Result<Page, Failure> {
    let mut page = page::of_ledger(&ledger_json::document(explanation));
    let pid = explanation.snapshot.process.pid.to_string();
    // Without a tracker, the ledger is the whole page.
    if let Ok(mut target) = target::open(Path::new(&pid), deadline) {
        let profile = named_sites(&mut target, &Stacks::default())?;
        page::add(&mut page, &target.books, profile);
    }
    Ok(page)
}

/// The page of a process, a segment or a saved report.
pub fn of_target(
    target: &Path,
    stacks: &Stacks,
    output: Option<&Path>,
    deadline: Deadline,
) -> Result<ExitCode, Failure> {
    if let Some(ledger) = saved_ledger(target, deadline) {
        return written(&page::of_ledger(&ledger), output);
    }
    let mut target = target::open(target, deadline)?;
    let profile = named_sites(&mut target, stacks)?;
    written(&page::of_books(&target.books, profile), output)
}

pub fn of_recording(history: &History, target: &Path, output: Option<&Path>) -> Result<ExitCode, Failure> {
    let mut page = page::of_recording(history);
    let recording = RecordingFiles::open(target).map_err(|gap| shown(Path::new(&gap.reason)))?;
    if let Some(sites) = sites_over_time(&recording, (history.from_ns, history.to_ns), MOMENTS) {
        page::add_sites(&mut page, sites);
    }
    written(&page, output)
}

fn named_sites(target: &mut TrackedTarget, stacks: &Stacks) -> Result<plimsoll_profiles::profile::Profile, Failure> {
    let names = target.symbols(&stacks.symbols);
    symbols::resolve(&mut target.books, &names, target.deadline);
    let mut sites = stacks.sites(target, false)?;
    without_wrappers(&mut sites)?;
    Ok(sites.profile)
}

/// A file that `explain --format json` wrote; None for any other target.
fn saved_ledger(target: &Path, deadline: Deadline) -> Option<ledger_json::Ledger> {
    // A number is a PID, and a pipe can be read only once.
    if target.to_str().is_some_and(|target| target.parse::<u32>().is_ok()) || !target.is_file() {
        return None;
    }
    ledger_json::parse(&target::saved(target, deadline).ok()??).ok()
}

fn written(page: &Page, output: Option<&Path>) -> Result<ExitCode, Failure> {
    to_output(output, |out| page::write(out, page))?;
    Ok(ExitCode::SUCCESS)
}
