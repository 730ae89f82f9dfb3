//! Makes the sites of two reports comparable before they are subtracted.
//!
//! Effects of sampling must not look like change:
//! - A caller's total is exact; only its division among sites is estimated. So the change of a caller's only site is
//!   exact. Other changes have the error of the division.
//! - A caller without samples yet appears with its short stack, and later with deep ones. Each of these deep stacks
//!   begins with the short stack. So its blocks are divided among them, in proportion. The deep stacks of both reports
//!   are used, because the caller may have only its short stack in both.
//! - The tracker's own memory grows with what it records. It is in each report, but isn't a change of the program.
//! - Blocks come and go: their number at a moment is random, although it was counted (`add_turnover_variance`).
//! - Memory without a stack is compared by category.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, HashSet};

use super::Sites;
use super::columns::{COLUMNS, CUMULATIVE_COUNT, HELD, LIVE, LIVE_COUNT};
use plimsoll_profiles::profile::{Copy, Entry, Frame, Function, Profile, StackId, Value};
use plimsoll_segment::CallerFacts;

/// The fixed category of Plimsoll's own memory.
const OWN: usize = 2;

/// The tracker's names for what existed before it, and for thread stacks.
const EARLY: [&str; 2] = [plimsoll_segment::FIXED_CATEGORIES[1], "before the attach"];
const STACKS: &str = plimsoll_segment::FIXED_CATEGORIES[3];

/// Sites that allocated fewer blocks than this between the reports are judged together with sites that begin alike.
const FEW: f64 = 16.0;
/// Number of common frames of such sites. With more, no two stacks of a compiler would be alike.
const ALIKE: usize = 2;

/// Maximum number of frames of a short stack: a caller in the segment has no more.
const MOST_SHORT: usize = 8;
const _: fn(&CallerFacts) -> &[u64; MOST_SHORT] = |facts| &facts.frames;

/// Both reports in comparable form.
pub fn comparable(before: &Sites, after: &Sites) -> (Profile, Profile) {
    let mut both = [normalized(before, after), normalized(after, before)];
    // The title identifies the process. For two processes, cumulative figures say nothing about the time in between.
    if before.profile.title == after.profile.title {
        add_turnover_variance(&mut both);
    }
    both.into()
}

/// Two recordings in comparable form. They have neither variances of the division nor marks of short stacks. So a stack
/// with which a deeper stack begins counts as short, because no whole stack is the beginning of another.
pub fn comparable_recorded(before: &Profile, after: &Profile) -> (Profile, Profile) {
    let [of_before, of_after] = [before, after].map(beginnings);
    let all: HashSet<&[Function]> = of_before.values().chain(of_after.values()).map(Vec::as_slice).collect();
    let begun: HashSet<&[Function]> = of_before
        .values()
        .chain(of_after.values())
        .flat_map(|functions| (1..functions.len()).map(|length| &functions[..length]))
        .filter(|beginning| all.contains(beginning))
        .collect();
    let short = [(before, &of_before), (after, &of_after)].map(|(of, functions)| {
        let is_short = |stack: StackId| of.frames_of(stack).len() <= MOST_SHORT && begun.contains(&*functions[&stack]);
        of.entries().map(|(entry, _)| entry).filter(|entry| is_short(entry.stack)).collect::<HashSet<Entry>>()
    });
    let divided = |of: Side<'_>, other: Side<'_>| {
        let deep = Deep::new(of, other);
        let (mut profile, mut copy) = (of.profile.emptied(), Copy::new(other.profile));
        for (entry, values) in of.profile.entries() {
            match deep.of(of.profile, entry).filter(|_| (of.is_short)(&entry)) {
                Some(receivers) => divide(&mut profile, &mut copy, receivers, entry, values),
                None => profile.add(entry.stack, entry.labels, values),
            }
        }
        profile
    };
    let first = Side { profile: before, is_short: &|entry| short[0].contains(entry), weight: LIVE };
    let second = Side { profile: after, is_short: &|entry| short[1].contains(entry), weight: LIVE };
    (divided(first, second), divided(second, first))
}

/// The first functions of each stack, one more than a short stack has: a recording chooses how deep its stacks are.
fn beginnings(of: &Profile) -> HashMap<StackId, Vec<Function>> {
    let first = |stack| {
        let mut functions = functions(of, stack);
        functions.truncate(MOST_SHORT + 1);
        functions
    };
    of.entries().map(|(entry, _)| (entry.stack, first(entry.stack))).collect()
}

