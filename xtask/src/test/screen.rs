//! The output of a run: a line for each group with the time left, and at the end the table, the failures and the sum.

use super::groups::{Group, Work};
use super::plan::Built;
use super::record::Seconds;
use super::run::{Failure, Outcome};
use std::collections::{BTreeMap, BTreeSet};
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
    /// The estimate: the time that the group took last on this machine.
    seconds: Option<f64>,
    began: Option<Instant>,
    /// Tests that have ended, by program.
    ended: BTreeMap<usize, usize>,
    is_done: bool,
}

impl Row {
    fn ended(&self) -> usize {
        if self.is_done { self.tests } else { self.ended.values().sum() }
    }

    /// The part of its time that is over.
    fn part(&self) -> f64 {
        if self.is_done { 1.0 } else { (self.ended() as f64 / self.tests.max(1) as f64).min(1.0) }
    }
}

pub struct Screen {
    rows: Vec<Row>,
    began: Instant,
    /// When it last printed.
    shown: Instant,
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
        let row = |group: &&'static Group| Row {
            name: group.name,
            tests: tests(group),
            seconds: seconds.of(group.name),
            began: None,
            ended: BTreeMap::new(),
            is_done: false,
        };
        let rows = groups.iter().map(row).collect();
        Screen { rows, began: Instant::now(), shown: Instant::now() }
    }

    /// A program of the group starts.
    pub fn begin(&mut self, group: usize) {
        self.rows[group].began.get_or_insert_with(Instant::now);
        self.show();
    }

    fn head(&self, group: usize) -> String {
        format!("[{:2}/{}] {:13}", group + 1, self.rows.len(), self.rows[group].name)
    }

    /// What remains: time, if every group has run on this machine before; otherwise a number of tests.
    fn left(&self) -> String {
        let Some(all) = self.rows.iter().map(|row| row.seconds).collect::<Option<Vec<f64>>>() else {
            return format!(
                "{} tests left",
                self.rows.iter().map(|row| row.tests - row.ended().min(row.tests)).sum::<usize>()
            );
        };
        let over: f64 = all.iter().zip(&self.rows).map(|(seconds, row)| seconds * row.part()).sum();
        // Today the machine may be busier; and groups overlap, so that their times add up to more than the run's.
        let pace = if over > 20.0 { self.began.elapsed().as_secs_f64() / over } else { 1.0 };
        about((all.iter().sum::<f64>() - over) * pace)
    }

    /// This many tests of a program have ended.
    pub fn progress(&mut self, group: usize, program: usize, ended: usize) {
        self.rows[group].ended.insert(program, ended);
        self.show();
    }

    fn show(&mut self) {
        let terminal = stdout().is_terminal();
        let now: Vec<usize> =
            (0..self.rows.len()).filter(|&at| self.rows[at].began.is_some() && !self.rows[at].is_done).collect();
        let Some(first) = now.first().filter(|_| terminal || self.shown.elapsed() >= STILL) else { return };
        self.shown = Instant::now();
        let groups = now.iter().map(|&at| {
            let row = &self.rows[at];
            let name = if at == *first { self.head(at) } else { row.name.to_string() };
            let time = clock(self.elapsed(at));
            format!("{name} {} of {} tests, {time}", row.ended(), row.tests)
        });
        let line = format!("{}; {}", groups.collect::<Vec<_>>().join("; "), self.left());
        if terminal {
            print!("\r\x1b[K{line}");
            let _ = stdout().flush();
        } else {
            println!("{line}");
        }
    }

    /// Seconds since the group's first program started.
    pub fn elapsed(&self, group: usize) -> f64 {
        self.rows[group].began.map_or(0.0, |began| began.elapsed().as_secs_f64())
    }

    pub fn end(&mut self, group: usize, outcome: &Outcome) {
        if stdout().is_terminal() {
            print!("\r\x1b[K");
        }
        self.rows[group].is_done = true;
        let more = |n: usize, what: &str| if n > 0 { format!(", {n} {what}") } else { String::new() };
        let is_last = self.rows.iter().all(|row| row.is_done);
        let left = if is_last { String::new() } else { format!(", {}", self.left()) };
        println!(
            "{} {} passed{}{}, {}{left}",
            self.head(group),
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
/// `seconds`: the time of the whole run; the times of groups that overlap add up to more.
pub fn summary(rows: &[(&str, Outcome)], seconds: f64) -> bool {
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
    sum.seconds = seconds;
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
    // The last line of the output: CI reads it.
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
    fn the_failures_of_a_log_are_shown() {
        let log =
            "running 2 tests\ntest a ... FAILED\n\nsuccesses:\n\nfailures:\n\n---- a stdout ----\nthread 'a' panicked";
        assert_eq!(excerpt(log)[0], "failures:");
        assert_eq!(excerpt("error: one\nerror: two"), ["error: one", "error: two"]);
    }

    #[test]
    fn times_are_printed_in_the_units_that_they_need() {
        assert_eq!([clock(7.4), clock(187.0), clock(3729.0)], ["0:07", "3:07", "1:02:09"]);
        assert_eq!([about(12.3), about(600.0)], ["about 12 s left", "about 10 min left"]);
    }
}
