//! `plimsoll try --pid PID`: tries the remedies that need no restart on a running program, one step after the other.
//!
//! ```text
//! snapshot, verdicts ─▶ announce, ask ─▶ nothing ─▶ step ─▶ step ─▶ table
//!                                        each: RSS, act, RSS, idle, RSS, ledger, set flags back
//! ```
//! `vm`, `redis` and `attach::release` carry the steps out; `guard` sets flags back if plimsoll is killed.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::shell::one_line;
use plimsoll_facts::snapshot::{HotSpot, Snapshot};
use plimsoll_observer::collect::{Refusal, Regions, take_snapshot};
use plimsoll_observer::ledger::Ledger;
use plimsoll_observer::verdict::{Case, Effect, Effort, Remedy, Verdict, judge};
use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::{self, Target};
use plimsoll_process::processes::ProcView;
use plimsoll_report::words::{cut, printable};
use plimsoll_tracked::segment;
use plimsoll_trial::live::{LiveTrial, Setting, Step, Tried};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::INTERRUPTS;
use super::run_progress::Meter;
use crate::Failure;
use crate::attach::{Releasing, release::Release};
use crate::output::{is_confirmed, print_message};
use crate::sys::{Signals, unless_nohup};
use crate::target::{closed, started_behind};

pub mod guard;
mod redis;
mod vm;

use guard::Guard;

/// Time between two checks whether the program still runs.
const TICK: Duration = Duration::from_millis(200);
/// Limit for a call in a program without a VM: until a thread is at a fit point, and until the function returns.
const CALL: Duration = Duration::from_secs(100);
/// Time between two checks whether the call has returned.
const CALL_TICK: Duration = Duration::from_millis(2);
/// Lines of the ledger that a step shows, and the least part of RSS that a line must change by.
const LINES: usize = 4;
const PART_OF_RSS: u64 = 200;

/// What the user requested.
pub struct LiveOptions {
    /// Empty: what the verdicts propose, and what the program can do.
    pub steps: Vec<Step>,
    pub idle: Duration,
    pub yes: bool,
}

/// `Ok(None)`: the user declined.
pub fn run(pid: u32, options: LiveOptions) -> Result<Option<LiveTrial>, Failure> {
    let mut live = Live::open(pid, options.idle)?;
    let named: Vec<String> = options.steps.iter().map(Step::label).collect();
    let steps = live.plan(options.steps);
    if steps.iter().all(|(_, tried)| tried.missing.is_some()) {
        let able: Vec<&str> = [("trim", Step::Trim), ("purge", Step::Purge)]
            .into_iter()
            .filter(|(_, step)| live.function(step).is_some_and(|_| live.snapshot.host.can_enter))
            .chain(live.is_redis().then_some(("purge", Step::Purge)))
            .map(|(name, _)| name)
            .collect();
        let reason = steps.iter().find_map(|(_, tried)| tried.missing.clone());
        let reason = reason.unwrap_or_else(|| "it has neither a VM nor an allocator with a command for that".into());
        let (reason, restart) = (printable(&reason), &live.trial.restart);
        let what = if named.is_empty() { "nothing can".to_owned() } else { format!("{} can't", named.join(" and ")) };
        let able = match able.is_empty() {
            true => String::new(),
            false => format!(" What can be: --with {}.", able.join(", --with ")),
        };
        return Err(format!(
            "{what} be tried on process {pid} while it runs: {reason}.{able} What needs a restart: {restart}"
        )
        .into());
    }
    announce(pid, &live, &steps);
    if !is_confirmed("go ahead?", options.yes)? {
        print_message("nothing was done");
        return Ok(None);
    }
    live.steps(steps)?;
    Ok(Some(live.trial))
}

