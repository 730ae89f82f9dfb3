//! `plimsoll compare --a CMD --b CMD`: runs two programs in turn until each is ready, and prints where B takes more
//! memory than A: in which line of the ledger, which category, which call stack.
//!
//! ```text
//! pairs of runs, alternating ─▶ RSS and ledger of each ─▶ intervals ─▶ budget ─▶ exit status
//! tracked runs, alternating  ─▶ stacks of each ─▶ what owns the difference, flame graphs
//! ```
//! | file | what it does |
//! | --- | --- |
//! | `tracked` | the segments of the tracked runs, and what they show |
//! | `recordings` | two flight recordings instead of two programs |
//! | `unread_lines` | the lines that a ledger can't show in full |

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use plimsoll_facts::snapshot::{Snapshot, lacking};
use plimsoll_observer::ledger::{Ledger, Line, LineId};
use plimsoll_process::foreign::{Deadline, FileKind, NAMES, read_argument};
use plimsoll_profiles::jfr::is_recording;
use plimsoll_report::{comparison_json, comparison_pages, comparison_text, words};
use plimsoll_trial::budget::{Budget, Excess};
use plimsoll_trial::comparison::{A, B, Comparison, Lines, Part, RSS, SIDES};
use plimsoll_trial::remedy::{Start, words as shell_words};
use plimsoll_trial::{Run, RunEnd, plan};

use crate::exit::Exit;
use crate::output::{TicketFormat, print_message, require_stdout, shown, to_output_at_least};
use crate::suggestion::nearest_name;
use crate::sys::{Signals, unless_nohup};
use crate::trial::ready::{Ready, seconds};
use crate::trial::run_progress::Meter;
use crate::trial::runner::{Outcome, RunConditions, Runner};
use crate::trial::{INTERRUPTS, sentence};
use crate::{Failure, launch, recording};

mod recordings;
mod tracked;
mod unread_lines;

use tracked::Folder;
use unread_lines::unread;

#[derive(clap::Args)]
#[command(
    override_usage = "plimsoll compare [OPTIONS] --a <CMD> --b <CMD>\n       plimsoll compare [OPTIONS] <A.jfr> <B.jfr>"
)]
pub struct Args {
    /// Run this command line as A, the program before the change; quote its words as for a shell
    #[arg(long, value_name = "CMD", value_parser = command, requires = "b")]
    a: Option<Command>,
    /// Run this command line as B, the program after the change
    #[arg(long, value_name = "CMD", value_parser = command, requires = "a")]
    b: Option<Command>,
    /// Two flight recordings (.jfr) to compare instead of two programs
    #[arg(
        value_names = ["A.jfr", "B.jfr"],
        num_args = 2,
        conflicts_with_all = ["a", "b", "runs", "tracked", "ready", "ready_within", "for", "budget", "stacks"]
    )]
    recordings: Vec<PathBuf>,
    /// Run each program this many times
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=1000))]
    runs: u16,
    /// Then run each this many times with the tracker, for categories and call stacks; 0: never
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(0..=100))]
    tracked: u16,
    /// Wait until the program is ready: port:N, url:http://…, log:REGEX or seconds:N [default: until it ends]
    #[arg(long, value_name = "WHEN", value_parser = Ready::parse)]
    ready: Option<Ready>,
    /// Give up waiting after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, requires = "ready")]
    ready_within: Duration,
    /// Measure this many seconds after the program is ready
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds, requires = "ready")]
    r#for: Duration,
    /// Exit with status 1 if a line of the ledger grew beyond its budget in this file. Its rows: 'rss 1%', 'direct-buffers
    /// 256k' (an id as in 'explain --format json'), '* 512k' for all others
    #[arg(long, value_name = "FILE")]
    budget: Option<PathBuf>,
    /// Write differential flame graphs and folded stacks of bytes and of mapping calls into this directory
    #[arg(long, value_name = "DIR")]
    stacks: Option<PathBuf>,
    /// Print text for people, JSON for programs, or a table for a ticket
    #[arg(long, value_enum, default_value_t = TicketFormat::Text)]
    format: TicketFormat,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// A command line.
