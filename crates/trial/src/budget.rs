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
        self.ledger_lines().next()
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
            false => return self.unread(comparison),
        };
        Some(format!("it names '{line}', but {why}"))
    }

    /// The names of lines of the ledger, `*` among them.
    fn ledger_lines(&self) -> impl Iterator<Item = &str> {
        self.allowed.iter().map(|(name, _)| name.as_str()).filter(|name| *name != RSS)
    }

    /// Like `unchecked`, for ledgers that don't show a line because a source wasn't read.
    fn unread(&self, comparison: &Comparison) -> Option<String> {
        let unread = self.ledger_lines().find_map(|name| Some((name, comparison.why_unread(name)?)));
        if let Some((name, why)) = unread {
            return Some(format!("it names '{name}', but {why}"));
        }
        let differ = comparison.incomparable();
        let name = self.ledger_lines().find(|name| differ.contains(*name) || (*name == ANY && !differ.is_empty()))?;
        Some(format!("it names '{name}', but the ledgers of A and B have the same memory on different lines"))
    }

    /// A sentence if it names lines that no run has: a name that was meant for another program isn't an error.
    pub fn absent(&self, comparison: &Comparison) -> Option<String> {
        let known = comparison.line_changes();
        let is_absent = |name: &&str| *name != ANY && known.iter().all(|(part, _)| part.line != *name);
        let absent: Vec<&str> = self.ledger_lines().filter(is_absent).collect();
        let is_compared = !known.is_empty() && !absent.is_empty();
        is_compared.then(|| format!("no run has these lines of the budget: {}", absent.join(", ")))
    }

    fn of(&self, line: &str) -> Option<Growth> {
        let named = |name: &str| self.allowed.iter().find(|(other, _)| other == name).map(|(_, growth)| *growth);
        // RSS is the sum of the lines, not one of them.
        named(line).or_else(|| named(ANY).filter(|_| line != RSS))
    }

    /// The lines beyond their budget: RSS first, then the largest growth. Lines that differ only for the sources that
    /// were read are left out (`unchecked`).
    pub fn exceeded(&self, comparison: &Comparison) -> Vec<Excess> {
        let differ = comparison.incomparable();
        let rss = comparison.rss().map(|change| (Part::line(RSS), change));
        let all = rss.into_iter().chain(comparison.line_changes());
        let beyond = |(part, change): (Part, MedianChange)| {
            let growth = self.of(&part.line).filter(|_| !differ.contains(part.line.as_str()))?;
            let allowed = growth.bytes(change.medians[A]);
            (change.interval.low > allowed).then_some(Excess { line: part.line, allowed, change })
        };
        all.filter_map(beyond).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::comparison::tests::compared;
    use crate::comparison::{At, Unread};

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

    /// A line that no ledger shows must not pass: it would keep any budget. Nor may a line that only A's ledgers show:
    /// it would seem to shrink.
    #[test]
    fn a_line_that_the_ledgers_cannot_show_is_unchecked() {
        const MUTE: Unread = Unread { why: "the JVM did not answer", by_choice: false };
        const NO_NMT: Unread = Unread { why: "the JVM counts it only with NMT", by_choice: true };
        let known = ["class", "compiler", "direct-buffers", "java-heap", "other-anonymous"];
        let budget = |text: &str| Budget::parse(text, &known, |_| None).expect("a budget");
        let of = |unread: &dyn Fn(At) -> Option<(&'static str, Unread)>| {
            let mut comparison = compared(3.0, 0.1);
            comparison.unread = comparison.lines.keys().map(|at| (*at, unread(*at).into_iter().collect())).collect();
            comparison
        };
        let why = |text: &str, of: &Comparison| budget(text).unchecked(of);
        // NMT is off on both sides: only a budget that names the line is in vain.
        let off = of(&|_| Some(("compiler", NO_NMT)));
        let expected = "it names 'compiler', but the JVM counts it only with NMT (runs of A and B)";
        assert_eq!(why("java-heap 1m\ncompiler 1m", &off).as_deref(), Some(expected));
        assert_eq!(["rss 1m", "* 1m", "java-heap 0"].map(|text| why(text, &off)), [None, None, None]);
        assert_eq!(off.unread_notes(), [""; 0]);
        // All runs of B, or of both.
        let of_b = of(&|(_, side)| (side == B).then_some(("class", MUTE)));
        let expected = "it names 'class', but the JVM did not answer (runs of B)";
        assert_eq!(why("class 1m", &of_b).as_deref(), Some(expected));
        assert!(why("* 1m", &of_b).is_some() && why("other-anonymous 1m", &of_b).is_some());
        assert_eq!((why("rss 1m", &of_b), why("direct-buffers 1m", &of_b)), (None, None));
        assert_eq!(of_b.unread_notes(), ["class: the JVM did not answer (runs of B), so other lines have this memory"]);
        let of_both = of(&|_| Some(("class", MUTE)));
        assert!(why("class 1m", &of_both).is_some_and(|why| why.ends_with("(runs of A and B)")));
        assert_eq!((why("* 1m", &of_both), of_both.unread_notes().len()), (None, 1));
        // One run of A, and one of B: chance. One of B only: perhaps a large one.
        let once =
            |sides: &[usize]| of(&|(round, side)| (round == 4 && sides.contains(&side)).then_some(("class", MUTE)));
        assert_eq!((why("class 1m", &once(&[A, B])), why("class 1m", &once(&[A]))), (None, None));
        assert!(why("class 1m", &once(&[B])).is_some());
    }

    /// A's ledgers have all sources. B's metaspace is in other-anonymous, which must not count as a growth.
    #[test]
    fn memory_that_only_changed_its_line_is_not_over_budget() {
        let known = ["class", "other-anonymous"];
        let mut comparison = compared(0.0, 0.1);
        for ((_, side), lines) in &mut comparison.lines {
            lines.insert(Part::line(["class", "other-anonymous"][*side]), 20 << 20);
        }
        let budget = Budget::parse("rss 0\n* 512k", &known, |_| None).expect("a budget");
        assert_eq!(budget.exceeded(&comparison).len(), 1);
        let unread = Unread { why: "the JVM did not answer", by_choice: false };
        let of_b = |at: &At| if at.1 == B { BTreeMap::from([("class", unread)]) } else { BTreeMap::new() };
        comparison.unread = comparison.lines.keys().map(|at| (*at, of_b(at))).collect();
        assert_eq!(budget.exceeded(&comparison), []);
        assert!(budget.unchecked(&comparison).is_some_and(|why| why.starts_with("it names '*', but the ledgers of A")));
    }

    #[test]
    fn lines_that_no_run_has_are_named() {
        let known = ["class", "gc", "java-heap"];
        let budget = |text: &str| Budget::parse(text, &known, |_| None).expect("a budget");
        let comparison = compared(0.0, 0.1);
        let expected = "no run has these lines of the budget: gc, class";
        assert_eq!(budget("gc 0\njava-heap 0\nclass 0\n* 1m").absent(&comparison).as_deref(), Some(expected));
        assert_eq!(budget("rss 0\njava-heap 0").absent(&comparison), None);
        assert_eq!(budget("gc 0").absent(&Comparison::default()), None);
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
