//! The runs of a trial, what they show against the plain row, and which row is best.

use std::collections::BTreeMap;

use crate::metric::{Better, MEMORY, Metric};
use crate::statistics::{Interval, median, range};

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// It completed its measurement, and was then stopped.
    Stopped,
    /// It ended by itself, successfully, as expected.
    Completed,
    Exited(u8),
    Signal(i32),
    /// The kernel killed it at the memory limit of its cgroup.
    OutOfMemory,
    NeverReady,
    NeverStarted,
    /// The load command failed.
    LoadFailed,
    /// The user interrupted the run: its figures don't count.
    Interrupted,
}

impl RunEnd {
    /// Whether the figures of the run count.
    pub fn is_good(&self) -> bool {
        matches!(self, RunEnd::Stopped | RunEnd::Completed)
    }

    pub fn id(&self) -> &'static str {
        match self {
            RunEnd::Stopped => "stopped",
            RunEnd::Completed => "completed",
            RunEnd::Exited(_) => "exited",
            RunEnd::Signal(_) => "signal",
            RunEnd::OutOfMemory => "oom-killed",
            RunEnd::NeverReady => "never-ready",
            RunEnd::NeverStarted => "never-started",
            RunEnd::LoadFailed => "load-failed",
            RunEnd::Interrupted => "interrupted",
        }
    }

    /// What happened, as the end of a sentence about the run.
    pub fn sentence(&self) -> String {
        match self {
            RunEnd::Stopped => "completed its measurement, and was then stopped".into(),
            RunEnd::Completed => "ended by itself".into(),
            RunEnd::Exited(code) => format!("ended early with exit status {code}"),
            RunEnd::Signal(signal) => format!("died of signal {signal}"),
            RunEnd::OutOfMemory => "was killed at its memory limit".into(),
            RunEnd::NeverReady => "was not ready in time".into(),
            RunEnd::NeverStarted => "could not be started".into(),
            RunEnd::LoadFailed => "got no load".into(),
            RunEnd::Interrupted => "was interrupted".into(),
        }
    }
}

/// A memory figure of a run as PSS, in which a page that several processes share counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pss {
    /// `None`: it can't be read.
    pub bytes: Option<f64>,
    /// Whether several processes held the memory. Then the figure itself is this sum; else it is an RSS.
    pub several: bool,
}

/// Whether a figure counts as PSS in all runs. RSS has every shared page in full, so the RSS of one run can't be
/// subtracted from the sum of PSS of another.
pub(crate) fn is_by_pss<'r>(runs: impl IntoIterator<Item = &'r Run>, metric: Metric) -> bool {
    runs.into_iter().any(|run| run.end.is_good() && run.pss.get(&metric).is_some_and(|pss| pss.several))
}

/// A sentence if these figures, named as in the report, count as PSS although some runs had one process only.
pub(crate) fn pss_note(runs: &[Run], named: &[(Metric, &str)]) -> Option<String> {
    let good = || runs.iter().filter(|run| run.end.is_good());
    let single = |metric: Metric| good().filter_map(move |run| run.pss.get(&metric)).filter(|pss| !pss.several);
    let is_mixed = |(metric, _): &&(Metric, &str)| is_by_pss(runs, *metric) && single(*metric).next().is_some();
    let mixed: Vec<&(Metric, &str)> = named.iter().filter(is_mixed).collect();
    let names = mixed.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    let unread = mixed.iter().map(|(metric, _)| single(*metric).filter(|pss| pss.bytes.is_none()).count()).max()?;
    let but = match unread {
        0 => String::new(),
        unread => format!("; PSS can't be read in {unread} of the runs, so RSS counts there"),
    };
    Some(format!("{names}: some runs had one process, others several, so PSS is compared instead of RSS{but}"))
}

/// One run of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// From 0.
    pub round: usize,
    pub row: usize,
    pub end: RunEnd,
    /// The program's last output, which may name the reason of its end.
    pub detail: Option<String>,
    /// Each in the unit of its metric.
    pub figures: BTreeMap<Metric, f64>,
    /// The figures of `MEMORY`, once more.
    pub pss: BTreeMap<Metric, Pss>,
    /// Number of processes at the end of the load.
    pub processes: usize,
    /// Failed requests that the load generator reported.
    pub load_errors: Option<u64>,
}

