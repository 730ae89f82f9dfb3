//! A minimal client of HTTP/1.1: GET on a connection that is kept open. Answers are read whole and thrown away.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use plimsoll_trial::rate::Url;

use crate::sys;

/// Limits of an answer's head, in bytes and in fields.
const HEAD: usize = 64 << 10;
const FIELDS: usize = 128;
/// Limit of a line between chunks (a size or a trailer), in bytes.
const LINE: u64 = 8 << 10;

/// How the end of an answer's body is found (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Nothing,
    Length(u64),
    Chunks,
    /// The server closes the connection.
    UntilClosed,
}

/// An answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    body: Body,
    closes: bool,
}

/// Parses the head of an answer. `None`: the bytes are not one.
fn head(bytes: &[u8]) -> Option<Head> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut answer = httparse::Response::new(&mut fields);
    if !answer.parse(bytes).ok()?.is_complete() {
        return None;
    }
    let status = answer.code?;
    let has = |name: &str, word: &str| {
        let of_name = answer.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let text = of_name.map(|field| String::from_utf8_lossy(field.value).to_ascii_lowercase());
        text.into_iter().any(|text| text.split(',').any(|part| part.trim() == word))
    };
    let length = answer.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = match length {
        Some(field) => Some(std::str::from_utf8(field.value).ok()?.trim().parse().ok()?),
        None => None,
    };
    let body = match length {
        _ if status < 200 || status == 204 || status == 304 => Body::Nothing,
        _ if has("transfer-encoding", "chunked") => Body::Chunks,
        Some(length) => Body::Length(length),
        None => Body::UntilClosed,
    };
    let closes = body == Body::UntilClosed
        || has("connection", "close")
        || (answer.version == Some(0) && !has("connection", "keep-alive"));
    Some(Head { status, body, closes })
}

/// A connection that gives bytes until a time. The socket's own timeout bounds each wait, but not their number.
struct Timely {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timely {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if Instant::now() >= self.until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.read(into)
    }
}

pub(super) struct Client<'u> {
    url: &'u Url,
    patience: Duration,
    open: Option<BufReader<Timely>>,
}

