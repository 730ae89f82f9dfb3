//! Records one process: decides what to read at which instant, and writes it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_observer::books::{Booked, BookedSince, Books};
use plimsoll_observer::collect::{MappingDetail, Regions, Series, take};
use plimsoll_observer::ending;
use plimsoll_observer::foreign::{Deadline, LOOK, NAMES};
use plimsoll_observer::gap::Source;
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::snapshot::{Process, ProcessState, Rss, Snapshot};
use plimsoll_observer::source::proc::{self, Target};
use plimsoll_observer::source::segment::{self, Life as State};
use plimsoll_observer::source::{cgroup, hotspot};
use plimsoll_observer::symbols;
use plimsoll_observer::units::Bytes;
use plimsoll_observer::verdict::judge;
use plimsoll_report::jfr::{Cost, End, How, Instant as Moment, Site, Target as Described, Told};
use plimsoll_report::words;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use super::file::{Output, Written};
use super::names::Names;
use crate::{Failure, sys, target};

/// Interval of sites, peaks and arenas. It suffices for the curve of a night and keeps an hour below 8 MiB.
const FULL: Duration = Duration::from_secs(20);
/// A VM stops while it answers, so it is queried at most this often, however cheap the answer is.
const ASKED: Duration = Duration::from_secs(10);
/// Instants in which a program that was just started may still load its tracker.
const BEGINNING: u64 = 5;
/// A killed process stays visible for a while, so an instant before its end may already have counted its kill.
const DYING: Duration = Duration::from_secs(2);
/// Work that costs `c` of CPU time is repeated every `n × c`: mappings may take 0.4 % of a core, owners 0.2 %, sites
/// 0.15 %.
const LINES: u32 = 250;
const OWNERS: u32 = 500;
const SITES: u32 = 666;
/// Cheap readings save time for an expensive one: at most this much.
const SAVED: Duration = FULL;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Live,
    Ended,
}

pub struct Recorder {
    pid: u32,
    target: Target,
    /// The target is our child: SIGCHLD reports its end.
    child: bool,
    /// Becomes readable when the process ends. None on kernels before 5.3.
    pidfd: Option<OwnedFd>,
    snapshot: Option<Snapshot>,
    series: Series,
    /// When the owners were last queried.
    asked: Instant,
    /// When the current program began in the process; its age bounds the time to the next query.
    began: Option<Instant>,
    /// When each kind of work is next due.
    owners_at: Instant,
    lines_at: Instant,
    full_at: Instant,
    sites_at: Instant,
    segment: Option<PathBuf>,
    /// Start of the process, CLOCK_BOOTTIME ns; 0: unknown. An earlier process with the same PID may have left a
    /// segment.
    started_ns: u64,
    names: Names,
    told: Told,
    described: Described,
    output: Output,
    /// The OOM kills in the target's cgroup at the last instants, oldest first.
    oom_kills: VecDeque<(Instant, u64)>,
    group: Option<PathBuf>,
    instants: u64,
    first_rss: Option<Bytes>,
    rss: Bytes,
    /// Memory of the host.
    memory: Bytes,
}

