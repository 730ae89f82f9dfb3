//! Makes the entries of a profile: for each caller its sites and the rest, each divided by category; then the memory
//! without a caller.

use std::collections::{BTreeMap, HashMap};

use plimsoll_segment::CALLER_SITE;

use super::columns::{COLUMNS, HELD, MAPPED, MAPPED_COUNT, NOTHING, PEAK, PEAK_COUNT, SiteLine, TEMPORARY, of_figures};
use super::estimate::Times;
use super::frames::Frames;
use super::mappings::{Extent, OF_MAPPINGS, mapped_calls};
use super::rows_and_samples::{RowTotals, Sampled};
use super::{Detail, Sites, note};
use crate::books::Books;
use crate::segment::Segment;
use crate::symbols::Symbols;
use plimsoll_profiles::profile::{Entry, Frame, Labels, NameId, StackId, Value, WholeId};

/// Limit of the frames of all entries together. A segment from elsewhere may have 131,000 sites with 1,024 frames each,
/// and a view visits them all.
const FRAMES: usize = if cfg!(test) { 1 << 14 } else { 64 << 20 };

/// What the entries of a profile are made from, and the sites so far.
pub(super) struct SitesBuilder<'a> {
    pub(super) segment: &'a Segment,
    pub(super) books: &'a Books,
    pub(super) rows: Vec<RowTotals>,
    pub(super) sampled: HashMap<u32, Sampled>,
    pub(super) mapped: HashMap<u32, BTreeMap<usize, Extent>>,
    pub(super) times: Times,
    pub(super) out: Sites,
    pub(super) names: HashMap<String, NameId>,
    pub(super) by_thread: bool,
    pub(super) by_slot: HashMap<u32, Vec<(u32, f64)>>,
}

