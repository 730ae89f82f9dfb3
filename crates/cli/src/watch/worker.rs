//! The thread that reads: the list of processes, or one process, and its recording. It sends what it reads and wakes
//! the thread of the terminal.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_facts::ending::{Ending, GROUP_KILL, Oom};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::Baseline;
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc;
use plimsoll_process::processes;
use plimsoll_report::jfr::TargetEndKind;
use plimsoll_tracked::rules::read as rules;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::facts::Facts;
use super::worker_messages::{Report, Reports};
use crate::Failure;
use crate::record::{Output, Pace, Writer};
use crate::sampler::{Read, Sampler, SamplerEnd, Subject};

/// From the command line: what to watch, how often, how long.
#[derive(Clone, Copy)]
pub struct Plan {
    /// None: the list.
    pub pid: Option<u32>,
    pub interval: Duration,
    pub duration: Option<Duration>,
    pub limit: Option<Bytes>,
}

/// From the screen to the worker.
pub enum Order {
    Open(u32),
    Close,
    Baseline(Option<Baseline>),
    Record,
    StopRecording,
    Quit,
}

/// The other end of a worker.
pub struct Worker {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    pub reports: Arc<Reports>,
    /// Readable after each report.
    pub reported: Arc<OwnedFd>,
}

impl Worker {
    /// The caller must have blocked the signals that it waits for: the worker's thread inherits its mask
    /// (pthread_create(3)).
    pub fn start(plan: Plan) -> Result<Worker, Failure> {
        let cant = |error: &dyn std::fmt::Display| Failure(format!("cannot start to read: {error}"));
        // The first process is opened here, so that a refusal is one sentence on a normal screen.
        let subject = plan.pid.map(|pid| sampler(pid, plan.interval)).transpose()?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let (wake, reported) = (event().map_err(|e| cant(&e))?, event().map_err(|e| cant(&e))?);
        let ((orders, ordered), reports) = (channel(), Arc::new(Reports::default()));
        let mut job = Job {
            plan,
            orders: ordered,
            wake: wake.clone(),
            reports: reports.clone(),
            reported: reported.clone(),
            known: processes::KnownKinds::default(),
            has_listed: false,
            one: subject.map(One::new),
        };
        let run = move || job.run();
        thread::Builder::new().name("watch".into()).spawn(run).map_err(|e| cant(&e))?;
        Ok(Worker { orders, wake, reports, reported })
    }

    pub fn order(&self, order: Order) {
        // If the worker is gone, there is nothing to do.
        let _ = self.orders.send(order);
        signal(&self.wake);
    }
}

fn sampler(pid: u32, interval: Duration) -> Result<Sampler, Failure> {
    Sampler::of(Subject::of(pid, interval, "watch"))
}

fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes the event unreadable again.
pub fn clear(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}

/// A process that is watched.
struct One {
    sampler: Sampler,
    writer: Option<Writer>,
}

impl One {
    fn new(sampler: Sampler) -> One {
        One { sampler, writer: None }
    }
}

struct Job {
    plan: Plan,
    orders: Receiver<Order>,
    wake: Arc<OwnedFd>,
    reports: Arc<Reports>,
    reported: Arc<OwnedFd>,
    known: processes::KnownKinds,
    /// Whether a list was reported.
    has_listed: bool,
    one: Option<One>,
}

/// A listing that took `t` is repeated after `LISTING × t`: 0.4 % of a core.
const LISTING: u32 = 250;
/// Least time between two listings: nobody can read a list that changes faster.
const LEAST: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

