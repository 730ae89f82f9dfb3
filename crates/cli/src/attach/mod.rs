//! `plimsoll attach` and `plimsoll detach`: load the tracker into a running process, and remove its hooks again.
//!
//! ```text
//! target ─┬─ tracked already ────────▶ change the sites mode: the segment's control word
//!         ├─ HotSpot ─▶ ask, if it will print a warning ─▶ library and rules into its file system ─▶ the VM loads it
//!         └─ any other, or a VM whose attach is disabled ─▶ library and rules likewise ─▶ a thread of our own loads it
//! ```
//! Where no directory of the target can hold the library, the thread loads it from a file in the target's memory.
//! crates/tracker/src/agent.rs is the side in the target.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use plimsoll_facts::shell::quoted;
use plimsoll_facts::snapshot::Vma;
use plimsoll_observer::source::hotspot::{self, Mute, Patience, PerfData, Vm};
use plimsoll_process::foreign::as_target::AsTarget;
use plimsoll_process::foreign::{ATTACH, Deadline};
use plimsoll_process::proc::{self, Target};
use plimsoll_process::processes::ProcView;
use plimsoll_report::words::printable;
use plimsoll_tracked::rules::read as rules;
use plimsoll_tracked::segment::{self, Life, agent::Answer};
use sha2::{Digest, Sha256};

use crate::exit::Exit;
use crate::launch::SiteMode;
use crate::output::{is_confirmed, print_done, print_message, shown};
use crate::process_argument::ProcessArgument;
use crate::target::{closed, refused, started_behind};
use crate::untrackable::{self, Obstacle};
use crate::{Failure, sys, tracker};

mod fault;
mod library_directory;
#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_native.rs"]
mod native;
pub mod release;
mod threads_outside;

use fault::Fault;
use native::ThreadLoader;
use release::Release;

/// Long limits: on an overloaded machine the VM answers late, and attach can only wait.
const PATIENCE: Patience = Patience {
    handshake: Duration::from_secs(30),
    command: Duration::from_secs(30),
    commands: Duration::from_secs(60),
};
/// Limit for all writing in the target's file system.
const WRITING: Duration = Duration::from_secs(30);

/// Beginning of the error for a missing answer (observer: hotspot::Vm).
const NO_ANSWER: &str = "no answer within";
/// Why a VM loads no agent, after "process PID".
const NO_AGENT: &str = "accepts no agent: it was started with -XX:-EnableDynamicAgentLoading";

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    process: ProcessArgument,
    /// Record the deep stack of no block, of sampled blocks, or of every block
    #[arg(long, value_enum, default_value = "sampled")]
    sites: SiteMode,
    /// Set the mean number of bytes between two samples
    #[arg(long, value_name = "BYTES", default_value_t = segment::SAMPLE_MEAN,
          value_parser = clap::value_parser!(u64).range(256..=1 << 40))]
    sample: u64,
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

    fn sites(&self) -> String {
        self.sites.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
    }
}

/// A call, in the target, of its allocator's function that gives free memory back.
pub struct Releasing(JoinHandle<Result<(), String>>);

impl Releasing {
    /// Starts the call on a thread of plimsoll's, so that the caller can handle signals meanwhile. If the caller
    /// doesn't wait for the end, the call goes on. `verb`: the command up to the PID, for remedies.
    pub fn start(target: Target, release: Release, verb: &'static str) -> io::Result<Releasing> {
        let call = move || call(&target, release, verb);
        thread::Builder::new().name("release".into()).spawn(call).map(Releasing)
    }

    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end. The error is the end of a sentence: what keeps plimsoll from it.
    pub fn result(self) -> Result<(), String> {
        self.0.join().unwrap_or_else(|_| Err("plimsoll failed".to_owned()))
    }
}

