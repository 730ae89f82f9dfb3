//! Talks to a VM: finds its hsperfdata, starts its attach listener, sends diagnostic commands.
//!
//! The handshake (src/hotspot/os/posix/attachListener_posix.cpp): a file `.attach_pidN` in /tmp or the target's
//! directory, then SIGQUIT. The VM's signal dispatcher sees the file, starts its listener and creates /tmp/.java_pidN.
//! N is the PID in the target's own namespace. SIGQUIT kills a process that doesn't catch it. So it is sent only to a
//! process that is a HotSpot VM or a native image that answers, catches SIGQUIT and doesn't ignore such requests. It is
//! sent through a pidfd, so that it can't reach another process that reuses the PID.
//!
//! A child process makes the file, looks for the socket and opens the connections. The child has the target's user and
//! the target's root (`foreign::as_target`). A VM accepts commands from its own user, also from inside a user
//! namespace, where our root is nobody. So no file name that this user chooses can make us write to, or connect to,
//! what only root may access. /tmp comes first, because the target's directory may be anywhere; the VM looks in both.
//! The child removes the file when it ends, also if we are killed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::attach::{self, BAD_VERSION, Reply, Version};
use super::peer;
use super::perfdata::{ClassCounts, PerfData};
use plimsoll_facts::snapshot::Vma;
use plimsoll_process::foreign::as_target::{AsTarget, Refused, User};
use plimsoll_process::foreign::{Deadline, FileKind};
use plimsoll_process::proc::Target;

/// Time limits for the VM to open its socket, to answer one command, and to answer all of them. In a VM that thrashes,
/// a safepoint may be seconds away; then a gap is the better answer.
const HANDSHAKE: Duration = Duration::from_millis(1500);
const COMMAND: Duration = Duration::from_secs(5);
const COMMANDS: Duration = Duration::from_secs(10);
/// No normal answer is longer: NMT detail has 0.6 MB, the stacks of 5,000 threads have 30 MB.
const LONGEST_ANSWER: usize = 32 << 20;
const MOST_LINES: usize = 1 << 19;

/// Why the VM can't be queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mute {
    /// Stopped by SIGSTOP or a tracer: it would answer only after it continues.
    Stopped,
    /// -XX:+DisableAttachMechanism
    Disabled,
    /// It doesn't catch SIGQUIT (-Xrs, or it is just starting), so the signal would end it.
    SignalNotCaught,
    Silent(Duration),
    /// The socket with its name belongs to another process (0: one that isn't visible from here).
    Elsewhere(u32),
    /// The file with the socket's name belongs to another user: its path as the target sees it, and the user.
    Occupied(String, u64),
    /// The time limit passed before the command was sent.
    Late,
    /// No file can be made in its /tmp. The VM would make its socket there, so nobody can query it.
    NoTmp(String),
    /// Our rights are insufficient.
    NotAllowed(String),
    Failed(String),
}

impl Mute {
    /// The request is made with the rights of the VM's user. What that user may not do, the VM may not either.
    pub(super) fn of_tmp(what: &str, error: &io::Error) -> Mute {
        use io::ErrorKind::{
            NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
        };
        let why = format!("{what}: {error}");
        match error.kind() {
            NotFound | NotADirectory | PermissionDenied | ReadOnlyFilesystem | StorageFull | QuotaExceeded => {
                Mute::NoTmp(why)
            }
            _ => Mute::Failed(why),
        }
    }
}

/// Why the VM can't be queried, and what to do about it.
impl std::fmt::Display for Mute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mute::Stopped => write!(f, "it is stopped: it answers once it is continued (kill -CONT)"),
            Mute::Disabled => write!(f, "it was started with -XX:+DisableAttachMechanism"),
            Mute::SignalNotCaught => write!(f, "it doesn't catch SIGQUIT (-Xrs, or it is just starting)"),
            Mute::Silent(after) => {
                write!(f, "it didn't answer within {:.1} s: it hangs, or waits for a safepoint", after.as_secs_f64())
            }
            Mute::Elsewhere(listener) => {
                let whose = match listener {
                    0 => "a process's in another container".to_owned(),
                    pid => format!("process {pid}'s"),
                };
                write!(
                    f,
                    "another VM's file has the name of its attach socket: /tmp is shared, and the socket there is {whose}"
                )
            }
            Mute::Occupied(path, uid) => write!(
                f,
                "{path}, the name of its attach socket, belongs to user {uid}; if a dead VM left it, remove it"
            ),
            Mute::Late => write!(f, "the time limit of the command was reached"),
            Mute::NoTmp(why) | Mute::NotAllowed(why) | Mute::Failed(why) => write!(f, "{why}"),
        }
    }
}

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedCommand {
    /// The VM doesn't know this command: it is too old, or an image was built without the command.
    NoCommand(String),
    Failed(String),
}

