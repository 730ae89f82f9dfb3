//! Finds the segment of a process, and whether the process still lives.
//!
//! ```text
//! PID ─┬─ $PLIMSOLL_DIR, plimsoll-UID in /dev/shm, /tmp, /run          of our user and of the process's owner
//!      ├─ the same under /proc/PID/root                                (another mount namespace)
//!      └─ /proc/PID/maps: the mapped *.seg itself                      (another directory: --dir; a deleted file)
//! ```
//! A segment belongs to the process if its header has the process's PID (in its own namespace) and its tracker started
//! after the process did: PIDs are reused, start times aren't. If there are several, the newest one is used (exec makes
//! a new one).

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use plimsoll_segment::{SUFFIX, State, ThreadFacts, text};
use rustix::time::{ClockId, clock_gettime};

use super::parse::{Head, Segment};
use super::read::{self, ReadError};
use plimsoll_facts::ending::{Ending, How, Oom};
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_process::foreign::{self, Deadline, FileKind, Folder, Requirements};
use plimsoll_process::kernel_log::{self, OnKill, OomKill};
use plimsoll_process::proc::{Target, stat, status_field};

/// State of a segment's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Live,
    /// The process ran its exit handlers.
    Exited,
    /// The process ended without them: a signal, the OOM killer, _exit, or exec of an untracked program.
    Killed,
    /// The tracker was detached: the process continued without books.
    Detached,
}

/// The environment variable that names the segment directory.
pub const DIRECTORY_VARIABLE: &str = "PLIMSOLL_DIR";

/// The directory that our own environment names. An empty value counts as none, as it does in the tracker.
pub fn named_directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Where the tracker makes its directory of segments, in order (tracker: account/segment_file.rs). In the first two,
/// any user could create root's directory; in the last, only root can.
pub const DIRECTORIES: [&str; 3] = ["/dev/shm", "/tmp", "/run"];

/// Limit of segments of one directory whose headers are read. `--retain` keeps tens of them, and each may be another
/// user's FIFO.
const MOST_HEADS: usize = 1 << 14;

/// The directories to search for segments, in order; only existing ones. A directory that is named after a user must
/// belong to that user, because anybody can create it in /tmp first.
pub fn search_directories(pid: Option<u32>, deadline: Deadline) -> Vec<PathBuf> {
    directories(None, pid, None, deadline)
}

/// As [`search_directories`], for a process of this other user that has ended.
pub fn directories_of_user(user: u32, deadline: Deadline) -> Vec<PathBuf> {
    directories(None, None, Some(user), deadline)
}

/// The directories of users other than ours and root, each with its user. Only root sees into them.
pub fn directories_of_others(deadline: Deadline) -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for directory in DIRECTORIES.map(Path::new) {
        let names = Folder::open(directory, deadline).map(|folder| folder.names()).unwrap_or_default();
        let users = names.iter().filter_map(|name| name.to_str()?.strip_prefix("plimsoll-")?.parse::<u32>().ok());
        for user in users.filter(|user| ![0, own_user()].contains(user)) {
            let path = directory.join(format!("plimsoll-{user}"));
            if Folder::open(&path, deadline).is_ok_and(|folder| folder.uid == user) {
                found.push((user, path));
            }
        }
    }
    found
}

