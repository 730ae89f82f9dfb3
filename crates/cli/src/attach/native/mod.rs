//! Loads the tracker into a program that can't load an agent by itself. Or has a program call the function of its
//! allocator that gives free memory back.
//!
//! ```text
//! refusals ─▶ objects: libc's functions, forbidden code ─▶ a thread at a fit point, borrowed
//!    mmap, mprotect, pthread_create ─▶ given back         injected thread: dlopen, entry ─▶ answer ─▶ acknowledged
//!                                                                          malloc_trim(0) ─▶ answer ─▶ acknowledged
//! ```
//! Only one thread stands still, for the time of three calls. All else happens on a thread of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use plimsoll_facts::snapshot::Vma;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::{self, Target};

use super::fault::{self, Fault};
use super::release::Release;
use crate::tracker;
use borrowed::{Borrowed, Unfit};
use filter::{Closed, Filters, Purpose};
use identity::ExecIdentity;
use injected_thread::{ACKNOWLEDGED, Arguments, Call, Library, PAGE, State, TALK, Task};
use objects::Objects;

mod borrowed;
mod filter;
mod frame;
mod identity;
mod injected_thread;
mod objects;
mod own_stack;
mod point;
mod ptrace;
mod refusals;
mod threads;
mod unwind;
// Not in `unwind`: the fuzz target compiles that folder, too.
#[cfg(test)]
#[path = "unwind/tests.rs"]
mod unwind_tests;

/// How long to look for a thread at a fit point.
const SEARCH: Duration = Duration::from_secs(20);
/// How long the call may take: a loaded machine, a slow disk.
const CALLING: Duration = Duration::from_secs(60);
/// Time between two checks of the threads, or of the injected thread's answer.
const PAUSE: Duration = Duration::from_micros(500);
/// How long to read the filters of a VM: it may have hundreds of threads, and each is stopped for a moment.
const FILTERS_OF_VM: Duration = Duration::from_secs(20);

const GONE: &str = "ended or was replaced by exec";

/// A process that can be entered.
struct Enterable<'t> {
    target: &'t Target,
    /// The command, such as "attach".
    verb: &'static str,
    /// The identity of the process that was examined.
    identity: ExecIdentity,
    objects: Objects,
    filters: Filters,
    memory: File,
}

/// A process that can load the tracker.
pub struct ThreadLoader<'t> {
    process: Enterable<'t>,
    /// Where the tracker is loaded, if it is.
    base: u64,
    entry: u64,
    munmap: u64,
}

/// Has the process call the function of its allocator that gives free memory back, and returns what that returned. The
/// error follows "process PID".
pub fn release(target: &Target, vmas: &[Vma], release: Release, verb: &'static str) -> Result<i32, String> {
    let process = Enterable::find(target, vmas, Purpose::Release, verb)?;
    let objects = &process.objects;
    let found = objects.releases.iter().find(|(known, _)| *known == release);
    let (_, function) = found.ok_or_else(|| format!("has no library with {}", release.symbol()))?;
    let (arguments, text) = match release {
        Release::Jemalloc => (Arguments::Name, Release::ALL_ARENAS),
        Release::Glibc | Release::Tcmalloc => (Arguments::None, ""),
    };
    let munmap = objects.called.munmap.wrapping_sub(*function);
    let call = Call { base: *function, entry: 0, munmap, library: Library::Path(""), arguments, text };
    let late = || {
        let (limit, called) = (CALLING.as_secs(), release.call());
        format!("has not returned from {called} within {limit} s: a thread of it may hold a lock of its allocator")
    };
    match process.call(&call, late)? {
        State::Answered(answer) => Ok(answer),
        _ => Err("gave no answer".into()),
    }
}

/// Refuses a VM whose seccomp filters don't allow what the tracker does in it, before the VM loads the tracker on a
/// request to its socket. That request needs no right to trace, so filters that can't be read refuse nothing: `Ok` then
/// has the reason, after "process PID".
pub fn check_vm(target: &Target, verb: &str) -> Result<Option<String>, String> {
    let status = target.read("status").map_err(|_| GONE)?;
    let identity = ExecIdentity::of(target, &status).ok_or(GONE)?;
    match Filters::check_vm(target, &identity, target.deadline().sooner(FILTERS_OF_VM)) {
        Ok(()) => Ok(None),
        Err(closed @ (Closed::Call(_) | Closed::Strict)) => Err(refusals::filtered(target, verb, closed)),
        Err(_) => Ok(Some("has a seccomp filter that can't be read here".to_owned())),
    }
}

