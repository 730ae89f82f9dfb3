//! `plimsoll serve`: pages for browsers, JSON, and metrics for Prometheus, of many processes.
//!
//! ```text
//!          clients                                                         processes
//!             │ HTTP                                                           ▲ /proc, answers of VMs
//! ┌───────────▼────────────┐  questions: kind, style, name   ┌─────────────────┴──────────────────┐
//! │ listener               │ ───────────────────────────────▶│ reader (this process)              │
//! │ user nobody, no rights │ ◀───────────────────────────────│ requests, figures, pages `answers` │
//! │ `listener`, `confine`  │  answers         `wire`         │ rounds ─▶ board          `rounds`  │
//! └────────────────────────┘                                 └───────┬────────────────────────────┘
//!      Collector, Pyroscope                                          │ exports         `exports`, `export_wire`
//!             ▲ HTTP                                                 ▼
//!             └────────────────────────────────────────────── sender: user nobody, connects to these addresses only
//! ```
//! The listener is open to attacks and can read nothing; the reader can read processes and is open to nobody: it closes
//! the listening socket before it starts, and checks every bit of a question. The sender, which runs only where
//! something is to be sent, can read nothing and is open to nobody. Each ends when another does.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_facts::units::Bytes;
use plimsoll_process::foreign::{Deadline, FileKind, LOOK, read_argument};
use plimsoll_process::processes::{self, KnownKinds, Listing, ProcView};
use plimsoll_trial::rate::Url;
use sha2::{Digest, Sha256};

use crate::output::{print_message, shown};
use crate::sys::{self, Signals, unless_nohup};
use crate::target::without_memory;
use crate::{Failure, explain, record};
use answers::{Answers, RequestsEnd};
use board::Board;
use confined_process::ConfinedProcess;
use exports::Exports;
use history::Store;
use rounds::Rounds;
use targets::TargetSelection;
use wire::Hello;

mod answers;
mod board;
mod confined_process;
mod export_wire;
mod exports;
mod history;
pub mod listener;
mod recent;
mod rounds;
pub mod sender;
mod targets;
mod wire;

/// Signals that end the server.
const STOPS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Time for the reading thread to end after a signal.
const GRACE: Duration = Duration::from_secs(3);
/// A shorter token could be guessed.
const LEAST_TOKEN: usize = 16;

/// Age and size up to which recordings are kept.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
const SIZE: Bytes = Bytes(200 << 20);

#[derive(clap::Args)]
#[command(override_usage = "plimsoll serve [OPTIONS] <PID|NAME>...\n       plimsoll serve [OPTIONS] --all")]
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
    /// Record the processes into this directory, a subdirectory for each, and draw the curves of the pages from it
    #[arg(long, value_name = "DIR")]
    history: Option<PathBuf>,
    /// Delete recordings older than this: 24h by default. Without --history, record into
    /// $XDG_STATE_HOME/plimsoll/history, or ~/.local/state/plimsoll/history (root: /var/lib/plimsoll/history)
    #[arg(long, value_name = "TIME", value_parser = keep)]
    keep: Option<Duration>,
    /// Delete the oldest recordings when all together exceed this: 200m by default. Without --history, the directory is
    /// the same as for --keep
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<Bytes>,
    /// Send the metrics at each interval to the OpenTelemetry Collector at this address (http://127.0.0.1:4318)
    #[arg(long, value_name = "URL", value_parser = receiver)]
    otlp: Option<Url>,
    /// Send call stacks of tracked processes there too, each minute. Experimental: OpenTelemetry's profiles may change
    #[arg(long, requires = "otlp")]
    otlp_profiles: bool,
    /// Send call stacks of tracked processes each minute, as pprof, to the Pyroscope at this address
    #[arg(long, value_name = "URL", value_parser = receiver)]
    pyroscope: Option<Url>,
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
    sys::allow_open_files(record::OPEN_FILES);
    let token = args.token_file.as_deref().map(token).transpose()?;
    let records = args.history.is_some() || args.keep.is_some() || args.size.is_some();
    let history = records.then(|| {
        let path = args.history.clone().map_or_else(history::usual_directory, Ok)?;
        Store::open(&path, args.keep.unwrap_or(KEEP), args.size.unwrap_or(SIZE)).map(Arc::new)
    });
    let history = history.transpose()?;
    let selection = selection(&args)?;
    let exported =
        exports::ExportOptions { otlp: args.otlp, has_profiles: args.otlp_profiles, pyroscope: args.pyroscope };
    let listening = TcpListener::bind(args.listen).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen at {}: another program does. Choose another port: --listen 127.0.0.1:0", args.listen)
        }
        _ => format!("cannot listen at {}: {error}", args.listen),
    })?;
    let cant = |error: io::Error| Failure(format!("cannot start to listen: {error}"));
    listening.set_nonblocking(true).map_err(cant)?;
    let address = listening.local_addr().map_err(cant)?;
    let signals = Signals::of(Some(&unless_nohup(&STOPS))).map_err(cant)?;
    let has_token = token.is_some();
    let listener = ConfinedProcess::listener(listener::NAME, listening.into(), &Hello { is_loopback, token })?;
    introduce(address, has_token, &listener);
    if let Some(store) = history.as_ref().filter(|_| args.history.is_none()) {
        print_message(format_args!("recording into {}", shown(store.path())));
    }
    let failed = Arc::new(AtomicU64::new(0));
    let exports = match exported.is_nothing() {
        true => None,
        false => Some(Arc::new(Exports::start(exported, failed.clone())?)),
    };
    exports.iter().for_each(|exports| exports.introduce());

    let all: Vec<&ConfinedProcess> =
        [&listener].into_iter().chain(exports.iter().map(|exports| exports.sender())).collect();
    let own: Vec<u32> = [std::process::id()].into_iter().chain(all.iter().map(|of| of.pid)).collect();
    let board = Arc::new(Board::new(args.interval));
    let rounds = Rounds::new(selection, args.interval, own.clone(), board.clone(), history.clone());
    let reading = thread::Builder::new().name("rounds".into()).spawn(|| rounds.run()).map_err(cant)?;
    let pipe = listener.pipe.try_clone().map_err(cant)?;
    let writer = Mutex::new(listener.pipe.try_clone().map_err(cant)?);
    let since_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let since_ns = u64::try_from(since_ns).unwrap_or(0);
    let failed_exports = exports.is_some().then_some(failed);
    let answers = Arc::new(Answers { board: board.clone(), writer, own, history, failed_exports, since_ns });
    exports.iter().try_for_each(|exports| exports.run(&answers)).map_err(cant)?;
    let is_broken = Arc::new(AtomicBool::new(false));
    let theirs = is_broken.clone();
    let answer = move || {
        if !matches!(answers::serve(&answers, pipe), Ok(RequestsEnd::Closed)) {
            theirs.store(true, Ordering::SeqCst);
        }
        // The listener ends with its pipe, and the program with the listener.
        if let Ok(pipe) = answers.writer.try_lock() {
            let _ = pipe.shutdown(std::net::Shutdown::Both);
        }
    };
    thread::Builder::new().name("requests".into()).spawn(answer).map_err(cant)?;

    let end = confined_process::wait(&all, &signals);
    board.stop();
    let Some(end) = end else {
        all.iter().for_each(|of| {
            of.end();
        });
        // The thread may be inside a reading that the target's owner delays.
        let began = std::time::Instant::now();
        while !reading.is_finished() && began.elapsed() < GRACE {
            thread::sleep(Duration::from_millis(5));
        }
        return Ok(ExitCode::SUCCESS);
    };
    if is_broken.load(Ordering::SeqCst) {
        return Err("the listening process sent an invalid request: plimsoll serve ends".into());
    }
    Err(format!("{end}: plimsoll serve ends").into())
}

