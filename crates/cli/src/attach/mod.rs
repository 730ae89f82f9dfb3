//! `plimsoll attach` and `plimsoll detach`: load the tracker into a running process, and remove its hooks again.
//!
//! ```text
//! target ─┬─ tracked already ────────▶ change the sites mode: the segment's control word
//!         ├─ HotSpot ─▶ ask, if it will print a warning ─▶ library and rules into its file system ─▶ the VM loads it
//!         └─ any other, or a VM whose attach is disabled ─▶ library and rules likewise ─▶ a thread of our own loads it
//! ```
//! Where no directory of the target can hold the library, the thread loads it from a file in the target's memory.
//! crates/tracker/src/agent.rs is the side in the target.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use plimsoll_facts::shell::quoted;
use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::Deadline;
use plimsoll_report::words::printable;
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment::{self, Life, agent::Answer};

use crate::Failure;
use crate::exit::Exit;
use crate::launch::SiteMode;
use crate::output::{print_done, print_message, report_of};
use crate::process_argument::ProcessArgument;
use crate::sys;

mod fault;
mod library_directory;
mod loader;
#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_native.rs"]
mod native;
mod process;
pub mod release;
mod releasing;
mod threads_outside;
mod vm;

pub use releasing::Releasing;

use loader::{Loader, load};
use process::Process;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    process: ProcessArgument,
    /// Record the deep stack of no block, of sampled blocks, or of every block
    #[arg(long, value_enum, default_value = "sampled")]
    sites: SiteMode,
    /// Set the mean number of bytes between two samples
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(256..=1 << 40),
          help = format!("Set the mean number of bytes between two samples [default: {}, or as it is]", segment::SAMPLE_MEAN))]
    sample: Option<u64>,
    /// Attach without asking, even if the VM writes a warning to its standard error
    #[arg(short, long)]
    yes: bool,
}

#[derive(clap::Args)]
pub struct DetachArgs {
    #[command(flatten)]
    process: ProcessArgument,
}

impl Args {
    fn mode(&self) -> u32 {
        self.sites as u32
    }

    fn sample_mean(&self) -> u64 {
        self.sample.unwrap_or(segment::SAMPLE_MEAN)
    }

    fn sites(&self) -> String {
        self.sites.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
    }
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let pid = args.process.pid("attach")?;
    let mut process = Process::open(pid, "attach")?;
    let deadline = process.target.deadline();
    let known = segment::find_by_pid(pid, deadline);
    if let Some((path, head, Life::Live)) = &known {
        let mean = args.sample.unwrap_or(head.sample_mean);
        segment::set_control(pid, path, args.mode(), mean, deadline)?;
        // See `Header::control` in the segment's layout.
        return done(format!(
            "process {pid} is tracked already; each of its threads uses --sites {} once it has allocated about {} more",
            args.sites(),
            Bytes(head.sample_mean)
        ));
    }
    process.can_load()?;
    let loaded = process.tracker_file();
    let mut vm = process.speak("attached to")?;
    let question_began = Instant::now();
    if vm.is_some() && loaded.is_none() && !process.warning_is_accepted(args.yes)? {
        print_message(format_args!("nothing was done"));
        return Ok(Exit::Failed.into());
    }
    // The time that the user takes to answer doesn't count.
    let deadline = deadline.later(question_began.elapsed());
    process.target.allow(deadline);
    vm.iter_mut().for_each(|vm| vm.extend(deadline));
    let mut loader = Loader::of(&process, vm, loaded.as_deref(), "attach")?;
    if loaded.is_some() {
        // No thread may still write to the old books: see `threads_outside`.
        let announce = |threads| {
            print_message(format_args!(
                "waiting for {threads} threads of process {pid} that have not run since the detach"
            ));
        };
        threads_outside::wait(&process.target, announce).map_err(|threads| {
            format!(
                "{threads} threads of process {pid} have not run since the detach and may still write to the old books: try again when the machine is less busy"
            )
        })?;
    }
    let answer = load(&process, &mut loader, loaded.as_deref(), &args)?;
    match Answer::of(answer) {
        Some(Answer::Attached | Answer::AttachedAgain | Answer::Switched) => {}
        other => return Err(sentence(pid, answer, other).into()),
    }
    let Some((path, _, Life::Live)) = segment::find_by_pid(pid, deadline) else {
        return Err(if process.has_lost_its_segment() {
            format!("process {pid} is tracked, but its segment file was deleted, and only root can read the mapping. Detach with: plimsoll detach {pid}").into()
        } else if !process.is_there() {
            format!("process {pid} has ended or was replaced by exec").into()
        } else {
            format!("the agent in process {pid} reports that it is attached, but its segment cannot be found").into()
        });
    };
    let hooks = segment::read(&path, deadline).map(|segment| {
        let left = match segment.counter("import_words_left") {
            0 => String::new(),
            n => format!("; {n} can't be written: calls through them aren't seen"),
        };
        format!("  hooks     in {} words of import tables{left}\n", segment.counter("import_words"))
    });
    done(format!(
        "attached to process {pid}, --sites {}\n  segment   {}\n{}  then      plimsoll report {pid}   plimsoll detach {pid}",
        args.sites(),
        printable(&path.display().to_string()),
        hooks.unwrap_or_default()
    ))
}