fn directories(named: Option<&Path>, pid: Option<u32>, user: Option<u32>, deadline: Deadline) -> Vec<PathBuf> {
    let mut owners = Vec::from_iter(fs::metadata("/proc/self").map(|meta| meta.uid()));
    owners.extend(user);
    let mut found: Vec<(PathBuf, Option<u32>)> = Vec::new();
    found.extend(named.map(|dir| (dir.to_owned(), None)));
    found.extend(named_directory().map(|dir| (dir, None)));
    if let Some(pid) = pid {
        if let Some(dir) = environment_directory(pid, deadline).filter(|dir| dir.is_absolute()) {
            found.push((dir.clone(), None));
            found.push((Path::new(&format!("/proc/{pid}/root")).join(dir.strip_prefix("/").unwrap_or(&dir)), None));
        }
        if let Ok(meta) = fs::metadata(format!("/proc/{pid}")) {
            owners.push(meta.uid());
        }
    }
    let roots = [Some(String::new()), pid.map(|pid| format!("/proc/{pid}/root"))];
    for root in roots.iter().flatten() {
        for owner in &owners {
            for directory in DIRECTORIES {
                found.push((PathBuf::from(format!("{root}{directory}/plimsoll-{owner}")), Some(*owner)));
            }
        }
    }
    let mut seen = Vec::new();
    found.retain(|(dir, owner)| match Folder::open(dir, deadline) {
        Ok(folder)
            if !seen.contains(&folder.identity) && owner.is_none_or(|owner| [owner, 0].contains(&folder.uid)) =>
        {
            seen.push(folder.identity);
            true
        }
        _ => false,
    });
    found.into_iter().map(|(dir, _)| dir).collect()
}

/// Names in a directory with this prefix and a segment's ending, up to a limit.
fn names(directory: &Path, prefix: &str, deadline: Deadline) -> Vec<OsString> {
    let all = Folder::open(directory, deadline).map(|folder| folder.names()).unwrap_or_default();
    let fits = |name: &OsString| {
        let name = name.as_bytes();
        name.starts_with(prefix.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
    };
    all.into_iter().filter(fits).take(MOST_HEADS).collect()
}

/// The users that a process has or could have again; its files belong to one of them.
pub(super) fn users(pid: u32) -> Vec<u32> {
    let status = status(pid).unwrap_or_default();
    let line = status_field(&status, "Uid:").unwrap_or_default();
    line.split_whitespace().filter_map(|uid| uid.parse().ok()).collect()
}

pub(super) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn environment_directory(pid: u32, deadline: Deadline) -> Option<PathBuf> {
    let environment = Target::open(pid, deadline).ok()?.read("environ").ok()?;
    let prefix = format!("{DIRECTORY_VARIABLE}=");
    let value = environment.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(prefix.as_bytes()))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(value)))
}

/// The segments with a readable header in a directory that the caller has named, oldest first.
pub fn list(directory: &Path, deadline: Deadline) -> Vec<(PathBuf, Head)> {
    list_heads(directory, Requirements::of(FileKind::Segment), deadline)
}

/// As [`list`], in a directory that was found: only segments of root, of our own user and of `other`. Other users may
/// be able to write to such a directory.
pub fn list_owned(directory: &Path, other: Option<u32>, deadline: Deadline) -> Vec<(PathBuf, Head)> {
    let own = own_user();
    let owners = [0, own, other.unwrap_or(own)];
    list_heads(
        directory,
        Requirements { links: false, owners: Some(&owners), ..Requirements::of(FileKind::Segment) },
        deadline,
    )
}

fn list_heads(directory: &Path, requirements: Requirements<'_>, deadline: Deadline) -> Vec<(PathBuf, Head)> {
    let paths = names(directory, "", deadline).into_iter().map(|name| directory.join(name));
    let mut found: Vec<(PathBuf, Head)> =
        paths.filter_map(|path| read::read_head(&path, requirements, deadline).map(|(head, _)| (path, head))).collect();
    found.sort_by_key(|(_, head)| age(head));
    found
}

/// Orders segments by their start. CLOCK_BOOTTIME begins anew at each boot, and a directory on a disk survives boots.
fn age(head: &Head) -> (u64, u64) {
    (head.start_realtime_ns, head.start_boottime_ns)
}

/// The segment of a process; the newest if there are several. If the process with this PID isn't tracked, the segment
/// of a dead process with the same PID.
pub fn find_by_pid(pid: u32, deadline: Deadline) -> Option<(PathBuf, Head, Life)> {
    find_by_pid_in(pid, None, deadline)
}

