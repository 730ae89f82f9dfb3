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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_facts::ending;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::snapshot::{Baseline, Cgroup, MemoryStat, Pressure, Process, ProcessState, Rss, Snapshot};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::collect::{MappingDetail, SeriesState};
use plimsoll_observer::ledger::{Ledger, LineId};
use plimsoll_observer::source::hotspot;
use plimsoll_observer::verdict::{Verdict, judge};
use plimsoll_process::cgroup;
use plimsoll_process::foreign::{Deadline, LOOK, NAMES, begin_turn};
use plimsoll_process::proc::{self, Target};
use plimsoll_process::processes::ProcView;
use plimsoll_report::jfr::{Cost, Site, TargetEnd, TargetEndKind};
use plimsoll_tracked::books::{Booked, BookedSince, Books};
use plimsoll_tracked::segment::{self, Life};
use plimsoll_tracked::symbols;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::{Failure, sys, target};
use names::Names;

mod names;

/// Interval of sites, peaks and arenas. It suffices for the curve of a night and keeps an hour below 8 MiB.
const FULL: Duration = Duration::from_secs(20);
/// A VM stops while it answers, so it is queried at most this often, however cheap the answer is.
const QUERIED: Duration = Duration::from_secs(10);
/// Instants in which a program that was just started may still load its tracker, and the age up to which that is so.
const BEGINNING: u64 = 5;
const YOUNG: Duration = Duration::from_secs(10);
/// A killed process stays visible for a while, so an instant before its end may already have counted its kill.
const DYING: Duration = Duration::from_secs(2);
/// Work that costs `c` of CPU time is repeated every `n × c`: mappings with their ledger may take 0.4 % of a core,
/// owners 0.1 %, sites 0.15 %. So the first minute, which begins with one of each, stays below 1 %.
const LINES: u32 = 250;
const OWNERS: u32 = 1000;
const SITES: u32 = 666;
/// When memory that only a query can classify has grown by 1/8 of RSS and by 8 MiB since the owners were queried, they
/// are queried again, however young their answer is. From 64 MiB to 1 GiB that is 24 times at most, so the cost is
/// bounded by the growth and not by the clock. While memory grows, a VM may be stopped more often, and the queries may
/// take 1 % of a core.
const GROWN: u64 = 8;
const GROWN_BY: Bytes = Bytes::mib(8);
const GROWING_QUERIED: Duration = Duration::from_secs(1);
const GROWING_OWNERS: u32 = 100;
/// Time for the query at the end of a recording: a signal to stop may have come, after which it gets 8 s.
const LAST_QUERY: Duration = Duration::from_secs(4);
/// This many readings in a row must find the segment unreadable before a gap reports it: the segment has another name
/// while it is being made, and an exec replaces it.
const UNREAD: u32 = 2;
const NO_BOOKS: &str = "categories and call sites are missing, although the process is tracked";
/// Cheap readings save time for an expensive one: at most this much.
const SAVED: Duration = FULL;

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
    /// When the owners were last queried, how much memory has come since, and when they may be queried again if that is
    /// much.
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
    segment: Option<PathBuf>,
    /// Why the segment could not be read, and how many times in a row.
    unread_books: Option<String>,
    unread_times: u32,
    /// Start of the process, CLOCK_BOOTTIME ns; 0: unknown. An earlier process with the same PID may have left a
    /// segment.
    started_ns: u64,
    names: Names,
    /// The program at the last sample: another one means an exec.
    executable: String,
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

/// The last state of a target that has ended, from its segment.
pub struct SamplerEnd {
    pub end: TargetEnd,
    pub books: Option<Books>,
    pub sites: Vec<Site>,
    pub time_ns: u64,
    pub cost: Cost,
}