fn call(target: &Target, release: Release, verb: &'static str) -> Result<(), String> {
    let maps = target.read("maps").map_err(|_| "it has ended or can't be read")?;
    let mut vmas = proc::parse_maps(&maps, &[]).vmas;
    vmas.iter_mut().for_each(|vma| vma.name = target.inside(&vma.name).into());
    let answer =
        native::release(target, &vmas, release, verb).map_err(|why| format!("it {}", fault::without_run(&why)))?;
    release.error(answer).map_or(Ok(()), |error| Err(format!("{} failed: {error}", release.call())))
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let pid = args.process.pid("attach")?;
    let mut process = Process::open(pid, "attach")?;
    let deadline = process.target.deadline();
    let known = segment::find_by_pid(pid, deadline);
    if let Some((path, _, Life::Live)) = &known {
        segment::set_control(pid, path, args.mode(), args.sample, deadline)?;
        return done(format!("process {pid} is tracked already; it now uses --sites {}", args.sites()));
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
    let mut loader = process.loader(vm, loaded.as_deref(), "attach")?;
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
    let mut loader = process.loader(vm, Some(&library), "detach")?;
    let answer = loader.load_agent(&process, &library, segment::agent::DETACH, "detached from");
    match answer.map_err(|fault| fault.text().to_owned())? {
        n if n == Answer::Detached as i32 => {}
        n => return Err(sentence(pid, n, Answer::of(n)).into()),
    }
    done(detached(pid, path.as_deref()))
}

/// `path`: the segment, unless its file was deleted. The target's user may have chosen its directory.
fn detached(pid: u32, path: Option<&Path>) -> String {
    let Some(path) = path else {
        return format!("detached from process {pid}. Its books are lost: their file was deleted");
    };
    let typed = path.to_str().and_then(quoted);
    let books = typed.as_ref().map_or_else(|| shown(path), |path| format!("plimsoll report {path}"));
    // A path through /proc/PID/root ends with the process.
    let remove = typed.filter(|_| !path.starts_with("/proc"));
    let remove = remove.map(|path| format!(". Sooner, after the process has ended: rm {path}")).unwrap_or_default();
    format!(
        "detached from process {pid}. Its books up to now: {books}\n  \
         stays     about 1 MiB of the tracker's library, without hooks, until the process ends\n  \
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
            "cannot make the segment: its directory is full or belongs to another user, or ulimit -f is too low ('plimsoll doctor' names the cause)"
        }
        Some(Answer::BadOptions) => "its agent is of another version",
        Some(Answer::NoLoader) => "its C library hides the loader's list (is it glibc?)",
        Some(Answer::Busy) => "another attach or detach is under way",
        Some(Answer::NotAttached) => "it is not attached",
        Some(Answer::FromTheStart) => "the tracker was in it from the start",
        _ => return format!("process {pid}: the agent returned {number}, which this version of plimsoll doesn't know"),
    };
    format!("process {pid}: {why}")
}

/// Who loads the library in the target.
enum Loader<'p> {
    /// HotSpot, on a request to its attach socket.
    Vm(Box<Vm>),
    /// A thread that plimsoll starts in the target.
    Thread(Box<ThreadLoader<'p>>),
}

impl Loader<'_> {
    /// `what`: the action as the error names it, such as "attached to".
    fn load_agent(&mut self, process: &Process, path: &str, options: &str, what: &str) -> Result<i32, Fault> {
        let answer = match self {
            Loader::Thread(loader) => loader.load_agent(path, options),
            Loader::Vm(vm) => vm.load_agent(path, options).map_err(|e| match e {
                e if e.contains("EnableDynamicAgentLoading") => Fault::Final(NO_AGENT.into()),
                // Another directory would not help.
                e if !process.is_there() || e.contains(NO_ANSWER) => Fault::Final(format!("cannot be {what}: {e}")),
                e => Fault::File(format!("the VM says: {e}")),
            }),
        };
        answer.map_err(|fault| process.named(fault, what))
    }

    /// A VM loads files only, so it is entered as a native program is, unless its options forbid agents.
    fn load_from_memory(&self, process: &Process, rules: &[u8], options: &str) -> Result<i32, Fault> {
        let loaded = match self {
            Loader::Thread(loader) => loader.load_from_memory(rules, options),
            Loader::Vm(_) if process.allows_agents() == Some(false) => Err(Fault::Final(NO_AGENT.into())),
            Loader::Vm(_) => {
                let loader = ThreadLoader::find(&process.target, &process.vmas, None, "attach");
                let unfit = |why: String| Fault::File(format!("process {} {}", process.pid, fault::without_run(&why)));
                loader.map_err(unfit).and_then(|loader| loader.load_from_memory(rules, options))
            }
        };
        loaded.map_err(|fault| process.named(fault, "attached to"))
    }
}

