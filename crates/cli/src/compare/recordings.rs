//! `plimsoll compare A.jfr B.jfr`: the curves of two recordings, then the stacks that hold or allocate more.

use std::path::Path;
use std::process::ExitCode;

use plimsoll_report::{profile, recording_diff, recording_json};

use crate::output::to_output;
use crate::recording::Options;
use crate::stack_options::Stacks;
use crate::{Failure, allocation};

pub fn compare(of: [&Path; 2], is_json: bool, output: Option<&Path>) -> Result<ExitCode, Failure> {
    let range = Options::default();
    let (before, after) = (range.read(of[0])?, range.read(of[1])?);
    let changes = allocation::changes(of, &range, &Stacks::default());
    if is_json {
        let sites = changes.as_ref().map_err(|Failure(why)| why.as_str());
        to_output(output, |out| recording_json::write_diff(out, &before, &after, Some(sites)))?;
        return Ok(ExitCode::SUCCESS);
    }
    to_output(output, |out| {
        recording_diff::text(out, ["A", "B"], &before, &after)?;
        writeln!(out)?;
        match &changes {
            Ok(changes) => (profile::TREE.diff)(out, changes, false),
            Err(Failure(why)) => writeln!(out, "no call stacks: {why}"),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