impl Sampler {
    pub fn of(Subject { pid, child, interval, verb, within }: Subject) -> Result<Sampler, Failure> {
        let target = Target::open(pid, Deadline::after(LOOK)).map_err(|absent| match absent {
            proc::Absent::NoSuchProcess => Failure(ProcView::now().absent(pid)),
            proc::Absent::NoProc => Failure("/proc is not mounted here: nothing can be read".into()),
        })?;
        if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
            return Err(format!("{pid} is a thread of process {leader}: plimsoll {verb} {leader}").into());
        }
        let (process, _) = proc::read_process(&target).map_err(|_| ProcView::now().absent(pid))?;
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
            segment: None,
            unread_books: None,
            unread_times: 0,
            started_ns: segment::start_time_ns(pid).unwrap_or(0),
            names: Names::default(),
            executable: String::new(),
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
        let lives = |process: &Process| process.state != ProcessState::Zombie || process.thread_count > 1;
        !proc::read_process(&self.target).is_ok_and(|(process, _)| lives(&process))
    }

    /// Makes the next sample a full one.
    pub fn make_full(&mut self) {
        self.full_at = Instant::now();
    }

    /// `last`: no sample follows, so it is a full one, and waits for missing names as a report does.
    pub fn read(&mut self, missed: u64, last: bool) -> Read<'_> {
        let began = Instant::now();
        let deadline = Deadline::after(if last { NAMES } else { self.within });
        self.target.allow(deadline);
        begin_turn();
        let full = last || began >= self.full_at;
        let Ok((process, rss)) = proc::read_process(&self.target) else {
            // SIGCHLD reports how our own child ended.
            return if self.child { Read::Nothing } else { Read::Ended };
        };
        if process.state == ProcessState::Zombie {
            // After pthread_exit of the first thread the other threads run on, but this entry of /proc shows no memory.
            return if self.child || process.thread_count > 1 { Read::Nothing } else { Read::Ended };
        }
        let executable = process.executable.clone().unwrap_or_default();
        if executable != self.executable {
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
        let time_ns = now_ns();
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
        let snapshot = self.snapshot.as_ref();
        let of_now = snapshot.filter(|_| of_now);
        let before = processor_time();
        let ledger = of_now.map(Ledger::of);
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

    /// The time until work of this cost is repeated.
    fn budget(&self, spent: Duration, factor: u32) -> Duration {
        spent * factor * self.share
    }

    fn kills(&self, deadline: Deadline) -> Option<u64> {
        cgroup::oom_kills(self.group.as_deref()?, deadline)
    }

    fn count_kills(&mut self, now: Instant) {
        if let Some(kills) = self.kills(self.target.deadline()) {
            self.oom_kills.push_back((now, kills));
        }
        while self.oom_kills.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) > DYING) {
            self.oom_kills.pop_front();
        }
    }

    /// Whether so much memory has come since the last query that the owners should be queried again, by the last ledger.
    fn has_grown(&self, now: Instant, rss: Rss) -> bool {
        now >= self.growing_at && self.growth.is_much(rss.total())
    }

    /// Reads the figures of this moment, if the query that they may spare isn't due anyway. True: they were read.
    fn look_closer(&mut self, now: Instant, process: (&Process, Rss), booked: Option<Booked>, full: bool) -> bool {
        let is_read = now < self.owners_at && self.may_query && self.lines(now, process, booked, full);
        if let Some(snapshot) = self.snapshot.as_ref().filter(|_| is_read) {
            self.growth.count(needs_no_query(snapshot, &Ledger::of(snapshot)), false);
        }
        is_read
    }

    /// Queries who owns what if that is due. True: the snapshot is of this moment. `last`: no reading follows, so no later
    /// query would find the owners of the newest memory.
    fn owners(&mut self, now: Instant, rss: Rss, booked: Option<Booked>, (full, last): (bool, bool)) -> bool {
        let is_due = now >= self.owners_at || self.has_grown(now, rss);
        let is_extra = !is_due && last && now.saturating_duration_since(self.queried_at) >= GROWING_QUERIED;
        if !(is_due || is_extra) || self.snapshot.is_some() && !self.may_query {
            return false;
        }
        let before = processor_time();
        let earlier = self.snapshot.as_ref().filter(|_| !full);
        let deadline = self.target.deadline();
        let deadline = if is_extra { deadline.sooner(LAST_QUERY) } else { deadline };
        let taken = self.series.take(self.pid, earlier, deadline);
        if is_extra
            && taken.as_ref().is_ok_and(|new| self.snapshot.as_ref().is_some_and(|old| is_mute(new) && !is_mute(old)))
        {
            // The older answer says more than none.
            return false;
        }
        let spent = processor_time().saturating_sub(before);
        self.growth.begin(rss.total());
        self.growing_at = now + self.budget(spent, GROWING_OWNERS).max(GROWING_QUERIED);
        let Ok(mut snapshot) = taken else {
            self.owners_at = now + self.budget(spent, OWNERS);
            return false;
        };
        self.owners_at = now
            + patience(
                &snapshot,
                self.began.map_or(Duration::MAX, |began| began.elapsed() * if self.share > 1 { 3 } else { 1 }),
                self.budget(spent, OWNERS),
            );
        self.memory = snapshot.host.memory;
        self.queried_at = now;
        let mmapped = snapshot.glibc.iter().flat_map(|glibc| &glibc.mmapped).map(|chunk| chunk.range.length()).sum();
        snapshot.booked = booked.map(|walk| BookedSince { walk, mmapped, now: walk });
        self.series.begin(self.snapshot.as_ref(), &snapshot);
        self.snapshot = Some(snapshot);
        true
    }

    /// Reads the figures of this moment for the known owners. A full instant reads smaps, which has more than Rss.
    fn lines(&mut self, now: Instant, (process, rss): (&Process, Rss), booked: Option<Booked>, full: bool) -> bool {
        let Some(snapshot) = &mut self.snapshot else { return false };
        snapshot.booked = snapshot.booked.zip(booked).map(|(since, now)| BookedSince { now, ..since });
        let before = processor_time();
        let figures = if full { MappingDetail::Whole } else { MappingDetail::Pages };
        let read = self.series.update(&self.target, snapshot, (process.clone(), rss), figures).is_ok();
        let spent = processor_time().saturating_sub(before);
        let saved = now.checked_sub(SAVED).map_or(now, |oldest| self.lines_at.max(oldest));
        self.lines_at = saved + spent * LINES * self.share;
        if snapshot.hotspot.is_none() && hotspot::is_hotspot(&snapshot.vmas) {
            // A VM has started since the last query, so the known owners are outdated: query them now.
            self.owners_at = now;
        }
        read
    }

    /// The tracker's books, if the target is tracked. An exec leaves one segment and may make another.
    fn books(&mut self, full: bool, last: bool) -> Option<(Books, Vec<Site>)> {
        let deadline = self.target.deadline();
        if self.may_have_segment(full, last) {
            self.segment = match segment::find_by_pid(self.pid, deadline) {
                Some((path, _, Life::Live)) => Some(path),
                _ => None,
            };
        }
        let Some(path) = self.segment.as_deref() else {
            self.unread_times = 0;
            return None;
        };
        if !full {
            let read = target::sums(path, deadline);
            return Some((self.noted(read)?, Vec::new()));
        }
        let read = target::of_segment(path, Life::Live, Some(self.pid), deadline);
        let read = self.noted(read)?;
        let sites = self.sites(&read, last);
        Some((read.books, sites))
    }

    /// What was read, if it could be. Counts the readings in a row that couldn't.
    fn noted<T>(&mut self, read: Result<T, Failure>) -> Option<T> {
        match read {
            Ok(read) => {
                self.unread_times = 0;
                Some(read)
            }
            Err(Failure(reason)) => {
                self.unread_books = Some(reason);
                self.unread_times += 1;
                None
            }
        }
    }

    /// Whether to search for the segment. A search reads all mappings and costs as much as the rest of an instant.
    fn may_have_segment(&self, full: bool, last: bool) -> bool {
        let is_young = self.samples < BEGINNING && self.began.is_none_or(|began| began.elapsed() < YOUNG);
        let vmas = self.snapshot.as_ref().map(|snapshot| snapshot.vmas.as_slice());
        match &self.segment {
            // A name below /proc vanishes with the process. The segment has such a name while it is being made.
            Some(path) => full || path.starts_with("/proc") && is_young,
            // A tracker that is attached later maps its segment. Without mappings it can be found in its directory.
            None if full && vmas.is_some_and(<[_]>::is_empty) => true,
            None => last || is_young || vmas.is_none_or(|vmas| vmas.iter().any(|vma| vma.name.ends_with(".seg"))),
        }
    }

    /// `must`: no later instant could have more sites or better names.
    fn sites(&mut self, read: &target::TrackedTarget, must: bool) -> Vec<Site> {
        let now = Instant::now();
        if !must && now < self.sites_at {
            return Vec::new();
        }
        let before = processor_time();
        let nameless = symbols::SymbolOptions { without: true, ..symbols::SymbolOptions::default() };
        let sites = read.sites(&nameless, false);
        self.sites_at = now + processor_time().saturating_sub(before) * SITES * self.share;
        let wait = if must { read.deadline.left() } else { self.interval / 4 };
        self.names.sites(&sites, &read.books, read.symbols(&[]), wait, must)
    }

    /// The end of the target: its last books, from the segment, and how it ended.
    pub fn end(&mut self, status: Option<sys::ChildEnd>) -> SamplerEnd {
        // Finding the missing names may take as long as for a report.
        let deadline = Deadline::after(NAMES);
        let kills = self.kills(deadline);
        let oom_killed = matches!((self.oom_kills.front(), kills), (Some((_, before)), Some(now)) if now > *before);
        let known = self.segment.clone().and_then(|path| Some((segment::head_of(&path, deadline).ok()?, path)));
        let left = || segment::find_by_pid(self.pid, deadline).map(|(path, head, _)| (head, path));
        let read = known.or_else(|| left().filter(|(head, _)| head.start_boottime_ns >= self.started_ns));
        if let (Some(status), Some((_, path))) = (status, &read) {
            let how = match status {
                sys::ChildEnd::Code(code) => ending::How::Code(code),
                sys::ChildEnd::Signal(signal) => ending::How::Signal(u8::try_from(signal).unwrap_or(0)),
            };
            let oom = oom_killed.then_some(true);
            // For later reports on the segment. They can do without it, so a failure is ignored.
            let _ = segment::set_ended(path, ending::Ending { how, oom }, deadline);
        }
        let (last, sites) = read
            .and_then(|(head, path)| {
                let life = segment::life_of(&head, &path, deadline);
                let read = target::of_segment(&path, life, None, deadline).ok()?;
                let sites = self.sites(&read, true);
                Some((read.books, sites))
            })
            .unzip();
        let sites = sites.unwrap_or_default();
        let how = match (status, &last) {
            (Some(sys::ChildEnd::Code(code)), _) => TargetEndKind::Code(i32::from(code)),
            (Some(sys::ChildEnd::Signal(signal)), _) => TargetEndKind::Signal(signal),
            (None, Some(books)) if books.life != Life::Live => TargetEnd::of(books.life),
            _ => TargetEndKind::Unknown,
        };
        let end = TargetEnd { how, oom_killed, last_sign_ns: last.as_ref().map(|books| books.time_ns) };
        SamplerEnd {
            end,
            books: last,
            sites,
            time_ns: now_ns(),
            cost: Cost { cpu: processor_time(), ..Cost::default() },
        }
    }
}

