//! `plimsoll report`: what a tracked process holds.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_observer::allocation::slow_paths_of_mappings;
use plimsoll_observer::books::Runtime;
use plimsoll_observer::profile::{Focus, Focused, Profile};
use plimsoll_observer::rules::read as rules;
use plimsoll_observer::sites::{Sites, Wrappers};
use plimsoll_observer::symbols;
use plimsoll_report::profile::{self as print, View};
use plimsoll_report::{json, sites_text, words};

use crate::output::{By, Choice, Format, Style, Weigh, refuse_terminal, shown, to_output};
use crate::target::Target;
use crate::{Failure, allocation, instant, recording, target};

#[derive(clap::Args)]
pub struct Args {
    /// A PID, a segment file, a directory of segments (its newest), a saved JSON, or a flight recording (.jfr)
    target: PathBuf,
    #[command(flatten)]
    range: recording::Options,
    #[command(flatten)]
    chart: recording::ChartOption,
    /// What the lines are
    #[arg(long, value_enum, default_value = "category")]
    by: By,
    #[command(flatten)]
    stacks: Stacks,
    /// In whose manner the text is
    #[arg(long, value_enum, default_value = "plimsoll")]
    style: Style,
    /// Callers with their functions, and in HotSpot's style the mappings too
    #[arg(long)]
    detail: bool,
    /// Text for people, JSON (docs/json.md), or a view of the stacks
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// JSON with each frame once, in a table: schema plimsoll.report/2, a fraction of the size (docs/json.md)
    #[arg(long)]
    frame_table: bool,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What of the stacks is shown: options of `report` and `diff`.
#[derive(clap::Args)]
pub struct Stacks {
    /// Only what happened below functions or modules that match
    #[arg(long, value_name = "REGEX")]
    pub focus: Option<String>,
    /// Lines and boxes are sized by bytes or by the number of blocks or calls
    #[arg(long, value_enum, default_value = "bytes")]
    pub weight: Weigh,
    /// live, peak, cumulative, requested, temporary, reserved, committed, held (live and committed, without files), or
    /// mapped (by all calls of mmap); of a recording slow_path, object or sampled [default: held in lists, live in pictures; of calls cumulative]
    #[arg(long, value_name = "MEASURE")]
    pub measure: Option<String>,
    /// All lines and frames, however small
    #[arg(long)]
    pub all: bool,
    /// A file with symbols of a module, or a folder of them; may be given several times
    #[arg(long, value_name = "FILE|DIR")]
    pub symbols: Vec<PathBuf>,
    /// Category rules that are asked again with whole stacks and Java methods (docs/categories.md)
    #[arg(long, value_name = "FILE")]
    pub rules: Vec<PathBuf>,
}

impl Stacks {
    /// Whether something was asked for that only stacks can answer.
    pub fn are_asked_for(&self) -> bool {
        self.focus.is_some() || self.measure.is_some() || self.weight == Weigh::Calls
    }

    /// The target's named sites, with categories by deep frames where there are rules for them.
    pub fn sites(&self, target: &mut Target, by_thread: bool) -> Result<Sites, Failure> {
        let mut sites = target.sites(&target.symbols(&self.symbols), by_thread);
        if !self.rules.is_empty() || target.books.process.runtime == Runtime::NativeImage {
            let rules = rules::rules(&self.rules).map_err(|e| format!("--rules: {}", words::printable(&e)))?;
            sites.refine(&rules, &mut target.books);
        }
        Ok(sites)
    }

    /// `bytes`: the measure where none is given and bytes are wanted.
    pub fn measure<'a>(&'a self, bytes: &'a str) -> Option<&'a str> {
        let default = if self.weight == Weigh::Calls { "cumulative" } else { bytes };
        Some(self.measure.as_deref().unwrap_or(default))
    }

    pub fn column(&self, of: &Sites, bytes: &str) -> Result<usize, Failure> {
        Ok(View::new(&of.profile, self.measure(bytes), self.weight.weight())?.column)
    }

    /// Restricts the sites; second: what was left out.
    pub fn focused(&self, of: &mut Sites) -> Result<Option<Focused>, Failure> {
        self.focused_profile(&mut of.profile)
    }

