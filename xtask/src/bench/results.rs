//! Writes bench/RESULTS.md, group by group: rows, with the machine and the day of the measurement.

use super::machine::{Begun, commit, software};
use super::measure::{Column, Pairs, in_one_line};
use super::result_parts::Document;
use super::setup::{Setup, allocators};
use super::stats::Ratio;
use crate::stage::{Result, repository, target};
use std::fs;
use std::io;
use std::path::PathBuf;

/// Judges one figure that has no interval.
pub fn verdict(figure: f64, bar: f64) -> String {
    if figure <= bar { "holds".into() } else { "fails".into() }
}

/// The cells of such a bar and its verdict.
pub fn barred(figure: f64, bar: f64) -> [String; 2] {
    [format!("≤ {bar}"), verdict(figure, bar)]
}

pub struct Results {
    file: PathBuf,
    quick: bool,
    /// The commit of the programs that are measured, and what else they depend on.
    commit: String,
    software: String,
    /// Of the group that runs.
    begun: Begun,
    title: String,
    text: String,
}

impl Results {
    pub fn new(quick: bool) -> Results {
        let file = if quick { target().join("bench-quick.md") } else { repository().join("bench/RESULTS.md") };
        Results::of(file, quick)
    }

    fn of(file: PathBuf, quick: bool) -> Results {
        let commit = commit();
        let begun = Begun::now(&commit);
        Results { file, quick, commit, software: software(), begun, title: String::new(), text: String::new() }
    }

    /// Starts a group; the terminal shows it as it grows.
    pub fn group(&mut self, title: &str, how: &str) {
        println!("\n## {title}\n");
        self.title = title.to_owned();
        self.add(&format!("{how}\n\n"));
    }

    /// The head of a table.
    pub fn head(&mut self, columns: &[&str]) {
        let rule: Vec<&str> = columns.iter().map(|_| "---").collect();
        self.add(&format!("| {} |\n| {} |\n", columns.join(" | "), rule.join(" | ")));
    }

    pub fn row(&mut self, cells: &[String]) {
        self.add(&format!("| {} |\n", cells.join(" | ")));
    }

    /// One line for each setup of an alternating run; a setup named in `bars` is judged.
    pub fn setups(&mut self, what: &str, columns: &[Column], bars: &[(&str, f64)]) {
        for column in columns {
            let bar = bars.iter().find(|(name, _)| *name == column.name).map(|(_, bar)| *bar);
            self.judged(what, &column.name, &format!("{:.1}", column.median), column.ratio, bar);
        }
    }

    /// [`Results::setups`], and a line for each peer that couldn't run.
    pub fn pairs(&mut self, what: &str, pairs: &Pairs, setups: &[Setup], bars: &[(&str, f64)]) {
        self.setups(what, &pairs.columns(setups), bars);
        for (name, reason) in pairs.missing(setups) {
            self.missing(&[what, &name], reason);
        }
    }

    /// The installed allocators; a row for each of the others.
    pub fn allocators(&mut self) -> Vec<(&'static str, PathBuf)> {
        let mut installed = Vec::new();
        for (name, library) in allocators() {
            match library {
                Some(library) => installed.push((name, library)),
                None => self.missing(&[name], "it is not installed"),
            }
        }
        installed
    }

    /// A row that wasn't measured.
    pub fn missing(&mut self, first: &[&str], reason: &str) {
        self.add(&format!("| {} | not run: {} |\n", first.join(" | "), reason.replace('|', "\\|")));
    }

    /// A line of such a table: a ratio, and its judgement.
    pub fn judged(&mut self, what: &str, name: &str, figure: &str, ratio: Ratio, bar: Option<f64>) {
        let (bar, verdict) = bar.map_or((String::new(), ""), |bar| (format!("≤ {bar:.2}"), ratio.verdict(bar)));
        self.row(&[
            what.into(),
            name.into(),
            figure.into(),
            format!("{:.3}", ratio.value),
            format!("{:.3} to {:.3}", ratio.low, ratio.high),
            bar,
            verdict.into(),
        ]);
    }

