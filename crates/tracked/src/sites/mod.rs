//! Sites: how much memory each stack holds or requested. Pure: a segment, its books and names → a profile.
//!
//! ```text
//! entry     = a site; and for each caller, what isn't known to belong to one of its sites (under its short stack)
//! Σ entries = the books' total, in each column of one moment; Σ entries of a category = that category
//! held      = live + resident without files: lines are ordered by it, never by what is only committed
//! ```
//! Memory without a stack (thread stacks, libraries, Plimsoll's own) is one entry without frames per category. In exact
//! mode, a site's figures are counted; otherwise `estimate.rs` divides the figures of its caller.

use std::collections::HashMap;

use crate::books::Books;
use crate::segment::Segment;
use crate::symbols::Symbols;
use plimsoll_facts::gap::{Gap, Source};
use plimsoll_facts::shell::one_line;
use plimsoll_profiles::profile::{Entry, FrameId, Profile, StackId};

mod builder;
mod by_thread;
mod columns;
mod comparable;
mod detail;
mod division;
mod estimate;
mod frames;
mod mappings;
mod peak;
mod recategorize;
mod rows_and_samples;
mod wrappers;

pub use columns::{
    COMMITTED, CUMULATIVE, CUMULATIVE_COUNT, FILES, HELD, LIVE, LIVE_COUNT, MAPPED, MAPPED_COUNT, PEAK, PEAK_COUNT,
    REQUESTED, RESERVED, RESIDENT, TEMPORARY, columns, figures,
};
pub use comparable::{comparable, comparable_recorded, of_one_run};
pub use detail::Detail;
pub use wrappers::Wrappers;

use builder::SitesBuilder;
use mappings::mapped;
use rows_and_samples::{rows, rows_by_slot, sampled, times};

#[derive(Clone, Debug, Default)]
pub struct Sites {
    pub profile: Profile,
    pub details: HashMap<Entry, Detail>,
    /// Whether `HELD` has the resident part of all mappings.
    pub is_resident_known: bool,
}

impl Sites {
    /// `now_boottime_ns` is the time of the reading, for ages. `by_thread`: entries are divided by allocating thread.
    pub fn new(
        segment: &Segment,
        books: &Books,
        symbols: &mut Symbols,
        now_boottime_ns: u64,
        by_thread: bool,
    ) -> Sites {
        let mut of = SitesBuilder {
            segment,
            books,
            rows: rows(segment),
            sampled: sampled(segment, now_boottime_ns),
            mapped: mapped(segment, books),
            times: times(segment),
            out: Sites {
                profile: Profile::new(columns()),
                is_resident_known: books.is_resident_known(),
                ..Sites::default()
            },
            names: HashMap::new(),
            by_thread,
            by_slot: HashMap::new(),
        };
        of.out.profile.title = title(books);
        of.out.profile.time_ns = books.time_ns;
        if by_thread {
            of.by_slot = rows_by_slot(segment);
        }
        let beyond = of.build(symbols);
        of.out.profile.sums_are_counted(|at, column| column.of_one_moment && at != TEMPORARY);
        of.out.profile.gaps = books.gaps.clone();
        of.out.profile.gaps.append(&mut symbols.gaps);
        if beyond > 0 {
            let reason = format!("{beyond} sites have stacks beyond the limit");
            let effect = "their memory is under the short stacks of their callers";
            of.out.profile.gaps.push(Gap::new(Source::Segment, reason, effect));
        }
        of.out
    }
}

impl Sites {
    /// These sites with innermost frames dropped; `leading` gives the number of dropped frames.
    pub fn trimmed(&self, mut leading: impl FnMut(&Profile, &[FrameId]) -> usize) -> Sites {
        let (profile, to) = self.profile.trimmed(|frames| leading(&self.profile, frames));
        self.moved(profile, &to)
    }

    /// Frames without a name get the name that `other` has for the same code. So a report that was saved without names
    /// can be compared with a report that has names.
    pub fn take_names(&mut self, other: &Sites) {
        if let Some((profile, to)) = self.profile.named_by(&other.profile) {
            *self = self.moved(profile, &to);
        }
    }

    /// These sites with `profile`, whose stacks are those of `to`.
    fn moved(&self, profile: Profile, to: &HashMap<StackId, StackId>) -> Sites {
        let mut details: HashMap<Entry, Detail> = HashMap::new();
        for (entry, detail) in &self.details {
            let Some(stack) = to.get(&entry.stack) else { continue };
            let entry = Entry { stack: *stack, ..*entry };
            // Several stacks may have become one.
            note(&mut details, entry, detail.clone());
        }
        Sites { profile, details, ..*self }
    }
}

/// Adds the detail of one of an entry's parts.
fn note(details: &mut HashMap<Entry, Detail>, entry: Entry, detail: Detail) {
    match details.get_mut(&entry) {
        Some(known) => known.merge(&detail),
        None => {
            details.insert(entry, detail);
        }
    }
}

/// One line that describes the profile.
pub fn title(books: &Books) -> String {
    let process = &books.process;
    let command = if process.arguments.is_empty() { process.executable.clone() } else { one_line(&process.arguments) };
    format!("native memory of {command}, pid {}", process.pid)
}
