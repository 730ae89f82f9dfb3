//! The budget of `plimsoll compare --budget FILE`: how much each line may grow.
//!
//! ```text
//! # line           growth
//! rss              2%          of A's median
//! direct-buffers   512k        as in -Xmx: bytes, k, m, g
//! *                1m          each line that isn't named
//! ```
//! A budget is exceeded if the whole interval of a growth is above it: a growth that may be chance never fails a build.

use crate::comparison::{A, B, Comparison, MedianChange, Part, RSS};

/// Stands for each line that isn't named.
const ANY: &str = "*";

/// How much a line may grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Growth {
    Bytes(u64),
    /// A percentage of A's median.
    Percent(f64),
}

impl Growth {
    /// `512k`, `1m`, `2%`, `0`; a leading `+` is allowed.
    fn parse(text: &str) -> Option<Growth> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.trim_end();
            return Some(Growth::Percent(percent.parse().ok().filter(|_| is_number(percent))?));
        }
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            _ => return None,
        };
        Some(Growth::Bytes(digits.parse::<u64>().ok()?.checked_mul(unit)?))
    }

    /// In bytes; a percentage is of this median.
    fn bytes(self, median: f64) -> f64 {
        match self {
            Growth::Bytes(bytes) => bytes as f64,
            Growth::Percent(percent) => median * percent / 100.0,
        }
    }
}

/// The allowed growth of lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// By line, in the order of the file; the name `*` stands for all others.
    allowed: Vec<(String, Growth)>,
}

/// A line beyond its budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Excess {
    /// `rss` or the id of a line.
    pub line: String,
    /// Allowed growth in bytes.
    pub allowed: f64,
    pub change: MedianChange,
}