/// Prints what the steps will do to the program.
fn announce(pid: u32, live: &Live, steps: &[(Step, Tried)]) {
    let done = || steps.iter().filter(|(_, tried)| tried.missing.is_none());
    let mut text = format!(
        "process {pid} ({}) goes on running; these steps change it, each followed by {} s of waiting:",
        cut(&live.trial.command, 60),
        live.idle.as_secs_f64()
    );
    for (step, tried) in done() {
        let is_redis = live.is_redis();
        let what = match step {
            Step::Nothing => continue,
            Step::Trim => "glibc gives free pages back and holds each arena's lock meanwhile",
            Step::Collect => "a full collection: all Java threads stand still",
            Step::Purge if is_redis => "Redis gives free pages back and answers nobody meanwhile",
            Step::Purge => "the allocator gives free pages back and holds its locks meanwhile",
            Step::Flags { .. } => "set back to the old value afterwards, also after Ctrl-C or if plimsoll is killed",
        };
        let by = match live.function(step) {
            Some(_) => {
                "; plimsoll starts a thread in it for that, and stops threads of the program for moments, one after the other"
            }
            None => "",
        };
        text += &format!("\n  {}: {what}{by}", tried.commands.join(" && "));
    }
    print_message(text);
}

struct Live {
    target: Target,
    idle: Duration,
    snapshot: Snapshot,
    ledger: Ledger,
    verdicts: Vec<Verdict>,
    trial: LiveTrial,
}

/// What a step waits for.
#[derive(Clone, Copy)]
enum Until<'r> {
    Passed(Instant),
    Done(&'r Releasing),
}

impl Until<'_> {
    fn phase(&self) -> &'static str {
        match self {
            Until::Passed(_) => "idling",
            Until::Done(_) => "calling",
        }
    }
}

type Wait<'w> = dyn FnMut(&Live, Until) -> Result<(), StepEnd> + 'w;

/// Why the trial ended before its last step.
enum StepEnd {
    Interrupted,
    Ended,
}

/// A remedy of a verdict that is a step here.
struct Advised {
    step: Step,
    /// Bytes that it is expected to save.
    bounds: Option<(u64, u64)>,
}

impl Live {
    fn open(pid: u32, idle: Duration) -> Result<Live, Failure> {
        if let Some(leader) = segment::leader_of(pid).filter(|leader| *leader != pid) {
            return Err(format!("{pid} is a thread of process {leader}: plimsoll try --pid {leader}").into());
        }
        let target = Target::open(pid, Deadline::after(LOOK)).map_err(|_| ProcView::now().absent(pid))?;
        let snapshot = take_snapshot(pid, Regions::AsNeeded, target.deadline()).map_err(|Refusal(reason)| reason)?;
        let ledger = Ledger::of(&snapshot);
        let verdicts = judge(&snapshot, &ledger);
        let trial = LiveTrial {
            pid,
            command: one_line(&snapshot.process.command),
            restart: started_behind(&snapshot.process.start, "plimsoll try --"),
            idle_seconds: idle.as_secs_f64(),
            ..LiveTrial::default()
        };
        let live = Live { target, idle, snapshot, ledger, verdicts, trial };
        match live.resident() {
            Some(_) => Ok(live),
            None => {
                Err(format!("cannot look into process {pid}: {}", closed(pid, "try --pid", proc::Access::Read)).into())
            }
        }
    }

    /// RSS of the process, exact to the byte. `None`: it has ended.
    fn resident(&self) -> Option<u64> {
        Some(proc::parse_rollup(&self.target.read("smaps_rollup").ok()?)?.rss.0).filter(|rss| *rss > 0)
    }

    fn is_redis(&self) -> bool {
        self.snapshot.process.redis_client().is_some()
    }

    /// The function that a thread of plimsoll's calls for this step, where neither a VM nor Redis has a command for it.
    /// An allocator inside the program file is left alone, since every thread has a return address there.
    fn function(&self, step: &Step) -> Option<Release> {
        let has_command = match step {
            Step::Trim => self.trims_by_command(),
            Step::Purge => self.is_redis(),
            Step::Nothing | Step::Collect | Step::Flags { .. } => true,
        };
        let program = self.snapshot.process.executable.as_ref();
        let libraries = self.snapshot.allocators.iter().filter(|known| Some(&known.path) != program);
        let of_step = |release: &Release| (*release == Release::Glibc) == (*step == Step::Trim);
        let mut releases = libraries.filter_map(|known| Release::of(known.kind)).filter(of_step);
        releases.next().filter(|_| !has_command)
    }

