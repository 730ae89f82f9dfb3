//! One run: start, wait until ready, load, measure, idle, measure, stop.
//!
//! ```text
//! start ─▶ ready ─▶ load (or --for, or until it ends) ─▶ steady ─▶ action ─▶ idle ─▶ stop
//!          ready_s                                       CPU, retained         RSS
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_facts::gap::Source;
use plimsoll_facts::snapshot::{HeapPart, Snapshot};
use plimsoll_facts::units::Bytes;
use plimsoll_observer::collect::{Refusal, Regions, take_snapshot};
use plimsoll_observer::ledger::{Ledger, LineId};
use plimsoll_observer::source::hotspot;
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc;
use plimsoll_trial::remedy::Start;
use plimsoll_trial::{Action, Metric, Pss, Run, RunEnd, latency};

use super::built_in_load::{Drive, Driving};
use super::kept_program::{Exit, Kept, Output};
use super::limit_place::LimitPlace;
use super::process_tree::{self, Moment};
use super::ready::Ready;
use super::run_cgroup::Group;
use crate::attach::{Releasing, release::Release};
use crate::sys::Signals;

/// Time between two readings of the tree. Readings may take a twentieth of the time.
const TICK: Duration = Duration::from_millis(50);
const SHARE: u32 = 20;
/// Time from SIGTERM to SIGKILL.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Limit for the call of malloc_trim in a program that isn't a JVM.
const TRIM: Duration = Duration::from_secs(100);
/// Bytes of output that are kept: of the program for its last words, of the load for its report.
const LAST_WORDS: usize = 4 << 10;
const REPORT: usize = 1 << 20;

/// What is the same in each run.
pub struct RunConditions {
    pub ready: Option<Ready>,
    pub ready_within: Duration,
    pub load: Option<String>,
    /// The built-in load, for the time of `lasts`.
    pub drive: Option<Drive>,
    /// The built-in load goes on for this long before its answers count.
    pub warm_up: Duration,
    /// Without a load: how long the program runs. `None`: until it ends.
    pub lasts: Option<Duration>,
    pub idle: Duration,
    pub limit: Option<LimitPlace>,
}

pub struct Outcome {
    pub run: Run,
    /// A sentence for the user, beyond the run.
    pub note: Option<String>,
    /// Processes of another user are left. They would disturb the next run.
    pub is_last: bool,
}

pub struct Runner<'r> {
    pub conditions: &'r RunConditions,
    pub signals: &'r Signals,
    /// Called in each step with the phase.
    pub progress: &'r mut dyn FnMut(&'static str),
    /// Called when the load ends, with a snapshot of the largest process.
    pub look: &'r mut dyn FnMut(&Snapshot, &Ledger),
    pub interrupted: bool,
}

/// Why a run ended early.
type EarlyEnd = (RunEnd, Option<String>);

struct Running<'k> {
    kept: &'k mut Kept,
    figures: BTreeMap<Metric, f64>,
    began: Instant,
    /// Figures of memory as PSS, except the peak.
    pss: BTreeMap<Metric, Pss>,
    peak: Peak,
    processes: usize,
    next_sample: Instant,
    load_errors: Option<u64>,
    note: Option<String>,
    /// Processes of another user that the load command has left behind.
    of_others: Vec<u32>,
}

/// The largest figures of the samples.
#[derive(Default)]
struct Peak {
    /// A single process's own peak, or the sum of several.
    bytes: u64,
    /// PSS; where that of a single process can't be read, RSS.
    pss: u64,
    /// Whether several processes held `pss`. A process that starts a helper for a moment still counts as one.
    several: bool,
    /// Whether PSS could always be read.
    is_pss: Option<bool>,
}

impl Peak {
    fn add(&mut self, moment: &Moment) {
        if moment.processes == 0 {
            return;
        }
        self.bytes = self.bytes.max(moment.peak.unwrap_or(moment.resident));
        self.is_pss = Some(moment.pss.is_some() && self.is_pss.unwrap_or(true));
        let pss = moment.pss.unwrap_or(moment.resident);
        if pss > self.pss {
            (self.pss, self.several) = (pss, moment.processes > 1);
        }
    }

    fn pss(&self) -> Pss {
        let is_known = self.several || self.is_pss == Some(true);
        Pss { bytes: is_known.then_some(self.pss as f64), several: self.several }
    }
}

