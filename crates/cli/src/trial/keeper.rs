//! The keeper: a small process between plimsoll and a program under trial. It leaves nothing of the program behind.
//!
//! ```text
//! plimsoll ── line (socket, the keeper's standard input) ── keeper ── program ── its children, daemons, orphans
//! ```
//! The keeper is a subreaper (prctl(2)): a process that outlives its parent becomes the keeper's child, so every
//! process of the program stays below it. When the line closes (plimsoll has ended, in whatever way), the keeper kills
//! everything below it, removes the cgroup of the run, and ends. plimsoll is a subreaper too: if somebody kills the
//! keeper, the processes below it become plimsoll's children.
//!
//! The keeper is this program again (/proc/self/exe) under another argv[0], so no memory of plimsoll's is in it. It
//! writes lines: `started PID`, `failed REASON`, `ended code|signal N`, `empty CPU_US PEAK_BYTES` (no process is
//! left), and last `gone`, or `left PID…` if a process could not be killed: the PIDs are those of another user's
//! processes. On `term` it sends SIGTERM to each process; on any other word, or when plimsoll closes its end, it kills
//! them.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_trial::remedy::Start;
use rustix::process::{Signal, WaitOptions, getpid, set_child_subreaper, wait};

use super::process_tree;
use super::run_cgroup::Group;
use crate::exit::Exit;
use crate::sys;

/// argv[0] of the keeper.
pub const NAME: &str = "plimsoll-keeper";

/// Pause between two rounds of killing: processes that are being torn down need time.
const PAUSE: Duration = Duration::from_millis(5);
/// After this many rounds (30 s) a process is taken for unkillable: it waits for a device.
const ROUNDS: u32 = 6000;
/// After this many rounds (1 s), a process that this user may not kill is left. It may end by itself before, as sudo
/// does after its program.
const REFUSALS: u32 = 200;

/// The keeper's arguments: a flag, the cgroup's directory, the keeper's own, the number of changed variables, the
/// variables, the command.
pub fn arguments(start: &Start, own: &[(OsString, OsString)], group: Option<&Group>) -> Vec<OsString> {
    let mut all = vec![OsString::from(if start.no_huge_pages { "no-huge-pages" } else { "-" })];
    let of = |directory: fn(&Group) -> &Path| group.map(|group| directory(group).as_os_str().to_owned());
    all.extend([of(Group::directory), of(Group::home)].map(Option::unwrap_or_default));
    let changed: Vec<_> = start.environment.iter().filter(|pair| !own.contains(pair)).collect();
    all.push(changed.len().to_string().into());
    all.extend(changed.into_iter().map(|(name, value)| {
        let bytes = [name.as_bytes(), b"=", value.as_bytes()].concat();
        OsString::from_vec(bytes)
    }));
    all.extend(start.command.iter().cloned());
    all
}

struct KeeperArguments {
    no_huge_pages: bool,
    group: Option<Group>,
    environment: Vec<(OsString, OsString)>,
    command: Vec<OsString>,
}

fn read(mut arguments: impl Iterator<Item = OsString>) -> Option<KeeperArguments> {
    let no_huge_pages = arguments.next()? == "no-huge-pages";
    let (directory, home) = (arguments.next()?, arguments.next()?);
    let group = (!directory.is_empty()).then(|| Group::existing(directory.into(), home.into()));
    let changed: usize = arguments.next()?.to_str()?.parse().ok()?;
    let pair = |text: OsString| {
        let bytes = text.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&bytes[..at]).to_owned(), OsStr::from_bytes(&bytes[at + 1..]).to_owned()))
    };
    let environment = arguments.by_ref().take(changed).filter_map(pair).collect();
    Some(KeeperArguments { no_huge_pages, group, environment, command: arguments.collect() })
}