impl Run {
    /// A run of one process, without figures.
    pub fn ended(round: usize, row: usize, end: RunEnd) -> Run {
        let (figures, pss) = (BTreeMap::new(), BTreeMap::new());
        Run { round, row, end, detail: None, figures, pss, processes: 1, load_errors: None }
    }

    /// `by_pss`: as PSS, if it can be read.
    pub(crate) fn figure(&self, metric: Metric, by_pss: bool) -> Option<f64> {
        let figure = *self.figures.get(&metric)?;
        let pss = || self.pss.get(&metric)?.bytes;
        Some(if by_pss { pss().unwrap_or(figure) } else { figure })
    }

    /// An interrupted run hasn't failed.
    pub fn has_failed(&self) -> bool {
        !self.end.is_good() && self.end != RunEnd::Interrupted
    }
}

/// A row of the table: the plain program, or a remedy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub label: String,
    /// What is changed, as it would be typed. Empty for the plain program.
    pub changes: Vec<String>,
    /// Saving in bytes that a verdict on the first plain run expects: at least, at most.
    pub predicted: Option<(u64, u64)>,
    /// It acts on the live process, once: what it saves comes back with the next burst.
    pub once: bool,
    /// Why the row has no run.
    pub missing: Option<String>,
}

/// A finished or interrupted trial. Row 0 is the plain program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    pub command: String,
    pub load: Option<String>,
    pub ready: Option<String>,
    /// Bytes.
    pub limit: Option<u64>,
    /// Number of rounds that were to run.
    pub rounds: usize,
    pub interrupted: bool,
    pub rows: Vec<Row>,
    pub runs: Vec<Run>,
    /// Sentences about the whole trial.
    pub notes: Vec<String>,
}

/// A row against the plain row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    pub interval: Interval,
    /// Median of the plain row.
    pub plain: f64,
}

impl PairedDifference {
    /// The mean difference as a part of the plain row's median.
    pub fn percent(self) -> Option<f64> {
        (self.plain != 0.0).then(|| self.interval.mean / self.plain * 100.0).filter(|percent| percent.is_finite())
    }
}

/// A row is never best if its latency, throughput or run time is significantly worse than the plain row's, by more than
/// this part of it.
pub const TOLERATED_PERCENT: f64 = 5.0;

/// A saving below this part of the plain row is not worth a change.
pub(crate) const WORTH_PERCENT: f64 = 1.0;

/// Fewer rounds can't show that no row saves: of two, the interval is 12.7 standard errors wide to each side (Student's t
/// with one degree of freedom).
const DECIDING_ROUNDS: usize = 3;

/// The level of Fisher's exact test: what is less probable doesn't count as chance.
const SIGNIFICANT: f64 = 0.05;

/// The recommendation of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Best {
    /// The row that saves the most, of those that cost no latency, throughput or run time beyond `TOLERATED_PERCENT`,
    /// and that aren't `failing`. A row that acts once ranks after all rows whose effect lasts.
    Saves { row: usize, metric: Metric, difference: PairedDifference },
    /// The plain program was killed at its limit and this row was not, and chance doesn't explain that. Of several such
    /// rows, this is the smallest. Only rows with a lasting effect count.
    Survives { row: usize, metric: Metric, median: f64 },
    /// No row saves memory that the rounds can show.
    Nothing,
    /// Too few complete rounds, or rounds in which the plain program was killed at its limit.
    TooFew,
}

/// Whether a number of random events is larger than another by more than chance: two standard deviations of the
/// difference of two Poisson counts.
fn are_surely_more(own: u64, other: u64) -> bool {
    let (own, other) = (own as f64, other as f64);
    own - other > 2.0 * (own + other).sqrt()
}

/// The probability that all `killed` runs are among `plain` of `plain + other` equal runs: one side of Fisher's exact
/// test.
fn by_chance(killed: usize, plain: usize, other: usize) -> f64 {
    let factor = |taken: usize| plain.saturating_sub(taken) as f64 / (plain + other - taken) as f64;
    (0..killed.min(plain)).map(factor).product()
}

