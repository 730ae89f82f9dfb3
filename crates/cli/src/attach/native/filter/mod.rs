//! The target's filters of system calls (seccomp). Each call that an attach needs is looked up in them before any is
//! made: a filter may kill the process for a call that it doesn't know.
//!
//! ```text
//! each filtered thread: stop ─▶ filters as the kernel has them ─▶ goes on     program: what they do with a call
//!                                                                             calls: which calls are needed
//! ```
//! Every thread is asked, since threads may have different filters and the tracker runs in all of them. Filters are only
//! ever added (seccomp(2)), and the kernel counts them. So a thread has the filters that were read as long as it has as
//! many.

mod calls;
mod program;

use std::collections::BTreeMap;
use std::io;

use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::Target;

use super::borrowed::{STOPPING, Unfit, stop};
use super::frame::{self, Interrupted};
use super::ptrace::Thread;
use super::threads::{self, field};
use calls::{Call, Need};

/// A thread's filters, the newest first, each as the kernel gives it.
type List = Vec<Vec<u8>>;

/// Mode and number of filters, as /proc/PID/task/TID/status has them. Linux before 5.9 has no number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    mode: String,
    filters: Option<String>,
}

impl Mark {
    fn of(status: &[u8]) -> Mark {
        let status = String::from_utf8_lossy(status);
        let of = |key| field(&status, key).map(str::to_owned);
        // A kernel without seccomp has neither line.
        Mark { mode: of("Seccomp:").unwrap_or("0".into()), filters: of("Seccomp_filters:") }
    }
}

/// Why the filters don't let plimsoll in.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed {
    /// The kernel doesn't show them to this process.
    Hidden,
    /// The kernel doesn't show them to anybody (CONFIG_CHECKPOINT_RESTORE).
    NotShown,
    /// seccomp's strict mode.
    Strict,
    /// They don't allow this call.
    Call(&'static str),
    /// They were not read.
    Thread(String),
    /// ptrace(2) is refused.
    Refused,
}

/// The filters of a process.
#[derive(Debug, Default)]
pub struct Filters {
    marks: BTreeMap<u32, Mark>,
    /// The different ones.
    lists: Vec<List>,
}

impl Filters {
    /// Reads the filters of all threads, and looks each call up in them. Threads without a filter aren't stopped.
    pub fn read(target: &Target, deadline: Deadline) -> Result<Filters, Closed> {
        let mut filters = Filters::default();
        // A thread that begins meanwhile is found in the next round.
        loop {
            let before = filters.marks.len();
            for tid in target.numbers("task").unwrap_or_default() {
                if !filters.marks.contains_key(&tid) {
                    filters.add(target, tid, deadline)?;
                }
            }
            if filters.marks.len() == before {
                break;
            }
        }
        filters.refusal(|need| need != Need::FromMemory).map_or(Ok(filters), Err)
    }

    fn add(&mut self, target: &Target, tid: u32, deadline: Deadline) -> Result<(), Closed> {
        let status = || target.read(&format!("task/{tid}/status"));
        // A thread that has ended needs nothing.
        let Ok(mark) = status().map(|status| Mark::of(&status)) else { return Ok(()) };
        match mark.mode.as_str() {
            "0" => {}
            "1" => return Err(Closed::Strict),
            _ if threads::is_ending(target, tid) => return Ok(()),
            _ if deadline.has_passed() => return Err(Closed::Thread("has too many threads with filters".into())),
            _ => match list(target, tid, deadline) {
                Ok(list) if self.lists.contains(&list) => {}
                Ok(list) => self.lists.push(list),
                Err(_) if threads::is_ending(target, tid) => return Ok(()),
                Err(closed) => return Err(closed),
            },
        }
        self.marks.insert(tid, mark);
        Ok(())
    }

    /// Whether the thread has filters that were read. A thread that has begun since has those of the thread that made
    /// it.
    pub fn cover(&self, tid: u32, status: &[u8]) -> bool {
        let mark = Mark::of(status);
        self.marks.get(&tid).map_or_else(|| self.marks.values().any(|known| *known == mark), |known| *known == mark)
    }

    /// What refuses the calls that are made only for a library from memory.
    pub fn refusal_from_memory(&self) -> Option<Closed> {
        self.refusal(|need| need == Need::FromMemory)
    }

    fn refusal(&self, is_needed: impl Fn(Need) -> bool) -> Option<Closed> {
        let refused = |call: &Call| self.lists.iter().any(|list| !allow(list, call));
        calls::all().filter(|call| is_needed(call.need)).find(refused).map(|call| Closed::Call(call.name))
    }
}

/// Whether these filters let a call be made, or make it fail in a way that is handled.
fn allow(list: &[Vec<u8>], call: &Call) -> bool {
    let results = |number: libc::c_long, arguments: &[Option<u64>; 6]| {
        let data = program::data(number as u32, arguments);
        program::combined(list.iter().map(Vec::as_slice), &data)
    };
    let is_handled = |result: u32| {
        program::is_allowed(result)
            || match call.need {
                Need::MayFail => program::error(result).is_some(),
                Need::MayBeMissing => program::error(result) == Some(libc::ENOSYS),
                Need::Always | Need::FromMemory | Need::With(_) => false,
            }
    };
    // A process that survives these calls may make them.
    let kills = |number: &libc::c_long| {
        results(*number, &[None; 6]).is_some_and(|results| results.into_iter().all(program::kills_process))
    };
    if let Need::With(others) = call.need
        && others.iter().all(kills)
    {
        return true;
    }
    results(call.number, &call.arguments).is_some_and(|results| results.into_iter().all(is_handled))
}

/// The filters of one thread, which is stopped for as long as the kernel copies them.
fn list(target: &Target, tid: u32, deadline: Deadline) -> Result<List, Closed> {
    let ended = |e: io::Error| Closed::Thread(format!("has a thread whose filters can't be read: {e}"));
    let mut thread = Thread::seize(target.pid(), tid).map_err(|_| Closed::Refused)?;
    stop(&mut thread, deadline.sooner(STOPPING)).map_err(|unfit| match unfit {
        Unfit::Stuck => Closed::Thread("has a thread that did not stop within 5 s: try again".into()),
        _ => Closed::Thread("has a thread that ended while its filters were read: try again".into()),
    })?;
    let original = thread.registers().map_err(ended)?;
    // The kernel would end some waits with EINTR, and go on with others by restart_syscall(2), which a filter may not
    // allow. So the thread makes the call again, unless that call is allowed.
    let again = frame::restarted(&original);
    let interrupted = frame::interrupted(&original);
    if interrupted != Interrupted::No {
        thread.set_registers(&again).map_err(ended)?;
    }
    let filters = thread.filters();
    let goes_on = filters.as_ref().is_ok_and(|list| allow(list, &calls::BORROWED[0]));
    if (interrupted == Interrupted::ByKernel && goes_on)
        || (interrupted == Interrupted::ByUs && has_signal(target, tid, &thread))
    {
        let _ = thread.set_registers(&original);
    }
    filters.map_err(|e| match e.raw_os_error() {
        Some(libc::EACCES) => Closed::Hidden,
        Some(libc::EIO | libc::EMEDIUMTYPE) => Closed::NotShown,
        _ => ended(e),
    })
}

/// If a signal came meanwhile, EINTR is the right answer.
fn has_signal(target: &Target, tid: u32, thread: &Thread) -> bool {
    let status = target.read(&format!("task/{tid}/status"));
    status.is_ok_and(|status| thread.mask().is_ok_and(|mask| threads::has_signal(&status, mask)))
}

#[cfg(test)]
mod tests;
