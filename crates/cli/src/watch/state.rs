//! What the screen shows: readings and keys in, facts for the drawing out. Pure and total; it knows no clock, only the
//! times of its readings.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use plimsoll_facts::units::Bytes;
use plimsoll_observer::ledger::{Baseline, LineId};
use plimsoll_observer::verdict::{Verdict, VerdictId};
use plimsoll_process::processes::{Identity, Listed};

use super::curve::{Curve, Trend};
use super::facts::{Facts, MOST_SITES, SiteRow};

/// How rows are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Size,
    Change,
    Growth,
    Name,
}

impl Sort {
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Size => "size",
            Sort::Change => "change",
            Sort::Growth => "growth",
            Sort::Name => "name",
        }
    }

    pub fn next(self) -> Sort {
        match self {
            Sort::Size => Sort::Change,
            Sort::Change => Sort::Growth,
            Sort::Growth => Sort::Name,
            Sort::Name => Sort::Size,
        }
    }
}

/// The table below the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panel {
    #[default]
    Sites,
    Arenas,
    Threads,
}

impl Panel {
    pub const ALL: [Panel; 3] = [Panel::Sites, Panel::Arenas, Panel::Threads];

    pub const fn name(self) -> &'static str {
        match self {
            Panel::Sites => "sites",
            Panel::Arenas => "arenas",
            Panel::Threads => "threads",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    #[default]
    Overview,
    /// The verdicts in full.
    Verdicts,
}

#[derive(Clone, Default)]
pub struct State {
    pub shown: ShownData,
    /// What was shown when the user paused. New readings still go into `shown`.
    pub paused: Option<Box<ShownData>>,
    pub page: Page,
    pub panel: Option<Panel>,
    pub sort: Sort,
    /// First row of the verdicts in full. The drawing knows where the last one is, and sets it back to that.
    pub scroll: Cell<usize>,
    /// A message for the user, until the next key.
    pub note: Option<String>,
    pub is_recording: bool,
    /// Whether Esc goes back to a list.
    pub has_list: bool,
    /// The process from which the user went back to the list: a reading that the worker had begun may still arrive.
    pub left: Option<u32>,
}

#[derive(Clone, Default)]
pub struct ShownData {
    pub list: List,
    /// The process that the screen shows; None: it shows the list.
    pub one: Option<Watched>,
}

impl State {
    /// What to draw.
    pub fn view(&self) -> &ShownData {
        self.paused.as_deref().unwrap_or(&self.shown)
    }

    /// Adds a reading. If it became the baseline, returns that for the verdicts.
    pub fn add(&mut self, facts: Facts) -> Option<Baseline> {
        if self.left == Some(facts.pid) {
            return None;
        }
        let is_other = self.shown.one.as_ref().is_none_or(|one| one.facts.pid != facts.pid);
        if is_other {
            self.shown.one = Some(Watched::default());
        }
        let one = self.shown.one.as_mut()?;
        one.add(facts);
        // The first reading with a ledger is the first baseline.
        (one.baseline.is_none() && one.facts.ledger.is_some()).then(|| one.set_baseline()).flatten()
    }

    /// Moves the cursor of the list, in a paused picture too.
    pub fn choose(&mut self, rows: isize) {
        match &mut self.paused {
            Some(paused) => {
                paused.list.select(self.sort, rows);
                self.shown.list.selected = paused.list.selected;
            }
            None => self.shown.list.select(self.sort, rows),
        }
    }