impl<'u> Client<'u> {
    /// `patience` bounds the connect, each wait for bytes, and the time in which bytes are waited for.
    pub(super) fn new(url: &'u Url, patience: Duration) -> Client<'u> {
        Client { url, patience, open: None }
    }

    /// The status of the answer, after its last byte.
    pub(super) fn get(&mut self) -> io::Result<u16> {
        if self.open.is_some() {
            match self.once() {
                // A server may close a kept connection at any time.
                Err(error) if is_closed(&error) => self.open = None,
                done => return done,
            }
        }
        self.open = Some(self.connect()?);
        self.once()
    }

    /// The status of the answer, also if its last byte doesn't come in time: a stream of events has none.
    pub(super) fn status(&self) -> io::Result<u16> {
        let mut open = self.connect()?;
        let answer = self.ask(&mut open)?;
        match read_body(&mut open, answer.body) {
            Err(error) if !is_late(&error) => Err(error),
            _ => Ok(answer.status),
        }
    }

    fn connect(&self) -> io::Result<BufReader<Timely>> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in sys::addresses_of(&self.url.host, self.url.port)? {
            match TcpStream::connect_timeout(&address, self.patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(self.patience))?;
                    stream.set_write_timeout(Some(self.patience))?;
                    return Ok(BufReader::new(Timely { stream, until: Instant::now() }));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn once(&mut self) -> io::Result<u16> {
        let Some(mut open) = self.open.take() else { return Err(io::ErrorKind::NotConnected.into()) };
        let answer = self.ask(&mut open)?;
        read_body(&mut open, answer.body)?;
        if !answer.closes {
            self.open = Some(open);
        }
        Ok(answer.status)
    }

    /// Sends the request. Returns the head of its answer.
    fn ask(&self, open: &mut BufReader<Timely>) -> io::Result<Head> {
        let (path, host) = (&self.url.path, self.url.authority());
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: plimsoll\r\nAccept: */*\r\n\r\n");
        open.get_mut().until = Instant::now() + self.patience;
        open.get_mut().stream.write_all(request.as_bytes())?;
        loop {
            let answer = read_head(open)?;
            // Interim answers (100 Continue) precede the answer.
            if answer.status >= 200 {
                return Ok(answer);
            }
        }
    }
}

pub(super) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

fn read_head(open: &mut impl BufRead) -> io::Result<Head> {
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let limit = (HEAD - before.min(HEAD)) as u64;
        if open.by_ref().take(limit).read_until(b'\n', &mut bytes)? == 0 {
            // The end of the connection, or a head beyond the limit.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if before > 0 && matches!(&bytes[before..], b"\n" | b"\r\n") {
            return head(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
    }
}

fn read_body(open: &mut impl BufRead, body: Body) -> io::Result<()> {
    match body {
        Body::Nothing => Ok(()),
        Body::Length(length) => skip(open, length),
        Body::UntilClosed => io::copy(open, &mut io::sink()).map(drop),
        Body::Chunks => {
            loop {
                let line = read_line(open)?;
                let size = match httparse::parse_chunk_size(&line) {
                    Ok(httparse::Status::Complete((_, size))) => size,
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                };
                if size == 0 {
                    break;
                }
                skip(open, size)?;
                read_line(open)?;
            }
            // Trailers, up to an empty line.
            while !matches!(read_line(open)?.as_slice(), b"\n" | b"\r\n") {}
            Ok(())
        }
    }
}

fn read_line(open: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    open.by_ref().take(LINE).read_until(b'\n', &mut line)?;
    if line.ends_with(b"\n") { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn skip(open: &mut impl BufRead, length: u64) -> io::Result<()> {
    let read = io::copy(&mut open.by_ref().take(length), &mut io::sink())?;
    if read == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers each request with this head, and then with one piece of a body after the other, without end.
    fn endless(head: &'static str, piece: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = Url::parse(&format!("http://{}/", listener.local_addr().expect("an address"))).expect("an address");
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let sent = stream.write_all(head.as_bytes());
                    while sent.is_ok() && stream.write_all(piece.as_bytes()).is_ok() {
                        thread::sleep(Duration::from_millis(10));
                    }
                });
            }
        });
        url
    }

    #[test]
    fn an_answer_without_an_end_has_a_status_and_is_late() {
        for (head, piece) in [
            ("HTTP/1.1 200 OK\r\n\r\n", "data: x\n\n"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "3\r\nabc\r\n"),
        ] {
            let url = endless(head, piece);
            // On a busy machine the head itself may come after a second.
            let patient = |seconds| Client::new(&url, Duration::from_secs(seconds)).status();
            let status = [1, 4, 16, 64].into_iter().map(patient).find(|status| !status.as_ref().is_err_and(is_late));
            assert_eq!(status.expect("an answer").expect("a status"), 200);
            assert!(is_late(&Client::new(&url, Duration::from_secs(1)).get().expect_err("no end")));
        }
        // A head without an end.
        let url = endless("HTTP/1.1 200 OK\r\n", "A: b\r\n");
        let client = Client::new(&url, Duration::from_secs(1));
        assert!(is_late(&client.status().expect_err("no end")));
    }

    #[test]
    fn the_end_of_a_body_is_found_in_each_encoding() {
        let of = |text: &str| head(format!("HTTP/1.1 {text}\r\n\r\n").as_bytes());
        let found = |status, body, closes| Some(Head { status, body, closes });
        assert_eq!(of("200 OK\r\nContent-Length: 5"), found(200, Body::Length(5), false));
        assert_eq!(of("200 OK\r\ntransfer-encoding: gzip, Chunked"), found(200, Body::Chunks, false));
        assert_eq!(of("204 No Content"), found(204, Body::Nothing, false));
        assert_eq!(of("200 OK"), found(200, Body::UntilClosed, true));
        assert_eq!(of("404 No\r\nContent-Length: 0\r\nConnection: Close"), found(404, Body::Length(0), true));
        assert_eq!(head(b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n"), found(200, Body::Length(1), true));
        assert_eq!(of("200 OK\r\nContent-Length: -1"), None);
        assert_eq!(head(b"SSH-2.0-OpenSSH\r\n\r\n"), None);
    }

    #[test]
    fn bodies_are_read_to_their_last_byte() {
        let left = |mut bytes: &'static [u8]| {
            let head = read_head(&mut bytes)?;
            read_body(&mut bytes, head.body)?;
            io::Result::Ok(bytes.len())
        };
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nabcd\r\n0\r\nA: b\r\n\r\nnext";
        assert_eq!(left(chunked).expect("a body"), 4);
        assert_eq!(left(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabnext").expect("a body"), 4);
        assert_eq!(left(b"HTTP/1.1 200 OK\r\n\r\nall").expect("a body"), 0);
        for broken in [
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab".as_slice(),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
            b"HTTP/1.1 200",
            b"",
        ] {
            assert!(left(broken).is_err(), "{}", String::from_utf8_lossy(broken));
        }
    }
}