    pub fn add(&mut self, text: &str) {
        print!("{text}");
        self.text += text;
    }

    /// Before a group runs.
    pub fn begin(&mut self) {
        self.begun = Begun::now(&self.commit);
        self.title.clear();
        self.text.clear();
    }

    /// After a group has run: writes its part. If it failed, its older part stays, with a sentence. The other parts of
    /// the file stay, and the published tables, which are measured separately. `groups`: the order of all parts.
    pub fn finish(&mut self, group: &str, groups: &[&str], done: &Result<()>) -> Result<()> {
        let older = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let mut document = Document::parse(&older);
        let made = self.begun.line();
        let title = if self.title.is_empty() { group } else { &self.title };
        match done {
            Ok(()) => document.put(group, title, &made, &self.text, groups),
            Err(error) => document.fail(group, &made, &in_one_line(error.as_ref()), groups),
        }
        document.installed(self.begun.day(), &self.software);
        // Replaces the file as a whole: a reader never finds half of it, not even after a session was killed.
        let new = self.file.with_extension("md.part");
        fs::write(&new, document.text(&words(self.quick), groups))?;
        Ok(fs::rename(new, &self.file)?)
    }
}

/// What holds for all parts.
fn words(quick: bool) -> String {
    let mut words = String::from(
        "Each part names its day, commit, machine and load average, and the command that makes it again. \
            Where a part has no other words, its runs alternate in one session, in fifteen rounds; runs of a tenth of a second in sixty, of which \
            peers run in every third; and each way ran right beside plain (or beside the allocator that it names), in every second pair before \
            it. Instructions and system calls are counted in one run. A ratio is the median of \
            the pairs' ratios, so it isn't the quotient of the two figures beside it, which are medians of a session in which the machine's speed \
            changes. Its bound is a bootstrap's 95 % over rounds. The second plain line is the A/A ratio: what noise alone makes. \
            Two ways share the plain run that stands between them. \
            A bar `holds` or `fails` only if the whole bound does, otherwise it is `open`. Tables without a bound have counts or extremes: there the \
            figure itself is compared with the bar. For some of the bars that fail, docs/decisions/blocks.md, map.md, own-cost.md and fork.md say \
            what stands in the way.",
    );
    if quick {
        words += "\n\n**A quick run: few rounds, to see that everything works. Not for judging.**";
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::{Bench, measure_all};
    use super::*;
    use crate::stage::folder;

    fn good(_: &Bench, results: &mut Results) -> Result<()> {
        results.group("Good", "How.");
        results.row(&["a row".to_owned()]);
        Ok(())
    }

    fn bad(_: &Bench, results: &mut Results) -> Result<()> {
        results.group("Bad", "How.");
        Err("no disk\nat all".into())
    }

    #[test]
    fn each_group_writes_its_part_and_a_failed_one_is_an_error() {
        let file = folder("test-results").expect("a folder").join("RESULTS.md");
        let _ = fs::remove_file(&file);
        let bench = Bench { quick: true, rounds: 3 };
        let mut results = Results::of(file.clone(), false);
        let done = measure_all(&bench, &mut results, &[("bad", bad), ("good", good)], &["good", "bad"]);
        assert!(done.expect_err("a group failed").to_string().contains("not measured: bad"));
        let text = fs::read_to_string(&file).expect("it is written");
        assert!(text.contains("## Good\n\n`make bench GROUP=good`: ") && text.contains("| a row |"), "{text}");
        assert!(text.contains("## bad\n\n`make bench GROUP=bad`: "), "{text}");
        assert!(text.contains(": no disk at all**"), "{text}");
        assert!(!text.contains("quick run"), "{text}");
        // The older figures survive.
        let failed = measure_all(&bench, &mut results, &[("good", bad)], &["good", "bad"]);
        assert!(failed.is_err());
        let text = fs::read_to_string(&file).expect("it is written");
        assert!(text.contains("**Not measured again: ") && text.contains("| a row |"), "{text}");
    }
}