    pub fn end(&mut self, how: String) {
        if let Some(one) = &mut self.shown.one {
            one.end = Some(how);
        }
    }
}

/// A process and its history.
#[derive(Clone, Default)]
pub struct Watched {
    /// The newest reading.
    pub facts: Facts,
    pub rss: Curve,
    /// What counts against the limit.
    pub counted: Curve,
    pub lines: BTreeMap<LineId, Curve>,
    /// What to call the line `other-allocator`.
    allocators: Option<String>,
    pub remainder: Curve,
    /// Of the newest reading with a ledger.
    pub verdicts: Vec<Verdict>,
    /// The newest sites.
    pub sites: Vec<SiteRow>,
    /// When the sites were read.
    sites_ns: u64,
    pub baseline: Option<ScreenBaseline>,
    first_ns: u64,
    /// Time of the first and of the newest reading of the mappings.
    first_lines_ns: Option<u64>,
    pub lines_ns: u64,
    /// How the process ended.
    pub end: Option<String>,
}

/// The moment with which everything on the screen is compared. The verdicts have a `Baseline` of the same moment.
#[derive(Clone, Debug, Default)]
pub struct ScreenBaseline {
    pub time_ns: u64,
    /// None: no sites were read before the baseline. The next reading of sites fills this in.
    sites: Option<HeldBySite>,
    /// When these sites were read; 0 without them.
    sites_ns: u64,
    pools: HashMap<String, u64>,
}

/// Live bytes and their error, by category and frames.
type HeldBySite = HashMap<(String, Vec<String>), (Bytes, Bytes)>;

/// A line of the table.
pub struct Row<'w> {
    pub name: &'w str,
    /// None: the remainder.
    pub line: Option<LineId>,
    pub resident: Bytes,
    pub change: i64,
    pub trend: Trend,
}

impl Watched {
    fn add(&mut self, mut facts: Facts) {
        let time = facts.time_ns;
        if self.first_ns == 0 {
            self.first_ns = time;
        }
        self.rss.push(time, facts.rss.0);
        if let Some(limit) = &mut facts.limit {
            // Another limit may be that of another group, with another charge.
            if self.facts.limit.as_ref().is_some_and(|before| before.bytes != limit.bytes) {
                self.counted = Curve::default();
            }
            match self.facts.limit {
                _ if limit.is_of_now => self.counted.push(time, limit.counted.0),
                Some(before) => limit.counted = before.counted,
                None => {}
            }
        }
        if let Some(of) = &facts.ledger {
            for (id, bytes, _) in &of.lines {
                let is_new = !self.lines.contains_key(id);
                let curve = self.lines.entry(*id).or_default();
                curve.push(time, bytes.0);
                if let Some(first) = self.first_lines_ns.filter(|_| is_new) {
                    curve.was_nothing(first);
                }
            }
            self.first_lines_ns.get_or_insert(time);
            self.lines_ns = time;
            for (id, curve) in &mut self.lines {
                if of.lines.iter().all(|(line, ..)| line != id) {
                    curve.push(time, 0);
                }
            }
            self.remainder.push(time, of.remainder.0);
            self.verdicts.clone_from(&of.verdicts);
            if of.allocators.is_some() {
                self.allocators.clone_from(&of.allocators);
            }
        }
        if let Some(sites) = &facts.sites {
            self.sites.clone_from(sites);
            self.sites_ns = time;
            if let Some(baseline) = self.baseline.as_mut()
                && baseline.sites.as_ref().is_none_or(|then| was_renamed(then, sites))
            {
                (baseline.sites, baseline.sites_ns) = (Some(by_key(sites)), time);
            }
        }
        // A reading without a ledger has no pools, so those of the reading before stay.
        let pools = if facts.ledger.is_some() { None } else { Some(std::mem::take(&mut self.facts.pools)) };
        self.facts = facts;
        if let Some(pools) = pools {
            self.facts.pools = pools;
        }
    }

    /// Compares with this reading from now on.
    pub fn set_baseline(&mut self) -> Option<Baseline> {
        self.rss.set_baseline();
        self.counted.set_baseline();
        self.remainder.set_baseline();
        self.lines.values_mut().for_each(Curve::set_baseline);
        self.baseline = Some(ScreenBaseline {
            time_ns: self.facts.time_ns,
            sites: (!self.sites.is_empty()).then(|| by_key(&self.sites)),
            sites_ns: self.sites_ns,
            pools: self.facts.pools.iter().map(|pool| (pool.name.clone(), pool.threads)).collect(),
        });
        let lines = |id: &LineId, curve: &Curve| (*id, Bytes(curve.last()));
        // A reading without a ledger has the lines of the reading before it.
        self.facts.baseline().or_else(|| {
            Some(Baseline {
                time: self.facts.time_ns as f64 / 1e9,
                uptime: self.facts.uptime,
                rss: self.facts.rss,
                lines: self.lines.iter().map(|(id, curve)| lines(id, curve)).collect(),
                errors: Vec::new(),
                lacking: self.facts.lacking.clone(),
            })
        })
    }