pub fn detach(args: DetachArgs) -> Result<ExitCode, Failure> {
    let pid = args.process.pid("detach")?;
    let process = Process::open(pid, "detach")?;
    let deadline = process.target.deadline();
    let path = match segment::find_by_pid(pid, deadline) {
        Some((path, _, Life::Live)) => Some(path),
        _ if process.has_lost_its_segment() => None,
        _ => return Err(format!("process {pid} is not attached").into()),
    };
    if let Some(path) =
        path.as_ref().filter(|path| segment::read(path, deadline).is_ok_and(|s| s.counter("attaches") == 0))
    {
        segment::set_control(pid, path, SiteMode::Off as u32, segment::SAMPLE_MEAN, deadline)?;
        return done(format!(
            "process {pid} was started with the tracker, which stays in it. Its books go on, with --sites off"
        ));
    }
    let library = process.tracker_file().ok_or_else(|| {
        process.other_version().unwrap_or_else(|| format!("process {pid} has the tracker, but not from an attach"))
    })?;
    let vm = process.speak("detached from")?;
    let mut loader = Loader::of(&process, vm, Some(&library), "detach")?;
    let answer = loader.load_agent(&process, &library, segment::agent::DETACH, "detached from");
    match answer.map_err(|fault| fault.text().to_owned())? {
        n if n == Answer::Detached as i32 => {}
        n => return Err(sentence(pid, n, Answer::of(n)).into()),
    }
    let stays = path.as_deref().and_then(|path| left_resident(path, pid, deadline));
    done(detached(pid, path.as_deref(), stays))
}

/// What of the tracker is resident after a detach. `None`: this user may not read the page map.
fn left_resident(path: &Path, pid: u32, deadline: Deadline) -> Option<Bytes> {
    let segment = segment::read(path, deadline).ok()?;
    let mut books = Books::new(&segment, Life::Live, sys::boottime_ns());
    books.read_resident(pid, deadline);
    books.own.by_page.then(|| books.own.bytes())
}

/// `path`: the segment, unless its file was deleted. The target's user may have chosen its directory.
fn detached(pid: u32, path: Option<&Path>, stays: Option<Bytes>) -> String {
    let Some(path) = path else {
        return format!("detached from process {pid}. Its books are lost: their file was deleted");
    };
    let books = report_of(path);
    // A path through /proc/PID/root ends with the process.
    let remove = path.to_str().and_then(quoted).filter(|_| !path.starts_with("/proc"));
    let remove = remove.map(|path| format!(". Sooner, after the process has ended: rm {path}")).unwrap_or_default();
    let stays = stays.map(|bytes| format!("{bytes} of ")).unwrap_or_default();
    format!(
        "detached from process {pid}. Its books up to now: {books}\n  \
         stays     {stays}the tracker's library and tables, without hooks, until the process ends\n  \
         the file  is deleted when enough newer ones exist (PLIMSOLL_RETAIN){remove}"
    )
}

fn done(sentence: String) -> Result<ExitCode, Failure> {
    print_done(sentence);
    Ok(ExitCode::SUCCESS)
}

fn sentence(pid: u32, number: i32, answer: Option<Answer>) -> String {
    let why = match answer {
        Some(Answer::NoSegment) => {
            "cannot make the segment: its PLIMSOLL_DIR or, without one, its /dev/shm, /tmp and /run are full, read-only or have a directory of another user"
        }
        Some(Answer::BadOptions) => "its agent is of another version",
        Some(Answer::NoLoader) => "its C library hides the loader's list (is it glibc?)",
        Some(Answer::Busy) => "another attach or detach is under way",
        Some(Answer::LoaderBusy) => {
            "nothing was changed, because a thread of it has been searching new libraries for more than 5 s: try again"
        }
        Some(Answer::ForkChild) => {
            "it was forked by a process that had been attached before, and has that process's tracker without its books. Attach to the parent again before it forks, or start the program with plimsoll run"
        }
        Some(Answer::NotAttached) => "it is not attached",
        Some(Answer::FromTheStart) => "the tracker was in it from the start",
        _ => return format!("process {pid}: the agent returned {number}, which this version of plimsoll doesn't know"),
    };
    format!("process {pid}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_after_a_detach_can_be_pasted() {
        let of = |path: &str| detached(7, Some(Path::new(path)), Some(Bytes::mib(2)));
        let plain = of("/dev/shm/plimsoll-0/7-1.seg");
        assert!(plain.contains(": plimsoll report /dev/shm/plimsoll-0/7-1.seg\n"), "{plain}");
        assert!(plain.ends_with(" ended: rm /dev/shm/plimsoll-0/7-1.seg"), "{plain}");
        // Its user chose the directory: nothing of its name may run in a shell of root's.
        let chosen = of("/tmp/a;reboot/7-1.seg");
        assert!(chosen.contains("report '/tmp/a;reboot/7-1.seg'\n") && chosen.ends_with("rm '/tmp/a;reboot/7-1.seg'"));
        let container = of("/proc/7/root/dev/shm/plimsoll-0/7-1.seg");
        assert!(container.contains("report /proc/7/root/dev/") && !container.contains("rm "), "{container}");
        use std::os::unix::ffi::OsStrExt;
        let no_text = detached(7, Some(Path::new(std::ffi::OsStr::from_bytes(b"/tmp/\xff;a/7-1.seg"))), None);
        assert!(!no_text.contains("report") && !no_text.contains("rm "), "{no_text}");
        assert!(plain.contains("stays     2.00 MiB of the tracker's library and tables, "), "{plain}");
        assert!(no_text.contains("stays     the tracker's library"), "{no_text}");
        assert!(detached(7, None, None).contains("are lost"));
    }
}
