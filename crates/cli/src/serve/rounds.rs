//! The thread that reads the targets, one after the other, round after round: at each interval, and when a scrape wants
//! newer figures.
//!
//! The cost of all targets together is bounded: the budgets of a sampler are divided by the number of targets, and a
//! target that takes long is left alone for a while (`REST`). Its figures stay, and say how old they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_facts::shell::one_line;
use plimsoll_facts::snapshot::lacking;
use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::Baseline;
use plimsoll_process::foreign::Deadline;
use plimsoll_process::proc::stat;
use plimsoll_process::processes::{self, Identity, KnownKinds, Listed, Listing};
use plimsoll_report::ledger_json;
use plimsoll_report::metrics::Samples;
use plimsoll_report::process_title::java_first;
use plimsoll_report::serve_list::Row;
use rustix::time::{ClockId, clock_gettime};

use super::board::{Board, Published};
use super::history::{Store, Written};
use super::recent::Recent;
use super::targets::{self, Names, TargetSelection};
use crate::Failure;
use crate::output::print_message;
use crate::record::Writer;
use crate::sampler::{Read, Sample, Sampler, Subject};

/// Time for the list of processes, and for one reading of one target.
const LISTING: Duration = Duration::from_secs(5);
const READING: Duration = Duration::from_secs(2);
/// Time for a round: a scrape doesn't wait for the targets that are left then.
const ROUND: Duration = Duration::from_secs(8);
/// A list that took `t` of processor time is made again after `t × 250`.
const LISTS: u32 = 250;
/// Each target gets the budget of one process, divided by the number of targets / `SHARE`.
const SHARE: usize = 2;
/// A round that took this part of an interval queries no more owners: many targets that started together are due
/// together.
const QUERIES: u32 = 300;
/// A target whose reading took `t`, more than `SLOW`, is read again after `t × REST`. The time that this thread waited
/// for a processor doesn't count: a busy machine isn't the target's fault, and on a busy machine figures matter most.
const SLOW: Duration = Duration::from_millis(500);
const REST: u32 = 60;
/// Time until a recording, or a process that can't be read, is tried again after an error.
const AGAIN: Duration = Duration::from_secs(300);
/// A verdict compares with a moment one to two times this long ago; for a young process, with one a quarter to a half
/// of its age ago, because every program grows at its start. Seconds.
const BASELINE: f64 = 3600.0;
const LEAST_BASELINE: f64 = 60.0;

struct SampledTarget {
    name: String,
    command: String,
    sampler: Sampler,
    published: Option<Published>,
    rests_until: Option<Instant>,
    /// The baseline after the present one.
    next_baseline: Option<Baseline>,
    recent: Arc<Mutex<Recent>>,
    recorded: Recorded,
}

/// The recording of a target.
struct Recorded {
    writer: Option<Writer>,
    /// When the next reading is written or, without a writer, when a writer is made again.
    next: Instant,
}

impl Recorded {
    /// Whether the next reading begins a file: such a reading should be a full one.
    fn begins_file(&self, now: Instant) -> bool {
        now >= self.next && self.writer.as_ref().is_none_or(Writer::begins_file)
    }
}

pub struct Rounds {
    history: Option<Arc<Store>>,
    selection: TargetSelection,
    interval: Duration,
    own: Vec<u32>,
    board: Arc<Board>,
    known: KnownKinds,
    names: Names,
    targets: BTreeMap<Identity, SampledTarget>,
    /// Processes that can't be read, and when each is tried again. Each is reported once.
    refused: BTreeMap<Identity, Instant>,
    /// Whether the last list of processes lacked some.
    is_list_cut: bool,
    list_at: Instant,
    left_out: usize,
    /// Why old recordings stay, so that each reason is reported once.
    untidied: Option<String>,
    /// The target that the next round begins with: the one where the last round ran out of its budget or its time.
    first: usize,
}

impl Rounds {
    pub fn new(
        selection: TargetSelection,
        interval: Duration,
        own: Vec<u32>,
        board: Arc<Board>,
        history: Option<Arc<Store>>,
    ) -> Rounds {
        Rounds {
            history,
            selection,
            interval,
            own,
            board,
            known: KnownKinds::default(),
            names: BTreeMap::new(),
            targets: BTreeMap::new(),
            refused: BTreeMap::new(),
            is_list_cut: false,
            list_at: Instant::now(),
            left_out: 0,
            untidied: None,
            first: 0,
        }
    }