    pub fn baseline_ns(&self) -> u64 {
        self.baseline.as_ref().map_or(self.first_ns, |baseline| baseline.time_ns)
    }

    pub fn trend(&self, curve: &Curve) -> Trend {
        curve.trend(self.baseline_ns())
    }

    /// The lines that have resident bytes, or had some at the baseline; the remainder last.
    pub fn rows(&self, sort: Sort) -> Vec<Row<'_>> {
        let row = |name, line, curve: &Curve| Row {
            name,
            line,
            resident: Bytes(curve.last()),
            change: curve.change(),
            trend: self.trend(curve),
        };
        let label = |id: LineId| match &self.allocators {
            Some(allocators) if id == LineId::OtherAllocator => allocators.as_str(),
            _ => id.name(),
        };
        let mut rows: Vec<Row<'_>> = self.lines.iter().map(|(id, curve)| row(label(*id), Some(*id), curve)).collect();
        rows.retain(|row| row.resident > Bytes(0) || row.change != 0);
        rows.sort_by(|one, other| {
            let by = order(sort, (one.name, one.change, one.trend), (other.name, other.change, other.trend));
            by.then(other.resident.cmp(&one.resident)).then(one.name.cmp(other.name))
        });
        if self.remainder.last() > 0 || self.remainder.change() != 0 {
            rows.push(row("remainder", None, &self.remainder));
        }
        rows
    }

    /// The verdicts that hold. The verdict `growth` compares only two readings. So it counts here only while the
    /// readings since the baseline show, with 95 % confidence, that a line grows.
    pub fn standing(&self) -> impl Iterator<Item = &Verdict> {
        let grows = |curve: &Curve| matches!(self.trend(curve), Trend::Is(growth) if growth.is_up());
        let is_clear = self.lines.values().any(grows);
        self.verdicts.iter().filter(move |verdict| verdict.id != VerdictId::Growth || is_clear)
    }

    /// Seconds until the limit: soonest, latest. None: what counts against the limit does not grow.
    pub fn time_left(&self) -> Option<(f64, f64)> {
        let limit = self.facts.limit?;
        let Trend::Is(growth) = self.trend(&self.counted) else { return None };
        let left = (limit.bytes - limit.counted).0 as f64;
        growth.is_up().then(|| (left / growth.most * 3600.0, left / growth.least * 3600.0))
    }

    /// Sites that grew since the baseline by more than the errors of both readings together, with growth and error.
    /// The site that grew most comes first.
    pub fn growing_sites(&self) -> Vec<(&SiteRow, Bytes, Bytes)> {
        let at_baseline = self.baseline.as_ref().and_then(|baseline| baseline.sites.as_ref());
        // A full table left smaller sites out: they held at most as much as its smallest.
        let is_full = |sites: &&HashMap<_, (Bytes, Bytes)>| sites.len() >= MOST_SITES;
        let unlisted = at_baseline.filter(is_full).and_then(|sites| sites.values().map(|(live, _)| *live).min());
        let unlisted = unlisted.unwrap_or_default();
        let grown = self.sites.iter().filter_map(|site| {
            let key = (site.category.clone(), site.frames.clone());
            let (then, error) = at_baseline?.get(&key).copied().unwrap_or((unlisted, Bytes(0)));
            let (change, error) = (site.live - then, site.error + error);
            (change > error).then_some((site, change, error))
        });
        let mut grown: Vec<_> = grown.collect();
        grown.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.frames.cmp(&other.0.frames)));
        grown
    }

    /// The time between the sites of the baseline and the newest, in ns. None: they are of one reading, which shows no
    /// growth.
    pub fn sites_compared_ns(&self) -> Option<u64> {
        let baseline = self.baseline.as_ref().filter(|baseline| baseline.sites.is_some())?;
        self.sites_ns.checked_sub(baseline.sites_ns).filter(|ns| *ns > 0)
    }

    /// How many threads more than at the baseline.
    pub fn pool_change(&self, name: &str, threads: u64) -> i64 {
        let then = self.baseline.as_ref().and_then(|baseline| baseline.pools.get(name)).copied().unwrap_or_default();
        threads as i64 - then as i64
    }
}

