//! The output of a run: a line for each group with the time left, and at the end the table, the failures and the sum.

use super::groups::{Group, Work};
use super::plan::Built;
use super::record::Seconds;
use super::run::{Failure, Outcome};
use std::collections::BTreeSet;
use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

/// Without a terminal, a long group prints from time to time that it is still running.
const STILL: Duration = Duration::from_secs(60);
/// The part of a failed program's log that is printed: on a CI machine the log is lost.
const SHOWN_LINES: usize = 120;

struct Row {
    name: &'static str,
    tests: usize,
    /// The estimate: the time that it took last on this machine.
    seconds: Option<f64>,
}

pub struct Screen {
    rows: Vec<Row>,
    at: usize,
    /// When this group began, and when it last printed.
    group: Instant,
    shown: Instant,
    /// Seconds of the groups that have ended, last time and today: today the machine may be busier.
    then: f64,
    now: f64,
}

impl Screen {
    pub fn new(groups: &[&'static Group], built: &[Built], seconds: &Seconds) -> Screen {
        let tests = |group: &Group| match group.work {
            Work::Tests(_) => built.iter().map(|b| b.of_group(group.name).len()).sum(),
            Work::Memcheck(names) => {
                built.iter().filter(|b| names.contains(&b.program.name.as_str())).map(|b| b.tests.len()).sum()
            }
            Work::Command(_) => 1,
        };
        let row =
            |group: &&'static Group| Row { name: group.name, tests: tests(group), seconds: seconds.of(group.name) };
        let rows = groups.iter().map(row).collect();
        Screen { rows, at: 0, group: Instant::now(), shown: Instant::now(), then: 0.0, now: 0.0 }
    }

    pub fn begin(&mut self, name: &str) {
        self.at = self.rows.iter().position(|row| row.name == name).unwrap_or(0);
        (self.group, self.shown) = (Instant::now(), Instant::now());
        self.progress(0);
    }

    fn head(&self) -> String {
        format!("[{:2}/{}] {:13}", self.at + 1, self.rows.len(), self.rows[self.at].name)
    }

    /// What remains after `ended` tests of this group: time, if every group has run on this machine before; otherwise a
    /// number of tests.
    fn left(&self, ended: usize) -> String {
        let rows = &self.rows[self.at..];
        let part = 1.0 - (ended as f64 / rows[0].tests.max(1) as f64).min(1.0);
        let seconds = rows.iter().map(|row| row.seconds).collect::<Option<Vec<_>>>();
        let Some(seconds) = seconds else {
            return format!("{} tests left", rows.iter().map(|row| row.tests).sum::<usize>().saturating_sub(ended));
        };
        let pace = if self.then > 20.0 { self.now / self.then } else { 1.0 };
        about((seconds[0] * part + seconds[1..].iter().sum::<f64>()) * pace)
    }

    pub fn progress(&mut self, ended: usize) {
        let terminal = stdout().is_terminal();
        if !terminal && self.shown.elapsed() < STILL {
            return;
        }
        self.shown = Instant::now();
        let line = format!(
            "{} {ended} of {} tests, {}, {}",
            self.head(),
            self.rows[self.at].tests,
            clock(self.group.elapsed().as_secs_f64()),
            self.left(ended)
        );
        if terminal {
            print!("\r\x1b[K{line}");
            let _ = stdout().flush();
        } else {
            println!("{line}");
        }
    }

    pub fn end(&mut self, outcome: &Outcome) {
        if stdout().is_terminal() {
            print!("\r\x1b[K");
        }
        let row = &self.rows[self.at];
        if let Some(seconds) = row.seconds {
            self.then += seconds;
            self.now += outcome.seconds;
        }
        let more = |n: usize, what: &str| if n > 0 { format!(", {n} {what}") } else { String::new() };
        let is_last = self.at + 1 == self.rows.len();
        let left = if is_last { String::new() } else { format!(", {}", self.left(row.tests)) };
        println!(
            "{} {} passed{}{}, {}{left}",
            self.head(),
            outcome.passed,
            more(outcome.failed.len(), "FAILED"),
            more(outcome.skipped.len(), "skipped"),
            clock(outcome.seconds),
        );
        for failure in &outcome.failed {
            println!("        FAILED {}", failure.what);
        }
    }
}

/// `3:07`, `1:02:09`
fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    if s < 3600 {
        format!("{}:{:02}", s / 60, s % 60)
    } else {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    }
}

fn about(seconds: f64) -> String {
    if seconds < 90.0 { format!("about {seconds:.0} s left") } else { format!("about {:.0} min left", seconds / 60.0) }
}

/// Prints the table, the skipped cases, the failures and the sum. Returns whether nothing failed.
pub fn summary(rows: &[(&str, Outcome)]) -> bool {
    let mut sum = Outcome::default();
    println!(
        "\n{:14}{:>7}{:>8}{:>9}{:>11}{:>9}{:>10}",
        "group", "passed", "failed", "skipped", "test-full", "time", "CPU"
    );
    let line = |name: &str, o: &Outcome| {
        let (failed, skipped) = (o.failed.len(), o.skipped.len());
        let (time, cpu) = (clock(o.seconds), clock(o.cpu));
        println!("{name:14}{:>7}{failed:>8}{skipped:>9}{:>11}{time:>9}{cpu:>10}", o.passed, o.left);
    };
    for (name, outcome) in rows {
        line(name, outcome);
        sum.add(outcome.clone());
    }
    line("total", &sum);
    if sum.left > 0 {
        println!("\n{} tests were left to `make test-full`.", sum.left);
    }
    if !sum.skipped.is_empty() {
        println!("\nskipped on this machine:");
        sum.skipped.iter().for_each(|reason| println!("  {reason}"));
    }
    if !sum.failed.is_empty() {
        failures(&sum.failed);
    }
    // The last line, by itself: CI reads it.
    println!("\n{} passed, {} failed, {} skipped", sum.passed, sum.failed.len(), sum.skipped.len());
    sum.failed.is_empty()
}

fn failures(failed: &[Failure]) {
    let logs: BTreeSet<_> = failed.iter().map(|failure| &failure.log).collect();
    for log in logs {
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = excerpt(&text);
        println!("\n---- {}", log.display());
        lines.iter().for_each(|line| println!("{line}"));
    }
    println!("\nfailed, each with the command that runs it again:");
    for failure in failed {
        println!("  {}\n    {}", failure.what, failure.again);
    }
}

/// The part of libtest's output about failed tests; of other output, the end.
fn excerpt(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    match lines.iter().position(|line| *line == "failures:") {
        Some(at) => lines[at..].iter().copied().take(SHOWN_LINES).collect(),
        None => lines[lines.len().saturating_sub(SHOWN_LINES / 2)..].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_log_the_failures_are_shown() {
        let log =
            "running 2 tests\ntest a ... FAILED\n\nsuccesses:\n\nfailures:\n\n---- a stdout ----\nthread 'a' panicked";
        assert_eq!(excerpt(log)[0], "failures:");
        assert_eq!(excerpt("error: one\nerror: two"), ["error: one", "error: two"]);
    }

    #[test]
    fn times_are_read_at_a_glance() {
        assert_eq!([clock(7.4), clock(187.0), clock(3729.0)], ["0:07", "3:07", "1:02:09"]);
        assert_eq!([about(12.3), about(600.0)], ["about 12 s left", "about 10 min left"]);
    }
}