/// As [`find_by_pid`], but searches first the directory that the program was started with. Once the program has ended,
/// only its starter knows that directory.
pub fn find_by_pid_in(pid: u32, named: Option<&Path>, deadline: Deadline) -> Option<(PathBuf, Head, Life)> {
    newest(pid, named, true, deadline)
}

/// Like [`find_by_pid_in`], for a process that has ended: a living process with its PID is another process, or has
/// become another program.
pub fn find_ended_in(pid: u32, named: Option<&Path>, deadline: Deadline) -> Option<(PathBuf, Head, Life)> {
    newest(pid, named, false, deadline)
}

fn newest(pid: u32, named: Option<&Path>, may_live: bool, deadline: Deadline) -> Option<(PathBuf, Head, Life)> {
    let inner = namespace_pid(pid).unwrap_or(pid);
    let prefix = format!("{inner}-");
    let mut dead: Option<(PathBuf, Head, Life)> = None;
    // The file must belong to root, to us, or to the process's users. In a directory that others can write to, another
    // user's file may have this PID in its name.
    let mut owners = users(pid);
    owners.extend([0, own_user()]);
    let requirements = Requirements { links: false, ..Requirements::of(FileKind::Segment) };
    for directory in directories(named, Some(pid), None, deadline) {
        let paths = names(&directory, &prefix, deadline).into_iter().map(|name| directory.join(name));
        let mut heads: Vec<(PathBuf, Head)> = paths
            .filter_map(|path| read::read_head(&path, requirements, deadline).map(|(head, meta)| (path, head, meta)))
            .filter(|(path, head, meta)| {
                head.pid == inner && has_begun(head) && (owners.contains(&meta.uid()) || maps_file(pid, path, deadline))
            })
            .map(|(path, head, _)| (path, head))
            .collect();
        heads.sort_by_key(|(_, head)| std::cmp::Reverse(age(head)));
        for (path, head) in heads {
            let life = life_as(pid, &head, &path, deadline);
            match life {
                Life::Live if may_live => return Some((path, head, life)),
                Life::Live => continue,
                _ => {}
            }
            // Containers may share a directory: this is a living process of another container, with the same PID there.
            if is_locked(&path, deadline) == Some(true) && maps(pid, &path, deadline) == Some(false) {
                continue;
            }
            if dead.as_ref().is_none_or(|(_, best, _)| age(best) < age(&head)) {
                dead = Some((path, head, life));
            }
        }
    }
    if !may_live {
        return dead;
    }
    match mapped_segment(pid, deadline) {
        // Still mapped, for the next attach. A path that was found in a directory is shorter than the path of the
        // mapping.
        Some((path, head)) if head.pid == inner && head.state == State::Detached as u32 => {
            let same = dead.filter(|(_, known, _)| known.start_boottime_ns == head.start_boottime_ns);
            let path = same.map_or(path, |(path, ..)| path);
            Some((path, head, Life::Detached))
        }
        Some((path, head)) if head.pid == inner => Some((path, head, Life::Live)),
        _ => dead,
    }
}

/// Whether the books belong to a process yet. A segment that fork prepares for its child lies beside the parent's and
/// has the parent's PID.
fn has_begun(head: &Head) -> bool {
    ![State::Booting, State::Prepared].iter().any(|state| head.state == *state as u32)
}

/// State of the process of a segment file, if that process has, or had, its PID in our namespace.
pub fn life_of(head: &Head, path: &Path, deadline: Deadline) -> Life {
    life_as(head.pid, head, path, deadline)
}

/// State of the process of any segment file, and the living process's PID in our namespace. `None`: it isn't known, or
/// the process doesn't live.
pub fn process_of(head: &Head, path: &Path, deadline: Deadline) -> (Life, Option<u32>) {
    if let Some(life) = recorded_end(head) {
        return (life, None);
    }
    let is_it = |pid: u32| namespace_pid(pid) == Some(head.pid) && maps(pid, path, deadline) == Some(true);
    let others = || {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten().take_while(|_| !deadline.has_passed());
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|&pid| is_it(pid))
    };
    // No process maps a file without a lock, so there is nothing to search for.
    let locked = is_locked(path, deadline);
    let own = Some(head.pid).filter(|&pid| is_it(pid));
    if let Some(pid) = own.or_else(|| (locked != Some(false)).then(others)?) {
        return (Life::Live, Some(pid));
    }
    match life_of(head, path, deadline) {
        Life::Live => (Life::Live, Some(head.pid)),
        // The process lives in a namespace that isn't below ours.
        Life::Killed if locked == Some(true) => (Life::Live, None),
        life => (life, None),
    }
}

