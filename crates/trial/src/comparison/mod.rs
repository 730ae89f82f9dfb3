//! Two programs, A and B, run in turn: which figures and lines of the ledger differ, and by how much.
//!
//! ```text
//! pair 1   A B        the difference of each figure is taken within a pair (`plan`, `statistics`);
//! pair 2   B A        all intervals together hold with 99 % (Bonferroni): those of the figures and lines with 99.5 %,
//!                     those of the parts of lines, of which there are many more, with 99.5 %
//! ```
//! Of 100 comparisons of equal programs, at most one is expected to show any line as changed. This is a gate for
//! builds, so it is stricter than `try`, whose intervals hold with 95 % each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::metric::Metric;
use crate::rows::{PairedDifference, Run, is_by_pss, pss_note};
use crate::statistics::{Interval, median};

mod growth_owner;

/// The two sides: their rows in the runs.
pub const A: usize = 0;
pub const B: usize = 1;
pub const SIDES: [&str; 2] = ["A", "B"];

/// The name of the whole process beside the lines' ids.
pub const RSS: &str = "rss";

/// Probability that any interval of a comparison misses the truth.
const OUTSIDE: f64 = 0.01;
/// Each of the two families has half of it.
const OUTSIDE_OF_FAMILY: f64 = OUTSIDE / 2.0;

/// The least half width of an interval of bytes: the resolution of RSS.
const RESOLUTION: f64 = 65536.0;

/// The figures that are compared beside the lines, RSS first.
pub const METRICS: [Metric; 5] = [Metric::Steady, Metric::Peak, Metric::Ready, Metric::Took, Metric::Cpu];

/// A line of the ledger, or a part of it (a library, an arena, a pool of threads).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// `direct-buffers`; see docs/report-lines.md.
    pub line: String,
    /// Name of the part; empty for the whole line.
    pub name: String,
}

impl Part {
    pub fn line(line: &str) -> Part {
        Part { line: line.to_owned(), name: String::new() }
    }
}

/// The resident bytes of one process by line, and by part of each line.
pub type Lines = BTreeMap<Part, u64>;

/// Why a ledger can't show a line in full: its memory is on other lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unread {
    /// A clause.
    pub why: &'static str,
    /// Whether the program's own options are the reason: that isn't a failure.
    pub by_choice: bool,
}

/// The lines that have the memory of lines that a ledger can't show.
const STAND_INS: [&str; 4] = ["glibc-live", "glibc-unknown", "other-allocator", "other-anonymous"];

/// One run: the number of its pair (`Run::round`), and its side.
pub type At = (usize, usize);

/// What the interval of B − A shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    Grew,
    Shrank,
    /// The runs show no difference.
    Same,
}

impl Direction {
    pub const fn id(self) -> &'static str {
        match self {
            Direction::Grew => "grew",
            Direction::Shrank => "shrank",
            Direction::Same => "same",
        }
    }
}

/// B against A.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianChange {
    /// Medians of both sides.
    pub medians: [f64; 2],
    pub interval: Interval,
}

impl MedianChange {
    pub fn direction(&self) -> Direction {
        match self.interval {
            Interval { low, .. } if low > 0.0 => Direction::Grew,
            Interval { high, .. } if high < 0.0 => Direction::Shrank,
            _ => Direction::Same,
        }
    }

    /// The mean difference as a part of A's median.
    pub fn percent(&self) -> Option<f64> {
        PairedDifference { interval: self.interval, plain: self.medians[A] }.percent()
    }
}

/// A call stack of the tracked runs that holds more in B, or less.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    pub category: String,
    /// The line of the ledger that has memory of this category, if only one has.
    pub line: Option<String>,
    /// Whether its bytes are mappings, not blocks of malloc.
    pub is_mapped: bool,
    /// The memory of a category whose stacks are unknown.
    pub is_stackless: bool,
    /// Innermost first.
    pub frames: Vec<String>,
    /// Held bytes in A and in B, means over the tracked runs.
    pub held: [i64; 2],
    /// The part of the change that the tracked runs prove: the least difference between a run of A and a run of B.
    pub least: i64,
}

