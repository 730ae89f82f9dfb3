//! Writes bench/RESULTS.md: groups of rows, with the machine and the day of the measurement.

use super::measure::Column;
use super::published::SECTION;
use super::stats::Ratio;
use crate::stage::{Result, must, repository};
use std::fmt::Write;
use std::fs;
use std::process::Command;

/// Judges one figure that has no interval.
pub fn verdict(figure: f64, bar: f64) -> String {
    if figure <= bar { "holds".into() } else { "fails".into() }
}

pub struct Results {
    text: String,
    /// When the session began.
    began: String,
}

impl Results {
    pub fn new() -> Results {
        Results { text: String::new(), began: output_of("date", &["-u", "+%F %H:%M"]) }
    }

    /// Starts a group; the terminal shows it as it grows.
    pub fn group(&mut self, title: &str, how: &str) {
        self.add(&format!("\n## {title}\n\n{how}\n\n"));
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

    /// Writes the whole file: figures of different days never share a table.
    pub fn write(&self, quick: bool) -> Result<()> {
        let processor = fs::read_to_string("/proc/cpuinfo")?;
        let model =
            processor.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
        let cores = std::thread::available_parallelism()?.get();
        let mut head = String::from("# Results of `make bench`\n\n");
        writeln!(
            head,
            "- day: {} to {}, commit {}",
            self.began,
            output_of("date", &["-u", "+%H:%M UTC"]),
            output_of("git", &["rev-parse", "--short", "HEAD"])
        )?;
        writeln!(
            head,
            "- machine: {} × {}, Linux {}",
            cores,
            model.map_or("unknown", |(_, name)| name),
            output_of("uname", &["-r"])
        )?;
        writeln!(
            head,
            "- {}; {}; {}",
            output_of("ldd", &["--version"]),
            output_of("rustc", &["--version"]),
            output_of("gcc", &["--version"])
        )?;
        writeln!(head, "- load before and after: {}", fs::read_to_string("/proc/loadavg")?.trim())?;
        head += "\nRuns alternate in one session, in fifteen rounds. Where a table has no other words, each way ran right beside plain (or \
            beside the allocator that it names), in every second pair before it; runs of a tenth of a second in sixty rounds. A ratio is the median of \
            the pairs' ratios, so it isn't the quotient of the two figures beside it, which are medians of a session in which the machine's speed \
            changes. Its bound is a bootstrap's 95 % over rounds. The second plain line is the A/A ratio: what noise alone makes. \
            Two ways share the plain run that stands between them; peers, which have no bar, run in every third round. \
            A bar `holds` or `fails` only if the whole bound does, otherwise it is `open`. What stands in the way of bars that fail \
            is in docs/decisions/blocks.md, map.md and own-cost.md.\n";
        if quick {
            head += "\n**A quick run: few rounds, to see that everything works. Not for judging.**\n";
        }
        let name = if quick { "target/bench-quick.md" } else { "bench/RESULTS.md" };
        let file = repository().join(name);
        // The published tables are measured separately, and stay.
        let old = fs::read_to_string(&file).unwrap_or_default();
        let kept = old.find(SECTION).and_then(|at| old.get(at..)).map_or(String::new(), |rest| format!("\n{rest}"));
        fs::write(file, head + &self.text + &kept)?;
        eprintln!("written: {name}");
        Ok(())
    }
}

/// The first line that a command prints.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let first = |text: String| text.lines().next().unwrap_or_default().trim().to_string();
    must(Command::new(program).args(arguments)).map_or_else(|_| "unknown".into(), first)
}