#[derive(Clone, Debug)]
struct Command(Vec<OsString>);

fn command(text: &str) -> Result<Command, String> {
    let words = shell_words(text)?;
    match words.is_empty() {
        true => Err("expected a command".into()),
        false => Ok(Command(words.into_iter().map(OsString::from).collect())),
    }
}

/// A tracked program starts more slowly: its time to get ready is multiplied by this.
const TRACKED_PATIENCE: u32 = 3;
/// A side whose runs have failed this often, without one success, is not run again.
const FAILURES: usize = 2;

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.output.is_none() {
        require_stdout()?;
    }
    let output = args.output.as_deref();
    if let [a, b] = args.recordings.as_slice() {
        return of_recordings([a, b], args.format, output);
    }
    let (Some(Command(a)), Some(Command(b))) = (args.a, args.b) else {
        return Err("give two programs: plimsoll compare --a 'COMMAND' --b 'COMMAND'".into());
    };
    if args.tracked == 0 && args.stacks.is_some() {
        return Err("--stacks needs tracked runs: leave out --tracked 0".into());
    }
    for program in [&a, &b].into_iter().filter_map(|command| command.first()) {
        if launch::resolve(Path::new(program)).is_none() {
            let shown = words::printable(&program.to_string_lossy());
            return Err(format!("cannot start '{shown}': no executable file of that name").into());
        }
    }
    let budget = args.budget.as_deref().map(|file| read_budget(file, args.ready.is_some())).transpose()?;
    let conditions = RunConditions {
        lasts: args.ready.is_some().then_some(args.r#for),
        ready: args.ready,
        ready_within: args.ready_within,
        load: None,
        drive: None,
        warm_up: Duration::ZERO,
        idle: Duration::ZERO,
        limit: None,
    };
    // As a subreaper, this process gets the processes of a killed keeper.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = Signals::of(Some(&unless_nohup(&INTERRUPTS)))?;
    let mut rounds = Rounds::new([a, b], &conditions, usize::from(args.runs), usize::from(args.tracked));
    rounds.measure(&signals);
    let of = &rounds.comparison;
    let absent = budget.as_ref().and_then(|budget| budget.absent(of));
    let notes = [of.unequal_ledgers(), of.pss_note(), absent].into_iter().flatten();
    let notes: Vec<String> = notes.chain(of.unread_notes()).collect();
    rounds.comparison.notes.extend(notes);
    let tracked = rounds.track(&signals);
    let renamed = rounds.comparison.renamed_note();
    rounds.comparison.notes.extend(renamed.into_iter().chain(tracked.notes()));
    rounds.meter.clear();
    let comparison = rounds.comparison;
    let excesses = budget.as_ref().map(|budget| budget.exceeded(&comparison));
    let unchecked = budget.as_ref().and_then(|budget| budget.unchecked(&comparison));
    // "No line is beyond its budget" holds only if the lines were compared.
    let found = excesses.as_deref().filter(|excesses| unchecked.is_none() || !excesses.is_empty());
    to_output_at_least(output, |out| match args.format {
        TicketFormat::Text => comparison_text::write(out, &comparison, found),
        TicketFormat::Json => comparison_json::write(out, &comparison, found),
        TicketFormat::Markdown => comparison_pages::markdown(out, &comparison, found),
        TicketFormat::Html => comparison_pages::html(out, &comparison, found),
    })?;
    if let Some(folder) = args.stacks.as_deref().filter(|_| comparison.tracked.is_some()) {
        let [a, b] = comparison.commands.each_ref().map(|command| words::cut(command, 80));
        tracked.write_stacks(folder, &format!("{b}, against {a}"))?;
    }
    let exit = status(&comparison, found, unchecked.is_some());
    match unchecked {
        _ if exit != Exit::Failed || !comparison.is_compared() => {}
        Some(why) => print_message(format_args!("the budget was not checked: {why}")),
        None => {
            let [of_a, of_b] = failed(&comparison);
            print_message(format_args!(
                "the budget holds only for the pairs in which both programs completed: {of_a} runs of A and {of_b} runs of B failed"
            ));
        }
    }
    Ok(exit.into())
}

