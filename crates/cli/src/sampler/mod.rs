//! Reads one process again and again, each source as often as its cost allows.
//!
//! ```text
//! each reading    status, cgroup, books
//! most readings   pages or smaps, and the ledger of them       ≤ 0.4 % of a core
//! every 20 s      sites, peaks, arenas too (a full reading)    ≤ 0.15 %
//! seldom          VM and malloc's arenas: who owns what        ≤ 0.1 %, while memory grows 1 %
//! ```
//! It writes nothing and keeps no history: `record` writes the readings to a file, `watch` shows them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{Baseline, Cgroup, Pressure, Process, ProcessState, Rss, Snapshot};
use plimsoll_facts::units::{Avma, Bytes};
use plimsoll_observer::collect::SeriesState;
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::{Verdict, judge};
use plimsoll_process::cgroup;
use plimsoll_process::foreign::{Deadline, LOOK, begin_turn};
use plimsoll_process::proc::{self, Target};
use plimsoll_process::processes::ProcView;
use plimsoll_report::jfr::{Cost, Site};
use plimsoll_tracked::books::Books;
use plimsoll_tracked::segment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::Failure;

mod books;
mod cost;
mod end;
mod group;
mod growth;
mod names;
mod owners;

pub use end::SamplerEnd;

use books::{UNREAD, set_unread_books};
use cost::{LINES, processor_time};
use group::set_group;
use growth::{Growth, needs_no_query};
use names::Names;

/// Interval of sites, peaks and arenas. It suffices for the curve of a night and keeps an hour below 8 MiB.
const FULL: Duration = Duration::from_secs(20);

/// What is sampled, and how it is named in messages.
#[derive(Clone, Copy)]
pub struct Subject {
    pub pid: u32,
    /// The target is our child: SIGCHLD reports its end.
    pub child: bool,
    pub interval: Duration,
    /// The command that runs the sampler, for messages.
    pub verb: &'static str,
    /// Longest time for one reading.
    pub within: Duration,
}

impl Subject {
    /// A process that is not our child, as `record` and `watch` read it.
    pub fn of(pid: u32, interval: Duration, verb: &'static str) -> Subject {
        Subject { pid, child: false, interval, verb, within: LOOK }
    }
}

pub struct Sampler {
    pid: u32,
    target: Target,
    child: bool,
    interval: Duration,
    /// Becomes readable when the process ends. None on kernels before 5.3.
    pidfd: Option<OwnedFd>,
    snapshot: Option<Snapshot>,
    series: SeriesState,
    /// When the owners were last queried, how much memory the process has got since, and when they may be queried again
    /// if that is much.
    queried_at: Instant,
    growth: Growth,
    growing_at: Instant,
    /// When the current program began in the process; its age bounds the time to the next query.
    began: Option<Instant>,
    /// When each kind of work is next due.
    owners_at: Instant,
    lines_at: Instant,
    full_at: Instant,
    /// Whether smaps is to be read with the next mappings. Until then PSS and huge pages of new mappings are unknown.
    is_smaps_due: bool,
    sites_at: Instant,
    /// Where segments are searched first.
    directory: Option<PathBuf>,
    segment: Option<PathBuf>,
    /// Why the segment could not be read, and how many times in a row.
    unread_books: Option<String>,
    unread_times: u32,
    /// Start of the process, CLOCK_BOOTTIME ns; 0: unknown. An earlier process with the same PID may have left a
    /// segment.
    started_ns: u64,
    names: Names,
    /// The program at the last sample, and its stack: another one means an exec.
    executable: String,
    start_stack: Option<Avma>,
    /// The OOM kills in the target's cgroup at the last samples, oldest first.
    oom_kills: VecDeque<(Instant, u64)>,
    group: Option<PathBuf>,
    samples: u64,
    /// Memory of the host.
    memory: Bytes,
    /// The moment that the verdicts compare with.
    pub baseline: Option<Baseline>,
    /// How many samplers share the budgets of mappings, owners and sites. With several, a young program is queried
    /// again at four times its age.
    pub share: u32,
    /// False: this reading uses the owners that are known, even if they are due.
    pub may_query: bool,
    within: Duration,
}

/// One reading.
pub enum Read<'s> {
    Sample(Box<Sample<'s>>),
    /// The process exists, but has no memory to read: it is being torn down, or is a child that nobody has waited for.
    /// Or it can't be read now.
    Nothing,
    Ended,
}

