//! Speaks to a VM: finds its hsperfdata, wakes its attach listener, asks diagnostic commands.
//!
//! The handshake (src/hotspot/os/posix/attachListener_posix.cpp): a file `.attach_pidN` in the target's directory or its
//! /tmp, then SIGQUIT; the VM's signal dispatcher sees the file, starts its listener and makes /tmp/.java_pidN. N is the
//! PID in the target's own namespace; both paths are reached through /proc/PID, whatever its mounts are. SIGQUIT kills a
//! process that doesn't catch it, so it is sent only to one that has libjvm.so mapped and SIGQUIT caught, and that has not
//! been told to ignore such requests; and through a pidfd, so that it can't reach a reused PID.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::attach::{self, BAD_VERSION, Reply, Version};
use super::peer;
use super::perfdata::PerfData;
use crate::snapshot::Vma;
use crate::source::proc::Target;

/// How long the VM may take to open its socket, and to answer one command. A safepoint may be seconds away in a VM that
/// thrashes; then a gap is the better answer.
const HANDSHAKE: Duration = Duration::from_millis(1500);
const COMMAND: Duration = Duration::from_secs(5);
/// No answer of a sane VM is longer: NMT detail has 0.6 MB.
const LONGEST_ANSWER: u64 = 256 << 20;
const LARGEST_PERFDATA: u64 = 16 << 20;

/// Why the VM can't be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mute {
    /// SIGSTOP or a tracer: it would answer only once it runs on.
    Stopped,
    /// -XX:+DisableAttachMechanism
    Disabled,
    /// It doesn't catch SIGQUIT (-Xrs, or it is just starting): sending one would end it.
    SignalNotCaught,
    Silent(Duration),
    /// The socket of its name is another process's (0: one that can't be seen from here).
    Elsewhere(u32),
    Failed(String),
}

/// The sentence for a VM that can't be asked, and what to do about it.
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
                write!(f, "its attach socket's place is taken: /tmp is shared, and the socket there is {whose}")
            }
            Mute::Failed(why) => write!(f, "{why}"),
        }
    }
}

pub fn perfdata(target: &Target, vmas: &[Vma]) -> Option<PerfData> {
    // Where VMs share a /tmp, another one's file may have taken the place of a deleted one.
    let own = vmas.iter().filter(|vma| !vma.deleted);
    let path = own.map(|vma| vma.name.as_str()).find(|name| name.contains("/hsperfdata_"))?;
    let mut bytes = Vec::new();
    File::open(target.path(path)).ok()?.take(LARGEST_PERFDATA).read_to_end(&mut bytes).ok()?;
    PerfData::parse(&bytes)
}

/// What of /proc/PID/status the handshake depends on.
struct Status {
    namespaced_pid: u32,
    stopped: bool,
    quit_caught: bool,
    effective_uid: u32,
    effective_gid: u32,
}

fn status(target: &Target) -> io::Result<Status> {
    let text = String::from_utf8_lossy(&target.read("status")?).into_owned();
    let field = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim().to_string();
    let nth = |key: &str, n: usize| field(key).split_whitespace().nth(n).and_then(|word| word.parse::<u32>().ok());
    let caught = u64::from_str_radix(&field("SigCgt:"), 16).unwrap_or(0);
    Ok(Status {
        namespaced_pid: field("NSpid:")
            .split_whitespace()
            .last()
            .and_then(|pid| pid.parse().ok())
            .unwrap_or(target.pid()),
        stopped: field("State:").starts_with(['T', 't']),
        quit_caught: caught & (1 << (Signal::QUIT.as_raw() - 1)) != 0,
        effective_uid: nth("Uid:", 1).unwrap_or(0),
        effective_gid: nth("Gid:", 1).unwrap_or(0),
    })
}

/// The user that the VM takes commands from, besides root.
pub fn owner(target: &Target) -> Option<u32> {
    status(target).ok().map(|status| status.effective_uid)
}

/// A VM whose attach listener is up.
pub struct Vm {
    pid: u32,
    socket: PathBuf,
    /// Known once it was asked for.
    version: Option<Version>,
    /// Set once the VM hung up on this process's own user: the target's, to be taken on for the connection.
    identity: Option<(u32, u32)>,
    owner: (u32, u32),
    patience: Patience,
}

/// How long to wait for the handshake, and for each answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub handshake: Duration,
    pub command: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { handshake: HANDSHAKE, command: COMMAND }
    }
}

