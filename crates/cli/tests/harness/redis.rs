//! Talks to a Redis server over its Unix socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// Sends all commands at once and waits for as many simple replies.
pub fn send(socket: &Path, commands: impl Iterator<Item = String>) {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    let commands: Vec<String> = commands.collect();
    let number = commands.len();
    let replies = BufReader::new(stream.try_clone().expect("a socket"));
    let reader = std::thread::spawn(move || replies.lines().take(number).count());
    stream.write_all(commands.concat().as_bytes()).expect("it reads");
    assert_eq!(reader.join().expect("replies"), number);
}

/// The reply to one command, by redis-cli.
pub fn reply(socket: &Path, words: &[&str]) -> String {
    let output = Command::new("redis-cli").arg("-s").arg(socket).args(words).output().expect("redis-cli");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
