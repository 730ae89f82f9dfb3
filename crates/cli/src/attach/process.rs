//! The process that is attached to or detached from: what is found out about it from outside.

use std::path::{Path, PathBuf};

use plimsoll_facts::snapshot::Vma;
use plimsoll_process::foreign::{ATTACH, Deadline};
use plimsoll_process::proc::{self, Target};
use plimsoll_process::processes::ProcView;
use plimsoll_report::words::printable;
use plimsoll_tracked::rules::read as rules;
use plimsoll_tracked::segment;

use super::fault::Fault;
use crate::target::{closed, without_memory};
use crate::untrackable;
use crate::{Failure, tracker};

/// The facts about the target that attach and detach need.
pub(super) struct Process {
    pub(super) target: Target,
    pub(super) pid: u32,
    pub(super) vmas: Vec<Vma>,
}

impl Process {
    pub(super) fn open(pid: u32, verb: &str) -> Result<Process, Failure> {
        let deadline = Deadline::after(ATTACH);
        let target = Target::open(pid, deadline).map_err(|_| ProcView::now().absent(pid))?;
        if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
            return Err(format!("{pid} is a thread of process {leader}: plimsoll {verb} {leader}").into());
        }
        target.read("stat").map_err(|_| ProcView::now().absent(pid))?;
        if segment::start_time_ns(pid).is_none() {
            return Err(without_memory(pid, deadline).unwrap_or_else(|| ProcView::now().absent(pid)).into());
        }
        let maps = target.read("maps").map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => {
                format!("cannot look into process {pid}: {}", closed(pid, verb, proc::Access::Read))
            }
            _ => format!("process {pid} ended while it was being read"),
        })?;
        if maps.is_empty() {
            let status = target.read("status").map_err(|_| ProcView::now().absent(pid))?;
            if let Some(why) = proc::refusal(proc::parse_status(&status).state, pid) {
                return Err(why.into());
            }
        }
        let mut vmas = proc::parse_maps(&maps, &[]).vmas;
        vmas.iter_mut().for_each(|vma| vma.name = target.inside(&vma.name).into());
        Ok(Process { target, pid, vmas })
    }

    /// Why this version can't serve a process that has loaded the library of another one.
    pub(super) fn other_version(&self) -> Option<String> {
        let mut names = self.vmas.iter().map(|vma| vma.name.as_str());
        let other = printable(names.find(|name| is_library(name) && !name.contains(tracker::SHA256))?);
        Some(format!("process {} holds the tracker of another plimsoll, {other}: use that version", self.pid))
    }

    /// Refuses a process that can't load this tracker's library.
    pub(super) fn can_load(&self) -> Result<(), Failure> {
        let pid = self.pid;
        if let Some(why) = self.other_version() {
            return Err(why.into());
        }
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let obstacle = untrackable::of(&exe, self.target.deadline());
        let why = match obstacle.and_then(|obstacle| obstacle.for_good()) {
            Some(why) => why,
            None if self.vmas.iter().any(|vma| proc::is_sanitizer(&vma.name)) => untrackable::SANITIZED,
            None if self.vmas.iter().any(|vma| is_musl(&vma.name)) => {
                "runs on musl, where the tracker can only be loaded at the start (plimsoll run)"
            }
            None if self.file_size_limit().is_some_and(|limit| limit < segment::FILE_BYTES as u64) => {
                return Err(format!(
                    "cannot attach to process {pid}: its limit on file sizes (ulimit -f) is below the size of a segment. Raise it, as root: prlimit --pid {pid} --fsize=unlimited"
                )
                .into());
            }
            None => return Ok(()),
        };
        Err(format!("cannot attach to process {pid}: it {why}. For its mappings: plimsoll explain {pid}").into())
    }

    /// RLIMIT_FSIZE in bytes. `None`: no limit, or it can't be read.
    fn file_size_limit(&self) -> Option<u64> {
        let limits = self.target.read("limits").ok()?;
        let limits = String::from_utf8_lossy(&limits);
        let soft = limits.lines().find_map(|line| line.strip_prefix("Max file size"))?.split_whitespace().next()?;
        soft.parse().ok()
    }

    /// The error for a command that was not carried out.
    pub(super) fn unwilling(&self, what: &str, error: &str) -> String {
        let pid = self.pid;
        if !self.is_there() {
            return format!("process {pid} ended or was replaced by exec while it was being {what}");
        }
        let why = if self.is_stopped() { " (it is stopped and will continue after kill -CONT)" } else { "" };
        format!("process {pid} cannot be {what}: {}{why}", printable(error))
    }

    /// The fault as a sentence about this process, printable. `what`: the action, such as "attached to".
    pub(super) fn named(&self, fault: Fault, what: &str) -> Fault {
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
    pub(super) fn is_there(&self) -> bool {
        let Ok(maps) = self.target.read("maps") else { return false };
        let mark = |vmas: &[Vma]| vmas.iter().find(|vma| vma.name == "[vdso]").map(|vma| vma.range);
        segment::start_time_ns(self.pid).is_some() && mark(&proc::parse_maps(&maps, &[]).vmas) == mark(&self.vmas)
    }

    /// Whether the file of its segment was deleted while it was in use.
    pub(super) fn has_lost_its_segment(&self) -> bool {
        self.vmas.iter().any(|vma| vma.deleted && vma.name.ends_with(".seg"))
    }

    /// The tracker's library of this version, as the target's loader names it. A program may have mapped the file as
    /// data, too.
    pub(super) fn tracker_file(&self) -> Option<String> {
        let mut code = self.vmas.iter().filter(|vma| vma.executable).map(|vma| &vma.name);
        code.find(|name| is_library(name) && name.contains(tracker::SHA256)).cloned()
    }

    /// The built-in category rules, for the objects that the target has loaded.
    pub(super) fn compiled_rules(&self) -> Vec<u8> {
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