impl Trial {
    /// The figures of the good runs of a row, by round.
    pub fn values(&self, row: usize, metric: Metric) -> Vec<(usize, f64)> {
        let good = self.runs.iter().filter(|run| run.row == row && run.end.is_good());
        let by_pss = is_by_pss(&self.runs, metric);
        good.filter_map(|run| Some((run.round, run.figure(metric, by_pss)?))).collect()
    }

    /// A sentence if memory is PSS although some runs had one process only.
    pub fn pss_note(&self) -> Option<String> {
        pss_note(&self.runs, &MEMORY.map(|metric| (metric, metric.heading())))
    }

    pub fn median(&self, row: usize, metric: Metric) -> Option<f64> {
        median(&self.numbers(row, metric))
    }

    /// Smallest and largest value.
    pub fn range(&self, row: usize, metric: Metric) -> Option<(f64, f64)> {
        range(&self.numbers(row, metric))
    }

    fn numbers(&self, row: usize, metric: Metric) -> Vec<f64> {
        self.values(row, metric).into_iter().map(|(_, value)| value).collect()
    }

    /// The metrics that any row has.
    pub fn metrics(&self) -> Vec<Metric> {
        let has = |metric: &Metric| (0..self.rows.len()).any(|row| self.median(row, *metric).is_some());
        Metric::ALL.into_iter().filter(has).collect()
    }

    /// Against the plain row, over the rounds in which both have the figure.
    pub fn difference(&self, row: usize, metric: Metric) -> Option<PairedDifference> {
        let interval = Interval::of(&self.pairs(row, metric), metric.resolution())?;
        Some(PairedDifference { interval, plain: self.median(0, metric)? })
    }

    fn pairs(&self, row: usize, metric: Metric) -> Vec<f64> {
        let plain = self.values(0, metric);
        let of_round = |round: usize| plain.iter().find(|(one, _)| *one == round).map(|(_, value)| *value);
        let own = self.values(row, metric);
        own.iter().filter_map(|(round, value)| Some(value - of_round(*round)?)).collect()
    }

    /// The rounds that the comparison of memory has, of the row with the most.
    pub fn compared_rounds(&self) -> usize {
        let Some(metric) = self.decisive() else { return 0 };
        (1..self.rows.len()).map(|row| self.pairs(row, metric).len()).max().unwrap_or(0)
    }

    /// Whether the row saves. Of many rows, one may seem to save by chance, so the interval is widened for `rows`,
    /// their number. A saving below `WORTH_PERCENT` doesn't count.
    fn saves(&self, row: usize, metric: Metric, rows: usize) -> bool {
        let widened = Interval::among(&self.pairs(row, metric), metric.resolution(), rows);
        let worth = self.median(0, metric).map_or(0.0, |plain| plain * WORTH_PERCENT / 100.0);
        widened.is_some_and(|interval| interval.high < 0.0 && interval.mean <= -worth)
    }