/// Runs of A and of B that failed.
fn failed(comparison: &Comparison) -> [usize; 2] {
    [A, B].map(|side| comparison.failed(side).count())
}

/// `is_unchecked`: there is a budget, and a line of it was not compared.
fn status(comparison: &Comparison, excesses: Option<&[Excess]>, is_unchecked: bool) -> Exit {
    let [of_a, of_b] = failed(comparison);
    match excesses {
        _ if comparison.interrupted => Exit::Interrupted,
        _ if !comparison.is_compared() => Exit::Failed,
        Some([_, ..]) => Exit::OverBudget,
        _ if is_unchecked => Exit::Failed,
        // Pairs with a failed run don't count, so the pairs that are left would say that B is as good as A.
        Some([]) if of_b > of_a => Exit::Failed,
        _ => Exit::Done,
    }
}

fn of_recordings(of: [&PathBuf; 2], format: TicketFormat, output: Option<&Path>) -> Result<ExitCode, Failure> {
    for file in of {
        if !file.exists() {
            return Err(format!("no file '{}'", shown(file)).into());
        }
        recording::refuse_empty(file)?;
    }
    let other = of.into_iter().filter(|file| !is_recording(file)).collect::<Vec<_>>();
    match other[..] {
        [] => {}
        [file] => return Err(format!("'{}' isn't a flight recording: compare needs two of them", shown(file)).into()),
        _ => {
            let [a, b] = of.map(|file| shown(file));
            return Err(format!("'{a}' isn't a flight recording. For saved reports: plimsoll diff {a} {b}").into());
        }
    }
    match format {
        TicketFormat::Text | TicketFormat::Json => {
            recordings::compare(of.map(PathBuf::as_path), matches!(format, TicketFormat::Json), output)
        }
        TicketFormat::Markdown | TicketFormat::Html => {
            Err("two recordings are compared as --format text or json".into())
        }
    }
}

/// The remainder is a line of every ledger, too.
const REMAINDER: &str = "remainder";