/// Whether a living process maps the file, in any PID namespace: the mapping holds a lock. `None`: it isn't known.
fn is_locked(path: &Path, deadline: Deadline) -> Option<bool> {
    read::open(path, deadline).ok()?.is_locked()
}

/// State of the process of a segment file, whose PID in our namespace is this.
pub fn life_as(pid: u32, head: &Head, path: &Path, deadline: Deadline) -> Life {
    match recorded_end(head) {
        Some(life) => life,
        None if is_of(pid, head, path, deadline) => Life::Live,
        // The process may have ended in order since the header was read.
        None => read::head(path, deadline).ok().and_then(|head| recorded_end(&head)).unwrap_or(Life::Killed),
    }
}

/// Whether the segment belongs to this living process, which has it mapped even after a detach: an earlier process may
/// have had the same PID.
pub fn is_of(pid: u32, head: &Head, path: &Path, deadline: Deadline) -> bool {
    let lives = |start: u64| start <= head.start_boottime_ns.saturating_add(TICK_NS);
    start_time_ns(pid).is_some_and(lives) && (has_main_stack(pid, path, deadline) || maps_file(pid, path, deadline))
}

/// How the process of a segment ended, by the first source that knows. None if the process lives, with or without its
/// tracker.
pub fn ending_of(segment: &Segment, life: Life) -> Option<Ending> {
    let head = &segment.head;
    match life {
        Life::Live | Life::Detached => return None,
        _ if head.ended != 0 => {
            let mut ending = Ending::from_word(head.ended)?;
            let is_open = matches!(ending.oom, Oom::Unknown | Oom::InGroup);
            if ending.is_sigkill() && is_open && kernel_has_killed(segment) {
                ending.oom = Oom::Yes;
            }
            return Some(ending);
        }
        Life::Exited => return Some(Ending::of(How::Exited)),
        Life::Killed => {}
    }
    if kernel_has_killed(segment) {
        return Some(Ending::oom_killed());
    }
    // The PID may belong to another process: to process 1 of a container, or to a later process. A process that began
    // just before the tracker is the right one.
    let began = start_time_ns(head.pid);
    let is_same = began.is_some_and(|began| {
        began <= head.start_boottime_ns.saturating_add(TICK_NS)
            && head.start_boottime_ns.saturating_sub(began) < BOOTED_NS
    });
    Some(if is_same { Ending::of(How::Exec) } else { Ending::UNKNOWN })
}

/// The gap if the ending may be an OOM kill that we can't recognise. If no parent waited for the process, only the
/// kernel's log records such a kill, and it has the PIDs of the host.
pub fn gap_of_ending(segment: &Segment, ending: Ending) -> Option<Gap> {
    let could_be_oom =
        ending == Ending::UNKNOWN || ending.is_sigkill() && matches!(ending.oom, Oom::Unknown | Oom::InGroup);
    if !could_be_oom {
        return None;
    }
    if let Some(error) = kernel_log::refusal() {
        return Some(without_log(&error, own_user() == 0));
    }
    let since = last_sign_us(segment);
    let kills = kernel_log::oom_kills();
    let of_this_name = kills.iter().find(|kill| may_be_inside(kill, segment, since));
    // A thread may have renamed itself. In a container, its PID isn't the log's either.
    let of_any_name = || kills.iter().find(|kill| !kernel_log::has_our_numbers() && is_soon(kill, since));
    let kill = of_this_name.or_else(of_any_name)?;
    let whose = if of_this_name.is_some() { "a process of this name" } else { "a process" };
    let (pid, seconds) = (kill.tid, kill.time_us.saturating_sub(since + CLOCKS_DIFFER_US) as f64 / 1e6);
    let reason = format!(
        "the kernel's log has an OOM kill of {whose}, PID {pid} on the host, {seconds:.1} s after the last sign of this one"
    );
    let effect = "the killed process may be this one: in a container its PID differs";
    Some(Gap::new(Source::Segment, reason, effect))
}