pub struct Sample<'s> {
    /// ns since 1970.
    pub time_ns: u64,
    pub process: Process,
    /// Resident bytes: the ledger's, or those in status.
    pub rss: Bytes,
    /// The newest snapshot. Its figures are of this moment only if there is a ledger.
    pub snapshot: Option<&'s Snapshot>,
    /// None: the mappings were not read this time.
    pub ledger: Option<Ledger>,
    pub verdicts: Vec<Verdict>,
    pub books: Option<Books>,
    /// Of the same moment as the books; empty unless `full`.
    pub sites: Vec<Site>,
    pub cgroup: Option<Cgroup>,
    pub pressure: Option<Pressure>,
    pub full: bool,
    pub cost: Cost,
    pub provenance_age: Duration,
}

impl Sampler {
    /// `directory`: that of the segments of a program that was started with one (--dir).
    pub fn of_started(subject: Subject, directory: Option<PathBuf>) -> Result<Sampler, Failure> {
        Ok(Sampler { directory, ..Sampler::of(subject)? })
    }

    pub fn of(Subject { pid, child, interval, verb, within }: Subject) -> Result<Sampler, Failure> {
        let target = Target::open(pid, Deadline::after(LOOK)).map_err(|absent| match absent {
            proc::Absent::NoSuchProcess => Failure(ProcView::now().absent(pid)),
            proc::Absent::NoProc => Failure("/proc is not mounted here: nothing can be read".into()),
            proc::Absent::Unread(why) => Failure(format!("cannot open /proc/{pid}: {why}")),
        })?;
        if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
            return Err(format!("{pid} is a thread of process {leader}: plimsoll {verb} {leader}").into());
        }
        // Where /proc hides a process, its folder may still be there (hidepid=noaccess).
        let is_absent = |error: &io::Error| proc::says_ended(error) || error.kind() == io::ErrorKind::PermissionDenied;
        let (process, _) = proc::read_process(&target).map_err(|error| match is_absent(&error) {
            true => ProcView::now().absent(pid),
            false => format!("cannot read /proc/{pid}/status: {error}"),
        })?;
        // A child that ended at once stays a zombie until we reap it.
        if let Some(reason) = proc::refusal(process.state, pid).filter(|_| !child) {
            return Err(reason.into());
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let now = Instant::now();
        let mut sampler = Sampler {
            pid,
            target,
            child,
            interval,
            pidfd: raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok()),
            snapshot: None,
            series: SeriesState::default(),
            queried_at: now,
            growth: Growth::default(),
            growing_at: now,
            began: process.uptime.and_then(|age| now.checked_sub(Duration::try_from_secs_f64(age).ok()?)),
            owners_at: now,
            lines_at: now,
            full_at: now,
            is_smaps_due: true,
            sites_at: now,
            directory: None,
            segment: None,
            unread_books: None,
            unread_times: 0,
            started_ns: segment::start_time_ns(pid).unwrap_or(0),
            names: Names::default(),
            executable: String::new(),
            start_stack: None,
            oom_kills: VecDeque::new(),
            group: None,
            samples: 0,
            memory: Bytes(0),
            baseline: None,
            share: 1,
            may_query: true,
            within,
        };
        if child {
            // The child may be killed before the first sample.
            let group = cgroup::read_limit(&sampler.target, sampler.memory).0;
            sampler.group = group.map(|(group, _)| group.directory);
            sampler.count_kills(now);
        }
        Ok(sampler)
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// True also for a zombie, which has no memory.
    pub fn has_ended(&self) -> bool {
        if let Some(pidfd) = &self.pidfd {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            return poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0);
        }
        match proc::read_process(&self.target) {
            Ok((process, _)) => process.state == ProcessState::Zombie && process.thread_count <= 1,
            Err(error) => proc::says_ended(&error),
        }
    }

    /// Makes the next sample a full one.
    pub fn make_full(&mut self) {
        self.full_at = Instant::now();
    }

    /// Reads the process. Its first thread may end by pthread_exit; then another thread's files in /proc are read,
    /// until that thread ends, too.
    fn read_process(&mut self, deadline: Deadline) -> io::Result<(Process, Rss)> {
        let read = proc::read_process(&self.target);
        let has_lost = match &read {
            Ok((process, _)) => process.state == ProcessState::Zombie && process.thread_count > 1,
            Err(_) => self.target.has_lost_its_first_thread(),
        };
        let other = has_lost.then(|| Target::open(self.target.pid(), deadline).ok()).flatten();
        match other.filter(Target::has_lost_its_first_thread) {
            Some(other) => {
                self.target = other;
                proc::read_process(&self.target)
            }
            None => read,
        }
    }

    /// `last`: no sample follows, so it is a full one, and waits that long for missing names.
    pub fn read(&mut self, missed: u64, last: Option<Duration>) -> Read<'_> {
        let began = Instant::now();
        let deadline = Deadline::after(last.unwrap_or(self.within));
        let last = last.is_some();
        self.target.allow(deadline);
        begin_turn();
        let full = last || began >= self.full_at;
        let (process, rss) = match self.read_process(deadline) {
            Ok(read) => read,
            // SIGCHLD reports how our own child ended. That we have too many open files doesn't mean that the process
            // has ended: a later reading may succeed.
            Err(error) if self.child || !proc::says_ended(&error) => return Read::Nothing,
            Err(_) => return Read::Ended,
        };
        if process.state == ProcessState::Zombie {
            return if self.child || process.thread_count > 1 { Read::Nothing } else { Read::Ended };
        }
        let executable = process.executable.clone().unwrap_or_default();
        // A program may exec itself.
        let has_other_stack =
            matches!((process.start_stack, self.start_stack), (Some(now), Some(before)) if now != before);
        self.start_stack = process.start_stack.or(self.start_stack);
        if executable != self.executable || has_other_stack {
            // After an exec the process has other memory, other owners, and another segment.
            self.segment = None;
            self.unread_times = 0;
            self.series = SeriesState::default();
            self.growth = Growth::default();
            self.owners_at = began;
            self.may_query = true;
            if self.samples > 0 {
                self.began = Some(began);
            }
            self.executable = executable;
        }
        let time_ns = proc::now_ns();
        let (books, sites) = self.books(full, last).unzip();
        let sites = sites.unwrap_or_default();
        let booked = books.as_ref().map(Books::booked);
        self.is_smaps_due |= full;
        let whole = self.is_smaps_due;
        let looked = self.has_grown(began, rss) && self.look_closer(began, (&process, rss), booked, whole);
        let of_now = self.owners(began, rss, booked, (whole, last))
            || looked
            || (began >= self.lines_at || last) && self.lines(began, (&process, rss), booked, whole);
        self.is_smaps_due &= !of_now;
        let (group, group_gaps) = cgroup::read_limit(&self.target, self.memory);
        let group = group.map(|(group, _)| group);
        // Checked after the readings, so that no reading of a process in teardown is used.
        if proc::is_exiting(&self.target) {
            return Read::Nothing;
        }
        self.group = group.as_ref().map(|group| group.directory.clone());
        if let Some(snapshot) = &mut self.snapshot {
            set_group(snapshot, group.clone(), group_gaps);
            set_unread_books(snapshot, self.unread_books.as_deref().filter(|_| self.unread_times >= UNREAD));
        }
        self.count_kills(began);
        let pressure = cgroup::pressure(self.group.as_deref(), deadline);
        if full {
            self.full_at = began + FULL * self.share;
        }
        self.samples += 1;
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.baseline.clone_from(&self.baseline);
        }
        let before = processor_time();
        let ledger = self.snapshot.as_ref().filter(|_| of_now).map(Ledger::of);
        if let Some((snapshot, ledger)) = self.snapshot.as_mut().zip(ledger.as_ref()) {
            ledger.take_incomparable(snapshot);
        }
        let snapshot = self.snapshot.as_ref();
        let of_now = snapshot.filter(|_| of_now);
        let verdicts = of_now.zip(ledger.as_ref()).map(|(snapshot, ledger)| judge(snapshot, ledger));
        if let Some((snapshot, ledger)) = of_now.zip(ledger.as_ref()) {
            self.growth.count(needs_no_query(snapshot, ledger), self.queried_at == began);
        }
        self.lines_at += processor_time().saturating_sub(before) * LINES * self.share;
        let cost = Cost {
            cpu: processor_time(),
            reading: began.elapsed(),
            mmap_lock: of_now.and_then(|of| of.reading(Source::Proc)).map_or(Duration::ZERO, |reading| reading.took),
            missed,
        };
        Read::Sample(Box::new(Sample {
            time_ns,
            rss: ledger.as_ref().map_or(rss.total(), |ledger| ledger.rss),
            process,
            snapshot,
            ledger,
            verdicts: verdicts.unwrap_or_default(),
            books,
            sites,
            cgroup: group,
            pressure,
            full,
            cost,
            provenance_age: if self.queried_at == began { Duration::ZERO } else { began - self.queried_at },
        }))
    }
}
