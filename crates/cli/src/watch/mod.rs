//! `plimsoll watch`: the memory of a process, or of all, on the terminal while it changes.
//!
//! ```text
//! worker thread    sampler, list of processes, recording        what costs time         `worker`
//!        │ Facts, Listing, End; only the newest readings                                `facts`, `worker_messages`
//!        ▼
//! state            history, baseline, page, sort; total and pure                        `state`, `keys`
//!        ▼
//! drawing          state → cells; pure                                                  `draw/`
//!        ▼
//! terminal         signals, keys, size; restored on every exit                          `terminal`, `screen`
//! ```
//! The thread of the terminal never reads a process, so keys and signals work while a reading waits. Without a
//! terminal, or on one without a cursor, `plain` prints one line a reading. While a pipe or a terminal is full, that
//! thread is blocked in its write, and `record::end_if_blocked` acts on signals.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use plimsoll_facts::units::Bytes;

use crate::{Failure, explain, output, process_argument, record};

mod curve;
mod draw;
mod facts;
mod keys;
mod plain;
mod screen;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod worker;
mod worker_messages;

#[derive(clap::Args)]
pub struct Args {
    /// PID or name of the process; without one, the list of all
    #[arg(value_name = "PID|NAME", conflicts_with_all = ["all", "process"])]
    target: Option<OsString>,
    /// Choose a process whose name looks like an option, or by the id of its container
    #[arg(
        short = 'p',
        long = "process",
        value_name = "PID|NAME|CONTAINER",
        allow_hyphen_values = true,
        conflicts_with = "all"
    )]
    process: Option<OsString>,
    /// List the processes: JVMs, tracked ones, and the biggest
    #[arg(long)]
    all: bool,
    /// Read this often (500ms, 1s, 1m); expensive sources are read less often
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = record::interval)]
    interval: Duration,
    /// Stop after this time (30s, 5m, 2h, 1d)
    #[arg(long, value_name = "TIME", value_parser = record::time)]
    duration: Option<Duration>,
    /// Use colours on the screen; the lines for a pipe or a file never have any
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = output::Color::Auto)]
    color: output::Color,
    /// Use this memory limit instead of the cgroup's: bytes, or 512m, 2g as in -Xmx
    #[arg(long, value_name = "BYTES", value_parser = explain::bytes)]
    limit: Option<Bytes>,
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    output::require_stdout()?;
    // In the list, Enter leads from one process into another, and each has a limit of its own.
    if args.limit.is_some() && args.target.is_none() && args.process.is_none() {
        return Err("--limit needs a process: plimsoll watch PID. To list the processes, leave it out".into());
    }
    let pid = args.target.or(args.process).map(|name| process_argument::pid_of(&name, "watch")).transpose()?;
    let plan = worker::Plan { pid, interval: args.interval, duration: args.duration, limit: args.limit };
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    match io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb {
        true => screen::run(plan, args.color.is_on(true)),
        false => plain::run(plan),
    }
}