impl Vm {
    pub fn open(target: &Target, perfdata: Option<&PerfData>, patience: Patience) -> Result<Vm, Mute> {
        let status = status(target).map_err(|error| Mute::Failed(error.to_string()))?;
        if status.stopped {
            return Err(Mute::Stopped);
        }
        let socket = target.path(&format!("/tmp/.java_pid{}", status.namespaced_pid));
        let owner = (status.effective_uid, status.effective_gid);
        let vm = Vm { pid: target.pid(), socket, version: None, identity: None, owner, patience };
        // Woken, the VM would make the socket anew in the other's place, who could never be asked again.
        if let Some(stranger) = connect(&vm.socket).ok().and_then(|stream| stranger(&stream, vm.pid)) {
            return Err(Mute::Elsewhere(stranger));
        }
        if !vm.listens() {
            vm.wake(target, &status, perfdata)?;
        }
        Ok(vm)
    }

    fn listens(&self) -> bool {
        let answers = || match connect(&self.socket) {
            // Others are waiting for their turn.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            Ok(stream) => stranger(&stream, self.pid).is_none(),
        };
        fs::metadata(&self.socket).is_ok_and(|file| file.file_type().is_socket()) && answers()
    }

    /// What a VM of the same number left in /tmp. Where that is sticky, another user's VM can't put its own in the place, and never
    /// answers: so who may takes it away. The reason for its silence, if that couldn't be done.
    fn dead_socket(&self, status: &Status) -> Option<Mute> {
        use std::os::unix::fs::MetadataExt;
        let file = fs::symlink_metadata(&self.socket).ok()?;
        let is_dead = || connect(&self.socket).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if !file.file_type().is_socket() || file.uid() == status.effective_uid || !is_dead() {
            return None;
        }
        let removed = fs::remove_file(&self.socket);
        let inside = format!("/tmp/.java_pid{}", status.namespaced_pid);
        removed.err().map(|error| {
            Mute::Failed(format!(
                "{inside} is another user's, left from a VM that is dead, and stays in the way: {error}"
            ))
        })
    }