/// RSS and PSS at a moment. `None` without a process: 0 B would be the best figure, and nothing was measured.
fn held(moment: &Moment) -> Option<(f64, Pss)> {
    let pss = Pss { bytes: moment.pss.map(|bytes| bytes as f64), several: moment.processes > 1 };
    (moment.processes > 0).then_some((moment.resident as f64, pss))
}

impl Running<'_> {
    /// Memory at this moment.
    fn add(&mut self, metric: Metric, moment: &Moment) {
        self.peak.add(moment);
        if let Some((bytes, pss)) = held(moment) {
            self.figures.insert(metric, bytes);
            self.pss.insert(metric, pss);
        }
    }

    fn add_note(&mut self, note: String) {
        self.note = Some(match self.note.take() {
            Some(before) => format!("{before}; {note}"),
            None => note,
        });
    }
}

impl Runner<'_> {
    /// `number` is unique among all runs.
    pub fn run(&mut self, start: &Start, (round, row, number): (usize, usize, usize)) -> Outcome {
        let failed = |end: RunEnd, detail: Option<String>| Outcome {
            run: Run {
                round,
                row,
                end,
                detail,
                figures: BTreeMap::new(),
                pss: BTreeMap::new(),
                processes: 0,
                load_errors: None,
            },
            note: None,
            is_last: false,
        };
        if let Some(conflict) = self.conditions.ready.as_ref().and_then(Ready::conflict) {
            return failed(RunEnd::NeverStarted, Some(conflict));
        }
        let group = match self.conditions.limit.as_ref().map(|place| Group::make(number, &place.limit)).transpose() {
            Ok(group) => group,
            Err(reason) => return failed(RunEnd::NeverStarted, Some(reason)),
        };
        let output = Output::new(LAST_WORDS, self.conditions.ready.as_ref().and_then(Ready::pattern));
        let mut kept = match Kept::start(start, group.as_ref(), output) {
            Ok(kept) => kept,
            Err(error) => {
                group.iter().for_each(Group::remove);
                return failed(RunEnd::NeverStarted, Some(error.to_string()));
            }
        };
        let now = Instant::now();
        let mut running = Running {
            kept: &mut kept,
            figures: BTreeMap::new(),
            began: now,
            pss: BTreeMap::new(),
            peak: Peak::default(),
            processes: 0,
            next_sample: now,
            load_errors: None,
            note: None,
            of_others: Vec::new(),
        };
        let ended = self.phases(&mut running, start.action);
        let (mut end, mut detail) = match ended {
            Ok(end) => (end, None),
            Err(early) => early,
        };
        let Running { mut figures, mut pss, peak, processes, load_errors, note, mut of_others, .. } = running;
        let by_limit = matches!(end, RunEnd::Signal(9) | RunEnd::Exited(_) | RunEnd::LoadFailed | RunEnd::NeverReady);
        let went_on = end.is_good();
        let exceeded = || group.as_ref().is_some_and(|group| group.was_killed(Deadline::after(LOOK)));
        if let (RunEnd::NeverStarted, Some(place)) = (&end, &self.conditions.limit)
            && exceeded()
        {
            let limit = Bytes(place.limit.bytes);
            detail =
                Some(format!("--limit ({limit}) is too low: the kernel killed the process that starts the program"));
        }
        if (by_limit || went_on) && exceeded() {
            // Without one of its processes, a program looks small.
            detail = if went_on { Some("one of its processes; the others went on".into()) } else { detail };
            end = RunEnd::OutOfMemory;
        }
        (self.progress)("stopping");
        let patience = if self.interrupted { Duration::from_secs(2) } else { PATIENCE };
        let signals = self.signals;
        let mut again = false;
        kept.stop(patience, signals.as_fd(), || {
            again |= signals.next().is_some();
            again
        });
        self.interrupted |= again;
        // The keeper removes the group, unless somebody has killed the keeper.
        group.iter().for_each(Group::remove);
        if let Some(empty) = kept.empty {
            if end == RunEnd::Completed {
                figures.insert(Metric::Cpu, empty.cpu_seconds);
            }
            if processes <= 1 && empty.peak > peak.bytes {
                figures.insert(Metric::Peak, empty.peak as f64);
            }
        }
        figures.entry(Metric::Peak).or_insert(peak.bytes as f64);
        pss.insert(Metric::Peak, peak.pss());
        if figures.get(&Metric::Peak) == Some(&0.0) {
            figures.remove(&Metric::Peak);
            pss.remove(&Metric::Peak);
        }
        let last_words = || kept.output.last_line().map(|line| line.chars().take(200).collect());
        let detail = if end.is_good() || end == RunEnd::Interrupted { None } else { detail.or_else(last_words) };
        of_others.append(&mut kept.of_others);
        let left = (kept.left || !of_others.is_empty()).then(|| match of_others.as_slice() {
            [] => "a process of the run could not be killed (it waits for a device)".to_owned(),
            others => {
                let numbers = others.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
                format!("processes of another user go on, and no other run is started: sudo kill {numbers}")
            }
        });
        let notes: Vec<String> = note.into_iter().chain(left).collect();
        Outcome {
            run: Run { round, row, end, detail, figures, pss, processes, load_errors },
            note: Some(notes.join("; ")).filter(|note| !note.is_empty()),
            is_last: !of_others.is_empty(),
        }
    }

    fn phases(&mut self, running: &mut Running<'_>, action: Option<Action>) -> Result<RunEnd, EarlyEnd> {
        let conditions = self.conditions;
        let until = running.began + conditions.ready_within;
        if let Some(ready) = &conditions.ready {
            loop {
                self.step(running, "waiting until it is ready", true)?;
                if running.kept.has_started() && ready.is_ready(running.began.elapsed(), &running.kept.output) {
                    break;
                }
                if Instant::now() >= until {
                    return Err((RunEnd::NeverReady, Some(ready.unmet(conditions.ready_within))));
                }
            }
            running.figures.insert(Metric::Ready, running.began.elapsed().as_secs_f64());
        }
        match (&conditions.load, &conditions.drive, conditions.lasts) {
            (Some(load), ..) => self.load(running, load)?,
            (None, Some(drive), Some(time)) => self.drive(running, drive, time)?,
            (None, None, Some(time)) => self.pass(running, time, "running")?,
            (None, _, None) => {
                while !running.kept.has_ended() {
                    self.step(running, "running until it ends", false)?;
                }
                running.figures.insert(Metric::Took, running.began.elapsed().as_secs_f64());
                return match (running.kept.exit, &running.kept.refused) {
                    (Some(Exit::Code(0)), _) => Ok(RunEnd::Completed),
                    _ => Err(self.early(running)),
                };
            }
        }
        self.measure(running);
        if let Some(Action::Trim) = action
            && let Err(reason) = self.trimmed(running)?
        {
            running.add_note(format!("the trim failed: {reason}"));
        }
        self.pass(running, conditions.idle, "idling")?;
        let moment = process_tree::moment(running.kept.pid());
        running.add(Metric::Idle, &moment);
        Ok(RunEnd::Stopped)
    }

    /// Figures at the end of the load. RSS comes first: reading a VM makes it allocate.
    fn measure(&mut self, running: &mut Running<'_>) {
        (self.progress)("measuring");
        let keeper = running.kept.pid();
        let moment = process_tree::moment(keeper);
        running.processes = moment.processes;
        moment.note().into_iter().for_each(|note| running.add_note(note));
        running.add(Metric::Steady, &moment);
        if let Some(seconds) = process_tree::cpu_seconds(keeper) {
            running.figures.insert(Metric::Cpu, seconds);
        }
        let Some(pid) = moment.largest else { return };
        let snapshot = match take_snapshot(pid, Regions::AsNeeded, Deadline::after(LOOK)) {
            Ok(snapshot) => snapshot,
            Err(Refusal(reason)) => {
                running.add_note(format!("process {pid} was not explained at the end of the load: {reason}"));
                return;
            }
        };
        let ledger = Ledger::of(&snapshot);
        let kept_free = [HeapPart::Cached, HeapPart::Dirty, HeapPart::Muzzy];
        let kept = snapshot.malloc_heap.iter().flat_map(|heap| kept_free.map(|part| heap.parts.get(&part)));
        let others: u64 = kept.flatten().map(|part| part.resident.0).sum();
        let retained = ledger.resident(LineId::GlibcRetained).0 + others;
        let gap = |source| snapshot.gaps.iter().find(|gap| gap.source == source);
        let unread = match (&snapshot.glibc, &snapshot.malloc_heap) {
            (None, None) => gap(Source::Glibc).or(gap(Source::Allocator)),
            _ => None,
        };
        match unread {
            None => drop(running.figures.insert(Metric::Retained, retained as f64)),
            Some(gap) => running.add_note(format!("what malloc retained is not known: {}", gap.reason)),
        }
        (self.look)(&snapshot, &ledger);
    }

    fn load(&mut self, running: &mut Running<'_>, load: &str) -> Result<(), EarlyEnd> {
        let (exit, output) = self.run_command(running, &["/bin/sh", "-c", load], "under load")?;
        let last = output.last_line().filter(|last| !last.is_empty());
        let with = |why: String| last.map_or(why.clone(), |last| format!("{why}: {last}"));
        match exit {
            Some(Exit::Code(0)) => {}
            Some(Exit::Code(code)) => {
                return Err((
                    RunEnd::LoadFailed,
                    Some(with(format!("the load command ended with exit status {code}"))),
                ));
            }
            _ => return Err((RunEnd::LoadFailed, Some(with("the load command was killed".to_owned())))),
        }
        if let Some(found) = latency::parse(&output.tail()) {
            let all = [
                (Metric::P50, found.p50),
                (Metric::P90, found.p90),
                (Metric::P99, found.p99),
                (Metric::Throughput, found.throughput),
            ];
            running.figures.extend(all.into_iter().filter_map(|(metric, value)| Some((metric, value?))));
            running.load_errors = found.errors;
        }
        Ok(())
    }

    fn drive(&mut self, running: &mut Running<'_>, drive: &Drive, time: Duration) -> Result<(), EarlyEnd> {
        let conditions = self.conditions;
        let mut driven = |time: Duration, phase: &'static str| {
            let driving = Driving::start(drive, time);
            while !driving.is_done() {
                self.step(running, phase, true)?;
            }
            Ok(driving.answers())
        };
        if !conditions.warm_up.is_zero() {
            driven(conditions.warm_up, "warming up")?;
        }
        let (answers, took) = driven(time, "under load")?;
        let Some(found) = answers.figures(took) else {
            return Err((
                RunEnd::LoadFailed,
                Some(format!("no request to {} was answered without an error", drive.url)),
            ));
        };
        let all = [
            (Metric::Mean, found.mean),
            (Metric::P50, found.p50),
            (Metric::P90, found.p90),
            (Metric::P99, found.p99),
            (Metric::Throughput, found.throughput),
        ];
        running.figures.extend(all);
        running.load_errors = Some(found.errors);
        Ok(())
    }

    /// Runs another program beside the one under trial, and returns its exit and output.
    fn run_command(
        &mut self,
        running: &mut Running<'_>,
        command: &[&str],
        phase: &'static str,
    ) -> Result<(Option<Exit>, Arc<Output>), EarlyEnd> {
        let command = command.iter().map(OsString::from).collect();
        let start = Start { command, environment: std::env::vars_os().collect(), ..Start::default() };
        let output = Output::new(REPORT, None);
        let mut kept = Kept::start(&start, None, output.clone())
            .map_err(|error| (RunEnd::LoadFailed, Some(format!("the load command can't be started: {error}"))))?;
        while !kept.has_ended() && kept.exit.is_none() {
            self.step(running, phase, true)?;
            kept.step(running.kept.descriptor(), Duration::ZERO);
        }
        let exit = kept.exit;
        // A process that the command left in the background may never end.
        kept.stop(Duration::ZERO, running.kept.descriptor(), || true);
        running.of_others.append(&mut kept.of_others);
        Ok((exit, output))
    }

    /// Gives free pages of malloc back. The inner error says why not.
    fn trimmed(&mut self, running: &mut Running<'_>) -> Result<Result<(), String>, EarlyEnd> {
        let Some(pid) = process_tree::moment(running.kept.pid()).largest else {
            return Ok(Err("no process is left".into()));
        };
        let trim = std::thread::spawn(move || trim(pid));
        while !trim.is_finished() {
            self.step(running, "trimming", true)?;
        }
        Ok(trim.join().unwrap_or_else(|_| Err("plimsoll failed".to_owned())))
    }

    fn pass(&mut self, running: &mut Running<'_>, time: Duration, phase: &'static str) -> Result<(), EarlyEnd> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.step(running, phase, true)?;
        }
        Ok(())
    }

    /// Waits a tick, and samples. With `must_live`, an end of the program is an error.
    fn step(&mut self, running: &mut Running<'_>, phase: &'static str, must_live: bool) -> Result<(), EarlyEnd> {
        (self.progress)(phase);
        running.kept.step(self.signals.as_fd(), TICK);
        if self.signals.next().is_some() {
            self.interrupted = true;
            return Err((RunEnd::Interrupted, None));
        }
        if running.kept.has_ended() {
            return if must_live { Err(self.early(running)) } else { Ok(()) };
        }
        // Without the program itself, the processes that it started are small, so the run doesn't count. A daemon's
        // parent exits with 0.
        if must_live && running.kept.exit.is_some_and(|exit| exit != Exit::Code(0)) {
            return Err(self.early(running));
        }
        if Instant::now() >= running.next_sample {
            let began = Instant::now();
            let moment = process_tree::moment(running.kept.pid());
            running.peak.add(&moment);
            running.processes = running.processes.max(moment.processes);
            running.next_sample = Instant::now() + (began.elapsed() * SHARE).max(TICK);
        }
        Ok(())
    }

    /// The program has ended or failed, but should not have.
    fn early(&self, running: &Running<'_>) -> EarlyEnd {
        match (&running.kept.refused, running.kept.exit) {
            (Some(reason), _) => (RunEnd::NeverStarted, Some(reason.clone())),
            (None, Some(Exit::Code(code))) => (RunEnd::Exited(code), None),
            (None, Some(Exit::Signal(signal))) => (RunEnd::Signal(signal), None),
            (None, None) => (RunEnd::NeverStarted, Some("the process that starts the program was killed".into())),
        }
    }
}