    /// Whether it is a VM that trims on a command.
    fn trims_by_command(&self) -> bool {
        let refuses = |gap: &Gap| gap.source == Source::HotSpot && gap.reason.contains("-XX:+DisableAttachMechanism");
        let vm = self.snapshot.hotspot.as_ref().filter(|_| !self.snapshot.gaps.iter().any(refuses));
        vm.is_some_and(HotSpot::has_trim_command)
    }

    /// Whether this kind serves the program's malloc.
    fn is_served_by(&self, release: Release) -> bool {
        self.snapshot.allocators.iter().any(|known| known.serves_malloc && Release::of(known.kind) == Some(release))
    }

    /// Why a step can't be done at all in this process.
    fn missing(&self, step: &Step) -> &'static str {
        match step {
            Step::Trim => "it has no library of glibc's",
            Step::Purge => "it is neither Redis nor Valkey, and has no library of jemalloc or tcmalloc",
            _ => "it isn't a JVM",
        }
    }

    /// The steps in the order in which they run, with what the verdicts expect of each, and why some can't be done.
    fn plan(&mut self, mut steps: Vec<Step>) -> Vec<(Step, Tried)> {
        let mut vm = vm::open(&mut self.target);
        let is_redis = self.is_redis();
        let pid = self.trial.pid;
        let remedies = self.verdicts.iter().flat_map(|verdict| &verdict.remedies);
        let advised: Vec<Advised> = remedies
            .filter_map(|remedy| {
                let bounds = remedy.effect.figure().map(|(least, most)| (least.0, most.0));
                Some(Advised { step: Step::from_advice(&remedy.how)?, bounds })
            })
            .collect();
        let is_explicit = !steps.is_empty();
        if !is_explicit {
            let calls = |step| self.function(step).is_some_and(|release| self.is_served_by(release));
            if self.snapshot.glibc.is_some() && (vm.is_some() || calls(&Step::Trim)) {
                steps.push(Step::Trim);
            }
            if is_redis || calls(&Step::Purge) {
                steps.push(Step::Purge);
            }
            if vm.is_some() {
                steps.push(Step::Collect);
            }
            for Advised { step, .. } in &advised {
                if !steps.contains(step) {
                    steps.push(step.clone());
                }
            }
        }
        let mut missing = |step: &Step| match (&mut vm, step) {
            (_, Step::Nothing) => None,
            (_, step) if self.function(step).is_some() => match self.snapshot.host.can_enter {
                true => None,
                false => Some(not_on_this_processor(pid, step)),
            },
            (_, Step::Purge) if is_redis => None,
            (_, Step::Purge) | (None, _) => Some(self.missing(step).to_owned()),
            (Some(Ok(vm)), Step::Flags { settings, .. }) => vm::present(vm, settings).err(),
            (Some(Ok(_)), _) => None,
            (Some(Err(mute)), _) => Some(format!("the VM can't be queried: {mute}")),
        };
        let row = |step: Step| {
            let predicted = advised.iter().filter(|one| one.step == step).find_map(|one| one.bounds);
            let commands = match self.function(&step) {
                Some(function) => vec![function.call().to_owned()],
                None if step == Step::Purge => self.case().redis_purge(false).into_iter().collect(),
                None => step.commands(pid),
            };
            let missing = missing(&step);
            (step.clone(), Tried { label: step.label(), commands, predicted, missing, ..Tried::default() })
        };
        let mut rows: Vec<(Step, Tried)> = std::iter::once(Step::Nothing).chain(steps).map(row).collect();
        if !is_explicit {
            rows.extend(self.other_tools());
        }
        // `Step::Nothing` is only a comparison: it never runs alone.
        if rows.iter().skip(1).all(|(_, tried)| tried.missing.is_some()) {
            rows.remove(0);
        }
        rows
    }

    fn case(&self) -> Case<'_> {
        Case { snapshot: &self.snapshot, ledger: &self.ledger }
    }

    /// Remedies that need no restart, but that only another tool can carry out. A remedy without a computed saving is
    /// left out: it may only show more of the program.
    fn other_tools(&self) -> Vec<(Step, Tried)> {
        let now = |verdict: &Verdict| {
            let remedies = verdict.remedies.iter().filter(|remedy| remedy.effort == Effort::Now);
            let saves = remedies.filter(|remedy| remedy.effect != Effect::Unknown && !remedy.how.is_empty());
            let others = saves.filter(|remedy| Step::from_advice(&remedy.how).is_none());
            let row = |remedy: &Remedy| Tried {
                label: remedy.what.clone(),
                predicted: remedy.effect.figure().map(|(least, most)| (least.0, most.0)),
                missing: Some(left_to_the_user(remedy)),
                ..Tried::default()
            };
            others.map(row).collect::<Vec<_>>()
        };
        // limit-near repeats the remedy of the verdict that finds a leak.
        let mut seen = HashSet::new();
        let rows = self.verdicts.iter().flat_map(now).filter(|tried| seen.insert(tried.label.clone()));
        rows.map(|tried| (Step::Nothing, tried)).collect()
    }

    fn steps(&mut self, steps: Vec<(Step, Tried)>) -> Result<(), Failure> {
        let pid = self.trial.pid;
        let has_flags = steps.iter().any(|(step, tried)| matches!(step, Step::Flags { .. }) && tried.missing.is_none());
        // Before the signals are blocked, so that the guard does not inherit the mask.
        let mut guard = has_flags.then(|| Guard::start(pid)).transpose().map_err(|error| {
            format!("nothing was done: the process that would set flags back can't be started ({error})")
        })?;
        let signals = Signals::of(Some(&unless_nohup(&INTERRUPTS)))?;
        let (mut meter, all) = (Meter::new("steps"), steps.iter().filter(|(_, tried)| tried.missing.is_none()).count());
        let mut early = None;
        for (step, mut tried) in steps {
            if tried.missing.is_none() && early.is_none() {
                let done = self.trial.steps.iter().filter(|tried| tried.missing.is_none()).count();
                let label = tried.label.clone();
                let mut wait = |live: &Live, until: Until| {
                    let mut draw = || meter.draw(&format!("{label}: {}", until.phase()), done, all);
                    live.pass(&signals, until, &mut draw)
                };
                early = self.once(&step, &mut tried, guard.as_mut(), &mut wait).err();
            } else if tried.missing.is_none() {
                continue;
            }
            self.trial.steps.push(tried);
        }
        meter.clear();
        match early {
            Some(StepEnd::Interrupted) => self.trial.interrupted = true,
            Some(StepEnd::Ended) => {
                let note = format!("process {pid} ended, or was replaced by exec, before the last step");
                self.trial.notes.push(note);
            }
            None => {}
        }
        Ok(())
    }

    /// Runs one step. `tried` gets what was measured, even if the step fails.
    fn once(
        &mut self,
        step: &Step,
        tried: &mut Tried,
        mut guard: Option<&mut Guard>,
        wait: &mut Wait<'_>,
    ) -> Result<(), StepEnd> {
        tried.before = Some(self.resident().ok_or(StepEnd::Ended)?);
        let mut old = Vec::new();
        let acted = match self.function(step) {
            Some(function) => self.call(function, wait)?,
            None => self.act(step, guard.as_deref_mut(), &mut old),
        };
        tried.missing = acted.err();
        tried.after = self.resident();
        let waited = match tried.missing {
            None => wait(self, Until::Passed(Instant::now() + self.idle)),
            // A signal may have come meanwhile.
            Some(_) => wait(self, Until::Passed(Instant::now())),
        };
        if waited.is_ok() && tried.missing.is_none() {
            tried.idle = self.resident();
            tried.lines = self.changed_lines();
        }
        if !old.is_empty() {
            match self.set_back(&old) {
                Ok(back) => {
                    tried.set_back = back;
                    // An error means that the guard has been killed; nothing is left for it to do.
                    let _ = guard.map(Guard::free);
                }
                // The guard has a handle and a time limit of its own, so it tries now. If it tried only after the
                // report, the report's note would be false.
                Err(_) if guard.is_some_and(Guard::finish) => tried.set_back = old,
                Err(reason) => {
                    self.trial.keeps_flags = true;
                    self.trial.notes.push(guard::left(self.trial.pid, &old, &reason));
                }
            }
        }
        waited?;
        if self.resident().is_none() { Err(StepEnd::Ended) } else { Ok(()) }
    }

    /// Has the program call a function. The inner error says why it didn't.
    fn call(&self, function: Release, wait: &mut Wait<'_>) -> Result<Result<(), String>, StepEnd> {
        let verb = match function {
            Release::Glibc => "try --with trim --pid",
            Release::Jemalloc | Release::Tcmalloc => "try --with purge --pid",
        };
        let target = self.target.again(Deadline::after(CALL));
        let releasing = match target.and_then(|target| Releasing::start(target, function, verb)) {
            Ok(releasing) => releasing,
            Err(error) => return Ok(Err(format!("plimsoll can't start a thread of its own: {error}"))),
        };
        wait(self, Until::Done(&releasing))?;
        Ok(releasing.result())
    }

    /// `old`: the flags that were changed, with their values before.
    fn act(&mut self, step: &Step, guard: Option<&mut Guard>, old: &mut Vec<Setting>) -> Result<(), String> {
        let vm = |target: &mut Target| match vm::open(target) {
            Some(Ok(vm)) => Ok(vm),
            Some(Err(mute)) => Err(format!("the VM can't be queried: {mute}")),
            None => Err("it is no longer a JVM".to_owned()),
        };
        match step {
            Step::Nothing => Ok(()),
            Step::Trim => vm::trim(&mut vm(&mut self.target)?),
            Step::Collect => vm::collect(&mut vm(&mut self.target)?),
            Step::Purge => self.purge(),
            Step::Flags { settings, collect } => {
                let mut vm = vm(&mut self.target)?;
                let present = vm::present(&mut vm, settings)?;
                let guard = guard.ok_or("the process that would set flags back has ended")?;
                guard
                    .hold(&present)
                    .map_err(|error| format!("the process that would set flags back is gone ({error})"))?;
                *old = present;
                vm::set(&mut vm, settings)?;
                if *collect { vm::collect(&mut vm) } else { Ok(()) }
            }
        }
    }

    fn set_back(&mut self, old: &[Setting]) -> Result<Vec<Setting>, String> {
        match vm::open(&mut self.target) {
            // The VM has ended, and its flags with it.
            None => Ok(Vec::new()),
            Some(Ok(mut vm)) => vm::set_back(&mut vm, old),
            Some(Err(mute)) => Err(mute.to_string()),
        }
    }

    fn purge(&self) -> Result<(), String> {
        let here = proc::listeners(&self.target).filter(|listeners| !listeners.elsewhere);
        match redis::purge(&here.unwrap_or_default().tcp) {
            Some(Ok(())) => Ok(()),
            Some(Err(refused)) if refused.0.starts_with("NOAUTH") => {
                let how = self.case().redis_purge(true).unwrap_or_default();
                Err(format!("Redis asks for a password. Type: {how}"))
            }
            Some(Err(refused)) => Err(format!("Redis answers: {}", printable(&refused.0))),
            None => {
                let how = self.case().redis_purge(false).unwrap_or_default();
                Err(format!(
                    "it listens at no TCP port that answers from here (a Unix socket, TLS, or another network namespace). Type, for TLS with --tls: {how}"
                ))
            }
        }
    }

    /// Waits, unless a signal comes or the program ends.
    fn pass(&self, signals: &Signals, until: Until, draw: &mut dyn FnMut()) -> Result<(), StepEnd> {
        loop {
            draw();
            if signals.next().is_some() {
                return Err(StepEnd::Interrupted);
            }
            let tick = match until {
                Until::Passed(at) => at.saturating_duration_since(Instant::now()).min(TICK),
                Until::Done(releasing) if releasing.is_done() => Duration::ZERO,
                Until::Done(_) => CALL_TICK,
            };
            if tick.is_zero() {
                return Ok(());
            }
            if matches!(until, Until::Passed(_))
                && self.target.read("statm").map_or(true, |text| text.starts_with(b"0 "))
            {
                return Err(StepEnd::Ended);
            }
            let time = Timespec::try_from(tick).ok();
            let signal = signals.as_fd();
            let _ = poll(&mut [PollFd::new(&signal, PollFlags::IN)], time.as_ref());
        }
    }

    /// The `LINES` lines of the ledger that changed most since the last snapshot, by more than half a percent of RSS.
    fn changed_lines(&mut self) -> Vec<(String, String, i64)> {
        let Ok(snapshot) = take_snapshot(self.trial.pid, Regions::AsNeeded, Deadline::after(LOOK)) else {
            return Vec::new();
        };
        let ledger = Ledger::of(&snapshot);
        let before = |line: &plimsoll_observer::ledger::Line| self.ledger.resident(line.id).0;
        let mut lines: Vec<(String, String, i64)> = ledger
            .lines
            .iter()
            .map(|line| (line.id.id().to_owned(), line.name.clone(), line.resident.0 as i64 - before(line) as i64))
            .collect();
        let gone = self.ledger.lines.iter().filter(|line| ledger.line(line.id).is_none());
        lines.extend(gone.map(|line| (line.id.id().to_owned(), line.name.clone(), -(line.resident.0 as i64))));
        let floor = ledger.rss.0 / PART_OF_RSS;
        lines.retain(|(_, _, change)| change.unsigned_abs() > floor);
        lines.sort_by_key(|(_, _, change)| std::cmp::Reverse(change.unsigned_abs()));
        lines.truncate(LINES);
        self.ledger = ledger;
        lines
    }
}

