//! `plimsoll`: native memory tracking for every Linux process. One file for each command.

// Messages go through `output::print_message` and `print_done`, which cannot panic.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use exit::Exit;
use output::print_message;
use plimsoll_report::words;
use suggestion::nearest_name;

mod allocation;
mod attach;
mod cache;
#[cfg(test)]
#[path = "../build/commit.rs"]
mod commit;
mod compare;
mod confine;
mod diff;
mod doctor;
mod examples;
mod exit;
mod explain;
mod jfr_report;
mod launch;
mod output;
mod page;
mod pager;
#[cfg(test)]
mod pages;
mod process_argument;
mod progress;
#[cfg(test)]
#[path = "../../../fixtures/random.rs"]
mod random;
mod record;
mod recording;
mod report;
mod run;
mod sampler;
mod serve;
mod stack_options;
mod suggestion;
mod summary_signal;
mod sys;
mod target;
mod tracker;
mod trial;
mod untrackable;
mod watch;
mod why;

/// Show where every byte of a process went, who asked for it, and what changed.
#[derive(Parser)]
#[command(name = "plimsoll", version = env!("PLIMSOLL_VERSION"), max_term_width = 110)]
#[command(
    after_help = "Start with:\n  plimsoll explain        List the processes\n  plimsoll explain PID    Explain one of them"
)]
struct Cli {
    /// Print long text on a terminal at once, without a pager
    #[arg(long, global = true, display_order = 900)]
    no_pager: bool,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a program with the tracker loaded
    #[command(after_help = examples::of("run"))]
    Run(run::Args),
    /// Load the tracker into a running program, or change the sites mode of a tracked process
    #[command(after_help = examples::of("attach"))]
    Attach(attach::Args),
    /// Remove the tracker's hooks from a process
    #[command(after_help = examples::of("detach"))]
    Detach(attach::DetachArgs),
    /// Explain where every resident byte of a running process is, and what to do about it
    #[command(after_help = examples::of("explain"))]
    Explain(explain::Args),
    /// Record memory over time as a Flight Recorder file
    #[command(after_help = examples::of("record"))]
    Record(record::Args),
    /// Show the memory of a process, or of all, while it changes
    #[command(after_help = examples::of("watch"))]
    Watch(watch::Args),
    /// Serve pages for browsers, JSON, and metrics for Prometheus
    #[command(after_help = examples::of("serve"))]
    Serve(serve::Args),
    /// Print what a tracked process holds, while it runs or after it ended
    #[command(after_help = examples::of("report"))]
    Report(report::Args),
    /// Print what changed between two reports, processes, segments or recordings
    #[command(after_help = examples::of("diff"))]
    Diff(diff::Args),
    /// Run a program with each remedy in turn, and print what each saves and costs
    #[command(after_help = examples::of("try"))]
    Try(trial::Args),
    /// Run two programs in turn, and print how much more memory the second takes, and what holds it
    #[command(after_help = examples::of("compare"))]
    Compare(compare::Args),
    /// Print what a verdict means, when it appears, and its remedies
    #[command(after_help = examples::of("why"))]
    Why(why::Args),
    /// Check what works on this machine, and list the segments and tracked processes
    #[command(after_help = examples::of("doctor"))]
    Doctor(doctor::Args),
}

/// One sentence for the user; the program exits with 2.
pub struct Failure(pub String);

impl Failure {
    /// Another process of ours has printed the sentence.
    pub const PRINTED: Failure = Failure(String::new());
}

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(cause: T) -> Failure {
        Failure(cause.to_string())
    }
}