/// Replaces the limit, and the gaps about it, by those of this moment. A group that can't be read now must not look as if
/// it were still charged with what it was before.
fn set_group(snapshot: &mut Snapshot, group: Option<Cgroup>, gaps: Vec<Gap>) {
    let known = snapshot.cgroup.take();
    let is_same = known.as_ref().zip(group.as_ref()).is_some_and(|(known, now)| known.directory == now.directory);
    // Each instant reads all but what others hold.
    let stays = |gap: &Gap| gap.source != Source::Cgroup || is_same && cgroup::is_about_others(gap);
    snapshot.gaps.retain(stays);
    snapshot.gaps.extend(gaps);
    snapshot.cgroup = group.map(|group| with_known(group, known));
}

/// The gap about books that can't be read, or none.
fn set_unread_books(snapshot: &mut Snapshot, reason: Option<&str>) {
    snapshot.gaps.retain(|gap| gap.effect != NO_BOOKS);
    snapshot.gaps.extend(reason.map(|reason| Gap::new(Source::Segment, reason, NO_BOOKS)));
}

/// Verdicts and metrics are about this moment. What other processes and groups hold is of the last query, and so are the
/// statistics of outer levels that are far from their limits.
fn with_known(now: Cgroup, known: Option<Cgroup>) -> Cgroup {
    let Some(known) = known.filter(|known| known.directory == now.directory) else { return now };
    let of = |mut level: Cgroup| {
        if let Some(same) = known.levels().find(|known| known.limit_path == level.limit_path) {
            level.siblings.clone_from(&same.siblings);
            if level.stat == MemoryStat::default() {
                level.stat.clone_from(&same.stat);
            }
        }
        level
    };
    let further = now.further.iter().cloned().map(of).collect();
    Cgroup { further, others: known.others.clone(), ..of(now) }
}

