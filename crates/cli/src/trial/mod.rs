//! `plimsoll try -- CMD`: runs a program once for each remedy, in alternating rounds, and prints what each saves and
//! costs. `plimsoll try --pid PID` is `live`.
//!
//! | file | what it does |
//! | --- | --- |
//! | `keeper` | the process that holds the program's processes, and ends all of them |
//! | `kept_program` | plimsoll's end of a keeper |
//! | `limit_place` | where memory cgroups of runs can be made |
//! | `run_cgroup` | a memory cgroup for one run |
//! | `process_tree` | RSS and processor time of the processes below a keeper |
//! | `ready` | when the program is ready |
//! | `runner` | one run |
//! | `built_in_load`, `http` | the built-in load, and its client |
//! | `run_progress` | the line of progress |
//! | `libraries` | finds allocators that can be preloaded |
//! | `live` | what can be tried on a program that runs |

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::Snapshot;
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::{Verdict, judge};
use plimsoll_process::foreign::{Deadline, FileKind, LOOK, read_argument};
use plimsoll_report::{live_json, live_pages, live_text, trial_json, trial_pages, trial_text, words};
use plimsoll_trial::live::Step;
use plimsoll_trial::rate::Url;
use plimsoll_trial::remedy::{GRAMMAR, Start, describe};
use plimsoll_trial::{Remedy, RemedyChange, Row, Run, RunEnd, Trial, plan};

use crate::exit::Exit;
use crate::output::{TicketFormat, print_message, require_stdout, to_output_at_least};
use crate::process_argument::pid_of;
use crate::suggestion::nearest_value;
use crate::sys::{Signals, unless_nohup};
use crate::{Failure, launch};

mod built_in_load;
mod http;
pub mod keeper;
mod kept_program;
mod libraries;
mod limit_place;
pub mod live;
mod process_tree;
pub mod ready;
mod run_cgroup;
pub mod run_progress;
pub mod runner;

use built_in_load::Drive;
use limit_place::LimitPlace;
use ready::{Ready, seconds};
use run_progress::Meter;
use runner::{Outcome, RunConditions, Runner};

/// Signals that end the trial; what was measured so far is printed.
pub const INTERRUPTS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

#[derive(clap::Args)]
#[command(override_usage = "plimsoll try [OPTIONS] -- <CMD>...\n       plimsoll try [OPTIONS] --pid <PID|NAME>")]
pub struct Args {
    /// Try this remedy: arenas=1,2,4 | trim | jemalloc[,background] | tcmalloc | mimalloc | thp=never | env:NAME=VALUE
    /// | flag:-XX:… | cmd:COMMAND; with --pid: trim | gc | purge | flag:-XX:NAME=VALUE[,gc]; repeat for several [default: those that
    /// explain proposes]
    #[arg(long, value_name = "REMEDY", value_parser = With::parse)]
    with: Vec<With>,
    /// Try the remedies that need no restart on this running process, one after another; set flags back
    #[arg(long, value_name = "PID|NAME", conflicts_with_all = ["ready", "for", "rounds", "limit", "command"])]
    pid: Option<OsString>,
    /// Go ahead without asking, with --pid on a terminal
    #[arg(short, long, requires = "pid")]
    yes: bool,
    /// Wait until the program is ready: port:N, url:http://…, log:REGEX or seconds:N
    #[arg(long, value_name = "WHEN", value_parser = Ready::parse)]
    ready: Option<Ready>,
    /// Give up waiting after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, requires = "ready")]
    ready_within: Duration,
    /// Run this shell command as the load; the latencies of wrk, hey, oha, k6 and redis-benchmark are read
    #[arg(long, value_name = "COMMAND", requires = "ready")]
    load: Option<String>,
    /// Send GET requests to this address (http) at a constant rate, for --for seconds: the built-in load
    #[arg(long, value_name = "URL", value_parser = Url::parse, requires = "ready", conflicts_with = "load")]
    url: Option<Url>,
    /// Send this many requests a second to --url, however long the answers take
    #[arg(long, value_name = "N", default_value_t = 100, requires = "url", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Open this many connections to --url
    #[arg(long, value_name = "N", default_value_t = 8, requires = "url", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Send the requests to --url for this many seconds before any counts
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "url")]
    warm_up: Option<Duration>,
    /// Measure after this many seconds, if there is no --load [default: 10 with --ready, else when the program ends]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "load")]
    r#for: Option<Duration>,
    /// Idle for this many seconds after the load, or after each step of --pid, and measure again [default: 20; with --pid 12]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    idle: Option<Duration>,
    /// Run each row this many times
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Run each row in a memory cgroup with this limit: bytes, or 512m, 2g as in -Xmx
    #[arg(long, value_name = "BYTES", value_parser = crate::explain::bytes)]
    limit: Option<Bytes>,
    /// Print text for people, JSON for programs, or a table for a ticket
    #[arg(long, value_enum, default_value_t = TicketFormat::Text)]
    format: TicketFormat,
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Program and its arguments
    #[arg(last = true, required_unless_present = "pid", value_name = "CMD")]
    command: Vec<OsString>,
}