    /// Runs rounds until the board stops them.
    pub fn run(mut self) {
        let mut next = Instant::now();
        while self.board.wait(next) {
            let (began, before) = (Instant::now(), thread_time());
            if began >= self.list_at {
                self.list();
                self.tidy();
            }
            self.read_all(began + ROUND);
            let targets = self.targets.values().filter_map(|target| target.published.clone()).collect();
            self.board.publish(targets, self.left_out, began.elapsed(), thread_time().saturating_sub(before));
            next = began + self.interval;
        }
        for target in self.targets.into_values() {
            // An error is ignored: the file is whole after each reading.
            let _ = target.recorded.writer.map(Writer::finish);
        }
    }

    /// Keeps the recordings within their budget.
    fn tidy(&mut self) {
        let Some(store) = &self.history else { return };
        let mut written = Written::default();
        for target in self.targets.values() {
            let Some(writer) = &target.recorded.writer else { continue };
            written.names.insert(target.name.clone());
            written.files.extend(writer.path().map(Path::to_owned));
        }
        let mut tidied = store.tidy(&written);
        if tidied.is_over {
            // Makes the files that are being written full ones, which can be deleted.
            let writers = self.targets.values_mut().filter_map(|target| target.recorded.writer.as_mut());
            writers.for_each(|writer| drop(writer.rotate()));
            tidied = store.tidy(&Written { names: written.names, ..Written::default() });
        }
        if tidied.problem != self.untidied {
            tidied.problem.iter().for_each(print_message);
            self.untidied = tidied.problem;
        }
    }

    fn list(&mut self) {
        let before = thread_time();
        let Listing { all: listed, is_whole } = processes::list(&mut self.known, Deadline::after(LISTING));
        if !is_whole && !self.targets.is_empty() {
            // A target that is missing in the list may live. Its own readings notice its end.
            if !std::mem::replace(&mut self.is_list_cut, true) {
                print_message("not all processes could be read: new ones are not served yet");
            }
            self.list_again(before);
            return;
        }
        self.is_list_cut = !is_whole;
        let served: BTreeSet<Identity> = self.targets.keys().copied().collect();
        let (chosen, left_out) = targets::chosen(&self.selection, &listed, &served, &self.own);
        targets::name_all(&mut self.names, &chosen);
        self.left_out = left_out;
        self.refused.retain(|identity, _| chosen.iter().any(|of| of.identity == *identity));
        let name_of = |identity: &Identity| self.names.get(identity).map(|(_, name)| name.as_str());
        let gone = |(identity, target): &(&Identity, &SampledTarget)| name_of(identity) != Some(target.name.as_str());
        let gone: Vec<Identity> = self.targets.iter().filter(gone).map(|(identity, _)| *identity).collect();
        for identity in gone {
            let runs_another = self.names.contains_key(&identity);
            self.drop_target(identity, if runs_another { "runs another program" } else { "has ended" });
        }
        for of in chosen {
            let is_due = self.refused.get(&of.identity).is_none_or(|again| Instant::now() >= *again);
            if is_due && !self.targets.contains_key(&of.identity) {
                self.add(of);
            }
        }
        let share = u32::try_from(self.targets.len() / SHARE).unwrap_or(u32::MAX).max(1);
        self.targets.values_mut().for_each(|target| target.sampler.share = share);
        self.list_again(before);
    }

    /// Sets the time of the next listing, by the processor time since `before`.
    fn list_again(&mut self, before: Duration) {
        self.list_at = Instant::now() + (thread_time().saturating_sub(before) * LISTS).min(Duration::from_secs(60));
    }

    fn add(&mut self, of: &Listed) {
        let Some(name) = self.names.get(&of.identity).map(|(_, name)| name.clone()) else { return };
        let subject = Subject { within: READING, ..Subject::of(of.identity.pid, self.interval, "serve") };
        match Sampler::of(subject) {
            Ok(sampler) => {
                self.refused.remove(&of.identity);
                self.print_message(format_args!("serving process {} as /{name}", of.identity.pid));
                let command = match (of.command.is_empty(), of.kind.is_jvm) {
                    (true, _) => of.name.clone(),
                    (false, true) => java_first(&of.name, &of.command),
                    (false, false) => one_line(&of.command),
                };
                let target = SampledTarget {
                    name,
                    command,
                    sampler,
                    published: None,
                    rests_until: None,
                    next_baseline: None,
                    recent: Arc::default(),
                    recorded: Recorded { writer: None, next: Instant::now() },
                };
                self.targets.insert(of.identity, target);
            }
            Err(Failure(sentence)) => {
                if self.refused.insert(of.identity, Instant::now() + AGAIN).is_none() {
                    self.print_message(format_args!("cannot serve process {}: {sentence}", of.identity.pid));
                }
            }
        }
    }

