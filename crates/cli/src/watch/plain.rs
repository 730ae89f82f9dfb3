//! `watch` without a terminal: one line a reading, for a pipe, a file, or a terminal without a cursor.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use plimsoll_observer::verdict::{Verdict, VerdictId};
use plimsoll_report::words::{self, printable, signed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::curve::{Trend, rate};
use super::state::{List, Sort, State, Watched};
use super::worker::{self, Order, Plan, Worker};
use super::worker_messages::Report;
use crate::sys::{Signals, unless_nohup};
use crate::{Failure, record};

/// Limit of the ledger's lines, or of listed processes, that one printed line names.
const NAMED: usize = 4;
/// Time for the worker to finish its reading after a signal.
const GRACE: Duration = Duration::from_secs(2);

pub fn run(plan: Plan) -> Result<ExitCode, Failure> {
    let cant = |error: io::Error| Failure(format!("cannot wait for signals: {error}"));
    let stops = unless_nohup(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    let signals = Signals::of(Some(&stops)).map_err(cant)?;
    record::end_if_blocked(&stops, || {});
    let worker = Worker::start(plan)?;
    let mut state = State::default();
    loop {
        let mut fds = [PollFd::new(&worker.reported, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        let _ = poll(&mut fds, None::<&Timespec>);
        if signals.next().is_some() {
            worker.order(Order::Quit);
            let _ = worker.reports.next_within(GRACE);
            return Ok(ExitCode::SUCCESS);
        }
        worker::clear(&worker.reported);
        while let Some(report) = worker.reports.next() {
            // Without a terminal no other process is opened, so nothing follows.
            let is_end = matches!(report, Report::End(_));
            let line = match report {
                Report::Facts(facts) => {
                    if let Some(baseline) = state.add(*facts) {
                        worker.order(Order::Baseline(Some(baseline)));
                    }
                    state.shown.one.as_ref().map(line_of)
                }
                Report::Listing(time_ns, listed) => {
                    state.shown.list.add(time_ns, listed);
                    Some(line_of_list(&state.shown.list))
                }
                Report::End(how) => {
                    let (time, pid) = state.shown.one.as_ref().map_or((0, 0), |one| (one.facts.time_ns, one.facts.pid));
                    Some(format!("{}  process {pid}: {how}", words::moment(time)))
                }
                Report::Recording(_, sentence) | Report::Refused(sentence) => Some(sentence),
                Report::Done => return Ok(ExitCode::SUCCESS),
            };
            match line.map_or(Ok(()), |line| writeln!(io::stdout(), "{line}")) {
                Ok(()) => {}
                // The reader has closed the pipe.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                Err(e) => return Err(format!("cannot write standard output: {e}").into()),
            }
            if is_end {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// `2026-11-23T17:05:03.250Z  RSS 3.21 GiB  +12.0 MiB  +38.0 ±4.1 MiB/h  80 % of 4.00 GiB  Java heap 1.02 GiB, …  arena-retention`
pub fn line_of(one: &Watched) -> String {
    let facts = &one.facts;
    let mut line = format!("{}  RSS {}  {}", words::moment(facts.time_ns), facts.rss, signed(one.rss.change()));
    if let Trend::Is(growth) = one.trend(&one.rss) {
        let _ = write!(line, "  {}", rate(growth));
    }
    if let Some(limit) = facts.limit {
        let _ = write!(line, "  {:.0} % of {}", limit.counted.percent_of(limit.bytes), limit.bytes);
        if let Some(left) = one.time_left() {
            let _ = write!(line, ", reached {}", super::draw::in_time(left));
        }
    }
    let rows = one.rows(Sort::Size);
    let named: Vec<String> = rows.iter().take(NAMED).map(|row| format!("{} {}", row.name, row.resident)).collect();
    if !named.is_empty() {
        let _ = write!(line, "  {}", named.join(", "));
    }
    // Before a rate can be given, growth can't be excluded.
    let is_early = matches!(one.trend(&one.rss), Trend::In(_));
    let counts = |verdict: &&Verdict| !(is_early && verdict.id == VerdictId::Healthy);
    let verdicts: Vec<&str> = one.standing().filter(counts).map(|verdict| verdict.id.id()).collect();
    let _ = match verdicts.is_empty() {
        false => write!(line, "  [{}]", verdicts.join(" ")),
        true if is_early => write!(line, "  [no verdict yet]"),
        true => Ok(()),
    };
    line
}

fn line_of_list(list: &List) -> String {
    let rows = list.rows(Sort::Size);
    let named: Vec<String> = rows
        .iter()
        .take(NAMED)
        .map(|(of, curve)| {
            format!("{} {} {} ({})", of.identity.pid, printable(&of.name), of.rss, signed(curve.change()))
        })
        .collect();
    format!("{}  {} processes: {}", words::moment(list.time_ns), rows.len(), named.join(", "))
}
