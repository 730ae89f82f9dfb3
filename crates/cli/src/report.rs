//! `plimsoll report`: what a tracked process holds.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_profiles::allocation::slow_paths_of_mappings;
use plimsoll_report::profile::Shape;
use plimsoll_report::{json, sites_text};
use plimsoll_tracked::books::Runtime;
use plimsoll_tracked::symbols;

use crate::output::{By, Choice, Format, Style, Weigh, refuse_terminal, shown, to_output};
use crate::stack_options::{Stacks, without_wrappers};
use crate::target::TrackedTarget;
use crate::{Failure, allocation, jfr_report, page, process_argument, progress, recording, target};

#[derive(clap::Args)]
pub struct Args {
    /// A PID, a segment file, a directory of segments (its newest), a saved JSON, a flight recording (.jfr), or the
    /// name of a process
    #[arg(required_unless_present = "process", conflicts_with = "process")]
    target: Option<PathBuf>,
    /// Choose a process by PID, name or id of its container, even if a file has that name
    #[arg(short = 'p', long = "process", value_name = "PID|NAME|CONTAINER", allow_hyphen_values = true)]
    process: Option<OsString>,
    #[command(flatten)]
    range: recording::Options,
    #[command(flatten)]
    chart: recording::ChartOption,
    /// Choose what each line is
    #[arg(long, value_enum, default_value = "category")]
    by: By,
    #[command(flatten)]
    stacks: Stacks,
    /// Choose the layout of the text
    #[arg(long, value_enum, default_value = "plimsoll")]
    style: Style,
    /// Print callers with their functions; with --style hotspot also mappings
    #[arg(long)]
    detail: bool,
    /// Print text for people, JSON for programs, or a view of the stacks
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write each frame once, in a table: much smaller JSON, schema plimsoll.report/2
    #[arg(long)]
    frame_table: bool,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    refuse_terminal(args.format, args.output.as_deref())?;
    args.stacks.check()?;
    args.stacks.refuse_all(args.format)?;
    let path = match &args.process {
        Some(word) => PathBuf::from(process_argument::tracked_pid_of(word, "report")?.to_string()),
        None => process_argument::target(args.target.clone().unwrap_or_default(), "report")?,
    };
    recording::refuse_empty(&path)?;
    progress::begin(format_args!("reading '{}'", shown(&path)));
    if args.frame_table && (args.format != Format::Json || recording::is_one(&path)) {
        return Err("--frame-table needs --format json, and a process, a segment or a saved report".into());
    }
    // Options that choose stacks make the view of these stacks instead.
    let wants_page = args.format == Format::Html
        && args.by == By::Category
        && args.style == Style::Plimsoll
        && !args.stacks.are_requested();
    if recording::is_one(&path) {
        args.stacks.refuse_for_recording(args.style, args.detail)?;
        if args.format == Format::Jfr {
            return Err(format!("'{}' is a flight recording already", shown(&path)).into());
        }
        if args.chart.is_given() {
            let is_of_stacks = args.by != By::Category || args.stacks.are_requested();
            recording::refuse_beside_chart(args.format, is_of_stacks)?;
        }
        if !args.chart.is_given() && !wants_page && allocation::is_requested(args.by, &args.stacks, args.format) {
            let (by, format, output) = (args.by, args.format, args.output.as_deref());
            return allocation::report(&path, &args.range, by, &args.stacks, format, output);
        }
        if wants_page {
            let history = args.range.read(&path)?;
            return page::of_recording(&history, &path, args.output.as_deref());
        }
        let output = (args.format, args.output.as_deref());
        return recording::report(&path, &args.range, &args.chart, args.stacks.all, output);
    }
    if args.range.are_given() || args.chart.is_given() {
        return Err(recording::refuse("--from, --to and --chart need", &path));
    }
    args.format.refuse_style(args.style)?;
    args.stacks.refuse_beside_style(args.style, args.by)?;
    if args.detail && matches!(args.style, Style::NativeImage | Style::NativeImage23) {
        return Err(format!("--style {} has no callers: leave --detail out", args.style.name()).into());
    }
    if args.by == By::Class {
        return Err("--by class needs a flight recording: native blocks have no class".into());
    }
    let deadline = Deadline::after(NAMES);
    if wants_page {
        return page::of_target(&path, &args.stacks, args.output.as_deref(), deadline);
    }
    let mut target = target::open(&path, deadline)?;
    let choice = Choice { style: args.style, by: args.by, detail: args.detail, all: args.stacks.all };
    let of_sites = args.by.lines().is_none() || args.stacks.are_requested();
    match args.format {
        Format::Text if !of_sites => {
            if !args.stacks.rules.is_empty() {
                args.stacks.sites(&mut target, false)?;
            }
            if choice.wants_symbols() {
                let names = target.symbols(&args.stacks.symbols);
                symbols::resolve(&mut target.books, &names, target.deadline);
            }
            to_output(args.output.as_deref(), |out| choice.write(out, &target.books))?;
        }
        Format::Json if args.stacks.focus.is_none() => {
            let named = choice.wants_symbols() || args.by.lines().is_none() || !args.stacks.rules.is_empty();
            let names = symbols::SymbolOptions { without: !named, ..target.symbols(&args.stacks.symbols) };
            let sites = if named {
                symbols::resolve(&mut target.books, &names, target.deadline);
                args.stacks.sites(&mut target, false)?
            } else {
                target.sites(&names, false)
            };
            if args.stacks.are_requested() {
                // If the measure doesn't exist, this is the error.
                args.stacks.view(&sites.profile, args.stacks.measure("live"))?;
                return Err(
                    "--format json writes all sites and measures: leave --measure and --weight out, or add --focus"
                        .into(),
                );
            }
            let frames = if args.frame_table { json::Frames::InTable } else { json::Frames::InSites };
            to_output(args.output.as_deref(), |out| json::write(out, &target.books, Some(&sites), frames))?;
        }
        Format::Jfr => {
            if args.stacks.are_requested() {
                return Err(
                    "--format jfr writes all sites and measures: leave --focus, --measure and --weight out".into()
                );
            }
            let sites = args.stacks.sites(&mut target, false)?;
            let bytes = jfr_report::recording(&target, &sites).map_err(|e| e.to_string())?;
            to_output(args.output.as_deref(), |out| out.write_all(&bytes))?;
        }
        _ => stacks(&args, &mut target)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the views of the sites.
fn stacks(args: &Args, target: &mut TrackedTarget) -> Result<(), Failure> {
    if args.style != Style::Plimsoll {
        return Err("--style hotspot and native-image show no stacks: leave --style out".into());
    }
    if args.detail {
        return Err("--detail adds callers to a table of the books: leave it out where stacks are shown".into());
    }
    let mut sites = args.stacks.sites(target, args.by == By::Thread)?;
    let exporter = args.format.exporter()?;
    if !exporter.keeps_wrappers {
        without_wrappers(&mut sites)?;
    }
    let focused = args.stacks.focused(&mut sites)?;
    // Where the resident part of mappings isn't known, only live blocks are known to be held.
    let is_known = sites.is_resident_known;
    let default = if args.format == Format::Text && is_known { "held" } else { "live" };
    let mappings_apart = !is_known && args.stacks.measure.is_none() && args.stacks.weight == Weigh::Bytes;
    let mut view = args.stacks.view(&sites.profile, args.stacks.measure(default))?;
    args.stacks.refuse_unknown(&[(&sites, &target.books)])?;
    let column = view.column;
    if let (Some(pattern), Some(focused)) = (&args.stacks.focus, &focused) {
        view = view.focused(pattern, &focused.left_out);
    }
    let focus = args.stacks.focus.as_deref().zip(focused.as_ref());
    let (calls, bytes) = match target.books.process.runtime {
        Runtime::NativeImage => slow_paths_of_mappings(&sites.profile, "mapped"),
        _ => (0, None),
    };
    to_output(args.output.as_deref(), |out| {
        if args.format == Format::Text && args.by == By::Site {
            let choice = sites_text::Choice { column, focus, all: args.stacks.all, mappings_apart };
            sites_text::write(out, &target.books, &sites, choice)?;
        } else {
            (exporter.view)(out, &view, Shape { by: args.by.groups(), all: args.stacks.all })?;
            // Only text can end with a sentence.
            if !exporter.has_closing_lines {
                return Ok(());
            }
        }
        if calls > 0 { plimsoll_report::allocation::mapped_slow_paths(out, calls, bytes) } else { Ok(()) }
    })
}
