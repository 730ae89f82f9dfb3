//! `plimsoll`: native memory tracking for every Linux process. One file per verb.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod diff;
mod doctor;
mod explain;
mod obstacle;
mod output;
mod report;
mod run;
mod sys;
mod target;
mod tracker;

/// Where every byte of a process went, who asked for it, and what changed.
#[derive(Parser)]
#[command(name = "plimsoll", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a program with the tracker in it
    Run(run::Args),
    /// Where every resident byte of a live process went, and what to do about it
    Explain(explain::Args),
    /// What a tracked process holds, live or after its death
    Report(report::Args),
    /// What changed between two reports, processes or segments
    Diff(diff::Args),
    /// What works here, where segments lie, what is tracked now
    Doctor(doctor::Args),
}

/// One sentence for the user; the program exits with 2.
pub struct Failure(pub String);

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(cause: T) -> Failure {
        Failure(cause.to_string())
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let done = match cli.verb {
        Verb::Run(args) => run::run(args),
        Verb::Explain(args) => explain::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Doctor(args) => doctor::run(args),
    };
    done.unwrap_or_else(|Failure(sentence)| {
        eprintln!("plimsoll: {sentence}");
        ExitCode::from(2)
    })
}

/// clap's first paragraph on one line: it names the argument. The usage and the hints are a `--help` away.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{text}");
        return ExitCode::from(2);
    }
    let paragraph: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let sentence = paragraph.join(" ");
    eprintln!("plimsoll: {}", plimsoll_report::words::printable(sentence.strip_prefix("error: ").unwrap_or(&sentence)));
    ExitCode::from(2)
}
