//! One line on a terminal while a command works for longer than a second. It is erased before anything else is printed.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_report::words;

/// The line appears after this time.
const FIRST: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(500);
const COLUMNS: usize = 78;

struct Line {
    /// What is being done, and since when; None when nothing is.
    work: Option<(String, Instant)>,
    is_drawn: bool,
    has_thread: bool,
}

static LINE: Mutex<Line> = Mutex::new(Line { work: None, is_drawn: false, has_thread: false });
static CHANGED: Condvar = Condvar::new();

fn line() -> MutexGuard<'static, Line> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets what the line shows from now on. The time counts from the first call on.
pub fn begin(what: impl Display) {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if is_dumb || !io::stderr().is_terminal() {
        return;
    }
    let mut line = line();
    let since = line.work.as_ref().map_or_else(Instant::now, |(_, since)| *since);
    line.work = Some((words::printable(&what.to_string()), since));
    if !line.has_thread {
        // If the thread can't start, there is no line; the command goes on.
        line.has_thread = thread::Builder::new().name("progress".into()).spawn(draw).is_ok();
    }
}

/// Erases the line until it is drawn again: before a message.
pub fn erase() {
    line().erase();
}

/// Erases the line for good: the command's work is done.
pub fn end() {
    let mut line = line();
    line.work = None;
    line.erase();
    CHANGED.notify_all();
}

impl Line {
    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

fn draw() {
    let mut line = line();
    while let Some((what, since)) = &line.work {
        let elapsed = since.elapsed();
        if elapsed >= FIRST {
            let text = format!("{what} … {} s", elapsed.as_secs());
            let _ = write!(io::stderr(), "\r\x1b[K{}", words::cut(&text, COLUMNS));
            line.is_drawn = true;
        }
        let wait = FIRST.saturating_sub(elapsed).max(PAUSE);
        (line, _) = CHANGED.wait_timeout(line, wait).unwrap_or_else(PoisonError::into_inner);
    }
    line.has_thread = false;
}
