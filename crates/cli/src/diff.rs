//! `plimsoll diff`: what changed between two moments of one process, or between two processes.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_observer::diff::diff;
use plimsoll_observer::symbols;
use plimsoll_report::diff as print;

use crate::output::{By, Format, Style, to_output};
use crate::{Failure, target};

#[derive(clap::Args)]
pub struct Args {
    /// A saved JSON, a segment file, a directory of segments (its newest), or a PID
    before: String,
    /// The same
    after: String,
    /// What the lines are
    #[arg(long, value_enum, default_value = "category")]
    by: By,
    /// In whose manner the text is
    #[arg(long, value_enum, default_value = "plimsoll")]
    style: Style,
    /// Text for people, or JSON
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if matches!(args.style, Style::NativeImage | Style::NativeImage23) {
        return Err("--style native-image has no diff: Native Image prints none; use plimsoll or hotspot".into());
    }
    if args.by == By::Thread {
        return Err("--by thread: threads can't be matched between two moments; use category, caller or module".into());
    }
    let mut before = target::open(&args.before)?;
    let mut after = target::open(&args.after)?;
    if args.by == By::Caller {
        symbols::resolve(&mut before.books, before.live_pid);
        symbols::resolve(&mut after.books, after.live_pid);
    }
    let (before, after) = (before.books, after.books);
    let changes = diff(&before, &after);
    to_output(args.output.as_deref(), |out| match (args.format, args.style) {
        (Format::Json, _) => print::json(out, &before, &after, &changes),
        (Format::Text, Style::Hotspot) => print::hotspot(out, &before, &after),
        (Format::Text, _) => print::text(out, &before, &after, &changes, args.by.lines()),
    })?;
    Ok(ExitCode::SUCCESS)
}