/// What to type instead where plimsoll can't have a program call a function.
fn not_on_this_processor(pid: u32, step: &Step) -> String {
    match step {
        Step::Trim => format!(
            "on this processor only a debugger could call malloc_trim, which deadlocks the program if a \
             thread is inside malloc. On a replica, type: gdb -p {pid} -batch -ex 'handle all nostop noprint pass' -ex 'call \
             (int)malloc_trim(0)'"
        ),
        _ => "on this processor only a debugger could call its allocator".to_owned(),
    }
}

/// A trade-off is a sentence without its capital letter and full stop, or begins with a command.
fn left_to_the_user(remedy: &Remedy) -> String {
    let trade_off = match remedy.trade_off.as_str() {
        "" => String::new(),
        some => format!(" Before you type it: {some}."),
    };
    format!("plimsoll leaves this to you.{trade_off} Type: {}", remedy.how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_observer::verdict::Form;

    #[test]
    fn a_step_of_another_tool_has_its_trade_off_as_a_sentence() {
        let (how, trade_off) = ("plimsoll attach 7", "plimsoll detach removes the hooks; a part stays");
        let remedy = |trade_off: &str| Remedy {
            what: String::new(),
            how: how.into(),
            form: Form::Command,
            effort: Effort::Now,
            trade_off: trade_off.into(),
            effect: Default::default(),
        };
        let text = format!("plimsoll leaves this to you. Before you type it: {trade_off}. Type: {how}");
        assert_eq!(left_to_the_user(&remedy(trade_off)), text);
        assert_eq!(left_to_the_user(&remedy("")), format!("plimsoll leaves this to you. Type: {how}"));
    }
}