/// How much memory has come since the last query of the owners that only a query can classify.
#[derive(Clone, Copy, Default)]
struct Growth {
    /// Resident bytes at the last query.
    queried: Bytes,
    /// Bytes that need no query, at the last query and by the last ledger.
    known_then: Bytes,
    known: Bytes,
}

impl Growth {
    /// Begins again with a query.
    fn begin(&mut self, rss: Bytes) {
        (self.queried, self.known_then) = (rss, self.known);
    }

    /// A ledger found bytes that need no query. `is_query`: it is that of the last query.
    fn count(&mut self, known: Bytes, is_query: bool) {
        self.known = known;
        if is_query {
            self.known_then = known;
        }
    }

    /// Whether it is so much that the known owners explain too little.
    fn is_much(&self, rss: Bytes) -> bool {
        let come = (rss - self.known) - (self.queried - self.known_then);
        come >= Bytes(self.queried.0 / GROWN).max(GROWN_BY)
    }
}

/// Resident bytes of which a query would find out nothing: their address alone says who owns them. More of the Java heap
/// than the VM had committed shows that its figures are old.
fn needs_no_query(snapshot: &Snapshot, ledger: &Ledger) -> Bytes {
    const BY_ADDRESS: [LineId; 4] = [LineId::Libraries, LineId::MappedFiles, LineId::ThreadStacks, LineId::Tracker];
    let by_address: Bytes = BY_ADDRESS.iter().map(|line| ledger.resident(*line)).sum();
    let heap = snapshot.hotspot.as_ref().and_then(|vm| vm.java_heap.as_ref());
    by_address + ledger.resident(LineId::JavaHeap).min(heap.map(|heap| heap.committed).unwrap_or_default())
}