/// An address to send to, without encryption: to a Collector or an agent on this machine or in a trusted network.
fn receiver(text: &str) -> Result<Url, String> {
    if text.starts_with("https:") {
        return Err("https isn't supported: send to a Collector or an agent that encrypts".into());
    }
    Url::parse(text).map_err(|_| "expected an address such as http://127.0.0.1:4318".into())
}

/// A PID means the process that has it now; a later process with that PID is another one.
fn selection(args: &Args) -> Result<TargetSelection, Failure> {
    if args.all {
        return Ok(TargetSelection::All);
    }
    let deadline = Deadline::after(LOOK);
    let Listing { all: listed, is_whole } = processes::list(&mut KnownKinds::default(), deadline);
    let (mut identities, mut names) = (Vec::new(), Vec::new());
    for word in &args.targets {
        match word.parse::<u32>() {
            Ok(pid) => {
                let of = listed.iter().find(|of| of.identity.pid == pid);
                let absent = || match (without_memory(pid, deadline), is_whole) {
                    (Some(why), _) => why,
                    (None, true) => ProcView::now().absent(pid),
                    (None, false) => format!("cannot find process {pid}: not all processes could be read"),
                };
                identities.push(of.ok_or_else(absent)?.identity);
            }
            Err(_) => {
                let word = word.clone();
                if !listed.iter().any(|of| crate::process_argument::names(of).contains(&word)) {
                    print_message(format_args!(
                        "no process is named '{}' yet: it is served when it starts",
                        plimsoll_report::words::printable(&word)
                    ));
                }
                names.push(word);
            }
        }
    }
    Ok(TargetSelection::These { identities, names })
}

/// The digest of the token: the listener needs no more.
fn token(file: &Path) -> Result<[u8; 32], Failure> {
    let failed = |why: String| Failure(format!("cannot use the token in {}: {why}", shown(file)));
    let bytes = read_argument(file, FileKind::Text, Deadline::after(LOOK)).map_err(|why| failed(why.to_string()))?;
    let token = bytes.trim_ascii();
    if token.len() < LEAST_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
        return Err(failed(format!(
            "it must be {LEAST_TOKEN} visible characters or more. Make one: head -c 24 /dev/urandom | base64"
        )));
    }
    Ok(Sha256::digest(token).into())
}

fn introduce(address: SocketAddr, has_token: bool, listener: &ConfinedProcess) {
    print_message(format_args!("listening at http://{address}/ ({})", listener.held()));
    if !address.ip().is_loopback() {
        print_message(
            "other machines can read the pages with the token. Nothing is encrypted: outside a trusted network, put a proxy with TLS in front",
        );
    } else if !has_token {
        print_message(
            "every user of this machine can read the pages. To admit only those who know a token: --token-file FILE",
        );
    }
}