/// One `--with`: its rows if the program is started, and its step on a running process. At least one of the two is
/// `Ok`.
#[derive(Clone, Debug)]
struct With {
    rows: Result<Vec<Remedy>, String>,
    step: Result<Step, String>,
}

/// The values of --with, for proposals: whole ones, and the beginnings of the others.
const WITH_WORDS: [&str; 8] =
    ["trim", "gc", "purge", "jemalloc", "jemalloc,background", "tcmalloc", "mimalloc", "thp=never"];
const WITH_KINDS: [&str; 4] = ["arenas=", "env:", "flag:", "cmd:"];

impl With {
    fn parse(text: &str) -> Result<With, String> {
        let (rows, step) = (Remedy::parse(text), Step::parse(text));
        match (&rows, &step) {
            (Err(reason), Err(_)) => match nearest_value(text, WITH_WORDS, WITH_KINDS) {
                Some(near) => Err(format!("Did you mean '{near}'?")),
                None => Err(format!("{reason}; with --pid one of {}", plimsoll_trial::live::GRAMMAR)),
            },
            _ => Ok(With { rows, step }),
        }
    }
}

/// More rows than anyone names; `plan::order` needs a number before the rows of the verdicts are known.
const MOST_ROWS: usize = 1024;

/// Default of --idle. jemalloc gives pages back bit by bit, 10 s and more after they were freed: the last of 170 MiB
/// after 18 s (docs/decisions/try.md). A step on a running process acts at once.
const IDLE: Duration = Duration::from_secs(20);
const IDLE_OF_STEPS: Duration = Duration::from_secs(12);

/// Default of --for: how long a program that is ready runs before it is measured.
const LASTS: Duration = Duration::from_secs(10);

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.output.is_none() {
        require_stdout()?;
    }
    if let Some(process) = &args.pid {
        return on_a_process(process, &args);
    }
    let program = args.command.first().cloned().unwrap_or_default();
    if launch::resolve(Path::new(&program)).is_none() {
        let shown = words::printable(&program.to_string_lossy());
        return Err(format!("cannot start '{shown}': no executable file of that name").into());
    }
    let Args {
        with,
        ready,
        ready_within,
        load,
        url,
        rate,
        connections,
        warm_up,
        r#for: lasts,
        idle,
        rounds,
        limit,
        format,
        output,
        command,
        ..
    } = args;
    let lasts = lasts.or(ready.as_ref().filter(|_| load.is_none()).map(|_| LASTS));
    let drive = url.map(|url| Drive { url, rate, connections });
    let conditions = RunConditions {
        ready,
        ready_within,
        load,
        drive,
        warm_up: warm_up.unwrap_or_default(),
        lasts,
        idle: idle.unwrap_or(IDLE),
        limit: limit.map(|limit| LimitPlace::find(limit.0, Deadline::after(LOOK))).transpose()?,
    };
    let plain = Start { command, environment: std::env::vars_os().collect(), ..Start::default() };
    let remedies = with.into_iter().map(|with| with.rows).collect::<Result<Vec<_>, _>>();
    let remedies =
        remedies.map_err(|reason| format!("--with: {reason}. gc and purge need a running process (--pid)"))?;
    let remedies: Vec<Remedy> = remedies.into_iter().flatten().collect();
    // As a subreaper, this process gets the processes of a killed keeper.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = Signals::of(Some(&unless_nohup(&INTERRUPTS)))?;
    let mut table = Table::new(&plain, &conditions, usize::from(rounds));
    table.fill(&conditions, &signals, &remedies);
    let mut trial = table.trial;
    let has_swap = rustix::system::sysinfo().totalswap > 0;
    trial.notes.extend(conditions.limit.as_ref().and_then(|place| place.note(has_swap)));
    trial.notes.extend(trial.pss_note());
    to_output_at_least(output.as_deref(), |out| match format {
        TicketFormat::Text => trial_text::write(out, &trial),
        TicketFormat::Json => trial_json::write(out, &trial),
        TicketFormat::Markdown => trial_pages::markdown(out, &trial),
        TicketFormat::Html => trial_pages::html(out, &trial),
    })?;
    Ok(match trial.runs.iter().any(|run| run.end.is_good()) {
        _ if trial.interrupted => Exit::Interrupted.into(),
        true => ExitCode::SUCCESS,
        false => Exit::Failed.into(),
    })
}