/// A category of the tracked runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Category {
    pub name: String,
    /// Held bytes, for each tracked run of A and of B.
    pub held: [Vec<u64>; 2],
}

impl Category {
    pub fn means(&self) -> [f64; 2] {
        [A, B].map(|side| self.held[side].iter().sum::<u64>() as f64 / self.held[side].len().max(1) as f64)
    }

    /// Whether the ranges of the runs don't overlap.
    pub fn differs(&self) -> bool {
        let ends = |side: usize| self.held[side].iter().min().zip(self.held[side].iter().max());
        ends(A).zip(ends(B)).is_some_and(|((a_least, a_most), (b_least, b_most))| b_least > a_most || a_least > b_most)
    }
}

/// What the bytes of the tracked runs are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Live blocks and resident mappings, at one moment.
    #[default]
    Held,
    /// Live blocks: the resident part of the mappings isn't known.
    Live,
    /// The peak of each call stack in live blocks, for programs that end by themselves.
    Peak,
}

impl Measure {
    /// The id in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Measure::Held => "held",
            Measure::Live => "live",
            Measure::Peak => "peak",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Measure::Held => "held",
            Measure::Live => "live blocks",
            Measure::Peak => "own peaks",
        }
    }

    /// A sentence for readers who want to add or compare these figures.
    pub const fn limit(self) -> Option<&'static str> {
        match self {
            Measure::Held => None,
            Measure::Live => Some("blocks only: the resident part of the mappings isn't known"),
            Measure::Peak => {
                Some("blocks only, each stack at its own moment: a sum is more than was ever live at once")
            }
        }
    }
}

/// What the tracked runs show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tracked {
    /// Number of tracked runs of A and of B.
    pub runs: [usize; 2],
    /// Of `sites` and `categories`.
    pub measure: Measure,
    /// The call stacks whose ranges don't overlap, the largest `least` first.
    pub sites: Vec<Site>,
    pub categories: Vec<Category>,
    /// Calls of mmap and related functions, means.
    pub mapping_calls: [f64; 2],
    /// Stacks with more or fewer mapping calls; `held` and `least` count calls.
    pub callers_of_mmap: Vec<Site>,
    /// Of a native image: allocations in the runtime's slow paths that mapped memory, means.
    pub slow_paths: Option<[f64; 2]>,
}

/// All runs of A and B, and what they show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    pub commands: [String; 2],
    pub ready: Option<String>,
    /// Number of pairs that were to run.
    pub pairs: usize,
    pub interrupted: bool,
    /// `row` is the side.
    pub runs: Vec<Run>,
    pub lines: BTreeMap<At, Lines>,
    /// The sources that were not read in full in a run, of those that decide on which line memory is counted.
    pub lacking: BTreeMap<At, BTreeSet<&'static str>>,
    /// The lines by id that the ledger of a run can't show in full.
    pub unread: BTreeMap<At, BTreeMap<&'static str, Unread>>,
    /// Names of the lines by id.
    pub names: BTreeMap<String, String>,
    pub tracked: Option<Tracked>,
    pub notes: Vec<String>,
}

impl Comparison {
    /// The pairs of which both runs ended well.
    fn complete(&self) -> Vec<usize> {
        let good = |side: usize| {
            let runs = self.runs.iter().filter(move |run| run.row == side && run.end.is_good());
            runs.map(|run| run.round).collect::<BTreeSet<usize>>()
        };
        good(A).intersection(&good(B)).copied().collect()
    }

