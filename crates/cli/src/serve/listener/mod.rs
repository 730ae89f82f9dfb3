//! The process that listens. It speaks HTTP with anybody, and asks the reader by the protocol of `wire`.
//!
//! ```text
//! clients ── HTTP ──▶ Connection … Connection ── question ──▶ Desk ── wire ──▶ reader
//!                       `connection`, `http`                  equal questions are sent once
//! ```
//! It is this program again (/proc/self/exe) under another argv[0], so no memory of the reader's is in it. Descriptor 0
//! is the socket to the reader, 1 the socket that listens, 2 standard error. Before it takes a connection it gives up
//! every right (`confine`). One thread, one loop.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use super::wire::{self, Head, Hello, MOST_BODY, Question, QuestionKind};
use crate::confine::{self, Limits, Purpose};
use crate::exit::Exit;
use crate::output::print_message;
use crate::sys;
use connection::{Body, Connection, Outcome};
use http::BadRequest;

mod connection;
mod http;

/// argv[0] of the listener.
pub const NAME: &str = "plimsoll-listener";

/// Limit of connections at a time.
const MOST: usize = 128;
/// Limit of the answers that clients have not taken yet, in bytes.
const MOST_HELD: usize = 128 << 20;
/// Address space; the answers are most of it.
const MEMORY: u64 = 512 << 20;
/// If the process can't take a connection (no descriptor is left), it tries again after this time.
const PAUSE: Duration = Duration::from_millis(200);

const BUSY: BadRequest = BadRequest { code: 503, sentence: "too many requests at a time: try again" };

/// `main` of the listener.
pub fn main() -> ExitCode {
    match serve() {
        Ok(never) => match never {},
        Err(sentence) => {
            if !sentence.is_empty() {
                print_message(sentence);
            }
            Exit::Failed.into()
        }
    }
}

/// Returns only with an error. An empty one is not printed: the reader has reported why it ended.
fn serve() -> Result<std::convert::Infallible, String> {
    const GONE: &str = "the reading process has ended: plimsoll serve ends";
    sys::unblock(&super::STOPS);
    confine::close_from(3);
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    let (reader, listening) = (stdin.as_fd(), stdout.as_fd());
    let mut bytes = [0; wire::HELLO];
    let (got, _) = recv(reader, &mut bytes, RecvFlags::WAITALL).map_err(|e| format!("the listener's pipe: {e}"))?;
    if got == 0 {
        return Err(String::new());
    }
    let rules = Hello::decode(&bytes).ok_or("the listener was not started by plimsoll serve")?;
    let limits = Limits { descriptors: MOST as u64 + 8, memory: MEMORY };
    let confined = confine::confine(Purpose::Listen, &limits)
        .map_err(|e| format!("cannot give up the rights of the listener: {e}"))?;
    let mut desk = Desk { reader, rules, pending: Vec::new(), number: 0, input: Vec::new(), head: None };
    desk.submit(Question { style: confined.bits(), ..Question::of(QuestionKind::Ready) }).map_err(|_| GONE)?;
    // The reader gives no answer to this one.
    desk.pending.clear();
    let mut connections: Vec<Connection> = Vec::new();
    let mut pause: Option<Instant> = None;
    loop {
        let now = Instant::now();
        pause = pause.filter(|until| *until > now);
        let Ready { reader: is_answered, listening: is_called, connections: ready } =
            wait(reader, listening, &connections, pause)?;
        let now = Instant::now();
        for (at, is_ready) in ready.into_iter().enumerate().rev() {
            let connection = &mut connections[at];
            let outcome = match is_ready {
                true => connection.proceed(&desk.rules, now),
                false if connection.deadline() <= now => connection.expire(&desk.rules, now),
                false => Outcome::Open,
            };
            settle(&mut connections, at, outcome, &mut desk, now);
        }
        if is_answered {
            while let Some((head, body)) =
                desk.receive().map_err(|end| if end { GONE.to_owned() } else { BROKEN.into() })?
            {
                deliver(&mut connections, &head, &body, &mut desk, now);
            }
        }
        if is_called && pause.is_none() && !accept(listening, &mut connections, now) {
            pause = Some(now + PAUSE);
        }
    }
}

const BROKEN: &str = "the reading process sent something other than an answer: plimsoll serve ends";

/// What is ready.
struct Ready {
    reader: bool,
    listening: bool,
    connections: Vec<bool>,
}

/// Waits until something is ready, or late. `pause`: no connection is accepted until then.
fn wait(
    reader: BorrowedFd<'_>,
    listening: BorrowedFd<'_>,
    connections: &[Connection],
    pause: Option<Instant>,
) -> Result<Ready, String> {
    let fd = |fd, flags: Option<PollFlags>| PollFd::from_borrowed_fd(fd, flags.unwrap_or(PollFlags::empty()));
    let mut fds = vec![fd(reader, Some(PollFlags::IN)), fd(listening, pause.is_none().then_some(PollFlags::IN))];
    fds.extend(connections.iter().map(|one| fd(one.as_fd(), one.wants())));
    let next = connections.iter().map(Connection::deadline).chain(pause).min();
    let left = next.map(|next| next.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(format!("the listener cannot wait: {error}")),
    }
    let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    Ok(Ready {
        reader: is_ready(&fds[0]),
        listening: is_ready(&fds[1]),
        connections: fds[2..].iter().map(is_ready).collect(),
    })
}

