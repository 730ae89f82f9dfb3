//! The target's filters of system calls (seccomp). Each call that an attach needs is looked up in them before any is
//! made: a filter may kill the process for a call that it doesn't know.
//!
//! ```text
//! each filtered thread: stop ─▶ filters as the kernel has them ─▶ goes on     program: what they do with a call
//!                                                                             calls: which calls are needed
//! ```
//! The filters of every thread are read, since threads may have different ones and the tracker runs in all threads.
//! Filters are only ever added (seccomp(2)), and Linux 5.9 and later counts them. So a thread whose count is unchanged
//! has the filters that were read. The filters of a thread that has begun since are read before the process is entered.
//! Where the kernel gives no count, the filters of all threads are then read again.

mod calls;
mod program;

use std::collections::BTreeMap;
use std::io;

use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{Target, status_field};

use super::GONE;
use super::borrowed::{STOPPING, Unfit, stop};
use super::frame::{self, Interrupted};
use super::identity::ExecIdentity;
use super::ptrace::Thread;
use super::threads;
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
        let of = |key| status_field(&status, key).map(str::to_owned);
        // A kernel without seccomp has neither line.
        Mark { mode: of("Seccomp:").unwrap_or("0".into()), filters: of("Seccomp_filters:") }
    }
}

/// What plimsoll enters a process for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To load the tracker, or to call it.
    Track,
    /// To have its allocator give free memory back.
    Release,
}

/// Why plimsoll doesn't enter a process with these filters.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed {
    /// The kernel doesn't show the filters to this process.
    Hidden,
    /// The kernel shows filters to nobody (without CONFIG_CHECKPOINT_RESTORE).
    NotShown,
    /// seccomp's strict mode.
    Strict,
    /// The filters don't allow this call.
    Call(&'static str),
    /// A thread's filters were not read.
    Thread(String),
    /// There are more different lists of filters than [`MOST_LISTS`].
    TooMany,
    /// The time was over before all calls were looked up.
    Late,
    /// A thread has filters in which no call was looked up.
    New,
    /// ptrace(2) is refused.
    Refused,
}

/// More different lists than any program is known to have. A list may have 256 KiB; a look-up in it takes milliseconds.
pub const MOST_LISTS: usize = 64;

/// The filters of a process.
#[derive(Clone, Debug, Default)]
pub struct Filters {
    /// The mark of each filtered thread at the time when its filters were read.
    marks: BTreeMap<u32, Mark>,
    /// The different lists of filters.
    lists: Vec<List>,
}

impl Filters {
    /// Reads the filters of all threads, and looks each call up in them. Threads without a filter aren't stopped.
    pub fn read(
        target: &Target,
        identity: &ExecIdentity,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Filters, Closed> {
        let filters = Filters::of_threads(target, identity, deadline)?;
        let is_needed = needed_in(target);
        let refusal = match purpose {
            Purpose::Track => filters.refusal(deadline, calls::all(), is_needed),
            Purpose::Release => filters.refusal(deadline, calls::release(), is_needed),
        };
        refusal.map_or(Ok(filters), Err)
    }

    /// The same for a VM. One of the VM's threads loads the tracker, so fewer calls are made.
    pub fn check_vm(target: &Target, identity: &ExecIdentity, deadline: Deadline) -> Result<(), Closed> {
        let filters = Filters::of_threads(target, identity, deadline)?;
        let calls = calls::MALLOC.iter().chain(calls::LOADER).chain(calls::TRACKER).copied();
        filters.refusal(deadline, calls, needed_in(target)).map_or(Ok(()), Err)
    }

    fn of_threads(target: &Target, identity: &ExecIdentity, deadline: Deadline) -> Result<Filters, Closed> {
        let mut filters = Filters::default();
        // `check` reads those of a thread that begins meanwhile.
        for tid in target.numbers("task").unwrap_or_default() {
            if deadline.has_passed() {
                return Err(Closed::Late);
            }
            // A thread that has ended needs nothing.
            let Ok(status) = target.read(&format!("task/{tid}/status")) else { continue };
            if let Some(list) = filters.unknown(tid, &status, deadline, || list(target, tid, identity, deadline))? {
                filters.add(list)?;
            }
        }
        Ok(filters)
    }

    fn add(&mut self, list: List) -> Result<(), Closed> {
        if self.lists.len() == MOST_LISTS {
            return Err(Closed::TooMany);
        }
        self.lists.push(list);
        Ok(())
    }

    /// Refuses a thread with other filters than those that were looked up. `read`, if it is called: the thread's
    /// filters; `None`: it is ending.
    pub fn check(
        &mut self,
        tid: u32,
        status: &[u8],
        deadline: Deadline,
        read: impl FnOnce() -> Result<Option<List>, Closed>,
    ) -> Result<(), Closed> {
        self.unknown(tid, status, deadline, read)?.map_or(Ok(()), |_| Err(Closed::New))
    }

    /// The thread's filters, if they differ from every list that was read up to now.
    fn unknown(
        &mut self,
        tid: u32,
        status: &[u8],
        deadline: Deadline,
        read: impl FnOnce() -> Result<Option<List>, Closed>,
    ) -> Result<Option<List>, Closed> {
        let mark = Mark::of(status);
        match mark.mode.as_str() {
            "0" => return Ok(None),
            "1" => return Err(Closed::Strict),
            _ if mark.filters.is_some() && self.marks.get(&tid) == Some(&mark) => return Ok(None),
            _ if deadline.has_passed() => return Err(Closed::Late),
            _ => {}
        }
        let Some(list) = read()? else { return Ok(None) };
        self.marks.insert(tid, mark);
        Ok(Some(list).filter(|list| !self.lists.contains(list)))
    }

    /// What refuses the calls that are made only for a library from memory.
    pub fn refusal_from_memory(&self, deadline: Deadline) -> Option<Closed> {
        self.refusal(deadline, calls::all(), |need| need == Need::FromMemory)
    }

    fn refusal(
        &self,
        deadline: Deadline,
        calls: impl Iterator<Item = Call>,
        is_needed: impl Fn(Need) -> bool,
    ) -> Option<Closed> {
        for call in calls.filter(|call| is_needed(call.need)) {
            for list in &self.lists {
                if deadline.has_passed() {
                    return Some(Closed::Late);
                }
                if !allow(list, &call) {
                    return Some(Closed::Call(call.name));
                }
            }
        }
        None
    }
}

/// Whether the target needs a call. Calls for a library from memory are looked up separately.
fn needed_in(target: &Target) -> impl Fn(Need) -> bool + Copy + use<> {
    let status = target.read("status").unwrap_or_default();
    let locked = status_field(&String::from_utf8_lossy(&status), "VmLck:").map(str::to_owned);
    let is_locked = locked.is_some_and(|kib| !kib.starts_with("0 "));
    move |need| match need {
        Need::FromMemory => false,
        Need::WhereLocked => is_locked,
        _ => true,
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
                Need::MayFail | Need::ToLock | Need::WhereLocked => program::error(result).is_some(),
                Need::MayBeMissing => program::error(result) == Some(libc::ENOSYS),
                Need::Always | Need::FromMemory | Need::With(_) => false,
            }
    };
    // A process that survives these calls may make them.
    let kills = |number: &libc::c_long| {
        results(*number, &[None; 6]).is_some_and(|results| results.into_iter().all(program::kills_process))
    };
    let only_with = match call.need {
        Need::With(others) => others,
        Need::ToLock => &[libc::SYS_mlockall],
        _ => &[],
    };
    if !only_with.is_empty() && only_with.iter().all(kills) {
        return true;
    }
    results(call.number, &call.arguments).is_some_and(|results| results.into_iter().all(is_handled))
}

