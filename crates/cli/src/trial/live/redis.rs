//! Sends Redis one command by its own protocol (RESP), without a client.
//!
//! ```text
//! *2\r\n$6\r\nMEMORY\r\n$5\r\nPURGE\r\n   ─▶   +OK\r\n   or   -NOAUTH Authentication required.\r\n
//! ```

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const CONNECT: Duration = Duration::from_secs(1);
/// Redis purges in its main thread, and answers afterwards.
const ANSWER: Duration = Duration::from_secs(30);
/// Limit of an answer, in bytes. A status is one line.
const LONGEST: usize = 1 << 10;

const PURGE: &[u8] = b"*2\r\n$6\r\nMEMORY\r\n$5\r\nPURGE\r\n";

/// The words behind a `-`.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub String);

/// Parses a status of RESP. `None`: the bytes are not a whole one.
fn status(bytes: &[u8]) -> Option<Result<(), Refused>> {
    let line = bytes.split(|byte| *byte == b'\n').next()?.strip_suffix(b"\r")?;
    match line.split_first()? {
        (b'+', _) => Some(Ok(())),
        (b'-', words) => Some(Err(Refused(String::from_utf8_lossy(words).into_owned()))),
        _ => None,
    }
}

/// Sends the command to each address until one answers as Redis does. `None`: none does.
pub fn purge(addresses: &[SocketAddr]) -> Option<Result<(), Refused>> {
    addresses.iter().find_map(|address| status(&query(*address).ok()?))
}

fn query(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&reachable(address), CONNECT)?;
    stream.set_write_timeout(Some(CONNECT))?;
    stream.write_all(PURGE)?;
    let (until, mut answer, mut buffer) = (Instant::now() + ANSWER, Vec::new(), [0; 256]);
    while answer.len() < LONGEST && !answer.contains(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => break,
            count => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
    Ok(answer)
}

/// A socket that listens at all addresses of the machine is reached at its loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(status(b"+OK\r\n"), Some(Ok(())));
        let refused = Refused("NOAUTH Authentication required.".into());
        assert_eq!(status(b"-NOAUTH Authentication required.\r\n"), Some(Err(refused)));
        for other in [&b""[..], b"+", b"\r\n", b"HTTP/1.1 400 Bad Request\r\n", b"$2\r\nOK\r\n", b"\x15\x03\x03"] {
            assert_eq!(status(other), None, "{other:?}");
        }
    }

    /// The first server closes at once, as a cluster bus does.
    #[test]
    fn the_first_address_that_speaks_the_protocol_is_queried() {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (deaf, redis) = (listen(), listen());
        let addresses = [&deaf, &redis].map(|one| one.local_addr().expect("an address"));
        let closes = thread::spawn(move || drop(deaf.accept()));
        let answers = thread::spawn(move || {
            let (mut stream, _) = redis.accept().expect("a connection");
            let mut received = vec![0; PURGE.len()];
            stream.read_exact(&mut received).expect("a command");
            stream.write_all(b"+OK\r\n").expect("sent");
            received
        });
        assert_eq!(purge(&addresses), Some(Ok(())));
        assert_eq!(answers.join().expect("joined"), PURGE);
        closes.join().expect("joined");
        assert_eq!(purge(&[]), None);
    }
}