    pub fn focused_profile(&self, of: &mut Profile) -> Result<Option<Focused>, Failure> {
        let Some(pattern) = &self.focus else { return Ok(None) };
        let focus = Focus::new(pattern).map_err(|e| format!("--focus {}: {e}", words::printable(pattern)))?;
        let focused = of.focus(&focus);
        *of = focused.profile.clone();
        Ok(Some(focused))
    }
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    refuse_terminal(args.format, args.output.as_deref())?;
    if args.frame_table && (args.format != Format::Json || recording::is_one(&args.target)) {
        return Err("--frame-table needs --format json, and a process, a segment or a saved report".into());
    }
    if recording::is_one(&args.target) {
        if args.format == Format::Jfr {
            return Err(format!("'{}' is a flight recording already", shown(&args.target)).into());
        }
        if !args.chart.is_given() && allocation::is_asked_for(args.by, &args.stacks, args.format) {
            let (by, format, output) = (args.by, args.format, args.output.as_deref());
            return allocation::report(&args.target, &args.range, by, &args.stacks, format, output);
        }
        return recording::report(&args.target, &args.range, &args.chart, args.format, args.output.as_deref());
    }
    if args.range.are_given() || args.chart.is_given() {
        return Err(recording::refuse(&args.target));
    }
    if args.by == By::Class {
        return Err("--by class needs a flight recording: native blocks have no class".into());
    }
    let mut target = target::open(&args.target)?;
    let choice = Choice { style: args.style, format: args.format, by: args.by, detail: args.detail };
    let of_sites = args.by.lines().is_none() || args.stacks.are_asked_for();
    match args.format {
        Format::Text if !of_sites => {
            if !args.stacks.rules.is_empty() {
                args.stacks.sites(&mut target, false)?;
            }
            if choice.wants_symbols() {
                let names = target.symbols(&args.stacks.symbols);
                symbols::resolve(&mut target.books, &names);
            }
            to_output(args.output.as_deref(), |out| choice.write(out, &target.books))?;
        }
        Format::Json if args.stacks.focus.is_none() => {
            let named = choice.wants_symbols() || args.by.lines().is_none() || !args.stacks.rules.is_empty();
            let names = symbols::Options { without: !named, ..target.symbols(&args.stacks.symbols) };
            let sites = if named {
                symbols::resolve(&mut target.books, &names);
                args.stacks.sites(&mut target, false)?
            } else {
                target.sites(&names, false)
            };
            let frames = if args.frame_table { json::Frames::InTable } else { json::Frames::InSites };
            to_output(args.output.as_deref(), |out| json::write(out, &target.books, Some(&sites), frames))?;
        }
        Format::Jfr => {
            if args.stacks.are_asked_for() {
                return Err(
                    "--format jfr writes all sites and measures: leave --focus, --measure and --weight out".into()
                );
            }
            let sites = args.stacks.sites(&mut target, false)?;
            let bytes = instant::recording(&target, &sites).map_err(|e| e.to_string())?;
            to_output(args.output.as_deref(), |out| out.write_all(&bytes))?;
        }
        _ => stacks(&args, &mut target)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Views of the sites.
fn stacks(args: &Args, target: &mut Target) -> Result<(), Failure> {
    if args.style != Style::Plimsoll {
        return Err("--style hotspot and native-image show no stacks: leave it out".into());
    }
    let mut sites = args.stacks.sites(target, args.by == By::Thread)?;
    if !matches!(args.format, Format::Json | Format::Pprof) {
        without_wrappers(&mut sites)?;
    }
    let focused = args.stacks.focused(&mut sites)?;
    let default = if args.format == Format::Text { "held" } else { "live" };
    let mut view = View::new(&sites.profile, args.stacks.measure(default), args.stacks.weight.weight())?;
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
        match args.format {
            Format::Text if args.by == By::Site => {
                let choice = sites_text::Choice { column, focus, all: args.stacks.all };
                sites_text::write(out, &target.books, &sites, choice)
            }
            Format::Tree => print::text::write(out, &view, plimsoll_observer::profile::By::Site, args.stacks.all),
            Format::Text => print::text::write(out, &view, args.by.groups(), args.stacks.all),
            format => return drawn(out, &view, format),
        }?;
        if calls > 0 { plimsoll_report::allocation::mapped_slow_paths(out, calls, bytes) } else { Ok(()) }
    })
}

/// The formats that are the same for any profile.
pub fn drawn(out: &mut dyn Write, view: &View, format: Format) -> io::Result<()> {
    match format {
        Format::Json => print::json::write(out, view),
        Format::Folded => print::folded::write(out, view),
        Format::Svg => print::svg::write(out, view),
        Format::Pprof => print::pprof::write(out, view),
        Format::Html => print::html::write(out, view),
        // A recording is of books, and none of their views.
        Format::Text | Format::Tree | Format::Jfr => {
            print::text::write(out, view, plimsoll_observer::profile::By::Site, false)
        }
    }
}

/// Leaves out the allocator's own frames: who asked for the memory comes first.
pub fn without_wrappers(sites: &mut Sites) -> Result<(), Failure> {
    let rules = rules::rules(&[])?;
    let mut wrappers = Wrappers::new(&rules);
    *sites = sites.trimmed(|profile, frames| wrappers.leading(profile, frames));
    Ok(())
}
