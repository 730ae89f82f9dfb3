//! `plimsoll run`: starts a program with the tracker in it.
//!
//! Without a report to print at the end the program takes our place (exec, same PID). With one we stay as its parent and
//! are its likeness: signals go on to it, its stops, exit status and death are ours. Our own words go to standard
//! error or to a file.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use plimsoll_observer::ending::{Ending, How};
use plimsoll_observer::foreign::own;
use plimsoll_observer::source::{cgroup, proc, segment};
use plimsoll_observer::symbols;
use plimsoll_report::words;

use crate::obstacle::{self, Obstacle};
use crate::output::{By, Choice, Format, Style, say, shown};
use crate::sys::{self, End, Image};
use crate::tracker::Unpacked;
use crate::{Failure, record, target, tracker};

mod family;

use family::Family;

/// How a program is started with the tracker in it: what `run` and `record` share.
#[derive(clap::Args)]
pub struct Launch {
    /// Deep stacks for blocks: none, of a sample, or of each
    #[arg(long, value_enum, default_value = "sampled")]
    sites: Sites,
    /// Mean bytes between two samples
    #[arg(long, value_name = "BYTES", default_value_t = plimsoll_observer::source::segment::SAMPLE_MEAN,
          value_parser = clap::value_parser!(u64).range(256..=1 << 40))]
    sample: u64,
    /// Frames of a deep stack at most; what lies further out is cut with a mark
    #[arg(long, value_name = "FRAMES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=1024))]
    depth: u32,
    /// Directory of the segments [default: /dev/shm/plimsoll-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Track the programs too that this one starts by exec
    #[arg(long)]
    follow: bool,
    /// The program writes a summary itself when it gets this signal (USR2, 12, RTMIN+3, …)
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    signal: Option<String>,
    /// File of that summary
    #[arg(long, value_name = "FILE", requires = "signal")]
    summary: Option<PathBuf>,
    /// Segments of ended processes that are kept
    #[arg(long, value_name = "N", default_value_t = segment::RETAINED)]
    retain: usize,
    /// Category rules of your own, asked before the built-in ones (docs/categories.md)
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    launch: Launch,
    /// What to print when the program has ended
    #[arg(long, value_enum, default_value = "none")]
    report: Report,
    /// In whose manner
    #[arg(long, value_enum, default_value = "plimsoll", requires = "report")]
    style: Style,
    /// stderr, stdout or a file
    #[arg(long, value_name = "stderr|stdout|FILE", default_value = "stderr", requires = "report")]
    report_to: PathBuf,
    /// Record it too, as 'plimsoll record' does (docs/jfr-events.md)
    #[arg(long, value_name = "FILE.jfr")]
    record: Option<PathBuf>,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How blocks get deep stacks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sites {
    Off,
    Sampled,
    Exact,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Report {
    None,
    Summary,
    Detail,
}

/// A program that can be started, and whether the tracker will be in it.
pub struct Prepared {
    pub image: Image,
    pub shown: String,
    pub tracked: bool,
}

/// `Err` with the shell's exit status where there is no such program; the sentence has been said.
pub fn prepare(launch: &Launch, command: &[OsString]) -> Result<Result<Prepared, ExitCode>, Failure> {
    let program = command.first().cloned().unwrap_or_default();
    let shown = words::printable(&program.to_string_lossy());
    let Some(path) = resolve(Path::new(&program)) else {
        say(format_args!("cannot start '{shown}': it isn't an executable file"));
        return Ok(Err(ExitCode::from(127)));
    };
    if !path.is_file() {
        say(format_args!("'{shown}' can't be started: it is not a regular file"));
        return Ok(Err(ExitCode::from(126)));
    }
    let shut_out = obstacle(launch, &path, &shown);
    let environment =
        if shut_out { std::env::vars_os().collect() } else { environment(launch, &tracker::unpack()?, &path)? };
    let image = Image::new(&path, command, &environment).map_err(|_| "an argument contains a NUL byte".to_string())?;
    Ok(Ok(Prepared { image, shown, tracked: !shut_out }))
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let Prepared { image, shown, tracked } = match prepare(&args.launch, &args.command)? {
        Ok(prepared) => prepared,
        Err(status) => return Ok(status),
    };
    if args.report == Report::None && args.record.is_none() {
        return Ok(failed(&shown, &image.exec()));
    }
    // Before the long run, not after it: a report that can't be written is known at once.
    let mut out = output(if args.report == Report::None { Path::new("stderr") } else { &args.report_to })?;
    let recording = args.record.as_deref().map(record::Recording::check).transpose()?;
    let kills = Kills::before();
    let since = sys::boottime_ns();
    let child = match sys::spawn(&image) {
        Ok(child) => child,
        Err(error) => return Ok(failed(&shown, &error)),
    };
    let pid = child.pid;
    let end = match recording {
        None => child.wait().map_err(|e| format!("cannot wait for the program: {e}"))?,
        Some(recording) => recording.of_child(child)?,
    };
    if args.report != Report::None
        && tracked
        && let Err(Failure(sentence)) = print(&mut *out, &args, (pid, since), (kills.ending(end), sys::last_name()))
    {
        say(sentence);
    }
    drop(out);
    Ok(mirror(end))
}

/// Ends as the child did.
pub fn mirror(end: End) -> ExitCode {
    match end {
        End::Code(code) => ExitCode::from(code),
        End::Signal(signal) => {
            sys::die_of(signal);
            ExitCode::from(128u8.wrapping_add(signal as u8))
        }
    }
}

/// Says in one sentence what keeps the tracker out of the program, or blind in it. True: it has no use there.
fn obstacle(args: &Launch, path: &Path, shown: &str) -> bool {
    match obstacle::of(path) {
        Some(Obstacle::StartedByEnv(_)) if args.follow => {}
        Some(obstacle) => {
            say(format_args!("'{shown}' {}", obstacle.sentence()));
            return obstacle.shuts_out();
        }
        None => {}
    }
    let directory = args.dir.clone().unwrap_or_else(tracker::default_directory);
    let reason = match tracker::private_directory(&directory) {
        Ok(()) => obstacle::no_room(&directory, segment::FILE_BYTES as u64),
        // A bad --dir is a bad option: `environment` refuses it.
        Err(_) if args.dir.is_some() => None,
        Err(reason) => Some(reason),
    };
    if let Some(reason) = &reason {
        let directory = words::printable(&directory.display().to_string());
        say(format_args!("'{shown}' runs untracked: cannot make its segment in {directory}: {reason}"));
    }
    reason.is_some()
}

/// A signal as the tracker takes it (summary.rs there); another one would be passed over in silence. Not KILL and STOP,
/// which can't be caught, nor 32 and 33, which are glibc's own (nptl(7)).
fn signal(text: &str) -> Result<String, String> {
    const NAMES: [&str; 9] = ["HUP", "USR1", "USR2", "URG", "VTALRM", "PROF", "WINCH", "IO", "PWR"];
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let number = |digits: &str| digits.parse::<u8>().ok().filter(|_| digits.len() < 3 && !digits.starts_with('+'));
    let real_time = name.strip_prefix("RTMIN").map(|plus| plus.strip_prefix('+').unwrap_or(plus));
    let good = match (number(text), real_time) {
        (Some(n), _) => (1..=64).contains(&n) && ![9, 19, 32, 33].contains(&n),
        (None, Some("")) => true,
        (None, Some(plus)) => number(plus).is_some_and(|n| n <= 30),
        (None, None) => NAMES.contains(&name),
    };
    let names = NAMES.join(", ");
    if good { Ok(text.into()) } else { Err(format!("expected {names}, RTMIN+n, or a signal's number")) }
}

pub fn failed(shown: &str, error: &io::Error) -> ExitCode {
    say(format_args!("cannot start '{shown}': {error}"));
    // As env(1) and nohup(1) have it.
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn output(report_to: &Path) -> Result<Box<dyn Write>, Failure> {
    Ok(match report_to.to_str() {
        Some("stderr") => Box::new(BufWriter::new(io::stderr())),
        Some("stdout") => Box::new(BufWriter::new(io::stdout())),
        _ => Box::new(BufWriter::new(
            own::create(report_to).map_err(|e| format!("--report-to {}: cannot write: {e}", shown(report_to)))?,
        )),
    })
}

/// Kills for memory in our own cgroup, which the child begins in, as the kernel counts them.
struct Kills {
    group: Option<PathBuf>,
    before: Option<u64>,
}

impl Kills {
    fn before() -> Kills {
        let own = proc::Target::open(std::process::id()).ok();
        let group = own.and_then(|own| cgroup::read_limit(&own, proc::read_host().memory).0);
        let group = group.map(|(group, _)| group.directory);
        let before = group.as_deref().and_then(cgroup::oom_kills);
        Kills { group, before }
    }

    /// How the child ended. The counter is of a group: where it hasn't moved, the child may have died in another one.
    fn ending(&self, end: End) -> Ending {
        let mut ending = match end {
            End::Code(code) => Ending::of(How::Code(code)),
            End::Signal(signal) => Ending::of(How::Signal(u8::try_from(signal).unwrap_or(0))),
        };
        let after = self.group.as_deref().and_then(cgroup::oom_kills);
        if ending.is_sigkill() && self.before.zip(after).is_some_and(|(before, after)| after > before) {
            ending.oom = Some(true);
        }
        ending
    }
}

/// Of the last program under that PID; `ended`: how, and its name then.
fn print(
    out: &mut dyn Write,
    args: &Args,
    (pid, since): (u32, u64),
    (ending, name): (Ending, &str),
) -> Result<(), Failure> {
    let directories = args.launch.dir.iter().cloned().chain(segment::search_directories(None));
    let family = Family::find(directories, pid, since);
    let (path, head) = family.last().ok_or("the program left no segment: it ran without the tracker")?;
    let life = segment::life_of(head, path);
    let mut books = target::books(path, life)?;
    let ending = family.ending(&books, life, name, ending);
    if ending.how == How::Exec {
        let (was, is) = (shown(Path::new(&books.process.executable)), words::printable(name));
        say(format_args!("'{was}' was replaced by '{is}', which was not tracked: plimsoll run --follow -- …"));
    } else {
        // For later reports; what can't be written is only missing there.
        let _ = segment::set_ended(path, ending);
    }
    books.ending = Some(ending);
    let detail = args.report == Report::Detail;
    let choice = Choice { style: args.style, format: Format::Text, by: By::Category, detail };
    if choice.wants_symbols() {
        symbols::resolve(&mut books, &target::symbols(None, &[]));
    }
    let written = choice.write(out, &books).and_then(|()| match args.style {
        Style::Plimsoll if args.launch.follow => family.table(out, ending),
        // Other programs read those styles.
        _ => Ok(()),
    });
    let written = written.and_then(|()| out.flush());
    written.map_err(|e| format!("--report-to {}: {e}", shown(&args.report_to)).into())
}

/// execvp's search: a name with a slash is a path, any other is looked for in $PATH.
fn resolve(program: &Path) -> Option<PathBuf> {
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return program.exists().then(|| program.to_path_buf());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| sys::is_executable(file))
}

/// Our own environment with the tracker's options in it (docs/cli.md has the table).
fn environment(args: &Launch, tracker: &Unpacked, program: &Path) -> Result<Vec<(OsString, OsString)>, Failure> {
    let mut environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut set = |name: &str, value: OsString| {
        environment.retain(|(n, _)| n != name);
        environment.push((name.into(), value));
    };
    let sites = args.sites.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
    set("PLIMSOLL_SITES", sites.into());
    set("PLIMSOLL_SAMPLE", args.sample.to_string().into());
    set("PLIMSOLL_DEPTH", args.depth.to_string().into());
    set("PLIMSOLL_RETAIN", args.retain.to_string().into());
    if let Some(dir) = &args.dir {
        tracker::private_directory(dir).map_err(|e| format!("--dir {}: {e}", dir.display()))?;
        let absolute = dir.canonicalize().map_err(|e| format!("--dir {}: {e}", dir.display()))?;
        set("PLIMSOLL_DIR", absolute.into());
    }
    set("PLIMSOLL_RULES", tracker.compiled_rules(&args.rules, program)?.into());
    if args.follow {
        set("PLIMSOLL_FOLLOW", "1".into());
    }
    if let Some(signal) = &args.signal {
        set("PLIMSOLL_SIGNAL", signal.into());
    }
    if let Some(file) = &args.summary {
        let absolute = std::path::absolute(file).map_err(|e| format!("--summary {}: {e}", file.display()))?;
        // Written when nobody looks: a place that can't be written is better known at once.
        if let Some(parent) = absolute.parent().filter(|dir| !dir.is_dir()) {
            return Err(format!("--summary {}: there is no directory {}", file.display(), parent.display()).into());
        }
        set("PLIMSOLL_SUMMARY", absolute.into());
    }
    // Ours first: its malloc must be the one that the program finds; a preloaded allocator stays below it.
    let preload = match std::env::var_os("LD_PRELOAD").filter(|old| !old.is_empty()) {
        Some(old) => sys::joined(&[tracker.library.as_os_str(), &old]),
        None => tracker.library.clone().into(),
    };
    set("LD_PRELOAD", preload);
    Ok(environment)
}