fn main() -> ExitCode {
    // A process that `try` starts to hold a program; see `trial::keeper`.
    if std::env::args_os().next().is_some_and(|name| name == trial::keeper::NAME) {
        return trial::keeper::main();
    }
    // A process that sets back what `try --pid` changed; see `trial::live::guard`.
    if std::env::args_os().next().is_some_and(|name| name == trial::live::guard::NAME) {
        return trial::live::guard::main();
    }
    // The process of `serve` that listens; see `serve::listener`.
    if std::env::args_os().next().is_some_and(|name| name == serve::listener::NAME) {
        return serve::listener::main();
    }
    // The process of `serve` that sends; see `serve::sender`.
    if std::env::args_os().next().is_some_and(|name| name == serve::sender::NAME) {
        return serve::sender::main();
    }
    if let Some(path) = path_of_call() {
        words::call_the_program(path);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    target::remember_typed();
    if cli.no_pager {
        pager::forbid();
    }
    let done = match cli.verb {
        Verb::Run(args) => run::run(args),
        Verb::Attach(args) => attach::run(args),
        Verb::Detach(args) => attach::detach(args),
        Verb::Explain(args) => explain::run(args),
        Verb::Record(args) => record::run(args),
        Verb::Watch(args) => watch::run(args),
        Verb::Serve(args) => serve::run(args),
        Verb::Report(args) => report::run(args),
        Verb::Diff(args) => diff::run(args),
        Verb::Try(args) => trial::run(args),
        Verb::Compare(args) => compare::run(args),
        Verb::Why(args) => why::run(args),
        Verb::Doctor(args) => doctor::run(args),
    };
    progress::end();
    done.unwrap_or_else(|Failure(sentence)| {
        if !sentence.is_empty() {
            print_message(sentence);
        }
        Exit::Failed.into()
    })
}

/// The absolute path by which this program was called, quoted for a shell. None if the shell found it by its name
/// alone, or would find it so: then commands need no path.
fn path_of_call() -> Option<String> {
    let name = std::env::args_os().next()?;
    if !name.to_str()?.contains('/') {
        return None;
    }
    let own = std::env::current_exe().ok()?;
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_own = |folder: std::path::PathBuf| folder.join("plimsoll").canonicalize().is_ok_and(|path| path == own);
    if std::env::split_paths(&folders).find(|folder| folder.join("plimsoll").is_file()).is_some_and(is_own) {
        return None;
    }
    let path: std::path::PathBuf = std::env::current_dir().ok()?.join(name).components().collect();
    plimsoll_facts::shell::quoted(path.to_str()?)
}

/// One sentence that names the argument and, if clap knows it, the correct form.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                print_message(format!("cannot write standard output: {e}"));
                Exit::Failed.into()
            }
            _ => ExitCode::SUCCESS,
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = io::stderr().write_all(error.to_string().as_bytes());
        return Exit::Failed.into();
    }
    print_message(words::printable(&sentence(error)));
    Exit::Failed.into()
}

