//! `report` and `diff` of the stacks in a recording: who holds native memory (Plimsoll's recordings), who allocates
//! Java objects (a VM's).

use std::path::Path;
use std::process::ExitCode;

use plimsoll_observer::recording::{RecordedSites, sites};
use plimsoll_profiles::allocation::{self, Allocations, Choice, comparable};
use plimsoll_profiles::jfr::RecordingFiles;
use plimsoll_profiles::profile::{Focus, Profile, ProfileDiff};
use plimsoll_report::profile::Shape;
use plimsoll_report::{allocation as print, words};
use plimsoll_tracked::sites::comparable_recorded;

use crate::Failure;
use crate::output::{By, Format, shown, to_output};
use crate::recording;
use crate::stack_options::Stacks;

/// Whether the options select stacks rather than the curves of native memory.
pub fn is_requested(by: By, stacks: &Stacks, format: Format) -> bool {
    let of_stacks = format.exporter().is_ok_and(|exporter| exporter.is_of_stacks);
    !matches!(by, By::Category) || stacks.are_requested() || of_stacks
}

/// A recording has the names that its recorder found.
const RECORDED: &str = "";

pub fn report(
    target: &Path,
    range: &recording::Options,
    by: By,
    stacks: &Stacks,
    format: Format,
    output: Option<&Path>,
) -> Result<ExitCode, Failure> {
    if let Some(mut sites) = own_sites(target, range)? {
        if by == By::Thread {
            // The recorder writes a site once, not once for each thread: that would multiply the size of the recording.
            return Err("a recording doesn't divide sites by threads: plimsoll report PID --by thread does; here use \
                        class, site, package, module or caller"
                .into());
        }
        let focused = stacks.focused_profile(&mut sites, RECORDED)?;
        let mut view = stacks.view(&sites, stacks.measure("live"))?;
        if let (Some(pattern), Some(focused)) = (&stacks.focus, &focused) {
            view = view.focused(pattern, &focused.left_out);
        }
        let by = if by == By::Category { By::Site } else { by };
        let exporter = format.exporter()?;
        to_output(output, |out| (exporter.view)(out, &view, Shape { by: by.groups(), all: stacks.all }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if by == By::Module {
        return Err("--by module: Java code has no modules here; use site, package, class, thread or caller".into());
    }
    let mut of = read(target, range, stacks)?;
    let measure = stacks.measure.as_deref().unwrap_or(of.measure()).replace('-', "_");
    if format != Format::Text {
        of.profile.title = print::heading(&of);
    }
    let mut view = stacks.view(&of.profile, Some(&measure))?;
    if stacks.measure.is_some() {
        recorded(&of, view.column, target)?;
    }
    if let Some(pattern) = &stacks.focus {
        view = view.focused(pattern, &of.left_out);
    }
    // Recordings have no categories, so the default is the tree.
    let by = if by == By::Category { By::Site } else { by };
    let exporter = format.exporter()?;
    to_output(output, |out| match format {
        Format::Text => print::write(out, &of, &view, by.groups(), stacks.all),
        Format::Json => print::write_json(out, &of, &view),
        _ => (exporter.view)(out, &view, Shape { by: by.groups(), all: stacks.all }),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub fn diff(
    of: [&Path; 2],
    range: &recording::Options,
    stacks: &Stacks,
    format: Format,
    output: Option<&Path>,
) -> Result<ExitCode, Failure> {
    let (changes, exporter) = (changes(of, range, stacks)?, format.exporter()?);
    to_output(output, |out| (exporter.diff)(out, &changes, stacks.all))?;
    Ok(ExitCode::SUCCESS)
}

/// The stacks of two recordings: who holds native memory, or who allocates Java objects.
pub fn changes(
    [before, after]: [&Path; 2],
    range: &recording::Options,
    stacks: &Stacks,
) -> Result<ProfileDiff, Failure> {
    let of_ours = (own_sites(before, range)?, own_sites(after, range)?);
    if of_ours.0.is_some() != of_ours.1.is_some() {
        return Err(
            "one of them has call sites of native memory, the other allocations of Java objects: these can't be \
                    compared"
                .into(),
        );
    }
    if let (Some(mut before), Some(mut after)) = of_ours {
        stacks.focused_profile(&mut before, RECORDED)?;
        stacks.focused_profile(&mut after, RECORDED)?;
        let column = stacks.view(&after, stacks.measure("live"))?.column;
        let (before, after) = comparable_recorded(&before, &after);
        return Ok(ProfileDiff::new((&before, column), (&after, column)));
    }
    let files = [before, after];
    let (before, after) = (read(before, range, stacks)?, read(after, range, stacks)?);
    // Slow paths and samples are not comparable: if the two recordings differ, compare the samples, which both have.
    let default = if before.measure() == after.measure() { before.measure() } else { "sampled" };
    let measure = stacks.measure.as_deref().unwrap_or(default).replace('-', "_");
    let column = stacks.view(&after.profile, Some(&measure))?.column;
    if stacks.measure.is_some() {
        recorded(&before, column, files[0])?;
        recorded(&after, column, files[1])?;
    }
    let lack = [lacking(&before, column, files[0]), lacking(&after, column, files[1])];
    match &lack {
        [Some(why), None] => return Err(only_in_one(why, files[1])),
        [None, Some(why)] => return Err(only_in_one(why, files[0])),
        _ => {}
    }
    let [of_before, of_after] = [&before, &after].map(comparable);
    let mut changes = ProfileDiff::new((&of_before, column), (&of_after, column));
    changes.profile.title = {
        let (before, after) = (print::heading(&before), print::heading(&after));
        format!("{after}; before: {}", before.trim_start_matches("allocations of "))
    };
    Ok(changes)
}

/// Refuses a measure whose events the recording lacks: its zeros would look like figures.
fn recorded(of: &Allocations, column: usize, target: &Path) -> Result<(), Failure> {
    let measure = of.profile.columns[column].measure.replace('_', "-");
    lacking(of, column, target).map_or(Ok(()), |why| Err(format!("--measure {measure}: {why}").into()))
}

/// A clause if the recording lacks the events of the measure.
fn lacking(of: &Allocations, column: usize, target: &Path) -> Option<String> {
    let column = &of.profile.columns[column];
    let events = || match column.measure {
        "sampled" => allocation::SAMPLE.to_owned(),
        _ => format!("{} and no {}", allocation::IN_NEW_TLAB, allocation::OUTSIDE_TLAB),
    };
    (!column.is_recorded).then(|| format!("'{}' has no {}", shown(target), events()))
}

/// An error if the measures differ: all stacks would seem new, or gone.
fn only_in_one(why: &str, other: &Path) -> Failure {
    Failure(format!("{why}, but '{}' has: such allocations can't be compared", shown(other)))
}

/// Native memory by call site, if Plimsoll wrote the recording.
fn own_sites(target: &Path, range: &recording::Options) -> Result<Option<Profile>, Failure> {
    let recording = RecordingFiles::open(target).map_err(|gap| words::printable(&gap.reason))?;
    let (_, to_ns) = range.bounds(&recording, target)?;
    let shown = shown(target);
    match sites(&recording, to_ns) {
        RecordedSites::Foreign => Ok(None),
        RecordedSites::Of(mut profile) => {
            profile.title += &format!(", at {}", words::moment_text(profile.time_ns));
            Ok(Some(*profile))
        }
        RecordedSites::None { later_ns: Some(later), .. } => {
            let first = words::moment_text(u64::try_from(later).unwrap_or(0));
            Err(format!("'{shown}' has no call sites before --to: its first are from {first}").into())
        }
        RecordedSites::None { mode, .. } if mode == "untracked" => Err(format!(
            "'{shown}' has no call sites: its process was recorded without the tracker. Let plimsoll record start the \
             program, or run plimsoll attach before it"
        )
        .into()),
        // What could not be read may have held the sites.
        RecordedSites::None { gaps, .. } if !gaps.is_empty() => {
            let flaws: Vec<String> = gaps.iter().map(|gap| words::printable(&gap.reason)).collect();
            Err(format!("'{shown}' has no call sites that can be read: {}", flaws.join("; ")).into())
        }
        RecordedSites::None { .. } => Err(format!("'{shown}' has no call sites").into()),
    }
}

fn read(target: &Path, range: &recording::Options, stacks: &Stacks) -> Result<Allocations, Failure> {
    let recording = RecordingFiles::open(target).map_err(|gap| words::printable(&gap.reason))?;
    let (from_ns, to_ns) = range.bounds(&recording, target)?;
    let focus = stacks
        .focus
        .as_deref()
        .map(|pattern| Focus::new(pattern).map_err(|e| format!("--focus {}: {e}", words::printable(pattern))));
    let focus = focus.transpose()?;
    Ok(allocation::read(&recording, Choice { from_ns, to_ns, focus: focus.as_ref() }))
}