    pub fn failed(&self, row: usize) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.row == row && run.has_failed())
    }

    fn killed(&self, row: usize) -> bool {
        self.failed(row).any(|run| run.end == RunEnd::OutOfMemory)
    }

    /// The memory metric that decides: after idling, or steady, or the peak.
    pub(crate) fn decisive(&self) -> Option<Metric> {
        let metrics = self.metrics();
        MEMORY.into_iter().find(|metric| metrics.contains(metric))
    }

    /// The costs of a row that are significant and beyond `TOLERATED_PERCENT`.
    pub fn costs(&self, row: usize) -> Vec<(Metric, PairedDifference)> {
        let speed = [Metric::P99, Metric::P90, Metric::P50, Metric::Throughput, Metric::Took];
        let found = speed.into_iter().filter_map(|metric| Some((metric, self.difference(row, metric)?)));
        let is_cost = |(metric, difference): &(Metric, PairedDifference)| {
            let worse = match metric.better() {
                Better::Lower => difference.interval.mean,
                Better::Higher => -difference.interval.mean,
            };
            !difference.interval.contains_zero() && worse > difference.plain.abs() * TOLERATED_PERCENT / 100.0
        };
        found.filter(is_cost).collect()
    }

    /// Failed requests of all runs of a row that the load generator reported.
    pub fn failed_requests(&self, row: usize) -> u64 {
        let errors = self.runs.iter().filter(|run| run.row == row).filter_map(|run| run.load_errors);
        errors.fold(0, u64::saturating_add)
    }

    /// Whether more requests failed than in the plain row, over the rounds in which both have the number.
    fn fails_more(&self, row: usize) -> bool {
        let of = |row: usize| self.runs.iter().filter(move |run| run.row == row && run.end.is_good());
        let plain = |round: usize| of(0).find(|run| run.round == round)?.load_errors;
        let pairs = of(row).filter_map(|run| Some((run.load_errors?, plain(run.round)?)));
        let add = |sums: (u64, u64), pair: (u64, u64)| (sums.0.saturating_add(pair.0), sums.1.saturating_add(pair.1));
        let (own, plain) = pairs.fold((0, 0), add);
        are_surely_more(own, plain)
    }

    /// The rows that completed every run.
    fn candidates(&self) -> Vec<usize> {
        let Some(metric) = self.decisive() else { return Vec::new() };
        let completed = |row: &usize| self.failed(*row).next().is_none() && self.median(*row, metric).is_some();
        (1..self.rows.len()).filter(completed).collect()
    }

    /// The rows that completed every run, but failed more requests than the plain row. They may be small and fast for
    /// that reason alone, so none of them is best. A plain program that was killed may have no such number. Then the
    /// row that failed the fewest is the measure.
    pub fn failing(&self) -> Vec<usize> {
        let candidates = self.candidates();
        let fewest = candidates.iter().map(|row| self.failed_requests(*row)).min().filter(|_| self.killed(0));
        let beyond = |row: usize| fewest.is_some_and(|fewest| are_surely_more(self.failed_requests(row), fewest));
        candidates.into_iter().filter(|row| self.fails_more(*row) || beyond(*row)).collect()
    }

    /// If the plain program was killed at its limit: the rows that completed every run, and whose effect lasts. A row
    /// that acts once is the plain program until it acts.
    pub fn survivors(&self) -> Vec<usize> {
        let failing = self.failing();
        let is_one = |row: &usize| self.killed(0) && !self.rows[*row].once && !failing.contains(row);
        self.candidates().into_iter().filter(is_one).collect()
    }

    /// Whether a row that completed every run differs from the plain program by more than the chance by which a limit
    /// near the need kills: in no run did the plain program complete, or Fisher's exact test is significant. All killed
    /// runs of the two are runs of the plain program.
    fn outlives(&self, row: usize) -> bool {
        let (good, own) = (self.good(0), self.good(row));
        let killed = self.failed(0).filter(|run| run.end == RunEnd::OutOfMemory).count();
        good == 0 || by_chance(killed, good + killed, own) < SIGNIFICANT
    }

    fn good(&self, row: usize) -> usize {
        self.runs.iter().filter(|run| run.row == row && run.end.is_good()).count()
    }

    pub fn best(&self) -> Best {
        let Some(metric) = self.decisive() else { return Best::TooFew };
        let (candidates, failing, survivors) = (self.candidates(), self.failing(), self.survivors());
        let is_killed = self.killed(0);
        if is_killed {
            let outliving = survivors.iter().copied().filter(|row| self.outlives(*row));
            let sizes = outliving.filter_map(|row| Some((row, self.median(row, metric)?)));
            match sizes.min_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((row, median)) => return Best::Survives { row, metric, median },
                None if survivors.is_empty() => return Best::Nothing,
                // What a survivor saves is compared in the rounds in which the plain program completed, too.
                None => {}
            }
        }
        let is_serving = |row: &usize| if is_killed { survivors.contains(row) } else { !failing.contains(row) };
        let compared: Vec<(usize, PairedDifference)> =
            candidates.into_iter().filter_map(|row| Some((row, self.difference(row, metric)?))).collect();
        if compared.is_empty() && self.rows.len() > 1 {
            return Best::TooFew;
        }
        let (rows, rounds) = (compared.len(), self.compared_rounds());
        // Whether the row survives by chance isn't decided either.
        let is_few = rounds < DECIDING_ROUNDS && compared.iter().any(|(row, _)| is_serving(row));
        let is_open = is_few || is_killed;
        let is_saving = |(row, _): &(usize, PairedDifference)| {
            is_serving(row) && self.saves(*row, metric, rows) && self.costs(*row).is_empty()
        };
        let saves = compared.into_iter().filter(is_saving);
        let rank = |(row, found): &(usize, PairedDifference)| (self.rows[*row].once, found.interval.mean);
        match saves
            .map(|one| (rank(&one), one))
            .min_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
            .map(|(_, one)| one)
        {
            Some((row, difference)) => Best::Saves { row, metric, difference },
            None if is_open => Best::TooFew,
            None => Best::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1048576.0;

    /// Rows of (steady MiB, p99 ms) for each round.
    fn trial(rows: &[&[(f64, f64)]]) -> Trial {
        let names = (0..rows.len()).map(|n| Row { label: format!("row {n}"), ..Row::default() }).collect();
        let mut trial = Trial { rows: names, rounds: rows[0].len(), ..Trial::default() };
        for (row, runs) in rows.iter().enumerate() {
            for (round, (steady, p99)) in runs.iter().enumerate() {
                let figures = BTreeMap::from([(Metric::Steady, steady * MIB), (Metric::P99, *p99)]);
                trial.runs.push(Run { figures, ..Run::ended(round, row, RunEnd::Stopped) });
            }
        }
        trial
    }

    const PLAIN: &[(f64, f64)] = &[(500.0, 10.0), (510.0, 10.2), (505.0, 9.9)];

    /// The published table: a cap of 4 costs 2 % of p99, a cap of 2 saves more and costs 11 %.
    #[test]
    fn the_best_row_saves_without_costing_latency() {
        let four = &[(400.0, 10.2), (410.0, 10.4), (404.0, 10.1)];
        let two = &[(330.0, 11.1), (340.0, 11.3), (336.0, 11.0)];
        let trial = trial(&[PLAIN, four, two]);
        let Best::Saves { row: 1, metric: Metric::Steady, difference } = trial.best() else {
            panic!("{:?}", trial.best())
        };
        assert!((difference.interval.mean / MIB + 100.3).abs() < 0.1);
        assert_eq!(trial.costs(2).len(), 1);
        assert_eq!(trial.median(0, Metric::Steady), Some(505.0 * MIB));
    }

    /// Of twenty equal rows one has an interval without 0, by chance. It is not best.
    #[test]
    fn the_luckiest_of_many_equal_rows_is_not_best() {
        let lucky: &[(f64, f64)] = &[(486.0, 10.0), (502.0, 10.0), (494.0, 10.0)];
        assert!(matches!(trial(&[PLAIN, lucky]).best(), Best::Saves { row: 1, .. }));
        let many: Vec<&[(f64, f64)]> = [PLAIN, lucky].into_iter().chain([PLAIN; 19]).collect();
        assert_eq!(trial(&many).best(), Best::Nothing);
        // Significant, but too small to matter.
        let small = PLAIN.iter().map(|(steady, p99)| (steady - 1.0, *p99)).collect::<Vec<_>>();
        assert_eq!(trial(&[PLAIN, &small]).best(), Best::Nothing);
    }

    #[test]
    fn what_lasts_comes_before_what_acts_once() {
        let mut trial = trial(&[PLAIN, &[(450.0, 10.0); 3], &[(300.0, 10.0); 3]]);
        trial.rows[2].once = true;
        assert!(matches!(trial.best(), Best::Saves { row: 1, .. }));
        trial.runs.retain(|run| run.row != 1);
        assert!(matches!(trial.best(), Best::Saves { row: 2, .. }));
    }

    #[test]
    fn a_difference_that_the_rounds_cannot_show_is_not_best() {
        let noise = &[(490.0, 10.0), (515.0, 10.0), (500.0, 10.0)];
        assert_eq!(trial(&[PLAIN, noise]).best(), Best::Nothing);
        assert_eq!(trial(&[&PLAIN[..1], &[(100.0, 1.0)]]).best(), Best::TooFew);
        assert_eq!(Trial::default().best(), Best::TooFew);
    }

    /// As observed: −150 MiB in both rounds, and an interval that contains 0.
    #[test]
    fn two_rounds_do_not_show_that_nothing_saves() {
        let plain = &[(186.0, 10.0), (244.0, 10.0), (215.0, 10.0)];
        let trimmed = &[(62.5, 10.0), (61.1, 10.0), (215.0, 10.0)];
        let of = |rounds: usize| trial(&[&plain[..rounds], &trimmed[..rounds]]);
        assert!(of(2).difference(1, Metric::Steady).expect("paired").interval.contains_zero());
        assert_eq!((of(2).best(), of(2).compared_rounds()), (Best::TooFew, 2));
        assert_eq!(of(3).best(), Best::Nothing);
        let clear = trial(&[&[(500.0, 10.0); 2], &[(400.0, 10.0), (401.0, 10.0)]]);
        assert!(matches!(clear.best(), Best::Saves { row: 1, .. }));
    }

    /// Differences are taken within a round, so a drift that hits both rows alike cancels.
    #[test]
    fn a_drift_of_the_machine_cancels() {
        let plain: Vec<(f64, f64)> = (0..5).map(|round| (500.0 + 50.0 * f64::from(round), 10.0)).collect();
        let saving: Vec<(f64, f64)> = plain.iter().map(|(steady, p99)| (steady - 20.0, *p99)).collect();
        let difference = trial(&[&plain, &saving]).difference(1, Metric::Steady).expect("paired");
        assert!((difference.interval.mean / MIB + 20.0).abs() < 1e-6 && difference.interval.high < -19.0 * MIB);
    }

    /// Two programs may be ready at nearly the same time. In every round, the runner may see one of them a look of 50
    /// ms later.
    #[test]
    fn a_start_that_is_seen_one_look_later_shows_no_difference() {
        let mut trial = trial(&[PLAIN, PLAIN]);
        for run in &mut trial.runs {
            run.figures.insert(Metric::Ready, if run.row == 1 { 0.206 } else { 0.150 });
        }
        assert!(trial.difference(1, Metric::Ready).expect("paired").interval.contains_zero());
    }

    /// One process of 500 MiB, 15 of them shared with others, against two that hold 5 MiB more in all. Their sum of PSS
    /// is smaller than the RSS of the one.
    #[test]
    fn the_rss_of_one_process_is_not_compared_with_the_pss_of_several() {
        let mut trial = trial(&[&[(500.0, 10.0); 3], &[(490.0, 10.0); 3]]);
        assert!(matches!(trial.best(), Best::Saves { row: 1, .. }));
        for run in &mut trial.runs {
            let (mib, several) = if run.row == 0 { (485.0, false) } else { (490.0, true) };
            run.pss.insert(Metric::Steady, Pss { bytes: Some(mib * MIB), several });
        }
        let difference = trial.difference(1, Metric::Steady).expect("paired");
        assert_eq!((difference.interval.mean, difference.plain), (5.0 * MIB, 485.0 * MIB));
        assert_eq!(trial.best(), Best::Nothing);
        let note = "steady: some runs had one process, others several, so PSS is compared instead of RSS";
        assert_eq!(trial.pss_note().as_deref(), Some(note));
        // A plain run whose PSS can't be read counts by its RSS, and the note says so.
        trial.runs[0].pss.insert(Metric::Steady, Pss::default());
        assert_eq!(trial.range(0, Metric::Steady), Some((485.0 * MIB, 500.0 * MIB)));
        assert_eq!(trial.pss_note(), Some(format!("{note}; PSS can't be read in 1 of the runs, so RSS counts there")));
        // Several everywhere, or nowhere: nothing to note.
        for several in [true, false] {
            trial.runs.iter_mut().flat_map(|run| run.pss.values_mut()).for_each(|pss| pss.several = several);
            assert_eq!(trial.pss_note(), None);
        }
        assert_eq!(trial.median(0, Metric::Steady), Some(500.0 * MIB), "one process: its RSS");
    }

    /// A row that answers with errors is small and fast.
    #[test]
    fn a_row_that_fails_requests_is_not_best() {
        let of = |errors: [u64; 3]| {
            let mut trial = trial(&[PLAIN, &[(300.0, 5.0); 3], &[(400.0, 10.0); 3]]);
            trial.runs.iter_mut().for_each(|run| run.load_errors = Some(errors[run.row]));
            trial
        };
        assert!(matches!(of([0, 0, 0]).best(), Best::Saves { row: 1, .. }));
        assert!(matches!(of([0, 20_000, 0]).best(), Best::Saves { row: 2, .. }));
        assert_eq!(of([0, 20_000, 20_000]).best(), Best::Nothing);
        // Some requests fail by chance: 42 of the row, 39 of the plain program; 300 and 240 in three rounds are more.
        assert!(matches!(of([13, 14, 0]).best(), Best::Saves { row: 1, .. }));
        assert_eq!((of([80, 100, 0]).failing(), of([80, 90, 0]).failing()), (vec![1], vec![]));
        // The errors of one round count, and those of a round without a plain number don't.
        let mut once = of([0, 0, 0]);
        once.runs.iter_mut().find(|run| (run.round, run.row) == (2, 1)).expect("a run").load_errors = Some(60_000);
        assert_eq!(once.failing(), [1]);
        once.runs.iter_mut().find(|run| (run.round, run.row) == (2, 0)).expect("a run").load_errors = None;
        assert_eq!(once.failing(), [0; 0]);
    }

    /// The plain program was killed, so it has no number: the row that failed the fewest is the measure.
    #[test]
    fn of_the_rows_that_survive_one_that_fails_requests_is_not_best() {
        let of = |errors: [u64; 3]| {
            let mut trial = trial(&[PLAIN, &[(300.0, 5.0); 3], &[(400.0, 10.0); 3]]);
            for run in &mut trial.runs {
                run.load_errors = Some(errors[run.row]);
                if run.row == 0 {
                    (run.end, run.load_errors) = (RunEnd::OutOfMemory, None);
                }
            }
            trial.best()
        };
        assert!(matches!(of([0, 2, 1]), Best::Survives { row: 1, .. }));
        assert!(matches!(of([0, 20_000, 1]), Best::Survives { row: 2, .. }));
    }

    #[test]
    fn a_row_that_survives_beats_a_plain_program_that_is_killed() {
        let mut trial = trial(&[PLAIN, &[(400.0, 10.0); 3], &[(300.0, 10.0); 3]]);
        for run in &mut trial.runs {
            if run.row == 0 || (run.row == 2 && run.round == 1) {
                run.end = RunEnd::OutOfMemory;
            }
        }
        assert_eq!(trial.best(), Best::Survives { row: 1, metric: Metric::Steady, median: 400.0 * MIB });
        assert_eq!(trial.failed(2).count(), 1);
        // Under the load, a row that acts after it is the plain program.
        trial.rows[2].once = true;
        trial.runs.iter_mut().filter(|run| run.row == 2).for_each(|run| run.end = RunEnd::Stopped);
        assert!(matches!(trial.best(), Best::Survives { row: 1, .. }));
        trial.runs.iter_mut().filter(|run| run.row == 1).for_each(|run| run.end = RunEnd::OutOfMemory);
        assert_eq!((trial.best(), trial.survivors()), (Best::Nothing, vec![]));
    }

    /// A limit near the need kills by chance.
    #[test]
    fn a_row_that_survives_by_chance_is_not_best() {
        let plain = [(500.0, 10.0), (510.0, 10.2), (505.0, 9.9), (500.0, 10.0), (510.0, 10.0)];
        let of = |killed: usize, row: &[(f64, f64)], once: bool| {
            let mut trial = trial(&[&plain[..row.len()], row]);
            trial.rows[1].once = once;
            let plain_runs = trial.runs.iter_mut().filter(|run| run.row == 0 && run.round < killed);
            plain_runs.for_each(|run| run.end = RunEnd::OutOfMemory);
            trial.best()
        };
        assert_eq!((of(1, &plain[..3], false), of(3, &plain, false)), (Best::TooFew, Best::TooFew));
        for survives in [of(3, &plain[..3], false), of(4, &plain, false)] {
            assert!(matches!(survives, Best::Survives { row: 1, .. }), "{survives:?}");
        }
        let small = [(400.0, 10.0); 3];
        assert!(matches!(of(1, &small, false), Best::Saves { row: 1, .. }));
        assert_eq!(of(1, &small, true), Best::Nothing);
        // R: fisher.test(matrix(c(4, 1, 0, 5), 2), alternative = "greater") gives 0.02381.
        assert!((by_chance(4, 5, 5) - 0.02381).abs() < 1e-5 && (by_chance(1, 3, 3) - 0.5).abs() < 1e-9);
    }
}