    /// Prints a message, except with `--all`: there processes come and go all the time, and the list shows them.
    fn print_message(&self, sentence: std::fmt::Arguments<'_>) {
        if self.selection != TargetSelection::All {
            print_message(sentence);
        }
    }

    fn drop_target(&mut self, identity: Identity, what: &str) {
        if let Some(SampledTarget { name, mut sampler, recorded, .. }) = self.targets.remove(&identity) {
            self.print_message(format_args!("process {} (/{name}) {what}", identity.pid));
            let Some(mut writer) = recorded.writer else { return };
            // Names of a tracked process's last call stacks take long, and no round waits for them.
            let finish = move || {
                let written = writer.end(&sampler.end(None)).and_then(|()| writer.finish());
                if let Err(Failure(sentence)) = written {
                    print_message(sentence);
                }
            };
            let _ = thread::Builder::new().name("end".into()).spawn(finish);
        }
    }

    fn read_all(&mut self, until: Instant) {
        let (before, budget) = (thread_time(), self.interval / QUERIES);
        let all: Vec<Identity> = self.targets.keys().copied().collect();
        let order = all.iter().cycle().skip(self.first % all.len().max(1)).take(all.len());
        let mut next = None;
        for (index, identity) in order.enumerate() {
            let may_query = thread_time().saturating_sub(before) < budget;
            if !may_query || Instant::now() >= until {
                next.get_or_insert(self.first + index);
            }
            if Instant::now() >= until {
                break;
            }
            self.targets.get_mut(identity).into_iter().for_each(|target| target.sampler.may_query = may_query);
            self.read(*identity);
        }
        self.first = next.unwrap_or(0);
    }

    fn read(&mut self, identity: Identity) {
        let Some(target) = self.targets.get_mut(&identity) else { return };
        let (began, waited) = (Instant::now(), waited());
        if target.rests_until.is_some_and(|until| began < until) {
            return;
        }
        if self.history.is_some() && target.recorded.begins_file(began) {
            target.sampler.make_full();
        }
        let has_ended = match target.sampler.read(0, None) {
            Read::Sample(sample) => {
                if let Some(store) = &self.history {
                    record(store, &mut target.recorded, &target.name, self.interval, &sample);
                }
                let (baseline, age) = (baseline_of(&sample), sample.process.uptime.unwrap_or(f64::INFINITY));
                if let Some(ledger) = &sample.ledger {
                    let limit = sample.cgroup.as_ref().and_then(|cgroup| cgroup.limit);
                    let mut recent = target.recent.lock().unwrap_or_else(PoisonError::into_inner);
                    let of = |id| ledger.line(id).map_or((Bytes(0), Bytes(0)), |line| (line.resident, line.committed));
                    recent.push(sample.time_ns, ledger.rss, limit, of);
                }
                let published = published(identity, (&target.name, &target.command), &target.recent, &sample);
                if let Some(baseline) = baseline {
                    keep(&mut target.sampler.baseline, &mut target.next_baseline, baseline, age);
                }
                if let Some(published) = published {
                    target.published = Some(Published { baseline: target.sampler.baseline.clone(), ..published });
                }
                false
            }
            // The process is being torn down.
            Read::Nothing => false,
            Read::Ended => true,
        };
        let took = began.elapsed().saturating_sub(self::waited().saturating_sub(waited));
        target.rests_until = (took > SLOW).then(|| began + took * REST);
        if has_ended {
            self.drop_target(identity, "has ended");
            self.names.remove(&identity);
        }
    }
}

/// Writes a reading; scrapes that come often don't make the file bigger. After an error it is tried again later.
fn record(store: &Store, recorded: &mut Recorded, name: &str, interval: Duration, sample: &Sample<'_>) {
    let now = Instant::now();
    if now < recorded.next {
        return;
    }
    let pid = sample.process.pid;
    let made = match recorded.writer.take() {
        Some(writer) => Ok(writer),
        None => store.writer(name, pid, interval),
    };
    match made.and_then(|mut writer| writer.instant(sample).map(|()| writer)) {
        Ok(writer) => *recorded = Recorded { writer: Some(writer), next: now + interval * 2 / 3 },
        Err(Failure(sentence)) => {
            print_message(format_args!("/{name} is not recorded for 5 minutes: {sentence}"));
            recorded.next = now + AGAIN;
        }
    }
}

