//! `plimsoll diff`: what changed between two moments of one process, or between two processes.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_profiles::profile::ProfileDiff;
use plimsoll_report::diff as print;
use plimsoll_tracked::diff::{NotBooked, diff};
use plimsoll_tracked::sites::{COMMITTED, FILES, comparable};
use plimsoll_tracked::symbols;

use crate::output::{By, Format, Style, hiding, refuse_terminal, shown, to_output};
use crate::stack_options::{Stacks, without_wrappers};
use crate::target::TrackedTarget;
use crate::{Failure, allocation, process_argument, progress, recording, target};

#[derive(clap::Args)]
pub struct Args {
    /// A saved JSON, a segment file, a directory of segments (its newest), a PID, a flight recording (.jfr), or the
    /// name of a process
    before: PathBuf,
    /// The later one, in any of these forms
    after: PathBuf,
    #[command(flatten)]
    range: recording::Options,
    /// Choose what each line is
    #[arg(long, value_parser = hiding(&[By::Package, By::Class, By::Thread]), default_value = "category")]
    by: By,
    #[command(flatten)]
    stacks: Stacks,
    /// Choose the layout of the text
    #[arg(long, value_parser = hiding(&[Style::NativeImage, Style::NativeImage23]), default_value = "plimsoll")]
    style: Style,
    /// Print text for people, JSON, or a view of the stacks
    #[arg(long, value_parser = hiding(&[Format::Jfr]), default_value = "text")]
    format: Format,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(mut args: Args) -> Result<ExitCode, Failure> {
    if args.format == Format::Jfr {
        return Err("a diff has no --format jfr: use plimsoll report TARGET --format jfr".into());
    }
    match args.by {
        By::Thread => {
            return Err("a diff has no --by thread, as threads can't be matched between two moments: use category, caller or module".into());
        }
        By::Package | By::Class => {
            return Err("compare stacks with --by site, tables with --by category, caller or module".into());
        }
        By::Category | By::Caller | By::Site | By::Module => {}
    }
    refuse_terminal(args.format, args.output.as_deref())?;
    args.stacks.check()?;
    args.stacks.refuse_all(args.format)?;
    args.before = process_argument::target(args.before, "diff")?;
    args.after = process_argument::target(args.after, "diff")?;
    recording::refuse_empty(&args.before)?;
    recording::refuse_empty(&args.after)?;
    progress::begin(format_args!("reading '{}' and '{}'", shown(&args.before), shown(&args.after)));
    if recording::is_one(&args.before) || recording::is_one(&args.after) {
        let both = recording::is_one(&args.before) && recording::is_one(&args.after);
        if both {
            args.stacks.refuse_for_recording(args.style, false)?;
            if matches!(args.by, By::Caller | By::Module) {
                return Err("two recordings are compared stack by stack: use --by site".into());
            }
        }
        if both && (args.format == Format::Svg || allocation::is_requested(args.by, &args.stacks, args.format)) {
            let (targets, output) = ([args.before.as_path(), args.after.as_path()], args.output.as_deref());
            return allocation::diff(targets, &args.range, &args.stacks, args.format, output);
        }
        return recording::diff(&args.before, &args.after, &args.range, args.format, args.output.as_deref());
    }
    if args.range.are_given() {
        return Err(recording::refuse("--from and --to need", &args.before));
    }
    if matches!(args.style, Style::NativeImage | Style::NativeImage23) {
        return Err("a diff has no --style native-image, as Native Image prints none: use plimsoll or hotspot".into());
    }
    args.format.refuse_style(args.style)?;
    args.stacks.refuse_beside_style(args.style, args.by)?;
    let deadline = Deadline::after(NAMES);
    let mut before = target::open(&args.before, deadline)?;
    let mut after = target::open(&args.after, deadline)?;
    let of_sites = args.by.lines().is_none() || args.stacks.are_requested();
    if of_sites || !matches!(args.format, Format::Text | Format::Json) {
        return stacks(&args, &mut before, &mut after);
    }
    if args.by == By::Caller {
        for target in [&mut before, &mut after] {
            let names = target.symbols(&args.stacks.symbols);
            symbols::resolve(&mut target.books, &names, deadline);
        }
    }
    let (before, after) = (before.books, after.books);
    let changes = diff(&before, &after);
    to_output(args.output.as_deref(), |out| match (args.format, args.style) {
        (Format::Json, _) => print::json(out, &before, &after, &changes),
        (_, Style::Hotspot) => print::hotspot(out, &before, &after),
        _ => print::text(out, &before, &after, &changes, args.by.lines().unwrap_or_default(), args.stacks.all),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Compares site by site: new, grown, shrunk, or only noise of the estimates.
fn stacks(args: &Args, before: &mut TrackedTarget, after: &mut TrackedTarget) -> Result<ExitCode, Failure> {
    if args.style != Style::Plimsoll {
        return Err("--style hotspot shows no stacks: leave --style out".into());
    }
    if !matches!(args.by, By::Site | By::Category) {
        return Err("compare stacks with --by site, tables with --by category, caller or module".into());
    }
    let exporter = args.format.exporter()?;
    let not_booked = NotBooked::of(&before.books, &after.books).filter(|_| args.format == Format::Text);
    let mut both = [args.stacks.sites(&mut *before, false)?, args.stacks.sites(&mut *after, false)?];
    // `report --format json` saves no names unless it prints sites.
    let [first, second] = &mut both;
    first.take_names(second);
    second.take_names(first);
    for sites in &mut both {
        without_wrappers(sites)?;
        args.stacks.focused(sites)?;
    }
    let books = [&before.books, &after.books];
    // Resident bytes must be known at both moments: committed bytes can't replace them.
    let is_known = both.iter().all(|sites| sites.is_resident_known);
    let column = args.stacks.column(&both[1], if is_known { "held" } else { "live" })?;
    args.stacks.refuse_unknown(&[(&both[0], books[0]), (&both[1], books[1])])?;
    let (before, after) = comparable(&both[0], &both[1]);
    let mappings = [COMMITTED, FILES].map(|column| [&before, &after].map(|profile| profile.total()[column].amount));
    let changes = ProfileDiff::new((&before, column), (&after, column));
    to_output(args.output.as_deref(), |out| {
        (exporter.diff)(out, &changes, args.stacks.all)?;
        if !is_known && args.stacks.measure.is_none() && args.format == Format::Text {
            print::mappings_apart(out, mappings, &books)?;
        }
        print::not_booked(out, not_booked.as_ref())
    })?;
    Ok(ExitCode::SUCCESS)
}
