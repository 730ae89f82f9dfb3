//! `plimsoll report`: what a tracked process holds.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use plimsoll_observer::books::Books;
use plimsoll_report::{json, text};

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
    /// Text for people, or JSON (docs/json.md)
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    Category,
    Caller,
    Module,
    Thread,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Style {
    Plimsoll,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let target = target::open(&args.target)?;
    to_output(args.output.as_deref(), |out| write(out, &target.books, &args))?;
    Ok(ExitCode::SUCCESS)
}

fn write(out: &mut dyn Write, books: &Books, args: &Args) -> io::Result<()> {
    let by = match args.by {
        By::Category => text::By::Category,
        By::Caller => text::By::Caller,
        By::Module => text::By::Module,
        By::Thread => text::By::Thread,
    };
    match (args.format, args.style) {
        (Format::Json, _) => json::write(out, books),
        (Format::Text, Style::Plimsoll) => text::write(out, books, by),
    }
}

/// Standard output or a file. A reader that went away (`| head`) is no failure.
pub fn to_output(
    file: Option<&std::path::Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let (name, sink): (String, Box<dyn Write>) = match file {
        None => ("standard output".into(), Box::new(io::stdout().lock())),
        Some(path) => {
            let shown = plimsoll_report::words::printable(&path.display().to_string());
            (shown.clone(), Box::new(File::create(path).map_err(|e| format!("{shown} can't be written: {e}"))?))
        }
    };
    let mut out = BufWriter::new(sink);
    match write(&mut out).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(format!("{name} can't be written: {e}").into()),
        Ok(()) => Ok(()),
    }
}
