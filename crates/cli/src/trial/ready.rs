//! When a started program is ready: `--ready port:8080|url:http://…|log:REGEX|seconds:N`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_trial::rate::Url;
use regex::bytes::Regex;

use super::http::Client;
use super::kept_program::Output;
use crate::suggestion::nearest_value;

#[derive(Clone, Debug)]
pub enum Ready {
    /// Something accepts connections on this port of 127.0.0.1 or ::1.
    Port(u16),
    /// A GET of this address is answered without an error.
    Url(Url),
    /// A line of the program's output matches.
    Log(Regex),
    /// Time since the start.
    After(Duration),
}

const CONNECT: Duration = Duration::from_millis(200);
/// A first answer may be slow: the program is still loading code.
const ANSWER: Duration = Duration::from_secs(2);

impl Ready {
    pub fn parse(text: &str) -> Result<Ready, String> {
        const EXPECTED: &str = "expected port:N, url:http://…, log:REGEX or seconds:N";
        let (kind, value) = text.split_once(':').ok_or(EXPECTED)?;
        match kind {
            "port" => match value.parse() {
                Ok(port @ 1..) => Ok(Ready::Port(port)),
                _ => Err("expected a port from 1 to 65535".into()),
            },
            "url" => Url::parse(value).map(Ready::Url),
            "log" => {
                let regex = regex::bytes::RegexBuilder::new(value).size_limit(1 << 20).build();
                regex.map(Ready::Log).map_err(|_| "expected a regular expression".into())
            }
            "seconds" => seconds(value).map(Ready::After),
            _ => match nearest_value(text, [], ["port:", "url:", "log:", "seconds:"]) {
                Some(near) => Err(format!("Did you mean '{near}'?")),
                None => Err(EXPECTED.into()),
            },
        }
    }

    pub fn pattern(&self) -> Option<Regex> {
        if let Ready::Log(regex) = self { Some(regex.clone()) } else { None }
    }

    /// Why a start would prove nothing: another program has the port already.
    pub fn conflict(&self) -> Option<String> {
        match self {
            Ready::Port(port) if accepts(*port) => {
                Some(format!("another program listens on port {port} already (ss -ltnp 'sport = :{port}' names it)"))
            }
            Ready::Url(url) if answers(url) => Some(format!("another program answers at {url} already")),
            _ => None,
        }
    }

    pub fn is_ready(&self, since_start: Duration, output: &Output) -> bool {
        match self {
            Ready::Port(port) => accepts(*port),
            Ready::Url(url) => answers(url),
            Ready::Log(_) => output.matched.load(Ordering::Relaxed),
            Ready::After(time) => since_start >= *time,
        }
    }

    /// What is reported of a program that did not become ready.
    pub fn unmet(&self, within: Duration) -> String {
        // A server may listen at another address only.
        let tried = if matches!(self, Ready::Port(_)) { " (only 127.0.0.1 and ::1 are tried)" } else { "" };
        format!("{self} was not reached within {} s{tried}", within.as_secs_f64())
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ready::Port(port) => write!(f, "port:{port}"),
            Ready::Url(url) => write!(f, "url:{url}"),
            Ready::Log(regex) => write!(f, "log:{regex}"),
            Ready::After(time) => write!(f, "seconds:{}", time.as_secs_f64()),
        }
    }
}

fn accepts(port: u16) -> bool {
    let both = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    let is_taken = |address| TcpStream::connect_timeout(address, CONNECT).is_ok_and(|stream| !reaches_itself(&stream));
    both.iter().any(is_taken)
}

/// Where nothing listens, a connection whose own port the kernel has chosen may have that very port, and then it
/// reaches itself (RFC 9293, 3.5: simultaneous open).
fn reaches_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}

fn answers(url: &Url) -> bool {
    Client::new(url, ANSWER).status().is_ok_and(|status| status < 400)
}

/// A number of seconds above 0 and at most a day; a fraction and a final `s` are allowed.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match number.parse::<f64>() {
        Ok(seconds) if is_number && (0.001..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds above 0, such as 10 or 0.5".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

    use super::*;

    #[test]
    fn an_unmet_port_names_the_addresses_that_were_tried() {
        let unmet = |text: &str| Ready::parse(text).expect("a value of --ready").unmet(Duration::from_millis(2500));
        assert_eq!(unmet("port:80"), "port:80 was not reached within 2.5 s (only 127.0.0.1 and ::1 are tried)");
        assert_eq!(unmet("log:up"), "log:up was not reached within 2.5 s");
    }

    /// What the kernel does by chance, about once in 28,000 connections to a port of its own range.
    #[test]
    fn a_connection_to_itself_is_no_listener() {
        let stream = TcpStream::from(socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket"));
        bind(&stream, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let own = stream.local_addr().expect("an address");
        connect(&stream, &own).expect("a simultaneous open");
        assert!(reaches_itself(&stream));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        assert!(!reaches_itself(&TcpStream::connect(address).expect("a connection")) && accepts(address.port()));
    }
}
