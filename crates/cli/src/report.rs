//! `plimsoll report`: what a tracked process holds.

use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll_observer::symbols;

use crate::output::{By, Choice, Format, Style, to_output};
use crate::{Failure, target};

#[derive(clap::Args)]
pub struct Args {
    /// A PID, a segment file, a directory of segments (its newest), or a saved JSON
    target: String,
    /// What the lines are
    #[arg(long, value_enum, default_value = "category")]
    by: By,
    /// In whose manner the text is
    #[arg(long, value_enum, default_value = "plimsoll")]
    style: Style,
    /// Callers with their functions, and in HotSpot's style the mappings too
    #[arg(long)]
    detail: bool,
    /// Text for people, or JSON (docs/json.md)
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut target = target::open(&args.target)?;
    let choice = Choice { style: args.style, format: args.format, by: args.by, detail: args.detail };
    if choice.wants_symbols() {
        symbols::resolve(&mut target.books, target.live_pid);
    }
    to_output(args.output.as_deref(), |out| choice.write(out, &target.books))?;
    Ok(ExitCode::SUCCESS)
}