impl<'t> ThreadLoader<'t> {
    /// The error follows "process PID". `loaded`: the name of the tracker's library in the target, if it is loaded
    /// there.
    pub fn find(
        target: &'t Target,
        vmas: &[Vma],
        loaded: Option<&str>,
        verb: &'static str,
    ) -> Result<ThreadLoader<'t>, String> {
        let process = Enterable::find(target, vmas, Purpose::Track, verb)?;
        let [entry, munmap] = tracker::library_bytes()
            .ok()
            .and_then(|library| objects::offsets(library, ["Agent_OnAttach", "munmap"]))
            .ok_or("can't be entered: this plimsoll has no tracker for it")?;
        let base = match loaded {
            None => 0,
            Some(name) => {
                loaded_at(vmas, name, entry).ok_or("has the tracker's library where plimsoll can't find its code")?
            }
        };
        Ok(ThreadLoader { process, base, entry, munmap })
    }

    /// Has the target load the library, or only calls its entry if it is loaded. Returns the tracker's answer.
    pub fn load_agent(&self, library: &str, options: &str) -> Result<i32, Fault> {
        self.load(Library::Path(library), options)
    }

    /// Has the target load the library from a file in its own memory. `options`: without rules.
    pub fn load_from_memory(&self, rules: &[u8], options: &str) -> Result<i32, Fault> {
        let Enterable { target, filters, verb, .. } = &self.process;
        if let Some(closed) = filters.refusal_from_memory(target.deadline()) {
            let why = refusals::filtered(target, verb, closed);
            return Err(Fault::File(format!("it {}", fault::without_run(&why))));
        }
        let library = tracker::library_bytes().map_err(Fault::Final)?;
        let name = format!("/plimsoll/libplimsoll-{}.so", tracker::SHA256);
        self.load(Library::Memory([(&name, library), ("/plimsoll/attach.rules", rules)]), options)
    }

    fn load(&self, library: Library, options: &str) -> Result<i32, Fault> {
        let (base, entry, munmap) = (self.base, self.entry, self.munmap);
        let call = Call { base, entry, munmap, library, arguments: Arguments::Agent, text: options };
        let late = || {
            let limit = CALLING.as_secs();
            format!(
                "has not loaded the tracker within {limit} s: another thread may hold the loader's lock, or the disk is slow"
            )
        };
        match self.process.call(&call, late).map_err(Fault::Final)? {
            State::NotLoaded(why) => Err(Fault::File(why)),
            State::Answered(answer) => Ok(answer),
            State::Working => Err(Fault::Final("gave no answer".into())),
        }
    }
}

