//! Sends figures through the sender: metrics to an OpenTelemetry Collector at each interval; call stacks of tracked
//! processes to the Collector and to Pyroscope once a minute.
//!
//! ```text
//! metrics   board ─▶ otlp ──────────────────────┐
//! stacks    target ─▶ sites ─▶ otlp, pprof ─────┴─▶ Sender: one export at a time, its receipt
//! ```
//! Call stacks that took `t` of processor time to read are followed by a pause of `60 t`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::processes::Identity;
use plimsoll_profiles::profile::{Profile, Weight};
use plimsoll_report::otlp::{self, Reading};
use plimsoll_report::profile::{View, pprof};
use plimsoll_report::words::printable;
use plimsoll_tracked::symbols;
use plimsoll_trial::rate::Url;

use super::answers::Answers;
use super::board::Published;
use super::confined_process::ConfinedProcess;
use super::export_wire::{self, ExportHead, ExportKind, Receipt};
use super::{rounds, sender};
use crate::output::print_message;
use crate::stack_options::Stacks;
use crate::{Failure, target};

/// Interval of a target's call stacks.
const STACKS: Duration = Duration::from_secs(60);
/// Time between two checks whether a target is due.
const LOOKS: Duration = Duration::from_secs(1);
/// Reading call stacks takes at most one part in `REST` of a core.
const REST: u32 = 60;
const VERSION: &str = env!("PLIMSOLL_VERSION");

/// Name of the machine. In a pod, uname has the pod's name.
const HOST_VARIABLE: &str = "PLIMSOLL_HOST";

/// Where to send what.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    pub otlp: Option<Url>,
    /// Call stacks by OTLP too.
    pub has_profiles: bool,
    pub pyroscope: Option<Url>,
}

impl ExportOptions {
    pub fn is_nothing(&self) -> bool {
        self.otlp.is_none() && self.pyroscope.is_none()
    }
}

pub struct Exports {
    options: ExportOptions,
    host: String,
    sender: ConfinedProcess,
    turn: Mutex<()>,
    failed: Arc<AtomicU64>,
}

impl Exports {
    pub fn start(options: ExportOptions, failed: Arc<AtomicU64>) -> Result<Exports, Failure> {
        let host = sender::plain(&host_name(std::env::var_os(HOST_VARIABLE)));
        let text = |url: &Option<Url>| url.as_ref().map(Url::to_string).unwrap_or_default();
        let (to_otlp, to_pyroscope) = (text(&options.otlp), text(&options.pyroscope));
        let sender = ConfinedProcess::sender(sender::NAME, &[&host, &to_otlp, &to_pyroscope])?;
        Ok(Exports { options, host, sender, turn: Mutex::new(()), failed })
    }

    pub fn sender(&self) -> &ConfinedProcess {
        &self.sender
    }

    pub fn introduce(&self) {
        let stacks = "call stacks of tracked processes";
        let otlp = self.options.otlp.as_ref().map(|url| match self.options.has_profiles {
            true => format!("metrics and {stacks} to {url}"),
            false => format!("metrics to {url}"),
        });
        let pyroscope = self.options.pyroscope.as_ref().map(|url| format!("{stacks} to {url}"));
        let all: Vec<String> = otlp.into_iter().chain(pyroscope).collect();
        print_message(format_args!("sending {} ({})", printable(&all.join("; ")), self.sender.held()));
    }

    /// Starts the threads, which end with the program.
    pub fn run(self: &Arc<Self>, answers: &Arc<Answers>) -> std::io::Result<()> {
        if self.options.otlp.is_some() {
            let (exports, answers) = (self.clone(), answers.clone());
            thread::Builder::new().name("metrics".into()).spawn(move || exports.metrics(&answers))?;
        }
        if self.options.has_profiles || self.options.pyroscope.is_some() {
            let (exports, answers) = (self.clone(), answers.clone());
            thread::Builder::new().name("stacks".into()).spawn(move || exports.stacks(&answers))?;
        }
        Ok(())
    }

    fn metrics(&self, answers: &Answers) {
        let mut problem = None;
        loop {
            let began = Instant::now();
            let posted = answers.board.fresh();
            let own = answers.own(&posted);
            let targets = posted.targets.iter();
            let mut readings: Vec<Reading<'_>> =
                targets.map(|of| Reading { samples: &of.samples, time_ns: ns_ago(of.read_at.elapsed()) }).collect();
            readings.push(Reading { samples: &own, time_ns: ns_ago(Duration::ZERO) });
            let body = otlp::metrics(&readings, &self.host, VERSION);
            self.deliver(ExportKind::Metrics, "", answers.board.interval, &body, &mut problem);
            thread::sleep(answers.board.interval.saturating_sub(began.elapsed()));
        }
    }

