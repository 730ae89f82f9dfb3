//! Compares two profiles site by site: what grew, what shrank, what is noise, what is new.
//!
//! Sites are matched by their functions, not by addresses, because the profiles may be of different runs or builds.
//! Where a function has another name, as when its symbols were found for one profile only, the same offsets in the same
//! builds match.
//!
//! A change counts only above the error of both estimates. Many sites are compared at once: of 1,000 unchanged ones, a
//! 95 % interval would report 50 as changed. So the bound holds for all n together:
//! P(any |Z| > z) ≤ 2n·exp(−z²/2) = 5 %, hence z = √(2·ln(40 n)). The error of counted figures comes from the maker of
//! the profiles (`sites::comparable`). Changes below a ten-thousandth of the whole, at most 64 KiB, are noise too.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use super::{Column, Entry, FrameId, Function, Labels, Module, NameId, Profile, StackId, Unit, Value};
use crate::profile::Frame;
use plimsoll_facts::gap::Gap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// The first profile doesn't have the stack, not even without live blocks.
    New,
    Grew,
    Shrank,
    /// The second profile doesn't have the stack.
    Gone,
    /// Within the error of the estimates.
    Noise,
    Same,
}

impl ChangeKind {
    pub const ALL: [ChangeKind; 6] =
        [ChangeKind::New, ChangeKind::Grew, ChangeKind::Shrank, ChangeKind::Gone, ChangeKind::Noise, ChangeKind::Same];

