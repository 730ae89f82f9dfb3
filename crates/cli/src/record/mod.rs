//! `plimsoll record`: writes memory over time as a Flight Recorder file.
//!
//! ```text
//! each interval   smaps, status, cgroup, segment ─► ledger lines, categories, limit          `sampler`
//! every 20 s      arenas, sites, peaks too
//! seldom          VM and malloc's arenas: who owns which memory (≤ 0.1 % of a core)
//!                      └─► one instant ─► the file, whole after each                         `file`, report::jfr
//! ```
//! One thread and one clock: the thread sleeps until the next instant, a signal, or the end of a target.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::NAMES;
use plimsoll_report::words;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::launch::{self, Launch, Prepared};
use crate::output::print_message;
use crate::sampler::{Sampler, Subject};
use crate::sys::{self, Child, ChildEnd, Signals};
use crate::{Failure, explain, process_argument};
use last_resort::{LAST_INSTANT, LastResort};

mod file;
mod last_resort;
mod recorder;

pub use file::Output;
pub use last_resort::end_if_blocked;
pub use recorder::Writer;
use recorder::{Recorder, RecorderLife};

/// The program to start, and how it is started: without effect on a process that runs already. These are all options of
/// `Launch`.
const OF_A_COMMAND: [&str; 10] =
    ["command", "sites", "sample", "depth", "dir", "follow", "signal", "summary", "retain", "rules"];

/// Enough for 1,000 processes: each has four open files. Set only if plimsoll starts no program, because a program
/// would inherit the limit.
pub const OPEN_FILES: u64 = 4096;

#[derive(clap::Args)]
#[command(override_usage = "plimsoll record [OPTIONS] <PID|NAME>...\n       plimsoll record [OPTIONS] -- <CMD>...")]
pub struct Args {
    /// PIDs or names of the processes to record, tracked or not
    #[arg(
        value_name = "PID|NAME",
        required_unless_present_any = ["command", "chosen"],
        conflicts_with_all = OF_A_COMMAND
    )]
    processes: Vec<OsString>,
    /// Choose a process whose name looks like an option, or by the id of its container; may be given several times
    #[arg(
        short = 'p',
        long = "process",
        value_name = "PID|NAME|CONTAINER",
        allow_hyphen_values = true,
        conflicts_with_all = OF_A_COMMAND
    )]
    chosen: Vec<OsString>,
    /// Write the recording to this file; %p stands for the PID, %t for the start time [default: plimsoll-%p.jfr]
    #[arg(short, long, value_name = "FILE.jfr")]
    output: Option<PathBuf>,
    #[command(flatten)]
    pace: Pace,
    #[command(flatten)]
    launch: Launch,
    /// Start this program with the tracker loaded, and record it from its first instruction; it gets every signal but
    /// SIGHUP, which begins a new file
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(clap::Args, Clone, Copy)]
pub struct Pace {
    /// Take a reading this often (500ms, 1s, 1m)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Stop after this time (30s, 5m, 2h, 1d); without it, when the target ends
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Begin a new file when the current one reaches this size (16m, 1g); the full file is renamed by its start time
    #[arg(long, value_name = "BYTES", value_parser = explain::bytes)]
    max_size: Option<Bytes>,
    /// Begin a new file after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_age: Option<Duration>,
    /// Keep this many full files, and delete older ones
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
}

impl Pace {
    /// Without limits.
    pub fn every(interval: Duration) -> Pace {
        Pace { interval, ..Pace::default() }
    }

    /// Files up to this size and age, which nobody deletes.
    pub fn within(interval: Duration, max_size: Bytes, max_age: Duration) -> Pace {
        Pace { max_size: Some(max_size), max_age: Some(max_age), ..Pace::every(interval) }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { interval: Duration::from_secs(1), duration: None, max_size: None, max_age: None, keep: None }
    }
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let pattern = args.output.clone().unwrap_or_else(|| PathBuf::from("plimsoll-%p.jfr"));
    if args.command.is_empty() {
        let words = args.processes.iter().chain(&args.chosen);
        let mut pids = words.map(|word| process_argument::pid_of(word, "record")).collect::<Result<Vec<_>, _>>()?;
        // Two recorders of one process would write the same file.
        let mut seen = BTreeSet::new();
        pids.retain(|pid| seen.insert(*pid));
        return of_processes(&pids, &pattern, args.pace);
    }
    let Prepared { image, shown, .. } = match launch::prepare(&args.launch, &args.command)? {
        Ok(prepared) => prepared,
        Err(status) => return Ok(status),
    };
    let recording = RecordingPlan::check(&pattern, &args.launch)?.paced(args.pace);
    let child = match sys::spawn(&image) {
        Ok(child) => child,
        Err(error) => return Ok(launch::failed(&shown, &error)),
    };
    Ok(launch::mirror(recording.of_child(child)?))
}

