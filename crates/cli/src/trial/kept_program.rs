//! A program that a keeper holds: started, watched, stopped.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_trial::remedy::Start;
use regex::bytes::Regex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::run_cgroup::Group;
use super::{keeper, process_tree};
use crate::sys;

/// How the program itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(u8),
    Signal(i32),
}

/// What the keeper reports when no process of the program is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Empty {
    pub cpu_seconds: f64,
    /// Largest RSS of one process; 0 if it isn't known.
    pub peak: u64,
}

pub struct Kept {
    keeper: Child,
    line: UnixStream,
    unread: Vec<u8>,
    pub exit: Option<Exit>,
    pub empty: Option<Empty>,
    pub refused: Option<String>,
    started: bool,
    /// The keeper has ended, or was killed.
    lost: bool,
    /// A process could not be killed.
    pub left: bool,
    /// The processes that belong to another user.
    pub of_others: Vec<u32>,
    /// The keeper's last word: nothing of the program is left.
    gone: bool,
    pub output: Arc<Output>,
    reader: Option<JoinHandle<()>>,
}

/// The end of what the program prints, and whether a line matched.
pub struct Output {
    kept: Mutex<Vec<u8>>,
    most: usize,
    pattern: Option<Regex>,
    pub matched: AtomicBool,
}

/// Time for the last output, after the last process of the program has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);
/// Bytes of a line that are searched for the pattern.
const LINE: usize = 1 << 16;

impl Output {
    pub fn new(most: usize, pattern: Option<Regex>) -> Arc<Output> {
        Arc::new(Output { kept: Mutex::default(), most, pattern, matched: AtomicBool::new(false) })
    }

    /// Reads the pipe to its end, and keeps only the last bytes: a program may write gigabytes.
    fn drain(&self, mut pipe: impl Read) {
        let mut line = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => &buffer[..read],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if self.pattern.is_some() && !self.matched.load(Ordering::Relaxed) {
                for piece in read.split_inclusive(|byte| *byte == b'\n') {
                    line.extend_from_slice(&piece[..piece.len().min(LINE - line.len())]);
                    if piece.ends_with(b"\n") {
                        self.search(&line);
                        line.clear();
                    }
                }
            }
            let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            kept.extend_from_slice(read);
            // Removes half at a time, so that the cost for each byte stays constant.
            if kept.len() > 2 * self.most {
                let surplus = kept.len() - self.most;
                kept.drain(..surplus);
            }
        }
        // The last line may have no newline.
        if !line.is_empty() {
            self.search(&line);
        }
    }

    /// Searches a whole line for the pattern: `^ready$` matches the beginning of `ready soon`, but not the line.
    fn search(&self, line: &[u8]) {
        if self.pattern.as_ref().is_some_and(|pattern| pattern.is_match(line.trim_ascii_end())) {
            self.matched.store(true, Ordering::Relaxed);
        }
    }

    pub fn tail(&self) -> Vec<u8> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The last line with text.
    pub fn last_line(&self) -> Option<String> {
        let tail = self.tail();
        let lines = tail.split(|byte| *byte == b'\n').rev();
        let mut texts = lines.map(|line| String::from_utf8_lossy(line).trim().to_owned());
        texts.find(|line| !line.is_empty())
    }
}

impl Kept {
    pub fn start(start: &Start, group: Option<&Group>, output: Arc<Output>) -> io::Result<Kept> {
        earlier_children();
        let own: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let (line, theirs) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        let (pipe, writer) = io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(keeper::NAME).args(keeper::arguments(start, &own, group)).process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(writer.try_clone()?).stderr(writer);
        let keeper = sys::handing_down(|| command.spawn())?;
        keepers().insert(keeper.id());
        // Closes our copies of the keeper's descriptors.
        drop(command);
        let theirs = output.clone();
        let reader = thread::Builder::new().name("output".into()).spawn(move || theirs.drain(pipe))?;
        Ok(Kept {
            keeper,
            line,
            unread: Vec::new(),
            exit: None,
            empty: None,
            refused: None,
            started: false,
            lost: false,
            left: false,
            of_others: Vec::new(),
            gone: false,
            output,
            reader: Some(reader),
        })
    }

    /// The keeper's PID: the program's processes are below it.
    pub fn pid(&self) -> u32 {
        self.keeper.id()
    }

    /// Whether no process of the program is left, or there never was one.
    pub fn has_ended(&self) -> bool {
        self.empty.is_some() || self.refused.is_some() || self.lost
    }

    pub fn has_started(&self) -> bool {
        self.started
    }

    /// For a caller that has nothing else to wait for.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }

    /// Waits until the keeper or `other` is readable, at most `limit`; then reads what the keeper wrote.
    pub fn step(&mut self, other: BorrowedFd<'_>, limit: Duration) {
        let timeout = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let line = if self.lost { None } else { Some(PollFd::from_borrowed_fd(self.line.as_fd(), PollFlags::IN)) };
        let mut all: Vec<PollFd<'_>> =
            line.into_iter().chain([PollFd::from_borrowed_fd(other, PollFlags::IN)]).collect();
        let _ = poll(&mut all, Some(&timeout));
        drop(all);
        self.listen();
    }