    fn stacks(&self, answers: &Answers) {
        let mut read: BTreeMap<Identity, Instant> = BTreeMap::new();
        // How often in a row call stacks could not be read. Once is no error: the process may have been detached since.
        let mut unread: BTreeMap<Identity, u32> = BTreeMap::new();
        let (mut of_otlp, mut of_pyroscope) = (None, None);
        loop {
            thread::sleep(LOOKS);
            let targets = answers.board.look().targets.clone();
            read.retain(|identity, _| targets.iter().any(|of| of.identity == *identity));
            unread.retain(|identity, _| read.contains_key(identity));
            for of in targets.iter().filter(|of| of.row.is_tracked) {
                if read.get(&of.identity).is_some_and(|at| at.elapsed() < STACKS) {
                    continue;
                }
                let before = rounds::thread_time();
                read.insert(of.identity, Instant::now());
                let name = &of.row.name;
                let profile = profile_of(of).unwrap_or_else(|Failure(reason)| {
                    let times = unread.entry(of.identity).or_default();
                    *times += 1;
                    if *times > 1 {
                        self.failed.fetch_add(1, Ordering::Relaxed);
                    }
                    if *times == 2 {
                        print_message(format_args!("the call stacks of /{name} can't be sent: {reason}"));
                    }
                    None
                });
                if let Some(profile) = profile {
                    unread.remove(&of.identity);
                    if self.options.has_profiles {
                        let body = otlp::profiles(&profile, &of.samples, &self.host, VERSION);
                        self.deliver(ExportKind::Profiles, name, STACKS, &body, &mut of_otlp);
                    }
                    if self.options.pyroscope.is_some()
                        && let Ok(view) = View::new(&profile, Some("live"), Weight::Bytes)
                    {
                        let mut body = Vec::new();
                        let _ = pprof::write(&mut body, &view);
                        self.deliver(ExportKind::Pprof, name, STACKS, &body, &mut of_pyroscope);
                    }
                }
                thread::sleep(rounds::thread_time().saturating_sub(before) * REST);
            }
        }
    }

    /// Sends one export. A sentence says when a kind of export stops arriving, and when it arrives again.
    fn deliver(&self, kind: ExportKind, target: &str, span: Duration, body: &[u8], problem: &mut Option<String>) {
        let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let head = ExportHead {
            kind,
            target: target.into(),
            from: until - span.as_secs().min(until),
            until,
            length: body.len(),
        };
        let now = match head.encode() {
            None => Some("it is longer than 32 MiB".to_owned()),
            Some(head) => match self.send(&head, body) {
                Some(receipt) => sentence(receipt),
                None => {
                    // The sender ends with its pipe, and the program with the sender.
                    let _ = self.sender.pipe.shutdown(std::net::Shutdown::Both);
                    return;
                }
            },
        };
        if now.is_some() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        let (what, url) = match kind {
            ExportKind::Metrics => ("metrics", &self.options.otlp),
            ExportKind::Profiles => ("call stacks", &self.options.otlp),
            ExportKind::Pprof => ("call stacks", &self.options.pyroscope),
        };
        let url = printable(&url.as_ref().map(Url::to_string).unwrap_or_default());
        match (&now, &*problem) {
            (Some(now), before) if before.as_ref() != Some(now) => {
                print_message(format_args!(
                    "{what} did not arrive at {url}: {now}. The next ones are sent all the same"
                ));
            }
            (None, Some(_)) => print_message(format_args!("{what} arrive at {url} again")),
            _ => {}
        }
        *problem = now;
    }

    /// None: the sender has ended or is out of control.
    fn send(&self, head: &[u8], body: &[u8]) -> Option<Receipt> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pipe = &self.sender.pipe;
        let mut receipt = [0; export_wire::RECEIPT];
        pipe.write_all(head).and_then(|()| pipe.write_all(body)).and_then(|()| pipe.read_exact(&mut receipt)).ok()?;
        Receipt::decode(&receipt).filter(|receipt| !matches!(receipt, Receipt::Ready(_)))
    }
}

fn host_name(given: Option<OsString>) -> String {
    match given.filter(|name| !name.is_empty()) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

/// What went wrong.
fn sentence(receipt: Receipt) -> Option<String> {
    Some(match receipt {
        Receipt::Ready(_) | Receipt::Arrived => return None,
        Receipt::InPart(rejected) => format!("the receiver rejected {rejected} of them"),
        Receipt::Status(404) => "the receiver has no such address (status 404)".into(),
        Receipt::Status(status) => format!("the receiver answered with status {status}"),
        Receipt::Error(code) => std::io::Error::from_raw_os_error(code).to_string(),
        Receipt::Late => "there was no answer within 10 s".into(),
        Receipt::NotHttp => "the receiver does not speak HTTP".into(),
    })
}

/// Nanoseconds since 1970.
fn ns_ago(age: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.saturating_sub(age).as_nanos()).unwrap_or(0)
}

/// The call stacks of a tracked process, with names. None: it has ended, and another process may have the PID by now.
fn profile_of(of: &Published) -> Result<Option<Profile>, Failure> {
    let profile = sites_of(of.identity.pid);
    match rounds::start_of(of.identity.pid) == Some(of.identity.start) {
        true => profile.map(Some),
        false => Ok(None),
    }
}

fn sites_of(pid: u32) -> Result<Profile, Failure> {
    let mut target = target::open(Path::new(&pid.to_string()), Deadline::after(LOOK))?;
    let names = target.symbols(&[]);
    symbols::resolve(&mut target.books, &names, target.deadline);
    Ok(Stacks::default().sites(&mut target, false)?.profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_name_of_the_machine_is_used() {
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the kernel's name");
        assert_eq!(host_name(Some("node-7".into())), "node-7");
        assert_eq!(host_name(Some(OsString::new())), own.trim_end());
        assert_eq!(host_name(None), own.trim_end());
    }
}
