//! The thread of the terminal: waits for keys, signals and readings, and draws.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::draw;
use super::keys::{self, Effect};
use super::state::State;
use super::terminal::{self, Screen};
use super::worker::{self, Order, Plan, Worker};
use super::worker_messages::Report;
use crate::output::print_message;
use crate::sys::{self, Signals};
use crate::{Failure, record};

const SIGNALS: [i32; 6] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGWINCH, libc::SIGTSTP];
/// The signals that end `watch`.
const STOPS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Time for the worker to end a recording. The file is whole at any time.
const GRACE: Duration = Duration::from_secs(2);

pub fn run(plan: Plan, has_colours: bool) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure(format!("cannot use the terminal: {error}"));
    let signals = Signals::of(Some(&SIGNALS)).map_err(failed)?;
    record::end_if_blocked(&STOPS, terminal::restore_modes);
    let worker = Worker::start(plan)?;
    let mut screen = Screen::enter().map_err(failed)?;
    let mut state = State { has_list: plan.pid.is_none(), ..State::default() };
    let ended = event_loop(&mut screen, &mut state, &worker, &signals, draw::Ink::new(has_colours));
    screen.leave();
    // If a recording was running, its last message appears on the normal screen.
    let was_recording = state.is_recording;
    worker.order(Order::Quit);
    let until = Instant::now() + GRACE;
    let mut last = None;
    let left = || until.saturating_duration_since(Instant::now());
    while was_recording && let Some(report) = worker.reports.next_within(left()) {
        match report {
            Report::Recording(false, sentence) => last = Some(sentence),
            Report::Done => break,
            _ => {}
        }
    }
    last.into_iter().for_each(print_message);
    if let Some(one) = state.shown.one.as_ref().filter(|one| one.end.is_some()) {
        print_message(format_args!("process {}: {}", one.facts.pid, one.end.as_deref().unwrap_or_default()));
    }
    ended.map(|()| ExitCode::SUCCESS).map_err(failed)
}

fn event_loop(
    screen: &mut Screen,
    state: &mut State,
    worker: &Worker,
    signals: &Signals,
    ink: draw::Ink,
) -> io::Result<()> {
    loop {
        screen.terminal.draw(|frame| draw::draw(state, ink, frame.area(), frame.buffer_mut()))?;
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&worker.reported, PollFlags::IN),
        ];
        let _ = poll(&mut fds, None::<&Timespec>);
        let keys = fds[0].revents();
        while let Some(signal) = signals.next() {
            match signal.number {
                libc::SIGWINCH => {}
                // The terminal has sent the signal to the whole group.
                libc::SIGTSTP => suspend(screen, sys::stop)?,
                _ => return Ok(()),
            }
        }
        // The reports are taken after the event is cleared, so none is missed.
        worker::clear(&worker.reported);
        while let Some(report) = worker.reports.next() {
            if apply_report(state, worker, report) {
                return Ok(());
            }
        }
        if keys.intersects(PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
        while !keys.is_empty() && event::poll(Duration::ZERO)? {
            let Event::Key(key) = event::read()? else { continue };
            match keys::press(state, key) {
                Some(Effect::Quit) => return Ok(()),
                Some(Effect::Suspend) => suspend(screen, sys::stop_group)?,
                Some(Effect::Open(pid)) => worker.order(Order::Open(pid)),
                Some(Effect::Close) => worker.order(Order::Close),
                Some(Effect::Baseline(baseline)) => worker.order(Order::Baseline(baseline)),
                Some(Effect::Record) => worker.order(Order::Record),
                Some(Effect::StopRecording) => worker.order(Order::StopRecording),
                None => {}
            }
        }
    }
}

/// Puts a report into the state. Returns whether the worker is done.
fn apply_report(state: &mut State, worker: &Worker, report: Report) -> bool {
    match report {
        Report::Facts(facts) => {
            if let Some(baseline) = state.add(*facts) {
                worker.order(Order::Baseline(Some(baseline)));
            }
        }
        Report::Listing(time_ns, listed) => state.shown.list.add(time_ns, listed),
        Report::End(how) => state.end(how),
        Report::Recording(is_on, sentence) => {
            state.is_recording = is_on;
            state.note = Some(sentence);
        }
        Report::Refused(sentence) => state.note = Some(sentence),
        Report::Done => return true,
    }
    false
}

fn suspend(screen: &mut Screen, stop: fn()) -> io::Result<()> {
    screen.leave();
    stop();
    screen.enter_screen()
}
