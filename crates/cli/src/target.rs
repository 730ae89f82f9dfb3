//! Opens a TARGET: a PID, a segment file, a saved JSON, or a directory of segments (its newest).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::shell::command_line;
use plimsoll_facts::snapshot::Start;
use plimsoll_observer::source::glibc;
use plimsoll_process::foreign::{self, Deadline, FileKind, Requirements, Why};
use plimsoll_process::proc::{self, Access, Closed};
use plimsoll_process::processes::ProcView;
use plimsoll_report::{json, words};
use plimsoll_tracked::books::{Books, Module, before};
use plimsoll_tracked::rules;
use plimsoll_tracked::segment::{self, Life, Segment};
use plimsoll_tracked::sites::Sites;
use plimsoll_tracked::symbols;

use crate::Failure;
use crate::output::{report_of, shown};
use crate::process_argument::tracked_pid_of;
use crate::sys;
use crate::untrackable::{self, Allocator, Way};

/// The books of a target, and the PID of its process if it lives.
pub struct TrackedTarget {
    pub books: Books,
    pub live_pid: Option<u32>,
    /// The deadline of the whole command.
    pub deadline: Deadline,
    stacks: Stacks,
}

/// Where the stacks of a target come from.
enum Stacks {
    /// The segment, and the moment of the reading in CLOCK_BOOTTIME ns.
    Segment(Box<Segment>, u64),
    Saved(Box<Sites>),
}

impl TrackedTarget {
    /// Where to look for the names of the target's functions.
    pub fn symbols(&self, given: &[PathBuf]) -> symbols::SymbolOptions {
        symbols(self.live_pid, given)
    }

    /// Its sites; `by_thread`: divided among the threads that allocated.
    pub fn sites(&self, names: &symbols::SymbolOptions, by_thread: bool) -> Sites {
        match &self.stacks {
            Stacks::Segment(segment, now) => {
                let mut symbols = symbols::Symbols::new(names, &self.books, self.deadline);
                Sites::new(segment, &self.books, &mut symbols, *now, by_thread)
            }
            Stacks::Saved(sites) => (**sites).clone(),
        }
    }
}

pub fn symbols(pid: Option<u32>, given: &[PathBuf]) -> symbols::SymbolOptions {
    symbols::SymbolOptions { pid, given: given.to_vec(), cache: rules::read::cache_dir(), without: false }
}

pub fn open(path: &Path, deadline: Deadline) -> Result<TrackedTarget, Failure> {
    if let Some(pid) = path.to_str().and_then(|target| target.parse::<u32>().ok()) {
        return by_pid(pid, deadline);
    }
    let shown = shown(path);
    let meta =
        fs::metadata(path).map_err(|e| format!("'{shown}' is neither a PID nor a file that can be read: {e}"))?;
    if meta.is_dir() {
        fs::read_dir(path).map_err(|e| format!("cannot read the directory '{shown}': {e}"))?;
        let newest = segment::list(path, deadline).pop();
        let (path, _) = newest.ok_or_else(|| format!("there is no segment in the directory '{shown}'"))?;
        return by_file(&path, deadline);
    }
    match segment::head_of(path, deadline) {
        Ok(_) => by_file(path, deadline),
        Err(error) => {
            let Some(bytes) = saved(path, deadline).map_err(|why| format!("'{shown}' {why}"))? else {
                // A program's file is the name of its process.
                return match path.canonicalize() {
                    Ok(program) if meta.mode() & 0o111 != 0 => {
                        by_pid(tracked_pid_of(program.as_os_str(), "report")?, deadline)
                    }
                    _ => Err(error.into()),
                };
            };
            let (books, sites) = json::parse(&bytes).map_err(|e| format!("cannot use '{shown}': {e}"))?;
            Ok(TrackedTarget { books, live_pid: None, deadline, stacks: Stacks::Saved(Box::new(sites)) })
        }
    }
}