impl Job {
    fn run(&mut self) {
        let began = Instant::now();
        let end = self.plan.duration.and_then(|duration| began.checked_add(duration));
        let rules = rules::built_in().ok();
        let mut ended = false;
        loop {
            let now = Instant::now();
            let mut next = now + self.plan.interval;
            match &mut self.one {
                None => next = next.max(self.list(now)),
                Some(_) if ended => next = now + HOUR,
                Some(one) => match one.sampler.read(0, None) {
                    Read::Sample(sample) => {
                        let facts = Facts::of(&sample, self.plan.limit, rules.as_ref());
                        let written = one.writer.as_mut().map(|writer| writer.instant(&sample));
                        self.report(Report::Facts(Box::new(facts)));
                        if let Some(Err(Failure(sentence))) = written {
                            self.one.iter_mut().for_each(|one| one.writer = None);
                            self.report(Report::Recording(false, sentence));
                        }
                    }
                    Read::Nothing => {}
                    Read::Ended => {
                        self.end();
                        ended = true;
                        // Nothing more can be read, so the worker only waits for orders.
                        continue;
                    }
                },
            }
            if let Some(end) = end {
                if now >= end {
                    break;
                }
                next = next.min(end);
            }
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Quit) | Err(TryRecvError::Disconnected) => {
                        self.stop_recording();
                        self.report(Report::Done);
                        return;
                    }
                    Ok(order) => {
                        let is_new_view = matches!(order, Order::Open(_) | Order::Close);
                        ended &= !is_new_view;
                        if self.obey(order) {
                            next = Instant::now();
                        }
                    }
                    Err(TryRecvError::Empty) if Instant::now() >= next => break,
                    Err(TryRecvError::Empty) => self.wait(next, ended, &mut next),
                }
            }
        }
        self.stop_recording();
        self.report(Report::Done);
    }

    /// Waits for an order, the end of the process, or the time `until`. When the process ends, `next` becomes now, so
    /// that the worker reads at once.
    fn wait(&self, until: Instant, ended: bool, next: &mut Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        let pidfd = self.one.as_ref().filter(|_| !ended).and_then(|one| one.sampler.pidfd());
        fds.extend(pidfd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = poll(&mut fds, Some(&timeout));
        if !fds[0].revents().is_empty() {
            clear(&self.wake);
        }
        if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
            *next = Instant::now();
        }
    }

    /// Carries out an order. Returns whether to read at once.
    fn obey(&mut self, order: Order) -> bool {
        match order {
            Order::Open(pid) => {
                match sampler(pid, self.plan.interval) {
                    Ok(sampler) => self.one = Some(One::new(sampler)),
                    Err(Failure(sentence)) => self.report(Report::Refused(sentence)),
                }
                true
            }
            Order::Close => {
                self.stop_recording();
                self.one = None;
                true
            }
            Order::Baseline(baseline) => {
                if let Some(one) = &mut self.one {
                    one.sampler.baseline = baseline;
                }
                false
            }
            Order::Record => {
                self.record();
                true
            }
            Order::StopRecording => {
                self.stop_recording();
                false
            }
            Order::Quit => false,
        }
    }

    /// Lists the processes; returns when to do it again.
    fn list(&mut self, began: Instant) -> Instant {
        let listing = processes::list(&mut self.known, Deadline::after(LOOK));
        let took = began.elapsed();
        // The last whole list stays: a process that is missing in a part may live.
        if listing.is_whole || !self.has_listed {
            self.has_listed = true;
            self.report(Report::Listing(proc::now_ns(), listing.all));
        }
        began + (took * LISTING).max(LEAST)
    }

    /// Begins a recording of the process. Its name has the start time, so that it replaces no earlier one.
    fn record(&mut self) {
        let Some(one) = self.one.as_mut().filter(|one| one.writer.is_none()) else { return };
        let pid = one.sampler.pid();
        let pace = Pace::every(self.plan.interval);
        let pattern = Path::new("plimsoll-%p-%t.jfr");
        let begun = crate::record::check(pattern).and_then(|()| Output::new(pattern, pid, pace));
        match begun {
            Ok(output) => {
                one.writer = Some(Writer::new(pid, self.plan.interval, output));
                one.sampler.make_full();
                self.report(Report::Recording(true, format!("recording to plimsoll-{pid}-TIME.jfr in this directory")));
            }
            Err(Failure(sentence)) => self.report(Report::Recording(false, sentence)),
        }
    }

    fn stop_recording(&mut self) {
        let Some(writer) = self.one.as_mut().and_then(|one| one.writer.take()) else { return };
        let (Ok(sentence) | Err(Failure(sentence))) = writer.finish();
        self.report(Report::Recording(false, sentence));
    }

    fn end(&mut self) {
        let Some(one) = &mut self.one else { return };
        let ended = one.sampler.end(None);
        if let Some(writer) = &mut one.writer
            && let Err(Failure(sentence)) = writer.end(&ended)
        {
            self.report(Report::Recording(false, sentence));
        }
        self.stop_recording();
        self.report(Report::End(how_it_ended(&ended)));
    }

    fn report(&self, report: Report) {
        self.reports.add(report);
        signal(&self.reported);
    }
}

fn how_it_ended(ended: &SamplerEnd) -> String {
    let known = ended.books.as_ref().and_then(|books| books.ending);
    match (&ended.end, known) {
        (end, _) if end.how == TargetEndKind::Exited => "exited".into(),
        (end, _) if end.oom == Oom::Yes => Ending::oom_killed().sentence(),
        (end, _) if end.oom == Oom::InGroup => format!("ended: {GROUP_KILL}"),
        (_, Some(ending)) => ending.sentence(),
        _ => "ended; the cause is not known, because it was not tracked".into(),
    }
}