fn without_log(error: &io::Error, is_root: bool) -> Gap {
    let (reason, remedy) = match error.kind() {
        io::ErrorKind::NotFound => {
            ("this container has no kernel log (/dev/kmsg)".to_owned(), "read the segment on the host, as root")
        }
        _ => (
            format!("the kernel's log can't be read: {error}"),
            if is_root { "run plimsoll with CAP_SYSLOG" } else { "run plimsoll as root, or with CAP_SYSLOG" },
        ),
    };
    Gap::new(Source::Segment, reason, "an OOM kill of the process would not be recognised").remedy(remedy)
}

/// Maximum time between the start of a process and that of its tracker.
const BOOTED_NS: u64 = 2_000_000_000;

/// Whether the kernel's log has an OOM kill of a process with this PID after the process was last seen alive. The
/// process may have renamed itself, so the name must be its program's only if the kill came much later: then the PID may
/// be another process's.
fn kernel_has_killed(segment: &Segment) -> bool {
    let since = last_sign_us(segment);
    kernel_log::has_our_numbers() && kernel_log::oom_kills().iter().any(|kill| is_of_process(kill, segment, since))
}

fn is_of_process(kill: &OomKill, segment: &Segment, since: u64) -> bool {
    let is_named = || may_have_name(&segment.command, &kill.name);
    let is_process = kill.tid == segment.head.pid && kill.time_us >= since && (is_soon(kill, since) || is_named());
    // If the first thread has left, the kernel names another.
    is_process || is_soon(kill, since) && living_threads(segment).any(|thread| thread.tid == kill.tid)
}

/// The state of a slot whose thread lives.
const IN_USE: u32 = 1;

fn living_threads(segment: &Segment) -> impl Iterator<Item = &ThreadFacts> {
    segment.threads.iter().filter(|thread| thread.state == IN_USE)
}

fn is_soon(kill: &OomKill, since: u64) -> bool {
    const SOON_US: u64 = 600_000_000;
    (since..since.saturating_add(SOON_US)).contains(&kill.time_us)
}

/// Whether the kill may be that of this process under another PID on the host: soon after the last sign of this
/// process, and of a process or thread of this name.
fn may_be_inside(kill: &OomKill, segment: &Segment, since: u64) -> bool {
    let is_of_thread =
        || living_threads(segment).any(|thread| !kill.name.is_empty() && text(&thread.name) == kill.name);
    let is_named = || may_have_name(&segment.command, &kill.name) || is_of_thread();
    is_soon(kill, since) && kill.tid != segment.head.pid && is_named()
}

/// The log's clock and ours differ by some ms.
const CLOCKS_DIFFER_US: u64 = 100_000;

/// Whether the kernel killed the process, according to the kernel's log. The process began at this CLOCK_BOOTTIME.
pub fn kernel_says_killed(pid: u32, began_ns: u64) -> OnKill {
    kernel_log::says_killed(pid, in_log_us(began_ns))
}

/// When the process was last seen alive, in µs of the kernel log's clock, and earlier by as much as the clocks differ.
fn last_sign_us(segment: &Segment) -> u64 {
    in_log_us(segment.last_sign_ns())
}

/// Converts a CLOCK_BOOTTIME to µs of the kernel log's clock, and earlier by as much as the clocks differ.
fn in_log_us(boottime_ns: u64) -> u64 {
    let suspended = {
        let [boot, mono] = [ClockId::Boottime, ClockId::Monotonic].map(|clock| {
            let now = clock_gettime(clock);
            u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000
        });
        boot.saturating_sub(mono)
    };
    (boottime_ns / 1000).saturating_sub(suspended + CLOCKS_DIFFER_US)
}