/// Closes a connection, or asks its question. An answer can't come before the question is on its way.
fn settle(connections: &mut Vec<Connection>, at: usize, outcome: Outcome, desk: &mut Desk<'_>, now: Instant) {
    match outcome {
        Outcome::Open => {}
        Outcome::Closed => drop(connections.swap_remove(at)),
        Outcome::Asks => {
            let Some(question) = connections[at].question().cloned() else { return };
            if !desk.submit(question).unwrap_or(false) {
                let outcome = connections[at].refuse(&BUSY, &desk.rules, now);
                settle(connections, at, outcome, desk, now);
            }
        }
    }
}

/// Gives an answer to all connections that wait for it.
fn deliver(connections: &mut Vec<Connection>, head: &Head, body: &Body, desk: &mut Desk<'_>, now: Instant) {
    let Some(question) = desk.answered(head.number) else { return };
    let mut held: Vec<&Body> = connections.iter().filter_map(Connection::body).collect();
    held.sort_by_key(|body| Rc::as_ptr(body));
    held.dedup_by_key(|body| Rc::as_ptr(body));
    let is_much = held.iter().map(|body| body.len()).sum::<usize>() + body.len() > MOST_HELD;
    for at in (0..connections.len()).rev() {
        if connections[at].question() == Some(&question) {
            let outcome = match is_much {
                true => connections[at].refuse(&BUSY, &desk.rules, now),
                false => connections[at].answer(head, body, &desk.rules, now),
            };
            settle(connections, at, outcome, desk, now);
        }
    }
}

/// Takes the connections that wait. False: the process can't have one more now.
fn accept(listening: BorrowedFd<'_>, connections: &mut Vec<Connection>, now: Instant) -> bool {
    for _ in 0..MOST {
        if connections.len() >= MOST && !close_idlest(connections) {
            return false;
        }
        match accept_with(listening, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => connections.push(Connection::new(socket, now)),
            Err(Errno::AGAIN) => return true,
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Closes the connection that is nearest to its end among those that ask nothing: the idle ones first.
fn close_idlest(connections: &mut Vec<Connection>) -> bool {
    let of = |may_close: fn(&Connection) -> bool, all: &[Connection]| {
        let found = all.iter().enumerate().filter(|(_, one)| may_close(one));
        found.min_by_key(|(_, one)| one.deadline()).map(|(at, _)| at)
    };
    let at = of(Connection::is_idle, connections).or_else(|| of(Connection::is_incomplete, connections));
    at.map(|at| connections.swap_remove(at)).is_some()
}

/// The questions that the reader has, and the bytes of its next answer.
struct Desk<'fd> {
    reader: BorrowedFd<'fd>,
    rules: Hello,
    pending: Vec<(u32, Question)>,
    number: u32,
    input: Vec<u8>,
    /// Of the answer whose body is being read.
    head: Option<Head>,
}

impl Desk<'_> {
    /// False: the reader has too many questions already. An equal question is not sent again. An error: the reader is
    /// gone, which the next `receive` reports.
    fn submit(&mut self, question: Question) -> Result<bool, Errno> {
        if self.pending.iter().any(|(_, pending)| *pending == question) {
            return Ok(true);
        }
        self.number = self.number.wrapping_add(1);
        // Questions about one target are slow: four of the eight stay free for metrics and health.
        let capacity = if question.kind.is_of_a_target() { wire::MOST_REQUESTS - 4 } else { wire::MOST_REQUESTS };
        let Some(bytes) = question.encode(self.number).filter(|_| self.pending.len() < capacity) else {
            return Ok(false);
        };
        // So few requests always fit into the socket's buffer.
        send(self.reader, &bytes, SendFlags::NOSIGNAL)?;
        self.pending.push((self.number, question));
        Ok(true)
    }

    fn answered(&mut self, number: u32) -> Option<Question> {
        let at = self.pending.iter().position(|(pending, _)| *pending == number)?;
        Some(self.pending.swap_remove(at).1)
    }

    /// The next answer that is complete. Err(true): the reader has ended.
    fn receive(&mut self) -> Result<Option<(Head, Body)>, bool> {
        loop {
            let wanted = self.head.map_or(wire::REPLY, |head| head.length);
            while self.input.len() < wanted {
                let from = self.input.len();
                // A body grows as it comes, so that a wrong length costs nothing.
                self.input.resize(wanted.min(from + (256 << 10)), 0);
                let got = recv(self.reader, &mut self.input[from..], RecvFlags::DONTWAIT);
                self.input.truncate(from + got.as_ref().map_or(0, |(count, _)| *count));
                match got {
                    Ok((0, _)) => return Err(true),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(_) => return Err(true),
                }
            }
            let bytes = mem::take(&mut self.input);
            match self.head.take() {
                Some(head) => return Ok(Some((head, Rc::new(bytes)))),
                None => {
                    let head = bytes.as_slice().try_into().ok().and_then(Head::decode);
                    self.head = Some(head.filter(|head| head.length <= MOST_BODY).ok_or(false)?);
                }
            }
        }
    }
}