fn on_a_process(process: &OsStr, args: &Args) -> Result<ExitCode, Failure> {
    let pid = pid_of(process, "try --pid")?;
    let steps = args.with.iter().map(|with| with.step.clone()).collect::<Result<Vec<_>, _>>();
    let steps = steps.map_err(|reason| {
        format!("--with beside --pid: {reason}; what needs a restart is tried on a command, without --pid")
    })?;
    let options = live::LiveOptions { steps, idle: args.idle.unwrap_or(IDLE_OF_STEPS), yes: args.yes };
    let Some(trial) = live::run(pid, options)? else { return Ok(Exit::Failed.into()) };
    to_output_at_least(args.output.as_deref(), |out| match args.format {
        TicketFormat::Text => live_text::write(out, &trial),
        TicketFormat::Json => live_json::write(out, &trial),
        TicketFormat::Markdown => live_pages::markdown(out, &trial),
        TicketFormat::Html => live_pages::html(out, &trial),
    })?;
    let is_done = trial.steps.iter().skip(1).any(|step| step.idle.is_some());
    Ok(match trial.interrupted {
        _ if trial.keeps_flags => Exit::Failed.into(),
        true => Exit::Interrupted.into(),
        false if is_done => ExitCode::SUCCESS,
        false => Exit::Failed.into(),
    })
}

/// Why no trim is tried if a run lasts until the program ends.
const NOTHING_TO_TRIM: &str = "a trim needs a program that runs: give --ready or --for";

/// The rows, and their runs so far.
struct Table {
    trial: Trial,
    /// The starts, by row; `None`: the row cannot run.
    starts: Vec<Option<Start>>,
    remedies: Vec<Option<Remedy>>,
    plain: Start,
    /// A run lasts until the program ends by itself.
    until_end: bool,
    /// No other run can be started.
    is_over: bool,
}

impl Table {
    fn new(plain: &Start, conditions: &RunConditions, rounds: usize) -> Table {
        let shown: Vec<String> = plain.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let trial = Trial {
            command: shown.join(" "),
            load: conditions.load.clone().or(conditions.drive.as_ref().map(Drive::to_string)),
            ready: conditions.ready.as_ref().map(Ready::to_string),
            limit: conditions.limit.as_ref().map(|place| place.limit.bytes),
            rounds,
            rows: vec![Row { label: "plain".into(), ..Row::default() }],
            ..Trial::default()
        };
        let until_end = conditions.load.is_none() && conditions.lasts.is_none();
        let (starts, remedies, plain) = (vec![Some(plain.clone())], vec![None], plain.clone());
        Table { trial, starts, remedies, plain, until_end, is_over: false }
    }

    /// Runs every round. The first plain run gives the verdicts, which propose rows and predict savings.
    fn fill(&mut self, conditions: &RunConditions, signals: &Signals, remedies: &[Remedy]) {
        let mut meter = Meter::new("runs");
        for remedy in remedies {
            self.add(remedy.clone());
        }
        for round in 0..self.trial.rounds {
            // Round 0 begins with the plain program, which adds rows.
            for row in plan::order(round, MOST_ROWS) {
                let is_alone = self.starts.len() == 1 && round > 0;
                if is_alone {
                    self.trial.rounds = round;
                }
                if self.trial.interrupted || self.is_over || self.gives_up(0) || is_alone {
                    meter.clear();
                    return;
                }
                if self.starts.get(row).is_none_or(Option::is_none) || self.gives_up(row) {
                    continue;
                }
                let (outcome, verdicts) = self.once(conditions, signals, &mut meter, (round, row));
                self.take(outcome, verdicts.as_deref(), &mut meter);
            }
        }
        meter.clear();
    }