impl std::fmt::Display for RefusedCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RefusedCommand::NoCommand(name) => write!(f, "this version of the VM has no command {name}"),
            RefusedCommand::Failed(why) => write!(f, "{why}"),
        }
    }
}

impl From<RefusedCommand> for String {
    fn from(refusal: RefusedCommand) -> String {
        refusal.to_string()
    }
}

impl From<String> for RefusedCommand {
    fn from(why: String) -> RefusedCommand {
        RefusedCommand::Failed(why)
    }
}

/// The text of the answer to a command, or why there is none.
fn text_of(reply: Reply, words: &[&str], command: &str) -> Result<String, RefusedCommand> {
    match reply {
        Reply::Text(text) => Ok(text),
        // HotSpot's exception, and that of native images.
        Reply::Failed { text, .. } if text.contains("Unknown diagnostic command") => {
            let name = words.last().unwrap_or(&command).split(' ').next().unwrap_or_default();
            Err(RefusedCommand::NoCommand(name.to_owned()))
        }
        Reply::Failed { code, text } => {
            Err(format!("{command} failed with {code}: {}", text.lines().next().unwrap_or("")).into())
        }
        Reply::Refused => Err(format!("the VM closed the connection during {command}").into()),
    }
}

/// The VM's counters. None: it has no such file. The error names the file and the reason.
pub fn perfdata(target: &Target, vmas: &[Vma]) -> Result<Option<PerfData>, String> {
    // If VMs share a /tmp, another VM's file may have replaced a deleted one.
    let mut own = vmas.iter().filter(|vma| !vma.deleted);
    let Some(counters) = own.find(|vma| vma.name.contains("/hsperfdata_")) else { return Ok(None) };
    let read = target.mapped(counters, FileKind::Counters).and_then(|file| file.read());
    Ok(PerfData::parse(&read.map_err(|why| format!("{} {why}", counters.name))?))
}

/// The VM's counts of classes. None: it has no such file, or it can't be read.
pub(crate) fn class_counts(target: &Target, vmas: &[Vma]) -> Option<ClassCounts> {
    perfdata(target, vmas).ok().flatten()?.class_counts()
}

/// The fields of /proc/PID/status that the handshake needs.
struct Status {
    namespaced_pid: u32,
    stopped: bool,
    quit_caught: bool,
}

fn status(target: &Target) -> io::Result<Status> {
    let text = String::from_utf8_lossy(&target.read("status")?).into_owned();
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim().to_string();
    let caught = u64::from_str_radix(&field("SigCgt:"), 16).unwrap_or(0);
    Ok(Status {
        namespaced_pid: field("NSpid:")
            .split_whitespace()
            .last()
            .and_then(|pid| pid.parse().ok())
            .unwrap_or(target.pid()),
        stopped: field("State:").starts_with(['T', 't']),
        quit_caught: caught & (1 << (Signal::QUIT.as_raw() - 1)) != 0,
    })
}

/// The user and the group, besides root, from whom the VM accepts commands.
pub(crate) fn owner(target: &Target) -> Option<(u32, u32)> {
    User::of(target).ok().map(|user| (user.uid, user.gid))
}

/// A VM whose attach listener is running.
pub struct Vm {
    pid: u32,
    /// The child process: it has the VM's user, and its directory is the VM's /tmp.
    child: AsTarget,
    /// The socket's name in that directory.
    socket: String,
    /// Known after the first query.
    version: Option<Version>,
    patience: Patience,
    /// The target's deadline, which all waits share.
    deadline: Deadline,
    /// Time left for all commands.
    left: Duration,
}