/// One report in comparable form, to be compared with reports of other processes (`ProfileDiff::of_runs`).
pub fn of_one_run(sites: &Sites) -> Profile {
    normalized(sites, sites)
}

/// Blocks of one site, or of sites that begin alike, at the two moments.
#[derive(Clone, Copy, Default)]
struct Blocks {
    live: [f64; 2],
    bytes: [f64; 2],
    cumulative: [f64; 2],
}

impl Blocks {
    fn add(&mut self, at: usize, values: &[Value]) {
        self.live[at] += values[LIVE_COUNT].amount as f64;
        self.bytes[at] += values[LIVE].amount as f64;
        self.cumulative[at] += values[CUMULATIVE_COUNT].amount as f64;
    }

    fn born(&self) -> f64 {
        (self.cumulative[1] - self.cumulative[0]).max(0.0)
    }

    /// Variance of the change in live blocks if only chance caused it. Blocks that arrive at random and stay for some
    /// time (M/G/∞) are Poisson-distributed with mean L at each moment. So the change has variance 2·L, but at most 1
    /// for each block that came and for each block that went. If no block was freed, the change isn't random: variance
    /// 0.
    fn variance(&self) -> f64 {
        let died = (self.born() - (self.live[1] - self.live[0])).max(0.0);
        2.0 * self.born().min(died).min((self.live[0] + self.live[1]) / 2.0)
    }
}

/// Adds the variance from blocks that come and go to both sides of each site.
fn add_turnover_variance(both: &mut [Profile; 2]) {
    let mut numbers: HashMap<Function, u32> = HashMap::new();
    let mut sites: HashMap<Vec<u32>, (Blocks, [Option<Entry>; 2])> = HashMap::new();
    let mut alike: HashMap<Vec<u32>, Blocks> = HashMap::new();
    for (at, profile) in both.iter().enumerate() {
        let numbers = profile.number_functions(&mut numbers);
        for (entry, values) in profile.entries() {
            let key = profile.stack_by_numbers(entry.stack, &numbers);
            alike.entry(key[..key.len().min(ALIKE)].to_vec()).or_default().add(at, values);
            let (blocks, entries) = sites.entry(key).or_default();
            blocks.add(at, values);
            entries[at].get_or_insert(entry);
        }
    }
    for (key, (blocks, entries)) in sites {
        let own = blocks.variance();
        let variance = match alike.get(&key[..key.len().min(ALIKE)]) {
            Some(all) if blocks.born() < FEW => own.max(all.variance()),
            _ => own,
        };
        let size = (blocks.bytes[0] + blocks.bytes[1]) / (blocks.live[0] + blocks.live[1]).max(1.0);
        let sides = entries.iter().flatten().count() as f64;
        for (profile, entry) in both.iter_mut().zip(entries) {
            let Some(entry) = entry else { continue };
            let mut more = vec![Value::default(); profile.columns.len()];
            more[LIVE_COUNT].variance = variance / sides;
            more[LIVE].variance = variance * size * size / sides;
            more[HELD].variance = more[LIVE].variance;
            profile.add(entry.stack, entry.labels, &more);
        }
    }
}

fn normalized(of: &Sites, other: &Sites) -> Profile {
    let is_short = |entry: &Entry| of.details.get(entry).is_some_and(|detail| detail.unsampled);
    let is_short_there = |entry: &Entry| other.details.get(entry).is_some_and(|detail| detail.unsampled);
    let deep = Deep::new(
        Side { profile: &of.profile, is_short: &is_short, weight: HELD },
        Side { profile: &other.profile, is_short: &is_short_there, weight: HELD },
    );
    let mut copy = Copy::new(&other.profile);
    let mut profile = of.profile.emptied();
    let own = plimsoll_segment::FIXED_CATEGORIES[OWN];
    for (entry, values) in of.profile.entries() {
        if entry.labels.category.is_some_and(|name| of.profile.name_at(name) == own) {
            continue;
        }
        let detail = of.details.get(&entry);
        let mut values = values.to_vec();
        if let Some(detail) = detail {
            values[LIVE].variance = detail.division[0];
            values[HELD].variance = detail.division[0];
            values[LIVE_COUNT].variance = detail.division[1];
        }
        match detail.filter(|d| d.unsampled).and_then(|_| deep.of(&of.profile, entry)) {
            Some(receivers) => divide(&mut profile, &mut copy, receivers, entry, &values),
            None if profile.frames_of(entry.stack).is_empty() => {
                let category = entry.labels.category.map_or("of no category", |name| of.profile.name_at(name));
                // A thread from before the attach becomes known when it runs; then its stack moves from one category to
                // the other.
                let is_either = EARLY.contains(&category) || category == STACKS;
                let category = if is_either { "thread stacks, and before the attach" } else { category };
                let frame = profile.frame(Frame::no_stack(category));
                let stack = profile.stack(&[frame]);
                profile.add(stack, entry.labels, &values);
            }
            None => profile.add(entry.stack, entry.labels, &values),
        }
    }
    profile
}