/// Whether a VM left a query unanswered, at least in part.
fn is_mute(snapshot: &Snapshot) -> bool {
    snapshot.gaps.iter().any(|gap| gap.source == Source::HotSpot)
}

/// Time until the owners are queried again. A program that has just begun may have no VM, heap or arenas yet. So it is
/// queried again when its age has doubled: `log2(t)` times by age `t`.
fn patience(snapshot: &Snapshot, age: Duration, rest: Duration) -> Duration {
    let mute = is_mute(snapshot);
    let least = match (&snapshot.hotspot, &snapshot.native_image) {
        // The VM answered, so its part is complete.
        (Some(_), None) if !mute => return rest.max(QUERIED),
        (_, Some(_)) => QUERIED,
        _ if mute => QUERIED,
        _ => Duration::ZERO,
    };
    rest.max(least).min(age)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_facts::snapshot::{HotSpot, JavaHeap, NativeImage, Throttle};
    use plimsoll_observer::ledger::{Grade, Line};

    /// The first mapping already shows a native image, but its heap is mapped later.
    #[test]
    fn a_process_that_has_just_begun_is_queried_again() {
        let image = Snapshot { native_image: Some(NativeImage::default()), ..Snapshot::default() };
        let vm = Snapshot { hotspot: Some(HotSpot::default()), ..Snapshot::default() };
        let [ms, s] = [Duration::from_millis, Duration::from_secs];
        let after = |of: &Snapshot, age: Duration| patience(of, age, ms(20) * OWNERS);
        assert_eq!([ms(300), s(4), s(3600)].map(|age| after(&image, age)), [ms(300), s(4), s(20)]);
        assert_eq!([ms(300), s(3600)].map(|age| after(&vm, age)), [s(20), s(20)]);
        assert_eq!([s(4), s(3600)].map(|age| after(&Snapshot::default(), age)), [s(4), s(20)]);
        assert_eq!(patience(&image, s(3600), ms(1) * OWNERS), QUERIED);
    }

    #[test]
    fn what_throttles_is_of_this_moment_and_what_others_hold_of_the_last_query() {
        let group = |directory: &str, times: u64| {
            let throttles = vec![Throttle { times, ..Throttle::default() }];
            Cgroup { directory: directory.into(), others: vec![(7, Bytes(times))], throttles, ..Cgroup::default() }
        };
        let now = |directory: &str| Cgroup { others: Vec::new(), ..group(directory, 2) };
        let same = with_known(now("/a"), Some(group("/a", 1)));
        assert_eq!((same.throttles[0].times, same.others), (2, vec![(7, Bytes(1))]));
        // After a move to another group, the old one's processes aren't beside it.
        let moved = with_known(now("/b"), Some(group("/a", 1)));
        assert_eq!((moved.throttles[0].times, moved.others.len()), (2, 0));
    }

    /// A refusal later in a recording is a gap, and the charge of before isn't judged as if it were that of now.
    #[test]
    fn a_group_that_can_no_longer_be_read_is_a_gap() {
        let gap = |effect: &str| Gap::new(Source::Cgroup, "refused", effect);
        let of = |directory: &str, charged: u64| Cgroup {
            directory: directory.into(),
            charged: Bytes(charged),
            others: vec![(7, Bytes(1))],
            ..Cgroup::default()
        };
        let mut snapshot = Snapshot { cgroup: Some(of("/a", 1)), ..Snapshot::default() };
        snapshot.gaps = vec![gap("old"), gap(cgroup::OTHERS_UNKNOWN), Gap::new(Source::Proc, "refused", "other")];
        let effects = |snapshot: &Snapshot| snapshot.gaps.iter().map(|gap| gap.effect.clone()).collect::<Vec<_>>();
        set_group(&mut snapshot, Some(of("/a", 2)), Vec::new());
        assert_eq!(snapshot.cgroup.as_ref().map(|group| group.charged), Some(Bytes(2)));
        assert_eq!(effects(&snapshot), [cgroup::OTHERS_UNKNOWN, "other"]);
        set_group(&mut snapshot, None, vec![gap("now")]);
        assert!(snapshot.cgroup.is_none());
        assert_eq!(effects(&snapshot), ["other", "now"]);
        set_group(&mut snapshot, Some(of("/b", 3)), Vec::new());
        assert_eq!(effects(&snapshot), ["other"]);
    }

    #[test]
    fn books_that_cannot_be_read_are_a_gap_until_they_can() {
        let mut snapshot = Snapshot::default();
        for reason in ["one", "two"] {
            set_unread_books(&mut snapshot, Some(reason));
            assert_eq!(snapshot.gaps, [Gap::new(Source::Segment, reason, NO_BOOKS)]);
        }
        set_unread_books(&mut snapshot, None);
        assert!(snapshot.gaps.is_empty());
    }

    #[test]
    fn growth_from_64_mib_to_1_gib_is_queried_24_times() {
        let (mut growth, mut queries) = (Growth::default(), 0);
        growth.begin(Bytes::mib(64));
        for now in (64..=1024).map(Bytes::mib) {
            if growth.is_much(now) {
                growth.begin(now);
                queries += 1;
            }
        }
        assert!((20..=24).contains(&queries), "{queries}");
        assert!(!growth.is_much(Bytes::mib(60)) && !Growth::default().is_much(Bytes::mib(7)));
    }

    /// A JVM that touches its heap up to what it had committed needs no query; what malloc gets does, and so does a heap
    /// that was committed since.
    #[test]
    fn growth_of_the_committed_java_heap_is_not_queried() {
        let mib = Bytes::mib;
        let line = |id: LineId, resident: Bytes| Line {
            id,
            name: String::new(),
            resident,
            reserved: resident,
            committed: resident,
            grade: Grade::Exact,
            error: Bytes(0),
            sources: Vec::new(),
            distinct: resident,
            pss: resident,
            children: Vec::new(),
        };
        let known = |heap: Bytes, malloc: Bytes| {
            let heap_facts = JavaHeap { committed: mib(400), ..JavaHeap::default() };
            let hotspot = HotSpot { java_heap: Some(heap_facts), ..HotSpot::default() };
            let snapshot = Snapshot { hotspot: Some(hotspot), ..Snapshot::default() };
            let ledger = Ledger {
                lines: vec![
                    line(LineId::JavaHeap, heap),
                    line(LineId::GlibcUnknown, malloc),
                    line(LineId::Tracker, mib(2)),
                ],
                ..Ledger::of(&Snapshot::default())
            };
            needs_no_query(&snapshot, &ledger)
        };
        let mut growth = Growth::default();
        growth.begin(mib(100));
        growth.count(known(mib(40), mib(30)), true);
        assert!(!growth.is_much(mib(110)));
        // By the old ledger, it could be malloc's.
        assert!(growth.is_much(mib(400)));
        growth.count(known(mib(340), mib(30)), false);
        assert!(!growth.is_much(mib(400)));
        growth.count(known(mib(330), mib(43)), false);
        assert!(growth.is_much(mib(403)));
        growth.count(known(mib(450), mib(30)), false);
        assert!(growth.is_much(mib(510)));
    }
}
