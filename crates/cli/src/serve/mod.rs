//! `plimsoll serve`: pages for browsers, JSON, and metrics for Prometheus, of many processes.
//!
//! ```text
//!          clients                                                         processes
//!             │ HTTP                                                           ▲ /proc, answers of VMs
//! ┌───────────▼────────────┐  questions: kind, style, name   ┌─────────────────┴──────────────────┐
//! │ listener               │ ───────────────────────────────▶│ reader (this process)              │
//! │ user nobody, no rights │ ◀───────────────────────────────│ requests, figures, pages `answers` │
//! │ `listener`, `confine`  │  answers         `wire`         │ rounds ─▶ board          `rounds`  │
//! └────────────────────────┘                                 └────────────────────────────────────┘
//! ```
//! The listener is open to attacks and can read nothing; the reader can read processes and is open to nobody: it closes
//! the listening socket before it starts, and checks every bit of a question. Each ends when the other does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::{Deadline, FileKind, LOOK, given};
use plimsoll_process::processes::{self, Known, Seen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sha2::{Digest, Sha256};

use crate::confine::Confined;
use crate::output::{say, shown};
use crate::sys::Signals;
use crate::{Failure, explain, record};
use answers::{Answers, End};
use board::Board;
use history::Store;
use rounds::Rounds;
use targets::Wanted;
use wire::{Hello, Kind, Question};

mod answers;
mod board;
mod history;
pub mod listener;
mod recent;
mod rounds;
mod targets;
mod wire;

/// Signals that end the server.
const STOPS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Time for the listener to give up its rights.
const START: Duration = Duration::from_secs(10);
/// Time for a reading that was begun.
const GRACE: Duration = Duration::from_secs(3);
/// A shorter token could be guessed.
const LEAST_TOKEN: usize = 16;

#[derive(clap::Args)]
pub struct Args {
    /// PIDs and names of the processes; a name serves every process that has it, also one that starts later
    #[arg(value_name = "PID|NAME", required_unless_present = "all", conflicts_with = "all")]
    targets: Vec<String>,
    /// Serve JVMs, tracked processes, and all of 64 MiB or more
    #[arg(long)]
    all: bool,
    /// Listen at this address. One that other machines can reach needs --token-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464", value_parser = address)]
    listen: SocketAddr,
    /// Answer only requests with the token in this file, 16 characters or more: as Bearer token, or as password
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Read the processes this often while nobody asks (15s, 1m)
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = interval)]
    interval: Duration,
    /// Record the processes into this directory, one folder each, and draw the curves of the pages from it
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Delete recordings that are older
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = keep, requires = "history")]
    keep: Duration,
    /// Delete the oldest recordings when all together are bigger
    #[arg(long, value_name = "BYTES", default_value = "200m", value_parser = size, requires = "history")]
    size: Bytes,
}

fn keep(text: &str) -> Result<Duration, String> {
    let keep = record::time(text)?;
    if keep < Duration::from_secs(60) { Err("recordings are kept for at least 1m".into()) } else { Ok(keep) }
}

fn size(text: &str) -> Result<Bytes, String> {
    let size = explain::bytes(text)?;
    if size < Bytes(1 << 20) { Err("the budget must be at least 1m".into()) } else { Ok(size) }
}

