//! `plimsoll`: native memory tracking for every Linux process. One file per verb.

// Our own words go through `output::say` and `tell`, which can't panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{Parser, Subcommand};
use output::say;
use plimsoll_report::words;

mod allocation;
mod attach;
mod cache;
mod diff;
mod doctor;
mod explain;
mod jfr_report;
mod launch;
mod output;
mod record;
mod recording;
mod report;
mod run;
mod stacks;
mod sys;
mod target;
mod tracker;
mod untrackable;
mod why;

/// Show where every byte of a process went, who asked for it, and what changed.
#[derive(Parser)]
#[command(name = "plimsoll", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a program with the tracker loaded
    Run(run::Args),
    /// Load the tracker into a running JVM, or change the sites mode of a tracked process
    Attach(attach::Args),
    /// Remove the tracker from a JVM
    Detach(attach::DetachArgs),
    /// Explain where every resident byte of a running process is, and what to do about it
    Explain(explain::Args),
    /// Record memory over time as a Flight Recorder file
    Record(record::Args),
    /// Print what a tracked process holds, while it runs or after it ended
    Report(report::Args),
    /// Print what changed between two reports, processes, segments or recordings
    Diff(diff::Args),
    /// Print what a verdict means, when it appears, and its remedies
    Why(why::Args),
    /// Check what works on this machine, and list the segments and tracked processes
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
        Verb::Attach(args) => attach::run(args),
        Verb::Detach(args) => attach::detach(args),
        Verb::Explain(args) => explain::run(args),
        Verb::Record(args) => record::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Why(args) => why::run(args),
        Verb::Doctor(args) => doctor::run(args),
    };
    done.unwrap_or_else(|Failure(sentence)| {
        say(sentence);
        ExitCode::from(2)
    })
}

/// One sentence that names the argument, and what would be right, where clap knows it.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = io::stderr().write_all(error.to_string().as_bytes());
        return ExitCode::from(2);
    }
    say(words::printable(&sentence(error)));
    ExitCode::from(2)
}

fn sentence(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let usage = context(ContextKind::Usage).replace('\n', " ");
    let usage = usage.trim().trim_start_matches("Usage: ");
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            format!("{} is missing. Usage: {usage}", context(ContextKind::InvalidArg))
        }
        ErrorKind::UnknownArgument => {
            let argument = context(ContextKind::InvalidArg);
            // Of `run` and `record`: the command without the -- in front of it.
            let command = usage.split_once(" [OPTIONS] -- <CMD>...").map(|(verb, _)| verb);
            match (context(ContextKind::SuggestedArg), command) {
                (like, _) if !like.is_empty() => format!("unexpected argument '{argument}'. Did you mean '{like}'?"),
                (_, Some(verb)) if !argument.starts_with('-') => {
                    format!("put -- before the command: {verb} -- {argument}")
                }
                _ => format!("unexpected argument '{argument}'. Usage: {usage}"),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let verb = context(ContextKind::InvalidSubcommand);
            match context(ContextKind::SuggestedSubcommand) {
                like if like.is_empty() => format!("unknown command '{verb}'. List the commands: plimsoll --help"),
                like => format!("unknown command '{verb}'. Did you mean '{like}'?"),
            }
        }
        // clap's first paragraph on one line: the hints below it are a `--help` away.
        _ => {
            let text = error.to_string();
            let paragraph: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
            let sentence = paragraph.join(" ");
            let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
            // What std's number parsers and clap's ranges say, in words.
            sentence
                .replace("invalid digit found in string", "expected a number")
                .replace("number too large to fit in target type", "that is too large")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the command line, good and bad, in any order: each is accepted or refused in one sentence.
    #[test]
    fn any_arguments_are_accepted_or_refused_in_one_sentence() {
        const WORDS: &[&str] = &[
            "run",
            "attach",
            "detach",
            "explain",
            "record",
            "report",
            "diff",
            "doctor",
            "help",
            "--help",
            "--",
            "-",
            "",
            "1",
            "-1",
            "18446744073709551616",
            "x.jfr",
            "--sites",
            "exact",
            "--sites=",
            "--by",
            "site",
            "--format",
            "json",
            "--chart",
            "lines",
            "--from",
            "+10m",
            "--to",
            "2026-11-20T21:47:14Z",
            "--limit",
            "16777216t",
            "--interval",
            "0ms",
            "99999999999999999d",
            "-o",
            "é\u{202e}",
            "a\nb",
            "--focus",
            "(",
            "--interval=1s",
            "--summary-on",
            "RTMIN+99",
            "--maps",
            "\u{1b}[2J",
        ];
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut next = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let words: Vec<&str> = (0..next(6)).map(|_| WORDS[next(WORDS.len())]).collect();
            match Cli::try_parse_from(std::iter::once("plimsoll").chain(words.iter().copied())) {
                Ok(_) => accepted += 1,
                Err(error) if error.use_stderr() => {
                    let said = plimsoll_report::words::printable(&sentence(&error));
                    assert!(!said.is_empty() && !said.contains('\n'), "{words:?}: {said}");
                    refused += 1;
                }
                Err(_) => {}
            }
        }
        assert!(accepted > 100 && refused > 1000, "{accepted} accepted, {refused} refused");
    }
}
