//! The guard: a small process that sets a VM's flags back if plimsoll can't.
//!
//! ```text
//! plimsoll ── line (socket, the guard's standard input) ── guard
//!     hold NAME OLD ─▶        free ─▶ (all are back)        end of the line: set back what is held
//! ```
//! It is this program again (/proc/self/exe) under another argv[0], in a process group of its own, so a Ctrl-C, a
//! hangup or a SIGKILL of plimsoll doesn't reach it. It opens /proc/PID before plimsoll changes anything: a process
//! that takes the PID later is never touched.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use plimsoll_process::foreign::{Deadline, LOOK};
use plimsoll_process::proc::Target;
use plimsoll_trial::live::Setting;

use super::vm;
use crate::exit::Exit;
use crate::output::print_message;
use crate::sys;

/// argv[0] of the guard.
pub const NAME: &str = "plimsoll-guard";

/// Time limit for the guard's start.
const START: Duration = Duration::from_secs(30);

/// plimsoll's end of the line. Dropping it closes the line: the guard sets back the flags that it still holds. The drop
/// waits for the guard's end.
pub struct Guard {
    line: Option<UnixStream>,
    child: Child,
}

impl Guard {
    pub fn start(pid: u32) -> io::Result<Guard> {
        let (line, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(pid.to_string()).process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let child = sys::handing_down(|| command.spawn())?;
        // Closes our copy of the guard's end.
        drop(command);
        let mut guard = Guard { line: Some(line), child };
        guard.wait_for("ready")?;
        Ok(guard)
    }

    fn wait_for(&mut self, word: &str) -> io::Result<()> {
        let Some(line) = &self.line else { return Err(io::ErrorKind::NotConnected.into()) };
        line.set_read_timeout(Some(START))?;
        let mut answer = String::new();
        BufReader::new(line).read_line(&mut answer)?;
        if answer.trim() == word { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// From now on the guard sets these flags back if plimsoll ends.
    pub fn hold(&mut self, old: &[Setting]) -> io::Result<()> {
        let lines: Vec<String> = old.iter().map(|one| format!("hold {} {}\n", one.name, one.value)).collect();
        self.send(&lines.concat())?;
        self.send("sync\n")?;
        self.wait_for("held")
    }

    /// Reports to the guard that the flags are set back.
    pub fn free(&mut self) -> io::Result<()> {
        self.send("free\n")
    }

    /// Has the guard set back what it holds, and waits for its end. Returns whether all is back. No further flag can be
    /// held.
    pub fn finish(&mut self) -> bool {
        self.line.take();
        self.child.wait().is_ok_and(|status| status.success())
    }

    fn send(&mut self, text: &str) -> io::Result<()> {
        let Some(line) = &mut self.line else { return Err(io::ErrorKind::NotConnected.into()) };
        line.write_all(text.as_bytes())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Applies a line of plimsoll's to the list of held flags.
fn took(held: &mut Vec<Setting>, line: &str) {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["hold", name, value] => held.push(Setting { name: (*name).into(), value: (*value).into() }),
        ["free"] => held.clear(),
        _ => {}
    }
}

/// `main` of the guard.
pub fn main() -> ExitCode {
    let Some(pid) = std::env::args().nth(1).and_then(|pid| pid.parse().ok()) else { return Exit::Failed.into() };
    let Ok(mut target) = Target::open(pid, Deadline::after(LOOK)) else { return Exit::Failed.into() };
    let Ok(line) = io::stdin().as_fd().try_clone_to_owned() else { return Exit::Failed.into() };
    let line = UnixStream::from(line);
    let mut held = Vec::new();
    if (&line).write_all(b"ready\n").is_err() {
        return Exit::Failed.into();
    }
    // A line that can't be read any more means that plimsoll is gone, or done.
    for word in BufReader::new(&line).lines().map_while(Result::ok) {
        took(&mut held, &word);
        if word == "sync" && (&line).write_all(b"held\n").is_err() {
            break;
        }
    }
    if held.is_empty() {
        return ExitCode::SUCCESS;
    }
    // A process that has ended has no flags.
    let done = match vm::open(&mut target) {
        None => Ok(Vec::new()),
        Some(Ok(mut vm)) => vm::set_back(&mut vm, &held),
        Some(Err(mute)) => Err(mute.to_string()),
    };
    match done {
        Ok(_) => ExitCode::SUCCESS,
        Err(reason) => {
            print_message(left(pid, &held, &reason));
            Exit::Failed.into()
        }
    }
}

/// Flags that could not be set back, and what to type.
pub fn left(pid: u32, held: &[Setting], reason: &str) -> String {
    let set = held.iter().rev().map(|one| format!("jcmd {pid} VM.set_flag {} {}", one.name, one.value));
    format!("process {pid} keeps changed flags: {reason}. Set them back with: {}", set.collect::<Vec<_>>().join(" && "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_holds_what_is_not_freed() {
        let held = |lines: &[&str]| {
            let mut held = Vec::new();
            lines.iter().for_each(|line| took(&mut held, line));
            held.into_iter().map(|one: Setting| format!("{}={}", one.name, one.value)).collect::<Vec<_>>()
        };
        assert_eq!(held(&["hold A 1", "hold B 2", "sync"]), ["A=1", "B=2"]);
        assert!(held(&["hold A 1", "free"]).is_empty() && held(&["hold A", "hold A 1 2", ""]).is_empty());
        let settings = [("A", "1"), ("B", "2")].map(|(name, value)| Setting { name: name.into(), value: value.into() });
        let text = left(7, &settings, "it is stopped");
        assert!(text.ends_with("jcmd 7 VM.set_flag B 2 && jcmd 7 VM.set_flag A 1"), "{text}");
    }
}