    pub const fn name(self) -> &'static str {
        match self {
            ChangeKind::New => "new",
            ChangeKind::Grew => "grew",
            ChangeKind::Shrank => "shrank",
            ChangeKind::Gone => "gone",
            ChangeKind::Noise => "noise",
            ChangeKind::Same => "same",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SiteChange {
    /// The stack in `ProfileDiff::profile`.
    pub stack: StackId,
    pub before: Value,
    pub after: Value,
    pub change: ChangeKind,
    /// A change within this error is noise; see `ProfileDiff::noise_up_to`.
    pub bound: u64,
}

impl SiteChange {
    pub fn grown(&self) -> i64 {
        self.after.amount.saturating_sub(self.before.amount)
    }
}

#[derive(Clone, Debug)]
pub struct ProfileDiff {
    /// Both profiles by site: the columns are the measure before and after. For trees and flame graphs.
    pub profile: Profile,
    /// New stacks first, then what grew; within each, the biggest change first.
    pub sites: Vec<SiteChange>,
    /// Number of standard deviations that a change must exceed.
    pub deviations: f64,
    /// A change up to this amount is noise, too, even if it was counted.
    pub floor: u64,
    /// The measure compared: `held`, `live`, …
    pub measure: &'static str,
    /// Number of runs on each side, if their ranges are compared (`of_runs`).
    pub runs: Option<[usize; 2]>,
    /// The category of each stack, where the profiles have categories.
    category_of: HashMap<StackId, NameId>,
}

/// A change below one `SMALL`th of the whole is noise, but never a change of `FLOOR` bytes or more.
const SMALL: u64 = 10_000;
const FLOOR: u64 = 64 << 10;

pub(crate) const BEFORE: usize = 0;
pub(crate) const AFTER: usize = 1;

impl ProfileDiff {
    /// Compares one column of each (same measure and unit).
    pub fn new(before: (&Profile, usize), after: (&Profile, usize)) -> ProfileDiff {
        let column = |of: (&Profile, usize), measure| {
            let column = of.0.columns.get(of.1).cloned().unwrap_or(Column::bytes(""));
            Column { measure, exact_total: None, ..column }
        };
        let mut profile = Profile::new(vec![column(before, "before"), column(after, "after")]);
        profile.time_ns = after.0.time_ns;
        profile.title = after.0.title.clone();
        profile.gaps = before.0.gaps.clone();
        profile.gaps.extend(after.0.gaps.iter().filter(|gap| !before.0.gaps.contains(gap)).cloned());
        let Aligned { seen, category_of } = align(&mut profile, &[before, after]);
        let deviations = (2.0 * (40.0 * profile.entries.len().max(1) as f64).ln()).sqrt();
        let floor = floor(&profile);
        let mut sites: Vec<SiteChange> = profile
            .entries()
            .map(|(Entry { stack, .. }, values)| {
                let known = [BEFORE, AFTER].map(|at| seen[at].contains(&stack));
                site(stack, [values[BEFORE], values[AFTER]], known, deviations, floor)
            })
            .collect();
        sort(&profile, &mut sites, |site| site.grown().unsigned_abs());
        let measure = after.0.columns.get(after.1).map_or("", |column| column.measure);
        ProfileDiff { profile, sites, deviations, floor, measure, runs: None, category_of }
    }

    /// Compares one column of several runs with that of several runs of another program. The profile has the means. A
    /// change counts only if the ranges of the runs don't overlap; `bound` is the change at which they would touch.
    /// Sites are sorted by the part of the change above the bound. The figures must be counted, not estimated.
    pub fn of_runs(before: &[(&Profile, usize)], after: &[(&Profile, usize)]) -> ProfileDiff {
        let all: Vec<(&Profile, usize)> = before.iter().chain(after).copied().collect();
        let column = all
            .last()
            .and_then(|(of, at)| of.columns.get(*at))
            .cloned()
            .map_or(Column::bytes(""), |column| Column { exact_total: None, ..column });
        let mut runs = Profile::new(vec![column.clone(); all.len()]);
        let Aligned { seen, category_of } = align(&mut runs, &all);
        let mut profile = runs.emptied();
        profile.columns = ["before", "after"].map(|measure| Column { measure, ..column.clone() }).to_vec();
        profile.gaps = gaps_of_runs(&all);
        for (Entry { stack, .. }, values) in runs.entries() {
            let (before, after) = values.split_at(before.len());
            profile.add(stack, Labels::default(), &means(before, after));
        }
        let floor = floor(&profile);
        let mut sites: Vec<SiteChange> = profile
            .entries()
            .map(|(Entry { stack, .. }, values)| {
                let (first, second) = seen.split_at(before.len());
                let known = [first, second].map(|runs| runs.iter().any(|run| run.contains(&stack)));
                site(stack, [values[BEFORE], values[AFTER]], known, 1.0, floor)
            })
            .collect();
        sort(&profile, &mut sites, |site| site.grown().unsigned_abs().saturating_sub(site.bound));
        let runs = Some([before.len(), after.len()]);
        ProfileDiff { profile, sites, deviations: 1.0, floor, measure: column.measure, runs, category_of }
    }

    pub fn category(&self, stack: StackId) -> Option<&str> {
        self.category_of.get(&stack).map(|name| self.profile.name_at(*name))
    }

    /// The largest change of the site that is noise.
    pub fn noise_up_to(&self, site: &SiteChange) -> u64 {
        site.bound.max(self.floor)
    }

    pub fn total(&self) -> (Value, Value) {
        let total = self.profile.total();
        (total[BEFORE], total[AFTER])
    }
}

/// Result of `align`.
struct Aligned {
    /// The stacks of each profile, including those without an amount.
    seen: Vec<HashSet<StackId>>,
    category_of: HashMap<StackId, NameId>,
}

/// Adds one column of each profile to `profile`, as its columns, in this order. Stacks are matched by their functions,
/// and those that find none by their code.
fn align(profile: &mut Profile, all: &[(&Profile, usize)]) -> Aligned {
    let mut numbers: HashMap<Function, u32> = HashMap::new();
    let mut builds: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut sites: HashMap<Vec<u32>, StackId> = HashMap::new();
    // Found by a hash with random keys, because the code of deep stacks would take more memory than the profiles.
    let (mut by_code, hasher): (HashMap<u64, StackId>, _) = (HashMap::new(), RandomState::new());
    let mut seen = vec![HashSet::new(); all.len()];
    let mut category_of = HashMap::new();
    // The last profile first: its lines and addresses are shown.
    for (at, (of, column)) in all.iter().enumerate().rev() {
        let numbers = of.number_functions(&mut numbers);
        let builds = of.number_builds(&mut builds);
        let mut copied: HashMap<StackId, StackId> = HashMap::new();
        let mut copy = Copy::new(of);
        // A site has the lines of its biggest entry.
        let mut entries: Vec<(Entry, &[Value])> = of.entries().collect();
        entries.sort_by_key(|(_, values)| Reverse(values.get(*column).map_or(0, |value| value.amount)));
        for (Entry { stack, labels }, values) in entries {
            let to = *copied.entry(stack).or_insert_with(|| {
                let functions = of.stack_by_numbers(stack, &numbers);
                let code = of.stack_by_code(stack, &numbers, &builds).map(|code| hasher.hash_one(code));
                let known = sites.get(&functions).or_else(|| by_code.get(&code?)).copied();
                let to = known.unwrap_or_else(|| copy.stack(&mut *profile, stack));
                sites.entry(functions).or_insert(to);
                if let Some(code) = code {
                    by_code.entry(code).or_insert(to);
                }
                to
            });
            if let Some(category) = labels.category
                && !category_of.contains_key(&to)
            {
                category_of.insert(to, profile.name(of.name_at(category)));
            }
            seen[at].insert(to);
            let mut row = vec![Value::default(); all.len()];
            row[at] = values.get(*column).copied().unwrap_or_default();
            profile.add(to, Labels::default(), &row);
        }
    }
    Aligned { seen, category_of }
}

/// The means of both sides. Their variances are such that one standard deviation of the change is the change at which
/// the ranges of both sides would touch.
fn means(before: &[Value], after: &[Value]) -> [Value; 2] {
    let amounts = |side: &[Value]| side.iter().map(|value| value.amount as f64).collect::<Vec<_>>();
    let mean = |side: &[f64]| side.iter().sum::<f64>() / side.len().max(1) as f64;
    let least = |side: &[f64]| side.iter().copied().reduce(f64::min).unwrap_or(0.0);
    let most = |side: &[f64]| side.iter().copied().reduce(f64::max).unwrap_or(0.0);
    let (before, after) = (amounts(before), amounts(after));
    let (from, to) = (mean(&before), mean(&after));
    let spreads = match to >= from {
        true => [most(&before) - from, to - least(&after)],
        false => [from - least(&before), most(&after) - to],
    };
    let bound = spreads[0] + spreads[1];
    [(from, spreads[0]), (to, spreads[1])].map(|(mean, spread)| {
        let variance = if bound > 0.0 { bound * spread } else { 0.0 };
        Value { amount: mean.round() as i64, variance }
    })
}

/// The gaps of all runs. Those that differ in numbers only are one gap, that of the first run which has it.
fn gaps_of_runs(all: &[(&Profile, usize)]) -> Vec<Gap> {
    let words = |gap: &Gap| -> String {
        let texts = gap.reason.chars().chain(['\n']).chain(gap.effect.chars());
        texts.filter(|c| !c.is_ascii_digit() && !matches!(c, ',' | '.')).collect()
    };
    let mut seen = HashSet::new();
    let gaps = all.iter().flat_map(|(of, _)| &of.gaps);
    gaps.filter(|gap| seen.insert((gap.source, words(gap)))).cloned().collect()
}

/// By kind of change, then by `size`, the largest first.
fn sort(profile: &Profile, sites: &mut [SiteChange], size: impl Fn(&SiteChange) -> u64) {
    let name = |s: &SiteChange| profile.frames_of(s.stack).first().map(|f| profile.function_of_frame(*f));
    sites.sort_by(|a, b| a.change.cmp(&b.change).then(size(b).cmp(&size(a))).then_with(|| name(a).cmp(&name(b))));
}

/// A counted change up to this amount is noise: programs warm up and allocate small tables.
fn floor(profile: &Profile) -> u64 {
    let total = profile.total();
    let whole = total[BEFORE].amount.max(total[AFTER].amount).unsigned_abs();
    if profile.columns[AFTER].unit == Unit::Bytes { (whole / SMALL).min(FLOOR) } else { 0 }
}

fn site(stack: StackId, [before, after]: [Value; 2], known: [bool; 2], deviations: f64, floor: u64) -> SiteChange {
    let grown = after.minus(before);
    let bound = (deviations * grown.variance.sqrt()).ceil() as u64;
    let change = match grown.amount {
        0 => ChangeKind::Same,
        n if n.unsigned_abs() <= bound.max(floor) => ChangeKind::Noise,
        _ if !known[BEFORE] => ChangeKind::New,
        _ if !known[AFTER] => ChangeKind::Gone,
        1.. => ChangeKind::Grew,
        _ => ChangeKind::Shrank,
    };
    SiteChange { stack, before, after, change, bound }
}

/// Copies stacks of one profile to another; each frame is looked up once.
pub struct Copy<'a> {
    from: &'a Profile,
    frames: Vec<Option<FrameId>>,
}

impl<'a> Copy<'a> {
    pub fn new(from: &'a Profile) -> Copy<'a> {
        Copy { from, frames: vec![None; from.function_of.len()] }
    }

    pub fn stack(&mut self, to: &mut Profile, stack: StackId) -> StackId {
        let from = self.from;
        let mut copy = |id: &FrameId| {
            *self.frames[id.number()].get_or_insert_with(|| {
                let frame = from.frame_at(*id).clone();
                let module = frame.module.map(|m| to.module(from.module_at(m).clone()));
                to.frame(Frame { module, ..frame })
            })
        };
        let frames: Vec<FrameId> = from.frames_of(stack).iter().map(&mut copy).collect();
        to.stack(&frames)
    }
}

impl Profile {
    /// Numbers the functions of several profiles consistently, so that comparing stacks is cheap.
    pub fn number_functions(&self, numbers: &mut HashMap<Function, u32>) -> Vec<u32> {
        let number = |function: &Function| {
            let next = numbers.len() as u32;
            *numbers.entry(function.clone()).or_insert(next)
        };
        self.functions.iter().map(number).collect()
    }