/// Writes the library into the first directory that the target can load it from, and has it loaded.
fn load(process: &Process, loader: &mut Loader, loaded: Option<&str>, args: &Args) -> Result<i32, Failure> {
    let pid = process.pid;
    let options = |rules: Option<&str>| {
        let rules = rules.map(|path| format!(",rules={path}")).unwrap_or_default();
        format!("{},sites={},sample={}{rules}", segment::agent::ATTACH, args.sites(), args.sample)
    };
    if let Some(path) = loaded {
        // glibc finds the loaded library by this name, even if the file was deleted.
        let answer = loader.load_agent(process, path, &options(None), "attached to");
        return answer.map_err(|fault| fault.text().into());
    }
    let blob = process.compiled_rules();
    let mut refused = Vec::new();
    let child = AsTarget::start(&process.target, WRITING);
    let mut child = child.map_err(|why| match process.is_there() {
        true => format!("cannot write a library that process {pid} can load: {why}"),
        false => process.unwilling("attached to", ""),
    })?;
    for directory in library_directory::candidates(&process.target, child.user().uid) {
        let written = library_directory::open(&mut child, &directory).and_then(|mut opened| {
            let library = opened.write(&format!("libplimsoll-{}.so", tracker::SHA256), tracker::library_bytes()?)?;
            let name = format!("attach-{}.rules", tracker::hex(&Sha256::digest(&blob)[..8]));
            let written = (library, opened.write(&name, &blob)?);
            opened.prune(process.target.deadline());
            Ok(written)
        });
        let reason = match written {
            Err(reason) => reason,
            Ok((library, rules)) => match loader.load_agent(process, &library, &options(Some(&rules)), "attached to") {
                Ok(answer) => return Ok(answer),
                Err(Fault::Final(why)) => return Err(why.into()),
                Err(Fault::File(why)) => why,
            },
        };
        refused.push(format!("{}: {reason}", printable(&directory.display().to_string())));
    }
    drop(child);
    match loader.load_from_memory(process, &blob, &options(None)) {
        Ok(answer) => return Ok(answer),
        // The target was entered: the helper may still load the tracker.
        Err(Fault::Final(why)) => return Err(why.into()),
        Err(Fault::File(why)) => refused.push(format!("a file in its memory: {why}")),
    }
    if !process.is_there() {
        return Err(process.unwilling("attached to", "").into());
    }
    let refused = refused.join("; ");
    let tracked = started_behind(&proc::start_of(&process.target), "plimsoll run --");
    Err(format!(
        "cannot put the tracker where process {pid} can load it ({refused}). Remedy: mount a tmpfs without noexec at one of these directories, or start it with: {tracked}"
    )
    .into())
}

/// The facts about the target that attach and detach need.
struct Process {
    target: Target,
    pid: u32,
    vmas: Vec<Vma>,
}