/// `is_explained`: the runs give ledgers.
fn read_budget(file: &Path, is_explained: bool) -> Result<Budget, Failure> {
    let failed = |why: String| Failure(format!("--budget {}: {why}", shown(file)));
    let bytes = read_argument(file, FileKind::Saved, Deadline::after(NAMES)).map_err(|why| failed(why.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8".into()))?;
    let known: Vec<&str> = LineId::ALL.iter().map(|line| line.id()).chain([REMAINDER]).collect();
    let near = |name: &str| nearest_name(name, known.iter().copied().chain([RSS])).map(str::to_owned);
    let budget = Budget::parse(&text, &known, near).map_err(|why| failed(words::printable(&why)))?;
    match budget.ledger_line().filter(|_| !is_explained) {
        Some(line) => Err(failed(format!(
            "'{line}' needs --ready: the lines of the ledger are read while the program runs. Without --ready, a budget can only name rss"
        ))),
        None => Ok(budget),
    }
}

/// The runs so far.
struct Rounds<'w> {
    comparison: Comparison,
    starts: [Start; 2],
    conditions: &'w RunConditions,
    /// Requested number of tracked runs of each side.
    tracked: usize,
    meter: Meter,
    /// Number of all runs so far.
    done: usize,
    /// No other run can be started.
    is_over: bool,
}

impl<'w> Rounds<'w> {
    fn new(commands: [Vec<OsString>; 2], conditions: &'w RunConditions, pairs: usize, tracked: usize) -> Rounds<'w> {
        let shown = |command: &Vec<OsString>| {
            command.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let comparison = Comparison {
            commands: commands.each_ref().map(shown),
            ready: conditions.ready.as_ref().map(Ready::to_string),
            pairs,
            ..Comparison::default()
        };
        let start =
            |command: Vec<OsString>| Start { command, environment: std::env::vars_os().collect(), ..Start::default() };
        let (starts, meter) = (commands.map(start), Meter::new("runs"));
        Rounds { comparison, starts, conditions, tracked, meter, done: 0, is_over: false }
    }

    /// Runs the pairs that give RSS and the ledgers.
    fn measure(&mut self, signals: &Signals) {
        for round in 0..self.comparison.pairs {
            for side in plan::order(round, SIDES.len()) {
                if self.is_over {
                    self.comparison.pairs = self.comparison.runs.len().div_ceil(SIDES.len());
                    return;
                }
                if self.comparison.interrupted || [A, B].into_iter().any(|side| self.gives_up(side)) {
                    return;
                }
                let mut lines = None;
                let start = self.starts[side].clone();
                let mut names = std::mem::take(&mut self.comparison.names);
                let mut look = |snapshot: &Snapshot, ledger: &Ledger| {
                    let lacking = lacking(&snapshot.gaps).iter().map(|source| source.name()).collect();
                    lines = Some((lines_of(ledger), lacking, unread(snapshot)));
                    names.extend(ledger.lines.iter().map(|line| (line.id.id().to_owned(), line.id.name().to_owned())));
                };
                let run = self.once(self.conditions, &start, (round, side), "", signals, &mut look);
                self.comparison.names = names;
                if run.end.is_good()
                    && let Some((lines, lacking, unread)) = lines
                {
                    self.comparison.lines.insert((round, side), lines);
                    self.comparison.lacking.insert((round, side), lacking);
                    self.comparison.unread.insert((round, side), unread);
                }
                self.comparison.runs.push(run);
            }
        }
    }

    fn gives_up(&self, side: usize) -> bool {
        let runs = || self.comparison.runs.iter().filter(|run| run.row == side);
        runs().count() >= FAILURES && !runs().any(|run| run.end.is_good())
    }

    /// Does the tracked runs. A failure becomes a note: the figures of the measured runs stay valid.
    fn track(&mut self, signals: &Signals) -> tracked::Runs {
        let conditions = RunConditions {
            ready: self.conditions.ready.clone(),
            ready_within: self.conditions.ready_within * TRACKED_PATIENCE,
            load: None,
            drive: None,
            warm_up: Duration::ZERO,
            limit: None,
            ..*self.conditions
        };
        let mut runs = tracked::Runs { peaks: conditions.lasts.is_none(), ..tracked::Runs::default() };
        if !self.comparison.is_compared() {
            return runs;
        }
        for round in 0..self.tracked {
            for side in plan::order(round, SIDES.len()) {
                if self.comparison.interrupted || self.is_over {
                    return runs;
                }
                match self.track_once(&conditions, (round, side), signals) {
                    Ok(Some(books)) => runs.of[side].push(books),
                    Ok(None) => {}
                    // One sentence is enough: the next tracked run would fail in the same way.
                    Err(Failure(why)) => {
                        self.comparison.notes.push(format!("no call stacks: tracked run of {}: {why}", SIDES[side]));
                        return tracked::Runs::default();
                    }
                }
            }
        }
        self.comparison.tracked = runs.compared();
        runs
    }

    /// `None`: the user interrupted the run.
    fn track_once(
        &mut self,
        conditions: &RunConditions,
        at: (usize, usize),
        signals: &Signals,
    ) -> Result<Option<tracked::TrackedRun>, Failure> {
        let folder = Folder::make(self.done)?;
        let plain = self.starts[at.1].clone();
        let environment = folder.environment(&plain.command)?;
        let environment = environment.ok_or("the tracker can't be loaded into this program")?;
        let mut books = None;
        let mut look = |snapshot: &Snapshot, _: &Ledger| books = Some(folder.read(Some(snapshot.process.pid)));
        let run = self.once(conditions, &Start { environment, ..plain }, at, "tracked, ", signals, &mut look);
        match (&run.end, books) {
            (RunEnd::Interrupted, _) => Ok(None),
            (RunEnd::Stopped, Some(books)) => books.map(Some),
            // The program has ended by itself, and left its segment.
            (RunEnd::Completed, _) => folder.read(None).map(Some),
            (end, _) => Err(format!("the program {}", end.sentence()).into()),
        }
    }

    fn once(
        &mut self,
        conditions: &RunConditions,
        start: &Start,
        (round, side): (usize, usize),
        kind: &str,
        signals: &Signals,
        look: &mut dyn FnMut(&Snapshot, &Ledger),
    ) -> Run {
        let all = (self.comparison.pairs + self.tracked) * SIDES.len();
        let (done, meter) = (self.done, &mut self.meter);
        let what = format!("{kind}pair {}, {}", round + 1, SIDES[side]);
        let mut progress = |phase: &'static str| meter.draw(&format!("{what}: {phase}"), done, all);
        let mut runner = Runner { conditions, signals, progress: &mut progress, look, interrupted: false };
        let Outcome { run, note, is_last } = runner.run(start, (round, side, done));
        self.is_over |= is_last;
        self.comparison.interrupted |= runner.interrupted;
        self.done += 1;
        if run.has_failed() {
            self.meter.clear();
            print_message(sentence(SIDES[side], &run));
        }
        let note = note.map(|note| format!("{}: {note}", SIDES[side]));
        self.comparison.notes.extend(note.filter(|note| !self.comparison.notes.contains(note)));
        run
    }
}

/// The resident bytes by line and by part.
fn lines_of(ledger: &Ledger) -> Lines {
    let of_line = |line: &Line| {
        let whole = (Part::line(line.id.id()), line.resident.0);
        let parts = line.children.iter().map(|part| {
            let name = words::printable(&part.name);
            (Part { line: line.id.id().to_owned(), name }, part.resident.0)
        });
        std::iter::once(whole).chain(parts).collect::<Vec<_>>()
    };
    let mut lines = Lines::from([(Part::line(REMAINDER), ledger.remainder.0)]);
    for (part, bytes) in ledger.lines.iter().flat_map(of_line) {
        *lines.entry(part).or_default() += bytes;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_only_a_part_of_the_runs_keeps_fails() {
        let with = |ends: [[RunEnd; 2]; 3], excesses: Option<&[Excess]>, is_unchecked| {
            let runs = ends.into_iter().enumerate().flat_map(|(round, ends)| {
                ends.into_iter().enumerate().map(move |(row, end)| Run::ended(round, row, end))
            });
            status(&Comparison { pairs: 3, runs: runs.collect(), ..Comparison::default() }, excesses, is_unchecked)
        };
        let of = |ends, excesses| with(ends, excesses, false);
        let good = || [RunEnd::Stopped, RunEnd::Stopped];
        assert_eq!(with([good(), good(), good()], None, true), Exit::Failed);
        let b_fails = || [RunEnd::Stopped, RunEnd::Signal(11)];
        let a_fails = || [RunEnd::Exited(1), RunEnd::Stopped];
        assert_eq!(of([good(), good(), good()], Some(&[])), Exit::Done);
        assert_eq!(of([good(), good(), b_fails()], Some(&[])), Exit::Failed);
        assert_eq!(of([good(), good(), a_fails()], Some(&[])), Exit::Done);
        // Without a budget there is no gate. One pair isn't a comparison.
        assert_eq!(of([good(), good(), b_fails()], None), Exit::Done);
        assert_eq!(of([good(), b_fails(), a_fails()], None), Exit::Failed);
    }
}
