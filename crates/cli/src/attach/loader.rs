//! Who loads the tracker's library in the target, and from which file.

use std::time::Duration;

use plimsoll_observer::source::hotspot::Vm;
use plimsoll_process::foreign::as_target::AsTarget;
use plimsoll_process::proc;
use plimsoll_report::words::printable;
use plimsoll_tracked::segment;
use sha2::{Digest, Sha256};

use super::fault::{self, Fault};
use super::native::{self, ThreadLoader};
use super::process::Process;
use super::{Args, library_directory};
use crate::output::print_message;
use crate::target::started_behind;
use crate::{Failure, tracker};

/// Limit for all writing in the target's file system.
const WRITING: Duration = Duration::from_secs(30);

/// Beginning of the error for a missing answer (observer: hotspot::Vm).
const NO_ANSWER: &str = "no answer within";
/// Why a VM loads no agent, after "process PID".
const NO_AGENT: &str = "accepts no agent: it was started with -XX:-EnableDynamicAgentLoading";

/// Who loads the library in the target.
pub(super) enum Loader<'p> {
    /// HotSpot, on a request to its attach socket.
    Vm(Box<Vm>),
    /// A thread that plimsoll starts in the target.
    Thread(Box<ThreadLoader<'p>>),
}

impl<'p> Loader<'p> {
    pub(super) fn of(
        process: &'p Process,
        vm: Option<Vm>,
        loaded: Option<&str>,
        verb: &'static str,
    ) -> Result<Loader<'p>, Failure> {
        // A VM can't open a file in memory by the name that the kernel shows.
        let is_in_memory = loaded.is_some_and(|path| path.starts_with("/memfd:"));
        Ok(match vm {
            Some(vm) if !is_in_memory => {
                if verb == "attach" {
                    check_filters(process)?;
                }
                Loader::Vm(Box::new(vm))
            }
            _ => {
                let loader = ThreadLoader::find(&process.target, &process.vmas, loaded, verb);
                Loader::Thread(Box::new(loader.map_err(|why| format!("process {} {}", process.pid, printable(&why)))?))
            }
        })
    }

    /// `what`: the action as the error names it, such as "attached to".
    pub(super) fn load_agent(
        &mut self,
        process: &Process,
        path: &str,
        options: &str,
        what: &str,
    ) -> Result<i32, Fault> {
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

/// A filter may end the VM for a call of the tracker.
fn check_filters(process: &Process) -> Result<(), Failure> {
    match native::check_vm(&process.target, "attach") {
        Ok(None) => Ok(()),
        Ok(Some(unread)) => {
            print_message(format_args!(
                "process {} {unread}; a filter that doesn't allow what the tracker does may end it",
                process.pid
            ));
            Ok(())
        }
        Err(why) => Err(format!("process {} {}", process.pid, printable(&why)).into()),
    }
}

/// Writes the library into the first directory that the target can load it from, and has it loaded.
pub(super) fn load(process: &Process, loader: &mut Loader, loaded: Option<&str>, args: &Args) -> Result<i32, Failure> {
    let pid = process.pid;
    let options = |rules: Option<&str>| {
        let rules = rules.map(|path| format!(",rules={path}")).unwrap_or_default();
        format!("{},sites={},sample={}{rules}", segment::agent::ATTACH, args.sites(), args.sample_mean())
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
        // The target was entered: the injected thread may still load the tracker.
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
