//! As much HTTP/1.1 as a load on the loopback needs: GET on connections that stay open, bodies by length or in chunks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub struct Connection<S = TcpStream>(BufReader<S>);

impl Connection<UnixStream> {
    pub fn local(socket: &Path) -> std::io::Result<Connection<UnixStream>> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Connection(BufReader::new(stream)))
    }
}

impl Connection {
    pub fn open(port: u16) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_nodelay(true)?;
        Ok(Connection(BufReader::new(stream)))
    }
}

impl<S: Read + Write> Connection<S> {
    /// Status and body.
    pub fn get(&mut self, path: &str) -> std::io::Result<(u16, Vec<u8>)> {
        self.0.get_mut().write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let bad = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_string());
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| bad(&first))?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().map_err(|_| bad(&line))?,
                Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
                Some(_) => (),
                None if line.is_empty() => break,
                None => return Err(bad(&line)),
            }
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let line = self.line()?;
                let size = usize::from_str_radix(&line, 16).map_err(|_| bad(&line))?;
                self.take(size, &mut body)?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            self.take(length, &mut body)?;
        }
        Ok((status, body))
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }

    fn take(&mut self, length: usize, body: &mut Vec<u8>) -> std::io::Result<()> {
        let start = body.len();
        body.resize(start + length, 0);
        self.0.read_exact(&mut body[start..])
    }
}