/// Maximum time for the handshake, for each answer, and for all answers. The target's deadline may be earlier.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub handshake: Duration,
    pub command: Duration,
    pub commands: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { handshake: HANDSHAKE, command: COMMAND, commands: COMMANDS }
    }
}

/// The wait for one command.
#[derive(Clone, Copy)]
struct Wait {
    until: Instant,
    /// The limit when the wait began.
    limit: Duration,
}

/// Extra time beyond the wait's limit, for the child's own answers.
const MARGIN: Duration = Duration::from_secs(1);
const TMP: &str = "/tmp";

impl Vm {
    pub fn open(target: &Target, perfdata: Option<&PerfData>, patience: Patience) -> Result<Vm, Mute> {
        let deadline = target.deadline();
        if deadline.has_passed() {
            return Err(Mute::Late);
        }
        let status = status(target).map_err(|error| Mute::Failed(error.to_string()))?;
        if status.stopped {
            return Err(Mute::Stopped);
        }
        let child = AsTarget::start(target, patience.handshake + MARGIN);
        let mut child = child.map_err(|refused| match refused {
            Refused::NotAllowed(..) => Mute::NotAllowed(refused.to_string()),
            _ => Mute::Failed(refused.to_string()),
        })?;
        child.enter(Path::new(TMP)).map_err(|error| Mute::of_tmp("it has no /tmp that can be entered", &error))?;
        let socket = format!(".java_pid{}", status.namespaced_pid);
        let (pid, left) = (target.pid(), patience.commands);
        let mut vm = Vm { pid, child, socket, version: None, patience, deadline, left };
        // If woken, this VM would replace the other VM's socket, and the other VM could never be queried again.
        if let Some(stranger) = vm.connect().ok().and_then(|stream| stranger(&stream, vm.pid)) {
            return Err(Mute::Elsewhere(stranger));
        }
        let owner = vm.child.stat(&vm.socket).ok().map(|facts| facts.uid);
        if let Some(other) = owner.filter(|owner| *owner != u64::from(vm.child.user().uid)) {
            return Err(Mute::Occupied(format!("{TMP}/{}", vm.socket), other));
        }
        if !vm.listens() {
            vm.wake(target, &status, perfdata)?;
        }
        Ok(vm)
    }

    /// Doesn't block: a stopped VM accepts no connection, and with a full backlog a plain connect would wait.
    fn connect(&mut self) -> io::Result<UnixStream> {
        self.child.connect(&self.socket)
    }

    fn listens(&mut self) -> bool {
        match self.connect() {
            // WouldBlock: other clients are waiting, so somebody listens.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(stream) => stranger(&stream, self.pid).is_none(),
        }
    }

    fn wake(&mut self, target: &Target, status: &Status, perfdata: Option<&PerfData>) -> Result<(), Mute> {
        let is_forbidden =
            perfdata.and_then(PerfData::attachable).map_or_else(|| disabled_by_arguments(target), |yes| !yes);
        if is_forbidden {
            return Err(Mute::Disabled);
        }
        let failed = |what: &'static str| move |error: io::Error| Mute::Failed(format!("{what}: {error}"));
        let pidfd = Pid::from_raw(target.pid() as i32)
            .ok_or(io::Error::from(io::ErrorKind::InvalidInput))
            .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
            .map_err(failed("pidfd_open"))?;
        // Read once more, now that the pidfd is open: both refer to the same process.
        match self::status(target) {
            Ok(now) if now.stopped => return Err(Mute::Stopped),
            Ok(now) if now.quit_caught => {}
            _ => return Err(Mute::SignalNotCaught),
        }
        self.child.outlive(&self.socket).map_err(failed("the attach socket can't be waited for"))?;
        let is_ours =
            self.request(status).map_err(|error| Mute::of_tmp("the attach request file can't be made", &error))?;
        let woken = self.woken(target, status, &pidfd, is_ours);
        // There is nothing to discard unless the file is ours.
        let _ = self.child.discard();
        woken
    }