/// The filters of one thread, which is stopped while the kernel copies them and restart_syscall is looked up in them.
/// `None`: it is ending.
pub fn list(target: &Target, tid: u32, identity: &ExecIdentity, deadline: Deadline) -> Result<Option<List>, Closed> {
    match stopped(target, tid, identity, deadline).and_then(|thread| copied(&thread).map_err(unreadable)) {
        Ok(list) => Ok(Some(list)),
        Err(_) if threads::is_ending(target, tid) => Ok(None),
        Err(closed) => Err(closed),
    }
}

fn stopped(target: &Target, tid: u32, identity: &ExecIdentity, deadline: Deadline) -> Result<Thread, Closed> {
    let mut thread = Thread::seize(target.pid(), tid).map_err(|_| Closed::Refused)?;
    stop(&mut thread, deadline.sooner(STOPPING)).map_err(|unfit| match unfit {
        Unfit::Stuck => Closed::Thread("has a thread that did not stop within 5 s: try again".into()),
        _ => Closed::Thread("has a thread that ended while its filters were read: try again".into()),
    })?;
    // If the number was reused, the thread is another process's, and the target has none of this number. A thread may
    // have rights of its own; its process has not, unless it has run another program.
    let is_same = |status: io::Result<Vec<u8>>| status.is_ok_and(|status| identity.is_that_of(target, &status));
    let Ok(status) = target.read(&format!("task/{tid}/status")) else {
        return Err(Closed::Thread("has a thread that ended while its filters were read: try again".into()));
    };
    match is_same(Ok(status)) || is_same(target.read("status")) {
        true => Ok(thread),
        false => Err(Closed::Thread(GONE.into())),
    }
}

/// The filters of a stopped thread, whose wait goes on when it runs.
fn copied(thread: &Thread) -> io::Result<List> {
    let original = thread.registers()?;
    // The kernel would end some waits with EINTR, and go on with others by restart_syscall(2), which a filter may not
    // allow.
    let again = frame::without_restart_syscall(&original);
    if let Some(again) = &again {
        thread.set_registers(again)?;
    }
    let filters = thread.filters();
    let may_restart = filters.as_ref().is_ok_and(|list| allow(list, &calls::BORROWED[0]));
    if again.is_some() && frame::interrupted(&original) == Interrupted::ByKernel && may_restart {
        let _ = thread.set_registers(&original);
    }
    filters
}

pub fn unreadable(e: io::Error) -> Closed {
    match e.raw_os_error() {
        Some(libc::EACCES) => Closed::Hidden,
        // EINVAL: a kernel without CONFIG_CHECKPOINT_RESTORE (seccomp_get_filter in linux/seccomp.h).
        Some(libc::EIO | libc::EINVAL | libc::EMEDIUMTYPE) => Closed::NotShown,
        _ => Closed::Thread(format!("has a thread whose filters can't be read: {e}")),
    }
}

#[cfg(test)]
mod tests;