impl Budget {
    /// `known` are the ids of all lines. The error names the line of the file. `near` proposes a name in place of an
    /// unknown one.
    pub fn parse(text: &str, known: &[&str], near: impl Fn(&str) -> Option<String>) -> Result<Budget, String> {
        let mut budget = Budget::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let at = |what: String| format!("line {}: {what}", number + 1);
            let (name, growth) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            if name != RSS && name != ANY && !known.contains(&name) {
                let hint = match near(name) {
                    Some(near) => format!(". Did you mean '{near}'?"),
                    None => format!("; expected rss, * or one of {}", known.join(", ")),
                };
                return Err(at(format!("'{name}' isn't a line of the ledger{hint}")));
            }
            if budget.allowed.iter().any(|(other, _)| other == name) {
                return Err(at(format!("'{name}' has a budget already")));
            }
            let growth = Growth::parse(growth.trim())
                .ok_or_else(|| at(format!("expected a growth for '{name}', such as 512k, 2m or 3%")))?;
            budget.allowed.push((name.to_owned(), growth));
        }
        if budget.allowed.is_empty() {
            return Err("it has no line; expected lines such as 'rss 2%'".into());
        }
        Ok(budget)
    }

    /// The first name that stands for lines of the ledger.
    pub fn ledger_line(&self) -> Option<&str> {
        self.allowed.iter().map(|(name, _)| name.as_str()).find(|name| *name != RSS)
    }

    /// Why the runs can't show that B keeps this budget. Lines without a figure are never beyond their budget.
    pub fn unchecked(&self, comparison: &Comparison) -> Option<String> {
        if self.allowed.iter().any(|(name, _)| name == RSS) && comparison.rss().is_none() {
            return Some("fewer than two pairs of runs have a figure of RSS".to_owned());
        }
        let line = self.ledger_line()?;
        let [of_a, of_b] = [A, B].map(|side| comparison.without_ledger(side));
        let why = match comparison.line_changes().is_empty() {
            true => "fewer than two pairs of runs have a ledger".to_owned(),
            // The pairs that are left could be those in which B is as good as A.
            false if of_b > of_a => format!("{of_b} runs of B have no ledger, of A {of_a}"),
            false => return None,
        };
        Some(format!("it names '{line}', but {why}"))
    }

    fn of(&self, line: &str) -> Option<Growth> {
        let named = |name: &str| self.allowed.iter().find(|(other, _)| other == name).map(|(_, growth)| *growth);
        // RSS is the sum of the lines, not one of them.
        named(line).or_else(|| named(ANY).filter(|_| line != RSS))
    }

    /// The lines beyond their budget: RSS first, then the largest growth.
    pub fn exceeded(&self, comparison: &Comparison) -> Vec<Excess> {
        let rss = comparison.rss().map(|change| (Part::line(RSS), change));
        let all = rss.into_iter().chain(comparison.line_changes());
        let beyond = |(part, change): (Part, MedianChange)| {
            let allowed = self.of(&part.line)?.bytes(change.medians[A]);
            (change.interval.low > allowed).then_some(Excess { line: part.line, allowed, change })
        };
        all.filter_map(beyond).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tests::compared;

    const KNOWN: [&str; 2] = ["direct-buffers", "java-heap"];

    #[test]
    fn a_budget_is_read_line_by_line() {
        let text = "# start-up\nrss +2%\n direct-buffers\t512k # pooled\n\n* 1MiB\n";
        let budget = Budget::parse(text, &KNOWN, |_| None).expect("a budget");
        assert_eq!(budget.of("direct-buffers"), Some(Growth::Bytes(512 << 10)));
        assert_eq!(
            (budget.of("java-heap"), budget.of(RSS)),
            (Some(Growth::Bytes(1 << 20)), Some(Growth::Percent(2.0)))
        );
        assert_eq!(Budget::parse("* 0", &KNOWN, |_| None).expect("a budget").of(RSS), None);
        for (text, error) in [
            ("", "it has no line"),
            ("rss", "line 1: expected a growth for 'rss'"),
            ("rss 2 %%", "line 1: expected a growth"),
            ("rss -1m", "line 1: expected a growth"),
            ("rss 1e3%", "line 1: expected a growth"),
            ("rss 99999999999g", "line 1: expected a growth"),
            (
                "\nheap 1m",
                "line 2: 'heap' isn't a line of the ledger; expected rss, * or one of direct-buffers, java-heap",
            ),
            ("rss 1m\nrss 2m", "line 2: 'rss' has a budget already"),
        ] {
            let found = Budget::parse(text, &KNOWN, |_| None).expect_err(text);
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    /// A gate must not pass on lines that nobody measured.
    #[test]
    fn a_budget_of_lines_without_a_ledger_is_unchecked() {
        let budget = |text: &str| Budget::parse(text, &KNOWN, |_| None).expect("a budget");
        let why = |text: &str, of: &Comparison| budget(text).unchecked(of);
        let mut grown = compared(3.0, 0.1);
        assert_eq!(["rss 0", "* 0", "rss 0\njava-heap 0"].map(|text| why(text, &grown)), [None, None, None]);
        let only_rss = budget("rss 0");
        assert_eq!((only_rss.ledger_line(), budget("rss 0\n* 0").ledger_line()), (None, Some("*")));
        // As many in A as in B: chance. More in B: perhaps the large ones.
        grown.lines.remove(&(0, A));
        grown.lines.remove(&(1, B));
        assert_eq!(why("* 0", &grown), None);
        grown.lines.remove(&(2, B));
        assert_eq!(why("* 0", &grown).as_deref(), Some("it names '*', but 2 runs of B have no ledger, of A 1"));
        grown.lines.clear();
        assert_eq!(budget("java-heap 0").exceeded(&grown), []);
        let none = "it names 'java-heap', but fewer than two pairs of runs have a ledger";
        assert_eq!(why("rss 0\njava-heap 0", &grown).as_deref(), Some(none));
        assert_eq!(only_rss.unchecked(&grown), None);
        grown.runs.iter_mut().for_each(|run| run.figures.clear());
        assert!(only_rss.unchecked(&grown).is_some_and(|why| why.contains("a figure of RSS")));
    }

    /// The whole interval must be above the budget: the mean alone proves nothing.
    #[test]
    fn only_a_growth_that_is_surely_beyond_its_budget_exceeds_it() {
        let grown = compared(3.0, 0.1);
        let exceeded = |text: &str| {
            let budget = Budget::parse(text, &KNOWN, |_| None).expect("a budget");
            budget.exceeded(&grown).into_iter().map(|excess| excess.line).collect::<Vec<_>>()
        };
        assert_eq!(exceeded("rss 1m\ndirect-buffers 1m\njava-heap 0"), ["rss", "direct-buffers"]);
        assert_eq!(exceeded("rss 8%\n* 3100k"), [""; 0]);
        assert_eq!(exceeded("* 1m"), ["direct-buffers"]);
    }
}