impl SitesBuilder<'_> {
    /// Returns how many sites got their caller's short stack, because the profile had [`FRAMES`] already.
    pub(super) fn build(&mut self, symbols: &mut Symbols) -> usize {
        let mut beyond = 0;
        let (segment, books) = (self.segment, self.books);
        let mut sites_of: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut frames = Frames::new(segment, books);
        frames.program(&mut self.out.profile);
        for (index, facts) in segment.callers.iter().enumerate() {
            if facts.flags & CALLER_SITE == 0 {
                continue;
            }
            let caller = segment.caller_of(index);
            if self.is_used(index) {
                sites_of.entry(caller).or_default().push(index);
                frames.note(facts.stack, facts.first_ns);
            }
        }
        for caller in &books.callers {
            if !caller.figures.is_empty() {
                frames.note_short(&caller.frames);
            }
        }
        frames.name(symbols);

        let mut left: Vec<[i64; COLUMNS]> = books.categories.iter().map(|c| of_figures(&c.figures)).collect();
        for (left, category) in left.iter_mut().zip(&books.categories) {
            left[HELD] = i64::try_from(books.held_by(category).0).unwrap_or(i64::MAX);
        }
        for (index, caller) in books.callers.iter().enumerate() {
            if segment.caller_of(index) != index {
                continue;
            }
            let sites = sites_of.remove(&index).unwrap_or_default();
            if caller.figures.is_empty() && sites.is_empty() && !self.mapped.contains_key(&(index as u32)) {
                continue;
            }
            let divided = self.divide(index, &caller.figures, &sites);
            let is_estimated = divided.iter().any(|(_, values, _)| values.iter().any(|v| v.variance > 0.0));
            let whole = (is_estimated && !self.by_thread).then(|| self.out.profile.whole());
            for (entry, values, detail) in divided {
                if values.iter().all(|v| v.amount == 0) && !self.mapped.contains_key(&(entry.unwrap_or(index) as u32)) {
                    continue;
                }
                let deep = entry.filter(|_| self.out.profile.depth() < FRAMES);
                let mut stack = match deep {
                    Some(site) => frames.stack(&mut self.out.profile, symbols, segment.callers[site].stack),
                    None => frames.short(&mut self.out.profile, symbols, &caller.frames),
                };
                beyond += usize::from(deep != entry);
                if deep.is_none() && caller.truncated && !stack.is_empty() {
                    stack.push(self.out.profile.frame(Frame::truncated()));
                }
                let id = self.out.profile.stack(&stack);
                let raw = entry.unwrap_or(index);
                for (category, values) in self.by_category(raw, caller.category, values) {
                    if let Some(left) = left.get_mut(category) {
                        left.iter_mut().zip(&values).for_each(|(left, v)| *left = left.saturating_sub(v.amount));
                    }
                    let detail =
                        if category == caller.category && deep == entry { detail.clone() } else { Detail::default() };
                    // A mapping isn't part of the division.
                    let whole = whole.filter(|_| category == caller.category);
                    self.add((id, whole), category, raw, &values, detail);
                }
            }
        }
        // Memory without a caller: thread stacks, libraries, Plimsoll's own.
        for (category, left) in left.into_iter().enumerate() {
            let mut values = left.map(|amount| Value { amount, variance: 0.0 });
            for column in [PEAK, PEAK_COUNT, TEMPORARY, MAPPED, MAPPED_COUNT] {
                values[column] = Value::default();
            }
            if values.iter().any(|v| v.amount != 0) {
                let id = self.out.profile.stack(&[]);
                let labels = Labels { category: self.category(category), ..Labels::default() };
                self.out.profile.add(id, labels, &values);
            }
        }
        beyond
    }

    fn is_used(&self, index: usize) -> bool {
        let calls = mapped_calls(&self.segment.callers[index]);
        self.rows[index] != RowTotals::default() || self.mapped.contains_key(&(index as u32)) || calls != (0, 0)
    }

    fn category(&mut self, index: usize) -> Option<NameId> {
        let name = &self.books.categories.get(index)?.name;
        if let Some(id) = self.names.get(name) {
            return Some(*id);
        }
        let id = self.out.profile.name(name);
        self.names.insert(name.clone(), id);
        Some(id)
    }

    fn add(
        &mut self,
        (stack, whole): (StackId, Option<WholeId>),
        category: usize,
        raw: usize,
        values: &SiteLine,
        detail: Detail,
    ) {
        let labels = Labels { category: self.category(category), ..Labels::default() };
        if !self.by_thread {
            match whole {
                Some(whole) => self.out.profile.add_part(whole, stack, labels, values),
                None => self.out.profile.add(stack, labels, values),
            }
            if detail != Detail::default() {
                note(&mut self.out.details, Entry { stack, labels }, detail);
            }
            return;
        }
        for (thread, values) in self.threads(raw, values) {
            let thread = thread.map(|name| self.out.profile.name(&name));
            self.out.profile.add(stack, Labels { thread, ..labels }, &values);
        }
    }

    /// An entry's blocks under its caller's category, its mappings under their own.
    fn by_category(&self, raw: usize, category: usize, values: SiteLine) -> Vec<(usize, SiteLine)> {
        let mut lines = vec![(category, values)];
        for (of, extent) in self.mapped.get(&(raw as u32)).into_iter().flatten() {
            if !lines.iter().any(|(c, _)| c == of) {
                lines.push((*of, NOTHING));
            }
            for (_, line) in lines.iter_mut().filter(|(c, _)| c == of) {
                for (column, bytes) in OF_MAPPINGS.into_iter().zip(extent) {
                    line[column] = line[column].plus(Value::exact(*bytes));
                }
            }
        }
        lines.retain(|(_, line)| line.iter().any(|v| v.amount != 0));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::FRAMES;
    use crate::books::Books;
    use crate::segment::{Life, RowSums, Segment};
    use crate::sites::{LIVE, Sites};
    use crate::symbols::{SymbolOptions, Symbols};
    use plimsoll_process::foreign::Deadline;
    use plimsoll_profiles::profile::Frame;
    use plimsoll_segment::{CALLER_SITE, Caller, CallerFacts, FrameNode, FrameNodeFacts, Sample, SampleFacts};
    use std::time::Duration;

    /// All nodes of a hostile segment are one chain, and each site begins at another one.
    #[test]
    fn deep_stacks_are_limited_in_frames_and_in_number() {
        const NODES: u32 = 3000;
        const SITES: u32 = 40;
        let node = FrameNodeFacts::decode(&[0; size_of::<FrameNode>()]).expect("zeros decode");
        let node = |n: u32| FrameNodeFacts { parent: n.saturating_sub(1), value: u64::from(n) << 12, ..node.clone() };
        let caller = CallerFacts::decode(&[0; size_of::<Caller>()]).expect("zeros decode");
        let frames = [0x9000, 0xa000, 0, 0, 0, 0, 0, 0];
        let site = |n| CallerFacts { flags: CALLER_SITE, stack: NODES - n, ..caller.clone() };
        let row = |caller| RowSums {
            caller,
            alloc_count: 1,
            alloc_bytes: 100 + u64::from(caller),
            alloc_requested: 100,
            ..RowSums::default()
        };
        let mut callers = vec![CallerFacts { depth: 2, frames, ..caller.clone() }];
        callers.extend((0..SITES).map(site));
        let segment = Segment {
            callers,
            rows: (1..=SITES).map(row).collect(),
            frames: (0..=NODES).map(node).collect(),
            ..Segment::default()
        };
        let books = Books::new(&segment, Life::Exited, 1);
        let without = SymbolOptions { without: true, ..SymbolOptions::default() };
        let mut symbols = Symbols::new(&without, &books, Deadline::after(Duration::from_secs(60)));
        let sites = Sites::new(&segment, &books, &mut symbols, 1, false);
        let profile = &sites.profile;

        // Each site has 1,024 frames and the mark of the cut, until the limit is reached; then each has the caller's
        // two frames.
        let deep = FRAMES.div_ceil(1025);
        let mut entries: Vec<(usize, i64)> =
            profile.entries().map(|(e, values)| (profile.frames_of(e.stack).len(), values[LIVE].amount)).collect();
        entries.sort_unstable();
        let mut expected: Vec<(usize, i64)> = (1..=deep).map(|n| (1025, 100 + n as i64)).collect();
        expected.insert(0, (2, (deep + 1..=SITES as usize).map(|n| 100 + n as i64).sum()));
        assert_eq!(entries, expected);
        let outermost = profile.entries().filter_map(|(e, _)| profile.frames_of(e.stack).last());
        let cut = outermost.filter(|frame| *profile.frame_at(**frame) == Frame::truncated()).count();
        assert_eq!(cut, deep);
        let expected = format!("{} sites have stacks beyond the limit", SITES as usize - deep);
        assert_eq!(profile.gaps.last().map(|gap| gap.reason.as_str()), Some(expected.as_str()));
    }

    /// The interpreter's and a compiler's stack of one call are two sites with the same frames.
    #[test]
    fn sites_of_one_stack_are_one_entry_with_the_samples_of_both() {
        let zeros = [0; size_of::<FrameNode>()];
        let node = |parent, value| FrameNodeFacts { parent, value, ..FrameNodeFacts::decode(&zeros).expect("zeros") };
        let caller = CallerFacts::decode(&[0; size_of::<Caller>()]).expect("zeros decode");
        let site = CallerFacts { flags: CALLER_SITE, stack: 1, ..caller.clone() };
        let row =
            |caller| RowSums { caller, alloc_count: 1, alloc_bytes: 100, alloc_requested: 100, ..RowSums::default() };
        let none = SampleFacts::decode(&[0; size_of::<Sample>()]).expect("zeros decode");
        let sample = |site, time_ns| SampleFacts { site, time_ns, usable: 100, requested: 100, ..none.clone() };
        let frames = [0x9000, 0, 0, 0, 0, 0, 0, 0];
        let segment = Segment {
            callers: vec![CallerFacts { depth: 1, frames, ..caller.clone() }, site.clone(), site],
            rows: vec![row(1), row(2)],
            frames: vec![node(0, 0), node(0, 0x9000)],
            samples: vec![sample(1, 100), sample(2, 900), sample(2, 950)],
            ..Segment::default()
        };
        let books = Books::new(&segment, Life::Exited, 1000);
        let without = SymbolOptions { without: true, ..SymbolOptions::default() };
        let mut symbols = Symbols::new(&without, &books, Deadline::after(Duration::from_secs(60)));
        let sites = Sites::new(&segment, &books, &mut symbols, 1000, false);
        let details: Vec<_> = sites.details.values().filter(|detail| detail.live_samples > 0).collect();
        let [detail] = details[..] else { panic!("{details:?}") };
        assert_eq!((detail.live_samples, detail.oldest_ns, detail.median_age_ns()), (3, Some(900), Some(100)));
    }
}