    /// Whether a row is not run again: all of its runs have failed, and it has two. One is enough for the plain row if
    /// it is the only one. If the plain program is killed at the limit, that is a result: the other rows go on.
    fn gives_up(&self, row: usize) -> bool {
        let runs = || self.trial.runs.iter().filter(|run| run.row == row);
        let is_result = |run: &Run| run.end.is_good() || (row == 0 && run.end == RunEnd::OutOfMemory);
        let is_alone = row == 0 && self.starts.len() == 1;
        runs().count() >= if is_alone { 1 } else { 2 } && !runs().any(is_result)
    }

    fn once(
        &mut self,
        conditions: &RunConditions,
        signals: &Signals,
        meter: &mut Meter,
        (round, row): (usize, usize),
    ) -> (Outcome, Option<Vec<Verdict>>) {
        let is_first = self.trial.runs.is_empty();
        let number = self.trial.runs.len();
        let runnable = self.starts.iter().flatten().count();
        let (label, rounds) = (self.trial.rows[row].label.clone(), self.trial.rounds);
        let start = self.starts[row].clone().unwrap_or_default();
        let mut progress = |phase: &'static str| {
            meter.draw(&format!("round {} of {rounds}, {label}: {phase}", round + 1), number, runnable * rounds)
        };
        let (mut verdicts, mut lacks_vm) = (None, false);
        let mut look = |snapshot: &Snapshot, ledger: &Ledger| {
            if is_first {
                verdicts = Some(judge(snapshot, ledger));
                // Another VM, such as OpenJ9, leaves a gap.
                lacks_vm = snapshot.hotspot.is_none() && snapshot.gaps.iter().all(|gap| gap.source != Source::HotSpot);
            }
        };
        let mut runner = Runner { conditions, signals, progress: &mut progress, look: &mut look, interrupted: false };
        let outcome = runner.run(&start, (round, row, number));
        self.trial.interrupted |= runner.interrupted;
        self.trial.notes.extend(without_vm(&self.remedies).filter(|_| lacks_vm));
        (outcome, verdicts)
    }

    fn take(&mut self, outcome: Outcome, verdicts: Option<&[Verdict]>, meter: &mut Meter) {
        let Outcome { run, note, is_last } = outcome;
        if is_last {
            (self.is_over, self.trial.rounds) = (true, run.round + 1);
        }
        if !run.end.is_good() && run.end != RunEnd::Interrupted {
            meter.clear();
            print_message(sentence(&self.trial.rows[run.row].label, &run));
        }
        let note = note.map(|note| format!("{}: {note}", self.trial.rows[run.row].label));
        self.trial.notes.extend(note.filter(|note| !self.trial.notes.contains(note)));
        let is_first = self.trial.runs.is_empty();
        self.trial.runs.push(run);
        if is_first {
            self.propose(verdicts);
        }
    }

    /// Adds a row for each remedy of the verdicts, unless the user named rows. Gives each row the saving that a verdict
    /// predicts. `None`: nothing was explained.
    fn propose(&mut self, verdicts: Option<&[Verdict]>) {
        let of_user = self.trial.rows.len() > 1;
        for remedy in verdicts.iter().copied().flatten().flat_map(|verdict| &verdict.remedies) {
            let Some(row) = Remedy::from_advice(&remedy.how) else { continue };
            let known = self.remedies.iter().position(|one| one.as_ref().is_some_and(|one| one.changes == row.changes));
            let at = match known {
                Some(at) => at,
                None if of_user => continue,
                None => self.add(row),
            };
            let bounds = remedy.effect.figure().map(|(least, most)| (least.0, most.0));
            self.trial.rows[at].predicted = self.trial.rows[at].predicted.or(bounds);
        }
        if self.trial.rows.len() == 1 {
            let note = format!("{}. Name remedies: --with {GRAMMAR}", self.without_proposal(verdicts.is_some()));
            self.trial.notes.push(note);
        }
    }

    /// Why no row was proposed after the first run.
    fn without_proposal(&self, is_explained: bool) -> &'static str {
        let ended = self.trial.runs.first().is_some_and(|run| run.end == RunEnd::Completed);
        match is_explained {
            true => "explain proposes nothing here that a restart can try",
            // Only a program that runs can be explained.
            false if ended => {
                "the program ended before it could be explained, so no remedy is proposed: give --ready or --for"
            }
            false => "the first run was not explained, so no remedy is proposed",
        }
    }

    fn add(&mut self, remedy: Remedy) -> usize {
        let (start, missing) = match remedy.apply(&self.plain, libraries::find, argument_file) {
            Ok(start) if self.until_end && start.action.is_some() => (None, Some(NOTHING_TO_TRIM.to_owned())),
            Ok(start) => (Some(start), None),
            Err(reason) => (None, Some(reason)),
        };
        let mut changes: Vec<String> = remedy.changes.iter().map(describe).collect();
        // A tunable that would win over a variable of the row was left out.
        let tunables = start.as_ref().and_then(Start::tunables).filter(|own| Some(*own) != self.plain.tunables());
        let tunables = tunables.map(|value| format!("GLIBC_TUNABLES={}", value.to_string_lossy()));
        changes.extend(tunables.filter(|text| !changes.contains(text)));
        self.trial.rows.push(Row {
            label: remedy.label.clone(),
            changes,
            predicted: None,
            once: remedy.changes.iter().any(|change| matches!(change, RemedyChange::Live(_))),
            missing,
        });
        self.starts.push(start);
        self.remedies.push(Some(remedy));
        self.trial.rows.len() - 1
    }
}