/// `127.0.0.1:9464`, `[::1]:9464`, `localhost:9464`, `9464`.
fn address(text: &str) -> Result<SocketAddr, String> {
    let local = |port: &str| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?));
    let known = text.parse().ok().or_else(|| local(text)).or_else(|| local(text.strip_prefix("localhost:")?));
    known.ok_or_else(|| "expected an address and a port such as 127.0.0.1:9464 or [::1]:9464".into())
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = record::interval(text)?;
    if interval < Duration::from_secs(1) { Err("an interval must be at least 1s".into()) } else { Ok(interval) }
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let is_loopback = args.listen.ip().is_loopback();
    if !is_loopback && args.token_file.is_none() {
        let listen = args.listen;
        return Err(format!("other machines can reach {listen}: add --token-file FILE, or listen at 127.0.0.1").into());
    }
    let token = args.token_file.as_deref().map(token).transpose()?;
    let history =
        args.history.as_deref().map(|path| Store::open(path, args.keep, args.size)).transpose()?.map(Arc::new);
    let wanted = wanted(&args)?;
    let listening = TcpListener::bind(args.listen).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen at {}: another program does. Choose another port: --listen 127.0.0.1:0", args.listen)
        }
        _ => format!("cannot listen at {}: {error}", args.listen),
    })?;
    let cant = |error: io::Error| Failure(format!("cannot start to listen: {error}"));
    listening.set_nonblocking(true).map_err(cant)?;
    let address = listening.local_addr().map_err(cant)?;
    let signals = Signals::of(Some(&STOPS)).map_err(cant)?;
    let has_token = token.is_some();
    let mut server = Server::start(listening, &Hello { is_loopback, token })?;
    introduce(address, has_token, &server);

    let own = [std::process::id(), server.child.id()];
    let board = Arc::new(Board::new(args.interval));
    let rounds = Rounds::new(wanted, args.interval, own.to_vec(), board.clone(), history.clone());
    let reading = thread::Builder::new().name("rounds".into()).spawn(|| rounds.run()).map_err(cant)?;
    let pipe = server.pipe.try_clone().map_err(cant)?;
    let writer = Mutex::new(server.pipe.try_clone().map_err(cant)?);
    let answers = Arc::new(Answers { board: board.clone(), writer, own, history });
    let is_broken = Arc::new(AtomicBool::new(false));
    let theirs = is_broken.clone();
    let answer = move || {
        if !matches!(answers::serve(&answers, pipe), Ok(End::Closed)) {
            theirs.store(true, Ordering::SeqCst);
        }
        // The listener ends with its pipe, and the program with the listener.
        if let Ok(pipe) = answers.writer.try_lock() {
            let _ = pipe.shutdown(std::net::Shutdown::Both);
        }
    };
    thread::Builder::new().name("requests".into()).spawn(answer).map_err(cant)?;

    let end = server.wait(&signals);
    board.stop();
    if end.is_none() {
        server.end();
        // The thread may be inside a reading that the target's owner delays.
        let began = std::time::Instant::now();
        while !reading.is_finished() && began.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(5));
        }
        return Ok(ExitCode::SUCCESS);
    }
    match end {
        Some(_) if is_broken.load(Ordering::SeqCst) => {
            Err("the listening process sent what is no request: plimsoll serve ends".into())
        }
        Some(status) => Err(format!("the listening process {}: plimsoll serve ends", how(status)).into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("ended with status {}", code.unwrap_or(0)),
    }
}

/// A PID means the process that has it now; a later process with that PID is another one.
fn wanted(args: &Args) -> Result<Wanted, Failure> {
    if args.all {
        return Ok(Wanted::All);
    }
    let listed = processes::list(&mut Known::default(), Deadline::after(LOOK));
    let (mut identities, mut names) = (Vec::new(), Vec::new());
    for word in &args.targets {
        match word.parse::<u32>() {
            Ok(pid) => {
                let of = listed.iter().find(|of| of.identity.pid == pid);
                identities.push(of.ok_or_else(|| Seen::now().absent(pid))?.identity);
            }
            Err(_) => {
                let word = word.clone();
                if !listed.iter().any(|of| crate::named::names(of).contains(&word)) {
                    say(format_args!(
                        "no process is named '{}' yet: it is served when it starts",
                        plimsoll_report::words::printable(&word)
                    ));
                }
                names.push(word);
            }
        }
    }
    Ok(Wanted::These { identities, names })
}