fn baseline_of(sample: &Sample<'_>) -> Option<Baseline> {
    let ledger = sample.ledger.as_ref()?;
    Some(Baseline {
        time: sample.time_ns as f64 / 1e9,
        uptime: sample.process.uptime,
        rss: ledger.rss,
        lines: ledger.lines.iter().map(|line| (line.id, line.resident)).collect(),
        errors: ledger.lines.iter().map(|line| (line.id, line.error)).collect(),
        lacking: sample.snapshot.map(|snapshot| lacking(&snapshot.gaps)).unwrap_or_default(),
    })
}

/// Moves the baseline on. `age`: of the process, in seconds.
fn keep(baseline: &mut Option<Baseline>, next: &mut Option<Baseline>, now: Baseline, age: f64) {
    let span = (age / 4.0).clamp(LEAST_BASELINE, BASELINE);
    match (&baseline, &next) {
        (None, _) if age >= LEAST_BASELINE => *baseline = Some(now),
        (Some(first), None) if now.time - first.time >= span => *next = Some(now),
        (Some(_), Some(second)) if now.time - second.time >= span => {
            *baseline = next.take();
            *next = Some(now);
        }
        _ => {}
    }
}

/// None: the mappings were not read this time, so the ledger of the last reading stays.
fn published(
    identity: Identity,
    (name, command): (&str, &str),
    recent: &Arc<Mutex<Recent>>,
    sample: &Sample<'_>,
) -> Option<Published> {
    let (snapshot, ledger) = sample.snapshot.zip(sample.ledger.as_ref())?;
    let document = ledger_json::document_of(snapshot, ledger, &sample.verdicts);
    let cgroup = sample.cgroup.as_ref();
    let limit = cgroup.and_then(|cgroup| Some((cgroup.limit?, cgroup.working_set())));
    let first = sample.verdicts.first();
    let row = Row {
        name: name.to_owned(),
        command: command.to_owned(),
        pid: identity.pid,
        rss: ledger.rss,
        limit,
        verdict: first.map(|verdict| (verdict.id.id(), verdict.severity.name(), verdict.summary.clone())),
        is_tracked: sample.books.is_some(),
    };
    let samples = Arc::new(Samples::of(name, &document, sample.books.as_ref()));
    Some(Published { identity, row, samples, read_at: Instant::now(), baseline: None, recent: recent.clone() })
}

/// Processor time of this thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time that this thread has waited for a processor: field 2 of schedstat, in ns (Linux: scheduler/sched-stats). 0
/// where the kernel doesn't count it.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// The start of a process, in clock ticks since the machine's start.
pub fn start_of(pid: u32) -> Option<u64> {
    stat::number(&stat_of(pid), 22)
}

/// RSS of a process, from its statm.
pub fn resident(pid: u32) -> Bytes {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    Bytes(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Processor time of a process: utime and stime are fields 14 and 15.
pub fn processor_time(pid: u32) -> Duration {
    let stat = stat_of(pid);
    let ticks: u64 = [14, 15].into_iter().filter_map(|field| stat::number(&stat, field)).sum();
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1))
}

/// Empty if the process doesn't exist.
fn stat_of(pid: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_one_to_two_hours_back() {
        let at = |minutes: f64| Baseline { time: minutes * 60.0, ..Baseline::default() };
        let run = |first_age: f64| {
            let (mut baseline, mut next) = (None, None);
            let back = |minute: u32| {
                let now = f64::from(minute);
                keep(&mut baseline, &mut next, at(now), (first_age + now) * 60.0);
                baseline.as_ref().map(|of| now - of.time / 60.0)
            };
            (0..600).map(back).collect::<Vec<_>>()
        };
        let old = run(10_000.0);
        assert!((0..60).all(|minute| old[minute] == Some(minute as f64)), "the first reading: {old:?}");
        assert!((120..600).all(|minute| old[minute].is_some_and(|back| (60.0..=120.0).contains(&back))), "{old:?}");
        let young = run(0.0);
        assert_eq!(young[0], None);
        assert!(young[20].is_some_and(|back| (4.0..=11.0).contains(&back)), "{young:?}");
    }
}