/// The contents of an argument file of `java`. A pipe isn't read, because its words can be read only once.
fn argument_file(path: &Path) -> Option<Vec<u8>> {
    path.is_file().then(|| read_argument(path, FileKind::Text, Deadline::after(LOOK)).ok()).flatten()
}

/// A note on the rows that change options of a Java VM, for a program without one. A script may start a VM later.
fn without_vm(remedies: &[Option<Remedy>]) -> Option<String> {
    let labels = remedies.iter().flatten().filter(|remedy| remedy.is_for_a_vm()).map(|remedy| remedy.label.as_str());
    let labels: Vec<&str> = labels.collect();
    let why = "options of a Java VM, but the program's largest process isn't one, so they change nothing in it";
    (!labels.is_empty()).then(|| format!("{}: {why}", labels.join(", ")))
}

/// What happened to a run, for the user.
pub fn sentence(label: &str, run: &Run) -> String {
    let detail = run.detail.as_deref().map(|detail| format!(": {}", words::printable(detail))).unwrap_or_default();
    format!("round {}, {}: the program {}{detail}", run.round + 1, words::printable(label), run.end.sentence())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_of_a_vm_need_one() {
        let of = |texts: &[&str]| {
            let parsed = texts.iter().flat_map(|text| Remedy::parse(text).expect(text)).map(Some);
            without_vm(&std::iter::once(None).chain(parsed).collect::<Vec<_>>())
        };
        assert_eq!(of(&["arenas=2", "trim"]), None);
        let note = of(&["arenas=2", "flag:-XX:+UseSerialGC", "flag:-Xint"]).expect("two rows");
        assert!(note.starts_with("-XX:+UseSerialGC, -Xint: options of a Java VM"), "{note}");
    }

    /// Without a snapshot, nothing was explained: the note must not say that `explain` has no remedy.
    #[test]
    fn a_run_that_was_not_explained_is_not_said_to_have_no_remedy() {
        let note = |end: RunEnd, verdicts: Option<&[Verdict]>| {
            let conditions = RunConditions {
                ready: None,
                ready_within: Duration::ZERO,
                load: None,
                drive: None,
                warm_up: Duration::ZERO,
                lasts: None,
                idle: Duration::ZERO,
                limit: None,
            };
            let mut table = Table::new(&Start::default(), &conditions, 2);
            table.trial.runs.push(Run::ended(0, 0, end));
            table.propose(verdicts);
            table.trial.notes.pop().expect("a note")
        };
        for (end, verdicts, start) in [
            (RunEnd::Stopped, Some(&[][..]), "explain proposes nothing here that a restart can try. Name remedies: "),
            (
                RunEnd::Completed,
                None,
                "the program ended before it could be explained, so no remedy is proposed: give ",
            ),
            (RunEnd::Stopped, None, "the first run was not explained, so no remedy is proposed. Name remedies: "),
            (RunEnd::Exited(1), None, "the first run was not explained, so no remedy is proposed. Name remedies: "),
        ] {
            let found = note(end, verdicts);
            assert!(found.starts_with(start) && found.ends_with(GRAMMAR), "{found}");
        }
    }
}