fn sentence(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    // Removes the marks of an argument that may be left out or repeated.
    let bare = |kind| context(kind).replace(['[', ']'], "").replace("...", "");
    let usage = context(ContextKind::Usage);
    // `try` has two lines of usage.
    let usage = usage.trim().trim_start_matches("Usage: ").lines().map(str::trim).collect::<Vec<_>>().join(" or: ");
    if let Some(near) = near_value(error) {
        let (value, option) = (context(ContextKind::InvalidValue), context(ContextKind::InvalidArg));
        return format!("invalid value '{value}' for '{option}'. Did you mean '{near}'?");
    }
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            let missing = context(ContextKind::InvalidArg);
            let verb = if missing.contains(", ") { "are" } else { "is" };
            format!("{missing} {verb} missing. Usage: {usage}")
        }
        ErrorKind::ArgumentConflict => match [ContextKind::PriorArg, ContextKind::InvalidArg].map(bare) {
            [one, other] if one == other => format!("give {one} only once"),
            [one, other] => format!("give {one} or {other}, not both"),
        },
        ErrorKind::WrongNumberOfValues => format!(
            "give {}: expected {} values, not {}",
            bare(ContextKind::InvalidArg).replace(' ', " and "),
            context(ContextKind::ExpectedNumValues),
            context(ContextKind::ActualNumValues)
        ),
        ErrorKind::UnknownArgument => {
            let argument = context(ContextKind::InvalidArg);
            // For commands that start a program (`run`): the user forgot the -- before it.
            let command = usage.split_once(" [OPTIONS] -- <CMD>...").map(|(verb, _)| verb);
            match (near_option(&argument, &usage), command) {
                (Some(near), _) => format!("unexpected argument '{argument}'. Did you mean '{near}'?"),
                (None, Some(verb)) if !argument.starts_with('-') => {
                    format!("put -- before the command: {verb} -- {argument}")
                }
                // clap reads the value of an option as an option, and names only its first two characters.
                _ if argument.starts_with('-') && argument[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    format!(
                        "unexpected argument '{argument}': if it begins the value of an option, that can't be negative"
                    )
                }
                _ => format!("unexpected argument '{argument}'. Usage: {usage}"),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let verb = context(ContextKind::InvalidSubcommand);
            let program = Cli::command();
            match nearest_name(&verb, program.get_subcommands().map(clap::Command::get_name).chain(["help"])) {
                Some(near) => format!("unknown command '{verb}'. Did you mean '{near}'?"),
                None => format!("unknown command '{verb}'. List the commands: plimsoll --help"),
            }
        }
        // Only clap's first paragraph, on one line: `--help` shows the rest.
        _ => {
            let text = error.to_string();
            let paragraph: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
            let sentence = paragraph.join(" ");
            let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
            // Rewords the messages of clap's ranges, and of std's number parsers.
            within(sentence)
                .replace("invalid digit found in string", "expected a number")
                .replace("number too large to fit in target type", "that is too large")
                .replace("': Did you mean '", "'. Did you mean '")
        }
    }
}

/// `5 is not in 16..=1024` in the words of a user. Other sentences stay.
fn within(sentence: &str) -> String {
    let parts = sentence.rsplit_once(" is not in ").and_then(|(before, range)| {
        let (least, most) = range.split_once("..=")?;
        Some((before.rsplit_once(' ')?.0, least, most))
    });
    match parts {
        Some((option, least, most)) => format!("{option} expected a number from {least} to {most}"),
        None => sentence.to_owned(),
    }
}

/// The option of the command that is most like the mistyped one. clap's own proposal may have little in common with it.
fn near_option(argument: &str, usage: &str) -> Option<String> {
    let typed = argument.strip_prefix("--")?.split('=').next()?;
    let program = Cli::command();
    let verb = usage.split_whitespace().nth(1).and_then(|verb| program.find_subcommand(verb));
    let all = [Some(&program), verb].into_iter().flatten().flat_map(clap::Command::get_arguments);
    let names = all.filter(|option| !option.is_hide_set()).filter_map(clap::Arg::get_long);
    nearest_name(typed, names.chain(["help"])).map(|near| format!("--{near}"))
}