/// Gives free pages of malloc back: a JVM by its own command if it has one, all others by a call of malloc_trim. The
/// error says why not.
fn trim(pid: u32) -> Result<(), String> {
    let target = proc::Target::open(pid, Deadline::after(TRIM)).map_err(|_| "the process has ended")?;
    let vmas = proc::parse_maps(&target.read("maps").unwrap_or_default(), &[]).vmas;
    if hotspot::is_hotspot(&vmas) {
        let perfdata = hotspot::perfdata(&target, &vmas).unwrap_or_default();
        match hotspot::Vm::open(&target, perfdata.as_ref(), hotspot::Patience::default()) {
            Ok(mut vm) => match vm.query("System.trim_native_heap") {
                // An older JDK.
                Err(hotspot::RefusedCommand::NoCommand(_)) => {}
                answer => return answer.map(drop).map_err(String::from),
            },
            Err(hotspot::Mute::Disabled) => {}
            Err(mute) => return Err(format!("the VM can't be queried: {mute}")),
        }
    }
    let releasing = Releasing::start(target, Release::Glibc, "try --with trim --pid");
    releasing.map_err(|error| format!("plimsoll can't start a thread of its own: {error}"))?.result()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_several_processes_if_they_held_most() {
        let one = |resident, pss| Moment { processes: 1, resident, pss, peak: Some(resident), ..Moment::default() };
        let two = |pss| Moment { processes: 2, resident: pss, pss: Some(pss), ..Moment::default() };
        let of = |moments: &[Moment]| {
            let mut peak = Peak::default();
            moments.iter().for_each(|moment| peak.add(moment));
            (peak.bytes, peak.pss())
        };
        let pss = |bytes: f64, several| Pss { bytes: Some(bytes), several };
        assert_eq!(of(&[one(99, Some(60)), two(80)]), (99, pss(80.0, true)));
        // A helper at the start.
        assert_eq!(of(&[two(30), one(99, Some(60)), one(90, Some(50))]), (99, pss(60.0, false)));
        assert_eq!(of(&[one(99, None), one(90, Some(50))]), (99, Pss::default()), "not always readable");
        assert_eq!(of(&[Moment::default()]), (0, Pss::default()));
    }

    /// The program may have ended since the last step, and then no process is left to measure.
    #[test]
    fn a_moment_without_processes_has_no_figure() {
        assert_eq!(held(&Moment { pss: Some(0), ..Moment::default() }), None);
        let moment = |processes| Moment { processes, resident: 99, pss: Some(60), ..Moment::default() };
        assert_eq!(held(&moment(1)), Some((99.0, Pss { bytes: Some(60.0), several: false })));
        assert_eq!(held(&moment(2)), Some((99.0, Pss { bytes: Some(60.0), several: true })));
    }
}