impl Process {
    fn open(pid: u32, verb: &str) -> Result<Process, Failure> {
        let target = Target::open(pid, Deadline::after(ATTACH)).map_err(|_| ProcView::now().absent(pid))?;
        if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
            return Err(format!("{pid} is a thread of process {leader}: plimsoll {verb} {leader}").into());
        }
        target.read("stat").map_err(|_| ProcView::now().absent(pid))?;
        if segment::start_time_ns(pid).is_none() {
            return Err(format!("process {pid} has ended, and its parent has not reaped it yet").into());
        }
        let maps = target.read("maps").map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => {
                format!("cannot look into process {pid}: {}", closed(pid, verb, proc::Access::Read))
            }
            _ => format!("process {pid} ended while it was being read"),
        })?;
        let mut vmas = proc::parse_maps(&maps, &[]).vmas;
        vmas.iter_mut().for_each(|vma| vma.name = target.inside(&vma.name).into());
        Ok(Process { target, pid, vmas })
    }

    /// Why this version can't serve a process that has loaded the library of another one.
    fn other_version(&self) -> Option<String> {
        let mut names = self.vmas.iter().map(|vma| vma.name.as_str());
        let other = printable(names.find(|name| is_library(name) && !name.contains(tracker::SHA256))?);
        Some(format!("process {} holds the tracker of another plimsoll, {other}: use that version", self.pid))
    }

    /// Refuses a process that can't load this tracker's library.
    fn can_load(&self) -> Result<(), Failure> {
        let pid = self.pid;
        if let Some(why) = self.other_version() {
            return Err(why.into());
        }
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let why = match untrackable::of(&exe, self.target.deadline()) {
            Some(Obstacle::OtherMachine) => "is built for another CPU than the tracker",
            Some(Obstacle::Static) => "is a static program, which loads no library",
            Some(Obstacle::NoLibc) => "uses no C library, so the tracker would see no block",
            _ if self.vmas.iter().any(|vma| is_musl(&vma.name)) => {
                "runs on musl, where the tracker can only be loaded at the start (plimsoll run)"
            }
            _ => return Ok(()),
        };
        Err(format!("cannot attach to process {pid}: it {why}. For its mappings: plimsoll explain {pid}").into())
    }

    /// The error for a command that was not carried out.
    fn unwilling(&self, what: &str, error: &str) -> String {
        let pid = self.pid;
        if !self.is_there() {
            return format!("process {pid} ended or was replaced by exec while it was being {what}");
        }
        let why = if self.is_stopped() { " (it is stopped and will continue after kill -CONT)" } else { "" };
        format!("process {pid} cannot be {what}: {}{why}", printable(error))
    }

    /// The fault as a sentence about this process, printable. `what`: the action, such as "attached to".
    fn named(&self, fault: Fault, what: &str) -> Fault {
        match fault {
            Fault::Final(why) if !self.is_there() || self.is_stopped() => Fault::Final(self.unwilling(what, &why)),
            Fault::Final(why) => Fault::Final(format!("process {} {}", self.pid, printable(&why))),
            Fault::File(why) => Fault::File(printable(&why)),
        }
    }

    fn is_stopped(&self) -> bool {
        let status = String::from_utf8_lossy(&self.target.read("status").unwrap_or_default()).into_owned();
        status.lines().any(|line| line.starts_with("State:") && line.contains("stop"))
    }

    /// Whether the process is still alive and runs the same program: exec gives it a new vdso at a random address.
    fn is_there(&self) -> bool {
        let Ok(maps) = self.target.read("maps") else { return false };
        let mark = |vmas: &[Vma]| vmas.iter().find(|vma| vma.name == "[vdso]").map(|vma| vma.range);
        segment::start_time_ns(self.pid).is_some() && mark(&proc::parse_maps(&maps, &[]).vmas) == mark(&self.vmas)
    }

    fn loader(&self, vm: Option<Vm>, loaded: Option<&str>, verb: &'static str) -> Result<Loader<'_>, Failure> {
        // A VM can't open a file in memory by the name that the kernel shows.
        let is_in_memory = loaded.is_some_and(|path| path.starts_with("/memfd:"));
        Ok(match vm {
            Some(vm) if !is_in_memory => {
                if verb == "attach" {
                    self.check_filters()?;
                }
                Loader::Vm(Box::new(vm))
            }
            _ => {
                let loader = ThreadLoader::find(&self.target, &self.vmas, loaded, verb);
                Loader::Thread(Box::new(loader.map_err(|why| format!("process {} {}", self.pid, printable(&why)))?))
            }
        })
    }

    /// A filter may end the VM for a call of the tracker.
    fn check_filters(&self) -> Result<(), Failure> {
        match native::check_vm(&self.target, "attach") {
            Ok(None) => Ok(()),
            Ok(Some(unread)) => {
                print_message(format_args!(
                    "process {} {unread}; a filter that doesn't allow what the tracker does may end it",
                    self.pid
                ));
                Ok(())
            }
            Err(why) => Err(format!("process {} {}", self.pid, printable(&why)).into()),
        }
    }

    /// Whether the file of its segment was deleted while it was in use.
    fn has_lost_its_segment(&self) -> bool {
        self.vmas.iter().any(|vma| vma.deleted && vma.name.ends_with(".seg"))
    }

    /// The tracker's library of this version, as the target's loader names it.
    fn tracker_file(&self) -> Option<String> {
        let name = self.vmas.iter().map(|vma| &vma.name).find(|n| is_library(n) && n.contains(tracker::SHA256));
        name.cloned()
    }

    /// JDK 21 and newer write a warning to the target's standard error when an agent is loaded later (JEP 451).
    /// Announces it, and asks on a terminal.
    fn warning_is_accepted(&self, yes: bool) -> Result<bool, Failure> {
        let vm = self.perfdata();
        let text = |name: &str| vm.as_ref().and_then(|vm| vm.text(name)).unwrap_or_default();
        let version = text("java.property.java.vm.specification.version");
        let major: Option<u32> = version.strip_prefix("1.").unwrap_or(version).parse().ok();
        if self.allows_agents() == Some(true) || major.is_some_and(|major| major < 21) {
            return Ok(true);
        }
        let pid = self.pid;
        print_message(format_args!(
            "JDK 21 and newer: process {pid} will warn on its standard error that an agent was loaded (unless started with -XX:+EnableDynamicAgentLoading)"
        ));
        Ok(is_confirmed("attach?", yes)?)
    }

    /// Whether -XX:+EnableDynamicAgentLoading or -XX:-EnableDynamicAgentLoading was given: the last one counts.
    fn allows_agents(&self) -> Option<bool> {
        let vm = self.perfdata()?;
        // The VM reads its file of flags before its command line.
        let options = ["java.rt.vmFlags", "java.rt.vmArgs"].map(|name| vm.text(name).unwrap_or_default()).join(" ");
        options.rsplit_once("EnableDynamicAgentLoading").map(|(before, _)| before.ends_with('+'))
    }

    /// Without hsperfdata, the VM's own answer shows whether it accepts an agent.
    fn perfdata(&self) -> Option<PerfData> {
        hotspot::perfdata(&self.target, &self.vmas).unwrap_or_default()
    }

    /// Opens the VM's attach socket. `None`: no HotSpot VM, or one whose attach is disabled. `what`: the action as the
    /// error names it, such as "attached to".
    fn speak(&self, what: &str) -> Result<Option<Vm>, Failure> {
        if !hotspot::is_hotspot(&self.vmas) {
            return Ok(None);
        }
        let perfdata = self.perfdata();
        let pid = self.pid;
        let verb = if what.starts_with("attach") { "attach" } else { "detach" };
        match Vm::open(&self.target, perfdata.as_ref(), PATIENCE) {
            Ok(vm) => Ok(Some(vm)),
            Err(_) if !self.is_there() => Err(self.unwilling(what, "").into()),
            Err(Mute::Disabled) => Ok(None),
            Err(mute @ Mute::NotAllowed(_)) => {
                let command = proc::as_root(&refused(verb, pid));
                Err(format!("cannot send a command to the JVM, process {pid}: {mute}. Try: {command}").into())
            }
            Err(mute) => Err(format!("cannot send a command to the JVM, process {pid}: {mute}").into()),
        }
    }

    /// The built-in category rules, for the objects that the target has loaded.
    fn compiled_rules(&self) -> Vec<u8> {
        let mut files: Vec<&str> =
            self.vmas.iter().filter(|vma| vma.executable && vma.name.starts_with('/')).map(|vma| &*vma.name).collect();
        files.sort_unstable();
        files.dedup();
        let modules: Vec<PathBuf> = files.into_iter().map(|file| self.target.path(file)).collect();
        match rules::built_in() {
            Ok(set) => rules::compile(&set, &modules, rules::cache_dir().as_deref(), self.target.deadline()).blob,
            Err(_) => Vec::new(),
        }
    }
}