/// The valid value of an option that is most like the mistyped one.
fn near_value(error: &clap::Error) -> Option<&str> {
    match (error.kind(), error.get(ContextKind::InvalidValue), error.get(ContextKind::ValidValue)) {
        (ErrorKind::InvalidValue, Some(ContextValue::String(typed)), Some(ContextValue::Strings(values))) => {
            nearest_name(typed, values.iter().map(String::as_str))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::random::Random;

    /// Good and bad values: the grammar of each option, numbers at their bounds, text that must not reach a terminal.
    const VALUES: &[&str] = &[
        "",
        "-",
        "--",
        "1",
        "-1",
        "0",
        "18446744073709551616",
        "4294967296",
        "x.jfr",
        "/dev/stdout",
        "+10m",
        "-5s",
        "..",
        "10%",
        "0ms",
        "1s",
        "512m",
        "16777216t",
        "1e309",
        "99999999999999999d",
        "2026-11-20T21:47:14Z",
        "2554-07-21T23:34:33Z",
        "(",
        "[a-",
        "a|b",
        "*",
        "RTMIN+99",
        "USR1",
        "9",
        "a\nb",
        "\u{1b}[2J",
        "é\u{202e}",
        "native-leak",
        "self",
        "1:2",
        "a=b",
        "\0",
    ];

    fn one_of<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
        &all[random.index(all.len())]
    }

    /// Every option of a command and every value that its help names.
    fn all_words(command: &clap::Command) -> Vec<String> {
        let mut words = vec!["--help".to_owned(), "-h".to_owned()];
        for argument in command.get_arguments() {
            words.extend(argument.get_long_and_visible_aliases().into_iter().flatten().map(|long| format!("--{long}")));
            words.extend(argument.get_short().map(|short| format!("-{short}")));
            words.extend(argument.get_possible_values().iter().map(|value| value.get_name().to_owned()));
        }
        words
    }

    /// A command line of a command, its options, options of other commands, and values, some of them damaged. Some are
    /// not UTF-8.
    fn line(random: &mut Random, verbs: &[(String, Vec<String>)]) -> Vec<OsString> {
        let mut line = vec![OsString::from("plimsoll")];
        let (verb, own) = one_of(random, verbs);
        if random.below(16) != 0 {
            line.push(verb.into());
        }
        for _ in 0..random.below(7) {
            let value = || VALUES.iter().map(|value| value.to_string()).collect::<Vec<_>>();
            let word = match random.below(8) {
                0..4 => one_of(random, own).clone(),
                4 => {
                    let (_, others) = one_of(random, verbs);
                    one_of(random, others).clone()
                }
                5 => format!("{}={}", one_of(random, own).clone(), one_of(random, &value())),
                _ => one_of(random, &value()).clone(),
            };
            let mut bytes = word.into_bytes();
            if random.below(8) == 0 && !bytes.is_empty() {
                let at = random.index(bytes.len());
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => bytes.truncate(at),
                    _ => bytes.insert(at, random.below(256) as u8),
                }
            }
            line.push(OsString::from_vec(bytes));
        }
        line
    }

    /// `PLIMSOLL_FUZZ_SECONDS` (set by fuzz/run) searches for that long, from another seed.
    #[test]
    #[allow(clippy::print_stdout, reason = "a test prints what it tried")]
    fn any_arguments_are_accepted_or_refused_in_one_sentence() {
        let mut command = Cli::command();
        command.build();
        let verbs: Vec<(String, Vec<String>)> =
            command.get_subcommands().map(|verb| (verb.get_name().to_owned(), all_words(verb))).collect();
        assert!(verbs.len() >= 9 && verbs.iter().map(|(_, words)| words.len()).sum::<usize>() > 60, "{verbs:?}");
        let seconds = std::env::var("PLIMSOLL_FUZZ_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
        let began = std::time::Instant::now();
        let seed = seconds.map_or(0, |_| u64::from(std::process::id()) << 32);
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ seed);
        let (mut accepted, mut refused, mut by_verb) = (0, 0, vec![0; verbs.len()]);
        let is_on = |n: u64| seconds.map_or(n < 9_000, |seconds| began.elapsed().as_secs() < seconds);
        for _ in (0..).take_while(|n| is_on(*n)) {
            let line = line(&mut random, &verbs);
            match Cli::try_parse_from(&line) {
                Ok(_) => {
                    accepted += 1;
                    let verb = verbs.iter().position(|(verb, _)| line.get(1).is_some_and(|word| word == verb.as_str()));
                    by_verb[verb.expect("a command")] += 1;
                }
                Err(error) if error.use_stderr() => {
                    let sentence_text = words::printable(&sentence(&error));
                    assert!(
                        !sentence_text.is_empty() && !sentence_text.contains(char::is_control),
                        "{line:?}: {sentence_text}"
                    );
                    refused += 1;
                }
                Err(_) => {}
            }
        }
        println!("{accepted} accepted, {refused} refused");
        // clap prints `help` itself, so no line counts as accepted.
        let is_reached = verbs.iter().zip(&by_verb).all(|((verb, _), n)| *n > 0 || verb == "help");
        // A short search may miss some commands.
        let is_whole = seconds.is_some() || (refused > 1000 && is_reached);
        assert!(is_whole, "{accepted} accepted {by_verb:?}, {refused} refused");
    }
}
