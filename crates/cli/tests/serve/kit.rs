//! A server under test, a process that it serves, and a client that sends any bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::child::wait_for;

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");
/// Limit for what must happen, on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// An empty folder for one test.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// A program that waits. It ends when this value does.
pub struct Subject {
    pub child: Child,
    _stdin: ChildStdin,
}

impl Subject {
    /// A shell with this name (argv[0]), which is also its name in the metrics.
    pub fn named(name: &str) -> Subject {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/bin/sh");
        command.arg0(name).args(["-c", "echo up; read end"]);
        Subject::of(command)
    }

    pub fn of(mut command: Command) -> Subject {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        let stdin = child.stdin.take().expect("a pipe");
        Subject { child, _stdin: stdin }
    }

    pub fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Server {
    pub child: Child,
    pub port: u16,
    pub listener: u32,
    pub stderr: BufReader<ChildStderr>,
    /// What it printed up to its first address.
    pub printed: String,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Server {
        let mut child = Command::new(PLIMSOLL)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("plimsoll");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut printed = String::new();
        let (port, listener) = loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).expect("a line") > 0, "it ended: {printed}");
            printed.push_str(&line);
            // plimsoll: listening at http://127.0.0.1:PORT/ (process PID: …
            if let Some((_, rest)) = line.split_once("listening at http://127.0.0.1:") {
                let (port, rest) = rest.split_once("/ (process ").expect("the sentence");
                let pid = rest.split(':').next().expect("a PID");
                break (port.parse().expect("a port"), pid.parse().expect("a PID"));
            }
        };
        Server { child, port, listener, stderr, printed }
    }

    /// With a target, after its first reading.
    pub fn of(subject: &Subject, more: &[&str]) -> Server {
        let pid = subject.pid();
        let server = Server::start(&[&[pid.as_str()], more].concat());
        wait_for("the first reading", || server.get("/metrics").body.contains("plimsoll_target_info{").then_some(()));
        server
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream
    }

    /// Sends these bytes, and returns everything that comes back.
    pub fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may answer and close before it has read all.
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// `lines`: more header lines, each with its end.
    pub fn get_with(&self, path: &str, lines: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{lines}\r\n");
        Answer::of(&self.send(request.as_bytes()))
    }

    pub fn kill(&self, pid: u32, signal: &str) {
        let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill");
        assert!(status.success());
    }

    /// Waits for the end; how it ended, and what it printed after its start. Standard error ends when both processes
    /// have.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let mut printed = String::new();
        self.stderr.read_to_string(&mut printed).expect("text");
        (self.child.wait().expect("a child"), printed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn of(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Answer { code, head: head.to_ascii_lowercase(), body: body.into() }
    }
}
