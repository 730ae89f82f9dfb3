//! One connection of a client: bytes in, one question at a time, bytes out. Each state has a deadline, so a client that
//! is slow, silent or gone takes one of the connections for seconds only.
//!
//! ```text
//! Reading ── head complete ─▶ Waiting ── answer ─▶ Writing ── all sent ─▶ Reading (keep-alive) or Closing
//!    └────── refused, late ──────────────────────────┘ the refusal           └─ shut down; what arrives is dropped
//! ```
//! While a request waits nothing more is read, so pipelined requests stay in the kernel's buffer, which is bounded.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::http::{self, BadRequest, Parsed, Request};
use crate::serve::wire::{Hello, Question};

/// Time for the head of a request, from its first byte or from the start of the connection.
const HEAD: Duration = Duration::from_secs(5);
/// Time between two requests: longer than the usual interval of scrapes.
const IDLE: Duration = Duration::from_secs(75);
/// Time for an answer of the reader.
const ANSWER: Duration = Duration::from_secs(25);
/// In each `SENDING` a client must take `LEAST` bytes.
const SENDING: Duration = Duration::from_secs(10);
const LEAST: usize = 64 << 10;
/// Time and bytes for a client that still sends after the last answer.
const CLOSING: Duration = Duration::from_secs(1);
const DROPPED: usize = 64 << 10;
/// Limit of requests on one connection.
const MOST_REQUESTS: u32 = 1000;

/// The body of an answer, shared by all clients that sent the same question.
pub type Body = Rc<Vec<u8>>;

enum State {
    Reading { has_begun: bool },
    Waiting { question: Question, is_head: bool, keeps: bool },
    Writing { head: Vec<u8>, body: Option<Body>, sent: usize, counted: usize, keeps: bool },
    Closing { dropped: usize },
}

pub struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    state: State,
    deadline: Instant,
    requests: u32,
    /// The client sends nothing more; it may still read.
    has_finished: bool,
}

pub enum Outcome {
    Open,
    /// A new question.
    Asks,
    Closed,
}

impl Connection {
    pub fn new(socket: OwnedFd, now: Instant) -> Connection {
        let state = State::Reading { has_begun: true };
        Connection { socket, input: Vec::new(), state, deadline: now + HEAD, requests: 0, has_finished: false }
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// None: it waits for the reader, not for its client.
    pub fn wants(&self) -> Option<PollFlags> {
        match self.state {
            State::Reading { .. } | State::Closing { .. } => Some(PollFlags::IN),
            State::Waiting { .. } => None,
            State::Writing { .. } => Some(PollFlags::OUT),
        }
    }

    pub fn question(&self) -> Option<&Question> {
        match &self.state {
            State::Waiting { question, .. } => Some(question),
            _ => None,
        }
    }

    pub fn body(&self) -> Option<&Body> {
        match &self.state {
            State::Writing { body, .. } => body.as_ref(),
            _ => None,
        }
    }

    /// No client waits for an answer on it, so it may be closed in favour of a new one.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Reading { has_begun: false } | State::Closing { .. })
    }

    /// Its request is not complete.
    pub fn is_incomplete(&self) -> bool {
        matches!(self.state, State::Reading { .. })
    }

    /// The socket is ready.
    pub fn proceed(&mut self, rules: &Hello, now: Instant) -> Outcome {
        match self.state {
            State::Reading { .. } => self.read(rules, now),
            // Nothing is read now, so only its end makes it ready: the client is gone in both directions.
            State::Waiting { .. } => Outcome::Closed,
            State::Writing { .. } => self.write(rules, now),
            State::Closing { .. } => self.drain(),
        }
    }

    pub fn expire(&mut self, rules: &Hello, now: Instant) -> Outcome {
        match &mut self.state {
            State::Reading { has_begun: true } if !self.input.is_empty() => {
                self.refuse(&BadRequest { code: 408, sentence: "the request took longer than 5 s" }, rules, now)
            }
            State::Waiting { .. } => {
                let sentence = "reading the process takes longer than 25 s: try again";
                self.refuse(&BadRequest { code: 504, sentence }, rules, now)
            }
            State::Writing { sent, counted, .. } if *sent - *counted >= LEAST => {
                *counted = *sent;
                self.deadline = now + SENDING;
                Outcome::Open
            }
            _ => Outcome::Closed,
        }
    }

