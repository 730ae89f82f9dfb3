//! Starts a program with the tracker loaded: shared by `run` and `record`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use plimsoll_process::foreign::{Deadline, NAMES};
use plimsoll_report::words;
use plimsoll_tracked::segment;

use crate::Failure;
use crate::exit::Exit;
use crate::output::print_message;
use crate::summary_signal;
use crate::sys::{self, ChildEnd, Image};
use crate::tracker::{self, Unpacked};
use crate::untrackable;

/// Options of the start.
#[derive(clap::Args)]
pub struct Launch {
    /// Record the deep stack of no block, of sampled blocks, or of every block
    #[arg(long, value_enum, default_value = "sampled")]
    sites: SiteMode,
    /// Set the mean number of bytes between two samples
    #[arg(long, value_name = "BYTES", default_value_t = plimsoll_tracked::segment::SAMPLE_MEAN,
          value_parser = clap::value_parser!(u64).range(256..=1 << 40))]
    sample: u64,
    /// Keep at most this many frames of a deep stack, the innermost; a mark shows a cut
    #[arg(long, value_name = "FRAMES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=1024))]
    depth: u32,
    /// Write segments to this directory [default: plimsoll-UID in /dev/shm, /tmp or /run, the first usable]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Also track the processes that the program starts
    #[arg(long)]
    pub follow: bool,
    /// Make the program write a summary when it receives this signal (RTMIN+3, URG, 37, …), which it must not use itself
    #[arg(long, value_name = "SIGNAL", value_parser = summary_signal::parse)]
    signal: Option<String>,
    /// Write that summary to this file
    #[arg(long, value_name = "FILE", requires = "signal")]
    summary: Option<PathBuf>,
    /// Keep this many segments of ended processes
    #[arg(long, value_name = "N", default_value_t = segment::RETAINED)]
    pub retain: usize,
    /// Apply the category rules in this file before the built-in ones. Its rows: 'category Orders: what the server keeps',
    /// then 'server: cache_* -> Orders'
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
}

/// Which blocks get deep stacks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SiteMode {
    Off,
    Sampled,
    Exact,
}

/// A program that can be started, and whether the tracker will be loaded.
pub struct Prepared {
    pub image: Image,
    pub shown: String,
    pub tracked: bool,
}

/// `Err` holds the shell's exit status if the program cannot be started; the message has been printed.
pub fn prepare(launch: &Launch, command: &[OsString]) -> Result<Result<Prepared, ExitCode>, Failure> {
    let program = command.first().cloned().unwrap_or_default();
    let shown = words::printable(&program.to_string_lossy());
    let Some(path) = resolve(Path::new(&program)) else {
        // Not NotFound: the file may exist in a directory that this user can't search.
        if shown.contains('/')
            && let Err(error) = Path::new(&program).metadata()
            && error.kind() != io::ErrorKind::NotFound
        {
            return Ok(Err(failed(&shown, &error)));
        }
        let reason = match shown.contains('/') {
            true => "there is no such file",
            false => "no directory in PATH has an executable file of that name",
        };
        print_message(format_args!("cannot start '{shown}': {reason}"));
        return Ok(Err(Exit::NotFound.into()));
    };
    if !path.is_file() {
        print_message(format_args!("cannot start '{shown}': it is not a regular file"));
        return Ok(Err(Exit::CannotStart.into()));
    }
    let deadline = Deadline::after(NAMES);
    if let Some(signal) = &launch.signal {
        summary_signal::check(signal, &path, &shown, deadline)?;
    }
    let shut_out = is_shut_out(launch, &path, &shown, deadline);
    let environment = if shut_out {
        std::env::vars_os().collect()
    } else {
        environment(launch, &tracker::unpack(deadline)?, &path, deadline)?
    };
    let image = Image::new(&path, command, &environment, deadline)
        .map_err(|_| "an argument contains a NUL byte".to_string())?;
    Ok(Ok(Prepared { image, shown, tracked: !shut_out }))
}

/// The environment that loads the tracker into a program and its children, with the stack of every block. `None`: the
/// tracker can't be loaded, and the reason has been printed.
pub fn tracked(command: &[OsString], dir: &Path) -> Result<Option<Vec<(OsString, OsString)>>, Failure> {
    let program = command.first().cloned().unwrap_or_default();
    let Some(path) = resolve(Path::new(&program)) else { return Ok(None) };
    let launch = Launch {
        sites: SiteMode::Exact,
        sample: segment::SAMPLE_MEAN,
        depth: 256,
        dir: Some(dir.to_owned()),
        follow: true,
        signal: None,
        summary: None,
        retain: segment::RETAINED,
        rules: Vec::new(),
    };
    let (shown, deadline) = (words::printable(&program.to_string_lossy()), Deadline::after(NAMES));
    if is_shut_out(&launch, &path, &shown, deadline) {
        return Ok(None);
    }
    environment(&launch, &tracker::unpack(deadline)?, &path, deadline).map(Some)
}