    /// A stack in terms of these numbers.
    pub fn stack_by_numbers(&self, stack: StackId, numbers: &[u32]) -> Vec<u32> {
        self.frames_of(stack).iter().map(|f| numbers[self.function_of(*f).0 as usize]).collect()
    }

    /// Numbers the builds of several profiles' modules consistently, from 1 on. None: the module has no build id.
    fn number_builds(&self, builds: &mut HashMap<Vec<u8>, u32>) -> Vec<Option<u32>> {
        let number = |module: &Module| {
            let next = builds.len() as u32 + 1;
            (!module.build_id.is_empty()).then(|| *builds.entry(module.build_id.clone()).or_insert(next))
        };
        self.modules.iter().map(number).collect()
    }

    /// A stack as code: build and offset of each frame; without a build id, 0 and the number of its function. None: no
    /// frame has a build id. Inlined frames have the offset of the function that they were inlined into.
    fn stack_by_code(&self, stack: StackId, numbers: &[u32], builds: &[Option<u32>]) -> Option<Vec<(u32, u64)>> {
        let frames = self.frames_of(stack);
        let build_of = |id: &FrameId| self.frame_at(*id).module.and_then(|module| builds[module.number()]);
        if frames.iter().all(|id| build_of(id).is_none()) {
            return None;
        }
        let code_of = |(at, id): (usize, &FrameId)| {
            let frame = self.frame_at(*id);
            let Some(build) = build_of(id) else {
                return Some((0, u64::from(numbers[self.function_of(*id).0 as usize])));
            };
            let code = (build, frame.offset);
            let is_there = |outer: &FrameId| build_of(outer).map(|of| (of, self.frame_at(*outer).offset)) == Some(code);
            let is_inlined = frame.inlined && frames.get(at + 1).is_some_and(is_there);
            (!is_inlined).then_some(code)
        };
        Some(frames.iter().enumerate().filter_map(code_of).collect())
    }

    fn function_of_frame(&self, frame: FrameId) -> Function {
        self.function_at(self.function_of(frame)).clone()
    }
}