    fn read(&mut self, rules: &Hello, now: Instant) -> Outcome {
        let mut buffer = [0; http::MOST_HEAD];
        let most = http::MOST_HEAD - self.input.len();
        match recv(&self.socket, &mut buffer[..most], RecvFlags::DONTWAIT) {
            Ok((0, _)) if self.input.is_empty() => Outcome::Closed,
            Ok((0, _)) => {
                self.has_finished = true;
                self.refuse(&BadRequest { code: 400, sentence: "the request ends early" }, rules, now)
            }
            Ok((got, _)) => {
                self.input.extend_from_slice(&buffer[..got]);
                if let State::Reading { has_begun } = &mut self.state
                    && !std::mem::replace(has_begun, true)
                {
                    self.deadline = now + HEAD;
                }
                self.take(rules, now)
            }
            Err(Errno::AGAIN | Errno::INTR) => Outcome::Open,
            Err(_) => Outcome::Closed,
        }
    }

    /// Takes the next request from what was read.
    fn take(&mut self, rules: &Hello, now: Instant) -> Outcome {
        match http::parse(&self.input, rules) {
            Parsed::Partial => Outcome::Open,
            Parsed::BadRequest(refusal) => self.refuse(&refusal, rules, now),
            Parsed::Request(Request { question, is_head, keeps }, length) => {
                self.input.drain(..length);
                self.requests += 1;
                let keeps = keeps && self.requests < MOST_REQUESTS;
                self.state = State::Waiting { question, is_head, keeps };
                self.deadline = now + ANSWER;
                Outcome::Asks
            }
        }
    }

    /// The answer to its question.
    pub fn answer(&mut self, answer: &crate::serve::wire::Head, body: &Body, rules: &Hello, now: Instant) -> Outcome {
        let State::Waiting { is_head, keeps, .. } = self.state else { return Outcome::Open };
        let head = http::head_of(answer, keeps).into_bytes();
        let body = (!is_head).then(|| body.clone());
        self.state = State::Writing { head, body, sent: 0, counted: 0, keeps };
        self.deadline = now + SENDING;
        self.write(rules, now)
    }

    pub fn refuse(&mut self, refusal: &BadRequest, rules: &Hello, now: Instant) -> Outcome {
        let is_head = match self.state {
            State::Waiting { is_head, .. } => is_head,
            _ => http::is_head(&self.input),
        };
        let head = http::refused(refusal, is_head);
        self.state = State::Writing { head, body: None, sent: 0, counted: 0, keeps: false };
        self.deadline = now + SENDING;
        self.write(rules, now)
    }

    fn write(&mut self, rules: &Hello, now: Instant) -> Outcome {
        let State::Writing { head, body, sent, keeps, .. } = &mut self.state else { return Outcome::Open };
        loop {
            let body = body.as_ref().map_or(&[][..], |body| body.as_slice());
            let rest = match sent.checked_sub(head.len()) {
                None => &head[*sent..],
                Some(at) => &body[at..],
            };
            if rest.is_empty() {
                break;
            }
            // The end of the head waits for the body, so that small answers are one packet.
            let more = if *sent < head.len() && !body.is_empty() { SendFlags::MORE } else { SendFlags::empty() };
            match send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT | more) {
                Ok(count) => *sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Outcome::Open,
                Err(_) => return Outcome::Closed,
            }
        }
        if !*keeps || self.has_finished {
            // A close with unread bytes would reset the connection, and the client could lose the answer.
            let _ = shutdown(&self.socket, Shutdown::Write);
            self.state = State::Closing { dropped: 0 };
            self.deadline = now + CLOSING;
            return Outcome::Open;
        }
        self.state = State::Reading { has_begun: !self.input.is_empty() };
        self.deadline = now + if self.input.is_empty() { IDLE } else { HEAD };
        // The next request may be complete already.
        if self.input.is_empty() { Outcome::Open } else { self.take(rules, now) }
    }

    fn drain(&mut self) -> Outcome {
        let State::Closing { dropped } = &mut self.state else { return Outcome::Open };
        match recv(&self.socket, &mut [0; 4096], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Outcome::Closed,
            Ok((got, _)) => {
                *dropped += got;
                if *dropped > DROPPED { Outcome::Closed } else { Outcome::Open }
            }
            Err(Errno::AGAIN | Errno::INTR) => Outcome::Open,
            Err(_) => Outcome::Closed,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