    fn woken(&mut self, target: &Target, status: &Status, pidfd: &impl AsFd, is_ours: bool) -> Result<(), Mute> {
        // A SIGQUIT that reaches a running listener makes the VM print all its threads. So only the process that made
        // the file sends one, after a last check: the file disappears only when the listener runs. The exception is the
        // file of a dead command, which nobody removes.
        let began = Instant::now();
        let until = self.deadline.sooner(self.patience.handshake);
        let others = self.deadline.sooner(self.patience.handshake / 3);
        while !is_ours && !others.has_passed() && !self.listens() {
            thread::sleep(Duration::from_millis(2));
        }
        if self.listens() {
            return Ok(());
        }
        if !is_ours {
            // The other command may have removed its file meanwhile.
            self.request(status).map_err(|error| Mute::of_tmp("the attach request file can't be made", &error))?;
        }
        rustix::process::pidfd_send_signal(pidfd, Signal::QUIT).map_err(|errno| match errno {
            Errno::PERM => {
                Mute::NotAllowed("CAP_KILL is missing for the SIGQUIT that starts its attach listener".into())
            }
            _ => Mute::Failed(format!("SIGQUIT: {errno}")),
        })?;
        let mut pause = Duration::from_micros(500);
        while !self.listens() {
            // exec removes the handlers: the process is no longer a VM.
            let Some(now) = self::status(target).ok().filter(|now| now.quit_caught) else {
                return Err(Mute::SignalNotCaught);
            };
            if until.has_passed() {
                // The process was stopped meanwhile, or the signal reached its threads only after the first check.
                return Err(if now.stopped { Mute::Stopped } else { Mute::Silent(began.elapsed()) });
            }
            thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Makes the request file as the VM's user, if that user may. False: another process attaches at this moment; its
    /// file also serves, and it removes the file.
    fn request(&mut self, status: &Status) -> io::Result<bool> {
        let name = format!(".attach_pid{}", status.namespaced_pid);
        let own = u64::from(self.child.user().uid);
        let made = match self.request_here(&name, own) {
            Ok(made) => Ok(made),
            Err(refused) => self.child.enter_cwd().and_then(|_| self.request_here(&name, own)).map_err(|_| refused),
        };
        self.child.enter(Path::new(TMP))?;
        made
    }

    fn request_here(&mut self, name: &str, own: u64) -> io::Result<bool> {
        match self.child.create(name) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The VM ignores a file of another user.
                let owner = self.child.stat(name)?.uid;
                if owner == own || owner == 0 { Ok(false) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Moves the command's deadline.
    pub fn extend(&mut self, deadline: Deadline) {
        self.deadline = deadline;
        self.child.extend(deadline);
    }

    /// Sends one diagnostic command. Returns the answer's text, or why there is none.
    pub fn query(&mut self, command: &str) -> Result<String, RefusedCommand> {
        self.command(&["jcmd", command], command)
    }

    /// Makes the VM load an agent, and returns what its Agent_OnAttach returned. The error is the VM's.
    pub fn load_agent(&mut self, library: &str, options: &str) -> Result<i32, String> {
        let text = self.command(&["load", library, "true", options], "load")?;
        attach::return_code(&text).ok_or_else(|| text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn command(&mut self, words: &[&str], command: &str) -> Result<String, RefusedCommand> {
        let began = Instant::now();
        let limit = self.deadline.at_most(self.patience.command.min(self.left));
        if limit.is_zero() {
            return Err(format!("{command} was not sent: earlier answers used up the time limit").into());
        }
        self.child.allow(limit + MARGIN);
        let answer = self.answer(words, command, Wait { until: began + limit, limit });
        // A VM that didn't answer in time isn't queried again.
        let is_late = began.elapsed() >= limit;
        self.left = if is_late { Duration::ZERO } else { self.left.saturating_sub(began.elapsed()) };
        answer
    }

    fn answer(&mut self, words: &[&str], command: &str, wait: Wait) -> Result<String, RefusedCommand> {
        let version = match self.version {
            Some(version) => version,
            None => match self.reply(&attach::request(Version::One, &attach::GET_VERSION), wait)? {
                Reply::Text(text) => attach::version(&text),
                Reply::Failed { code: BAD_VERSION, .. } => Version::Two,
                Reply::Failed { .. } | Reply::Refused => Version::One,
            },
        };
        self.version = Some(version);
        text_of(self.reply(&attach::request(version, words), wait)?, words, command)
    }

    fn reply(&mut self, request: &[u8], wait: Wait) -> Result<Reply, String> {
        Ok(attach::reply(&self.exchange(request, wait)?))
    }

    fn exchange(&mut self, request: &[u8], Wait { until, limit }: Wait) -> Result<Vec<u8>, String> {
        // Rounded to a tenth, because the rest of the command's time isn't a whole number of seconds.
        let late = format!("no answer within {} s", (limit.as_secs_f64() * 10.0).round() / 10.0);
        let stream = loop {
            match self.connect() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late),
                stream => break stream,
            }
        };
        let stream = stream.map_err(|error| format!("the attach socket can't be reached: {error}"))?;
        if let Some(other) = stranger(&stream, self.pid) {
            return Err(Mute::Elsewhere(other).to_string());
        }
        match spoken(&stream, request, until) {
            Ok(bytes) => Ok(bytes),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Err(late),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Sends the request and reads until the other end closes. A VM that refuses a user closes at once, so the write or the
/// read may see a reset.
fn spoken(mut stream: &UnixStream, request: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut bytes = Vec::new();
    let mut lines = 0;
    stream.set_write_timeout(Some(left()?))?;
    let mut result = stream.write_all(request);
    let mut buffer = vec![0; 64 << 10];
    while result.is_ok() {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                let piece = buffer.get(..count).unwrap_or_default();
                lines += memchr::memchr_iter(b'\n', piece).count();
                bytes.extend_from_slice(piece);
                if bytes.len() > LONGEST_ANSWER || lines > MOST_LINES {
                    return Err(io::Error::other("its answer is too long and was not read to the end"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => result = Err(error),
        }
    }
    match result {
        Err(error) if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Err(error),
        _ => Ok(bytes),
    }
}

/// The process that listens, if it isn't `pid`: containers that share a /tmp each have a process 1. Unknown if /proc
/// belongs to another PID namespace.
fn stranger(stream: &UnixStream, pid: u32) -> Option<u32> {
    let listener = peer::listener(stream.as_fd()).filter(|listener| *listener != pid)?;
    let own = fs::read_link("/proc/self").ok()?;
    (own.to_str() == Some(&std::process::id().to_string())).then_some(listener)
}

/// For a VM without hsperfdata: looks at its arguments. An argument file or JAVA_TOOL_OPTIONS may also have the flag.
fn disabled_by_arguments(target: &Target) -> bool {
    const FLAG: &[u8] = b"+DisableAttachMechanism";
    ["cmdline", "environ"]
        .iter()
        .filter_map(|name| target.read(name).ok())
        .any(|text| text.windows(FLAG.len()).any(|window| window == FLAG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_the_vm_does_not_know_is_no_failure() {
        let of = |bytes: &[u8]| {
            let command = "VM.native_memory scale=1";
            text_of(attach::reply(bytes), &["jcmd", command], command)
        };
        let unknown = RefusedCommand::NoCommand("VM.native_memory".into());
        let of_hotspot = b"1\njava.lang.IllegalArgumentException: Unknown diagnostic command\n";
        let of_image = b"-1\njava.lang.IllegalArgumentException: Unknown diagnostic command 'VM.native_memory'";
        assert_eq!((of(of_hotspot), of(of_image)), (Err(unknown.clone()), Err(unknown.clone())));
        assert_eq!(unknown.to_string(), "this version of the VM has no command VM.native_memory");
        assert_eq!(of(b"0\nTotal"), Ok("Total".to_owned()));
        let failed = "VM.native_memory scale=1 failed with -1: java.lang.OutOfMemoryError";
        assert_eq!(of(b"-1\njava.lang.OutOfMemoryError\n"), Err(RefusedCommand::Failed(failed.to_owned())));
        assert!(matches!(of(b""), Err(RefusedCommand::Failed(why)) if why.starts_with("the VM closed the connection")));
    }
}
