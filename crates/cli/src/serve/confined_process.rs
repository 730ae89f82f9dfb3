//! Starts, watches and ends the listener and the sender. Each is this program again under another argv[0], with a pipe
//! to the reader, and gives up its rights before it serves (`confine`).

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::export_wire::{self, Receipt};
use super::wire::{self, Hello, Question, QuestionKind};
use crate::Failure;
use crate::confine::Confined;
use crate::sys::Signals;

/// The name of a process, and the limit for its start.
struct Start {
    name: &'static str,
    /// Time for the new process to give up its rights.
    within: Duration,
    /// A clause: what may have taken longer.
    late: &'static str,
}

const LISTENER: Start =
    Start { name: "listening", within: Duration::from_secs(10), late: "the machine may be too busy" };
/// The sender looks up its receivers first: a resolver waits 10 s for two servers that don't answer (resolv.conf(5)).
const SENDER: Start = Start {
    name: "sending",
    within: Duration::from_secs(30),
    late: "the name server may not answer about the names of --otlp and --pyroscope",
};

/// A process, and our end of its pipe.
pub struct ConfinedProcess {
    /// `listening` or `sending`.
    name: &'static str,
    pub pid: u32,
    pub pipe: UnixStream,
    pub confined: Confined,
    pidfd: OwnedFd,
    child: Mutex<Child>,
}

impl ConfinedProcess {
    /// Starts the listener. Only the listener keeps the listening socket.
    pub fn listener(argv0: &str, listening: OwnedFd, hello: &Hello) -> Result<ConfinedProcess, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(argv0).stdout(Stdio::from(listening));
        ConfinedProcess::start(&LISTENER, command, &hello.encode(), |pipe| {
            let mut ready = [0; wire::REQUEST];
            pipe.read_exact(&mut ready).ok()?;
            let (_, question) = Question::decode(&ready)?;
            (question.kind == QuestionKind::Ready).then_some(question.style)
        })
    }

    pub fn sender(argv0: &str, words: &[&str]) -> Result<ConfinedProcess, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(argv0).args(words).stdout(Stdio::null());
        ConfinedProcess::start(&SENDER, command, &[], |pipe| {
            let mut ready = [0; export_wire::RECEIPT];
            pipe.read_exact(&mut ready).ok()?;
            let Some(Receipt::Ready(bits)) = Receipt::decode(&ready) else { return None };
            Some(bits)
        })
    }

    /// Starts the process and waits until it has given up its rights. `ready` reads how it is confined.
    fn start(
        &Start { name, within, late }: &Start,
        mut command: Command,
        hello: &[u8],
        ready: impl FnOnce(&mut UnixStream) -> Option<u8>,
    ) -> Result<ConfinedProcess, Failure> {
        let cant = |error: io::Error| Failure(format!("cannot start the {name} process: {error}"));
        let (mut pipe, theirs) = UnixStream::pair().map_err(cant)?;
        command.env_clear().current_dir("/").stdin(Stdio::from(OwnedFd::from(theirs)));
        // Ctrl-C on the terminal is for this process.
        let child = command.process_group(0).spawn().map_err(cant)?;
        // Closes our copy of the process's end of the pipe.
        drop(command);
        let pid = child.id();
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pidfd =
            known.ok_or(io::ErrorKind::InvalidData.into()).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
        let (pidfd, child) = (pidfd.map_err(cant)?, Mutex::new(child));
        pipe.set_read_timeout(Some(within)).map_err(cant)?;
        let bits = pipe.write_all(hello).ok().and_then(|()| ready(&mut pipe));
        pipe.set_read_timeout(None).map_err(cant)?;
        let confined = bits.map(Confined::of_bits).unwrap_or_default();
        let process = ConfinedProcess { name, pid, pipe, confined, pidfd, child };
        if bits.is_none() {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            // A process that ended has closed the pipe.
            let mut fds = [PollFd::new(&process.pipe, PollFlags::IN)];
            let is_late = poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0);
            let end = process.end();
            if is_late {
                return Err(format!("the {name} process was not ready within {within:?}: {late}").into());
            }
            return Err(match end.code() {
                Some(2) => Failure::PRINTED,
                _ => format!("the {name} process {}", how(end)).into(),
            });
        }
        // Without seccomp, a process of the user's own, or of root, could read other processes.
        if !confined.seccomp && !confined.is_nobody {
            return Err(
                format!("the kernel gives no way to take rights from the {name} process: it has no seccomp").into()
            );
        }
        Ok(process)
    }

    /// `process 12: user nobody, Landlock, seccomp`.
    pub fn held(&self) -> String {
        let user = match (self.confined.is_nobody, self.confined.is_root) {
            (true, _) => "user nobody",
            (_, true) => "root without capabilities",
            _ => "your user",
        };
        let by = |is_on: bool, name: &str| if is_on { format!(", {name}") } else { format!(", no {name} here") };
        let (landlock, seccomp) = (by(self.confined.landlock, "Landlock"), by(self.confined.seccomp, "seccomp"));
        format!("process {}: {user}{landlock}{seccomp}", self.pid)
    }

    fn ended(&self) -> Option<ExitStatus> {
        // This program aborts on a panic, so nobody sees a poisoned lock.
        self.child.lock().ok()?.try_wait().ok()?
    }

    pub fn end(&self) -> ExitStatus {
        let Ok(mut child) = self.child.lock() else { return ExitStatus::default() };
        let _ = child.kill();
        child.wait().unwrap_or_default()
    }
}

/// No such process outlives the reader, even if the reader fails at its start.
impl Drop for ConfinedProcess {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.end();
        }
    }
}

/// Waits for a signal or for the end of one of the processes. None: a signal; else the sentence about the end.
pub fn wait(all: &[&ConfinedProcess], signals: &Signals) -> Option<String> {
    loop {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        fds.extend(all.iter().map(|of| PollFd::new(&of.pidfd, PollFlags::IN)));
        let _ = poll(&mut fds, None::<&Timespec>);
        if signals.next().is_some() {
            return None;
        }
        if let Some((of, status)) = all.iter().find_map(|of| Some((of, of.ended()?))) {
            return Some(format!("the {} process {}", of.name, how(status)));
        }
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("ended with status {}", code.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// plimsoll kills the process in this case, so the signal that ended it shows nothing about the cause.
    #[test]
    fn a_process_that_is_not_ready_in_time_is_not_called_killed() {
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").stdout(Stdio::null());
        let start = Start { within: Duration::from_millis(100), ..SENDER };
        let started = ConfinedProcess::start(&start, command, &[], |pipe| {
            let mut ready = [0; export_wire::RECEIPT];
            pipe.read_exact(&mut ready).ok().map(|()| ready[0])
        });
        let Err(Failure(sentence)) = started else { panic!("sleep sends nothing") };
        assert!(sentence.starts_with("the sending process was not ready within 100ms: the name server"), "{sentence}");
    }
}