    fn wake(&self, target: &Target, status: &Status, perfdata: Option<&PerfData>) -> Result<(), Mute> {
        let told_not_to =
            perfdata.and_then(PerfData::attachable).map_or_else(|| disabled_by_arguments(target), |yes| !yes);
        if told_not_to {
            return Err(Mute::Disabled);
        }
        let failed = |what: &'static str| move |error: io::Error| Mute::Failed(format!("{what}: {error}"));
        let pidfd = Pid::from_raw(target.pid() as i32)
            .ok_or(io::Error::from(io::ErrorKind::InvalidInput))
            .and_then(|pid| Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
            .map_err(failed("pidfd_open"))?;
        // Read through the handle on the process once more, after the pidfd was opened: both mean the same process.
        match self::status(target) {
            Ok(now) if now.stopped => return Err(Mute::Stopped),
            Ok(now) if now.quit_caught => {}
            _ => return Err(Mute::SignalNotCaught),
        }
        let request = Request::make(target, status).map_err(failed("the attach request file can't be made"))?;
        // A SIGQUIT that finds the listener up has the VM print all its threads. So only who made the file sends one, after a
        // last look, as the file goes only when the listener is up; unless it is a dead command's and nothing comes of it.
        let began = Instant::now();
        while request.path.is_none() && began.elapsed() < self.patience.handshake / 3 && !self.listens() {
            thread::sleep(Duration::from_millis(2));
        }
        if self.listens() {
            return Ok(());
        }
        let dead = self.dead_socket(status);
        rustix::process::pidfd_send_signal(&pidfd, Signal::QUIT).map_err(|e| failed("SIGQUIT")(e.into()))?;
        let mut pause = Duration::from_micros(500);
        while !self.listens() {
            // An exec takes the handlers away: there is no VM any more.
            let Some(now) = self::status(target).ok().filter(|now| now.quit_caught) else {
                return Err(Mute::SignalNotCaught);
            };
            if began.elapsed() > self.patience.handshake {
                // It was stopped meanwhile, or the signal reached its threads only after the first look.
                let silent = if now.stopped { Mute::Stopped } else { Mute::Silent(self.patience.handshake) };
                return Err(dead.unwrap_or(silent));
            }
            thread::sleep(pause);
            pause = (pause * 3 / 2).min(Duration::from_millis(20));
        }
        drop(request);
        Ok(())
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// One diagnostic command. The answer's text, or why there is none.
    pub fn ask(&mut self, command: &str) -> Result<String, String> {
        self.command(&["jcmd", command], command)
    }

    /// Has the VM load an agent, and answers what its Agent_OnAttach returned. The error is the VM's.
    pub fn load_agent(&mut self, library: &str, options: &str) -> Result<i32, String> {
        let text = self.command(&["load", library, "true", options], "load")?;
        attach::return_code(&text).ok_or_else(|| text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn command(&mut self, words: &[&str], command: &str) -> Result<String, String> {
        let began = Instant::now();
        let version = match self.version {
            Some(version) => version,
            None => match self.reply(&attach::request(Version::One, &attach::GET_VERSION), began)? {
                Reply::Text(text) => attach::version(&text),
                Reply::Failed { code: BAD_VERSION, .. } => Version::Two,
                Reply::Failed { .. } | Reply::Refused => Version::One,
            },
        };
        self.version = Some(version);
        match self.reply(&attach::request(version, words), began)? {
            Reply::Text(text) => Ok(text),
            Reply::Failed { code, text } => {
                Err(format!("{command} failed with {code}: {}", text.lines().next().unwrap_or("")))
            }
            Reply::Refused => Err(format!("the VM hung up on {command}")),
        }
    }

    /// Once more as the VM's own user, where it takes no commands from ours.
    fn reply(&mut self, request: &[u8], began: Instant) -> Result<Reply, String> {
        let reply = attach::reply(&self.exchange(request, began)?);
        if reply != Reply::Refused || self.identity.is_some() || self.owner == own_identity() {
            return Ok(reply);
        }
        self.identity = Some(self.owner);
        Ok(attach::reply(&self.exchange(request, began)?))
    }

    fn exchange(&self, request: &[u8], began: Instant) -> Result<Vec<u8>, String> {
        let socket = self.socket.clone();
        let stream = loop {
            let stream = match self.identity {
                None => connect(&socket),
                Some(identity) => connect_as(&socket, identity),
            };
            let is_full = stream.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if !is_full || began.elapsed() > self.patience.command {
                break stream;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mut stream = stream.map_err(|error| format!("the attach socket can't be reached: {error}"))?;
        if let Some(other) = stranger(&stream, self.pid) {
            return Err(Mute::Elsewhere(other).to_string());
        }
        let mut bytes = Vec::new();
        let spoken = (|| {
            stream.set_write_timeout(Some(self.patience.command))?;
            stream.write_all(request)?;
            let mut buffer = vec![0; 64 << 10];
            loop {
                let left = self.patience.command.saturating_sub(began.elapsed());
                if left.is_zero() || bytes.len() as u64 > LONGEST_ANSWER {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                stream.set_read_timeout(Some(left))?;
                match stream.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        })();
        match spoken {
            Ok(()) => Ok(bytes),
            // A VM that refuses a user closes at once, and the write or the read meets a reset.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Ok(bytes)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(format!("no answer within {} s", self.patience.command.as_secs()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn own_identity() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Without waiting: a stopped VM's listener accepts nobody, and a full backlog would block a plain connect.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Who listens there, if it isn't `pid`: containers that share a /tmp have each a process 1. Not to be told where /proc is another PID
/// namespace's.
fn stranger(stream: &UnixStream, pid: u32) -> Option<u32> {
    let listener = peer::listener(stream.as_fd()).filter(|listener| *listener != pid)?;
    let own = fs::read_link("/proc/self").ok()?;
    (own.to_str() == Some(&std::process::id().to_string())).then_some(listener)
}

/// As another user, which only root can: a VM in a user namespace sees our root as nobody (SO_PEERCRED is translated).
/// The system calls change the calling thread only, so it happens on one that ends right after.
fn connect_as(path: &Path, (uid, gid): (u32, u32)) -> io::Result<UnixStream> {
    let directory = File::open(path.parent().unwrap_or(path))?;
    let name = path.file_name().unwrap_or_default().to_os_string();
    let connected = thread::spawn(move || {
        let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        // /proc/PID/root is closed to the new user; the open directory isn't, through this thread's own descriptors.
        let directory = directory.as_fd();
        let inside =
            PathBuf::from(format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory))).join(name);
        connect(&inside)
    });
    connected.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// The request file, removed again when the handshake is over.
struct Request {
    path: Option<PathBuf>,
}

impl Request {
    fn make(target: &Target, status: &Status) -> io::Result<Request> {
        let name = format!(".attach_pid{}", status.namespaced_pid);
        let directory = PathBuf::from(format!("/proc/{}/cwd", target.pid())).join(&name);
        let mut refused = None;
        for path in [directory, target.path(&format!("/tmp/{name}"))] {
            match OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(NOFOLLOW).open(&path) {
                Ok(file) => {
                    // The VM takes the file only from its own user or root; root in another namespace is neither.
                    let _ = std::os::unix::fs::fchown(&file, Some(status.effective_uid), Some(status.effective_gid));
                    return Ok(Request { path: Some(path) });
                }
                // Somebody else attaches at this moment: their file serves as well, and is theirs to remove.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Request { path: None }),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or(io::ErrorKind::PermissionDenied.into()))
    }
}

const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// For a VM without hsperfdata: what its arguments say. An argument file or JAVA_TOOL_OPTIONS may say it as well.
fn disabled_by_arguments(target: &Target) -> bool {
    const FLAG: &[u8] = b"+DisableAttachMechanism";
    ["cmdline", "environ"]
        .iter()
        .filter_map(|name| target.read(name).ok())
        .any(|text| text.windows(FLAG.len()).any(|window| window == FLAG))
}
