//! The line of progress of `try` and `compare`: how many runs are done, and about how long the rest takes. The other
//! commands don't know how much is left: their line is in `progress`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use plimsoll_report::words;

pub struct Meter {
    /// What is counted: `runs`, `steps`.
    noun: &'static str,
    began: Instant,
    is_terminal: bool,
    drawn: Option<Instant>,
}

impl Meter {
    pub fn new(noun: &'static str) -> Meter {
        Meter { noun, began: Instant::now(), is_terminal: io::stderr().is_terminal(), drawn: None }
    }

    pub fn draw(&mut self, what: &str, done: usize, all: usize) {
        const PAUSE: Duration = Duration::from_millis(500);
        if !self.is_terminal || self.drawn.is_some_and(|drawn| drawn.elapsed() < PAUSE) {
            return;
        }
        self.drawn = Some(Instant::now());
        let left = match done {
            0 => String::new(),
            _ => {
                let each = self.began.elapsed().as_nanos() / done as u128;
                let left = (each * all as u128).saturating_sub(self.began.elapsed().as_nanos());
                format!(", about {} left", words::duration(u64::try_from(left).unwrap_or(u64::MAX)))
            }
        };
        let text = words::cut(&format!("{what} ({done} of {all} {} done{left})", self.noun), 110);
        let _ = write!(io::stderr(), "\r\x1b[K{text}");
    }

    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