/// `main` of the keeper.
pub fn main() -> ExitCode {
    let Some(arguments) = read(std::env::args_os().skip(1)) else { return Exit::Failed.into() };
    let Ok(line) = std::io::stdin().as_fd().try_clone_to_owned() else { return Exit::Failed.into() };
    let line = UnixStream::from(line);
    sys::unblock(&super::INTERRUPTS);
    if set_child_subreaper(Some(getpid())).is_err() || (arguments.no_huge_pages && !sys::disable_huge_pages()) {
        return Exit::Failed.into();
    }
    let started = start(&arguments);
    let text = match &started {
        Ok(pid) => format!("started {pid}\n"),
        Err(error) => format!("failed {}\n", error.to_string().replace('\n', " ")),
    };
    let is_empty = Arc::new(AtomicBool::new(started.is_err()));
    // Even if plimsoll is gone: without the thread, nothing would notice that the last process has ended.
    let _ = (&line).write_all(text.as_bytes());
    if let Ok(main) = started
        && let Ok(own) = line.try_clone()
    {
        let is_empty = is_empty.clone();
        thread::spawn(move || {
            reap(main, own);
            is_empty.store(true, Ordering::Release);
        });
    }
    // A line that can't be read any more means that plimsoll is gone.
    for word in BufReader::new(&line).lines().map_while(Result::ok) {
        match word.as_str() {
            "term" => {
                send(Signal::TERM);
            }
            _ => break,
        }
    }
    let left = kill_all(&is_empty);
    if let Some(group) = arguments.group {
        group.remove();
    }
    let last = match left {
        None => "gone\n".to_owned(),
        Some(of_others) => {
            let numbers = of_others.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            format!("left {numbers}\n")
        }
    };
    let _ = (&line).write_all(last.as_bytes());
    ExitCode::SUCCESS
}

/// Starts the program in its cgroup. The keeper enters the cgroup for the fork only: if the kernel killed the keeper
/// for the program's memory, nobody would clean up.
fn start(arguments: &KeeperArguments) -> std::io::Result<u32> {
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let mut command = Command::new(program);
    command.args(rest).envs(arguments.environment.iter().map(|(name, value)| (name, value)));
    // A group of its own: a program that signals its process group must not reach the keeper.
    command.stdin(Stdio::null()).process_group(0);
    sys::by_fork(&mut command);
    let visit = arguments.group.as_ref().map(|group| group.visit()).transpose()?;
    let child = sys::handing_down(|| command.spawn())?;
    drop(visit);
    Ok(child.id())
}

/// Reaps every process until none is left, and reports the end of the program itself.
fn reap(main: u32, mut line: UnixStream) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == main as i32 => {
                let text = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => format!("ended code {code}\n"),
                    (None, signal) => format!("ended signal {}\n", signal.unwrap_or(0)),
                };
                let _ = line.write_all(text.as_bytes());
            }
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    let (cpu, peak) = sys::children_usage();
    // A child of fork has a copy of the keeper's anonymous memory until exec, so a smaller peak may be that of the
    // copy.
    let own = process_tree::anonymous(std::process::id());
    let peak = if own.is_none_or(|own| own >= peak) { 0 } else { peak };
    let _ = line.write_all(format!("empty {cpu} {peak}\n").as_bytes());
}

/// Kills until nothing is left below this process: a program may start others while it is being killed. If something
/// is left, returns those of another user, or none if a process could not be killed for another reason.
fn kill_all(is_empty: &AtomicBool) -> Option<Vec<u32>> {
    let mut refusals = 0;
    for _ in 0..ROUNDS {
        let refused = send(Signal::KILL);
        if is_empty.load(Ordering::Acquire) {
            return None;
        }
        refusals = if refused.is_empty() { 0 } else { refusals + 1 };
        if refusals > REFUSALS {
            return Some(refused);
        }
        thread::sleep(PAUSE);
    }
    Some(Vec::new())
}

/// Sends a signal to every process below this one. Returns those that this user may not signal.
fn send(signal: Signal) -> Vec<u32> {
    let own = std::process::id();
    process_tree::send(&process_tree::below(own), own, signal)
}