fn by_pid(pid: u32, deadline: Deadline) -> Result<TrackedTarget, Failure> {
    let found = segment::find_by_pid(pid, deadline);
    let exists = Path::new(&format!("/proc/{pid}")).exists();
    let is_thread = segment::leader_of(pid).is_some_and(|leader| leader != pid);
    let no_memory = without_memory(pid, deadline).filter(|_| exists);
    // A segment that is mapped but unreadable must not look like an untracked process.
    if found.is_none()
        && !is_thread
        && let Some(error) = segment::refused(pid, deadline)
    {
        let help = match error.is_of_contents() {
            true => "Use the plimsoll that tracks it".to_owned(),
            false => format!("Try: {}", proc::as_root(&refused("report", pid))),
        };
        return Err(format!("process {pid} is tracked, but {error}. {help}").into());
    }
    match found {
        Some((path, _, Life::Live)) => live(&path, pid, deadline),
        Some((path, head, Life::Detached)) if exists && segment::is_of(pid, &head, &path, deadline) => Err(format!(
            "process {pid} was detached (to go on: plimsoll attach {pid}). Its books up to then: {}",
            report_of(&path)
        )
        .into()),
        Some((path, _, _)) if exists && segment::start_time_ns(pid).is_some() => Err(format!(
            "process {pid} is not tracked. An earlier process with that PID left a segment: {}",
            report_of(&path)
        )
        .into()),
        Some((path, _, life)) => dead(&path, life, deadline),
        None if deadline.has_passed() => Err(format!(
            "cannot tell whether process {pid} is tracked: the search took too long. Name its segment file"
        )
        .into()),
        None if exists && is_thread => {
            let leader = segment::leader_of(pid).unwrap_or(pid);
            Err(format!("{pid} is a thread of process {leader}: plimsoll report {leader}").into())
        }
        None if exists && is_closed_to_us(pid, deadline) => {
            Err(format!("cannot tell whether process {pid} is tracked: {}", closed(pid, "report", Access::Read)).into())
        }
        None if no_memory.is_some() => Err(no_memory.unwrap_or_default().into()),
        None if exists && maps_any(pid, proc::is_trackers_library, deadline) => Err(format!(
            "process {pid} has the tracker's library, but no books yet: a child of fork() makes them when it first allocates. To make them now: plimsoll attach {pid}"
        )
        .into()),
        None if exists => {
            let exe = PathBuf::from(format!("/proc/{pid}/exe"));
            let of_program = || untrackable::of(&exe, deadline).and_then(|obstacle| obstacle.for_good());
            let sanitized = maps_any(pid, proc::is_sanitizer, deadline).then_some(untrackable::SANITIZED);
            if let Some(why) = sanitized.or_else(of_program) {
                return Err(format!(
                    "process {pid} can't be tracked: it {why}. For its mappings: plimsoll explain {pid}"
                )
                .into());
            }
            let start = proc::Target::open(pid, deadline).map(|target| proc::start_of(&target)).unwrap_or_default();
            let tracked = started_behind(&start, "plimsoll run --");
            Err(format!("process {pid} is not tracked. Use 'plimsoll attach {pid}', or start it with: {tracked}")
                .into())
        }
        None => Err(format!(
            "{}. There is no segment of that PID either. If it ran with --dir: plimsoll report DIRECTORY",
            ProcView::now().absent(pid)
        )
        .into()),
    }
}

/// The command line of this program, quoted for a shell.
static TYPED: OnceLock<String> = OnceLock::new();

/// Remembers the command line, for messages that have it typed again.
pub fn remember_typed() {
    let words: Option<Vec<String>> = std::env::args_os().skip(1).map(|word| word.into_string().ok()).collect();
    let line = words.and_then(|words| command_line(words.iter().map(String::as_str)));
    if let Some(line) = line {
        let _ = TYPED.set(format!("plimsoll {line}"));
    }
}

/// The refused command with all of its options, or at least its verb.
pub fn refused(verb: &str, pid: u32) -> String {
    TYPED.get().cloned().unwrap_or_else(|| format!("plimsoll {verb} {pid}"))
}

/// Why the kernel denies access to a process, and what to type (ptrace(2), "Ptrace access mode checking").
pub fn closed(pid: u32, verb: &str, access: Access) -> String {
    let Closed { reason, remedy } = proc::why_closed(pid, &refused(verb, pid), access);
    if remedy.is_empty() { format!("it {reason}") } else { format!("it {reason}. Try: {remedy}") }
}

/// Maximum length of a command line in a message, in characters.
const LONGEST: usize = 1000;

/// The line that starts a program behind `before`, for the end of a message.
pub fn started_behind(start: &Start, before: &str) -> String {
    let (line, _) = start.behind(before, "");
    match line.chars().count() {
        0..=LONGEST => line,
        length => {
            let length = words::count(length as u64);
            format!("{before}   # and then the command that starts it (not printed: it has {length} characters)")
        }
    }
}

/// Why there is nothing to read of a process that exists: it is a zombie or a kernel thread.
pub fn without_memory(pid: u32, deadline: Deadline) -> Option<String> {
    let target = proc::Target::open(pid, deadline).ok()?;
    let status = proc::parse_status(&target.read("status").ok()?);
    proc::refusal(status.state, pid).filter(|_| !status.has_memory)
}