fn of_processes(pids: &[u32], pattern: &Path, pace: Pace) -> Result<ExitCode, Failure> {
    if pids.len() > 1 && !file::makes_distinct_names(pattern) {
        let name = words::printable(&pattern.display().to_string());
        return Err(
            format!("cannot record {} processes into one file: put %p into the name '{name}'", pids.len()).into()
        );
    }
    check(pattern)?;
    sys::allow_open_files(OPEN_FILES);
    let signals = Signals::of(Some(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])).map_err(cant_wait)?;
    let last_resort = LastResort::watch(None, &[]);
    let recorders = pids.iter().map(|pid| recorder(pattern, *pid, None, pace)).collect::<Result<Vec<_>, _>>()?;
    let mut session = Session {
        recorders,
        signals,
        last_resort,
        child: None,
        rotates: true,
        pace,
        shown: Progress::new(),
        failures: Vec::new(),
    };
    session.run()?;
    // Each failure has been printed when it happened; here it decides the exit status.
    match session.failures.first() {
        Some(sentence) => Err(Failure(format!("the recording is not complete: {sentence}"))),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// `started`: `None` for a process that isn't our child; for a child, the directory of its segments, if one was chosen.
fn recorder(pattern: &Path, pid: u32, started: Option<Option<PathBuf>>, pace: Pace) -> Result<Recorder, Failure> {
    let output = Output::new(pattern, pid, pace)?;
    let subject = Subject { child: started.is_some(), ..Subject::of(pid, pace.interval, "record") };
    let sampler = Sampler::of_started(subject, started.flatten())?;
    Ok(Recorder::new(sampler, Writer::new(pid, pace.interval, output)))
}

fn cant_wait(error: io::Error) -> Failure {
    Failure(format!("cannot wait for signals: {error}"))
}

/// Fails if no recording can be created under that name.
pub fn check(pattern: &Path) -> Result<(), Failure> {
    file::writable(pattern)
}

/// A recording of a program that this process starts.
pub struct RecordingPlan {
    pattern: PathBuf,
    pace: Pace,
    /// SIGHUP begins a new file. Otherwise it is the program's, like any other signal.
    rotates: bool,
    /// The directory of the program's segments, if one was chosen.
    directory: Option<PathBuf>,
}

impl RecordingPlan {
    /// Called before the program starts: a file that cannot be created is reported at once.
    pub fn check(pattern: &Path, launch: &Launch) -> Result<RecordingPlan, Failure> {
        file::writable(pattern)?;
        let directory = launch.dir.as_deref().and_then(|dir| std::path::absolute(dir).ok());
        Ok(RecordingPlan { pattern: pattern.to_owned(), pace: Pace::default(), rotates: false, directory })
    }

    /// The plan for `record`: with the pace that was requested, and new files at SIGHUP.
    fn paced(self, pace: Pace) -> RecordingPlan {
        RecordingPlan { pace, rotates: true, ..self }
    }

    /// Records until the child ends. A failure of the recording is printed, and the child goes on. The child's end is
    /// returned.
    pub fn of_child(self, child: Child) -> Result<ChildEnd, Failure> {
        let signals = Signals::of(None).map_err(cant_wait)?;
        let kept: &[i32] = if self.rotates { &[libc::SIGHUP] } else { &[] };
        let last_resort = LastResort::watch(Some(&child), kept);
        let recorders = match recorder(&self.pattern, child.pid, Some(self.directory), self.pace) {
            Ok(recorder) => vec![recorder],
            Err(Failure(sentence)) => {
                print_message(&sentence);
                Vec::new()
            }
        };
        let RecordingPlan { pace, rotates, .. } = self;
        let mut session = Session {
            recorders,
            signals,
            last_resort,
            child: Some(child),
            rotates,
            pace,
            shown: Progress::new(),
            failures: Vec::new(),
        };
        let end = session.run()?;
        if let Some(child) = &session.child {
            child.restore();
        }
        end.ok_or_else(|| Failure("the end of the program was not seen".into()))
    }
}

/// One call of `record`: what it records, and what ends it.
struct Session {
    recorders: Vec<Recorder>,
    signals: Signals,
    last_resort: LastResort,
    child: Option<Child>,
    rotates: bool,
    pace: Pace,
    shown: Progress,
    /// The messages about files that could not be written.
    failures: Vec<String>,
}

/// What ended a wait.
enum Woken {
    Time,
    /// A target may have ended.
    End,
    Stop,
    ChildEnded(ChildEnd),
}

impl Session {
    fn run(&mut self) -> Result<Option<ChildEnd>, Failure> {
        let began = Instant::now();
        // The last instant is at the end of the duration, even if that is no multiple of the interval.
        let end = self.pace.duration.and_then(|duration| began.checked_add(duration));
        let mut next = began;
        let mut missed = 0;
        loop {
            let last = end.is_some_and(|end| Instant::now() >= end);
            self.each(|recorder| recorder.instant(missed, last.then_some(NAMES)));
            self.shown.instant(&self.recorders, began.elapsed());
            if last {
                self.finish();
            }
            if self.recorders.is_empty() && self.child.is_none() {
                break;
            }
            // If an instant takes longer than the interval, the instants that it overlaps are skipped.
            let late = began.elapsed().as_nanos() / self.pace.interval.as_nanos().max(1);
            let following = began + self.pace.interval * u32::try_from(late + 1).unwrap_or(u32::MAX);
            missed = (following - next).as_nanos().saturating_div(self.pace.interval.as_nanos().max(1)) as u64;
            missed = missed.saturating_sub(1);
            // After the last instant, a child may go on.
            next = end.filter(|_| !last).map_or(following, |end| following.min(end));
            match self.wait(next)? {
                Woken::Time => {}
                Woken::Stop => {
                    let by = Instant::now() + LAST_INSTANT;
                    self.each(|recorder| recorder.instant(missed, Some(by.saturating_duration_since(Instant::now()))));
                    break;
                }
                Woken::End => {
                    self.each(
                        |recorder| if recorder.has_ended() { recorder.end(None) } else { Ok(RecorderLife::Live) },
                    );
                }
                Woken::ChildEnded(end) => {
                    self.each(|recorder| recorder.end(Some(end)));
                    self.finish();
                    return Ok(Some(end));
                }
            }
        }
        self.finish();
        Ok(None)
    }

    /// Removes a recorder from the session when its target has ended or its file cannot be written.
    fn each(&mut self, mut act: impl FnMut(&mut Recorder) -> Result<RecorderLife, Failure>) {
        let mut left = Vec::new();
        for mut recorder in std::mem::take(&mut self.recorders) {
            match act(&mut recorder) {
                Ok(RecorderLife::Live) => left.push(recorder),
                Ok(RecorderLife::Ended) => self.close(recorder),
                Err(Failure(sentence)) => {
                    self.shown.clear();
                    print_message(&sentence);
                    self.failures.push(sentence);
                }
            }
        }
        self.recorders = left;
    }

    fn close(&mut self, recorder: Recorder) {
        self.shown.clear();
        match recorder.finish() {
            Ok(sentence) => print_message(sentence),
            Err(Failure(sentence)) => {
                print_message(&sentence);
                self.failures.push(sentence);
            }
        }
    }

    fn finish(&mut self) {
        for recorder in std::mem::take(&mut self.recorders) {
            self.close(recorder);
        }
    }

    fn wait(&mut self, until: Instant) -> Result<Woken, Failure> {
        loop {
            if let Some(signal) = self.signals.next() {
                // The kernel sends SIGHUP (si_code > 0) when the terminal is gone: that concerns the program.
                let is_hangup = self.child.is_some() && signal.code > 0;
                match (&self.child, signal.number) {
                    (_, libc::SIGHUP) if self.rotates && !is_hangup => {
                        self.each(|recorder| recorder.rotate().map(|()| RecorderLife::Live));
                    }
                    (Some(child), _) => {
                        let end = child.take(signal).map_err(|e| format!("cannot wait for the program: {e}"))?;
                        if let Some(end) = end {
                            return Ok(Woken::ChildEnded(end));
                        }
                    }
                    (None, _) => {
                        self.last_resort.taken();
                        return Ok(Woken::Stop);
                    }
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Woken::Time);
            }
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            fds.extend(
                self.recorders
                    .iter()
                    .filter_map(|recorder| recorder.pidfd())
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
            let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0);
            // The end of a child is handled by its SIGCHLD, which has its status.
            if ready > 0 && fds[0].revents().is_empty() && self.child.is_none() {
                return Ok(Woken::End);
            }
        }
    }
}

/// One line on a terminal, rewritten at each interval. Writing it never delays an instant, and never overwrites what
/// another job of the shell shows.
struct Progress {
    terminal: bool,
    drawn: bool,
}

impl Progress {
    fn new() -> Progress {
        Progress { terminal: io::stderr().is_terminal(), drawn: false }
    }

    fn instant(&mut self, recorders: &[Recorder], elapsed: Duration) {
        if !self.terminal || recorders.is_empty() || !sys::is_in_foreground(io::stderr().as_fd()) || !takes_a_line() {
            return;
        }
        let parts: Vec<String> = recorders.iter().map(Recorder::progress).collect();
        let time = words::duration(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        let _ = write!(io::stderr(), "\r\x1b[K{time}  {}", words::cut(&parts.join("   "), 100));
        self.drawn = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) && sys::is_in_foreground(io::stderr().as_fd()) && takes_a_line() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Whether a write wouldn't block: the terminal may be stopped (Ctrl-S), or its reader stalls. While poll(2) reports
/// space, a terminal has it for 256 bytes or more (`WAKEUP_CHARS` and `MIN_TTYB_SIZE` in drivers/tty).
fn takes_a_line() -> bool {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// `500ms`, `30s`, `5m`, `2h`, `1d`.
pub fn time(text: &str) -> Result<Duration, String> {
    const WANTED: &str = "expected a duration such as 500ms, 30s, 5m, 2h or 1d";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(WANTED.into()),
    };
    let number: u64 = digits.parse().map_err(|_| WANTED)?;
    match number.checked_mul(unit) {
        Some(0) | None => Err(WANTED.into()),
        Some(milliseconds) => Ok(Duration::from_millis(milliseconds)),
    }
}

/// JFR times are written in milliseconds, and reading takes time: an interval below 10 ms has no use.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text)?;
    if interval < Duration::from_millis(10) { Err("an interval must be at least 10ms".into()) } else { Ok(interval) }
}