    fn listen(&mut self) {
        let mut buffer = [0; 4096];
        while !self.lost {
            match self.line.read(&mut buffer) {
                Ok(0) => self.lost = true,
                Ok(read) => self.unread.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.lost = true,
            }
        }
        while let Some(at) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=at).collect();
            self.take(String::from_utf8_lossy(&line).trim_end());
        }
    }

    fn take(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut numbers = rest.split(' ').map(|number| number.parse::<u64>().unwrap_or(0));
        match word {
            "started" => self.started = true,
            "failed" => self.refused = Some(rest.to_owned()),
            "ended" => {
                let number = rest.split(' ').nth(1).and_then(|number| number.parse::<i32>().ok()).unwrap_or(0);
                self.exit = Some(match rest.starts_with("code") {
                    true => Exit::Code(u8::try_from(number).unwrap_or(u8::MAX)),
                    false => Exit::Signal(number),
                });
            }
            "empty" => {
                let cpu_seconds = numbers.next().unwrap_or(0) as f64 / 1e6;
                self.empty = Some(Empty { cpu_seconds, peak: numbers.next().unwrap_or(0) });
            }
            "left" => {
                self.left = true;
                self.of_others = rest.split(' ').filter_map(|number| number.parse().ok()).collect();
            }
            "gone" => self.gone = true,
            _ => {}
        }
    }

    /// Ends all processes: SIGTERM, after `patience` SIGKILL. `hurry` ends the patience early.
    pub fn stop(&mut self, patience: Duration, other: BorrowedFd<'_>, mut hurry: impl FnMut() -> bool) {
        if !self.has_ended() {
            let _ = (&self.line).write_all(b"term\n");
            let until = Instant::now() + patience;
            while !self.has_ended() && Instant::now() < until && !hurry() {
                self.step(other, Duration::from_millis(50));
            }
        }
        self.kill();
    }

    /// Ends all processes at once. The closed line is the order; the keeper ends when nothing is left.
    fn kill(&mut self) {
        let _ = self.line.shutdown(std::net::Shutdown::Write);
        // Returns as soon as the keeper has ended: after 30 s if a process cannot be killed, after 1 s if it is another
        // user's.
        let _ = self.keeper.wait();
        self.listen();
        keepers().remove(&self.pid());
        if !self.gone {
            kill_orphans();
        }
        // A process that cannot be killed keeps the pipe open, and so does one elsewhere to which the program has
        // passed it (systemd-run, docker). Then the reader is left alone.
        if let Some(reader) = self.reader.take().filter(|_| !self.left) {
            let until = Instant::now() + LAST_OUTPUT;
            while !reader.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The keepers that live.
fn keepers() -> MutexGuard<'static, BTreeSet<u32>> {
    static KEEPERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    KEEPERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The children from before the first keeper: a shell had started them when it became plimsoll by exec. Plimsoll
/// must not touch them.
fn earlier_children() -> &'static BTreeSet<u32> {
    static EARLIER: OnceLock<BTreeSet<u32>> = OnceLock::new();
    EARLIER.get_or_init(|| process_tree::children(std::process::id()).into_iter().collect())
}

/// If somebody has killed a keeper, its processes have become our children.
fn kill_orphans() {
    for _ in 0..1000 {
        let orphans: Vec<u32> = process_tree::children(std::process::id());
        let is_orphan = |pid: &u32| !keepers().contains(pid) && !earlier_children().contains(pid);
        let orphans: Vec<u32> = orphans.into_iter().filter(is_orphan).collect();
        let mut refused = 0;
        for orphan in &orphans {
            let mut all = process_tree::below(*orphan);
            all.push(*orphan);
            let protected = process_tree::send(&all, std::process::id(), Signal::KILL);
            refused += usize::from(protected.contains(orphan));
            if let Some(pid) = i32::try_from(*orphan).ok().and_then(Pid::from_raw) {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        // Another user's processes are left.
        if refused == orphans.len() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.reader.is_some() {
            self.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one piece at each read.
    struct Pieces<'p>(std::slice::Iter<'p, &'p str>);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.next().map_or(&b""[..], |piece| piece.as_bytes());
            into[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn is_matched(pattern: &str, pieces: &[&str]) -> bool {
        let output = Output::new(100, Some(Regex::new(pattern).expect("a pattern")));
        output.drain(Pieces(pieces.iter()));
        assert_eq!(output.tail(), pieces.concat().into_bytes());
        output.matched.load(Ordering::Relaxed)
    }

    #[test]
    fn a_pattern_matches_whole_lines_only() {
        let cases: [(&[&str], bool); 7] = [
            (&["ready\n"], true),
            (&["rea", "dy\r", "\n"], true),
            (&["not yet\nready\nrunning\n"], true),
            (&["ready", " soon\n"], false),
            (&["not ", "ready\n"], false),
            // The last line has no newline.
            (&["not yet\nrea", "dy"], true),
            (&["ready", " soon"], false),
        ];
        for (pieces, expected) in cases {
            assert_eq!(is_matched("^ready$", pieces), expected, "{pieces:?}");
        }
        assert!(is_matched("^$", &["a\n\n"]) && !is_matched("^$", &["a\n"]) && !is_matched("^$", &[]));
    }
}
