//! `plimsoll run`: starts a program with the tracker loaded.
//!
//! Without a report at the end, the program replaces this process (exec, same PID). With a report, this process stays
//! as the parent: it forwards signals, and it stops, exits or dies as its child does. Messages go to standard error or
//! to a file.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use plimsoll_facts::ending::{Ending, How, Oom};
use plimsoll_process::cgroup;
use plimsoll_process::foreign::{Deadline, NAMES, own_files};
use plimsoll_process::kernel_log::OnKill;
use plimsoll_process::proc;
use plimsoll_report::words;
use plimsoll_tracked::segment;
use plimsoll_tracked::symbols;

use crate::launch::{Launch, Prepared, failed, mirror, prepare};
use crate::output::{By, Choice, Style, print_message, shown};
use crate::sys::{self, ChildEnd};
use crate::{Failure, record, target};

mod family;

use family::Family;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    launch: Launch,
    /// Print a report when the program has ended
    #[arg(long, value_enum, default_value = "none")]
    report: Report,
    /// Choose the layout of the report
    #[arg(long, value_enum, default_value = "plimsoll", requires = "report")]
    style: Style,
    /// Write the report to standard error, standard output or a file
    #[arg(long, value_name = "stderr|stdout|FILE", default_value = "stderr", requires = "report")]
    report_to: PathBuf,
    /// Also record the program, as 'plimsoll record' does; 'plimsoll report FILE.jfr' prints it
    #[arg(long, value_name = "FILE.jfr")]
    record: Option<PathBuf>,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Report {
    None,
    Summary,
    Detail,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.report == Report::None && (args.style != Style::Plimsoll || args.report_to != Path::new("stderr")) {
        return Err("--style and --report-to need --report summary or detail".into());
    }
    let Prepared { image, shown, tracked } = match prepare(&args.launch, &args.command)? {
        Ok(prepared) => prepared,
        Err(status) => return Ok(status),
    };
    if args.report == Report::None && args.record.is_none() {
        return Ok(failed(&shown, &image.exec()));
    }
    // Open the report before the program starts: a file that cannot be written is reported at once.
    let mut out = output(if args.report == Report::None { Path::new("stderr") } else { &args.report_to })?;
    let plan = |pattern| record::RecordingPlan::check(pattern, &args.launch);
    let recording = args.record.as_deref().map(plan).transpose()?;
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
        && let Err(Failure(sentence)) =
            print(&mut *out, &args, (pid, since), (kills.ending(end, (pid, since)), sys::last_name()))
    {
        print_message(sentence);
    }
    drop(out);
    Ok(mirror(end))
}

fn output(report_to: &Path) -> Result<Box<dyn Write>, Failure> {
    Ok(match report_to.to_str() {
        Some("stderr") => Box::new(BufWriter::new(io::stderr())),
        Some("stdout") => Box::new(BufWriter::new(io::stdout())),
        _ => Box::new(BufWriter::new(
            own_files::create(report_to).map_err(|e| format!("--report-to {}: cannot write: {e}", shown(report_to)))?,
        )),
    })
}

/// The kernel's count of OOM kills in our own cgroup, in which the child starts.
struct Kills {
    group: Option<PathBuf>,
    before: Option<u64>,
}

impl Kills {
    fn before() -> Kills {
        let deadline = Deadline::after(NAMES);
        let own = proc::Target::open(std::process::id(), deadline).ok();
        let group = own.and_then(|own| cgroup::read_limit(&own, proc::read_host().memory).0);
        let group = group.map(|(group, _)| group.directory);
        let before = group.as_deref().and_then(|group| cgroup::oom_kills(group, deadline));
        Kills { group, before }
    }

    /// How the child ended. The counter belongs to our cgroup; if it did not move, the child may have been killed in
    /// another cgroup. If it moved, the kernel may have killed another process, at any time of the run.
    fn ending(&self, end: ChildEnd, (pid, since): (u32, u64)) -> Ending {
        let mut ending = match end {
            ChildEnd::Code(code) => Ending::of(How::Code(code)),
            ChildEnd::Signal(signal) => Ending::of(How::Signal(u8::try_from(signal).unwrap_or(0))),
        };
        let after = self.group.as_deref().and_then(|group| cgroup::oom_kills(group, Deadline::after(NAMES)));
        if ending.is_sigkill() && self.before.zip(after).is_some_and(|(before, after)| after > before) {
            ending.oom = match segment::kernel_says_killed(pid, since) {
                OnKill::Killed => Oom::Yes,
                OnKill::OthersOnly => Oom::Unknown,
                OnKill::Nothing => Oom::InGroup,
            };
        }
        ending
    }
}

/// Prints the report on the last program under the PID. `ending`, `name`: how it ended, and its name then.
fn print(
    out: &mut dyn Write,
    args: &Args,
    (pid, since): (u32, u64),
    (ending, name): (Ending, &str),
) -> Result<(), Failure> {
    let (seen_ns, deadline) = (sys::boottime_ns(), Deadline::after(NAMES));
    let user = sys::last_other_user();
    let family = Family::find((pid, user, since), args.launch.dir.as_deref(), args.launch.retain, deadline);
    let (path, head) = family.last().ok_or("the program left no segment: it ran without the tracker")?;
    let life = segment::life_of(head, path, deadline);
    let mut books = target::books(path, life, deadline)?;
    let ending = if books.ending == Some(Ending::of(How::Exec)) { Ending::of(How::Exec) } else { ending };
    let (was, is) = (shown(Path::new(&books.process.executable)), words::printable(name));
    if ending.how == How::Exec {
        match user {
            Some(user) => print_message(format_args!(
                "'{was}' was replaced by '{is}', which user {user} ran. No books of it were found: it was not tracked, or user {user} could not write to the directory of --dir or PLIMSOLL_DIR, or its books cannot be read by this user"
            )),
            None => print_message(format_args!(
                "'{was}' was replaced by '{is}', which was not tracked. To track also what '{is}' starts, use plimsoll run --follow"
            )),
        }
    } else {
        if Family::had_another_name(&books, life, name) {
            print_message(format_args!(
                "'{was}' was called '{is}' when it ended: it had renamed itself, or another program had replaced it by a direct system call. If another program replaced it, the report does not include that program"
            ));
        }
        // With --record, the recorder has noted the time of the end already.
        let seen_ns = head.end_ns().unwrap_or(seen_ns);
        books.ended_after(seen_ns.saturating_sub(head.start_boottime_ns));
        // For later reports. They can do without it, so a failure is ignored.
        let _ = segment::set_ended(path, ending, seen_ns, deadline);
    }
    books.ending = Some(ending);
    let detail = args.report == Report::Detail;
    let choice = Choice { style: args.style, by: By::Category, detail, all: false };
    if choice.wants_symbols() {
        symbols::resolve(&mut books, &target::symbols(None, &[]), deadline);
    }
    let written = choice.write(out, &books).and_then(|()| match args.style {
        Style::Plimsoll if args.launch.follow => family.table(out, ending, deadline),
        // Other programs parse the other styles, so nothing may follow them.
        _ => Ok(()),
    });
    let written = written.and_then(|()| out.flush());
    written.map_err(|e| format!("--report-to {}: {e}", shown(&args.report_to)).into())
}