/// Whether the process maps a library that is one of these by its name.
fn maps_any(pid: u32, is_one: fn(&str) -> bool, deadline: Deadline) -> bool {
    let target = proc::Target::open(pid, deadline).ok();
    let maps = target.and_then(|target| target.read("maps").ok()).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(|line| is_one(&String::from_utf8_lossy(line)))
}

/// True if the kernel denies us the mappings of a process: then its segment may lie where we cannot look.
fn is_closed_to_us(pid: u32, deadline: Deadline) -> bool {
    let Ok(target) = proc::Target::open(pid, deadline) else { return false };
    let first = target.file("maps").and_then(|mut maps| maps.read(&mut [0]));
    first.is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
}

fn by_file(path: &Path, deadline: Deadline) -> Result<TrackedTarget, Failure> {
    let head = segment::head_of(path, deadline)?;
    match segment::process_of(&head, path, deadline) {
        (Life::Live, Some(pid)) => live(path, pid, deadline),
        (Life::Live, None) => {
            let mut target = of_segment(path, Life::Live, None, deadline)?;
            let reason = "the process lives in a PID namespace that can't be seen from here";
            let effect = "resident sizes and the names of threads are missing";
            target.books.gaps.push(Gap::new(Source::Proc, reason, effect).remedy("run plimsoll on the host"));
            Ok(target)
        }
        (life, _) => dead(path, life, deadline),
    }
}

fn live(path: &Path, pid: u32, deadline: Deadline) -> Result<TrackedTarget, Failure> {
    let mut target = of_segment(path, Life::Live, Some(pid), deadline)?;
    if target.books.counter("attaches") > 0 {
        from_before(path, pid, &mut target.books, deadline);
    }
    take_out_ended_threads(&mut target.books, pid, deadline);
    let maps = target.books.read_resident(pid, deadline);
    // After an attach, glibc's blocks from before are a line.
    let most = target.books.most_of_glibc(&maps).filter(|_| target.books.counter("attaches") == 0);
    if let Some(most) = most.filter(|most| target.books.total.live > *most)
        && let Ok(later) = sums(path, deadline)
    {
        target.books.note_freed_past(most, later.total.live);
    }
    let inside = std::mem::replace(&mut target.books.process.pid, pid);
    target.books.process.namespaced_pid = Some(inside).filter(|inside| *inside != pid);
    // A thread that existed before an attach has no slot until it allocates.
    if let Ok((process, rss)) =
        proc::Target::open(pid, deadline).map_err(drop).and_then(|of| proc::read_process(&of).map_err(drop))
    {
        target.books.process.threads = process.thread_count.max(target.books.process.threads);
        target.books.process.anonymous = Some(rss.anonymous);
    }
    name_threads(&mut target.books, pid, deadline);
    Ok(target)
}

/// Takes out the threads that the kernel no longer has. The list is read after the segment, so no thread of the books
/// is missing there only because it is new.
fn take_out_ended_threads(books: &mut Books, pid: u32, deadline: Deadline) {
    let Ok(target) = proc::Target::open(pid, deadline) else { return };
    let mut gaps = Vec::new();
    let threads: HashSet<u32> = match books.process.pid == pid {
        true => target.numbers("task").unwrap_or_default().into_iter().collect(),
        false => proc::read_threads(&target, true, &mut gaps).iter().map(|thread| thread.namespaced_tid).collect(),
    };
    // The main thread's entry stays until the process ends, so a list without it isn't whole.
    if gaps.is_empty() && threads.contains(&books.process.pid) {
        books.keep_threads(|tid| threads.contains(&tid));
    }
}

/// Adds the names that the kernel has. The books have the threads' ids in the process's own namespace.
fn name_threads(books: &mut Books, pid: u32, deadline: Deadline) {
    let comm = |tid: u32| {
        let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name);
        Some(name.trim_end()).filter(|name| !name.is_empty()).map(str::to_owned)
    };
    let is_namespaced = books.process.namespaced_pid.is_some();
    let threads = match proc::Target::open(pid, deadline) {
        Ok(target) if is_namespaced => proc::read_threads(&target, true, &mut Vec::new()),
        _ => Vec::new(),
    };
    let ids: HashMap<u32, u32> = threads.iter().map(|thread| (thread.namespaced_tid, thread.tid)).collect();
    for thread in books.threads.iter_mut().filter(|t| t.in_use && t.tid != 0 && t.name.is_none()) {
        let tid = if is_namespaced { ids.get(&thread.tid).copied() } else { Some(thread.tid) };
        thread.name = tid.and_then(comm);
    }
}