fn by_key(sites: &[SiteRow]) -> HeldBySite {
    let key = |site: &SiteRow| (site.category.clone(), site.frames.clone());
    sites.iter().map(|site| (key(site), (site.live, site.error))).collect()
}

/// Whether the functions of a site of the baseline have names now that they lacked then: names are found in the
/// background. Such a site would look like a new one. So the caller replaces the sites of the baseline: growth then
/// reads too low, never too high.
fn was_renamed(then: &HeldBySite, now: &[SiteRow]) -> bool {
    let is_unnamed = |frames: &[String]| frames.iter().any(|frame| frame.contains("+0x"));
    let is_there = |frames: &[String]| now.iter().any(|site| site.frames == frames);
    then.keys().any(|(_, frames)| is_unnamed(frames) && !is_there(frames))
}

fn order(sort: Sort, one: (&str, i64, Trend), other: (&str, i64, Trend)) -> std::cmp::Ordering {
    let least = |trend: Trend| match trend {
        Trend::Is(growth) => growth.least,
        Trend::In(_) | Trend::No => 0.0,
    };
    match sort {
        Sort::Size => std::cmp::Ordering::Equal,
        Sort::Change => other.1.cmp(&one.1),
        Sort::Growth => least(other.2).total_cmp(&least(one.2)),
        Sort::Name => one.0.cmp(other.0),
    }
}

/// The processes of the machine.
#[derive(Clone, Default)]
pub struct List {
    pub time_ns: u64,
    pub baseline_ns: u64,
    rows: Vec<(Listed, Curve)>,
    selected: Option<Identity>,
}

impl List {
    pub fn add(&mut self, time_ns: u64, listed: Vec<Listed>) {
        let mut curves: HashMap<Identity, Curve> =
            std::mem::take(&mut self.rows).into_iter().map(|(of, curve)| (of.identity, curve)).collect();
        let is_first = self.time_ns == 0;
        self.time_ns = time_ns;
        for of in listed {
            let known = curves.remove(&of.identity);
            let is_new = known.is_none();
            let mut curve = known.unwrap_or_else(Curve::of_list);
            curve.push(time_ns, of.rss.0);
            if is_new && is_first {
                curve.set_baseline();
            }
            self.rows.push((of, curve));
        }
        if is_first {
            self.baseline_ns = time_ns;
        }
    }

    pub fn set_baseline(&mut self) {
        self.baseline_ns = self.time_ns;
        self.rows.iter_mut().for_each(|(_, curve)| curve.set_baseline());
    }

    pub fn trend(&self, curve: &Curve) -> Trend {
        curve.trend(self.baseline_ns)
    }

    /// JVMs and tracked processes first, then the others.
    pub fn rows(&self, sort: Sort) -> Vec<&(Listed, Curve)> {
        // One order needs trends. A trend costs more than all else here, and a list may have a thousand processes.
        let trend = |curve: &Curve| if sort == Sort::Growth { self.trend(curve) } else { Trend::No };
        let mut rows: Vec<(&(Listed, Curve), Trend)> = self.rows.iter().map(|row| (row, trend(&row.1))).collect();
        rows.sort_by(|((one, curve), a), ((other, beside), b)| {
            let is_special = |of: &Listed| of.kind.is_jvm || of.kind.is_tracked;
            let by = order(sort, (&one.name, curve.change(), *a), (&other.name, beside.change(), *b));
            is_special(other)
                .cmp(&is_special(one))
                .then(by)
                .then(other.rss.cmp(&one.rss))
                .then(one.identity.cmp(&other.identity))
        });
        rows.into_iter().map(|(row, _)| row).collect()
    }

    /// The row under the cursor; the first one if it is gone.
    pub fn selected(&self, sort: Sort) -> usize {
        self.rows(sort).iter().position(|(of, _)| Some(of.identity) == self.selected).unwrap_or(0)
    }

    pub fn select(&mut self, sort: Sort, by: isize) {
        let rows = self.rows(sort);
        let at = self.selected(sort).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(at).map(|(of, _)| of.identity);
    }

    pub fn selected_pid(&self, sort: Sort) -> Option<u32> {
        self.rows(sort).get(self.selected(sort)).map(|(of, _)| of.identity.pid)
    }
}