impl<'t> Enterable<'t> {
    /// The error follows "process PID".
    fn find(target: &'t Target, vmas: &[Vma], purpose: Purpose, verb: &'static str) -> Result<Enterable<'t>, String> {
        let status = target.read("status").map_err(|_| GONE)?;
        let identity = ExecIdentity::of(target, &status).ok_or_else(|| match target.link("exe") {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => refusals::closed(target.pid(), verb),
            _ => GONE.to_owned(),
        })?;
        refusals::check(target, &status, purpose, verb)?;
        let memory = target.memory_for_writing().map_err(|_| refusals::closed(target.pid(), verb))?;
        let read_code = |range: std::ops::Range<u64>| {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).ok().filter(|n| *n < 64 << 20)?];
            memory.read_exact_at(&mut bytes, range.start).ok().map(|()| bytes)
        };
        let objects = objects::survey(target, vmas, read_code)?;
        let filters = Filters::read(target, &identity, purpose, target.deadline())
            .map_err(|closed| refusals::filtered(target, verb, closed))?;
        Ok(Enterable { target, verb, identity, objects, filters, memory })
    }

    /// Has an injected thread make the call, and returns how that ended. `late`: the message for a call without an end.
    fn call(&self, call: &Call, late: impl Fn() -> String) -> Result<State, String> {
        let region = self.enter(call)?;
        let deadline = self.target.deadline().sooner(CALLING);
        let mut page = vec![0; PAGE as usize];
        let state = loop {
            self.memory.read_exact_at(&mut page, region + TALK).map_err(|_| GONE)?;
            match injected_thread::state(&page) {
                State::Working if deadline.has_passed() => return Err(late()),
                State::Working => std::thread::sleep(PAUSE),
                state => break state,
            }
        };
        // From here on no thread of the target needs the region but the injected thread, which removes it.
        let _ = self.memory.write_all_at(&1u32.to_le_bytes(), region + TALK + ACKNOWLEDGED);
        Ok(state)
    }

    /// Starts the injected thread. Returns the address of its region.
    fn enter(&self, call: &Call) -> Result<u64, String> {
        let o = &self.objects;
        // Not while a thread stands still.
        let (contents, spins, looking) =
            (call.library.contents(), injected_thread::spins(borrowed::SPIN), borrowed::looking());
        let mut thread = self.borrow()?;
        let lost = |e: std::io::Error| match e.kind() {
            // Its memory is gone.
            std::io::ErrorKind::UnexpectedEof => GONE.to_owned(),
            _ => format!("did not finish a call that plimsoll made in it: {e}"),
        };
        let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let length = call.library.region_bytes();
        let mapped = thread.call(libc::SYS_mmap, o.mmap, [0, length, data, private, u64::MAX, 0], None);
        let region = match mapped.map_err(lost)? {
            Some(region) if region > 0 => region as u64,
            result => {
                thread.give_back().map_err(lost)?;
                return Err(format!("has no memory for a thread of plimsoll: {}", errno(result)));
            }
        };
        let stack = Some(region + TALK);
        let mut start = || -> std::io::Result<Result<(), String>> {
            let task = Task { functions: o.called, flags: o.dlopen_flags, call: *call, spins, errno: thread.errno() };
            let Some(page) = task.page(region) else { return Ok(Err("can't be given so long a path".into())) };
            self.memory.write_all_at(injected_thread::code(), region)?;
            self.memory.write_all_at(&page, region + TALK)?;
            self.memory.write_all_at(&contents, region + TALK + PAGE)?;
            let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
            let executable = thread.call(libc::SYS_mprotect, o.mprotect, [region, PAGE, code, 0, 0, 0], stack)?;
            if executable != Some(0) {
                return Ok(Err(format!("may not make memory executable: {}", errno(executable))));
            }
            // pthread_create writes the thread's ID into a free word of the page.
            let create = [region + TALK + 112, 0, region, region + TALK, 0, 0];
            match thread.call_in(region, o.create, create, looking)? {
                0 => Ok(Ok(())),
                code => Ok(Err(format!("cannot start a thread: {}", std::io::Error::from_raw_os_error(code)))),
            }
        };
        let started = start().map_err(lost)?;
        let Err(why) = started else {
            thread.give_back().map_err(lost)?;
            return Ok(region);
        };
        let mut remove = || -> std::io::Result<()> {
            // A thread that has restored itself can't be made to unmap the region.
            if thread.recall()? {
                let region = [region, length, 0, 0, 0, 0];
                thread.call(libc::SYS_munmap, o.called.munmap, region, None)?;
            }
            Ok(())
        };
        let removed = remove().and_then(|()| thread.give_back());
        Err(removed.err().map_or(why.clone(), |e| format!("{why}; then it {}", lost(e))))
    }

    /// Whether the process that was examined lives: after an execve, its memory can't be read any more, even if the new
    /// program is the same one.
    fn is_unchanged(&self) -> bool {
        let is_same = |status: Vec<u8>| self.identity.is_that_of(self.target, &status);
        self.memory.read_exact_at(&mut [0], self.objects.mmap).is_ok() && self.target.read("status").is_ok_and(is_same)
    }

    /// Tries one thread after the other until one is at a fit point.
    fn borrow(&self) -> Result<Borrowed<'_>, String> {
        let deadline = self.target.deadline().sooner(SEARCH);
        let mut why = "no thread runs or waits".to_owned();
        let mut filters = self.filters.clone();
        let closed = |closed| refusals::filtered(self.target, self.verb, closed);
        loop {
            let maps = self.target.read("maps").map_err(|_| GONE)?;
            let vmas = proc::parse_maps(&maps, &[]).vmas;
            let tables = self.objects.tables.current(&vmas);
            let tids = threads::in_order(self.target, |tid, status| {
                filters.check(tid, status, deadline, || filter::list(self.target, tid, &self.identity, deadline))
            });
            let found = first_fit(tids.map_err(closed)?, deadline, |tid| {
                match Borrowed::at(self.target, &self.memory, &vmas, &tables, &self.objects, &self.identity, tid) {
                    Ok(thread) => return Ok(Some(thread)),
                    Err(Unfit::Now(reason)) => why = reason.into(),
                    Err(Unfit::There(function, None)) => why = format!("thread {tid} is in {function}"),
                    Err(Unfit::There(function, Some(unproven))) => {
                        why = format!("thread {tid} may be in {function}, since its stack has {unproven}");
                    }
                    Err(Unfit::Refused) => return Err(refusals::closed(self.target.pid(), self.verb)),
                    // A thread that ends while it is being seized looks the same.
                    Err(Unfit::Replaced) if self.is_unchanged() => why = format!("thread {tid} has ended"),
                    Err(Unfit::Replaced) => return Err(GONE.into()),
                    Err(Unfit::Stuck) => return Err("has a thread that did not stop within 5 s: try again".into()),
                }
                Ok(None)
            })?;
            if let Some(thread) = found {
                // The thread stands still, so only its own filters are looked at again. Another thread may add some to
                // it even now (SECCOMP_FILTER_FLAG_TSYNC), as it may during the calls.
                let own = || thread.filters().map(Some).map_err(filter::unreadable);
                let Err(refused) = filters.check(thread.tid(), thread.status(), self.target.deadline(), own) else {
                    return Ok(thread);
                };
                thread.give_back().map_err(|e| format!("could not be left as it was: {e}"))?;
                return Err(closed(refused));
            }
            if deadline.has_passed() {
                let limit = SEARCH.as_secs();
                return Err(format!(
                    "had no thread at a point where it can be borrowed within {limit} s (last: {why})"
                ));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Where the library of this name is loaded. The program may also have mapped the whole file as data, to read its
/// symbols, as Rust's backtraces do. In that mapping the entry isn't code.
fn loaded_at(vmas: &[Vma], name: &str, entry: u64) -> Option<u64> {
    let is_code = |start: u64, inode: u64| {
        let entry = start.saturating_add(entry);
        let holds_it = |vma: &Vma| (vma.range.start.0..vma.range.end.0).contains(&entry);
        vmas.iter().any(|vma| vma.executable && vma.inode == inode && vma.name == name && holds_it(vma))
    };
    let mut starts = vmas.iter().filter(|vma| vma.name == name && vma.offset == 0);
    starts.find(|vma| is_code(vma.range.start.0, vma.inode)).map(|vma| vma.range.start.0)
}

/// The first thread that `attempt` finds fit, one at least being tried. Each of them may take seconds to stop, and a
/// process may have thousands.
fn first_fit<T>(
    tids: Vec<u32>,
    deadline: Deadline,
    mut attempt: impl FnMut(u32) -> Result<Option<T>, String>,
) -> Result<Option<T>, String> {
    for tid in tids {
        let found = attempt(tid)?;
        if found.is_some() || deadline.has_passed() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn errno(result: Option<i64>) -> String {
    let code = result.and_then(|result| i32::try_from(result.checked_neg()?).ok());
    code.map_or("the call was not made".into(), |code| std::io::Error::from_raw_os_error(code).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_where_its_entry_is_code() {
        use plimsoll_facts::units::{AddressRange, Avma};
        let vma = |start: u64, end: u64, offset, executable| {
            let range = AddressRange::new(Avma(start), Avma(end));
            Vma { range, offset, executable, inode: 7, name: "/l.so".into(), ..Vma::default() }
        };
        // The whole file, read-only; then the loaded library.
        let vmas = [
            vma(0x1000, 0x9000, 0, false),
            vma(0xa000, 0xc000, 0, false),
            vma(0xc000, 0xf000, 0x2000, true),
            vma(0xf000, 0x10000, 0x5000, false),
        ];
        assert_eq!(loaded_at(&vmas, "/l.so", 0x2345), Some(0xa000));
        assert_eq!(loaded_at(&vmas, "/l.so", 0x5000), None, "data");
        assert_eq!(loaded_at(&vmas, "/l.so", u64::MAX), None);
        assert_eq!((loaded_at(&vmas, "/m.so", 0x2345), loaded_at(&vmas[..1], "/l.so", 0x2345)), (None, None));
    }

    #[test]
    fn no_more_threads_are_tried_after_the_deadline() {
        let tried = |deadline, fit: u32| {
            let mut tried = Vec::new();
            let found = first_fit((1..=1000).collect(), deadline, |tid| {
                tried.push(tid);
                if tid == 900 { Err("gone".to_owned()) } else { Ok(Some(tid).filter(|tid| *tid == fit)) }
            });
            (found, tried.len())
        };
        let (past, future) = (Deadline::after(Duration::ZERO), Deadline::after(CALLING));
        assert_eq!(tried(past, 1), (Ok(Some(1)), 1));
        assert_eq!(tried(past, 2), (Ok(None), 1));
        assert_eq!(tried(future, 2), (Ok(Some(2)), 2));
        assert_eq!(tried(future, 0), (Err("gone".to_owned()), 900));
        assert_eq!(first_fit(Vec::new(), future, |_| Ok(Some(()))), Ok(None));
    }
}