/// What an attached process held before the attach, from its arenas. They are walked between two readings of the books.
fn from_before(path: &Path, pid: u32, books: &mut Books, deadline: Deadline) {
    let Ok(process) = proc::Target::open(pid, deadline) else { return };
    let vmas = proc::read_mappings(&process, &mut books.gaps).vmas;
    let (walked, gaps) = glibc::read(&process, &vmas, glibc::WalkOptions::default());
    if let Some(walked) = walked {
        books.note_arenas(&walked);
        if let Ok(segment) = segment::read(path, deadline) {
            let later = Books::new(&segment, Life::Live, sys::boottime_ns());
            books.before = Some(before(&walked, books.booked(), later.booked()));
        }
    }
    books.gaps.extend(gaps);
}

fn dead(path: &Path, life: Life, deadline: Deadline) -> Result<TrackedTarget, Failure> {
    let mut target = of_segment(path, life, None, deadline)?;
    if let (Stacks::Segment(segment, _), Some(ending)) = (&target.stacks, target.books.ending) {
        target.books.gaps.extend(segment::gap_of_ending(segment, ending));
    }
    Ok(target)
}

/// Reads a segment file.
pub fn of_segment(
    path: &Path,
    life: Life,
    live_pid: Option<u32>,
    deadline: Deadline,
) -> Result<TrackedTarget, Failure> {
    let segment = segment::read(path, deadline)?;
    // Nothing recorded the moment of a kill, so the last moment that the segment mentions is used.
    let now = match life {
        Life::Live => sys::boottime_ns(),
        _ => segment.last_sign_ns(),
    };
    let mut books = Books::new(&segment, life, now);
    books.ending = segment::ending_of(&segment, life);
    books.gaps.extend(own_allocator(&books, live_pid, deadline));
    Ok(TrackedTarget { books, live_pid, deadline, stacks: Stacks::Segment(Box::new(segment), now) })
}

/// The gap of a program with an allocator of its own. There is none if the books have blocks of the program's code and
/// its calls may pass a hook: then its malloc calls libc's, or it has its allocator beside libc's. If they can't pass a
/// hook, such blocks prove nothing: they may be posix_memalign's.
fn own_allocator(books: &Books, live_pid: Option<u32>, deadline: Deadline) -> Option<Gap> {
    let executable = &books.process.executable;
    let has_blocks = |module: &Module| module.path == *executable && module.figures.cumulative_count > 0;
    let Allocator { name, way } = untrackable::allocator_of(&symbols::program(books, live_pid, deadline)?)?;
    if way == Way::Hooked && books.modules.iter().any(has_blocks) {
        return None;
    }
    let calls = if way == Way::Internal { "calls of __libc_malloc" } else { "calls" };
    let reason = format!("the program has an allocator of its own ({name}), whose {calls} don't reach the tracker");
    let effect = "its blocks are missing; its mappings, and blocks that libraries take from libc, are counted";
    Some(Gap::new(Source::Segment, reason, effect))
}

/// Reads the sums of a running process's books: without what its sites need, which may be most of the segment, and
/// without the frames of its callers.
pub fn sums(path: &Path, deadline: Deadline) -> Result<Books, Failure> {
    let segment = segment::read_books(path, deadline)?;
    Ok(Books::without_frames(&segment, Life::Live, sys::boottime_ns()))
}

/// Reads the books of a segment file.
pub fn books(path: &Path, life: Life, deadline: Deadline) -> Result<Books, Failure> {
    Ok(of_segment(path, life, None, deadline)?.books)
}

/// The bytes of a file that looks like a saved report; `None` for any other file.
pub fn saved(path: &Path, deadline: Deadline) -> Result<Option<Vec<u8>>, Why> {
    let looks_like_json = |start: &[u8]| start.iter().take(64).find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    match foreign::open(path, Requirements::of(FileKind::Saved), deadline) {
        Ok(file) if !looks_like_json(&file.head(64)?) => Ok(None),
        // A pipe can be read only once.
        Ok(_) | Err(Why::NotAFile) => match foreign::read_argument(path, FileKind::Saved, deadline) {
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| looks_like_json(bytes))),
            Err(Why::NotAFile) => Ok(None),
            Err(why) => Err(why),
        },
        Err(why) => Err(why),
    }
}