/// Whether the kernel may call this command (executable, then arguments) by this name: the last component of the path
/// that was executed, at most 15 bytes (TASK_COMM_LEN). The first word of the command is that path, if the path is
/// another name of the executable's file; else it is the executable's own path. A name that is part of the file's name
/// (python3 of python3.11) isn't recorded: argv 0 usually has it. A script's path is argv 1.
fn may_have_name(command: &[Vec<u8>], name: &[u8]) -> bool {
    command.iter().take(3).any(|word| {
        let last = word.rsplit(|&b| b == b'/').next().unwrap_or_default();
        last.get(..last.len().min(15)) == Some(name)
    })
}

/// What the process itself recorded about its end.
fn recorded_end(head: &Head) -> Option<Life> {
    match head.state {
        state if state == State::Exited as u32 => Some(Life::Exited),
        state if state == State::Detached as u32 => Some(Life::Detached),
        _ => None,
    }
}

/// /proc/PID/stat counts in ticks of 10 ms (USER_HZ is 100 on all current Linux systems), rounded down.
const TICK_NS: u64 = 10_000_000;

fn stat_of(pid: u32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/stat")).ok()
}

/// Start time of a process, CLOCK_BOOTTIME ns; `None` if it doesn't exist or is a zombie.
pub fn start_time_ns(pid: u32) -> Option<u64> {
    let stat = stat_of(pid)?;
    // A first thread that left by pthread_exit shows as a zombie while the others run on.
    let others = stat::number(&stat, 20).is_some_and(|threads| threads > 1);
    if matches!(stat::field(&stat, 3), Some(b"Z" | b"X")) && !others {
        return None;
    }
    stat::number(&stat, 22)?.checked_mul(TICK_NS)
}

/// The process of a thread: /proc/TID exists for every thread, although listings don't show it. A process is its own
/// leader.
pub fn leader_of(tid: u32) -> Option<u32> {
    status_field(&status(tid)?, "Tgid:")?.parse().ok()
}

/// The PID that the process itself sees: the last one of NSpid.
pub(super) fn namespace_pid(pid: u32) -> Option<u32> {
    let status = status(pid)?;
    let line = status_field(&status, "NSpid:")?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// A process gives itself any name, and the kernel cuts it at 15 bytes: it needn't be UTF-8.
fn status(pid: u32) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?).into_owned())
}

/// True if the stack that the kernel gave the process at its exec (startstack, field 28) is the main thread's stack in
/// the segment. Each exec places it elsewhere, and the check is cheap, while reading 60,000 lines of maps takes 30 ms.
/// False is inconclusive: without address randomisation, or without the right to see the field, the maps must be read.
fn has_main_stack(pid: u32, path: &Path, deadline: Deadline) -> bool {
    let randomised = fs::read("/proc/sys/kernel/randomize_va_space").is_ok_and(|value| !value.starts_with(b"0"));
    let start = stat_of(pid).and_then(|stat| stat::number(&stat, 28));
    match (start, read::main_stack(path, deadline)) {
        (Some(start), Some((low, high))) => randomised && low <= start && start < high,
        _ => false,
    }
}

/// True if the process maps the file, or if its maps can't be read (then its start time and the lock of the file must
/// suffice). An exec keeps PID and start time, but not the mapping.
fn maps_file(pid: u32, path: &Path, deadline: Deadline) -> bool {
    maps(pid, path, deadline).or_else(|| is_locked(path, deadline)).unwrap_or(true)
}

