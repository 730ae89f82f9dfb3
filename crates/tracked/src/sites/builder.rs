//! Makes the entries of a profile: for each caller its sites and the rest, each divided by category; then the memory
//! without a caller.

use std::collections::{BTreeMap, HashMap};

use plimsoll_segment::CALLER_SITE;

use super::columns::{COLUMNS, HELD, MAPPED, MAPPED_COUNT, NOTHING, PEAK, PEAK_COUNT, SiteLine, TEMPORARY, of_figures};
use super::estimate::Times;
use super::frames::Frames;
use super::mappings::{Extent, OF_MAPPINGS, mapped_calls};
use super::rows_and_samples::{RowTotals, Sampled};
use super::{Detail, Sites};
use crate::books::Books;
use crate::segment::Segment;
use crate::symbols::Symbols;
use plimsoll_profiles::profile::{Entry, Frame, Labels, NameId, StackId, Value};

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
    pub(super) fn build(&mut self, symbols: &mut Symbols) {
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
            for (entry, values, detail) in divided {
                if values.iter().all(|v| v.amount == 0) && !self.mapped.contains_key(&(entry.unwrap_or(index) as u32)) {
                    continue;
                }
                let stack = match entry {
                    Some(site) => frames.stack(&mut self.out.profile, symbols, segment.callers[site].stack),
                    None => frames.short(&mut self.out.profile, symbols, &caller.frames),
                };
                let mut stack = stack;
                if entry.is_none() && caller.truncated && !stack.is_empty() {
                    stack.push(self.out.profile.frame(Frame::truncated()));
                }
                let id = self.out.profile.stack(&stack);
                let raw = entry.unwrap_or(index);
                for (category, values) in self.by_category(raw, caller.category, values) {
                    if let Some(left) = left.get_mut(category) {
                        left.iter_mut().zip(&values).for_each(|(left, v)| *left = left.saturating_sub(v.amount));
                    }
                    let detail = if category == caller.category { detail.clone() } else { Detail::default() };
                    self.add(id, category, raw, &values, detail);
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

    fn add(&mut self, stack: StackId, category: usize, raw: usize, values: &SiteLine, detail: Detail) {
        let labels = Labels { category: self.category(category), ..Labels::default() };
        if !self.by_thread {
            self.out.profile.add(stack, labels, values);
            if detail != Detail::default() {
                self.out.details.insert(Entry { stack, labels }, detail);
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