pub fn failed(shown: &str, error: &io::Error) -> ExitCode {
    print_message(format_args!("cannot start '{shown}': {error}"));
    // The exit statuses of env(1) and nohup(1).
    (if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::CannotStart }).into()
}

/// Ends with the status or signal of the child.
pub fn mirror(end: ChildEnd) -> ExitCode {
    match end {
        ChildEnd::Code(code) => ExitCode::from(code),
        ChildEnd::Signal(signal) => {
            sys::die_of(signal);
            ExitCode::from(128u8.wrapping_add(signal as u8))
        }
    }
}

/// Reports in one sentence what keeps the tracker out of the program or what it cannot see. True: loading it is
/// useless.
fn is_shut_out(args: &Launch, path: &Path, shown: &str, deadline: Deadline) -> bool {
    let preloaded = std::env::var_os("LD_PRELOAD").and_then(|list| untrackable::preloaded(&list));
    // A loader that doesn't read LD_PRELOAD doesn't load the sanitizer either.
    let obstacle = untrackable::of(path, deadline).filter(|obstacle| obstacle.shuts_out() || preloaded.is_none());
    if let Some(obstacle) = obstacle.or(preloaded) {
        print_message(format_args!("'{shown}' {}", obstacle.sentence()));
        return obstacle.shuts_out();
    }
    let directory = args.dir.clone().unwrap_or_else(tracker::default_directory);
    let named = words::printable(&directory.display().to_string());
    let reason = match tracker::private_directory(&directory) {
        Ok(()) => untrackable::no_space(&directory, segment::FILE_BYTES as u64)
            .map(|reason| format!("cannot make its segment in {named}: {reason}")),
        // `environment` refuses a bad --dir as a bad option.
        Err(_) if args.dir.is_some() => None,
        Err(reason) => Some(format!("{named} {reason}; {}", untrackable::ANOTHER_DIRECTORY)),
    };
    if let Some(reason) = &reason {
        print_message(format_args!("'{shown}' runs untracked: {reason}"));
    }
    reason.is_some()
}

/// The search of execvp: a name with a slash is a path; any other name is searched for in $PATH.
pub fn resolve(program: &Path) -> Option<PathBuf> {
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return program.exists().then(|| program.to_path_buf());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| sys::is_executable(file))
}

/// Our environment plus the tracker's options (table in docs/options.md).
fn environment(
    args: &Launch,
    tracker: &Unpacked,
    program: &Path,
    deadline: Deadline,
) -> Result<Vec<(OsString, OsString)>, Failure> {
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
        tracker::private_directory(dir).map_err(|e| format!("--dir {} {e}; name another directory", dir.display()))?;
        let absolute = dir.canonicalize().map_err(|e| format!("--dir {}: {e}", dir.display()))?;
        set("PLIMSOLL_DIR", absolute.into());
    }
    set("PLIMSOLL_RULES", tracker.compiled_rules(&args.rules, program, deadline)?.into());
    if args.follow {
        set("PLIMSOLL_FOLLOW", "1".into());
    }
    if let Some(signal) = &args.signal {
        set("PLIMSOLL_SIGNAL", signal.into());
    }
    if let Some(file) = &args.summary {
        let absolute = std::path::absolute(file).map_err(|e| format!("--summary {}: {e}", file.display()))?;
        // The program writes the file when nobody watches, so check the directory now.
        if let Some(parent) = absolute.parent().filter(|dir| !dir.is_dir()) {
            return Err(format!("--summary {}: there is no directory {}", file.display(), parent.display()).into());
        }
        set("PLIMSOLL_SUMMARY", absolute.into());
    }
    // The tracker comes first, because the program must find its malloc; an allocator that is also preloaded stays
    // below it.
    let preload: OsString = match std::env::var_os("LD_PRELOAD").filter(|old| !old.is_empty()) {
        Some(old) => [tracker.library.as_os_str(), OsStr::new(":"), old.as_os_str()].into_iter().collect(),
        None => tracker.library.clone().into(),
    };
    set("LD_PRELOAD", preload);
    Ok(environment)
}