impl Recorder {
    pub fn of(pid: u32, child: bool, interval: Duration, output: Output) -> Result<Recorder, Failure> {
        let target = Target::open(pid, Deadline::after(LOOK)).map_err(|absent| match absent {
            proc::Absent::NoSuchProcess => Failure(format!("no process {pid}")),
            proc::Absent::NoProc => Failure("/proc is not mounted here: nothing can be read".into()),
        })?;
        if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
            return Err(format!("{pid} is a thread of process {leader}: plimsoll record {leader}").into());
        }
        let (process, _) = proc::read_process(&target).map_err(|_| format!("no process {pid}"))?;
        // A child that ended at once stays a zombie until we reap it.
        if let Some(reason) = proc::refusal(process.state, pid).filter(|_| !child) {
            return Err(reason.into());
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let now = Instant::now();
        Ok(Recorder {
            pid,
            target,
            child,
            pidfd: raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok()),
            snapshot: None,
            series: Series::default(),
            asked: now,
            began: process.uptime.and_then(|age| now.checked_sub(Duration::try_from_secs_f64(age).ok()?)),
            owners_at: now,
            lines_at: now,
            full_at: now,
            sites_at: now,
            segment: None,
            started_ns: segment::start_time_ns(pid).unwrap_or(0),
            names: Names::default(),
            told: Told::default(),
            described: Described { pid, interval, ..Described::default() },
            output,
            oom_kills: VecDeque::new(),
            group: None,
            instants: 0,
            first_rss: None,
            rss: Bytes(0),
            memory: Bytes(0),
        })
    }

    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// True also for a zombie, which has no memory.
    pub fn has_ended(&self) -> bool {
        let lives = |process: &Process| process.state != ProcessState::Zombie || process.thread_count > 1;
        !proc::read_process(&self.target).is_ok_and(|(process, _)| lives(&process))
    }

    /// Writes one instant. `last`: no instant follows, so it is a full one.
    pub fn instant(&mut self, missed: u64, last: bool) -> Result<Life, Failure> {
        let began = Instant::now();
        // The last instant waits for missing names, as a report does.
        let deadline = Deadline::after(if last { NAMES } else { LOOK });
        self.target.allow(deadline);
        let full = last || began >= self.full_at;
        let Ok((process, rss)) = proc::read_process(&self.target) else {
            // SIGCHLD reports how our own child ended.
            return if self.child { Ok(Life::Live) } else { self.end(None) };
        };
        if process.state == ProcessState::Zombie {
            // After pthread_exit of the first thread the other threads run on, but this entry of /proc shows no memory.
            return if self.child || process.thread_count > 1 { Ok(Life::Live) } else { self.end(None) };
        }
        let executable = process.executable.clone().unwrap_or_default();
        if executable != self.described.executable {
            // After an exec the process has other memory, other owners, and another segment.
            self.segment = None;
            self.series = Series::default();
            self.owners_at = began;
            if self.instants > 0 {
                self.began = Some(began);
            }
        }
        let time_ns = now_ns();
        let (books, sites) = self.books(full, last).unzip();
        let sites = sites.unwrap_or_default();
        let booked = books.as_ref().map(Booked::of);
        let of_now = self.owners(began, booked)
            || (began >= self.lines_at || last) && self.lines(began, (&process, rss), booked, full);
        let group = cgroup::read_limit(&self.target, self.memory).0.map(|(group, _)| group);
        // Checked after the readings, so that no reading of a process in teardown is written.
        if proc::is_exiting(&self.target) {
            return Ok(Life::Live);
        }
        self.group = group.as_ref().map(|group| group.directory.clone());
        self.count_kills(began);
        let snapshot = self.snapshot.take();
        let of_now = snapshot.as_ref().filter(|_| of_now);
        let ledger = of_now.map(|snapshot| (snapshot, Ledger::of(snapshot)));
        let verdicts = ledger.as_ref().map(|(snapshot, ledger)| judge(snapshot, ledger)).unwrap_or_default();
        let resident = ledger.as_ref().map_or(rss.total(), |(_, ledger)| ledger.rss);
        self.first_rss.get_or_insert(resident);
        self.rss = resident;
        self.describe(&process, snapshot.as_ref(), books.as_ref());
        let moment = Moment {
            rss: Some((resident, process.peak_rss.unwrap_or_default())),
            cgroup: group.as_ref(),
            ledger: ledger.as_ref().map(|(snapshot, ledger)| (*snapshot, ledger)),
            verdicts: &verdicts,
            books: books.as_ref(),
            sites: &sites,
            pressure: cgroup::pressure(self.group.as_deref(), deadline),
            full,
            cost: Cost {
                cpu: processor_time(),
                reading: began.elapsed(),
                mmap_lock: of_now
                    .and_then(|of| of.reading(Source::Proc))
                    .map_or(Duration::ZERO, |reading| reading.took),
                missed,
            },
            provenance_age: if self.asked == began { Duration::ZERO } else { began - self.asked },
            ..Moment::default()
        };
        let (told, described) = (&mut self.told, &self.described);
        self.output.instant(time_ns, |batch| moment.write(batch, told, described))?;
        self.snapshot = snapshot;
        self.instants += 1;
        if full {
            self.full_at = began + FULL;
        }
        Ok(Life::Live)
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

    /// Queries who owns what if that is due. True: the snapshot is of this moment.
    fn owners(&mut self, now: Instant, booked: Option<Booked>) -> bool {
        if now < self.owners_at {
            return false;
        }
        let before = processor_time();
        let taken = take(self.pid, Regions::AsNeeded, self.target.deadline());
        let spent = processor_time().saturating_sub(before);
        let Ok(mut snapshot) = taken else {
            self.owners_at = now + spent * OWNERS;
            return false;
        };
        self.owners_at =
            now + patience(&snapshot, self.began.map_or(Duration::MAX, |began| began.elapsed()), spent * OWNERS);
        self.memory = snapshot.host.memory;
        self.asked = now;
        // Each instant reads the cgroup itself.
        snapshot.gaps.retain(|gap| self.snapshot.is_none() || gap.source != Source::Cgroup);
        let mmapped = snapshot.glibc.iter().flat_map(|glibc| &glibc.mmapped).map(|chunk| chunk.range.length()).sum();
        snapshot.booked = booked.map(|walk| BookedSince { walk, mmapped, now: walk });
        self.snapshot = Some(snapshot);
        self.series.begin();
        true
    }

    /// Reads the figures of this moment for the known owners. A full instant reads smaps, which has more than Rss.
    fn lines(&mut self, now: Instant, (process, rss): (&Process, Rss), booked: Option<Booked>, full: bool) -> bool {
        let Some(snapshot) = &mut self.snapshot else { return false };
        snapshot.booked = snapshot.booked.zip(booked).map(|(since, now)| BookedSince { now, ..since });
        let before = processor_time();
        let figures = if full { MappingDetail::Whole } else { MappingDetail::Pages };
        let read = self.series.again(&self.target, snapshot, (process.clone(), rss), figures).is_ok();
        let spent = processor_time().saturating_sub(before);
        let saved = now.checked_sub(SAVED).map_or(now, |oldest| self.lines_at.max(oldest));
        self.lines_at = saved + spent * LINES;
        if snapshot.hotspot.is_none() && hotspot::is_hotspot(&snapshot.vmas) {
            // A VM has started since the last query, so the known owners are outdated: query them now.
            self.owners_at = now;
        }
        read
    }

    /// The tracker's books, if the target is tracked. An exec leaves one segment and may make another.
    fn books(&mut self, full: bool, last: bool) -> Option<(Books, Vec<Site>)> {
        // A search costs as much as the rest of an instant. So search only in full instants, while the program is
        // young, and if a segment is mapped.
        let is_mapped = || {
            let snapshot = self.snapshot.as_ref();
            snapshot.is_none_or(|snapshot| snapshot.vmas.iter().any(|vma| vma.name.ends_with(".seg")))
        };
        let deadline = self.target.deadline();
        // A name below /proc vanishes with the process. The segment has such a name while it is being made.
        let lasts = |path: &PathBuf| !path.starts_with("/proc");
        let is_early = self.instants < BEGINNING;
        if full || !self.segment.as_ref().is_some_and(lasts) && (is_early || self.segment.is_none() && is_mapped()) {
            self.segment = match segment::find_by_pid(self.pid, deadline) {
                Some((path, _, State::Live)) => Some(path),
                _ => None,
            };
        }
        let read = target::of_segment(self.segment.as_deref()?, State::Live, Some(self.pid), deadline).ok()?;
        let sites = if full { self.sites(&read, last) } else { Vec::new() };
        Some((read.books, sites))
    }

    /// `must`: no later instant could have more sites or better names.
    fn sites(&mut self, read: &target::Target, must: bool) -> Vec<Site> {
        let now = Instant::now();
        if !must && now < self.sites_at {
            return Vec::new();
        }
        let before = processor_time();
        let nameless = symbols::Options { without: true, ..symbols::Options::default() };
        let sites = read.sites(&nameless, false);
        self.sites_at = now + processor_time().saturating_sub(before) * SITES;
        let wait = if must { read.deadline.left() } else { self.described.interval / 4 };
        self.names.sites(&sites, &read.books, read.symbols(&[]), wait, must)
    }

    fn describe(&mut self, process: &Process, snapshot: Option<&Snapshot>, books: Option<&Books>) {
        let vm = snapshot.and_then(|snapshot| snapshot.hotspot.as_ref());
        let image = snapshot.and_then(|snapshot| snapshot.native_image.as_ref());
        let (runtime, version) = match (vm, image, books) {
            (Some(vm), _, _) => ("hotspot", vm.version.clone()),
            (_, Some(_), _) => ("native-image", String::new()),
            (_, _, Some(books)) => {
                (books.process.runtime.name(), books.process.runtime_version.clone().unwrap_or_default())
            }
            _ => ("native", String::new()),
        };
        self.described = Described {
            pid: self.pid,
            command: process.command.join(" "),
            executable: process.executable.clone().unwrap_or_default(),
            runtime,
            runtime_version: version,
            mode: books.map_or("untracked", |books| books.mode.name()),
            interval: self.described.interval,
        };
    }

    /// Writes the end of the target: its last books, from the segment, and how it ended.
    pub fn end(&mut self, status: Option<sys::End>) -> Result<Life, Failure> {
        // Finding the missing names may take as long as for a report.
        let deadline = Deadline::after(NAMES);
        let kills = self.kills(deadline);
        let oom_killed = matches!((self.oom_kills.front(), kills), (Some((_, before)), Some(now)) if now > *before);
        let known = self.segment.clone().and_then(|path| Some((segment::head_of(&path, deadline).ok()?, path)));
        let left = || segment::find_by_pid(self.pid, deadline).map(|(path, head, _)| (head, path));
        let read = known.or_else(|| left().filter(|(head, _)| head.start_boottime_ns >= self.started_ns));
        if let (Some(status), Some((_, path))) = (status, &read) {
            let how = match status {
                sys::End::Code(code) => ending::How::Code(code),
                sys::End::Signal(signal) => ending::How::Signal(u8::try_from(signal).unwrap_or(0)),
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
            (Some(sys::End::Code(code)), _) => How::Code(i32::from(code)),
            (Some(sys::End::Signal(signal)), _) => How::Signal(signal),
            (None, Some(books)) if books.life != State::Live => End::of(books.life),
            _ => How::Unknown,
        };
        let end = End { how, oom_killed, last_sign_ns: last.as_ref().map(|books| books.time_ns) };
        let cost = Cost { cpu: processor_time(), ..Cost::default() };
        let moment =
            Moment { books: last.as_ref(), sites: &sites, full: true, end: Some(&end), cost, ..Moment::default() };
        let (told, described) = (&mut self.told, &self.described);
        self.output.instant(now_ns(), |batch| moment.write(batch, told, described))?;
        self.instants += 1;
        Ok(Life::Ended)
    }

    pub fn rotate(&mut self) -> Result<(), Failure> {
        self.output.rotate()
    }

    /// The text for the terminal.
    pub fn progress(&self) -> String {
        let rss = self.rss;
        let first = self.first_rss.unwrap_or_default();
        let sign = if rss < first { '-' } else { '+' };
        format!("{}  RSS {rss} ({sign}{})  {} written", self.pid, rss.abs_diff(first), self.output.written())
    }

    /// One sentence for the end of the recording.
    pub fn finish(self) -> Result<String, Failure> {
        let Recorder { pid, output, instants, .. } = self;
        Ok(match output.finish()? {
            Some(Written { name, files: 1, bytes }) => {
                format!("{} of process {pid} in {name} ({bytes})", words::counted(instants, "instant"))
            }
            Some(Written { name, files, bytes }) => {
                let instants = words::counted(instants, "instant");
                format!("{instants} of process {pid} in {files} files, the last {name} ({bytes} together)")
            }
            None => format!("process {pid} ended before its first reading: there is no recording"),
        })
    }
}

/// Time until the owners are queried again. A program that has just begun may have no VM, heap or arenas yet. So it is
/// queried again when its age has doubled: `log2(t)` times by age `t`.
fn patience(snapshot: &Snapshot, age: Duration, dear: Duration) -> Duration {
    let mute = snapshot.gaps.iter().any(|gap| gap.source == Source::HotSpot);
    let least = match (&snapshot.hotspot, &snapshot.native_image) {
        // The VM answered, so its part is complete.
        (Some(_), None) if !mute => return dear.max(ASKED),
        (_, Some(_)) => ASKED,
        _ if mute => ASKED,
        _ => Duration::ZERO,
    };
    dear.max(least).min(age)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_observer::snapshot::{HotSpot, NativeImage};

    /// The first mapping already shows a native image, but its heap is mapped later.
    #[test]
    fn what_has_just_begun_is_asked_again() {
        let image = Snapshot { native_image: Some(NativeImage::default()), ..Snapshot::default() };
        let vm = Snapshot { hotspot: Some(HotSpot::default()), ..Snapshot::default() };
        let [ms, s] = [Duration::from_millis, Duration::from_secs];
        let after = |of: &Snapshot, age: Duration| patience(of, age, ms(40) * OWNERS);
        assert_eq!([ms(300), s(4), s(3600)].map(|age| after(&image, age)), [ms(300), s(4), s(20)]);
        assert_eq!([ms(300), s(3600)].map(|age| after(&vm, age)), [s(20), s(20)]);
        assert_eq!([s(4), s(3600)].map(|age| after(&Snapshot::default(), age)), [s(4), s(20)]);
        assert_eq!(patience(&image, s(3600), ms(1) * OWNERS), ASKED);
    }
}
