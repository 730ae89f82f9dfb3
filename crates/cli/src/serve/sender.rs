//! The process that sends: to an OpenTelemetry Collector and to Pyroscope, by HTTP.
//!
//! ```text
//! reader ── export ──▶ sender ── POST ──▶ http://HOST:PORT/v1/metrics, /v1development/profiles, /ingest
//!        ◀── receipt ─        ◀── status ─
//! ```
//! It is this program again (/proc/self/exe) under another argv[0]; descriptor 0 is the socket to the reader. It looks
//! up the addresses of its command line, then gives up every right but to connect to their ports by TCP (`confine`).
//! One thread, one export at a time, one connection for each: no state that a receiver could confuse.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use plimsoll_report::otlp;
use plimsoll_trial::rate::Url;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::export_wire::{self, ExportHead, ExportKind, Receipt};
use crate::confine::{self, Limits, Purpose};
use crate::exit::Exit;
use crate::output::print_message;
use crate::sys;

/// argv[0] of the sender. Its arguments are the name of the machine, and the addresses of OTLP and of Pyroscope, which
/// may be empty.
pub const NAME: &str = "plimsoll-sender";
/// Time for one export, from the connection to the answer.
const SENDING: Duration = Duration::from_secs(10);
/// Limits of an answer: bytes, and header lines.
const MOST_ANSWER: usize = 64 << 10;
const MOST_LINES: usize = 64;
/// Address space; the body is most of it.
const MEMORY: u64 = 512 << 20;

struct Destination {
    url: Url,
    addresses: Vec<SocketAddr>,
}

/// `main` of the sender.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            print_message(sentence);
            Exit::Failed.into()
        }
    }
}

/// Sends exports until the reader ends.
fn serve() -> Result<(), String> {
    sys::unblock(&super::STOPS);
    confine::close_from(3);
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let [host, otlp, pyroscope] = words[..] else { return Err("the sender was not started by plimsoll serve".into()) };
    let (otlp, pyroscope) = (destination(otlp)?, destination(pyroscope)?);
    let ports: Vec<u16> = otlp.iter().chain(&pyroscope).map(|of| of.url.port).collect();
    let reader = rustix::io::dup(std::io::stdin()).map_err(|error| format!("the sender's pipe: {error}"))?;
    let mut reader = std::fs::File::from(reader);
    let limits = Limits { descriptors: 8, memory: MEMORY };
    let confined = confine::confine(Purpose::Connect { ports: &ports }, &limits)
        .map_err(|error| format!("cannot give up the rights of the sender: {error}"))?;
    let mut receipt = Receipt::Ready(confined.bits());
    loop {
        let mut head = [0; export_wire::EXPORT_HEAD];
        if reader.write_all(&receipt.encode()).and_then(|()| reader.read_exact(&mut head)).is_err() {
            return Ok(());
        }
        let head = ExportHead::decode(&head).ok_or("the reading process sent something other than an export")?;
        let mut body = vec![0; head.length];
        if reader.read_exact(&mut body).is_err() {
            return Ok(());
        }
        let to = if head.kind == ExportKind::Pprof { &pyroscope } else { &otlp };
        receipt = match to {
            Some(to) => post(to, &head, host, &body).unwrap_or_else(|error| match error.kind() {
                io::ErrorKind::TimedOut => Receipt::Late,
                io::ErrorKind::InvalidData => Receipt::NotHttp,
                _ => Receipt::Error(error.raw_os_error().unwrap_or(libc::ECONNRESET)),
            }),
            None => Receipt::NotHttp,
        };
    }
}

/// Looks up the host of an address. None: the address is empty.
fn destination(url: &str) -> Result<Option<Destination>, String> {
    if url.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(url)?;
    let found = sys::addresses_of(&url.host, url.port);
    let addresses = found.map_err(|error| format!("cannot look up {url}: {error}"))?;
    Ok(Some(Destination { url, addresses }))
}

/// The path below the address of the destination.
fn path(head: &ExportHead, host: &str) -> String {
    match head.kind {
        ExportKind::Metrics => "/v1/metrics".into(),
        ExportKind::Profiles => "/v1development/profiles".into(),
        // `name{label=value}`, where braces and the equals sign are escaped.
        ExportKind::Pprof => format!(
            "/ingest?name={}%7Bhost%3D{}%7D&from={}&until={}&format=pprof&spyName=plimsoll&units=bytes",
            head.target,
            plain(host),
            head.from,
            head.until
        ),
    }
}

/// A name of a machine that needs no escapes in an address.
pub fn plain(host: &str) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' };
    host.chars().map(fine).take(255).collect()
}