/// Adds the values of a short stack's entry to the stacks that begin with it, in proportion to their weights.
fn divide(profile: &mut Profile, copy: &mut Copy, receivers: &[Receiver], entry: Entry, values: &[Value]) {
    let sum: f64 = receivers.iter().map(|r| r.weight).sum();
    let (mut run, mut given) = (0.0, [0i64; COLUMNS]);
    for receiver in receivers {
        run += receiver.weight;
        let mut part = vec![Value::default(); values.len()];
        for (column, value) in values.iter().enumerate() {
            let until = (value.amount as f64 * (run / sum).min(1.0)).round() as i64;
            part[column].amount = until - given[column];
            given[column] = until;
        }
        let stack = if receiver.own { receiver.stack } else { copy.stack(profile, receiver.stack) };
        profile.add(stack, entry.labels, &part);
    }
}

/// A report or a recording.
#[derive(Clone, Copy)]
struct Side<'a> {
    profile: &'a Profile,
    /// Whether these are blocks of a caller without samples, under its short stack.
    is_short: &'a dyn Fn(&Entry) -> bool,
    /// The column in proportion to which such blocks are divided.
    weight: usize,
}

/// A deep stack of either report, and its share of an unsampled caller's blocks.
struct Receiver {
    stack: StackId,
    /// Whether the stack belongs to the report that gives the blocks.
    own: bool,
    weight: f64,
}

/// The deep stacks of both reports by their beginning. Both are needed. Otherwise, the blocks of a caller without
/// samples in both reports could be divided in one report and kept in the other, where they would look new.
struct Deep {
    begin: HashMap<Vec<Function>, Vec<Receiver>>,
}

impl Deep {
    /// Collects only the beginnings that `of` needs.
    fn new(of: Side<'_>, other: Side<'_>) -> Deep {
        let mut begin: HashMap<Vec<Function>, Vec<Receiver>> = HashMap::new();
        for (entry, _) in of.profile.entries().filter(|(entry, _)| (of.is_short)(entry)) {
            let functions = functions(of.profile, entry.stack);
            if !functions.is_empty() {
                begin.entry(functions).or_default();
            }
        }
        if begin.is_empty() {
            return Deep { begin };
        }
        let mut lengths: Vec<usize> = begin.keys().map(Vec::len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let mut known: HashMap<Vec<Function>, usize> = HashMap::new();
        for (from, own) in [(of, true), (other, false)] {
            for (entry, values) in from.profile.entries() {
                if (from.is_short)(&entry) {
                    continue;
                }
                let functions = functions(from.profile, entry.stack);
                // Use the longest beginning, because two callers may begin alike.
                let fit = |length: &&usize| **length <= functions.len() && begin.contains_key(&functions[..**length]);
                let Some(length) = lengths.iter().rev().find(fit) else { continue };
                let Some(receivers) = begin.get_mut(&functions[..*length]) else { continue };
                let weight = values[from.weight].amount.max(1) as f64;
                match known.entry(functions) {
                    Occupied(at) => receivers[*at.get()].weight = receivers[*at.get()].weight.max(weight),
                    Vacant(at) => {
                        at.insert(receivers.len());
                        receivers.push(Receiver { stack: entry.stack, own, weight });
                    }
                }
            }
        }
        begin.retain(|_, receivers| !receivers.is_empty());
        Deep { begin }
    }

    fn of(&self, profile: &Profile, entry: Entry) -> Option<&Vec<Receiver>> {
        self.begin.get(&functions(profile, entry.stack))
    }
}

/// The frames up to the first one without a name: in a caller's short stack, Java code has only addresses, and a mark
/// for truncation ends it.
fn functions(profile: &Profile, stack: StackId) -> Vec<Function> {
    let all = profile.frames_of(stack).iter().map(|f| profile.function_at(profile.function_of(*f)));
    all.take_while(|f| f.named && !f.is_truncation()).cloned().collect()
}