    pub fn failed(&self, side: usize) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.row == side && run.has_failed())
    }

    /// Number of runs that ended well, but whose ledger could not be read.
    pub(crate) fn without_ledger(&self, side: usize) -> usize {
        let good = self.runs.iter().filter(|run| run.row == side && run.end.is_good());
        good.filter(|run| !self.lines.contains_key(&(run.round, side))).count()
    }

    /// Whether an interval exists.
    pub fn is_compared(&self) -> bool {
        self.complete().len() > 1
    }

    /// A sentence if the ledgers of A mostly lack other sources than those of B: then lines differ for that alone.
    pub fn unequal_ledgers(&self) -> Option<String> {
        let [a, b] = [A, B].map(|side| self.mostly_lacking(side));
        let effect = "memory of a source that wasn't read is on other lines; lines may differ for this reason alone";
        (a != b).then(|| format!("A: {}; B: {}: {effect}", read(&a), read(&b)))
    }

    /// Why the ledgers of a side can't show the line, for each run.
    fn unread_runs(&self, side: usize, line: &str) -> Vec<Unread> {
        let of_side = self.unread.iter().filter(|((_, of), _)| *of == side);
        of_side.filter_map(|(_, lines)| lines.get(line).copied()).collect()
    }

    /// Whether so many runs of a side can't show the line that its figures are mostly without it.
    fn is_mostly_unread(&self, side: usize, line: &str) -> bool {
        let ledgers = self.lines.keys().filter(|(_, of)| *of == side).count();
        let unread = self.unread_runs(side, line).len();
        unread > 0 && unread * 2 >= ledgers
    }

    /// The lines that some run can't show.
    fn unread_lines(&self) -> BTreeSet<&'static str> {
        self.unread.values().flat_map(BTreeMap::keys).copied().collect()
    }

    /// A clause if the runs can't show how much the line grew.
    pub(crate) fn why_unread(&self, line: &str) -> Option<String> {
        let [of_a, of_b] = [A, B].map(|side| self.unread_runs(side, line));
        // As with missing ledgers: perhaps only the runs in which B takes no more than A show the line.
        let is_unread = [self.is_mostly_unread(A, line), self.is_mostly_unread(B, line) || of_b.len() > of_a.len()];
        let first = [&of_a, &of_b].into_iter().zip(is_unread).find_map(|(of, is)| of.first().filter(|_| is))?;
        Some(format!("{} (runs of {})", first.why, sides(is_unread)))
    }

    /// The lines that differ for the sources alone: those that only one side mostly shows, and those that have their
    /// memory on the other side.
    pub(crate) fn incomparable(&self) -> BTreeSet<&'static str> {
        let is_of_one = |line: &&str| self.is_mostly_unread(A, line) != self.is_mostly_unread(B, line);
        let mut lines: BTreeSet<&'static str> = self.unread_lines().into_iter().filter(is_of_one).collect();
        if !lines.is_empty() {
            lines.extend(STAND_INS);
        }
        lines
    }

    /// Sentences about the lines that the runs mostly can't show. A line that the options of both programs leave out
    /// needs no sentence.
    pub fn unread_notes(&self) -> Vec<String> {
        let mut found: BTreeMap<(&str, [bool; 2]), Vec<&str>> = BTreeMap::new();
        for line in self.unread_lines() {
            let is_unread = [A, B].map(|side| self.is_mostly_unread(side, line));
            let why = [A, B].into_iter().filter(|side| is_unread[*side]).flat_map(|side| self.unread_runs(side, line));
            let Some(Unread { why, by_choice }) = why.min() else { continue };
            if !by_choice || is_unread != [true; 2] {
                found.entry((why, is_unread)).or_default().push(line);
            }
        }
        let note = |((why, is_unread), lines): ((&str, [bool; 2]), Vec<&str>)| {
            format!("{}: {why} (runs of {}), so other lines have this memory", lines.join(", "), sides(is_unread))
        };
        found.into_iter().map(note).collect()
    }

    /// A sentence if memory is PSS although some runs had one process only.
    pub fn pss_note(&self) -> Option<String> {
        pss_note(&self.runs, &[(Metric::Steady, "RSS"), (Metric::Peak, "RSS peak")])
    }

    fn mostly_lacking(&self, side: usize) -> BTreeSet<&'static str> {
        let mut sets: BTreeMap<&BTreeSet<&'static str>, usize> = BTreeMap::new();
        self.lacking.iter().filter(|((_, of), _)| *of == side).for_each(|(_, set)| *sets.entry(set).or_default() += 1);
        let most = sets.into_iter().max_by_key(|(set, runs)| (*runs, Reverse(set.len())));
        most.map(|(set, _)| set.clone()).unwrap_or_default()
    }

    /// B against A, in the unit of the metric; `None` with fewer than two complete pairs that have the figure.
    pub fn metric(&self, metric: Metric) -> Option<MedianChange> {
        let by_pss = is_by_pss(&self.runs, metric);
        let figure = |(round, side): At| {
            let run = self.runs.iter().find(|run| (run.round, run.row) == (round, side) && run.end.is_good())?;
            run.figure(metric, by_pss)
        };
        self.change(figure, metric.resolution(), self.figures())
    }

    /// RSS (or PSS, see `pss_note`) when the programs were ready, or the peak of programs that end by themselves.
    pub fn rss(&self) -> Option<MedianChange> {
        self.metric(Metric::Steady).or_else(|| self.metric(Metric::Peak))
    }

    /// Every line that any run has, the largest change first.
    pub fn line_changes(&self) -> Vec<(Part, MedianChange)> {
        self.changes_of(&self.parts(|part| part.name.is_empty()), self.figures())
    }

    /// The parts of a line, the largest change first.
    pub fn part_changes(&self, line: &str) -> Vec<(Part, MedianChange)> {
        let of_line = self.parts(|part| part.line == line && !part.name.is_empty());
        self.changes_of(&of_line, self.parts(|part| !part.name.is_empty()).len())
    }

    fn parts(&self, of: impl Fn(&Part) -> bool) -> BTreeSet<&Part> {
        self.lines.values().flat_map(Lines::keys).filter(|part| of(part)).collect()
    }

    /// Number of intervals of the first family: those of the metrics and of the lines.
    fn figures(&self) -> usize {
        METRICS.len() + self.parts(|part| part.name.is_empty()).len()
    }

    fn changes_of(&self, parts: &BTreeSet<&Part>, comparisons: usize) -> Vec<(Part, MedianChange)> {
        let change = |part: &&Part| {
            // A line that a ledger lacks has no bytes there.
            let figure = |at: At| self.lines.get(&at).map(|lines| lines.get(*part).copied().unwrap_or(0) as f64);
            Some(((*part).clone(), self.change(figure, RESOLUTION, comparisons)?))
        };
        let mut changes: Vec<(Part, MedianChange)> = parts.iter().filter_map(change).collect();
        let rank = |change: &MedianChange| (change.direction() == Direction::Same, -change.interval.mean.abs());
        changes.sort_by(|(a_part, a), (b_part, b)| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| a_part.cmp(b_part))
        });
        changes
    }

    fn change(&self, figure: impl Fn(At) -> Option<f64>, resolution: f64, comparisons: usize) -> Option<MedianChange> {
        let pairs: Vec<(f64, f64)> =
            self.complete().into_iter().filter_map(|round| Some((figure((round, A))?, figure((round, B))?))).collect();
        let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
        let interval = Interval::outside(&differences, resolution, OUTSIDE_OF_FAMILY / comparisons.max(1) as f64)?;
        let side = |of: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(of).collect::<Vec<f64>>());
        Some(MedianChange { medians: [side(|pair| pair.0)?, side(|pair| pair.1)?], interval })
    }
}

/// `A and B`
fn sides(of: [bool; 2]) -> String {
    let names: Vec<&str> = SIDES.into_iter().zip(of).filter(|(_, is_one)| *is_one).map(|(name, _)| name).collect();
    names.join(" and ")
}

/// `glibc was not read in full`.
fn read(lacking: &BTreeSet<&'static str>) -> String {
    match lacking.iter().copied().collect::<Vec<_>>()[..] {
        [] => "all was read in full".to_owned(),
        [one] => format!("{one} was not read in full"),
        ref several => format!("{} were not read in full", several.join(" and ")),
    }
}

#[cfg(test)]
pub(crate) mod tests;