fn post(to: &Destination, head: &ExportHead, host: &str, body: &[u8]) -> io::Result<Receipt> {
    let until = Instant::now() + SENDING;
    let content = if head.kind == ExportKind::Pprof { "application/octet-stream" } else { "application/x-protobuf" };
    let request = format!(
        "POST {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: plimsoll\r\nContent-Type: {content}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        to.url.path.trim_end_matches('/'),
        path(head, host),
        to.url.authority(),
        body.len()
    );
    let socket = connected(&to.addresses, until)?;
    // A receiver that refuses early answers before it has read all: then its answer counts, not the broken pipe.
    let sent = send(&socket, request.as_bytes(), until).and_then(|()| send(&socket, body, until));
    match (answer(&socket, until), sent) {
        (Ok((status, answer)), _) => Ok(match status {
            200..300 if head.kind == ExportKind::Pprof => Receipt::Arrived,
            200..300 => match otlp::rejected(&answer) {
                None | Some(0) => Receipt::Arrived,
                Some(rejected) => Receipt::InPart(u32::try_from(rejected).unwrap_or(u32::MAX)),
            },
            status => Receipt::Status(status),
        }),
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(error),
    }
}

/// A connection to the first address that takes one.
fn connected(addresses: &[SocketAddr], until: Instant) -> io::Result<OwnedFd> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        let connected = match connect(&socket, address) {
            Ok(()) => Ok(()),
            Err(Errno::INPROGRESS) => wait(&socket, PollFlags::OUT, until)
                .and_then(|()| sockopt::socket_error(&socket)?.map_err(io::Error::from)),
            Err(error) => Err(error.into()),
        };
        match connected {
            Ok(()) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn wait(socket: &OwnedFd, flags: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), flags)], Some(&timeout)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn send(socket: &OwnedFd, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(socket, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::AGAIN | Errno::INTR) => wait(socket, PollFlags::OUT, until)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The status and the body of the answer.
fn answer(socket: &OwnedFd, until: Instant) -> io::Result<(u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let is_ended = match rustix::io::read(socket, &mut buffer) {
            Ok(count) => {
                bytes.extend_from_slice(&buffer[..count]);
                count == 0 || bytes.len() > MOST_ANSWER
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                wait(socket, PollFlags::IN, until)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if let Some((status, body, length)) = parse(&bytes)?
            && (is_ended || length.is_some_and(|length| body.len() >= length))
        {
            return Ok((status, body.to_vec()));
        }
        if is_ended {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Status, body so far, and its length if it is stated.
type Answer<'b> = (u16, &'b [u8], Option<usize>);

/// None: the head is not complete. Interim answers (100 Continue) precede the answer.
fn parse(bytes: &[u8]) -> io::Result<Option<Answer<'_>>> {
    let mut rest = bytes;
    loop {
        let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
        let mut answer = httparse::Response::new(&mut lines);
        let Ok(parsed) = answer.parse(rest) else { return Err(io::ErrorKind::InvalidData.into()) };
        let (httparse::Status::Complete(head), Some(status)) = (parsed, answer.code) else { return Ok(None) };
        rest = &rest[head..];
        if status >= 200 {
            let length = answer.headers.iter().find(|line| line.name.eq_ignore_ascii_case("content-length"));
            let length = length.and_then(|line| std::str::from_utf8(line.value).ok()?.trim().parse().ok());
            return Ok(Some((status, rest, length)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_with_its_length_or_its_end() {
        let of = |text: &'static str| parse(text.as_bytes());
        assert_eq!(of("HTTP/1.1 200 OK\r\nContent-Le").expect("HTTP"), None);
        let whole = of("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\x0a\x00").expect("HTTP");
        assert_eq!(whole, Some((200, &b"\x0a\x00"[..], Some(2))));
        let interim = of("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\n\r\n").expect("HTTP");
        assert_eq!(interim, Some((503, &b""[..], None)));
        assert!(of("SSH-2.0-OpenSSH\r\n").is_err());
    }

    /// As many as fit into an answer. The receiver chooses their number, and the sender's stack is bounded.
    #[test]
    fn any_number_of_interim_answers_precede_the_answer() {
        let interim = "HTTP/1.1 100 \r\n\r\n";
        let text = interim.repeat(MOST_ANSWER / interim.len());
        assert_eq!(parse(text.as_bytes()).expect("HTTP"), None);
        let whole = format!("{text}HTTP/1.1 204 \r\n\r\n");
        assert_eq!(parse(whole.as_bytes()).expect("HTTP"), Some((204, &b""[..], None)));
    }

    #[test]
    fn a_machine_name_cannot_change_the_requests_other_fields() {
        let head = ExportHead { kind: ExportKind::Pprof, target: "shop".into(), from: 1, until: 2, length: 0 };
        let path = path(&head, "a b&name=x\r\nHost: y");
        assert_eq!(
            path,
            "/ingest?name=shop%7Bhost%3Da_b_name_x__Host__y%7D&from=1&until=2&format=pprof&spyName=plimsoll&units=bytes"
        );
    }
}