/// Whether the process maps the file. `None`: the kernel refuses its maps, or they were not read in time. A process may
/// give each mapping a path of megabytes.
///
/// Devices differ between maps and stat(2) on btrfs and overlayfs. But each tmpfs numbers its files from 2 on, so the
/// first segments in the /dev/shm of two containers have the same number. Their names have different starts.
fn maps(pid: u32, path: &Path, deadline: Deadline) -> Option<bool> {
    let file = read::open(path, deadline).ok()?;
    let maps = match fs::File::open(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        Err(error) => return (error.kind() == std::io::ErrorKind::NotFound).then_some(false),
    };
    let inode = file.meta().ino().to_string();
    let wanted = name_in_maps(path);
    let is_named = |name: &[u8]| {
        let last = name.rsplit(|&b| b == b'/').next();
        wanted.as_ref().is_none_or(|wanted| last == Some(wanted.as_bytes()))
    };
    let mut readable = false;
    for line in BufReader::with_capacity(1 << 16, maps).split(b'\n') {
        let Ok(line) = line else { return None };
        if deadline.has_passed() {
            return None;
        }
        readable = true;
        let name = line.strip_suffix(DELETED).unwrap_or(&line);
        let is_numbered = || line.split(|&b| b == b' ').nth(4) == Some(inode.as_bytes());
        if name.ends_with(SUFFIX.as_bytes()) && is_named(name) && is_numbered() {
            return Some(true);
        }
    }
    readable.then_some(false)
}

/// The last component of the file's name in the maps of a process. `None`: a mapping whose file was deleted.
fn name_in_maps(path: &Path) -> Option<OsString> {
    let real = path.canonicalize();
    let is_mapping = path.parent().is_some_and(|parent| parent.ends_with("map_files"));
    let named = if is_mapping { real.as_deref().ok()? } else { real.as_deref().unwrap_or(path) };
    named.file_name().map(OsString::from)
}

/// The segment that a process maps. It is opened by its name in maps or, if the name was deleted or names another file
/// here, through the mapping itself (/proc/PID/map_files, for root).
fn mapped_segment(pid: u32, deadline: Deadline) -> Option<(PathBuf, Head)> {
    let target = Target::open(pid, deadline).ok()?;
    mapped_files(&target)?.find_map(|(paths, requirements)| {
        let read = paths.into_iter().find_map(|p| Some((p.clone(), read::read_head(&p, requirements, deadline)?.0)));
        read.filter(|(_, head)| has_begun(head))
    })
}

/// Why a segment that the process maps can't be read: the process is tracked, but we may not see it, or its tracker is
/// of another version. None if there is no such segment, or if it can be read.
pub fn refused(pid: u32, deadline: Deadline) -> Option<ReadError> {
    let target = Target::open(pid, deadline).ok()?;
    mapped_files(&target)?.find_map(|(paths, requirements)| {
        let mut errors = Vec::new();
        for path in paths {
            match foreign::open(&path, requirements, deadline) {
                Ok(file) => return read::head_of(&file, &path).err().filter(ReadError::is_of_contents),
                Err(why) => errors.push(read::refused(&path, why)),
            }
        }
        errors.into_iter().next()
    })
}

/// The segments in the maps of a process: the paths to try for each, and what the file must be.
fn mapped_files(target: &Target) -> Option<impl Iterator<Item = (Vec<PathBuf>, Requirements<'static>)>> {
    let (pid, deadline) = (target.pid(), target.deadline());
    let maps = target.file("maps").ok()?;
    let lines = BufReader::with_capacity(1 << 16, maps).split(b'\n').map_while(Result::ok);
    let in_time = lines.take_while(move |_| !deadline.has_passed());
    Some(in_time.filter_map(move |line| {
        let name = line.get(line.iter().position(|&b| b == b'/')?..)?;
        let kept = name.strip_suffix(DELETED).unwrap_or(name);
        if !kept.ends_with(SUFFIX.as_bytes()) {
            return None;
        }
        let path = std::str::from_utf8(kept).ok()?;
        let range = std::str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?;
        let mapping = PathBuf::from(format!("/proc/{pid}/map_files/{range}"));
        let named = [target.path(path), PathBuf::from(path)];
        let named = named.into_iter().filter(|_| kept.len() == name.len());
        let inode = std::str::from_utf8(line.split(|b| *b == b' ').nth(4)?).ok()?.parse().ok()?;
        let requirements = Requirements { inode: Some(inode), ..Requirements::of(FileKind::Segment) };
        Some((named.chain([mapping]).collect(), requirements))
    }))
}

