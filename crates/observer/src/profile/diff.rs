//! Compares two profiles site by site: what grew, what shrank, what is noise, what is new.
//!
//! Sites are matched by their functions, not by addresses, because the profiles may be of different runs or builds. A
//! change counts only above the error of both estimates. Many sites are compared at once: of 1,000 unchanged ones, a 95
//! % interval would report 50 as changed. So the bound holds for all n together: P(any |Z| > z) ≤ 2n·exp(−z²/2) = 5 %,
//! hence z = √(2·ln(40 n)). The error of counted figures comes from the maker of the profiles (`sites::comparable`).
//! Changes below a ten-thousandth of the whole, at most 64 KiB, are noise too.

use std::collections::{HashMap, HashSet};

use super::{Column, Entry, FrameId, Function, Labels, Profile, StackId, Unit, Value};
use crate::profile::Frame;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
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

impl Change {
    pub const ALL: [Change; 6] = [Change::New, Change::Grew, Change::Shrank, Change::Gone, Change::Noise, Change::Same];

    pub const fn name(self) -> &'static str {
        match self {
            Change::New => "new",
            Change::Grew => "grew",
            Change::Shrank => "shrank",
            Change::Gone => "gone",
            Change::Noise => "noise",
            Change::Same => "same",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SiteChange {
    /// The stack in `ProfileDiff::profile`.
    pub stack: StackId,
    pub before: Value,
    pub after: Value,
    pub change: Change,
    /// A change up to this bound is noise.
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
    /// The measure compared: `held`, `live`, …
    pub measure: &'static str,
}

/// A change below this part of the whole, or below so many bytes, is noise.
const SMALL: u64 = 10_000;
const FLOOR: u64 = 64 << 10;

pub(crate) const BEFORE: usize = 0;
pub(crate) const AFTER: usize = 1;

impl ProfileDiff {
    /// Compares one column of each (same measure and unit).
    pub fn new(before: (&Profile, usize), after: (&Profile, usize)) -> ProfileDiff {
        let column = |of: (&Profile, usize), measure| {
            let column = of.0.columns.get(of.1).cloned().unwrap_or(Column::bytes(""));
            Column { measure, ..column }
        };
        let mut profile = Profile::new(vec![column(before, "before"), column(after, "after")]);
        profile.time_ns = after.0.time_ns;
        profile.title = after.0.title.clone();
        profile.gaps = before.0.gaps.iter().chain(&after.0.gaps).cloned().collect();
        let mut numbers: HashMap<Function, u32> = HashMap::new();
        let mut sites: HashMap<Vec<u32>, StackId> = HashMap::new();
        let mut seen = [HashSet::new(), HashSet::new()];
        // The later profile first: its lines and addresses are shown.
        for (of, at) in [(after, AFTER), (before, BEFORE)] {
            let numbers = of.0.number_functions(&mut numbers);
            let mut copied: HashMap<StackId, StackId> = HashMap::new();
            let mut copy = Copy::new(of.0);
            for (Entry { stack, .. }, values) in of.0.entries() {
                let to = *copied.entry(stack).or_insert_with(|| {
                    *sites
                        .entry(of.0.stack_by_numbers(stack, &numbers))
                        .or_insert_with(|| copy.stack(&mut profile, stack))
                });
                seen[at].insert(to);
                let mut both = [Value::default(); 2];
                both[at] = values.get(of.1).copied().unwrap_or_default();
                profile.add(to, Labels::default(), &both);
            }
        }
        let deviations = (2.0 * (40.0 * profile.entries.len().max(1) as f64).ln()).sqrt();
        let floor = floor(&profile);
        let mut sites: Vec<SiteChange> = profile
            .entries()
            .map(|(Entry { stack, .. }, values)| {
                let known = [BEFORE, AFTER].map(|at| seen[at].contains(&stack));
                site(stack, [values[BEFORE], values[AFTER]], known, deviations, floor)
            })
            .collect();
        let name = |s: &SiteChange| profile.frames_of(s.stack).first().map(|f| profile.function_of_frame(*f));
        sites.sort_by(|a, b| {
            let size = |s: &SiteChange| s.grown().unsigned_abs();
            a.change.cmp(&b.change).then(size(b).cmp(&size(a))).then_with(|| name(a).cmp(&name(b)))
        });
        let measure = after.0.columns.get(after.1).map_or("", |column| column.measure);
        ProfileDiff { profile, sites, deviations, measure }
    }

    pub fn total(&self) -> (Value, Value) {
        let total = self.profile.total();
        (total[BEFORE], total[AFTER])
    }
}

/// The amount that is too small to be reported as growth, though it was counted: programs warm up and allocate small
/// tables.
fn floor(profile: &Profile) -> u64 {
    let total = profile.total();
    let whole = total[BEFORE].amount.max(total[AFTER].amount).unsigned_abs();
    if profile.columns[AFTER].unit == Unit::Bytes { (whole / SMALL).min(FLOOR) } else { 0 }
}

fn site(stack: StackId, [before, after]: [Value; 2], known: [bool; 2], deviations: f64, floor: u64) -> SiteChange {
    let grown = after.minus(before);
    let bound = (deviations * grown.variance.sqrt()).ceil() as u64;
    let change = match grown.amount {
        0 => Change::Same,
        n if n.unsigned_abs() <= bound.max(floor) => Change::Noise,
        _ if !known[BEFORE] => Change::New,
        _ if !known[AFTER] => Change::Gone,
        1.. => Change::Grew,
        _ => Change::Shrank,
    };
    SiteChange { stack, before, after, change, bound }
}

/// Copies stacks of one profile to another; each frame is looked up once.
pub(crate) struct Copy<'a> {
    from: &'a Profile,
    frames: Vec<Option<FrameId>>,
}

impl<'a> Copy<'a> {
    pub(crate) fn new(from: &'a Profile) -> Copy<'a> {
        Copy { from, frames: vec![None; from.function_of.len()] }
    }

    pub(crate) fn stack(&mut self, to: &mut Profile, stack: StackId) -> StackId {
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
    pub(crate) fn number_functions(&self, numbers: &mut HashMap<Function, u32>) -> Vec<u32> {
        let number = |function: &Function| {
            let next = numbers.len() as u32;
            *numbers.entry(function.clone()).or_insert(next)
        };
        self.functions.iter().map(number).collect()
    }

    /// A stack in terms of these numbers.
    pub(crate) fn stack_by_numbers(&self, stack: StackId, numbers: &[u32]) -> Vec<u32> {
        self.frames_of(stack).iter().map(|f| numbers[self.function_of(*f).0 as usize]).collect()
    }

    fn function_of_frame(&self, frame: FrameId) -> Function {
        self.function_at(self.function_of(frame)).clone()
    }
}