/// Whether a mapped file is musl: its loader, or Debian's name of it.
fn is_musl(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.starts_with("ld-musl-") || file.starts_with("libc.musl-") || path.ends_with("-linux-musl/libc.so")
}

fn is_library(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| {
        let file = file.to_string_lossy();
        file.starts_with("libplimsoll-") && file.ends_with(".so")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_after_a_detach_can_be_pasted() {
        let of = |path: &str| detached(7, Some(Path::new(path)));
        let plain = of("/dev/shm/plimsoll-0/7-1.seg");
        assert!(plain.contains(": plimsoll report /dev/shm/plimsoll-0/7-1.seg\n"), "{plain}");
        assert!(plain.ends_with(" ended: rm /dev/shm/plimsoll-0/7-1.seg"), "{plain}");
        // Its user chose the directory: nothing of its name may run in a shell of root's.
        let chosen = of("/tmp/a;reboot/7-1.seg");
        assert!(chosen.contains("report '/tmp/a;reboot/7-1.seg'\n") && chosen.ends_with("rm '/tmp/a;reboot/7-1.seg'"));
        let container = of("/proc/7/root/dev/shm/plimsoll-0/7-1.seg");
        assert!(container.contains("report /proc/7/root/dev/") && !container.contains("rm "), "{container}");
        use std::os::unix::ffi::OsStrExt;
        let no_text = detached(7, Some(Path::new(std::ffi::OsStr::from_bytes(b"/tmp/\xff;a/7-1.seg"))));
        assert!(!no_text.contains("report") && !no_text.contains("rm "), "{no_text}");
        assert!(detached(7, None).contains("are lost"));
    }
}