/// The digest of the token: the listener needs no more.
fn token(file: &Path) -> Result<[u8; 32], Failure> {
    let failed = |why: String| Failure(format!("cannot use the token in {}: {why}", shown(file)));
    let bytes = given(file, FileKind::Text, Deadline::after(LOOK)).map_err(|why| failed(why.to_string()))?;
    let token = bytes.trim_ascii();
    if token.len() < LEAST_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
        return Err(failed(format!(
            "it must be {LEAST_TOKEN} visible characters or more. Make one: head -c 24 /dev/urandom | base64"
        )));
    }
    Ok(Sha256::digest(token).into())
}

fn introduce(address: SocketAddr, has_token: bool, server: &Server) {
    let held = server.confined;
    let user = match (held.is_nobody, held.is_root) {
        (true, _) => "user nobody",
        (_, true) => "root without capabilities",
        _ => "your user",
    };
    let by = |is_on: bool, name: &str| if is_on { format!(", {name}") } else { format!(", no {name} here") };
    say(format_args!(
        "listening at http://{address}/ (process {}: {user}{}{})",
        server.child.id(),
        by(held.landlock, "Landlock"),
        by(held.seccomp, "seccomp")
    ));
    if !address.ip().is_loopback() {
        say(
            "other machines can ask, with the token. Nothing is encrypted: use a proxy with TLS outside a trusted network",
        );
    } else if !has_token {
        say("every user of this machine can ask; with --token-file FILE only those who know the token");
    }
}

/// The listener, and our end of its pipe.
struct Server {
    child: Child,
    pidfd: OwnedFd,
    pipe: UnixStream,
    confined: Confined,
}

impl Server {
    /// Starts the listener and waits until it has given up its rights. The listening socket stays with it alone.
    fn start(listening: TcpListener, hello: &Hello) -> Result<Server, Failure> {
        let cant = |error: io::Error| Failure(format!("cannot start the listening process: {error}"));
        let (mut pipe, theirs) = UnixStream::pair().map_err(cant)?;
        let child = Command::new("/proc/self/exe")
            .arg0(listener::NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(listening)))
            // Ctrl-C on the terminal is for this process.
            .process_group(0)
            .spawn()
            .map_err(cant)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pidfd =
            pid.ok_or(io::ErrorKind::InvalidData.into()).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
        let pidfd = pidfd.map_err(cant)?;
        let mut server = Server { child, pidfd, pipe: pipe.try_clone().map_err(cant)?, confined: Confined::default() };
        let mut ready = [0; wire::REQUEST];
        pipe.set_read_timeout(Some(START)).map_err(cant)?;
        let answered = pipe.write_all(&hello.encode()).and_then(|()| pipe.read_exact(&mut ready));
        pipe.set_read_timeout(None).map_err(cant)?;
        let confined = match answered.ok().and_then(|()| Question::decode(&ready)) {
            Some((_, question)) if question.kind == Kind::Ready => Confined::of_bits(question.style),
            _ => {
                let end = server.end();
                return Err(match end.code() {
                    // It has printed the reason.
                    Some(2) => "the listening process did not start".into(),
                    _ => format!("the listening process {}", how(end)).into(),
                });
            }
        };
        // A process of the user's own, or of root, could read others.
        if !confined.seccomp && !confined.is_nobody {
            server.end();
            return Err("the kernel gives no way to take rights from the listening process: it has no seccomp".into());
        }
        server.confined = confined;
        Ok(server)
    }

    /// Waits for a signal (None), or for the end of the listener.
    fn wait(&mut self, signals: &Signals) -> Option<ExitStatus> {
        loop {
            let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
            let _ = poll(&mut fds, None::<&Timespec>);
            if signals.next().is_some() {
                return None;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
        }
    }

    fn end(&mut self) -> ExitStatus {
        let _ = self.child.kill();
        self.child.wait().unwrap_or_default()
    }
}

/// For what leaves `run` early: no listener outlives the reader.
impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.end();
        }
    }
}