/// What the kernel appends to the name of a mapped file that was deleted.
const DELETED: &[u8] = b" (deleted)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_utf_8_hides_nothing_else() {
        let named = std::thread::spawn(|| {
            fs::write("/proc/thread-self/comm", b"caf\xc3").expect("its own name");
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            (leader_of(tid), namespace_pid(tid).is_some(), users(tid))
        });
        let (leader, has_number, users) = named.join().expect("a thread");
        assert_eq!((leader, has_number), (Some(std::process::id()), true));
        assert_eq!(users, [own_user(); 4]);
    }

    #[test]
    fn the_kernel_names_a_process_by_the_path_that_was_executed() {
        let command = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let linked = command(&["/usr/bin/redis-check-rdb", "/usr/bin/redis-server", "--port", "7000"]);
        assert!(may_have_name(&linked, b"redis-server") && may_have_name(&linked, b"redis-check-rdb"));
        assert!(!may_have_name(&linked, b"7000") && !may_have_name(&linked, b"redis"));
        let script = command(&["/usr/bin/dash", "/bin/sh", "/opt/start-the-shop.sh"]);
        assert!(may_have_name(&script, b"start-the-shop."), "15 bytes");
        assert!(!may_have_name(&[], b"java"));
    }

    /// `pthread_exit` in main: the kernel names one of the threads that are left.
    #[test]
    fn a_kill_names_a_thread_where_the_first_has_left() {
        let thread = |tid, state, name: &[u8]| {
            let mut field = [0; 16];
            field[..name.len()].copy_from_slice(name);
            ThreadFacts { tid, state, name: field, ..ThreadFacts::decode(&[0; 128]).expect("a slot") }
        };
        let segment = Segment {
            head: Head { pid: 5142, ..Head::default() },
            command: vec![b"/bin/shop".to_vec()],
            threads: vec![thread(5142, 2, b"shop"), thread(5145, 1, b"worker-thread"), thread(5146, 1, b"")],
            ..Segment::default()
        };
        const SINCE: u64 = 1_000_000;
        const LATE: u64 = SINCE + 601_000_000;
        let kill = |tid, name: &str, time_us| OomKill { tid, name: name.into(), time_us };
        for (tid, name, time_us, is_it) in [
            (5145, "worker-thread", SINCE, true),
            // Threads rename themselves.
            (5146, "renamed", SINCE, true),
            (5142, "renamed", SINCE, true),
            (5142, "shop", LATE, true),
            // A number is reused.
            (5145, "worker-thread", LATE, false),
            (5142, "other", LATE, false),
            (5145, "worker-thread", SINCE - 1, false),
            (5147, "worker-thread", SINCE, false),
        ] {
            assert_eq!(is_of_process(&kill(tid, name, time_us), &segment, SINCE), is_it, "{tid} {name} {time_us}");
        }
        // In a container, only names can be compared.
        for (name, may) in [("shop", true), ("worker-thread", true), ("", false), ("other", false)] {
            assert_eq!(may_be_inside(&kill(90, name, SINCE), &segment, SINCE), may, "{name}");
        }
    }

    #[test]
    fn a_log_that_cannot_be_read_names_the_way_to_it() {
        let gap = |kind, is_root| {
            let gap = without_log(&io::Error::from(kind), is_root);
            (gap.reason, gap.remedy)
        };
        let (reason, remedy) = gap(io::ErrorKind::NotFound, true);
        assert!(reason.contains("no kernel log") && remedy.contains("on the host"), "{reason} {remedy}");
        let refused = |is_root| gap(io::ErrorKind::PermissionDenied, is_root).1;
        assert_eq!(refused(false), "run plimsoll as root, or with CAP_SYSLOG");
        assert_eq!(refused(true), "run plimsoll with CAP_SYSLOG");
    }
}
